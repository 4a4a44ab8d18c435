//! A point in time, as text for records and as a number for calculations.
//!
//! Doc: records.md#the-ledger

/// A point in time in both forms.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Moment {
    /// RFC 3339 UTC with milliseconds.
    pub text: String,
    /// Milliseconds since 1970-01-01 UTC.
    pub epoch_ms: i64,
}
