//! The records of one transaction, as the steps of a ledger want them.
//!
//! Path: 6, 9. Doc: records.md#stores

use rusqlite::{OptionalExtension, Params, Transaction};
use serde_json::Value;
use toolbooth_audit::LedgerError;
use toolbooth_audit::chain::{self, Head};
use toolbooth_audit::ledger::{ClaimRequest, Moment};
use toolbooth_audit::steps::{Records, Stored};
use toolbooth_contracts::agent_log::AgentLog;
use toolbooth_contracts::approval::Approval;
use toolbooth_contracts::event::{AuditEvent, EventBody};
use toolbooth_contracts::receipt::{ClaimState, Receipt};

use super::folder::StoreFolder;
use super::ledger::Shared;
use super::{corrupt, unavailable};

pub(super) struct TransactionRecords<'t> {
    transaction: &'t Transaction<'t>,
    folder: &'t StoreFolder,
    key_id: &'t str,
    head: &'t mut Head,
    shared: &'t Shared,
}

impl<'t> TransactionRecords<'t> {
    pub(super) fn new(
        transaction: &'t Transaction<'t>,
        folder: &'t StoreFolder,
        key_id: &'t str,
        head: &'t mut Head,
        shared: &'t Shared,
    ) -> Self {
        Self { transaction, folder, key_id, head, shared }
    }

    fn execute(&self, sql: &str, params: impl Params) -> Result<(), LedgerError> {
        let mut statement = self.transaction.prepare_cached(sql).map_err(unavailable)?;
        statement.execute(params).map(drop).map_err(unavailable)
    }

    fn stored_by(&self, sql: &str, key: &str) -> Result<Option<Stored>, LedgerError> {
        let row: Option<(i64, String)> = self
            .transaction
            .prepare_cached(sql)
            .and_then(|mut statement| {
                statement.query_row([key], |row| Ok((row.get(0)?, row.get(1)?))).optional()
            })
            .map_err(unavailable)?;
        row.map(|(fence, body)| self.stored_from(fence, &body)).transpose()
    }

    fn stored_from(&self, fence: i64, body: &str) -> Result<Stored, LedgerError> {
        let receipt: Receipt =
            serde_json::from_str(body).map_err(|error| corrupt("a receipt", &error))?;
        let owner_lost = receipt.state == ClaimState::InFlight
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

    /// The writer's lease is renewed.
    pub(super) fn renew(&self, at: &Moment) -> Result<(), LedgerError> {
        self.execute(
            "UPDATE writers SET renewed_ms = ?2 WHERE writer = ?1",
            (self.head.writer(), at.epoch_ms),
        )
    }

    /// The writer's log ends.
    pub(super) fn stop(&self) -> Result<(), LedgerError> {
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

impl Records for TransactionRecords<'_> {
    fn writer(&self) -> &str {
        self.head.writer()
    }

    fn key_id(&self) -> &str {
        self.key_id
    }

    fn held(&mut self, key: &str) -> Result<Option<Stored>, LedgerError> {
        self.stored_by(
            "SELECT fence, body FROM keys JOIN receipts USING (receipt_id) WHERE key = ?1",
            key,
        )
    }

    fn stored(&mut self, receipt_id: &str) -> Result<Option<Stored>, LedgerError> {
        self.stored_by("SELECT fence, body FROM receipts WHERE receipt_id = ?1", receipt_id)
    }

    fn put(&mut self, receipt: &Receipt, fence: u64, _at: &Moment) -> Result<(), LedgerError> {
        self.execute(
            "INSERT INTO receipts (receipt_id, call_id, tool, state, writer, fence, body)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)
             ON CONFLICT (receipt_id) DO UPDATE SET
                 state = excluded.state, writer = excluded.writer, fence = excluded.fence, body = excluded.body",
            (
                &receipt.receipt_id,
                &receipt.call_id,
                &receipt.tool_id,
                receipt.state.as_str(),
                &receipt.writer,
                i64::try_from(fence).unwrap_or(i64::MAX),
                json_text(receipt)?,
            ),
        )?;
        if receipt.state == ClaimState::InFlight {
            self.shared.runs(&receipt.receipt_id);
        } else {
            self.shared.settles(&receipt.receipt_id);
        }
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

    fn place(&mut self, body: EventBody) -> AuditEvent {
        self.head.append(body)
    }

    fn next_seq(&self) -> u64 {
        self.head.next_seq()
    }

    fn put_event(&mut self, event: &AuditEvent) -> Result<(), LedgerError> {
        let body = &event.body;
        self.execute(
            "INSERT INTO events (writer, seq, time, tool, agent, call_id, status, code, body)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
            (
                &event.writer,
                i64::try_from(event.seq).unwrap_or(i64::MAX),
                &body.time,
                &body.tool_name,
                &body.agent_id,
                &body.call_id,
                body.status.map(|status| status.as_str()),
                body.error_code.map(|code| code.as_str()),
                chain::bytes_of(event),
            ),
        )
    }

    fn put_log(&mut self, log: &AgentLog, seq: u64) -> Result<(), LedgerError> {
        self.execute(
            "INSERT INTO agent_logs
                 (id, writer, seq, time, tool, agent, turn, phase, epic, call_id, is_error, body)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)",
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
                json_text(log)?,
            ),
        )
    }

    fn lost(&mut self) -> Result<Vec<Stored>, LedgerError> {
        let rows: Vec<(i64, String)> = self
            .transaction
            .prepare_cached(
                "SELECT fence, body FROM receipts
                 WHERE state = 'in_flight' AND writer <> ?1 ORDER BY receipt_id",
            )
            .and_then(|mut statement| {
                let rows = statement
                    .query_map([self.head.writer()], |row| Ok((row.get(0)?, row.get(1)?)))?;
                rows.collect()
            })
            .map_err(unavailable)?;
        let stored: Result<Vec<Stored>, LedgerError> =
            rows.iter().map(|(fence, body)| self.stored_from(*fence, body)).collect();
        Ok(stored?.into_iter().filter(|stored| stored.owner_lost).collect())
    }
}
