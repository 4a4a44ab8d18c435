//! A ledger that keeps everything in memory.
//!
//! For tests, and for programs that need no durable records. It forgets nothing and is bounded
//! only by memory.

use std::collections::{BTreeMap, HashMap};
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_channel::{Receiver, Sender};
use async_trait::async_trait;
use toolbooth_contracts::agent_log::AgentLog;
use toolbooth_contracts::approval::{Approval, ApprovalState};
use toolbooth_contracts::event::{AuditEvent, AuditEventKind, EventBody};
use toolbooth_contracts::receipt::{ClaimState, Receipt};

use crate::chain::Head;
use crate::digest::{Digester, KEY_BYTES};
use crate::ledger::{
    ClaimRequest, Claimed, Ledger, LedgerError, Moment, Refusal, Settlement, Swept,
};
use crate::reads::{
    EventFilter, EventWithRecords, LedgerReads, LogFilter, PlacedEvent, ReceiptFilter, Unaccounted,
    WriterHead,
};
use crate::steps::{self, Records, Stored};

/// A ledger in memory.
#[derive(Debug)]
pub struct MemoryLedger {
    writer: String,
    digester: Digester,
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
    events: Vec<AuditEvent>,
    logs: Vec<(AgentLog, u64)>,
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
            settling: HashMap::new(),
            closed: false,
        };
        let started = EventBody::new(AuditEventKind::WriterStarted, at.text.clone());
        let event = book.place(started);
        book.events.push(event);
        Self { writer: writer.to_owned(), digester, book: Mutex::new(book) }
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

    fn place(&mut self, body: EventBody) -> AuditEvent {
        self.head.append(body)
    }

    fn next_seq(&self) -> u64 {
        self.head.next_seq()
    }

    fn put_event(&mut self, event: &AuditEvent) -> Result<(), LedgerError> {
        self.events.push(event.clone());
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

    async fn close(&self, at: Moment) -> Result<(), LedgerError> {
        let mut book = self.open()?;
        let stopped = EventBody::new(AuditEventKind::WriterStopped, at.text);
        steps::note(&mut *book, &[stopped])?;
        book.closed = true;
        Ok(())
    }
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
            .filter(|(event, place)| {
                let body = &event.body;
                filter.after.is_none_or(|after| *place > after)
                    && matches(filter.tool.as_ref(), body.tool_name.as_deref())
                    && matches(filter.agent.as_ref(), body.agent_id.as_deref())
                    && matches(filter.call.as_ref(), body.call_id.as_deref())
                    && matches(filter.status.as_ref(), body.status.map(|status| status.as_str()))
                    && matches(filter.code.as_ref(), body.error_code.map(|code| code.as_str()))
                    && within(filter.since.as_ref(), filter.until.as_ref(), &body.time)
            })
            .map(|(event, place)| PlacedEvent { place, event: event.clone() })
            .collect();
        Ok(newest(found, filter.limit))
    }

    async fn log_page(
        &self,
        after: Option<(String, u64)>,
        limit: usize,
    ) -> Result<Vec<EventWithRecords>, LedgerError> {
        let book = self.book();
        Ok(book
            .events
            .iter()
            .filter(|event| {
                after
                    .as_ref()
                    .is_none_or(|(writer, seq)| (&event.writer, event.seq) > (writer, *seq))
            })
            .take(limit)
            .map(|event| EventWithRecords {
                event: event.clone(),
                receipt: event
                    .body
                    .receipt_digest
                    .as_ref()
                    .and(event.body.receipt_id.as_ref())
                    .and_then(|id| book.receipts.get(id))
                    .map(|(receipt, _)| receipt.clone()),
                log: book
                    .logs
                    .iter()
                    .find(|(_, seq)| *seq == event.seq)
                    .map(|(log, _)| log.clone()),
            })
            .collect())
    }

    async fn heads(&self) -> Result<Vec<WriterHead>, LedgerError> {
        let book = self.book();
        Ok(vec![WriterHead {
            writer: book.writer.clone(),
            size: book.head.next_seq(),
            last_leaf: book.head.last_leaf().map(str::to_owned),
        }])
    }

    async fn unaccounted(&self) -> Result<Unaccounted, LedgerError> {
        Ok(Unaccounted::default())
    }

    async fn healthy(&self) -> Result<(), LedgerError> {
        self.open().map(drop)
    }
}
