//! Time and chance: nobody else in the house reads a clock or makes an id.
//!
//! Path: 2. Doc: call-path.md#ids-and-time

use std::time::Duration;

use toolbooth_audit::ledger::Moment;

/// Tells the time.
pub trait Clock: Send + Sync {
    /// Now, as records write it.
    fn now(&self) -> Moment;
    /// A time that only goes forward, for durations.
    fn monotonic(&self) -> Duration;
}

/// A duration in milliseconds, to the microsecond.
pub(crate) fn milliseconds(duration: Duration) -> f64 {
    // A call never lasts so long that its microseconds are beyond a double.
    duration.as_micros() as f64 / 1_000.0
}

/// Makes ids.
pub trait IdSource: Send + Sync {
    /// A UUIDv7.
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

/// Random ids that grow with time.
#[derive(Debug, Default)]
pub struct SystemIds;

impl IdSource for SystemIds {
    fn next(&self) -> String {
        uuid::Uuid::now_v7().to_string()
    }
}
