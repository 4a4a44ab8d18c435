//! Shortening logs by what accounts for nothing any more.
//!
//! Doc: records.md#retention

use std::collections::BTreeSet;

use tokio_postgres::types::ToSql;
use toolbooth_audit::LedgerError;
use toolbooth_audit::merkle::{Hash, leaf_hash};
use toolbooth_audit::pruning::{self, BLOCK, Gone, Piece, Progress};
use toolbooth_audit::reads::PrunedLog;
use toolbooth_audit::working::WorkingSet;
use toolbooth_audit::writer::Failure;

use super::backend::{Parameters, Session, failed};
use crate::{corrupt, pruned};

/// The advisory lock of whoever shortens logs; others leave it to them.
const LOCK: i64 = 0x746f_6f6c_7072_756e;
/// Checkpoints that are looked at at once.
const CHECKPOINTS: i64 = 64;
/// Events of which the tree is computed in one step.
const COMPUTED_MAX: u64 = 8 * BLOCK;

fn wrong(what: &str) -> Failure {
    Failure::Refused(corrupt("a log that is to be pruned", &what))
}

fn progress_of(text: Option<String>) -> Progress {
    text.and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default()
}

fn text_of(progress: &Progress) -> Result<String, LedgerError> {
    serde_json::to_string(progress).map_err(|error| corrupt("a record", &error))
}

/// The parameters that put what is gone of a log.
fn columns(writer: &str, gone: &[Gone]) -> Parameters {
    let seqs: Vec<i64> = gone.iter().map(|part| part.seq.cast_signed()).collect();
    let sizes: Vec<i64> = gone.iter().map(|part| part.size.cast_signed()).collect();
    let roots: Vec<String> = gone.iter().map(|part| part.root.to_string()).collect();
    vec![Box::new(writer.to_owned()), Box::new(seqs), Box::new(sizes), Box::new(roots)]
}

/// The beginning of a log that an earlier version has removed: what is gone, and how far it was
/// looked through.
pub(super) fn adopted(
    writer: &str,
    log: &PrunedLog,
) -> Result<(Parameters, Parameters), LedgerError> {
    let gone = pruned::parts(log)
        .ok_or_else(|| corrupt("a writer", &"the beginning of a pruned log cannot be read"))?;
    let (done, peaks) = (log.size, log.peaks.clone());
    let progress = Progress { computed: done, peaks, sound: done, done };
    let progress: Parameters = vec![Box::new(writer.to_owned()), Box::new(text_of(&progress)?)];
    Ok((columns(writer, &gone), progress))
}

impl Session {
    /// The next step of shortening logs: a block that lost a record since, or that comes next.
    pub(super) async fn remove_events(
        &self,
        before: &str,
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
        let stale = client
            .query_opt(
                "DELETE FROM stale WHERE (writer, block) =
                     (SELECT writer, block FROM stale ORDER BY writer, block LIMIT 1)
                 RETURNING writer, block",
                &[],
            )
            .await
            .map_err(failed)?;
        if let Some(row) = stale {
            set.surveyed.more = true;
            let (writer, block): (String, i64) = (row.get(0), row.get(1));
            let sql = "SELECT pruned FROM writers WHERE writer = $1";
            let row = client.query_opt(sql, &[&writer]).await.map_err(failed)?;
            let Some(progress) = row.map(|row| progress_of(row.get(0))) else { return Ok(()) };
            let from = block.unsigned_abs() * BLOCK;
            return self
                .shorten(&writer, (from, progress.done.min(from + BLOCK)), before, set)
                .await;
        }
        let sql = "SELECT writer, pruned FROM writers ORDER BY writer";
        for row in client.query(sql, &[]).await.map_err(failed)? {
            let (writer, mut progress): (String, _) = (row.get(0), progress_of(row.get(1)));
            if progress.done < progress.sound {
                let from = progress.done - progress.done % BLOCK;
                let to = progress.sound.min(from + BLOCK);
                progress.done = to;
                self.set_progress(&writer, &progress).await?;
                set.surveyed.more = true;
                return self.shorten(&writer, (from, to), before, set).await;
            }
            if let Some(next) = self.next_checkpoint(&writer, progress.sound, before).await? {
                self.compute(&writer, &mut progress, next).await?;
                set.surveyed.more = true;
                return self.set_progress(&writer, &progress).await;
            }
        }
        Ok(())
    }

    async fn set_progress(&self, writer: &str, progress: &Progress) -> Result<(), Failure> {
        let text = text_of(progress).map_err(Failure::Refused)?;
        let given: Parameters = vec![Box::new(writer.to_owned()), Box::new(text)];
        self.ask(&self.statements.set_pruned, &given).await.map(drop).map_err(failed)
    }

    /// The newest of the next checkpoints of a log from before a time: how many events it covers,
    /// and its root.
    async fn next_checkpoint(
        &self,
        writer: &str,
        after: u64,
        before: &str,
    ) -> Result<Option<(u64, Hash)>, Failure> {
        let sql = "SELECT body FROM events WHERE writer = $1 AND seq > $2 AND milestone
                   ORDER BY seq LIMIT $3";
        let given: [&(dyn ToSql + Sync); 3] = [&writer, &after.cast_signed(), &CHECKPOINTS];
        let mut newest = None;
        for row in self.client().query(sql, &given).await.map_err(failed)? {
            match pruned::checkpoint(row.get(0)) {
                Some((time, _)) if time.as_str() >= before => break,
                Some((_, signed)) => newest = Some((signed.size, signed.root)),
                None => (),
            }
        }
        Ok(newest)
    }

    /// Computes the tree of a log anew, towards a checkpoint; there it has to fit.
    async fn compute(
        &self,
        writer: &str,
        progress: &mut Progress,
        (to, root): (u64, Hash),
    ) -> Result<(), Failure> {
        let mut frontier =
            progress.frontier().ok_or_else(|| wrong("its beginning cannot be read"))?;
        let end = to.min(progress.computed + COMPUTED_MAX);
        let keep_all = |_: &str, _: u64, _: bool, _: bool| true;
        for piece in self.pieces(writer, (progress.computed, end), keep_all).await? {
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

    /// The events of a part of a log and what is gone of it, in order; `stays` is told of each event,
    /// its place, and whether its agent log and its receipt are there.
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
            let root = Hash::parse(row.get(2)).ok_or_else(|| wrong("what is gone is no hash"))?;
            let (seq, size): (i64, i64) = (row.get(0), row.get(1));
            let (seq, size) = (seq.unsigned_abs(), size.unsigned_abs());
            pieces.push(Piece::Gone(Gone { seq, size, root }));
        }
        let sql = "SELECT e.seq, e.body,
                       EXISTS (SELECT 1 FROM agent_logs l
                               WHERE l.writer = e.writer AND l.seq = e.seq),
                       EXISTS (SELECT 1 FROM receipts r WHERE r.receipt_id = e.receipt_id)
                   FROM events e WHERE e.writer = $1 AND e.seq >= $2 AND e.seq < $3";
        for row in self.client().query(sql, &given).await.map_err(failed)? {
            let (seq, text): (i64, &str) = (row.get(0), row.get(1));
            let seq = seq.unsigned_abs();
            let stays = stays(text, seq, row.get(2), row.get(3));
            pieces.push(Piece::Event(seq, leaf_hash(text.as_bytes()), stays));
        }
        pieces.sort_by_key(Piece::seq);
        Ok(pieces)
    }

    /// Removes from a block what accounts for nothing any more and is from before a time.
    async fn shorten(
        &self,
        writer: &str,
        (from, to): (u64, u64),
        before: &str,
        set: &mut WorkingSet,
    ) -> Result<(), Failure> {
        let client = self.client();
        let sql = "SELECT (body::json #>> '{auditSeq,seq}')::bigint FROM approvals
                       WHERE body::json #>> '{auditSeq,writer}' = $1
                   UNION SELECT (queued_by::json ->> 'seq')::bigint FROM queue
                       WHERE queued_by::json ->> 'writer' = $1
                   UNION SELECT (finished_by::json ->> 'seq')::bigint FROM queue
                       WHERE finished_by::json ->> 'writer' = $1";
        let named = client.query(sql, &[&writer]).await.map_err(failed)?;
        let named: BTreeSet<u64> =
            named.iter().map(|row| row.get::<_, i64>(0).unsigned_abs()).collect();
        let stays = |text: &str, seq: u64, has_log: bool, has_receipt: bool| {
            let told = pruned::Told::of(text).filter(|told| told.may_go(before));
            told.is_none_or(|told| {
                named.contains(&seq) || has_log || (has_receipt && told.receipt().is_some())
            })
        };
        let pieces = self.pieces(writer, (from, to), stays).await?;
        let cut = pruning::cut(from, to, &pieces);
        if cut.removed.is_empty() {
            return Ok(());
        }
        let removed: Vec<i64> = cut.removed.iter().map(|seq| seq.cast_signed()).collect();
        let sql = "DELETE FROM events WHERE writer = $1 AND seq = ANY($2)";
        client.execute(sql, &[&writer, &removed]).await.map_err(failed)?;
        let sql = "DELETE FROM gone WHERE writer = $1 AND seq >= $2 AND seq < $3";
        let given: [&(dyn ToSql + Sync); 3] = [&writer, &from.cast_signed(), &to.cast_signed()];
        client.execute(sql, &given).await.map_err(failed)?;
        let given = columns(writer, &cut.gone);
        self.ask(&self.statements.put_gone, &given).await.map_err(failed)?;
        set.surveyed.removed = cut.removed.len() as u64;
        set.surveyed.left = Some((writer.to_owned(), cut.left));
        Ok(())
    }
}
