//! The queue of asynchronous calls: any replica's worker takes what waits, and none waits for
//! another.
//!
//! Path: 2. Doc: records.md#the-queue

use std::time::Duration;

use async_trait::async_trait;
use serde_json::Value;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Row};
use toolbooth_audit::LedgerError;
use toolbooth_audit::ledger::Moment;
use toolbooth_audit::queue::{Beat, CallQueue, Enqueued, QueueState, QueuedCall};

use super::ledger::PostgresLedger;
use super::{clean, unavailable};

pub(super) const COLUMNS: &str = "call_id, caller, request, state, enqueued, finished, worker, \
                                  deliveries, cancel, progress, result";
/// How long one step may take.
const STEP_TIMEOUT: Duration = Duration::from_secs(10);

fn call(row: &Row) -> QueuedCall {
    let state: String = row.get(3);
    let progress: Option<String> = row.get(9);
    QueuedCall {
        call_id: row.get(0),
        caller: row.get(1),
        request: row.get(2),
        state: [QueueState::Queued, QueueState::Running, QueueState::Done]
            .into_iter()
            .find(|known| known.as_str() == state)
            .unwrap_or(QueueState::Queued),
        enqueued_at: row.get(4),
        finished_at: row.get(5),
        worker: row.get(6),
        deliveries: row.get::<_, i32>(7).unsigned_abs(),
        cancel: row.get(8),
        progress: progress.and_then(|text| serde_json::from_str(&text).ok()),
        result: row.get(10),
    }
}

type Params<'p> = &'p [&'p (dyn ToSql + Sync)];

/// One statement in a transaction of its own, whose commit is checked.
async fn one(client: &Client, sql: &str, params: Params<'_>) -> Result<Vec<Row>, LedgerError> {
    client.batch_execute("BEGIN ISOLATION LEVEL READ COMMITTED").await.map_err(unavailable)?;
    let rows = client.query(sql, params).await;
    match rows {
        Ok(rows) => {
            client.batch_execute("COMMIT").await.map_err(unavailable)?;
            Ok(rows)
        }
        Err(error) => {
            // The connection goes away with the transaction.
            Err(unavailable(error))
        }
    }
}

impl PostgresLedger {
    /// Runs a statement on the queue's own connection; after an error that is a new one.
    async fn on_queue(&self, sql: &str, params: Params<'_>) -> Result<Vec<Row>, LedgerError> {
        let mut held = self.queue.lock().await;
        let slow = || LedgerError::Unavailable("the database did not answer in time".to_owned());
        let connection = match held.take() {
            Some(connection) => connection,
            None => tokio::time::timeout(STEP_TIMEOUT, self.server.connect())
                .await
                .map_err(|_| slow())?
                .map_err(unavailable)?,
        };
        let done = tokio::time::timeout(STEP_TIMEOUT, one(&connection.client, sql, params)).await;
        match done {
            Ok(Ok(rows)) => {
                *held = Some(connection);
                Ok(rows)
            }
            Ok(Err(error)) => Err(error),
            Err(_) => Err(slow()),
        }
    }
}

#[async_trait]
impl CallQueue for PostgresLedger {
    async fn enqueue(&self, call: QueuedCall, waiting_max: usize) -> Result<Enqueued, LedgerError> {
        let (caller, call_id) = (clean(&call.caller), clean(&call.call_id));
        let most = i64::try_from(waiting_max).unwrap_or(i64::MAX);
        let rows = self
            .on_queue(
                "INSERT INTO queue (caller, call_id, state, request, enqueued)
                 SELECT $1, $2, 'queued', $3, $4
                 WHERE (SELECT count(*) FROM queue WHERE state = 'queued') < $5
                 ON CONFLICT (caller, call_id) DO NOTHING RETURNING place",
                &[&caller, &call_id, &call.request, &call.enqueued_at, &most],
            )
            .await?;
        if !rows.is_empty() {
            return Ok(Enqueued::New);
        }
        Ok(match self.queued(&call.caller, &call.call_id).await? {
            Some(known) if known.request == call.request => Enqueued::Known(Box::new(known)),
            Some(_) => Enqueued::Conflict,
            None => Enqueued::Full,
        })
    }

    async fn release(&self, caller: &str, call_id: &str) -> Result<(), LedgerError> {
        self.on_queue(
            "UPDATE queue SET state = 'queued', worker = NULL, deliveries = deliveries - 1
             WHERE caller = $1 AND call_id = $2 AND worker = $3 AND state = 'running'",
            &[&clean(caller), &clean(call_id), &self.writer],
        )
        .await
        .map(drop)
    }

    async fn take(
        &self,
        running: Vec<(String, String)>,
    ) -> Result<Option<QueuedCall>, LedgerError> {
        let own: Vec<String> = running
            .iter()
            .map(|(caller, id)| format!("{}\u{1f}{}", clean(caller), clean(id)))
            .collect();
        // Those whose worker is lost were there first.
        let sql = format!(
            "UPDATE queue SET state = 'running', worker = $1, deliveries = deliveries + 1
             WHERE place = (
                 SELECT q.place FROM queue q LEFT JOIN writers w ON w.writer = q.worker
                 WHERE q.state = 'queued' OR (q.state = 'running' AND (w.writer IS NULL
                     OR w.stopped OR w.renewed < clock_timestamp() - interval '15 seconds'
                     OR (q.worker = $1 AND NOT (q.caller || chr(31) || q.call_id = ANY($2)))))
                 ORDER BY q.state DESC, q.place LIMIT 1 FOR UPDATE OF q SKIP LOCKED)
             RETURNING {COLUMNS}"
        );
        Ok(self.on_queue(&sql, &[&self.writer, &own]).await?.first().map(call))
    }

    async fn beat(
        &self,
        caller: &str,
        call_id: &str,
        progress: Option<Value>,
    ) -> Result<Beat, LedgerError> {
        let progress = progress.map(|progress| progress.to_string());
        let rows = self
            .on_queue(
                "UPDATE queue SET progress = coalesce($4, progress)
                 WHERE caller = $1 AND call_id = $2 AND worker = $3 RETURNING cancel",
                &[&clean(caller), &clean(call_id), &self.writer, &progress],
            )
            .await?;
        Ok(match rows.first().map(|row| row.get::<_, bool>(0)) {
            None => Beat::Lost,
            Some(true) => Beat::Cancel,
            Some(false) => Beat::Go,
        })
    }

    async fn finish(
        &self,
        caller: &str,
        call_id: &str,
        result: String,
        at: Moment,
    ) -> Result<(), LedgerError> {
        self.on_queue(
            "UPDATE queue SET state = 'done', result = $3, finished = $4
             WHERE caller = $1 AND call_id = $2 AND state <> 'done'",
            &[&clean(caller), &clean(call_id), &result, &at.text],
        )
        .await
        .map(drop)
    }

    async fn cancel(&self, caller: &str, call_id: &str) -> Result<bool, LedgerError> {
        let rows = self
            .on_queue(
                "UPDATE queue SET cancel = true
                 WHERE caller = $1 AND call_id = $2 AND state <> 'done' RETURNING place",
                &[&clean(caller), &clean(call_id)],
            )
            .await?;
        Ok(!rows.is_empty())
    }

    async fn queued(&self, caller: &str, call_id: &str) -> Result<Option<QueuedCall>, LedgerError> {
        Ok(self.reads().queued(caller, call_id).await?.as_ref().map(call))
    }

    async fn forget(&self, before: String) -> Result<u64, LedgerError> {
        let rows = self
            .on_queue(
                "DELETE FROM queue WHERE place IN (
                     SELECT place FROM queue WHERE finished < $1 ORDER BY finished LIMIT 1000)
                 RETURNING place",
                &[&before],
            )
            .await?;
        Ok(rows.len() as u64)
    }
}
