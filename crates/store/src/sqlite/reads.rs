//! Reads the store on separate connections, which never block the writer.
//!
//! Doc: records.md#reading

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;

use async_channel::{Receiver, Sender};
use async_trait::async_trait;
use rusqlite::{Connection, OpenFlags, OptionalExtension};
use serde::Deserialize;
use toolbooth_audit::LedgerError;
use toolbooth_audit::merkle::Hash;
use toolbooth_audit::pruning::Gone;
use toolbooth_audit::queue::{QueuedCall, RawCall};
use toolbooth_audit::reads::{
    Accounted, EventFilter, FoundId, Include, LedgerReads, LogFilter, PlacedEvent, RawApproval,
    RawEntry, RawRecord, ReceiptFilter, Unaccounted, WriterHead,
};
use toolbooth_audit::working::CallName;
use toolbooth_contracts::Status;
use toolbooth_contracts::agent_log::AgentLog;
use toolbooth_contracts::event::{AuditEvent, AuditEventKind};
use toolbooth_contracts::receipt::{AuditPlace, ClaimState, Receipt};

use super::compact::{Compact, Name};
use super::lookup::{self, Lookup, Search};
use super::open::BUSY;
use super::rows::{CALL, HEAD, RECEIPT, call, head, receipt_row};
use super::schema::{SEQ_BITS, place};
use super::{OpenError, schema, share, unavailable, unreadable_at};
use crate::{corrupt, shorten};

/// Reader threads, each with its own connections.
const READERS: usize = 2;
/// Queries that may wait; further ones wait until there is room.
const QUEUE_MAX: usize = 64;

type Query = Box<dyn FnOnce(&mut Reader) + Send>;

/// The connections of one reader thread.
struct Reader {
    path: PathBuf,
    database: Connection,
    /// Opened by the first search.
    lookup: Option<Lookup>,
}

/// Read access to a store, without a writer.
#[derive(Debug, Clone)]
pub struct SqliteReads {
    readers: Arc<Readers>,
}

/// The reader threads. Dropping this closes their connections, so that the database file can be
/// copied or replaced.
#[derive(Debug)]
struct Readers {
    queries: Sender<Query>,
    threads: Vec<JoinHandle<Reader>>,
}

impl Drop for Readers {
    fn drop(&mut self) {
        self.queries.close();
        for thread in self.threads.drain(..) {
            // A reader thread that drops the last reference cannot join itself.
            if thread.thread().id() != std::thread::current().id() {
                // Connections are closed here one after another. Two that close at once each see
                // the other as open, and neither checkpoints the WAL.
                drop(thread.join());
            }
        }
    }
}

/// Opens a connection that only reads.
pub(super) fn connect(path: &Path) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    // Reading a database in WAL mode writes to its shared memory; nothing else is written.
    let connection = Connection::open_with_flags(path, flags)?;
    connection.busy_timeout(BUSY)?;
    connection.pragma_update(None, "query_only", true)?;
    connection.set_prepared_statement_cache_capacity(32);
    Ok(connection)
}

impl SqliteReads {
    /// Opens an existing database for reading.
    ///
    /// # Errors
    /// [`OpenError`]; [`OpenError::Older`] if the database was not migrated yet.
    pub fn open(path: &Path) -> Result<Self, OpenError> {
        let database = |source| OpenError::Database { path: path.display().to_string(), source };
        let (queries, queue) = async_channel::bounded::<Query>(QUEUE_MAX);
        let mut readers = Readers { queries, threads: Vec::with_capacity(READERS) };
        for _ in 0..READERS {
            let connection = connect(path).map_err(database)?;
            let found = schema::version(&connection).map_err(database)?;
            if found > schema::VERSION {
                return Err(OpenError::Newer { found, known: schema::VERSION });
            }
            if found < schema::VERSION {
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
        Ok(Self { readers: Arc::new(readers) })
    }

    async fn run<T: Send + 'static>(
        &self,
        query: impl FnOnce(&mut Reader) -> Result<T, LedgerError> + Send + 'static,
    ) -> Result<T, LedgerError> {
        let (reply, answer) = async_channel::bounded(1);
        let job: Query = Box::new(move |reader| {
            let _ = reply.try_send(query(reader));
        });
        let gone = || LedgerError::Unavailable("the store is closed".to_owned());
        self.readers.queries.send(job).await.map_err(|_| gone())?;
        answer.recv().await.map_err(|_| gone())?
    }
}

fn limited(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX)
}

/// The keys that a query selects.
fn keys(
    connection: &Connection,
    sql: &str,
    of: Option<Compact<'_>>,
) -> Result<Vec<String>, LedgerError> {
    let mut statement = connection.prepare_cached(sql).map_err(unavailable)?;
    let found = statement
        .query_map(rusqlite::params_from_iter(of), |row| row.get::<_, Name>(0))
        .map_err(unavailable)?;
    found.map(|key| Ok(key.map_err(unavailable)?.0)).collect()
}

/// The body of a record by its place.
fn body(
    connection: &Connection,
    table: &'static str,
    place: i64,
) -> Result<Option<Vec<u8>>, LedgerError> {
    connection
        .prepare_cached(&format!("SELECT body FROM {table} WHERE place = ?1"))
        .and_then(|mut statement| statement.query_row([place], |row| row.get(0)).optional())
        .map_err(unreadable_at(table, place))
}

const EVENT: &str = "events";
const LOG: &str = "agent_logs";

fn receipt(connection: &Connection, id: &str) -> Result<Option<Receipt>, LedgerError> {
    let row = connection
        .prepare_cached(RECEIPT)
        .and_then(|mut statement| statement.query_row([Compact::of(id)], receipt_row).optional())
        .map_err(unavailable)?;
    row.map(|(_, body)| shorten::read("a receipt", &body)).transpose()
}

/// Reads an agent log, including the part that it shares with its receipt.
fn read_log(database: &Connection, stored: &[u8]) -> Result<AgentLog, LedgerError> {
    let text = share::unpack(stored, |id| {
        let sql = "SELECT body FROM receipts WHERE id = ?1";
        let body: Option<Vec<u8>> = database
            .prepare_cached(sql)
            .and_then(|mut statement| {
                statement.query_row([Compact::of(id)], |row| row.get(0)).optional()
            })
            .map_err(unavailable)?;
        body.map(|body| shorten::unpack(&body)).transpose()
    })?;
    serde_json::from_str(&text).map_err(|error| corrupt("an agent log", &error))
}

impl Reader {
    /// The search index, brought up to date, and the database.
    fn lookup(&mut self) -> Result<(&Lookup, &Connection), LedgerError> {
        let mut lookup = match self.lookup.take() {
            Some(lookup) => lookup,
            None => Lookup::open(&self.path).map_err(unavailable)?,
        };
        lookup.catch_up(&self.database)?;
        Ok((self.lookup.insert(lookup), &self.database))
    }

    /// Calls `fits` with the number and place of each candidate, until it returns `false`. The
    /// order is newest first, or oldest first after an entry.
    fn search(
        &mut self,
        search: &Search,
        mut fits: impl FnMut(&Connection, i64, i64) -> Result<bool, LedgerError>,
    ) -> Result<(), LedgerError> {
        let (lookup, database) = self.lookup()?;
        lookup.search(search, |no, place| fits(database, no, place))
    }

    fn agent_logs(&mut self, filter: &LogFilter) -> Result<Vec<AgentLog>, LedgerError> {
        let search = Search {
            tool: filter.tool.clone(),
            agent: filter.agent.clone(),
            caller: filter.caller.clone(),
            code: filter.code.clone(),
            call: filter.call.clone(),
            since: filter.since.clone(),
            until: filter.until.clone(),
            has_log: true,
            ..Search::default()
        };
        let mut found: Vec<AgentLog> = Vec::new();
        if filter.limit == 0 {
            return Ok(found);
        }
        self.search(&search, |database, _, place| {
            let Some(body) = body(database, LOG, place)? else { return Ok(true) };
            found.extend(Some(read_log(database, &body)?).filter(|log| filter.fits(log)));
            Ok(found.len() < filter.limit)
        })?;
        found.reverse();
        Ok(found)
    }

    fn events(&mut self, filter: &EventFilter) -> Result<Vec<PlacedEvent>, LedgerError> {
        let search = Search {
            tool: filter.tool.clone(),
            agent: filter.agent.clone(),
            caller: filter.caller.clone(),
            code: filter.code.clone(),
            status: filter.status.clone(),
            call: filter.call.clone(),
            since: filter.since.clone(),
            until: filter.until.clone(),
            after: filter.after.map(|after| i64::try_from(after).unwrap_or(i64::MAX)),
            ..Search::default()
        };
        let mut found: Vec<PlacedEvent> = Vec::new();
        if filter.limit == 0 {
            return Ok(found);
        }
        self.search(&search, |database, no, place| {
            let Some(body) = body(database, EVENT, place)? else { return Ok(true) };
            let event: AuditEvent = shorten::read("an event", &body)?;
            if filter.fits(&event) {
                found.push(PlacedEvent { place: no.unsigned_abs(), event });
            }
            Ok(found.len() < filter.limit)
        })?;
        if filter.after.is_none() {
            found.reverse();
        }
        Ok(found)
    }

    fn receipts(&mut self, filter: &ReceiptFilter) -> Result<(Vec<Receipt>, bool), LedgerError> {
        let mut found = match self.search_of(filter)? {
            Some(search) => self.searched_receipts(filter, &search)?,
            None => self.listed_receipts(filter)?,
        };
        let more = found.len() > filter.limit;
        found.truncate(filter.limit);
        Ok((found, more))
    }

    /// The search for receipts by the events that name them. `None` if listing the receipts is as
    /// good, or if events are missing.
    fn search_of(&self, filter: &ReceiptFilter) -> Result<Option<Search>, LedgerError> {
        let succeeded = || Some(Status::Succeeded.as_str().to_owned());
        let state = filter.state.as_deref().and_then(ClaimState::parse);
        let (status, not_status) = match state {
            Some(ClaimState::Succeeded) => (succeeded(), None),
            Some(ClaimState::Failed) => (None, succeeded()),
            // Few receipts are open, so listing them is as good.
            Some(_) => return Ok(None),
            None => (None, None),
        };
        let names_one = [&filter.tool, &filter.caller, &filter.call].iter().any(|of| of.is_some());
        if !names_one && state.is_none() {
            return Ok(None);
        }
        if filter.call.is_none() {
            // Pruning keeps the first event of a log. If it is gone, an earlier version removed it,
            // and events of receipts with it.
            let sql = "SELECT EXISTS (SELECT 1 FROM writers JOIN gone ON place = no << ?1)";
            let lacks = self.database.query_row(sql, [SEQ_BITS], |row| row.get::<_, bool>(0));
            if lacks.map_err(unavailable)? {
                return Ok(None);
            }
        }
        Ok(Some(Search {
            tool: filter.tool.clone(),
            caller: filter.caller.clone(),
            call: filter.call.clone(),
            status,
            not_status,
            ..Search::default()
        }))
    }

    fn searched_receipts(
        &mut self,
        filter: &ReceiptFilter,
        search: &Search,
    ) -> Result<Vec<Receipt>, LedgerError> {
        let mut found: Vec<Receipt> = Vec::new();
        let (lookup, database) = self.lookup()?;
        lookup.receipts(search, filter.after.as_deref(), |id| {
            found.extend(receipt(database, id)?.filter(|receipt| filter.fits(receipt)));
            Ok(found.len() <= filter.limit)
        })?;
        Ok(found)
    }

    fn listed_receipts(&self, filter: &ReceiptFilter) -> Result<Vec<Receipt>, LedgerError> {
        let mut found: Vec<Receipt> = Vec::new();
        let tables = match filter.state.as_deref().and_then(ClaimState::parse) {
            Some(ClaimState::Succeeded | ClaimState::Failed) => &["receipts", "tombstones"][..],
            Some(_) => &["open_receipts"][..],
            None => &["receipts", "tombstones", "open_receipts"][..],
        };
        let of = |table: &&str| format!("SELECT id, body FROM {table} WHERE ?1 IS NULL OR id < ?1");
        let tables: Vec<String> = tables.iter().map(of).collect();
        let sql = format!("{} ORDER BY id DESC", tables.join(" UNION ALL "));
        let mut statement = self.database.prepare_cached(&sql).map_err(unavailable)?;
        let after = filter.after.as_deref().map(Compact::of);
        let mut rows = statement.query([after]).map_err(unavailable)?;
        while found.len() <= filter.limit
            && let Some(row) = rows.next().map_err(unavailable)?
        {
            let body: Vec<u8> = row.get(1).map_err(unavailable)?;
            let receipt: Receipt = shorten::read("a receipt", &body)?;
            found.extend(Some(receipt).filter(|receipt| filter.fits(receipt)));
        }
        Ok(found)
    }

    /// The search for an agent log by its id, near the creation time of a UUIDv7 (RFC 9562, 5.7).
    fn near(&self, id: &str) -> Result<Search, LedgerError> {
        const AROUND_MS: i64 = 10_000;
        let Some(made) = crate::digits::made_ms(id) else {
            return Ok(Search { has_log: true, ..Search::default() });
        };
        let time = |ms: i64| {
            let sql = "SELECT strftime('%Y-%m-%dT%H:%M:%fZ', ?1 / 1000.0, 'unixepoch')";
            self.database.query_row(sql, [ms], |row| row.get(0)).map_err(unavailable)
        };
        let (since, until) = (time(made - AROUND_MS)?, time(made + AROUND_MS)?);
        Ok(Search { since, until, has_log: true, ..Search::default() })
    }

    fn agent_log(&mut self, id: &str) -> Result<Option<AgentLog>, LedgerError> {
        let mut found = None;
        let near = self.near(id)?;
        for search in [near, Search { has_log: true, ..Search::default() }] {
            self.search(&search, |database, _, place| {
                let Some(body) = body(database, LOG, place)? else { return Ok(true) };
                let log: AgentLog = read_log(database, &body)?;
                found = Some(log).filter(|log| log.id == id);
                Ok(found.is_none())
            })?;
            // A UUIDv7 that is not found near its creation time does not exist.
            if found.is_some() || search.since.is_some() {
                break;
            }
        }
        Ok(found)
    }
}

/// The members of an event that name a receipt.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Naming {
    #[serde(default)]
    receipt_id: Option<String>,
    #[serde(default)]
    receipt_digest: Option<String>,
    #[serde(default)]
    event: String,
}

impl Naming {
    /// Whether the event is a dispatch that accounts for its receipt; dispatches of earlier
    /// versions do not.
    fn is_dispatch(&self) -> bool {
        self.event == AuditEventKind::ToolDispatched.as_str() && self.receipt_digest.is_some()
    }
}

/// A page of a log that is being filled.
struct Page<'d> {
    database: &'d Connection,
    include: Include,
    limit: usize,
    found: Vec<RawEntry>,
}

impl Page<'_> {
    /// Adds the events of a writer from a sequence number on, up to the limit of the page.
    fn add(&mut self, writer: &str, no: i64, from: i64) -> Result<(), LedgerError> {
        let sql = match self.include {
            Include::Milestones => {
                "SELECT place, body FROM milestones JOIN events USING (place)
                 WHERE place >= ?1 AND place < ?2 ORDER BY place LIMIT ?3"
            }
            Include::Records | Include::Events => {
                "SELECT place, body FROM events
                 WHERE place >= ?1 AND place < ?2 ORDER BY place LIMIT ?3"
            }
        };
        let mut statement = self.database.prepare_cached(sql).map_err(unavailable)?;
        let ends = (place(no, from), place(no + 1, 0), limited(self.limit - self.found.len()));
        let mut rows = statement.query(ends).map_err(unavailable)?;
        let mut next = place(no, from);
        while let Some(row) = rows.next().map_err(unreadable_at(EVENT, next))? {
            let (at, body): (i64, Vec<u8>) =
                (row.get(0).map_err(unavailable)?, row.get(1).map_err(unavailable)?);
            next = at + 1;
            // A body that cannot be unpacked becomes an empty text, which matches no digest.
            let bytes = shorten::unpack(&body).unwrap_or_default();
            let mut entry = RawEntry {
                writer: writer.to_owned(),
                seq: lookup::split(at).1.unsigned_abs(),
                bytes,
                ..RawEntry::default()
            };
            if self.include == Include::Records {
                self.records(at, &mut entry)?;
            }
            self.found.push(entry);
        }
        Ok(())
    }

    fn records(&self, at: i64, entry: &mut RawEntry) -> Result<(), LedgerError> {
        let named: Option<Naming> = serde_json::from_str(&entry.bytes).ok();
        let is_dispatch = named.as_ref().is_some_and(Naming::is_dispatch);
        let log = body(self.database, LOG, at)?;
        self.receipt(named.and_then(|named| named.receipt_id), is_dispatch, entry)?;
        let receipt = entry.receipt.as_ref();
        let given = |_: &str| Ok(receipt.map(|receipt| receipt.bytes.clone()));
        entry.log = log.map(|body| RawRecord {
            bytes: share::unpack(&body, given).unwrap_or_default(),
            ..RawRecord::default()
        });
        Ok(())
    }

    /// Reads the receipt that an event names, with its columns and keys.
    fn receipt(
        &self,
        id: Option<String>,
        is_dispatch: bool,
        entry: &mut RawEntry,
    ) -> Result<(), LedgerError> {
        let Some(id) = id else { return Ok(()) };
        // The event that ends a dispatched call names the receipt again.
        let sql = if is_dispatch { OPEN_RECEIPT } else { ANY_RECEIPT };
        entry.receipt = self
            .database
            .prepare_cached(sql)
            .and_then(|mut statement| {
                statement
                    .query_row([Compact::of(&id)], |row| {
                        let body: Vec<u8> = row.get(0)?;
                        let bytes = shorten::unpack(&body).unwrap_or_default();
                        let said = |at: usize| column(row, at);
                        let columns = vec![
                            said(1)?,
                            Some(id.clone()),
                            said(2)?,
                            said(3)?,
                            said(4)?,
                            said(5)?,
                            None,
                        ];
                        Ok(RawRecord { columns, bytes, keys: Vec::new() })
                    })
                    .optional()
            })
            .map_err(unreadable_at("receipts", &id))?;
        if let Some(receipt) = &mut entry.receipt {
            let sql = "SELECT key FROM keys WHERE receipt = ?1";
            receipt.keys = keys(self.database, sql, Some(Compact::of(&id)))?;
        }
        Ok(())
    }
}

/// Selects the receipt of a claim that has not ended, with its columns.
const OPEN_RECEIPT: &str =
    "SELECT body, 'open', tool, state, writer, fence FROM open_receipts WHERE id = ?1";
/// Selects any receipt, with its columns.
const ANY_RECEIPT: &str =
    "SELECT body, 'settled', NULL, NULL, NULL, fence FROM receipts WHERE id = ?1
     UNION ALL SELECT body, 'open', tool, state, writer, fence FROM open_receipts WHERE id = ?1
     UNION ALL SELECT body, 'pruned', NULL, NULL, NULL, fence FROM tombstones WHERE id = ?1";

fn column(row: &rusqlite::Row<'_>, at: usize) -> rusqlite::Result<Option<String>> {
    use rusqlite::types::ValueRef;
    Ok(match row.get_ref(at)? {
        ValueRef::Null => None,
        ValueRef::Integer(number) => Some(number.to_string()),
        ValueRef::Text(text) => Some(String::from_utf8_lossy(text).into_owned()),
        _ => Some(String::new()),
    })
}

/// Writers and their numbers in the order of names, from `writer` on.
fn writers_from(
    database: &Connection,
    writer: &str,
    limit: usize,
) -> Result<Vec<(String, i64)>, LedgerError> {
    database
        .prepare_cached(
            "SELECT writer, no FROM writers WHERE writer >= ?1 ORDER BY writer LIMIT ?2",
        )
        .and_then(|mut statement| {
            let read = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?));
            statement.query_map((writer, limited(limit)), read)?.collect()
        })
        .map_err(unavailable)
}

/// Begins the names under which logs of unknown writers are paged; it sorts after every other name.
const STRANGER: &str = "\u{10ffff}";

/// The first number, from `from` on, of a writer that has events but no row.
fn next_stranger(database: &Connection, from: i64) -> Result<Option<i64>, LedgerError> {
    let mut from = from;
    loop {
        let next: Option<i64> = database
            .prepare_cached("SELECT min(place) FROM events WHERE place >= ?1")
            .and_then(|mut statement| statement.query_row([place(from, 0)], |row| row.get(0)))
            .map_err(unavailable)?;
        let Some(next) = next else { return Ok(None) };
        let no = lookup::split(next).0;
        let known: bool = database
            .prepare_cached("SELECT EXISTS (SELECT 1 FROM writers WHERE no = ?1)")
            .and_then(|mut statement| statement.query_row([no], |row| row.get(0)))
            .map_err(unavailable)?;
        if !known {
            return Ok(Some(no));
        }
        from = no + 1;
    }
}

fn log_page(
    database: &Connection,
    after: Option<(String, u64)>,
    limit: usize,
    include: Include,
) -> Result<Vec<RawEntry>, LedgerError> {
    /// Maximum writers that one query reads.
    const WRITERS: usize = 256;
    let (mut writer, seq) = after.unwrap_or_default();
    let mut from = if writer.is_empty() {
        0
    } else {
        limited(usize::try_from(seq).unwrap_or(usize::MAX)).saturating_add(1)
    };
    let mut page = Page { database, include, limit, found: Vec::new() };
    while !writer.starts_with(STRANGER) && page.found.len() < limit {
        let writers = writers_from(database, &writer, WRITERS)?;
        for (name, no) in &writers {
            let from = if *name == writer { from } else { 0 };
            if page.found.len() < limit && from < (1 << SEQ_BITS) {
                page.add(name, *no, from)?;
            }
        }
        match writers.last() {
            Some((last, _)) if writers.len() == WRITERS => {
                writer.clone_from(last);
                from = 1 << SEQ_BITS;
            }
            _ => {
                STRANGER.clone_into(&mut writer);
                from = 0;
            }
        }
    }
    // Logs of writers without a row, which point to tampering.
    let number = writer.strip_prefix(STRANGER).and_then(|no| no.parse().ok());
    let mut next = number.unwrap_or_default();
    while page.found.len() < limit {
        let Some(no) = next_stranger(database, next)? else { break };
        let from = if Some(no) == number { from } else { 0 };
        if from < (1 << SEQ_BITS) {
            page.add(&format!("{STRANGER}{no}"), no, from)?;
        }
        next = no + 1;
    }
    Ok(page.found)
}

/// Removed subtrees of logs, writer by writer; those of unknown writers come last.
fn gone_page(
    database: &Connection,
    after: Option<(String, u64)>,
    limit: usize,
) -> Result<Vec<(String, Gone)>, LedgerError> {
    let mut numbers: Vec<(String, i64)> = database
        .prepare_cached("SELECT writer, no FROM writers ORDER BY writer")
        .and_then(|mut statement| {
            statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?.collect()
        })
        .map_err(unavailable)?;
    let sql = "SELECT DISTINCT place >> ?1 FROM gone
               WHERE place >> ?1 NOT IN (SELECT no FROM writers) ORDER BY 1";
    let strangers: Vec<i64> = database
        .prepare_cached(sql)
        .and_then(|mut statement| statement.query_map([SEQ_BITS], |row| row.get(0))?.collect())
        .map_err(unavailable)?;
    numbers.extend(strangers.into_iter().map(|no| (format!("{STRANGER}{no}"), no)));
    let (writer, seq) = after.map_or((String::new(), -1), |(writer, seq)| {
        (writer, i64::try_from(seq).unwrap_or(i64::MAX))
    });
    let mut found = Vec::new();
    for (name, no) in numbers.into_iter().filter(|(name, _)| *name >= writer) {
        let from = if name == writer { seq.saturating_add(1) } else { 0 };
        if found.len() >= limit || from >= 1 << SEQ_BITS {
            continue;
        }
        let sql = "SELECT place, size, root FROM gone
                   WHERE place >= ?1 AND place < ?2 ORDER BY place LIMIT ?3";
        let given = (place(no, from), place(no + 1, 0), limited(limit - found.len()));
        let read = |row: &rusqlite::Row<'_>| {
            let root: Name = row.get(2)?;
            let seq = lookup::split(row.get(0)?).1.unsigned_abs();
            // An invalid hash becomes zeros, which match no root.
            let root = Hash::parse(&root.0).unwrap_or(Hash([0; 32]));
            Ok((name.clone(), Gone { seq, size: row.get::<_, i64>(1)?.unsigned_abs(), root }))
        };
        let mut statement = database.prepare_cached(sql).map_err(unavailable)?;
        let rows = statement.query_map(given, read).map_err(unreadable_at("gone", &name))?;
        for row in rows {
            found.push(row.map_err(unreadable_at("gone", &name))?);
        }
    }
    Ok(found)
}

fn unaccounted(database: &Connection, known: &Accounted) -> Result<Unaccounted, LedgerError> {
    let count = |sql: &str| -> Result<u64, LedgerError> {
        let count: i64 = database.query_row(sql, [], |row| row.get(0)).map_err(unavailable)?;
        Ok(count.unsigned_abs())
    };
    let logs = match count("SELECT count(*) FROM agent_logs")? == known.logs {
        true => Vec::new(),
        false => unaccounted_logs(database, &known.lacking)?,
    };
    let all = "SELECT (SELECT count(*) FROM receipts) + (SELECT count(*) FROM open_receipts)
                   + (SELECT count(*) FROM tombstones)";
    let receipts = match count(all)? == known.receipts {
        true => Vec::new(),
        false => unaccounted_receipts(database, &known.lacking)?,
    };
    let sql =
        "SELECT key FROM keys k WHERE NOT EXISTS (SELECT 1 FROM receipts WHERE id = k.receipt)
                   AND NOT EXISTS (SELECT 1 FROM tombstones WHERE id = k.receipt)
                   AND NOT EXISTS (SELECT 1 FROM open_receipts WHERE id = k.receipt)
               LIMIT 100";
    let keys = keys(database, sql, None)?;
    let sql = "SELECT place FROM milestones m
               WHERE NOT EXISTS (SELECT 1 FROM events e WHERE e.place = m.place) LIMIT 100";
    let places: Vec<i64> = database
        .prepare_cached(sql)
        .and_then(|mut statement| statement.query_map([], |row| row.get(0))?.collect())
        .map_err(unavailable)?;
    let milestones = places.iter().map(|place| format!("place {place}")).collect();
    Ok(Unaccounted { logs, receipts, keys, milestones })
}

fn unaccounted_logs(
    database: &Connection,
    lacking: &BTreeMap<String, u64>,
) -> Result<Vec<String>, LedgerError> {
    const MOST: usize = 100;
    let mut logs = Vec::new();
    let mut statement = database
        .prepare_cached(
            "SELECT l.body, w.writer, l.place FROM agent_logs l
             LEFT JOIN writers w ON w.no = l.place >> ?1
             WHERE NOT EXISTS (SELECT 1 FROM events e WHERE e.place = l.place) ORDER BY l.place",
        )
        .map_err(unavailable)?;
    let mut rows = statement.query([SEQ_BITS]).map_err(unavailable)?;
    while logs.len() < MOST
        && let Some(row) = rows.next().map_err(unavailable)?
    {
        let writer: Option<String> = row.get(1).map_err(unavailable)?;
        let seq = lookup::split(row.get(2).map_err(unavailable)?).1.unsigned_abs();
        if writer.is_some_and(|writer| lacking.get(&writer).is_some_and(|size| seq < *size)) {
            continue;
        }
        let body: Vec<u8> = row.get(0).map_err(unavailable)?;
        let log: Result<AgentLog, _> = read_log(database, &body);
        logs.push(log.map_or_else(|_| "(unreadable)".to_owned(), |log| log.id));
    }
    Ok(logs)
}

/// Ids of receipts that no event accounts for. Receipts whose events an earlier version removed
/// (`lacking`) are excused.
fn unaccounted_receipts(
    database: &Connection,
    lacking: &BTreeMap<String, u64>,
) -> Result<Vec<String>, LedgerError> {
    const MOST: usize = 100;
    let mut receipts = Vec::new();
    let numbers: HashMap<String, i64> = database
        .prepare_cached("SELECT writer, no FROM writers")
        .and_then(|mut statement| {
            let read = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?));
            statement.query_map([], read)?.collect()
        })
        .map_err(unavailable)?;
    for table in ["receipts", "tombstones", "open_receipts"] {
        let sql = format!("SELECT id, body FROM {table} ORDER BY id");
        let mut statement = database.prepare_cached(&sql).map_err(unavailable)?;
        let mut rows = statement.query([]).map_err(unavailable)?;
        while receipts.len() < MOST
            && let Some(row) = rows.next().map_err(unavailable)?
        {
            let id: Name = row.get(0).map_err(unavailable)?;
            let body: Vec<u8> = row.get(1).map_err(unavailable)?;
            let receipt: Result<Receipt, _> = shorten::read("a receipt", &body);
            let accounted = match receipt {
                Ok(receipt) => {
                    let is = |at: &AuditPlace| {
                        lacking.get(&at.writer).is_some_and(|size| at.seq < *size)
                    };
                    receipt.receipt_id == id.0
                        && (receipt.audit_seq.as_ref().is_some_and(is)
                            || is_accounted(database, &numbers, &receipt)?)
                }
                Err(_) => false,
            };
            if !accounted {
                receipts.push(id.0);
            }
        }
    }
    Ok(receipts)
}

/// Whether the event at the receipt's `auditSeq` names the receipt.
fn is_accounted(
    database: &Connection,
    numbers: &HashMap<String, i64>,
    receipt: &Receipt,
) -> Result<bool, LedgerError> {
    let Some(at) = &receipt.audit_seq else {
        // The claim runs. Verification has compared its dispatch event with it when it read the
        // log.
        return Ok(numbers.contains_key(&receipt.writer));
    };
    let Some(no) = numbers.get(&at.writer) else { return Ok(false) };
    let seq = i64::try_from(at.seq).unwrap_or(i64::MAX);
    let Some(body) = body(database, EVENT, place(*no, seq))? else { return Ok(false) };
    let named: Result<Naming, _> = shorten::read("an event", &body);
    Ok(named.is_ok_and(|named| named.receipt_id.as_ref() == Some(&receipt.receipt_id)))
}

/// Asynchronous calls with the events that they name as accounting for them.
fn calls(
    database: &Connection,
    which: &str,
    name: CallName,
    limit: usize,
) -> Result<Vec<RawCall>, LedgerError> {
    let sql = format!("SELECT {CALL} FROM queue WHERE {which} ORDER BY caller, call_id LIMIT ?3");
    let mut statement = database.prepare_cached(&sql).map_err(unavailable)?;
    let read = |row: &rusqlite::Row<'_>| Ok((call(row)?, row.get(3)?));
    let found = statement.query_map((name.0, name.1, limited(limit)), read);
    let found: Vec<(QueuedCall, String)> =
        found.and_then(Iterator::collect).map_err(unreadable_at("queue", "?"))?;
    let event = |at: &Option<AuditPlace>| -> Result<Option<String>, LedgerError> {
        let Some(at) = at else { return Ok(None) };
        let sql = "SELECT no FROM writers WHERE writer = ?1";
        let no: Option<i64> = database
            .query_row(sql, [&at.writer], |row| row.get(0))
            .optional()
            .map_err(unavailable)?;
        let Some(no) = no else { return Ok(None) };
        let seq = i64::try_from(at.seq).unwrap_or(i64::MAX);
        let body = body(database, EVENT, place(no, seq))?;
        Ok(body.and_then(|body| shorten::unpack(&body).ok()))
    };
    let raw = |(call, state): (QueuedCall, String)| {
        let (queued, finished) = (event(&call.queued_by)?, event(&call.finished_by)?);
        Ok(RawCall { call, state, queued, finished })
    };
    found.into_iter().map(raw).collect()
}

fn approval_page(
    database: &Connection,
    after: Option<String>,
    limit: usize,
) -> Result<Vec<RawApproval>, LedgerError> {
    let sql = "SELECT approval_id, body, tool, caller, args_digest, contract_digest, state,
                   (SELECT e.body FROM events e WHERE e.place = (
                        SELECT w.no << ?3 | (a.body ->> '$.auditSeq.seq') FROM writers w
                        WHERE json_valid(a.body) AND w.writer = a.body ->> '$.auditSeq.writer'))
               FROM approvals a WHERE ?1 IS NULL OR approval_id > ?1
               ORDER BY approval_id LIMIT ?2";
    let mut statement = database.prepare_cached(sql).map_err(unavailable)?;
    let read = |row: &rusqlite::Row<'_>| {
        let columns = (2..7).map(|at| column(row, at)).collect::<Result<Vec<_>, _>>()?;
        let event: Option<Vec<u8>> = row.get(7)?;
        let event = event.and_then(|body| shorten::unpack(&body).ok());
        Ok(RawApproval { id: row.get(0)?, bytes: row.get(1)?, columns, event })
    };
    let found = statement.query_map((after, limited(limit), SEQ_BITS), read);
    found.and_then(Iterator::collect).map_err(unreadable_at("approvals", "?"))
}

#[async_trait]
impl LedgerReads for SqliteReads {
    async fn receipt(&self, receipt_id: &str) -> Result<Option<Receipt>, LedgerError> {
        let id = receipt_id.to_owned();
        self.run(move |reader| receipt(&reader.database, &id)).await
    }

    async fn receipts(&self, filter: ReceiptFilter) -> Result<(Vec<Receipt>, bool), LedgerError> {
        self.run(move |reader| reader.receipts(&filter)).await
    }

    async fn agent_log(&self, id: &str) -> Result<Option<AgentLog>, LedgerError> {
        let id = id.to_owned();
        self.run(move |reader| reader.agent_log(&id)).await
    }

    async fn agent_logs(&self, filter: LogFilter) -> Result<Vec<AgentLog>, LedgerError> {
        self.run(move |reader| reader.agent_logs(&filter)).await
    }

    async fn events(&self, filter: EventFilter) -> Result<Vec<PlacedEvent>, LedgerError> {
        self.run(move |reader| reader.events(&filter)).await
    }

    async fn named(&self, prefix: &str, limit: usize) -> Result<Vec<FoundId>, LedgerError> {
        let prefix = prefix.to_owned();
        self.run(move |reader| reader.lookup()?.0.named(&prefix, limit)).await
    }

    async fn log_page(
        &self,
        after: Option<(String, u64)>,
        limit: usize,
        include: Include,
    ) -> Result<Vec<RawEntry>, LedgerError> {
        self.run(move |reader| log_page(&reader.database, after, limit, include)).await
    }

    async fn heads(&self) -> Result<Vec<WriterHead>, LedgerError> {
        self.run(|reader| {
            let sql = format!("SELECT {HEAD} FROM writers ORDER BY writer");
            let mut statement = reader.database.prepare_cached(&sql).map_err(unavailable)?;
            let heads = statement.query_map([], head).map_err(unavailable)?;
            heads.collect::<rusqlite::Result<Vec<WriterHead>>>().map_err(unavailable)
        })
        .await
    }

    async fn gone_page(
        &self,
        after: Option<(String, u64)>,
        limit: usize,
    ) -> Result<Vec<(String, Gone)>, LedgerError> {
        self.run(move |reader| gone_page(&reader.database, after, limit)).await
    }

    async fn key_ids(&self) -> Result<Option<Vec<String>>, LedgerError> {
        self.run(|reader| {
            let sql = "SELECT key_id FROM digest_keys";
            let mut statement = reader.database.prepare_cached(sql).map_err(unavailable)?;
            let ids = statement.query_map([], |row| row.get(0)).map_err(unavailable)?;
            ids.collect::<rusqlite::Result<_>>().map(Some).map_err(unavailable)
        })
        .await
    }

    async fn unaccounted(&self, known: Accounted) -> Result<Unaccounted, LedgerError> {
        self.run(move |reader| unaccounted(&reader.database, &known)).await
    }

    async fn approval_page(
        &self,
        after: Option<String>,
        limit: usize,
    ) -> Result<Vec<RawApproval>, LedgerError> {
        self.run(move |reader| approval_page(&reader.database, after, limit)).await
    }

    async fn queued(&self, caller: &str, call_id: &str) -> Result<Option<RawCall>, LedgerError> {
        let name = (caller.to_owned(), call_id.to_owned());
        self.run(move |reader| {
            let found = calls(&reader.database, "(caller, call_id) = (?1, ?2)", name, 1)?;
            Ok(found.into_iter().next())
        })
        .await
    }

    async fn call_page(
        &self,
        after: Option<CallName>,
        limit: usize,
    ) -> Result<Vec<RawCall>, LedgerError> {
        let after = after.unwrap_or_default();
        self.run(move |reader| {
            calls(&reader.database, "(caller, call_id) > (?1, ?2)", after, limit)
        })
        .await
    }

    async fn healthy(&self) -> Result<(), LedgerError> {
        let ask = |reader: &mut Reader| {
            reader.database.query_row("SELECT 1", [], |_| Ok(())).map_err(unavailable)
        };
        self.run(ask).await
    }
}
