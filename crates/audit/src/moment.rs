//! A time, as records write it and as it is reckoned with.
//!
//! Doc: records.md#the-ledger

/// A moment: as records write it, and to reckon with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Moment {
    /// RFC 3339 UTC with milliseconds.
    pub text: String,
    /// Milliseconds since 1970-01-01 UTC.
    pub epoch_ms: i64,
}
