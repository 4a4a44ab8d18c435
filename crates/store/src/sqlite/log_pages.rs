//! Pages through logs as they are stored, for verification and exports.
//!
//! Logs are in the order of their writers' names. The log of a writer without a row, or without a
//! usable name in its row, is last. Its name cannot be the name of a writer.
//!
//! Doc: records.md#verification

use rusqlite::types::{FromSql, FromSqlResult, ToSqlOutput, ValueRef};
use rusqlite::{Connection, OptionalExtension, ToSql};
use serde::Deserialize;
use toolbooth_audit::LedgerError;
use toolbooth_audit::backend::merkle::Hash;
use toolbooth_audit::backend::pruning::PrunedRange;
use toolbooth_audit::reads::{Include, RawEntry, RawRecord};
use toolbooth_contracts::event::AuditEventKind;

use super::compact::{Compact, Shown};
use super::queries::{EVENT, LOG, body, history, keys, limited};
use super::schema::{SEQ_BITS, place};
use super::search_index;
use super::{result_reference, unavailable, unreadable_at};
use crate::packing;

/// The members of an event that name a receipt.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Naming {
    #[serde(default)]
    pub(super) receipt_id: Option<String>,
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
struct LogPage<'d> {
    database: &'d Connection,
    include: Include,
    limit: usize,
    found: Vec<RawEntry>,
}

impl LogPage<'_> {
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
            let bytes = packing::unpack(&body).unwrap_or_default();
            let mut entry = RawEntry {
                writer: writer.to_owned(),
                seq: search_index::split(at).1.unsigned_abs(),
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
            bytes: result_reference::unpack(&body, at, given).unwrap_or_default(),
            ..RawRecord::default()
        });
        Ok(())
    }

    /// Reads the receipt that an event names, with its columns, keys and history.
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
                        let bytes = packing::unpack(&body).unwrap_or_default();
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
                        Ok(RawRecord { columns, bytes, ..RawRecord::default() })
                    })
                    .optional()
            })
            .map_err(unreadable_at("receipts", &id))?;
        if let Some(receipt) = &mut entry.receipt {
            let sql = "SELECT key FROM keys WHERE receipt = ?1";
            receipt.keys = keys(self.database, sql, Some(Compact::of(&id)))?;
            receipt.history = history(self.database, &id)?;
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

pub(super) fn column(row: &rusqlite::Row<'_>, at: usize) -> rusqlite::Result<Option<String>> {
    use rusqlite::types::ValueRef;
    Ok(match row.get_ref(at)? {
        ValueRef::Null => None,
        ValueRef::Integer(number) => Some(number.to_string()),
        ValueRef::Text(text) => Some(String::from_utf8_lossy(text).into_owned()),
        _ => Some(String::new()),
    })
}

/// The bytes of a text column, valid or not.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct RawText(pub(super) Vec<u8>);

impl RawText {
    /// Returns the text; `None` if the bytes are not UTF-8.
    pub(super) fn text(&self) -> Option<&str> {
        std::str::from_utf8(&self.0).ok()
    }
}

impl ToSql for RawText {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Borrowed(ValueRef::Text(&self.0)))
    }
}

impl FromSql for RawText {
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
        Ok(Self(value.as_bytes()?.to_vec()))
    }
}

/// The prefix for names of logs with unknown writers; it sorts after every other name.
const UNKNOWN: &str = "\u{10ffff}";

/// Returns the name of the log with the number `no` and an unknown writer.
fn unknown(no: i64) -> String {
    format!("{UNKNOWN}{no:020}")
}

/// Returns the name of a writer from its row, and whether it is usable.
pub(super) fn writer_name(name: &RawText, no: i64) -> (String, bool) {
    match name.text().filter(|name| !name.starts_with(UNKNOWN)) {
        Some(name) => (name.to_owned(), true),
        None => (unknown(no), false),
    }
}

/// Returns writers and their numbers in the order of names, from `writer` on.
fn writers_from(
    database: &Connection,
    writer: &RawText,
    limit: usize,
) -> Result<Vec<(RawText, i64)>, LedgerError> {
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

/// Returns the first number, from `from` on, that has events and no writer with a usable name.
fn next_unknown(database: &Connection, from: i64) -> Result<Option<i64>, LedgerError> {
    let mut from = from;
    loop {
        let next: Option<i64> = database
            .prepare_cached("SELECT min(place) FROM events WHERE place >= ?1")
            .and_then(|mut statement| statement.query_row([place(from, 0)], |row| row.get(0)))
            .map_err(unavailable)?;
        let Some(next) = next else { return Ok(None) };
        let no = search_index::split(next).0;
        let name: Option<RawText> = database
            .prepare_cached("SELECT writer FROM writers WHERE no = ?1")
            .and_then(|mut statement| statement.query_row([no], |row| row.get(0)).optional())
            .map_err(unavailable)?;
        if !name.is_some_and(|name| writer_name(&name, no).1) {
            return Ok(Some(no));
        }
        from = no + 1;
    }
}

/// Returns the place after which a page begins: a writer's name, and the next sequence number of
/// its log.
fn next_place(after: Option<(String, u64)>) -> (String, i64) {
    after.map_or((String::new(), 0), |(writer, seq)| {
        (writer, i64::try_from(seq).unwrap_or(i64::MAX).saturating_add(1))
    })
}

/// Returns the events after a place, at most `limit`.
pub(super) fn log_page(
    database: &Connection,
    after: Option<(String, u64)>,
    limit: usize,
    include: Include,
) -> Result<Vec<RawEntry>, LedgerError> {
    /// Maximum writers that one query reads.
    const WRITERS: usize = 256;
    let (begin, from) = next_place(after);
    let mut page = LogPage { database, include, limit, found: Vec::new() };
    let number: Option<i64> = begin.strip_prefix(UNKNOWN).and_then(|no| no.parse().ok());
    let mut next = RawText(begin.clone().into_bytes());
    while number.is_none() && page.found.len() < limit {
        let writers = writers_from(database, &next, WRITERS)?;
        for (raw, no) in &writers {
            let (name, is_usable) = writer_name(raw, *no);
            let from = if name == begin { from } else { 0 };
            if is_usable && page.found.len() < limit && from < (1 << SEQ_BITS) {
                page.add(&name, *no, from)?;
            }
        }
        match writers.last() {
            Some((last, _)) if writers.len() == WRITERS => {
                // The least text after this one.
                next = RawText([last.0.as_slice(), &[0]].concat());
            }
            _ => break,
        }
    }
    let mut next = number.unwrap_or_default();
    while page.found.len() < limit {
        let Some(no) = next_unknown(database, next)? else { break };
        let from = if Some(no) == number { from } else { 0 };
        if from < (1 << SEQ_BITS) {
            page.add(&unknown(no), no, from)?;
        }
        next = no + 1;
    }
    Ok(page.found)
}

/// Returns the removed subtrees of logs after a place, at most `limit`.
pub(super) fn pruned_ranges(
    database: &Connection,
    after: Option<(String, u64)>,
    limit: usize,
) -> Result<Vec<(String, PrunedRange)>, LedgerError> {
    let sql = "SELECT DISTINCT place >> ?1, (SELECT writer FROM writers WHERE no = place >> ?1)
               FROM gone";
    let mut logs: Vec<(String, i64)> = database
        .prepare_cached(sql)
        .and_then(|mut statement| {
            let read = |row: &rusqlite::Row<'_>| {
                let (no, name): (i64, Option<RawText>) = (row.get(0)?, row.get(1)?);
                Ok((name.map_or_else(|| unknown(no), |name| writer_name(&name, no).0), no))
            };
            statement.query_map([SEQ_BITS], read)?.collect()
        })
        .map_err(unavailable)?;
    logs.sort_unstable();
    let (begin, from) = next_place(after);
    let mut found = Vec::new();
    for (name, no) in logs.into_iter().filter(|(name, _)| *name >= begin) {
        let from = if name == begin { from } else { 0 };
        if found.len() >= limit || from >= 1 << SEQ_BITS {
            continue;
        }
        let sql = "SELECT place, size, root FROM gone
                   WHERE place >= ?1 AND place < ?2 ORDER BY place LIMIT ?3";
        let given = (place(no, from), place(no + 1, 0), limited(limit - found.len()));
        let read = |row: &rusqlite::Row<'_>| {
            let root: Shown = row.get(2)?;
            let seq = search_index::split(row.get(0)?).1.unsigned_abs();
            // An invalid hash becomes zeros, which match no root.
            let root = Hash::parse(&root.0).unwrap_or(Hash([0; 32]));
            Ok((
                name.clone(),
                PrunedRange { seq, size: row.get::<_, i64>(1)?.unsigned_abs(), root },
            ))
        };
        let mut statement = database.prepare_cached(sql).map_err(unavailable)?;
        let rows = statement.query_map(given, read).map_err(unreadable_at("gone", &name))?;
        for row in rows {
            found.push(row.map_err(unreadable_at("gone", &name))?);
        }
    }
    Ok(found)
}
