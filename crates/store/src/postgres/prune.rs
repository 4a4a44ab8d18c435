//! Finds events that account for no remaining record, and removes old records.
//!
//! Doc: records.md#retention

use std::collections::{BTreeSet, HashMap};

use tokio_postgres::types::ToSql;
use tokio_postgres::{Row, Statement};
use toolbooth_audit::LedgerError;
use toolbooth_audit::backend::merkle::{Hash, leaf_hash};
use toolbooth_audit::backend::pruning::{
    self, BLOCK, EventRules, Piece, Progress, PrunedRange, Removal,
};
use toolbooth_audit::backend::working::WorkingSet;
use toolbooth_audit::backend::writer::Failure;
use toolbooth_audit::reads::PrunedLog;

use super::backend::{Session, failed};
use super::statements::Parameters;
use crate::{Unreadable, body};

/// The advisory lock of the replica that prunes events; the others skip the step meanwhile.
const LOCK: i64 = 0x746f_6f6c_7072_756e;
/// Maximum milestones that one step examines for a checkpoint.
const CHECKPOINTS: i64 = 64;

/// Returns the failure of a step that needs an unreadable row.
fn damaged(table: &str, row: impl std::fmt::Display, what: Unreadable) -> Failure {
    Failure::Refused(what.at(table, row))
}

/// Returns the parameters of `put_gone` for the removed subtrees of a log.
fn columns(writer: &str, gone: &[PrunedRange]) -> Parameters<'static> {
    let seqs: Vec<i64> = gone.iter().map(|part| part.seq.cast_signed()).collect();
    let sizes: Vec<i64> = gone.iter().map(|part| part.size.cast_signed()).collect();
    let roots: Vec<String> = gone.iter().map(|part| part.root.to_string()).collect();
    vec![Box::new(writer.to_owned()), Box::new(seqs), Box::new(sizes), Box::new(roots)]
}

/// Returns the parameters of `put_gone` for the beginning of a log that an earlier version removed.
pub(super) fn adopted(writer: &str, log: &PrunedLog) -> Result<Parameters<'static>, LedgerError> {
    let what = "the beginning of a pruned log cannot be read";
    let gone = pruning::parts(log).ok_or_else(|| Unreadable::of(what).at("writers", writer))?;
    Ok(columns(writer, &gone))
}

/// Returns the parameters of `lost`: places of events with removed records.
pub(super) fn lost(places: impl Iterator<Item = (String, i64)>) -> Parameters<'static> {
    let (writers, seqs): (Vec<String>, Vec<i64>) = places.unzip();
    vec![Box::new(writers), Box::new(seqs), Box::new(BLOCK.cast_signed())]
}

impl Session {
    /// Finds the next step of pruning events: first in an examined block that has lost a record
    /// since, then in the next block.
    ///
    /// Does nothing while another replica prunes. Damage in one log does not stop the others: its
    /// error is returned once no other log has work left.
    pub(super) async fn prunable_events(
        &self,
        before: &str,
        known: &HashMap<String, Progress>,
        set: &mut WorkingSet,
    ) -> Result<(), Failure> {
        let client = self.client();
        let locked = client
            .query_one("SELECT pg_try_advisory_xact_lock($1)", &[&LOCK])
            .await
            .map_err(failed)?;
        if !locked.get::<_, bool>(0) {
            return Ok(());
        }
        let (writers, done): (Vec<&str>, Vec<i64>) = known
            .iter()
            .map(|(writer, progress)| (writer.as_str(), progress.done().cast_signed()))
            .unzip();
        // Waits for a transaction that marks the block again, so that its records are already
        // removed.
        let sql = "SELECT s.writer, s.block FROM stale s
                   JOIN unnest($1::text[], $2::bigint[]) AS d (writer, done)
                       ON d.writer = s.writer AND s.block * $3 < d.done
                   ORDER BY s.writer, s.block LIMIT 1 FOR UPDATE OF s";
        let given: [&(dyn ToSql + Sync); 3] = [&writers, &done, &BLOCK.cast_signed()];
        if let Some(row) = client.query_opt(sql, &given).await.map_err(failed)? {
            let (writer, block): (String, i64) = (row.get(0), row.get(1));
            let block = block.unsigned_abs();
            set.surveyed.more = true;
            set.surveyed.removal.looked_at = Some((writer.clone(), block));
            let progress = known.get(&writer);
            let again = progress.and_then(|known| known.again(block.saturating_mul(BLOCK)));
            let Some(part) = again else { return Ok(()) };
            return match self.prune_part(&writer, part, before, set).await {
                // The damaged block is not changed; `audit verify` reports it.
                Err(Failure::Refused(_)) => Ok(()),
                done => done,
            };
        }
        let mut damage = None;
        let sql = "SELECT writer FROM writers ORDER BY writer";
        for row in client.query(sql, &[]).await.map_err(failed)? {
            let writer: String = row.get(0);
            let progress = known.get(&writer).cloned().unwrap_or_default();
            match self.prune_next_part(&writer, progress, before, set).await {
                Ok(true) => return Ok(()),
                Ok(false) => (),
                Err(Failure::Refused(what)) => damage = damage.or(Some(what)),
                Err(other) => return Err(other),
            }
        }
        damage.map_or(Ok(()), |what| Err(Failure::Refused(what)))
    }

    /// Finds the next step of pruning one log. Returns whether it exists.
    async fn prune_next_part(
        &self,
        writer: &str,
        mut progress: Progress,
        before: &str,
        set: &mut WorkingSet,
    ) -> Result<bool, Failure> {
        if let Some(part) = progress.next_part() {
            let block = part.0 / BLOCK;
            let sql = "SELECT FROM stale WHERE writer = $1 AND block = $2 FOR UPDATE";
            let given: [&(dyn ToSql + Sync); 2] = [&writer, &block.cast_signed()];
            let is_stale = !self.client().query(sql, &given).await.map_err(failed)?.is_empty();
            self.prune_part(writer, part, before, set).await?;
            // A mark that another replica makes from here on is of records that were seen here.
            set.surveyed.removal.looked_at = is_stale.then(|| (writer.to_owned(), block));
        } else if let Some(signed) = self.next_checkpoint(writer, progress.sound(), before).await? {
            let keep_all = |_: &str, _: u64, _: bool, _: bool| true;
            let pieces = self.pieces(writer, progress.ahead(signed.0), keep_all).await?;
            progress
                .compute(&pieces, signed)
                .map_err(|what| damaged("writers", writer, Unreadable::of(what)))?;
        } else {
            return Ok(false);
        }
        set.surveyed.more = true;
        set.surveyed.removal.progress = Some((writer.to_owned(), progress));
        Ok(true)
    }

    /// Finds the newest checkpoint older than `before` among the next milestones of a log. Returns
    /// its size and root.
    async fn next_checkpoint(
        &self,
        writer: &str,
        after: u64,
        before: &str,
    ) -> Result<Option<(u64, Hash)>, Failure> {
        let sql = "SELECT body, zbody FROM events WHERE writer = $1 AND seq > $2 AND milestone
                   ORDER BY seq LIMIT $3";
        let given: [&(dyn ToSql + Sync); 3] = [&writer, &after.cast_signed(), &CHECKPOINTS];
        let rows = self.client().query(sql, &given).await.map_err(failed)?;
        let text = |row: &Row| {
            body::unpack(row.get(0), row.get(1)).map_err(|what| damaged("events", writer, what))
        };
        let texts: Result<Vec<String>, Failure> = rows.iter().map(text).collect();
        Ok(pruning::newest_checkpoint(texts?.iter().map(String::as_str), before))
    }

    /// Returns the events and the removed subtrees of a part of a log, in order. `stays` decides
    /// for each event by its text and sequence number, and by whether its agent log and its receipt
    /// exist.
    async fn pieces(
        &self,
        writer: &str,
        (from, to): (u64, u64),
        stays: impl Fn(&str, u64, bool, bool) -> bool,
    ) -> Result<Vec<Piece>, Failure> {
        let given: [&(dyn ToSql + Sync); 3] = [&writer, &from.cast_signed(), &to.cast_signed()];
        let sql = "SELECT seq, size, root FROM gone WHERE writer = $1 AND seq >= $2 AND seq < $3";
        let mut pieces = Vec::new();
        for row in self.client().query(sql, &given).await.map_err(failed)? {
            let (seq, size): (i64, i64) = (row.get(0), row.get(1));
            let root = Hash::parse(row.get(2)).ok_or_else(|| {
                damaged("gone", format!("{writer} {seq}"), Unreadable::of("`root` is not a hash"))
            })?;
            let (seq, size) = (seq.unsigned_abs(), size.unsigned_abs());
            pieces.push(Piece::PrunedRange(PrunedRange { seq, size, root }));
        }
        let sql = "SELECT e.seq, e.body, e.zbody,
                       EXISTS (SELECT 1 FROM agent_logs l
                               WHERE l.writer = e.writer AND l.seq = e.seq),
                       EXISTS (SELECT 1 FROM receipts r WHERE r.receipt_id = e.receipt_id)
                   FROM events e WHERE e.writer = $1 AND e.seq >= $2 AND e.seq < $3";
        for row in self.client().query(sql, &given).await.map_err(failed)? {
            let seq = row.get::<_, i64>(0).unsigned_abs();
            let text = body::unpack(row.get(1), row.get(2))
                .map_err(|what| damaged("events", format!("{writer} {seq}"), what))?;
            let stays = stays(&text, seq, row.get(3), row.get(4));
            pieces.push(Piece::Event(seq, leaf_hash(text.as_bytes()), stays));
        }
        pieces.sort_by_key(Piece::seq);
        Ok(pieces)
    }

    /// Finds the events of a block that are older than `before` and account for no remaining
    /// record.
    async fn prune_part(
        &self,
        writer: &str,
        (from, to): (u64, u64),
        before: &str,
        set: &mut WorkingSet,
    ) -> Result<(), Failure> {
        let client = self.client();
        let sql = "SELECT writer, size FROM writers WHERE named";
        let rows = client.query(sql, &[]).await.map_err(failed)?;
        let ended = |row: &Row| (row.get(0), row.get::<_, i64>(1).unsigned_abs());
        let rules = EventRules {
            before: before.to_owned(),
            named: self.named_places(writer).await?,
            ended: rows.iter().map(ended).collect(),
        };
        let stays = |text: &str, seq: u64, has_log: bool, has_receipt: bool| {
            rules
                .accounts_for(seq, text)
                .is_none_or(|accounts| has_log || (has_receipt && accounts.receipt.is_some()))
        };
        let pieces = self.pieces(writer, (from, to), stays).await?;
        let cut = pruning::cut(from, to, &pieces);
        if !cut.removed.is_empty() {
            set.surveyed.removal.events = Some((writer.to_owned(), cut));
        }
        Ok(())
    }

    /// Adds the statements that remove the records selected by a step of pruning.
    pub(super) fn remove<'s>(
        &'s self,
        removal: &'s Removal,
        writes: &mut Vec<(&'s Statement, Parameters<'s>)>,
    ) {
        let s = &self.statements;
        if !removal.logs.is_empty() {
            let places = removal.logs.iter();
            let places = places.flat_map(|(writer, seqs)| {
                seqs.iter().map(|seq| (writer.clone(), seq.cast_signed()))
            });
            let (writers, seqs): (Vec<String>, Vec<i64>) = places.unzip();
            let marked = lost(writers.iter().cloned().zip(seqs.iter().copied()));
            writes.push((&s.lost, marked));
            writes.push((&s.remove_logs, vec![Box::new(writers), Box::new(seqs)]));
        }
        if let Some((writer, block)) = &removal.looked_at {
            let given: Parameters<'_> = vec![Box::new(writer), Box::new(block.cast_signed())];
            writes.push((&s.looked_at, given));
        }
        if let Some((writer, cut)) = &removal.events {
            let removed: Vec<i64> = cut.removed.iter().map(|seq| seq.cast_signed()).collect();
            writes.push((&s.remove_events, vec![Box::new(writer), Box::new(removed)]));
            let (from, to) = (cut.left.from.cast_signed(), cut.left.to.cast_signed());
            writes.push((&s.remove_gone, vec![Box::new(writer), Box::new(from), Box::new(to)]));
            writes.push((&s.put_gone, columns(writer, &cut.gone)));
        }
        if !removal.approvals.is_empty() {
            let ids: Vec<&str> = removal.approvals.iter().map(String::as_str).collect();
            writes.push((&s.remove_approvals, vec![Box::new(ids)]));
        }
        if !removal.documents.is_empty() {
            let digests: Vec<&str> = removal.documents.iter().map(String::as_str).collect();
            writes.push((&s.remove_documents, vec![Box::new(digests)]));
        }
        if !removal.calls.is_empty() {
            let (callers, ids): (Vec<&str>, Vec<&str>) = removal
                .calls
                .iter()
                .map(|(caller, call_id)| (caller.as_str(), call_id.as_str()))
                .unzip();
            writes.push((&s.remove_calls, vec![Box::new(callers), Box::new(ids)]));
        }
    }

    /// Returns the sequence numbers of a log that approvals, orders and asynchronous calls name.
    async fn named_places(&self, writer: &str) -> Result<BTreeSet<u64>, Failure> {
        let sql = "SELECT body FROM approvals WHERE strpos(body, $1) > 0
                   UNION ALL SELECT body FROM orders WHERE strpos(body, $1) > 0
                   UNION ALL SELECT queued_by FROM queue WHERE strpos(queued_by, $1) > 0
                   UNION ALL SELECT finished_by FROM queue WHERE strpos(finished_by, $1) > 0";
        let name = serde_json::Value::from(writer).to_string();
        let rows = self.client().query(sql, &[&name]).await.map_err(failed)?;
        let place = |text: &str| {
            // Invalid JSON names no event; `audit verify` reports it.
            let told: serde_json::Value = serde_json::from_str(text).ok()?;
            let at = told.get("auditSeq").unwrap_or(&told);
            at.get("seq").filter(|_| at.get("writer") == Some(&writer.into()))?.as_u64()
        };
        Ok(rows.iter().filter_map(|row| place(row.get(0))).collect())
    }
}
