//! Verifies that receipts, agent logs, keys, approvals and asynchronous calls match the events that
//! account for them.
//!
//! Doc: records.md#verification

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use toolbooth_contracts::approval::Approval;
use toolbooth_contracts::event::AuditEventKind;
use toolbooth_contracts::receipt::{AuditPlace, Receipt};

use super::approvals::Approvals;
use super::budgets::Budgets;
use super::documents::Documents;
use super::event_fields::{EventFields, LogFields, Read, ReceiptFields, Record, fits, is_name};
use super::orders::Orders;
use super::report::Problems;
use super::survey::Expectations;
use crate::backend::steps::CALL_SINCE;
use crate::backend::working::CallName;
use crate::charges::RawBudget;
use crate::claim::holds_keys;
use crate::digest::Digester;
use crate::documents::RawDocument;
use crate::history::row_of;
use crate::orders::RawOrder;
use crate::queue::{QueueState, RawCall};
use crate::reads::{Accounted, RawApproval, Unaccounted};

/// The accounting events of a receipt that were read so far.
#[derive(Debug, Default)]
pub(super) struct AccountingEvents {
    seen: u32,
    /// Whether the event that the receipt names is among them.
    last: bool,
    pub(super) writer: String,
    pub(super) seq: u64,
    time: String,
}

/// A missing receipt: its call, and the event after which it held keys.
#[derive(Debug)]
pub(super) struct Absent {
    pub(super) call: String,
    writer: String,
    seq: u64,
}

/// The number of operator resolutions of a receipt according to its fence, which each dispatch and
/// each resolution increments.
#[derive(Debug)]
struct Fence {
    words: Option<u64>,
    writer: String,
    seq: u64,
}

/// A receipt that has changed since an event about it: another event must account for it.
#[derive(Debug)]
pub(super) struct UnresolvedReceipt {
    receipt_id: String,
    /// The digests of the stored form and of the canonical form.
    digests: [String; 2],
    /// The place of that event; `None` if the receipt runs again.
    pub(super) place: Option<AuditPlace>,
    attempt: u64,
    writer: String,
    seq: u64,
}

impl UnresolvedReceipt {
    fn of(read: &Read, record: &Record<ReceiptFields>, receipt: &ReceiptFields) -> Self {
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

/// The records as far as their events were read.
#[derive(Debug)]
pub(super) struct Records<'e> {
    expected: &'e Expectations,
    digester: Option<Digester>,
    /// Ended receipts of earlier versions for which only the dispatch event was read so far.
    open: BTreeMap<String, UnresolvedReceipt>,
    unresolved: Vec<UnresolvedReceipt>,
    dispatched: BTreeMap<String, u64>,
    /// Receipts for which not all events were read yet.
    accounted: BTreeMap<String, AccountingEvents>,
    approvals: Approvals,
    orders: Orders,
    budgets: Budgets,
    documents: Documents,
    /// Missing receipts that held keys after an event.
    absent: BTreeMap<String, Absent>,
    /// The number of operator resolutions of receipts, by events and by their fences.
    resolved: BTreeMap<String, u64>,
    fences: BTreeMap<String, Fence>,
    queue: Queue,
    /// First-use pins, and the last approval of each: its time and digest.
    pins: BTreeMap<String, String>,
    approved: BTreeMap<String, (String, Option<String>)>,
    counted: Accounted,
    problems: Problems,
}

impl<'e> Records<'e> {
    pub(super) fn new(
        expected: &'e Expectations,
        digester: Option<Digester>,
        pins: BTreeMap<String, String>,
    ) -> Self {
        Self {
            pins,
            approved: BTreeMap::new(),
            expected,
            digester,
            open: BTreeMap::new(),
            unresolved: Vec::new(),
            dispatched: BTreeMap::new(),
            accounted: BTreeMap::new(),
            approvals: Approvals::default(),
            orders: Orders::default(),
            budgets: Budgets::default(),
            documents: Documents::default(),
            absent: BTreeMap::new(),
            resolved: BTreeMap::new(),
            fences: BTreeMap::new(),
            queue: Queue::default(),
            counted: Accounted { lacking: expected.lacking(), ..Default::default() },
            problems: Problems::default(),
        }
    }

    /// Checks the next event with the records that it names.
    pub(super) fn event(&mut self, read: &Read) {
        let Some(fields) = &read.fields else { return };
        self.legacy(read, fields);
        self.approvals.event(read, fields);
        self.orders.event(read, fields);
        self.budgets.event(fields);
        if fields.event == AuditEventKind::ReceiptResolved
            && let Some(id) = &fields.receipt_id
        {
            *self.resolved.entry(id.clone()).or_default() += 1;
        }
        if fields.event == AuditEventKind::ToolApproved
            && let Some(id) = fields.fact("tool").filter(|id| self.pins.contains_key(*id))
        {
            // Each log is ordered, but there is no order between logs.
            let known = self.approved.entry(id.to_owned()).or_default();
            if known.0 <= fields.time {
                *known = (fields.time.clone(), fields.fact("sourceDigest").map(str::to_owned));
            }
        }
        self.queue.event(read, fields, self.expected.calls_before.as_ref());
        if let Some(digest) = &fields.receipt_digest {
            self.open.remove(fields.receipt_id.as_deref().unwrap_or_default());
            self.receipt(read, fields, digest);
        }
        self.log(read, fields);
    }

    /// Records receipts of earlier versions, which later events must account for.
    fn legacy(&mut self, read: &Read, fields: &EventFields) {
        let record =
            read.receipt.as_ref().and_then(|record| Some((record, record.fields.as_ref()?)));
        if fields.event != AuditEventKind::ToolDispatched {
            return;
        }
        let Some((record, receipt)) = record.filter(|(_, fields)| fields.audit_count.is_none())
        else {
            return;
        };
        if receipt.attempt > 1 {
            *self.dispatched.entry(receipt.receipt_id.clone()).or_default() += 1;
        }
        // An ended receipt must have an event that accounts for its end; without it, the receipt is
        // forged.
        if !receipt.runs() && receipt.pruned_at.is_none() {
            self.open
                .insert(receipt.receipt_id.clone(), UnresolvedReceipt::of(read, record, receipt));
        }
    }

    /// Checks a document.
    pub(super) fn document(&mut self, raw: &RawDocument) {
        self.documents.document(raw, &mut self.problems);
    }

    /// Returns the documents that logs name and that were not found.
    pub(super) fn take_missing_documents(&mut self) -> Vec<(String, (String, u64))> {
        self.documents.take_missing()
    }

    /// Reports a document that does not exist.
    pub(super) fn missing_document(&mut self, digest: &str, (writer, seq): &(String, u64)) {
        let message = format!("the document {digest}, which an agent log names, is missing");
        self.problems.add("document-missing", writer, *seq, message);
    }

    /// Reads an event that was written after the heads were read; only its dispatch of a receipt is
    /// counted.
    pub(super) fn later(&mut self, read: &Read) {
        if let Some(fields) = &read.fields
            && fields.event == AuditEventKind::ToolDispatched
            && let Some(id) = &fields.receipt_id
        {
            *self.dispatched.entry(id.clone()).or_default() += 1;
        }
    }

    fn log(&mut self, read: &Read, fields: &EventFields) {
        let (writer, seq) = (read.writer.as_str(), read.seq);
        let call = || fields.call_id.clone().unwrap_or_default();
        match (&fields.log_digest, &read.log) {
            (None, None) => (),
            (None, Some(_)) => {
                let message = "an agent log exists, but its event names none";
                self.problems.add("log-unaccounted", writer, seq, message);
            }
            (Some(digest), Some(record)) => {
                self.counted.logs += 1;
                if let Some(log) = &record.fields {
                    self.documents.log(read, log);
                }
                let row =
                    record.fields.as_ref().is_some_and(|own| log_fits(&record.raw.columns, own));
                if !row || !record.is_named_by(digest) {
                    let message = format!("the agent log of call {} was changed", call());
                    self.problems.add("log-changed", writer, seq, message);
                }
            }
            (Some(_), None) if self.expected.is_log_gone(fields) => (),
            (Some(_), None) => {
                let message = format!("the agent log of call {} is missing", call());
                self.problems.add("log-missing", writer, seq, message);
            }
        }
    }

    fn receipt(&mut self, read: &Read, fields: &EventFields, digest: &str) {
        let (writer, seq) = (read.writer.as_str(), read.seq);
        let id = fields.receipt_id.clone().unwrap_or_default();
        let pruned = is_before(&fields.time, self.expected.receipts_before.as_ref());
        let is_counted = self.expected.is_counted(&fields.time, fields.counted_until_ms);
        let Some(record) = &read.receipt else {
            if fields.event == AuditEventKind::ToolDispatched {
                // The claim has ended, and its terminal event names the receipt again.
                self.account(read, fields, &id);
            } else {
                self.accounted.remove(&id);
                if pruned {
                    self.absent(read, fields, &id);
                } else {
                    let message = format!("receipt {id} is missing");
                    self.problems.add("receipt-missing", writer, seq, message);
                }
            }
            return;
        };
        let Some(receipt) = record.fields.as_ref().filter(|receipt| receipt.receipt_id == id)
        else {
            let message = format!("receipt {id} cannot be read");
            self.problems.add("receipt-changed", writer, seq, message);
            return;
        };
        if !receipt_fits(&record.raw.columns, receipt) {
            let message = format!("receipt {id} and its row say different things");
            self.problems.add("receipt-changed", writer, seq, message);
            return;
        }
        let last = receipt
            .audit_seq
            .as_ref()
            .is_some_and(|place| place.writer == read.writer && place.seq == read.seq);
        if last {
            self.counted.receipts += 1;
            self.keys_of(read, record);
            self.history_of(read, record);
            self.fence(read, record, receipt);
        }
        if let Some(expected) = receipt.audit_count {
            // Events from before the pruning time count, too.
            let accounted = self.account(read, fields, &id);
            accounted.last |= last;
            if accounted.last && accounted.seen == expected {
                self.accounted.remove(&id);
            }
            if !last {
                return;
            }
        }
        if record.is_named_by(digest) {
            return;
        }
        if receipt.pruned_at.is_some() && last {
            // A tombstone contains nothing that the event does not state, and no window counts it.
            let same = receipt.history.is_empty()
                && receipt.status == fields.status
                && receipt.effect == fields.effect
                && receipt.error_code == fields.error_code
                && (fields.args_digest.is_none() || receipt.args_digest == fields.args_digest);
            if !same || !pruned || is_counted {
                let message = format!("the tombstone of receipt {id} was changed");
                self.problems.add("receipt-changed", writer, seq, message);
            }
        } else if last {
            self.problems.add("receipt-changed", writer, seq, format!("receipt {id} was changed"));
        } else if receipt.pruned_at.is_none() || !pruned {
            self.unresolved.push(UnresolvedReceipt::of(read, record, receipt));
        }
    }

    /// Records the fence of a receipt for a later check, because its resolutions may be in a log
    /// that is read later. A receipt that was only dispatched and settled has none.
    fn fence(&mut self, read: &Read, record: &Record<ReceiptFields>, receipt: &ReceiptFields) {
        let Some(fence) = record.raw.columns.get(5).and_then(Option::as_ref) else { return };
        if *fence == receipt.attempt.to_string() && matches!(receipt.audit_count, Some(1 | 2)) {
            return;
        }
        let words = fence.parse().ok().and_then(|fence: u64| fence.checked_sub(receipt.attempt));
        let fence = Fence { words, writer: read.writer.clone(), seq: read.seq };
        self.fences.insert(receipt.receipt_id.clone(), fence);
    }

    /// Records a missing receipt that held keys, or that a window counted when receipts were last pruned;
    /// such a receipt is never pruned without a tombstone.
    fn absent(&mut self, read: &Read, fields: &EventFields, id: &str) {
        let is_counted = self.expected.is_counted(&fields.time, fields.counted_until_ms);
        if !fields.holds_keys && !is_counted {
            // The order of two logs is determined from their events at the end.
            if self.absent.get(id).is_some_and(|absent| absent.writer == read.writer) {
                self.absent.remove(id);
            }
            return;
        }
        let call = fields.call_id.clone().unwrap_or_default();
        let absent = Absent { call, writer: read.writer.clone(), seq: read.seq };
        self.absent.insert(id.to_owned(), absent);
    }

    /// Takes the missing receipts that may hold keys or count in a window; their events may be in several logs.
    pub(super) fn take_absent(&mut self) -> BTreeMap<String, Absent> {
        std::mem::take(&mut self.absent)
    }

    /// Reports a missing receipt that held keys, or was counted, to the end.
    pub(super) fn missing(&mut self, id: &str, absent: &Absent) {
        let message = format!("receipt {id}, which holds keys or counts in a window, is missing");
        self.problems.add("receipt-missing", &absent.writer, absent.seq, message);
    }

    fn account(&mut self, read: &Read, fields: &EventFields, id: &str) -> &mut AccountingEvents {
        let accounted = self.accounted.entry(id.to_owned()).or_default();
        accounted.seen += 1;
        (accounted.writer, accounted.seq) = (read.writer.clone(), read.seq);
        accounted.time.clone_from(&fields.time);
        accounted
    }

    /// Checks that a receipt holds the keys that the outcome of its claim requires.
    fn keys_of(&mut self, read: &Read, record: &Record<ReceiptFields>) {
        let Some(fields) = &record.fields else { return };
        if fields.idempotency.all().next().is_none() && record.raw.keys.is_empty() {
            return;
        }
        let Ok(receipt) = serde_json::from_str::<Receipt>(&record.raw.bytes) else { return };
        let holds = holds_keys(&receipt);
        let listed: BTreeSet<&String> = receipt.idempotency.all().filter(|_| holds).collect();
        let held: BTreeSet<&String> = record.raw.keys.iter().collect();
        let id = &receipt.receipt_id;
        for key in listed.difference(&held) {
            let message = format!("receipt {id} does not hold its key {key} any more");
            self.problems.add("key-missing", &read.writer, read.seq, message);
        }
        // Earlier versions did not list all keys.
        for key in held.difference(&listed).filter(|_| receipt.audit_count.is_some()) {
            let message = format!("receipt {id} holds the key {key}, which is not its own");
            self.problems.add("key-unaccounted", &read.writer, read.seq, message);
        }
    }

    /// Checks that the windows of the policy count a receipt as it states.
    fn history_of(&mut self, read: &Read, record: &Record<ReceiptFields>) {
        let Some(fields) = &record.fields else { return };
        let listed: BTreeSet<String> = fields.history.iter().map(row_of).collect();
        let counted: BTreeSet<String> = record.raw.history.iter().cloned().collect();
        if listed != counted {
            let message =
                format!("the windows do not count receipt {} as it states", fields.receipt_id);
            self.problems.add("history-changed", &read.writer, read.seq, message);
        }
    }

    /// Takes the receipts that another event must account for and that state the place of that
    /// event.
    pub(super) fn take_owed(&mut self) -> Vec<UnresolvedReceipt> {
        let (known, running) = std::mem::take(&mut self.unresolved)
            .into_iter()
            .partition(|unresolved: &UnresolvedReceipt| unresolved.place.is_some());
        self.unresolved = running;
        known
    }

    /// Takes the receipts for which only the dispatch event was read, after all events were read.
    pub(super) fn take_open(&mut self) -> Vec<UnresolvedReceipt> {
        std::mem::take(&mut self.open).into_values().collect()
    }

    /// Checks that the named accounting event accounts for a receipt.
    pub(super) fn unresolved(&mut self, unresolved: &UnresolvedReceipt, bytes: Option<&str>) {
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

    fn changed(&mut self, id: &str, writer: &str, seq: u64) {
        let message = format!("receipt {id} was changed");
        self.problems.add("receipt-changed", writer, seq, message);
    }

    /// Takes the receipts for which not all events were read.
    pub(super) fn take_accounted(&mut self) -> BTreeMap<String, AccountingEvents> {
        std::mem::take(&mut self.accounted)
    }

    /// Checks the store's result for such a receipt: whether it exists, and whether its events now
    /// account for it.
    pub(super) fn leftover(&mut self, id: &str, accounted: &AccountingEvents, found: Option<bool>) {
        let (writer, seq) = (&accounted.writer, accounted.seq);
        match found {
            Some(true) => (),
            Some(false) => {
                let message = format!("receipt {id} was changed: other events account for it");
                self.problems.add("receipt-changed", writer, seq, message);
            }
            // A receipt is pruned only after its end, but the event of its end may have been
            // pruned.
            None if self.expected.lacks_events()
                && is_before(&accounted.time, self.expected.receipts_before.as_ref()) => {}
            None => {
                let message = format!("receipt {id} is missing");
                self.problems.add("receipt-missing", writer, seq, message);
            }
        }
    }

    pub(super) fn approval(&mut self, raw: &RawApproval) {
        // The pruned event accounted for it when it was written.
        let pruned = |approval: &Approval| self.is_lacking(approval.audit_seq.as_ref());
        let pruned = raw.approval().is_some_and(|approval| pruned(&approval));
        if !self.approvals.accounts_for(raw, pruned) {
            let message = format!("no event accounts for approval {} as it is", raw.id);
            self.problems.add("approval-changed", "", None, message);
        }
    }

    pub(super) fn order(&mut self, raw: &RawOrder) {
        if !self.orders.accounts_for(raw) {
            let message = format!("no event accounts for order {} as it is", raw.order_name());
            self.problems.add("order-changed", "", None, message);
        }
    }

    /// Checks a budget. `known`: whether the event of its last change is among the read events.
    pub(super) fn budget(&mut self, raw: &RawBudget, known: bool) {
        let pruned = self.expected.pruned_day();
        if !self.budgets.accounts_for(raw, known, pruned.as_deref())
            && !self.expected.lacks_events()
        {
            let message = format!("the use of budget {} is not that of its events", raw.key);
            self.problems.add("budget-changed", "", None, message);
        }
    }

    /// Registers a budget whose last change no log contains.
    pub(super) fn unknown_budget(&mut self, key: &str) {
        let message = format!("the last change of budget {key} is in no log");
        self.problems.add("budget-changed", "", None, message);
    }

    fn is_lacking(&self, at: Option<&AuditPlace>) -> bool {
        at.is_some_and(|at| self.expected.is_lacking(&at.writer, at.seq))
    }

    /// Checks a call. With the store's key, its digests are compared; without it, only whether its
    /// events belong to this call.
    ///
    /// `known`: whether its events are among the read events.
    pub(super) fn call(&mut self, raw: &RawCall, known: bool) {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Of {
            event: AuditEventKind,
            caller: Option<String>,
            call_id: Option<String>,
        }
        let call = &raw.call;
        let is_of = |event: &Option<String>, kind| {
            let of = event.as_ref().and_then(|event| serde_json::from_str::<Of>(event).ok());
            let is = |fields: Option<String>, row: &str| {
                fields.is_some_and(|fields| is_name(&fields, row) || is_name(row, &fields))
            };
            of.is_some_and(|of| {
                of.event == kind && is(of.caller, &call.caller) && is(of.call_id, &call.call_id)
            })
        };
        let by = self.digester.as_ref();
        let asked = self.is_lacking(call.queued_by.as_ref())
            || (is_of(&raw.queued, AuditEventKind::CallQueued)
                && by.is_none_or(|digester| raw.is_asked(digester)));
        let answered = (call.result.is_none() && call.finished_by.is_none())
            || self.is_lacking(call.finished_by.as_ref())
            || (is_of(&raw.finished, AuditEventKind::CallFinished)
                && by.is_none_or(|digester| raw.is_answered(digester)));
        let fits = !known || self.expected.lacks_events() || self.queue.fits(raw);
        let whole = by.is_none_or(|digester| call.is_whole(digester));
        if !(asked && answered && fits && whole) {
            let message = format!("no event accounts for queued call {} as it is", call.call_id);
            self.problems.add("call-changed", "", None, message);
        }
    }

    /// Registers an existing call before its events are read.
    pub(super) fn kept_call(&mut self, caller: &str, call_id: &str) {
        self.queue.kept.entry(named(caller, call_id)).or_default();
    }

    /// Checks that the digest keys that the store records include every key that a log names.
    pub(super) fn key_ids(&mut self, known: &[String]) {
        for (id, writer) in &self.expected.key_ids {
            if !known.contains(id) {
                let message = format!("the store does not know its digest key {id} any more");
                self.problems.add("key-missing", writer, None, message);
            }
        }
        // A gateway that failed to start may have left the key of its configuration.
        let Some(digester) = self.digester.clone().filter(|_| !self.expected.lacks_events()) else {
            return;
        };
        for id in known {
            let is_given = digester.all().any(|own| own.key_id() == id);
            if !is_given && !self.expected.key_ids.contains_key(id) {
                let message = format!("the store has a digest key {id}, which no log names");
                self.problems.add("key-unaccounted", "", None, message);
            }
        }
    }

    /// Returns the numbers of records that were found where events name them.
    pub(super) fn counted(&self) -> Accounted {
        self.counted.clone()
    }

    /// Finishes: reports records that no event accounts for, and missing approvals.
    pub(super) fn finish(mut self, records: &Unaccounted) -> Problems {
        for (id, digest) in &self.pins {
            let approved = self.approved.get(id).and_then(|(_, approved)| approved.as_ref());
            if approved != Some(digest) {
                let message = format!("no event approves the pin of {id} as it is");
                self.problems.add("pin-unaccounted", "", None, message);
            }
        }
        for (id, writer, seq) in self.approvals.0.doubled() {
            let message = format!("approval {id} was put back to an earlier state");
            self.problems.add("approval-changed", &writer, seq, message);
        }
        for (id, writer, seq) in self.approvals.0.missing(self.expected.approvals_before.as_ref()) {
            let message = format!("approval {id} is missing");
            self.problems.add("approval-missing", &writer, seq, message);
        }
        for (name, writer, seq) in self.orders.0.doubled() {
            let message = format!("order {name} was put back to an earlier decision");
            self.problems.add("order-changed", &writer, seq, message);
        }
        for (name, writer, seq) in self.orders.0.missing(None) {
            let message = format!("order {name} is missing");
            self.problems.add("order-missing", &writer, seq, message);
        }
        let pruned = self.expected.pruned_day();
        for key in self.budgets.missing(pruned.as_deref()) {
            // Pruned events may have given everything back.
            if !self.expected.lacks_events() {
                let message = format!("budget {key} is missing");
                self.problems.add("budget-missing", "", None, message);
            }
        }
        // A pruned event may have finished the call.
        for (call, writer, seq) in self.queue.lost().filter(|_| !self.expected.lacks_events()) {
            let message = format!("queued call {call} is missing");
            self.problems.add("call-missing", writer, seq, message);
        }
        for (id, fence) in std::mem::take(&mut self.fences) {
            let words = self.resolved.get(&id).copied().unwrap_or_default();
            if fence.words != Some(words) && !self.expected.lacks_events() {
                let message = format!("the fence of receipt {id} was changed");
                self.problems.add("receipt-changed", &fence.writer, fence.seq, message);
            }
        }
        for id in &records.logs {
            let message = format!("no event accounts for agent log {id}");
            self.problems.add("log-unaccounted", "", None, message);
        }
        for place in &records.milestones {
            let message =
                format!("{place} is listed as a milestone, but the event there is not one");
            self.problems.add("changed", "", None, message);
        }
        for row in &records.damaged {
            self.problems.add("changed", "", None, row.to_string());
        }
        for id in &records.receipts {
            let message = format!("no event accounts for receipt {id}");
            self.problems.add("receipt-unaccounted", "", None, message);
        }
        for id in &records.history {
            let message = format!("a window counts receipt {id}, which does not exist");
            self.problems.add("history-changed", "", None, message);
        }
        for key in &records.windows {
            let message = format!(
                "the stored sums of the window {key} are not those of its calls; they are made anew if they are deleted"
            );
            self.problems.add("history-changed", "", None, message);
        }
        for key in &records.keys {
            let message = format!("no receipt holds the key {key}");
            self.problems.add("key-unaccounted", "", None, message);
        }
        let (dispatched, unresolved) =
            (std::mem::take(&mut self.dispatched), std::mem::take(&mut self.unresolved));
        for unresolved in unresolved.into_iter().filter(|_| !self.expected.lacks_events()) {
            // The receipt runs again: each dispatch must have an event.
            if unresolved.attempt < 2
                || dispatched.get(&unresolved.receipt_id) != Some(&unresolved.attempt)
            {
                self.changed(&unresolved.receipt_id, &unresolved.writer, unresolved.seq);
            }
        }
        self.problems
    }
}

/// Asynchronous calls as their events state them. The events of one call may be in several logs,
/// which are read one after the other.
#[derive(Debug, Default)]
struct Queue {
    /// Calls that exist.
    kept: BTreeMap<CallName, CallTrail>,
    /// Missing calls without a result event: time and place of their requests.
    open: BTreeMap<CallName, (String, String, u64)>,
    /// The result times of calls for which no request was read yet; the request may have been
    /// pruned.
    early: BTreeMap<CallName, String>,
    /// Missing calls that were finished and not pruned: the places of their results.
    gone: Vec<(String, String, u64)>,
}

/// The places and times of the requests and results of a call. The same name can be used again
/// after a finished call was pruned.
#[derive(Debug, Default)]
struct CallTrail {
    asked: Vec<(AuditPlace, String)>,
    answered: Vec<(AuditPlace, String)>,
}

/// Returns the name of a call in a form that every store can store.
fn named(caller: &str, call_id: &str) -> CallName {
    (caller.replace('\0', "\u{fffd}"), call_id.replace('\0', "\u{fffd}"))
}

impl Queue {
    fn event(&mut self, read: &Read, fields: &EventFields, pruned_before: Option<&String>) {
        let asks = match fields.event {
            AuditEventKind::CallQueued => true,
            AuditEventKind::CallFinished => false,
            _ => return,
        };
        let (Some(caller), Some(call_id)) = (&fields.caller, &fields.call_id) else { return };
        let name = named(caller, call_id);
        if let Some(story) = self.kept.get_mut(&name) {
            let at = AuditPlace { writer: read.writer.clone(), seq: read.seq };
            let list = if asks { &mut story.asked } else { &mut story.answered };
            let time = fields.fact(CALL_SINCE).unwrap_or(&fields.time);
            list.push((at, time.to_owned()));
            return;
        }
        let time = fields.time.clone();
        if !asks {
            let since = fields.fact(CALL_SINCE).unwrap_or(&time);
            if !is_before(since, pruned_before) {
                self.gone.push((call_id.clone(), read.writer.clone(), read.seq));
            }
            if self.open.remove(&name).is_none() {
                self.early.insert(name, time);
            }
        } else if self.early.get(&name).is_none_or(|answered| *answered < time) {
            self.open.insert(name, (time, read.writer.clone(), read.seq));
        }
    }

    /// Whether the row of a call matches its events.
    fn fits(&self, raw: &RawCall) -> bool {
        let call = &raw.call;
        // A call that did not exist at the start of verification is newer.
        let Some(story) = self.kept.get(&named(&call.caller, &call.call_id)) else { return true };
        let at = |list: &[(AuditPlace, String)], place: &Option<AuditPlace>| {
            let found = list.iter().find(|(at, _)| Some(at) == place.as_ref());
            found.map(|(_, time)| time.clone())
        };
        let Some(asked) = at(&story.asked, &call.queued_by) else { return false };
        let answered = at(&story.answered, &call.finished_by);
        // The name may have been used before: a result from that time is older than this request.
        let has_ended = answered.is_some() || story.answered.iter().any(|(_, time)| *time >= asked);
        let fits = if has_ended {
            call.state == QueueState::Done
                && call.result.is_some()
                && answered.is_some()
                && call.finished_at == answered
        } else {
            call.state != QueueState::Done
                && call.finished_at.is_none()
                && call.finished_by.is_none()
                && call.result.is_none()
                && (call.worker.is_some() == (call.state == QueueState::Running))
        };
        raw.state == call.state.as_str() && call.enqueued_at == asked && fits
    }

    /// Returns the missing calls that were not finished or not pruned.
    fn lost(&self) -> impl Iterator<Item = (&String, &String, u64)> {
        let open = self.open.iter().map(|((_, call), (_, writer, seq))| (call, writer, *seq));
        open.chain(self.gone.iter().map(|(call, writer, seq)| (call, writer, *seq)))
    }
}

fn is_before(time: &str, cut: Option<&String>) -> bool {
    cut.is_some_and(|cut| time < cut.as_str())
}

fn log_fits(columns: &[Option<String>], fields: &LogFields) -> bool {
    fits(columns, &[Some(fields.timestamp.as_str())])
}

/// Whether the row of a receipt matches its record. A column that the store does not have is
/// absent.
fn receipt_fits(columns: &[Option<String>], fields: &ReceiptFields) -> bool {
    let is_open = !matches!(fields.state.as_str(), "succeeded" | "failed");
    let table = match (is_open, fields.pruned_at.is_some()) {
        (true, _) => "open",
        (false, false) => "settled",
        (false, true) => "pruned",
    };
    let [of, id, tool, state, writer, _, settled] = columns else {
        return columns.is_empty();
    };
    let is = |column: &Option<String>, own: &str| {
        column.as_ref().is_none_or(|column| is_name(own, column))
    };
    let settled_at = match table {
        "settled" => fields.settled_at.as_deref().unwrap_or_default(),
        _ => "",
    };
    is(of, table)
        && is(id, &fields.receipt_id)
        && is(tool, &fields.tool_id)
        && is(state, &fields.state)
        && is(writer, &fields.writer)
        && is(settled, settled_at)
}
