//! Reads signed tokens in the compact form (RFC 7515, 7.1) with their headers.
//!
//! Members of the header that name keys (`jku`, `jwk`, `x5u`, `x5c`) are never used: keys come from the
//! configured issuer only.
//!
//! Path: 1. Doc: front-doors.md#access-tokens

use data_encoding::BASE64URL_NOPAD;
use serde_json::{Map, Value};
use toolbooth_contracts::json;

use crate::error::TokenRefusal;

/// Maximum length of a token.
pub(super) const TOKEN_BYTES_MAX: usize = 16 << 10;

/// A signature algorithm (RFC 7518, 3.1; RFC 8037, 3.1). Symmetric ones and `none` are not among
/// them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Algorithm {
    Rs256,
    Rs384,
    Rs512,
    Ps256,
    Ps384,
    Ps512,
    Es256,
    Es384,
    EdDsa,
}

impl Algorithm {
    pub(super) fn named(name: &str) -> Option<Self> {
        Some(match name {
            "RS256" => Self::Rs256,
            "RS384" => Self::Rs384,
            "RS512" => Self::Rs512,
            "PS256" => Self::Ps256,
            "PS384" => Self::Ps384,
            "PS512" => Self::Ps512,
            "ES256" => Self::Es256,
            "ES384" => Self::Es384,
            // The second name is that of RFC 9864.
            "EdDSA" | "Ed25519" => Self::EdDsa,
            _ => return None,
        })
    }
}

/// A token as it was received; nothing of it is verified.
#[derive(Debug)]
pub(super) struct Jws<'t> {
    pub(super) algorithm: Algorithm,
    /// The id of the key, if the header has one.
    pub(super) kid: Option<String>,
    /// The text that is signed.
    pub(super) signed: &'t str,
    pub(super) claims: Map<String, Value>,
    pub(super) signature: Vec<u8>,
}

impl<'t> Jws<'t> {
    /// Reads a token.
    ///
    /// # Errors
    /// [`TokenRefusal`]: `TooLong`, `Malformed`, `Algorithm`, `Critical` or `Type`.
    pub(super) fn read(token: &'t str) -> Result<Self, TokenRefusal> {
        if token.len() > TOKEN_BYTES_MAX {
            return Err(TokenRefusal::TooLong);
        }
        let (signed, signature) = token.rsplit_once('.').ok_or(TokenRefusal::Malformed)?;
        let (header, claims) = signed.split_once('.').ok_or(TokenRefusal::Malformed)?;
        let header = members(header)?;
        let text = |name: &str| match header.get(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text.as_str())),
            Some(_) => Err(TokenRefusal::Malformed),
        };
        let algorithm = text("alg")?.and_then(Algorithm::named).ok_or(TokenRefusal::Algorithm)?;
        // No extension is understood here, so a critical one refuses the token (RFC 7515, 4.1.11).
        if header.contains_key("crit") {
            return Err(TokenRefusal::Critical);
        }
        // Other types are made for other purposes, such as `logout+jwt` (RFC 8725, 3.11).
        let is_access_token = text("typ")?.is_none_or(|kind| {
            ["jwt", "at+jwt", "application/at+jwt"].iter().any(|own| kind.eq_ignore_ascii_case(own))
        });
        if !is_access_token {
            return Err(TokenRefusal::Type);
        }
        Ok(Self {
            algorithm,
            kid: text("kid")?.map(str::to_owned),
            signed,
            claims: members(claims)?,
            signature: decoded(signature)?,
        })
    }
}

fn decoded(part: &str) -> Result<Vec<u8>, TokenRefusal> {
    BASE64URL_NOPAD.decode(part.as_bytes()).map_err(|_| TokenRefusal::Malformed)
}

/// Reads a part as a JSON object in which no member occurs twice.
fn members(part: &str) -> Result<Map<String, Value>, TokenRefusal> {
    match json::parse(&decoded(part)?) {
        Ok(Value::Object(members)) => Ok(members),
        _ => Err(TokenRefusal::Malformed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(header: &str, claims: &str) -> String {
        let encode = |text: &str| BASE64URL_NOPAD.encode(text.as_bytes());
        format!("{}.{}.{}", encode(header), encode(claims), encode("signature"))
    }

    #[test]
    fn tokens_with_other_headers_are_refused() {
        let of = |header: &str| Jws::read(&token(header, "{}")).map(|jws| jws.algorithm);
        assert_eq!(of(r#"{"alg":"RS256","typ":"at+jwt","jku":"https://a"}"#), Ok(Algorithm::Rs256));
        assert_eq!(of(r#"{"alg":"Ed25519","typ":"JWT"}"#), Ok(Algorithm::EdDsa));
        for bad in ["none", "None", "", "HS256", "rs256", "ES256K", "RSA-OAEP", "ES512"] {
            let header = format!("{{\"alg\":\"{bad}\"}}");
            assert_eq!(of(&header), Err(TokenRefusal::Algorithm), "{bad}");
        }
        assert_eq!(of("{}"), Err(TokenRefusal::Algorithm));
        for crit in ["[\"exp\"]", "[]", "null"] {
            let header = format!("{{\"alg\":\"RS256\",\"crit\":{crit}}}");
            assert_eq!(of(&header), Err(TokenRefusal::Critical), "{crit}");
        }
        for kind in ["logout+jwt", "dpop+jwt", ""] {
            let header = format!("{{\"alg\":\"RS256\",\"typ\":\"{kind}\"}}");
            assert_eq!(of(&header), Err(TokenRefusal::Type), "{kind}");
        }
        for bad in [
            r#"{"alg":1}"#,
            r#"{"alg":"RS256","kid":1}"#,
            r#"{"alg":"RS256","alg":"RS256"}"#,
            r#"{"alg":"RS256","typ":null}"#,
            "[]",
            "",
        ] {
            assert_eq!(of(bad), Err(TokenRefusal::Malformed), "{bad}");
        }
    }

    #[test]
    fn only_the_compact_form_is_read() {
        let good = token(r#"{"alg":"RS256"}"#, r#"{"sub":"a"}"#);
        assert!(Jws::read(&good).is_ok());
        let claims = |text: &str| Jws::read(&token(r#"{"alg":"RS256"}"#, text)).map(drop);
        for bad in ["[]", "null", r#"{"sub":"a","sub":"b"}"#, "{"] {
            assert_eq!(claims(bad), Err(TokenRefusal::Malformed), "{bad}");
        }
        for bad in [
            String::new(),
            "..".to_owned(),
            "a".to_owned(),
            format!("{good}.a"),
            format!("{good}="),
            good.replace('.', "+."),
        ] {
            assert_eq!(Jws::read(&bad).map(drop), Err(TokenRefusal::Malformed), "{bad}");
        }
        let long = format!("{good}{}", "A".repeat(TOKEN_BYTES_MAX));
        assert_eq!(Jws::read(&long).map(drop), Err(TokenRefusal::TooLong));
    }
}
