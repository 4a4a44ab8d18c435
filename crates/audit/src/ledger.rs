//! The ledger port: receipts, agent logs and audit events, written in one durable step each.
//!
//! Path: 6, 9. Doc: records.md#the-ledger

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use toolbooth_contracts::agent_log::AgentLog;
use toolbooth_contracts::contract::IdempotencyMode;
use toolbooth_contracts::event::EventBody;
use toolbooth_contracts::execution_log::AppliedSandbox;
use toolbooth_contracts::receipt::{Receipt, StoredResult};
use toolbooth_contracts::{Effect, ErrorCode, Status};

use crate::claim::KeyRules;
use crate::digest::Digester;
pub use crate::error::{Cause, LedgerError};
pub use crate::moment::Moment;

/// When a checkpoint is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Due {
    /// Once so many events are not covered.
    pub events: u64,
    /// Once the oldest event that is not covered is so old, in milliseconds.
    pub age_ms: i64,
}

impl Due {
    /// Whatever there is that is not covered.
    pub const NOW: Self = Self { events: 1, age_ms: 0 };
}

/// A call that wants to run.
#[derive(Debug, Clone)]
pub struct ClaimRequest {
    /// The receipt's id, should the claim be fresh.
    pub receipt_id: String,
    /// The call.
    pub call_id: String,
    /// The tool.
    pub tool_id: String,
    /// SHA-256 of the canonical contract, in hex.
    pub contract_digest: String,
    /// Who calls.
    pub caller: String,
    /// The tool's mode.
    pub mode: IdempotencyMode,
    /// Digests of the keys by which the call is known; the first that is held decides.
    pub keys: Vec<String>,
    /// What an earlier claim on a key means.
    pub rules: KeyRules,
    /// Digest of the arguments.
    pub args_digest: String,
    /// Their digests by keys that were the store's before.
    pub older_args_digests: Vec<String>,
    /// Calls per minute of this caller and tool.
    pub rate_per_min: Option<u64>,
    /// Calls of this tool at once.
    pub concurrency_max: Option<u64>,
    /// The rule that asks for an approval.
    pub approval_rule: Option<String>,
    /// The id of the approval, should one have to be asked for.
    pub approval_id: String,
    /// Digest of the policy in force.
    pub policy_version: String,
    /// Now.
    pub at: Moment,
    /// `TOOL_DISPATCHED`.
    pub dispatched: EventBody,
    /// Whether the claim has to survive the loss of power where the store leaves the choice.
    pub sync: bool,
    /// Whether the answer may come before the claim is durable: for tools that change nothing. A
    /// claim with a key always waits.
    pub relaxed: bool,
}

/// The right to dispatch a tool once. Only a ledger makes one.
#[derive(Debug, PartialEq, Eq)]
#[must_use]
pub struct Claim {
    receipt_id: String,
    fence: u64,
    attempt: u32,
    key: Option<String>,
}

impl Claim {
    /// For ledgers: a claim that has just been made durable.
    pub fn granted(receipt_id: String, fence: u64, attempt: u32) -> Self {
        Self { receipt_id, fence, attempt, key: None }
    }

    /// For ledgers: the digest of the key under which the claim was first made.
    pub fn under(self, key: Option<String>) -> Self {
        Self { key, ..self }
    }

    /// The digest of the key under which the claim was first made: what travels to the tool, equal
    /// on every attempt.
    #[must_use]
    pub fn key(&self) -> Option<&str> {
        self.key.as_deref()
    }

    /// The receipt.
    #[must_use]
    pub fn receipt_id(&self) -> &str {
        &self.receipt_id
    }

    /// The fence: a settle with an old one matches nothing.
    #[must_use]
    pub fn fence(&self) -> u64 {
        self.fence
    }

    /// Which dispatch of the claim this is, from 1.
    #[must_use]
    pub fn attempt(&self) -> u32 {
        self.attempt
    }
}

/// What came of a claim request.
#[derive(Debug)]
pub enum Claimed {
    /// The call may run.
    Fresh(Claim),
    /// An earlier outcome is given again.
    Replay {
        /// The earlier receipt.
        receipt: Box<Receipt>,
        /// Whether the arguments differed and were not applied.
        arguments_differ: bool,
    },
    /// The first call with the key still runs.
    InFlight {
        /// Its receipt.
        receipt_id: String,
        /// Closes when it is settled by this process; the store is asked again otherwise.
        settled: Option<async_channel::Receiver<Infallible>>,
    },
    /// The first outcome is unknown.
    InDoubt {
        /// Its receipt.
        receipt_id: String,
    },
    /// The same key with other arguments.
    Conflict {
        /// The first receipt.
        receipt_id: String,
    },
    /// A person has to agree first.
    ApprovalRequired {
        /// The approval.
        approval_id: String,
    },
    /// A person did not agree.
    ApprovalRejected {
        /// The approval.
        approval_id: String,
    },
    /// Too many calls in a minute.
    RateLimited {
        /// When to try again, in milliseconds.
        retry_after_ms: u64,
    },
    /// Too many calls at once.
    TooManyInFlight,
}

/// The outcome of a dispatched call.
#[derive(Debug)]
pub struct Settlement {
    /// The claim that is spent.
    pub claim: Claim,
    /// The tool's mode: with effect and code it decides what becomes of the key.
    pub mode: IdempotencyMode,
    /// How the call ended.
    pub status: Status,
    /// What is known about the effect.
    pub effect: Effect,
    /// Why it did not succeed.
    pub error_code: Option<ErrorCode>,
    /// What the contract's `receiptFields` name.
    pub fields: serde_json::Map<String, serde_json::Value>,
    /// Digest of the result.
    pub result_digest: Option<String>,
    /// The result, for replay.
    pub result: Option<StoredResult>,
    /// The sandbox that was applied.
    pub sandbox: Option<AppliedSandbox>,
    /// The rate that was charged, so that it can be given back.
    pub rate_per_min: Option<u64>,
    /// Milliseconds of the whole call.
    pub duration_ms: f64,
    /// Now.
    pub at: Moment,
    /// The agent log; receipt id and attempt are filled in by the ledger where they are not there.
    pub log: Arc<AgentLog>,
    /// Events in addition, before the terminal one.
    pub events: Vec<EventBody>,
    /// The terminal event; receipt digest and log digest are filled in by the ledger.
    pub terminal: EventBody,
    /// Whether the outcome has to survive the loss of power where the store leaves the choice.
    pub sync: bool,
}

/// A person's word on a claim in doubt.
#[derive(Debug, Clone)]
pub struct Resolution {
    /// The receipt.
    pub receipt_id: String,
    /// Whether the tool succeeded; else it failed.
    pub succeeded: bool,
    /// The result that later calls get.
    pub result: StoredResult,
    /// HMAC of the result, in hex.
    pub result_digest: Option<String>,
    /// Who says so.
    pub by: String,
    /// Now.
    pub at: Moment,
}

/// Which records are removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PruneKind {
    /// Settled receipts; one that holds a key leaves a tombstone.
    Receipts,
    /// Agent logs.
    Logs,
    /// Events that a signed checkpoint covers, and that account for nothing that is still there.
    Events,
    /// Asynchronous calls that have their results.
    Calls,
}

impl PruneKind {
    /// As it is written.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Receipts => "receipts",
            Self::Logs => "logs",
            Self::Events => "events",
            Self::Calls => "calls",
        }
    }
}

/// Which old records are removed.
#[derive(Debug, Clone)]
pub struct Prune {
    /// Of this kind.
    pub kind: PruneKind,
    /// From before this time, RFC 3339 UTC with milliseconds.
    pub before: String,
    /// Now.
    pub at: Moment,
}

/// What pruning has done.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Pruned {
    /// Records that are gone.
    pub removed: u64,
    /// Receipts of which a tombstone is left.
    pub tombstones: u64,
    /// Whether there is more to look at, whatever was removed.
    pub more: bool,
}

/// A call that ends without a dispatch of its own: a refusal or a replay.
#[derive(Debug, Clone)]
pub struct Refusal {
    /// The agent log.
    pub log: Arc<AgentLog>,
    /// The terminal event; the log digest is filled in by the ledger.
    pub terminal: EventBody,
}

/// A claim whose owner was lost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Swept {
    /// The receipt that is in doubt now.
    pub receipt_id: String,
}

/// Receipt store, agent-log repository and audit logger in one, because they must commit
/// together. Each method is one transaction: it has happened whole when it returns. Only a claim
/// that is [`ClaimRequest::relaxed`] and has no key may be answered while it is being written: where
/// that fails, the call was dispatched, and its settlement finds no receipt.
///
/// Dropping a future of a ledger does not undo what was handed over.
#[async_trait]
pub trait Ledger: Send + Sync {
    /// The writer: one run of one process.
    fn writer(&self) -> &str;

    /// Makes digests with the store's key.
    fn digester(&self) -> &Digester;

    /// Looks up the earlier outcome for a key; else the approval, the charges and the claim.
    ///
    /// # Errors
    /// [`LedgerError`], whichever it is: nothing may be dispatched.
    async fn claim(&self, request: ClaimRequest) -> Result<Claimed, LedgerError>;

    /// Writes receipt, agent log and audit events of a dispatched call. The settlement is shared
    /// so that it can be tried again while the store is away.
    ///
    /// # Errors
    /// [`LedgerError::Stale`] where the claim was taken over, [`LedgerError::Unavailable`] where
    /// it is not written.
    async fn settle(&self, settlement: Arc<Settlement>) -> Result<Arc<Receipt>, LedgerError>;

    /// Writes agent log and audit event of a call that was refused or replayed.
    ///
    /// # Errors
    /// [`LedgerError::Unavailable`].
    async fn refuse(&self, refusal: Refusal) -> Result<(), LedgerError>;

    /// Writes events that are no calls.
    ///
    /// # Errors
    /// [`LedgerError::Unavailable`].
    async fn note(&self, events: Vec<EventBody>) -> Result<(), LedgerError>;

    /// Renews the writer's lease.
    ///
    /// # Errors
    /// [`LedgerError::Unavailable`].
    async fn renew(&self, at: Moment) -> Result<(), LedgerError>;

    /// A running claim waits for somebody's input.
    ///
    /// # Errors
    /// [`LedgerError::Stale`] where the claim was taken over, [`LedgerError::Unavailable`].
    async fn suspend(&self, receipt_id: String, fence: u64, at: Moment) -> Result<(), LedgerError>;

    /// The input has come; the claim runs on.
    ///
    /// # Errors
    /// [`LedgerError::Stale`] where the claim was taken over, [`LedgerError::Unavailable`].
    async fn resume(&self, receipt_id: String, fence: u64, at: Moment) -> Result<(), LedgerError>;

    /// Settles a doubt by a person's word.
    ///
    /// # Errors
    /// [`LedgerError::NotFound`], [`LedgerError::Stale`] where the claim is not in doubt,
    /// [`LedgerError::Unavailable`].
    async fn resolve(&self, resolution: Resolution) -> Result<Arc<Receipt>, LedgerError>;

    /// Removes a bounded number of old records, and says so under a signed checkpoint; nothing left
    /// to look at is the default.
    ///
    /// # Errors
    /// [`LedgerError::Unavailable`].
    async fn prune(&self, prune: Prune) -> Result<Pruned, LedgerError>;

    /// Removes agent logs where the store runs short of room, refusals' first, the oldest first, and
    /// says so under a signed checkpoint; how many. Nothing is the default.
    ///
    /// # Errors
    /// [`LedgerError::Unavailable`].
    async fn make_room(&self, _at: Moment) -> Result<u64, LedgerError> {
        Ok(0)
    }

    /// Signs a checkpoint over the writer's log, where one is due; gives the note.
    ///
    /// # Errors
    /// [`LedgerError::Unavailable`].
    async fn checkpoint(&self, due: Due, at: Moment) -> Result<Option<String>, LedgerError>;

    /// Marks the running claims of lost writers as in doubt.
    ///
    /// # Errors
    /// [`LedgerError::Unavailable`].
    async fn sweep(&self, at: Moment) -> Result<Vec<Swept>, LedgerError>;

    /// Signs a last checkpoint, ends the writer's log and releases the store; gives the note.
    /// Later calls are refused.
    ///
    /// # Errors
    /// [`LedgerError::Unavailable`].
    async fn close(&self, at: Moment) -> Result<Option<String>, LedgerError>;
}

/// How often a writer renews its lease.
pub const RENEW_EVERY: Duration = Duration::from_secs(5);
/// After how long without renewal a writer is lost.
pub const LOST_AFTER: Duration = Duration::from_secs(15);
