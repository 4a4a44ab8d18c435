//! A ledger that keeps everything in memory.
//!
//! For tests, and for programs that need no durable records. It forgets nothing and is bounded
//! only by memory.

use std::collections::{BTreeMap, HashMap};
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_channel::{Receiver, Sender};
use async_trait::async_trait;
use serde_json::Value;
use toolbooth_contracts::agent_log::AgentLog;
use toolbooth_contracts::approval::{Approval, ApprovalState};
use toolbooth_contracts::event::EventBody;
use toolbooth_contracts::receipt::{ClaimState, Receipt};

use crate::chain::{Head, Placed};
use crate::checkpoint::Due;
use crate::claim::Happening;
use crate::digest::{Digester, KEY_BYTES};
use crate::ledger::{
    ClaimRequest, Claimed, Ledger, LedgerError, Moment, Prune, Pruned, Refusal, Resolution,
    Settlement, Swept,
};
use crate::note::Signer;
use crate::queue::{Beat, CallQueue, Enqueued, QueueState, QueuedCall};
use crate::reads::{
    EventFilter, Include, LedgerReads, LogFilter, MILESTONES, PlacedEvent, RawEntry, RawRecord,
    ReceiptFilter, Unaccounted, WriterHead,
};
use crate::steps::{self, OtherHead, Records, Stored};

/// A ledger in memory.
#[derive(Debug)]
pub struct MemoryLedger {
    writer: String,
    digester: Digester,
    signer: Signer,
    book: Mutex<Book>,
}

#[derive(Debug)]
struct Book {
    writer: String,
    key_id: String,
    head: Head,
    receipts: BTreeMap<String, (Receipt, u64)>,
    keys: HashMap<String, String>,
    rates: HashMap<(String, String), i64>,
    running: HashMap<String, u64>,
    approvals: BTreeMap<String, Approval>,
    events: Vec<Placed>,
    logs: Vec<(AgentLog, u64)>,
    queue: Vec<QueuedCall>,
    settling: HashMap<String, (Sender<Infallible>, Receiver<Infallible>)>,
    closed: bool,
}

impl MemoryLedger {
    /// An empty ledger of the writer `writer`, whose log begins at `at`.
    #[must_use]
    pub fn new(writer: &str, key: &[u8; KEY_BYTES], at: &Moment) -> Self {
        let digester = Digester::new(key);
        let mut book = Book {
            writer: writer.to_owned(),
            key_id: digester.key_id().to_owned(),
            head: Head::new(writer.to_owned()),
            receipts: BTreeMap::new(),
            keys: HashMap::new(),
            rates: HashMap::new(),
            running: HashMap::new(),
            approvals: BTreeMap::new(),
            events: Vec::new(),
            logs: Vec::new(),
            queue: Vec::new(),
            settling: HashMap::new(),
            closed: false,
        };
        // Nothing outlives the process, so that a key of its own is as good as any.
        let seed = digester.of_parts(&["signing key"]);
        let signer = Signer::new(&crate::digest::unhex(&seed).unwrap_or_default());
        let started = steps::started(&signer, digester.key_id(), None, at);
        let placed = book.head.append(started);
        book.events.push(placed);
        Self { writer: writer.to_owned(), digester, signer, book: Mutex::new(book) }
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        // No step panics while it holds the lock; were one to, its records are still whole.
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn open(&self) -> Result<MutexGuard<'_, Book>, LedgerError> {
        let book = self.book();
        if book.closed {
            return Err(LedgerError::Unavailable("the ledger is closed".to_owned()));
        }
        Ok(book)
    }
}

impl Records for Book {
    fn writer(&self) -> &str {
        &self.writer
    }

    fn key_id(&self) -> &str {
        &self.key_id
    }

    fn held(&mut self, key: &str) -> Result<Option<Stored>, LedgerError> {
        match self.keys.get(key).cloned() {
            Some(id) => self.stored(&id),
            None => Ok(None),
        }
    }

    fn stored(&mut self, receipt_id: &str) -> Result<Option<Stored>, LedgerError> {
        Ok(self.receipts.get(receipt_id).map(|(receipt, fence)| Stored {
            receipt: receipt.clone(),
            fence: *fence,
            owner_lost: false,
        }))
    }

    fn begun(&mut self, _receipt_id: &str, _fence: u64, _at: &Moment) {
        // What is in memory is never in doubt.
    }

    fn put(&mut self, receipt: &Receipt, fence: u64, _at: &Moment) -> Result<(), LedgerError> {
        let id = receipt.receipt_id.clone();
        let before = self.receipts.insert(id.clone(), (receipt.clone(), fence));
        let ran = before.is_some_and(|(before, _)| before.state == ClaimState::InFlight);
        let runs = receipt.state == ClaimState::InFlight;
        let running = self.running.entry(receipt.tool_id.clone()).or_default();
        if runs && !ran {
            *running += 1;
            self.settling.insert(id, async_channel::bounded(1));
        } else if ran && !runs {
            *running = running.saturating_sub(1);
            if let Some((sender, _)) = self.settling.remove(&id) {
                sender.close();
            }
        }
        Ok(())
    }

    fn hold(&mut self, key: &str, receipt_id: &str) -> Result<(), LedgerError> {
        self.keys.insert(key.to_owned(), receipt_id.to_owned());
        Ok(())
    }

    fn free(&mut self, receipt_id: &str) -> Result<(), LedgerError> {
        self.keys.retain(|_, holder| holder != receipt_id);
        Ok(())
    }

    fn rate(&mut self, tool: &str, caller: &str) -> Result<Option<i64>, LedgerError> {
        Ok(self.rates.get(&(tool.to_owned(), caller.to_owned())).copied())
    }

    fn set_rate(&mut self, tool: &str, caller: &str, tat_ms: i64) -> Result<(), LedgerError> {
        self.rates.insert((tool.to_owned(), caller.to_owned()), tat_ms);
        Ok(())
    }

    fn running(&mut self, tool: &str) -> Result<u64, LedgerError> {
        Ok(self.running.get(tool).copied().unwrap_or_default())
    }

    fn approval(&mut self, request: &ClaimRequest) -> Result<Option<Approval>, LedgerError> {
        Ok(self
            .approvals
            .values()
            .rev()
            .find(|approval| {
                approval.state != ApprovalState::Spent
                    && approval.tool_id == request.tool_id
                    && approval.caller == request.caller
                    && approval.args_digest == request.args_digest
                    && approval.contract_digest == request.contract_digest
            })
            .cloned())
    }

    fn approval_by_id(&mut self, id: &str) -> Result<Option<Approval>, LedgerError> {
        Ok(self.approvals.get(id).cloned())
    }

    fn put_approval(&mut self, approval: &Approval) -> Result<(), LedgerError> {
        self.approvals.insert(approval.approval_id.clone(), approval.clone());
        Ok(())
    }

    fn head(&mut self) -> &mut Head {
        &mut self.head
    }

    fn put_event(&mut self, placed: &Placed) -> Result<(), LedgerError> {
        self.events.push(placed.clone());
        Ok(())
    }

    fn put_log(&mut self, log: &AgentLog, seq: u64) -> Result<(), LedgerError> {
        self.logs.push((log.clone(), seq));
        Ok(())
    }

    fn lost(&mut self) -> Result<Vec<Stored>, LedgerError> {
        // There is one writer, and it is this one.
        Ok(Vec::new())
    }

    fn unnamed(&mut self, _limit: usize) -> Result<Vec<OtherHead>, LedgerError> {
        Ok(Vec::new())
    }

    fn all_heads(&mut self) -> Result<Vec<WriterHead>, LedgerError> {
        Ok(Vec::new())
    }

    fn named(&mut self, _writers: &[String], _note: &str) -> Result<(), LedgerError> {
        Ok(())
    }

    fn prunable(&mut self, before: &str, limit: usize) -> Result<Vec<(Stored, bool)>, LedgerError> {
        let held = |id: &str| self.keys.values().any(|holder| holder == id);
        Ok(self
            .receipts
            .values()
            .filter(|(receipt, _)| {
                matches!(receipt.state, ClaimState::Succeeded | ClaimState::Failed)
                    && receipt.pruned_at.is_none()
                    && receipt.settled_at.as_deref().is_some_and(|settled| settled < before)
            })
            .take(limit)
            .map(|(receipt, fence)| {
                let stored = Stored { receipt: receipt.clone(), fence: *fence, owner_lost: false };
                (stored, held(&receipt.receipt_id))
            })
            .collect())
    }

    fn remove(&mut self, receipt_id: &str) -> Result<(), LedgerError> {
        self.receipts.remove(receipt_id);
        Ok(())
    }

    fn remove_logs(&mut self, before: &str, limit: usize) -> Result<u64, LedgerError> {
        let mut removed = 0;
        self.logs.retain(|(log, _)| {
            let goes = removed < limit && log.timestamp.as_str() < before;
            removed += usize::from(goes);
            !goes
        });
        Ok(removed as u64)
    }

    fn remove_events(&mut self, _before: &str) -> Result<Option<(String, u64)>, LedgerError> {
        // What does not outlive the process is not worth a shorter log.
        Ok(None)
    }
}

#[async_trait]
impl Ledger for MemoryLedger {
    fn writer(&self) -> &str {
        &self.writer
    }

    fn digester(&self) -> &Digester {
        &self.digester
    }

    async fn claim(&self, request: ClaimRequest) -> Result<Claimed, LedgerError> {
        let mut book = self.open()?;
        let claimed = steps::claim(&mut *book, &request, |_| None)?;
        Ok(match claimed {
            Claimed::InFlight { receipt_id, .. } => {
                let settled = book.settling.get(&receipt_id).map(|(_, receiver)| receiver.clone());
                Claimed::InFlight { receipt_id, settled }
            }
            other => other,
        })
    }

    async fn settle(&self, settlement: Arc<Settlement>) -> Result<Receipt, LedgerError> {
        steps::settle(&mut *self.open()?, &settlement)
    }

    async fn refuse(&self, refusal: Refusal) -> Result<(), LedgerError> {
        steps::refuse(&mut *self.open()?, &refusal)
    }

    async fn note(&self, events: Vec<EventBody>) -> Result<(), LedgerError> {
        steps::note(&mut *self.open()?, &events)
    }

    async fn renew(&self, _at: Moment) -> Result<(), LedgerError> {
        self.open().map(drop)
    }

    async fn sweep(&self, at: Moment) -> Result<Vec<Swept>, LedgerError> {
        steps::sweep(&mut *self.open()?, &at)
    }

    async fn park(&self, receipt_id: String, fence: u64, at: Moment) -> Result<(), LedgerError> {
        let parked = Happening::Parked { fence };
        steps::wait_for_input(&mut *self.open()?, &receipt_id, parked, &at)
    }

    async fn resume(&self, receipt_id: String, fence: u64, at: Moment) -> Result<(), LedgerError> {
        let resumed = Happening::Resumed { fence };
        steps::wait_for_input(&mut *self.open()?, &receipt_id, resumed, &at)
    }

    async fn resolve(&self, resolution: Resolution) -> Result<Receipt, LedgerError> {
        steps::resolve(&mut *self.open()?, &resolution)
    }

    async fn prune(&self, prune: Prune) -> Result<Pruned, LedgerError> {
        steps::prune(&mut *self.open()?, &prune)
    }

    async fn checkpoint(&self, due: Due, at: Moment) -> Result<Option<String>, LedgerError> {
        steps::checkpoint(&mut *self.open()?, &self.signer, due, &at)
    }

    async fn close(&self, at: Moment) -> Result<Option<String>, LedgerError> {
        let mut book = self.open()?;
        let note = steps::stop(&mut *book, &self.signer, &at)?;
        book.closed = true;
        Ok(note)
    }
}

#[async_trait]
impl CallQueue for MemoryLedger {
    async fn enqueue(&self, call: QueuedCall, waiting_max: usize) -> Result<Enqueued, LedgerError> {
        let mut book = self.open()?;
        if let Some(known) = book.queue.iter().find(|own| is_call(own, &call.caller, &call.call_id))
        {
            return Ok(if known.request == call.request {
                Enqueued::Known(Box::new(known.clone()))
            } else {
                Enqueued::Conflict
            });
        }
        let waiting = book.queue.iter().filter(|own| own.state == QueueState::Queued).count();
        if waiting >= waiting_max {
            return Ok(Enqueued::Full);
        }
        book.queue.push(call);
        Ok(Enqueued::New)
    }

    async fn release(&self, caller: &str, call_id: &str) -> Result<(), LedgerError> {
        let mut book = self.open()?;
        if let Some(call) = book.queue.iter_mut().find(|own| is_call(own, caller, call_id)) {
            call.state = QueueState::Queued;
            call.deliveries = call.deliveries.saturating_sub(1);
        }
        Ok(())
    }

    async fn take(
        &self,
        running: Vec<(String, String)>,
    ) -> Result<Option<QueuedCall>, LedgerError> {
        let mut book = self.open()?;
        let writer = book.writer.clone();
        let is_left = |own: &QueuedCall| {
            own.state == QueueState::Running
                && !running.iter().any(|(caller, id)| is_call(own, caller, id))
        };
        let next =
            book.queue.iter_mut().find(|own| own.state == QueueState::Queued || is_left(own));
        Ok(next.map(|call| {
            call.state = QueueState::Running;
            call.worker = Some(writer);
            call.deliveries += 1;
            call.clone()
        }))
    }

    async fn beat(
        &self,
        caller: &str,
        call_id: &str,
        progress: Option<Value>,
    ) -> Result<Beat, LedgerError> {
        let mut book = self.open()?;
        let Some(call) = book.queue.iter_mut().find(|own| is_call(own, caller, call_id)) else {
            return Ok(Beat::Lost);
        };
        if progress.is_some() {
            call.progress = progress;
        }
        Ok(if call.cancel { Beat::Cancel } else { Beat::Go })
    }

    async fn finish(
        &self,
        caller: &str,
        call_id: &str,
        result: String,
        at: Moment,
    ) -> Result<(), LedgerError> {
        let mut book = self.open()?;
        if let Some(call) = book.queue.iter_mut().find(|own| is_call(own, caller, call_id)) {
            call.state = QueueState::Done;
            call.result = Some(result);
            call.finished_at = Some(at.text);
        }
        Ok(())
    }

    async fn cancel(&self, caller: &str, call_id: &str) -> Result<bool, LedgerError> {
        let mut book = self.open()?;
        let call = book
            .queue
            .iter_mut()
            .find(|own| is_call(own, caller, call_id) && own.state != QueueState::Done);
        Ok(call.map(|call| call.cancel = true).is_some())
    }

    async fn queued(&self, caller: &str, call_id: &str) -> Result<Option<QueuedCall>, LedgerError> {
        let book = self.open()?;
        Ok(book.queue.iter().find(|own| is_call(own, caller, call_id)).cloned())
    }

    async fn forget(&self, before: String) -> Result<u64, LedgerError> {
        let mut book = self.open()?;
        let count = book.queue.len();
        book.queue.retain(|own| own.finished_at.as_ref().is_none_or(|done| *done >= before));
        Ok((count - book.queue.len()) as u64)
    }
}

fn is_call(own: &QueuedCall, caller: &str, call_id: &str) -> bool {
    own.caller == caller && own.call_id == call_id
}

fn raw(record: &impl serde::Serialize) -> RawRecord {
    RawRecord { bytes: crate::digest::record_text(record), columns: Vec::new() }
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
impl LedgerReads for MemoryLedger {
    async fn receipt(&self, receipt_id: &str) -> Result<Option<Receipt>, LedgerError> {
        Ok(self.book().receipts.get(receipt_id).map(|(receipt, _)| receipt.clone()))
    }

    async fn receipts(&self, filter: ReceiptFilter) -> Result<(Vec<Receipt>, bool), LedgerError> {
        let book = self.book();
        let mut found: Vec<Receipt> = book
            .receipts
            .values()
            .rev()
            .map(|(receipt, _)| receipt)
            .filter(|receipt| {
                filter.after.as_ref().is_none_or(|after| receipt.receipt_id < *after)
                    && matches(filter.tool.as_ref(), Some(&receipt.tool_id))
                    && matches(filter.call.as_ref(), Some(&receipt.call_id))
                    && matches(filter.state.as_ref(), Some(receipt.state.as_str()))
            })
            .take(filter.limit.saturating_add(1))
            .cloned()
            .collect();
        let more = found.len() > filter.limit;
        found.truncate(filter.limit);
        Ok((found, more))
    }

    async fn agent_log(&self, id: &str) -> Result<Option<AgentLog>, LedgerError> {
        Ok(self.book().logs.iter().find(|(log, _)| log.id == id).map(|(log, _)| log.clone()))
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
            .cloned()
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
                    let stored = id.and_then(|id| book.receipts.get(id));
                    receipt = stored.map(|(receipt, _)| raw(receipt));
                    let own = book.logs.iter().find(|(_, seq)| *seq == event.seq);
                    log = own.map(|(log, _)| raw(log));
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
        Ok(vec![WriterHead {
            writer: book.writer.clone(),
            size: book.head.next_seq(),
            last_leaf: book.head.last_leaf(),
            root: Some(book.head.frontier().root().to_string()),
            pruned: None,
        }])
    }

    async fn unaccounted(&self) -> Result<Unaccounted, LedgerError> {
        Ok(Unaccounted::default())
    }

    async fn healthy(&self) -> Result<(), LedgerError> {
        self.open().map(drop)
    }
}
