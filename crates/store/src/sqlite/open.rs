//! Opens the embedded ledger: its folder, its database, its keys, and its threads.
//!
//! Path: 6, 9. Doc: records.md#stores

use std::cell::Cell;
use std::collections::HashMap;
use std::fs::File;
use std::future::Future;
use std::path::Path;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use rusqlite::{Connection, ErrorCode, OptionalExtension, TransactionBehavior};
use toolbooth_audit::LedgerError;
use toolbooth_audit::backend::chain::Head;
use toolbooth_audit::backend::disk_space::DiskSpace;
use toolbooth_audit::backend::recorder::{Recorder, StepRunner};
use toolbooth_audit::backend::steps::{self, AcceptRestored, Start, Step};
use toolbooth_audit::backend::working::WorkingSet;
use toolbooth_audit::backend::writer::{Writer, WriterHandle};
use toolbooth_audit::backend::writer_status::WriterStatus;
use toolbooth_audit::checkpoint::Checkpoint;
use toolbooth_audit::digest::Digester;
use toolbooth_audit::heads::is_writer_id;
use toolbooth_audit::ledger::Moment;
use toolbooth_audit::note::Signer;
use toolbooth_audit::reads::WriterHead;

use super::backend::{Files, SqliteBackend};
pub use super::connection::Durability;
use super::connection::connect;
use super::error::MigrateError;
use super::error::OpenError;
use super::folder::StoreFolder;
use super::reads::SqliteReads;
use super::rows::{HEAD, head};
use super::space_monitor::SpaceMonitor;
use super::start_check::{self, StartCheck};
use super::{is_damage, schema, search_index, wal_checkpoint};

/// Options for opening a store.
#[derive(Debug)]
pub struct SqliteOptions {
    /// The point in time at which a request is answered.
    pub durability: Durability,
    /// Signs checkpoints. Without it, the key in the folder is used, and created if it is missing.
    pub signer: Option<Signer>,
    /// Maximum bytes of the database and its search index. The free space of the file system is a
    /// limit in any case.
    pub bytes_max: Option<u64>,
    /// Whether to accept a database that is older than its last checkpoint. The log then records
    /// `STORE_RESTORED`.
    pub accept_restored: bool,
    /// When the database is checked. One that is accepted after it was restored always is.
    pub check: StartCheck,
    /// Time limit of this check. The unread rest then counts as sound.
    pub check_max: Duration,
}

impl Default for SqliteOptions {
    fn default() -> Self {
        Self {
            durability: Durability::default(),
            signer: None,
            bytes_max: None,
            accept_restored: false,
            check: StartCheck::default(),
            check_max: Duration::from_millis(250),
        }
    }
}

/// The embedded ledger.
pub type SqliteLedger = Recorder<Sqlite>;

/// Runs the steps of one writer on a dedicated thread, over one file.
#[derive(Debug)]
pub struct Sqlite {
    writer: String,
    steps: WriterHandle,
    reads: SqliteReads,
    folder: StoreFolder,
    /// The thread of the writer first, then those of the search index and of WAL checkpoints.
    threads: Mutex<Vec<std::thread::JoinHandle<()>>>,
    /// Locked while this writer is alive, so that other processes can detect it.
    _lock: File,
}

impl StepRunner for Sqlite {
    type Reads = SqliteReads;

    async fn run<S: Step>(&self, step: S) -> Result<S::Answer, LedgerError> {
        let answer = self.steps.run(step).await;
        if answer.as_ref().is_err_and(is_damage) {
            self.folder.forget_check();
        }
        answer
    }

    fn reads(&self) -> &SqliteReads {
        &self.reads
    }

    fn healthy(&self) -> Result<(), LedgerError> {
        self.steps.healthy()
    }

    fn disk_space(&self) -> DiskSpace {
        self.steps.disk_space()
    }

    fn keep(&self, note: &str) {
        if let Err(error) = self.folder.keep_checkpoint(note) {
            tracing::warn!(%error, "a checkpoint is not kept beside the database");
        }
    }

    async fn ended(&self) {
        self.steps.close();
        let threads =
            std::mem::take(&mut *self.threads.lock().unwrap_or_else(PoisonError::into_inner));
        for thread in threads {
            // The queue is closed, so the writer ends after its remaining steps, and the other
            // threads end after it.
            let _ = thread.join();
        }
        self.folder.unlock_writer(&self.writer);
    }
}

/// Opens the store in `folder`, which is created if it is missing, and begins the log of `writer`
/// at `at`. The id `writer` must never have been used: each start needs a new one, such as a UUID. Blocks the thread.
///
/// # Errors
/// [`OpenError`]. Migrations that were applied stay.
pub fn open(
    folder: &Path,
    writer: &str,
    options: SqliteOptions,
    at: &Moment,
) -> Result<SqliteLedger, OpenError> {
    let SqliteOptions { durability, signer, bytes_max, accept_restored, check, check_max } =
        options;
    if !is_writer_id(writer) {
        return Err(OpenError::WriterId { writer: writer.to_owned() });
    }
    let folder = StoreFolder::create(folder)?;
    let path = folder.database();
    let (kept, is_readable) = match folder.kept_checkpoints() {
        // An accepted database needs no checkpoint to compare it with.
        Err(OpenError::Note { .. }) if accept_restored => (Vec::new(), false),
        kept => (kept?, true),
    };
    if let (Some(kept), false, false) = (kept.last(), path.exists(), accept_restored) {
        let kept = kept.clone();
        // A checkpoint without a database means that the database was lost. It is not created
        // again.
        return Err(OpenError::RolledBack { writer: kept.writer, size: kept.size, found: 0 });
    }
    // SQLite would create the file with the mode that the umask leaves.
    folder.touch_database()?;
    let database = |source: rusqlite::Error| {
        let path = path.display().to_string();
        match source.sqlite_error_code() {
            Some(ErrorCode::DatabaseCorrupt) => {
                folder.forget_check();
                OpenError::Damaged { path, what: source.to_string() }
            }
            _ => OpenError::Database { path, source },
        }
    };
    let mut connection = connect(&path, durability).map_err(database)?;
    let check = if accept_restored { StartCheck::Always } else { check };
    if let Some(what) =
        start_check::damage(&connection, &folder, check, check_max, at).map_err(database)?
    {
        return Err(OpenError::Damaged { path: path.display().to_string(), what });
    }
    let migrate = |connection: &mut Connection, to| {
        schema::migrate(connection, to).map_err(|error| match error {
            MigrateError::Database(source) => database(source),
            MigrateError::Record(source) => {
                OpenError::Migration { path: path.display().to_string(), source }
            }
        })
    };
    let found = migrate(&mut connection, UNCHECKED)?;
    if found > schema::VERSION {
        return Err(OpenError::Newer { found, known: schema::VERSION });
    }
    let used: bool = connection
        .query_row("SELECT EXISTS (SELECT 1 FROM writers)", [], |row| row.get(0))
        .map_err(database)?;
    // Receipts depend on the key, so a database that was used never gets a new one.
    let digester = folder.digester(!used)?;
    check_keys(&mut connection, &digester, &path)?;
    let signer = match signer {
        Some(signer) => signer,
        None => folder.signer()?,
    };
    if kept.is_empty() && used && !accept_restored {
        tracing::warn!(
            folder = %path.display(),
            "no checkpoint is kept beside a used database; a rollback to an earlier state cannot be detected"
        );
    }
    let mut lost = Vec::new();
    for kept in kept {
        lost.extend(truncated(kept, &path, &connection)?);
    }
    if let (Some(TruncatedLog { writer, size, found }), false) = (lost.last(), accept_restored) {
        let (writer, size, found) = (writer.clone(), *size, *found);
        return Err(OpenError::RolledBack { writer, size, found });
    }
    if folder.is_restored() && !accept_restored {
        return Err(OpenError::Restored { path: folder.0.display().to_string() });
    }
    folder.sweep_locks();
    let is_used: bool = connection
        .query_row("SELECT EXISTS (SELECT 1 FROM writers WHERE writer = ?1)", [writer], |row| {
            row.get(0)
        })
        .map_err(database)?;
    // The lock of a writer that runs is left alone: without it, its claims would be taken over.
    let lock = match is_used {
        true => None,
        false => folder.lock_writer(writer)?,
    };
    let Some(lock) = lock else {
        return Err(OpenError::WriterUsed { writer: writer.to_owned() });
    };
    let before: Option<(WriterHead, Option<String>)> = {
        let sql = format!("SELECT {HEAD} FROM writers ORDER BY rowid DESC LIMIT 1");
        connection
            .query_row(&sql, [], |row| Ok((head(row)?, row.get(7)?)))
            .optional()
            .map_err(database)?
    };
    // An unused store has no records of an earlier version to take over.
    let takes_over = used && schema::has_earlier_records(found);
    let to = if takes_over { schema::READABLE } else { schema::VERSION };
    let version = migrate(&mut connection, to)?.max(to);
    let begun = connection.transaction_with_behavior(TransactionBehavior::Immediate).and_then(
        |transaction| {
            transaction.execute(
                "INSERT INTO writers (writer, started) VALUES (?1, ?2)",
                (writer, &at.text),
            )?;
            let no = transaction.last_insert_rowid();
            transaction.commit()?;
            Ok(no)
        },
    );
    let writer_no = begun.map_err(database)?;
    let (written, handed) = search_index::found_channel();
    let status = Arc::new(WriterStatus::default());
    let (steps, queue) = WriterHandle::new(Arc::clone(&status));
    let (grown, growing) = wal_checkpoint::notices();
    wal_checkpoint::watch(&mut connection, grown.clone()).map_err(database)?;
    let backend = SqliteBackend {
        path: path.clone(),
        durability,
        folder: folder.clone(),
        writer: writer.to_owned(),
        writer_no,
        written,
        grown,
        connection: Some(connection),
        sync: None,
        data_version: 0,
        files: Files::default(),
        space_monitor: SpaceMonitor::new(&path, bytes_max),
        searched: Cell::new(0),
        receipts_seen: Cell::default(),
        progress: HashMap::new(),
    };
    let head = Head::new(writer.to_owned());
    let set = WorkingSet::new(head, digester.clone(), Arc::clone(&status));
    let serving = Writer::new(backend, set, status).serve(queue);
    let start_thread = |name: &str, work: Box<dyn FnOnce() + Send>| {
        std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(work)
            .map_err(|source| OpenError::Folder { path: path.display().to_string(), source })
    };
    let thread = start_thread("toolbooth-store", Box::new(move || block_on(serving)))?;
    let reads = SqliteReads::open(&path)?;
    let own = path.clone();
    let gathering =
        start_thread("toolbooth-lookup", Box::new(move || search_index::serve(&own, &handed)))?;
    let own = folder.clone();
    let carrying =
        start_thread("toolbooth-carry", Box::new(move || wal_checkpoint::serve(&own, &growing)))?;
    let accepted = accept_restored.then(|| AcceptRestored {
        lost: lost.iter().map(|lost| (lost.writer.clone(), lost.size)).collect(),
        at: at.clone(),
    });
    let started = steps::started(
        &signer,
        digester.key_id(),
        u32::try_from(version).unwrap_or_default(),
        before,
        at,
    );
    let runner = Sqlite {
        writer: writer.to_owned(),
        steps,
        reads,
        folder: folder.clone(),
        threads: Mutex::new(vec![thread, gathering, carrying]),
        _lock: lock,
    };
    let start = Start { started, accepted, signer: signer.clone(), at: at.clone() };
    block_on(runner.run(start)).map_err(OpenError::Ledger)?;
    if accept_restored {
        let lost: Vec<String> = lost.into_iter().map(|lost| lost.writer).collect();
        folder.forget_checkpoints(is_readable.then_some(&lost))?;
        folder.accept_restored()?;
    }
    if found < schema::VERSION {
        // The records of an earlier version were taken over above. A start that ends before this
        // point repeats that.
        migrate(&mut connect(&path, durability).map_err(database)?, schema::VERSION)?;
    }
    Ok(Recorder::over(writer.to_owned(), digester, signer, runner))
}

/// The version up to which a database is migrated before its keys and its end are checked.
const UNCHECKED: i64 = 3;

/// Blocks the current thread until a future completes.
fn block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(std::thread::Thread);

    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut context = Context::from_waker(&waker);
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(done) => return done,
            Poll::Pending => std::thread::park(),
        }
    }
}

/// Checks that all digest keys of the store are known, and adds the newest. Without a key, a
/// gateway would not find the claims made under it.
fn check_keys(
    connection: &mut Connection,
    digester: &Digester,
    path: &Path,
) -> Result<(), OpenError> {
    let mut check = || {
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let stored: Vec<String> = transaction
            .prepare("SELECT key_id FROM digest_keys ORDER BY key_id")?
            .query_map([], |row| row.get(0))?
            .collect::<rusqlite::Result<_>>()?;
        let unknown =
            stored.into_iter().find(|stored| !digester.all().any(|known| known.key_id() == stored));
        if unknown.is_none() {
            let sql = "INSERT INTO digest_keys (key_id) VALUES (?1) ON CONFLICT DO NOTHING";
            transaction.execute(sql, [digester.key_id()])?;
        }
        transaction.commit()?;
        Ok(unknown)
    };
    let unknown = check()
        .map_err(|source| OpenError::Database { path: path.display().to_string(), source })?;
    match unknown {
        None => Ok(()),
        Some(stored) => Err(OpenError::OtherKey { given: digester.key_id().to_owned(), stored }),
    }
}

/// A log that is shorter than its stored checkpoint.
struct TruncatedLog {
    writer: String,
    size: u64,
    found: u64,
}

/// Compares the database with a checkpoint that is stored next to it.
fn truncated(
    kept: Checkpoint,
    path: &Path,
    connection: &Connection,
) -> Result<Option<TruncatedLog>, OpenError> {
    let found: Option<i64> = connection
        .query_row("SELECT size FROM writers WHERE writer = ?1", [&kept.writer], |row| row.get(0))
        .optional()
        .map_err(|source| OpenError::Database { path: path.display().to_string(), source })?;
    let found = found.unwrap_or_default().unsigned_abs();
    Ok((found < kept.size).then_some(TruncatedLog { writer: kept.writer, size: kept.size, found }))
}

#[cfg(test)]
mod tests;
