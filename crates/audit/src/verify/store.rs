//! Verifies a store: survey, replay, and report.
//!
//! Doc: records.md#verification

use std::collections::{BTreeMap, VecDeque};

use toolbooth_contracts::Effect;
use toolbooth_contracts::event::AuditEvent;
use toolbooth_contracts::receipt::AuditPlace;

use super::TrustAnchors;
use super::chain::Chains;
use super::event_fields::read;
use super::pages::{PAGE, approvals, budgets, calls, documents, orders, progress};
use super::records::{Records, UnresolvedReceipt};
use super::report::{Problems, VerifyReport};
use super::survey::{Expectations, LogFindings, is_milestone};
use crate::LedgerReads;
use crate::backend::pruning::PrunedRange;
use crate::digest::of_record;
use crate::ledger::LedgerError;
use crate::reads::{EventFilter, Include, RawEntry, WriterHead};

/// Maximum number of verification runs over a store that changes meanwhile, before the problems are
/// reported.
const ATTEMPTS: usize = 3;

/// Verifies all records of a store. If records are pruned or dispatched again meanwhile, the
/// verification is repeated.
///
/// # Errors
/// If the store cannot be read.
pub async fn store(
    reads: &dyn LedgerReads,
    known: TrustAnchors,
) -> Result<VerifyReport, LedgerError> {
    // The index is checked first, because later lookups may update or rebuild it.
    let index = reads.index_differences().await?;
    let structure = reads.structure_differences().await?;
    let mut attempts = 1;
    loop {
        let before = reads.heads().await?;
        let report = read_store(reads, known.clone(), &before, (&index, &structure)).await?;
        if report.ok || attempts == ATTEMPTS || reads.heads().await? == before {
            return Ok(report);
        }
        attempts += 1;
    }
}

async fn read_store(
    reads: &dyn LedgerReads,
    known: TrustAnchors,
    // Heads are read first, so that events written meanwhile are not reported as unaccounted.
    heads: &[WriterHead],
    (index, structure): (&[String], &[String]),
) -> Result<VerifyReport, LedgerError> {
    let (digester, pins) = (known.digester.clone(), known.pins.clone());
    let ends = Ends(heads.iter().map(|head| (head.writer.as_str(), head.size)).collect());
    let (expected, surveyed) = survey(reads, LogFindings::of(known, heads), &ends).await?;
    let mut chains = Chains::new(&expected);
    let mut records = Records::new(&expected, digester, pins);
    if let Some(known) = reads.key_ids().await? {
        records.key_ids(&known);
    }
    calls(reads, |raw| records.kept_call(&raw.call.caller, &raw.call.call_id)).await?;
    // Documents are read before the logs that name them, and those that are missing once more afterwards.
    documents(reads, |raw| records.document(raw)).await?;
    let beyond = replay(reads, &ends, &mut chains, &mut records).await?;
    for (digest, place) in records.take_missing_documents() {
        match reads.document(&digest).await {
            // One that is damaged was written meanwhile, and the next verification reads it.
            Ok(Some(_)) | Err(LedgerError::Damaged(_)) => (),
            Ok(None) => records.missing_document(&digest, &place),
            Err(error) => return Err(error),
        }
    }
    approvals(reads, &mut records).await?;
    orders(reads, &mut records).await?;
    let is_known =
        |at: &Option<AuditPlace>| at.as_ref().is_none_or(|at| ends.know(&at.writer, at.seq));
    calls(reads, |raw| {
        let known = is_known(&raw.call.queued_by) && is_known(&raw.call.finished_by);
        records.call(raw, known);
    })
    .await?;
    let mut later = Vec::new();
    budgets(reads, |raw| {
        let at = raw.row.as_ref().map(|row| row.changed_by.clone());
        let known = is_known(&at);
        records.budget(raw, known);
        later.extend(at.filter(|_| !known).map(|at| (raw.key.clone(), at)));
    })
    .await?;
    leftovers(reads, &expected, &mut records).await?;
    let now = reads.heads().await?;
    for (key, at) in &later {
        // A budget that changed meanwhile has its event, and the next verification adds it up.
        if !now.iter().any(|head| head.writer == at.writer && at.seq < head.size) {
            records.unknown_budget(key);
        }
    }
    let (events, logs) = chains.finish(heads, &now, &beyond);
    let counted = records.counted();
    let mut records = records.finish(&reads.unaccounted(counted).await?);
    for difference in index {
        let message = format!("the search index differs from the events: {difference}");
        records.add("index-differs", "", None, message);
    }
    for difference in structure {
        records.add("structure-differs", "", None, format!("in the database, {difference}"));
    }
    Ok(Problems::report([surveyed, logs, records], events))
}

/// The ends of the logs at the start; events written later are not verified in this run.
struct Ends<'h>(BTreeMap<&'h str, u64>);

impl Ends<'_> {
    fn know(&self, writer: &str, seq: u64) -> bool {
        self.0.get(writer).is_some_and(|size| seq < *size)
    }
}

/// The consecutive pages of the logs.
struct Pages<'r> {
    reads: &'r dyn LedgerReads,
    include: Include,
    after: Option<(String, u64)>,
}

impl<'r> Pages<'r> {
    fn of(reads: &'r dyn LedgerReads, include: Include) -> Self {
        Self { reads, include, after: None }
    }

    async fn next(&mut self) -> Result<Option<Vec<RawEntry>>, LedgerError> {
        let page = self.reads.log_page(self.after.clone(), PAGE, self.include).await?;
        let Some(last) = page.last() else { return Ok(None) };
        let next = Some((last.writer.clone(), last.seq));
        progress("events", &self.after, &next)?;
        self.after = next;
        Ok(Some(page))
    }
}

/// The pruned ranges of the logs, in order.
pub(crate) struct PrunedPages<'r> {
    reads: &'r dyn LedgerReads,
    page: VecDeque<(String, PrunedRange)>,
    after: Option<(String, u64)>,
    ended: bool,
}

impl<'r> PrunedPages<'r> {
    pub(crate) fn of(reads: &'r dyn LedgerReads) -> Self {
        Self { reads, page: VecDeque::new(), after: None, ended: false }
    }

    async fn fill(&mut self) -> Result<(), LedgerError> {
        if self.page.is_empty() && !self.ended {
            let page = self.reads.pruned_ranges(self.after.clone(), PAGE).await?;
            self.ended = page.is_empty();
            let next = page.last().map(|(writer, part)| (writer.clone(), part.seq));
            progress("gone", &self.after, &next)?;
            self.after = next;
            self.page.extend(page);
        }
        Ok(())
    }

    async fn next(&mut self) -> Result<Option<(String, PrunedRange)>, LedgerError> {
        self.fill().await?;
        Ok(self.page.pop_front())
    }

    /// Returns the next pruned range if it precedes an event.
    pub(crate) async fn before(
        &mut self,
        writer: &str,
        seq: u64,
    ) -> Result<Option<(String, PrunedRange)>, LedgerError> {
        self.fill().await?;
        let is = |(own, part): &(String, PrunedRange)| (own.as_str(), part.seq) < (writer, seq);
        Ok(if self.page.front().is_some_and(is) { self.page.pop_front() } else { None })
    }
}

async fn survey(
    reads: &dyn LedgerReads,
    mut survey: LogFindings,
    ends: &Ends<'_>,
) -> Result<(Expectations, Problems), LedgerError> {
    let mut pages = Pages::of(reads, Include::Milestones);
    while let Some(page) = pages.next().await? {
        for entry in page.iter().filter(|entry| ends.know(&entry.writer, entry.seq)) {
            if !is_milestone(&entry.bytes) {
                survey.stranger(&entry.writer, entry.seq);
            }
            survey.learn(&entry.bytes);
        }
    }
    Ok(survey.finish())
}

/// Replays everything once, in the order of the logs. Returns the last events beyond the ends that
/// the logs had at the start.
async fn replay(
    reads: &dyn LedgerReads,
    ends: &Ends<'_>,
    chains: &mut Chains<'_>,
    records: &mut Records<'_>,
) -> Result<BTreeMap<String, u64>, LedgerError> {
    let mut beyond: BTreeMap<String, u64> = BTreeMap::new();
    let mut pages = Pages::of(reads, Include::Records);
    let mut gone = PrunedPages::of(reads);
    let mut ahead = pages.next().await?;
    while let Some(page) = ahead {
        // The next page is read while the digests of this page are computed.
        let (computed, next) = both(read(page), pages.next()).await;
        ahead = next?;
        for read in computed? {
            while let Some((writer, part)) = gone.before(&read.writer, read.seq).await? {
                chains.gone(&writer, &part);
            }
            if !ends.know(&read.writer, read.seq) {
                records.later(&read);
                beyond.insert(read.writer, read.seq);
            } else if chains.event(&read) {
                records.event(&read);
            }
        }
        let unresolved = records.take_owed();
        account(reads, records, unresolved).await?;
    }
    while let Some((writer, part)) = gone.next().await? {
        chains.gone(&writer, &part);
    }
    let open = records.take_open();
    account(reads, records, open).await?;
    Ok(beyond)
}

/// Polls two futures until both are done.
async fn both<A: Future, B: Future>(one: A, other: B) -> (A::Output, B::Output) {
    let (mut one, mut other) = (std::pin::pin!(one), std::pin::pin!(other));
    let (mut first, mut second) = (None, None);
    std::future::poll_fn(|context| {
        if first.is_none()
            && let std::task::Poll::Ready(done) = one.as_mut().poll(context)
        {
            first = Some(done);
        }
        if second.is_none()
            && let std::task::Poll::Ready(done) = other.as_mut().poll(context)
        {
            second = Some(done);
        }
        match (first.take(), second.take()) {
            (Some(first), Some(second)) => std::task::Poll::Ready((first, second)),
            (one, other) => {
                (first, second) = (one, other);
                std::task::Poll::Pending
            }
        }
    })
    .await
}

/// Checks the receipts for which not all events were read: they may have changed since the events
/// were read.
async fn leftovers(
    reads: &dyn LedgerReads,
    expected: &Expectations,
    records: &mut Records<'_>,
) -> Result<(), LedgerError> {
    for (id, accounted) in records.take_accounted() {
        let found = is_accounted(reads, &id, expected.lacks_events()).await?;
        records.leftover(&id, &accounted, found);
    }
    for (id, absent) in records.take_absent() {
        let events = events_of(reads, &id, absent.call.clone()).await.unwrap_or_default();
        let last = events.iter().max_by(|a, b| a.body.time.cmp(&b.body.time));
        let is_kept = |AuditEvent { body, .. }: &AuditEvent| {
            body.holds_keys || expected.is_counted(&body.time, body.counted_until_ms)
        };
        // A call that did not start counts for nothing, also if its event has an earlier time than another.
        let is_over = |AuditEvent { body, .. }: &AuditEvent| {
            body.effect == Some(Effect::NotStarted) && !body.holds_keys
        };
        if last.is_none_or(is_kept) && !events.iter().any(is_over) {
            records.missing(&id, &absent);
        }
    }
    Ok(())
}

/// Returns the events of a call that account for a receipt.
async fn events_of(
    reads: &dyn LedgerReads,
    id: &str,
    call: String,
) -> Result<Vec<AuditEvent>, LedgerError> {
    /// Maximum number of examined events of one call.
    const MOST: usize = 10_000;
    let filter = EventFilter { call: Some(call), limit: MOST, ..EventFilter::default() };
    let mut events: Vec<AuditEvent> =
        reads.events(filter).await?.found.into_iter().map(|placed| placed.event).collect();
    events.retain(|event| {
        event.body.receipt_id.as_deref() == Some(id) && event.body.receipt_digest.is_some()
    });
    Ok(events)
}

/// Whether the events of its call account for the current state of a receipt; `None` if it does not
/// exist.
async fn is_accounted(
    reads: &dyn LedgerReads,
    id: &str,
    is_pruned: bool,
) -> Result<Option<bool>, LedgerError> {
    let receipt = match reads.receipt(id).await {
        Ok(Some(receipt)) => receipt,
        Ok(None) => return Ok(None),
        Err(LedgerError::Damaged(_)) => return Ok(Some(false)),
        Err(error) => return Err(error),
    };
    // Unreadable events account for nothing.
    let Ok(events) = events_of(reads, id, receipt.call_id.clone()).await else {
        return Ok(Some(false));
    };
    let (mut count, mut last) = (0u32, false);
    for event in events {
        count += 1;
        let place = AuditPlace { writer: event.writer, seq: event.seq };
        last |= receipt.audit_seq == Some(place)
            && (receipt.pruned_at.is_some()
                || event.body.receipt_digest == Some(of_record(&receipt)));
    }
    let expected = receipt.audit_count.unwrap_or_default();
    Ok(Some(if is_pruned { count <= expected } else { last && count == expected }))
}

/// Looks up the named accounting events of receipts.
async fn account(
    reads: &dyn LedgerReads,
    records: &mut Records<'_>,
    unresolved: Vec<UnresolvedReceipt>,
) -> Result<(), LedgerError> {
    for unresolved in unresolved {
        let bytes = match &unresolved.place {
            Some(place) => event_at(reads, place).await?,
            None => None,
        };
        records.unresolved(&unresolved, bytes.as_deref());
    }
    Ok(())
}

async fn event_at(
    reads: &dyn LedgerReads,
    place: &AuditPlace,
) -> Result<Option<String>, LedgerError> {
    // A page starts after a place; the first event of a log has no place before it.
    let after = place.seq.checked_sub(1).map(|seq| (place.writer.clone(), seq));
    let page = reads.log_page(after, 1, Include::Events).await?;
    Ok(page
        .into_iter()
        .find(|entry| entry.writer == place.writer && entry.seq == place.seq)
        .map(|entry| entry.bytes))
}
