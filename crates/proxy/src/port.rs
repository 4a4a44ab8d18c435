//! The ports for time and ids, with the clock and the id source of the system.
//!
//! Path: 2. Doc: call-path.md#ids-and-time

use std::time::Duration;

use toolbooth_audit::ledger::Moment;

/// A clock.
pub trait Clock: Send + Sync {
    /// Returns the current time, in the form of records.
    fn now(&self) -> Moment;
    /// Returns a time that never decreases, for durations.
    fn monotonic(&self) -> Duration;
}

/// Converts a duration to milliseconds, with the precision of microseconds.
pub(crate) fn milliseconds(duration: Duration) -> f64 {
    // The microseconds of a call always fit into a double.
    duration.as_micros() as f64 / 1_000.0
}

/// A source of ids.
pub trait IdSource: Send + Sync {
    /// Returns a UUIDv7.
    fn next(&self) -> String;
}

/// The system's clock.
#[derive(Debug)]
pub struct SystemClock(std::time::Instant);

impl Default for SystemClock {
    fn default() -> Self {
        Self(std::time::Instant::now())
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Moment {
        let now = jiff::Timestamp::now();
        Moment { text: format!("{now:.3}"), epoch_ms: now.as_millisecond() }
    }

    fn monotonic(&self) -> Duration {
        self.0.elapsed()
    }
}

/// Random ids that increase with time.
#[derive(Debug, Default)]
pub struct SystemIds;

impl IdSource for SystemIds {
    fn next(&self) -> String {
        uuid::Uuid::now_v7().to_string()
    }
}
