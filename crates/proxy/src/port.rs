//! The ports for time and ids, with the clock and the id source of the system.
//!
//! Path: 2. Doc: call-path.md#ids-and-time

use std::time::Duration;

use toolbooth_audit::ledger::Moment;
use toolbooth_contracts::approval::Approvers;
use toolbooth_contracts::json::JsonText;

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
    /// Returns a UUIDv7, which must be unique for the life of the store: it names calls and receipts.
    fn next(&self) -> String;
}

/// A requested approval, for those who decide.
#[derive(Debug, Clone, serde::Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ApprovalNotice {
    /// The approval.
    pub approval_id: String,
    /// The tool.
    pub tool_id: String,
    /// The caller.
    pub caller: String,
    /// The call.
    pub call_id: String,
    /// The rule that asks for it.
    pub rule: String,
    /// Who must approve.
    pub approvers: Approvers,
    /// The redacted arguments.
    pub arguments: Option<JsonText>,
    /// The time of the request, RFC 3339 UTC.
    pub requested_at: String,
    /// The time from which it counts for nothing, RFC 3339 UTC.
    pub expires_at: String,
}

/// Reports requested approvals to those who decide.
pub trait ApprovalNotifier: Send + Sync {
    /// Takes a notice. Must not block; the notice may be lost.
    fn requested(&self, notice: ApprovalNotice);
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
