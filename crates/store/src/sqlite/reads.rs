//! Reads the store on separate connections, which never block the writer.
//!
//! Doc: records.md#reading

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;

use async_channel::{Receiver, Sender};
use async_trait::async_trait;
use rusqlite::{Connection, OptionalExtension};
use toolbooth_audit::LedgerError;
use toolbooth_audit::backend::pruning::PrunedRange;
use toolbooth_audit::backend::working::CallName;
use toolbooth_audit::charges::RawBudget;
use toolbooth_audit::documents::{RawDocument, checked};
use toolbooth_audit::history::{WindowName, WindowTotals};
use toolbooth_audit::orders::RawOrder;
use toolbooth_audit::queue::{QueuedCall, RawCall};
use toolbooth_audit::reads::{
    Accounted, ApprovalFilter, DAMAGED_MAX, DamagedRow, EventFilter, FoundId, Include, LedgerReads,
    LogFilter, Page, PlacedEvent, RawApproval, RawEntry, ReceiptFilter, Unaccounted, WriterHead,
};
use toolbooth_contracts::Status;
use toolbooth_contracts::agent_log::AgentLog;
use toolbooth_contracts::event::AuditEvent;
use toolbooth_contracts::order::OrderName;
use toolbooth_contracts::receipt::{AuditPlace, ClaimState, Receipt};

use super::approvals;
use super::compact::{Compact, Shown};
use super::connection::connect_to_read;
use super::error::OpenError;
use super::log_pages::{Naming, RawText, log_page, pruned_ranges, writer_name};
use super::queries::{EVENT, LOG, body, budget_row, keys, limited, orders, readable, window};
use super::rows::{CALL, HEAD, RECEIPT, call, head_of, receipt_row};
use super::schema::{SEQ_BITS, place};
use super::search_index::{self, Lookup, Search};
use super::{result_reference, schema, unavailable, unreadable_at};
use crate::{Unreadable, packing};

/// Reader threads, each with its own connections.
const READERS: usize = 2;
/// Maximum queued queries; further queries wait for a free place in the queue.
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
        self.readers.queries.send(job).await.map_err(|_| LedgerError::Closed)?;
        answer.recv().await.map_err(|_| LedgerError::Closed)?
    }
}

fn receipt(connection: &Connection, id: &str) -> Result<Option<Receipt>, LedgerError> {
    let row = connection
        .prepare_cached(RECEIPT)
        .and_then(|mut statement| statement.query_row([Compact::of(id)], receipt_row).optional())
        .map_err(unavailable)?;
    row.map(|(_, body)| packing::read(&body))
        .transpose()
        .map_err(|damage| damage.at("receipts", id))
}

/// Reads the event that is stored at `place`.
fn read_event(place: i64, stored: &[u8]) -> Result<AuditEvent, LedgerError> {
    packing::read(stored).map_err(|damage| damage.at(EVENT, place))
}

/// Reads the agent log that is stored at `place`, including the part that it shares with its
/// receipt.
fn read_log(database: &Connection, place: i64, stored: &[u8]) -> Result<AgentLog, LedgerError> {
    let text = result_reference::unpack(stored, place, |id| {
        let sql = "SELECT body FROM receipts WHERE id = ?1";
        let body: Option<Vec<u8>> = database
            .prepare_cached(sql)
            .and_then(|mut statement| {
                statement.query_row([Compact::of(id)], |row| row.get(0)).optional()
            })
            .map_err(unavailable)?;
        let damaged = |damage: Unreadable| damage.at("receipts", id);
        body.map(|body| packing::unpack(&body).map_err(damaged)).transpose()
    })?;
    serde_json::from_str(&text).map_err(|error| Unreadable::of(error).at(LOG, place))
}

impl Reader {
    /// Returns the updated search index and the database.
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

    fn agent_logs(&mut self, filter: &LogFilter) -> Result<Page<AgentLog>, LedgerError> {
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
        let mut page = Page::default();
        if filter.limit == 0 {
            return Ok(page);
        }
        self.search(&search, |database, _, place| {
            let Some(body) = body(database, LOG, place)? else { return Ok(true) };
            page.add(read_log(database, place, &body), |log| filter.fits(log))?;
            Ok(page.found.len() < filter.limit)
        })?;
        page.found.reverse();
        Ok(page)
    }

    fn events(&mut self, filter: &EventFilter) -> Result<Page<PlacedEvent>, LedgerError> {
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
        let mut page = Page::default();
        if filter.limit == 0 {
            return Ok(page);
        }
        self.search(&search, |database, no, place| {
            let Some(body) = body(database, EVENT, place)? else { return Ok(true) };
            let event = read_event(place, &body)
                .map(|event| PlacedEvent { place: no.unsigned_abs(), event });
            page.add(event, |placed| filter.fits(&placed.event))?;
            Ok(page.found.len() < filter.limit)
        })?;
        if filter.after.is_none() {
            page.found.reverse();
        }
        Ok(page)
    }

    fn receipts(&mut self, filter: &ReceiptFilter) -> Result<Page<Receipt>, LedgerError> {
        let mut page = match self.search_of(filter)? {
            Some(search) => self.searched_receipts(filter, &search)?,
            None => self.listed_receipts(filter)?,
        };
        page.truncate(filter.limit);
        Ok(page)
    }

    /// Returns the search for receipts by the events that name them. `None` if listing the receipts
    /// is as fast, or if events are missing.
    fn search_of(&self, filter: &ReceiptFilter) -> Result<Option<Search>, LedgerError> {
        let succeeded = || Some(Status::Succeeded.as_str().to_owned());
        let state = filter.state.as_deref().and_then(ClaimState::parse);
        let (status, not_status) = match state {
            Some(ClaimState::Succeeded) => (succeeded(), None),
            Some(ClaimState::Failed) => (None, succeeded()),
            // Few receipts are open, so listing them is as fast.
            Some(_) => return Ok(None),
            None => (None, None),
        };
        let names_one = [&filter.tool, &filter.caller, &filter.call].iter().any(|of| of.is_some());
        if !names_one && state.is_none() {
            return Ok(None);
        }
        if filter.call.is_none() {
            // Pruning retains the first event of a log. If it is missing, an earlier version
            // removed it, and events of receipts with it.
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
    ) -> Result<Page<Receipt>, LedgerError> {
        let mut page = Page::default();
        let (lookup, database) = self.lookup()?;
        lookup.receipts(search, filter.after.as_deref(), |id| {
            if let Some(receipt) = receipt(database, id).transpose() {
                page.add(receipt, |receipt| filter.fits(receipt))?;
            }
            Ok(page.found.len() <= filter.limit)
        })?;
        Ok(page)
    }

    fn listed_receipts(&self, filter: &ReceiptFilter) -> Result<Page<Receipt>, LedgerError> {
        let mut page = Page::default();
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
        while page.found.len() <= filter.limit
            && let Some(row) = rows.next().map_err(unavailable)?
        {
            let id: Shown = row.get(0).map_err(unavailable)?;
            let body: Vec<u8> = row.get(1).map_err(unreadable_at("receipts", &id.0))?;
            let receipt = packing::read(&body).map_err(|damage| damage.at("receipts", &id.0));
            page.add(receipt, |receipt| filter.fits(receipt))?;
        }
        Ok(page)
    }

    /// Returns the search for an agent log by its id, near the creation time of a UUIDv7 (RFC 9562,
    /// 5.7).
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
        let (mut found, mut damaged) = (None, None);
        let near = self.near(id)?;
        for search in [near, Search { has_log: true, ..Search::default() }] {
            self.search(&search, |database, _, place| {
                let Some(body) = body(database, LOG, place)? else { return Ok(true) };
                match read_log(database, place, &body) {
                    Ok(log) => found = Some(log).filter(|log| log.id == id),
                    // The damaged log may be the requested one.
                    Err(error @ LedgerError::Damaged(_)) => {
                        damaged = damaged.take().or(Some(error))
                    }
                    Err(error) => return Err(error),
                }
                Ok(found.is_none())
            })?;
            // A UUIDv7 that is not found near its creation time does not exist.
            if found.is_some() || search.since.is_some() {
                break;
            }
        }
        match (found, damaged) {
            (None, Some(damaged)) => Err(damaged),
            (found, _) => Ok(found),
        }
    }
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
    let sql = "SELECT receipt FROM history h
               WHERE NOT EXISTS (SELECT 1 FROM receipts WHERE id = h.receipt)
                   AND NOT EXISTS (SELECT 1 FROM tombstones WHERE id = h.receipt)
                   AND NOT EXISTS (SELECT 1 FROM open_receipts WHERE id = h.receipt)
               LIMIT 100";
    let history = self::keys(database, sql, None)?;
    let sql = "SELECT place FROM milestones m
               WHERE NOT EXISTS (SELECT 1 FROM events e WHERE e.place = m.place) LIMIT 100";
    let places: Vec<i64> = database
        .prepare_cached(sql)
        .and_then(|mut statement| statement.query_map([], |row| row.get(0))?.collect())
        .map_err(unavailable)?;
    let milestones = places.iter().map(|place| format!("place {place}")).collect();
    let damaged = unreadable_rows(database)?;
    let windows = Vec::new();
    Ok(Unaccounted { logs, receipts, keys, history, windows, milestones, damaged })
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
        let writer: Option<Shown> = row.get(1).map_err(unavailable)?;
        let at = row.get(2).map_err(unavailable)?;
        let seq = search_index::split(at).1.unsigned_abs();
        if writer.is_some_and(|writer| lacking.get(&writer.0).is_some_and(|size| seq < *size)) {
            continue;
        }
        let body: Vec<u8> = row.get(0).map_err(unavailable)?;
        let log = read_log(database, at, &body);
        logs.push(log.map_or_else(|error| error.to_string(), |log| log.id));
    }
    Ok(logs)
}

/// Returns the ids of receipts that no event accounts for. Receipts are excused if an earlier
/// version removed their events (`lacking`).
fn unaccounted_receipts(
    database: &Connection,
    lacking: &BTreeMap<String, u64>,
) -> Result<Vec<String>, LedgerError> {
    const MOST: usize = 100;
    let mut receipts = Vec::new();
    let numbers: HashMap<String, i64> = database
        .prepare_cached("SELECT writer, no FROM writers")
        .and_then(|mut statement| {
            let read = |row: &rusqlite::Row<'_>| Ok((row.get::<_, Shown>(0)?.0, row.get(1)?));
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
            let id: Shown = row.get(0).map_err(unavailable)?;
            let body: Vec<u8> = row.get(1).map_err(unreadable_at("receipts", &id.0))?;
            let receipt: Result<Receipt, _> = packing::read(&body);
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
    let named: Result<Naming, _> = packing::read(&body);
    Ok(named.is_ok_and(|named| named.receipt_id.as_ref() == Some(&receipt.receipt_id)))
}

/// Returns asynchronous calls, with the events that they name and that account for them. A row with
/// invalid text in a column is omitted; [`unreadable_rows`] returns it.
fn calls(
    database: &Connection,
    which: &str,
    name: Option<CallName>,
    limit: usize,
) -> Result<Vec<RawCall>, LedgerError> {
    let sql = format!("SELECT {CALL} FROM queue WHERE {which} ORDER BY caller, call_id LIMIT ?3");
    let mut statement = database.prepare_cached(&sql).map_err(unavailable)?;
    let read = |row: &rusqlite::Row<'_>| {
        let at: Option<(RawText, RawText)> = Some((row.get(1)?, row.get(0)?));
        let found: rusqlite::Result<(QueuedCall, String)> =
            call(row).and_then(|call| Ok((call, row.get(3)?)));
        Ok((at, found.ok()))
    };
    let raw = |text: String| RawText(text.into_bytes());
    let name = name.map(|(caller, call_id)| (raw(caller), raw(call_id)));
    let found = readable(name, limit, |name| {
        let caller = name.as_ref().map(|name| &name.0);
        let call_id = name.as_ref().map(|name| &name.1);
        statement.query_map((caller, call_id, limited(limit)), read)?.collect()
    })?;
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
        Ok(body.and_then(|body| packing::unpack(&body).ok()))
    };
    let raw = |(call, state): (QueuedCall, String)| {
        let (queued, finished) = (event(&call.queued_by)?, event(&call.finished_by)?);
        Ok(RawCall { call, state, queued, finished })
    };
    found.into_iter().map(raw).collect()
}

fn budget_page(
    database: &Connection,
    after: Option<String>,
    limit: usize,
) -> Result<Vec<RawBudget>, LedgerError> {
    let sql = "SELECT key, day, units, changed_by FROM budgets WHERE ?1 IS NULL OR key > ?1
               ORDER BY key LIMIT ?2";
    let mut statement = database.prepare_cached(sql).map_err(unavailable)?;
    let read = |row: &rusqlite::Row<'_>| {
        let at: RawText = row.get(0)?;
        let key = at.text().map(str::to_owned);
        let row = budget_row(row, 1)?;
        Ok((Some(at), key.map(|key| RawBudget { key, row })))
    };
    readable(after.map(|key| RawText(key.into_bytes())), limit, |after| {
        statement.query_map((after, limited(limit)), read)?.collect()
    })
}

fn document(database: &Connection, digest: &str) -> Result<Option<String>, LedgerError> {
    let sql = "SELECT body FROM documents WHERE digest = ?1";
    let body: Option<Vec<u8>> = database
        .prepare_cached(sql)
        .and_then(|mut statement| statement.query_row([digest], |row| row.get(0)).optional())
        .map_err(unavailable)?;
    let Some(body) = body else { return Ok(None) };
    checked(digest, packing::unpack(&body).ok()).map(Some)
}

fn document_page(
    database: &Connection,
    after: Option<String>,
    limit: usize,
) -> Result<Vec<RawDocument>, LedgerError> {
    let sql = "SELECT digest, body FROM documents WHERE ?1 IS NULL OR digest > ?1
               ORDER BY digest LIMIT ?2";
    let mut statement = database.prepare_cached(sql).map_err(unavailable)?;
    let read = |row: &rusqlite::Row<'_>| {
        let at: RawText = row.get(0)?;
        let digest = at.text().map(str::to_owned);
        let text = packing::unpack(&row.get::<_, Vec<u8>>(1)?).ok();
        Ok((Some(at), digest.map(|digest| RawDocument { digest, text })))
    };
    readable(after.map(|digest| RawText(digest.into_bytes())), limit, |after| {
        statement.query_map((after, limited(limit)), read)?.collect()
    })
}

/// Returns the rows that pages omit, because a text in them is not UTF-8.
fn unreadable_rows(database: &Connection) -> Result<Vec<DamagedRow>, LedgerError> {
    let mut found = Vec::new();
    for (table, columns) in [
        ("approvals", "approval_id, approval_id".to_owned()),
        ("queue", format!("place, {CALL}")),
        ("budgets", "key, key".to_owned()),
        ("documents", "digest, digest".to_owned()),
    ] {
        let sql = format!("SELECT {columns} FROM {table}");
        let mut statement = database.prepare_cached(&sql).map_err(unavailable)?;
        let count = statement.column_count();
        let mut rows = statement.query([]).map_err(unavailable)?;
        while found.len() < DAMAGED_MAX
            && let Some(row) = rows.next().map_err(unavailable)?
        {
            let is_text = |at: usize| {
                let value = row.get_ref(at).ok();
                let text = value.and_then(|value| value.as_bytes().ok());
                text.is_none_or(|text| std::str::from_utf8(text).is_ok())
            };
            if !(1..count).all(is_text) {
                let row: Shown = row.get(0).map_err(unavailable)?;
                let (table, reason) = (table.to_owned(), "a text in it is not UTF-8".to_owned());
                found.push(DamagedRow { table, row: row.0, reason });
            }
        }
    }
    Ok(found)
}

#[async_trait]
impl LedgerReads for SqliteReads {
    async fn receipt(&self, receipt_id: &str) -> Result<Option<Receipt>, LedgerError> {
        let id = receipt_id.to_owned();
        self.run(move |reader| receipt(&reader.database, &id)).await
    }

    async fn receipts(&self, filter: ReceiptFilter) -> Result<Page<Receipt>, LedgerError> {
        self.run(move |reader| reader.receipts(&filter)).await
    }

    async fn agent_log(&self, id: &str) -> Result<Option<AgentLog>, LedgerError> {
        let id = id.to_owned();
        self.run(move |reader| reader.agent_log(&id)).await
    }

    async fn agent_logs(&self, filter: LogFilter) -> Result<Page<AgentLog>, LedgerError> {
        self.run(move |reader| reader.agent_logs(&filter)).await
    }

    async fn events(&self, filter: EventFilter) -> Result<Page<PlacedEvent>, LedgerError> {
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
            let sql = format!("SELECT {HEAD}, no FROM writers ORDER BY writer");
            let mut statement = reader.database.prepare_cached(&sql).map_err(unavailable)?;
            let read = |row: &rusqlite::Row<'_>| {
                let name = writer_name(&row.get(0)?, row.get(8)?).0;
                let text = |at| Ok(row.get::<_, Option<Shown>>(at)?.map(|shown| shown.0));
                head_of(row, name, text)
            };
            let heads = statement.query_map([], read).map_err(unavailable)?;
            heads.collect::<rusqlite::Result<Vec<WriterHead>>>().map_err(unavailable)
        })
        .await
    }

    async fn pruned_ranges(
        &self,
        after: Option<(String, u64)>,
        limit: usize,
    ) -> Result<Vec<(String, PrunedRange)>, LedgerError> {
        self.run(move |reader| pruned_ranges(&reader.database, after, limit)).await
    }

    async fn window(&self, name: WindowName, at_ms: i64) -> Result<WindowTotals, LedgerError> {
        self.run(move |reader| window(&reader.database, &name, at_ms, None).map_err(unavailable))
            .await
    }

    async fn key_ids(&self) -> Result<Option<Vec<String>>, LedgerError> {
        self.run(|reader| {
            let sql = "SELECT key_id FROM digest_keys";
            let mut statement = reader.database.prepare_cached(sql).map_err(unavailable)?;
            let read = |row: &rusqlite::Row<'_>| Ok(row.get::<_, Shown>(0)?.0);
            let ids = statement.query_map([], read).map_err(unavailable)?;
            ids.collect::<rusqlite::Result<_>>().map(Some).map_err(unavailable)
        })
        .await
    }

    async fn unaccounted(&self, known: Accounted) -> Result<Unaccounted, LedgerError> {
        self.run(move |reader| unaccounted(&reader.database, &known)).await
    }

    async fn index_differences(&self) -> Result<Vec<String>, LedgerError> {
        self.run(|reader| search_index::differences(&reader.database, &reader.path)).await
    }

    async fn approval_page(
        &self,
        after: Option<String>,
        limit: usize,
    ) -> Result<Vec<RawApproval>, LedgerError> {
        self.run(move |reader| approvals::page(&reader.database, after, limit)).await
    }

    async fn approvals(&self, filter: ApprovalFilter) -> Result<Vec<RawApproval>, LedgerError> {
        self.run(move |reader| approvals::newest(&reader.database, &filter)).await
    }

    async fn order_page(
        &self,
        after: Option<OrderName>,
        limit: usize,
    ) -> Result<Vec<RawOrder>, LedgerError> {
        self.run(move |reader| {
            let mut most = limit;
            loop {
                let mut found =
                    orders(&reader.database, after.as_ref(), limited(most)).map_err(unavailable)?;
                // A page does not end with a name whose text is invalid, because the next page
                // starts after the name as it is shown.
                let ends_invalid = found.last().is_some_and(|raw| raw.name.contains('\u{fffd}'));
                if ends_invalid && found.len() == most {
                    most = most.saturating_mul(2);
                    continue;
                }
                found.retain(|raw| after.as_ref().is_none_or(|after| raw.order_name() > *after));
                return Ok(found);
            }
        })
        .await
    }

    async fn budget_page(
        &self,
        after: Option<String>,
        limit: usize,
    ) -> Result<Vec<RawBudget>, LedgerError> {
        self.run(move |reader| budget_page(&reader.database, after, limit)).await
    }

    async fn document(&self, digest: &str) -> Result<Option<String>, LedgerError> {
        let digest = digest.to_owned();
        self.run(move |reader| document(&reader.database, &digest)).await
    }

    async fn document_page(
        &self,
        after: Option<String>,
        limit: usize,
    ) -> Result<Vec<RawDocument>, LedgerError> {
        self.run(move |reader| document_page(&reader.database, after, limit)).await
    }

    async fn queued(&self, caller: &str, call_id: &str) -> Result<Option<RawCall>, LedgerError> {
        let name = (caller.to_owned(), call_id.to_owned());
        self.run(move |reader| {
            // At most one row exists. A page with fewer rows than the limit is the last one, so no
            // further page is read.
            let found = calls(&reader.database, "(caller, call_id) = (?1, ?2)", Some(name), 2)?;
            Ok(found.into_iter().next())
        })
        .await
    }

    async fn call_page(
        &self,
        after: Option<CallName>,
        limit: usize,
    ) -> Result<Vec<RawCall>, LedgerError> {
        self.run(move |reader| {
            let which = "(?1 IS NULL OR (caller, call_id) > (?1, ?2))";
            calls(&reader.database, which, after, limit)
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
