//! What one step changes, and records in the form in which they are stored.
//!
//! Path: 6, 9. Doc: records.md#the-ledger

use std::sync::Arc;

use toolbooth_contracts::agent_log::AgentLog;
use toolbooth_contracts::approval::Approval;
use toolbooth_contracts::event::EventBody;
use toolbooth_contracts::receipt::Receipt;

use super::RateName;
use crate::backend::pruning::Removal;
use crate::digest::{record_text, sha256_hex};
use crate::ledger::Moment;
use crate::queue::QueuedCall;
use crate::reads::PrunedLog;

/// A record as it is stored: the JSON that is digested, byte for byte.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordText {
    /// The JSON.
    pub text: String,
    /// Its SHA-256 in hex: how events name the record.
    pub digest: String,
}

impl RecordText {
    /// A record, written once.
    #[must_use]
    pub fn of(record: &impl serde::Serialize) -> Self {
        let text = record_text(record);
        let digest = sha256_hex(text.as_bytes());
        Self { text, digest }
    }
}

/// An agent log as it is stored.
#[derive(Debug)]
pub struct WrittenLog {
    /// The log.
    pub log: Arc<AgentLog>,
    /// Its JSON and the digest of that.
    pub record: RecordText,
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

/// What a step changes: applied whole or not at all.
#[derive(Debug, Default)]
pub struct Changes {
    /// Receipts, new or changed.
    pub receipts: Vec<ReceiptWrite>,
    /// Receipts that are removed.
    pub removed: Vec<Arc<Receipt>>,
    /// Receipts whose keys are freed, before others are held.
    pub freed: Vec<String>,
    /// Keys, and the receipts that hold them.
    pub held: Vec<(String, String)>,
    /// Arrival times.
    pub rates: Vec<(RateName, i64)>,
    /// Approvals, new or changed.
    pub approvals: Vec<Approval>,
    /// Events, in order.
    pub events: Vec<NewEvent>,
    /// Asynchronous calls, new or changed.
    pub calls: Vec<QueuedCall>,
    /// Claims that were dispatched: their fences, and when.
    pub begun: Vec<(String, u64, Moment)>,
    /// A checkpoint was asked for at this time, in milliseconds.
    pub looked_ms: Option<i64>,
    /// What changes beside the records of calls.
    pub upkeep: Upkeep,
}

/// What changes beside the records of calls: the log as such, the lease, what is pruned.
#[derive(Debug, Default)]
pub struct Upkeep {
    /// A checkpoint covers everything up to now.
    pub checkpoint: Option<CheckpointWrite>,
    /// The writer's lease is renewed.
    pub renewed: Option<Moment>,
    /// Records that go, beside receipts.
    pub pruned: Option<Removal>,
    /// Beginnings of logs that an earlier version has removed are taken over.
    pub adopted: Vec<(String, PrunedLog)>,
    /// The writer's log ends.
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

    /// Adds what a later step changes.
    pub(crate) fn add(&mut self, later: Self) {
        self.checkpoint = later.checkpoint.or(self.checkpoint.take());
        self.renewed = later.renewed.or(self.renewed.take());
        self.pruned = later.pruned.or(self.pruned.take());
        self.adopted.extend(later.adopted);
        self.stopped |= later.stopped;
    }
}

/// What a checkpoint leaves behind beside its event.
#[derive(Debug, Clone, Default)]
pub struct CheckpointWrite {
    /// The note.
    pub note: String,
    /// Writers whose logs grow no more, with the sizes that the checkpoint names.
    pub ended: Vec<(String, u64)>,
}
