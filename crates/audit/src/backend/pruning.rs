//! Shortening a log: events that account for nothing any more give way to the hashes of the subtrees
//! that they were leaves of, so that the root of the log stays what was signed.
//!
//! Logs are shortened block by block. What is left of a block is said by an event, under a signed
//! checkpoint: who removes more has no event for it.
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

/// Events of a block.
pub const BLOCK: u64 = 1_024;

/// What is left of a part of a log, as the event that says so has it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Remaining {
    /// The first place of the part.
    pub from: u64,
    /// The place after its last one.
    pub to: u64,
    /// SHA-256 over the places that are left, in hex.
    pub places: String,
}

impl Remaining {
    /// What is left of a part where these places are gone: ranges in order, each with the place
    /// after its last one.
    #[must_use]
    pub fn of(from: u64, to: u64, gone: impl IntoIterator<Item = (u64, u64)>) -> Self {
        let mut text = String::new();
        // What somebody has written may end before it begins.
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

/// A place of a block, or several that are gone.
#[derive(Debug, Clone, Copy)]
pub enum Piece {
    /// An event: its place, its leaf hash, and whether it stays.
    Event(u64, Hash, bool),
    /// Events that are gone already.
    PrunedRange(PrunedRange),
}

impl Piece {
    /// The first place.
    #[must_use]
    pub fn seq(&self) -> u64 {
        match self {
            Self::Event(seq, ..) => *seq,
            Self::PrunedRange(gone) => gone.seq,
        }
    }

    /// Adds it to the tree of its log; whether it is the next.
    pub fn push_to(&self, frontier: &mut Frontier) -> bool {
        match self {
            Self::Event(seq, leaf, _) => *seq == frontier.size() && frontier.push_tree(1, *leaf),
            Self::PrunedRange(gone) => {
                gone.seq == frontier.size() && frontier.push_tree(gone.size, gone.root)
            }
        }
    }
}

/// A block that was shortened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cut {
    /// Places of events that go.
    pub removed: Vec<u64>,
    /// What stands for all that are gone then, in order.
    pub gone: Vec<PrunedRange>,
    /// What is left.
    pub left: Remaining,
}

/// Shortens a part of a log that begins with a block.
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

/// Adds a subtree; two that are the halves of a larger one become that.
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

/// Whether an event stays, whatever it accounts for: what says what logs are, and what was removed.
fn stays(kind: AuditEventKind) -> bool {
    matches!(
        kind,
        AuditEventKind::WriterStarted
            | AuditEventKind::WriterStopped
            | AuditEventKind::ReceiptsPruned
            | AuditEventKind::PayloadsDropped
            // The request may be in another log, which is shortened at another time.
            | AuditEventKind::CallFinished
            | AuditEventKind::StoreRestored
            // First-use pins are outside of the store.
            | AuditEventKind::ToolApproved
    )
}

/// Which events may go: those from before a time that account for nothing that is still there.
#[derive(Debug, Clone, Default)]
pub struct EventRules {
    /// The time, RFC 3339 UTC.
    pub before: String,
    /// Places of the log that approvals and asynchronous calls name.
    pub named: BTreeSet<u64>,
    /// Logs that have ended and whose ends were named: writers and sizes.
    pub ended: BTreeMap<String, u64>,
}

impl EventRules {
    /// What an event accounts for, which goes only if that is gone; `None` where it stays whatever
    /// it accounts for. One that cannot be read is evidence, and stays.
    #[must_use]
    pub fn accounts_for(&self, seq: u64, event: &str) -> Option<AccountsFor> {
        let told: EventMembers = serde_json::from_str(event).ok()?;
        let may_go = told.time < self.before
            && !stays(told.event)
            && !self.named.contains(&seq)
            && !self.names_end(&told);
        may_go.then(|| AccountsFor { receipt: told.receipt_digest.as_ref().and(told.receipt_id) })
    }

    /// Whether an event is a checkpoint that names the end of a log that has ended: nothing else
    /// vouches for that end.
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

/// What an event accounts for, beside the agent log at its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AccountsFor {
    /// The id of a receipt.
    pub receipt: Option<String>,
}

/// The members of an event that decide whether it may go.
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

/// The size and the root of the newest checkpoint from before a time among events in their order:
/// up to there a log may be shortened, once it is found to fit.
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

/// The removed subtrees of a log whose beginning an earlier version removed; `None` where the peaks
/// do not match the size.
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

/// Records that a step of pruning removes, and how far it has looked.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Removal {
    /// Agent logs, by writer: the places of the events that account for them.
    pub logs: BTreeMap<String, Vec<u64>>,
    /// Events: their writer, and the part of its log that is shortened.
    pub events: Option<(String, Cut)>,
    /// Asynchronous calls.
    pub calls: Vec<CallName>,
    /// A block that was looked at: its writer and number. It counts as stale no more.
    pub looked_at: Option<(String, u64)>,
    /// How far the log of a writer was looked through.
    pub progress: Option<(String, Progress)>,
}

impl Removal {
    /// How many records go.
    #[must_use]
    pub fn count(&self) -> u64 {
        let logs: usize = self.logs.values().map(Vec::len).sum();
        let events = self.events.as_ref().map_or(0, |(_, cut)| cut.removed.len());
        (logs + events + self.calls.len()) as u64
    }
}

/// How far this process has looked through a log. It is never read from the store: what somebody
/// has written there must not decide what goes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Progress {
    /// The tree as far as it was computed.
    tree: Frontier,
    /// Up to where that fitted a signed checkpoint.
    sound: u64,
    /// Up to where blocks were shortened.
    done: u64,
}

impl Progress {
    /// Up to where the log fitted a signed checkpoint, in events.
    #[must_use]
    pub fn sound(&self) -> u64 {
        self.sound
    }

    /// Up to where blocks were shortened, in events.
    #[must_use]
    pub fn done(&self) -> u64 {
        self.done
    }

    /// The part of the log of which the tree is computed next, towards a checkpoint over so many
    /// events.
    #[must_use]
    pub fn ahead(&self, size: u64) -> (u64, u64) {
        /// Events that one step takes.
        const MOST: u64 = 8 * BLOCK;
        let from = self.tree.size();
        (from, size.min(from.saturating_add(MOST)))
    }

    /// Computes the tree over the pieces of that part; at the checkpoint it has to fit.
    ///
    /// # Errors
    /// What does not fit, and must not be removed.
    pub fn compute(
        &mut self,
        pieces: &[Piece],
        (size, root): (u64, Hash),
    ) -> Result<(), &'static str> {
        if !pieces.iter().all(|piece| piece.push_to(&mut self.tree)) {
            return Err("an event of it is missing; `audit verify` tells more");
        }
        if self.tree.size() == size {
            if self.tree.root() != root {
                return Err("it does not fit its checkpoint; `audit verify` tells more");
            }
            self.sound = size;
        }
        Ok(())
    }

    /// The part that is shortened next, from the beginning of its block; from then on it counts as
    /// done.
    pub fn next_part(&mut self) -> Option<(u64, u64)> {
        let from = self.done - self.done % BLOCK;
        let to = self.sound.min(from + BLOCK);
        (self.done < self.sound).then(|| {
            self.done = to;
            (from, to)
        })
    }

    /// The part of a block that was done before and lost a record since.
    #[must_use]
    pub fn again(&self, from: u64) -> Option<(u64, u64)> {
        let from = from - from % BLOCK;
        (from < self.done).then(|| (from, self.done.min(from + BLOCK)))
    }
}

#[cfg(test)]
mod tests;
