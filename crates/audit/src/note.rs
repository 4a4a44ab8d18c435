//! Signed notes (C2SP `signed-note`): a text followed by Ed25519 signatures.
//!
//! Path: 9. Doc: records.md#checkpoints

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ed25519_dalek::Signer as _;
use ed25519_dalek::{Signature, SigningKey, VerifyingKey};

use crate::digest::hex;
pub use crate::error::NoteError;
use crate::sha256::Sha256;

/// The default name of keys.
pub const KEY_NAME: &str = "toolbooth-audit";
/// Length of a signing key's seed, in bytes.
pub const SEED_BYTES: usize = 32;
/// The signature type of Ed25519.
const ED25519: u8 = 1;
/// Maximum size of a note, in bytes.
pub const NOTE_BYTES_MAX: usize = 1 << 20;

fn key_id(name: &str, key: &VerifyingKey) -> [u8; 4] {
    let mut hasher = Sha256::default();
    hasher.update(name.as_bytes());
    hasher.update(&[b'\n', ED25519]);
    hasher.update(key.as_bytes());
    let [a, b, c, d, ..] = hasher.finish();
    [a, b, c, d]
}

fn is_name(name: &str) -> bool {
    !name.is_empty() && !name.chars().any(|c| c.is_whitespace() || c == '+')
}

/// Signs notes.
#[derive(Clone)]
pub struct Signer {
    name: String,
    key: SigningKey,
}

impl fmt::Debug for Signer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Signer").field("verifier", &self.verifier().to_string()).finish()
    }
}

impl Signer {
    /// Returns a signer with the seed of an Ed25519 key (RFC 8032).
    #[must_use]
    pub fn new(seed: &[u8; SEED_BYTES]) -> Self {
        Self { name: KEY_NAME.to_owned(), key: SigningKey::from_bytes(seed) }
    }

    /// Returns the key that checks its signatures.
    #[must_use]
    pub fn verifier(&self) -> PublicKey {
        PublicKey { name: self.name.clone(), key: self.key.verifying_key() }
    }

    /// Returns the signed note over `text`, which ends with a newline.
    #[must_use]
    pub fn sign(&self, text: &str) -> String {
        let signature = self.key.sign(text.as_bytes());
        let mut bytes = key_id(&self.name, &self.key.verifying_key()).to_vec();
        bytes.extend_from_slice(&signature.to_bytes());
        format!("{text}\n— {} {}\n", self.name, STANDARD.encode(bytes))
    }
}

/// Checks signatures of one key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublicKey {
    name: String,
    key: VerifyingKey,
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let id = hex(&key_id(&self.name, &self.key));
        let mut bytes = vec![ED25519];
        bytes.extend_from_slice(self.key.as_bytes());
        write!(f, "{}+{id}+{}", self.name, STANDARD.encode(bytes))
    }
}

impl PublicKey {
    /// Parses a verifier key from its text form `NAME+HASH+KEY`.
    ///
    /// # Errors
    /// [`NoteError::Key`].
    pub fn parse(text: &str) -> Result<Self, NoteError> {
        let mut parts = text.trim().splitn(3, '+');
        let (Some(name), Some(id), Some(key)) = (parts.next(), parts.next(), parts.next()) else {
            return Err(NoteError::Key);
        };
        let bytes = STANDARD.decode(key).map_err(|_| NoteError::Key)?;
        let Some((&ED25519, key)) = bytes.split_first() else { return Err(NoteError::Key) };
        let key: &[u8; 32] = key.try_into().map_err(|_| NoteError::Key)?;
        let key = VerifyingKey::from_bytes(key).map_err(|_| NoteError::Key)?;
        let own = hex(&key_id(name, &key));
        if !is_name(name) || id != own {
            return Err(NoteError::Key);
        }
        Ok(Self { name: name.to_owned(), key })
    }

    /// Returns the text of a note that this key has signed.
    ///
    /// # Errors
    /// [`NoteError`].
    pub fn open<'n>(&self, note: &'n str) -> Result<&'n str, NoteError> {
        let (text, signatures) = split(note)?;
        let id = key_id(&self.name, &self.key);
        let mut found = false;
        for line in signatures.lines() {
            let (name, bytes) = signature(line)?;
            let Some((own, bytes)) = bytes.split_at_checked(4) else {
                return Err(NoteError::Form("a signature is too short"));
            };
            if name != self.name || own != id {
                continue;
            }
            let wrong = || NoteError::Signature(self.name.clone());
            let signature = Signature::from_slice(bytes).map_err(|_| wrong())?;
            self.key.verify_strict(text.as_bytes(), &signature).map_err(|_| wrong())?;
            found = true;
        }
        if found { Ok(text) } else { Err(NoteError::OtherKey(self.to_string())) }
    }
}

/// Splits a note into its text and its signature lines. The signatures are not verified.
///
/// # Errors
/// [`NoteError::Form`].
pub fn split(note: &str) -> Result<(&str, &str), NoteError> {
    if note.len() > NOTE_BYTES_MAX {
        return Err(NoteError::Form("it is too long"));
    }
    let Some(at) = note.rfind("\n\n") else {
        return Err(NoteError::Form("there is no empty line before the signatures"));
    };
    let (text, signatures) = note.split_at(at + 1);
    let signatures = signatures.strip_prefix('\n').unwrap_or_default();
    if !signatures.ends_with('\n') {
        return Err(NoteError::Form("it does not end with a newline"));
    }
    signatures.lines().try_for_each(|line| signature(line).map(drop))?;
    Ok((text, signatures))
}

fn signature(line: &str) -> Result<(&str, Vec<u8>), NoteError> {
    let malformed = NoteError::Form("a signature line is not `— NAME SIGNATURE`");
    let rest = line.strip_prefix("— ").ok_or_else(|| malformed.clone())?;
    let (name, text) = rest.split_once(' ').ok_or_else(|| malformed.clone())?;
    let bytes = STANDARD.decode(text).map_err(|_| malformed.clone())?;
    if is_name(name) { Ok((name, bytes)) } else { Err(malformed) }
}

#[cfg(test)]
mod tests {
    use signed_note::{Note, StandardVerifier, VerifierList};

    use super::*;

    #[test]
    fn notes_are_what_another_implementation_reads() {
        let signer = Signer::new(&[7; SEED_BYTES]);
        let note = signer.sign("origin\n4\nroot\n");
        let key = signer.verifier().to_string();
        let other = StandardVerifier::new(&key).unwrap();
        let known = VerifierList::new(vec![Box::new(other)]);
        let read = Note::from_bytes(note.as_bytes()).unwrap();
        let (verified, unknown) = read.verify(&known).unwrap();
        assert_eq!((verified.len(), unknown.len()), (1, 0));
        assert_eq!(read.text(), b"origin\n4\nroot\n");
        assert_eq!(PublicKey::parse(&key).unwrap().open(&note).unwrap(), "origin\n4\nroot\n");
        // RFC 8032, section 7.1, test 1: this seed has this public key.
        let seed = "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60";
        let signer = Signer::new(&crate::digest::unhex(seed).unwrap());
        assert_eq!(
            crate::digest::hex(signer.verifier().key.as_bytes()),
            "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a"
        );
    }

    #[test]
    fn every_changed_character_of_a_note_is_found() {
        let signer = Signer::new(&[7; SEED_BYTES]);
        let (note, verifier) = (signer.sign("origin\n4\nroot\n"), signer.verifier());
        for at in 0..note.len() {
            let mut bytes = note.clone().into_bytes();
            bytes[at] ^= 1;
            let opened = String::from_utf8(bytes).is_ok_and(|note| verifier.open(&note).is_ok());
            assert!(!opened, "byte {at}");
        }
        let other = Signer::new(&[8; SEED_BYTES]).verifier();
        assert!(matches!(other.open(&note), Err(NoteError::OtherKey(_))));
        for bad in ["", "name", "name+00000000+AQ==", "a b+0+x", &format!("{other}x")] {
            assert_eq!(PublicKey::parse(bad), Err(NoteError::Key), "{bad}");
        }
    }
}
