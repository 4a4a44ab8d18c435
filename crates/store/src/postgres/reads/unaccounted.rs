//! Finds the rows that no event accounts for, for the verification.
//!
//! Doc: records.md#verification

use tokio_postgres::Row;
use toolbooth_audit::LedgerError;
use toolbooth_audit::reads::{Accounted, Unaccounted};

use super::PostgresReads;
use super::conditions::Conditions;

impl PostgresReads {
    /// Returns the records that no event accounts for, if their numbers differ from the known ones.
    pub(super) async fn find_unaccounted(
        &self,
        known: Accounted,
    ) -> Result<Unaccounted, LedgerError> {
        let none = Conditions::default();
        let counts = "SELECT (SELECT count(*) FROM receipts), (SELECT count(*) FROM agent_logs)";
        let counts = self.rows(counts, &none).await?;
        let counts: Option<(i64, i64)> = counts.first().map(|row| (row.get(0), row.get(1)));
        let (all_receipts, all_logs) = counts.unwrap_or_default();
        let logs_match = all_logs.unsigned_abs() == known.logs;
        let receipts_match = all_receipts.unsigned_abs() == known.receipts;
        let (writers, sizes): (Vec<String>, Vec<i64>) =
            known.lacking.into_iter().map(|(writer, size)| (writer, size.cast_signed())).unzip();
        let excused =
            Conditions { sql: Vec::new(), values: vec![Box::new(writers), Box::new(sizes)] };
        let lacking =
            "NOT EXISTS (SELECT 1 FROM unnest($1::text[], $2::bigint[]) AS n (writer, size)
                           WHERE";
        let logs = format!(
            "SELECT l.writer || ' ' || l.seq FROM agent_logs l
             LEFT JOIN events e ON e.writer = l.writer AND e.seq = l.seq AND e.has_log
             WHERE e.writer IS NULL AND {lacking} n.writer = l.writer AND l.seq < n.size)
             ORDER BY l.writer, l.seq LIMIT 100"
        );
        let receipts = format!(
            "SELECT r.receipt_id FROM receipts r
             WHERE NOT EXISTS (SELECT 1 FROM events e WHERE e.receipt_id = r.receipt_id)
                 AND {lacking} n.writer = r.writer)
             ORDER BY r.receipt_id LIMIT 100"
        );
        let keys = "SELECT k.key FROM keys k WHERE NOT EXISTS (
                        SELECT 1 FROM receipts r WHERE r.receipt_id = k.receipt_id)
                    ORDER BY k.key LIMIT 100";
        let history = "SELECT h.receipt_id FROM history h WHERE NOT EXISTS (
                           SELECT 1 FROM receipts r WHERE r.receipt_id = h.receipt_id)
                       ORDER BY h.receipt_id LIMIT 100";
        let windows = "SELECT s.key FROM window_sums s
                       CROSS JOIN LATERAL (
                           SELECT count(*) AS calls, coalesce(sum(h.amount), 0) AS amount
                           FROM history h WHERE h.key = s.key AND h.at_ms > s.after_ms) AS c
                       WHERE s.calls <> c.calls OR s.amount <> c.amount
                       ORDER BY s.key, s.length_ms LIMIT 100";
        let ids = |rows: Vec<Row>| rows.iter().map(|row| row.get(0)).collect();
        Ok(Unaccounted {
            logs: if logs_match { Vec::new() } else { ids(self.rows(&logs, &excused).await?) },
            receipts: if receipts_match {
                Vec::new()
            } else {
                ids(self.rows(&receipts, &excused).await?)
            },
            keys: ids(self.rows(keys, &none).await?),
            history: ids(self.rows(history, &none).await?),
            windows: ids(self.rows(windows, &none).await?),
            milestones: Vec::new(),
            // The server rejects invalid text, so no row is damaged in this way.
            damaged: Vec::new(),
        })
    }
}
