//! Follows the receipts for which not all events were read yet.
//!
//! Doc: records.md#verification

use std::collections::BTreeMap;

use toolbooth_contracts::receipt::AuditPlace;

use super::{Records, is_before};
use crate::verify::event_fields::{EventFields, Read, ReceiptFields, Record};

/// The accounting events of a receipt that were read so far.
#[derive(Debug, Default)]
pub(in crate::verify) struct AccountingEvents {
    pub(super) seen: u32,
    /// Whether the event that the receipt names is among them.
    pub(super) last: bool,
    pub(in crate::verify) writer: String,
    pub(in crate::verify) seq: u64,
    pub(super) time: String,
    /// Whether an approval was spent with the dispatch.
    pub(super) is_approved: bool,
}

/// A receipt that has changed since an event about it: another event must account for it.
#[derive(Debug)]
pub(in crate::verify) struct UnresolvedReceipt {
    pub(super) receipt_id: String,
    /// The digests of the stored form and of the canonical form.
    digests: [String; 2],
    /// The place of that event; `None` if the receipt runs again.
    pub(in crate::verify) place: Option<AuditPlace>,
    pub(super) attempt: u64,
    pub(super) writer: String,
    pub(super) seq: u64,
}

impl UnresolvedReceipt {
    pub(super) fn of(read: &Read, record: &Record<ReceiptFields>, receipt: &ReceiptFields) -> Self {
        Self {
            receipt_id: receipt.receipt_id.clone(),
            digests: [record.digest.clone(), record.canonical_digest()],
            place: receipt.audit_seq.clone(),
            attempt: receipt.attempt,
            writer: read.writer.clone(),
            seq: read.seq,
        }
    }
}

impl Records<'_> {
    /// Takes the receipts that another event must account for and that state the place of that
    /// event.
    pub(in crate::verify) fn take_owed(&mut self) -> Vec<UnresolvedReceipt> {
        let (known, running) = std::mem::take(&mut self.unresolved)
            .into_iter()
            .partition(|unresolved: &UnresolvedReceipt| unresolved.place.is_some());
        self.unresolved = running;
        known
    }

    /// Takes the receipts for which only the dispatch event was read, after all events were read.
    pub(in crate::verify) fn take_open(&mut self) -> Vec<UnresolvedReceipt> {
        std::mem::take(&mut self.open).into_values().collect()
    }

    /// Checks that the named accounting event accounts for a receipt.
    pub(in crate::verify) fn unresolved(
        &mut self,
        unresolved: &UnresolvedReceipt,
        bytes: Option<&str>,
    ) {
        let place = unresolved.place.as_ref();
        let gone = place.is_some_and(|place| self.expected.is_lacking(&place.writer, place.seq));
        if gone && bytes.is_none() {
            return;
        }
        let fields: Option<EventFields> = bytes.and_then(|bytes| serde_json::from_str(bytes).ok());
        let accounts = fields.is_some_and(|fields| {
            fields.receipt_id.as_ref() == Some(&unresolved.receipt_id)
                && fields
                    .receipt_digest
                    .as_ref()
                    .is_some_and(|own| unresolved.digests.contains(own))
        });
        if !accounts {
            self.changed(&unresolved.receipt_id, &unresolved.writer, unresolved.seq);
        }
    }

    pub(super) fn changed(&mut self, id: &str, writer: &str, seq: u64) {
        let message = format!("receipt {id} was changed");
        self.problems.add("receipt-changed", writer, seq, message);
    }

    /// Takes the receipts for which not all events were read.
    pub(in crate::verify) fn take_accounted(&mut self) -> BTreeMap<String, AccountingEvents> {
        std::mem::take(&mut self.accounted)
    }

    /// Checks the store's result for such a receipt: whether it exists, and whether its events now
    /// account for it.
    pub(in crate::verify) fn leftover(
        &mut self,
        id: &str,
        accounted: &AccountingEvents,
        found: Option<bool>,
    ) {
        let (writer, seq) = (&accounted.writer, accounted.seq);
        match found {
            Some(true) => (),
            Some(false) => {
                let message = format!("receipt {id} was changed: other events account for it");
                self.problems.add("receipt-changed", writer, seq, message);
            }
            // A receipt is pruned only after its end, but the event of its end may have been
            // pruned: by an earlier version in any case, by this one where an approval still names the
            // dispatch.
            None if is_before(&accounted.time, self.expected.receipts_before.as_ref())
                && (self.expected.lacks_events()
                    || accounted.is_approved
                        && is_before(&accounted.time, self.expected.events_before.as_ref())) => {}
            None => {
                let message = format!("receipt {id} is missing");
                self.problems.add("receipt-missing", writer, seq, message);
            }
        }
    }
}
