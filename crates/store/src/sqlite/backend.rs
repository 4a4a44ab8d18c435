//! Begins, loads, writes and commits the batches of one writer.
//!
//! Path: 6, 9. Doc: records.md#stores

use std::cell::Cell;
use std::collections::HashMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::SyncSender;
use std::time::Duration;

use rusqlite::{Connection, ErrorCode};
use toolbooth_audit::LedgerError;
use toolbooth_audit::backend::chain::{ChainedEvent, Head};
use toolbooth_audit::backend::pruning::Progress;
use toolbooth_audit::backend::working::{Batch, Needs, WorkingSet};
use toolbooth_audit::backend::writer::{Backend, Failure, LogEnd};

use super::connection::{Durability, connect};
use super::folder::StoreFolder;
use super::search_index::{Found, FoundSender};
use super::space_monitor::SpaceMonitor;
use super::transaction::{Transaction, failed};
use super::{schema, unavailable, wal_checkpoint};
use crate::newer;

/// Pause between two checks for more steps.
const GATHER_STEP: Duration = Duration::from_micros(50);
/// Maximum pauses before a batch is committed.
const GATHER_STEPS: u32 = 4;

/// The backend of one writer, over one connection.
pub(super) struct SqliteBackend {
    pub(super) path: PathBuf,
    pub(super) durability: Durability,
    pub(super) folder: StoreFolder,
    pub(super) writer: String,
    /// The number of the writer in places.
    pub(super) writer_no: i64,
    /// Sends the events of each commit to the search index.
    pub(super) written: FoundSender,
    /// Requests a WAL checkpoint.
    pub(super) grown: SyncSender<()>,
    /// `None` after a commit with an unknown outcome, until a new connection has passed its checks.
    pub(super) connection: Option<Connection>,
    /// Whether the connection waits for the disk at commits, if that was set for a transaction.
    pub(super) sync: Option<bool>,
    /// The last `PRAGMA data_version`, which changes when another connection has written.
    pub(super) data_version: i64,
    /// The files that the connection has open.
    pub(super) files: Files,
    /// Measures the remaining space.
    pub(super) space_monitor: SpaceMonitor,
    /// The place up to which agent logs were searched for refusals.
    pub(super) searched: Cell<i64>,
    /// The last receipt that a step of pruning has examined, if another step must continue.
    pub(super) receipts_seen: Cell<String>,
    /// The progress of pruning in each log.
    pub(super) progress: HashMap<String, Progress>,
}

/// The files that a connection has open, by device and inode: the database and its WAL.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Files {
    database: Option<(u64, u64)>,
    log: Option<(u64, u64)>,
}

impl Files {
    /// Returns the files to which the paths of a database and its WAL refer at present.
    fn at(database: &Path) -> Self {
        let of = |path: &Path| {
            let file = std::fs::metadata(path).ok()?;
            Some((file.dev(), file.ino()))
        };
        let mut log = database.as_os_str().to_owned();
        log.push("-wal");
        Self { database: of(database), log: of(Path::new(&log)) }
    }
}

impl SqliteBackend {
    /// Runs `run` in the transaction. After a failure the transaction is rolled back; if that
    /// fails, the connection is dropped.
    fn within<T>(
        &mut self,
        run: impl FnOnce(&Transaction<'_>) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let Some(connection) = self.connection.take() else {
            return Err(Failure::Unknown(LedgerError::unavailable("there is no connection")));
        };
        let transaction = Transaction {
            connection: &connection,
            folder: &self.folder,
            writer: &self.writer,
            writer_no: self.writer_no,
            searched: &self.searched,
            receipts_seen: &self.receipts_seen,
            progress: &self.progress,
        };
        match run(&transaction) {
            Err(Failure::Unknown(error)) => Err(Failure::Unknown(error)),
            Err(refused) => {
                let ended =
                    connection.is_autocommit() || connection.execute_batch("ROLLBACK").is_ok();
                if ended {
                    self.connection = Some(connection);
                }
                match (ended, refused) {
                    (true, refused) => Err(refused),
                    (false, Failure::Unavailable(error) | Failure::Refused(error)) => {
                        Err(Failure::Unknown(error))
                    }
                    (false, refused) => Err(refused),
                }
            }
            Ok(done) => {
                self.connection = Some(connection);
                Ok(done)
            }
        }
    }

    /// Checks that the paths still refer to the files that the connection has open. Writes to a
    /// removed file are lost with it.
    fn check_files(&mut self) -> Result<(), LedgerError> {
        let now = Files::at(&self.path);
        if self.files == Files::default() {
            self.files = now;
        }
        if self.files == now && now.database.is_some() && now.log.is_some() {
            return Ok(());
        }
        self.folder.forget_check();
        Err(LedgerError::unavailable(format!(
            "`{}` or its log was removed or replaced while the gateway runs; put it back, or restart",
            self.path.display()
        )))
    }

    fn begin(&mut self, sync: bool, set: &mut WorkingSet) -> Result<(), Failure> {
        let changes = self.durability == Durability::Process && self.sync != Some(sync);
        if changes {
            // What the connection does is not known until the transaction has begun.
            self.sync = None;
        }
        let before = self.data_version;
        let now = self.within(|transaction| {
            if changes {
                let level = if sync { "FULL" } else { "NORMAL" };
                let connection = transaction.connection;
                connection.pragma_update(None, "synchronous", level).map_err(failed)?;
            }
            transaction
                .connection
                .prepare_cached("BEGIN IMMEDIATE")
                .and_then(|mut begin| begin.execute([]))
                .map_err(|error| match error.sqlite_error_code() {
                    // Another process has held the write lock for too long; no transaction has
                    // begun.
                    Some(ErrorCode::DatabaseBusy) => Failure::Unavailable(unavailable(error)),
                    _ => failed(error),
                })?;
            let version = "PRAGMA data_version";
            transaction
                .connection
                .prepare_cached(version)
                .and_then(|mut version| version.query_row([], |row| row.get(0)))
                .map_err(failed)
        })?;
        self.sync = Some(sync);
        // Another connection has written, so cached records may be outdated.
        if before != now {
            set.forget();
            self.check_version()?;
            self.data_version = now;
        }
        if let Some(connection) = &self.connection {
            let looked = self.space_monitor.measure(connection, set);
            looked.or_else(|failure| self.within(|_| Err(failure)))?;
        }
        // Checked inside a transaction, since the WAL exists only from the first one on.
        let checked = self.check_files();
        checked.or_else(|error| self.within(|_| Err(Failure::Unavailable(error))))
    }

    /// Checks that no newer version has migrated the database since it was opened.
    fn check_version(&mut self) -> Result<(), Failure> {
        self.within(|transaction| {
            let found = schema::version(transaction.connection).map_err(failed)?;
            match found > schema::VERSION {
                true => Err(Failure::Unavailable(newer(found, schema::VERSION))),
                false => Ok(()),
            }
        })
    }

    fn end(&mut self, how: &str) -> Result<(), Failure> {
        self.within(|transaction| match transaction.execute(how, []) {
            Ok(_) => Ok(()),
            Err(Failure::Refused(error)) => Err(Failure::Unknown(error)),
            Err(failure) => Err(failure),
        })
    }
}

impl Backend for SqliteBackend {
    async fn load(
        &mut self,
        needs: &Needs,
        sync: bool,
        set: &mut WorkingSet,
    ) -> Result<(), Failure> {
        self.begin(sync, set)?;
        let missing = set.missing(needs);
        if missing.is_empty() {
            return Ok(());
        }
        self.within(|transaction| transaction.load(missing, set))
    }

    async fn write(&mut self, batch: &Batch, from: &Head, to: &Head) -> Result<(), Failure> {
        self.within(|transaction| transaction.write(batch, from, to))?;
        self.end("COMMIT")?;
        self.check_files().map_err(Failure::Unknown)?;
        self.progress
            .extend(batch.upkeep.pruned.as_ref().and_then(|removal| removal.progress.clone()));
        if !batch.events.is_empty() {
            let place = |seq: u64| schema::place(self.writer_no, seq.cast_signed());
            let of = |placed: &ChainedEvent| Found::of(place(placed.event.seq), &placed.event.body);
            self.written.send(batch.events.iter().map(of));
        }
        Ok(())
    }

    /// Waits for more steps. Sleeps, since the thread runs only this writer.
    async fn gather(&mut self, enough: &(dyn Fn() -> bool + Sync)) {
        for _ in 0..GATHER_STEPS {
            if enough() {
                return;
            }
            std::thread::sleep(GATHER_STEP);
        }
    }

    async fn release(&mut self) -> Result<(), Failure> {
        self.end("ROLLBACK")
    }

    /// Opens a new connection, and accepts it only after a complete WAL checkpoint and a
    /// `quick_check`.
    async fn recover(&mut self, writer: &str) -> Result<LogEnd, LedgerError> {
        let red = |what: String| Err(LedgerError::unavailable(what));
        self.folder.forget_check();
        self.check_files()?;
        // A new connection counts versions anew.
        (self.connection, self.sync, self.data_version) = (None, None, -1);
        let mut connection = connect(&self.path, self.durability).map_err(unavailable)?;
        wal_checkpoint::watch(&mut connection, self.grown.clone()).map_err(unavailable)?;
        let busy: i64 = connection
            .query_row("PRAGMA wal_checkpoint(FULL)", [], |row| row.get(0))
            .map_err(unavailable)?;
        if busy != 0 {
            return red("the database cannot be brought up to date yet".to_owned());
        }
        let verdict: String = connection
            .query_row("PRAGMA quick_check(1)", [], |row| row.get(0))
            .map_err(unavailable)?;
        if verdict != "ok" {
            return red(format!("the database is damaged: {verdict}"));
        }
        let end = connection
            .query_row("SELECT size, last_leaf FROM writers WHERE writer = ?1", [writer], |row| {
                Ok(LogEnd { size: row.get::<_, i64>(0)?.unsigned_abs(), last_leaf: row.get(1)? })
            })
            .map_err(unavailable)?;
        self.connection = Some(connection);
        Ok(end)
    }
}
