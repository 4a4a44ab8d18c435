//! What steps have to look at, by name, and what a look at the whole store finds.
//!
//! Path: 6, 9. Doc: records.md#the-ledger

use std::collections::BTreeSet;

use toolbooth_contracts::approval::{Approval, ApprovalState};

use super::Stored;
use crate::backend::pruning::Removal;
use crate::backend::room::Dropped;
pub use crate::queue::CallName;
use crate::queue::{QueuedCall, RawCall};
use crate::reads::{PrunedLog, WriterHead};

/// A tool and a caller, as rates are counted.
pub type RateName = (String, String);

/// What an approval is bound to.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ApprovalName {
    /// The tool.
    pub tool: String,
    /// Who calls.
    pub caller: String,
    /// Digest of the arguments.
    pub args_digest: String,
    /// Digest of the contract.
    pub contract_digest: String,
}

impl ApprovalName {
    /// Whether an approval is for exactly this call, and not spent.
    #[must_use]
    pub fn fits(&self, approval: &Approval) -> bool {
        approval.state != ApprovalState::Spent
            && approval.tool_id == self.tool
            && approval.caller == self.caller
            && approval.args_digest == self.args_digest
            && approval.contract_digest == self.contract_digest
    }
}

/// What steps have to look at.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Needs {
    /// Keys, with the receipts that hold them.
    pub keys: BTreeSet<String>,
    /// Receipts, with the approvals that they have spent.
    pub receipts: BTreeSet<String>,
    /// Arrival times of tools and callers.
    pub rates: BTreeSet<RateName>,
    /// Tools, of which the calls that run count.
    pub running: BTreeSet<String>,
    /// Approvals for exactly these calls that are not spent.
    pub approvals: BTreeSet<ApprovalName>,
    /// Asynchronous calls.
    pub calls: BTreeSet<CallName>,
    /// How many asynchronous calls wait.
    pub waiting: bool,
    /// A look at the whole store; such a step has a batch of its own.
    pub survey: Option<StoreQuery>,
}

/// A look at the whole store, within the transaction of its step. It changes nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreQuery {
    /// Running claims whose writers are lost.
    Lost,
    /// The ends of other writers' logs that no checkpoint has named for good, oldest first.
    UnnamedHeads,
    /// What earlier versions left to be taken over; where asked for, the ends of all other writers'
    /// logs.
    Beginning {
        /// Whether the ends are asked for.
        heads: bool,
    },
    /// Settled receipts from before a time that are whole, at most so many.
    PrunableReceipts(String, usize),
    /// Agent logs from before a time, at most so many.
    PrunableLogs(String, usize),
    /// Agent logs that go where room runs short: of calls without a receipt as long as there are
    /// such, then the oldest; at most so many.
    DroppableLogs(usize),
    /// Events from before a time that account for nothing any more, of the next block of a log, as
    /// far as a checkpoint covers it; or a log is looked through up to there.
    PrunableEvents(String),
    /// The oldest asynchronous call whose worker is lost, else the oldest that waits. The names are
    /// those of the calls that this process has.
    NextCall(BTreeSet<CallName>),
    /// Asynchronous calls that got their result before a time, at most so many.
    PrunableCalls(String, usize),
}

/// What a [`StoreQuery`] has found.
#[derive(Debug, Default)]
pub struct StoreFindings {
    /// Of [`StoreQuery::Lost`].
    pub lost: Vec<Stored>,
    /// Of [`StoreQuery::UnnamedHeads`] and [`StoreQuery::Beginning`].
    pub heads: Vec<OtherHead>,
    /// Of [`StoreQuery::Beginning`], in a store that an earlier version has written.
    pub earlier: Option<Earlier>,
    /// Of [`StoreQuery::PrunableReceipts`], and whether each holds a key.
    pub prunable: Vec<(Stored, bool)>,
    /// Other records that may go.
    pub removal: Removal,
    /// Of [`StoreQuery::DroppableLogs`]: up to where they go.
    pub dropped: Option<Dropped>,
    /// Whether there is more to look at.
    pub more: bool,
    /// Of [`StoreQuery::NextCall`].
    pub call: Option<RawCall>,
}

/// What an earlier version has written without what accounts for it now.
#[derive(Debug, Default)]
pub struct Earlier {
    /// Asynchronous calls.
    pub calls: Vec<QueuedCall>,
    /// Logs whose beginnings it has removed, by writer.
    pub logs: Vec<(String, PrunedLog)>,
}

/// The end of another writer's log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OtherHead {
    /// Where it ends.
    pub head: WriterHead,
    /// Whether the writer has ended or is lost, so that it grows no more.
    pub ended: bool,
}

impl Needs {
    /// What a receipt's step needs.
    #[must_use]
    pub fn of_receipt(receipt_id: &str) -> Self {
        Self { receipts: BTreeSet::from([receipt_id.to_owned()]), ..Self::default() }
    }

    /// What a step on a call needs.
    #[must_use]
    pub fn of_call(caller: &str, call_id: &str) -> Self {
        let name = (caller.to_owned(), call_id.to_owned());
        Self { calls: BTreeSet::from([name]), ..Self::default() }
    }

    /// A survey.
    #[must_use]
    pub fn of(survey: StoreQuery) -> Self {
        Self { survey: Some(survey), ..Self::default() }
    }

    /// What this and another step need.
    pub fn add(&mut self, other: Self) {
        self.keys.extend(other.keys);
        self.receipts.extend(other.receipts);
        self.rates.extend(other.rates);
        self.running.extend(other.running);
        self.approvals.extend(other.approvals);
        self.calls.extend(other.calls);
        self.waiting |= other.waiting;
        self.survey = self.survey.take().or(other.survey);
    }

    /// Whether nothing has to be looked at.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}
