//! A ledger that keeps everything in memory.
//!
//! For tests, and for programs that need no durable records. It forgets nothing and is bounded
//! only by memory.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use toolbooth_contracts::agent_log::AgentLog;
use toolbooth_contracts::approval::Approval;
use toolbooth_contracts::event::AuditEvent;
use toolbooth_contracts::receipt::{AuditPlace, ClaimState, Receipt};

use crate::backend::chain::Head;
use crate::backend::pruning::{Gone, Removal};
use crate::backend::recorder::{Recorder, Runner};
use crate::backend::steps::{self, Step};
use crate::backend::watch::Watch;
use crate::backend::working::{Batch, CallName, Stored, Survey, Surveyed, WorkingSet};
use crate::digest::{Digester, KEY_BYTES};
use crate::ledger::{LedgerError, Moment};
use crate::note::Signer;
use crate::queue::{self, QueueState, QueuedCall, RawCall};
use crate::reads::{
    Accounted, EventFilter, FoundId, IdKind, Include, LedgerReads, LogFilter, MILESTONES, Page,
    PlacedEvent, RawApproval, RawEntry, RawRecord, ReceiptFilter, Unaccounted, WriterHead,
};

/// A ledger in memory.
pub type MemoryLedger = Recorder<Memory>;

/// Runs steps over a working set that has every record there is.
#[derive(Debug)]
pub struct Memory(Mutex<Book>);

#[derive(Debug)]
struct Book {
    set: WorkingSet,
    watch: Arc<Watch>,
    /// The canonical form of each event. It is read where somebody asks for it.
    events: Vec<Box<str>>,
    /// The JSON of each agent log, and the place of its event.
    logs: Vec<(Box<str>, u64)>,
    /// Asynchronous calls in the order in which they came.
    queue: Vec<CallName>,
    closed: bool,
}

impl Recorder<Memory> {
    /// An empty ledger of the writer `writer`, whose log begins at `at`.
    #[must_use]
    pub fn new(writer: &str, key: &[u8; KEY_BYTES], at: &Moment) -> Self {
        let digester = Digester::new(key);
        // Nothing outlives the process, so that a key of its own is as good as any.
        let seed = digester.of_parts(&["signing key"]);
        let signer = Signer::new(&crate::digest::unhex(&seed).unwrap_or_default());
        let watch = Arc::new(Watch::default());
        let head = Head::new(writer.to_owned());
        let mut book = Book {
            set: WorkingSet::new(head, digester.clone(), Arc::clone(&watch)).whole(),
            watch,
            events: Vec::new(),
            logs: Vec::new(),
            queue: Vec::new(),
            closed: false,
        };
        let started = steps::started(&signer, digester.key_id(), None, at);
        // Events that are no calls are always taken.
        let _ = book.run(&steps::Note(vec![started]));
        Self::over(writer.to_owned(), digester, signer, Memory(Mutex::new(book)))
    }
}

impl Memory {
    fn book(&self) -> MutexGuard<'_, Book> {
        // No step panics while it holds the lock; were one to, its records are still whole.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Runner for Memory {
    type Reads = Self;

    async fn run<S: Step>(&self, step: S) -> Result<S::Answer, LedgerError> {
        let mut book = self.book();
        if book.closed {
            return Err(LedgerError::Closed);
        }
        book.run(&step)
    }

    fn reads(&self) -> &Self {
        self
    }

    fn healthy(&self) -> Result<(), LedgerError> {
        match self.book().closed {
            true => Err(LedgerError::Closed),
            false => Ok(()),
        }
    }
}

impl Book {
    fn run<S: Step>(&mut self, step: &S) -> Result<S::Answer, LedgerError> {
        self.set.surveyed = match step.needs().survey {
            Some(survey) => self.survey(survey),
            None => Surveyed::default(),
        };
        let (answer, changes) = step.decide(&self.set)?;
        let mut batch = Batch::default();
        let known = |call: &QueuedCall| {
            matches!(self.set.call_as_stored(&call.caller, &call.call_id), Ok(Some(_)))
        };
        let fresh = changes.calls.iter().filter(|call| !known(call));
        self.queue.extend(fresh.map(|call| (call.caller.clone(), call.call_id.clone())));
        self.set.apply(changes, &mut batch);
        self.events.extend(batch.events.into_iter().map(|placed| placed.bytes.into_boxed_str()));
        if let Some(removal) = &batch.upkeep.pruned {
            self.remove(removal);
        }
        let texts = batch.logs.into_iter();
        self.logs.extend(texts.map(|(log, seq)| (log.record.text.as_str().into(), seq)));
        self.watch.ended(batch.ended.iter());
        self.closed |= batch.upkeep.stopped;
        Ok(answer)
    }

    fn remove(&mut self, removal: &Removal) {
        let places: BTreeSet<u64> = removal.logs.values().flatten().copied().collect();
        self.logs.retain(|(_, seq)| !places.contains(seq));
        self.queue.retain(|name| !removal.calls.contains(name));
        for name in &removal.calls {
            self.set.calls.remove(name);
        }
    }

    /// The events and their canonical forms, oldest first.
    fn read_events(&self) -> impl DoubleEndedIterator<Item = (AuditEvent, &str)> {
        // Each was written from an event, so each can be read.
        self.events.iter().filter_map(|bytes| Some((serde_json::from_str(bytes).ok()?, &**bytes)))
    }

    /// The agent logs, oldest first.
    fn read_logs(&self) -> impl Iterator<Item = AgentLog> {
        self.logs.iter().filter_map(|(text, _)| read(text))
    }

    fn receipts(&self) -> Vec<&Stored> {
        let mut receipts: Vec<&Stored> = self.set.receipts.values().flatten().collect();
        receipts.sort_by(|a, b| a.receipt.receipt_id.cmp(&b.receipt.receipt_id));
        receipts
    }

    fn calls(&self) -> impl Iterator<Item = &QueuedCall> {
        self.queue.iter().filter_map(|name| self.set.calls.get(name)?.as_ref())
    }

    fn raw_call(&self, call: &QueuedCall) -> RawCall {
        let event = |at: &Option<AuditPlace>| {
            let seq = usize::try_from(at.as_ref()?.seq).ok()?;
            self.events.get(seq).map(ToString::to_string)
        };
        let (queued, finished) = (event(&call.queued_by), event(&call.finished_by));
        RawCall { state: call.state.as_str().to_owned(), call: call.clone(), queued, finished }
    }

    fn survey(&self, survey: Survey) -> Surveyed {
        let mut found = Surveyed::default();
        match survey {
            // There is one writer, and it is this one. What does not outlive the process is not
            // worth a shorter log.
            Survey::Lost
            | Survey::UnnamedHeads
            | Survey::Beginning { .. }
            | Survey::PrunableEvents(_)
            | Survey::DroppableLogs(_) => (),
            Survey::PrunableReceipts(before, limit) => {
                let is_old = |receipt: &Receipt| {
                    matches!(receipt.state, ClaimState::Succeeded | ClaimState::Failed)
                        && receipt.pruned_at.is_none()
                        && receipt.settled_at.as_ref().is_some_and(|settled| *settled < before)
                };
                found.prunable = self
                    .receipts()
                    .into_iter()
                    .filter(|stored| is_old(&stored.receipt))
                    .take(limit)
                    .map(|stored| (stored.clone(), self.set.holds(&stored.receipt.receipt_id)))
                    .collect();
            }
            Survey::PrunableLogs(before, limit) => {
                let is_old = |text: &str| read(text).is_some_and(|log| log.timestamp < before);
                let old = self.logs.iter().filter(|(text, _)| is_old(text)).take(limit);
                let places: Vec<u64> = old.map(|(_, seq)| *seq).collect();
                if !places.is_empty() {
                    found.removal.logs.insert(self.set.writer().to_owned(), places);
                }
            }
            Survey::NextCall(own) => {
                let is_left = |call: &QueuedCall| {
                    let name = (call.caller.clone(), call.call_id.clone());
                    queue::is_left(call, self.set.writer(), || own.contains(&name), |_| true)
                };
                let next = self
                    .calls()
                    .find(|call| is_left(call))
                    .or_else(|| self.calls().find(|call| call.state == QueueState::Queued));
                found.call = next.map(|call| self.raw_call(call));
            }
            Survey::PrunableCalls(before, limit) => {
                let is_old = |call: &&QueuedCall| {
                    call.finished_at.as_ref().is_some_and(|finished| *finished < before)
                };
                let name = |call: &QueuedCall| (call.caller.clone(), call.call_id.clone());
                found.removal.calls = self.calls().filter(is_old).take(limit).map(name).collect();
            }
        }
        found
    }
}

/// An agent log from its JSON, which was written from one.
fn read(text: &str) -> Option<AgentLog> {
    serde_json::from_str(text).ok()
}

fn raw(record: &impl serde::Serialize) -> RawRecord {
    RawRecord { bytes: crate::digest::record_text(record), ..RawRecord::default() }
}

/// The newest `limit` of `items`, which are oldest first.
fn newest<T>(mut items: Vec<T>, limit: usize) -> Vec<T> {
    let surplus = items.len().saturating_sub(limit);
    items.drain(..surplus);
    items
}

#[async_trait]
impl LedgerReads for Memory {
    async fn receipt(&self, receipt_id: &str) -> Result<Option<Receipt>, LedgerError> {
        let book = self.book();
        let stored = book.set.receipts.get(receipt_id).and_then(Option::as_ref);
        Ok(stored.map(|stored| Receipt::clone(&stored.receipt)))
    }

    async fn receipts(&self, filter: ReceiptFilter) -> Result<Page<Receipt>, LedgerError> {
        let book = self.book();
        let found: Vec<Receipt> = book
            .receipts()
            .into_iter()
            .rev()
            .map(|stored| Receipt::clone(&stored.receipt))
            .filter(|receipt| filter.fits(receipt))
            .take(filter.limit.saturating_add(1))
            .collect();
        let mut page = Page::of(found);
        page.truncate(filter.limit);
        Ok(page)
    }

    async fn agent_log(&self, id: &str) -> Result<Option<AgentLog>, LedgerError> {
        Ok(self.book().read_logs().find(|log| log.id == id))
    }

    async fn agent_logs(&self, filter: LogFilter) -> Result<Page<AgentLog>, LedgerError> {
        let book = self.book();
        let found = book.read_logs().filter(|log| filter.fits(log)).collect();
        Ok(Page::of(newest(found, filter.limit)))
    }

    async fn events(&self, filter: EventFilter) -> Result<Page<PlacedEvent>, LedgerError> {
        let book = self.book();
        let found = book
            .read_events()
            .zip(1u64..)
            .filter(|((event, _), place)| {
                filter.after.is_none_or(|after| *place > after) && filter.fits(event)
            })
            .map(|((event, _), place)| PlacedEvent { place, event })
            .collect();
        Ok(Page::of(match filter.after {
            Some(_) => {
                let mut found: Vec<PlacedEvent> = found;
                found.truncate(filter.limit);
                found
            }
            None => newest(found, filter.limit),
        }))
    }

    async fn named(&self, prefix: &str, limit: usize) -> Result<Vec<FoundId>, LedgerError> {
        let book = self.book();
        let mut found: Vec<FoundId> = Vec::new();
        let bodies = book.read_events().rev().map(|(event, _)| event.body);
        let ids = bodies
            .flat_map(|body| [(IdKind::Call, body.call_id), (IdKind::Receipt, body.receipt_id)]);
        for (kind, id) in ids {
            let Some(id) = id.filter(|id| id.starts_with(prefix)) else { continue };
            let one = FoundId { kind, id };
            if found.len() < limit && !found.contains(&one) {
                found.push(one);
            }
        }
        Ok(found)
    }

    async fn log_page(
        &self,
        after: Option<(String, u64)>,
        limit: usize,
        include: Include,
    ) -> Result<Vec<RawEntry>, LedgerError> {
        let book = self.book();
        Ok(book
            .read_events()
            .filter(|(event, _)| {
                include != Include::Milestones || MILESTONES.contains(&event.body.event)
            })
            .filter(|(event, _)| {
                after
                    .as_ref()
                    .is_none_or(|(writer, seq)| (&event.writer, event.seq) > (writer, *seq))
            })
            .take(limit)
            .map(|(event, bytes)| {
                let (mut receipt, mut log) = (None, None);
                if include == Include::Records {
                    let id = event.body.receipt_id.as_ref();
                    let stored = id.and_then(|id| book.set.receipts.get(id)?.as_ref());
                    receipt = stored.map(|stored| RawRecord {
                        keys: book.set.keys_of(&stored.receipt.receipt_id),
                        ..raw(&*stored.receipt)
                    });
                    let own = book.logs.iter().find(|(_, seq)| *seq == event.seq);
                    log = own.map(|(text, _)| RawRecord {
                        bytes: text.to_string(),
                        ..RawRecord::default()
                    });
                }
                RawEntry {
                    writer: event.writer,
                    seq: event.seq,
                    bytes: bytes.to_owned(),
                    columns: Vec::new(),
                    receipt,
                    log,
                }
            })
            .collect())
    }

    async fn heads(&self) -> Result<Vec<WriterHead>, LedgerError> {
        let book = self.book();
        let head = book.set.head();
        Ok(vec![WriterHead {
            writer: head.writer().to_owned(),
            size: head.next_seq(),
            last_leaf: head.last_leaf(),
            root: Some(head.frontier().root().to_string()),
            pruned: None,
            row: None,
        }])
    }

    async fn gone_page(
        &self,
        _: Option<(String, u64)>,
        _: usize,
    ) -> Result<Vec<(String, Gone)>, LedgerError> {
        Ok(Vec::new())
    }

    async fn key_ids(&self) -> Result<Option<Vec<String>>, LedgerError> {
        Ok(None)
    }

    async fn unaccounted(&self, _: Accounted) -> Result<Unaccounted, LedgerError> {
        Ok(Unaccounted::default())
    }

    async fn approval_page(
        &self,
        after: Option<String>,
        limit: usize,
    ) -> Result<Vec<RawApproval>, LedgerError> {
        let book = self.book();
        let event = |approval: &Approval| {
            let seq = usize::try_from(approval.audit_seq.as_ref()?.seq).ok()?;
            book.events.get(seq).map(ToString::to_string)
        };
        Ok(book
            .set
            .approvals
            .values()
            .filter(|approval| after.as_ref().is_none_or(|after| approval.approval_id > *after))
            .take(limit)
            .map(|approval| RawApproval {
                id: approval.approval_id.clone(),
                bytes: crate::digest::record_text(approval),
                columns: Vec::new(),
                event: event(approval),
            })
            .collect())
    }

    async fn queued(&self, caller: &str, call_id: &str) -> Result<Option<RawCall>, LedgerError> {
        let book = self.book();
        Ok(book.set.call_as_stored(caller, call_id)?.map(|call| book.raw_call(call)))
    }

    async fn call_page(
        &self,
        after: Option<CallName>,
        limit: usize,
    ) -> Result<Vec<RawCall>, LedgerError> {
        let book = self.book();
        let mut calls: Vec<&QueuedCall> = book.calls().collect();
        let name = |call: &QueuedCall| (call.caller.clone(), call.call_id.clone());
        calls.sort_by_key(|call| name(call));
        let rest =
            calls.into_iter().filter(|call| after.as_ref().is_none_or(|after| name(call) > *after));
        Ok(rest.take(limit).map(|call| book.raw_call(call)).collect())
    }

    async fn healthy(&self) -> Result<(), LedgerError> {
        Runner::healthy(self)
    }
}
