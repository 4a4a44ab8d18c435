//! The changes of one step, and records in their stored form.
//!
//! Path: 6, 9. Doc: records.md#the-ledger

use std::sync::Arc;

use toolbooth_contracts::agent_log::AgentLog;
use toolbooth_contracts::approval::Approval;
use toolbooth_contracts::event::EventBody;
use toolbooth_contracts::order::Order;
use toolbooth_contracts::receipt::Receipt;

use super::RateName;
use crate::backend::pruning::Removal;
use crate::charges::{BudgetRow, Taken};
use crate::digest::{record_text, sha256_hex};
use crate::documents::Document;
use crate::ledger::Moment;
use crate::queue::QueuedCall;
use crate::reads::PrunedLog;

/// A record as stored: the JSON that is digested, byte for byte.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordText {
    /// The JSON.
    pub text: String,
    /// Its SHA-256 in hex, by which events name the record.
    pub digest: String,
}

impl RecordText {
    /// Serializes a record once.
    #[must_use]
    pub fn of(record: &impl serde::Serialize) -> Self {
        let text = record_text(record);
        let digest = sha256_hex(text.as_bytes());
        Self { text, digest }
    }
}

/// An agent log as stored.
#[derive(Debug)]
pub struct WrittenLog {
    /// The log.
    pub log: Arc<AgentLog>,
    /// Its JSON and the digest of the JSON.
    pub record: RecordText,
    /// Documents that it names, if the store may not have them.
    pub documents: Vec<Document>,
}

/// A receipt that a step writes.
#[derive(Debug, Clone)]
pub struct ReceiptWrite {
    /// The receipt.
    pub receipt: Arc<Receipt>,
    /// The fence of its claim.
    pub fence: u64,
    /// Its JSON.
    pub text: String,
}

/// An event that a step writes, and the agent log that it accounts for.
#[derive(Debug, Clone)]
pub struct NewEvent {
    /// The event.
    pub body: EventBody,
    /// The log.
    pub log: Option<Arc<WrittenLog>>,
}

/// A claim that a step dispatches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BegunClaim {
    /// The receipt id.
    pub receipt_id: String,
    /// The fence of the dispatch.
    pub fence: u64,
    /// The tool.
    pub tool_id: String,
    /// The caller.
    pub caller: String,
    /// The time of the claim.
    pub at: Moment,
    /// The charges that it has taken.
    pub taken: Vec<Taken>,
    /// The keys of the windows of the policy that count it.
    pub windows: Vec<String>,
}

/// The changes of a step, applied completely or not applied.
#[derive(Debug, Default)]
pub struct Changes {
    /// Receipts, new or changed.
    pub receipts: Vec<ReceiptWrite>,
    /// Receipts that are removed.
    pub removed: Vec<Arc<Receipt>>,
    /// Receipts that release their keys, before other keys are held.
    pub freed: Vec<String>,
    /// Keys, and the receipts that hold them.
    pub held: Vec<(String, String)>,
    /// Arrival times.
    pub rates: Vec<(RateName, i64)>,
    /// Approvals, new or changed.
    pub approvals: Vec<Approval>,
    /// Orders of operators, new or changed.
    pub orders: Vec<Order>,
    /// Names of API keys, and when they were used last.
    pub key_uses: Vec<(String, String)>,
    /// Events, in order.
    pub events: Vec<NewEvent>,
    /// Asynchronous calls, new or changed.
    pub calls: Vec<QueuedCall>,
    /// Budgets of days before this one can be removed.
    pub budgets_before: Option<String>,
    /// Budgets, with their new use.
    pub budgets: Vec<(String, BudgetRow)>,
    /// Dispatched claims.
    pub begun: Vec<BegunClaim>,
    /// The time at which it was checked whether a checkpoint is due, in milliseconds.
    pub due_checked_ms: Option<i64>,
    /// Changes other than the records of calls.
    pub upkeep: Upkeep,
}

/// Changes other than the records of calls: the log itself, the lease, pruning.
#[derive(Debug, Default)]
pub struct Upkeep {
    /// A checkpoint covers everything so far.
    pub checkpoint: Option<CheckpointWrite>,
    /// The writer's lease is renewed.
    pub renewed: Option<Moment>,
    /// Removed records other than receipts.
    pub pruned: Option<Removal>,
    /// Adopted beginnings of logs that an earlier version has removed.
    pub adopted: Vec<(String, PrunedLog)>,
    /// Whether the writer's log ends.
    pub stopped: bool,
}

impl Upkeep {
    /// Whether nothing changes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.checkpoint.is_none()
            && self.renewed.is_none()
            && self.pruned.is_none()
            && self.adopted.is_empty()
            && !self.stopped
    }

    /// Adds the changes of a later step.
    pub(crate) fn add(&mut self, later: Self) {
        self.checkpoint = later.checkpoint.or(self.checkpoint.take());
        self.renewed = later.renewed.or(self.renewed.take());
        self.pruned = later.pruned.or(self.pruned.take());
        self.adopted.extend(later.adopted);
        self.stopped |= later.stopped;
    }
}

/// The data of a checkpoint in addition to its event.
#[derive(Debug, Clone, Default)]
pub struct CheckpointWrite {
    /// The note.
    pub note: String,
    /// Writers of ended logs, with the sizes that the checkpoint names.
    pub ended: Vec<(String, u64)>,
}
