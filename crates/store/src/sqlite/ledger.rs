//! The ledger over SQLite: hands steps to the writer thread and waits until they are durable.
//!
//! Path: 6, 9. Doc: records.md#stores

use std::fs::File;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use async_channel::Sender;
use async_trait::async_trait;
use rusqlite::{Connection, OptionalExtension, TransactionBehavior};
use toolbooth_audit::chain::Head;
use toolbooth_audit::checkpoint::Due;
use toolbooth_audit::claim::Happening;
use toolbooth_audit::digest::Digester;
use toolbooth_audit::ledger::{
    ClaimRequest, Claimed, Ledger, Moment, Prune, Pruned, Refusal, Resolution, Settlement, Swept,
};
use toolbooth_audit::note::Signer;
use toolbooth_audit::reads::{
    EventFilter, Include, LedgerReads, LogFilter, PlacedEvent, RawEntry, ReceiptFilter,
    Unaccounted, WriterHead,
};
use toolbooth_audit::{LedgerError, steps};
use toolbooth_contracts::agent_log::AgentLog;
use toolbooth_contracts::event::EventBody;
use toolbooth_contracts::receipt::Receipt;

use super::folder::StoreFolder;
use super::jobs::{self, Job, QUEUE_MAX, Writer};
use super::reads::SqliteReads;
use super::records::{HEAD_COLUMNS, TransactionRecords, head_row};
use super::{OpenError, schema};
use crate::watch::Watch;

/// How long a statement waits for another process that writes.
const BUSY: Duration = Duration::from_secs(5);
/// How long to wait before what SQLite itself does not wait for is tried again.
const BUSY_STEP: Duration = Duration::from_millis(5);

/// When an answer is given.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Durability {
    /// After fsync: survives the loss of power.
    #[default]
    Full,
    /// After the write, where the request allows it: survives the process, may lose the last
    /// second with the power.
    Process,
}

/// How a store is opened.
#[derive(Debug, Default)]
pub struct SqliteOptions {
    /// When an answer is given.
    pub durability: Durability,
    /// What signs checkpoints; else the key in the folder, made when it is not there.
    pub signer: Option<Signer>,
    /// Whether a database that is older than its last checkpoint is taken as it is; the log says
    /// so then.
    pub accept_restored: bool,
}

/// The embedded ledger.
#[derive(Debug)]
pub struct SqliteLedger {
    writer: String,
    digester: Digester,
    jobs: Sender<Box<dyn Job>>,
    reads: SqliteReads,
    signer: Signer,
    watch: Arc<Watch>,
    folder: StoreFolder,
    thread: Mutex<Option<std::thread::JoinHandle<()>>>,
    /// Says to other processes that this writer lives.
    _lock: File,
}

/// A connection for the writer.
pub(super) fn connect(path: &Path, durability: Durability) -> rusqlite::Result<Connection> {
    let connection = Connection::open(path)?;
    connection.busy_timeout(BUSY)?;
    keep_a_log(&connection)?;
    let synchronous = match durability {
        Durability::Full => "FULL",
        Durability::Process => "NORMAL",
    };
    connection.pragma_update(None, "synchronous", synchronous)?;
    connection.set_prepared_statement_cache_capacity(64);
    Ok(connection)
}

/// Turns to a write-ahead log. SQLite does not wait where another process turns at the same time.
fn keep_a_log(connection: &Connection) -> rusqlite::Result<()> {
    let since = Instant::now();
    loop {
        let turned = connection
            .pragma_update_and_check(None, "journal_mode", "WAL", |row| row.get::<_, String>(0));
        match turned {
            Err(error) if is_busy(&error) && since.elapsed() < BUSY => {
                std::thread::sleep(BUSY_STEP);
            }
            turned => return turned.map(drop),
        }
    }
}

fn is_busy(error: &rusqlite::Error) -> bool {
    error.sqlite_error_code() == Some(rusqlite::ErrorCode::DatabaseBusy)
}

impl SqliteLedger {
    /// Opens the store in `folder`, which is made when it is not there, and begins the log of
    /// the writer `writer` (an id that was never used) at `at`.
    ///
    /// # Errors
    /// [`OpenError`]; nothing is begun then.
    pub fn open(
        folder: &Path,
        writer: &str,
        options: SqliteOptions,
        at: &Moment,
    ) -> Result<Self, OpenError> {
        let SqliteOptions { durability, signer, accept_restored } = options;
        let folder = StoreFolder::create(folder)?;
        let path = folder.database();
        if let (Some(kept), false, false) =
            (folder.kept_checkpoint()?, path.exists(), accept_restored)
        {
            // A database that is gone is not made anew as if there had been none.
            return Err(OpenError::RolledBack { writer: kept.writer, size: kept.size, found: 0 });
        }
        folder.touch_database()?;
        let database = |source| OpenError::Database { path: path.display().to_string(), source };
        let mut connection = connect(&path, durability).map_err(database)?;
        let found = schema::migrate(&mut connection).map_err(database)?;
        if found > schema::VERSION {
            return Err(OpenError::Newer { found, known: schema::VERSION });
        }
        let used: bool = connection
            .query_row("SELECT EXISTS (SELECT 1 FROM writers)", [], |row| row.get(0))
            .map_err(database)?;
        // Receipts depend on the key: a database that was used never gets another one silently.
        let digester = folder.digester(!used)?;
        let signer = match signer {
            Some(signer) => signer,
            None => folder.signer()?,
        };
        let rolled_back = rolled_back(&folder, &connection)?;
        if let (Some(error), false) = (&rolled_back, accept_restored) {
            return Err(OpenError::RolledBack {
                writer: error.writer.clone(),
                size: error.size,
                found: error.found,
            });
        }
        let lock = folder.lock_writer(writer)?;
        let before: Option<(WriterHead, Option<String>)> = {
            let sql = format!(
                "SELECT {HEAD_COLUMNS}, checkpoint FROM writers ORDER BY rowid DESC LIMIT 1"
            );
            connection
                .query_row(&sql, [], |row| Ok((head_row(row)?, row.get(5)?)))
                .optional()
                .map_err(database)?
        };
        let begun = connection.transaction_with_behavior(TransactionBehavior::Immediate).and_then(
            |transaction| {
                transaction.execute(
                    "INSERT INTO writers (writer, started, renewed_ms) VALUES (?1, ?2, ?3)",
                    (writer, &at.text, at.epoch_ms),
                )?;
                transaction.commit()
            },
        );
        begun.map_err(database)?;
        let watch = Arc::new(Watch::default());
        let (jobs, queue) = async_channel::bounded(QUEUE_MAX);
        let worker = Writer {
            path: path.clone(),
            durability,
            folder: folder.clone(),
            key_id: digester.key_id().to_owned(),
            head: Head::new(writer.to_owned()),
            connection: Some(connection),
            doubt: None,
            orphans: Vec::new(),
            stopped: false,
            watch: Arc::clone(&watch),
        };
        let thread = std::thread::Builder::new()
            .name("toolbooth-store".to_owned())
            .spawn(move || worker.serve(&queue))
            .map_err(|source| OpenError::Folder { path: path.display().to_string(), source })?;
        let reads = SqliteReads::open(&path)?;
        let started = steps::started(&signer, digester.key_id(), before, at);
        let ledger = Self {
            writer: writer.to_owned(),
            digester,
            jobs,
            reads,
            signer,
            watch,
            folder,
            thread: Mutex::new(Some(thread)),
            _lock: lock,
        };
        let accepted = accept_restored.then(|| (rolled_back, at.clone()));
        let (job, answer) = jobs::job(true, move |records| {
            steps::note(records, &[started])?;
            match &accepted {
                Some((lost, at)) => {
                    let lost = lost.as_ref().map(|lost| (lost.writer.as_str(), lost.size));
                    steps::accept_restored(records, lost, at)
                }
                None => Ok(()),
            }
        });
        ledger
            .jobs
            .send_blocking(job)
            .map_err(|_| OpenError::Ledger(closed()))
            .and_then(|()| answer.recv_blocking().map_err(|_| OpenError::Ledger(closed())))?
            .map_err(OpenError::Ledger)?;
        Ok(ledger)
    }

    /// What checks the checkpoints of this writer.
    #[must_use]
    pub fn signer(&self) -> &Signer {
        &self.signer
    }

    pub(super) fn reads(&self) -> &SqliteReads {
        &self.reads
    }

    pub(super) async fn run<T, F>(&self, sync: bool, step: F) -> Result<T, LedgerError>
    where
        T: Send + 'static,
        F: FnOnce(&mut TransactionRecords<'_>) -> Result<T, LedgerError> + Send + 'static,
    {
        let (job, answer) = jobs::job(sync, step);
        self.jobs.send(job).await.map_err(|_| closed())?;
        answer.recv().await.map_err(|_| closed())?
    }

    fn keep(&self, note: Option<String>) -> Option<String> {
        let note = note?;
        if let Err(error) = self.folder.keep_checkpoint(&note) {
            tracing::warn!(%error, "a checkpoint is not kept beside the database");
        }
        Some(note)
    }
}

/// A log that is shorter than its last checkpoint says.
struct Shorter {
    writer: String,
    size: u64,
    found: u64,
}

/// Compares the newest checkpoint that was kept beside the database with the database.
fn rolled_back(
    folder: &StoreFolder,
    connection: &Connection,
) -> Result<Option<Shorter>, OpenError> {
    let Some(kept) = folder.kept_checkpoint()? else { return Ok(None) };
    let path = folder.database();
    let found: Option<i64> = connection
        .query_row("SELECT size FROM writers WHERE writer = ?1", [&kept.writer], |row| row.get(0))
        .optional()
        .map_err(|source| OpenError::Database { path: path.display().to_string(), source })?;
    let found = found.unwrap_or_default().unsigned_abs();
    Ok((found < kept.size).then_some(Shorter { writer: kept.writer, size: kept.size, found }))
}

fn closed() -> LedgerError {
    LedgerError::Unavailable("the store is closed".to_owned())
}

#[async_trait]
impl Ledger for SqliteLedger {
    fn writer(&self) -> &str {
        &self.writer
    }

    fn digester(&self) -> &Digester {
        &self.digester
    }

    async fn claim(&self, request: ClaimRequest) -> Result<Claimed, LedgerError> {
        let (watch, sync) = (Arc::clone(&self.watch), request.sync);
        let step = move |records: &mut TransactionRecords<'_>| {
            steps::claim(records, &request, |id| watch.of(id))
        };
        self.run(sync, step).await
    }

    async fn settle(&self, settlement: Arc<Settlement>) -> Result<Receipt, LedgerError> {
        let sync = settlement.sync;
        self.run(sync, move |records| steps::settle(records, &settlement)).await
    }

    async fn refuse(&self, refusal: Refusal) -> Result<(), LedgerError> {
        self.run(false, move |records| steps::refuse(records, &refusal)).await
    }

    async fn note(&self, events: Vec<EventBody>) -> Result<(), LedgerError> {
        self.run(true, move |records| steps::note(records, &events)).await
    }

    async fn renew(&self, at: Moment) -> Result<(), LedgerError> {
        self.run(false, move |records| records.renew(&at)).await
    }

    async fn sweep(&self, at: Moment) -> Result<Vec<Swept>, LedgerError> {
        self.run(true, move |records| steps::sweep(records, &at)).await
    }

    async fn park(&self, receipt_id: String, fence: u64, at: Moment) -> Result<(), LedgerError> {
        let parked = Happening::Parked { fence };
        self.run(true, move |records| steps::wait_for_input(records, &receipt_id, parked, &at))
            .await
    }

    async fn resume(&self, receipt_id: String, fence: u64, at: Moment) -> Result<(), LedgerError> {
        let resumed = Happening::Resumed { fence };
        self.run(true, move |records| steps::wait_for_input(records, &receipt_id, resumed, &at))
            .await
    }

    async fn resolve(&self, resolution: Resolution) -> Result<Receipt, LedgerError> {
        self.run(true, move |records| steps::resolve(records, &resolution)).await
    }

    async fn prune(&self, prune: Prune) -> Result<Pruned, LedgerError> {
        self.run(true, move |records| steps::prune(records, &prune)).await
    }

    async fn checkpoint(&self, due: Due, at: Moment) -> Result<Option<String>, LedgerError> {
        let signer = self.signer.clone();
        let note =
            self.run(true, move |records| steps::checkpoint(records, &signer, due, &at)).await?;
        Ok(self.keep(note))
    }

    async fn close(&self, at: Moment) -> Result<Option<String>, LedgerError> {
        let signer = self.signer.clone();
        let note = self
            .run(true, move |records| {
                let note = steps::stop(records, &signer, &at)?;
                records.stop()?;
                Ok(note)
            })
            .await?;
        self.jobs.close();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            // The queue is closed, so the thread ends after what it holds.
            let _ = thread.join();
        }
        self.folder.unlock_writer(&self.writer);
        Ok(self.keep(note))
    }
}

#[async_trait]
impl LedgerReads for SqliteLedger {
    async fn receipt(&self, receipt_id: &str) -> Result<Option<Receipt>, LedgerError> {
        self.reads.receipt(receipt_id).await
    }

    async fn receipts(&self, filter: ReceiptFilter) -> Result<(Vec<Receipt>, bool), LedgerError> {
        self.reads.receipts(filter).await
    }

    async fn agent_log(&self, id: &str) -> Result<Option<AgentLog>, LedgerError> {
        self.reads.agent_log(id).await
    }

    async fn agent_logs(&self, filter: LogFilter) -> Result<Vec<AgentLog>, LedgerError> {
        self.reads.agent_logs(filter).await
    }

    async fn events(&self, filter: EventFilter) -> Result<Vec<PlacedEvent>, LedgerError> {
        self.reads.events(filter).await
    }

    async fn log_page(
        &self,
        after: Option<(String, u64)>,
        limit: usize,
        include: Include,
    ) -> Result<Vec<RawEntry>, LedgerError> {
        self.reads.log_page(after, limit, include).await
    }

    async fn heads(&self) -> Result<Vec<WriterHead>, LedgerError> {
        self.reads.heads().await
    }

    async fn unaccounted(&self) -> Result<Unaccounted, LedgerError> {
        self.reads.unaccounted().await
    }

    async fn healthy(&self) -> Result<(), LedgerError> {
        if self.jobs.is_closed() {
            return Err(closed());
        }
        self.watch.health()
    }
}
