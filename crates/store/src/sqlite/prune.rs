//! Shortening a log up to a signed checkpoint.
//!
//! Doc: records.md#retention

use toolbooth_audit::reads::PrunedLog;
use toolbooth_audit::writer::Failure;

use super::backend::Transaction;
use super::rows::json_text;
use crate::{corrupt, pruned};

impl Transaction<'_> {
    /// Removes the events of one writer up to its next checkpoint, where that is from before a
    /// time; of which writer, and how many.
    pub(super) fn remove_events(&self, before: &str) -> Result<Option<(String, u64)>, Failure> {
        // The oldest checkpoint that covers more than what is gone already: one step of many.
        let found: Option<(String, i64, String, i64, Option<String>)> = self.one(
            "SELECT e.writer, e.seq, e.body, w.pruned_size, w.pruned FROM events e
             JOIN writers w USING (writer)
             WHERE e.milestone = 1 AND e.time < ?1 AND e.seq > w.pruned_size
                 AND e.body ->> 'event' = 'CHECKPOINT'
             ORDER BY e.writer, e.seq LIMIT 1",
            [before],
            |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?, row.get(4)?)),
        )?;
        let Some((writer, size, checkpoint, base, old)) = found else { return Ok(None) };
        let old: Option<PrunedLog> = old.and_then(|text| serde_json::from_str(&text).ok());
        let bodies: Vec<String> = self.all(
            "SELECT body FROM events WHERE writer = ?1 AND seq >= ?2 AND seq < ?3 ORDER BY seq",
            (&writer, base, size),
            |row| row.get(0),
        )?;
        let kept = pruned::fold(old, &bodies, size.unsigned_abs(), &checkpoint)
            .map_err(|what| Failure::Refused(corrupt("a log that is to be pruned", &what)))?;
        self.execute(
            "UPDATE writers SET pruned_size = ?2, pruned = ?3 WHERE writer = ?1",
            (&writer, size, json_text(&kept)?),
        )?;
        let removed =
            self.execute("DELETE FROM events WHERE writer = ?1 AND seq < ?2", (&writer, size))?;
        Ok(Some((writer, removed as u64)))
    }
}
