//! The hash chain: each event is an RFC 6962 leaf and names its predecessor's leaf hash.
//!
//! Each writer has its own log, so writers never wait for each other.
//!
//! Path: 9. Doc: records.md#tamper-evidence

use toolbooth_contracts::event::{AuditEvent, EventBody};

use crate::backend::merkle::{Frontier, Hash, leaf_hash};
use crate::ledger::Due;

/// Maximum age of the first event of a log without a checkpoint, in milliseconds.
const FIRST_AGE_MS: i64 = 1_000;

/// Returns the hashed bytes of an event: its canonical form.
#[must_use]
pub fn bytes_of(event: &AuditEvent) -> String {
    event.canonical()
}

/// Returns the leaf hash of an event, `SHA-256(0x00 ‖ event)`, in hex.
#[must_use]
pub fn leaf(event: &AuditEvent) -> String {
    leaf_hash(bytes_of(event).as_bytes()).to_string()
}

/// An event in its place, with the hashed bytes.
#[derive(Debug, Clone, PartialEq)]
pub struct ChainedEvent {
    /// The event.
    pub event: AuditEvent,
    /// Its canonical form.
    pub bytes: String,
}

/// The end of a writer's log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Head {
    writer: String,
    last: Option<Hash>,
    frontier: Frontier,
    covered: Covered,
}

/// The coverage of the last checkpoint of a log.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Covered {
    size: u64,
    /// The time of the first event after it, in milliseconds since 1970; 0 if there is none.
    since_ms: i64,
}

impl Head {
    /// Returns the head of an empty log.
    #[must_use]
    pub fn new(writer: String) -> Self {
        Self { writer, last: None, frontier: Frontier::default(), covered: Covered::default() }
    }

    /// Appends an event at the next place.
    pub fn append(&mut self, body: EventBody) -> ChainedEvent {
        let event = AuditEvent {
            writer: self.writer.clone(),
            seq: self.frontier.size(),
            prev: self.last.as_ref().map(Hash::to_string),
            body,
        };
        let bytes = bytes_of(&event);
        let leaf = leaf_hash(bytes.as_bytes());
        self.last = Some(leaf);
        self.frontier.push(leaf);
        ChainedEvent { event, bytes }
    }

    /// Returns the writer.
    #[must_use]
    pub fn writer(&self) -> &str {
        &self.writer
    }

    /// Returns the place of the next event.
    #[must_use]
    pub fn next_seq(&self) -> u64 {
        self.frontier.size()
    }

    /// Returns the leaf hash of the last event, in hex.
    #[must_use]
    pub fn last_leaf(&self) -> Option<String> {
        self.last.as_ref().map(Hash::to_string)
    }

    /// Returns the Merkle tree of the log.
    #[must_use]
    pub fn frontier(&self) -> &Frontier {
        &self.frontier
    }

    /// Records that a checkpoint covers everything so far, including itself.
    pub(crate) fn mark_checkpointed(&mut self) {
        self.covered = Covered { size: self.next_seq(), since_ms: 0 };
    }

    /// Returns the time since which an uncovered event exists, as of `now_ms`; `None` if all are
    /// covered.
    fn open_since(&self, now_ms: i64) -> Option<i64> {
        (self.next_seq() != self.covered.size).then_some(match self.covered.since_ms {
            0 => now_ms,
            // After a clock step back, an event must not appear older than it is.
            since_ms => since_ms.min(now_ms),
        })
    }

    /// Whether a checkpoint is due at `now_ms`; to be called after each write.
    pub(crate) fn is_due(&self, due: Due, now_ms: i64) -> bool {
        let open = self.next_seq() - self.covered.size;
        // Before the first checkpoint, a truncated end of the log cannot be detected.
        let age_ms = match self.covered.size {
            0 => due.age_ms.min(FIRST_AGE_MS),
            _ => due.age_ms,
        };
        self.open_since(now_ms)
            .is_some_and(|since_ms| open >= due.events || now_ms - since_ms >= age_ms)
    }

    /// Records that it was checked whether a checkpoint is due at `now_ms`.
    pub(crate) fn check_due(&mut self, now_ms: i64) {
        self.covered.since_ms = self.open_since(now_ms).unwrap_or_default();
    }
}
