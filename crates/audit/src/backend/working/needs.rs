//! The records that steps need, by name, and the results of queries over the whole store.
//!
//! Path: 6, 9. Doc: records.md#the-ledger

use std::collections::{BTreeMap, BTreeSet};

use super::Stored;
pub use crate::approvals::{ApprovalName, PendingName};
use crate::backend::disk_space::Dropped;
use crate::backend::pruning::Removal;
use crate::history::WindowName;
pub use crate::queue::CallName;
use crate::queue::{QueuedCall, RawCall};
use crate::reads::{PrunedLog, WriterHead};
use toolbooth_contracts::history::DeclaredWindow;

/// A tool and a caller, the key of a rate.
pub type RateName = (String, String);

/// The records that steps need.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Needs {
    /// Keys, with the receipts that hold them.
    pub keys: BTreeSet<String>,
    /// Receipts, with the approvals that they have spent.
    pub receipts: BTreeSet<String>,
    /// Arrival times of tools and callers.
    pub rates: BTreeSet<RateName>,
    /// Budgets, by name.
    pub budgets: BTreeSet<String>,
    /// Tools for which the number of running calls is needed.
    pub running: BTreeSet<String>,
    /// Unspent approvals for exactly these calls.
    pub approvals: BTreeSet<ApprovalName>,
    /// Callers for which the number of undecided approvals is needed.
    pub pending: BTreeSet<PendingName>,
    /// Windows of the policy, and the time at which the earliest of them ends, in milliseconds; a store
    /// with a clock of its own takes that.
    pub windows: BTreeMap<WindowName, i64>,
    /// The keys of windows in which a call will count, or will no longer: two steps that change one window wait
    /// for each other.
    pub counting: BTreeSet<String>,
    /// Whether the time of the store's clock is needed.
    pub clock: bool,
    /// Whether the step must have its own batch.
    pub is_alone: bool,
    /// Asynchronous calls.
    pub calls: BTreeSet<CallName>,
    /// Whether all orders of operators are needed.
    pub orders: bool,
    /// Whether the number of waiting asynchronous calls of each caller is needed.
    pub waiting: bool,
    /// Whether the ids of the store's digest keys are needed. They are read after all records that are found by a
    /// digest.
    pub digest_keys: bool,
    /// A query over the whole store; such a step has its own batch.
    pub survey: Option<StoreQuery>,
}

/// A query over the whole store, within the transaction of its step. It changes nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreQuery {
    /// Running claims of lost writers.
    Lost,
    /// The ends of other writers' logs that no checkpoint has finally named, oldest first.
    UnnamedHeads,
    /// Records of earlier versions to adopt; if requested, the ends of all other writers' logs.
    Beginning {
        /// Whether the ends are requested.
        heads: bool,
    },
    /// Settled receipts that are not tombstones.
    PrunableReceipts {
        /// Only from before this time.
        before: String,
        /// Only those that no window of the policy counts at this time, in milliseconds.
        now_ms: i64,
        /// The windows that are declared.
        windows: Vec<DeclaredWindow>,
        /// At most this number.
        limit: usize,
    },
    /// Agent logs from before a time; at most this number.
    PrunableLogs(String, usize),
    /// Agent logs to remove if space runs short, at most this number. Logs of calls without a
    /// receipt are first, then the oldest.
    DroppableLogs(usize),
    /// Events from before a time that no longer account for a record. They are in the next block of
    /// a log that a checkpoint covers. Alternatively, the query examines a log up to that
    /// checkpoint.
    PrunableEvents(String),
    /// The oldest asynchronous call with a lost worker, else the oldest waiting one. The names are
    /// the calls that this process runs.
    NextCall(BTreeSet<CallName>),
    /// Asynchronous calls that were finished before a time; at most this number.
    PrunableCalls(String, usize),
    /// Approvals that have expired before a time; at most this number.
    PrunableApprovals(String, usize),
    /// Documents that no log from a time on names ([`crate::documents::used_before`]), once all logs from before
    /// it are removed; at most this number.
    PrunableDocuments(String, usize),
}

/// The results of a [`StoreQuery`].
#[derive(Debug, Default)]
pub struct StoreFindings {
    /// The result of [`StoreQuery::Lost`].
    pub lost: Vec<Stored>,
    /// The result of [`StoreQuery::UnnamedHeads`] and [`StoreQuery::Beginning`].
    pub heads: Vec<OtherHead>,
    /// The result of [`StoreQuery::Beginning`] in a store that an earlier version has written.
    pub earlier: Option<Earlier>,
    /// The result of [`StoreQuery::PrunableReceipts`], and whether each receipt holds a key.
    pub prunable: Vec<(Stored, bool)>,
    /// Other records that can be removed.
    pub removal: Removal,
    /// The result of [`StoreQuery::DroppableLogs`]: the place up to which logs are removed.
    pub dropped: Option<Dropped>,
    /// Whether more records remain to be examined.
    pub more: bool,
    /// The result of [`StoreQuery::NextCall`].
    pub call: Option<RawCall>,
}

/// Records that an earlier version has written without the accounting that is now required.
#[derive(Debug, Default)]
pub struct Earlier {
    /// Asynchronous calls.
    pub calls: Vec<QueuedCall>,
    /// Logs with removed beginnings, by writer.
    pub logs: Vec<(String, PrunedLog)>,
}

/// The end of another writer's log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OtherHead {
    /// The head of the log.
    pub head: WriterHead,
    /// Whether the log can no longer grow, because the writer has ended or is lost.
    pub ended: bool,
}

impl Needs {
    /// Returns the needs of a step on a receipt.
    #[must_use]
    pub fn of_receipt(receipt_id: &str) -> Self {
        Self { receipts: BTreeSet::from([receipt_id.to_owned()]), ..Self::default() }
    }

    /// Returns the needs of a step on a call.
    #[must_use]
    pub fn of_call(caller: &str, call_id: &str) -> Self {
        let name = (caller.to_owned(), call_id.to_owned());
        Self { calls: BTreeSet::from([name]), ..Self::default() }
    }

    /// Returns the needs of a step with a query over the whole store.
    #[must_use]
    pub fn of(survey: StoreQuery) -> Self {
        Self { survey: Some(survey), ..Self::default() }
    }

    /// Adds the needs of another step.
    pub fn add(&mut self, other: Self) {
        self.keys.extend(other.keys);
        self.receipts.extend(other.receipts);
        self.rates.extend(other.rates);
        self.budgets.extend(other.budgets);
        self.running.extend(other.running);
        self.approvals.extend(other.approvals);
        self.pending.extend(other.pending);
        for (name, at_ms) in other.windows {
            self.windows
                .entry(name)
                .and_modify(|known| *known = at_ms.min(*known))
                .or_insert(at_ms);
        }
        self.counting.extend(other.counting);
        self.clock |= other.clock;
        self.is_alone |= other.is_alone;
        self.calls.extend(other.calls);
        self.orders |= other.orders;
        self.waiting |= other.waiting;
        self.digest_keys |= other.digest_keys;
        self.survey = self.survey.take().or(other.survey);
    }

    /// Whether the step cannot share its batch with others.
    #[must_use]
    pub fn is_alone(&self) -> bool {
        self.is_alone || self.survey.is_some()
    }

    /// Whether no record is needed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}
