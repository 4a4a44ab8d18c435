//! The ledger port: writes receipts, agent logs and audit events in one durable step each.
//!
//! Path: 6, 9. Doc: records.md#the-ledger

mod claims;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use toolbooth_contracts::agent_log::AgentLog;
use toolbooth_contracts::contract::IdempotencyMode;
use toolbooth_contracts::event::EventBody;
use toolbooth_contracts::execution_log::AppliedSandbox;
use toolbooth_contracts::history::DeclaredWindow;
use toolbooth_contracts::receipt::{Receipt, StoredResult};
use toolbooth_contracts::{Effect, ErrorCode, Status};

pub use self::claims::{Claim, ClaimRequest, Claimed};
use crate::approvals::{ApprovalVerdict, Decided};
use crate::digest::Digester;
use crate::documents::Document;
pub use crate::error::{Cause, LedgerError};
pub use crate::moment::Moment;
use crate::orders::{OrderRequest, Ordered};

/// The conditions under which a checkpoint is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Due {
    /// Due at this number of uncovered events.
    pub events: u64,
    /// Due at this age of the oldest uncovered event, in milliseconds.
    pub age_ms: i64,
}

impl Due {
    /// Due as soon as any event is uncovered.
    pub const NOW: Self = Self { events: 1, age_ms: 0 };
}

/// The outcome of a dispatched call.
#[derive(Debug)]
pub struct Settlement {
    /// The claim to settle.
    pub claim: Claim,
    /// The tool's idempotency mode. With effect and code, it decides whether the key stays held.
    pub mode: IdempotencyMode,
    /// The final status of the call.
    pub status: Status,
    /// The known effect.
    pub effect: Effect,
    /// The error code of an unsuccessful call.
    pub error_code: Option<ErrorCode>,
    /// The values that the contract's `receiptFields` name.
    pub fields: serde_json::Map<String, serde_json::Value>,
    /// The digest of the result.
    pub result_digest: Option<String>,
    /// The result, for replay.
    pub result: Option<StoredResult>,
    /// The applied sandbox.
    pub sandbox: Option<AppliedSandbox>,
    /// The duration of the whole call, in milliseconds.
    pub duration_ms: f64,
    /// The current time.
    pub at: Moment,
    /// The agent log; the ledger sets receipt id and attempt if they are missing or differ.
    pub log: Arc<AgentLog>,
    /// Documents that the log names, if the store may not have them.
    pub documents: Vec<Document>,
    /// Additional events, written before the terminal event.
    pub events: Vec<EventBody>,
    /// The terminal event; the ledger sets the receipt digest and the log digest.
    pub terminal: EventBody,
    /// Whether the outcome must survive power loss, if the store leaves the choice.
    pub sync: bool,
}

/// An operator's resolution of a claim with an unknown outcome.
#[derive(Debug, Clone)]
pub struct Resolution {
    /// The receipt id.
    pub receipt_id: String,
    /// Whether the tool succeeded; otherwise it failed.
    pub succeeded: bool,
    /// The result for later calls.
    pub result: StoredResult,
    /// HMAC of the result, in hex.
    pub result_digest: Option<String>,
    /// The operator.
    pub by: String,
    /// The current time.
    pub at: Moment,
}

/// The kind of records to prune.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PruneKind {
    /// Settled receipts; a receipt that holds a key leaves a tombstone.
    Receipts,
    /// Agent logs.
    Logs,
    /// Events that a signed checkpoint covers and that do not account for an existing record.
    Events,
    /// Asynchronous calls with a result.
    Calls,
    /// Approvals that have expired.
    Approvals,
    /// Documents that were used last so long before that no log from then on names them.
    Documents,
}

impl PruneKind {
    /// Returns the text form.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Receipts => "receipts",
            Self::Logs => "logs",
            Self::Events => "events",
            Self::Calls => "calls",
            Self::Approvals => "approvals",
            Self::Documents => "documents",
        }
    }
}

/// A request to prune old records.
#[derive(Debug, Clone)]
pub struct Prune {
    /// The kind of records.
    pub kind: PruneKind,
    /// Only records from before this time, RFC 3339 UTC with milliseconds.
    pub before: String,
    /// The windows that are declared. No receipt is removed that one of them counts.
    pub windows: Vec<DeclaredWindow>,
    /// The current time.
    pub at: Moment,
}

/// The result of pruning.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Pruned {
    /// The number of removed records.
    pub removed: u64,
    /// The number of receipts that left a tombstone.
    pub tombstones: u64,
    /// Whether more records remain to be examined, regardless of `removed`.
    pub more: bool,
}

/// A call that ends without its own dispatch: a refusal or a replay.
#[derive(Debug, Clone)]
pub struct Refusal {
    /// The agent log.
    pub log: Arc<AgentLog>,
    /// Documents that the log names, if the store may not have them.
    pub documents: Vec<Document>,
    /// The terminal event; the ledger sets the log digest.
    pub terminal: EventBody,
}

/// A claim of a lost writer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Swept {
    /// The id of the receipt that is now in doubt.
    pub receipt_id: String,
}

/// Receipt store, agent-log repository and audit logger in one, because they must commit together.
/// Each method is one transaction, which is complete when the method returns. The only exception is
/// a claim that is [`ClaimRequest::relaxed`] and has no key. It may be answered while it is being
/// written. If that write fails, the call was dispatched and its settlement finds no receipt.
///
/// Dropping a future of a ledger does not undo the submitted request.
#[async_trait]
pub trait Ledger: Send + Sync {
    /// Returns the writer, which is one run of one process.
    fn writer(&self) -> &str;

    /// Returns the digester with the store's key.
    fn digester(&self) -> &Digester;

    /// Returns the earlier outcome for a key; otherwise checks the approval, charges the limits and
    /// makes the claim.
    ///
    /// # Errors
    /// Any [`LedgerError`]: the call must not be dispatched.
    async fn claim(&self, request: ClaimRequest) -> Result<Claimed, LedgerError>;

    /// Writes receipt, agent log and audit events of a dispatched call. The settlement is shared so
    /// that it can be retried while the store is unavailable.
    ///
    /// # Errors
    /// [`LedgerError::Stale`] if the claim was taken over, [`LedgerError::Unavailable`] if it is
    /// not written.
    async fn settle(&self, settlement: Arc<Settlement>) -> Result<Arc<Receipt>, LedgerError>;

    /// Writes agent log and audit event of a refused or replayed call.
    ///
    /// # Errors
    /// [`LedgerError::Unavailable`].
    async fn refuse(&self, refusal: Refusal) -> Result<(), LedgerError>;

    /// Writes events that do not belong to a call.
    ///
    /// # Errors
    /// [`LedgerError::Unavailable`].
    async fn record_events(&self, events: Vec<EventBody>) -> Result<(), LedgerError>;

    /// Renews the writer's lease.
    ///
    /// # Errors
    /// [`LedgerError::Unavailable`].
    async fn renew(&self, at: Moment) -> Result<(), LedgerError>;

    /// Marks a running claim as waiting for input.
    ///
    /// # Errors
    /// [`LedgerError::Stale`] if the claim was taken over, [`LedgerError::Unavailable`].
    async fn suspend(&self, receipt_id: String, fence: u64, at: Moment) -> Result<(), LedgerError>;

    /// Marks a waiting claim as running after the input has arrived.
    ///
    /// # Errors
    /// [`LedgerError::Stale`] if the claim was taken over, [`LedgerError::Unavailable`].
    async fn resume(&self, receipt_id: String, fence: u64, at: Moment) -> Result<(), LedgerError>;

    /// Settles a claim with an unknown outcome by an operator's resolution.
    ///
    /// # Errors
    /// [`LedgerError::NotFound`], [`LedgerError::Stale`] if the claim is not in doubt,
    /// [`LedgerError::Unavailable`].
    async fn resolve(&self, resolution: Resolution) -> Result<Arc<Receipt>, LedgerError>;

    /// Records a decision of an operator, with its event.
    ///
    /// # Errors
    /// [`LedgerError::Damaged`] if no event accounts for the current order, and
    /// [`LedgerError::Unavailable`].
    async fn order(&self, order: OrderRequest) -> Result<Ordered, LedgerError>;

    /// Records the decision of a person on an approval, with its event.
    ///
    /// # Errors
    /// [`LedgerError::Unavailable`].
    async fn decide_approval(&self, verdict: ApprovalVerdict) -> Result<Decided, LedgerError>;

    /// Notes when API keys were used last: their names and times. A hint for operators.
    ///
    /// # Errors
    /// [`LedgerError::Unavailable`].
    async fn record_uses(&self, uses: Vec<(String, String)>) -> Result<(), LedgerError>;

    /// Removes a bounded number of old records and records this in an event under a signed
    /// checkpoint.
    ///
    /// # Errors
    /// [`LedgerError::Unavailable`].
    async fn prune(&self, prune: Prune) -> Result<Pruned, LedgerError>;

    /// Removes agent logs if the store runs short of space: refusals first, then the oldest.
    /// Records this in an event under a signed checkpoint. Returns the number of removed logs. The
    /// default implementation removes none.
    ///
    /// # Errors
    /// [`LedgerError::Unavailable`].
    async fn free_space(&self, _at: Moment) -> Result<u64, LedgerError> {
        Ok(0)
    }

    /// Signs a checkpoint over the writer's log if one is due; returns the note.
    ///
    /// # Errors
    /// [`LedgerError::Unavailable`].
    async fn checkpoint(&self, due: Due, at: Moment) -> Result<Option<String>, LedgerError>;

    /// Marks the running claims of lost writers as in doubt.
    ///
    /// # Errors
    /// [`LedgerError::Unavailable`].
    async fn sweep(&self, at: Moment) -> Result<Vec<Swept>, LedgerError>;

    /// Signs a last checkpoint, ends the writer's log and releases the store; returns the note.
    /// Later calls are rejected.
    ///
    /// # Errors
    /// [`LedgerError::Unavailable`].
    async fn close(&self, at: Moment) -> Result<Option<String>, LedgerError>;
}

/// The interval at which a writer renews its lease.
pub const RENEW_EVERY: Duration = Duration::from_secs(5);
/// The time without renewal after which a writer is lost.
pub const LOST_AFTER: Duration = Duration::from_secs(15);
