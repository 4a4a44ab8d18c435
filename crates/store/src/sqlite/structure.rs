//! Compares the tables, indexes and triggers of a database with those of its version, and checks all pages.
//!
//! Doc: records.md#verification

use std::collections::BTreeMap;

use rusqlite::Connection;
use toolbooth_audit::LedgerError;

use super::error::MigrateError;
use super::{schema, unavailable};

/// Maximum number of defects that the page check reports.
const DAMAGES_MAX: usize = 10;

/// The definitions of a database, by kind and name.
type Definitions = BTreeMap<(String, String), String>;

/// Returns the differences from a new database of the same version: definitions, indexes that do not match their
/// tables, and damaged pages.
///
/// # Errors
/// [`LedgerError::Unavailable`], only if this build's own definitions cannot be made.
pub(super) fn differences(database: &Connection) -> Result<Vec<String>, LedgerError> {
    let read = schema::version(database)
        .and_then(|version| Ok((version, definitions(database)?, pages(database)?)));
    let (version, found, pages) = match read {
        Ok(read) => read,
        // The error names the row or page that cannot be read.
        Err(error) => return Ok(vec![error.to_string()]),
    };
    let expected = expected(version)?;
    let mut differences: Vec<String> = found
        .iter()
        .filter(|(name, text)| expected.get(*name) != Some(*text))
        .map(|((kind, name), _)| format!("the {kind} `{name}` is not one of version {version}"))
        .collect();
    let missing = expected.keys().filter(|name| !found.contains_key(*name));
    differences.extend(missing.map(|(kind, name)| format!("the {kind} `{name}` is missing")));
    differences.extend(pages.into_iter().filter(|what| what != "ok"));
    Ok(differences)
}

fn expected(version: i64) -> Result<Definitions, LedgerError> {
    let mut fresh = Connection::open_in_memory().map_err(unavailable)?;
    schema::migrate(&mut fresh, version).map_err(|error| match error {
        MigrateError::Database(error) => unavailable(error),
        MigrateError::Record(error) => LedgerError::Defect(error.to_string()),
    })?;
    definitions(&fresh).map_err(unavailable)
}

fn definitions(database: &Connection) -> rusqlite::Result<Definitions> {
    // SQLite makes these itself: counters, statistics, and indexes without a text.
    let sql = "SELECT type, name, sql FROM sqlite_schema
               WHERE NOT (type = 'table' AND name IN ('sqlite_sequence', 'sqlite_stat1', 'sqlite_stat4'))
                   AND NOT (type = 'index' AND sql IS NULL)";
    let mut statement = database.prepare(sql)?;
    let rows = statement.query_map([], |row| {
        let text: Option<String> = row.get(2)?;
        let words: Vec<String> =
            text.unwrap_or_default().split_whitespace().map(str::to_owned).collect();
        Ok(((row.get(0)?, row.get(1)?), words.join(" ")))
    })?;
    rows.collect()
}

fn pages(database: &Connection) -> rusqlite::Result<Vec<String>> {
    let mut statement = database.prepare(&format!("PRAGMA integrity_check({DAMAGES_MAX})"))?;
    let rows = statement.query_map([], |row| row.get(0))?;
    rows.collect()
}
