//! Runs the queries that all readers share.
//!
//! Doc: records.md#reading

use rusqlite::{Connection, OptionalExtension};
use toolbooth_audit::LedgerError;
use toolbooth_audit::charges::BudgetRow;
use toolbooth_audit::history::{WindowName, WindowTotals, row_text};
use toolbooth_audit::orders::RawOrder;
use toolbooth_contracts::order::OrderName;

use super::compact::{Compact, Shown};
use super::schema::SEQ_BITS;
use super::{unavailable, unreadable_at};
use crate::packing;

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

/// Returns the rows of a receipt in the windows of the policy.
pub(super) fn history(
    connection: &Connection,
    receipt_id: &str,
) -> Result<Vec<String>, LedgerError> {
    let sql = "SELECT key, at_ms, amount, until_ms FROM history WHERE receipt = ?1";
    let mut statement = connection.prepare_cached(sql).map_err(unavailable)?;
    let found = statement.query_map([Compact::of(receipt_id)], |row| {
        let key: Shown = row.get(0)?;
        Ok(row_text(&key.0, row.get(1)?, row.get(2)?, row.get(3)?))
    });
    found.and_then(Iterator::collect).map_err(unreadable_at("history", receipt_id))
}

/// Returns the totals of a window that ends at `at_ms`. `earlier` are the totals of the same window at
/// another end, with all calls that were counted since. With `earlier`, only the calls between the two ends
/// are read, and the claim time of the first remaining call.
pub(super) fn window(
    connection: &Connection,
    name: &WindowName,
    at_ms: i64,
    earlier: Option<WindowTotals>,
) -> rusqlite::Result<WindowTotals> {
    let after_ms = at_ms.saturating_sub(name.length_ms);
    let counted = |from, to| counted(connection, &name.key, from, to);
    let (count, sum, none_before_ms) = match earlier {
        Some(WindowTotals { after_ms: began, count, sum, none_before_ms, .. })
            if began <= after_ms && none_before_ms.is_some_and(|first_ms| first_ms > after_ms) =>
        {
            (count, sum, none_before_ms)
        }
        Some(WindowTotals { after_ms: began, count, sum, .. }) if began <= after_ms => {
            let (left, amount) = counted(began, after_ms)?;
            let first_ms = first(connection, name, after_ms)?;
            (count.saturating_sub(left), sum.saturating_sub(amount), Some(first_ms))
        }
        // Calls wait for each other, so one may have come before the one that was judged last.
        Some(WindowTotals { after_ms: began, count, sum, .. }) => {
            let (back, amount) = counted(after_ms, began)?;
            (count.saturating_add(back), sum.saturating_add(amount), None)
        }
        None => {
            let (count, sum) = counted(after_ms, i64::MAX)?;
            (count, sum, Some(first(connection, name, after_ms)?))
        }
    };
    if let Some((last_ms, second_last_ms)) = last_known(earlier, after_ms, count) {
        return Ok(WindowTotals { after_ms, count, sum, last_ms, second_last_ms, none_before_ms });
    }
    let sql = "SELECT at_ms FROM history WHERE key = ?1 AND at_ms > ?2
               ORDER BY at_ms DESC LIMIT 2";
    let mut statement = connection.prepare_cached(sql)?;
    let last: Vec<i64> =
        statement.query_map((&name.key, after_ms), |row| row.get(0))?.collect::<Result<_, _>>()?;
    let (last_ms, second_last_ms) = (last.first().copied(), last.get(1).copied());
    Ok(WindowTotals { after_ms, count, sum, last_ms, second_last_ms, none_before_ms })
}

/// Returns the claim time of the first call in a window. For an empty window, returns a time before
/// which no call was claimed.
fn first(connection: &Connection, name: &WindowName, after_ms: i64) -> rusqlite::Result<i64> {
    let sql = "SELECT min(at_ms) FROM history WHERE key = ?1 AND at_ms > ?2";
    let first_ms: Option<i64> =
        connection.prepare_cached(sql)?.query_row((&name.key, after_ms), |row| row.get(0))?;
    Ok(first_ms.unwrap_or(i64::MAX))
}

/// Returns when the last two of `count` calls in a window were claimed, if `earlier` has them.
fn last_known(
    earlier: Option<WindowTotals>,
    after_ms: i64,
    count: u64,
) -> Option<(Option<i64>, Option<i64>)> {
    let WindowTotals { last_ms, second_last_ms, .. } = earlier?;
    let [last_ms, second_last_ms] =
        [last_ms, second_last_ms].map(|at_ms| at_ms.filter(|at_ms| *at_ms > after_ms));
    let known = [last_ms, second_last_ms].iter().flatten().count();
    (u64::try_from(known).ok()? == count.min(2)).then_some((last_ms, second_last_ms))
}

/// Returns the number of calls that were counted between two times, without the first, and the sum of their
/// amounts.
fn counted(
    connection: &Connection,
    key: &str,
    after_ms: i64,
    until_ms: i64,
) -> rusqlite::Result<(u64, i128)> {
    // Sums of halves do not overflow.
    let sql =
        "SELECT count(*), coalesce(sum(amount >> 32), 0), coalesce(sum(amount & 4294967295), 0)
               FROM history WHERE key = ?1 AND at_ms > ?2 AND at_ms <= ?3";
    connection.prepare_cached(sql)?.query_row((key, after_ms, until_ms), |row| {
        let (count, high, low): (i64, i64, i64) = (row.get(0)?, row.get(1)?, row.get(2)?);
        Ok((count.unsigned_abs(), (i128::from(high) << 32) + i128::from(low)))
    })
}

/// Returns the orders of operators after a name, each with the event that it names.
pub(super) fn orders(
    connection: &Connection,
    after: Option<&OrderName>,
    limit: i64,
) -> rusqlite::Result<Vec<RawOrder>> {
    let sql = "SELECT o.kind, o.name, o.body,
                   (SELECT e.body FROM events e WHERE e.place = (
                        SELECT w.no << ?1 | (o.body ->> '$.auditSeq.seq') FROM writers w
                        WHERE json_valid(o.body) AND w.writer = o.body ->> '$.auditSeq.writer')),
                   o.used
               FROM orders o WHERE ?2 IS NULL OR (o.kind, o.name) > (?2, ?3)
               ORDER BY o.kind, o.name LIMIT ?4";
    let mut statement = connection.prepare_cached(sql)?;
    let (kind, name) = after.map(|name| (name.kind.as_str(), name.name.as_str())).unzip();
    let text = |row: &rusqlite::Row<'_>, at: usize| row.get::<_, Shown>(at).map(|text| text.0);
    let found = statement.query_map((SEQ_BITS, kind, name, limit), |row| {
        let event: Option<Vec<u8>> = row.get(3)?;
        // An event that cannot be unpacked accounts for nothing.
        let event = event.and_then(|body| packing::unpack(&body).ok());
        let used = row.get::<_, Option<Shown>>(4)?.map(|used| used.0);
        let (kind, name, bytes) = (text(row, 0)?, text(row, 1)?, text(row, 2)?);
        Ok(RawOrder { kind, name, bytes, event, used })
    })?;
    found.collect()
}

/// Units are stored as a signed integer with the same bits.
pub(super) fn budget_row(
    row: &rusqlite::Row<'_>,
    at: usize,
) -> rusqlite::Result<Option<BudgetRow>> {
    let changed_by = row.get::<_, Shown>(at + 2)?.0;
    Ok(serde_json::from_str(&changed_by).ok().map(|changed_by| BudgetRow {
        day: row.get(at).unwrap_or_default(),
        units: row.get::<_, i64>(at + 1).unwrap_or_default().cast_unsigned(),
        changed_by,
    }))
}

/// Returns the use of a budget. A row that cannot be read counts as used up.
pub(super) fn budget(connection: &Connection, key: &str) -> rusqlite::Result<Option<BudgetRow>> {
    let sql = "SELECT day, units, changed_by FROM budgets WHERE key = ?1";
    let mut statement = connection.prepare_cached(sql)?;
    let found = statement.query_row([key], |row| budget_row(row, 0)).optional()?;
    Ok(found.map(|row| row.unwrap_or_else(BudgetRow::used_up)))
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

/// Returns the next readable rows after a key. `read` returns the rows after a key with their keys,
/// and `None` for each that cannot be read.
pub(super) fn readable<K, T>(
    mut after: K,
    limit: usize,
    mut read: impl FnMut(&K) -> rusqlite::Result<Vec<(K, Option<T>)>>,
) -> Result<Vec<T>, LedgerError> {
    loop {
        let rows = read(&after).map_err(unavailable)?;
        let is_last = rows.len() < limit;
        let mut found = Vec::new();
        for (key, row) in rows {
            found.extend(row);
            after = key;
        }
        if is_last || !found.is_empty() {
            return Ok(found);
        }
    }
}
