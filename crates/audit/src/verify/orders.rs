//! Verifies that each order of an operator is the newest one that events name.
//!
//! Doc: records.md#verification

use std::cmp::Ordering;
use std::collections::BTreeMap;

use super::event_fields::{EventFields, Read};
use crate::orders::{ORDER, REVISION, RawOrder, is_order_event};

/// The newest event about a subject.
#[derive(Debug)]
struct Newest {
    revision: u64,
    writer: String,
    seq: u64,
}

/// Orders as far as their events were read. The events of one subject may be in several logs.
#[derive(Debug, Default)]
pub(super) struct Orders {
    newest: BTreeMap<String, Newest>,
    /// Subjects with two events of one revision: one decision was put back and decided again.
    doubled: Vec<(String, String, u64)>,
}

impl Orders {
    /// Registers the order that an event names.
    pub(super) fn event(&mut self, read: &Read, fields: &EventFields) {
        let Some(name) = fields.fact(ORDER).filter(|_| is_order_event(fields.event)) else {
            return;
        };
        let revision = fields.facts.as_ref().and_then(|facts| facts.get(REVISION)?.as_u64());
        let revision = revision.unwrap_or_default();
        match self.newest.get(name).map(|known| known.revision.cmp(&revision)) {
            Some(Ordering::Greater) => (),
            Some(Ordering::Equal) => {
                self.doubled.push((name.to_owned(), read.writer.clone(), read.seq));
            }
            Some(Ordering::Less) | None => {
                let newest = Newest { revision, writer: read.writer.clone(), seq: read.seq };
                self.newest.insert(name.to_owned(), newest);
            }
        }
    }

    /// Whether an event accounts for a stored order, and no event that was read names a newer one.
    pub(super) fn accounts_for(&mut self, raw: &RawOrder) -> bool {
        let newest = self.newest.remove(&raw.order_name().to_string());
        // An order that is newer than the events that were read has its own event.
        raw.accounted()
            .is_some_and(|order| newest.is_none_or(|newest| newest.revision <= order.revision))
    }

    /// Returns the names of orders with two decisions of the same revision, and the places of the second.
    pub(super) fn doubled(&mut self) -> Vec<(String, String, u64)> {
        std::mem::take(&mut self.doubled)
    }

    /// Returns the names of orders that are not stored, and the places of their newest events.
    pub(super) fn missing(&mut self) -> Vec<(String, String, u64)> {
        let missing = std::mem::take(&mut self.newest).into_iter();
        missing.map(|(name, newest)| (name, newest.writer, newest.seq)).collect()
    }
}
