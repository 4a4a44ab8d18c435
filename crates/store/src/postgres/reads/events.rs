//! Finds events by time and by place.
//!
//! Doc: records.md#reading

use tokio_postgres::Row;
use tokio_postgres::types::ToSql;
use toolbooth_audit::LedgerError;
use toolbooth_audit::reads::{EventFilter, Page, PlacedEvent};

use super::PostgresReads;
use super::conditions::{Conditions, count, fetched, shown_time};
use crate::body;

/// The time ranges in which the newest rows are searched, one after the other.
const BACK: [&str; 5] = ["10 seconds", "5 minutes", "2 hours", "2 days", "60 days"];

/// Transaction ids that the first query for following events covers; later ones cover more.
const FOLLOWED: i64 = 64;

/// Bits of a place that number the events of one transaction.
const EVENT_BITS: u32 = 20;

/// Adds the events that pass the filter, up to its limit.
fn fitting(
    rows: &[Row],
    filter: &EventFilter,
    page: &mut Page<PlacedEvent>,
) -> Result<(), LedgerError> {
    for row in rows {
        let place = row.get::<_, i64>(0).unsigned_abs();
        let event = body::read(row.get(1), row.get(2))
            .map(|event| PlacedEvent { place, event })
            .map_err(|damage| damage.at("events", format!("place {place}")));
        let is_full = page.found.len() >= filter.limit;
        page.add(event, |placed| !is_full && filter.fits(&placed.event))?;
    }
    Ok(())
}

impl PostgresReads {
    /// Splits a time range, newest part first: most queries find enough rows in that part.
    pub(super) async fn parts(
        &self,
        since: &Option<String>,
        until: &Option<String>,
    ) -> Result<Vec<(Option<String>, Option<String>)>, LedgerError> {
        let back: Vec<String> = BACK.iter().map(|back| (*back).to_owned()).collect();
        let values: Vec<Box<dyn ToSql + Sync + Send>> =
            vec![Box::new(until.clone()), Box::new(back)];
        let sql = format!(
            "SELECT {} FROM unnest($2::text[]) AS b (back)",
            shown_time("(least($1::text::timestamptz, clock_timestamp()) - b.back::interval)")
        );
        let rows = self.rows(&sql, &Conditions { sql: Vec::new(), values }).await?;
        let (mut parts, mut end) = (Vec::new(), until.clone());
        for begin in rows.iter().map(|row| Some(row.get::<_, String>(0))).chain([None]) {
            let begin = begin.max(since.clone());
            parts.push((begin.clone(), end));
            if begin == *since {
                break;
            }
            end = begin;
        }
        Ok(parts)
    }

    /// Adds the events of a time range that pass the filter, newest first.
    pub(super) async fn part_of_events(
        &self,
        filter: &EventFilter,
        (since, until): (&Option<String>, &Option<String>),
        page: &mut Page<PlacedEvent>,
    ) -> Result<(), LedgerError> {
        // The last row of the previous page.
        let mut last: Option<(String, i64, String, i64)> = None;
        while page.found.len() < filter.limit {
            let mut conditions = Conditions::of(filter);
            conditions.text("time >=", since.clone());
            conditions.text("time <", until.clone());
            if let Some((time, place, writer, seq)) = last.take() {
                conditions.values.extend([
                    Box::new(time) as Box<dyn ToSql + Sync + Send>,
                    Box::new(place),
                    Box::new(writer),
                    Box::new(seq),
                ]);
                let at = conditions.values.len();
                let given = format!("(${}, ${}, ${}, ${at})", at - 3, at - 2, at - 1);
                conditions.sql.push(format!("(time, place, writer, seq) < {given}"));
            }
            let limit = fetched(filter.limit - page.found.len(), filter.caller.is_some());
            let sql = format!(
                "SELECT place, body, zbody, time, writer, seq FROM events {}
                 ORDER BY time DESC, place DESC, writer DESC, seq DESC LIMIT {limit}",
                conditions.shown()
            );
            let rows = self.rows(&sql, &conditions).await?;
            fitting(&rows, filter, page)?;
            match rows.last() {
                Some(row) if rows.len() == limit => {
                    last = Some((row.get(3), row.get(0), row.get(4), row.get(5)));
                }
                _ => break,
            }
        }
        Ok(())
    }

    /// Returns the events after a place, in the order of places.
    pub(super) async fn following(
        &self,
        filter: &EventFilter,
        after: u64,
    ) -> Result<Page<PlacedEvent>, LedgerError> {
        let mut page = Page::default();
        let (mut from, mut width) = (count(usize::try_from(after).unwrap_or(usize::MAX)), FOLLOWED);
        while page.found.len() < filter.limit && from < i64::MAX {
            let to = from.saturating_add(width.saturating_mul(1 << EVENT_BITS));
            let mut conditions = Conditions::of(filter);
            conditions.text("time >=", filter.since.clone());
            conditions.text("time <", filter.until.clone());
            conditions.add("place >", Some(from));
            conditions.add("place <=", Some(to));
            // Excludes transactions that still run, since they may commit events at earlier places.
            // Places from `xmax` on belong to the server that the database was copied from.
            let horizon = |of: &str| format!("({of}(pg_current_snapshot())::text::bigint << 20)");
            conditions.sql.push(format!(
                "(place < {} OR place >= {})",
                horizon("pg_snapshot_xmin"),
                horizon("pg_snapshot_xmax")
            ));
            let limit = fetched(filter.limit - page.found.len(), filter.caller.is_some());
            let sql = format!(
                "SELECT place, body, zbody FROM events {}
                 ORDER BY place ASC, writer ASC, seq ASC LIMIT {limit}",
                conditions.shown()
            );
            let rows = self.rows(&sql, &conditions).await?;
            fitting(&rows, filter, &mut page)?;
            match rows.last() {
                Some(row) if rows.len() == limit => from = row.get(0),
                _ => (from, width) = (to, width.saturating_mul(64)),
            }
        }
        Ok(page)
    }
}
