//! Prunes a log: replaces events that no longer account for a record with the hashes of their
//! subtrees.
//!
//! The root of the log stays the signed root. Logs are pruned block by block. An event under a signed
//! checkpoint states the remaining events of a block. Verification detects any other removal, because no
//! such event states it.
//!
//! Doc: records.md#retention

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use toolbooth_contracts::event::AuditEventKind;

use crate::backend::merkle::{Frontier, Hash, node_hash};
pub use crate::backend::pruned_range::PrunedRange;
use crate::checkpoint::Checkpoint;
use crate::digest::sha256_hex;
use crate::heads::PrunedLog;
use crate::queue::CallName;

/// The number of events of a block.
pub const BLOCK: u64 = 1_024;

/// The remaining events of a part of a log, as its pruning event states them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Remaining {
    /// The first place of the part.
    pub from: u64,
    /// The place after its last event.
    pub to: u64,
    /// SHA-256 over the remaining places, in hex.
    pub places: String,
}

impl Remaining {
    /// Returns the remaining events of a part after the removal of `gone`. These are ranges in
    /// order, each with the place after its last event.
    #[must_use]
    pub fn of(from: u64, to: u64, gone: impl IntoIterator<Item = (u64, u64)>) -> Self {
        let mut text = String::new();
        // A forged range may end before it begins.
        let to = to.max(from);
        let mut next = from;
        for (begin, end) in gone {
            let (begin, end) = (begin.clamp(from, to), end.clamp(from, to));
            if begin > next {
                text.push_str(&format!("{next}-{begin},"));
            }
            next = next.max(end);
        }
        if to > next {
            text.push_str(&format!("{next}-{to},"));
        }
        Self { from, to, places: sha256_hex(text.as_bytes()) }
    }
}

/// A place of a block, or a pruned range.
#[derive(Debug, Clone, Copy)]
pub enum Piece {
    /// An event: its place, its leaf hash, and whether it is retained.
    Event(u64, Hash, bool),
    /// Events that are already pruned.
    PrunedRange(PrunedRange),
}

impl Piece {
    /// Returns the first place.
    #[must_use]
    pub fn seq(&self) -> u64 {
        match self {
            Self::Event(seq, ..) => *seq,
            Self::PrunedRange(gone) => gone.seq,
        }
    }

    /// Adds the piece to the tree of its log; returns whether it is the next piece.
    pub fn push_to(&self, frontier: &mut Frontier) -> bool {
        match self {
            Self::Event(seq, leaf, _) => *seq == frontier.size() && frontier.push_tree(1, *leaf),
            Self::PrunedRange(gone) => {
                gone.seq == frontier.size() && frontier.push_tree(gone.size, gone.root)
            }
        }
    }
}

/// A pruned block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cut {
    /// The places of the removed events.
    pub removed: Vec<u64>,
    /// The subtrees of all pruned events of the block, in order.
    pub gone: Vec<PrunedRange>,
    /// The remaining events.
    pub left: Remaining,
}

/// Prunes a part of a log that starts at a block boundary.
#[must_use]
pub fn cut(from: u64, to: u64, pieces: &[Piece]) -> Cut {
    let (mut removed, mut gone) = (Vec::new(), Vec::<PrunedRange>::new());
    for piece in pieces {
        match piece {
            Piece::Event(_, _, true) => (),
            Piece::Event(seq, leaf, false) => {
                removed.push(*seq);
                add(&mut gone, PrunedRange { seq: *seq, size: 1, root: *leaf });
            }
            Piece::PrunedRange(part) => add(&mut gone, *part),
        }
    }
    let left = Remaining::of(from, to, gone.iter().map(|part| (part.seq, part.seq + part.size)));
    Cut { removed, gone, left }
}

/// Adds a subtree; two halves of a larger subtree are merged.
fn add(gone: &mut Vec<PrunedRange>, part: PrunedRange) {
    let mut part = part;
    while let Some(last) = gone.last()
        && last.size == part.size
        && last.seq + last.size == part.seq
        && last.seq % (last.size * 2) == 0
    {
        part = PrunedRange {
            seq: last.seq,
            size: last.size * 2,
            root: node_hash(last.root, part.root),
        };
        gone.pop();
    }
    gone.push(part);
}

/// Whether an event is always retained: events that define logs or state removals.
fn stays(kind: AuditEventKind) -> bool {
    matches!(
        kind,
        AuditEventKind::WriterStarted
            | AuditEventKind::WriterStopped
            | AuditEventKind::ReceiptsPruned
            | AuditEventKind::PayloadsDropped
            // The request may be in another log, which is pruned at another time.
            | AuditEventKind::CallFinished
            | AuditEventKind::StoreRestored
            // First-use pins are outside the store.
            | AuditEventKind::ToolApproved
    )
}

/// The rules for removable events: those from before a time that account for no existing record.
#[derive(Debug, Clone, Default)]
pub struct EventRules {
    /// The time, RFC 3339 UTC.
    pub before: String,
    /// The places of the log that approvals and asynchronous calls name.
    pub named: BTreeSet<u64>,
    /// Ended logs with named ends: writers and sizes.
    pub ended: BTreeMap<String, u64>,
}

impl EventRules {
    /// Returns the records that an event accounts for; it can be removed only if they are removed.
    /// Returns `None` if the event is always retained. An unreadable event is evidence and is
    /// retained.
    #[must_use]
    pub fn accounts_for(&self, seq: u64, event: &str) -> Option<AccountsFor> {
        let told: EventMembers = serde_json::from_str(event).ok()?;
        let may_go = told.time < self.before
            && !stays(told.event)
            && !self.named.contains(&seq)
            && !self.names_end(&told);
        may_go.then(|| AccountsFor { receipt: told.receipt_digest.as_ref().and(told.receipt_id) })
    }

    /// Whether an event is a checkpoint that names the end of an ended log. Only such a checkpoint
    /// proves that end.
    fn names_end(&self, told: &EventMembers) -> bool {
        let heads = told.facts.as_ref().filter(|_| told.event == AuditEventKind::Checkpoint);
        let heads = heads.and_then(|facts| facts.get("heads")?.as_array());
        heads.into_iter().flatten().any(|head| {
            let writer = head.get("writer").and_then(Value::as_str).unwrap_or_default();
            let size = head.get("size").and_then(Value::as_u64);
            self.ended.get(writer).is_some_and(|end| Some(*end) == size)
        })
    }
}

/// The records that an event accounts for, in addition to the agent log at its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AccountsFor {
    /// The id of a receipt.
    pub receipt: Option<String>,
}

/// The members of an event that decide whether it can be removed.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct EventMembers {
    event: AuditEventKind,
    time: String,
    #[serde(default)]
    receipt_id: Option<String>,
    #[serde(default)]
    receipt_digest: Option<String>,
    #[serde(default)]
    facts: Option<Value>,
}

/// Returns the size and the root of the newest checkpoint from before a time. The events must be in
/// order. A log may be pruned up to that size once its root is found to match.
#[must_use]
pub fn newest_checkpoint<'e>(
    events: impl IntoIterator<Item = &'e str>,
    before: &str,
) -> Option<(u64, Hash)> {
    let mut newest = None;
    for event in events {
        let told: Option<EventMembers> = serde_json::from_str(event).ok();
        let Some(told) = told.filter(|told| told.event == AuditEventKind::Checkpoint) else {
            continue;
        };
        let note = told.facts.as_ref().and_then(|facts| facts.get("note")?.as_str());
        let Some(Ok(signed)) = note.map(Checkpoint::of_note) else { continue };
        if told.time.as_str() >= before {
            break;
        }
        newest = Some((signed.size, signed.root));
    }
    newest
}

/// Returns the removed subtrees of a log with a beginning that an earlier version removed; `None`
/// if the peaks do not match the size.
#[must_use]
pub fn parts(log: &PrunedLog) -> Option<Vec<PrunedRange>> {
    let (mut seq, mut parts) = (0, Vec::new());
    let mut sizes = (0..u64::BITS).rev().map(|bit| 1 << bit).filter(|size| log.size & size != 0);
    for peak in &log.peaks {
        let size = sizes.next()?;
        parts.push(PrunedRange { seq, size, root: Hash::parse(peak)? });
        seq += size;
    }
    sizes.next().is_none().then_some(parts)
}

/// The records that a pruning step removes, and its progress.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Removal {
    /// Agent logs, by writer: the places of the events that account for them.
    pub logs: BTreeMap<String, Vec<u64>>,
    /// Events: their writer, and the pruned part of its log.
    pub events: Option<(String, Cut)>,
    /// Asynchronous calls.
    pub calls: Vec<CallName>,
    /// Approvals, by their ids.
    pub approvals: Vec<String>,
    /// Documents that no log names any more, by their digests.
    pub documents: Vec<String>,
    /// An examined block: its writer and number. It no longer counts as stale.
    pub looked_at: Option<(String, u64)>,
    /// The progress in the log of a writer.
    pub progress: Option<(String, Progress)>,
}

impl Removal {
    /// Returns the number of records to remove.
    #[must_use]
    pub fn count(&self) -> u64 {
        let logs: usize = self.logs.values().map(Vec::len).sum();
        let events = self.events.as_ref().map_or(0, |(_, cut)| cut.removed.len());
        (logs + events + self.calls.len() + self.approvals.len() + self.documents.len()) as u64
    }
}

/// The progress of this process in examining a log. It is never read from the store, because data
/// in the store must not decide what is removed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Progress {
    /// The tree as computed so far, up to the end of a block. Another writer that prunes a block merges the
    /// pruned ranges within it; no range extends into the next block.
    tree: Frontier,
    /// The number of events up to which the tree matched a signed checkpoint.
    sound: u64,
    /// The number of events up to which blocks were shortened.
    done: u64,
}

impl Progress {
    /// Returns the number of events up to which the log matched a signed checkpoint.
    #[must_use]
    pub fn sound(&self) -> u64 {
        self.sound
    }

    /// Returns the number of events up to which blocks were pruned.
    #[must_use]
    pub fn done(&self) -> u64 {
        self.done
    }

    /// Returns the next part of the log for the tree, towards a checkpoint over `size` events. A larger tree is
    /// computed again, because the checkpoint that it was computed for no longer exists.
    #[must_use]
    pub fn ahead(&mut self, size: u64) -> (u64, u64) {
        /// Maximum number of events per step.
        const MOST: u64 = 8 * BLOCK;
        if self.tree.size() > size {
            self.tree = Frontier::default();
        }
        let from = self.tree.size();
        (from, size.min(from.saturating_add(MOST)))
    }

    /// Computes the tree over the pieces of that part; at the checkpoint, the root must match. The end of a part that
    /// is not the end of a block is computed again with the next part.
    ///
    /// # Errors
    /// The mismatch; then nothing of the log must be removed.
    pub fn compute(
        &mut self,
        pieces: &[Piece],
        (size, root): (u64, Hash),
    ) -> Result<(), &'static str> {
        const MISSING: &str = "an event of it is missing; `audit verify` tells more";
        let (_, to) = self.ahead(size);
        let mut tree = self.tree.clone();
        for piece in pieces {
            if !piece.push_to(&mut tree) {
                return Err(MISSING);
            }
            if tree.size().is_multiple_of(BLOCK) {
                self.tree.clone_from(&tree);
            }
        }
        if tree.size() < to {
            return Err(MISSING);
        }
        if tree.size() > size {
            return Err("the place of a checkpoint is pruned; `audit verify` tells more");
        }
        if tree.size() == size {
            if tree.root() != root {
                return Err("it does not fit its checkpoint; `audit verify` tells more");
            }
            self.sound = size;
        }
        Ok(())
    }

    /// Returns the part to prune next, from the beginning of its block, and marks it as done.
    pub fn next_part(&mut self) -> Option<(u64, u64)> {
        let from = self.done - self.done % BLOCK;
        let to = self.sound.min(from + BLOCK);
        (self.done < self.sound).then(|| {
            self.done = to;
            (from, to)
        })
    }

    /// Returns the part of a block that was done before and has lost a record since.
    #[must_use]
    pub fn again(&self, from: u64) -> Option<(u64, u64)> {
        let from = from - from % BLOCK;
        (from < self.done).then(|| (from, self.done.min(from + BLOCK)))
    }
}

#[cfg(test)]
mod tests;
