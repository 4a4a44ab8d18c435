//! Events about the log itself: start, stop, checkpoints, restore; and events that do not belong to
//! a call.
//!
//! Path: 9. Doc: records.md#checkpoints

use toolbooth_contracts::event::{AuditEvent, AuditEventKind, EventBody};

use super::{Step, plain};
use crate::backend::pruning::Remaining;
use crate::backend::working::{Changes, CheckpointWrite, Needs, StoreQuery, WorkingSet};
use crate::checkpoint::{self, Due};
use crate::ledger::{LedgerError, Moment, PruneKind};
use crate::note::Signer;
use crate::reads::{DamagedRow, PrunedLog, WriterHead};

/// Writes events that do not belong to a call.
#[derive(Debug)]
pub struct RecordEvents(pub Vec<EventBody>);

impl Step for RecordEvents {
    type Answer = ();

    fn needs(&self) -> Needs {
        Needs::default()
    }

    fn decide(&self, _: &WorkingSet) -> Result<((), Changes), LedgerError> {
        let mut changes = Changes::default();
        changes.events.extend(self.0.iter().cloned().map(plain));
        Ok(((), changes))
    }
}

/// Signs a checkpoint over the writer's log if one is due; returns the note.
#[derive(Debug)]
pub struct SignCheckpoint {
    /// The signer.
    pub signer: Signer,
    /// The conditions under which a checkpoint is due.
    pub due: Due,
    /// The current time.
    pub at: Moment,
}

impl Step for SignCheckpoint {
    type Answer = Option<String>;

    fn needs(&self) -> Needs {
        Needs::of(StoreQuery::UnnamedHeads)
    }

    fn decide(&self, set: &WorkingSet) -> Result<(Option<String>, Changes), LedgerError> {
        let mut changes = Changes { due_checked_ms: Some(self.at.epoch_ms), ..Changes::default() };
        if !set.head().is_due(self.due, self.at.epoch_ms) {
            return Ok((None, changes));
        }
        let others = &set.surveyed.heads;
        let heads: Vec<WriterHead> = others.iter().map(|other| other.head.clone()).collect();
        let body = checkpoint::event(set.head(), &heads, &self.signer, &self.at);
        let note = body.facts.as_ref().and_then(|facts| facts.get("note")?.as_str());
        let note = note.unwrap_or_default().to_owned();
        changes.events.push(plain(body));
        let ended = others
            .iter()
            .filter(|other| other.ended)
            .map(|other| (other.head.writer.clone(), other.head.size))
            .collect();
        changes.upkeep.checkpoint = Some(CheckpointWrite { note: note.clone(), ended });
        Ok((Some(note), changes))
    }
}

/// Writes events and a checkpoint over them in one step, so that a signed checkpoint covers the
/// removals immediately. Returns the note.
pub(super) fn sign_at_once(
    set: &WorkingSet,
    events: Vec<EventBody>,
    signer: &Signer,
    at: &Moment,
    changes: &mut Changes,
) -> String {
    let mut head = set.head().clone();
    for entry in &changes.events {
        head.append(entry.body.clone());
    }
    for body in events {
        head.append(body.clone());
        changes.events.push(plain(body));
    }
    let body = checkpoint::event(&head, &[], signer, at);
    let note = body.facts.as_ref().and_then(|facts| facts.get("note")?.as_str());
    let note = note.unwrap_or_default().to_owned();
    changes.events.push(plain(body));
    changes.upkeep.checkpoint = Some(CheckpointWrite { note: note.clone(), ended: Vec::new() });
    note
}

/// Ends a writer's log with a checkpoint over all of it and a stop event.
#[derive(Debug)]
pub struct Stop {
    /// The signer.
    pub signer: Signer,
    /// The current time.
    pub at: Moment,
}

impl Step for Stop {
    type Answer = Option<String>;

    fn needs(&self) -> Needs {
        Needs::of(StoreQuery::UnnamedHeads)
    }

    fn decide(&self, set: &WorkingSet) -> Result<(Option<String>, Changes), LedgerError> {
        let last =
            SignCheckpoint { signer: self.signer.clone(), due: Due::NOW, at: self.at.clone() };
        let (note, mut changes) = last.decide(set)?;
        let size = set.head().next_seq() + changes.events.len() as u64 + 1;
        let mut facts = serde_json::Map::new();
        facts.insert("size".to_owned(), size.into());
        let mut body = EventBody::new(AuditEventKind::WriterStopped, self.at.text.clone());
        body.facts = Some(facts);
        changes.events.push(plain(body));
        changes.upkeep.stopped = true;
        Ok((note, changes))
    }
}

/// The fact of `WRITER_STARTED` that names the version of the store's tables.
const STORE_VERSION: &str = "storeVersion";

/// Returns the first event of a writer's log. It contains the key that signs the log and the id of
/// the store's digest key. It also contains the version of the store's tables and the end of the
/// previous log.
#[must_use]
pub fn started(
    signer: &Signer,
    key_id: &str,
    version: u32,
    before: Option<(WriterHead, Option<String>)>,
    at: &Moment,
) -> EventBody {
    let mut facts = serde_json::Map::new();
    facts.insert("signingKey".to_owned(), signer.verifier().to_string().into());
    facts.insert("digestKeyId".to_owned(), key_id.into());
    facts.insert(STORE_VERSION.to_owned(), version.into());
    if let Some((head, checkpoint)) = before {
        facts.insert("before".to_owned(), head.writer.into());
        facts.insert("size".to_owned(), head.size.into());
        facts.insert("lastLeaf".to_owned(), head.last_leaf.into());
        if let Some(note) = checkpoint {
            facts.insert("checkpoint".to_owned(), note.into());
        }
    }
    let mut body = EventBody::new(AuditEventKind::WriterStarted, at.text.clone());
    body.facts = Some(facts);
    body
}

/// Starts a writer's log. If an operator accepts a restored database, the log also states the
/// current end of every log and the missing checkpoint.
#[derive(Debug)]
pub struct Start {
    /// The event that [`started`] returns.
    pub started: EventBody,
    /// The operator's acceptance of a restored database.
    pub accepted: Option<AcceptRestored>,
    /// The signer.
    pub signer: Signer,
    /// The current time.
    pub at: Moment,
}

/// The acceptance of a restored database by an operator.
#[derive(Debug)]
pub struct AcceptRestored {
    /// The writers of missing checkpoints, and the number of events that each covers.
    pub lost: Vec<(String, u64)>,
    /// The current time.
    pub at: Moment,
}

impl Step for Start {
    type Answer = ();

    fn needs(&self) -> Needs {
        Needs::of(StoreQuery::Beginning { heads: self.accepted.is_some() })
    }

    fn decide(&self, set: &WorkingSet) -> Result<((), Changes), LedgerError> {
        let mut changes = Changes::default();
        changes.events.push(plain(self.started.clone()));
        if let Some(accepted) = &self.accepted {
            changes.events.push(plain(accepted.event(set)));
        }
        if let Some(earlier) = &set.surveyed.earlier {
            super::calls::adopt(set, &earlier.calls, &self.at, &mut changes);
            let logs = earlier.logs.iter();
            let events = logs.map(|(writer, log)| adopted(writer, log, &self.at));
            let events = events.chain([forgotten(&self.at)]).collect();
            sign_at_once(set, events, &self.signer, &self.at, &mut changes);
            changes.upkeep.adopted.clone_from(&earlier.logs);
        }
        Ok(((), changes))
    }
}

/// Checks that no log started, by its first event, over tables of a later version than the stored
/// one. With a version that was reset, rows that no event accounts for would be adopted.
///
/// # Errors
/// [`LedgerError::Damaged`].
pub fn check_version<'e>(
    found: u32,
    first_events: impl Iterator<Item = &'e str>,
) -> Result<(), LedgerError> {
    let told = |event: &str| {
        let event: AuditEvent = serde_json::from_str(event).ok()?;
        event.body.facts?.get(STORE_VERSION)?.as_u64()
    };
    match first_events.filter_map(told).max().filter(|told| *told > u64::from(found)) {
        None => Ok(()),
        Some(told) => Err(LedgerError::Damaged(DamagedRow {
            table: "version".to_owned(),
            row: found.to_string(),
            reason: format!("a log was begun over tables of version {told}; restore a backup"),
        })),
    }
}

/// Returns the event for asynchronous calls that an earlier version removed without an event.
fn forgotten(at: &Moment) -> EventBody {
    let facts = [
        ("records", PruneKind::Calls.as_str().into()),
        ("before", at.text.clone().into()),
        ("adopted", true.into()),
    ];
    let mut body = EventBody::new(AuditEventKind::ReceiptsPruned, at.text.clone());
    body.facts = Some(facts.map(|(name, value)| (name.to_owned(), value)).into_iter().collect());
    body
}

/// Returns the event that accounts for the beginning of a log that an earlier version removed.
fn adopted(writer: &str, log: &PrunedLog, at: &Moment) -> EventBody {
    let left = Remaining::of(0, log.size, [(0, log.size)]);
    let mut facts = serde_json::Map::new();
    facts.insert("records".to_owned(), PruneKind::Events.as_str().into());
    facts.insert("writer".to_owned(), writer.into());
    facts.insert("left".to_owned(), serde_json::to_value(left).unwrap_or_default());
    facts.insert("adopted".to_owned(), true.into());
    for (name, value) in [
        ("signingKey", &log.key),
        ("receiptsBefore", &log.receipts_before),
        ("logsBefore", &log.logs_before),
    ] {
        facts.extend(value.as_ref().map(|value| (name.to_owned(), value.clone().into())));
    }
    let mut body = EventBody::new(AuditEventKind::ReceiptsPruned, at.text.clone());
    body.facts = Some(facts);
    body
}

impl AcceptRestored {
    fn event(&self, set: &WorkingSet) -> EventBody {
        // A log that still grows was not cut, unless it is known to lack events.
        let is_lost = |writer: &str| self.lost.iter().any(|(lost, _)| lost == writer);
        let ends = set.surveyed.heads.iter();
        let ends = ends.filter(|other| other.ended || is_lost(&other.head.writer));
        let ends = ends.map(|other| &other.head);
        let mut heads: Vec<serde_json::Value> = ends
            .clone()
            .map(|end| {
                serde_json::json!({
                    "writer": end.writer,
                    "size": end.size,
                    "root": end.root.as_deref().unwrap_or_default(),
                })
            })
            .collect();
        let mut facts = serde_json::Map::new();
        for (writer, size) in &self.lost {
            // A completely missing log has no head.
            if !ends.clone().any(|end| end.writer == *writer) {
                heads.push(serde_json::json!({ "writer": writer, "size": 0, "root": "" }));
            }
            // The checkpoint that was written last.
            facts.insert("lacks".to_owned(), serde_json::json!({ "writer": writer, "size": size }));
        }
        facts.insert("heads".to_owned(), heads.into());
        let mut body = EventBody::new(AuditEventKind::StoreRestored, self.at.text.clone());
        body.facts = Some(facts);
        body
    }
}
