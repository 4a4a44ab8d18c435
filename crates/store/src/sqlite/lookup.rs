//! What is searched: tools, agents, calls, codes and times of events, in a file beside the database.
//!
//! It is filled off the path from what the writer hands over after each commit, brought up to the
//! moment from the database whenever somebody reads, and made anew where it is gone, broken or of
//! another database. Whatever it says is compared with the
//! record itself.
//!
//! Doc: records.md#reading

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender};
use std::time::{Duration, Instant};

use rusqlite::{Connection, OptionalExtension, TransactionBehavior};
use serde::Deserialize;
use sha2::{Digest, Sha256};
use toolbooth_audit::LedgerError;
use toolbooth_contracts::event::EventBody;

use super::schema::{SEQ_BITS, place};
use super::{open, shorten, unavailable};

/// The name of the file.
pub(super) const LOOKUP: &str = "lookup.db";
/// The version of its tables; another one is made anew.
const VERSION: i64 = 3;
/// Events that are taken in by one transaction.
const STEP: usize = 5_000;
/// Commits that may wait to be taken in; what was not handed over is read from the database.
const WAITING_MAX: usize = 256;
/// How long what is written gathers before it is taken in.
const GATHER: Duration = Duration::from_millis(200);
/// Entries whose calls are sorted among each other: what is new touches few pages.
const PART_BITS: u32 = 16;

const TABLES: &str = "
CREATE TABLE names (no INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE) STRICT;
CREATE TABLE ends (writer INTEGER PRIMARY KEY, size INTEGER NOT NULL) STRICT;
CREATE TABLE entries (
    no INTEGER PRIMARY KEY,
    place INTEGER NOT NULL,
    time INTEGER NOT NULL,
    tool INTEGER,
    agent INTEGER,
    has_log INTEGER NOT NULL
) STRICT;
CREATE INDEX entries_time ON entries (time);
CREATE INDEX entries_tool ON entries (tool, time) WHERE tool IS NOT NULL;
CREATE TABLE calls (
    part INTEGER NOT NULL,
    call INTEGER NOT NULL,
    no INTEGER NOT NULL,
    PRIMARY KEY (part, call, no)
) STRICT, WITHOUT ROWID;
";

/// The members of an event that are searched.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Said {
    time: String,
    tool_name: Option<String>,
    agent_id: Option<String>,
    call_id: Option<String>,
    log_digest: Option<String>,
}

/// What is searched of one event.
#[derive(Debug)]
pub(super) struct Found {
    place: i64,
    time: i64,
    tool: Option<String>,
    agent: Option<String>,
    call: Option<i64>,
    has_log: bool,
}

impl Found {
    /// Of an event that was written to a place.
    pub(super) fn of(place: i64, body: &EventBody) -> Self {
        Self {
            place,
            time: time_number(&body.time),
            tool: body.tool_name.clone(),
            agent: body.agent_id.clone(),
            call: body.call_id.as_deref().map(call_number),
            has_log: body.log_digest.is_some(),
        }
    }

    fn read(place: i64, said: Said) -> Self {
        Self {
            place,
            time: time_number(&said.time),
            tool: said.tool_name,
            agent: said.agent_id,
            call: said.call_id.as_deref().map(call_number),
            has_log: said.log_digest.is_some(),
        }
    }
}

/// The digits of a time down to milliseconds: numbers in the order of the times.
fn time_number(time: &str) -> i64 {
    const DIGITS: usize = "20260101000000000".len();
    let digits = time.bytes().filter(u8::is_ascii_digit).chain(std::iter::repeat(b'0'));
    digits.take(DIGITS).fold(0, |number, digit| number * 10 + i64::from(digit - b'0'))
}

/// A call's id as a number; two that share one are told apart by their records.
fn call_number(call_id: &str) -> i64 {
    let digest = Sha256::digest(call_id.as_bytes());
    digest.iter().take(8).fold(0i64, |number, byte| (number << 8) | i64::from(*byte))
}

/// The file that is searched, and the database that it is made from.
pub(super) struct Lookup {
    path: PathBuf,
    connection: Connection,
    names: HashMap<String, i64>,
}

/// Which events are searched for.
#[derive(Debug, Default)]
pub(super) struct Search {
    pub(super) tool: Option<String>,
    pub(super) agent: Option<String>,
    pub(super) call: Option<String>,
    pub(super) since: Option<String>,
    pub(super) until: Option<String>,
    /// After this entry, oldest first; else newest first.
    pub(super) after: Option<i64>,
    /// Only those with an agent log.
    pub(super) has_log: bool,
}

impl Lookup {
    /// Opens the file beside the database; where it cannot be written, it is made in memory.
    pub(super) fn open(database: &Path) -> rusqlite::Result<Self> {
        let path = database.with_file_name(LOOKUP);
        let connection = match Self::connect(&path) {
            Ok(connection) => connection,
            Err(error) if is_broken(&error) => Self::connect_anew(&path)?,
            Err(_) => {
                let connection = Connection::open_in_memory()?;
                Self::make(&connection)?;
                connection
            }
        };
        Ok(Self { path, connection, names: HashMap::new() })
    }

    fn connect(path: &Path) -> rusqlite::Result<Connection> {
        open::touch(path).map_err(|_| rusqlite::Error::InvalidPath(path.to_owned()))?;
        let mut connection = Connection::open(path)?;
        connection.busy_timeout(open::BUSY)?;
        open::keep_a_log(&connection)?;
        // What is lost with the power is read again.
        connection.pragma_update(None, "synchronous", "NORMAL")?;
        connection.set_prepared_statement_cache_capacity(32);
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let version: i64 = transaction.query_row("PRAGMA user_version", [], |row| row.get(0))?;
        match version {
            0 => Self::make(&transaction)?,
            VERSION => (),
            _ => Self::clear(&transaction)?,
        }
        transaction.commit()?;
        Ok(connection)
    }

    fn make(connection: &Connection) -> rusqlite::Result<()> {
        connection.execute_batch(TABLES)?;
        connection.execute_batch(&format!("PRAGMA user_version = {VERSION}"))
    }

    fn clear(connection: &Connection) -> rusqlite::Result<()> {
        connection.execute_batch(
            "DROP TABLE IF EXISTS names; DROP TABLE IF EXISTS ends; DROP TABLE IF EXISTS entries;
             DROP TABLE IF EXISTS calls;",
        )?;
        Self::make(connection)
    }

    fn connect_anew(path: &Path) -> rusqlite::Result<Connection> {
        for suffix in ["", "-wal", "-shm"] {
            let mut name = path.as_os_str().to_owned();
            name.push(suffix);
            let _ = std::fs::remove_file(name);
        }
        Self::connect(path)
    }

    /// Takes in everything that the database has by now.
    pub(super) fn catch_up(&mut self, database: &Connection) -> Result<(), LedgerError> {
        match self.try_catch_up(database) {
            Err(CatchUp::Lookup(error)) if is_broken(&error) => {
                tracing::warn!(%error, "the file that is searched is broken and is made anew");
                self.connection = Self::connect_anew(&self.path).map_err(unavailable)?;
                self.names.clear();
                self.try_catch_up(database).map_err(LedgerError::from)
            }
            done => done.map_err(LedgerError::from),
        }
    }

    fn try_catch_up(&mut self, database: &Connection) -> Result<(), CatchUp> {
        let sizes: Vec<(i64, i64)> = database
            .prepare_cached("SELECT no, size FROM writers ORDER BY no")
            .and_then(|mut statement| {
                let read = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?));
                statement.query_map([], read)?.collect()
            })
            .map_err(CatchUp::Database)?;
        let ends = self.ends()?;
        if sizes.iter().all(|(no, size)| ends.get(no) == Some(size)) && ends.len() == sizes.len() {
            return Ok(());
        }
        let is_other = |no: &i64, end: &i64| {
            sizes.iter().find(|(own, _)| own == no).is_none_or(|(_, size)| size < end)
        };
        if ends.iter().any(|(no, end)| is_other(no, end)) {
            // It is of another database, or of a later state of this one.
            let transaction =
                self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            Self::clear(&transaction)?;
            transaction.commit()?;
            self.names.clear();
        }
        for (no, size) in sizes {
            while self.take_in(database, no, size)? {}
        }
        Ok(())
    }

    fn ends(&self) -> rusqlite::Result<HashMap<i64, i64>> {
        let mut statement = self.connection.prepare_cached("SELECT writer, size FROM ends")?;
        statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?.collect()
    }

    /// Takes in the next events of a writer; whether there are more.
    fn take_in(&mut self, database: &Connection, writer: i64, size: i64) -> Result<bool, CatchUp> {
        let Self { connection, names, .. } = self;
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        // Another process may have taken them in meanwhile.
        let end: Option<i64> = transaction
            .prepare_cached("SELECT size FROM ends WHERE writer = ?1")?
            .query_row([writer], |row| row.get(0))
            .optional()?;
        let from = end.unwrap_or_default();
        let until = size.min(from.saturating_add(STEP as i64));
        if end.is_some() && from >= size {
            return Ok(false);
        }
        let rows: Vec<(i64, Vec<u8>)> = database
            .prepare_cached("SELECT place, body FROM events WHERE place >= ?1 AND place < ?2")
            .and_then(|mut statement| {
                let ends = (place(writer, from), place(writer, until));
                statement.query_map(ends, |row| Ok((row.get(0)?, row.get(1)?)))?.collect()
            })
            .map_err(CatchUp::Database)?;
        // What cannot be read is found by verification.
        let found = rows
            .into_iter()
            .filter_map(|(at, body)| Some(Found::read(at, shorten::read("an event", &body).ok()?)));
        put(&transaction, names, found)?;
        set_end(&transaction, writer, until)?;
        transaction.commit()?;
        Ok(until < size)
    }

    /// Takes in what a writer has handed over, in its order; whether that goes on from what is there.
    fn take(&mut self, handed: Vec<Found>) -> rusqlite::Result<bool> {
        let (Some(first), Some(last)) = (handed.first(), handed.last()) else { return Ok(true) };
        let ((writer, from), (_, end)) = (split(first.place), split(last.place));
        let Self { connection, names, .. } = self;
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let until: Option<i64> = transaction
            .prepare_cached("SELECT size FROM ends WHERE writer = ?1")?
            .query_row([writer], |row| row.get(0))
            .optional()?;
        let is_whole = usize::try_from(end - from + 1) == Ok(handed.len());
        if until.unwrap_or_default() != from || !is_whole {
            return Ok(false);
        }
        put(&transaction, names, handed.into_iter())?;
        set_end(&transaction, writer, end + 1)?;
        transaction.commit()?;
        Ok(true)
    }

    fn number(&self, name: &str) -> rusqlite::Result<Option<i64>> {
        self.connection
            .prepare_cached("SELECT no FROM names WHERE name = ?1")?
            .query_row([name], |row| row.get(0))
            .optional()
    }

    /// Goes through what may fit, entry and place, until `take` has enough.
    pub(super) fn search(
        &self,
        search: &Search,
        mut take: impl FnMut(i64, i64) -> Result<bool, LedgerError>,
    ) -> Result<(), LedgerError> {
        let mut sql = vec!["no > ?1"];
        let mut values: Vec<Box<dyn rusqlite::ToSql>> =
            vec![Box::new(search.after.unwrap_or_default())];
        let mut clauses = Vec::new();
        for (column, name) in [("tool", &search.tool), ("agent", &search.agent)] {
            let Some(name) = name else { continue };
            let Some(number) = self.number(name).map_err(unavailable)? else { return Ok(()) };
            values.push(Box::new(number));
            clauses.push(format!("{column} = ?{}", values.len()));
        }
        for (condition, time) in [("time >=", &search.since), ("time <=", &search.until)] {
            let Some(time) = time else { continue };
            values.push(Box::new(time_number(time)));
            clauses.push(format!("{condition} ?{}", values.len()));
        }
        if search.has_log {
            sql.push("has_log = 1");
        }
        sql.extend(clauses.iter().map(String::as_str));
        let conditions = sql.join(" AND ");
        let ascending = search.after.is_some();
        if let Some(call) = &search.call {
            let mut found = self.entries_of(call).map_err(unavailable)?;
            if !ascending {
                found.reverse();
            }
            values.push(Box::new(0));
            let sql = format!(
                "SELECT no, place FROM entries WHERE {conditions} AND no = ?{}",
                values.len()
            );
            for no in found {
                values.pop();
                values.push(Box::new(no));
                if !self.each(&sql, &values, &mut take)? {
                    return Ok(());
                }
            }
            return Ok(());
        }
        // Logs are taken in one after the other: which entry is newer, only its time tells.
        let order = if ascending { "no" } else { "time DESC, no DESC" };
        let sql = format!("SELECT no, place FROM entries WHERE {conditions} ORDER BY {order}");
        self.each(&sql, &values, &mut take).map(drop)
    }

    fn each(
        &self,
        sql: &str,
        values: &[Box<dyn rusqlite::ToSql>],
        take: &mut impl FnMut(i64, i64) -> Result<bool, LedgerError>,
    ) -> Result<bool, LedgerError> {
        let values: Vec<&dyn rusqlite::ToSql> = values.iter().map(AsRef::as_ref).collect();
        let mut statement = self.connection.prepare_cached(sql).map_err(unavailable)?;
        let mut rows = statement.query(values.as_slice()).map_err(unavailable)?;
        while let Some(row) = rows.next().map_err(unavailable)? {
            let (no, place) = (row.get(0).map_err(unavailable)?, row.get(1).map_err(unavailable)?);
            if !take(no, place)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The entries of a call, oldest first.
    fn entries_of(&self, call_id: &str) -> rusqlite::Result<Vec<i64>> {
        let last: Option<i64> =
            self.connection.query_row("SELECT max(no) FROM entries", [], |row| row.get(0))?;
        let mut found = Vec::new();
        let mut statement = self
            .connection
            .prepare_cached("SELECT no FROM calls WHERE part = ?1 AND call = ?2 ORDER BY no")?;
        for part in 0..=(last.unwrap_or_default() >> PART_BITS) {
            let rows = statement.query_map((part, call_number(call_id)), |row| row.get(0))?;
            for no in rows {
                found.push(no?);
            }
        }
        Ok(found)
    }
}

fn put(
    transaction: &Connection,
    names: &mut HashMap<String, i64>,
    found: impl Iterator<Item = Found>,
) -> rusqlite::Result<()> {
    let mut put = transaction.prepare_cached(
        "INSERT INTO entries (place, time, tool, agent, has_log) VALUES (?1, ?2, ?3, ?4, ?5)",
    )?;
    let mut put_call =
        transaction.prepare_cached("INSERT INTO calls (part, call, no) VALUES (?1, ?2, ?3)")?;
    for Found { place, time, tool, agent, call, has_log } in found {
        let tool = name(transaction, names, tool)?;
        let agent = name(transaction, names, agent)?;
        let no = put.insert((place, time, tool, agent, has_log))?;
        if let Some(call) = call {
            put_call.execute((no >> PART_BITS, call, no))?;
        }
    }
    Ok(())
}

/// Up to where the log of a writer was taken in.
fn set_end(transaction: &Connection, writer: i64, size: i64) -> rusqlite::Result<()> {
    transaction
        .prepare_cached(
            "INSERT INTO ends (writer, size) VALUES (?1, ?2)
             ON CONFLICT (writer) DO UPDATE SET size = excluded.size",
        )?
        .execute((writer, size))
        .map(drop)
}

fn name(
    transaction: &Connection,
    names: &mut HashMap<String, i64>,
    name: Option<String>,
) -> rusqlite::Result<Option<i64>> {
    /// Names that are remembered; further ones are looked up.
    const NAMES_MAX: usize = 10_000;
    let Some(name) = name else { return Ok(None) };
    if let Some(no) = names.get(&name) {
        return Ok(Some(*no));
    }
    let no: i64 = transaction
        .prepare_cached(
            "INSERT INTO names (name) VALUES (?1) ON CONFLICT (name) DO UPDATE SET name = name
             RETURNING no",
        )?
        .query_row([&name], |row| row.get(0))?;
    if names.len() >= NAMES_MAX {
        names.clear();
    }
    names.insert(name, no);
    Ok(Some(no))
}

/// Why what is searched was not brought up to date.
enum CatchUp {
    Lookup(rusqlite::Error),
    Database(rusqlite::Error),
}

impl From<rusqlite::Error> for CatchUp {
    fn from(error: rusqlite::Error) -> Self {
        Self::Lookup(error)
    }
}

impl From<CatchUp> for LedgerError {
    fn from(error: CatchUp) -> Self {
        match error {
            CatchUp::Lookup(error) | CatchUp::Database(error) => unavailable(error),
        }
    }
}

/// Whether the file itself is at fault.
fn is_broken(error: &rusqlite::Error) -> bool {
    matches!(
        error.sqlite_error_code(),
        Some(rusqlite::ErrorCode::DatabaseCorrupt | rusqlite::ErrorCode::NotADatabase)
    ) || matches!(error, rusqlite::Error::SqliteFailure(failure, _)
        if failure.code == rusqlite::ErrorCode::Unknown)
}

/// Hands over what was written, and who takes it.
pub(super) fn hand_over() -> (SyncSender<Vec<Found>>, Receiver<Vec<Found>>) {
    std::sync::mpsc::sync_channel(WAITING_MAX)
}

/// Keeps the file up to date while somebody writes. What is not taken in when they end is taken in
/// by whoever reads next.
pub(super) fn serve(database: &Path, written: &Receiver<Vec<Found>>) {
    let mut opened = None;
    while let Ok(mut handed) = written.recv() {
        let since = Instant::now();
        while handed.len() < STEP
            && let Some(left) = GATHER.checked_sub(since.elapsed())
        {
            match written.recv_timeout(left) {
                Ok(more) => handed.extend(more),
                Err(RecvTimeoutError::Timeout) => (),
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
        let taken = match &mut opened {
            Some((connection, lookup)) => match Lookup::take(lookup, handed) {
                Ok(true) => Ok(()),
                // Others write too, or something was not handed over.
                Ok(false) | Err(_) => lookup.catch_up(connection),
            },
            None => open_both(database).and_then(|(connection, mut lookup)| {
                let taken = lookup.catch_up(&connection);
                opened = Some((connection, lookup));
                taken
            }),
        };
        if let Err(error) = taken {
            tracing::debug!(%error, "what is searched is not up to date");
        }
    }
}

fn open_both(database: &Path) -> Result<(Connection, Lookup), LedgerError> {
    let connection = super::reads::connect(database).map_err(unavailable)?;
    Ok((connection, Lookup::open(database).map_err(unavailable)?))
}

/// The writer's number and the place in its log.
pub(super) fn split(place: i64) -> (i64, i64) {
    (place >> SEQ_BITS, place & ((1 << SEQ_BITS) - 1))
}
