//! Removing old records: receipts, agent logs, and events up to a signed checkpoint.
//!
//! Doc: records.md#retention

use rusqlite::OptionalExtension;
use serde::Deserialize;
use toolbooth_audit::reads::PrunedLog;
use toolbooth_audit::working::WorkingSet;
use toolbooth_audit::writer::Failure;

use super::backend::{Transaction, failed};
use super::compact::Compact;
use super::rows::{json_text, receipt_row, unreadable};
use super::schema::{SEQ_BITS, place};
use super::{share, shorten, unavailable};
use crate::{corrupt, pruned};

/// The members by which an agent log and an event about a log are told apart.
#[derive(Deserialize)]
struct Told {
    #[serde(default)]
    timestamp: String,
    #[serde(default)]
    event: String,
    #[serde(default)]
    time: String,
}

impl Transaction<'_> {
    /// Settled receipts from before a time, oldest claims first.
    pub(super) fn load_prunable(
        &self,
        before: &str,
        limit: usize,
        set: &mut WorkingSet,
    ) -> Result<(), Failure> {
        let sql = "SELECT fence, body, EXISTS (SELECT 1 FROM keys WHERE receipt = r.id)
                   FROM receipts r ORDER BY id";
        let mut statement = self.connection.prepare_cached(sql).map_err(failed)?;
        let mut rows = statement.query([]).map_err(failed)?;
        let (mut found, mut young) = (0, 0);
        // What was claimed later was settled later, but for calls that took long.
        while found < limit
            && young < YOUNG_MAX
            && let Some(row) = rows.next().map_err(failed)?
        {
            let holds = row.get(2).map_err(failed)?;
            let stored = self.stored(receipt_row(row).map_err(failed)?)?;
            if stored.receipt.settled_at.as_deref().is_some_and(|settled| settled < before) {
                set.load_prunable(stored, holds);
                found += 1;
            } else {
                young += 1;
            }
        }
        Ok(())
    }

    /// Removes agent logs from before a time, at most so many; how many.
    pub(super) fn remove_logs(&self, before: &str, limit: usize) -> Result<u64, Failure> {
        let writers: Vec<i64> =
            self.all("SELECT no FROM writers ORDER BY no", [], |row| row.get(0))?;
        let mut removed = 0;
        for writer in writers {
            if removed >= limit {
                break;
            }
            let mut last = None;
            {
                let sql = "SELECT place, body FROM agent_logs
                           WHERE place >= ?1 AND place < ?2 ORDER BY place";
                let mut statement = self.connection.prepare_cached(sql).map_err(failed)?;
                let ends = (place(writer, 0), place(writer + 1, 0));
                let mut rows = statement.query(ends).map_err(failed)?;
                let mut found = 0;
                while found + removed < limit
                    && let Some(row) = rows.next().map_err(failed)?
                {
                    let body: Vec<u8> = row.get(1).map_err(failed)?;
                    let told = self.told(&body)?;
                    if told.timestamp.as_str() >= before {
                        break;
                    }
                    last = Some(row.get::<_, i64>(0).map_err(failed)?);
                    found += 1;
                }
            }
            if let Some(last) = last {
                let sql = "DELETE FROM agent_logs WHERE place >= ?1 AND place <= ?2";
                removed += self.execute(sql, (place(writer, 0), last))?;
            }
        }
        Ok(removed as u64)
    }

    /// When a call ended, as its log says.
    fn told(&self, log: &[u8]) -> Result<Told, Failure> {
        let text = share::unpack(log, |id| {
            let sql = "SELECT fence, body FROM receipts WHERE id = ?1";
            let row = self.connection.prepare_cached(sql).and_then(|mut statement| {
                statement.query_row([Compact::of(id)], receipt_row).optional()
            });
            row.map_err(unavailable)?.map(|(_, body)| shorten::unpack(&body)).transpose()
        });
        let told = text.and_then(|text| {
            serde_json::from_str(&text).map_err(|error| corrupt("an agent log", &error))
        });
        told.map_err(unreadable)
    }

    /// Removes the events of one writer up to its next checkpoint, where that is from before a
    /// time; of which writer, and how many.
    pub(super) fn remove_events(&self, before: &str) -> Result<Option<(String, u64)>, Failure> {
        // The oldest checkpoint that covers more than what is gone already: one step of many.
        let Some((writer, size, checkpoint)) = self.next_checkpoint(before)? else {
            return Ok(None);
        };
        let sql = "SELECT no, pruned_size, pruned FROM writers WHERE writer = ?1";
        let read = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?, row.get(2)?));
        let found: Option<(i64, i64, Option<String>)> = self.one(sql, [&writer], read)?;
        let Some((no, base, old)) = found else { return Ok(None) };
        let old: Option<PrunedLog> = old.and_then(|text| serde_json::from_str(&text).ok());
        let ends = (place(no, base), place(no, size));
        let bodies: Vec<Vec<u8>> = self.all(
            "SELECT body FROM events WHERE place >= ?1 AND place < ?2 ORDER BY place",
            ends,
            |row| row.get(0),
        )?;
        let bodies: Result<Vec<String>, _> =
            bodies.iter().map(|body| shorten::unpack(body)).collect();
        let bodies = bodies.map_err(unreadable)?;
        let kept = pruned::fold(old, &bodies, size.unsigned_abs(), &checkpoint)
            .map_err(|what| Failure::Refused(corrupt("a log that is to be pruned", &what)))?;
        self.execute(
            "UPDATE writers SET pruned_size = ?2, pruned = ?3 WHERE writer = ?1",
            (&writer, size, json_text(&kept)?),
        )?;
        self.execute("DELETE FROM milestones WHERE place >= ?1 AND place < ?2", ends)?;
        let removed = self.execute("DELETE FROM events WHERE place >= ?1 AND place < ?2", ends)?;
        Ok(Some((writer, removed as u64)))
    }

    /// The first checkpoint of a log that covers more than what is gone of it: the writer, how many
    /// events it covers, and its event.
    fn next_checkpoint(&self, before: &str) -> Result<Option<(String, i64, String)>, Failure> {
        let sql = "SELECT w.writer, e.place, e.body FROM milestones m
                   JOIN events e USING (place) JOIN writers w ON w.no = e.place >> ?1
                   WHERE e.place & ((1 << ?1) - 1) > w.pruned_size ORDER BY e.place";
        let mut statement = self.connection.prepare_cached(sql).map_err(failed)?;
        let mut rows = statement.query([SEQ_BITS]).map_err(failed)?;
        while let Some(row) = rows.next().map_err(failed)? {
            let body: Vec<u8> = row.get(2).map_err(failed)?;
            let text = shorten::unpack(&body).map_err(unreadable)?;
            let told: Option<Told> = serde_json::from_str(&text).ok();
            if told.is_some_and(|told| told.event == "CHECKPOINT" && told.time.as_str() < before) {
                let at: i64 = row.get(1).map_err(failed)?;
                let seq = at & ((1 << SEQ_BITS) - 1);
                return Ok(Some((row.get(0).map_err(failed)?, seq, text)));
            }
        }
        Ok(None)
    }
}

/// Receipts that are looked at although they are not old yet.
const YOUNG_MAX: usize = 10_000;
