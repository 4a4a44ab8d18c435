//! A ledger that keeps everything in memory.
//!
//! For tests, and for programs that need no durable records. It forgets nothing and is bounded
//! only by memory.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use toolbooth_contracts::agent_log::AgentLog;
use toolbooth_contracts::approval::Approval;
use toolbooth_contracts::receipt::{AuditPlace, ClaimState, Receipt};

use crate::chain::{Head, Placed};
use crate::digest::{Digester, KEY_BYTES};
use crate::ledger::{LedgerError, Moment};
use crate::note::Signer;
use crate::pruning::Gone;
use crate::queue::{QueueState, QueuedCall, RawCall};
use crate::reads::{
    Accounted, EventFilter, Include, LedgerReads, LogFilter, MILESTONES, PlacedEvent, RawApproval,
    RawEntry, RawRecord, ReceiptFilter, Unaccounted, WriterHead,
};
use crate::recorder::{Recorder, Runner};
use crate::steps::{self, Step};
use crate::watch::Watch;
use crate::working::{Batch, CallName, Stored, Survey, Surveyed, WorkingSet};

/// A ledger in memory.
pub type MemoryLedger = Recorder<Memory>;

/// Runs steps over a working set that has every record there is.
#[derive(Debug)]
pub struct Memory(Mutex<Book>);

#[derive(Debug)]
struct Book {
    set: WorkingSet,
    watch: Arc<Watch>,
    events: Vec<Placed>,
    logs: Vec<(Arc<AgentLog>, u64)>,
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
        let key_id = digester.key_id().to_owned();
        let mut book = Book {
            set: WorkingSet::new(head, key_id, Arc::clone(&watch)).whole(),
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
            return Err(LedgerError::Unavailable("the ledger is closed".to_owned()));
        }
        book.run(&step)
    }

    fn reads(&self) -> &Self {
        self
    }

    fn healthy(&self) -> Result<(), LedgerError> {
        match self.book().closed {
            true => Err(LedgerError::Unavailable("the ledger is closed".to_owned())),
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
        let known =
            |call: &QueuedCall| matches!(self.set.call(&call.caller, &call.call_id), Ok(Some(_)));
        let fresh = changes.calls.iter().filter(|call| !known(call));
        self.queue.extend(fresh.map(|call| (call.caller.clone(), call.call_id.clone())));
        self.set.apply(changes, &mut batch);
        self.events.extend(batch.events);
        self.logs.extend(batch.logs.into_iter().map(|(log, seq)| (Arc::clone(&log.log), seq)));
        self.watch.ended(batch.ended.iter());
        self.closed |= batch.stopped;
        Ok(answer)
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
            self.events.get(seq).map(|placed| placed.bytes.clone())
        };
        let (queued, finished) = (event(&call.queued_by), event(&call.finished_by));
        RawCall { state: call.state.as_str().to_owned(), call: call.clone(), queued, finished }
    }

    fn survey(&mut self, survey: Survey) -> Surveyed {
        let mut found = Surveyed::default();
        match survey {
            // There is one writer, and it is this one. What does not outlive the process is not
            // worth a shorter log.
            Survey::Lost | Survey::UnnamedHeads | Survey::AllHeads | Survey::RemoveEvents(_) => (),
            Survey::Prunable(before, limit) => {
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
            Survey::RemoveLogs(before, limit) => {
                let mut removed = 0;
                self.logs.retain(|(log, _)| {
                    let goes = removed < limit && log.timestamp < before;
                    removed += usize::from(goes);
                    !goes
                });
                found.removed = removed as u64;
            }
            Survey::NextCall(own) => {
                let is_left = |call: &QueuedCall| {
                    call.state == QueueState::Running
                        && !own.contains(&(call.caller.clone(), call.call_id.clone()))
                };
                let next = self
                    .calls()
                    .find(|call| is_left(call))
                    .or_else(|| self.calls().find(|call| call.state == QueueState::Queued));
                found.call = next.map(|call| self.raw_call(call));
            }
            Survey::RemoveCalls(before) => {
                let (calls, queue) = (&mut self.set.calls, &mut self.queue);
                let count = queue.len();
                queue.retain(|name| {
                    let finished =
                        calls.get(name).and_then(|call| call.as_ref()?.finished_at.as_ref());
                    let goes = finished.is_some_and(|finished| *finished < before);
                    if goes {
                        calls.remove(name);
                    }
                    !goes
                });
                found.removed = (count - queue.len()) as u64;
            }
        }
        found
    }
}

fn raw(record: &impl serde::Serialize) -> RawRecord {
    RawRecord { bytes: crate::digest::record_text(record), ..RawRecord::default() }
}

fn matches(wanted: Option<&String>, found: Option<&str>) -> bool {
    wanted.is_none_or(|wanted| Some(wanted.as_str()) == found)
}

fn within(since: Option<&String>, until: Option<&String>, time: &str) -> bool {
    since.is_none_or(|since| time >= since.as_str())
        && until.is_none_or(|until| time < until.as_str())
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

    async fn receipts(&self, filter: ReceiptFilter) -> Result<(Vec<Receipt>, bool), LedgerError> {
        let book = self.book();
        let mut found: Vec<Receipt> = book
            .receipts()
            .into_iter()
            .rev()
            .map(|stored| Receipt::clone(&stored.receipt))
            .filter(|receipt| {
                filter.after.as_ref().is_none_or(|after| receipt.receipt_id < *after)
                    && matches(filter.tool.as_ref(), Some(&receipt.tool_id))
                    && matches(filter.call.as_ref(), Some(&receipt.call_id))
                    && matches(filter.state.as_ref(), Some(receipt.state.as_str()))
            })
            .take(filter.limit.saturating_add(1))
            .collect();
        let more = found.len() > filter.limit;
        found.truncate(filter.limit);
        Ok((found, more))
    }

    async fn agent_log(&self, id: &str) -> Result<Option<AgentLog>, LedgerError> {
        Ok(self
            .book()
            .logs
            .iter()
            .find(|(log, _)| log.id == id)
            .map(|(log, _)| AgentLog::clone(log)))
    }

    async fn agent_logs(&self, filter: LogFilter) -> Result<Vec<AgentLog>, LedgerError> {
        let book = self.book();
        let found = book
            .logs
            .iter()
            .map(|(log, _)| log)
            .filter(|log| {
                matches(filter.tool.as_ref(), Some(&log.tool_name))
                    && matches(filter.agent.as_ref(), log.agent_id.as_deref())
                    && matches(filter.phase.as_ref(), log.phase_id.as_deref())
                    && matches(filter.epic.as_ref(), log.epic_id.as_deref())
                    && matches(filter.call.as_ref(), Some(&log.call_id))
                    && filter.turn.is_none_or(|turn| log.turn_index == Some(turn))
                    && filter.error.is_none_or(|error| log.is_error == error)
                    && within(filter.since.as_ref(), filter.until.as_ref(), &log.timestamp)
            })
            .map(|log| AgentLog::clone(log))
            .collect();
        Ok(newest(found, filter.limit))
    }

    async fn events(&self, filter: EventFilter) -> Result<Vec<PlacedEvent>, LedgerError> {
        let book = self.book();
        let found = book
            .events
            .iter()
            .zip(1u64..)
            .filter(|(placed, place)| {
                let body = &placed.event.body;
                filter.after.is_none_or(|after| *place > after)
                    && matches(filter.tool.as_ref(), body.tool_name.as_deref())
                    && matches(filter.agent.as_ref(), body.agent_id.as_deref())
                    && matches(filter.call.as_ref(), body.call_id.as_deref())
                    && matches(filter.status.as_ref(), body.status.map(|status| status.as_str()))
                    && matches(filter.code.as_ref(), body.error_code.map(|code| code.as_str()))
                    && within(filter.since.as_ref(), filter.until.as_ref(), &body.time)
            })
            .map(|(placed, place)| PlacedEvent { place, event: placed.event.clone() })
            .collect();
        Ok(match filter.after {
            Some(_) => {
                let mut found: Vec<PlacedEvent> = found;
                found.truncate(filter.limit);
                found
            }
            None => newest(found, filter.limit),
        })
    }

    async fn log_page(
        &self,
        after: Option<(String, u64)>,
        limit: usize,
        include: Include,
    ) -> Result<Vec<RawEntry>, LedgerError> {
        let book = self.book();
        Ok(book
            .events
            .iter()
            .filter(|placed| {
                include != Include::Milestones || MILESTONES.contains(&placed.event.body.event)
            })
            .filter(|Placed { event, .. }| {
                after
                    .as_ref()
                    .is_none_or(|(writer, seq)| (&event.writer, event.seq) > (writer, *seq))
            })
            .take(limit)
            .map(|Placed { event, bytes }| {
                let (mut receipt, mut log) = (None, None);
                if include == Include::Records {
                    let id = event.body.receipt_id.as_ref();
                    let stored = id.and_then(|id| book.set.receipts.get(id)?.as_ref());
                    receipt = stored.map(|stored| RawRecord {
                        keys: book.set.keys_of(&stored.receipt.receipt_id),
                        ..raw(&*stored.receipt)
                    });
                    let own = book.logs.iter().find(|(_, seq)| *seq == event.seq);
                    log = own.map(|(log, _)| raw(&**log));
                }
                RawEntry {
                    writer: event.writer.clone(),
                    seq: event.seq,
                    bytes: bytes.clone(),
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
            book.events.get(seq).map(|placed| placed.bytes.clone())
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
        Ok(book.set.call(caller, call_id)?.map(|call| book.raw_call(call)))
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
