//! The ledger over SQLite: hands steps to the writer thread and waits until they are durable.
//!
//! Path: 6, 9. Doc: records.md#stores

use std::collections::HashMap;
use std::convert::Infallible;
use std::fs::File;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_channel::{Receiver, Sender};
use async_trait::async_trait;
use rusqlite::Connection;
use toolbooth_audit::chain::Head;
use toolbooth_audit::digest::Digester;
use toolbooth_audit::ledger::{ClaimRequest, Claimed, Ledger, Moment, Refusal, Settlement, Swept};
use toolbooth_audit::reads::{
    EventFilter, EventWithRecords, LedgerReads, LogFilter, PlacedEvent, ReceiptFilter, Unaccounted,
    WriterHead,
};
use toolbooth_audit::{LedgerError, steps};
use toolbooth_contracts::agent_log::AgentLog;
use toolbooth_contracts::event::{AuditEventKind, EventBody};
use toolbooth_contracts::receipt::Receipt;

use super::folder::StoreFolder;
use super::jobs::{self, Job, QUEUE_MAX, Writer};
use super::reads::SqliteReads;
use super::records::TransactionRecords;
use super::{OpenError, schema};

/// How long a statement waits for another process that writes.
const BUSY: Duration = Duration::from_secs(5);

/// When an answer is given.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Durability {
    /// After fsync: survives the loss of power.
    #[default]
    Full,
    /// After the write: survives the process, may lose the last second with the power.
    Process,
}

type Watch = (Sender<Infallible>, Receiver<Infallible>);

/// What the writer thread and those who wait share.
#[derive(Debug, Default)]
pub(super) struct Shared {
    health: Mutex<Option<String>>,
    running: Mutex<HashMap<String, Watch>>,
    settling: Mutex<Vec<String>>,
}

impl Shared {
    pub(super) fn set_health(&self, error: Option<&LedgerError>) {
        let text = error.map(ToString::to_string);
        *self.health.lock().unwrap_or_else(PoisonError::into_inner) = text;
    }

    /// A claim of this process runs.
    pub(super) fn runs(&self, receipt_id: &str) {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        running.entry(receipt_id.to_owned()).or_insert_with(|| async_channel::bounded(1));
    }

    /// A claim is settled, once the batch is durable.
    pub(super) fn settles(&self, receipt_id: &str) {
        let mut settling = self.settling.lock().unwrap_or_else(PoisonError::into_inner);
        settling.push(receipt_id.to_owned());
    }

    pub(super) fn tell_settled(&self) {
        let ids =
            std::mem::take(&mut *self.settling.lock().unwrap_or_else(PoisonError::into_inner));
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        for id in ids {
            if let Some((sender, _)) = running.remove(&id) {
                sender.close();
            }
        }
    }

    pub(super) fn forget_settled(&self) {
        self.settling.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    fn watch(&self, receipt_id: &str) -> Option<Receiver<Infallible>> {
        let running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        running.get(receipt_id).map(|(_, receiver)| receiver.clone())
    }
}

/// The embedded ledger.
#[derive(Debug)]
pub struct SqliteLedger {
    writer: String,
    digester: Digester,
    jobs: Sender<Box<dyn Job>>,
    reads: SqliteReads,
    shared: Arc<Shared>,
    folder: StoreFolder,
    thread: Mutex<Option<std::thread::JoinHandle<()>>>,
    /// Says to other processes that this writer lives.
    _lock: File,
}

/// A connection for the writer.
pub(super) fn connect(path: &Path, durability: Durability) -> rusqlite::Result<Connection> {
    let connection = Connection::open(path)?;
    connection.busy_timeout(BUSY)?;
    connection
        .pragma_update_and_check(None, "journal_mode", "WAL", |row| row.get::<_, String>(0))?;
    let synchronous = match durability {
        Durability::Full => "FULL",
        Durability::Process => "NORMAL",
    };
    connection.pragma_update(None, "synchronous", synchronous)?;
    connection.set_prepared_statement_cache_capacity(64);
    Ok(connection)
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
        durability: Durability,
        at: &Moment,
    ) -> Result<Self, OpenError> {
        let folder = StoreFolder::create(folder)?;
        folder.touch_database()?;
        let path = folder.database();
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
        let digester = Digester::new(&folder.digest_key(!used)?);
        let lock = folder.lock_writer(writer)?;
        let before: Option<(String, i64, Option<String>)> = {
            use rusqlite::OptionalExtension;
            connection
                .query_row(
                    "SELECT writer, size, last_leaf FROM writers ORDER BY rowid DESC LIMIT 1",
                    [],
                    |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)),
                )
                .optional()
                .map_err(database)?
        };
        connection
            .execute(
                "INSERT INTO writers (writer, started, renewed_ms) VALUES (?1, ?2, ?3)",
                (writer, &at.text, at.epoch_ms),
            )
            .map_err(database)?;
        let shared = Arc::new(Shared::default());
        let (jobs, queue) = async_channel::bounded(QUEUE_MAX);
        let worker = Writer {
            path: path.clone(),
            durability,
            folder: folder.clone(),
            key_id: digester.key_id().to_owned(),
            head: Head::new(writer.to_owned()),
            connection: Some(connection),
            shared: Arc::clone(&shared),
        };
        let thread = std::thread::Builder::new()
            .name("toolbooth-store".to_owned())
            .spawn(move || worker.serve(&queue))
            .map_err(|source| OpenError::Folder { path: path.display().to_string(), source })?;
        let reads = SqliteReads::open(&path)?;
        let ledger = Self {
            writer: writer.to_owned(),
            digester,
            jobs,
            reads,
            shared,
            folder,
            thread: Mutex::new(Some(thread)),
            _lock: lock,
        };
        let mut started = EventBody::new(AuditEventKind::WriterStarted, at.text.clone());
        started.facts = before.map(|(writer, size, leaf)| {
            let mut facts = serde_json::Map::new();
            facts.insert("before".to_owned(), writer.into());
            facts.insert("size".to_owned(), size.into());
            facts.insert("lastLeaf".to_owned(), leaf.into());
            facts
        });
        let (job, answer) = jobs::job(move |records| steps::note(records, &[started]));
        ledger
            .jobs
            .send_blocking(job)
            .map_err(|_| OpenError::Ledger(closed()))
            .and_then(|()| answer.recv_blocking().map_err(|_| OpenError::Ledger(closed())))?
            .map_err(OpenError::Ledger)?;
        Ok(ledger)
    }

    async fn run<T, F>(&self, step: F) -> Result<T, LedgerError>
    where
        T: Send + 'static,
        F: FnOnce(&mut TransactionRecords<'_>) -> Result<T, LedgerError> + Send + 'static,
    {
        let (job, answer) = jobs::job(step);
        self.jobs.send(job).await.map_err(|_| closed())?;
        answer.recv().await.map_err(|_| closed())?
    }
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
        let shared = Arc::clone(&self.shared);
        self.run(move |records| steps::claim(records, &request, |id| shared.watch(id))).await
    }

    async fn settle(&self, settlement: Arc<Settlement>) -> Result<Receipt, LedgerError> {
        self.run(move |records| steps::settle(records, &settlement)).await
    }

    async fn refuse(&self, refusal: Refusal) -> Result<(), LedgerError> {
        self.run(move |records| steps::refuse(records, &refusal)).await
    }

    async fn note(&self, events: Vec<EventBody>) -> Result<(), LedgerError> {
        self.run(move |records| steps::note(records, &events)).await
    }

    async fn renew(&self, at: Moment) -> Result<(), LedgerError> {
        self.run(move |records| records.renew(&at)).await
    }

    async fn sweep(&self, at: Moment) -> Result<Vec<Swept>, LedgerError> {
        self.run(move |records| steps::sweep(records, &at)).await
    }

    async fn close(&self, at: Moment) -> Result<(), LedgerError> {
        self.run(move |records| {
            let stopped = EventBody::new(AuditEventKind::WriterStopped, at.text);
            steps::note(records, &[stopped])?;
            records.stop()
        })
        .await?;
        self.jobs.close();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            // The queue is closed, so the thread ends after what it holds.
            let _ = thread.join();
        }
        self.folder.unlock_writer(&self.writer);
        Ok(())
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
    ) -> Result<Vec<EventWithRecords>, LedgerError> {
        self.reads.log_page(after, limit).await
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
        match self.shared.health.lock().unwrap_or_else(PoisonError::into_inner).clone() {
            None => Ok(()),
            Some(error) => Err(LedgerError::Unavailable(error)),
        }
    }
}
