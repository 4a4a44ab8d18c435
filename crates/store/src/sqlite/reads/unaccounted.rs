//! Finds the rows that no event accounts for, for the verification.
//!
//! Doc: records.md#verification

use std::collections::{BTreeMap, HashMap};

use rusqlite::Connection;
use toolbooth_audit::LedgerError;
use toolbooth_audit::reads::{Accounted, DAMAGED_MAX, DamagedRow, Unaccounted};
use toolbooth_contracts::receipt::{AuditPlace, Receipt};

use super::search::read_log;
use crate::packing;
use crate::sqlite::compact::Shown;
use crate::sqlite::log_pages::Naming;
use crate::sqlite::queries::{EVENT, body, keys};
use crate::sqlite::rows::CALL;
use crate::sqlite::schema::{SEQ_BITS, place};
use crate::sqlite::{search_index, unavailable, unreadable_at};

pub(super) fn unaccounted(
    database: &Connection,
    known: &Accounted,
) -> Result<Unaccounted, LedgerError> {
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
