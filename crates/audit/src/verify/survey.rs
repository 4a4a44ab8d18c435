//! Surveys the milestones of the logs before the replay: keys, checkpoints, ends, pruning; and
//! derives the expectations.
//!
//! Doc: records.md#verification

mod expectations;

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use serde_json::{Map, Value};
use toolbooth_contracts::event::AuditEventKind;

pub(super) use self::expectations::{Base, Before, Expectations, Wanted};
use super::TrustAnchors;
use super::report::Problems;
use crate::backend::disk_space::Dropped;
use crate::backend::merkle::{Frontier, Hash};
use crate::backend::pruning::Remaining;
use crate::checkpoint::{Checkpoint, NamedHead};
use crate::note;
use crate::reads::{MILESTONES, WriterHead};

/// The heads of other logs, as an event lists them.
type Heads = Vec<NamedHead>;

/// The records that an event states as pruned.
#[derive(Debug)]
enum Pruned {
    /// Those that were settled before a time, at the time of the event.
    Receipts {
        before: Option<String>,
        at: Option<String>,
    },
    Logs(Option<String>),
    Calls(Option<String>),
    Approvals(Option<String>),
    Dropped(Dropped),
    /// All events before this time that account for no remaining record.
    Before(Option<String>),
    /// Events of this log, with the remaining events; and whether the pruning was adopted from an
    /// earlier version.
    Events(String, Remaining, bool),
}

/// Collects the milestones of the logs.
#[derive(Debug, Default)]
pub(super) struct LogFindings {
    known: TrustAnchors,
    keys: BTreeMap<String, note::PublicKey>,
    /// The ends of logs of a restored backup that no checkpoint covers yet: by writer and place.
    claimed: Vec<(String, u64, Heads)>,
    /// Checkpoints of logs with keys that are not known yet: by writer and place.
    unopened: Vec<(String, u64, String)>,
    /// The place of the last valid checkpoint of a log.
    checkpoints: BTreeMap<String, u64>,
    /// The records that logs state as pruned, with the places of these events.
    prunes: Vec<(String, u64, Pruned)>,
    learnt: Expectations,
    problems: Problems,
}

fn fact<'f>(facts: Option<&'f Map<String, Value>>, name: &str) -> Option<&'f str> {
    facts?.get(name)?.as_str()
}

/// Returns the agent logs that were removed to free space. The arguments name the facts that state
/// the kind of calls and the end place.
fn dropped(facts: Option<&Map<String, Value>>, [kind, until]: [&str; 2]) -> Option<Dropped> {
    let refusals = match fact(facts, kind)? {
        "refusals" => true,
        "logs" => false,
        _ => return None,
    };
    let until = facts?.get(until)?.as_u64()?;
    Some(Dropped { writer: fact(facts, "writer")?.to_owned(), until, refusals })
}

fn heads(facts: Option<&Map<String, Value>>) -> Heads {
    let heads = facts.and_then(|facts| facts.get("heads").cloned());
    heads.and_then(|heads| serde_json::from_value(heads).ok()).unwrap_or_default()
}

/// Whether an event is a milestone.
pub(super) fn is_milestone(bytes: &str) -> bool {
    MILESTONES.iter().any(|kind| bytes.contains(&format!("\"event\":\"{kind}\"")))
}

impl LogFindings {
    /// Returns a survey with trusted keys and checkpoints, for logs with possibly pruned
    /// beginnings.
    pub(super) fn of(known: TrustAnchors, heads: &[WriterHead]) -> Self {
        let mut survey = Self { known, ..Self::default() };
        heads.iter().for_each(|head| survey.base(head));
        survey
    }

    fn base(&mut self, head: &WriterHead) {
        let Some(pruned) = &head.pruned else { return };
        let writer = &head.writer;
        let peaks: Option<Vec<Hash>> = pruned.peaks.iter().map(|text| Hash::parse(text)).collect();
        let frontier = peaks.and_then(|peaks| Frontier::restore(pruned.size, peaks));
        let (Some(frontier), Some(last)) = (frontier, Hash::parse(&pruned.last_leaf)) else {
            let message = "the beginning of the pruned log cannot be read";
            self.problems.add("changed", writer, 0, message);
            return;
        };
        let key = pruned.key.as_deref().and_then(|key| note::PublicKey::parse(key).ok());
        self.keys.extend(key.map(|key| (writer.clone(), key)));
        // The stored checkpoint covers the pruned events.
        let root = frontier.root();
        let signed = self.open(writer, &pruned.note).ok().filter(|signed| {
            signed.writer == *writer && signed.size == pruned.size && signed.root == root
        });
        if signed.is_none() {
            let message = "the checkpoint of the pruned log does not fit it";
            self.problems.add("checkpoint-differs", writer, 0, message);
        }
        self.learnt.bases.insert(writer.clone(), Base { frontier, last });
    }

    /// Processes a milestone; the milestones of each writer must be in order.
    pub(super) fn learn(&mut self, bytes: &str) {
        #[derive(Deserialize)]
        struct Body {
            writer: String,
            seq: u64,
            event: AuditEventKind,
            time: String,
            facts: Option<Map<String, Value>>,
        }
        // An unreadable event is reported at its place during the replay.
        let Ok(Body { writer, seq, event, time, facts }) = serde_json::from_str(bytes) else {
            return;
        };
        if !MILESTONES.contains(&event) {
            return;
        }
        let seen = self.learnt.milestones.entry(writer.clone()).or_default();
        *seen = (seen.0 + 1, seen.1 + i128::from(seq));
        let facts = facts.as_ref();
        match event {
            AuditEventKind::WriterStarted => {
                self.learnt.starts.insert(writer.clone(), time);
                let key_id = fact(facts, "digestKeyId").map(str::to_owned);
                self.learnt.key_ids.extend(key_id.map(|id| (id, writer.clone())));
                let key =
                    fact(facts, "signingKey").and_then(|key| note::PublicKey::parse(key).ok());
                if let Some(key) = key {
                    self.keys.insert(writer, key);
                }
                if let Some(before) = fact(facts, "before") {
                    let size = facts.and_then(|facts| facts.get("size")?.as_u64());
                    self.learnt.befores.push(Before {
                        writer: before.to_owned(),
                        size: size.unwrap_or_default(),
                        leaf: fact(facts, "lastLeaf").map(str::to_owned),
                    });
                }
            }
            AuditEventKind::Checkpoint => self.learn_checkpoint(&writer, seq, facts),
            AuditEventKind::ReceiptsPruned => self.learn_pruned(&writer, seq, &time, facts),
            AuditEventKind::PayloadsDropped => {
                let dropped = dropped(facts, ["kind", "until"]).map(Pruned::Dropped);
                self.prunes.extend(dropped.map(|dropped| (writer, seq, dropped)));
            }
            // Only a restore event that a checkpoint covers excuses missing events.
            AuditEventKind::StoreRestored => self.claimed.push((writer, seq, heads(facts))),
            AuditEventKind::WriterStopped => {
                self.learnt.stops.insert(writer, seq);
            }
            _ => (),
        }
    }

    fn learn_pruned(
        &mut self,
        writer: &str,
        seq: u64,
        at: &str,
        facts: Option<&Map<String, Value>>,
    ) {
        let text = |name: &str| fact(facts, name).map(str::to_owned);
        let mut prunes = Vec::new();
        match fact(facts, "records") {
            Some("receipts") => {
                let at = Some(at.to_owned());
                prunes.push(Pruned::Receipts { before: text("before"), at });
            }
            // Earlier versions used this event also for logs that were removed to free space.
            Some("logs" | "refusals") => {
                prunes.push(match dropped(facts, ["records", "to"]) {
                    Some(dropped) => Pruned::Dropped(dropped),
                    None => Pruned::Logs(text("before")),
                });
            }
            Some("calls") => prunes.push(Pruned::Calls(text("before"))),
            Some("approvals") => prunes.push(Pruned::Approvals(text("before"))),
            Some("events") => {
                let of = text("writer").unwrap_or_default();
                // The removals of earlier versions were adopted.
                prunes.push(Pruned::Receipts { before: text("receiptsBefore"), at: None });
                prunes.push(Pruned::Logs(text("logsBefore")));
                prunes.push(Pruned::Before(text("before")));
                let key = fact(facts, "signingKey").map(note::PublicKey::parse);
                if let Some(Ok(key)) = key {
                    self.keys.entry(of.clone()).or_insert(key);
                }
                let left = facts.and_then(|facts| facts.get("left").cloned());
                let left = left.and_then(|left| serde_json::from_value(left).ok());
                let adopted = facts.and_then(|facts| facts.get("adopted")?.as_bool());
                let adopted = adopted.unwrap_or_default();
                prunes.extend(left.map(|left| Pruned::Events(of, left, adopted)));
            }
            _ => (),
        }
        self.prunes.extend(prunes.into_iter().map(|pruned| (writer.to_owned(), seq, pruned)));
    }

    fn learn_checkpoint(&mut self, writer: &str, seq: u64, facts: Option<&Map<String, Value>>) {
        let note = fact(facts, "note").unwrap_or_default();
        self.learnt.notes.insert(writer.to_owned(), note.to_owned());
        for head in heads(facts) {
            let by = format!("a checkpoint of {writer}");
            self.learnt.want(head.writer, head.size, Hash::parse(&head.root), &by, false);
        }
        if self.known.keys.is_empty() && !self.keys.contains_key(writer) {
            // Its key was pruned with the beginning of the log; another log may name it.
            self.unopened.push((writer.to_owned(), seq, note.to_owned()));
        } else {
            self.checkpoint(writer, seq, note);
        }
    }

    /// Checks the checkpoint at an event of a log.
    fn checkpoint(&mut self, writer: &str, seq: u64, note: &str) {
        match self.open(writer, note) {
            Ok(signed) if signed.writer == writer && signed.size == seq => {
                self.checkpoints.insert(writer.to_owned(), seq);
                let (excused, rest): (Vec<_>, Vec<_>) = std::mem::take(&mut self.claimed)
                    .into_iter()
                    .partition(|(own, at, _)| own == writer && *at < seq);
                self.claimed = rest;
                for head in excused.into_iter().flat_map(|(_, _, heads)| heads) {
                    self.learnt.restored.entry(head.writer).or_default().insert(head.size);
                }
                let root = Some(signed.root);
                self.learnt.want(signed.writer, signed.size, root, "its checkpoint", false);
            }
            Ok(_) => {
                let message = format!("the checkpoint at event {seq} is of another place");
                self.problems.add("signature", writer, seq, message);
            }
            Err(error) => {
                let message = format!("the checkpoint at event {seq}: {error}");
                self.problems.add("signature", writer, seq, message);
            }
        }
    }

    /// Reports an event that is listed as a milestone but is not one.
    pub(super) fn stranger(&mut self, writer: &str, seq: u64) {
        let message = "an event is listed as a milestone, but is not one";
        self.problems.add("changed", writer, seq, message);
    }

    fn open(&self, writer: &str, note: &str) -> Result<Checkpoint, note::NoteError> {
        let own = self.keys.get(writer);
        let keys: Vec<&note::PublicKey> = if self.known.keys.is_empty() {
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

    /// Finishes the survey after all milestones. Only now can the trusted checkpoints be checked.
    pub(super) fn finish(mut self) -> (Expectations, Problems) {
        for (writer, seq, note) in std::mem::take(&mut self.unopened) {
            self.checkpoint(&writer, seq, &note);
        }
        // A log that has ended must end with a checkpoint over all of it.
        for (writer, stop) in &self.learnt.stops {
            let covered = self.checkpoints.get(writer).is_some_and(|at| at + 1 == *stop);
            if self.keys.contains_key(writer) && !covered {
                let message =
                    format!("the log ends at event {stop} without a checkpoint before it");
                self.problems.add("signature", writer, *stop, message);
            }
        }
        let mut gone = BTreeSet::new();
        for note in std::mem::take(&mut self.known.notes) {
            self.kept_outside(&note, &mut gone);
        }
        self.apply_covered();
        (self.learnt, self.problems)
    }

    /// Applies the pruning events that a signed root covers; only these excuse missing records.
    fn apply_covered(&mut self) {
        let mut covered: BTreeMap<&str, u64> = BTreeMap::new();
        for ((writer, size), wanted) in &self.learnt.wanted {
            if wanted.iter().any(|wanted| wanted.root.is_some()) {
                covered.insert(writer, *size);
            }
        }
        let is_covered = |(writer, seq, _): &(String, u64, Pruned)| {
            covered.get(writer.as_str()).is_some_and(|size| seq < size)
        };
        let (excused, _): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.prunes).into_iter().partition(is_covered);
        let learnt = &mut self.learnt;
        for (_, _, pruned) in excused {
            match pruned {
                Pruned::Receipts { before, at } => {
                    learnt.receipts_before = before.clone().max(learnt.receipts_before.take());
                    learnt.receipts_pruned(before, at.as_deref());
                }
                Pruned::Calls(before) => {
                    learnt.calls_before = before.max(learnt.calls_before.take());
                }
                Pruned::Approvals(before) => {
                    learnt.approvals_before = before.max(learnt.approvals_before.take());
                }
                Pruned::Logs(before) => {
                    learnt.logs_before = before.max(learnt.logs_before.take());
                }
                Pruned::Before(before) => {
                    learnt.events_before = before.max(learnt.events_before.take());
                }
                Pruned::Dropped(Dropped { writer, until, refusals }) => {
                    let dropped = match refusals {
                        true => &mut learnt.refusals_dropped,
                        false => &mut learnt.logs_dropped,
                    };
                    let known = dropped.entry(writer).or_default();
                    *known = until.max(*known);
                }
                Pruned::Events(of, left, adopted) => {
                    if adopted {
                        learnt.adopted.insert(of.clone(), left.to);
                    }
                    learnt.left.entry(of).or_default().push(left);
                }
            }
        }
    }

    fn kept_outside(&mut self, note: &str, gone: &mut BTreeSet<String>) {
        let writer = Checkpoint::of_note(note).map(|signed| signed.writer);
        let error = match writer.clone().and_then(|writer| self.open(&writer, note)) {
            Ok(signed) => {
                let by = "the checkpoint that was kept outside";
                self.learnt.want(signed.writer, signed.size, Some(signed.root), by, true);
                return;
            }
            Err(error) => error,
        };
        let writer = writer.unwrap_or_default();
        // A missing log has no key; the log is reported as missing by its name.
        if self.known.keys.is_empty() && !self.keys.contains_key(&writer) {
            if gone.insert(writer.clone()) && !self.learnt.is_restored(&writer, 0) {
                let message = format!(
                    "the log of {writer} is missing, or its beginning is; a checkpoint that was kept outside names it"
                );
                self.problems.add("missing", &writer, 0, message);
            }
        } else {
            let message = format!("the checkpoint that was kept outside: {error}");
            self.problems.add("signature", &writer, None, message);
        }
    }
}
