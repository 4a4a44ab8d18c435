//! The records of one transaction, as the steps of a ledger want them.
//!
//! Path: 6, 9. Doc: records.md#stores

use rusqlite::{OptionalExtension, Params, Row, Transaction};
use serde_json::Value;
use toolbooth_audit::LedgerError;
use toolbooth_audit::chain::{Head, Placed};
use toolbooth_audit::ledger::{ClaimRequest, Moment};
use toolbooth_audit::reads::{MILESTONES, PrunedLog, WriterHead};
use toolbooth_audit::steps::{OtherHead, Records, Stored};
use toolbooth_contracts::agent_log::AgentLog;
use toolbooth_contracts::approval::Approval;
use toolbooth_contracts::receipt::{ClaimState, Receipt};

use super::folder::StoreFolder;
use super::unavailable;
use crate::watch::{Changes, Watch};
use crate::{body, corrupt, pruned};

pub(super) struct TransactionRecords<'t> {
    transaction: &'t Transaction<'t>,
    folder: &'t StoreFolder,
    key_id: &'t str,
    head: &'t mut Head,
    changes: &'t mut Changes,
    watch: &'t Watch,
}

impl<'t> TransactionRecords<'t> {
    pub(super) fn new(
        transaction: &'t Transaction<'t>,
        folder: &'t StoreFolder,
        key_id: &'t str,
        head: &'t mut Head,
        changes: &'t mut Changes,
        watch: &'t Watch,
    ) -> Self {
        Self { transaction, folder, key_id, head, changes, watch }
    }

    fn execute(&self, sql: &str, params: impl Params) -> Result<(), LedgerError> {
        let mut statement = self.transaction.prepare_cached(sql).map_err(unavailable)?;
        statement.execute(params).map(drop).map_err(unavailable)
    }

    fn stored_by(&self, sql: &str, key: &str) -> Result<Option<Stored>, LedgerError> {
        let row: Option<ReceiptRow> = self
            .transaction
            .prepare_cached(sql)
            .and_then(|mut statement| statement.query_row([key], receipt_row).optional())
            .map_err(unavailable)?;
        row.map(|row| self.stored_from(row)).transpose()
    }

    fn stored_from(&self, (fence, text, packed): ReceiptRow) -> Result<Stored, LedgerError> {
        let receipt: Receipt = body::read("a receipt", text, packed)?;
        let owner_lost = matches!(receipt.state, ClaimState::InFlight | ClaimState::AwaitingInput)
            && receipt.writer != self.head.writer()
            && self.folder.writer_lost(&receipt.writer);
        Ok(Stored { receipt, fence: fence.unsigned_abs(), owner_lost })
    }

    fn approval_by(&self, sql: &str, params: impl Params) -> Result<Option<Approval>, LedgerError> {
        let body: Option<String> = self
            .transaction
            .prepare_cached(sql)
            .and_then(|mut statement| statement.query_row(params, |row| row.get(0)).optional())
            .map_err(unavailable)?;
        body.map(|body| serde_json::from_str(&body).map_err(|error| corrupt("an approval", &error)))
            .transpose()
    }

    pub(super) fn transaction(&self) -> &Transaction<'t> {
        self.transaction
    }

    pub(super) fn writer_lost(&self, writer: &str) -> bool {
        writer != self.head.writer() && self.folder.writer_lost(writer)
    }

    /// The writer's lease is renewed.
    pub(super) fn renew(&self, at: &Moment) -> Result<(), LedgerError> {
        self.execute(
            "UPDATE writers SET renewed_ms = ?2 WHERE writer = ?1",
            (self.head.writer(), at.epoch_ms),
        )
    }

    /// The writer's log ends.
    pub(super) fn stop(&mut self) -> Result<(), LedgerError> {
        self.changes.stopped = true;
        self.execute("UPDATE writers SET stopped = 1 WHERE writer = ?1", [self.head.writer()])
    }
}

pub(super) fn json_text(value: &impl serde::Serialize) -> Result<String, LedgerError> {
    serde_json::to_string(value).map_err(|error| corrupt("a record", &error))
}

fn word(value: &impl serde::Serialize) -> String {
    match serde_json::to_value(value) {
        Ok(Value::String(word)) => word,
        _ => String::new(),
    }
}

/// Fence, text and compressed text of a receipt.
type ReceiptRow = (i64, String, Option<Vec<u8>>);

fn receipt_row(row: &Row<'_>) -> rusqlite::Result<ReceiptRow> {
    Ok((row.get(0)?, row.get(1)?, row.get(2)?))
}

/// Columns of `writers` as a head.
pub(super) const HEAD_COLUMNS: &str = "writer, size, last_leaf, root, pruned";

pub(super) fn head_row(row: &Row<'_>) -> rusqlite::Result<WriterHead> {
    let pruned: Option<String> = row.get(4)?;
    Ok(WriterHead {
        writer: row.get(0)?,
        size: row.get::<_, i64>(1)?.unsigned_abs(),
        last_leaf: row.get(2)?,
        root: row.get(3)?,
        pruned: pruned.and_then(|text| serde_json::from_str(&text).ok()),
    })
}

fn limited(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX)
}

impl Records for TransactionRecords<'_> {
    fn writer(&self) -> &str {
        self.head.writer()
    }

    fn key_id(&self) -> &str {
        self.key_id
    }

    fn held(&mut self, key: &str) -> Result<Option<Stored>, LedgerError> {
        self.stored_by(
            "SELECT fence, body, zbody FROM keys JOIN receipts USING (receipt_id) WHERE key = ?1",
            key,
        )
    }

    fn stored(&mut self, receipt_id: &str) -> Result<Option<Stored>, LedgerError> {
        self.stored_by("SELECT fence, body, zbody FROM receipts WHERE receipt_id = ?1", receipt_id)
    }

    fn begun(&mut self, receipt_id: &str, fence: u64, at: &Moment) {
        self.watch.expect(receipt_id);
        self.changes.begun.push((receipt_id.to_owned(), fence, at.clone()));
    }

    fn put(&mut self, receipt: &Receipt, fence: u64, _at: &Moment) -> Result<(), LedgerError> {
        let body = body::pack(receipt)?;
        // Only what could be pruned has a time.
        let settled = match receipt.state {
            ClaimState::Succeeded | ClaimState::Failed if receipt.pruned_at.is_none() => {
                receipt.settled_at.as_deref()
            }
            _ => None,
        };
        self.execute(
            "INSERT INTO receipts
                 (receipt_id, call_id, tool, state, writer, fence, settled, body, zbody)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)
             ON CONFLICT (receipt_id) DO UPDATE SET
                 state = excluded.state, writer = excluded.writer, fence = excluded.fence,
                 settled = excluded.settled, body = excluded.body, zbody = excluded.zbody",
            (
                &receipt.receipt_id,
                &receipt.call_id,
                &receipt.tool_id,
                receipt.state.as_str(),
                &receipt.writer,
                i64::try_from(fence).unwrap_or(i64::MAX),
                settled,
                body.text,
                body.packed,
            ),
        )?;
        self.changes.note(receipt);
        Ok(())
    }

    fn hold(&mut self, key: &str, receipt_id: &str) -> Result<(), LedgerError> {
        self.execute(
            "INSERT INTO keys (key, receipt_id) VALUES (?1, ?2)
             ON CONFLICT (key) DO UPDATE SET receipt_id = excluded.receipt_id",
            (key, receipt_id),
        )
    }

    fn free(&mut self, receipt_id: &str) -> Result<(), LedgerError> {
        self.execute("DELETE FROM keys WHERE receipt_id = ?1", [receipt_id])
    }

    fn rate(&mut self, tool: &str, caller: &str) -> Result<Option<i64>, LedgerError> {
        self.transaction
            .prepare_cached("SELECT tat_ms FROM rates WHERE tool = ?1 AND caller = ?2")
            .and_then(|mut statement| {
                statement.query_row([tool, caller], |row| row.get(0)).optional()
            })
            .map_err(unavailable)
    }

    fn set_rate(&mut self, tool: &str, caller: &str, tat_ms: i64) -> Result<(), LedgerError> {
        self.execute(
            "INSERT INTO rates (tool, caller, tat_ms) VALUES (?1, ?2, ?3)
             ON CONFLICT (tool, caller) DO UPDATE SET tat_ms = excluded.tat_ms",
            (tool, caller, tat_ms),
        )
    }

    fn running(&mut self, tool: &str) -> Result<u64, LedgerError> {
        let by_writer: Vec<(String, i64)> = self
            .transaction
            .prepare_cached(
                "SELECT writer, count(*) FROM receipts
                 WHERE tool = ?1 AND state = 'in_flight' GROUP BY writer",
            )
            .and_then(|mut statement| {
                let rows = statement.query_map([tool], |row| Ok((row.get(0)?, row.get(1)?)))?;
                rows.collect()
            })
            .map_err(unavailable)?;
        Ok(by_writer
            .iter()
            .filter(|(writer, _)| writer == self.head.writer() || !self.folder.writer_lost(writer))
            .map(|(_, count)| count.unsigned_abs())
            .sum())
    }

    fn approval(&mut self, request: &ClaimRequest) -> Result<Option<Approval>, LedgerError> {
        self.approval_by(
            "SELECT body FROM approvals
             WHERE tool = ?1 AND caller = ?2 AND args_digest = ?3 AND contract_digest = ?4
                 AND state <> 'spent'
             ORDER BY approval_id DESC LIMIT 1",
            (&request.tool_id, &request.caller, &request.args_digest, &request.contract_digest),
        )
    }

    fn approval_by_id(&mut self, id: &str) -> Result<Option<Approval>, LedgerError> {
        self.approval_by("SELECT body FROM approvals WHERE approval_id = ?1", [id])
    }

    fn put_approval(&mut self, approval: &Approval) -> Result<(), LedgerError> {
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
    }

    fn head(&mut self) -> &mut Head {
        self.head
    }

    fn put_event(&mut self, placed: &Placed) -> Result<(), LedgerError> {
        let (event, body) = (&placed.event, &placed.event.body);
        self.execute(
            "INSERT INTO events
                 (writer, seq, time, tool, agent, call_id, status, code, milestone, body)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)",
            (
                &event.writer,
                i64::try_from(event.seq).unwrap_or(i64::MAX),
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
    }

    fn put_log(&mut self, log: &AgentLog, seq: u64) -> Result<(), LedgerError> {
        let body = body::pack(log)?;
        self.execute(
            "INSERT INTO agent_logs
                 (id, writer, seq, time, tool, agent, turn, phase, epic, call_id, is_error, body, zbody)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13)",
            (
                &log.id,
                self.head.writer(),
                i64::try_from(seq).unwrap_or(i64::MAX),
                &log.timestamp,
                &log.tool_name,
                &log.agent_id,
                log.turn_index.map(|turn| i64::try_from(turn).unwrap_or(i64::MAX)),
                &log.phase_id,
                &log.epic_id,
                &log.call_id,
                log.is_error,
                body.text,
                body.packed,
            ),
        )
    }

    fn lost(&mut self) -> Result<Vec<Stored>, LedgerError> {
        let rows: Vec<ReceiptRow> = self
            .transaction
            .prepare_cached(
                "SELECT fence, body, zbody FROM receipts
                 WHERE state IN ('in_flight', 'awaiting_input') AND writer <> ?1
                 ORDER BY receipt_id",
            )
            .and_then(|mut statement| {
                statement.query_map([self.head.writer()], receipt_row)?.collect()
            })
            .map_err(unavailable)?;
        let stored: Result<Vec<Stored>, LedgerError> =
            rows.into_iter().map(|row| self.stored_from(row)).collect();
        Ok(stored?.into_iter().filter(|stored| stored.owner_lost).collect())
    }

    fn unnamed(&mut self, limit: usize) -> Result<Vec<OtherHead>, LedgerError> {
        let sql = format!(
            "SELECT {HEAD_COLUMNS}, stopped FROM writers
             WHERE named = 0 AND writer <> ?1 ORDER BY writer LIMIT ?2"
        );
        let rows: Vec<(WriterHead, bool)> = self
            .transaction
            .prepare_cached(&sql)
            .and_then(|mut statement| {
                let args = (self.head.writer(), limited(limit));
                statement.query_map(args, |row| Ok((head_row(row)?, row.get(5)?)))?.collect()
            })
            .map_err(unavailable)?;
        Ok(rows
            .into_iter()
            .map(|(head, stopped)| {
                let ended = stopped || self.folder.writer_lost(&head.writer);
                OtherHead { head, ended }
            })
            .collect())
    }

    fn all_heads(&mut self) -> Result<Vec<WriterHead>, LedgerError> {
        let sql = format!("SELECT {HEAD_COLUMNS} FROM writers WHERE writer <> ?1 ORDER BY writer");
        self.transaction
            .prepare(&sql)
            .and_then(|mut statement| {
                statement.query_map([self.head.writer()], head_row)?.collect()
            })
            .map_err(unavailable)
    }

    fn named(&mut self, writers: &[String], note: &str) -> Result<(), LedgerError> {
        for writer in writers {
            self.execute("UPDATE writers SET named = 1 WHERE writer = ?1", [writer])?;
        }
        self.execute(
            "UPDATE writers SET checkpoint = ?2 WHERE writer = ?1",
            (self.head.writer(), note),
        )
    }

    fn prunable(&mut self, before: &str, limit: usize) -> Result<Vec<(Stored, bool)>, LedgerError> {
        let rows: Vec<(ReceiptRow, bool)> = self
            .transaction
            .prepare_cached(
                "SELECT fence, body, zbody,
                     EXISTS (SELECT 1 FROM keys k WHERE k.receipt_id = r.receipt_id)
                 FROM receipts r WHERE settled < ?1 ORDER BY settled LIMIT ?2",
            )
            .and_then(|mut statement| {
                let args = (before, limited(limit));
                statement.query_map(args, |row| Ok((receipt_row(row)?, row.get(3)?)))?.collect()
            })
            .map_err(unavailable)?;
        rows.into_iter().map(|(row, holds)| Ok((self.stored_from(row)?, holds))).collect()
    }

    fn remove(&mut self, receipt_id: &str) -> Result<(), LedgerError> {
        self.execute("DELETE FROM receipts WHERE receipt_id = ?1", [receipt_id])
    }

    fn remove_logs(&mut self, before: &str, limit: usize) -> Result<u64, LedgerError> {
        self.transaction
            .prepare_cached(
                "DELETE FROM agent_logs WHERE id IN
                     (SELECT id FROM agent_logs WHERE time < ?1 ORDER BY time LIMIT ?2)",
            )
            .and_then(|mut statement| statement.execute((before, limited(limit))))
            .map(|count| count as u64)
            .map_err(unavailable)
    }

    fn remove_events(&mut self, before: &str) -> Result<Option<(String, u64)>, LedgerError> {
        // The oldest checkpoint that covers more than what is gone already: one step of many.
        let found: Option<(String, i64, String, i64, Option<String>)> = self
            .transaction
            .prepare_cached(
                "SELECT e.writer, e.seq, e.body, w.pruned_size, w.pruned FROM events e
                 JOIN writers w USING (writer)
                 WHERE e.milestone = 1 AND e.time < ?1 AND e.seq > w.pruned_size
                     AND e.body ->> 'event' = 'CHECKPOINT'
                 ORDER BY e.writer, e.seq LIMIT 1",
            )
            .and_then(|mut statement| {
                let read = |row: &Row<'_>| {
                    Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?, row.get(4)?))
                };
                statement.query_row([before], read).optional()
            })
            .map_err(unavailable)?;
        let Some((writer, size, checkpoint, base, old)) = found else { return Ok(None) };
        let old: Option<PrunedLog> = old.and_then(|text| serde_json::from_str(&text).ok());
        let bodies: Vec<String> = self
            .transaction
            .prepare_cached(
                "SELECT body FROM events WHERE writer = ?1 AND seq >= ?2 AND seq < ?3 ORDER BY seq",
            )
            .and_then(|mut statement| {
                statement.query_map((&writer, base, size), |row| row.get(0))?.collect()
            })
            .map_err(unavailable)?;
        let kept = pruned::fold(old, &bodies, size.unsigned_abs(), &checkpoint)
            .map_err(|what| corrupt("a log that is to be pruned", &what))?;
        self.execute(
            "UPDATE writers SET pruned_size = ?2, pruned = ?3 WHERE writer = ?1",
            (&writer, size, json_text(&kept)?),
        )?;
        let removed = self
            .transaction
            .prepare_cached("DELETE FROM events WHERE writer = ?1 AND seq < ?2")
            .and_then(|mut statement| statement.execute((&writer, size)))
            .map_err(unavailable)?;
        Ok(Some((writer, removed as u64)))
    }
}
