//! Removing old records: receipts, agent logs, and events that account for none that is left.
//!
//! Doc: records.md#retention

use std::collections::BTreeSet;

use rusqlite::OptionalExtension;
use serde::Deserialize;
use toolbooth_audit::merkle::{Hash, leaf_hash};
use toolbooth_audit::pruning::{self, BLOCK, Gone, Piece, Progress};
use toolbooth_audit::reads::PrunedLog;
use toolbooth_audit::working::WorkingSet;
use toolbooth_audit::writer::Failure;
use toolbooth_contracts::receipt::AuditPlace;

use super::backend::{Transaction, failed};
use super::compact::{Compact, Name};
use super::lookup::split;
use super::rows::{RECEIPT, json_text, receipt_row, unreadable};
use super::schema::place;
use super::{share, shorten, unavailable};
use crate::{corrupt, pruned};

/// The member of an agent log that says when the call ended.
#[derive(Deserialize)]
struct Told {
    #[serde(default)]
    timestamp: String,
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
            let (mut first, mut last) = (None, None);
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
                    first = first.or(last);
                    found += 1;
                }
            }
            if let Some(last) = last {
                self.lost_at(
                    writer,
                    split(first.unwrap_or(last)).1.unsigned_abs(),
                    split(last).1.unsigned_abs(),
                )?;
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

    /// The next step of shortening logs: a block that lost a record since, or that comes next.
    pub(super) fn remove_events(&self, before: &str, set: &mut WorkingSet) -> Result<(), Failure> {
        let stale: Option<i64> =
            self.one("SELECT min(place) FROM stale", [], |row| row.get(0))?.flatten();
        if let Some(stale) = stale {
            self.execute("DELETE FROM stale WHERE place = ?1", [stale])?;
            set.surveyed.more = true;
            let (no, from) = split(stale);
            let Some((writer, progress)) = self.progress(no)? else { return Ok(()) };
            let to = progress.done.min(from.unsigned_abs() + BLOCK);
            return self.shorten(&writer, no, (from.unsigned_abs(), to), before, set);
        }
        let writers: Vec<i64> =
            self.all("SELECT no FROM writers ORDER BY no", [], |row| row.get(0))?;
        for no in writers {
            let Some((writer, mut progress)) = self.progress(no)? else { continue };
            if progress.done < progress.sound {
                let from = progress.done - progress.done % BLOCK;
                let to = progress.sound.min(from + BLOCK);
                progress.done = to;
                self.set_progress(no, &progress)?;
                set.surveyed.more = true;
                return self.shorten(&writer, no, (from, to), before, set);
            }
            if let Some((to, root)) = self.next_checkpoint(no, progress.sound, before)? {
                self.compute(no, &mut progress, (to, root))?;
                set.surveyed.more = true;
                return self.set_progress(no, &progress);
            }
        }
        Ok(())
    }

    /// A writer, and how far its log was looked through.
    fn progress(&self, no: i64) -> Result<Option<(String, Progress)>, Failure> {
        let read = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?));
        let found: Option<(String, Option<String>)> =
            self.one("SELECT writer, pruned FROM writers WHERE no = ?1", [no], read)?;
        let parse = |text: String| serde_json::from_str(&text).ok();
        Ok(found.map(|(writer, text)| (writer, text.and_then(parse).unwrap_or_default())))
    }

    pub(super) fn set_progress(&self, no: i64, progress: &Progress) -> Result<(), Failure> {
        let sql = "UPDATE writers SET pruned = ?2 WHERE no = ?1";
        self.execute(sql, (no, json_text(progress)?)).map(drop)
    }

    /// The newest of the next checkpoints of a log from before a time: how many events it covers,
    /// and its root.
    fn next_checkpoint(
        &self,
        no: i64,
        after: u64,
        before: &str,
    ) -> Result<Option<(u64, Hash)>, Failure> {
        let sql = "SELECT body FROM milestones JOIN events USING (place)
                   WHERE place > ?1 AND place < ?2 ORDER BY place LIMIT ?3";
        let ends = (place(no, after.cast_signed()), place(no + 1, 0), CHECKPOINTS);
        let bodies: Vec<Vec<u8>> = self.all(sql, ends, |row| row.get(0))?;
        let mut newest = None;
        for body in bodies {
            let text = shorten::unpack(&body).map_err(unreadable)?;
            match pruned::checkpoint(&text) {
                Some((time, _)) if time.as_str() >= before => break,
                Some((_, signed)) => newest = Some((signed.size, signed.root)),
                None => (),
            }
        }
        Ok(newest)
    }

    /// Computes the tree of a log anew, towards a checkpoint; there it has to fit.
    fn compute(
        &self,
        no: i64,
        progress: &mut Progress,
        (to, root): (u64, Hash),
    ) -> Result<(), Failure> {
        let wrong = |what: &str| Failure::Refused(corrupt("a log that is to be pruned", &what));
        let mut frontier =
            progress.frontier().ok_or_else(|| wrong("its beginning cannot be read"))?;
        let end = to.min(progress.computed + COMPUTED_MAX);
        for piece in self.pieces(no, (progress.computed, end), &mut |_, _| Ok(true))? {
            if !piece.push_to(&mut frontier) {
                return Err(wrong("an event of it is missing; `audit verify` tells more"));
            }
        }
        progress.compute(&frontier);
        if frontier.size() == to {
            if frontier.root() != root {
                return Err(wrong("it does not fit its checkpoint; `audit verify` tells more"));
            }
            progress.sound = to;
        }
        Ok(())
    }

    /// The events of a part of a log and what is gone of it, in order; `stays` tells of each event.
    fn pieces(
        &self,
        no: i64,
        (from, to): (u64, u64),
        stays: &mut dyn FnMut(i64, &str) -> Result<bool, Failure>,
    ) -> Result<Vec<Piece>, Failure> {
        let ends = (place(no, from.cast_signed()), place(no, to.cast_signed()));
        let sql = "SELECT place, size, root FROM gone WHERE place >= ?1 AND place < ?2";
        let gone: Vec<(i64, i64, Name)> =
            self.all(sql, ends, |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
        let mut pieces = Vec::new();
        for (at, size, root) in gone {
            let root = Hash::parse(&root.0)
                .ok_or_else(|| unreadable(corrupt("what is gone of a log", &"it is no hash")))?;
            let (seq, size) = (split(at).1.unsigned_abs(), size.unsigned_abs());
            pieces.push(Piece::Gone(Gone { seq, size, root }));
        }
        let sql = "SELECT place, body FROM events WHERE place >= ?1 AND place < ?2";
        let events: Vec<(i64, Vec<u8>)> =
            self.all(sql, ends, |row| Ok((row.get(0)?, row.get(1)?)))?;
        for (at, body) in events {
            let text = shorten::unpack(&body).map_err(unreadable)?;
            let leaf = leaf_hash(text.as_bytes());
            pieces.push(Piece::Event(split(at).1.unsigned_abs(), leaf, stays(at, &text)?));
        }
        pieces.sort_by_key(Piece::seq);
        Ok(pieces)
    }

    /// Removes from a block what accounts for nothing any more and is from before a time.
    fn shorten(
        &self,
        writer: &str,
        no: i64,
        (from, to): (u64, u64),
        before: &str,
        set: &mut WorkingSet,
    ) -> Result<(), Failure> {
        let named = self.named_places(writer)?;
        let mut stays = |at: i64, text: &str| -> Result<bool, Failure> {
            let Some(told) = pruned::Told::of(text).filter(|told| told.may_go(before)) else {
                return Ok(true);
            };
            if named.contains(&split(at).1.unsigned_abs()) {
                return Ok(true);
            }
            let log = "SELECT 1 FROM agent_logs WHERE place = ?1";
            let has_log = self.one(log, [at], |_| Ok(()))?.is_some();
            let has_receipt = match told.receipt() {
                Some(id) => self.one(RECEIPT, [Compact::of(id)], receipt_row)?.is_some(),
                None => false,
            };
            Ok(has_log || has_receipt)
        };
        let pieces = self.pieces(no, (from, to), &mut stays)?;
        let cut = pruning::cut(from, to, &pieces);
        if cut.removed.is_empty() {
            return Ok(());
        }
        for seq in &cut.removed {
            let at = place(no, seq.cast_signed());
            self.execute("DELETE FROM events WHERE place = ?1", [at])?;
            self.execute("DELETE FROM milestones WHERE place = ?1", [at])?;
        }
        let ends = (place(no, from.cast_signed()), place(no, to.cast_signed()));
        self.execute("DELETE FROM gone WHERE place >= ?1 AND place < ?2", ends)?;
        self.put_gone(no, &cut.gone)?;
        set.surveyed.removed = cut.removed.len() as u64;
        set.surveyed.left = Some((writer.to_owned(), cut.left));
        Ok(())
    }

    fn put_gone(&self, no: i64, gone: &[Gone]) -> Result<(), Failure> {
        for part in gone {
            let root = part.root.to_string();
            let sql = "INSERT INTO gone (place, size, root) VALUES (?1, ?2, ?3)";
            let at = place(no, part.seq.cast_signed());
            self.execute(sql, (at, part.size.cast_signed(), Compact::of(&root)))?;
        }
        Ok(())
    }

    /// Takes over the beginning of a log that an earlier version has removed.
    pub(super) fn adopt(&self, writer: &str, log: &PrunedLog) -> Result<(), Failure> {
        let sql = "SELECT no FROM writers WHERE writer = ?1";
        let no: Option<i64> = self.one(sql, [writer], |row| row.get(0))?;
        let (Some(no), Some(gone)) = (no, pruned::parts(log)) else {
            let what = &"the beginning of a pruned log cannot be read";
            return Err(unreadable(corrupt("a writer", what)));
        };
        self.put_gone(no, &gone)?;
        let (done, peaks) = (log.size, log.peaks.clone());
        self.set_progress(no, &Progress { computed: done, peaks, sound: done, done })
    }

    /// Places of a log that approvals and asynchronous calls name.
    fn named_places(&self, writer: &str) -> Result<BTreeSet<u64>, Failure> {
        let sql = "SELECT body ->> '$.auditSeq.seq' FROM approvals
                       WHERE body ->> '$.auditSeq.writer' = ?1
                   UNION SELECT queued_by ->> '$.seq' FROM queue WHERE queued_by ->> '$.writer' = ?1
                   UNION SELECT finished_by ->> '$.seq' FROM queue
                       WHERE finished_by ->> '$.writer' = ?1";
        let places: Vec<i64> = self.all(sql, [writer], |row| row.get(0))?;
        Ok(places.into_iter().map(i64::unsigned_abs).collect())
    }

    /// A record that an event accounted for is gone: its block is looked at again.
    pub(super) fn lost(&self, at: &AuditPlace) -> Result<(), Failure> {
        let sql = "SELECT no FROM writers WHERE writer = ?1";
        let Some(no) = self.one(sql, [&at.writer], |row| row.get::<_, i64>(0))? else {
            return Ok(());
        };
        self.lost_at(no, at.seq, at.seq)
    }

    fn lost_at(&self, no: i64, first: u64, last: u64) -> Result<(), Failure> {
        let Some((_, progress)) = self.progress(no)? else { return Ok(()) };
        // The dispatch may be in the block before.
        let blocks = (first / BLOCK).saturating_sub(1)..=last / BLOCK;
        for block in blocks.filter(|block| block * BLOCK < progress.done) {
            let at = place(no, (block * BLOCK).cast_signed());
            self.execute("INSERT INTO stale (place) VALUES (?1) ON CONFLICT DO NOTHING", [at])?;
        }
        Ok(())
    }
}

/// Checkpoints that are looked at at once.
const CHECKPOINTS: i64 = 64;
/// Events of which the tree is computed in one step.
const COMPUTED_MAX: u64 = 8 * BLOCK;

/// Receipts that are looked at although they are not old yet.
const YOUNG_MAX: usize = 10_000;
