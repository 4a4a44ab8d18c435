//! Writes the changes of a batch into the tables.
//!
//! Doc: records.md#stores

use std::collections::BTreeMap;

use serde_json::Value;
use toolbooth_audit::LedgerError;
use toolbooth_audit::backend::chain::{ChainedEvent, Head};
use toolbooth_audit::backend::working::{Batch, ReceiptChange, ReceiptWrite};
use toolbooth_audit::backend::writer::Failure;
use toolbooth_audit::charges::BudgetRow;
use toolbooth_audit::queue::QueuedCall;
use toolbooth_audit::reads::MILESTONES;
use toolbooth_contracts::approval::Approval;
use toolbooth_contracts::history::Amount;
use toolbooth_contracts::order::{Order, OrderName};
use toolbooth_contracts::receipt::{ClaimState, Receipt};

use super::compact::Compact;
use super::rows::{json_text, number, receipt_row, unreadable, word};
use super::transaction::{Transaction, failed};
use super::{result_reference, schema};
use crate::{Unreadable, packing};

/// The table of a receipt: open claims (running, waiting or with an unknown outcome), settled
/// receipts, tombstones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Table {
    Open,
    Settled,
    Tombstones,
}

impl Table {
    fn of(state: ClaimState, pruned: bool) -> Self {
        match state {
            _ if pruned => Self::Tombstones,
            ClaimState::Succeeded | ClaimState::Failed => Self::Settled,
            _ => Self::Open,
        }
    }
}

impl Transaction<'_> {
    /// Writes the changes of a batch, and advances the end of the log.
    pub(super) fn write(&self, batch: &Batch, from: &Head, to: &Head) -> Result<(), Failure> {
        // Keys are freed first, since a key may move from one receipt to another within a batch.
        for id in &batch.freed {
            self.execute("DELETE FROM keys WHERE receipt = ?1", [Compact::of(id)])?;
        }
        self.put_receipts(&batch.receipts)?;
        self.put_history(batch)?;
        for (key, id) in &batch.held {
            self.execute(
                "INSERT INTO keys (key, receipt) VALUES (?1, ?2)
                 ON CONFLICT (key) DO UPDATE SET receipt = excluded.receipt",
                (Compact::of(key), Compact::of(id)),
            )?;
        }
        for ((tool, caller), tat_ms) in &batch.rates {
            self.execute(
                "INSERT INTO rates (tool, caller, tat_ms) VALUES (?1, ?2, ?3)
                 ON CONFLICT (tool, caller) DO UPDATE SET tat_ms = excluded.tat_ms",
                (tool, caller, tat_ms),
            )?;
        }
        if let Some(before) = &batch.budgets_before {
            self.execute("DELETE FROM budgets WHERE day < ?1", [before])?;
        }
        self.put_budgets(&batch.budgets)?;
        batch.approvals.values().try_for_each(|approval| self.put_approval(approval))?;
        batch.orders.iter().try_for_each(|(name, order)| self.put_order(name, order))?;
        for (name, used) in &batch.key_uses {
            self.execute(
                "UPDATE orders SET used = ?2
                 WHERE kind = 'key' AND name = ?1 AND (used IS NULL OR used < ?2)",
                (name, used),
            )?;
        }
        self.put_events(&batch.events)?;
        self.put_logs(batch)?;
        self.put_documents(batch)?;
        batch.calls.values().try_for_each(|call| self.put_call(call))?;
        batch.upkeep.pruned.iter().try_for_each(|removal| self.remove(removal))?;
        if let Some(named) = &batch.upkeep.checkpoint {
            for (writer, _) in &named.ended {
                self.execute("UPDATE writers SET named = 1 WHERE writer = ?1", [writer])?;
            }
            let sql = "UPDATE writers SET checkpoint = ?2 WHERE writer = ?1";
            self.execute(sql, (self.writer, &named.note))?;
        }
        // A lock file shows whether a writer is alive; its lease needs no row.
        if to.next_seq() != from.next_seq() {
            let sql = "UPDATE writers SET size = ?2, last_leaf = ?3, root = ?4 WHERE writer = ?1";
            let root = to.frontier().root().to_string();
            self.execute(sql, (self.writer, number(to.next_seq()), to.last_leaf(), root))?;
        }
        batch.upkeep.adopted.iter().try_for_each(|(writer, log)| self.adopt(writer, log))?;
        if batch.upkeep.stopped {
            self.execute("UPDATE writers SET stopped = 1 WHERE writer = ?1", [self.writer])?;
        }
        Ok(())
    }

    fn put_receipts(&self, receipts: &BTreeMap<String, ReceiptChange>) -> Result<(), Failure> {
        let prepare = |sql: &str| self.connection.prepare_cached(sql).map_err(failed);
        let mut open = prepare(
            "INSERT INTO open_receipts (id, tool, state, writer, fence, body)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6)
             ON CONFLICT (id) DO UPDATE SET state = excluded.state,
                 writer = excluded.writer, fence = excluded.fence, body = excluded.body",
        )?;
        let mut is_used = prepare(
            "SELECT EXISTS (SELECT 1 FROM open_receipts WHERE id = ?1)
                 OR EXISTS (SELECT 1 FROM receipts WHERE id = ?1)
                 OR EXISTS (SELECT 1 FROM tombstones WHERE id = ?1)",
        )?;
        let mut close = prepare("DELETE FROM open_receipts WHERE id = ?1")?;
        let mut settle = prepare("INSERT INTO receipts (id, fence, body) VALUES (?1, ?2, ?3)")?;
        for (name, moved) in receipts {
            let id = Compact::of(name);
            if moved.before.is_none()
                && is_used.query_row([&id], |row| row.get(0)).map_err(failed)?
            {
                return Err(Failure::Refused(LedgerError::used_receipt_id(name)));
            }
            let before = moved.before.map(|(state, _)| Table::of(state, false));
            let after = moved.after.as_ref();
            let now =
                after.map(|put| Table::of(put.receipt.state, put.receipt.pruned_at.is_some()));
            if before == Some(Table::Settled) {
                self.unshare(&id)?;
            }
            match before.filter(|before| Some(*before) != now) {
                Some(Table::Open) => drop(close.execute([&id]).map_err(failed)?),
                Some(Table::Settled) => {
                    self.execute("DELETE FROM receipts WHERE id = ?1", [&id])?;
                }
                Some(Table::Tombstones) => {
                    self.execute("DELETE FROM tombstones WHERE id = ?1", [&id])?;
                }
                None => (),
            }
            let (Some(ReceiptWrite { receipt, fence, text }), Some(now)) = (after, now) else {
                moved.accounted.as_ref().map_or(Ok(()), |at| self.lost(at))?;
                continue;
            };
            let (fence, body) = (number(*fence), packing::pack(text).map_err(unreadable)?);
            match now {
                Table::Open => {
                    let state = receipt.state.as_str();
                    let row = (id, &receipt.tool_id, state, &receipt.writer, fence, body);
                    open.execute(row).map_err(failed)?;
                }
                Table::Settled => drop(settle.execute((id, fence, body)).map_err(failed)?),
                Table::Tombstones => {
                    let sql = "INSERT INTO tombstones (id, fence, body) VALUES (?1, ?2, ?3)";
                    self.execute(sql, (id, fence, body))?;
                }
            }
        }
        Ok(())
    }

    /// Writes the entries of receipts in the windows of the policy.
    fn put_history(&self, batch: &Batch) -> Result<(), Failure> {
        for (id, entries) in &batch.history {
            if batch.receipts.get(id).is_none_or(|moved| moved.before.is_some()) {
                self.execute("DELETE FROM history WHERE receipt = ?1", [Compact::of(id)])?;
            }
            for entry in entries {
                let amount = entry.amount.map(Amount::ten_thousandths);
                self.execute(
                    "INSERT INTO history (key, at_ms, receipt, amount, until_ms)
                     VALUES (?1, ?2, ?3, ?4, ?5)",
                    (&entry.key, entry.at_ms, Compact::of(id), amount, entry.until_ms),
                )?;
            }
        }
        Ok(())
    }

    /// Writes the shared part of a settled receipt back into its agent log, before the receipt
    /// changes.
    fn unshare(&self, id: &Compact<'_>) -> Result<(), Failure> {
        let sql = "SELECT fence, body FROM receipts WHERE id = ?1";
        let Some((_, body)) = self.one(sql, [id], receipt_row)? else { return Ok(()) };
        let damaged = |damage: Unreadable| unreadable(damage.at("receipts", id.text()));
        let text = packing::unpack(&body).map_err(damaged)?;
        let receipt: Receipt =
            serde_json::from_str(&text).map_err(|error| damaged(Unreadable::of(error)))?;
        let Some(at) = receipt.audit_seq else { return Ok(()) };
        let sql = "SELECT l.place, l.body FROM agent_logs l
                   WHERE l.place = (SELECT no << ?3 | ?2 FROM writers WHERE writer = ?1)";
        let given = (&at.writer, number(at.seq), schema::SEQ_BITS);
        let log: Option<(i64, Vec<u8>)> =
            self.one(sql, given, |row| Ok((row.get(0)?, row.get(1)?)))?;
        let Some((place, body)) = log.filter(|(_, body)| result_reference::is_shared(body)) else {
            return Ok(());
        };
        let whole = match result_reference::unpack(&body, place, |_| Ok(Some(text))) {
            Ok(whole) => whole,
            // Damage in one log must not stop the pruning of other records; `audit verify` reports
            // it.
            Err(error) => {
                tracing::error!(%error, "an agent log does not fit its receipt");
                return Ok(());
            }
        };
        let body = packing::pack(&whole).map_err(unreadable)?;
        self.execute("UPDATE agent_logs SET body = ?2 WHERE place = ?1", (place, body)).map(drop)
    }

    fn put_approval(&self, approval: &Approval) -> Result<(), Failure> {
        self.execute(
            "INSERT INTO approvals
                 (approval_id, tool, caller, args_digest, contract_digest, state, body)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)
             ON CONFLICT (approval_id) DO UPDATE SET state = excluded.state, body = excluded.body",
            (
                &approval.approval_id,
                &approval.tool_id,
                &approval.caller,
                &approval.args_digest,
                &approval.contract_digest,
                word(&approval.state),
                json_text(approval)?,
            ),
        )
        .map(drop)
    }

    /// Writes the used budgets.
    fn put_budgets(&self, budgets: &BTreeMap<String, BudgetRow>) -> Result<(), Failure> {
        for (key, row) in budgets {
            self.execute(
                "INSERT INTO budgets (key, day, units, changed_by) VALUES (?1, ?2, ?3, ?4)
                 ON CONFLICT (key) DO UPDATE SET day = excluded.day, units = excluded.units,
                     changed_by = excluded.changed_by",
                (key, &row.day, row.units.cast_signed(), json_text(&row.changed_by)?),
            )?;
        }
        Ok(())
    }

    fn put_order(&self, name: &OrderName, order: &Order) -> Result<(), Failure> {
        self.execute(
            "INSERT INTO orders (kind, name, body) VALUES (?1, ?2, ?3)
             ON CONFLICT (kind, name) DO UPDATE SET body = excluded.body",
            (&name.kind, &name.name, json_text(order)?),
        )
        .map(drop)
    }

    fn place(&self, seq: u64) -> i64 {
        schema::place(self.writer_no, number(seq))
    }

    fn put_events(&self, events: &[ChainedEvent]) -> Result<(), Failure> {
        let sql = "INSERT INTO events (place, body) VALUES (?1, ?2)";
        let mut insert = self.connection.prepare_cached(sql).map_err(failed)?;
        for placed in events {
            let place = self.place(placed.event.seq);
            let body = packing::pack(&placed.bytes).map_err(unreadable)?;
            insert.execute((place, body)).map_err(failed)?;
            if MILESTONES.contains(&placed.event.body.event) {
                self.execute("INSERT INTO milestones (place) VALUES (?1)", [place])?;
            }
        }
        Ok(())
    }

    fn put_logs(&self, batch: &Batch) -> Result<(), Failure> {
        let sql = "INSERT INTO agent_logs (place, body) VALUES (?1, ?2)";
        let mut insert = self.connection.prepare_cached(sql).map_err(failed)?;
        for (log, seq) in &batch.logs {
            let text = &log.record.text;
            let shared = match crate::result_reference::giver(batch, log, *seq) {
                Some(receipt) => result_reference::pack(text, receipt).map_err(unreadable)?,
                None => None,
            };
            let body = match shared {
                Some(body) => body,
                None => packing::pack(text).map_err(unreadable)?,
            };
            insert.execute((self.place(*seq), body)).map_err(failed)?;
        }
        Ok(())
    }

    /// Writes the documents that logs name. A row is written anew only if its use is old, because it can be
    /// large.
    fn put_documents(&self, batch: &Batch) -> Result<(), Failure> {
        for (digest, document) in batch.documents() {
            let sql = "SELECT used < ?2 FROM documents WHERE digest = ?1";
            let used = &document.used;
            match self.one(sql, (digest, document.renewed_before()), |row| row.get(0))? {
                Some(false) => (),
                Some(true) => {
                    let sql = "UPDATE documents SET used = ?2 WHERE digest = ?1";
                    self.execute(sql, (digest, used))?;
                }
                None => {
                    let body = packing::pack(&document.text).map_err(unreadable)?;
                    let sql = "INSERT INTO documents (digest, body, used) VALUES (?1, ?2, ?3)";
                    self.execute(sql, (digest, body, used))?;
                }
            }
        }
        Ok(())
    }

    fn put_call(&self, call: &QueuedCall) -> Result<(), Failure> {
        self.execute(
            "INSERT INTO queue (caller, call_id, request, enqueued, state, finished, worker,
                 deliveries, cancel, progress, result, queued_by, finished_by, mac, identity)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15)
             ON CONFLICT (caller, call_id) DO UPDATE SET
                 state = excluded.state, finished = excluded.finished, worker = excluded.worker,
                 deliveries = excluded.deliveries, cancel = excluded.cancel,
                 progress = excluded.progress, result = excluded.result,
                 queued_by = excluded.queued_by, finished_by = excluded.finished_by,
                 mac = excluded.mac",
            (
                &call.caller,
                &call.call_id,
                &call.request,
                &call.enqueued_at,
                call.state.as_str(),
                &call.finished_at,
                &call.worker,
                call.deliveries,
                call.cancel,
                call.progress.as_ref().map(Value::to_string),
                &call.result,
                call.queued_by.as_ref().map(json_text).transpose()?,
                call.finished_by.as_ref().map(json_text).transpose()?,
                &call.mac,
                &call.identity,
            ),
        )
        .map(drop)
    }
}
