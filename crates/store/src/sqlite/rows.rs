//! The rows of a batch: loaded into its working set, and written from what it has done.
//!
//! Path: 6, 9. Doc: records.md#stores

use rusqlite::{OptionalExtension, Params, Row};
use serde_json::Value;
use toolbooth_audit::chain::{Head, Placed};
use toolbooth_audit::queue::{QueueState, QueuedCall};
use toolbooth_audit::reads::{MILESTONES, WriterHead};
use toolbooth_audit::working::{
    ApprovalName, Batch, CallName, Moved, Needs, OtherHead, Put, Stored, Survey, WorkingSet,
};
use toolbooth_audit::writer::Failure;
use toolbooth_audit::{LedgerError, checkpoint};
use toolbooth_contracts::agent_log::AgentLog;
use toolbooth_contracts::approval::Approval;
use toolbooth_contracts::receipt::{ClaimState, Receipt};

use super::backend::{Transaction, failed};
use crate::{body, corrupt};

/// Columns of `receipts` as [`receipt_row`] reads them.
const RECEIPT: &str = "fence, body, zbody";
/// Columns of `queue` as [`call`] reads them.
pub(super) const CALL: &str = "call_id, caller, request, state, enqueued, finished, worker, \
                               deliveries, cancel, progress, result";
/// Columns of `writers` as a head.
pub(super) const HEAD: &str = "writer, size, last_leaf, root, pruned";

/// Fence, text and compressed text of a receipt.
type ReceiptRow = (i64, String, Option<Vec<u8>>);

fn receipt_row(row: &Row<'_>) -> rusqlite::Result<ReceiptRow> {
    Ok((row.get(0)?, row.get(1)?, row.get(2)?))
}

pub(super) fn head(row: &Row<'_>) -> rusqlite::Result<WriterHead> {
    let pruned: Option<String> = row.get(4)?;
    Ok(WriterHead {
        writer: row.get(0)?,
        size: row.get::<_, i64>(1)?.unsigned_abs(),
        last_leaf: row.get(2)?,
        root: row.get(3)?,
        pruned: pruned.and_then(|text| serde_json::from_str(&text).ok()),
    })
}

pub(super) fn call(row: &Row<'_>) -> rusqlite::Result<QueuedCall> {
    let state: String = row.get(3)?;
    let progress: Option<String> = row.get(9)?;
    Ok(QueuedCall {
        call_id: row.get(0)?,
        caller: row.get(1)?,
        request: row.get(2)?,
        state: QueueState::parse(&state).unwrap_or(QueueState::Queued),
        enqueued_at: row.get(4)?,
        finished_at: row.get(5)?,
        worker: row.get(6)?,
        deliveries: row.get(7)?,
        cancel: row.get(8)?,
        progress: progress.and_then(|text| serde_json::from_str(&text).ok()),
        result: row.get(10)?,
    })
}

pub(super) fn json_text(value: &impl serde::Serialize) -> Result<String, Failure> {
    serde_json::to_string(value).map_err(|error| Failure::Refused(corrupt("a record", &error)))
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

fn unreadable(error: LedgerError) -> Failure {
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

    fn stored(&self, (fence, text, packed): ReceiptRow) -> Result<Stored, Failure> {
        let receipt: Receipt = body::read("a receipt", text, packed).map_err(unreadable)?;
        let owner_lost = matches!(receipt.state, ClaimState::InFlight | ClaimState::AwaitingInput)
            && self.is_lost(&receipt.writer);
        Ok(Stored { receipt: receipt.into(), fence: fence.unsigned_abs(), owner_lost })
    }

    /// Loads what a batch needs.
    pub(super) fn load(&self, needs: Needs, set: &mut WorkingSet) -> Result<(), Failure> {
        for key in needs.keys {
            let holder: Option<String> =
                self.one("SELECT receipt_id FROM keys WHERE key = ?1", [&key], |row| row.get(0))?;
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
        let sql = format!("SELECT {RECEIPT} FROM receipts WHERE receipt_id = ?1");
        let row = self.one(&sql, [&id], receipt_row)?;
        let stored = row.map(|row| self.stored(row)).transpose()?;
        if let Some(spent) = stored.as_ref().and_then(|stored| stored.receipt.approval_id.as_ref())
        {
            let sql = "SELECT body FROM approvals WHERE approval_id = ?1";
            let text: Option<String> = self.one(sql, [spent], |row| row.get(0))?;
            if let Some(text) = text {
                set.load_approval(approval(&text)?);
            }
        }
        set.load_receipt(id, stored);
        Ok(())
    }

    fn load_approvals(&self, name: &ApprovalName, set: &mut WorkingSet) -> Result<(), Failure> {
        let bodies: Vec<String> = self.all(
            "SELECT body FROM approvals
             WHERE tool = ?1 AND caller = ?2 AND args_digest = ?3 AND contract_digest = ?4
                 AND state <> 'spent'
             ORDER BY approval_id DESC LIMIT 1",
            (&name.tool, &name.caller, &name.args_digest, &name.contract_digest),
            |row| row.get(0),
        )?;
        bodies.iter().try_for_each(|text| {
            set.load_approval(approval(text)?);
            Ok(())
        })
    }

    fn running(&self, tool: &str) -> Result<u64, Failure> {
        let by_writer: Vec<(String, i64)> = self.all(
            "SELECT writer, count(*) FROM receipts
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

    fn survey(&self, survey: Survey, set: &mut WorkingSet) -> Result<(), Failure> {
        match survey {
            Survey::Lost => {
                let sql = format!(
                    "SELECT {RECEIPT} FROM receipts
                     WHERE state IN ('in_flight', 'awaiting_input') AND writer <> ?1
                     ORDER BY receipt_id"
                );
                for row in self.all(&sql, [self.writer], receipt_row)? {
                    let stored = self.stored(row)?;
                    if stored.owner_lost {
                        set.load_lost(stored);
                    }
                }
            }
            Survey::UnnamedHeads => {
                let of = "named = 0 AND writer <> ?1";
                set.surveyed.heads = self.heads(of, checkpoint::HEADS_MAX)?;
            }
            Survey::AllHeads => set.surveyed.heads = self.heads("writer <> ?1", usize::MAX)?,
            Survey::Prunable(before, limit) => {
                let sql = format!(
                    "SELECT {RECEIPT},
                         EXISTS (SELECT 1 FROM keys k WHERE k.receipt_id = r.receipt_id)
                     FROM receipts r WHERE settled < ?1 ORDER BY settled LIMIT ?2"
                );
                let rows = self.all(&sql, (before, limited(limit)), |row| {
                    Ok((receipt_row(row)?, row.get(3)?))
                })?;
                for (row, holds) in rows {
                    set.load_prunable(self.stored(row)?, holds);
                }
            }
            Survey::RemoveLogs(before, limit) => {
                let removed = self.execute(
                    "DELETE FROM agent_logs WHERE id IN
                         (SELECT id FROM agent_logs WHERE time < ?1 ORDER BY time LIMIT ?2)",
                    (before, limited(limit)),
                )?;
                set.surveyed.removed = removed as u64;
            }
            Survey::RemoveEvents(before) => {
                if let Some((writer, removed)) = self.remove_events(&before)? {
                    set.surveyed.removed = removed;
                    set.surveyed.removed_of = Some(writer);
                }
            }
            Survey::NextCall(own) => set.surveyed.call = self.next_call(&own)?,
            Survey::RemoveCalls(before) => {
                let removed = self.execute(
                    "DELETE FROM queue WHERE place IN
                         (SELECT place FROM queue WHERE finished < ?1 ORDER BY finished LIMIT 1000)",
                    [before],
                )?;
                set.surveyed.removed = removed as u64;
            }
        }
        Ok(())
    }

    fn heads(&self, of: &str, limit: usize) -> Result<Vec<OtherHead>, Failure> {
        let sql =
            format!("SELECT {HEAD}, stopped FROM writers WHERE {of} ORDER BY writer LIMIT ?2");
        let rows: Vec<(WriterHead, bool)> =
            self.all(&sql, (self.writer, limited(limit)), |row| Ok((head(row)?, row.get(5)?)))?;
        let ended = |(head, stopped): (WriterHead, bool)| OtherHead {
            ended: stopped || self.is_lost(&head.writer),
            head,
        };
        Ok(rows.into_iter().map(ended).collect())
    }

    fn next_call(
        &self,
        own: &std::collections::BTreeSet<CallName>,
    ) -> Result<Option<QueuedCall>, Failure> {
        // Those whose worker is lost were there first.
        let running = self.all(
            &format!("SELECT {CALL} FROM queue WHERE state = 'running' ORDER BY place LIMIT 1000"),
            [],
            call,
        )?;
        let left = running.into_iter().find(|call| match call.worker.as_deref() {
            // Its own are those that it knows; any other was taken by a step that went wrong.
            Some(worker) if worker == self.writer => {
                !own.contains(&(call.caller.clone(), call.call_id.clone()))
            }
            Some(worker) => self.is_lost(worker),
            None => true,
        });
        match left {
            Some(left) => Ok(Some(left)),
            None => self.one(
                &format!("SELECT {CALL} FROM queue WHERE state = 'queued' ORDER BY place LIMIT 1"),
                [],
                call,
            ),
        }
    }

    /// Writes what a batch has done, and moves the end of the log.
    pub(super) fn write(&self, batch: &Batch, from: &Head, to: &Head) -> Result<(), Failure> {
        for id in &batch.freed {
            self.execute("DELETE FROM keys WHERE receipt_id = ?1", [id])?;
        }
        for (id, moved) in &batch.receipts {
            self.put_receipt(id, moved)?;
        }
        for (key, id) in &batch.held {
            self.execute(
                "INSERT INTO keys (key, receipt_id) VALUES (?1, ?2)
                 ON CONFLICT (key) DO UPDATE SET receipt_id = excluded.receipt_id",
                (key, id),
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
        batch.events.iter().try_for_each(|placed| self.put_event(placed))?;
        for (log, text, seq) in &batch.logs {
            self.put_log(log, text, *seq)?;
        }
        batch.calls.values().try_for_each(|call| self.put_call(call))?;
        if let Some(named) = &batch.checkpoint {
            for (writer, _) in &named.ended {
                self.execute("UPDATE writers SET named = 1 WHERE writer = ?1", [writer])?;
            }
            let sql = "UPDATE writers SET checkpoint = ?2 WHERE writer = ?1";
            self.execute(sql, (self.writer, &named.note))?;
        }
        if let Some(at) = &batch.renewed {
            let sql = "UPDATE writers SET renewed_ms = ?2 WHERE writer = ?1";
            self.execute(sql, (self.writer, at.epoch_ms))?;
        }
        if to.next_seq() != from.next_seq() {
            let sql = "UPDATE writers SET size = ?2, last_leaf = ?3, root = ?4 WHERE writer = ?1";
            let root = to.frontier().root().to_string();
            self.execute(sql, (self.writer, number(to.next_seq()), to.last_leaf(), root))?;
        }
        if batch.stopped {
            self.execute("UPDATE writers SET stopped = 1 WHERE writer = ?1", [self.writer])?;
        }
        Ok(())
    }

    fn put_receipt(&self, id: &str, moved: &Moved) -> Result<(), Failure> {
        let Some(Put { receipt, fence, text }) = &moved.after else {
            return self.execute("DELETE FROM receipts WHERE receipt_id = ?1", [id]).map(drop);
        };
        let (text, packed) = body::pack(text).map_err(unreadable)?;
        // Only what could be pruned has a time.
        let settled = match receipt.state {
            ClaimState::Succeeded | ClaimState::Failed if receipt.pruned_at.is_none() => {
                receipt.settled_at.as_deref()
            }
            _ => None,
        };
        let (state, writer, fence) = (receipt.state.as_str(), &receipt.writer, number(*fence));
        if moved.before.is_some() {
            return self
                .execute(
                    "UPDATE receipts SET state = ?2, writer = ?3, fence = ?4, settled = ?5,
                         body = ?6, zbody = ?7
                     WHERE receipt_id = ?1",
                    (id, state, writer, fence, settled, text, packed),
                )
                .map(drop);
        }
        self.execute(
            "INSERT INTO receipts
                 (receipt_id, call_id, tool, state, writer, fence, settled, body, zbody)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
            (id, &receipt.call_id, &receipt.tool_id, state, writer, fence, settled, text, packed),
        )
        .map(drop)
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

    fn put_event(&self, placed: &Placed) -> Result<(), Failure> {
        let (event, body) = (&placed.event, &placed.event.body);
        self.execute(
            "INSERT INTO events
                 (writer, seq, time, tool, agent, call_id, status, code, milestone, body)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)",
            (
                &event.writer,
                number(event.seq),
                &body.time,
                &body.tool_name,
                &body.agent_id,
                &body.call_id,
                body.status.map(|status| status.as_str()),
                body.error_code.map(|code| code.as_str()),
                MILESTONES.contains(&body.event),
                &placed.bytes,
            ),
        )
        .map(drop)
    }

    fn put_log(&self, log: &AgentLog, text: &str, seq: u64) -> Result<(), Failure> {
        let (text, packed) = body::pack(text).map_err(unreadable)?;
        self.execute(
            "INSERT INTO agent_logs
                 (id, writer, seq, time, tool, agent, turn, phase, epic, call_id, is_error, body, zbody)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13)",
            (
                &log.id,
                self.writer,
                number(seq),
                &log.timestamp,
                &log.tool_name,
                &log.agent_id,
                log.turn_index.map(number),
                &log.phase_id,
                &log.epic_id,
                &log.call_id,
                log.is_error,
                text,
                packed,
            ),
        )
        .map(drop)
    }

    fn put_call(&self, call: &QueuedCall) -> Result<(), Failure> {
        self.execute(
            "INSERT INTO queue (caller, call_id, request, enqueued, state, finished, worker,
                 deliveries, cancel, progress, result)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)
             ON CONFLICT (caller, call_id) DO UPDATE SET
                 state = excluded.state, finished = excluded.finished, worker = excluded.worker,
                 deliveries = excluded.deliveries, cancel = excluded.cancel,
                 progress = excluded.progress, result = excluded.result",
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
            ),
        )
        .map(drop)
    }
}

fn approval(text: &str) -> Result<Approval, Failure> {
    serde_json::from_str(text).map_err(|error| Failure::Refused(corrupt("an approval", &error)))
}
