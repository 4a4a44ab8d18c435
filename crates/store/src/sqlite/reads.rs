//! Reading the store on connections of their own, which never block the writer.
//!
//! Doc: records.md#reading

use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;

use async_channel::{Receiver, Sender};
use async_trait::async_trait;
use rusqlite::types::ToSql;
use rusqlite::{Connection, OpenFlags, OptionalExtension};
use toolbooth_audit::LedgerError;
use toolbooth_audit::queue::QueuedCall;
use toolbooth_audit::reads::{
    EVENT_COLUMNS, EventFilter, Include, LOG_COLUMNS, LedgerReads, LogFilter, PlacedEvent,
    RECEIPT_COLUMNS, RawEntry, RawRecord, ReceiptFilter, Unaccounted, WriterHead,
};
use toolbooth_contracts::agent_log::AgentLog;
use toolbooth_contracts::receipt::Receipt;

use super::rows::{CALL, HEAD, call, head};
use super::{OpenError, schema, unavailable};
use crate::{body, corrupt};

/// Connections that read at once.
const READERS: usize = 2;
/// Queries that may wait; further ones wait for room.
const QUEUE_MAX: usize = 64;

type Query = Box<dyn FnOnce(&Connection) + Send>;

/// The reads of a store, without a writer.
#[derive(Debug, Clone)]
pub struct SqliteReads {
    readers: Arc<Readers>,
}

/// The threads that read; they have closed the database once this is dropped, so that its file
/// can be copied or replaced.
#[derive(Debug)]
struct Readers {
    queries: Sender<Query>,
    threads: Vec<JoinHandle<Connection>>,
}

impl Drop for Readers {
    fn drop(&mut self) {
        self.queries.close();
        for thread in self.threads.drain(..) {
            // A reader that drops the last reference cannot wait for itself.
            if thread.thread().id() != std::thread::current().id() {
                // They close here one after another: of two that close at once each takes the
                // other for a user, and neither moves SQLite's log into the file.
                drop(thread.join());
            }
        }
    }
}

impl SqliteReads {
    /// Opens a database that is there, for reading.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(path: &Path) -> Result<Self, OpenError> {
        let database = |source| OpenError::Database { path: path.display().to_string(), source };
        let (queries, queue) = async_channel::bounded::<Query>(QUEUE_MAX);
        let mut readers = Readers { queries, threads: Vec::with_capacity(READERS) };
        for _ in 0..READERS {
            let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
            // Reading a database in WAL mode writes to its shared memory; nothing else is written.
            let connection = Connection::open_with_flags(path, flags).map_err(database)?;
            connection.busy_timeout(std::time::Duration::from_secs(5)).map_err(database)?;
            connection.pragma_update(None, "query_only", true).map_err(database)?;
            let found = schema::version(&connection).map_err(database)?;
            if found > schema::VERSION {
                return Err(OpenError::Newer { found, known: schema::VERSION });
            }
            let queue: Receiver<Query> = queue.clone();
            let thread = std::thread::Builder::new()
                .name("toolbooth-reads".to_owned())
                .spawn(move || {
                    while let Ok(query) = queue.recv_blocking() {
                        query(&connection);
                    }
                    connection
                })
                .map_err(|source| OpenError::Folder { path: path.display().to_string(), source })?;
            readers.threads.push(thread);
        }
        Ok(Self { readers: Arc::new(readers) })
    }

    pub(super) async fn run<T: Send + 'static>(
        &self,
        query: impl FnOnce(&Connection) -> Result<T, LedgerError> + Send + 'static,
    ) -> Result<T, LedgerError> {
        let (reply, answer) = async_channel::bounded(1);
        let job: Query = Box::new(move |connection| {
            let _ = reply.try_send(query(connection));
        });
        let gone = || LedgerError::Unavailable("the store is closed".to_owned());
        self.readers.queries.send(job).await.map_err(|_| gone())?;
        answer.recv().await.map_err(|_| gone())?
    }
}

/// Conditions that all hold, each with its value.
#[derive(Default)]
struct Conditions {
    sql: Vec<String>,
    values: Vec<Box<dyn ToSql>>,
}

impl Conditions {
    fn add(&mut self, condition: &str, value: Option<impl ToSql + 'static>) {
        if let Some(value) = value {
            self.values.push(Box::new(value));
            self.sql.push(format!("{condition} ?{}", self.values.len()));
        }
    }

    fn text(&self) -> String {
        if self.sql.is_empty() {
            String::new()
        } else {
            format!("WHERE {}", self.sql.join(" AND "))
        }
    }

    fn rows<T>(
        &self,
        connection: &Connection,
        sql: &str,
        read: impl Fn(&rusqlite::Row<'_>) -> rusqlite::Result<T>,
    ) -> Result<Vec<T>, LedgerError> {
        let values: Vec<&dyn ToSql> = self.values.iter().map(AsRef::as_ref).collect();
        let mut statement = connection.prepare(sql).map_err(unavailable)?;
        let rows = statement.query_map(values.as_slice(), read).map_err(unavailable)?;
        rows.collect::<rusqlite::Result<Vec<T>>>().map_err(unavailable)
    }
}

fn parse<T: serde::de::DeserializeOwned>(what: &str, body: &str) -> Result<T, LedgerError> {
    serde_json::from_str(body).map_err(|error| corrupt(what, &error))
}

/// Text and compressed text of a record.
type BodyRow = (String, Option<Vec<u8>>);

fn body_row(row: &rusqlite::Row<'_>) -> rusqlite::Result<BodyRow> {
    Ok((row.get(0)?, row.get(1)?))
}

/// A record with its columns, not unpacked yet.
type Packed = (Vec<Option<String>>, BodyRow);

/// One row of a page; the record of an event that has none is absent.
fn entry(
    row: &rusqlite::Row<'_>,
    include: Include,
) -> rusqlite::Result<(RawEntry, Option<Packed>, Option<Packed>)> {
    let mut entry = RawEntry {
        writer: row.get(0)?,
        seq: row.get::<_, i64>(1)?.unsigned_abs(),
        bytes: row.get(2)?,
        ..RawEntry::default()
    };
    if include != Include::Records {
        return Ok((entry, None, None));
    }
    let columns = |from: usize, count: usize| -> rusqlite::Result<Vec<Option<String>>> {
        (from..from + count).map(|at| column(row, at)).collect()
    };
    let (events, logs) = (EVENT_COLUMNS.len(), LOG_COLUMNS.len());
    entry.columns = columns(3, events)?;
    let packed = |from: usize, count: usize, body: usize| -> rusqlite::Result<Option<Packed>> {
        match row.get::<_, Option<String>>(body)? {
            Some(text) => Ok(Some((columns(from, count)?, (text, row.get(body + 1)?)))),
            None => Ok(None),
        }
    };
    let receipts = 3 + events + logs;
    let bodies = receipts + RECEIPT_COLUMNS.len();
    let log = packed(3 + events, logs, bodies)?;
    let receipt = packed(receipts, RECEIPT_COLUMNS.len(), bodies + 2)?;
    Ok((entry, log, receipt))
}

/// A record as it was digested; one that cannot be unpacked fits no digest.
fn whole((columns, (text, packed)): Packed) -> RawRecord {
    RawRecord { bytes: body::unpack(text, packed).unwrap_or_default(), columns }
}

/// A column as text; a number as its digits.
fn column(row: &rusqlite::Row<'_>, at: usize) -> rusqlite::Result<Option<String>> {
    use rusqlite::types::ValueRef;
    Ok(match row.get_ref(at)? {
        ValueRef::Null => None,
        ValueRef::Integer(number) => Some(number.to_string()),
        ValueRef::Text(text) => Some(String::from_utf8_lossy(text).into_owned()),
        _ => Some(String::new()),
    })
}

fn limit(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX)
}

fn number(number: Option<u64>) -> Option<i64> {
    number.map(|number| i64::try_from(number).unwrap_or(i64::MAX))
}

#[async_trait]
impl LedgerReads for SqliteReads {
    async fn receipt(&self, receipt_id: &str) -> Result<Option<Receipt>, LedgerError> {
        let id = receipt_id.to_owned();
        self.run(move |connection| {
            let sql = "SELECT body, zbody FROM receipts WHERE receipt_id = ?1";
            let row = connection.query_row(sql, [id], body_row).optional().map_err(unavailable)?;
            row.map(|(text, packed)| body::read("a receipt", text, packed)).transpose()
        })
        .await
    }

    async fn receipts(&self, filter: ReceiptFilter) -> Result<(Vec<Receipt>, bool), LedgerError> {
        self.run(move |connection| {
            let mut conditions = Conditions::default();
            conditions.add("tool =", filter.tool);
            conditions.add("call_id =", filter.call);
            conditions.add("state =", filter.state);
            conditions.add("receipt_id <", filter.after);
            let sql = format!(
                "SELECT body, zbody FROM receipts {} ORDER BY receipt_id DESC LIMIT {}",
                conditions.text(),
                limit(filter.limit.saturating_add(1))
            );
            let mut bodies = conditions.rows(connection, &sql, body_row)?;
            let more = bodies.len() > filter.limit;
            bodies.truncate(filter.limit);
            let receipts: Result<Vec<Receipt>, LedgerError> = bodies
                .into_iter()
                .map(|(text, packed)| body::read("a receipt", text, packed))
                .collect();
            Ok((receipts?, more))
        })
        .await
    }

    async fn agent_log(&self, id: &str) -> Result<Option<AgentLog>, LedgerError> {
        let id = id.to_owned();
        self.run(move |connection| {
            let sql = "SELECT body, zbody FROM agent_logs WHERE id = ?1";
            let row = connection.query_row(sql, [id], body_row).optional().map_err(unavailable)?;
            row.map(|(text, packed)| body::read("an agent log", text, packed)).transpose()
        })
        .await
    }

    async fn agent_logs(&self, filter: LogFilter) -> Result<Vec<AgentLog>, LedgerError> {
        self.run(move |connection| {
            let mut conditions = Conditions::default();
            conditions.add("tool =", filter.tool);
            conditions.add("agent =", filter.agent);
            conditions.add("turn =", number(filter.turn));
            conditions.add("phase =", filter.phase);
            conditions.add("epic =", filter.epic);
            conditions.add("call_id =", filter.call);
            conditions.add("is_error =", filter.error);
            conditions.add("time >=", filter.since);
            conditions.add("time <", filter.until);
            let sql = format!(
                "SELECT body, zbody FROM agent_logs {} ORDER BY time DESC, id DESC LIMIT {}",
                conditions.text(),
                limit(filter.limit)
            );
            let bodies = conditions.rows(connection, &sql, body_row)?;
            bodies
                .into_iter()
                .rev()
                .map(|(text, packed)| body::read("an agent log", text, packed))
                .collect()
        })
        .await
    }

    async fn events(&self, filter: EventFilter) -> Result<Vec<PlacedEvent>, LedgerError> {
        self.run(move |connection| {
            let mut conditions = Conditions::default();
            conditions.add("tool =", filter.tool);
            conditions.add("agent =", filter.agent);
            conditions.add("status =", filter.status);
            conditions.add("code =", filter.code);
            conditions.add("call_id =", filter.call);
            conditions.add("time >=", filter.since);
            conditions.add("time <", filter.until);
            conditions.add("place >", number(filter.after));
            let order = if filter.after.is_some() { "ASC" } else { "DESC" };
            let sql = format!(
                "SELECT place, body FROM events {} ORDER BY place {order} LIMIT {}",
                conditions.text(),
                limit(filter.limit)
            );
            let mut rows: Vec<(i64, String)> =
                conditions.rows(connection, &sql, |row| Ok((row.get(0)?, row.get(1)?)))?;
            if filter.after.is_none() {
                rows.reverse();
            }
            rows.iter()
                .map(|(place, body)| {
                    let event = parse("an event", body)?;
                    Ok(PlacedEvent { place: place.unsigned_abs(), event })
                })
                .collect()
        })
        .await
    }

    async fn log_page(
        &self,
        after: Option<(String, u64)>,
        limit: usize,
        include: Include,
    ) -> Result<Vec<RawEntry>, LedgerError> {
        self.run(move |connection| {
            let (writer, seq) = after.map_or((String::new(), -1), |(writer, seq)| {
                (writer, i64::try_from(seq).unwrap_or(i64::MAX))
            });
            let sql = match include {
                Include::Records => {
                    "SELECT e.writer, e.seq, e.body,
                         e.time, e.tool, e.agent, e.call_id, e.status, e.code,
                         l.id, l.tool, l.agent, l.is_error,
                         r.receipt_id, r.tool, r.state, r.writer,
                         l.body, l.zbody, r.body, r.zbody
                     FROM events e
                     LEFT JOIN agent_logs l ON l.writer = e.writer AND l.seq = e.seq
                     LEFT JOIN receipts r ON r.receipt_id =
                         CASE WHEN json_valid(e.body) THEN e.body ->> 'receiptId' END
                     WHERE (e.writer, e.seq) > (?1, ?2)
                     ORDER BY e.writer, e.seq LIMIT ?3"
                }
                Include::Events => {
                    "SELECT writer, seq, body FROM events
                     WHERE (writer, seq) > (?1, ?2) ORDER BY writer, seq LIMIT ?3"
                }
                Include::Milestones => {
                    "SELECT writer, seq, body FROM events
                     WHERE milestone = 1 AND (writer, seq) > (?1, ?2)
                     ORDER BY writer, seq LIMIT ?3"
                }
            };
            let mut statement = connection.prepare_cached(sql).map_err(unavailable)?;
            let rows = statement
                .query_map((writer, seq, self::limit(limit)), |row| entry(row, include))
                .map_err(unavailable)?;
            rows.map(|row| {
                let (mut entry, log, receipt) = row.map_err(unavailable)?;
                entry.log = log.map(whole);
                entry.receipt = receipt.map(whole);
                Ok(entry)
            })
            .collect()
        })
        .await
    }

    async fn heads(&self) -> Result<Vec<WriterHead>, LedgerError> {
        self.run(|connection| {
            let sql = format!("SELECT {HEAD} FROM writers ORDER BY writer");
            Conditions::default().rows(connection, &sql, head)
        })
        .await
    }

    async fn unaccounted(&self) -> Result<Unaccounted, LedgerError> {
        self.run(|connection| {
            let logs = "SELECT id FROM agent_logs l WHERE NOT EXISTS (
                           SELECT 1 FROM events e WHERE e.writer = l.writer AND e.seq = l.seq
                               AND CASE WHEN json_valid(e.body) THEN e.body ->> 'logDigest' END IS NOT NULL)
                           AND NOT EXISTS (SELECT 1 FROM writers w
                               WHERE w.writer = l.writer AND l.seq < w.pruned_size)
                       ORDER BY id LIMIT 100";
            let receipts = "SELECT receipt_id FROM receipts r WHERE NOT EXISTS (
                           SELECT 1 FROM events e WHERE e.call_id = r.call_id
                               AND CASE WHEN json_valid(e.body) THEN e.body ->> 'receiptId' END = r.receipt_id)
                           AND NOT EXISTS (SELECT 1 FROM writers w
                               WHERE w.writer = r.writer AND w.pruned_size > 0)
                       ORDER BY receipt_id LIMIT 100";
            let ids = |sql| Conditions::default().rows(connection, sql, |row| row.get(0));
            Ok(Unaccounted { logs: ids(logs)?, receipts: ids(receipts)? })
        })
        .await
    }

    async fn queued(&self, caller: &str, call_id: &str) -> Result<Option<QueuedCall>, LedgerError> {
        let (caller, call_id) = (caller.to_owned(), call_id.to_owned());
        self.run(move |connection| {
            let sql = format!("SELECT {CALL} FROM queue WHERE caller = ?1 AND call_id = ?2");
            connection.query_row(&sql, [caller, call_id], call).optional().map_err(unavailable)
        })
        .await
    }

    async fn healthy(&self) -> Result<(), LedgerError> {
        self.run(|connection| connection.query_row("SELECT 1", [], |_| Ok(())).map_err(unavailable))
            .await
    }
}
