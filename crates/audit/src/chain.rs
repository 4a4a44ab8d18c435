//! The hash chain: each event is an RFC 6962 leaf and names its predecessor's leaf hash.
//!
//! One log per writer, so writers never wait for each other.
//!
//! Path: 9. Doc: records.md#tamper-evidence

use sha2::{Digest, Sha256};
use toolbooth_contracts::event::{AuditEvent, EventBody};
use toolbooth_contracts::json::canonical;

use crate::digest::hex;

/// The bytes of an event that are hashed: its canonical form.
#[must_use]
pub fn bytes_of(event: &AuditEvent) -> String {
    canonical(&serde_json::to_value(event).unwrap_or_default())
}

/// The leaf hash of an event, `SHA-256(0x00 ‖ event)`, in hex.
#[must_use]
pub fn leaf(event: &AuditEvent) -> String {
    leaf_of_bytes(bytes_of(event).as_bytes())
}

fn leaf_of_bytes(bytes: &[u8]) -> String {
    let mut hasher = Sha256::new();
    hasher.update([0]);
    hasher.update(bytes);
    hex(&hasher.finalize())
}

/// The end of a writer's log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Head {
    writer: String,
    next: u64,
    last: Option<String>,
}

impl Head {
    /// The head of a log that is empty.
    #[must_use]
    pub fn new(writer: String) -> Self {
        Self { writer, next: 0, last: None }
    }

    /// Gives an event its place.
    pub fn append(&mut self, body: EventBody) -> AuditEvent {
        let event = AuditEvent {
            writer: self.writer.clone(),
            seq: self.next,
            prev: self.last.take(),
            body,
        };
        self.last = Some(leaf(&event));
        self.next += 1;
        event
    }

    /// The writer.
    #[must_use]
    pub fn writer(&self) -> &str {
        &self.writer
    }

    /// The place that the next event gets.
    #[must_use]
    pub fn next_seq(&self) -> u64 {
        self.next
    }

    /// Leaf hash of the last event, in hex.
    #[must_use]
    pub fn last_leaf(&self) -> Option<&str> {
        self.last.as_deref()
    }
}
