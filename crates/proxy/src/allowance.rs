//! The time that one execution has: its own, started anew by each progress, up to a cap.
//!
//! Path: 7. Doc: call-path.md#limits

use std::time::Duration;

use tokio::time::Instant;

use crate::limits::Limits;

/// How much more than its own time a tool may get by its progress, where nothing is set.
const PROGRESS_FACTOR: u32 = 4;
/// The longest time that progress may give, where nothing is set.
const PROGRESS_CAP_MAX: Duration = Duration::from_secs(30 * 60);

/// The time of one execution.
#[derive(Debug)]
pub(crate) struct Allowance {
    limit: Duration,
    latest: Instant,
}

impl Allowance {
    /// From now on: `limit` from the start and from each progress, at most `cap` in all, and never
    /// more than the caller has left.
    pub(crate) fn begin(limit: Duration, cap: Duration, left: Option<Duration>) -> Self {
        let most = left.map_or(cap, |left| left.min(cap));
        Self { limit, latest: Instant::now() + most }
    }

    /// When the time is over, were there no progress from now on.
    pub(crate) fn until(&self) -> Instant {
        (Instant::now() + self.limit).min(self.latest)
    }

    /// A time that does not count has passed.
    pub(crate) fn stand_still(&mut self, passed: Duration) {
        self.latest += passed;
    }
}

/// The longest time that something may take whose own time is `limit`.
pub(crate) fn cap(limits: &Limits, limit: Duration) -> Duration {
    let standard = limit.saturating_mul(PROGRESS_FACTOR).min(PROGRESS_CAP_MAX);
    // Progress takes nothing away.
    limits.progress_cap.unwrap_or(standard).max(limit)
}
