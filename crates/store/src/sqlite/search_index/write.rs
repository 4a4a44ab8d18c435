//! Writes the entries and blocks of the search index.
//!
//! Doc: records.md#reading

use std::borrow::Cow;
use std::collections::HashMap;

use rusqlite::Connection;

use super::blocks::{BLOCK, Block, COLUMNS, IndexEntry};
use super::{Found, Names, seal};

pub(super) fn put(
    transaction: &Connection,
    names: &mut Names,
    found: impl Iterator<Item = Found>,
) -> rusqlite::Result<()> {
    // A rebuilt file has other numbers for names.
    let made = transaction.query_row("PRAGMA application_id", [], |row| row.get(0))?;
    if names.made != made {
        *names = Names { made, numbers: HashMap::new() };
    }
    let numbers = next(transaction)?..;
    let mut put = transaction.prepare_cached(
        "INSERT INTO tail
             (no, place, time, tool, agent, caller, code, status, has_log, call, receipt)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)",
    )?;
    for (no, found) in numbers.zip(found) {
        let mut names_of = [0u32; COLUMNS];
        for (number, own) in names_of.iter_mut().zip(found.names) {
            *number = name(transaction, names, own)?;
        }
        let [tool, agent, caller, code, status] = names_of;
        let Found { place, time, has_log, call, receipt, .. } = found;
        put.execute((no, place, time, tool, agent, caller, code, status, has_log, call, receipt))?;
    }
    while gather(transaction)? {}
    Ok(())
}

/// Returns the number of the next entry.
fn next(connection: &Connection) -> rusqlite::Result<i64> {
    let last: Option<i64> =
        connection.query_row("SELECT max(no) FROM tail", [], |row| row.get(0))?;
    if let Some(last) = last {
        return Ok(last + 1);
    }
    let block: Option<i64> =
        connection.query_row("SELECT max(no) FROM blocks", [], |row| row.get(0))?;
    Ok(block.map_or(1, |first| first + BLOCK as i64))
}

/// Packs the oldest entries into a block if there are enough. Returns whether a block was packed.
fn gather(transaction: &Connection) -> rusqlite::Result<bool> {
    let sql = "SELECT coalesce(max(no) - min(no) + 1, 0) FROM tail";
    let waiting: i64 = transaction.query_row(sql, [], |row| row.get(0))?;
    let entries = if waiting < BLOCK as i64 { None } else { tail(transaction, BLOCK)? };
    let Some((first, entries)) = entries else { return Ok(false) };
    let (block, ids) = Block::of(&entries);
    let io = |error: std::io::Error| rusqlite::Error::ToSqlConversionFailure(error.into());
    let names: Vec<u8> = block.all_names().into_iter().flat_map(u32::to_le_bytes).collect();
    transaction
        .prepare_cached(
            "INSERT INTO blocks
                 (no, oldest, newest, low, high, has_texts, last_receipt, names, entries, digest)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, x'')",
        )?
        .execute((
            first,
            block.times.iter().min(),
            block.times.iter().max(),
            ids.uuids.iter().min(),
            ids.uuids.iter().max(),
            !ids.texts.is_empty(),
            block.last_receipt(&ids),
            names,
            block.pack().map_err(io)?,
        ))?;
    transaction
        .prepare_cached("INSERT INTO ids (no, ids) VALUES (?1, ?2)")?
        .execute((first, ids.pack().map_err(io)?))?;
    let digest = seal::digest_of_block(transaction, first)?;
    transaction
        .prepare_cached("UPDATE blocks SET digest = ?2 WHERE no = ?1")?
        .execute((first, digest))?;
    transaction
        .prepare_cached("DELETE FROM tail WHERE no < ?1")?
        .execute([first + BLOCK as i64])?;
    Ok(true)
}

/// Returns the entries that are in no block yet, at most `limit`, and the number of the first.
pub(super) fn tail(
    connection: &Connection,
    limit: usize,
) -> rusqlite::Result<Option<(i64, Vec<IndexEntry>)>> {
    let mut statement = connection.prepare_cached(
        "SELECT no, place, time, tool, agent, caller, code, status, has_log, call, receipt
         FROM tail ORDER BY no LIMIT ?1",
    )?;
    let mut rows = statement.query([i64::try_from(limit).unwrap_or(i64::MAX)])?;
    let (mut first, mut entries) = (None, Vec::new());
    while let Some(row) = rows.next()? {
        let no: i64 = row.get(0)?;
        first.get_or_insert(no);
        entries.push(IndexEntry {
            place: row.get(1)?,
            time: row.get(2)?,
            names: [row.get(3)?, row.get(4)?, row.get(5)?, row.get(6)?, row.get(7)?],
            // A number other than 0 and 1 stays one, so that verification finds it.
            has_log: u8::try_from(row.get::<_, i64>(8)?).unwrap_or(u8::MAX),
            call: row.get(9)?,
            receipt: row.get(10)?,
        });
    }
    Ok(first.map(|first| (first, entries)))
}

/// Stores the sequence number up to which the log of a writer is indexed.
pub(super) fn set_end(transaction: &Connection, writer: i64, size: i64) -> rusqlite::Result<()> {
    transaction
        .prepare_cached(
            "INSERT INTO ends (writer, size) VALUES (?1, ?2)
             ON CONFLICT (writer) DO UPDATE SET size = excluded.size",
        )?
        .execute((writer, size))
        .map(drop)
}

/// Returns the number of a name, which is added if it is new; 0 for `None`.
pub(super) fn name(
    transaction: &Connection,
    names: &mut Names,
    name: Option<Cow<'static, str>>,
) -> rusqlite::Result<u32> {
    /// Maximum cached names; a full cache is cleared.
    const NAMES_MAX: usize = 10_000;
    let Some(name) = name else { return Ok(0) };
    if let Some(no) = names.numbers.get(&name) {
        return Ok(*no);
    }
    let no: u32 = transaction
        .prepare_cached(
            "INSERT INTO names (name) VALUES (?1) ON CONFLICT (name) DO UPDATE SET name = name
             RETURNING no",
        )?
        .query_row([&name], |row| row.get(0))?;
    if names.numbers.len() >= NAMES_MAX {
        names.numbers.clear();
    }
    names.numbers.insert(name, no);
    Ok(no)
}
