//! Reads the store over a read-only pool.
//!
//! Doc: records.md#reading

use async_trait::async_trait;
use deadpool_postgres::{Object, Pool};
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;
use toolbooth_audit::LedgerError;
use toolbooth_audit::backend::merkle::Hash;
use toolbooth_audit::backend::pruning::PrunedRange;
use toolbooth_audit::backend::working::CallName;
use toolbooth_audit::charges::RawBudget;
use toolbooth_audit::documents::{RawDocument, checked};
use toolbooth_audit::history::{WindowName, WindowTotals};
use toolbooth_audit::orders::RawOrder;
use toolbooth_audit::queue::RawCall;
use toolbooth_audit::reads::{
    Accounted, ApprovalFilter, EVENT_COLUMNS, EventFilter, FoundId, IdKind, Include, LOG_COLUMNS,
    LedgerReads, LogFilter, Page, PlacedEvent, RECEIPT_COLUMNS, RawApproval, RawEntry, RawRecord,
    ReceiptFilter, Unaccounted, WriterHead,
};
use toolbooth_contracts::agent_log::AgentLog;
use toolbooth_contracts::order::OrderName;
use toolbooth_contracts::receipt::{AuditPlace, Receipt};

use super::connect::Server;
use super::error::OpenError;
use super::rows::{call, head, log_text, raw_budget, raw_order, window};
use super::statements::{CALL, EVENT, HEAD, VOUCHED, VOUCHED_ORDERS, VOUCHING, WINDOWS};
use super::{clean, schema, unavailable};
use crate::digits::{made_ms, uuid};
use crate::packing;
use crate::{Unreadable, body};

/// Read access to a store, without a writer.
#[derive(Debug, Clone)]
pub struct PostgresReads {
    pool: Pool,
}

/// Returns an approval as stored, with its event.
fn raw_approval(row: &Row) -> RawApproval {
    RawApproval {
        id: row.get(0),
        bytes: row.get(1),
        // An event that cannot be unpacked becomes an empty text, which accounts for nothing.
        event: row
            .get::<_, Option<String>>(2)
            .map(|text| body::unpack(text, row.get(3)).unwrap_or_default()),
        columns: (4..9).map(|at| column(row, at)).collect(),
    }
}

/// Conditions joined by `AND`, with their parameters.
#[derive(Default)]
struct Conditions {
    sql: Vec<String>,
    values: Vec<Box<dyn ToSql + Sync + Send>>,
}

impl Conditions {
    fn add<T: ToSql + Sync + Send + 'static>(&mut self, condition: &str, value: Option<T>) {
        if let Some(value) = value {
            self.values.push(Box::new(value));
            self.sql.push(format!("{condition} ${}", self.values.len()));
        }
    }

    fn text(&mut self, condition: &str, value: Option<String>) {
        self.add(condition, value.map(|value| clean(&value).into_owned()));
    }

    /// Returns the conditions of a filter on columns other than time and place.
    fn of(filter: &EventFilter) -> Self {
        let mut conditions = Self::default();
        conditions.text("tool =", filter.tool.clone());
        conditions.text("agent =", filter.agent.clone());
        conditions.text("status =", filter.status.clone());
        conditions.text("code =", filter.code.clone());
        conditions.text("call_id =", filter.call.clone());
        conditions
    }

    /// Adds a condition on a time, given in milliseconds since 1970.
    fn moment(&mut self, condition: &str, ms: i64) {
        self.values.push(Box::new(ms));
        let at = format!("to_timestamp(${}::bigint / 1000.0)", self.values.len());
        self.sql.push(format!("{condition} {}", shown_time(&at)));
    }

    fn shown(&self) -> String {
        if self.sql.is_empty() {
            String::new()
        } else {
            format!("WHERE {}", self.sql.join(" AND "))
        }
    }
}

/// Returns an SQL expression that formats a timestamp as records write it.
fn shown_time(of: &str) -> String {
    format!(r#"to_char({of} AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"')"#)
}

/// Returns the number of rows to fetch for `wanted` results. Rows that are filtered again need more
/// of them.
fn fetched(wanted: usize, is_filtered: bool) -> usize {
    if is_filtered { wanted.clamp(PAGE_MIN, PAGE_MAX) } else { wanted.min(PAGE_MAX) }
}

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

fn count(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX)
}

impl PostgresReads {
    pub(super) fn over(server: &Server) -> Result<Self, OpenError> {
        Ok(Self { pool: server.pool()? })
    }

    /// Opens an existing database for reading.
    ///
    /// # Errors
    /// [`OpenError`]; [`OpenError::Empty`] if the database has no tables yet.
    pub async fn open(url: &str) -> Result<Self, OpenError> {
        let server = Server::parse(url)?;
        let connection = server.connect().await?;
        match schema::version(&connection.client).await? {
            0 => Err(OpenError::Empty),
            found if found > schema::VERSION => {
                Err(OpenError::Newer { found, known: schema::VERSION })
            }
            found => match schema::is_readable(&connection.client, found).await? {
                true => Self::over(&server),
                false => Err(OpenError::Older { found, known: schema::VERSION }),
            },
        }
    }

    async fn client(&self) -> Result<Object, LedgerError> {
        self.pool.get().await.map_err(|error| match error {
            deadpool_postgres::PoolError::Backend(error) => unavailable(error),
            other => LedgerError::unavailable_by(other),
        })
    }

    async fn rows(&self, sql: &str, conditions: &Conditions) -> Result<Vec<Row>, LedgerError> {
        let values: Vec<&(dyn ToSql + Sync)> =
            conditions.values.iter().map(|value| &**value as &(dyn ToSql + Sync)).collect();
        let client = self.client().await?;
        let statement = client.prepare_cached(sql).await.map_err(unavailable)?;
        client.query(&statement, &values).await.map_err(unavailable)
    }
}

/// Columns of agent logs as [`log`] reads them.
const LOG: &str = "l.body, l.zbody, l.shared, r.body, r.zbody, l.writer || ' ' || l.seq";
/// Agent logs, joined with their events and receipts.
const LOGS: &str = "agent_logs l JOIN events e ON e.writer = l.writer AND e.seq = l.seq
                    LEFT JOIN receipts r ON r.receipt_id = e.receipt_id";
/// Minimum rows of a page that is filtered again.
const PAGE_MIN: usize = 100;
/// Maximum rows of a page.
const PAGE_MAX: usize = 1_000;
/// Maximum distance between the time of an id and that of its record.
const AROUND_MS: i64 = 10_000;
/// The time ranges in which the newest rows are searched, one after the other.
const BACK: [&str; 5] = ["10 seconds", "5 minutes", "2 hours", "2 days", "60 days"];
/// Transaction ids that the first query for following events covers; later ones cover more.
const FOLLOWED: i64 = 64;
/// Bits of a place that number the events of one transaction.
const PLACES: u32 = 20;

/// Reads an agent log, including the part that its receipt has.
fn log(row: &Row) -> Result<AgentLog, LedgerError> {
    let text = log_text_at(row, 0);
    text.and_then(|text| serde_json::from_str(&text).map_err(Unreadable::of))
        .map_err(|damage| damage.at("agent_logs", row.get::<_, String>(5)))
}

/// Returns the text of an agent log. Its columns, and those of its receipt, begin at the column
/// `at`.
fn log_text_at(row: &Row, at: usize) -> Result<String, Unreadable> {
    log_text((row.get(at), row.get(at + 1), row.get(at + 2)), || {
        let text: Option<String> = row.get(at + 3);
        text.map(|text| body::unpack(text, row.get(at + 4))).transpose()
    })
}

impl PostgresReads {
    /// Splits a time range, newest part first: most queries find enough rows in that part.
    async fn parts(
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
    async fn part_of_events(
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
    async fn following(
        &self,
        filter: &EventFilter,
        after: u64,
    ) -> Result<Page<PlacedEvent>, LedgerError> {
        let mut page = Page::default();
        let (mut from, mut width) = (count(usize::try_from(after).unwrap_or(usize::MAX)), FOLLOWED);
        while page.found.len() < filter.limit && from < i64::MAX {
            let to = from.saturating_add(width.saturating_mul(1 << PLACES));
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

    /// Returns asynchronous calls, with the events that they name and that account for them.
    async fn calls(
        &self,
        which: &str,
        name: CallName,
        limit: usize,
    ) -> Result<Vec<RawCall>, LedgerError> {
        let values: Vec<Box<dyn ToSql + Sync + Send>> = vec![
            Box::new(clean(&name.0).into_owned()),
            Box::new(clean(&name.1).into_owned()),
            Box::new(count(limit)),
        ];
        let conditions = Conditions { sql: Vec::new(), values };
        let sql =
            format!("SELECT {CALL} FROM queue WHERE {which} ORDER BY caller, call_id LIMIT $3");
        let mut found = Vec::new();
        for row in &self.rows(&sql, &conditions).await? {
            let (call, state) = (call(row), row.get(3));
            let queued = self.event(call.queued_by.as_ref()).await?;
            let finished = self.event(call.finished_by.as_ref()).await?;
            found.push(RawCall { call, state, queued, finished });
        }
        Ok(found)
    }

    async fn event(&self, at: Option<&AuditPlace>) -> Result<Option<String>, LedgerError> {
        let Some(at) = at else { return Ok(None) };
        let values: Vec<Box<dyn ToSql + Sync + Send>> = vec![
            Box::new(at.writer.clone()),
            Box::new(count(usize::try_from(at.seq).unwrap_or(usize::MAX))),
        ];
        let conditions = Conditions { sql: Vec::new(), values };
        let rows = self.rows(EVENT, &conditions).await?;
        // An event that cannot be unpacked accounts for no record.
        Ok(rows.first().map(|row| body::unpack(row.get(0), row.get(1)).unwrap_or_default()))
    }
}

fn column(row: &Row, at: usize) -> Option<String> {
    row.get(at)
}

/// Reads an event and the records that it names from one row of a page.
fn entry(row: &Row) -> RawEntry {
    let columns = |from: usize, count: usize| -> Vec<Option<String>> {
        (from..from + count).map(|at| column(row, at)).collect()
    };
    let (events, logs) = (EVENT_COLUMNS.len(), LOG_COLUMNS.len());
    let receipts = 4 + events + logs;
    let bodies = receipts + RECEIPT_COLUMNS.len();
    // A record that cannot be unpacked becomes an empty text, which matches no digest.
    let is_there = |at: usize| column(row, at).is_some();
    let log = is_there(bodies).then(|| RawRecord {
        bytes: log_text_at(row, bodies).unwrap_or_default(),
        columns: columns(4 + events, logs),
        ..RawRecord::default()
    });
    let receipt = is_there(bodies + 3).then(|| RawRecord {
        bytes: body::unpack(row.get(bodies + 3), row.get(bodies + 4)).unwrap_or_default(),
        columns: columns(receipts, RECEIPT_COLUMNS.len()),
        keys: row.get(bodies + 5),
        history: row.get(bodies + 6),
    });
    RawEntry {
        writer: row.get(0),
        seq: row.get::<_, i64>(1).unsigned_abs(),
        bytes: body::unpack(row.get(2), row.get(3)).unwrap_or_default(),
        columns: columns(4, events),
        log,
        receipt,
    }
}

#[async_trait]
impl LedgerReads for PostgresReads {
    async fn receipt(&self, receipt_id: &str) -> Result<Option<Receipt>, LedgerError> {
        let mut conditions = Conditions::default();
        conditions.text("receipt_id =", Some(receipt_id.to_owned()));
        let sql = format!("SELECT body, zbody FROM receipts {}", conditions.shown());
        let rows = self.rows(&sql, &conditions).await?;
        let receipt = rows.first().map(|row| body::read(row.get(0), row.get(1))).transpose();
        receipt.map_err(|damage| damage.at("receipts", receipt_id))
    }

    async fn receipts(&self, filter: ReceiptFilter) -> Result<Page<Receipt>, LedgerError> {
        let mut page = Page::default();
        let mut after = filter.after.clone();
        loop {
            let mut conditions = Conditions::default();
            if let Some(call) = &filter.call {
                conditions.values.push(Box::new(clean(call).into_owned()));
                let of = "SELECT receipt_id FROM events WHERE call_id = $1";
                conditions.sql.push(format!("receipt_id IN ({of})"));
            }
            conditions.text("tool =", filter.tool.clone());
            conditions.text("state =", filter.state.clone());
            conditions.text("receipt_id <", after.take());
            let left = filter.limit.saturating_add(1) - page.found.len();
            let limit = fetched(left, filter.caller.is_some());
            let sql = format!(
                "SELECT body, zbody, receipt_id FROM receipts {}
                 ORDER BY receipt_id DESC LIMIT {limit}",
                conditions.shown(),
            );
            let rows = self.rows(&sql, &conditions).await?;
            for row in &rows {
                let receipt = body::read(row.get(0), row.get(1))
                    .map_err(|damage| damage.at("receipts", row.get::<_, String>(2)));
                page.add(receipt, |receipt| filter.fits(receipt))?;
            }
            after = rows.last().map(|row| row.get(2));
            if rows.len() < limit || page.found.len() > filter.limit {
                break;
            }
        }
        page.truncate(filter.limit);
        Ok(page)
    }

    async fn agent_log(&self, id: &str) -> Result<Option<AgentLog>, LedgerError> {
        let mut conditions = Conditions::default();
        // Ids that Toolbooth makes are UUIDv7, which contain their creation time (RFC 9562, 5.7).
        if let Some(made) = made_ms(id) {
            let (since, until) = (made - AROUND_MS, made + AROUND_MS);
            conditions.moment("l.time >=", since);
            conditions.moment("l.time <", until);
        }
        // SQL can search only bodies that are encoded without compression. All others are
        // candidates, and are compared below.
        let bytes = uuid(id.as_bytes());
        conditions.values.push(Box::new(clean(id).into_owned()));
        conditions.values.push(Box::new(bytes.map_or(id.as_bytes().to_vec(), |id| id.to_vec())));
        let at = conditions.values.len();
        conditions.sql.push(format!(
            "CASE WHEN l.zbody IS NULL THEN position(${} IN l.body) > 0
                 ELSE get_byte(l.zbody, 0) <> 1 OR position(${at} IN l.zbody) > 0 END",
            at - 1
        ));
        let sql = format!("SELECT {LOG} FROM {LOGS} {}", conditions.shown());
        let mut damaged = None;
        for row in &self.rows(&sql, &conditions).await? {
            match log(row) {
                Ok(log) if log.id == id => return Ok(Some(log)),
                Ok(_) => (),
                // The damaged log may be the requested one.
                Err(error) => damaged = damaged.or(Some(error)),
            }
        }
        damaged.map_or(Ok(None), Err)
    }

    async fn agent_logs(&self, filter: LogFilter) -> Result<Page<AgentLog>, LedgerError> {
        let mut page = Page::default();
        let parts = match filter.call {
            Some(_) => vec![(filter.since.clone(), filter.until.clone())],
            None => self.parts(&filter.since, &filter.until).await?,
        };
        for (since, until) in parts {
            // The last row of the previous page.
            let mut last: Option<(String, String, i64)> = None;
            while page.found.len() < filter.limit {
                let mut conditions = Conditions::default();
                conditions.text("e.tool =", filter.tool.clone());
                conditions.text("e.agent =", filter.agent.clone());
                conditions.text("e.code =", filter.code.clone());
                conditions.text("e.call_id =", filter.call.clone());
                conditions.text("l.time >=", since.clone());
                conditions.text("l.time <", until.clone());
                if let Some((time, writer, seq)) = last.take() {
                    conditions.values.extend([
                        Box::new(time) as Box<dyn ToSql + Sync + Send>,
                        Box::new(writer),
                        Box::new(seq),
                    ]);
                    let at = conditions.values.len();
                    let given = format!("(${}, ${}, ${at})", at - 2, at - 1);
                    conditions.sql.push(format!("(l.time, l.writer, l.seq) < {given}"));
                }
                let limit = filter.limit.clamp(PAGE_MIN, PAGE_MAX);
                let sql = format!(
                    "SELECT {LOG}, l.time, l.writer, l.seq FROM {LOGS} {}
                     ORDER BY l.time DESC, l.writer DESC, l.seq DESC LIMIT {limit}",
                    conditions.shown()
                );
                let rows = self.rows(&sql, &conditions).await?;
                for row in &rows {
                    page.add(log(row), |log| filter.fits(log))?;
                }
                match rows.last() {
                    Some(row) if rows.len() == limit => {
                        last = Some((row.get(6), row.get(7), row.get(8)));
                    }
                    _ => break,
                }
            }
        }
        page.found.truncate(filter.limit);
        page.found.reverse();
        Ok(page)
    }

    async fn events(&self, filter: EventFilter) -> Result<Page<PlacedEvent>, LedgerError> {
        if let Some(after) = filter.after {
            return self.following(&filter, after).await;
        }
        let parts = match filter.call {
            Some(_) => vec![(filter.since.clone(), filter.until.clone())],
            None => self.parts(&filter.since, &filter.until).await?,
        };
        let mut page = Page::default();
        for (since, until) in &parts {
            self.part_of_events(&filter, (since, until), &mut page).await?;
        }
        page.found.reverse();
        Ok(page)
    }

    async fn named(&self, prefix: &str, limit: usize) -> Result<Vec<FoundId>, LedgerError> {
        // Ids with the same prefix are adjacent in byte order.
        let after = format!("{prefix}{}", char::MAX);
        let mut found = Vec::new();
        for (kind, table, column) in
            [(IdKind::Call, "events", "call_id"), (IdKind::Receipt, "receipts", "receipt_id")]
        {
            let mut conditions = Conditions::default();
            conditions.text(&format!("{column} >="), Some(prefix.to_owned()));
            conditions.text(&format!("{column} <"), Some(after.clone()));
            let sql = format!(
                "SELECT DISTINCT {column} FROM {table} {} ORDER BY {column} DESC LIMIT {}",
                conditions.shown(),
                count(limit)
            );
            let rows = self.rows(&sql, &conditions).await?;
            found.extend(rows.iter().map(|row| FoundId { kind, id: row.get(0) }));
        }
        found.sort_by(|one: &FoundId, other| other.id.cmp(&one.id));
        found.truncate(limit);
        Ok(found)
    }

    async fn log_page(
        &self,
        after: Option<(String, u64)>,
        limit: usize,
        include: Include,
    ) -> Result<Vec<RawEntry>, LedgerError> {
        let (writer, seq) = after.map_or((String::new(), -1), |(writer, seq)| {
            (writer, i64::try_from(seq).unwrap_or(i64::MAX))
        });
        let sql = match include {
            Include::Records => {
                "SELECT e.writer, e.seq, e.body, e.zbody,
                     e.time, e.tool, e.agent, e.call_id, e.status, e.code, e.receipt_id,
                     e.has_log::int::text, e.milestone::int::text,
                     l.time,
                     NULL::text, r.receipt_id, r.tool, r.state, r.writer, r.fence::text,
                     CASE WHEN r.receipt_id IS NULL THEN NULL ELSE coalesce(r.settled, '') END,
                     l.body, l.zbody, l.shared, r.body, r.zbody,
                     ARRAY(SELECT k.key FROM keys k WHERE k.receipt_id = r.receipt_id),
                     ARRAY(SELECT concat_ws(' ', h.key, h.at_ms, coalesce(h.amount::text, '-'),
                               h.until_ms)
                           FROM history h WHERE h.receipt_id = r.receipt_id)
                 FROM events e
                 LEFT JOIN agent_logs l ON l.writer = e.writer AND l.seq = e.seq
                 LEFT JOIN receipts r ON r.receipt_id = e.receipt_id
                 WHERE (e.writer, e.seq) > ($1, $2) ORDER BY e.writer, e.seq LIMIT $3"
            }
            Include::Events => {
                "SELECT writer, seq, body, zbody FROM events
                 WHERE (writer, seq) > ($1, $2) ORDER BY writer, seq LIMIT $3"
            }
            Include::Milestones => {
                "SELECT writer, seq, body, zbody FROM events
                 WHERE milestone AND (writer, seq) > ($1, $2) ORDER BY writer, seq LIMIT $3"
            }
        };
        let conditions = Conditions {
            sql: Vec::new(),
            values: vec![Box::new(writer), Box::new(seq), Box::new(count(limit))],
        };
        let rows = self.rows(sql, &conditions).await?;
        Ok(rows
            .iter()
            .map(|row| match include {
                Include::Records => entry(row),
                _ => RawEntry {
                    writer: row.get(0),
                    seq: row.get::<_, i64>(1).unsigned_abs(),
                    bytes: body::unpack(row.get(2), row.get(3)).unwrap_or_default(),
                    ..RawEntry::default()
                },
            })
            .collect())
    }

    async fn heads(&self) -> Result<Vec<WriterHead>, LedgerError> {
        let sql = format!("SELECT {HEAD} FROM writers w ORDER BY w.writer");
        Ok(self.rows(&sql, &Conditions::default()).await?.iter().map(head).collect())
    }

    async fn pruned_ranges(
        &self,
        after: Option<(String, u64)>,
        limit: usize,
    ) -> Result<Vec<(String, PrunedRange)>, LedgerError> {
        let (writer, seq) = after.map_or((String::new(), -1), |(writer, seq)| {
            (writer, i64::try_from(seq).unwrap_or(i64::MAX))
        });
        let sql = "SELECT writer, seq, size, root FROM gone
                   WHERE (writer, seq) > ($1, $2) ORDER BY writer, seq LIMIT $3";
        let values: Vec<Box<dyn ToSql + Sync + Send>> =
            vec![Box::new(writer), Box::new(seq), Box::new(count(limit))];
        let rows = self.rows(sql, &Conditions { sql: Vec::new(), values }).await?;
        let part = |row: &Row| {
            let (seq, size): (i64, i64) = (row.get(1), row.get(2));
            // An invalid hash becomes zeros, which match no root.
            let root = Hash::parse(row.get(3)).unwrap_or(Hash([0; 32]));
            (row.get(0), PrunedRange { seq: seq.unsigned_abs(), size: size.unsigned_abs(), root })
        };
        Ok(rows.iter().map(part).collect())
    }

    async fn window(&self, name: WindowName, _: i64) -> Result<WindowTotals, LedgerError> {
        let values: Vec<Box<dyn ToSql + Sync + Send>> =
            vec![Box::new(vec![name.key]), Box::new(vec![name.length_ms])];
        let rows = self.rows(WINDOWS, &Conditions { sql: Vec::new(), values }).await?;
        rows.first().map_or_else(|| Ok(WindowTotals::default()), |row| Ok(window(row)?.1))
    }

    async fn key_ids(&self) -> Result<Option<Vec<String>>, LedgerError> {
        let rows = self.rows("SELECT key_id FROM digest_keys", &Conditions::default()).await?;
        Ok(Some(rows.iter().map(|row| row.get(0)).collect()))
    }

    async fn unaccounted(&self, known: Accounted) -> Result<Unaccounted, LedgerError> {
        let none = Conditions::default();
        let counts = "SELECT (SELECT count(*) FROM receipts), (SELECT count(*) FROM agent_logs)";
        let counts = self.rows(counts, &none).await?;
        let counts: Option<(i64, i64)> = counts.first().map(|row| (row.get(0), row.get(1)));
        let (all_receipts, all_logs) = counts.unwrap_or_default();
        let logs_match = all_logs.unsigned_abs() == known.logs;
        let receipts_match = all_receipts.unsigned_abs() == known.receipts;
        let (writers, sizes): (Vec<String>, Vec<i64>) =
            known.lacking.into_iter().map(|(writer, size)| (writer, size.cast_signed())).unzip();
        let excused =
            Conditions { sql: Vec::new(), values: vec![Box::new(writers), Box::new(sizes)] };
        let lacking =
            "NOT EXISTS (SELECT 1 FROM unnest($1::text[], $2::bigint[]) AS n (writer, size)
                           WHERE";
        let logs = format!(
            "SELECT l.writer || ' ' || l.seq FROM agent_logs l
             LEFT JOIN events e ON e.writer = l.writer AND e.seq = l.seq AND e.has_log
             WHERE e.writer IS NULL AND {lacking} n.writer = l.writer AND l.seq < n.size)
             ORDER BY l.writer, l.seq LIMIT 100"
        );
        let receipts = format!(
            "SELECT r.receipt_id FROM receipts r
             WHERE NOT EXISTS (SELECT 1 FROM events e WHERE e.receipt_id = r.receipt_id)
                 AND {lacking} n.writer = r.writer)
             ORDER BY r.receipt_id LIMIT 100"
        );
        let keys = "SELECT k.key FROM keys k WHERE NOT EXISTS (
                        SELECT 1 FROM receipts r WHERE r.receipt_id = k.receipt_id)
                    ORDER BY k.key LIMIT 100";
        let history = "SELECT h.receipt_id FROM history h WHERE NOT EXISTS (
                           SELECT 1 FROM receipts r WHERE r.receipt_id = h.receipt_id)
                       ORDER BY h.receipt_id LIMIT 100";
        let windows = "SELECT s.key FROM window_sums s
                       CROSS JOIN LATERAL (
                           SELECT count(*) AS calls, coalesce(sum(h.amount), 0) AS amount
                           FROM history h WHERE h.key = s.key AND h.at_ms > s.after_ms) AS c
                       WHERE s.calls <> c.calls OR s.amount <> c.amount
                       ORDER BY s.key, s.length_ms LIMIT 100";
        let ids = |rows: Vec<Row>| rows.iter().map(|row| row.get(0)).collect();
        Ok(Unaccounted {
            logs: if logs_match { Vec::new() } else { ids(self.rows(&logs, &excused).await?) },
            receipts: if receipts_match {
                Vec::new()
            } else {
                ids(self.rows(&receipts, &excused).await?)
            },
            keys: ids(self.rows(keys, &none).await?),
            history: ids(self.rows(history, &none).await?),
            windows: ids(self.rows(windows, &none).await?),
            milestones: Vec::new(),
            // The server rejects invalid text, so no row is damaged in this way.
            damaged: Vec::new(),
        })
    }

    async fn approval_page(
        &self,
        after: Option<String>,
        limit: usize,
    ) -> Result<Vec<RawApproval>, LedgerError> {
        let mut conditions = Conditions::default();
        conditions.text("a.approval_id >", after);
        let sql = format!(
            "SELECT a.approval_id, a.body, {VOUCHING},
                 a.tool, a.caller, a.args_digest, a.contract_digest, a.state
             FROM {VOUCHED} {} ORDER BY a.approval_id LIMIT {}",
            conditions.shown(),
            count(limit)
        );
        Ok(self.rows(&sql, &conditions).await?.iter().map(raw_approval).collect())
    }

    async fn approvals(&self, filter: ApprovalFilter) -> Result<Vec<RawApproval>, LedgerError> {
        let mut conditions = Conditions::default();
        conditions.text("a.approval_id =", filter.id);
        conditions.text("a.state =", filter.state.map(|state| state.as_str().to_owned()));
        conditions.text("a.tool =", filter.tool);
        conditions.text("a.caller =", filter.caller);
        conditions.text("a.approval_id <", filter.before);
        let sql = format!(
            "SELECT a.approval_id, a.body, {VOUCHING},
                 a.tool, a.caller, a.args_digest, a.contract_digest, a.state
             FROM {VOUCHED} {} ORDER BY a.approval_id DESC LIMIT {}",
            conditions.shown(),
            count(filter.limit)
        );
        Ok(self.rows(&sql, &conditions).await?.iter().map(raw_approval).collect())
    }

    async fn order_page(
        &self,
        after: Option<OrderName>,
        limit: usize,
    ) -> Result<Vec<RawOrder>, LedgerError> {
        let mut conditions = Conditions::default();
        if let Some(after) = after {
            conditions.text("(a.kind || ':' || a.name) COLLATE \"C\" >", Some(after.to_string()));
        }
        let sql = format!(
            "SELECT a.kind, a.name, a.body, {VOUCHING}, a.used FROM {VOUCHED_ORDERS} {}
             ORDER BY (a.kind || ':' || a.name) COLLATE \"C\" LIMIT {}",
            conditions.shown(),
            count(limit)
        );
        Ok(self.rows(&sql, &conditions).await?.iter().map(raw_order).collect())
    }

    async fn budget_page(
        &self,
        after: Option<String>,
        limit: usize,
    ) -> Result<Vec<RawBudget>, LedgerError> {
        let mut conditions = Conditions::default();
        conditions.text("key >", after);
        let sql = format!(
            "SELECT key, day, units, changed_by FROM budgets {} ORDER BY key LIMIT {}",
            conditions.shown(),
            count(limit)
        );
        Ok(self.rows(&sql, &conditions).await?.iter().map(raw_budget).collect())
    }

    async fn document(&self, digest: &str) -> Result<Option<String>, LedgerError> {
        let mut conditions = Conditions::default();
        conditions.text("digest =", Some(digest.to_owned()));
        let sql = format!("SELECT zbody FROM documents {}", conditions.shown());
        let rows = self.rows(&sql, &conditions).await?;
        let Some(row) = rows.first() else { return Ok(None) };
        checked(digest, packing::unpack(row.get(0)).ok()).map(Some)
    }

    async fn document_page(
        &self,
        after: Option<String>,
        limit: usize,
    ) -> Result<Vec<RawDocument>, LedgerError> {
        let mut conditions = Conditions::default();
        conditions.text("digest >", after);
        let sql = format!(
            "SELECT digest, zbody FROM documents {} ORDER BY digest LIMIT {}",
            conditions.shown(),
            count(limit)
        );
        let raw =
            |row: &Row| RawDocument { digest: row.get(0), text: packing::unpack(row.get(1)).ok() };
        Ok(self.rows(&sql, &conditions).await?.iter().map(raw).collect())
    }

    async fn queued(&self, caller: &str, call_id: &str) -> Result<Option<RawCall>, LedgerError> {
        let name = (caller.to_owned(), call_id.to_owned());
        let mut found = self.calls("(caller, call_id) = ($1, $2)", name, 1).await?;
        Ok(found.pop())
    }

    async fn call_page(
        &self,
        after: Option<CallName>,
        limit: usize,
    ) -> Result<Vec<RawCall>, LedgerError> {
        // The first page begins with the empty name, which sorts first.
        let which = if after.is_some() { ">" } else { ">=" };
        let which = format!("(caller, call_id) {which} ($1, $2)");
        self.calls(&which, after.unwrap_or_default(), limit).await
    }

    async fn healthy(&self) -> Result<(), LedgerError> {
        self.rows("SELECT 1", &Conditions::default()).await.map(drop)
    }
}
