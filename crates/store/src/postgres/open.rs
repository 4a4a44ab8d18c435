//! Opens the ledger of a replica: its connections, its keys, and the thread of its writer.
//!
//! Path: 6, 9. Doc: records.md#stores

use std::convert::Infallible;
use std::sync::Arc;

use async_channel::{Receiver, Sender};
use toolbooth_audit::LedgerError;
use toolbooth_audit::backend::chain::Head;
use toolbooth_audit::backend::recorder::{Recorder, StepRunner};
use toolbooth_audit::backend::steps::{self, AcceptRestored, Start, Step};
use toolbooth_audit::backend::working::WorkingSet;
use toolbooth_audit::backend::writer::{Writer, WriterHandle};
use toolbooth_audit::backend::writer_status::WriterStatus;
use toolbooth_audit::checkpoint::Checkpoint;
use toolbooth_audit::digest::{Digester, KEY_BYTES};
use toolbooth_audit::heads::is_writer_id;
use toolbooth_audit::ledger::Moment;
use toolbooth_audit::note::Signer;

use super::backend::PostgresBackend;
use super::connect::Server;
use super::error::OpenError;
use super::reads::PostgresReads;
use super::rows::head;
use super::schema;
use super::statements::HEAD;

/// Options for opening a store.
#[derive(Debug)]
pub struct PostgresOptions {
    /// The server and database, `postgres://USER@HOST/DATABASE`; `sslmode=require` requires TLS.
    pub url: String,
    /// The store's digest key: the same for all replicas.
    pub digest_key: [u8; KEY_BYTES],
    /// Earlier digest keys of the store, under which claims are still found.
    pub older_digest_keys: Vec<[u8; KEY_BYTES]>,
    /// Signs this replica's checkpoints.
    pub signer: Signer,
    /// The newest checkpoints of logs that are stored outside the database.
    pub kept: Vec<Checkpoint>,
    /// Whether to accept a database that is older than one of these. The log then records
    /// `STORE_RESTORED`.
    pub accept_restored: bool,
}

/// The ledger of one replica.
pub type PostgresLedger = Recorder<Postgres>;

/// Runs the steps of one writer on a dedicated thread, over one connection.
#[derive(Debug)]
pub struct Postgres {
    steps: WriterHandle,
    reads: PostgresReads,
    /// Closed when the writer has ended.
    serving: Receiver<Infallible>,
}

impl StepRunner for Postgres {
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
        // The queue is closed, so the writer ends after the steps that it holds.
        let _ = self.serving.recv().await;
    }
}

/// The version up to which a database is migrated before its keys and its end are checked.
const UNCHECKED: i32 = 1;

/// Opens the store, brings its tables up to date, and begins the log of the writer `writer` (an id
/// that was never used) at `at`.
///
/// # Errors
/// [`OpenError`]. Migrations that were applied stay.
pub async fn open(
    options: PostgresOptions,
    writer: &str,
    at: &Moment,
) -> Result<PostgresLedger, OpenError> {
    let PostgresOptions { url, digest_key, older_digest_keys, signer, kept, accept_restored } =
        options;
    if !is_writer_id(writer) {
        return Err(OpenError::WriterId { writer: writer.to_owned() });
    }
    let server = Server::parse(&url)?;
    let mut connection = server.connect().await?;
    let client = &mut connection.client;
    let found = schema::migrate(client, UNCHECKED).await?;
    if found > schema::VERSION {
        return Err(OpenError::Newer { found, known: schema::VERSION });
    }
    let digester = Digester::new(&digest_key).with_older(&older_digest_keys);
    check_keys(client, &digester).await?;
    let mut lost = Vec::new();
    for kept in &kept {
        lost.extend(truncated(client, kept).await?);
    }
    if let (Some((writer, size, found)), false) = (lost.last(), accept_restored) {
        let (writer, size, found) = (writer.clone(), *size, *found);
        return Err(OpenError::RolledBack { writer, size, found });
    }
    let before = client
        .query_opt(&format!("SELECT {HEAD} FROM writers w ORDER BY w.ordinal DESC LIMIT 1"), &[])
        .await?;
    let before = before.map(|row| (head(&row), row.get(7)));
    // An unused store has no records of an earlier version to take over.
    let takes_over = before.is_some() && schema::has_earlier_records(found);
    let to = if takes_over { schema::READABLE } else { schema::VERSION };
    let version = schema::migrate(client, to).await?.max(to);
    let transaction = client.transaction().await?;
    let sql = "INSERT INTO writers (writer, started) VALUES ($1, $2) ON CONFLICT DO NOTHING";
    if transaction.execute(sql, &[&writer, &at.text]).await? == 0 {
        return Err(OpenError::WriterUsed { writer: writer.to_owned() });
    }
    transaction.commit().await?;
    let status = Arc::new(WriterStatus::default());
    let (steps, queue) = WriterHandle::new(Arc::clone(&status));
    let head = Head::new(writer.to_owned());
    let set = WorkingSet::new(head, digester.clone(), Arc::clone(&status));
    let (own, of) = (server.clone(), writer.to_owned());
    let serving = on_a_thread(async move |ready| {
        let backend = match PostgresBackend::new(own, of).await {
            Ok(backend) => backend,
            Err(error) => return drop(ready.try_send(Err(error))),
        };
        if ready.try_send(Ok(())).is_ok() {
            Writer::new(backend, set, status).serve(queue).await;
        }
    })
    .await?;
    let started = steps::started(
        &signer,
        digester.key_id(),
        u32::try_from(version).unwrap_or_default(),
        before,
        at,
    );
    let accepted = accept_restored.then(|| AcceptRestored {
        lost: lost.into_iter().map(|(writer, size, _)| (writer, size)).collect(),
        at: at.clone(),
    });
    let start = Start { started, accepted, signer: signer.clone(), at: at.clone() };
    let runner = Postgres { steps, reads: PostgresReads::over(&server)?, serving };
    runner.run(start).await.map_err(OpenError::Ledger)?;
    // The records of an earlier version were taken over above. A start that ends before this point
    // repeats that.
    schema::migrate(client, schema::VERSION).await?;
    Ok(Recorder::over(writer.to_owned(), digester, signer, runner))
}

/// Runs `serve` on a dedicated thread, so that no other task delays it. The statements of a batch
/// are sent together, since the connection's task runs on the same thread.
///
/// Returns once `serve` reports that it is ready. The receiver closes when the thread ends.
async fn on_a_thread<F>(
    serve: impl FnOnce(Sender<Result<(), tokio_postgres::Error>>) -> F + Send + 'static,
) -> Result<Receiver<Infallible>, OpenError>
where
    F: Future<Output = ()>,
{
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| OpenError::Thread(error.to_string()))?;
    let (ready, is_ready) = async_channel::bounded(1);
    let (ends, end) = async_channel::bounded(1);
    std::thread::Builder::new()
        .name("toolbooth-store".to_owned())
        .spawn(move || {
            runtime.block_on(serve(ready));
            drop(ends);
        })
        .map_err(|error| OpenError::Thread(error.to_string()))?;
    match is_ready.recv().await {
        Ok(ready) => ready?,
        Err(gone) => return Err(OpenError::Thread(gone.to_string())),
    }
    Ok(end)
}

/// Checks that all digest keys of the store are known, and adds the newest. Without a key, a
/// replica would not find the claims made under it.
async fn check_keys(
    client: &mut tokio_postgres::Client,
    digester: &Digester,
) -> Result<(), OpenError> {
    let transaction = client.transaction().await?;
    // Serializes replicas that start at the same time.
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

/// Returns the writer, the expected size and the found size of a log that is shorter than the
/// stored checkpoint.
async fn truncated(
    client: &tokio_postgres::Client,
    kept: &Checkpoint,
) -> Result<Option<(String, u64, u64)>, OpenError> {
    let row =
        client.query_opt("SELECT size FROM writers WHERE writer = $1", &[&kept.writer]).await?;
    let found = row.map_or(0, |row| row.get::<_, i64>(0)).unsigned_abs();
    Ok((found < kept.size).then(|| (kept.writer.clone(), kept.size, found)))
}
