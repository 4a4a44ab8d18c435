//! Implements the search index: tools, agents, callers, codes, states, ids and times of events, in
//! a separate file.
//!
//! A thread fills the index with the events that the writer sends after each commit. Each search
//! first adds the events that the index lacks. The file is rebuilt if it is missing, broken or
//! belongs to another database. Each candidate is compared with the record itself.
//!
//! New entries are rows; older ones are packed into blocks. Blocks are small enough to scan, so
//! that no filter needs an SQL index of its own.
//!
//! Doc: records.md#reading

mod blocks;
mod compare;
mod entry;
mod handover;
mod seal;
mod search;
mod write;

pub(super) use compare::differences;
pub(super) use entry::Found;
pub(super) use handover::{FoundReceiver, FoundSender, found_channel};
pub(super) use search::Search;

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rusqlite::{Connection, OptionalExtension, TransactionBehavior};
use toolbooth_audit::LedgerError;

use blocks::BLOCK;
use seal::Sealer;
use write::{put, set_end};

use super::connection::{BUSY, connect_to_read, keep_a_log, touch};
use super::schema::{SEQ_BITS, place};
use super::unavailable;
use crate::packing;

/// The file name of the search index.
pub(super) const LOOKUP: &str = "lookup.db";
/// The version of the tables; a file of another version is rebuilt.
const VERSION: i64 = 5;
/// Events that one transaction adds.
const STEP: usize = 5_000;
/// The time that an index in memory is used before the file is tried again.
const IN_MEMORY: Duration = Duration::from_secs(60);
/// Passes over the writers: a file that was changed is cleared in one, and filled again in the next.
const PASSES_MAX: usize = 2;
const TABLES: &str = "
CREATE TABLE names (no INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE) STRICT;
CREATE TABLE ends (writer INTEGER PRIMARY KEY, size INTEGER NOT NULL) STRICT;
CREATE TABLE tail (
    no INTEGER PRIMARY KEY,
    place INTEGER NOT NULL,
    time INTEGER NOT NULL,
    tool INTEGER NOT NULL,
    agent INTEGER NOT NULL,
    caller INTEGER NOT NULL,
    code INTEGER NOT NULL,
    status INTEGER NOT NULL,
    has_log INTEGER NOT NULL,
    call ANY,
    receipt ANY
) STRICT;
CREATE TABLE blocks (
    no INTEGER PRIMARY KEY,
    oldest INTEGER NOT NULL,
    newest INTEGER NOT NULL,
    low BLOB,
    high BLOB,
    has_texts INTEGER NOT NULL,
    last_receipt TEXT,
    names BLOB NOT NULL,
    entries BLOB NOT NULL,
    digest BLOB NOT NULL
) STRICT;
CREATE TABLE ids (no INTEGER PRIMARY KEY, ids BLOB NOT NULL) STRICT;
CREATE TABLE seal (one INTEGER PRIMARY KEY, mac TEXT NOT NULL) STRICT;
";

/// An open search index.
pub(super) struct Lookup {
    path: PathBuf,
    connection: Connection,
    names: Names,
    sealer: Sealer,
    /// When it was begun in memory, because the file cannot be opened or written.
    in_memory_since: Option<Instant>,
}

/// Cached numbers of names; valid for one build of the file, which `made` identifies.
#[derive(Default)]
struct Names {
    made: i64,
    numbers: HashMap<Cow<'static, str>, u32>,
}

impl Lookup {
    /// Opens the file next to the database. If that fails, the index is built in memory.
    pub(super) fn open(database: &Path) -> rusqlite::Result<Self> {
        let path = database.with_file_name(LOOKUP);
        let connected = match Self::connect(&path) {
            Err(error) if is_broken(&error) => Self::connect_anew(&path),
            connected => connected,
        };
        let (connection, in_memory_since) = match connected {
            Ok(connection) => (connection, None),
            Err(_) => (Self::connect_in_memory()?, Some(Instant::now())),
        };
        let sealer = Sealer::of(database);
        Ok(Self { path, connection, names: Names::default(), sealer, in_memory_since })
    }

    fn connect_in_memory() -> rusqlite::Result<Connection> {
        let connection = Connection::open_in_memory()?;
        Self::make(&connection)?;
        Ok(connection)
    }

    /// Whether the file should be opened again, because the index was built in memory some time ago.
    pub(super) fn is_outdated(&self) -> bool {
        self.in_memory_since.is_some_and(|since| since.elapsed() >= IN_MEMORY)
    }

    fn connect(path: &Path) -> rusqlite::Result<Connection> {
        touch(path).map_err(|_| rusqlite::Error::InvalidPath(path.to_owned()))?;
        let mut connection = Connection::open(path)?;
        connection.busy_timeout(BUSY)?;
        keep_a_log(&connection)?;
        // Entries lost in a power loss are read from the database again.
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
        // A random number that identifies this build of the file.
        let sql = "SELECT abs(random() % 2147483647)";
        let made: i64 = connection.query_row(sql, [], |row| row.get(0))?;
        connection.execute_batch(&format!(
            "PRAGMA application_id = {made}; PRAGMA user_version = {VERSION}"
        ))
    }

    fn clear(connection: &Connection) -> rusqlite::Result<()> {
        // Includes tables that only earlier versions had.
        connection.execute_batch(
            "DROP TABLE IF EXISTS names; DROP TABLE IF EXISTS ends; DROP TABLE IF EXISTS tail;
             DROP TABLE IF EXISTS blocks; DROP TABLE IF EXISTS ids; DROP TABLE IF EXISTS seal;
             DROP TABLE IF EXISTS entries; DROP TABLE IF EXISTS calls;",
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

    /// Adds the events that the database has and the index lacks.
    pub(super) fn catch_up(&mut self, database: &Connection) -> Result<(), LedgerError> {
        self.catch_up_file(database).map_err(LedgerError::from)
    }

    /// As [`Lookup::catch_up`], for a search: if the file cannot be written, because the disk is full for example,
    /// the index is built in memory.
    pub(super) fn catch_up_to_search(&mut self, database: &Connection) -> Result<(), LedgerError> {
        match self.catch_up_file(database) {
            Err(CatchUp::Lookup(error)) if self.in_memory_since.is_none() && !is_busy(&error) => {
                tracing::warn!(%error, "the file that is searched cannot be written; the search reads all events");
                self.connection = Self::connect_in_memory().map_err(unavailable)?;
                self.in_memory_since = Some(Instant::now());
                self.forget();
                let caught_up = self.try_catch_up(database).map_err(LedgerError::from);
                // The time counts from the end, which may be much later.
                self.in_memory_since = Some(Instant::now());
                caught_up
            }
            done => done.map_err(LedgerError::from),
        }
    }

    fn catch_up_file(&mut self, database: &Connection) -> Result<(), CatchUp> {
        match self.try_catch_up(database) {
            Err(CatchUp::Lookup(error)) if is_broken(&error) => {
                tracing::warn!(%error, "the search index is damaged and is rebuilt");
                self.connection = Self::connect_anew(&self.path)?;
                self.forget();
                self.try_catch_up(database)
            }
            done => done,
        }
    }

    /// Compares the file with its seal, and clears it if it was changed.
    fn examine(&mut self) -> rusqlite::Result<()> {
        if !self.sealer.is_due() {
            return Ok(());
        }
        let fits = {
            let transaction = self.connection.unchecked_transaction()?;
            self.sealer.compare(&transaction)?
        };
        if fits {
            return Ok(());
        }
        let transaction =
            self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        // Another process may have cleared it meanwhile.
        if !self.sealer.compare(&transaction)? {
            clear_changed(&transaction)?;
        }
        transaction.commit()
    }

    fn try_catch_up(&mut self, database: &Connection) -> Result<(), CatchUp> {
        self.examine()?;
        // They are read before the sizes: what another process indexes meanwhile is in the database too.
        let mut ends = self.ends()?;
        let sizes: BTreeMap<i64, i64> = database
            .prepare_cached("SELECT no, size FROM writers")
            .and_then(|mut statement| {
                let read = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?));
                statement.query_map([], read)?.collect()
            })
            .map_err(CatchUp::Database)?;
        let is_other = |no: &i64, end: &i64| sizes.get(no).is_none_or(|size| size < end);
        if ends.iter().any(|(no, end)| is_other(no, end)) {
            // The index belongs to another database, or to a later state of this one.
            let transaction =
                self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            Self::clear(&transaction)?;
            transaction.commit()?;
            ends.clear();
        }
        for _ in 0..PASSES_MAX {
            let is_whole = |(no, size): &(&i64, &i64)| ends.get(no).is_some_and(|end| end >= *size);
            let lacking: Vec<(&i64, &i64)> = sizes.iter().filter(|own| !is_whole(own)).collect();
            if lacking.is_empty() {
                return Ok(());
            }
            for (no, size) in lacking {
                while self.take_in(database, *no, *size)? {}
            }
            ends = self.ends()?;
        }
        match sizes.iter().all(|(no, size)| ends.get(no).is_some_and(|end| end >= size)) {
            true => Ok(()),
            false => Err(CatchUp::Changed),
        }
    }

    /// Discards the state that a rolled-back transaction has read.
    fn forget(&mut self) {
        self.sealer.forget();
        self.names = Names::default();
    }

    fn ends(&self) -> rusqlite::Result<HashMap<i64, i64>> {
        let mut statement = self.connection.prepare_cached("SELECT writer, size FROM ends")?;
        statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?.collect()
    }

    /// Adds the next events of a writer. Returns whether more events exist.
    fn take_in(&mut self, database: &Connection, writer: i64, size: i64) -> Result<bool, CatchUp> {
        let taken = self.try_take_in(database, writer, size);
        if taken.is_err() {
            self.forget();
        }
        taken
    }

    fn try_take_in(
        &mut self,
        database: &Connection,
        writer: i64,
        size: i64,
    ) -> Result<bool, CatchUp> {
        let Self { connection, names, sealer, .. } = self;
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        if !sealer.fits(&transaction, Some(writer))? {
            clear_changed(&transaction)?;
        }
        // Another process may have added them meanwhile.
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
        // Unreadable events are skipped; `audit verify` reports them.
        let found = rows
            .into_iter()
            .filter_map(|(at, body)| Some(Found::read(at, packing::read(&body).ok()?)));
        put(&transaction, names, found)?;
        set_end(&transaction, writer, until)?;
        sealer.seal(&transaction, writer)?;
        transaction.commit()?;
        Ok(until < size)
    }

    /// Adds the events that the writer sent. Returns `false` and adds none if they do not continue
    /// the indexed log.
    fn take(&mut self, handed: Vec<Found>) -> rusqlite::Result<bool> {
        let taken = self.try_take(handed);
        if taken.is_err() {
            self.forget();
        }
        taken
    }

    fn try_take(&mut self, handed: Vec<Found>) -> rusqlite::Result<bool> {
        let (Some(first), Some(last)) = (handed.first(), handed.last()) else { return Ok(true) };
        let ((writer, from), (_, end)) = (split(first.place), split(last.place));
        let Self { connection, names, sealer, .. } = self;
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        if !sealer.fits(&transaction, Some(writer))? {
            return Ok(false);
        }
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
        sealer.seal(&transaction, writer)?;
        transaction.commit()?;
        Ok(true)
    }
}

/// Clears a file that does not fit its seal.
fn clear_changed(transaction: &Connection) -> rusqlite::Result<()> {
    tracing::warn!("the search index was changed by another program; it is rebuilt");
    Lookup::clear(transaction)
}

/// An error of updating the index, by the file that failed.
enum CatchUp {
    Lookup(rusqlite::Error),
    Database(rusqlite::Error),
    /// The file was changed by another program again and again.
    Changed,
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
            CatchUp::Changed => search::damaged(),
        }
    }
}

/// Whether the index file itself is broken.
fn is_broken(error: &rusqlite::Error) -> bool {
    matches!(
        error.sqlite_error_code(),
        Some(rusqlite::ErrorCode::DatabaseCorrupt | rusqlite::ErrorCode::NotADatabase)
    ) || matches!(error, rusqlite::Error::SqliteFailure(failure, _)
        if failure.code == rusqlite::ErrorCode::Unknown)
}

/// Whether another process holds the file for longer than one waits for it.
fn is_busy(error: &rusqlite::Error) -> bool {
    matches!(
        error.sqlite_error_code(),
        Some(rusqlite::ErrorCode::DatabaseBusy | rusqlite::ErrorCode::DatabaseLocked)
    )
}

/// Adds events to the index until the writer ends. The next search adds the events that are left.
pub(super) fn serve(database: &Path, written: &FoundReceiver) {
    let mut opened = None;
    while let Some(handed) = written.receive() {
        let taken = match &mut opened {
            Some((connection, lookup)) => match Lookup::take(lookup, handed) {
                Ok(true) => Ok(()),
                // Another process writes too, or some events did not fit into the channel.
                Ok(false) | Err(_) => lookup.catch_up(connection),
            },
            None => open_both(database).and_then(|(connection, mut lookup)| {
                let taken = lookup.catch_up(&connection);
                opened = Some((connection, lookup));
                taken
            }),
        };
        if let Err(error) = taken {
            tracing::debug!(%error, "the search index is not up to date");
        }
    }
}

fn open_both(database: &Path) -> Result<(Connection, Lookup), LedgerError> {
    let connection = connect_to_read(database).map_err(unavailable)?;
    Ok((connection, Lookup::open(database).map_err(unavailable)?))
}

/// Splits a place into the writer's number and the sequence number in its log.
pub(super) fn split(place: i64) -> (i64, i64) {
    (place >> SEQ_BITS, place & ((1 << SEQ_BITS) - 1))
}

#[cfg(test)]
mod tests;
