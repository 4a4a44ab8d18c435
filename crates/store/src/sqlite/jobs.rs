//! The writer thread: runs what has queued in one transaction and answers when it is durable.
//!
//! Path: 6, 9. Doc: records.md#stores

use std::path::PathBuf;

use async_channel::{Receiver, Sender};
use rusqlite::{Connection, TransactionBehavior};
use toolbooth_audit::LedgerError;
use toolbooth_audit::chain::Head;

use super::folder::StoreFolder;
use super::ledger::Durability;
use super::records::TransactionRecords;
use super::unavailable;

/// Most jobs that one commit takes.
const BATCH_MAX: usize = 256;
/// Jobs that may wait; further ones wait for room.
pub(super) const QUEUE_MAX: usize = 4096;

/// Something to do inside a transaction.
pub(super) trait Job: Send {
    /// Does it; `false` takes back what it wrote.
    fn run(&mut self, records: &mut TransactionRecords<'_>) -> bool;
    /// Answers whoever waits, once it is known whether the batch is durable.
    fn finish(self: Box<Self>, committed: Result<(), LedgerError>);
}

struct Step<T, F> {
    step: Option<F>,
    result: Option<Result<T, LedgerError>>,
    reply: Sender<Result<T, LedgerError>>,
}

impl<T, F> Job for Step<T, F>
where
    T: Send,
    F: FnOnce(&mut TransactionRecords<'_>) -> Result<T, LedgerError> + Send,
{
    fn run(&mut self, records: &mut TransactionRecords<'_>) -> bool {
        if let Some(step) = self.step.take() {
            self.result = Some(step(records));
        }
        matches!(self.result, Some(Ok(_)))
    }

    fn finish(self: Box<Self>, committed: Result<(), LedgerError>) {
        let result = match (self.result, committed) {
            // What a step refused did not depend on the commit.
            (Some(Err(error)), _) => Err(error),
            (_, Err(error)) => Err(error),
            (Some(done), Ok(())) => done,
            (None, Ok(())) => Err(LedgerError::Unavailable("the store did not run it".to_owned())),
        };
        // Whoever asked may have gone away; the record stands all the same.
        let _ = self.reply.try_send(result);
    }
}

/// A job that runs `step`, and where its answer arrives.
pub(super) fn job<T, F>(step: F) -> (Box<dyn Job>, Receiver<Result<T, LedgerError>>)
where
    T: Send + 'static,
    F: FnOnce(&mut TransactionRecords<'_>) -> Result<T, LedgerError> + Send + 'static,
{
    let (reply, answer) = async_channel::bounded(1);
    (Box::new(Step { step: Some(step), result: None, reply }), answer)
}

/// What the writer thread owns.
pub(super) struct Writer {
    pub(super) path: PathBuf,
    pub(super) durability: Durability,
    pub(super) folder: StoreFolder,
    pub(super) key_id: String,
    pub(super) head: Head,
    /// `None` after a failed commit, until a fresh connection has proven sound.
    pub(super) connection: Option<Connection>,
    pub(super) shared: std::sync::Arc<super::ledger::Shared>,
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
            self.shared.set_health(committed.as_ref().err());
            for job in batch {
                job.finish(committed.clone());
            }
            // Twins wait for what has just become durable.
            self.shared.tell_settled();
        }
    }

    fn commit(&mut self, batch: &mut [Box<dyn Job>]) -> Result<(), LedgerError> {
        let before = self.head.clone();
        let result = self.try_commit(batch);
        if result.is_err() {
            self.head = before;
            self.shared.forget_settled();
            // After a failed commit nothing of this connection is trusted.
            self.connection = None;
        }
        result
    }

    fn try_commit(&mut self, batch: &mut [Box<dyn Job>]) -> Result<(), LedgerError> {
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => self.reopen()?,
        };
        let transaction = connection
            .transaction_with_behavior(TransactionBehavior::Immediate)
            .map_err(unavailable)?;
        for job in batch {
            transaction.execute_batch("SAVEPOINT job").map_err(unavailable)?;
            let head = self.head.clone();
            let mut records = TransactionRecords::new(
                &transaction,
                &self.folder,
                &self.key_id,
                &mut self.head,
                &self.shared,
            );
            if job.run(&mut records) {
                transaction.execute_batch("RELEASE job").map_err(unavailable)?;
            } else {
                self.head = head;
                transaction.execute_batch("ROLLBACK TO job; RELEASE job").map_err(unavailable)?;
            }
        }
        transaction
            .prepare_cached("UPDATE writers SET size = ?2, last_leaf = ?3 WHERE writer = ?1")
            .and_then(|mut statement| {
                let size = i64::try_from(self.head.next_seq()).unwrap_or(i64::MAX);
                statement.execute((self.head.writer(), size, self.head.last_leaf()))
            })
            .map_err(unavailable)?;
        transaction.commit().map_err(unavailable)?;
        self.connection = Some(connection);
        Ok(())
    }

    /// A fresh connection, trusted only after the file was found sound.
    fn reopen(&self) -> Result<Connection, LedgerError> {
        let connection =
            super::ledger::connect(&self.path, self.durability).map_err(unavailable)?;
        let verdict: String = connection
            .query_row("PRAGMA quick_check(1)", [], |row| row.get(0))
            .map_err(unavailable)?;
        if verdict != "ok" {
            return Err(LedgerError::Unavailable(format!("the database is damaged: {verdict}")));
        }
        // The log of the database must be where this writer believes it to be.
        let (size, leaf): (i64, Option<String>) = connection
            .query_row(
                "SELECT size, last_leaf FROM writers WHERE writer = ?1",
                [self.head.writer()],
                |row| Ok((row.get(0)?, row.get(1)?)),
            )
            .map_err(unavailable)?;
        if u64::try_from(size).ok() != Some(self.head.next_seq())
            || leaf.as_deref() != self.head.last_leaf()
        {
            return Err(LedgerError::Unavailable(
                "a commit of unknown result moved this writer's log; restart to begin a new one"
                    .to_owned(),
            ));
        }
        Ok(connection)
    }
}
