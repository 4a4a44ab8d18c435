//! Replays each log: checks that every event follows from its predecessor and that the roots match
//! the named roots.
//!
//! Doc: records.md#verification

use std::collections::{BTreeMap, BTreeSet};

use super::event_fields::{Read, event_columns, fits};
use super::report::Problems;
use super::survey::{Expectations, Wanted};
use crate::backend::merkle::{Frontier, Hash, SIZE_MAX};
use crate::backend::pruning::{PrunedRange, Remaining};
use crate::reads::{MILESTONES, WriterHead};

#[derive(Debug, Clone, Default)]
struct Log {
    frontier: Frontier,
    last: Option<Hash>,
    /// Whether the previous event could not be read, so that the link to it cannot be checked.
    blind: bool,
    /// The number of events up to the last matching checkpoint.
    sound: u64,
    /// The pruned ranges in order, each with the place after its last event.
    gone: Vec<(u64, u64)>,
}

/// The logs as replayed so far.
#[derive(Debug)]
pub(super) struct Chains<'e> {
    expected: &'e Expectations,
    wanted: BTreeMap<(String, u64), Vec<Wanted>>,
    logs: BTreeMap<String, Log>,
    /// Milestones that the survey found and the replay has not reached yet: their number, and the
    /// sum of their places.
    unseen: BTreeMap<String, (i64, i128)>,
    events: u64,
    problems: Problems,
}

impl<'e> Chains<'e> {
    pub(super) fn new(expected: &'e Expectations) -> Self {
        let logs = expected.bases.iter().map(|(writer, base)| {
            let log = Log {
                frontier: base.frontier.clone(),
                last: Some(base.last),
                blind: false,
                sound: base.frontier.size(),
                gone: Vec::new(),
            };
            (writer.clone(), log)
        });
        Self {
            expected,
            wanted: expected.wanted.clone(),
            logs: logs.collect(),
            unseen: expected.milestones.clone(),
            events: 0,
            problems: Problems::default(),
        }
    }

    /// Replays the next event of its writer; returns whether its place is valid.
    pub(super) fn event(&mut self, read: &Read) -> bool {
        self.events += 1;
        let (writer, seq) = (read.writer.as_str(), read.seq);
        if seq >= SIZE_MAX {
            self.problems.add("changed", writer, seq, "no log is that long");
            return false;
        }
        if let Some(fields) = &read.fields
            && MILESTONES.contains(&fields.event)
        {
            let unseen = self.unseen.entry(fields.writer.clone()).or_default();
            *unseen = (unseen.0 - 1, unseen.1 - i128::from(fields.seq));
        }
        if self.expected.stops.get(writer).is_some_and(|stop| seq > *stop) {
            let message = "the log had ended before this event";
            self.problems.add("unaccounted-event", writer, seq, message);
        }
        let mut log = self.logs.remove(writer).unwrap_or_default();
        let next = log.frontier.size();
        if seq != next {
            let message = format!("expected event {next}, found event {seq}");
            self.problems.add("missing", writer, next.min(seq), message);
            if seq > next {
                // Continue at the place of this event.
                let peaks = vec![Hash([0; 32]); seq.count_ones() as usize];
                log.frontier = Frontier::restore(seq, peaks).unwrap_or_default();
            }
            log.blind = true;
        }
        self.follows(read, &log);
        if seq == log.frontier.size() {
            self.compare(writer, &mut log);
            log.frontier.push(read.leaf);
            log.last = Some(read.leaf);
        }
        log.blind = read.fields.is_none();
        self.logs.insert(read.writer.clone(), log);
        true
    }

    /// Replays the next pruned range of a log.
    pub(super) fn gone(&mut self, writer: &str, part: &PrunedRange) {
        let mut log = self.logs.remove(writer).unwrap_or_default();
        let (next, end) = (log.frontier.size(), part.seq.saturating_add(part.size));
        self.compare(writer, &mut log);
        if part.seq != next || !log.frontier.push_tree(part.size, part.root) {
            let message =
                format!("expected event {next}, found what is left of event {}", part.seq);
            self.problems.add("missing", writer, next.min(part.seq), message);
        }
        log.last = (part.size == 1).then_some(part.root);
        log.blind = part.size != 1;
        match log.gone.last_mut() {
            Some(last) if last.1 == part.seq => last.1 = end,
            _ => log.gone.push((part.seq, end)),
        }
        self.logs.insert(writer.to_owned(), log);
    }

    /// Reports pruned ranges that no event states.
    fn report_unstated(&mut self) {
        for (writer, log) in self.logs.iter().filter(|(_, log)| !log.gone.is_empty()) {
            let fields = self.expected.left.get(writer).map(Vec::as_slice).unwrap_or_default();
            let mut stated: Vec<(u64, u64)> = fields
                .iter()
                .filter(|left| {
                    let from = log.gone.partition_point(|(_, end)| *end <= left.from);
                    let gone = log.gone.iter().skip(from).take_while(|(at, _)| *at < left.to);
                    Remaining::of(left.from, left.to, gone.copied()) == **left
                })
                .map(|left| (left.from, left.to))
                .collect();
            stated.sort_unstable();
            for (begin, end) in &log.gone {
                let mut next = *begin;
                for (from, to) in &stated {
                    if *from <= next {
                        next = next.max(*to);
                    }
                }
                if next < *end {
                    let message = format!(
                        "events from {next} on are missing, and no event states that they were pruned"
                    );
                    self.problems.add("missing", writer, next, message);
                    break;
                }
            }
        }
    }

    fn follows(&mut self, read: &Read, log: &Log) {
        let (writer, seq) = (read.writer.as_str(), read.seq);
        match &read.fields {
            Some(fields)
                if fields.writer == read.writer
                    && fields.seq == seq
                    && fits(&read.columns, &event_columns(fields)) =>
            {
                let before = seq.saturating_sub(1);
                if !log.blind && fields.prev != log.last.as_ref().map(Hash::to_string) {
                    let message = format!(
                        "event {seq} does not follow from event {before}: one of them was changed"
                    );
                    self.problems.add("changed", writer, before, message);
                }
            }
            Some(_) => {
                let message = format!("event {seq} and its row differ");
                self.problems.add("changed", writer, seq, message);
            }
            None => {
                let message = format!("event {seq} cannot be read");
                self.problems.add("changed", writer, seq, message);
            }
        }
    }

    /// Compares the current root of the log with the roots that were named at this size.
    fn compare(&mut self, writer: &str, log: &mut Log) {
        let size = log.frontier.size();
        let Some(wanted) = self.wanted.remove(&(writer.to_owned(), size)) else { return };
        if wanted.is_empty() {
            return;
        }
        let root = log.frontier.root();
        let mut sound = true;
        for wanted in wanted {
            if wanted.root.is_some_and(|wanted| wanted != root) {
                sound = false;
                // If the place was already reported, the checkpoint adds no information.
                if self.problems.name(writer, log.sound) {
                    continue;
                }
                let message = format!(
                    "an event between {} and {} was changed: {} names another root",
                    log.sound,
                    size.saturating_sub(1),
                    wanted.by
                );
                self.problems.add("checkpoint-differs", writer, log.sound, message);
            }
        }
        if sound {
            log.sound = size;
        }
    }

    /// Checks the ends of the logs. `heads` were read before the events, and `now` after them.
    /// `beyond` contains the last events after the ends in `heads`.
    pub(super) fn finish(
        mut self,
        heads: &[WriterHead],
        now: &[WriterHead],
        beyond: &BTreeMap<String, u64>,
    ) -> (u64, Problems) {
        let ends: BTreeMap<&str, &WriterHead> =
            now.iter().map(|end| (end.writer.as_str(), end)).collect();
        for head in heads {
            let end = ends.get(head.writer.as_str()).copied().unwrap_or(head);
            self.end(head, end);
        }
        let strangers = self.logs.keys().filter(|writer| !ends.contains_key(writer.as_str()));
        for writer in strangers {
            let message = "the writer is not known to the store";
            self.problems.add("head-differs", writer, None, message);
        }
        for (writer, seq) in beyond {
            match ends.get(writer.as_str()) {
                Some(end) if *seq < end.size => (),
                Some(end) => {
                    let message =
                        format!("the log ends before event {}, but there is one", end.size);
                    self.problems.add("unaccounted-event", writer, end.size, message);
                }
                None => {
                    let message = "the writer is not known to the store";
                    self.problems.add("head-differs", writer, None, message);
                }
            }
        }
        self.look_back()
    }

    fn end(&mut self, head: &WriterHead, end: &WriterHead) {
        let writer = &head.writer;
        let mut log = self.logs.get(writer).cloned().unwrap_or_default();
        let (size, last) = (log.frontier.size(), log.last.as_ref().map(Hash::to_string));
        if size < head.size {
            let message = format!("the log should have {} events, it has {size}", head.size);
            self.problems.add("missing", writer, size, message);
        } else if size > end.size {
            let message = format!("the log ends before event {}, but there is one", end.size);
            self.problems.add("unaccounted-event", writer, end.size, message);
        } else if size == head.size && last != head.last_leaf {
            let at = head.size.saturating_sub(1);
            self.problems.add("changed", writer, at, format!("event {at} was changed"));
        } else if size == head.size
            && head.root.as_ref().is_some_and(|root| *root != log.frontier.root().to_string())
        {
            let message = "the root of the log that the store has differs";
            self.problems.add("head-differs", writer, None, message);
        }
        self.compare(writer, &mut log);
        self.row(head);
    }

    /// Checks the columns of the writer's row other than the head of its log.
    fn row(&mut self, head: &WriterHead) {
        let (writer, expected) = (&head.writer, self.expected);
        let Some(row) = &head.row else { return };
        let started = expected.starts.get(writer);
        // The first version stored neither.
        let is_legacy = row.checkpoint.is_none() && head.root.is_none();
        let checks = [
            ("start time", started.is_none_or(|started| row.started == *started)),
            ("end", row.stopped == expected.stops.contains_key(writer)),
            ("named end", !row.named || expected.is_named(writer, head.size, !is_legacy)),
            ("last checkpoint", is_legacy || row.checkpoint.as_ref() == expected.notes.get(writer)),
            ("root", is_legacy || head.root.is_some() || !expected.notes.contains_key(writer)),
        ];
        for (what, _) in checks.into_iter().filter(|(_, fits)| !fits) {
            let message = format!("the row of the writer contradicts its log: {what}");
            self.problems.add("head-differs", writer, None, message);
        }
    }

    /// Checks earlier events against later ones; returns the number of events and the problems.
    pub(super) fn look_back(mut self) -> (u64, Problems) {
        self.report_unstated();
        for before in &self.expected.befores {
            let log = self.logs.get(&before.writer).cloned().unwrap_or_default();
            let (has, last) = (log.frontier.size(), log.last.as_ref().map(Hash::to_string));
            let (writer, size) = (&before.writer, before.size);
            if has < size && !self.expected.is_restored(writer, has) {
                let message =
                    format!("the log had {size} events when the next one began, it has {has}");
                self.problems.add("missing", writer, has, message);
            } else if has == size && last != before.leaf {
                let at = size.saturating_sub(1);
                let message = format!("event {at} is not the one that the next log names");
                self.problems.add("changed", writer, at, message);
            }
        }
        for (writer, unseen) in std::mem::take(&mut self.unseen) {
            if unseen != (0, 0) {
                let message = "events about the log itself are not where they are said to be";
                self.problems.add("changed", &writer, None, message);
            }
        }
        // Roots at sizes that were reached exactly or never reached.
        let mut told = BTreeSet::new();
        for ((writer, size), wanted) in std::mem::take(&mut self.wanted) {
            let mut log = self.logs.get(&writer).cloned().unwrap_or_default();
            let has = log.frontier.size();
            if has == size {
                self.wanted.insert((writer.clone(), size), wanted);
                self.compare(&writer, &mut log);
                continue;
            }
            let is_excused = has > size || self.expected.is_restored(&writer, has);
            if is_excused || !told.insert(writer.clone()) {
                continue;
            }
            let by = wanted.first().map(|wanted| wanted.by.clone()).unwrap_or_default();
            let message = format!("the log had {size} events when {by} was made, it has {has}");
            self.problems.add("missing", &writer, has, message);
        }
        (self.events, self.problems)
    }
}
