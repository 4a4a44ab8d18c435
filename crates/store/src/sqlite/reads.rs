//! Reading the store on connections of their own, which never block the writer.
//!
//! Doc: records.md#reading

use std::path::Path;

use async_channel::{Receiver, Sender};
use async_trait::async_trait;
use rusqlite::types::ToSql;
use rusqlite::{Connection, OpenFlags, OptionalExtension};
use toolbooth_audit::LedgerError;
use toolbooth_audit::reads::{
    EventFilter, EventWithRecords, LedgerReads, LogFilter, PlacedEvent, ReceiptFilter, Unaccounted,
    WriterHead,
};
use toolbooth_contracts::agent_log::AgentLog;
use toolbooth_contracts::event::{AuditEvent, AuditEventKind, EventBody};
use toolbooth_contracts::receipt::Receipt;

use super::{OpenError, corrupt, schema, unavailable};

/// Connections that read at once.
const READERS: usize = 2;
/// Queries that may wait; further ones wait for room.
const QUEUE_MAX: usize = 64;

type Query = Box<dyn FnOnce(&Connection) + Send>;

/// The reads of a store, without a writer.
#[derive(Debug, Clone)]
pub struct SqliteReads {
    queries: Sender<Query>,
}

impl SqliteReads {
    /// Opens a database that is there, for reading.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(path: &Path) -> Result<Self, OpenError> {
        let database = |source| OpenError::Database { path: path.display().to_string(), source };
        let (queries, queue) = async_channel::bounded::<Query>(QUEUE_MAX);
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
            std::thread::Builder::new()
                .name("toolbooth-reads".to_owned())
                .spawn(move || {
                    while let Ok(query) = queue.recv_blocking() {
                        query(&connection);
                    }
                })
                .map_err(|source| OpenError::Folder { path: path.display().to_string(), source })?;
        }
        Ok(Self { queries })
    }

    async fn run<T: Send + 'static>(
        &self,
        query: impl FnOnce(&Connection) -> Result<T, LedgerError> + Send + 'static,
    ) -> Result<T, LedgerError> {
        let (reply, answer) = async_channel::bounded(1);
        let job: Query = Box::new(move |connection| {
            let _ = reply.try_send(query(connection));
        });
        let gone = || LedgerError::Unavailable("the store is closed".to_owned());
        self.queries.send(job).await.map_err(|_| gone())?;
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

fn same(columns: &[Option<String>], own: &[Option<&str>]) -> bool {
    columns.len() == own.len()
        && columns.iter().zip(own).all(|(column, own)| column.as_deref() == *own)
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
            let sql = "SELECT body FROM receipts WHERE receipt_id = ?1";
            let body: Option<String> = connection
                .query_row(sql, [id], |row| row.get(0))
                .optional()
                .map_err(unavailable)?;
            body.map(|body| parse("a receipt", &body)).transpose()
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
                "SELECT body FROM receipts {} ORDER BY receipt_id DESC LIMIT {}",
                conditions.text(),
                limit(filter.limit.saturating_add(1))
            );
            let mut bodies: Vec<String> = conditions.rows(connection, &sql, |row| row.get(0))?;
            let more = bodies.len() > filter.limit;
            bodies.truncate(filter.limit);
            let receipts: Result<Vec<Receipt>, LedgerError> =
                bodies.iter().map(|body| parse("a receipt", body)).collect();
            Ok((receipts?, more))
        })
        .await
    }

    async fn agent_log(&self, id: &str) -> Result<Option<AgentLog>, LedgerError> {
        let id = id.to_owned();
        self.run(move |connection| {
            let sql = "SELECT body FROM agent_logs WHERE id = ?1";
            let body: Option<String> = connection
                .query_row(sql, [id], |row| row.get(0))
                .optional()
                .map_err(unavailable)?;
            body.map(|body| parse("an agent log", &body)).transpose()
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
                "SELECT body FROM agent_logs {} ORDER BY time DESC, id DESC LIMIT {}",
                conditions.text(),
                limit(filter.limit)
            );
            let bodies: Vec<String> = conditions.rows(connection, &sql, |row| row.get(0))?;
            bodies.iter().rev().map(|body| parse("an agent log", body)).collect()
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
            let sql = format!(
                "SELECT place, body FROM events {} ORDER BY place DESC LIMIT {}",
                conditions.text(),
                limit(filter.limit)
            );
            let rows: Vec<(i64, String)> =
                conditions.rows(connection, &sql, |row| Ok((row.get(0)?, row.get(1)?)))?;
            rows.iter()
                .rev()
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
    ) -> Result<Vec<EventWithRecords>, LedgerError> {
        self.run(move |connection| {
            let (writer, seq) = after.map_or((String::new(), -1), |(writer, seq)| {
                (writer, i64::try_from(seq).unwrap_or(i64::MAX))
            });
            let mut statement = connection
                .prepare_cached(
                    "SELECT e.writer, e.seq, e.body, l.body, r.body,
                         e.time, e.tool, e.agent, e.call_id, e.status, e.code,
                         l.id, l.tool, l.agent, l.is_error, r.receipt_id, r.tool, r.state, r.writer
                     FROM events e
                     LEFT JOIN agent_logs l ON l.writer = e.writer AND l.seq = e.seq
                     LEFT JOIN receipts r ON r.receipt_id =
                         CASE WHEN json_valid(e.body) THEN e.body ->> 'receiptId' END
                     WHERE (e.writer, e.seq) > (?1, ?2)
                     ORDER BY e.writer, e.seq LIMIT ?3",
                )
                .map_err(unavailable)?;
            let rows = statement
                .query_map((writer, seq, self::limit(limit)), |row| {
                    let texts: (String, Option<String>, Option<String>) =
                        (row.get(2)?, row.get(3)?, row.get(4)?);
                    // What is filtered by must say the same as the record itself.
                    let columns: Vec<Option<String>> =
                        (5..19).map(|at| column(row, at)).collect::<rusqlite::Result<_>>()?;
                    Ok((row.get::<_, String>(0)?, row.get::<_, i64>(1)?, texts, columns))
                })
                .map_err(unavailable)?;
            rows.map(|row| {
                let (writer, seq, (body, log, receipt), columns) = row.map_err(unavailable)?;
                let of = |from: usize, to: usize| columns.get(from..to).unwrap_or_default();
                // What cannot be read any more was changed: an empty event breaks the chain there.
                let event = serde_json::from_str(&body)
                    .ok()
                    .filter(|event: &AuditEvent| {
                        let body = &event.body;
                        let own = [
                            Some(body.time.as_str()),
                            body.tool_name.as_deref(),
                            body.agent_id.as_deref(),
                            body.call_id.as_deref(),
                            body.status.map(|status| status.as_str()),
                            body.error_code.map(|code| code.as_str()),
                        ];
                        event.writer == writer
                            && i64::try_from(event.seq) == Ok(seq)
                            && same(of(0, 6), &own)
                    })
                    .unwrap_or_else(|| AuditEvent {
                        writer,
                        seq: seq.unsigned_abs(),
                        prev: None,
                        body: EventBody::new(AuditEventKind::AuditGap, String::new()),
                    });
                let log =
                    log.and_then(|log| serde_json::from_str(&log).ok()).map(|mut log: AgentLog| {
                        let error = if log.is_error { "1" } else { "0" };
                        let own = [
                            Some(log.id.as_str()),
                            Some(log.tool_name.as_str()),
                            log.agent_id.as_deref(),
                            Some(error),
                        ];
                        if !same(of(6, 10), &own) {
                            // A record that its row contradicts fits no digest.
                            log.id.push_str(" (its row differs)");
                        }
                        log
                    });
                let receipt = receipt.and_then(|receipt| serde_json::from_str(&receipt).ok()).map(
                    |mut receipt: Receipt| {
                        let own = [
                            Some(receipt.receipt_id.as_str()),
                            Some(receipt.tool_id.as_str()),
                            Some(receipt.state.as_str()),
                            Some(receipt.writer.as_str()),
                        ];
                        if !same(of(10, 14), &own) {
                            receipt.receipt_id.push_str(" (its row differs)");
                        }
                        receipt
                    },
                );
                Ok(EventWithRecords { event, receipt, log })
            })
            .collect()
        })
        .await
    }

    async fn heads(&self) -> Result<Vec<WriterHead>, LedgerError> {
        self.run(|connection| {
            let sql = "SELECT writer, size, last_leaf FROM writers ORDER BY writer";
            Conditions::default().rows(connection, sql, |row| {
                Ok(WriterHead {
                    writer: row.get(0)?,
                    size: row.get::<_, i64>(1)?.unsigned_abs(),
                    last_leaf: row.get(2)?,
                })
            })
        })
        .await
    }

    async fn unaccounted(&self) -> Result<Unaccounted, LedgerError> {
        self.run(|connection| {
            let logs = "SELECT id FROM agent_logs l WHERE NOT EXISTS (
                           SELECT 1 FROM events e WHERE e.writer = l.writer AND e.seq = l.seq
                               AND CASE WHEN json_valid(e.body) THEN e.body ->> 'logDigest' END IS NOT NULL)
                       ORDER BY id LIMIT 100";
            let receipts = "SELECT receipt_id FROM receipts r WHERE NOT EXISTS (
                           SELECT 1 FROM events e WHERE e.call_id = r.call_id
                               AND CASE WHEN json_valid(e.body) THEN e.body ->> 'receiptId' END = r.receipt_id)
                       ORDER BY receipt_id LIMIT 100";
            let ids = |sql| Conditions::default().rows(connection, sql, |row| row.get(0));
            Ok(Unaccounted { logs: ids(logs)?, receipts: ids(receipts)? })
        })
        .await
    }

    async fn healthy(&self) -> Result<(), LedgerError> {
        self.run(|connection| connection.query_row("SELECT 1", [], |_| Ok(())).map_err(unavailable))
            .await
    }
}
