//! A point in time, as text for records and as a number for calculations.
//!
//! Doc: records.md#the-ledger

use std::time::Duration;

/// A point in time in both forms.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Moment {
    /// RFC 3339 UTC with milliseconds.
    pub text: String,
    /// Milliseconds since 1970-01-01 UTC.
    pub epoch_ms: i64,
}

impl Moment {
    /// Returns the moment a duration later; at the end of the calendar, the last one.
    #[must_use]
    pub fn after(&self, duration: Duration) -> Self {
        let ms = i64::try_from(duration.as_millis()).unwrap_or(i64::MAX);
        let later = jiff::Timestamp::from_millisecond(self.epoch_ms.saturating_add(ms));
        let later = later.unwrap_or(jiff::Timestamp::MAX);
        Self { text: format!("{later:.3}"), epoch_ms: later.as_millisecond() }
    }
}
