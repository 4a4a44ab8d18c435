//! Whether calls can be recorded, by the outcomes of the last claims.
//!
//! The state of a store's writer does not tell: its other records can succeed while one table is locked.
//!
//! Path: 6. Doc: records.md#stores

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use toolbooth_audit::LedgerError;
use toolbooth_audit::ledger::Claimed;

/// How long a failed claim counts if no other claim follows. Without an end, a gateway that gets no calls because it
/// is not ready would never be ready again.
const FAILURE_COUNTS_FOR: Duration = Duration::from_secs(15);

/// The time of the last claim that failed, unless one has succeeded since: in milliseconds of the monotonic clock, and
/// one more; 0 = none.
#[derive(Debug, Default)]
pub(crate) struct ClaimHealth(AtomicU64);

impl ClaimHealth {
    /// Records the outcome of a claim. Only the errors of the storage layer count, since others are those of one
    /// call. A relaxed claim is answered before it is written, and other answers than a fresh claim write nothing.
    pub(crate) fn record(
        &self,
        claimed: &Result<Claimed, LedgerError>,
        is_relaxed: bool,
        now: Duration,
    ) {
        match claimed {
            Err(LedgerError::Unavailable { source: Some(_), .. }) => self.failed(now),
            Ok(Claimed::Fresh(_)) if !is_relaxed => self.succeeded(),
            _ => (),
        }
    }

    fn failed(&self, now: Duration) {
        let ms = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
        self.0.store(ms.saturating_add(1), Ordering::Relaxed);
    }

    fn succeeded(&self) {
        if self.0.load(Ordering::Relaxed) != 0 {
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
    fn a_claim_that_the_store_does_not_take_counts_until_one_is_written_or_for_a_time() {
        let (health, second) = (ClaimHealth::default(), Duration::from_secs(1));
        assert!(!health.is_failing(Duration::ZERO), "there was no claim");
        let record = |claimed| health.record(&claimed, false, second);
        record(Err(LedgerError::unavailable("of this call alone")));
        assert!(!health.is_failing(second));
        record(Err(LedgerError::unavailable_by(std::fmt::Error)));
        record(Ok(Claimed::Denied));
        assert!(health.is_failing(second), "nothing was written");
        health.succeeded();
        assert!(!health.is_failing(second));
        health.failed(second);
        assert!(health.is_failing(FAILURE_COUNTS_FOR));
        assert!(!health.is_failing(FAILURE_COUNTS_FOR + second));
    }
}
