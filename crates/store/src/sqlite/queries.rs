//! Runs the queries that all readers share.
//!
//! Doc: records.md#reading

use rusqlite::{Connection, OptionalExtension};
use toolbooth_audit::LedgerError;

use super::compact::{Compact, Shown};
use super::{unavailable, unreadable_at};

pub(super) fn limited(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX)
}

/// Returns the keys that a query selects.
pub(super) fn keys(
    connection: &Connection,
    sql: &str,
    of: Option<Compact<'_>>,
) -> Result<Vec<String>, LedgerError> {
    let mut statement = connection.prepare_cached(sql).map_err(unavailable)?;
    let found = statement
        .query_map(rusqlite::params_from_iter(of), |row| row.get::<_, Shown>(0))
        .map_err(unavailable)?;
    found.map(|key| Ok(key.map_err(unavailable)?.0)).collect()
}

/// Returns the body of a record by its place.
pub(super) fn body(
    connection: &Connection,
    table: &'static str,
    place: i64,
) -> Result<Option<Vec<u8>>, LedgerError> {
    connection
        .prepare_cached(&format!("SELECT body FROM {table} WHERE place = ?1"))
        .and_then(|mut statement| statement.query_row([place], |row| row.get(0)).optional())
        .map_err(unreadable_at(table, place))
}

pub(super) const EVENT: &str = "events";
pub(super) const LOG: &str = "agent_logs";
