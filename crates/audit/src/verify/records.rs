//! Verifies that receipts, agent logs, keys, approvals and asynchronous calls match the events that
//! account for them.
//!
//! Doc: records.md#verification

mod calls;
mod finish;
mod rows;
mod unresolved;

use std::collections::{BTreeMap, BTreeSet};

use toolbooth_contracts::event::AuditEventKind;
use toolbooth_contracts::receipt::Receipt;

use self::calls::Queue;
pub(super) use self::unresolved::{AccountingEvents, UnresolvedReceipt};
use super::approvals::Approvals;
use super::budgets::Budgets;
use super::documents::Documents;
use super::event_fields::{EventFields, LogFields, Read, ReceiptFields, Record, fits, is_name};
use super::orders::Orders;
use super::report::Problems;
use super::survey::Expectations;
use crate::approvals::APPROVAL;
use crate::claim::holds_keys;
use crate::digest::Digester;
use crate::documents::RawDocument;
use crate::history::row_of;
use crate::reads::Accounted;

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
            let message = format!("receipt {id} and its row differ");
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
        accounted.is_approved |= fields.fact(APPROVAL).is_some();
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

    /// Returns the numbers of records that were found where events name them.
    pub(super) fn counted(&self) -> Accounted {
        self.counted.clone()
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
