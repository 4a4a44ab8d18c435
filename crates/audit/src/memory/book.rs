//! The records of a ledger in memory, and the backend that loads and writes them.
//!
//! Path: 6, 9. Doc: records.md#stores

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex};

use toolbooth_contracts::agent_log::AgentLog;
use toolbooth_contracts::approval::{Approval, ApprovalState};
use toolbooth_contracts::event::AuditEvent;
use toolbooth_contracts::history::HistoryEntry;
use toolbooth_contracts::order::{Order, OrderName};
use toolbooth_contracts::receipt::{AuditPlace, ClaimState, Receipt};

use super::locked;
use crate::approvals::PENDING_MAX;
use crate::backend::chain::Head;
use crate::backend::pruning::Removal;
use crate::backend::working::{
    APPROVALS_LOADED, Batch, CallName, Needs, RateName, ReceiptChange, StoreQuery, Stored,
    WorkingSet,
};
use crate::backend::writer::{Backend, Failure, LogEnd};
use crate::charges::BudgetRow;
use crate::documents::used_before;
use crate::history::{WindowName, WindowTotals, kept_until_ms, row_of};
use crate::ledger::LedgerError;
use crate::orders::RawOrder;
use crate::queue::{self, QueueState, QueuedCall, RawCall};
use crate::reads::RawApproval;

/// A receipt, and the keys that it holds.
#[derive(Debug)]
pub(super) struct Row {
    pub(super) receipt: Arc<Receipt>,
    fence: u64,
    pub(super) keys: BTreeSet<String>,
}

impl Row {
    fn stored(&self) -> Stored {
        Stored { receipt: Arc::clone(&self.receipt), fence: self.fence, owner_lost: false }
    }
}

/// All records.
#[derive(Debug)]
pub(super) struct MemoryState {
    pub(super) head: Head,
    /// Receipts by their ids, which sort by time.
    pub(super) receipts: BTreeMap<String, Row>,
    /// Receipts of calls that run.
    running: BTreeSet<String>,
    /// Keys, and the receipts that hold them.
    keys: HashMap<String, String>,
    rates: HashMap<RateName, i64>,
    pub(super) budgets: BTreeMap<String, BudgetRow>,
    pub(super) approvals: BTreeMap<String, Approval>,
    /// What receipts count in windows: key, time and receipt.
    pub(super) history: BTreeMap<(String, i64, String), HistoryEntry>,
    pub(super) orders: BTreeMap<OrderName, Order>,
    key_uses: BTreeMap<String, String>,
    /// Documents by their digests: their texts, and when they were used last.
    pub(super) documents: BTreeMap<String, (String, String)>,
    /// The canonical form of each event, parsed only on request.
    events: Vec<Box<str>>,
    /// The JSON of each agent log, and the place of its event.
    pub(super) logs: Vec<(Box<str>, u64)>,
    /// Asynchronous calls, each with its place in order of arrival.
    pub(super) calls: BTreeMap<CallName, (usize, QueuedCall)>,
    /// The place of the next asynchronous call.
    next_position: usize,
}

/// Parses an agent log from the JSON that was written from it.
fn read(text: &str) -> Option<AgentLog> {
    serde_json::from_str(text).ok()
}

impl MemoryState {
    /// Returns a state without records.
    pub(super) fn new(head: Head) -> Self {
        Self {
            head,
            receipts: BTreeMap::new(),
            running: BTreeSet::new(),
            keys: HashMap::new(),
            rates: HashMap::new(),
            budgets: BTreeMap::new(),
            approvals: BTreeMap::new(),
            history: BTreeMap::new(),
            orders: BTreeMap::new(),
            key_uses: BTreeMap::new(),
            documents: BTreeMap::new(),
            events: Vec::new(),
            logs: Vec::new(),
            calls: BTreeMap::new(),
            next_position: 0,
        }
    }

    /// Returns the events and their canonical forms, oldest first.
    pub(super) fn read_events(&self) -> impl DoubleEndedIterator<Item = (AuditEvent, &str)> {
        // Each was written from an event, so each can be parsed.
        self.events.iter().filter_map(|bytes| Some((serde_json::from_str(bytes).ok()?, &**bytes)))
    }

    /// Returns the agent logs, oldest first.
    pub(super) fn read_logs(&self) -> impl Iterator<Item = AgentLog> {
        self.logs.iter().filter_map(|(text, _)| read(text))
    }

    /// Returns the text of the event at a place.
    pub(super) fn event(&self, at: Option<&AuditPlace>) -> Option<String> {
        let seq = usize::try_from(at?.seq).ok()?;
        self.events.get(seq).map(ToString::to_string)
    }

    /// Returns the calls in a window that ends at `at_ms`.
    pub(super) fn window(&self, name: &WindowName, at_ms: i64) -> WindowTotals {
        let after_ms = at_ms.saturating_sub(name.length_ms);
        let mut totals = WindowTotals { after_ms, ..WindowTotals::default() };
        let rows = self.history.range((name.key.clone(), after_ms, String::new())..);
        let own = rows.take_while(|((key, _, _), _)| *key == name.key);
        own.for_each(|(_, entry)| totals.add(entry));
        totals
    }

    /// Returns the rows of a receipt in the windows.
    pub(super) fn history_of(&self, receipt_id: &str) -> Vec<String> {
        let own = self.history.iter().filter(|((_, _, receipt), _)| receipt == receipt_id);
        own.map(|(_, entry)| row_of(entry)).collect()
    }

    pub(super) fn raw_call(&self, call: &QueuedCall) -> RawCall {
        RawCall {
            state: call.state.as_str().to_owned(),
            queued: self.event(call.queued_by.as_ref()),
            finished: self.event(call.finished_by.as_ref()),
            call: call.clone(),
        }
    }

    /// Returns the orders in the order of their names.
    pub(super) fn raw_orders(&self) -> impl Iterator<Item = RawOrder> {
        self.orders.iter().map(|(name, order)| RawOrder {
            kind: name.kind.clone(),
            name: name.name.clone(),
            bytes: crate::digest::record_text(order),
            event: self.event(Some(&order.audit_seq)),
            used: self.key_uses.get(&name.name).filter(|_| name.kind == "key").cloned(),
        })
    }

    fn load(&self, needs: Needs, set: &mut WorkingSet) {
        for key in needs.keys {
            let holder = self.keys.get(&key).cloned();
            if let Some(id) = &holder {
                self.load_receipt(id.clone(), set);
            }
            set.load_key(key, holder);
        }
        for id in needs.receipts {
            self.load_receipt(id, set);
        }
        for name in needs.rates {
            let tat_ms = self.rates.get(&name).copied();
            set.load_rate(name, tat_ms);
        }
        for key in needs.budgets {
            let row = self.budgets.get(&key).cloned();
            set.load_budget(key, row);
        }
        for tool in needs.running {
            let runs = self.running.iter().filter_map(|id| self.receipts.get(id));
            let count = runs.filter(|row| row.receipt.tool_id == tool).count();
            set.load_running(tool, count as u64);
        }
        for name in needs.approvals {
            let fitting = self.approvals.values().rev().filter(|approval| name.fits(approval));
            fitting.take(APPROVALS_LOADED).for_each(|approval| self.load_approval(approval, set));
            set.load_asked(name);
        }
        for name in needs.pending {
            let own = self.approvals.range(name.1.clone()..).filter(|(id, approval)| {
                **id > name.1
                    && approval.caller == name.0
                    && approval.state == ApprovalState::Pending
            });
            let pending = own.take(PENDING_MAX as usize).count() as u64;
            set.load_pending(name, pending);
        }
        for (name, at_ms) in needs.windows {
            let totals = self.window(&name, at_ms);
            set.load_window(name, totals);
        }
        for name in needs.calls {
            let call = self.calls.get(&name).map(|(_, call)| call.clone());
            set.load_call(name, call);
        }
        if needs.orders {
            set.load_orders(&self.raw_orders().collect::<Vec<_>>());
        }
        if needs.waiting {
            let mut waiting: BTreeMap<String, u64> = BTreeMap::new();
            for (_, call) in self.in_state(QueueState::Queued) {
                *waiting.entry(call.caller.clone()).or_default() += 1;
            }
            set.load_waiting(waiting);
        }
        if needs.digest_keys {
            // The store lives in this process, and has the keys of its only writer.
            set.load_key_ids(&[]);
        }
        if let Some(survey) = needs.survey {
            self.survey(survey, set);
        }
    }

    fn load_receipt(&self, id: String, set: &mut WorkingSet) {
        let row = self.receipts.get(&id);
        let spent = row.and_then(|row| self.approvals.get(row.receipt.approval_id.as_ref()?));
        if let Some(approval) = spent {
            self.load_approval(approval, set);
        }
        set.load_receipt(id, row.map(Row::stored));
    }

    fn load_approval(&self, approval: &Approval, set: &mut WorkingSet) {
        let event = self.event(approval.audit_seq.as_ref());
        set.load_approval(approval.clone(), event.as_deref());
    }

    /// Returns an approval as stored.
    pub(super) fn raw_approval(&self, approval: &Approval) -> RawApproval {
        RawApproval {
            id: approval.approval_id.clone(),
            bytes: crate::digest::record_text(approval),
            columns: Vec::new(),
            event: self.event(approval.audit_seq.as_ref()),
        }
    }

    fn in_state(&self, state: QueueState) -> impl Iterator<Item = &(usize, QueuedCall)> {
        self.calls.values().filter(move |(_, call)| call.state == state)
    }

    fn survey(&self, survey: StoreQuery, set: &mut WorkingSet) {
        match survey {
            // There is only this writer. Shortening a log that ends with the process has no
            // benefit.
            StoreQuery::Lost
            | StoreQuery::UnnamedHeads
            | StoreQuery::Beginning { .. }
            | StoreQuery::PrunableEvents(_)
            | StoreQuery::DroppableLogs(_) => (),
            StoreQuery::PrunableReceipts { before, limit, now_ms, windows } => {
                let is_old = |receipt: &Receipt| {
                    kept_until_ms(receipt, &windows).is_none_or(|until_ms| until_ms <= now_ms)
                        && matches!(receipt.state, ClaimState::Succeeded | ClaimState::Failed)
                        && receipt.pruned_at.is_none()
                        && receipt.settled_at.as_ref().is_some_and(|settled| *settled < before)
                };
                let old = self.receipts.values().filter(|row| is_old(&row.receipt)).take(limit);
                old.for_each(|row| set.load_prunable(row.stored(), !row.keys.is_empty()));
            }
            StoreQuery::PrunableLogs(before, limit) => {
                let is_old = |text: &str| read(text).is_some_and(|log| log.timestamp < before);
                let old = self.logs.iter().filter(|(text, _)| is_old(text)).take(limit);
                let places: Vec<u64> = old.map(|(_, seq)| *seq).collect();
                if !places.is_empty() {
                    let writer = self.head.writer().to_owned();
                    set.surveyed.removal.logs.insert(writer, places);
                }
            }
            StoreQuery::NextCall(own) => {
                let is_left = |(_, call): &&(usize, QueuedCall)| {
                    let has = || own.contains(&(call.caller.clone(), call.call_id.clone()));
                    queue::is_left(call.worker.as_deref(), self.head.writer(), has, |_| true)
                };
                let oldest = |(position, _): &&(usize, QueuedCall)| *position;
                let left = self.in_state(QueueState::Running).filter(is_left).min_by_key(oldest);
                let next = left.or_else(|| self.in_state(QueueState::Queued).min_by_key(oldest));
                set.surveyed.call = next.map(|(_, call)| self.raw_call(call));
            }
            StoreQuery::PrunableCalls(before, limit) => {
                let is_old = |(_, (_, call)): &(&CallName, &(usize, QueuedCall))| {
                    call.finished_at.as_ref().is_some_and(|finished| *finished < before)
                };
                let old = self.calls.iter().filter(is_old).take(limit);
                set.surveyed.removal.calls = old.map(|(name, _)| name.clone()).collect();
            }
            StoreQuery::PrunableApprovals(before, limit) => {
                let is_old = |(_, approval): &(&String, &Approval)| {
                    approval.expires_at.as_ref().unwrap_or(&approval.requested_at) < &before
                };
                let old = self.approvals.iter().filter(is_old).take(limit);
                set.surveyed.removal.approvals = old.map(|(id, _)| id.clone()).collect();
            }
            StoreQuery::PrunableDocuments(before, limit) => {
                let is_old_log = |text: &str| read(text).is_some_and(|log| log.timestamp < before);
                if self.logs.iter().any(|(text, _)| is_old_log(text)) {
                    return;
                }
                let used_before = used_before(&before);
                let old = self.documents.iter().filter(|(_, (_, used))| *used < used_before);
                let digests = old.take(limit).map(|(digest, _)| digest.clone());
                set.surveyed.removal.documents = digests.collect();
            }
        }
    }

    fn write(&mut self, batch: &Batch, to: &Head) {
        for id in &batch.freed {
            let row = self.receipts.get_mut(id);
            for key in row.map(|row| std::mem::take(&mut row.keys)).unwrap_or_default() {
                self.keys.remove(&key);
            }
        }
        for (id, moved) in &batch.receipts {
            let Some(put) = &moved.after else {
                self.receipts.remove(id);
                self.running.remove(id);
                continue;
            };
            match put.receipt.state {
                ClaimState::InFlight => self.running.insert(id.clone()),
                _ => self.running.remove(id),
            };
            let keys = self.receipts.remove(id).map(|row| row.keys).unwrap_or_default();
            let row = Row { receipt: Arc::clone(&put.receipt), fence: put.fence, keys };
            self.receipts.insert(id.clone(), row);
        }
        for (id, entries) in &batch.history {
            if batch.receipts.get(id).is_none_or(|moved| moved.before.is_some()) {
                self.history.retain(|(_, _, receipt), _| receipt != id);
            }
            let rows = entries
                .iter()
                .map(|entry| ((entry.key.clone(), entry.at_ms, id.clone()), entry.clone()));
            self.history.extend(rows);
        }
        for (key, id) in &batch.held {
            let before = self.keys.insert(key.clone(), id.clone());
            if let Some(row) = before.and_then(|before| self.receipts.get_mut(&before)) {
                row.keys.remove(key);
            }
            if let Some(row) = self.receipts.get_mut(id) {
                row.keys.insert(key.clone());
            }
        }
        self.rates.extend(batch.rates.iter().map(|(name, tat_ms)| (name.clone(), *tat_ms)));
        if let Some(before) = &batch.budgets_before {
            self.budgets.retain(|_, row| row.day >= *before);
        }
        self.budgets.extend(batch.budgets.clone());
        for (id, approval) in &batch.approvals {
            self.approvals.insert(id.clone(), approval.clone());
        }
        self.orders.extend(batch.orders.clone());
        self.key_uses.extend(batch.key_uses.clone());
        self.events.extend(batch.events.iter().map(|chained| chained.bytes.as_str().into()));
        let logs = batch.logs.iter();
        self.logs.extend(logs.map(|(log, seq)| (log.record.text.as_str().into(), *seq)));
        for (digest, document) in batch.documents() {
            let new = || (document.text.to_string(), document.used.clone());
            let (_, used) = self.documents.entry(digest.to_owned()).or_insert_with(new);
            if *used < document.renewed_before() {
                used.clone_from(&document.used);
            }
        }
        for (name, call) in &batch.calls {
            let position =
                self.calls.get(name).map_or(self.next_position, |(position, _)| *position);
            self.next_position = self.next_position.max(position.saturating_add(1));
            self.calls.insert(name.clone(), (position, call.clone()));
        }
        if let Some(removal) = &batch.upkeep.pruned {
            self.remove(removal);
        }
        self.head = to.clone();
    }

    fn remove(&mut self, removal: &Removal) {
        let places: BTreeSet<u64> = removal.logs.values().flatten().copied().collect();
        self.logs.retain(|(_, seq)| !places.contains(seq));
        for name in &removal.calls {
            self.calls.remove(name);
        }
        for id in &removal.approvals {
            self.approvals.remove(id);
        }
        for digest in &removal.documents {
            self.documents.remove(digest);
        }
    }
}

/// Loads and writes records in memory, which never fails and never waits.
#[derive(Debug)]
pub(super) struct MemoryBackend(pub(super) Arc<Mutex<MemoryState>>);

impl Backend for MemoryBackend {
    async fn load(&mut self, needs: &Needs, _: bool, set: &mut WorkingSet) -> Result<(), Failure> {
        let missing = set.missing(needs);
        locked(&self.0).load(missing, set);
        Ok(())
    }

    async fn write(&mut self, batch: &Batch, _: &Head, to: &Head) -> Result<(), Failure> {
        let mut book = locked(&self.0);
        let is_used = |(id, moved): &(&String, &ReceiptChange)| {
            moved.before.is_none() && moved.after.is_some() && book.receipts.contains_key(*id)
        };
        if let Some((id, _)) = batch.receipts.iter().find(is_used) {
            return Err(Failure::Refused(LedgerError::used_receipt_id(id)));
        }
        book.write(batch, to);
        Ok(())
    }

    async fn gather(&mut self, _: &(dyn Fn() -> bool + Sync)) {}

    async fn release(&mut self) -> Result<(), Failure> {
        Ok(())
    }

    async fn recover(&mut self, _: &str) -> Result<LogEnd, LedgerError> {
        let book = locked(&self.0);
        Ok(LogEnd { size: book.head.next_seq(), last_leaf: book.head.last_leaf() })
    }
}
