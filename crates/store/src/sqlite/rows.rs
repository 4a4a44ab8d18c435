//! Loads the rows that a batch needs into its working set, and writes the rows that it changed.
//!
//! Path: 6, 9. Doc: records.md#stores

use std::collections::BTreeMap;

use rusqlite::{OptionalExtension, Params, Row};
use serde_json::Value;
use toolbooth_audit::backend::chain::{ChainedEvent, Head};
use toolbooth_audit::backend::steps;
use toolbooth_audit::backend::working::{
    ApprovalName, Batch, CallName, Earlier, Needs, OtherHead, ReceiptChange, ReceiptWrite,
    StoreQuery, Stored, WorkingSet,
};
use toolbooth_audit::backend::writer::Failure;
use toolbooth_audit::queue::{self, QueueState, QueuedCall, RawCall};
use toolbooth_audit::reads::{MILESTONES, WriterHead, WriterRow};
use toolbooth_audit::{LedgerError, checkpoint};
use toolbooth_contracts::approval::Approval;
use toolbooth_contracts::receipt::{AuditPlace, ClaimState, Receipt};

use super::compact::{Compact, Name, Shown};
use super::transaction::{Transaction, failed};
use super::{result_reference, schema};
use crate::{Unreadable, shorten, unwritable};

/// The table of a receipt: open claims (running, waiting or in doubt), settled receipts,
/// tombstones.
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

/// Selects a receipt by its id from all tables, as [`receipt_row`] reads it.
pub(super) const RECEIPT: &str = "
    SELECT fence, body FROM open_receipts WHERE id = ?1
    UNION ALL SELECT fence, body FROM receipts WHERE id = ?1
    UNION ALL SELECT fence, body FROM tombstones WHERE id = ?1";
/// Columns of `queue` as [`call`] reads them.
pub(super) const CALL: &str = "call_id, caller, request, state, enqueued, finished, worker, \
                               deliveries, cancel, progress, result, queued_by, finished_by, mac";
/// Columns of `writers` as [`head`] reads them.
pub(super) const HEAD: &str = "writer, size, last_leaf, root, started, stopped, named, checkpoint";

/// Fence and body of a receipt.
pub(super) type ReceiptRow = (i64, Vec<u8>);

pub(super) fn receipt_row(row: &Row<'_>) -> rusqlite::Result<ReceiptRow> {
    Ok((row.get(0)?, row.get(1)?))
}

pub(super) fn head(row: &Row<'_>) -> rusqlite::Result<WriterHead> {
    head_of(row, row.get(0)?, |at| row.get(at))
}

/// The head of the writer with this name; `text` reads a column.
pub(super) fn head_of(
    row: &Row<'_>,
    writer: String,
    text: impl Fn(usize) -> rusqlite::Result<Option<String>>,
) -> rusqlite::Result<WriterHead> {
    Ok(WriterHead {
        writer,
        size: row.get::<_, i64>(1)?.unsigned_abs(),
        last_leaf: text(2)?,
        root: text(3)?,
        row: Some(WriterRow {
            started: text(4)?.unwrap_or_default(),
            stopped: row.get::<_, i64>(5)? == 1,
            named: row.get(6)?,
            checkpoint: text(7)?,
        }),
        pruned: None,
    })
}

pub(super) fn call(row: &Row<'_>) -> rusqlite::Result<QueuedCall> {
    let state: String = row.get(3)?;
    let progress: Option<String> = row.get(9)?;
    Ok(QueuedCall {
        call_id: row.get(0)?,
        caller: row.get(1)?,
        request: row.get(2)?,
        // An unknown state counts as done, so that the call is not run.
        state: QueueState::parse(&state).unwrap_or(QueueState::Done),
        enqueued_at: row.get(4)?,
        finished_at: row.get(5)?,
        worker: row.get(6)?,
        deliveries: u32::try_from(row.get::<_, i64>(7)?).unwrap_or(u32::MAX),
        cancel: row.get(8)?,
        // What is no JSON is no progress that was told either: its MAC does not fit.
        progress: progress.map(|text| serde_json::from_str(&text).unwrap_or(Value::String(text))),
        result: row.get(10)?,
        queued_by: place_of(row.get(11)?),
        finished_by: place_of(row.get(12)?),
        mac: row.get(13)?,
    })
}

/// An unreadable place becomes one that no log has.
fn place_of(text: Option<String>) -> Option<AuditPlace> {
    let nowhere = || AuditPlace { writer: String::new(), seq: u64::MAX };
    text.map(|text| serde_json::from_str(&text).unwrap_or_else(|_| nowhere()))
}

pub(super) fn json_text(value: &impl serde::Serialize) -> Result<String, Failure> {
    serde_json::to_string(value).map_err(|error| Failure::Refused(unwritable(error)))
}

fn word(value: &impl serde::Serialize) -> String {
    match serde_json::to_value(value) {
        Ok(Value::String(word)) => word,
        _ => String::new(),
    }
}

pub(super) fn limited(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX)
}

fn number(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

pub(super) fn unreadable(error: LedgerError) -> Failure {
    Failure::Refused(error)
}

impl Transaction<'_> {
    pub(super) fn one<T>(
        &self,
        sql: &str,
        params: impl Params,
        read: impl FnOnce(&Row<'_>) -> rusqlite::Result<T>,
    ) -> Result<Option<T>, Failure> {
        self.connection
            .prepare_cached(sql)
            .and_then(|mut statement| statement.query_row(params, read).optional())
            .map_err(failed)
    }

    pub(super) fn all<T>(
        &self,
        sql: &str,
        params: impl Params,
        read: impl FnMut(&Row<'_>) -> rusqlite::Result<T>,
    ) -> Result<Vec<T>, Failure> {
        self.connection
            .prepare_cached(sql)
            .and_then(|mut statement| statement.query_map(params, read)?.collect())
            .map_err(failed)
    }

    pub(super) fn stored(&self, id: &str, (fence, body): ReceiptRow) -> Result<Stored, Failure> {
        let receipt: Receipt =
            shorten::read(&body).map_err(|damage| unreadable(damage.at("receipts", id)))?;
        let owner_lost = matches!(receipt.state, ClaimState::InFlight | ClaimState::AwaitingInput)
            && self.is_lost(&receipt.writer);
        Ok(Stored { receipt: receipt.into(), fence: fence.unsigned_abs(), owner_lost })
    }

    /// The receipt of a row, for work on many: one that is damaged does not stop the others, and is
    /// logged; `audit verify` reports it too.
    pub(super) fn readable(&self, id: &str, row: ReceiptRow) -> Result<Option<Stored>, Failure> {
        match self.stored(id, row) {
            Err(Failure::Refused(error @ LedgerError::Damaged(_))) => {
                tracing::error!(%error, "a receipt is left as it is");
                Ok(None)
            }
            stored => stored.map(Some),
        }
    }

    /// Loads the rows that a batch needs into its working set.
    pub(super) fn load(&self, needs: Needs, set: &mut WorkingSet) -> Result<(), Failure> {
        for key in needs.keys {
            let sql = "SELECT receipt FROM keys WHERE key = ?1";
            let holder: Option<Name> = self.one(sql, [Compact::of(&key)], |row| row.get(0))?;
            let holder = holder.map(|holder| holder.0);
            if let Some(id) = &holder {
                self.load_receipt(id.clone(), set)?;
            }
            set.load_key(key, holder);
        }
        for id in needs.receipts {
            self.load_receipt(id, set)?;
        }
        for name in needs.rates {
            let sql = "SELECT tat_ms FROM rates WHERE tool = ?1 AND caller = ?2";
            let tat_ms = self.one(sql, (&name.0, &name.1), |row| row.get(0))?;
            set.load_rate(name, tat_ms);
        }
        for tool in needs.running {
            let running = self.running(&tool)?;
            set.load_running(tool, running);
        }
        for name in needs.approvals {
            self.load_approvals(&name, set)?;
            set.load_asked(name);
        }
        for name in needs.calls {
            let call = self.call(&name)?;
            set.load_call(name, call);
        }
        if needs.waiting {
            let sql = "SELECT count(*) FROM queue WHERE state = 'queued'";
            let waiting: i64 = self.one(sql, [], |row| row.get(0))?.unwrap_or_default();
            set.load_waiting(waiting.unsigned_abs());
        }
        match needs.survey {
            Some(survey) => self.survey(survey, set),
            None => Ok(()),
        }
    }

    fn load_receipt(&self, id: String, set: &mut WorkingSet) -> Result<(), Failure> {
        let row = self.one(RECEIPT, [Compact::of(&id)], receipt_row)?;
        let stored = row.map(|row| self.stored(&id, row)).transpose()?;
        if let Some(spent) = stored.as_ref().and_then(|stored| stored.receipt.approval_id.as_ref())
        {
            let sql = "SELECT body FROM approvals WHERE approval_id = ?1";
            let text: Option<String> = self.one(sql, [spent], |row| row.get(0))?;
            if let Some(text) = text {
                self.load_approval(spent, &text, set)?;
            }
        }
        set.load_receipt(id, stored);
        Ok(())
    }

    fn load_approvals(&self, name: &ApprovalName, set: &mut WorkingSet) -> Result<(), Failure> {
        let bodies: Vec<(String, String)> = self.all(
            "SELECT approval_id, body FROM approvals
             WHERE tool = ?1 AND caller = ?2 AND args_digest = ?3 AND contract_digest = ?4
                 AND state <> 'spent'
             ORDER BY approval_id DESC LIMIT 1",
            (&name.tool, &name.caller, &name.args_digest, &name.contract_digest),
            |row| Ok((row.get(0)?, row.get(1)?)),
        )?;
        bodies.iter().try_for_each(|(id, text)| self.load_approval(id, text, set))
    }

    fn load_approval(&self, id: &str, text: &str, set: &mut WorkingSet) -> Result<(), Failure> {
        let approval: Approval = serde_json::from_str(text)
            .map_err(|error| unreadable(Unreadable::of(error).at("approvals", id)))?;
        let event = self.event(approval.audit_seq.as_ref())?;
        set.load_approval(approval, event.as_deref());
        Ok(())
    }

    /// The text of an event by its place.
    fn event(&self, at: Option<&AuditPlace>) -> Result<Option<String>, Failure> {
        let Some(at) = at else { return Ok(None) };
        let sql = "SELECT body FROM events WHERE place =
                       (SELECT no << ?3 | ?2 FROM writers WHERE writer = ?1)";
        let given = (&at.writer, number(at.seq), schema::SEQ_BITS);
        let body: Option<Vec<u8>> = self.one(sql, given, |row| row.get(0))?;
        let damaged = |damage: Unreadable| damage.at("events", format!("{} {}", at.writer, at.seq));
        body.map(|body| shorten::unpack(&body).map_err(damaged)).transpose().map_err(unreadable)
    }

    fn running(&self, tool: &str) -> Result<u64, Failure> {
        let by_writer: Vec<(String, i64)> = self.all(
            "SELECT writer, count(*) FROM open_receipts
             WHERE tool = ?1 AND state = 'in_flight' GROUP BY writer",
            [tool],
            |row| Ok((row.get(0)?, row.get(1)?)),
        )?;
        let live = by_writer.iter().filter(|(writer, _)| !self.is_lost(writer));
        Ok(live.map(|(_, count)| count.unsigned_abs()).sum())
    }

    fn call(&self, (caller, call_id): &CallName) -> Result<Option<QueuedCall>, Failure> {
        let sql = format!("SELECT {CALL} FROM queue WHERE caller = ?1 AND call_id = ?2");
        self.one(&sql, [caller, call_id], call)
    }

    fn survey(&self, survey: StoreQuery, set: &mut WorkingSet) -> Result<(), Failure> {
        match survey {
            StoreQuery::Lost => {
                let sql = "SELECT fence, body, id FROM open_receipts
                           WHERE state IN ('in_flight', 'awaiting_input') AND writer <> ?1
                           ORDER BY id";
                let read = |row: &Row<'_>| Ok((row.get::<_, Shown>(2)?, receipt_row(row)?));
                for (id, row) in self.all(sql, [self.writer], read)? {
                    if let Some(stored) = self.readable(&id.0, row)?
                        && stored.owner_lost
                    {
                        set.load_lost(stored);
                    }
                }
            }
            StoreQuery::UnnamedHeads => {
                let of = "named = 0 AND writer <> ?1";
                set.surveyed.heads = self.heads(of, checkpoint::HEADS_MAX)?;
            }
            StoreQuery::Beginning { heads } => {
                if heads {
                    set.surveyed.heads = self.heads("writer <> ?1", usize::MAX)?;
                }
                set.surveyed.earlier = self.earlier()?;
            }
            StoreQuery::PrunableReceipts(before, limit) => {
                self.load_prunable(&before, limit, set)?
            }
            StoreQuery::PrunableLogs(before, limit) => self.prunable_logs(&before, limit, set)?,
            StoreQuery::DroppableLogs(limit) => self.droppable_logs(limit, set)?,
            StoreQuery::PrunableEvents(before) => self.prunable_events(&before, set)?,
            StoreQuery::PrunableCalls(before, limit) => {
                set.surveyed.removal.calls = self.prunable_calls(&before, limit)?;
            }
            StoreQuery::NextCall(own) => {
                set.surveyed.call = match self.next_call(&own)? {
                    Some(call) => Some(RawCall {
                        state: call.state.as_str().to_owned(),
                        queued: self.event(call.queued_by.as_ref())?,
                        finished: None,
                        call,
                    }),
                    None => None,
                };
            }
        }
        Ok(())
    }

    /// What an earlier version has left to be taken over. `None` once that is done, and in a store
    /// that is new.
    fn earlier(&self) -> Result<Option<Earlier>, Failure> {
        let sql = "SELECT EXISTS (SELECT 1 FROM writers WHERE writer <> ?1)";
        let used: Option<bool> = self.one(sql, [self.writer], |row| row.get(0))?;
        let version = schema::version(self.connection).map_err(failed)?;
        if used != Some(true) || version >= schema::VERSION {
            return Ok(None);
        }
        let sql = "SELECT body FROM events WHERE place IN (SELECT no << ?1 FROM writers)";
        let first: Vec<Vec<u8>> = self.all(sql, [schema::SEQ_BITS], |row| row.get(0))?;
        let first: Vec<String> =
            first.iter().filter_map(|event| shorten::unpack(event).ok()).collect();
        let version = u32::try_from(version).unwrap_or_default();
        steps::check_version(version, first.iter().map(String::as_str))
            .map_err(Failure::Refused)?;
        let sql = format!("SELECT {CALL} FROM queue WHERE mac IS NULL ORDER BY place");
        let calls = self.all(&sql, [], call)?;
        let sql = "SELECT writer, pruned FROM writers WHERE pruned IS NOT NULL ORDER BY no";
        let logs: Vec<(String, String)> =
            self.all(sql, [], |row| Ok((row.get(0)?, row.get(1)?)))?;
        // Version 4 wrote how far it had pruned, which does not parse as a log.
        let log =
            |(writer, text): (String, String)| Some((writer, serde_json::from_str(&text).ok()?));
        Ok(Some(Earlier { calls, logs: logs.into_iter().filter_map(log).collect() }))
    }

    fn heads(&self, of: &str, limit: usize) -> Result<Vec<OtherHead>, Failure> {
        let sql = format!("SELECT {HEAD} FROM writers WHERE {of} ORDER BY writer LIMIT ?2");
        let rows: Vec<WriterHead> = self.all(&sql, (self.writer, limited(limit)), head)?;
        let ended = |head: WriterHead| OtherHead {
            ended: head.row.as_ref().is_some_and(|row| row.stopped) || self.is_lost(&head.writer),
            head,
        };
        Ok(rows.into_iter().map(ended).collect())
    }

    fn next_call(
        &self,
        own: &std::collections::BTreeSet<CallName>,
    ) -> Result<Option<QueuedCall>, Failure> {
        // Calls of lost workers were queued first, so they come first.
        let running = self.all(
            &format!(
                "SELECT {CALL} FROM queue WHERE state = 'running'
                 ORDER BY enqueued, place LIMIT 1000"
            ),
            [],
            call,
        )?;
        let left = running.into_iter().find(|call| {
            let has = || own.contains(&(call.caller.clone(), call.call_id.clone()));
            queue::is_left(call, self.writer, has, |worker| self.is_lost(worker))
        });
        match left {
            Some(left) => Ok(Some(left)),
            None => self.one(
                &format!(
                    "SELECT {CALL} FROM queue WHERE state = 'queued'
                     ORDER BY enqueued, place LIMIT 1"
                ),
                [],
                call,
            ),
        }
    }

    /// Writes the changes of a batch, and advances the end of the log.
    pub(super) fn write(&self, batch: &Batch, from: &Head, to: &Head) -> Result<(), Failure> {
        // Keys are freed first, since a key may move from one receipt to another within a batch.
        for id in &batch.freed {
            self.execute("DELETE FROM keys WHERE receipt = ?1", [Compact::of(id)])?;
        }
        self.put_receipts(&batch.receipts)?;
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
        batch.approvals.values().try_for_each(|approval| self.put_approval(approval))?;
        self.put_events(&batch.events)?;
        self.put_logs(batch)?;
        batch.calls.values().try_for_each(|call| self.put_call(call))?;
        batch.upkeep.pruned.iter().try_for_each(|removal| self.remove(removal))?;
        if let Some(named) = &batch.upkeep.checkpoint {
            for (writer, _) in &named.ended {
                self.execute("UPDATE writers SET named = 1 WHERE writer = ?1", [writer])?;
            }
            let sql = "UPDATE writers SET checkpoint = ?2 WHERE writer = ?1";
            self.execute(sql, (self.writer, &named.note))?;
        }
        // A lock file tells whether a writer lives; its lease needs no row.
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
        let mut close = prepare("DELETE FROM open_receipts WHERE id = ?1")?;
        let mut settle = prepare("INSERT INTO receipts (id, fence, body) VALUES (?1, ?2, ?3)")?;
        for (id, moved) in receipts {
            let id = Compact::of(id);
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
            let (fence, body) = (number(*fence), shorten::pack(text).map_err(unreadable)?);
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

    /// Writes the shared part of a settled receipt back into its agent log, before the receipt
    /// changes.
    fn unshare(&self, id: &Compact<'_>) -> Result<(), Failure> {
        let sql = "SELECT fence, body FROM receipts WHERE id = ?1";
        let Some((_, body)) = self.one(sql, [id], receipt_row)? else { return Ok(()) };
        let damaged = |damage: Unreadable| unreadable(damage.at("receipts", id.text()));
        let text = shorten::unpack(&body).map_err(damaged)?;
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
        let body = shorten::pack(&whole).map_err(unreadable)?;
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

    fn place(&self, seq: u64) -> i64 {
        schema::place(self.writer_no, number(seq))
    }

    fn put_events(&self, events: &[ChainedEvent]) -> Result<(), Failure> {
        let sql = "INSERT INTO events (place, body) VALUES (?1, ?2)";
        let mut insert = self.connection.prepare_cached(sql).map_err(failed)?;
        for placed in events {
            let place = self.place(placed.event.seq);
            let body = shorten::pack(&placed.bytes).map_err(unreadable)?;
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
                None => shorten::pack(text).map_err(unreadable)?,
            };
            insert.execute((self.place(*seq), body)).map_err(failed)?;
        }
        Ok(())
    }

    fn put_call(&self, call: &QueuedCall) -> Result<(), Failure> {
        self.execute(
            "INSERT INTO queue (caller, call_id, request, enqueued, state, finished, worker,
                 deliveries, cancel, progress, result, queued_by, finished_by, mac)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14)
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
            ),
        )
        .map(drop)
    }
}
