//! Computes digests of payloads and keys as HMAC-SHA-256 with the store's key. Short arguments
//! cannot be guessed from the digests in a shared log.
//!
//! Doc: records.md#digests

use std::fmt;

use data_encoding::{HEXLOWER, HEXLOWER_PERMISSIVE};
use ring::hmac::{Context, HMAC_SHA256, Key};
use serde_json::Value;
use toolbooth_contracts::json::write_canonical;

use crate::sha256::Sha256;

/// Length of a store's digest key, in bytes.
pub const KEY_BYTES: usize = 32;

/// Returns the SHA-256 of `bytes`, in hex.
#[must_use]
pub fn sha256_hex(bytes: &[u8]) -> String {
    hex(&Sha256::of(bytes))
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    HEXLOWER.encode(bytes)
}

/// Decodes 32 bytes from 64 hex digits.
pub(crate) fn unhex(text: &str) -> Option<[u8; 32]> {
    if text.len() != 64 {
        return None;
    }
    HEXLOWER_PERMISSIVE.decode(text.as_bytes()).ok()?.try_into().ok()
}

/// Serializes a record as JSON, with its members and those of its payloads in their own order. This
/// text is stored and digested byte for byte.
#[must_use]
pub fn record_text(record: &impl serde::Serialize) -> String {
    // Most records fit into this capacity.
    let mut text = Vec::with_capacity(1024);
    // Records are plain data; a record that cannot be serialized is empty and fails verification.
    let written = serde_json::to_writer(&mut text, record).ok();
    written.and_then(|()| String::from_utf8(text).ok()).unwrap_or_default()
}

/// Returns the SHA-256 of a record as stored, in hex. A terminal event names its receipt and its
/// agent log by this digest.
#[must_use]
pub fn of_record(record: &impl serde::Serialize) -> String {
    sha256_hex(record_text(record).as_bytes())
}

/// Makes digests with the store's key.
#[derive(Clone)]
pub struct Digester {
    key: Key,
    key_id: String,
    /// The digesters with the store's earlier keys.
    older: Vec<Digester>,
}

impl fmt::Debug for Digester {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Digester").field("key_id", &self.key_id).finish_non_exhaustive()
    }
}

impl Digester {
    /// Returns a digester with `key`. The key id is derived from the key and does not reveal it.
    #[must_use]
    pub fn new(key: &[u8; KEY_BYTES]) -> Self {
        let mut id = Sha256::default();
        id.update(b"toolbooth digest key id");
        id.update(key);
        let mut key_id = hex(&id.finish());
        key_id.truncate(16);
        Self { key: Key::new(HMAC_SHA256, key), key_id, older: Vec::new() }
    }

    /// Adds the store's earlier keys. Records under their digests are found; new digests use the
    /// newest key.
    #[must_use]
    pub fn with_older(self, keys: &[[u8; KEY_BYTES]]) -> Self {
        Self { older: keys.iter().map(Self::new).collect(), ..self }
    }

    /// The digesters with the store's earlier keys.
    #[must_use]
    pub fn older(&self) -> &[Self] {
        &self.older
    }

    /// Returns this digester, then the older ones.
    pub fn all(&self) -> impl Iterator<Item = &Self> {
        std::iter::once(self).chain(&self.older)
    }

    /// Returns the id of the key.
    #[must_use]
    pub fn key_id(&self) -> &str {
        &self.key_id
    }

    /// Returns the digest of bytes, in hex.
    #[must_use]
    pub fn of_bytes(&self, bytes: &[u8]) -> String {
        hex(ring::hmac::sign(&self.key, bytes).as_ref())
    }

    /// Returns the digest of a document, over its canonical form, in hex.
    #[must_use]
    pub fn of(&self, value: &Value) -> String {
        let mut own = Pieces::new([self]);
        // Writing to a hash cannot fail.
        let _ = write_canonical(value, &mut own);
        own.end().pop().unwrap_or_default()
    }

    /// Returns the digest of [`Digester::of`] and the digests with the store's earlier keys. The
    /// document is traversed once.
    #[must_use]
    pub fn of_all(&self, value: &Value) -> (String, Vec<String>) {
        let mut own = Pieces::new(self.all());
        // Writing to a hash cannot fail.
        let _ = write_canonical(value, &mut own);
        let mut digests = own.end().into_iter();
        (digests.next().unwrap_or_default(), digests.collect())
    }

    /// Returns the digest of a serialized record, in hex.
    #[must_use]
    pub fn of_written(&self, record: &impl serde::Serialize) -> String {
        let mut own = Pieces::new([self]);
        // Writing to a hash cannot fail, and records are plain data.
        let _ = serde_json::to_writer(&mut own, record);
        own.end().pop().unwrap_or_default()
    }

    /// Returns the digest of several parts, each prefixed with its length, in hex.
    #[must_use]
    pub fn of_parts(&self, parts: &[&str]) -> String {
        let mut mac = Context::with_key(&self.key);
        for part in parts {
            mac.update(&(part.len() as u64).to_be_bytes());
            mac.update(part.as_bytes());
        }
        hex(mac.sign().as_ref())
    }
}

/// The size of the buffer before hashing, in bytes.
const PIECE: usize = 4 << 10;

/// Hashes written data in pieces.
struct Pieces {
    macs: Vec<Context>,
    gathered: Vec<u8>,
}

impl Pieces {
    fn new<'d>(digesters: impl IntoIterator<Item = &'d Digester>) -> Self {
        let macs = digesters.into_iter().map(|digester| Context::with_key(&digester.key)).collect();
        Self { macs, gathered: Vec::with_capacity(PIECE) }
    }

    fn take(&mut self, bytes: &[u8]) {
        if self.gathered.len() + bytes.len() <= PIECE {
            return self.gathered.extend_from_slice(bytes);
        }
        for mac in &mut self.macs {
            mac.update(&self.gathered);
            mac.update(bytes);
        }
        self.gathered.clear();
    }

    fn end(self) -> Vec<String> {
        let hashed = self.macs.into_iter().map(|mut mac| {
            mac.update(&self.gathered);
            hex(mac.sign().as_ref())
        });
        hashed.collect()
    }
}

impl fmt::Write for Pieces {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.take(text.as_bytes());
        Ok(())
    }
}

impl std::io::Write for Pieces {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.take(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
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
    fn what_is_hashed_in_pieces_is_hashed_whole() {
        let digester = Digester::new(&[7; KEY_BYTES]).with_older(&[[8; KEY_BYTES]]);
        for length in [0, 10, 4_090, 4_096, 5_000, 10_000] {
            let value = Value::from(vec!["x".repeat(length), "y".to_owned()]);
            let whole = toolbooth_contracts::json::canonical(&value);
            let older = Digester::new(&[8; KEY_BYTES]).of_bytes(whole.as_bytes());
            let own = digester.of_bytes(whole.as_bytes());
            assert_eq!(digester.of_all(&value), (own.clone(), vec![older]));
            assert_eq!((digester.of(&value), digester.of_written(&value)), (own.clone(), own));
        }
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
