//! Verification: re-computes every digest and names the first place where something is wrong.
//!
//! Works in a stream, offline, over a store or an export. First the events about logs themselves
//! are learnt (beginnings, checkpoints, pruning), then everything is read once.
//!
//! Doc: records.md#verification

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, Error, ErrorKind, Read};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use toolbooth_contracts::approval::Approval;
use toolbooth_contracts::event::AuditEventKind;
use toolbooth_contracts::json::canonical;
use toolbooth_contracts::receipt::{AuditPlace, Receipt};

use crate::LedgerReads;
use crate::checkpoint::{Checkpoint, NamedHead};
use crate::claim::holds_keys;
use crate::digest::{Digester, of_record, sha256_hex};
use crate::ledger::LedgerError;
use crate::merkle::{Frontier, Hash, SIZE_MAX, leaf_hash};
use crate::note;
use crate::queue::RawCall;
use crate::reads::{
    EventFilter, Include, MILESTONES, PrunedLog, RawApproval, RawEntry, RawRecord, Unaccounted,
    WriterHead,
};
use crate::working::is_vouched;

/// Most problems that a report lists.
pub const PROBLEMS_MAX: usize = 1_000;

/// One thing that is wrong.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Problem {
    /// `changed`, `missing`, `unaccounted-event`, `checkpoint-differs`, `signature`,
    /// `receipt-changed`, `receipt-missing`, `receipt-unaccounted`, `key-missing`,
    /// `key-unaccounted`, `approval-changed`, `approval-missing`,
    /// `call-changed`, `log-changed`, `log-missing`, `log-unaccounted`, `head-differs` or
    /// `truncated`.
    pub kind: String,
    /// The writer whose log it is; empty where there is none.
    pub writer: String,
    /// The place in its log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seq: Option<u64>,
    /// A sentence.
    pub message: String,
}

/// What verification found.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct VerifyReport {
    /// Whether everything fits.
    pub ok: bool,
    /// How many events were looked at.
    pub events: u64,
    /// What does not fit.
    pub problems: Vec<Problem>,
}

/// What the verifier brings along.
#[derive(Debug, Clone, Default)]
pub struct Known {
    /// Keys by which checkpoints must be signed; where there are none, the keys that the logs
    /// themselves name are taken.
    pub keys: Vec<note::Verifier>,
    /// Signed checkpoints that were kept outside.
    pub notes: Vec<String>,
    /// The store's digest key, by which asynchronous calls are compared with their events.
    pub digester: Option<Digester>,
}

/// The members of an event that verification looks at.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Said {
    writer: String,
    seq: u64,
    prev: Option<String>,
    event: AuditEventKind,
    time: String,
    tool_name: Option<String>,
    agent_id: Option<String>,
    call_id: Option<String>,
    receipt_id: Option<String>,
    status: Option<String>,
    error_code: Option<String>,
    effect: Option<String>,
    args_digest: Option<String>,
    receipt_digest: Option<String>,
    log_digest: Option<String>,
    facts: Option<serde_json::Map<String, Value>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct SaidReceipt {
    receipt_id: String,
    tool_id: String,
    state: String,
    writer: String,
    attempt: u64,
    status: Option<String>,
    effect: Option<String>,
    error_code: Option<String>,
    args_digest: Option<String>,
    audit_seq: Option<AuditPlace>,
    audit_count: Option<u32>,
    pruned_at: Option<String>,
}

/// The events that were seen to account for a receipt.
#[derive(Debug, Default)]
struct Accounted {
    seen: u32,
    /// How many the receipt says there are, and whether the one that it names is among them.
    expected: u32,
    last: bool,
    writer: String,
    seq: u64,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct SaidLog {
    id: String,
    tool_name: String,
    agent_id: Option<String>,
    is_error: bool,
}

#[derive(Debug, Clone, Default)]
struct Log {
    frontier: Frontier,
    last: Option<Hash>,
    /// The event before could not be read: what follows from it cannot be told.
    blind: bool,
    /// Up to where the last checkpoint fitted.
    sound: u64,
}

/// A root that somebody has named.
#[derive(Debug)]
struct Wanted {
    root: Option<Hash>,
    by: String,
    /// Whether it was kept outside: what a restored backup lacks is missing all the same.
    outside: bool,
}

/// A receipt that has changed since an event about it: a later event has to account for it.
#[derive(Debug)]
struct Owed {
    receipt_id: String,
    /// As it is stored, and of its canonical form.
    digests: [String; 2],
    /// Where that event is; `None` where the receipt runs again.
    place: Option<AuditPlace>,
    attempt: u64,
    writer: String,
    seq: u64,
}

/// Takes events, each writer's in order, and tells what does not fit.
#[derive(Debug, Default)]
pub struct Verifier {
    known: Known,
    logs: BTreeMap<String, Log>,
    keys: BTreeMap<String, note::Verifier>,
    wanted: BTreeMap<(String, u64), Vec<Wanted>>,
    pruned: BTreeMap<String, u64>,
    receipts_before: Option<String>,
    logs_before: Option<String>,
    /// Where logs of a restored backup ended.
    restored: BTreeMap<String, u64>,
    /// The same, as logs say that no checkpoint has vouched for yet: by writer and place.
    claimed: Vec<(String, u64, Vec<NamedHead>)>,
    /// How many events about logs were learnt and not seen in their place yet, and the sum of
    /// their places.
    unseen: BTreeMap<String, (i64, i128)>,
    /// Where the last good checkpoint of a log is, and where the log says that it ends.
    checkpoints: BTreeMap<String, u64>,
    stops: BTreeMap<String, u64>,
    /// Logs of which events are said to be pruned.
    prunes: BTreeSet<String>,
    /// Receipts that have ended, and of which only the dispatch was seen yet.
    open: BTreeMap<String, Owed>,
    befores: Vec<(String, u64, Option<String>)>,
    owed: Vec<Owed>,
    /// Approvals that were asked for, and where.
    asked: BTreeMap<String, (String, u64)>,
    /// Receipts of which not all events were seen yet.
    accounted: BTreeMap<String, Accounted>,
    dispatched: BTreeMap<String, u64>,
    events: u64,
    problems: Vec<Problem>,
}

fn fact<'f>(facts: Option<&'f serde_json::Map<String, Value>>, name: &str) -> Option<&'f str> {
    facts?.get(name)?.as_str()
}

impl Verifier {
    /// A verifier that brings keys and checkpoints along.
    #[must_use]
    pub fn new(known: Known) -> Self {
        Self { known, ..Self::default() }
    }

    fn problem(&mut self, kind: &str, writer: &str, seq: Option<u64>, message: String) {
        if self.problems.len() < PROBLEMS_MAX {
            self.problems.push(Problem {
                kind: kind.to_owned(),
                writer: writer.to_owned(),
                seq,
                message,
            });
        }
    }

    /// The logs whose beginnings were pruned.
    pub fn bases(&mut self, heads: &[WriterHead]) {
        for head in heads {
            let Some(pruned) = &head.pruned else { continue };
            let peaks: Option<Vec<Hash>> =
                pruned.peaks.iter().map(|text| Hash::parse(text)).collect();
            let frontier = peaks.and_then(|peaks| Frontier::restore(pruned.size, peaks));
            let (Some(frontier), Some(last)) = (frontier, Hash::parse(&pruned.last_leaf)) else {
                let message = "the beginning of the pruned log cannot be read".to_owned();
                self.problem("changed", &head.writer, Some(0), message);
                continue;
            };
            self.pruned.insert(head.writer.clone(), pruned.size);
            let (receipts, logs) = (pruned.receipts_before.clone(), pruned.logs_before.clone());
            self.receipts_before = receipts.max(self.receipts_before.take());
            self.logs_before = logs.max(self.logs_before.take());
            let key = pruned.key.as_deref().and_then(|key| note::Verifier::parse(key).ok());
            self.keys.extend(key.map(|key| (head.writer.clone(), key)));
            // What is gone is vouched for by the checkpoint that was kept of it.
            let root = frontier.root();
            let signed = self.open(&head.writer, &pruned.note).ok().filter(|signed| {
                signed.writer == head.writer && signed.size == pruned.size && signed.root == root
            });
            if signed.is_none() {
                let message = "the checkpoint of the pruned log does not fit it".to_owned();
                self.problem("checkpoint-differs", &head.writer, Some(0), message);
            }
            let log = Log { frontier, last: Some(last), blind: false, sound: pruned.size };
            self.logs.insert(head.writer.clone(), log);
        }
    }

    /// An event about logs themselves; each writer's in order, before [`Verifier::entry`].
    pub fn learn(&mut self, bytes: &str) {
        #[derive(Deserialize)]
        struct Body {
            writer: String,
            seq: u64,
            event: AuditEventKind,
            facts: Option<serde_json::Map<String, Value>>,
        }
        // What cannot be read is told when it comes by in its place.
        let Ok(Body { writer, seq, event, facts }) = serde_json::from_str(bytes) else { return };
        if !MILESTONES.contains(&event) {
            return;
        }
        let unseen = self.unseen.entry(writer.clone()).or_default();
        *unseen = (unseen.0 + 1, unseen.1 + i128::from(seq));
        let facts = facts.as_ref();
        match event {
            AuditEventKind::WriterStarted => {
                let key = fact(facts, "signingKey").and_then(|key| note::Verifier::parse(key).ok());
                if let Some(key) = key {
                    self.keys.insert(writer, key);
                }
                if let Some(before) = fact(facts, "before") {
                    let size = facts.and_then(|facts| facts.get("size")?.as_u64());
                    let leaf = fact(facts, "lastLeaf").map(str::to_owned);
                    self.befores.push((before.to_owned(), size.unwrap_or_default(), leaf));
                }
            }
            AuditEventKind::Checkpoint => self.learn_checkpoint(&writer, seq, facts),
            AuditEventKind::ReceiptsPruned => {
                let before = fact(facts, "before").map(str::to_owned);
                match fact(facts, "records") {
                    Some("receipts") => {
                        self.receipts_before = before.max(self.receipts_before.take());
                    }
                    Some("logs") => self.logs_before = before.max(self.logs_before.take()),
                    Some("events") => {
                        let of = fact(facts, "writer").unwrap_or_default();
                        self.prunes.insert(of.to_owned());
                    }
                    _ => (),
                }
            }
            AuditEventKind::StoreRestored => {
                let heads = facts.and_then(|facts| facts.get("heads").cloned());
                let heads: Vec<NamedHead> =
                    heads.and_then(|heads| serde_json::from_value(heads).ok()).unwrap_or_default();
                // Only what a checkpoint vouches for excuses what is missing.
                self.claimed.push((writer, seq, heads));
            }
            AuditEventKind::WriterStopped => {
                self.stops.insert(writer, seq);
            }
            _ => (),
        }
    }

    fn learn_checkpoint(
        &mut self,
        writer: &str,
        seq: u64,
        facts: Option<&serde_json::Map<String, Value>>,
    ) {
        let note = fact(facts, "note").unwrap_or_default();
        match self.open(writer, note) {
            Ok(signed) if signed.writer == writer && signed.size == seq => {
                self.checkpoints.insert(writer.to_owned(), seq);
                let (vouched, rest) = std::mem::take(&mut self.claimed)
                    .into_iter()
                    .partition(|(own, at, _)| own == writer && *at < seq);
                self.claimed = rest;
                let vouched: Vec<(String, u64, Vec<NamedHead>)> = vouched;
                for head in vouched.into_iter().flat_map(|(_, _, heads)| heads) {
                    self.restored.insert(head.writer, head.size);
                }
                self.want(signed.writer, signed.size, Some(signed.root), "its checkpoint", false);
            }
            Ok(_) => {
                let message = format!("the checkpoint at event {seq} is of another place");
                self.problem("signature", writer, Some(seq), message);
            }
            Err(error) => {
                let message = format!("the checkpoint at event {seq}: {error}");
                self.problem("signature", writer, Some(seq), message);
            }
        }
        let heads = facts.and_then(|facts| facts.get("heads").cloned());
        let heads: Vec<NamedHead> =
            heads.and_then(|heads| serde_json::from_value(heads).ok()).unwrap_or_default();
        for head in heads {
            let by = format!("a checkpoint of {writer}");
            self.want(head.writer, head.size, Hash::parse(&head.root), &by, false);
        }
    }

    fn want(&mut self, writer: String, size: u64, root: Option<Hash>, by: &str, outside: bool) {
        let wanted = self.wanted.entry((writer, size)).or_default();
        // Every checkpoint that names the same end of a log says the same.
        if !wanted.iter().any(|wanted| wanted.root == root && wanted.outside == outside) {
            wanted.push(Wanted { root, by: by.to_owned(), outside });
        }
    }

    fn open(&self, writer: &str, note: &str) -> Result<Checkpoint, note::NoteError> {
        let own = self.keys.get(writer);
        let keys: Vec<&note::Verifier> = if self.known.keys.is_empty() {
            own.into_iter().collect()
        } else {
            self.known.keys.iter().collect()
        };
        let mut result = Err(note::NoteError::OtherKey("none that is known".to_owned()));
        for key in keys {
            result = key.open(note).and_then(Checkpoint::parse);
            if result.is_ok() {
                break;
            }
        }
        result
    }

    /// Everything about logs themselves has been learnt: the checkpoints that were brought along
    /// can be understood.
    pub fn learnt(&mut self) {
        // Who prunes says so, and what says it last is still there: it was written afterwards. What
        // said it before may have been pruned since.
        let one = self.pruned.len() == 1;
        for (writer, size) in self.pruned.clone() {
            if self.prunes.is_empty() || (one && !self.prunes.contains(&writer)) {
                let message =
                    format!("{size} events are gone, and nothing says that they were pruned");
                self.problem("missing", &writer, Some(0), message);
            }
        }
        // A log that has ended ends with a checkpoint over all of it.
        for (writer, stop) in std::mem::take(&mut self.stops) {
            let covered = self.checkpoints.get(&writer).is_some_and(|at| at + 1 == stop);
            if self.keys.contains_key(&writer) && !covered {
                let message =
                    format!("the log ends at event {stop} without a checkpoint before it");
                self.problem("signature", &writer, Some(stop), message);
            }
            self.stops.insert(writer, stop);
        }
        let mut gone = BTreeSet::new();
        for note in std::mem::take(&mut self.known.notes) {
            let writer = Checkpoint::of_note(&note).map(|signed| signed.writer);
            let opened = writer.and_then(|writer| self.open(&writer, &note));
            match opened {
                Ok(signed) => {
                    let by = "the checkpoint that was kept outside";
                    self.want(signed.writer, signed.size, Some(signed.root), by, true);
                }
                Err(error) => {
                    let writer =
                        Checkpoint::of_note(&note).map(|signed| signed.writer).unwrap_or_default();
                    // A log that is gone has no key either; that it is gone is told by name.
                    if self.known.keys.is_empty() && !self.keys.contains_key(&writer) {
                        if !gone.insert(writer.clone()) || self.is_restored(&writer, 0) {
                            continue;
                        }
                        let message = format!(
                            "the log of {writer} is missing, or its beginning is; a checkpoint that was kept outside names it"
                        );
                        self.problem("missing", &writer, Some(0), message);
                    } else {
                        let message = format!("the checkpoint that was kept outside: {error}");
                        self.problem("signature", &writer, None, message);
                    }
                }
            }
        }
    }

    /// The next event of its writer, with the records that it names where they are to be looked
    /// at.
    pub fn entry(&mut self, entry: &RawEntry, with_records: bool) {
        self.events += 1;
        let said: Option<Said> = serde_json::from_str(&entry.bytes).ok();
        if entry.seq >= SIZE_MAX {
            let message = "no log is that long".to_owned();
            self.problem("changed", &entry.writer, Some(entry.seq), message);
            return;
        }
        if let Some(said) = &said
            && MILESTONES.contains(&said.event)
        {
            let unseen = self.unseen.entry(said.writer.clone()).or_default();
            *unseen = (unseen.0 - 1, unseen.1 - i128::from(said.seq));
        }
        if self.stops.get(&entry.writer).is_some_and(|stop| entry.seq > *stop) {
            let message = "the log had ended before this event".to_owned();
            self.problem("unaccounted-event", &entry.writer, Some(entry.seq), message);
        }
        let mut log = self.logs.remove(&entry.writer).unwrap_or_default();
        let (writer, seq, next) = (entry.writer.as_str(), entry.seq, log.frontier.size());
        let mut blind = false;
        if seq != next {
            let message = format!("expected event {next}, found event {seq}");
            self.problem("missing", writer, Some(next.min(seq)), message);
            if seq > next {
                // Go on from where the log goes on.
                let peaks = vec![Hash([0; 32]); seq.count_ones() as usize];
                log.frontier = Frontier::restore(seq, peaks).unwrap_or_default();
            }
            log.blind = true;
        }
        match &said {
            Some(said)
                if said.writer == entry.writer
                    && said.seq == seq
                    && fits(&entry.columns, &event_columns(said)) =>
            {
                let before = seq.saturating_sub(1);
                if !log.blind && said.prev != log.last.as_ref().map(Hash::to_string) {
                    let message = format!(
                        "event {seq} does not follow from event {before}: one of them was changed"
                    );
                    self.problem("changed", writer, Some(before), message);
                }
            }
            Some(_) => {
                let message = format!("event {seq} and its row say different things");
                self.problem("changed", writer, Some(seq), message);
            }
            None => {
                let message = format!("event {seq} cannot be read");
                self.problem("changed", writer, Some(seq), message);
                blind = true;
            }
        }
        let leaf = leaf_hash(entry.bytes.as_bytes());
        if seq == log.frontier.size() {
            self.compare(writer, &mut log);
            log.frontier.push(leaf);
            log.last = Some(leaf);
        }
        log.blind = blind;
        self.logs.insert(entry.writer.clone(), log);
        if let (Some(said), true) = (&said, with_records) {
            self.records(entry, said);
        }
    }

    /// An event that was written after the heads were read: it only tells what a receipt was
    /// dispatched for.
    fn later(&mut self, entry: &RawEntry) {
        let said: Option<Said> = serde_json::from_str(&entry.bytes).ok();
        if let Some(said) = said.filter(|said| said.event == AuditEventKind::ToolDispatched)
            && let Some(id) = said.receipt_id
        {
            *self.dispatched.entry(id).or_default() += 1;
        }
    }

    /// The last events beyond the ends that logs had when this began; by now the store must know
    /// of them.
    fn beyond(&mut self, last: &BTreeMap<String, u64>, now: &[WriterHead]) {
        let ends: BTreeMap<&str, u64> =
            now.iter().map(|end| (end.writer.as_str(), end.size)).collect();
        for (writer, seq) in last {
            match ends.get(writer.as_str()) {
                Some(size) if seq < size => (),
                Some(size) => {
                    let message = format!("the log ends before event {size}, but there is one");
                    self.problem("unaccounted-event", writer, Some(*size), message);
                }
                None => {
                    let message = "the writer is not known to the store".to_owned();
                    self.problem("head-differs", writer, None, message);
                }
            }
        }
    }

    /// Compares the log as it stands with the roots that were named at this size.
    fn compare(&mut self, writer: &str, log: &mut Log) {
        let size = log.frontier.size();
        let Some(wanted) = self.wanted.remove(&(writer.to_owned(), size)) else { return };
        if wanted.is_empty() {
            return;
        }
        let root = log.frontier.root();
        let mut sound = true;
        for wanted in wanted {
            if wanted.root.is_some_and(|wanted| wanted != root) {
                sound = false;
                // Where the place is known already, the checkpoint says nothing more.
                let named = self.problems.iter().any(|problem| {
                    problem.writer == writer && problem.seq.is_some_and(|seq| seq >= log.sound)
                });
                if named {
                    continue;
                }
                let message = format!(
                    "an event between {} and {} was changed: {} says otherwise",
                    log.sound,
                    size.saturating_sub(1),
                    wanted.by
                );
                self.problem("checkpoint-differs", writer, Some(log.sound), message);
            }
        }
        if sound {
            log.sound = size;
        }
    }

    fn records(&mut self, entry: &RawEntry, said: &Said) {
        let (writer, seq) = (entry.writer.as_str(), Some(entry.seq));
        let receipt = entry.receipt.as_ref().and_then(|raw| {
            let said: Option<SaidReceipt> = serde_json::from_str(&raw.bytes).ok();
            said.map(|said| (raw, said))
        });
        if said.event == AuditEventKind::ToolDispatched
            && let Some((raw, receipt)) = &receipt
        {
            if receipt.attempt > 1 && receipt.audit_count.is_none() {
                *self.dispatched.entry(receipt.receipt_id.clone()).or_default() += 1;
            }
            // One that has ended has an event that accounts for how; it comes by, or it is forged.
            if !matches!(receipt.state.as_str(), "in_flight" | "awaiting_input")
                && receipt.pruned_at.is_none()
                && receipt.audit_count.is_none()
            {
                let owed = Owed {
                    receipt_id: receipt.receipt_id.clone(),
                    digests: digests_of(raw).map(|digest| digest()),
                    place: receipt.audit_seq.clone(),
                    attempt: receipt.attempt,
                    writer: entry.writer.clone(),
                    seq: entry.seq,
                };
                self.open.insert(receipt.receipt_id.clone(), owed);
            }
        }
        if said.event == AuditEventKind::ApprovalRequested
            && let Some(id) = fact(said.facts.as_ref(), "approvalId")
        {
            self.asked.insert(id.to_owned(), (entry.writer.clone(), entry.seq));
        }
        if let (Some(_), Some(id)) = (&said.receipt_digest, &said.receipt_id) {
            self.open.remove(id);
        }
        if let Some(digest) = &said.receipt_digest {
            self.receipt(entry, said, digest, receipt);
        }
        let Some(digest) = &said.log_digest else {
            if entry.log.is_some() {
                let message = "an agent log stands where its event names none".to_owned();
                self.problem("log-unaccounted", writer, seq, message);
            }
            return;
        };
        match &entry.log {
            Some(raw) => {
                let own: Option<SaidLog> = serde_json::from_str(&raw.bytes).ok();
                let row = own.is_some_and(|own| fits(&raw.columns, &log_columns(&own)));
                if !row || !is_digest_of(digest, raw) {
                    let call = said.call_id.clone().unwrap_or_default();
                    let message = format!("the agent log of call {call} was changed");
                    self.problem("log-changed", writer, seq, message);
                }
            }
            None if is_before(&said.time, self.logs_before.as_ref()) => (),
            None => {
                let call = said.call_id.clone().unwrap_or_default();
                let message = format!("the agent log of call {call} is missing");
                self.problem("log-missing", writer, seq, message);
            }
        }
    }

    fn receipt(
        &mut self,
        entry: &RawEntry,
        said: &Said,
        digest: &str,
        receipt: Option<(&RawRecord, SaidReceipt)>,
    ) {
        let (writer, seq) = (entry.writer.as_str(), Some(entry.seq));
        let id = said.receipt_id.clone().unwrap_or_default();
        let pruned = is_before(&said.time, self.receipts_before.as_ref());
        let receipt = receipt.filter(|(_, receipt)| receipt.receipt_id == id);
        let Some((raw, receipt)) = receipt else {
            if entry.receipt.is_some() {
                let message = format!("receipt {id} cannot be read");
                self.problem("receipt-changed", writer, seq, message);
            } else if !pruned {
                self.problem("receipt-missing", writer, seq, format!("receipt {id} is missing"));
            }
            return;
        };
        if !fits(&raw.columns, &receipt_columns(&receipt)) {
            let message = format!("receipt {id} and its row say different things");
            self.problem("receipt-changed", writer, seq, message);
            return;
        }
        let here = AuditPlace { writer: entry.writer.clone(), seq: entry.seq };
        let last = receipt.audit_seq.as_ref() == Some(&here);
        if last {
            self.keys_of(entry, raw);
        }
        if let Some(expected) = receipt.audit_count {
            // Events that were pruned account for it no less.
            let accounted = self.accounted.entry(id.clone()).or_default();
            accounted.seen += 1;
            accounted.expected = expected;
            accounted.last |= last;
            (accounted.writer, accounted.seq) = (entry.writer.clone(), entry.seq);
            if accounted.last && accounted.seen == expected {
                self.accounted.remove(&id);
            }
            if !last {
                return;
            }
        }
        if is_digest_of(digest, raw) {
            return;
        }
        if receipt.pruned_at.is_some() && last {
            // A tombstone says no more than the event does.
            let same = receipt.status == said.status
                && receipt.effect == said.effect
                && receipt.error_code == said.error_code
                && (said.args_digest.is_none() || receipt.args_digest == said.args_digest);
            if !(same && pruned) {
                let message = format!("the tombstone of receipt {id} was changed");
                self.problem("receipt-changed", writer, seq, message);
            }
        } else if last {
            self.problem("receipt-changed", writer, seq, format!("receipt {id} was changed"));
        } else if receipt.pruned_at.is_none() || !pruned {
            self.owed.push(Owed {
                receipt_id: id,
                digests: digests_of(raw).map(|digest| digest()),
                place: receipt.audit_seq,
                attempt: receipt.attempt,
                writer: entry.writer.clone(),
                seq: entry.seq,
            });
        }
    }

    fn approval(&mut self, raw: &RawApproval) {
        let approval: Option<Approval> = serde_json::from_str(&raw.bytes).ok();
        let has_event = self.asked.remove(&raw.id).is_some();
        let is_sound = approval.is_some_and(|approval| {
            let state = serde_json::to_value(approval.state).unwrap_or_default();
            let own = [
                Some(approval.tool_id.as_str()),
                Some(approval.caller.as_str()),
                Some(approval.args_digest.as_str()),
                Some(approval.contract_digest.as_str()),
                state.as_str(),
            ];
            // What was pruned vouched for it when it was written.
            let pruned = approval
                .audit_seq
                .as_ref()
                .is_some_and(|at| self.pruned.get(&at.writer).is_some_and(|size| at.seq < *size));
            approval.approval_id == raw.id
                && (approval.audit_seq.is_some() || !has_event)
                && fits(&raw.columns, &own)
                && (pruned || is_vouched(&approval, raw.event.as_deref()))
        });
        if !is_sound {
            let message = format!("no event accounts for approval {} as it is", raw.id);
            self.problem("approval-changed", "", None, message);
        }
    }

    /// With the store's key, the digests of a call are compared; without, whether its events are of
    /// this call.
    fn call(&mut self, raw: &RawCall) {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Of {
            event: AuditEventKind,
            caller: Option<String>,
            call_id: Option<String>,
        }
        let call = &raw.call;
        let is_pruned = |at: &Option<AuditPlace>| {
            at.as_ref()
                .is_some_and(|at| self.pruned.get(&at.writer).is_some_and(|size| at.seq < *size))
        };
        let is_of = |event: &Option<String>, kind| {
            let of = event.as_ref().and_then(|event| serde_json::from_str::<Of>(event).ok());
            of.is_some_and(|of| {
                of.event == kind
                    && is_name(of.caller.as_deref(), &call.caller)
                    && is_name(of.call_id.as_deref(), &call.call_id)
            })
        };
        let asked = is_pruned(&call.queued_by)
            || (is_of(&raw.queued, AuditEventKind::CallQueued)
                && self.known.digester.as_ref().is_none_or(|digester| raw.is_asked(digester)));
        let answered = call.result.is_none()
            || is_pruned(&call.finished_by)
            || (is_of(&raw.finished, AuditEventKind::CallFinished)
                && self.known.digester.as_ref().is_none_or(|digester| raw.is_answered(digester)));
        if !(asked && answered) {
            let message = format!("no event accounts for queued call {} as it is", call.call_id);
            self.problem("call-changed", "", None, message);
        }
    }

    /// Whether a receipt holds the keys that it should, by what came of its claim.
    fn keys_of(&mut self, entry: &RawEntry, raw: &RawRecord) {
        let Ok(receipt) = serde_json::from_str::<Receipt>(&raw.bytes) else { return };
        let holds = holds_keys(&receipt);
        let listed: BTreeSet<&String> = receipt.idempotency.all().filter(|_| holds).collect();
        let held: BTreeSet<&String> = raw.keys.iter().collect();
        let id = &receipt.receipt_id;
        for key in listed.difference(&held) {
            let message = format!("receipt {id} does not hold its key {key} any more");
            self.problem("key-missing", &entry.writer, Some(entry.seq), message);
        }
        // Earlier versions did not list all keys.
        for key in held.difference(&listed).filter(|_| receipt.audit_count.is_some()) {
            let message = format!("receipt {id} holds the key {key}, which is not its own");
            self.problem("key-unaccounted", &entry.writer, Some(entry.seq), message);
        }
    }

    /// Receipts that a later event has to account for, and where it is said to be.
    fn take_owed(&mut self) -> Vec<Owed> {
        let (known, running) = std::mem::take(&mut self.owed)
            .into_iter()
            .partition(|owed: &Owed| owed.place.is_some());
        self.owed = running;
        known
    }

    /// Whether the event that is said to account for a receipt does.
    fn owed(&mut self, owed: &Owed, bytes: Option<&str>) {
        let gone = owed.place.as_ref().is_some_and(|place| {
            self.pruned.get(&place.writer).is_some_and(|size| place.seq < *size)
        });
        if gone && bytes.is_none() {
            return;
        }
        let said: Option<Said> = bytes.and_then(|bytes| serde_json::from_str(bytes).ok());
        let accounts = said.is_some_and(|said| {
            said.receipt_id.as_ref() == Some(&owed.receipt_id)
                && said.receipt_digest.as_ref().is_some_and(|own| owed.digests.contains(own))
        });
        if !accounts {
            let message = format!("receipt {} was changed", owed.receipt_id);
            self.problem("receipt-changed", &owed.writer, Some(owed.seq), message);
        }
    }

    /// What the store keeps beside the events: where each log ended before they were read, and
    /// where it ends now.
    pub fn heads(&mut self, heads: &[WriterHead], now: &[WriterHead]) {
        let ends: BTreeMap<&str, &WriterHead> =
            now.iter().map(|end| (end.writer.as_str(), end)).collect();
        for head in heads {
            let mut log = self.logs.get(&head.writer).cloned().unwrap_or_default();
            let (size, last) = (log.frontier.size(), log.last.as_ref().map(Hash::to_string));
            let end = ends.get(head.writer.as_str()).copied().unwrap_or(head);
            if size < head.size {
                let message = format!("the log should have {} events, it has {size}", head.size);
                self.problem("missing", &head.writer, Some(size), message);
            } else if size > end.size {
                let message = format!("the log ends before event {}, but there is one", end.size);
                self.problem("unaccounted-event", &head.writer, Some(end.size), message);
            } else if size == head.size && last != head.last_leaf {
                let at = head.size.saturating_sub(1);
                let message = format!("event {at} was changed");
                self.problem("changed", &head.writer, Some(at), message);
            } else if size == head.size
                && head.root.as_ref().is_some_and(|root| *root != log.frontier.root().to_string())
            {
                let message = "the store's own note of the log's root differs".to_owned();
                self.problem("head-differs", &head.writer, None, message);
            }
            self.compare(&head.writer, &mut log);
        }
        let strangers: Vec<String> = self
            .logs
            .keys()
            .filter(|writer| !ends.contains_key(writer.as_str()))
            .cloned()
            .collect();
        for writer in strangers {
            let message = "the writer is not known to the store".to_owned();
            self.problem("head-differs", &writer, None, message);
        }
    }

    /// Records that no event accounts for.
    pub fn unaccounted(&mut self, records: &Unaccounted) {
        for id in &records.logs {
            let message = format!("no event accounts for agent log {id}");
            self.problem("log-unaccounted", "", None, message);
        }
        for id in &records.receipts {
            let message = format!("no event accounts for receipt {id}");
            self.problem("receipt-unaccounted", "", None, message);
        }
        for key in &records.keys {
            let message = format!("no receipt holds the key {key}");
            self.problem("key-unaccounted", "", None, message);
        }
    }

    /// What later events have to say of earlier ones.
    fn look_back(&mut self) {
        for (writer, size, leaf) in std::mem::take(&mut self.befores) {
            let log = self.logs.get(&writer).cloned().unwrap_or_default();
            let (has, last) = (log.frontier.size(), log.last.as_ref().map(Hash::to_string));
            if has < size && !self.is_restored(&writer, has) {
                let message =
                    format!("the log had {size} events when the next one began, it has {has}");
                self.problem("missing", &writer, Some(has), message);
            } else if has == size && last != leaf {
                let at = size.saturating_sub(1);
                let message = format!("event {at} is not the one that the next log names");
                self.problem("changed", &writer, Some(at), message);
            }
        }
        for (writer, unseen) in std::mem::take(&mut self.unseen) {
            if unseen != (0, 0) {
                let message =
                    "events about the log itself are not where they are said to be".to_owned();
                self.problem("changed", &writer, None, message);
            }
        }
        // Roots at sizes that were reached exactly, or not at all.
        let mut told = BTreeSet::new();
        for ((writer, size), wanted) in std::mem::take(&mut self.wanted) {
            let mut log = self.logs.get(&writer).cloned().unwrap_or_default();
            let has = log.frontier.size();
            if has == size {
                self.wanted.insert((writer.clone(), size), wanted);
                self.compare(&writer, &mut log);
                continue;
            }
            let pruned = self.pruned.get(&writer).is_some_and(|base| size <= *base);
            if has > size
                || pruned
                || self.is_restored(&writer, has)
                || !told.insert(writer.clone())
            {
                continue;
            }
            let by = wanted.first().map(|wanted| wanted.by.clone()).unwrap_or_default();
            let message = format!("the log had {size} events when {by} was made, it has {has}");
            self.problem("missing", &writer, Some(has), message);
        }
        let (dispatched, owed) =
            (std::mem::take(&mut self.dispatched), std::mem::take(&mut self.owed));
        for owed in owed.into_iter().filter(|_| self.pruned.is_empty()).collect::<Vec<_>>() {
            // It runs again: each dispatch has left its event.
            if owed.attempt < 2 || dispatched.get(&owed.receipt_id) != Some(&owed.attempt) {
                let message = format!("receipt {} was changed", owed.receipt_id);
                self.problem("receipt-changed", &owed.writer, Some(owed.seq), message);
            }
        }
    }

    /// Whether somebody has accepted that the log ends where it does.
    fn is_restored(&self, writer: &str, has: u64) -> bool {
        self.restored.get(writer).is_some_and(|size| *size <= has)
    }

    /// The report.
    #[must_use]
    pub fn finish(mut self) -> VerifyReport {
        self.look_back();
        // The first place comes first, whatever was found by which way.
        self.problems
            .sort_by_key(|problem| (problem.writer.clone(), problem.seq.unwrap_or(u64::MAX)));
        VerifyReport { ok: self.problems.is_empty(), events: self.events, problems: self.problems }
    }
}

/// Whether a row has this name; where a store cannot keep NUL, U+FFFD stands there.
fn is_name(said: Option<&str>, row: &str) -> bool {
    let clean = |name: &str| name.replace('\0', "\u{fffd}");
    said.is_some_and(|said| clean(said) == clean(row))
}

fn is_before(time: &str, cut: Option<&String>) -> bool {
    cut.is_some_and(|cut| time < cut.as_str())
}

/// Earlier versions digested the canonical form.
fn is_digest_of(digest: &str, raw: &RawRecord) -> bool {
    digests_of(raw).iter().any(|own| own() == digest)
}

fn digests_of(raw: &RawRecord) -> [Box<dyn Fn() -> String + '_>; 2] {
    [
        Box::new(|| sha256_hex(raw.bytes.as_bytes())),
        Box::new(|| {
            let value: Value = serde_json::from_str(&raw.bytes).unwrap_or_default();
            sha256_hex(canonical(&value).as_bytes())
        }),
    ]
}

fn fits(columns: &[Option<String>], own: &[Option<&str>]) -> bool {
    columns.is_empty()
        || (columns.len() == own.len()
            && columns.iter().zip(own).all(|(column, own)| match (column, own) {
                // Where a store cannot keep NUL in a column, it stands as U+FFFD.
                (Some(column), Some(own)) => {
                    column == own
                        || (own.contains('\0') && *column == own.replace('\0', "\u{fffd}"))
                }
                (None, None) => true,
                _ => false,
            }))
}

fn event_columns(said: &Said) -> [Option<&str>; 6] {
    [
        Some(said.time.as_str()),
        said.tool_name.as_deref(),
        said.agent_id.as_deref(),
        said.call_id.as_deref(),
        said.status.as_deref(),
        said.error_code.as_deref(),
    ]
}

fn receipt_columns(said: &SaidReceipt) -> [Option<&str>; 4] {
    [
        Some(said.receipt_id.as_str()),
        Some(said.tool_id.as_str()),
        Some(said.state.as_str()),
        Some(said.writer.as_str()),
    ]
}

fn log_columns(said: &SaidLog) -> [Option<&str>; 4] {
    [
        Some(said.id.as_str()),
        Some(said.tool_name.as_str()),
        said.agent_id.as_deref(),
        Some(if said.is_error { "1" } else { "0" }),
    ]
}

/// The last line of an export: where each log ends.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Ends {
    /// The ends.
    pub(crate) heads: Vec<End>,
}

/// Where a log ends, and where what there is of it begins.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct End {
    pub(crate) writer: String,
    pub(crate) size: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) last_leaf: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) root: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) pruned: Option<PrunedLog>,
}

impl From<&WriterHead> for End {
    fn from(head: &WriterHead) -> Self {
        Self {
            writer: head.writer.clone(),
            size: head.size,
            last_leaf: head.last_leaf.clone(),
            root: head.root.clone(),
            pruned: head.pruned.clone(),
        }
    }
}

impl From<End> for WriterHead {
    fn from(end: End) -> Self {
        Self {
            writer: end.writer,
            size: end.size,
            last_leaf: end.last_leaf,
            root: end.root,
            pruned: end.pruned,
        }
    }
}

/// The last line of an export of a part of the log.
pub(crate) const PART: &str = r#"{"part":true}"#;

/// Longest line of an export that is read, in bytes.
const LINE_BYTES_MAX: u64 = 256 << 20;

/// The next line without its newline, whether it had one, and whether it was too long.
fn line(reader: &mut impl BufRead, text: &mut Vec<u8>) -> std::io::Result<Option<bool>> {
    text.clear();
    if reader.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', text)? == 0 {
        return Ok(None);
    }
    let whole = text.pop_if(|byte| *byte == b'\n').is_some();
    Ok(Some(whole))
}

/// Verifies an export in JSON Lines. `open` opens it; it is read three times: for the ends of the
/// logs, for the events about logs themselves, and whole.
///
/// # Errors
/// Where the file cannot be read, or is no whole export.
pub fn export<R: BufRead>(
    open: impl Fn() -> std::io::Result<R>,
    known: Known,
) -> std::io::Result<VerifyReport> {
    let mut verifier = Verifier::new(known);
    let mut text = Vec::new();
    let mut last = Vec::new();
    let mut reader = open()?;
    let mut ended = false;
    while let Some(whole) = line(&mut reader, &mut text)? {
        std::mem::swap(&mut last, &mut text);
        ended = whole;
    }
    if last == PART.as_bytes() {
        let told = "it is a part of a log, which cannot be verified; export all of it";
        return Err(Error::new(ErrorKind::InvalidData, told));
    }
    let ends: Option<Ends> = serde_json::from_slice(&last).ok();
    // The trailer is written in one way only, so that no change of it is a matter of taste.
    let ends = ends
        .filter(|ends| ended && serde_json::to_vec(ends).is_ok_and(|canonical| canonical == last));
    let heads: Option<Vec<WriterHead>> =
        ends.map(|ends| ends.heads.into_iter().map(WriterHead::from).collect());
    match &heads {
        Some(heads) => verifier.bases(heads),
        None => {
            let message = "the export does not end with the line that names the ends of its logs";
            verifier.problem("truncated", "", None, message.to_owned());
        }
    }
    let mut reader = open()?;
    while line(&mut reader, &mut text)?.is_some() {
        if let Ok(bytes) = std::str::from_utf8(&text)
            && is_milestone(bytes)
        {
            verifier.learn(bytes);
        }
    }
    verifier.learnt();
    let mut reader = open()?;
    let mut place = (String::new(), 0);
    let mut rest = heads.is_some();
    let mut readable = false;
    while line(&mut reader, &mut text)?.is_some() {
        if rest && text == last {
            // After the trailer nothing may follow; another trailer is something.
            rest = false;
            continue;
        }
        let bytes = String::from_utf8_lossy(&text).into_owned();
        let said: Option<Said> = serde_json::from_str(&bytes).ok();
        readable |= said.is_some();
        let (writer, seq) = match &said {
            Some(said) => (said.writer.clone(), said.seq),
            None => place,
        };
        let entry = RawEntry { writer, seq, bytes, ..RawEntry::default() };
        verifier.entry(&entry, false);
        place = (entry.writer, seq.saturating_add(1));
    }
    if !readable && heads.is_none() {
        return Err(Error::new(ErrorKind::InvalidData, "it is no export in JSON Lines"));
    }
    if let Some(heads) = &heads {
        verifier.heads(heads, heads);
    }
    Ok(verifier.finish())
}

/// Events that are read at once.
const PAGE: usize = 1_000;

/// How often a store that changes meanwhile is looked at again before what was found is believed.
const ATTEMPTS: usize = 3;

/// Verifies everything that a store has written. Where records are pruned or dispatched again while
/// this runs, it looks again.
///
/// # Errors
/// Where the store cannot be read.
pub async fn store(reads: &dyn LedgerReads, known: Known) -> Result<VerifyReport, LedgerError> {
    let mut attempts = 1;
    loop {
        let before = reads.heads().await?;
        let report = look(reads, known.clone(), &before).await?;
        if report.ok || attempts == ATTEMPTS || reads.heads().await? == before {
            return Ok(report);
        }
        attempts += 1;
    }
}

async fn look(
    reads: &dyn LedgerReads,
    known: Known,
    // Heads first: events that are written while this runs must not look like strangers' work.
    heads: &[WriterHead],
) -> Result<VerifyReport, LedgerError> {
    let mut verifier = Verifier::new(known);
    let ends: BTreeMap<&str, u64> =
        heads.iter().map(|head| (head.writer.as_str(), head.size)).collect();
    // What is written meanwhile is for the next time.
    let is_known =
        |entry: &RawEntry| ends.get(entry.writer.as_str()).is_some_and(|size| entry.seq < *size);
    verifier.bases(heads);
    let mut after = None;
    loop {
        let page = reads.log_page(after.take(), PAGE, Include::Milestones).await?;
        let Some(last) = page.last() else { break };
        after = Some((last.writer.clone(), last.seq));
        for entry in page.iter().filter(|entry| is_known(entry)) {
            if !is_milestone(&entry.bytes) {
                let message = "an event stands among those about the log itself".to_owned();
                verifier.problem("changed", &entry.writer, Some(entry.seq), message);
            }
            verifier.learn(&entry.bytes);
        }
    }
    verifier.learnt();
    let mut beyond: BTreeMap<String, u64> = BTreeMap::new();
    let mut after = None;
    loop {
        let page = reads.log_page(after.take(), PAGE, Include::Records).await?;
        let Some(last) = page.last() else { break };
        after = Some((last.writer.clone(), last.seq));
        for entry in &page {
            if is_known(entry) {
                verifier.entry(entry, true);
            } else {
                verifier.later(entry);
                beyond.insert(entry.writer.clone(), entry.seq);
            }
        }
        let owed = verifier.take_owed();
        account(reads, &mut verifier, owed).await?;
    }
    let open = std::mem::take(&mut verifier.open).into_values().collect();
    account(reads, &mut verifier, open).await?;
    approvals(reads, &mut verifier).await?;
    calls(reads, &mut verifier).await?;
    for (id, accounted) in std::mem::take(&mut verifier.accounted) {
        if !is_accounted(reads, &id, !verifier.pruned.is_empty()).await? {
            let message = format!("receipt {id} was changed: other events account for it");
            let (writer, seq) = (accounted.writer, Some(accounted.seq));
            verifier.problem("receipt-changed", &writer, seq, message);
        }
    }
    let now = reads.heads().await?;
    verifier.heads(heads, &now);
    verifier.beyond(&beyond, &now);
    verifier.unaccounted(&reads.unaccounted().await?);
    Ok(verifier.finish())
}

/// Approvals are what the events say that account for them, and what was asked is still there.
async fn approvals(reads: &dyn LedgerReads, verifier: &mut Verifier) -> Result<(), LedgerError> {
    let mut after = None;
    loop {
        let page = reads.approval_page(after.take(), PAGE).await?;
        let Some(last) = page.last() else { break };
        after = Some(last.id.clone());
        for raw in &page {
            verifier.approval(raw);
        }
    }
    for (id, (writer, seq)) in std::mem::take(&mut verifier.asked) {
        let message = format!("approval {id} is missing");
        verifier.problem("approval-missing", &writer, Some(seq), message);
    }
    Ok(())
}

/// Asynchronous calls are what the events say that account for them.
async fn calls(reads: &dyn LedgerReads, verifier: &mut Verifier) -> Result<(), LedgerError> {
    let mut after = None;
    loop {
        let page = reads.call_page(after.take(), PAGE).await?;
        let Some(last) = page.last() else { return Ok(()) };
        after = Some((last.call.caller.clone(), last.call.call_id.clone()));
        for raw in &page {
            verifier.call(raw);
        }
    }
}

/// Whether the events of its call account for a receipt as it says by now: it may have moved since
/// they were read.
async fn is_accounted(
    reads: &dyn LedgerReads,
    id: &str,
    is_pruned: bool,
) -> Result<bool, LedgerError> {
    /// Events of one call that are looked at.
    const MOST: usize = 10_000;
    let Some(receipt) = reads.receipt(id).await? else { return Ok(false) };
    let call = Some(receipt.call_id.clone());
    let filter = EventFilter { call, limit: MOST, ..EventFilter::default() };
    // One that cannot be read accounts for nothing.
    let Ok(events) = reads.events(filter).await else { return Ok(false) };
    let accounts = events.iter().map(|placed| &placed.event).filter(|event| {
        event.body.receipt_id.as_deref() == Some(id) && event.body.receipt_digest.is_some()
    });
    let (mut count, mut last) = (0u32, false);
    for event in accounts {
        count += 1;
        let place = AuditPlace { writer: event.writer.clone(), seq: event.seq };
        last |= receipt.audit_seq == Some(place)
            && (receipt.pruned_at.is_some()
                || event.body.receipt_digest == Some(of_record(&receipt)));
    }
    let expected = receipt.audit_count.unwrap_or_default();
    Ok(if is_pruned { count <= expected } else { last && count == expected })
}

/// Looks up the events that are said to account for receipts.
async fn account(
    reads: &dyn LedgerReads,
    verifier: &mut Verifier,
    owed: Vec<Owed>,
) -> Result<(), LedgerError> {
    for owed in owed {
        let bytes = match &owed.place {
            Some(place) => event_at(reads, place).await?,
            None => None,
        };
        verifier.owed(&owed, bytes.as_deref());
    }
    Ok(())
}

async fn event_at(
    reads: &dyn LedgerReads,
    place: &AuditPlace,
) -> Result<Option<String>, LedgerError> {
    // The place before it is where its page begins; the first of a log has none before it.
    let after = place.seq.checked_sub(1).map(|seq| (place.writer.clone(), seq));
    let page = reads.log_page(after, 1, Include::Events).await?;
    Ok(page
        .into_iter()
        .find(|entry| entry.writer == place.writer && entry.seq == place.seq)
        .map(|entry| entry.bytes))
}

/// Whether an event of an export is one about logs themselves.
pub(crate) fn is_milestone(bytes: &str) -> bool {
    MILESTONES.iter().any(|kind| bytes.contains(&format!("\"event\":\"{kind}\"")))
}
