//! Opening the ledger of a replica: its connections, its keys, and the task of its writer.
//!
//! Path: 6, 9. Doc: records.md#stores

use std::sync::{Arc, Mutex, PoisonError};

use tokio_postgres::Client;
use toolbooth_audit::LedgerError;
use toolbooth_audit::chain::Head;
use toolbooth_audit::checkpoint::Checkpoint;
use toolbooth_audit::digest::{Digester, KEY_BYTES};
use toolbooth_audit::ledger::Moment;
use toolbooth_audit::note::Signer;
use toolbooth_audit::reads::PrunedLog;
use toolbooth_audit::recorder::{Recorder, Runner};
use toolbooth_audit::steps::{self, AcceptRestored, Start, Step};
use toolbooth_audit::watch::Watch;
use toolbooth_audit::working::WorkingSet;
use toolbooth_audit::writer::{Steps, Writer};

use super::backend::PostgresBackend;
use super::connect::Server;
use super::reads::PostgresReads;
use super::rows::{call, head};
use super::statements::{CALL, HEAD};
use super::{OpenError, schema};

/// How a store is opened.
#[derive(Debug)]
pub struct PostgresOptions {
    /// The server and database, `postgres://USER@HOST/DATABASE`; `sslmode=require` asks for TLS.
    pub url: String,
    /// The store's digest key: the same for all replicas.
    pub digest_key: [u8; KEY_BYTES],
    /// Keys that were the store's before: what was claimed under them is found.
    pub older_digest_keys: Vec<[u8; KEY_BYTES]>,
    /// What signs this replica's checkpoints.
    pub signer: Signer,
    /// The newest checkpoint that was kept outside of the database.
    pub kept: Option<Checkpoint>,
    /// Whether a database that is older than that checkpoint is taken as it is; the log says so
    /// then.
    pub accept_restored: bool,
}

/// The ledger of one replica.
pub type PostgresLedger = Recorder<Postgres>;

/// Runs the steps of one writer in a task of its own, over one connection.
#[derive(Debug)]
pub struct Postgres {
    steps: Steps,
    reads: PostgresReads,
    task: Mutex<Option<tokio::task::JoinHandle<()>>>,
}

impl Runner for Postgres {
    type Reads = PostgresReads;

    async fn run<S: Step>(&self, step: S) -> Result<S::Answer, LedgerError> {
        self.steps.run(step).await
    }

    fn reads(&self) -> &PostgresReads {
        &self.reads
    }

    fn healthy(&self) -> Result<(), LedgerError> {
        self.steps.healthy()
    }

    async fn ended(&self) {
        self.steps.close();
        let task = self.task.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(task) = task {
            // The queue is closed, so the task ends after what it holds.
            let _ = task.await;
        }
    }
}

/// The first version in which events account for asynchronous calls.
const EVENTS_OF_CALLS: i32 = 2;

/// Opens the store, brings its tables up to date, and begins the log of the writer `writer` (an id
/// that was never used) at `at`.
///
/// # Errors
/// [`OpenError`]; nothing is begun then.
pub async fn open(
    options: PostgresOptions,
    writer: &str,
    at: &Moment,
) -> Result<PostgresLedger, OpenError> {
    let PostgresOptions { url, digest_key, older_digest_keys, signer, kept, accept_restored } =
        options;
    let server = Server::parse(&url)?;
    let mut connection = server.connect().await?;
    let client = &mut connection.client;
    let found = schema::migrate(client, EVENTS_OF_CALLS - 1).await?;
    if found > schema::VERSION {
        return Err(OpenError::Newer { found, known: schema::VERSION });
    }
    let digester = Digester::new(&digest_key).with_older(&older_digest_keys);
    check_keys(client, &digester).await?;
    let lost = match &kept {
        Some(kept) => shorter(client, kept).await?,
        None => None,
    };
    if let (Some((writer, size, found)), false) = (&lost, accept_restored) {
        let (writer, size, found) = (writer.clone(), *size, *found);
        return Err(OpenError::RolledBack { writer, size, found });
    }
    let before = client
        .query_opt(&format!("SELECT {HEAD} FROM writers w ORDER BY w.ordinal DESC LIMIT 1"), &[])
        .await?;
    let before = before.map(|row| (head(&row), row.get(8)));
    // Only now, since what is in the queue is accounted for by this writer, or by none.
    schema::migrate(client, schema::VERSION).await?;
    // Calls that an earlier version has left in the queue.
    let calls = match found {
        0..EVENTS_OF_CALLS => {
            let sql = format!("SELECT {CALL} FROM queue WHERE queued_by IS NULL ORDER BY place");
            client.query(&sql, &[]).await?.iter().map(call).collect()
        }
        _ => Vec::new(),
    };
    let pruned = match found {
        0..EVENTS_OF_CALLS => pruned_logs(client).await?,
        _ => Vec::new(),
    };
    let backend = PostgresBackend::new(server.clone(), writer.to_owned()).await?;
    let transaction = client.transaction().await?;
    transaction
        .execute("INSERT INTO writers (writer, started) VALUES ($1, $2)", &[&writer, &at.text])
        .await?;
    transaction.commit().await?;
    let watch = Arc::new(Watch::default());
    let (steps, queue) = Steps::new(Arc::clone(&watch));
    let key_id = digester.key_id().to_owned();
    let set = WorkingSet::new(Head::new(writer.to_owned()), key_id, Arc::clone(&watch));
    let serving = Writer::new(backend, set, watch).serve(queue);
    let started = steps::started(&signer, digester.key_id(), before, at);
    let accepted = accept_restored.then(|| AcceptRestored {
        lost: lost.map(|(writer, size, _)| (writer, size)),
        at: at.clone(),
    });
    let start = Start {
        started,
        accepted,
        calls,
        digester: digester.clone(),
        pruned,
        signer: signer.clone(),
        at: at.clone(),
    };
    let runner = Postgres {
        steps,
        reads: PostgresReads::over(&server)?,
        task: Mutex::new(Some(tokio::spawn(serving))),
    };
    runner.run(start).await.map_err(OpenError::Ledger)?;
    Ok(Recorder::over(writer.to_owned(), digester, signer, runner))
}

/// Logs of which an earlier version has removed the beginning.
async fn pruned_logs(client: &Client) -> Result<Vec<(String, PrunedLog)>, OpenError> {
    let sql = format!("SELECT {HEAD} FROM writers w WHERE w.pruned IS NOT NULL ORDER BY w.writer");
    let rows = client.query(&sql, &[]).await?;
    let pruned = |row| {
        let head = head(row);
        head.pruned.map(|log| (head.writer, log))
    };
    Ok(rows.iter().filter_map(pruned).collect())
}

/// All replicas know all keys of the store, or one would not find what another has claimed.
async fn check_keys(
    client: &mut tokio_postgres::Client,
    digester: &Digester,
) -> Result<(), OpenError> {
    let transaction = client.transaction().await?;
    // Replicas that start at once wait for each other here.
    transaction.execute("LOCK TABLE digest_keys IN EXCLUSIVE MODE", &[]).await?;
    let stored = transaction.query("SELECT key_id FROM digest_keys ORDER BY added", &[]).await?;
    for row in &stored {
        let stored: String = row.get(0);
        if !digester.all().any(|known| known.key_id() == stored) {
            return Err(OpenError::Key { given: digester.key_id().to_owned(), stored });
        }
    }
    let statement = "INSERT INTO digest_keys (key_id) VALUES ($1) ON CONFLICT DO NOTHING";
    transaction.execute(statement, &[&digester.key_id()]).await?;
    Ok(transaction.commit().await?)
}

/// The writer, size and size found of a log that is shorter than its last checkpoint says.
async fn shorter(
    client: &tokio_postgres::Client,
    kept: &Checkpoint,
) -> Result<Option<(String, u64, u64)>, OpenError> {
    let row =
        client.query_opt("SELECT size FROM writers WHERE writer = $1", &[&kept.writer]).await?;
    let found = row.map_or(0, |row| row.get::<_, i64>(0)).unsigned_abs();
    Ok((found < kept.size).then(|| (kept.writer.clone(), kept.size, found)))
}
