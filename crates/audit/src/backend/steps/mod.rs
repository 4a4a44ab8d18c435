//! The steps of a ledger: the records that each step reads, and the changes that it makes.
//!
//! Steps are pure, and every store runs the same ones. The meaning of a claim's events is decided
//! by [`crate::claim`].
//!
//! Path: 6, 9. Doc: records.md#the-ledger

mod approvals;
mod calls;
mod claim;
mod log;
mod people;
mod settle;
mod upkeep;

pub(crate) use calls::CALL_SINCE;
pub use calls::{CancelCall, Enqueue, FinishCall, HeartbeatCall, ReleaseCall, TakeCall};
pub use log::{AcceptRestored, RecordEvents, SignCheckpoint, Start, Stop, check_version, started};
pub use people::RecordUses;
pub use settle::{Abandon, Refuse, Settle, Wait};
pub use upkeep::{FreeSpace, PRUNE_MAX, PruneRecords, Renew, Sweep};

use std::sync::Arc;

use toolbooth_contracts::event::{AuditEventKind, EventBody};
use toolbooth_contracts::receipt::{AuditPlace, Receipt};

use crate::backend::working::{
    Changes, Needs, NewEvent, ReceiptWrite, RecordText, Stored, WorkingSet,
};
use crate::claim::{ClaimSnapshot, holds_keys};
use crate::history::counted_until_ms;
use crate::ledger::{LedgerError, Moment};

/// One operation of a ledger.
pub trait Step: Send + 'static {
    /// The result of the step.
    type Answer: Send + 'static;

    /// Returns the records that the step reads.
    fn needs(&self) -> Needs;

    /// Whether its answer waits for the disk, if the store leaves the choice.
    fn sync(&self) -> bool {
        true
    }

    /// Whether this answer is returned before it is durable.
    fn is_early(&self, _: &Self::Answer) -> bool {
        false
    }

    /// Returns the result and the changes. A rejected step changes nothing.
    ///
    /// # Errors
    /// The reason of the rejection; [`LedgerError::Defect`] if a needed record was not loaded.
    fn decide(&self, set: &WorkingSet) -> Result<(Self::Answer, Changes), LedgerError>;
}

fn snapshot(stored: &Stored) -> ClaimSnapshot {
    ClaimSnapshot {
        state: stored.receipt.state,
        fence: stored.fence,
        attempt: stored.receipt.attempt,
        settled: stored.receipt.settled_at.is_some(),
    }
}

/// Returns the place of the event after `events` others of the same step.
fn place(set: &WorkingSet, events: usize) -> AuditPlace {
    AuditPlace { writer: set.writer().to_owned(), seq: set.head().next_seq() + events as u64 }
}

/// Moves a receipt to the state of the rules, with its accounting event.
fn move_to(receipt: &mut Receipt, to: ClaimSnapshot, accounted: AuditPlace) {
    receipt.state = to.state;
    receipt.attempt = to.attempt;
    receipt.audit_seq = Some(accounted);
    receipt.audit_count = receipt.audit_count.map(|count| count.saturating_add(1));
}

/// Returns an event about a receipt.
fn about(receipt: &Receipt, kind: AuditEventKind, at: &Moment) -> EventBody {
    let mut body = EventBody::new(kind, at.text.clone());
    body.tool_name = Some(receipt.tool_id.clone());
    body.caller = Some(receipt.caller.clone());
    body.call_id = Some(receipt.call_id.clone());
    body.receipt_id = Some(receipt.receipt_id.clone());
    body.status = receipt.status;
    body.error_code = receipt.error_code;
    body.effect = Some(receipt.effect);
    body.args_digest = Some(receipt.args_digest.clone());
    body.result_digest.clone_from(&receipt.result_digest);
    body
}

fn plain(body: EventBody) -> NewEvent {
    NewEvent { body, log: None }
}

impl Changes {
    /// Writes the tombstone of a receipt, which no event names.
    fn put(&mut self, receipt: Receipt, fence: u64) {
        let text = crate::digest::record_text(&receipt);
        self.receipts.push(ReceiptWrite { receipt: Arc::new(receipt), fence, text });
    }

    /// Writes a receipt; returns it with the digest by which an event names it.
    fn put_named(&mut self, receipt: Receipt, fence: u64) -> (Arc<Receipt>, String) {
        let RecordText { text, digest } = RecordText::of(&receipt);
        let receipt = Arc::new(receipt);
        self.receipts.push(ReceiptWrite { receipt: Arc::clone(&receipt), fence, text });
        (receipt, digest)
    }

    /// Releases the keys of a receipt, if it has any.
    fn free_keys(&mut self, receipt: &Receipt) {
        if receipt.idempotency.all().next().is_some() {
            self.freed.push(receipt.receipt_id.clone());
        }
    }

    /// Writes a receipt and the event that accounts for it.
    fn put_with(&mut self, receipt: Receipt, fence: u64, mut body: EventBody) -> Arc<Receipt> {
        let (receipt, digest) = self.put_named(receipt, fence);
        account(&mut body, &receipt, digest);
        self.events.push(plain(body));
        receipt
    }
}

/// Makes an event account for a receipt.
fn account(body: &mut EventBody, receipt: &Receipt, digest: String) {
    body.receipt_digest = Some(digest);
    let has_keys = receipt.idempotency.all().next().is_some();
    body.holds_keys = has_keys && holds_keys(receipt);
    body.counted_until_ms = counted_until_ms(receipt);
}
