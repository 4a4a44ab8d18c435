//! The public keys of an issuer (RFC 7517), and the verification of signatures with them.
//!
//! Path: 1. Doc: front-doors.md#access-tokens

use data_encoding::BASE64URL_NOPAD;
use ring::signature::{self, RsaPublicKeyComponents, UnparsedPublicKey};
use serde::Deserialize;
use serde_json::Value;

use super::jws::{Algorithm, Jws};
use crate::error::{DocumentError, TokenRefusal};

/// Maximum number of keys of one issuer.
const KEYS_MAX: usize = 100;
/// The bytes of the shortest RSA modulus that is accepted (2048 bits; RFC 7518, 3.3).
const MODULUS_BYTES_MIN: usize = 256;

/// A public key.
#[derive(Debug, Clone, PartialEq, Eq)]
enum JwkKey {
    Rsa {
        n: Vec<u8>,
        e: Vec<u8>,
    },
    /// Uncompressed points.
    P256(Vec<u8>),
    P384(Vec<u8>),
    Ed25519(Vec<u8>),
}

/// A key with the uses that its issuer allows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct VerifyingKey {
    kid: Option<String>,
    /// The only algorithm, if the issuer names one.
    algorithm: Option<Algorithm>,
    key: JwkKey,
}

/// The keys of an issuer that verify signatures.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct KeySet(Vec<VerifyingKey>);

/// A key as the issuer publishes it (RFC 7517, 4; RFC 7518, 6; RFC 8037, 2).
#[derive(Deserialize)]
struct Jwk {
    kty: String,
    r#use: Option<String>,
    key_ops: Option<Vec<String>>,
    alg: Option<String>,
    kid: Option<String>,
    crv: Option<String>,
    n: Option<String>,
    e: Option<String>,
    x: Option<String>,
    y: Option<String>,
}

impl Jwk {
    /// Returns the key; `None` if it does not verify signatures, or is of an unsupported kind.
    fn verifying(self) -> Option<VerifyingKey> {
        let verifies = self.r#use.is_none_or(|purpose| purpose == "sig")
            && self.key_ops.is_none_or(|all| all.iter().any(|one| one == "verify"));
        if !verifies {
            return None;
        }
        let algorithm = match &self.alg {
            Some(name) => Some(Algorithm::named(name)?),
            None => None,
        };
        let bytes = |text: Option<String>| BASE64URL_NOPAD.decode(text?.as_bytes()).ok();
        let coordinate = |text, length| bytes(text).filter(|bytes| bytes.len() == length);
        let point =
            |x, y, length| Some([vec![4], coordinate(x, length)?, coordinate(y, length)?].concat());
        let key = match (self.kty.as_str(), self.crv.as_deref()) {
            ("RSA", _) => {
                let number = |text| {
                    let all = bytes(text)?;
                    let first = all.iter().position(|byte| *byte != 0)?;
                    all.get(first..).map(<[u8]>::to_vec)
                };
                let n = number(self.n).filter(|n| n.len() >= MODULUS_BYTES_MIN)?;
                JwkKey::Rsa { n, e: number(self.e)? }
            }
            ("EC", Some("P-256")) => JwkKey::P256(point(self.x, self.y, 32)?),
            ("EC", Some("P-384")) => JwkKey::P384(point(self.x, self.y, 48)?),
            ("OKP", Some("Ed25519")) => JwkKey::Ed25519(coordinate(self.x, 32)?),
            _ => return None,
        };
        let key = VerifyingKey { kid: self.kid, algorithm, key };
        algorithm.is_none_or(|algorithm| key.fits(algorithm)).then_some(key)
    }
}

impl VerifyingKey {
    /// Whether the key is made for an algorithm.
    fn fits(&self, algorithm: Algorithm) -> bool {
        use Algorithm::{EdDsa, Es256, Es384, Ps256, Ps384, Ps512, Rs256, Rs384, Rs512};
        let is_of_kind = match self.key {
            JwkKey::Rsa { .. } => {
                matches!(algorithm, Rs256 | Rs384 | Rs512 | Ps256 | Ps384 | Ps512)
            }
            JwkKey::P256(_) => algorithm == Es256,
            JwkKey::P384(_) => algorithm == Es384,
            JwkKey::Ed25519(_) => algorithm == EdDsa,
        };
        is_of_kind && self.algorithm.is_none_or(|own| own == algorithm)
    }

    fn verifies(&self, jws: &Jws<'_>) -> bool {
        let (message, signature) = (jws.signed.as_bytes(), &jws.signature);
        let verified = match &self.key {
            JwkKey::Rsa { n, e } => {
                let rules = match jws.algorithm {
                    Algorithm::Rs256 => &signature::RSA_PKCS1_2048_8192_SHA256,
                    Algorithm::Rs384 => &signature::RSA_PKCS1_2048_8192_SHA384,
                    Algorithm::Rs512 => &signature::RSA_PKCS1_2048_8192_SHA512,
                    Algorithm::Ps256 => &signature::RSA_PSS_2048_8192_SHA256,
                    Algorithm::Ps384 => &signature::RSA_PSS_2048_8192_SHA384,
                    Algorithm::Ps512 => &signature::RSA_PSS_2048_8192_SHA512,
                    Algorithm::Es256 | Algorithm::Es384 | Algorithm::EdDsa => return false,
                };
                RsaPublicKeyComponents { n, e }.verify(rules, message, signature)
            }
            JwkKey::P256(point) => {
                UnparsedPublicKey::new(&signature::ECDSA_P256_SHA256_FIXED, point)
                    .verify(message, signature)
            }
            JwkKey::P384(point) => {
                UnparsedPublicKey::new(&signature::ECDSA_P384_SHA384_FIXED, point)
                    .verify(message, signature)
            }
            JwkKey::Ed25519(x) => {
                UnparsedPublicKey::new(&signature::ED25519, x).verify(message, signature)
            }
        };
        verified.is_ok()
    }
}

impl KeySet {
    /// Reads a key set. Keys of other kinds and for other purposes are left out (RFC 7517, 5).
    ///
    /// # Errors
    /// [`DocumentError::Malformed`], if it is no key set, or has too many keys.
    pub(super) fn read(document: &[u8]) -> Result<Self, DocumentError> {
        #[derive(Deserialize)]
        struct Document {
            keys: Vec<Value>,
        }
        let wrong = |reason: String| DocumentError::Malformed { reason };
        let read: Document = serde_json::from_slice(document)
            .map_err(|error| wrong(format!("it is not a key set (RFC 7517): {error}")))?;
        if read.keys.len() > KEYS_MAX {
            return Err(wrong(format!("it has more than {KEYS_MAX} keys")));
        }
        let keys = read.keys.into_iter().filter_map(|key| Jwk::deserialize(key).ok()?.verifying());
        Ok(Self(keys.collect()))
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn has(&self, key: &VerifyingKey) -> bool {
        self.0.contains(key)
    }

    /// Returns the key that verifies a token's signature. A token that names no key must have a
    /// single candidate.
    ///
    /// # Errors
    /// [`TokenRefusal::UnknownKey`], if no key can have signed it; [`TokenRefusal::Signature`].
    pub(super) fn verify(&self, jws: &Jws<'_>) -> Result<&VerifyingKey, TokenRefusal> {
        let is_candidate = |key: &&VerifyingKey| {
            key.fits(jws.algorithm)
                && jws.kid.as_ref().is_none_or(|kid| key.kid.as_ref() == Some(kid))
        };
        let mut candidates = self.0.iter().filter(is_candidate).peekable();
        if candidates.peek().is_none() {
            return Err(TokenRefusal::UnknownKey);
        }
        if jws.kid.is_none() && candidates.clone().count() > 1 {
            return Err(TokenRefusal::UnknownKey);
        }
        candidates.find(|key| key.verifies(jws)).ok_or(TokenRefusal::Signature)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_for_other_purposes_are_left_out() {
        let x = BASE64URL_NOPAD.encode(&[1; 32]);
        let len =
            |keys: &str| KeySet::read(format!("{{\"keys\":[{keys}]}}").as_bytes()).unwrap().len();
        let good = format!("{{\"kty\":\"OKP\",\"crv\":\"Ed25519\",\"x\":\"{x}\"");
        assert_eq!(len(&format!("{good}}},{good},\"use\":\"sig\",\"alg\":\"EdDSA\"}}")), 2);
        assert_eq!(len(&format!("{good},\"key_ops\":[\"verify\"],\"more\":[1]}}")), 1);
        for bad in [
            "1".to_owned(),
            "{\"kty\":\"oct\",\"k\":\"AAAA\"}".to_owned(),
            format!("{good},\"use\":\"enc\"}}"),
            format!("{good},\"key_ops\":[\"encrypt\"]}}"),
            format!("{good},\"alg\":\"HS256\"}}"),
            format!("{good},\"alg\":\"RS256\"}}"),
            "{\"kty\":\"OKP\",\"crv\":\"Ed25519\",\"x\":\"AAAA\"}".to_owned(),
            "{\"kty\":\"OKP\",\"crv\":\"X25519\"}".to_owned(),
            format!("{{\"kty\":\"EC\",\"crv\":\"P-256\",\"x\":\"{x}\"}}"),
            format!("{{\"kty\":\"EC\",\"crv\":\"secp256k1\",\"x\":\"{x}\",\"y\":\"{x}\"}}"),
            // 1024 bits.
            format!(
                "{{\"kty\":\"RSA\",\"n\":\"{}\",\"e\":\"AQAB\"}}",
                BASE64URL_NOPAD.encode(&[1; 128])
            ),
            "{\"kty\":\"RSA\",\"n\":\"\",\"e\":\"AQAB\"}".to_owned(),
        ] {
            assert_eq!(len(&bad), 0, "{bad}");
        }
        for bad in
            ["", "[]", "{}", "{\"keys\":1}", &format!("{{\"keys\":[{}1]}}", "1,".repeat(100))]
        {
            assert!(KeySet::read(bad.as_bytes()).is_err(), "{bad}");
        }
    }
}
