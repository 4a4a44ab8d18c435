//! The queue of asynchronous calls, in the same database and by the same writer.
//!
//! Path: 2. Doc: records.md#the-queue

use async_trait::async_trait;
use rusqlite::{OptionalExtension, Row};
use serde_json::Value;
use toolbooth_audit::LedgerError;
use toolbooth_audit::ledger::Moment;
use toolbooth_audit::queue::{Beat, CallQueue, Enqueued, QueueState, QueuedCall};

use super::ledger::SqliteLedger;
use super::records::TransactionRecords;
use super::unavailable;

const COLUMNS: &str = "call_id, caller, request, state, enqueued, finished, worker, deliveries, \
                       cancel, progress, result";

fn call(row: &Row<'_>) -> rusqlite::Result<QueuedCall> {
    let state: String = row.get(3)?;
    let progress: Option<String> = row.get(9)?;
    Ok(QueuedCall {
        call_id: row.get(0)?,
        caller: row.get(1)?,
        request: row.get(2)?,
        state: [QueueState::Queued, QueueState::Running, QueueState::Done]
            .into_iter()
            .find(|known| known.as_str() == state)
            .unwrap_or(QueueState::Queued),
        enqueued_at: row.get(4)?,
        finished_at: row.get(5)?,
        worker: row.get(6)?,
        deliveries: row.get(7)?,
        cancel: row.get(8)?,
        progress: progress.and_then(|text| serde_json::from_str(&text).ok()),
        result: row.get(10)?,
    })
}

fn find(
    records: &TransactionRecords<'_>,
    caller: &str,
    call_id: &str,
) -> Result<Option<QueuedCall>, LedgerError> {
    let sql = format!("SELECT {COLUMNS} FROM queue WHERE caller = ?1 AND call_id = ?2");
    records
        .transaction()
        .prepare_cached(&sql)
        .and_then(|mut statement| statement.query_row([caller, call_id], call).optional())
        .map_err(unavailable)
}

fn execute(
    records: &TransactionRecords<'_>,
    sql: &str,
    params: impl rusqlite::Params,
) -> Result<usize, LedgerError> {
    records
        .transaction()
        .prepare_cached(sql)
        .and_then(|mut statement| statement.execute(params))
        .map_err(unavailable)
}

fn enqueue(
    records: &TransactionRecords<'_>,
    new: &QueuedCall,
    waiting_max: usize,
) -> Result<Enqueued, LedgerError> {
    if let Some(known) = find(records, &new.caller, &new.call_id)? {
        let same = known.request == new.request;
        return Ok(if same { Enqueued::Known(Box::new(known)) } else { Enqueued::Conflict });
    }
    let waiting: i64 = records
        .transaction()
        .prepare_cached("SELECT count(*) FROM queue WHERE state = 'queued'")
        .and_then(|mut statement| statement.query_row([], |row| row.get(0)))
        .map_err(unavailable)?;
    if usize::try_from(waiting).is_ok_and(|waiting| waiting >= waiting_max) {
        return Ok(Enqueued::Full);
    }
    execute(
        records,
        "INSERT INTO queue (caller, call_id, state, request, enqueued) VALUES (?1, ?2, ?3, ?4, ?5)",
        (&new.caller, &new.call_id, new.state.as_str(), &new.request, &new.enqueued_at),
    )?;
    Ok(Enqueued::New)
}

fn take(
    records: &TransactionRecords<'_>,
    writer: &str,
    own: &[(String, String)],
) -> Result<Option<QueuedCall>, LedgerError> {
    let next = |sql: &str| -> Result<Vec<QueuedCall>, LedgerError> {
        records
            .transaction()
            .prepare_cached(sql)
            .and_then(|mut statement| statement.query_map([], call)?.collect())
            .map_err(unavailable)
    };
    // Those whose worker is lost were there first.
    let running = next(&format!(
        "SELECT {COLUMNS} FROM queue WHERE state = 'running' ORDER BY place LIMIT 1000"
    ))?;
    let lost = running.into_iter().find(|call| match call.worker.as_deref() {
        // Its own are those that it knows; any other was taken by a step that went wrong.
        Some(worker) if worker == writer => {
            !own.iter().any(|(caller, id)| *caller == call.caller && *id == call.call_id)
        }
        Some(worker) => records.writer_lost(worker),
        None => true,
    });
    let waiting = match lost {
        Some(lost) => Some(lost),
        None => next(&format!(
            "SELECT {COLUMNS} FROM queue WHERE state = 'queued' ORDER BY place LIMIT 1"
        ))?
        .pop(),
    };
    let Some(mut taken) = waiting else { return Ok(None) };
    taken.state = QueueState::Running;
    taken.worker = Some(writer.to_owned());
    taken.deliveries += 1;
    execute(
        records,
        "UPDATE queue SET state = 'running', worker = ?3, deliveries = ?4
         WHERE caller = ?1 AND call_id = ?2",
        (&taken.caller, &taken.call_id, writer, taken.deliveries),
    )?;
    Ok(Some(taken))
}

#[async_trait]
impl CallQueue for SqliteLedger {
    async fn enqueue(&self, call: QueuedCall, waiting_max: usize) -> Result<Enqueued, LedgerError> {
        self.run(true, move |records| enqueue(records, &call, waiting_max)).await
    }

    async fn take(
        &self,
        running: Vec<(String, String)>,
    ) -> Result<Option<QueuedCall>, LedgerError> {
        let writer = toolbooth_audit::Ledger::writer(self).to_owned();
        self.run(true, move |records| take(records, &writer, &running)).await
    }

    async fn release(&self, caller: &str, call_id: &str) -> Result<(), LedgerError> {
        let (caller, call_id) = (caller.to_owned(), call_id.to_owned());
        self.run(true, move |records| {
            execute(
                records,
                "UPDATE queue SET state = 'queued', worker = NULL, deliveries = deliveries - 1
                 WHERE caller = ?1 AND call_id = ?2 AND state = 'running'",
                (&caller, &call_id),
            )
            .map(drop)
        })
        .await
    }

    async fn beat(
        &self,
        caller: &str,
        call_id: &str,
        progress: Option<Value>,
    ) -> Result<Beat, LedgerError> {
        let (caller, call_id) = (caller.to_owned(), call_id.to_owned());
        let writer = toolbooth_audit::Ledger::writer(self).to_owned();
        self.run(false, move |records| {
            let own = find(records, &caller, &call_id)?
                .filter(|call| call.worker.as_deref() == Some(writer.as_str()));
            let Some(own) = own else { return Ok(Beat::Lost) };
            if let Some(progress) = progress {
                execute(
                    records,
                    "UPDATE queue SET progress = ?3 WHERE caller = ?1 AND call_id = ?2",
                    (&caller, &call_id, progress.to_string()),
                )?;
            }
            Ok(if own.cancel { Beat::Cancel } else { Beat::Go })
        })
        .await
    }

    async fn finish(
        &self,
        caller: &str,
        call_id: &str,
        result: String,
        at: Moment,
    ) -> Result<(), LedgerError> {
        let (caller, call_id) = (caller.to_owned(), call_id.to_owned());
        self.run(true, move |records| {
            execute(
                records,
                "UPDATE queue SET state = 'done', result = ?3, finished = ?4
                 WHERE caller = ?1 AND call_id = ?2 AND state <> 'done'",
                (&caller, &call_id, &result, &at.text),
            )
            .map(drop)
        })
        .await
    }

    async fn cancel(&self, caller: &str, call_id: &str) -> Result<bool, LedgerError> {
        let (caller, call_id) = (caller.to_owned(), call_id.to_owned());
        self.run(true, move |records| {
            execute(
                records,
                "UPDATE queue SET cancel = 1 WHERE caller = ?1 AND call_id = ?2 AND state <> 'done'",
                (&caller, &call_id),
            )
            .map(|count| count > 0)
        })
        .await
    }

    async fn queued(&self, caller: &str, call_id: &str) -> Result<Option<QueuedCall>, LedgerError> {
        self.reads().queued(caller.to_owned(), call_id.to_owned()).await
    }

    async fn forget(&self, before: String) -> Result<u64, LedgerError> {
        self.run(false, move |records| {
            execute(
                records,
                "DELETE FROM queue WHERE place IN
                     (SELECT place FROM queue WHERE finished < ?1 ORDER BY finished LIMIT 1000)",
                [&before],
            )
            .map(|count| count as u64)
        })
        .await
    }
}

impl super::SqliteReads {
    /// One asynchronous call.
    ///
    /// # Errors
    /// [`LedgerError::Unavailable`].
    pub async fn queued(
        &self,
        caller: String,
        call_id: String,
    ) -> Result<Option<QueuedCall>, LedgerError> {
        self.run(move |connection| {
            let sql = format!("SELECT {COLUMNS} FROM queue WHERE caller = ?1 AND call_id = ?2");
            connection.query_row(&sql, [caller, call_id], call).optional().map_err(unavailable)
        })
        .await
    }
}
