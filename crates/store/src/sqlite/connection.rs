//! Opens connections to the database.
//!
//! Doc: records.md#stores

use std::fs::File;
use std::path::Path;
use std::time::{Duration, Instant};

use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode, OpenFlags};

/// The time that a statement waits for another process that writes.
pub(super) const BUSY: Duration = Duration::from_secs(5);
/// The page cache of a writer, in KiB: SQLite reads a negative size as KiB instead of pages.
const CACHE_KIB: i64 = -4_096;
/// Pause before a retry where SQLite's busy timeout does not apply.
const BUSY_STEP: Duration = Duration::from_millis(5);

/// The point in time at which a request is answered.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Durability {
    /// After fsync: its records survive a power loss.
    #[default]
    Full,
    /// After the write, if the request allows it: its records survive a crash of the process. A
    /// power loss may lose the records since the last fsync.
    Process,
}

/// Keeps the plan of a statement whatever values are bound. Otherwise SQLite prepares statements again at
/// each execution, since it is built to plan by the values (`SQLITE_ENABLE_STAT4`).
fn plan_once(connection: &Connection) -> rusqlite::Result<()> {
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true).map(drop)
}

/// Opens a connection for the writer.
pub(super) fn connect(path: &Path, durability: Durability) -> rusqlite::Result<Connection> {
    let connection = Connection::open(path)?;
    connection.busy_timeout(BUSY)?;
    plan_once(&connection)?;
    keep_a_log(&connection)?;
    let synchronous = match durability {
        Durability::Full => "FULL",
        Durability::Process => "NORMAL",
    };
    connection.pragma_update(None, "synchronous", synchronous)?;
    connection.pragma_update(None, "cache_size", CACHE_KIB)?;
    connection.set_prepared_statement_cache_capacity(64);
    Ok(connection)
}

/// Enables WAL mode. Retries, since SQLite's busy timeout does not cover a concurrent switch.
pub(super) fn keep_a_log(connection: &Connection) -> rusqlite::Result<()> {
    let since = Instant::now();
    loop {
        let turned = connection
            .pragma_update_and_check(None, "journal_mode", "WAL", |row| row.get::<_, String>(0));
        match turned {
            Err(error) if is_busy(&error) && since.elapsed() < BUSY => {
                std::thread::sleep(BUSY_STEP);
            }
            turned => return turned.map(drop),
        }
    }
}

fn is_busy(error: &rusqlite::Error) -> bool {
    error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy)
}

/// Opens a connection that only reads.
pub(super) fn connect_to_read(path: &Path) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    // Reading a database in WAL mode writes to its shared memory; nothing else is written.
    let connection = Connection::open_with_flags(path, flags)?;
    connection.busy_timeout(BUSY)?;
    plan_once(&connection)?;
    connection.pragma_update(None, "query_only", true)?;
    connection.set_prepared_statement_cache_capacity(32);
    Ok(connection)
}

/// Creates a file with mode 0600 if it does not exist.
pub(super) fn touch(path: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::OpenOptionsExt;
    File::options().create(true).append(true).mode(0o600).open(path).map(drop)
}
