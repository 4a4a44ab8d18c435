//! The hash chain: each event is an RFC 6962 leaf and names its predecessor's leaf hash.
//!
//! One log per writer, so writers never wait for each other.
//!
//! Path: 9. Doc: records.md#tamper-evidence

use toolbooth_contracts::event::{AuditEvent, EventBody};

use crate::backend::merkle::{Frontier, Hash, leaf_hash};
use crate::ledger::Due;

/// How old the first event of a log becomes without a checkpoint, in milliseconds.
const FIRST_AGE_MS: i64 = 1_000;

/// The bytes of an event that are hashed: its canonical form.
#[must_use]
pub fn bytes_of(event: &AuditEvent) -> String {
    event.canonical()
}

/// The leaf hash of an event, `SHA-256(0x00 ‖ event)`, in hex.
#[must_use]
pub fn leaf(event: &AuditEvent) -> String {
    leaf_hash(bytes_of(event).as_bytes()).to_string()
}

/// An event in its place, with the bytes that were hashed.
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

/// What the last checkpoint of a log covers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Covered {
    size: u64,
    /// When the first event after it was written, in milliseconds since 1970; 0 = there is none.
    since_ms: i64,
}

impl Head {
    /// The head of a log that is empty.
    #[must_use]
    pub fn new(writer: String) -> Self {
        Self { writer, last: None, frontier: Frontier::default(), covered: Covered::default() }
    }

    /// Gives an event its place.
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

    /// The writer.
    #[must_use]
    pub fn writer(&self) -> &str {
        &self.writer
    }

    /// The place that the next event gets.
    #[must_use]
    pub fn next_seq(&self) -> u64 {
        self.frontier.size()
    }

    /// Leaf hash of the last event, in hex.
    #[must_use]
    pub fn last_leaf(&self) -> Option<String> {
        self.last.as_ref().map(Hash::to_string)
    }

    /// The Merkle tree of the log.
    #[must_use]
    pub fn frontier(&self) -> &Frontier {
        &self.frontier
    }

    /// A checkpoint covers everything up to now, itself included for this purpose.
    pub(crate) fn mark_checkpointed(&mut self) {
        self.covered = Covered { size: self.next_seq(), since_ms: 0 };
    }

    /// Since when there is something that no checkpoint covers, seen from `now_ms`; `None` where
    /// there is nothing.
    fn open_since(&self, now_ms: i64) -> Option<i64> {
        (self.next_seq() != self.covered.size).then_some(match self.covered.since_ms {
            0 => now_ms,
            // A clock that went back makes nothing older than it is.
            since_ms => since_ms.min(now_ms),
        })
    }

    /// Whether a checkpoint is due at `now_ms`; to be asked whenever something was written.
    pub(crate) fn is_due(&self, due: Due, now_ms: i64) -> bool {
        let open = self.next_seq() - self.covered.size;
        // Before the first one, nothing tells that the end of the log was cut.
        let age_ms = match self.covered.size {
            0 => due.age_ms.min(FIRST_AGE_MS),
            _ => due.age_ms,
        };
        self.open_since(now_ms)
            .is_some_and(|since_ms| open >= due.events || now_ms - since_ms >= age_ms)
    }

    /// It was asked at `now_ms` whether a checkpoint is due.
    pub(crate) fn check_due(&mut self, now_ms: i64) {
        self.covered.since_ms = self.open_since(now_ms).unwrap_or_default();
    }
}
