//! Verifies that a stored record is the newest one that events name, by its revision.
//!
//! Doc: records.md#verification

use std::cmp::Ordering;
use std::collections::BTreeMap;

use super::event_fields::{EventFields, Read};

/// The newest event about a record.
#[derive(Debug)]
struct Newest {
    revision: u64,
    writer: String,
    seq: u64,
    /// The time until which the record must be stored.
    until: String,
}

/// Records by their names, as far as their events were read. The events of one record may be in several
/// logs.
#[derive(Debug, Default)]
pub(super) struct Revisions {
    newest: BTreeMap<String, Newest>,
    /// Records with two events of one revision: a change was put back and made again.
    doubled: Vec<(String, String, u64)>,
}

impl Revisions {
    /// Registers the record that an event names, and the time until which it must be stored.
    pub(super) fn event(&mut self, name: &str, revision: u64, read: &Read, until: &str) {
        match self.newest.get(name).map(|known| known.revision.cmp(&revision)) {
            Some(Ordering::Greater) => (),
            Some(Ordering::Equal) => {
                self.doubled.push((name.to_owned(), read.writer.clone(), read.seq));
            }
            Some(Ordering::Less) | None => {
                let (writer, until) = (read.writer.clone(), until.to_owned());
                let newest = Newest { revision, writer, seq: read.seq, until };
                self.newest.insert(name.to_owned(), newest);
            }
        }
    }

    /// Takes the newest revision of a stored record; `None` if no event names it.
    pub(super) fn take(&mut self, name: &str) -> Option<u64> {
        self.newest.remove(name).map(|newest| newest.revision)
    }

    /// Returns the names of records with two events of the same revision, and the places of the second.
    pub(super) fn doubled(&mut self) -> Vec<(String, String, u64)> {
        std::mem::take(&mut self.doubled)
    }

    /// Returns the names of records that are not stored, and the places of their newest events. Records
    /// that had to be stored until a time before `pruned` may be missing.
    pub(super) fn missing(&mut self, pruned: Option<&String>) -> Vec<(String, String, u64)> {
        let missing = std::mem::take(&mut self.newest).into_iter();
        let missing =
            missing.filter(|(_, newest)| pruned.is_none_or(|before| newest.until >= *before));
        missing.map(|(name, newest)| (name, newest.writer, newest.seq)).collect()
    }
}

/// Returns a fact that is a number.
pub(super) fn number(fields: &EventFields, fact: &str) -> Option<u64> {
    fields.facts.as_ref()?.get(fact)?.as_u64()
}
