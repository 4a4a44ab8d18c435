//! Reads the records of a ledger in memory.

use std::ops::Bound;

use async_trait::async_trait;
use toolbooth_contracts::agent_log::AgentLog;
use toolbooth_contracts::approval::Approval;
use toolbooth_contracts::order::OrderName;
use toolbooth_contracts::receipt::Receipt;

use super::Memory;
use crate::backend::pruning::PrunedRange;
use crate::backend::recorder::StepRunner;
use crate::backend::working::CallName;
use crate::charges::{BudgetRow, RawBudget};
use crate::documents::RawDocument;
use crate::history::{WindowName, WindowTotals};
use crate::ledger::LedgerError;
use crate::orders::RawOrder;
use crate::queue::RawCall;
use crate::reads::{
    Accounted, ApprovalFilter, EventFilter, FoundId, IdKind, Include, LedgerReads, LogFilter,
    MILESTONES, Page, PlacedEvent, RawApproval, RawEntry, RawRecord, ReceiptFilter, Unaccounted,
    WriterHead,
};

fn raw(record: &impl serde::Serialize) -> RawRecord {
    RawRecord { bytes: crate::digest::record_text(record), ..RawRecord::default() }
}

/// Returns the newest `limit` of `items`, which are oldest first.
fn newest<T>(mut items: Vec<T>, limit: usize) -> Vec<T> {
    let surplus = items.len().saturating_sub(limit);
    items.drain(..surplus);
    items
}

#[async_trait]
impl LedgerReads for Memory {
    async fn receipt(&self, receipt_id: &str) -> Result<Option<Receipt>, LedgerError> {
        let book = self.book();
        Ok(book.receipts.get(receipt_id).map(|row| Receipt::clone(&row.receipt)))
    }

    async fn receipts(&self, filter: ReceiptFilter) -> Result<Page<Receipt>, LedgerError> {
        let book = self.book();
        let found: Vec<Receipt> = book
            .receipts
            .values()
            .rev()
            .filter(|row| filter.fits(&row.receipt))
            .map(|row| Receipt::clone(&row.receipt))
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
                    let row = id.and_then(|id| book.receipts.get(id));
                    receipt = row.map(|row| RawRecord {
                        keys: row.keys.iter().cloned().collect(),
                        history: book.history_of(&row.receipt.receipt_id),
                        ..raw(&*row.receipt)
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
        let head = &book.head;
        Ok(vec![WriterHead {
            writer: head.writer().to_owned(),
            size: head.next_seq(),
            last_leaf: head.last_leaf(),
            root: Some(head.frontier().root().to_string()),
            pruned: None,
            row: None,
        }])
    }

    async fn pruned_ranges(
        &self,
        _: Option<(String, u64)>,
        _: usize,
    ) -> Result<Vec<(String, PrunedRange)>, LedgerError> {
        Ok(Vec::new())
    }

    async fn window(&self, name: WindowName, at_ms: i64) -> Result<WindowTotals, LedgerError> {
        Ok(self.book().window(&name, at_ms))
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
        Ok(book
            .approvals
            .values()
            .filter(|approval| after.as_ref().is_none_or(|after| approval.approval_id > *after))
            .take(limit)
            .map(|approval| book.raw_approval(approval))
            .collect())
    }

    async fn approvals(&self, filter: ApprovalFilter) -> Result<Vec<RawApproval>, LedgerError> {
        let book = self.book();
        let passes = |approval: &&Approval| {
            filter.id.as_ref().is_none_or(|id| approval.approval_id == *id)
                && filter.state.is_none_or(|state| approval.state == state)
                && filter.tool.as_ref().is_none_or(|tool| approval.tool_id == *tool)
                && filter.caller.as_ref().is_none_or(|caller| approval.caller == *caller)
                && filter.before.as_ref().is_none_or(|before| approval.approval_id < *before)
        };
        let found = book.approvals.values().rev().filter(passes).take(filter.limit);
        Ok(found.map(|approval| book.raw_approval(approval)).collect())
    }

    async fn order_page(
        &self,
        after: Option<OrderName>,
        limit: usize,
    ) -> Result<Vec<RawOrder>, LedgerError> {
        let book = self.book();
        let later = |raw: &RawOrder| after.as_ref().is_none_or(|after| raw.order_name() > *after);
        Ok(book.raw_orders().filter(later).take(limit).collect())
    }

    async fn budget_page(
        &self,
        after: Option<String>,
        limit: usize,
    ) -> Result<Vec<RawBudget>, LedgerError> {
        let book = self.book();
        let later = book.budgets.iter().filter(|(key, _)| after.as_ref().is_none_or(|a| *key > a));
        let raw = |(key, row): (&String, &BudgetRow)| RawBudget {
            key: key.clone(),
            row: Some(row.clone()),
        };
        Ok(later.take(limit).map(raw).collect())
    }

    async fn document(&self, digest: &str) -> Result<Option<String>, LedgerError> {
        Ok(self.book().documents.get(digest).map(|(text, _)| text.clone()))
    }

    async fn document_page(
        &self,
        after: Option<String>,
        limit: usize,
    ) -> Result<Vec<RawDocument>, LedgerError> {
        let book = self.book();
        let later = book.documents.iter();
        let later = later.filter(|(digest, _)| after.as_ref().is_none_or(|after| *digest > after));
        let raw = |(digest, (text, _)): (&String, &(String, String))| RawDocument {
            digest: digest.clone(),
            text: Some(text.clone()),
        };
        Ok(later.take(limit).map(raw).collect())
    }

    async fn queued(&self, caller: &str, call_id: &str) -> Result<Option<RawCall>, LedgerError> {
        let book = self.book();
        let name = (caller.to_owned(), call_id.to_owned());
        Ok(book.calls.get(&name).map(|(_, call)| book.raw_call(call)))
    }

    async fn call_page(
        &self,
        after: Option<CallName>,
        limit: usize,
    ) -> Result<Vec<RawCall>, LedgerError> {
        let book = self.book();
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let rest = book.calls.range((from, Bound::Unbounded)).take(limit);
        Ok(rest.map(|(_, (_, call))| book.raw_call(call)).collect())
    }

    async fn healthy(&self) -> Result<(), LedgerError> {
        StepRunner::healthy(self)
    }
}
