//! The writer task: runs what has queued in one transaction and answers when it is durable.
//!
//! A batch costs two trips: one that locks and loads its rows, one that writes them and commits.
//!
//! Path: 6, 9. Doc: records.md#stores

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_channel::Receiver;
use futures_util::future::{join, join4, try_join_all};
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Row, Statement};
use toolbooth_audit::chain::Head;
use toolbooth_audit::ledger::Moment;
use toolbooth_audit::reads::{MILESTONES, PrunedLog, WriterHead};
use toolbooth_audit::steps::{OtherHead, PRUNE_MAX, Stored};
use toolbooth_audit::{LedgerError, checkpoint, steps};
use toolbooth_contracts::approval::Approval;
use toolbooth_contracts::receipt::{ClaimState, Receipt};

use super::connect::{Connection, Server};
use super::working::{Alone, Needs, Rows, Working, Written};
use super::{clean, unavailable};
use crate::asked::Asked;
use crate::watch::{Changes, Watch};
use crate::{body, corrupt};

/// Most jobs that one commit takes.
const BATCH_MAX: usize = 256;
/// Jobs that may wait; further ones wait for room.
pub(super) const QUEUE_MAX: usize = 4096;
/// How long one batch may take.
const BATCH_TIMEOUT: Duration = Duration::from_secs(20);

/// How long connecting anew and reading the log's end may take.
const RECOVER_TIMEOUT: Duration = Duration::from_secs(10);

/// After how long without renewal a writer is lost, in the database's words.
const LOST: &str = "interval '15 seconds'";

/// Something to do inside a transaction.
pub(super) trait Job: Send {
    /// What it looks at.
    fn needs(&self) -> Needs;
    /// Does it; `false` where it refused, which changes nothing.
    fn run(&mut self, records: &mut Working<'_>) -> bool;
    /// Answers whoever waits, once it is known whether the batch is durable.
    fn finish(self: Box<Self>, committed: Result<(), LedgerError>);
}

struct Step<T, F> {
    needs: Needs,
    asked: Asked<T, F>,
}

impl<T, F> Job for Step<T, F>
where
    T: Send,
    F: FnOnce(&mut Working<'_>) -> Result<T, LedgerError> + Send,
{
    fn needs(&self) -> Needs {
        self.needs.clone()
    }

    fn run(&mut self, records: &mut Working<'_>) -> bool {
        self.asked.run(|step| step(records))
    }

    fn finish(self: Box<Self>, committed: Result<(), LedgerError>) {
        self.asked.finish(committed);
    }
}

/// A job that runs `step` over what it needs, and where its answer arrives.
pub(super) fn job<T, F>(needs: Needs, step: F) -> (Box<dyn Job>, Receiver<Result<T, LedgerError>>)
where
    T: Send + 'static,
    F: FnOnce(&mut Working<'_>) -> Result<T, LedgerError> + Send + 'static,
{
    let (asked, answer) = Asked::new(step);
    (Box::new(Step { needs, asked }), answer)
}

/// A connection with its statements.
pub(super) struct Session {
    connection: Connection,
    statements: Statements,
}

macro_rules! statements {
    ($($name:ident = $sql:expr;)+) => {
        struct Statements { $($name: Statement,)+ }

        impl Statements {
            async fn prepare(client: &Client) -> Result<Self, tokio_postgres::Error> {
                $(let $name = client.prepare(&$sql).await?;)+
                Ok(Self { $($name,)+ })
            }
        }
    };
}

const RECEIPT: &str = "r.fence, r.body, r.zbody";

fn lost_owner() -> String {
    format!(
        "(w.writer IS NULL OR w.stopped OR w.renewed < clock_timestamp() - {LOST}) AS owner_lost"
    )
}

statements! {
    locks = "SELECT pg_advisory_xact_lock(l) FROM unnest($1::bigint[]) AS l";
    keys = "SELECT key, receipt_id FROM keys WHERE key = ANY($1)";
    receipts = format!(
        "SELECT {RECEIPT}, {} FROM receipts r LEFT JOIN writers w ON w.writer = r.writer
         WHERE r.receipt_id IN (SELECT k.receipt_id FROM keys k WHERE k.key = ANY($1)
                                UNION SELECT unnest($2::text[]))
         ORDER BY r.receipt_id FOR UPDATE OF r", lost_owner());
    rates = "SELECT r.tool, r.caller, r.tat_ms FROM rates r
             JOIN unnest($1::text[], $2::text[]) AS n (tool, caller)
                 ON n.tool = r.tool AND n.caller = r.caller";
    running = format!(
        "SELECT r.tool, count(*) FROM receipts r JOIN writers w ON w.writer = r.writer
         WHERE r.state = 'in_flight' AND r.tool = ANY($1)
             AND NOT w.stopped AND w.renewed >= clock_timestamp() - {LOST}
         GROUP BY r.tool");
    approvals = "SELECT a.body FROM approvals a
                 JOIN unnest($1::text[], $2::text[], $3::text[]) AS n (tool, caller, args)
                     ON n.tool = a.tool AND n.caller = a.caller AND n.args = a.args_digest
                 WHERE a.state <> 'spent'";
    approvals_by_id = "SELECT body FROM approvals WHERE approval_id = ANY($1)";
    lost = format!(
        "SELECT {RECEIPT}, true FROM receipts r LEFT JOIN writers w ON w.writer = r.writer
         WHERE r.state IN ('in_flight', 'awaiting_input') AND r.writer <> $1
             AND (w.writer IS NULL OR w.stopped OR w.renewed < clock_timestamp() - {LOST})
         ORDER BY r.receipt_id LIMIT 1000 FOR UPDATE OF r SKIP LOCKED");
    heads = format!(
        "SELECT w.writer, w.size, w.last_leaf, w.root, w.pruned,
             w.stopped OR w.renewed < clock_timestamp() - {LOST}
         FROM writers w WHERE w.writer <> $1 ORDER BY w.writer");
    unnamed = format!(
        "SELECT w.writer, w.size, w.last_leaf, w.root, w.pruned,
             w.stopped OR w.renewed < clock_timestamp() - {LOST}
         FROM writers w WHERE w.writer <> $1 AND NOT w.named ORDER BY w.writer LIMIT $2");
    renew = "UPDATE writers SET renewed = clock_timestamp() WHERE writer = $1 AND NOT stopped";
    stop = "UPDATE writers SET stopped = true WHERE writer = $1";
    prunable = format!(
        "SELECT {RECEIPT}, false, EXISTS (SELECT 1 FROM keys k WHERE k.receipt_id = r.receipt_id)
         FROM receipts r WHERE r.settled < $1 ORDER BY r.settled LIMIT $2 FOR UPDATE OF r SKIP LOCKED");
    remove_logs = "DELETE FROM agent_logs WHERE id IN
                       (SELECT id FROM agent_logs WHERE time < $1 ORDER BY time LIMIT $2)";
    put_receipts = "INSERT INTO receipts
                        (receipt_id, call_id, tool, state, writer, fence, settled, body, zbody)
                    SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::text[],
                        $5::text[], $6::bigint[], $7::text[], $8::text[], $9::bytea[])
                    ON CONFLICT (receipt_id) DO UPDATE SET
                        state = excluded.state, writer = excluded.writer, fence = excluded.fence,
                        settled = excluded.settled, body = excluded.body, zbody = excluded.zbody";
    remove_receipts = "DELETE FROM receipts WHERE receipt_id = ANY($1)";
    free_keys = "DELETE FROM keys WHERE receipt_id = ANY($1)";
    hold_keys = "INSERT INTO keys (key, receipt_id) SELECT * FROM unnest($1::text[], $2::text[])
                 ON CONFLICT (key) DO UPDATE SET receipt_id = excluded.receipt_id";
    put_rates = "INSERT INTO rates (tool, caller, tat_ms)
                 SELECT * FROM unnest($1::text[], $2::text[], $3::bigint[])
                 ON CONFLICT (tool, caller) DO UPDATE SET tat_ms = excluded.tat_ms";
    put_approvals = "INSERT INTO approvals
                         (approval_id, tool, caller, args_digest, contract_digest, state, body)
                     SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::text[],
                         $5::text[], $6::text[], $7::text[])
                     ON CONFLICT (approval_id) DO UPDATE SET
                         state = excluded.state, body = excluded.body";
    // Places grow with transactions, and no transaction waits for another's.
    put_events = "INSERT INTO events (writer, seq, place, time, tool, agent, call_id, status, code,
                      receipt_id, has_log, milestone, body)
                  SELECT $1::text, n.seq,
                      ((pg_current_xact_id()::text::bigint << 20) + n.ord),
                      n.time, n.tool, n.agent, n.call_id, n.status, n.code, n.receipt_id, n.has_log,
                      n.milestone, n.body
                  FROM unnest($2::bigint[], $3::text[], $4::text[], $5::text[], $6::text[],
                      $7::text[], $8::text[], $9::text[], $10::boolean[], $11::boolean[],
                      $12::text[])
                      WITH ORDINALITY AS n (seq, time, tool, agent, call_id, status, code,
                          receipt_id, has_log, milestone, body, ord)";
    put_logs = "INSERT INTO agent_logs (id, writer, seq, time, tool, agent, turn, phase, epic,
                    call_id, is_error, body, zbody)
                SELECT n.id, $1::text, n.seq, n.time, n.tool, n.agent, n.turn, n.phase, n.epic,
                    n.call_id, n.is_error, n.body, n.zbody
                FROM unnest($2::text[], $3::bigint[], $4::text[], $5::text[], $6::text[],
                    $7::bigint[], $8::text[], $9::text[], $10::text[], $11::boolean[],
                    $12::text[], $13::bytea[])
                    AS n (id, seq, time, tool, agent, turn, phase, epic, call_id, is_error, body,
                        zbody)";
    // One that has grown since its head was read is named by a later checkpoint.
    name_writers = "UPDATE writers w SET named = true
                    FROM unnest($1::text[], $2::bigint[]) AS n (writer, size)
                    WHERE w.writer = n.writer AND w.size = n.size";
    set_checkpoint = "UPDATE writers SET checkpoint = $2 WHERE writer = $1";
    // A writer that others took for lost and named for good comes back.
    advance = "UPDATE writers SET size = $3, last_leaf = $4, root = $5, named = false,
                   renewed = clock_timestamp()
               WHERE writer = $1 AND size = $2 AND NOT stopped";
}

impl Session {
    async fn begin(server: &Server) -> Result<Self, LedgerError> {
        let connection = server.connect().await.map_err(unavailable)?;
        let statements = Statements::prepare(&connection.client).await.map_err(unavailable)?;
        Ok(Self { connection, statements })
    }
}

/// A commit of which nobody knows whether it has happened.
struct Doubt {
    /// Where the log ends if it has.
    after: Head,
    /// What it has done then.
    changes: Changes,
}

/// What the writer task owns.
pub(super) struct Writer {
    server: Server,
    key_id: String,
    /// Where the log ends, as far as is known.
    head: Head,
    session: Option<Session>,
    doubt: Option<Doubt>,
    /// Claims whose callers were told that nothing is dispatched, and which are durable after all.
    orphans: Vec<(String, u64, Moment)>,
    watch: Arc<Watch>,
}

impl Writer {
    pub(super) fn new(server: Server, key_id: String, head: Head, watch: Arc<Watch>) -> Self {
        Self { server, key_id, head, session: None, doubt: None, orphans: Vec::new(), watch }
    }

    /// Serves jobs until nobody can send any more.
    pub(super) async fn serve(mut self, jobs: Receiver<Box<dyn Job>>) {
        let mut left: Option<Box<dyn Job>> = None;
        loop {
            let first = match left.take() {
                Some(job) => job,
                None => match jobs.recv().await {
                    Ok(job) => job,
                    Err(_) => return,
                },
            };
            let mut needs = first.needs();
            let mut batch = vec![first];
            while needs.alone.is_none() && batch.len() < BATCH_MAX {
                let Ok(more) = jobs.try_recv() else { break };
                let own = more.needs();
                if own.alone.is_some() {
                    left = Some(more);
                    break;
                }
                needs.add(own);
                batch.push(more);
            }
            let committed = self.commit(needs, &mut batch).await;
            self.watch.set_health(committed.as_ref().err());
            for job in batch {
                job.finish(committed.clone());
            }
        }
    }

    async fn commit(
        &mut self,
        needs: Needs,
        batch: &mut [Box<dyn Job>],
    ) -> Result<(), LedgerError> {
        if self.session.is_none() {
            let late = self.recover().await?;
            // Whoever waited for that commit was told that it failed.
            self.orphans.extend(late.begun);
        }
        let Some(session) = self.session.take() else {
            return Err(LedgerError::Unavailable("there is no connection".to_owned()));
        };
        let (mut head, mut changes) = (self.head.clone(), Changes::default());
        let trying = self.try_commit(&session, needs, batch, &mut head, &mut changes);
        let done = tokio::time::timeout(BATCH_TIMEOUT, trying).await.unwrap_or_else(|_| {
            Err(LedgerError::Unavailable("the database did not answer in time".to_owned()))
        });
        match done {
            Ok(()) => {
                self.session = Some(session);
                self.head = head;
                self.orphans.clear();
                self.watch.tell(changes);
                Ok(())
            }
            Err(error) => {
                tracing::error!(%error, "a commit failed; the log's end is read again");
                drop(session);
                // Red at once: finding out what has happened may take a while.
                self.watch.set_health(Some(&error));
                let before = self.head.next_seq();
                self.doubt = Some(Doubt { after: head, changes });
                // It may be known at once that it has happened all the same.
                match self.recover().await {
                    Ok(changes) if self.head.next_seq() > before => {
                        self.orphans.clear();
                        self.watch.tell(changes);
                        Ok(())
                    }
                    _ => {
                        if let Some(doubt) = &self.doubt {
                            self.watch.forget(&doubt.changes);
                        }
                        Err(error)
                    }
                }
            }
        }
    }

    /// A fresh connection, and whether the commit in doubt has happened: the own row of `writers`
    /// is locked by a transaction that has not ended, so that reading it for update waits for its
    /// end. Gives what that commit has done, where it has happened.
    async fn recover(&mut self) -> Result<Changes, LedgerError> {
        let asking = async {
            let session = Session::begin(&self.server).await?;
            let sql = "SELECT size, last_leaf FROM writers WHERE writer = $1 FOR UPDATE";
            let row = session
                .connection
                .client
                .query_opt(sql, &[&self.head.writer()])
                .await
                .map_err(unavailable)?;
            Ok::<_, LedgerError>((session, row))
        };
        let asked = tokio::time::timeout(RECOVER_TIMEOUT, asking).await;
        let (session, row) = asked.unwrap_or_else(|_| {
            Err(LedgerError::Unavailable("the database did not answer in time".to_owned()))
        })?;
        let red = |what: &str| Err(LedgerError::Unavailable(what.to_owned()));
        let Some(row) = row else {
            return red("the database does not know this writer; restart");
        };
        let (size, leaf): (i64, Option<String>) = (row.get(0), row.get(1));
        let is = |head: &Head| {
            u64::try_from(size).ok() == Some(head.next_seq()) && leaf == head.last_leaf()
        };
        let changes = if is(&self.head) {
            if let Some(doubt) = self.doubt.take() {
                self.watch.forget(&doubt.changes);
            }
            Changes::default()
        } else {
            match self.doubt.take() {
                Some(doubt) if is(&doubt.after) => {
                    self.head = doubt.after;
                    doubt.changes
                }
                doubt => {
                    self.doubt = doubt;
                    return red("the log of this writer is not where it left it; restart");
                }
            }
        };
        self.session = Some(session);
        Ok(changes)
    }

    async fn try_commit(
        &self,
        session: &Session,
        mut needs: Needs,
        batch: &mut [Box<dyn Job>],
        head: &mut Head,
        changes: &mut Changes,
    ) -> Result<(), LedgerError> {
        let client = &session.connection.client;
        needs.receipts.extend(self.orphans.iter().map(|(id, _, _)| id.clone()));
        let mut rows = load(session, &needs, head.writer()).await?;
        let mut working =
            Working { key_id: &self.key_id, head, rows: &mut rows, changes, watch: &self.watch };
        for (id, fence, at) in &self.orphans {
            steps::abandon(&mut working, id, *fence, at)?;
        }
        for job in batch {
            let before = working.rows.written.count();
            if !job.run(&mut working) && working.rows.written.count() != before {
                // A step refuses before it writes; one that does not takes its batch along.
                return Err(LedgerError::Unavailable("a step ended half-way".to_owned()));
            }
        }
        let written = std::mem::take(&mut rows.written);
        flush(session, &self.head, head, &rows, written).await?;
        // The answer says ROLLBACK where a statement before has failed; that one has told so.
        client.batch_execute("COMMIT").await.map_err(unavailable)
    }
}

fn stored(row: &Row, lost: bool) -> Result<Stored, LedgerError> {
    let receipt: Receipt = body::read("a receipt", row.get(1), row.get(2))?;
    let runs = matches!(receipt.state, ClaimState::InFlight | ClaimState::AwaitingInput);
    Ok(Stored { fence: row.get::<_, i64>(0).unsigned_abs(), owner_lost: runs && lost, receipt })
}

/// Begins the transaction, locks, and reads what the jobs look at: sent at once, done in order.
async fn load(session: &Session, needs: &Needs, writer: &str) -> Result<Rows, LedgerError> {
    let (client, s) = (&session.connection.client, &session.statements);
    let locks = needs.locks();
    let (rate_tools, rate_callers): (Vec<&String>, Vec<&String>) =
        needs.rates.iter().map(|(tool, caller)| (tool, caller)).unzip();
    let approvals = |part: usize| -> Vec<&String> {
        needs.approvals.iter().filter_map(|names| names.get(part)).collect()
    };
    let (tools, callers, args) = (approvals(0), approvals(1), approvals(2));
    let nothing = async { Ok(Vec::new()) };
    let locking = async {
        if locks.is_empty() { nothing.await } else { client.query(&s.locks, &[&locks]).await }
    };
    let by_key = async {
        if needs.keys.is_empty() && needs.receipts.is_empty() {
            return Ok((Vec::new(), Vec::new()));
        }
        let params: [&(dyn ToSql + Sync); 2] = [&needs.keys, &needs.receipts];
        let (keys, receipts) =
            join(client.query(&s.keys, &[&needs.keys]), client.query(&s.receipts, &params)).await;
        Ok::<_, tokio_postgres::Error>((keys?, receipts?))
    };
    let charges = async {
        let rates = async {
            if rate_tools.is_empty() {
                return Ok(Vec::new());
            }
            client.query(&s.rates, &[&rate_tools, &rate_callers]).await
        };
        let running = async {
            if needs.running.is_empty() {
                return Ok(Vec::new());
            }
            client.query(&s.running, &[&needs.running]).await
        };
        let approvals = async {
            if tools.is_empty() {
                return Ok(Vec::new());
            }
            client.query(&s.approvals, &[&tools, &callers, &args]).await
        };
        let (rates, (running, approvals)) = join(rates, join(running, approvals)).await;
        Ok::<_, tokio_postgres::Error>((rates?, running?, approvals?))
    };
    // Polled in this order, they are sent in this order.
    let (begun, locked, found, charged) = join4(
        client.batch_execute("BEGIN ISOLATION LEVEL READ COMMITTED"),
        locking,
        by_key,
        charges,
    )
    .await;
    begun.map_err(unavailable)?;
    locked.map_err(unavailable)?;
    let (keys, receipts) = found.map_err(unavailable)?;
    let (rates, running, approvals) = charged.map_err(unavailable)?;
    let mut rows = Rows::default();
    rows.keys.extend(keys.iter().map(|row| (row.get(0), row.get(1))));
    for row in &receipts {
        let mut stored = stored(row, row.get(3))?;
        stored.owner_lost &= stored.receipt.writer != writer;
        rows.receipts.insert(stored.receipt.receipt_id.clone(), stored);
    }
    rows.rates.extend(rates.iter().map(|row| ((row.get(0), row.get(1)), row.get(2))));
    rows.running.extend(needs.running.iter().map(|tool| (tool.clone(), 0)));
    rows.running.extend(running.iter().map(|row| (row.get(0), row.get(1))));
    for row in &approvals {
        add_approval(&mut rows, row)?;
    }
    let spent: Vec<String> =
        rows.receipts.values().filter_map(|stored| stored.receipt.approval_id.clone()).collect();
    if !spent.is_empty() {
        let found = client.query(&s.approvals_by_id, &[&spent]).await.map_err(unavailable)?;
        for row in &found {
            add_approval(&mut rows, row)?;
        }
    }
    if let Some(alone) = &needs.alone {
        load_alone(session, alone, writer, &mut rows).await?;
    }
    Ok(rows)
}

fn add_approval(rows: &mut Rows, row: &Row) -> Result<(), LedgerError> {
    let text: String = row.get(0);
    let approval: Approval =
        serde_json::from_str(&text).map_err(|error| corrupt("an approval", &error))?;
    rows.approvals.insert(approval.approval_id.clone(), approval);
    Ok(())
}

pub(super) fn head_of(row: &Row) -> WriterHead {
    let pruned: Option<String> = row.get(4);
    WriterHead {
        writer: row.get(0),
        size: row.get::<_, i64>(1).unsigned_abs(),
        last_leaf: row.get(2),
        root: row.get(3),
        pruned: pruned.and_then(|text| serde_json::from_str(&text).ok()),
    }
}

async fn load_alone(
    session: &Session,
    alone: &Alone,
    writer: &str,
    rows: &mut Rows,
) -> Result<(), LedgerError> {
    let (client, s) = (&session.connection.client, &session.statements);
    let limit = i64::try_from(PRUNE_MAX).unwrap_or(i64::MAX);
    match alone {
        Alone::Lost => {
            for row in &client.query(&s.lost, &[&writer]).await.map_err(unavailable)? {
                let stored = stored(row, true)?;
                rows.lost.push(stored.receipt.receipt_id.clone());
                rows.receipts.insert(stored.receipt.receipt_id.clone(), stored);
            }
        }
        Alone::Renew => {
            let renewed = client.execute(&s.renew, &[&writer]).await.map_err(unavailable)?;
            if renewed != 1 {
                return Err(LedgerError::Unavailable(
                    "the database does not know this writer; restart".to_owned(),
                ));
            }
        }
        Alone::AllHeads => {
            let found = client.query(&s.heads, &[&writer]).await.map_err(unavailable)?;
            rows.heads = found
                .iter()
                .map(|row| OtherHead { head: head_of(row), ended: row.get(5) })
                .collect();
        }
        Alone::Heads => {
            let most = i64::try_from(checkpoint::HEADS_MAX).unwrap_or(i64::MAX);
            let found = client.query(&s.unnamed, &[&writer, &most]).await.map_err(unavailable)?;
            rows.heads = found
                .iter()
                .map(|row| OtherHead { head: head_of(row), ended: row.get(5) })
                .collect();
        }
        Alone::Prunable(before) => {
            let found = client.query(&s.prunable, &[before, &limit]).await.map_err(unavailable)?;
            for row in &found {
                let stored = stored(row, false)?;
                rows.receipts.insert(stored.receipt.receipt_id.clone(), stored.clone());
                rows.prunable.push((stored, row.get(4)));
            }
        }
        Alone::Logs(before) => {
            rows.removed_logs =
                client.execute(&s.remove_logs, &[before, &limit]).await.map_err(unavailable)?;
        }
        Alone::Events(before) => rows.removed_events = remove_events(client, before).await?,
    }
    Ok(())
}

/// Removes the events of one writer up to its next checkpoint, where they fit it.
async fn remove_events(
    client: &Client,
    before: &str,
) -> Result<Option<(String, u64)>, LedgerError> {
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
        .map_err(unavailable)?;
    let Some(row) = found else { return Ok(None) };
    let (writer, size, checkpoint, base, pruned): (String, i64, String, i64, Option<String>) =
        (row.get(0), row.get(1), row.get(2), row.get(3), row.get(4));
    let old: Option<PrunedLog> = pruned.and_then(|text| serde_json::from_str(&text).ok());
    let bodies = client
        .query(
            "SELECT body FROM events WHERE writer = $1 AND seq >= $2 AND seq < $3 ORDER BY seq",
            &[&writer, &base, &size],
        )
        .await
        .map_err(unavailable)?;
    let bodies: Vec<String> = bodies.iter().map(|row| row.get(0)).collect();
    let kept = crate::pruned::fold(old, &bodies, size.unsigned_abs(), &checkpoint)
        .map_err(|what| corrupt("a log that is to be pruned", &what))?;
    let text = serde_json::to_string(&kept).map_err(|error| corrupt("a record", &error))?;
    client
        .execute(
            "UPDATE writers SET pruned_size = $2, pruned = $3 WHERE writer = $1",
            &[&writer, &size, &text],
        )
        .await
        .map_err(unavailable)?;
    let removed = client
        .execute("DELETE FROM events WHERE writer = $1 AND seq < $2", &[&writer, &size])
        .await
        .map_err(unavailable)?;
    Ok(Some((writer, removed)))
}

type Parameters = Vec<Box<dyn ToSql + Sync + Send>>;

/// Writes what the jobs have done: sent at once, done in order.
async fn flush(
    session: &Session,
    from: &Head,
    to: &Head,
    rows: &Rows,
    written: Written,
) -> Result<(), LedgerError> {
    let s = &session.statements;
    let mut writes: Vec<(&Statement, Parameters)> = Vec::new();
    if !written.freed.is_empty() {
        let freed: Vec<String> = written.freed.into_iter().collect();
        writes.push((&s.free_keys, vec![Box::new(freed)]));
    }
    let receipts: Vec<&Stored> =
        written.receipts.iter().filter_map(|id| rows.receipts.get(id)).collect();
    if !receipts.is_empty() {
        writes.push((&s.put_receipts, receipt_columns(&receipts)?));
    }
    if !written.removed.is_empty() {
        writes.push((&s.remove_receipts, vec![Box::new(written.removed)]));
    }
    let held: BTreeMap<String, String> = written
        .held
        .into_iter()
        .filter_map(|key| rows.keys.get(&key).map(|id| (key.clone(), id.clone())))
        .collect();
    if !held.is_empty() {
        let (keys, ids): (Vec<String>, Vec<String>) = held.into_iter().unzip();
        writes.push((&s.hold_keys, vec![Box::new(keys), Box::new(ids)]));
    }
    if !written.rates.is_empty() {
        let mut columns: (Vec<String>, Vec<String>, Vec<i64>) = Default::default();
        for name in written.rates {
            columns.2.push(rows.rates.get(&name).copied().unwrap_or_default());
            columns.0.push(name.0);
            columns.1.push(name.1);
        }
        writes.push((
            &s.put_rates,
            vec![Box::new(columns.0), Box::new(columns.1), Box::new(columns.2)],
        ));
    }
    let approvals: Vec<&Approval> =
        written.approvals.iter().filter_map(|id| rows.approvals.get(id)).collect();
    if !approvals.is_empty() {
        writes.push((&s.put_approvals, approval_columns(&approvals)?));
    }
    if !written.events.is_empty() {
        writes.push((&s.put_events, event_columns(to.writer(), written.events)));
    }
    if !written.logs.is_empty() {
        writes.push((&s.put_logs, log_columns(to.writer(), &written.logs)?));
    }
    if !written.named.is_empty() {
        let sizes: Vec<i64> = written
            .named
            .iter()
            .map(|named| {
                let head = rows.heads.iter().find(|other| other.head.writer == *named);
                i64::try_from(head.map_or(0, |other| other.head.size)).unwrap_or(i64::MAX)
            })
            .collect();
        writes.push((&s.name_writers, vec![Box::new(written.named), Box::new(sizes)]));
    }
    if let Some(note) = written.checkpoint {
        writes.push((&s.set_checkpoint, vec![Box::new(to.writer().to_owned()), Box::new(note)]));
    }
    let number = |size: u64| i64::try_from(size).unwrap_or(i64::MAX);
    let moves = to.next_seq() != from.next_seq();
    if moves {
        writes.push((
            &s.advance,
            vec![
                Box::new(to.writer().to_owned()),
                Box::new(number(from.next_seq())),
                Box::new(number(to.next_seq())),
                Box::new(to.last_leaf()),
                Box::new(to.frontier().root().to_string()),
            ],
        ));
    }
    if written.stopped {
        writes.push((&s.stop, vec![Box::new(to.writer().to_owned())]));
    }
    let client = &session.connection.client;
    let all = writes.iter().map(|(statement, parameters)| async move {
        let parameters: Vec<&(dyn ToSql + Sync)> =
            parameters.iter().map(|value| &**value as &(dyn ToSql + Sync)).collect();
        client.execute(*statement, &parameters).await
    });
    let counts = try_join_all(all).await.map_err(unavailable)?;
    // Where the log ends is written last, or last but for the end of the writer.
    let advanced = if written.stopped { counts.iter().rev().nth(1) } else { counts.last() };
    if moves && advanced != Some(&1) {
        return Err(LedgerError::Unavailable(
            "the log of this writer is not where it left it; restart".to_owned(),
        ));
    }
    Ok(())
}

fn receipt_columns(receipts: &[&Stored]) -> Result<Parameters, LedgerError> {
    let mut ids = Vec::new();
    let (mut calls, mut tools, mut states, mut writers) =
        (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let (mut fences, mut settled, mut texts, mut packed) =
        (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for Stored { receipt, fence, .. } in receipts {
        let body = body::pack(receipt)?;
        ids.push(receipt.receipt_id.clone());
        calls.push(clean(&receipt.call_id));
        tools.push(clean(&receipt.tool_id));
        states.push(receipt.state.as_str());
        writers.push(receipt.writer.clone());
        fences.push(i64::try_from(*fence).unwrap_or(i64::MAX));
        settled.push(match receipt.state {
            ClaimState::Succeeded | ClaimState::Failed if receipt.pruned_at.is_none() => {
                receipt.settled_at.clone()
            }
            _ => None,
        });
        texts.push(body.text);
        packed.push(body.packed);
    }
    Ok(vec![
        Box::new(ids),
        Box::new(calls),
        Box::new(tools),
        Box::new(states),
        Box::new(writers),
        Box::new(fences),
        Box::new(settled),
        Box::new(texts),
        Box::new(packed),
    ])
}

fn approval_columns(approvals: &[&Approval]) -> Result<Parameters, LedgerError> {
    let mut columns: [Vec<String>; 7] = Default::default();
    for approval in approvals {
        let state = serde_json::to_value(approval.state).unwrap_or_default();
        let text = serde_json::to_string(approval).map_err(|error| corrupt("a record", &error))?;
        let values = [
            approval.approval_id.clone(),
            clean(&approval.tool_id),
            clean(&approval.caller),
            approval.args_digest.clone(),
            approval.contract_digest.clone(),
            state.as_str().unwrap_or_default().to_owned(),
            text,
        ];
        for (column, value) in columns.iter_mut().zip(values) {
            column.push(value);
        }
    }
    Ok(columns.into_iter().map(|column| Box::new(column) as Box<dyn ToSql + Sync + Send>).collect())
}

fn event_columns(writer: &str, events: Vec<toolbooth_audit::chain::Placed>) -> Parameters {
    let mut seqs = Vec::new();
    let mut texts: [Vec<Option<String>>; 7] = Default::default();
    let (mut has_log, mut milestones, mut bodies) = (Vec::new(), Vec::new(), Vec::new());
    for placed in events {
        let body = &placed.event.body;
        seqs.push(i64::try_from(placed.event.seq).unwrap_or(i64::MAX));
        let values = [
            Some(body.time.clone()),
            body.tool_name.as_deref().map(clean),
            body.agent_id.as_deref().map(clean),
            body.call_id.as_deref().map(clean),
            body.status.map(|status| status.as_str().to_owned()),
            body.error_code.map(|code| code.as_str().to_owned()),
            body.receipt_id.clone(),
        ];
        for (column, value) in texts.iter_mut().zip(values) {
            column.push(value);
        }
        has_log.push(body.log_digest.is_some());
        milestones.push(MILESTONES.contains(&body.event));
        bodies.push(placed.bytes);
    }
    let mut parameters: Parameters = vec![Box::new(writer.to_owned()), Box::new(seqs)];
    parameters
        .extend(texts.into_iter().map(|column| Box::new(column) as Box<dyn ToSql + Sync + Send>));
    parameters.push(Box::new(has_log));
    parameters.push(Box::new(milestones));
    parameters.push(Box::new(bodies));
    parameters
}

fn log_columns(
    writer: &str,
    logs: &[(toolbooth_contracts::agent_log::AgentLog, u64)],
) -> Result<Parameters, LedgerError> {
    let number = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    let of = |read: &dyn Fn(&toolbooth_contracts::agent_log::AgentLog) -> Option<String>| {
        logs.iter().map(|(log, _)| read(log).map(|text| clean(&text))).collect::<Vec<_>>()
    };
    let mut texts = Vec::new();
    let mut packed = Vec::new();
    for (log, _) in logs {
        let body = body::pack(log)?;
        texts.push(body.text);
        packed.push(body.packed);
    }
    let seqs: Vec<i64> = logs.iter().map(|(_, seq)| number(*seq)).collect();
    let turns: Vec<Option<i64>> = logs.iter().map(|(log, _)| log.turn_index.map(number)).collect();
    let errors: Vec<bool> = logs.iter().map(|(log, _)| log.is_error).collect();
    Ok(vec![
        Box::new(writer.to_owned()),
        Box::new(of(&|log| Some(log.id.clone()))),
        Box::new(seqs),
        Box::new(of(&|log| Some(log.timestamp.clone()))),
        Box::new(of(&|log| Some(log.tool_name.clone()))),
        Box::new(of(&|log| log.agent_id.clone())),
        Box::new(turns),
        Box::new(of(&|log| log.phase_id.clone())),
        Box::new(of(&|log| log.epic_id.clone())),
        Box::new(of(&|log| Some(log.call_id.clone()))),
        Box::new(errors),
        Box::new(texts),
        Box::new(packed),
    ])
}
