//! The time limit of one execution: each progress message restarts it, up to a cap.
//!
//! Path: 7. Doc: call-path.md#limits

use std::time::Duration;

use tokio::time::Instant;

use crate::limits::Limits;

/// How many times its own timeout a tool can run because of progress, if no cap is set.
const PROGRESS_FACTOR: u32 = 4;
/// The longest total time that progress can allow, if no cap is set.
const PROGRESS_CAP_MAX: Duration = Duration::from_secs(30 * 60);

/// A time that is never waited for, in place of one that no clock has.
const NEVER: Duration = Duration::from_secs(30 * 365 * 24 * 60 * 60);

/// Returns the time after a duration.
fn after(start: Instant, duration: Duration) -> Instant {
    start.checked_add(duration).unwrap_or_else(|| Instant::now() + NEVER)
}

/// The time limit of one execution.
#[derive(Debug)]
pub(crate) struct Allowance {
    limit: Duration,
    latest: Instant,
}

impl Allowance {
    /// Starts now: `limit` from the start and from each progress message, at most `cap` in total, and at most the
    /// time that the caller has `left`.
    pub(crate) fn begin(limit: Duration, cap: Duration, left: Option<Duration>) -> Self {
        let most = left.map_or(cap, |left| left.min(cap));
        Self { limit, latest: after(Instant::now(), most) }
    }

    /// Returns the end of the time if no progress follows.
    pub(crate) fn until(&self) -> Instant {
        after(Instant::now(), self.limit).min(self.latest)
    }

    /// Extends the total limit by `passed`, which does not count.
    pub(crate) fn extend_cap(&mut self, passed: Duration) {
        self.latest = after(self.latest, passed);
    }
}

/// Returns the longest total time of an execution with the time limit `limit`.
pub(crate) fn cap(limits: &Limits, limit: Duration) -> Duration {
    let standard = limit.saturating_mul(PROGRESS_FACTOR).min(PROGRESS_CAP_MAX);
    // A cap never shortens the tool's own time.
    limits.progress_cap.unwrap_or(standard).max(limit)
}
