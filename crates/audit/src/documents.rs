//! Documents that records name by their digests: contracts, and the policy as one document.
//!
//! Doc: records.md#documents

use jiff::{SignedDuration, Timestamp};

use crate::digest::sha256_hex;
use crate::error::{DamagedRow, LedgerError};

/// Hex digits that the name of a document has at least: 16 bytes of its SHA-256.
const DIGITS_MIN: usize = 32;
/// The time for which a use of a document counts. A process that uses one states so once in this time.
pub const USE_COUNTS: SignedDuration = SignedDuration::from_hours(24);

/// A document that a log names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Document {
    /// Its name: its SHA-256 in hex, or the beginning of it.
    pub digest: String,
    /// Its canonical JSON (RFC 8785).
    pub text: String,
    /// When it was used, RFC 3339 UTC.
    pub used: String,
}

impl Document {
    /// Returns the time before which a stored use is too old to count for this one.
    #[must_use]
    pub fn renewed_before(&self) -> String {
        used_before(&self.used)
    }
}

/// A document as stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RawDocument {
    /// Its name.
    pub digest: String,
    /// Its text; `None` if it cannot be read.
    pub text: Option<String>,
}

/// Whether a text has the digest that names it.
#[must_use]
pub fn is_named(digest: &str, text: &str) -> bool {
    digest.len() >= DIGITS_MIN && sha256_hex(text.as_bytes()).starts_with(digest)
}

/// Returns the text of a document; `text` is `None` if its row cannot be read.
///
/// # Errors
/// [`LedgerError::Damaged`] if it cannot be read, or has another digest.
pub fn checked(digest: &str, text: Option<String>) -> Result<String, LedgerError> {
    text.filter(|text| is_named(digest, text)).ok_or_else(|| {
        let (table, row) = ("documents".to_owned(), digest.to_owned());
        let reason = "its text does not have this digest".to_owned();
        LedgerError::Damaged(DamagedRow { table, row, reason })
    })
}

/// Returns the time before which a document must have been used last, if no log from `before` on or later names
/// it.
#[must_use]
pub fn used_before(before: &str) -> String {
    let earlier = before.parse::<Timestamp>().ok().and_then(|at| at.checked_sub(USE_COUNTS).ok());
    // A time that cannot be read removes nothing.
    earlier.map(|at| format!("{at:.3}")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_is_named_by_enough_of_its_digest() {
        let whole = sha256_hex(b"{}");
        assert!(is_named(&whole, "{}"));
        assert!(is_named(whole.get(..32).unwrap(), "{}"));
        assert!(!is_named(whole.get(..31).unwrap(), "{}"));
        assert!(!is_named("", "{}") && !is_named(&whole, "{ }"));
    }

    #[test]
    fn a_use_counts_for_a_day() {
        assert_eq!(used_before("2026-03-01T00:00:00.000Z"), "2026-02-28T00:00:00.000Z");
        assert_eq!(used_before("soon"), "");
    }
}
