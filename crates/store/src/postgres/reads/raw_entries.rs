//! Reads events with the records that they name, for the verification.
//!
//! Doc: records.md#verification

use tokio_postgres::Row;
use toolbooth_audit::LedgerError;
use toolbooth_audit::reads::{
    EVENT_COLUMNS, Include, LOG_COLUMNS, RECEIPT_COLUMNS, RawEntry, RawRecord,
};

use super::agent_logs::log_text_at;
use super::conditions::{Conditions, count};
use super::{PostgresReads, column};
use crate::body;

/// Reads an event and the records that it names from one row of a page.
fn entry(row: &Row) -> RawEntry {
    let columns = |from: usize, count: usize| -> Vec<Option<String>> {
        (from..from + count).map(|at| column(row, at)).collect()
    };
    let (events, logs) = (EVENT_COLUMNS.len(), LOG_COLUMNS.len());
    let receipts = 4 + events + logs;
    let bodies = receipts + RECEIPT_COLUMNS.len();
    // A record that cannot be unpacked becomes an empty text, which matches no digest.
    let is_there = |at: usize| column(row, at).is_some();
    let log = is_there(bodies).then(|| RawRecord {
        bytes: log_text_at(row, bodies).unwrap_or_default(),
        columns: columns(4 + events, logs),
        ..RawRecord::default()
    });
    let receipt = is_there(bodies + 3).then(|| RawRecord {
        bytes: body::unpack(row.get(bodies + 3), row.get(bodies + 4)).unwrap_or_default(),
        columns: columns(receipts, RECEIPT_COLUMNS.len()),
        keys: row.get(bodies + 5),
        history: row.get(bodies + 6),
    });
    RawEntry {
        writer: row.get(0),
        seq: row.get::<_, i64>(1).unsigned_abs(),
        bytes: body::unpack(row.get(2), row.get(3)).unwrap_or_default(),
        columns: columns(4, events),
        log,
        receipt,
    }
}

impl PostgresReads {
    /// Returns the events after a place in a log, in the order of the logs.
    pub(super) async fn raw_entries(
        &self,
        after: Option<(String, u64)>,
        limit: usize,
        include: Include,
    ) -> Result<Vec<RawEntry>, LedgerError> {
        let (writer, seq) = after.map_or((String::new(), -1), |(writer, seq)| {
            (writer, i64::try_from(seq).unwrap_or(i64::MAX))
        });
        let sql = match include {
            Include::Records => {
                "SELECT e.writer, e.seq, e.body, e.zbody,
                     e.time, e.tool, e.agent, e.call_id, e.status, e.code, e.receipt_id,
                     e.has_log::int::text, e.milestone::int::text,
                     l.time,
                     NULL::text, r.receipt_id, r.tool, r.state, r.writer, r.fence::text,
                     CASE WHEN r.receipt_id IS NULL THEN NULL ELSE coalesce(r.settled, '') END,
                     l.body, l.zbody, l.shared, r.body, r.zbody,
                     ARRAY(SELECT k.key FROM keys k WHERE k.receipt_id = r.receipt_id),
                     ARRAY(SELECT concat_ws(' ', h.key, h.at_ms, coalesce(h.amount::text, '-'),
                               h.until_ms)
                           FROM history h WHERE h.receipt_id = r.receipt_id)
                 FROM events e
                 LEFT JOIN agent_logs l ON l.writer = e.writer AND l.seq = e.seq
                 LEFT JOIN receipts r ON r.receipt_id = e.receipt_id
                 WHERE (e.writer, e.seq) > ($1, $2) ORDER BY e.writer, e.seq LIMIT $3"
            }
            Include::Events => {
                "SELECT writer, seq, body, zbody FROM events
                 WHERE (writer, seq) > ($1, $2) ORDER BY writer, seq LIMIT $3"
            }
            Include::Milestones => {
                "SELECT writer, seq, body, zbody FROM events
                 WHERE milestone AND (writer, seq) > ($1, $2) ORDER BY writer, seq LIMIT $3"
            }
        };
        let conditions = Conditions {
            sql: Vec::new(),
            values: vec![Box::new(writer), Box::new(seq), Box::new(count(limit))],
        };
        let rows = self.rows(sql, &conditions).await?;
        Ok(rows
            .iter()
            .map(|row| match include {
                Include::Records => entry(row),
                _ => RawEntry {
                    writer: row.get(0),
                    seq: row.get::<_, i64>(1).unsigned_abs(),
                    bytes: body::unpack(row.get(2), row.get(3)).unwrap_or_default(),
                    ..RawEntry::default()
                },
            })
            .collect())
    }
}
