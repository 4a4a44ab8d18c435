//! The writer thread: runs what has queued in one transaction and answers when it is durable.
//!
//! Path: 6, 9. Doc: records.md#stores

use std::path::PathBuf;

use async_channel::Receiver;
use rusqlite::{Connection, TransactionBehavior};
use toolbooth_audit::chain::Head;
use toolbooth_audit::ledger::Moment;
use toolbooth_audit::{LedgerError, steps};

use super::folder::StoreFolder;
use super::ledger::Durability;
use super::records::TransactionRecords;
use super::unavailable;
use crate::asked::Asked;
use crate::watch::{Changes, Watch};

/// Most jobs that one commit takes.
const BATCH_MAX: usize = 256;
/// Jobs that may wait; further ones wait for room.
pub(super) const QUEUE_MAX: usize = 4096;

/// Something to do inside a transaction.
pub(super) trait Job: Send {
    /// Whether its answer waits for the disk, where the store leaves the choice.
    fn sync(&self) -> bool;
    /// Does it; `false` takes back what it wrote.
    fn run(&mut self, records: &mut TransactionRecords<'_>) -> bool;
    /// Answers whoever waits, once it is known whether the batch is durable.
    fn finish(self: Box<Self>, committed: Result<(), LedgerError>);
}

struct Step<T, F> {
    sync: bool,
    asked: Asked<T, F>,
}

impl<T, F> Job for Step<T, F>
where
    T: Send,
    F: FnOnce(&mut TransactionRecords<'_>) -> Result<T, LedgerError> + Send,
{
    fn sync(&self) -> bool {
        self.sync
    }

    fn run(&mut self, records: &mut TransactionRecords<'_>) -> bool {
        self.asked.run(|step| step(records))
    }

    fn finish(self: Box<Self>, committed: Result<(), LedgerError>) {
        self.asked.finish(committed);
    }
}

/// A job that runs `step`, and where its answer arrives.
pub(super) fn job<T, F>(sync: bool, step: F) -> (Box<dyn Job>, Receiver<Result<T, LedgerError>>)
where
    T: Send + 'static,
    F: FnOnce(&mut TransactionRecords<'_>) -> Result<T, LedgerError> + Send + 'static,
{
    let (asked, answer) = Asked::new(step);
    (Box::new(Step { sync, asked }), answer)
}

/// What the writer thread owns.
pub(super) struct Writer {
    pub(super) path: PathBuf,
    pub(super) durability: Durability,
    pub(super) folder: StoreFolder,
    pub(super) key_id: String,
    /// Where the log ends, as far as is known.
    pub(super) head: Head,
    /// `None` after a failed commit, until a fresh connection has proven sound.
    pub(super) connection: Option<Connection>,
    pub(super) doubt: Option<Doubt>,
    /// Claims whose callers were told that nothing is dispatched, and which are durable after all.
    pub(super) orphans: Vec<(String, u64, Moment)>,
    /// Whether the log has ended.
    pub(super) stopped: bool,
    pub(super) watch: std::sync::Arc<Watch>,
}

/// A commit of which nobody knows whether it has happened.
pub(super) struct Doubt {
    /// Where the log ends if it has.
    after: Head,
    /// What it has done then.
    changes: Changes,
}

impl Writer {
    /// Serves jobs until nobody can send any more.
    pub(super) fn serve(mut self, jobs: &Receiver<Box<dyn Job>>) {
        while let Ok(first) = jobs.recv_blocking() {
            let mut batch = vec![first];
            while batch.len() < BATCH_MAX
                && let Ok(more) = jobs.try_recv()
            {
                batch.push(more);
            }
            let committed = self.commit(&mut batch);
            self.watch.set_health(committed.as_ref().err());
            for job in batch {
                job.finish(committed.clone());
            }
            if self.stopped {
                // The log has ended; whoever still waits is told so.
                jobs.close();
                while let Ok(late) = jobs.try_recv() {
                    late.finish(Err(LedgerError::Unavailable("the store is closed".to_owned())));
                }
                return;
            }
        }
    }

    fn commit(&mut self, batch: &mut [Box<dyn Job>]) -> Result<(), LedgerError> {
        if self.connection.is_none() {
            let late = self.recover()?;
            // Whoever waited for that commit was told that it failed.
            self.orphans.extend(late.begun);
        }
        let Some(connection) = self.connection.take() else {
            return Err(LedgerError::Unavailable("there is no connection".to_owned()));
        };
        let (mut head, mut changes) = (self.head.clone(), Changes::default());
        let mut busy = false;
        match self.try_commit(connection, batch, &mut head, &mut changes, &mut busy) {
            Ok(connection) => {
                self.connection = Some(connection);
                self.head = head;
                self.stopped = changes.stopped;
                self.orphans.clear();
                self.watch.tell(changes);
                Ok(())
            }
            // Another process writes for long: nothing was begun, and nothing is in doubt.
            Err(error) if busy => {
                self.connection =
                    Some(super::ledger::connect(&self.path, self.durability).map_err(unavailable)?);
                Err(error)
            }
            Err(error) => {
                tracing::error!(%error, "a commit failed; the store has to prove sound");
                let before = self.head.next_seq();
                self.doubt = Some(Doubt { after: head, changes });
                // It may be known at once that it has happened all the same.
                match self.recover() {
                    Ok(changes) if self.head.next_seq() > before => {
                        self.stopped = changes.stopped;
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

    fn try_commit(
        &self,
        mut connection: Connection,
        batch: &mut [Box<dyn Job>],
        head: &mut Head,
        changes: &mut Changes,
        busy: &mut bool,
    ) -> Result<Connection, LedgerError> {
        if self.durability == Durability::Process {
            let level = if batch.iter().any(|job| job.sync()) { "FULL" } else { "NORMAL" };
            connection.pragma_update(None, "synchronous", level).map_err(unavailable)?;
        }
        let transaction = connection
            .transaction_with_behavior(TransactionBehavior::Immediate)
            .map_err(|error| {
                *busy = error.sqlite_error_code() == Some(rusqlite::ErrorCode::DatabaseBusy);
                unavailable(error)
            })?;
        for (id, fence, at) in &self.orphans {
            let mut records = self.records(&transaction, head, changes);
            steps::abandon(&mut records, id, *fence, at)?;
        }
        for job in batch {
            if changes.stopped {
                // What came after the end of the log is told that it was not done.
                break;
            }
            transaction.execute_batch("SAVEPOINT job").map_err(unavailable)?;
            let before = head.clone();
            let (begun, ended) = (changes.begun.len(), changes.ended.len());
            let mut records = self.records(&transaction, head, changes);
            if job.run(&mut records) {
                transaction.execute_batch("RELEASE job").map_err(unavailable)?;
            } else {
                *head = before;
                changes.begun.truncate(begun);
                changes.ended.truncate(ended);
                changes.stopped = false;
                transaction.execute_batch("ROLLBACK TO job; RELEASE job").map_err(unavailable)?;
            }
        }
        // A look-up that writes nothing, such as a twin's, costs no trip to the disk.
        if head.next_seq() != self.head.next_seq() {
            transaction
                .prepare_cached(
                    "UPDATE writers SET size = ?2, last_leaf = ?3, root = ?4 WHERE writer = ?1",
                )
                .and_then(|mut statement| {
                    let size = i64::try_from(head.next_seq()).unwrap_or(i64::MAX);
                    let root = head.frontier().root().to_string();
                    statement.execute((head.writer(), size, head.last_leaf(), root))
                })
                .map_err(unavailable)?;
        }
        transaction.commit().map_err(unavailable)?;
        Ok(connection)
    }

    fn records<'t>(
        &'t self,
        transaction: &'t rusqlite::Transaction<'t>,
        head: &'t mut Head,
        changes: &'t mut Changes,
    ) -> TransactionRecords<'t> {
        TransactionRecords::new(transaction, &self.folder, &self.key_id, head, changes, &self.watch)
    }

    /// A fresh connection, trusted only after what is in the log was carried over into the
    /// database and that was found sound. Gives what the commit in doubt has done, where it has
    /// happened.
    fn recover(&mut self) -> Result<Changes, LedgerError> {
        let red = |what: String| Err(LedgerError::Unavailable(what));
        let connection =
            super::ledger::connect(&self.path, self.durability).map_err(unavailable)?;
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
        let (size, leaf): (i64, Option<String>) = connection
            .query_row(
                "SELECT size, last_leaf FROM writers WHERE writer = ?1",
                [self.head.writer()],
                |row| Ok((row.get(0)?, row.get(1)?)),
            )
            .map_err(unavailable)?;
        let is = |head: &Head| {
            u64::try_from(size).ok() == Some(head.next_seq()) && leaf == head.last_leaf()
        };
        let changes = if is(&self.head) {
            self.doubt = None;
            Changes::default()
        } else {
            match self.doubt.take() {
                Some(doubt) if is(&doubt.after) => {
                    self.head = doubt.after;
                    doubt.changes
                }
                doubt => {
                    self.doubt = doubt;
                    return red("the log of this writer is not where it left it".to_owned());
                }
            }
        };
        tracing::info!("the store has proven sound");
        self.connection = Some(connection);
        Ok(changes)
    }
}
