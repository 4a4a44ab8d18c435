//! Loads the rows that a batch needs into its working set, and writes the rows that it changed.
//!
//! Path: 6, 9. Doc: records.md#stores

use rusqlite::{OptionalExtension, Params, Row};
use serde_json::Value;
use toolbooth_audit::LedgerError;
use toolbooth_audit::backend::working::Stored;
use toolbooth_audit::backend::writer::Failure;
use toolbooth_audit::queue::{QueueState, QueuedCall};
use toolbooth_audit::reads::{WriterHead, WriterRow};
use toolbooth_contracts::receipt::{AuditPlace, ClaimState, Receipt};

use super::transaction::{Transaction, failed};
use crate::{packing, unwritable};

/// Selects a receipt by its id from all tables, as [`receipt_row`] reads it.
pub(super) const RECEIPT: &str = "
    SELECT fence, body FROM open_receipts WHERE id = ?1
    UNION ALL SELECT fence, body FROM receipts WHERE id = ?1
    UNION ALL SELECT fence, body FROM tombstones WHERE id = ?1";
/// Columns of `queue` as [`call`] reads them.
pub(super) const CALL: &str = "call_id, caller, request, state, enqueued, finished, worker, \
                               deliveries, cancel, progress, result, queued_by, finished_by, mac, identity";
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

/// Returns the head of the writer with this name; `text` reads a column.
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
        // Progress that is not JSON is loaded as a string, and the MAC of the call does not match
        // it.
        progress: progress.map(|text| serde_json::from_str(&text).unwrap_or(Value::String(text))),
        result: row.get(10)?,
        queued_by: place_of(row.get(11)?),
        finished_by: place_of(row.get(12)?),
        mac: row.get(13)?,
        identity: row.get(14)?,
    })
}

/// Parses a place. An unreadable place becomes one that no log has.
pub(super) fn place_of(text: Option<String>) -> Option<AuditPlace> {
    let nowhere = || AuditPlace { writer: String::new(), seq: u64::MAX };
    text.map(|text| serde_json::from_str(&text).unwrap_or_else(|_| nowhere()))
}

pub(super) fn json_text(value: &impl serde::Serialize) -> Result<String, Failure> {
    serde_json::to_string(value).map_err(|error| Failure::Refused(unwritable(error)))
}

pub(super) fn word(value: &impl serde::Serialize) -> String {
    match serde_json::to_value(value) {
        Ok(Value::String(word)) => word,
        _ => String::new(),
    }
}

pub(super) fn limited(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX)
}

pub(super) fn number(number: u64) -> i64 {
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
            packing::read(&body).map_err(|damage| unreadable(damage.at("receipts", id)))?;
        let owner_lost = matches!(receipt.state, ClaimState::InFlight | ClaimState::AwaitingInput)
            && self.is_lost(&receipt.writer);
        Ok(Stored { receipt: receipt.into(), fence: fence.unsigned_abs(), owner_lost })
    }

    /// Returns the receipt of a row, or `None` if it is damaged. A damaged receipt is logged and
    /// does not stop the others; `audit verify` reports it too.
    pub(super) fn readable(&self, id: &str, row: ReceiptRow) -> Result<Option<Stored>, Failure> {
        match self.stored(id, row) {
            Err(Failure::Refused(error @ LedgerError::Damaged(_))) => {
                tracing::error!(%error, "a receipt is left as it is");
                Ok(None)
            }
            stored => stored.map(Some),
        }
    }
}
