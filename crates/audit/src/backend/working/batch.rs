//! The changes that a batch of steps writes, applied in the order of its steps.
//!
//! Path: 6, 9. Doc: records.md#the-ledger

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use toolbooth_contracts::approval::Approval;
use toolbooth_contracts::history::HistoryEntry;
use toolbooth_contracts::order::{Order, OrderName};
use toolbooth_contracts::receipt::{AuditPlace, ClaimState};

use super::{
    BegunClaim, CallName, Changes, NewEvent, PendingName, RateName, ReceiptWrite, Stored, Upkeep,
    WorkingSet, WrittenLog,
};
use crate::backend::chain::ChainedEvent;
use crate::charges::BudgetRow;
use crate::documents::Document;
use crate::history::WindowTotals;
use crate::queue::{QueueState, QueuedCall};

/// A receipt that a batch has changed.
#[derive(Debug, Clone)]
pub struct ReceiptChange {
    /// State and fence before the batch; `None` if it is new.
    pub before: Option<(ClaimState, u64)>,
    /// The current receipt; `None` if it is removed.
    pub after: Option<ReceiptWrite>,
    /// The event that accounted for it, if it is removed.
    pub accounted: Option<AuditPlace>,
}

/// The calls that count in a window or no longer do.
#[derive(Debug, Clone, Default)]
pub struct WindowChange {
    /// Their entries.
    pub counted: Vec<HistoryEntry>,
    /// The entries of those that no longer count.
    pub uncounted: Vec<HistoryEntry>,
    /// The windows of this key that the batch has loaded, by their lengths, with these changes.
    pub totals: BTreeMap<i64, WindowTotals>,
}

/// The changes that a batch of steps writes.
#[derive(Debug, Default)]
pub struct Batch {
    /// Receipts by their ids.
    pub receipts: BTreeMap<String, ReceiptChange>,
    /// Receipts with other entries in windows than before, and these entries.
    pub history: BTreeMap<String, Vec<HistoryEntry>>,
    /// Windows of the policy in which other calls count than before, by their keys.
    pub windows: BTreeMap<String, WindowChange>,
    /// Receipts that release their keys, before other keys are held.
    pub freed: BTreeSet<String>,
    /// Keys, and the receipts that hold them.
    pub held: BTreeMap<String, String>,
    /// Arrival times.
    pub rates: BTreeMap<RateName, i64>,
    /// Approvals by their ids.
    pub approvals: BTreeMap<String, Approval>,
    /// Budgets of days before this one can be removed.
    pub budgets_before: Option<String>,
    /// Budgets by their names.
    pub budgets: BTreeMap<String, BudgetRow>,
    /// Orders of operators.
    pub orders: BTreeMap<OrderName, Order>,
    /// API keys, by name, and when they were used last.
    pub key_uses: BTreeMap<String, String>,
    /// Events in their places.
    pub events: Vec<ChainedEvent>,
    /// Agent logs, each with the place of the event that accounts for it.
    pub logs: Vec<(Arc<WrittenLog>, u64)>,
    /// Asynchronous calls.
    pub calls: BTreeMap<CallName, QueuedCall>,
    /// Changes other than the records of calls.
    pub upkeep: Upkeep,
    /// Dispatched claims.
    pub(crate) begun: Vec<BegunClaim>,
    /// Claims that no longer run.
    pub(crate) ended: Vec<String>,
}

impl Batch {
    /// Returns the documents that its logs name, each once, in the order of their names.
    #[must_use]
    pub fn documents(&self) -> BTreeMap<&str, &Document> {
        let all = self.logs.iter().flat_map(|(log, _)| &log.documents);
        all.map(|document| (document.digest.as_str(), document)).collect()
    }

    /// Whether there is nothing to write.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.receipts.is_empty()
            && self.freed.is_empty()
            && self.held.is_empty()
            && self.rates.is_empty()
            && self.budgets.is_empty()
            && self.approvals.is_empty()
            && self.orders.is_empty()
            && self.key_uses.is_empty()
            && self.events.is_empty()
            && self.calls.is_empty()
            && self.upkeep.is_empty()
    }
}

impl WorkingSet {
    /// Applies the changes of a step.
    pub(crate) fn apply(&mut self, changes: Changes, batch: &mut Batch) {
        for id in changes.freed {
            for holder in self.keys.values_mut().filter(|holder| holder.as_ref() == Some(&id)) {
                *holder = None;
            }
            batch.held.retain(|_, holder| *holder != id);
            batch.freed.insert(id);
        }
        for put in changes.receipts {
            let id = put.receipt.receipt_id.clone();
            let runs = put.receipt.state == ClaimState::InFlight;
            if !matches!(put.receipt.state, ClaimState::InFlight | ClaimState::AwaitingInput) {
                batch.ended.push(id.clone());
            }
            let stored =
                Stored { receipt: Arc::clone(&put.receipt), fence: put.fence, owner_lost: false };
            let before = self.receipts.insert(id.clone(), Some(stored)).flatten();
            self.count(&id, before.as_ref(), &put.receipt.history, batch);
            if let Some(running) = self.running.get_mut(&put.receipt.tool_id) {
                let ran = before.as_ref().is_some_and(|own| own.runs() && !own.owner_lost);
                *running = (*running + u64::from(runs)).saturating_sub(u64::from(ran));
            }
            let moved = batch.receipts.entry(id).or_insert_with(|| ReceiptChange {
                before: before.map(|before| (before.receipt.state, before.fence)),
                after: None,
                accounted: None,
            });
            moved.after = Some(put);
        }
        for receipt in changes.removed {
            let id = receipt.receipt_id.clone();
            let before = self.receipts.insert(id.clone(), None).flatten();
            self.count(&id, before.as_ref(), &[], batch);
            let moved = batch.receipts.entry(id).or_insert_with(|| ReceiptChange {
                before: before.map(|before| (before.receipt.state, before.fence)),
                after: None,
                accounted: None,
            });
            (moved.after, moved.accounted) = (None, receipt.audit_seq.clone());
        }
        for (key, id) in changes.held {
            self.keys.insert(key.clone(), Some(id.clone()));
            batch.held.insert(key, id);
        }
        for (name, tat_ms) in changes.rates {
            self.rates.insert(name.clone(), Some(tat_ms));
            batch.rates.insert(name, tat_ms);
        }
        batch.budgets_before = changes.budgets_before.or(batch.budgets_before.take());
        for (key, row) in changes.budgets {
            self.budgets.insert(key.clone(), Some(row.clone()));
            batch.budgets.insert(key, row);
        }
        for approval in changes.approvals {
            if approval.revision == 1 {
                let own = |(name, _): &(&PendingName, &mut u64)| name.0 == approval.caller;
                self.pending.iter_mut().filter(own).for_each(|(_, pending)| *pending += 1);
            }
            self.approvals.insert(approval.approval_id.clone(), approval.clone());
            batch.approvals.insert(approval.approval_id.clone(), approval);
        }
        for order in changes.orders {
            let name = order.name();
            if let Some(orders) = &mut self.orders {
                orders.insert(name.clone(), Some(order.clone()));
            }
            batch.orders.insert(name, order);
        }
        batch.key_uses.extend(changes.key_uses);
        for NewEvent { body, log } in changes.events {
            let placed = self.head.append(body);
            if let Some(log) = log {
                batch.logs.push((log, placed.event.seq));
            }
            batch.events.push(placed);
        }
        for mut call in changes.calls {
            call.mac = Some(call.mac_of(&self.digester));
            let name = (call.caller.clone(), call.call_id.clone());
            let waits = u64::from(call.state == QueueState::Queued);
            let before = self.calls.insert(name.clone(), Some(call.clone())).flatten();
            let waited = before.is_some_and(|before| before.state == QueueState::Queued);
            if let Some(waiting) = &mut self.waiting {
                let of_caller = waiting.entry(call.caller.clone()).or_default();
                *of_caller = (*of_caller + waits).saturating_sub(u64::from(waited));
            }
            batch.calls.insert(name, call);
        }
        if let Some(now_ms) = changes.due_checked_ms {
            self.head.check_due(now_ms);
        }
        if changes.upkeep.checkpoint.is_some() {
            self.head.mark_checkpointed();
        }
        batch.upkeep.add(changes.upkeep);
        batch.begun.extend(changes.begun);
    }

    /// Replaces the entries of a receipt in its windows.
    fn count(
        &mut self,
        id: &str,
        before: Option<&Stored>,
        entries: &[HistoryEntry],
        batch: &mut Batch,
    ) {
        let before = before.map_or(&[][..], |before| &before.receipt.history);
        if before == entries {
            return;
        }
        for entry in before.iter().filter(|entry| !entries.contains(entry)) {
            batch.windows.entry(entry.key.clone()).or_default().uncounted.push(entry.clone());
        }
        for entry in entries.iter().filter(|entry| !before.contains(entry)) {
            batch.windows.entry(entry.key.clone()).or_default().counted.push(entry.clone());
        }
        for (name, window) in &mut self.windows {
            for gone in before.iter().filter(|entry| entry.key == name.key) {
                window.totals.take(gone);
                // Where it counts at an earlier time now, it may be earlier than calls that are not known.
                let is_later =
                    |entry: &HistoryEntry| entry.key == name.key && entry.at_ms >= gone.at_ms;
                window.is_exact &= entries.iter().any(is_later);
            }
            let new = entries.iter().filter(|entry| entry.key == name.key);
            new.for_each(|entry| window.totals.add(entry));
            if let Some(change) = batch.windows.get_mut(&name.key).filter(|_| window.is_current) {
                change.totals.insert(name.length_ms, window.totals);
            }
        }
        batch.history.insert(id.to_owned(), entries.to_vec());
    }
}
