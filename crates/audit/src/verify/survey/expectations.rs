//! Derives the expected receipts, logs and events of a store from the surveyed events.
//!
//! Doc: records.md#verification

use std::collections::{BTreeMap, BTreeSet};

use crate::backend::merkle::{Frontier, Hash};
use crate::backend::pruning::Remaining;
use crate::charges::{DAY_MS, day_of};
use crate::verify::event_fields::EventFields;

/// The end of a log, as the next log names it.
#[derive(Debug)]
pub(in crate::verify) struct Before {
    pub(in crate::verify) writer: String,
    pub(in crate::verify) size: u64,
    pub(in crate::verify) leaf: Option<String>,
}

/// The pruned beginning of a log.
#[derive(Debug, Clone)]
pub(in crate::verify) struct Base {
    pub(in crate::verify) frontier: Frontier,
    pub(in crate::verify) last: Hash,
}

/// A root that must match.
#[derive(Debug, Clone)]
pub(in crate::verify) struct Wanted {
    pub(in crate::verify) root: Option<Hash>,
    pub(in crate::verify) by: String,
    /// Whether it was stored outside. Events that a restored backup lacks are then still missing.
    pub(super) outside: bool,
}

/// The expectations for the replay of the logs.
#[derive(Debug, Default)]
pub(in crate::verify) struct Expectations {
    /// Roots by writer and size.
    pub(in crate::verify) wanted: BTreeMap<(String, u64), Vec<Wanted>>,
    /// Logs with pruned beginnings, as exports of earlier versions contain them.
    pub(in crate::verify) bases: BTreeMap<String, Base>,
    /// The remaining events of parts of logs.
    pub(in crate::verify) left: BTreeMap<String, Vec<Remaining>>,
    /// The places up to which an earlier version removed the beginnings of logs, regardless of the
    /// records they accounted for.
    pub(super) adopted: BTreeMap<String, u64>,
    /// The times before which receipts and agent logs were pruned.
    pub(in crate::verify) receipts_before: Option<String>,
    /// The times before which receipts were pruned, and when (milliseconds since 1970-01-01 UTC), without
    /// those that another one includes.
    pub(super) receipts_pruned: Vec<(String, i64)>,
    pub(in crate::verify) logs_before: Option<String>,
    /// The time before which events were pruned.
    pub(in crate::verify) events_before: Option<String>,
    /// The time before which asynchronous calls with a result were pruned.
    pub(in crate::verify) calls_before: Option<String>,
    /// The time before which expired approvals were pruned.
    pub(in crate::verify) approvals_before: Option<String>,
    /// The places up to which agent logs were removed to free space, by writer: all of them, and
    /// those of calls without a receipt.
    pub(super) logs_dropped: BTreeMap<String, u64>,
    pub(super) refusals_dropped: BTreeMap<String, u64>,
    /// The ends of logs of a restored backup, at each acceptance.
    pub(super) restored: BTreeMap<String, BTreeSet<u64>>,
    /// The number of milestones of each writer, and the sum of their places.
    pub(in crate::verify) milestones: BTreeMap<String, (i64, i128)>,
    /// The place at which a log states its end.
    pub(in crate::verify) stops: BTreeMap<String, u64>,
    pub(in crate::verify) befores: Vec<Before>,
    /// The start times of logs, and the notes of their newest checkpoints.
    pub(in crate::verify) starts: BTreeMap<String, String>,
    pub(in crate::verify) notes: BTreeMap<String, String>,
    /// The digest keys that logs name.
    pub(in crate::verify) key_ids: BTreeMap<String, String>,
}

impl Expectations {
    /// Records that receipts from before a time were pruned, at the time of an event.
    pub(super) fn receipts_pruned(&mut self, before: Option<String>, at: Option<&str>) {
        let Some(before) = before else { return };
        let at: Option<jiff::Timestamp> = at.and_then(|at| at.parse().ok());
        let at_ms = at.map_or(i64::MIN, jiff::Timestamp::as_millisecond);
        let includes =
            |one: &(String, i64), other: &(String, i64)| one.0 >= other.0 && one.1 >= other.1;
        let new = (before, at_ms);
        if !self.receipts_pruned.iter().any(|known| includes(known, &new)) {
            self.receipts_pruned.retain(|known| !includes(&new, known));
            self.receipts_pruned.push(new);
        }
    }

    /// Whether no pruning can have removed a receipt that was accounted for at a time, because a window
    /// counted it until then.
    pub(in crate::verify) fn is_counted(&self, time: &str, until_ms: Option<u64>) -> bool {
        let until_ms = until_ms.map(|until| i64::try_from(until).unwrap_or(i64::MAX));
        let lets_go = |until_ms: i64| {
            self.receipts_pruned
                .iter()
                .any(|(before, at)| time < before.as_str() && until_ms <= *at)
        };
        until_ms.is_some_and(|until_ms| !lets_go(until_ms))
    }

    /// Whether a checkpoint has named the end of a log: by its root, if its row has one.
    pub(in crate::verify) fn is_named(&self, writer: &str, size: u64, has_root: bool) -> bool {
        let wanted = self.wanted.get(&(writer.to_owned(), size));
        wanted.is_some_and(|wanted| wanted.iter().any(|own| own.root.is_some() || !has_root))
    }

    /// Whether the agent log of an event was removed, by retention or because space ran short.
    pub(in crate::verify) fn is_log_gone(&self, fields: &EventFields) -> bool {
        let is_dropped = |dropped: &BTreeMap<String, u64>| {
            dropped.get(&fields.writer).is_some_and(|to| fields.seq < *to)
        };
        self.logs_before.as_ref().is_some_and(|before| fields.time < *before)
            || is_dropped(&self.logs_dropped)
            || fields.receipt_id.is_none() && is_dropped(&self.refusals_dropped)
    }

    /// Whether an earlier version has removed events, regardless of the records they accounted for.
    pub(in crate::verify) fn lacks_events(&self) -> bool {
        !(self.adopted.is_empty() && self.bases.is_empty())
    }

    /// Returns the last day of which events may be pruned, as in `2026-01-31`. The day after the
    /// pruning counts too, because the clocks of the store and of a gateway may differ.
    pub(in crate::verify) fn pruned_day(&self) -> Option<String> {
        let before: jiff::Timestamp = self.events_before.as_ref()?.parse().ok()?;
        Some(day_of(before.as_millisecond().saturating_add(DAY_MS)).0)
    }

    /// Returns the places up to which this was done, by writer.
    pub(in crate::verify) fn lacking(&self) -> BTreeMap<String, u64> {
        let mut lacking = self.adopted.clone();
        for (writer, base) in &self.bases {
            let size = lacking.entry(writer.clone()).or_default();
            *size = base.frontier.size().max(*size);
        }
        lacking
    }

    /// Whether an event was removed by an earlier version, regardless of the records it accounted
    /// for.
    pub(in crate::verify) fn is_lacking(&self, writer: &str, seq: u64) -> bool {
        let base = self.bases.get(writer).map(|base| base.frontier.size());
        let adopted = self.adopted.get(writer).copied();
        base.max(adopted).is_some_and(|size| seq < size)
    }

    /// Whether an operator has accepted the current end of a log. A log that has grown since was not cut then, so it
    /// is not excused if it was cut later.
    pub(in crate::verify) fn is_restored(&self, writer: &str, has: u64) -> bool {
        self.restored.get(writer).is_some_and(|sizes| sizes.contains(&has))
    }

    pub(super) fn want(
        &mut self,
        writer: String,
        size: u64,
        root: Option<Hash>,
        by: &str,
        outside: bool,
    ) {
        let wanted = self.wanted.entry((writer, size)).or_default();
        // Checkpoints that name the same end of a log are duplicates.
        if !wanted.iter().any(|wanted| wanted.root == root && wanted.outside == outside) {
            wanted.push(Wanted { root, by: by.to_owned(), outside });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_log_that_ends_where_it_was_accepted_is_restored() {
        let restored = BTreeMap::from([("a".to_owned(), BTreeSet::from([0, 7]))]);
        let expected = Expectations { restored, ..Expectations::default() };
        let accepted: Vec<u64> = (0..20).filter(|has| expected.is_restored("a", *has)).collect();
        assert_eq!(accepted, [0, 7]);
        assert!(!expected.is_restored("b", 0));
    }
}
