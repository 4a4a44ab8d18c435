//! Defines claims: the request of a call to the ledger before it runs, and the answer.
//!
//! Path: 6. Doc: records.md#the-ledger

use std::convert::Infallible;

use toolbooth_contracts::charge::Charge;
use toolbooth_contracts::contract::IdempotencyMode;
use toolbooth_contracts::event::EventBody;
use toolbooth_contracts::receipt::Receipt;

use super::Moment;
use crate::approvals::ApprovalRequest;
use crate::charges::Taken;
use crate::claim::KeyRules;
use crate::history::{CountedIn, HistoryQuestion};

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
