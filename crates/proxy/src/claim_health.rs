//! Whether calls can be recorded, by the outcomes of the last claims.
//!
//! The state of a store's writer does not tell: its other records can succeed while one table is locked.
//!
//! Path: 6. Doc: records.md#stores

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// How long a failed claim counts if no other claim follows. Without an end, a gateway that gets no calls because it
/// is not ready would never be ready again.
const FAILURE_COUNTS_FOR: Duration = Duration::from_secs(15);

/// The time of the last claim that failed, unless one has succeeded since: in milliseconds of the monotonic clock, and
/// one more; 0 = none.
#[derive(Debug, Default)]
pub(crate) struct ClaimHealth(AtomicU64);

impl ClaimHealth {
    /// Records the outcome of a claim.
    pub(crate) fn record(&self, succeeded: bool, now: Duration) {
        if !succeeded {
            let ms = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
            self.0.store(ms.saturating_add(1), Ordering::Relaxed);
        } else if self.0.load(Ordering::Relaxed) != 0 {
            self.0.store(0, Ordering::Relaxed);
        }
    }

    /// Whether the last claim failed a short time ago.
    pub(crate) fn is_failing(&self, now: Duration) -> bool {
        let failed = self.0.load(Ordering::Relaxed).checked_sub(1).map(Duration::from_millis);
        failed.is_some_and(|failed| now.saturating_sub(failed) < FAILURE_COUNTS_FOR)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_claim_counts_until_one_succeeds_or_for_a_time() {
        let (health, second) = (ClaimHealth::default(), Duration::from_secs(1));
        assert!(!health.is_failing(Duration::ZERO), "there was no claim");
        health.record(false, Duration::ZERO);
        assert!(health.is_failing(second));
        health.record(true, second);
        assert!(!health.is_failing(second));
        health.record(false, second);
        assert!(health.is_failing(FAILURE_COUNTS_FOR));
        assert!(!health.is_failing(FAILURE_COUNTS_FOR + second));
    }
}
