//! The ledger port: writes receipts, agent logs and audit events in one durable step each.
//!
//! Path: 6, 9. Doc: records.md#the-ledger

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use toolbooth_contracts::agent_log::AgentLog;
use toolbooth_contracts::charge::Charge;
use toolbooth_contracts::contract::IdempotencyMode;
use toolbooth_contracts::event::EventBody;
use toolbooth_contracts::execution_log::AppliedSandbox;
use toolbooth_contracts::receipt::{Receipt, StoredResult};
use toolbooth_contracts::{Effect, ErrorCode, Status};

use crate::approvals::{ApprovalRequest, ApprovalVerdict, Decided};
use crate::charges::Taken;
use crate::claim::KeyRules;
use crate::digest::Digester;
use crate::documents::Document;
pub use crate::error::{Cause, LedgerError};
use crate::history::{CountedIn, HistoryQuestion};
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

/// A call that requests permission to run.
#[derive(Debug, Clone)]
pub struct ClaimRequest {
    /// The receipt id if the claim is new.
    pub receipt_id: String,
    /// The call.
    pub call_id: String,
    /// The tool.
    pub tool_id: String,
    /// SHA-256 of the canonical contract, in hex.
    pub contract_digest: String,
    /// The caller.
    pub caller: String,
    /// The tool's idempotency mode.
    pub mode: IdempotencyMode,
    /// Digests of the call's keys; the first key that is held decides.
    pub keys: Vec<String>,
    /// The rules for an earlier claim on a key.
    pub rules: KeyRules,
    /// The digest of the arguments.
    pub args_digest: String,
    /// The digests of the arguments with the store's earlier keys.
    pub older_args_digests: Vec<String>,
    /// The limits that the call is charged to. All are checked before any is taken.
    pub charges: Vec<Charge>,
    /// The approval that the call needs.
    pub approval: Option<ApprovalRequest>,
    /// The windows of the policy that count the call.
    pub counted: Vec<CountedIn>,
    /// The windows that its rules read, if they must be read in the claim's transaction.
    pub history: Option<HistoryQuestion>,
    /// The digest of the policy in force.
    pub policy_version: String,
    /// The current time.
    pub at: Moment,
    /// The `TOOL_DISPATCHED` event.
    pub dispatched: EventBody,
    /// Whether the claim must survive power loss, if the store leaves the choice.
    pub sync: bool,
    /// Whether the answer may precede the durable write, for tools that change nothing. A claim
    /// with a key always waits.
    pub relaxed: bool,
}

/// The right to dispatch a tool once. Only a ledger creates one.
#[derive(Debug, PartialEq, Eq)]
#[must_use]
pub struct Claim {
    receipt_id: String,
    fence: u64,
    attempt: u32,
    key: Option<String>,
    taken: Vec<Taken>,
    windows: Vec<String>,
}

impl Claim {
    /// Returns a claim that was just written. For ledgers only.
    pub fn granted(receipt_id: String, fence: u64, attempt: u32) -> Self {
        let (key, taken, windows) = Default::default();
        Self { receipt_id, fence, attempt, key, taken, windows }
    }

    /// Sets the digest of the key under which the claim was first made. For ledgers only.
    pub fn under(self, key: Option<String>) -> Self {
        Self { key, ..self }
    }

    /// Sets the charges that the claim has taken. For ledgers only.
    pub fn charged(self, taken: Vec<Taken>) -> Self {
        Self { taken, ..self }
    }

    /// Sets the keys of the windows of the policy that count the claim. For ledgers only.
    pub fn counted(self, windows: Vec<String>) -> Self {
        Self { windows, ..self }
    }

    /// Returns the keys of the windows of the policy that count the claim.
    pub(crate) fn windows(&self) -> &[String] {
        &self.windows
    }

    /// Returns the charges that the claim has taken, which a call that did not start gets back.
    #[must_use]
    pub fn taken(&self) -> &[Taken] {
        &self.taken
    }

    /// Returns the digest of the key under which the claim was first made. The tool receives it,
    /// equal on every attempt.
    #[must_use]
    pub fn key(&self) -> Option<&str> {
        self.key.as_deref()
    }

    /// The receipt id.
    #[must_use]
    pub fn receipt_id(&self) -> &str {
        &self.receipt_id
    }

    /// Returns the fence. A settlement with an older fence is stale.
    #[must_use]
    pub fn fence(&self) -> u64 {
        self.fence
    }

    /// Returns the dispatch number of the claim, starting at 1.
    #[must_use]
    pub fn attempt(&self) -> u32 {
        self.attempt
    }
}

/// The result of a claim request.
#[derive(Debug)]
pub enum Claimed {
    /// The call can run.
    Fresh(Claim),
    /// An earlier outcome is replayed.
    Replay {
        /// The earlier receipt.
        receipt: Box<Receipt>,
        /// Whether the arguments differed and were not applied.
        arguments_differ: bool,
    },
    /// The first call with the key is still running.
    InFlight {
        /// Its receipt id.
        receipt_id: String,
        /// Closes when this process settles the call; otherwise the store must be queried again.
        settled: Option<async_channel::Receiver<Infallible>>,
    },
    /// The first outcome is unknown.
    InDoubt {
        /// Its receipt id.
        receipt_id: String,
    },
    /// The same key was used with different arguments.
    Conflict {
        /// The id of the first receipt.
        receipt_id: String,
    },
    /// The call must be approved first.
    ApprovalRequired {
        /// The approval id.
        approval_id: String,
    },
    /// Rules that read windows need another approval than the request names; the judge knows which.
    OtherApproval,
    /// Rules that read windows deny the call; the judge knows why.
    Denied,
    /// The call was rejected.
    ApprovalRejected {
        /// The approval id.
        approval_id: String,
    },
    /// The call exceeds the rate per minute.
    RateLimited {
        /// The time to wait before a retry, in milliseconds.
        retry_after_ms: u64,
    },
    /// Too many calls run concurrently.
    TooManyInFlight,
    /// The call costs more than is left of a budget.
    BudgetExceeded {
        /// The time until the budget is new, in milliseconds.
        retry_after_ms: u64,
    },
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
    async fn note_uses(&self, uses: Vec<(String, String)>) -> Result<(), LedgerError>;

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
