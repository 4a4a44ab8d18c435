//! SHA-256 (FIPS 180-4), by the package `ring`, which implements it in assembly for each processor.
//!
//! Path: 9. Doc: records.md#digests

use ring::digest::{Context, Digest, SHA256};

/// Computes the SHA-256 of bytes that are given in parts.
#[derive(Clone)]
pub struct Sha256(Context);

impl Default for Sha256 {
    fn default() -> Self {
        Self(Context::new(&SHA256))
    }
}

impl Sha256 {
    /// Returns the SHA-256 of bytes.
    #[must_use]
    pub fn of(bytes: &[u8]) -> [u8; 32] {
        array(&ring::digest::digest(&SHA256, bytes))
    }

    /// Adds bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// Returns the SHA-256 of all bytes.
    #[must_use]
    pub fn finish(self) -> [u8; 32] {
        array(&self.0.finish())
    }
}

fn array(digest: &Digest) -> [u8; 32] {
    #[expect(clippy::expect_used, reason = "every SHA-256 has 32 bytes")]
    digest.as_ref().try_into().expect("every SHA-256 has 32 bytes")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::digest::hex;

    #[test]
    fn digests_follow_the_standard() {
        // FIPS 180-4, the examples of NIST for one block, for two, and for a million letters.
        let examples: [(&[u8], usize, &str); 4] = [
            (b"", 1, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"),
            (b"abc", 1, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"),
            (
                b"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
                1,
                "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1",
            ),
            (b"a", 1_000_000, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0"),
        ];
        for (part, times, expected) in examples {
            assert_eq!(hex(&Sha256::of(&part.repeat(times))), expected);
            let mut parts = Sha256::default();
            for _ in 0..times {
                parts.update(part);
            }
            assert_eq!(hex(&parts.clone().finish()), expected);
            assert_eq!(hex(&parts.finish()), expected);
        }
    }
}
