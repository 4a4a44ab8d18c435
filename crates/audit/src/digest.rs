//! Digests of payloads and keys: HMAC-SHA-256 with the store's key, so that short arguments cannot
//! be guessed back from a shared log.
//!
//! Doc: records.md#digests

use std::fmt;

use hmac::{Hmac, KeyInit, Mac};
use serde_json::Value;
use sha2::{Digest, Sha256};
use toolbooth_contracts::json::canonical;

/// Length of a store's digest key, in bytes.
pub const KEY_BYTES: usize = 32;

/// SHA-256 of `bytes`, in hex.
#[must_use]
pub fn sha256_hex(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    let digit = |half: u8| char::from(if half < 10 { b'0' + half } else { b'a' + half - 10 });
    let mut out = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        out.extend([digit(byte >> 4), digit(byte & 15)]);
    }
    out
}

/// 32 bytes from 64 hex digits.
pub(crate) fn unhex(text: &str) -> Option<[u8; 32]> {
    let mut bytes = [0u8; 32];
    if text.len() != 64 {
        return None;
    }
    for (byte, pair) in bytes.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
        let [high, low] = pair else { return None };
        let digit = |digit: u8| char::from(digit).to_digit(16);
        *byte = u8::try_from(digit(*high)? << 4 | digit(*low)?).ok()?;
    }
    Some(bytes)
}

/// A record as JSON, its members and those of its payloads in their own order: what is stored and
/// digested, byte for byte.
#[must_use]
pub fn record_text(record: &impl serde::Serialize) -> String {
    // Records are plain data; one that cannot be written is empty and fails verification.
    serde_json::to_string(record).unwrap_or_default()
}

/// SHA-256 of a record as it is stored, in hex: how a terminal event names its receipt and
/// its agent log.
#[must_use]
pub fn of_record(record: &impl serde::Serialize) -> String {
    sha256_hex(record_text(record).as_bytes())
}

/// Makes digests with the store's key.
#[derive(Clone)]
pub struct Digester {
    mac: Hmac<Sha256>,
    key_id: String,
    /// Digesters with the keys that were the store's before.
    older: Vec<Digester>,
}

impl fmt::Debug for Digester {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Digester").field("key_id", &self.key_id).finish_non_exhaustive()
    }
}

impl Digester {
    /// A digester with `key`; its id is derived from it and tells nothing of it.
    #[must_use]
    pub fn new(key: &[u8; KEY_BYTES]) -> Self {
        let mut id = Sha256::new();
        id.update(b"toolbooth digest key id");
        id.update(key);
        let mut key_id = hex(&id.finalize());
        key_id.truncate(16);
        #[expect(clippy::expect_used, reason = "HMAC takes keys of any length")]
        let mac = Hmac::new_from_slice(key).expect("HMAC takes keys of any length");
        Self { mac, key_id, older: Vec::new() }
    }

    /// The same, which also knows keys that were the store's before: what is held under their
    /// digests is found, and new digests are made with the newest key.
    #[must_use]
    pub fn with_older(self, keys: &[[u8; KEY_BYTES]]) -> Self {
        Self { older: keys.iter().map(Self::new).collect(), ..self }
    }

    /// Digesters with the keys that were the store's before.
    #[must_use]
    pub fn older(&self) -> &[Self] {
        &self.older
    }

    /// This one, then the older ones.
    pub fn all(&self) -> impl Iterator<Item = &Self> {
        std::iter::once(self).chain(&self.older)
    }

    /// The id of the key.
    #[must_use]
    pub fn key_id(&self) -> &str {
        &self.key_id
    }

    /// The digest of bytes, in hex.
    #[must_use]
    pub fn of_bytes(&self, bytes: &[u8]) -> String {
        let mut mac = self.mac.clone();
        mac.update(bytes);
        hex(&mac.finalize().into_bytes())
    }

    /// The digest of a document, over its canonical form, in hex.
    #[must_use]
    pub fn of(&self, value: &Value) -> String {
        self.of_bytes(canonical(value).as_bytes())
    }

    /// The digest of several parts, each bounded by its length, in hex.
    #[must_use]
    pub fn of_parts(&self, parts: &[&str]) -> String {
        let mut mac = self.mac.clone();
        for part in parts {
            mac.update(&(part.len() as u64).to_be_bytes());
            mac.update(part.as_bytes());
        }
        hex(&mac.finalize().into_bytes())
    }
}

#[cfg(test)]
mod tests {
    use toolbooth_contracts::json::parse;

    use super::*;

    #[test]
    fn equal_documents_have_equal_digests_and_big_integers_differ() {
        let digester = Digester::new(&[7; KEY_BYTES]);
        let of = |text: &str| digester.of(&parse(text.as_bytes()).unwrap());
        assert_eq!(of(r#"{"a":1.0,"b":2}"#), of(r#"{"b":2,"a":1}"#));
        assert_ne!(of("9007199254740993"), of("9007199254740992"));
        assert_ne!(digester.of_parts(&["ab", "c"]), digester.of_parts(&["a", "bc"]));
    }

    #[test]
    fn hmac_follows_the_standard() {
        // RFC 4231, test case 1, has a key of 20 bytes; HMAC pads keys with zeros.
        let mut key = [0u8; KEY_BYTES];
        key[..20].fill(0x0b);
        assert_eq!(
            Digester::new(&key).of_bytes(b"Hi There"),
            "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7"
        );
    }
}
