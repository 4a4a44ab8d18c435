//! Shortening a log up to a signed checkpoint.
//!
//! Doc: records.md#retention

use toolbooth_audit::reads::PrunedLog;
use toolbooth_audit::writer::Failure;

use super::backend::{Session, failed};
use crate::{corrupt, pruned};

impl Session {
    /// Removes the events of one writer up to its next checkpoint, where they fit it; of which
    /// writer, and how many.
    pub(super) async fn remove_events(
        &self,
        before: &str,
    ) -> Result<Option<(String, u64)>, Failure> {
        let client = self.client();
        let found = client
            .query_opt(
                "SELECT e.writer, e.seq, e.body, w.pruned_size, w.pruned FROM events e
                 JOIN writers w ON w.writer = e.writer
                 WHERE e.milestone AND e.time < $1 AND e.seq > w.pruned_size
                     AND e.body LIKE '%\"event\":\"CHECKPOINT\"%'
                 ORDER BY e.writer, e.seq LIMIT 1 FOR UPDATE OF w",
                &[&before],
            )
            .await
            .map_err(failed)?;
        let Some(row) = found else { return Ok(None) };
        let (writer, size, checkpoint, base, old): (String, i64, String, i64, Option<String>) =
            (row.get(0), row.get(1), row.get(2), row.get(3), row.get(4));
        let old: Option<PrunedLog> = old.and_then(|text| serde_json::from_str(&text).ok());
        let bodies = client
            .query(
                "SELECT body FROM events WHERE writer = $1 AND seq >= $2 AND seq < $3 ORDER BY seq",
                &[&writer, &base, &size],
            )
            .await
            .map_err(failed)?;
        let bodies: Vec<String> = bodies.iter().map(|row| row.get(0)).collect();
        let kept = pruned::fold(old, &bodies, size.unsigned_abs(), &checkpoint)
            .map_err(|what| Failure::Refused(corrupt("a log that is to be pruned", &what)))?;
        let text = serde_json::to_string(&kept)
            .map_err(|error| Failure::Refused(corrupt("a record", &error)))?;
        client
            .execute(
                "UPDATE writers SET pruned_size = $2, pruned = $3 WHERE writer = $1",
                &[&writer, &size, &text],
            )
            .await
            .map_err(failed)?;
        let removed = client
            .execute("DELETE FROM events WHERE writer = $1 AND seq < $2", &[&writer, &size])
            .await
            .map_err(failed)?;
        Ok(Some((writer, removed)))
    }
}
