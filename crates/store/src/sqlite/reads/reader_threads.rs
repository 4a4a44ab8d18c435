//! The threads that read a store, each with connections of its own.
//!
//! Doc: records.md#reading

use std::path::{Path, PathBuf};
use std::thread::JoinHandle;

use async_channel::{Receiver, Sender};
use rusqlite::Connection;
use toolbooth_audit::LedgerError;

use super::super::connection::connect_to_read;
use super::super::error::OpenError;
use super::super::search_index::Lookup;
use super::super::{StoreFolder, is_damage, schema};

/// Threads for all queries but those of orders.
const READERS: usize = 2;
/// Maximum queued queries; further queries wait for a free place in the queue.
const QUEUE_MAX: usize = 64;

type Query = Box<dyn FnOnce(&mut Reader) + Send>;

/// The connections of one thread.
pub(super) struct Reader {
    pub(super) path: PathBuf,
    pub(super) database: Connection,
    /// Opened by the first search.
    pub(super) lookup: Option<Lookup>,
}

/// What a query reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum QueryKind {
    /// Orders, which have a thread alone: keys are accepted only while orders are read every few seconds, so no
    /// search may hold them up.
    Orders,
    /// Anything else.
    Any,
}

/// The threads. Dropping this closes their connections, so that the database file can be copied or replaced.
#[derive(Debug)]
pub(super) struct Readers {
    queries: Sender<Query>,
    orders: Sender<Query>,
    threads: Vec<JoinHandle<Reader>>,
}

impl Drop for Readers {
    fn drop(&mut self) {
        self.queries.close();
        self.orders.close();
        for thread in self.threads.drain(..) {
            // A thread that drops the last reference cannot join itself.
            if thread.thread().id() != std::thread::current().id() {
                // Connections are closed here one after another. Two that close at once each see
                // the other as open, and neither checkpoints the WAL.
                drop(thread.join());
            }
        }
    }
}

impl Readers {
    /// Starts the threads over an existing database.
    ///
    /// # Errors
    /// [`OpenError`]; [`OpenError::Older`] if the database was not migrated yet.
    pub(super) fn start(path: &Path) -> Result<Self, OpenError> {
        let database = |source| OpenError::Database { path: path.display().to_string(), source };
        let (queries, queue) = async_channel::bounded::<Query>(QUEUE_MAX);
        let (orders, of_orders) = async_channel::bounded::<Query>(QUEUE_MAX);
        let mut readers = Self { queries, orders, threads: Vec::with_capacity(READERS + 1) };
        for queue in std::iter::repeat_n(&queue, READERS).chain([&of_orders]) {
            let connection = connect_to_read(path).map_err(database)?;
            let found = schema::version(&connection).map_err(database)?;
            if found > schema::VERSION {
                return Err(OpenError::Newer { found, known: schema::VERSION });
            }
            if !schema::is_readable(&connection).map_err(database)? {
                return Err(OpenError::Older { found, known: schema::VERSION });
            }
            let mut reader = Reader { path: path.to_owned(), database: connection, lookup: None };
            let queue: Receiver<Query> = queue.clone();
            let thread = std::thread::Builder::new()
                .name("toolbooth-reads".to_owned())
                .spawn(move || {
                    while let Ok(query) = queue.recv_blocking() {
                        query(&mut reader);
                    }
                    reader
                })
                .map_err(|source| OpenError::Folder { path: path.display().to_string(), source })?;
            readers.threads.push(thread);
        }
        Ok(readers)
    }

    /// Runs a query on a thread.
    ///
    /// # Errors
    /// Those of the query; [`LedgerError::Closed`] if the threads have ended.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        kind: QueryKind,
        query: impl FnOnce(&mut Reader) -> Result<T, LedgerError> + Send + 'static,
    ) -> Result<T, LedgerError> {
        let (reply, answer) = async_channel::bounded(1);
        let job: Query = Box::new(move |reader| {
            let answer = query(reader);
            if answer.as_ref().is_err_and(is_damage) {
                StoreFolder::of(&reader.path).forget_check();
            }
            let _ = reply.try_send(answer);
        });
        let queue = match kind {
            QueryKind::Orders => &self.orders,
            QueryKind::Any => &self.queries,
        };
        queue.send(job).await.map_err(|_| LedgerError::Closed)?;
        answer.recv().await.map_err(|_| LedgerError::Closed)?
    }
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Waker};

    use super::*;

    #[tokio::test]
    async fn orders_are_read_while_all_other_threads_are_at_work() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.db");
        let mut connection = Connection::open(&path).unwrap();
        connection.pragma_update(None, "journal_mode", "wal").unwrap();
        super::super::super::schema::migrate(&mut connection, schema::VERSION).unwrap();
        let readers = Readers::start(&path).unwrap();
        let (release, held) = async_channel::bounded::<()>(1);
        let hold = |held: Receiver<()>| {
            move |_: &mut Reader| {
                let _ = held.recv_blocking();
                Ok(())
            }
        };
        let mut busy: Vec<_> = (0..READERS)
            .map(|_| Box::pin(readers.run(QueryKind::Any, hold(held.clone()))))
            .collect();
        for one in &mut busy {
            assert!(one.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        }
        let mut waiting = Box::pin(readers.run(QueryKind::Any, |_| Ok(1)));
        assert_eq!(readers.run(QueryKind::Orders, |_| Ok(2)).await.unwrap(), 2);
        let mut context = Context::from_waker(Waker::noop());
        assert!(waiting.as_mut().poll(&mut context).is_pending());
        release.close();
        assert_eq!(waiting.await.unwrap(), 1);
    }
}
