//! Documents that records name by their digests: contracts, the policy as one document, and the attributes of
//! callers, if they are large.
//!
//! Doc: records.md#documents

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use crate::digest::sha256_hex;
use crate::error::{DamagedRow, LedgerError};

/// Hex digits that the name of a document has at least: 16 bytes of its SHA-256.
const DIGITS_MIN: usize = 32;
/// The time for which a use of a document counts. It is more than [`RENEWED`] and [`REMEMBERED`] together, since
/// the last log that names a document may be so much later than its stored use.
const USE_COUNTS: SignedDuration = SignedDuration::from_hours(24);
/// The age of a stored use from which on a later one replaces it.
const RENEWED: SignedDuration = SignedDuration::from_hours(6);
/// The time for which a process need not hand over a document that the store has accepted.
pub const REMEMBERED: SignedDuration = SignedDuration::from_hours(12);

/// A document that a log names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Document {
    /// Its name: its SHA-256 in hex, or the beginning of it.
    pub digest: String,
    /// Its canonical JSON (RFC 8785).
    pub text: Arc<str>,
    /// When it was used, RFC 3339 UTC.
    pub used: String,
}

impl Document {
    /// Returns the time before which a stored use is too old to count for this one.
    #[must_use]
    pub fn renewed_before(&self) -> String {
        earlier(&self.used, RENEWED)
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
    earlier(before, USE_COUNTS)
}

/// Returns an earlier time; the empty text, which is before all others, if the time cannot be read.
fn earlier(at: &str, by: SignedDuration) -> String {
    let earlier = at.parse::<Timestamp>().ok().and_then(|at| at.checked_sub(by).ok());
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
        assert!(RENEWED + REMEMBERED < USE_COUNTS);
        assert_eq!(used_before("2026-03-01T00:00:00.000Z"), "2026-02-28T00:00:00.000Z");
        assert_eq!(used_before("soon"), "");
    }
}
