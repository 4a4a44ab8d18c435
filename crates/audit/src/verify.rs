//! Verification: re-computes every digest and names the first place where something is wrong.
//!
//! Works in a stream, offline, over a store or an export.
//!
//! Doc: records.md#verification

use std::collections::{BTreeMap, BTreeSet};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use toolbooth_contracts::event::{AuditEvent, AuditEventKind};
use toolbooth_contracts::receipt::Receipt;

use crate::chain;
use crate::digest::of_record;
use crate::reads::{EventWithRecords, Unaccounted, WriterHead};

/// Most problems that a report lists.
pub const PROBLEMS_MAX: usize = 1_000;

/// One thing that is wrong.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Problem {
    /// `changed`, `missing`, `unaccounted-event`, `receipt-changed`, `receipt-missing`,
    /// `receipt-unaccounted`, `log-changed`, `log-missing`, `log-unaccounted` or `head-differs`.
    pub kind: String,
    /// The writer whose log it is; empty where there is none.
    pub writer: String,
    /// The place in its log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seq: Option<u64>,
    /// A sentence.
    pub message: String,
}

/// What verification found.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct VerifyReport {
    /// Whether everything fits.
    pub ok: bool,
    /// How many events were looked at.
    pub events: u64,
    /// What does not fit.
    pub problems: Vec<Problem>,
}

#[derive(Debug, Clone)]
struct Log {
    next: u64,
    last: Option<String>,
}

/// Takes events, each writer's in order, and tells what does not fit.
#[derive(Debug, Default)]
pub struct Verifier {
    logs: BTreeMap<String, Log>,
    /// What the beginnings of logs say of the logs before them.
    befores: Vec<(String, u64, Option<String>)>,
    /// Receipts of several attempts that a later event has to account for, and those it has.
    owed: BTreeMap<String, (String, u64)>,
    matched: BTreeSet<String>,
    events: u64,
    problems: Vec<Problem>,
}

impl Verifier {
    fn problem(&mut self, kind: &str, writer: &str, seq: Option<u64>, message: String) {
        if self.problems.len() < PROBLEMS_MAX {
            self.problems.push(Problem {
                kind: kind.to_owned(),
                writer: writer.to_owned(),
                seq,
                message,
            });
        }
    }

    /// The next event of its writer.
    pub fn event(&mut self, event: &AuditEvent) {
        self.events += 1;
        let log = self.logs.get(&event.writer).cloned().unwrap_or(Log { next: 0, last: None });
        let (writer, seq) = (event.writer.as_str(), event.seq);
        if seq != log.next {
            let message = format!("expected event {}, found event {seq}", log.next);
            self.problem("missing", writer, Some(log.next.min(seq)), message);
        } else if event.prev != log.last {
            let before = seq.saturating_sub(1);
            let message =
                format!("event {seq} does not follow from event {before}, which was changed");
            self.problem("changed", writer, Some(before), message);
        }
        if event.body.event == AuditEventKind::WriterStarted
            && let Some(facts) = &event.body.facts
            && let Some(before) = facts.get("before").and_then(Value::as_str)
        {
            let size = facts.get("size").and_then(Value::as_u64).unwrap_or_default();
            let leaf = facts.get("lastLeaf").and_then(Value::as_str).map(str::to_owned);
            self.befores.push((before.to_owned(), size, leaf));
        }
        let leaf = chain::leaf(event);
        self.logs.insert(event.writer.clone(), Log { next: seq + 1, last: Some(leaf) });
    }

    /// The next event of its writer, and the records that it names.
    pub fn event_with_records(&mut self, item: &EventWithRecords) {
        let event = &item.event;
        self.event(event);
        let (writer, seq) = (event.writer.as_str(), Some(event.seq));
        if let Some(digest) = &event.body.receipt_digest {
            match &item.receipt {
                Some(receipt) if of_record(receipt) == *digest => {
                    if receipt.attempt > 1 {
                        self.matched.insert(receipt.receipt_id.clone());
                    }
                }
                // The claim was taken over since: a later terminal event has to account for it,
                // unless it still runs.
                Some(receipt) if receipt.attempt > 1 && !ends_at(receipt, event) => {
                    if receipt.settled_at.is_some() {
                        let place = (event.writer.clone(), event.seq);
                        self.owed.insert(receipt.receipt_id.clone(), place);
                    }
                }
                Some(receipt) => {
                    let message = format!("receipt {} was changed", receipt.receipt_id);
                    self.problem("receipt-changed", writer, seq, message);
                }
                None => {
                    let id = event.body.receipt_id.clone().unwrap_or_default();
                    self.problem(
                        "receipt-missing",
                        writer,
                        seq,
                        format!("receipt {id} is missing"),
                    );
                }
            }
        }
        if let Some(digest) = &event.body.log_digest {
            match &item.log {
                Some(log) if of_record(log) == *digest => (),
                Some(log) => {
                    self.problem(
                        "log-changed",
                        writer,
                        seq,
                        format!("agent log {} was changed", log.id),
                    );
                }
                None => {
                    let call = event.body.call_id.clone().unwrap_or_default();
                    self.problem(
                        "log-missing",
                        writer,
                        seq,
                        format!("the agent log of call {call} is missing"),
                    );
                }
            }
        }
    }

    /// What the store keeps beside the events: where each log ended before they were read, and
    /// where it ends now.
    pub fn heads(&mut self, heads: &[WriterHead], now: &[WriterHead]) {
        for head in heads {
            let log = self.logs.get(&head.writer).cloned().unwrap_or(Log { next: 0, last: None });
            let end = now.iter().find(|end| end.writer == head.writer).unwrap_or(head);
            if log.next < head.size {
                let message =
                    format!("the log should have {} events, it has {}", head.size, log.next);
                self.problem("missing", &head.writer, Some(log.next), message);
            } else if log.next > end.size {
                let message = format!("the log ends before event {}, but there is one", end.size);
                self.problem("unaccounted-event", &head.writer, Some(end.size), message);
            } else if log.next == head.size && log.last != head.last_leaf {
                let at = head.size.saturating_sub(1);
                let message = format!("event {at} was changed");
                self.problem("changed", &head.writer, Some(at), message);
            }
        }
        let known: Vec<&String> = self.logs.keys().collect();
        let strangers: Vec<String> = known
            .into_iter()
            .filter(|writer| !now.iter().any(|head| head.writer == **writer))
            .cloned()
            .collect();
        for writer in strangers {
            self.problem(
                "head-differs",
                &writer,
                None,
                "the writer is not known to the store".to_owned(),
            );
        }
    }

    /// Records that no event accounts for.
    pub fn unaccounted(&mut self, records: &Unaccounted) {
        for id in &records.logs {
            let message = format!("no event accounts for agent log {id}");
            self.problem("log-unaccounted", "", None, message);
        }
        for id in &records.receipts {
            let message = format!("no event accounts for receipt {id}");
            self.problem("receipt-unaccounted", "", None, message);
        }
    }

    /// What later events have to say of earlier ones.
    fn look_back(&mut self) {
        for (writer, size, leaf) in std::mem::take(&mut self.befores) {
            let log = self.logs.get(&writer).cloned().unwrap_or(Log { next: 0, last: None });
            if log.next < size {
                let message = format!(
                    "the log had {size} events when the next one began, it has {}",
                    log.next
                );
                self.problem("missing", &writer, Some(log.next), message);
            } else if log.next == size && log.last != leaf {
                let at = size.saturating_sub(1);
                let message = format!("event {at} is not the one that the next log names");
                self.problem("changed", &writer, Some(at), message);
            }
        }
        let matched = std::mem::take(&mut self.matched);
        for (id, (writer, seq)) in std::mem::take(&mut self.owed) {
            if !matched.contains(&id) {
                let message = format!("receipt {id} was changed");
                self.problem("receipt-changed", &writer, Some(seq), message);
            }
        }
    }

    /// The report.
    #[must_use]
    pub fn finish(mut self) -> VerifyReport {
        self.look_back();
        VerifyReport { ok: self.problems.is_empty(), events: self.events, problems: self.problems }
    }
}

fn ends_at(receipt: &Receipt, event: &AuditEvent) -> bool {
    let place = receipt.audit_seq.as_ref();
    place.is_some_and(|place| place.writer == event.writer && place.seq == event.seq)
}

/// Verifies everything that a store has written.
///
/// # Errors
/// Where the store cannot be read.
pub async fn store(
    reads: &dyn crate::reads::LedgerReads,
) -> Result<VerifyReport, crate::ledger::LedgerError> {
    const PAGE: usize = 1_000;
    let mut verifier = Verifier::default();
    // Heads first: events that are written while this runs must not look like strangers' work.
    let heads = reads.heads().await?;
    let mut after = None;
    loop {
        let page = reads.log_page(after.take(), PAGE).await?;
        let Some(last) = page.last() else { break };
        after = Some((last.event.writer.clone(), last.event.seq));
        for item in &page {
            verifier.event_with_records(item);
        }
    }
    verifier.heads(&heads, &reads.heads().await?);
    verifier.unaccounted(&reads.unaccounted().await?);
    Ok(verifier.finish())
}

#[cfg(test)]
mod tests {
    use toolbooth_contracts::event::{AuditEventKind, EventBody};

    use super::*;
    use crate::chain::Head;

    fn log(size: usize) -> (Vec<AuditEvent>, WriterHead) {
        let mut head = Head::new("w".to_owned());
        let events = (0..size)
            .map(|n| {
                let mut body = EventBody::new(AuditEventKind::ToolExecuted, format!("t{n}"));
                body.call_id = Some(format!("call-{n}"));
                head.append(body)
            })
            .collect();
        let end = WriterHead {
            writer: "w".to_owned(),
            size: head.next_seq(),
            last_leaf: head.last_leaf().map(str::to_owned),
        };
        (events, end)
    }

    fn problems(events: &[AuditEvent], head: &WriterHead) -> Vec<(String, Option<u64>)> {
        let mut verifier = Verifier::default();
        events.iter().for_each(|event| verifier.event(event));
        verifier.heads(std::slice::from_ref(head), std::slice::from_ref(head));
        verifier.finish().problems.into_iter().map(|p| (p.kind, p.seq)).collect()
    }

    #[test]
    fn every_kind_of_tampering_is_found_at_its_place() {
        let (events, head) = log(8);
        assert!(problems(&events, &head).is_empty());
        for at in 0..8u64 {
            let index = at as usize;
            let mut changed = events.clone();
            changed[index].body.tool_name = Some("other".into());
            assert_eq!(problems(&changed, &head)[0], ("changed".into(), Some(at)));
            let mut removed = events.clone();
            removed.remove(index);
            assert_eq!(problems(&removed, &head)[0], ("missing".into(), Some(at)));
            let mut doubled = events.clone();
            doubled.insert(index, events[index].clone());
            assert!(!problems(&doubled, &head).is_empty());
        }
        let mut swapped = events.clone();
        swapped.swap(2, 3);
        assert_eq!(problems(&swapped, &head)[0].1, Some(2));
        assert_eq!(problems(&events[..6], &head)[0], ("missing".into(), Some(6)));
    }
}
