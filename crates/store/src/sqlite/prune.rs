//! Finds and removes old records: receipts, agent logs, and events that account for no remaining record.
//!
//! Doc: records.md#retention

use std::collections::BTreeSet;

use rusqlite::OptionalExtension;
use serde::Deserialize;
use toolbooth_audit::backend::merkle::{Hash, leaf_hash};
use toolbooth_audit::backend::pruning::{self, BLOCK, EventRules, Piece, PrunedRange, Removal};
use toolbooth_audit::backend::working::{CallName, WorkingSet};
use toolbooth_audit::backend::writer::Failure;
use toolbooth_audit::documents::used_before;
use toolbooth_audit::history::{DeclaredWindow, kept_until_ms};
use toolbooth_audit::reads::PrunedLog;
use toolbooth_contracts::receipt::AuditPlace;

use super::compact::{Compact, Name, Shown};
use super::rows::{RECEIPT, limited, receipt_row, unreadable};
use super::schema::place;
use super::search_index::split;
use super::transaction::{Transaction, failed};
use super::{result_reference, unavailable};
use crate::{Unreadable, packing};

/// The members of an agent log that show when the call ended, and whether it was dispatched.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct LogMembers {
    #[serde(default)]
    pub(super) timestamp: String,
    pub(super) receipt_id: Option<String>,
}

/// Returns the text of the event at `place`.
fn event_text(place: i64, body: &[u8]) -> Result<String, Failure> {
    packing::unpack(body).map_err(|damage| unreadable(damage.at("events", place)))
}

impl Transaction<'_> {
    /// Loads receipts that settled before `before` and that none of the windows counts at `now_ms`, at most
    /// `limit`, oldest claims first. The next step continues where this one ends.
    pub(super) fn load_prunable(
        &self,
        before: &str,
        now_ms: i64,
        windows: &[DeclaredWindow],
        limit: usize,
        set: &mut WorkingSet,
    ) -> Result<(), Failure> {
        let sql = "SELECT fence, body, EXISTS (SELECT 1 FROM keys WHERE receipt = r.id), id,
                       EXISTS (SELECT 1 FROM history WHERE receipt = r.id AND until_ms > ?1)
                   FROM receipts r WHERE id > ?2 ORDER BY id";
        let mut statement = self.connection.prepare_cached(sql).map_err(failed)?;
        let after = self.receipts_seen.take();
        let mut rows = statement.query((now_ms, Compact::of(&after))).map_err(failed)?;
        let (mut found, mut young, mut counted) = (0, 0, 0);
        // Receipts are in the order of their claims. Calls that took long settle later than their
        // successors, so some young receipts are skipped.
        while found < limit
            && young < YOUNG_MAX
            && let Some(row) = rows.next().map_err(failed)?
        {
            let holds = row.get(2).map_err(failed)?;
            let id: Shown = row.get(3).map_err(failed)?;
            let is_counted: bool = row.get(4).map_err(failed)?;
            let read = match is_counted {
                true => None,
                false => self.readable(&id.0, receipt_row(row).map_err(failed)?)?,
            };
            let old = match read {
                Some(stored)
                    if stored.receipt.settled_at.as_deref().is_some_and(|at| at < before) =>
                {
                    Some(stored)
                }
                Some(_) => {
                    young += 1;
                    continue;
                }
                None if is_counted => None,
                None => continue,
            };
            let prunable = old.filter(|stored| {
                let until_ms = kept_until_ms(&stored.receipt, windows);
                until_ms.is_none_or(|until_ms| until_ms <= now_ms)
            });
            match prunable {
                Some(stored) => {
                    set.load_prunable(stored, holds);
                    found += 1;
                    if found == limit {
                        self.receipts_seen.set(id.0);
                    }
                }
                None => {
                    counted += 1;
                    if counted == COUNTED_MAX {
                        self.receipts_seen.set(id.0);
                        set.surveyed.more = true;
                        return Ok(());
                    }
                }
            }
        }
        Ok(())
    }

    /// Finds agent logs older than `before`, at most `limit`.
    pub(super) fn prunable_logs(
        &self,
        before: &str,
        limit: usize,
        set: &mut WorkingSet,
    ) -> Result<(), Failure> {
        let mut found = 0;
        for (no, writer) in self.writers()? {
            if found == limit {
                break;
            }
            let sql = "SELECT place, body FROM agent_logs
                       WHERE place >= ?1 AND place < ?2 ORDER BY place";
            let mut statement = self.connection.prepare_cached(sql).map_err(failed)?;
            let mut rows = statement.query((place(no, 0), place(no + 1, 0))).map_err(failed)?;
            let (mut places, mut young) = (Vec::new(), 0);
            while found < limit
                && young < YOUNG_LOGS_MAX
                && let Some(row) = rows.next().map_err(failed)?
            {
                let (at, body): (i64, Vec<u8>) =
                    (row.get(0).map_err(failed)?, row.get(1).map_err(failed)?);
                // Logs are in the order in which calls were recorded, which is nearly that of their times.
                if self.told(at, &body)?.timestamp.as_str() >= before {
                    young += 1;
                    continue;
                }
                places.push(split(at).1.unsigned_abs());
                found += 1;
            }
            if !places.is_empty() {
                set.surveyed.removal.logs.insert(writer, places);
            }
        }
        Ok(())
    }

    /// Finds asynchronous calls that got their result before `before`, at most `limit`.
    pub(super) fn prunable_calls(
        &self,
        before: &str,
        limit: usize,
    ) -> Result<Vec<CallName>, Failure> {
        let sql =
            "SELECT caller, call_id FROM queue WHERE finished < ?1 ORDER BY finished LIMIT ?2";
        self.all(sql, (before, limited(limit)), |row| Ok((row.get(0)?, row.get(1)?)))
    }

    /// Returns documents that no log from `before` on names; none while there are earlier logs.
    pub(super) fn prunable_documents(
        &self,
        before: &str,
        limit: usize,
        set: &mut WorkingSet,
    ) -> Result<Vec<String>, Failure> {
        self.prunable_logs(before, 1, set)?;
        if !std::mem::take(&mut set.surveyed.removal.logs).is_empty() {
            return Ok(Vec::new());
        }
        let sql = "SELECT digest FROM documents WHERE used < ?1 ORDER BY digest LIMIT ?2";
        self.all(sql, (used_before(before), limited(limit)), |row| row.get(0))
    }

    /// Returns approvals that have expired before a time.
    pub(super) fn prunable_approvals(
        &self,
        before: &str,
        limit: usize,
    ) -> Result<Vec<String>, Failure> {
        let sql = "SELECT approval_id FROM approvals
             WHERE CASE WHEN json_valid(body)
                 THEN coalesce(body ->> '$.expiresAt', body ->> '$.requestedAt') < ?1 END
             ORDER BY approval_id LIMIT ?2";
        self.all(sql, (before, limited(limit)), |row| row.get(0))
    }

    /// Returns the numbers and names of all writers.
    pub(super) fn writers(&self) -> Result<Vec<(i64, String)>, Failure> {
        let sql = "SELECT no, writer FROM writers ORDER BY no";
        self.all(sql, [], |row| Ok((row.get(0)?, row.get(1)?)))
    }

    /// Reads the members of the agent log at `place` that pruning needs.
    pub(super) fn told(&self, place: i64, log: &[u8]) -> Result<LogMembers, Failure> {
        let text = result_reference::unpack(log, place, |id| {
            let sql = "SELECT fence, body FROM receipts WHERE id = ?1";
            let row = self.connection.prepare_cached(sql).and_then(|mut statement| {
                statement.query_row([Compact::of(id)], receipt_row).optional()
            });
            let damaged = |damage: Unreadable| damage.at("receipts", id);
            let body = row.map_err(unavailable)?.map(|(_, body)| body);
            body.map(|body| packing::unpack(&body).map_err(damaged)).transpose()
        });
        let told = text.and_then(|text| {
            let damaged = |error| Unreadable::of(error).at("agent_logs", place);
            serde_json::from_str(&text).map_err(damaged)
        });
        told.map_err(unreadable)
    }

    /// Finds the next step of pruning events: first in an examined block that has lost a record
    /// since, then in the next block.
    ///
    /// Damage in one log does not stop the others: its error is returned once no other log has work
    /// left.
    pub(super) fn prunable_events(
        &self,
        before: &str,
        set: &mut WorkingSet,
    ) -> Result<(), Failure> {
        let writers = self.writers()?;
        for (no, writer) in &writers {
            let Some(progress) = self.progress.get(writer) else { continue };
            let sql = "SELECT min(place) FROM stale WHERE place >= ?1 AND place < ?2";
            let ends = (place(*no, 0), place(*no, progress.done().cast_signed()));
            let stale: Option<i64> = self.one(sql, ends, |row| row.get(0))?.flatten();
            let Some(from) = stale.map(|stale| split(stale).1.unsigned_abs()) else { continue };
            let Some(part) = progress.again(from) else { continue };
            set.surveyed.more = true;
            return match self.prune_part(writer, *no, part, before, set) {
                // The damaged block is not changed; `audit verify` reports it.
                Err(Failure::Refused(_)) => {
                    set.surveyed.removal.looked_at = Some((writer.clone(), from / BLOCK));
                    Ok(())
                }
                done => done,
            };
        }
        let mut damage = None;
        for (no, writer) in &writers {
            match self.prune_next_part(*no, writer, before, set) {
                Ok(true) => return Ok(()),
                Ok(false) => (),
                Err(Failure::Refused(what)) => damage = damage.or(Some(what)),
                Err(other) => return Err(other),
            }
        }
        damage.map_or(Ok(()), |what| Err(Failure::Refused(what)))
    }

    /// Finds the next step of pruning one log. Returns whether it exists.
    fn prune_next_part(
        &self,
        no: i64,
        writer: &str,
        before: &str,
        set: &mut WorkingSet,
    ) -> Result<bool, Failure> {
        let mut progress = self.progress.get(writer).cloned().unwrap_or_default();
        if let Some(part) = progress.next_part() {
            self.prune_part(writer, no, part, before, set)?;
        } else if let Some(signed) = self.next_checkpoint(no, progress.sound(), before)? {
            let pieces = self.pieces(no, progress.ahead(signed.0), &mut |_, _| Ok(true))?;
            progress
                .compute(&pieces, signed)
                .map_err(|what| unreadable(Unreadable::of(what).at("writers", writer)))?;
        } else {
            return Ok(false);
        }
        set.surveyed.more = true;
        set.surveyed.removal.progress = Some((writer.to_owned(), progress));
        Ok(true)
    }

    /// Finds the newest checkpoint older than `before` among the next milestones of a log. Returns
    /// its size and root.
    fn next_checkpoint(
        &self,
        no: i64,
        after: u64,
        before: &str,
    ) -> Result<Option<(u64, Hash)>, Failure> {
        let sql = "SELECT place, body FROM milestones JOIN events USING (place)
                   WHERE place > ?1 AND place < ?2 ORDER BY place LIMIT ?3";
        let ends = (place(no, after.cast_signed()), place(no + 1, 0), CHECKPOINTS);
        let bodies: Vec<(i64, Vec<u8>)> =
            self.all(sql, ends, |row| Ok((row.get(0)?, row.get(1)?)))?;
        let texts: Result<Vec<String>, Failure> =
            bodies.iter().map(|(at, body)| event_text(*at, body)).collect();
        Ok(pruning::newest_checkpoint(texts?.iter().map(String::as_str), before))
    }

    /// Returns the events and the removed subtrees of a part of a log, in order. `stays` decides
    /// for each event by its place and text.
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
                .ok_or_else(|| unreadable(Unreadable::of("`root` is not a hash").at("gone", at)))?;
            let (seq, size) = (split(at).1.unsigned_abs(), size.unsigned_abs());
            pieces.push(Piece::PrunedRange(PrunedRange { seq, size, root }));
        }
        let sql = "SELECT place, body FROM events WHERE place >= ?1 AND place < ?2";
        let events: Vec<(i64, Vec<u8>)> =
            self.all(sql, ends, |row| Ok((row.get(0)?, row.get(1)?)))?;
        for (at, body) in events {
            let text = event_text(at, &body)?;
            let leaf = leaf_hash(text.as_bytes());
            pieces.push(Piece::Event(split(at).1.unsigned_abs(), leaf, stays(at, &text)?));
        }
        pieces.sort_by_key(Piece::seq);
        Ok(pieces)
    }

    /// Finds the events of a block that are older than `before` and account for no remaining
    /// record.
    fn prune_part(
        &self,
        writer: &str,
        no: i64,
        (from, to): (u64, u64),
        before: &str,
        set: &mut WorkingSet,
    ) -> Result<(), Failure> {
        let sql = "SELECT writer, size FROM writers WHERE named";
        let ended: Vec<(String, i64)> = self.all(sql, [], |row| Ok((row.get(0)?, row.get(1)?)))?;
        let rules = EventRules {
            before: before.to_owned(),
            named: self.named_places(writer)?,
            ended: ended.into_iter().map(|(own, size)| (own, size.unsigned_abs())).collect(),
        };
        let mut stays = |at: i64, text: &str| -> Result<bool, Failure> {
            let Some(accounts) = rules.accounts_for(split(at).1.unsigned_abs(), text) else {
                return Ok(true);
            };
            let log = "SELECT 1 FROM agent_logs WHERE place = ?1";
            let has_log = self.one(log, [at], |_| Ok(()))?.is_some();
            let has_receipt = match &accounts.receipt {
                Some(id) => self.one(RECEIPT, [Compact::of(id)], receipt_row)?.is_some(),
                None => false,
            };
            Ok(has_log || has_receipt)
        };
        let pieces = self.pieces(no, (from, to), &mut stays)?;
        let cut = pruning::cut(from, to, &pieces);
        set.surveyed.removal.looked_at = Some((writer.to_owned(), from / BLOCK));
        if !cut.removed.is_empty() {
            set.surveyed.removal.events = Some((writer.to_owned(), cut));
        }
        Ok(())
    }

    /// Removes the records selected by a step of pruning.
    pub(super) fn remove(&self, removal: &Removal) -> Result<(), Failure> {
        for (writer, places) in &removal.logs {
            let Some(no) = self.number(writer)? else { continue };
            if let (Some(first), Some(last)) = (places.first(), places.last()) {
                self.lost_at(no, *first, *last)?;
            }
            for seq in places {
                let at = place(no, seq.cast_signed());
                self.execute("DELETE FROM agent_logs WHERE place = ?1", [at])?;
            }
        }
        if let Some((writer, block)) = &removal.looked_at
            && let Some(no) = self.number(writer)?
        {
            let at = place(no, (block * BLOCK).cast_signed());
            self.execute("DELETE FROM stale WHERE place = ?1", [at])?;
        }
        if let Some((writer, cut)) = &removal.events
            && let Some(no) = self.number(writer)?
        {
            for seq in &cut.removed {
                let at = place(no, seq.cast_signed());
                self.execute("DELETE FROM events WHERE place = ?1", [at])?;
                self.execute("DELETE FROM milestones WHERE place = ?1", [at])?;
            }
            let (from, to) = (cut.left.from.cast_signed(), cut.left.to.cast_signed());
            let sql = "DELETE FROM gone WHERE place >= ?1 AND place < ?2";
            self.execute(sql, (place(no, from), place(no, to)))?;
            self.put_gone(no, &cut.gone)?;
        }
        for (caller, call_id) in &removal.calls {
            let sql = "DELETE FROM queue WHERE caller = ?1 AND call_id = ?2";
            self.execute(sql, (caller, call_id))?;
        }
        for id in &removal.approvals {
            self.execute("DELETE FROM approvals WHERE approval_id = ?1", [id])?;
        }
        for digest in &removal.documents {
            self.execute("DELETE FROM documents WHERE digest = ?1", [digest])?;
        }
        Ok(())
    }

    /// Returns the number of a writer.
    fn number(&self, writer: &str) -> Result<Option<i64>, Failure> {
        self.one("SELECT no FROM writers WHERE writer = ?1", [writer], |row| row.get(0))
    }

    fn put_gone(&self, no: i64, gone: &[PrunedRange]) -> Result<(), Failure> {
        for part in gone {
            let root = part.root.to_string();
            let sql = "INSERT INTO gone (place, size, root) VALUES (?1, ?2, ?3)";
            let at = place(no, part.seq.cast_signed());
            self.execute(sql, (at, part.size.cast_signed(), Compact::of(&root)))?;
        }
        Ok(())
    }

    /// Records the removed subtrees at the beginning of a log, which an earlier version removed.
    pub(super) fn adopt(&self, writer: &str, log: &PrunedLog) -> Result<(), Failure> {
        let (Some(no), Some(gone)) = (self.number(writer)?, pruning::parts(log)) else {
            let what = Unreadable::of("the beginning of a pruned log cannot be read");
            return Err(unreadable(what.at("writers", writer)));
        };
        self.put_gone(no, &gone)?;
        self.execute("UPDATE writers SET pruned = NULL WHERE no = ?1", [no]).map(drop)
    }

    /// Returns the sequence numbers of a log that approvals, orders and asynchronous calls name.
    fn named_places(&self, writer: &str) -> Result<BTreeSet<u64>, Failure> {
        // Invalid JSON names no event; `audit verify` reports it.
        let sql = "WITH named (at) AS (
                       SELECT body -> '$.auditSeq' FROM approvals WHERE json_valid(body)
                       UNION ALL SELECT body -> '$.auditSeq' FROM orders WHERE json_valid(body)
                       UNION ALL SELECT queued_by FROM queue WHERE json_valid(queued_by)
                       UNION ALL SELECT finished_by FROM queue WHERE json_valid(finished_by))
                   SELECT at ->> '$.seq' FROM named WHERE at ->> '$.writer' = ?1
                       AND json_type(at, '$.seq') = 'integer'";
        let places: Vec<i64> = self.all(sql, [writer], |row| row.get(0))?;
        Ok(places.into_iter().map(i64::unsigned_abs).collect())
    }

    /// Marks the block of an event as stale: the record that the event accounted for was removed.
    pub(super) fn lost(&self, at: &AuditPlace) -> Result<(), Failure> {
        match self.number(&at.writer)? {
            Some(no) => self.lost_at(no, at.seq, at.seq),
            None => Ok(()),
        }
    }

    fn lost_at(&self, no: i64, first: u64, last: u64) -> Result<(), Failure> {
        // The dispatch event may be in the preceding block.
        for block in (first / BLOCK).saturating_sub(1)..=last / BLOCK {
            let at = place(no, (block * BLOCK).cast_signed());
            self.execute("INSERT INTO stale (place) VALUES (?1) ON CONFLICT DO NOTHING", [at])?;
        }
        Ok(())
    }
}

/// Maximum milestones that one step examines for a checkpoint.
const CHECKPOINTS: i64 = 64;
/// Maximum young agent logs of one writer that one step skips.
const YOUNG_LOGS_MAX: usize = 16;
/// Maximum young receipts that one step skips.
const YOUNG_MAX: usize = 10_000;
/// Maximum receipts that one step skips because a window counts them.
const COUNTED_MAX: usize = 10_000;
