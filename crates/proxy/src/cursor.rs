//! Cursors of listings: opaque to clients, and rejected unless this gateway made them.
//!
//! Replicas that share a store share its digest key, and accept each other's cursors.
//!
//! Doc: front-doors.md#cursors

use data_encoding::{HEXLOWER, HEXLOWER_PERMISSIVE};

use crate::proxy::ToolProxy;

/// Hex digits of the seal.
const SEAL_DIGITS: usize = 32;
/// Bytes of a place in a listing.
const POSITION_BYTES_MAX: usize = 8 << 10;

impl ToolProxy {
    /// Returns a cursor for the place `position` in the listing `listing`.
    #[must_use]
    pub fn cursor(&self, listing: &str, position: &str) -> String {
        let mut cursor = self.seal(listing, position);
        cursor.push('.');
        HEXLOWER.encode_append(position.as_bytes(), &mut cursor);
        cursor
    }

    /// Returns the place of a cursor in the listing `listing`; `None` if the cursor is not of this
    /// listing.
    #[must_use]
    pub fn position(&self, listing: &str, cursor: &str) -> Option<String> {
        let (seal, position) = cursor.split_once('.')?;
        if position.len() > POSITION_BYTES_MAX * 2 {
            return None;
        }
        let position = unhex(position)?;
        // A forged cursor opens only a listing that its caller can read anyway.
        (self.seal(listing, &position) == seal).then_some(position)
    }

    fn seal(&self, listing: &str, position: &str) -> String {
        let digest = self.state().parts.ledger.digester().of_parts(&["cursor", listing, position]);
        digest.chars().take(SEAL_DIGITS).collect()
    }
}

fn unhex(text: &str) -> Option<String> {
    String::from_utf8(HEXLOWER_PERMISSIVE.decode(text.as_bytes()).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hex_is_read_back() {
        assert_eq!(unhex("c3a4").as_deref(), Some("ä"));
        for bad in ["c", "zz", "ff", "+1"] {
            assert_eq!(unhex(bad), None, "{bad}");
        }
        assert_eq!(unhex("").as_deref(), Some(""));
    }
}
