//! Reading the store on connections that only read.
//!
//! Doc: records.md#reading

use async_trait::async_trait;
use deadpool_postgres::{Object, Pool};
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;
use toolbooth_audit::LedgerError;
use toolbooth_audit::merkle::Hash;
use toolbooth_audit::pruning::Gone;
use toolbooth_audit::queue::RawCall;
use toolbooth_audit::reads::{
    Accounted, EVENT_COLUMNS, EventFilter, Include, LOG_COLUMNS, LedgerReads, LogFilter,
    PlacedEvent, RECEIPT_COLUMNS, RawApproval, RawEntry, RawRecord, ReceiptFilter, Unaccounted,
    WriterHead,
};
use toolbooth_audit::working::CallName;
use toolbooth_contracts::agent_log::AgentLog;
use toolbooth_contracts::receipt::{AuditPlace, Receipt};

use super::connect::Server;
use super::rows::{call, head};
use super::statements::{CALL, EVENT, HEAD, VOUCHING};
use super::{OpenError, clean, schema, unavailable};
use crate::{body, corrupt};

/// The reads of a store, without a writer.
#[derive(Debug, Clone)]
pub struct PostgresReads {
    pool: Pool,
}

/// Conditions that all hold, each with its value.
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
        self.add(condition, value.map(|value| clean(&value)));
    }

    fn shown(&self) -> String {
        if self.sql.is_empty() {
            String::new()
        } else {
            format!("WHERE {}", self.sql.join(" AND "))
        }
    }
}

fn count(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX)
}

fn number(number: Option<u64>) -> Option<i64> {
    number.map(|number| i64::try_from(number).unwrap_or(i64::MAX))
}

impl PostgresReads {
    pub(super) fn over(server: &Server) -> Result<Self, OpenError> {
        Ok(Self { pool: server.pool()? })
    }

    /// Opens a database that is there, for reading.
    ///
    /// # Errors
    /// [`OpenError`]; [`OpenError::Empty`] where nothing was ever recorded.
    pub async fn open(url: &str) -> Result<Self, OpenError> {
        let server = Server::parse(url)?;
        let connection = server.connect().await?;
        match schema::version(&connection.client).await? {
            0 => Err(OpenError::Empty),
            found if found > schema::VERSION => {
                Err(OpenError::Newer { found, known: schema::VERSION })
            }
            _ => Self::over(&server),
        }
    }

    async fn client(&self) -> Result<Object, LedgerError> {
        self.pool.get().await.map_err(|error| match error {
            deadpool_postgres::PoolError::Backend(error) => unavailable(error),
            other => LedgerError::Unavailable(other.to_string()),
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

impl PostgresReads {
    /// Asynchronous calls with the events that they say account for them.
    async fn calls(
        &self,
        which: &str,
        name: CallName,
        limit: usize,
    ) -> Result<Vec<RawCall>, LedgerError> {
        let values: Vec<Box<dyn ToSql + Sync + Send>> =
            vec![Box::new(clean(&name.0)), Box::new(clean(&name.1)), Box::new(count(limit))];
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
        Ok(self.rows(EVENT, &conditions).await?.first().map(|row| row.get(0)))
    }
}

fn column(row: &Row, at: usize) -> Option<String> {
    row.get(at)
}

/// One row of a page with the records that its event names.
fn entry(row: &Row) -> RawEntry {
    let columns = |from: usize, count: usize| -> Vec<Option<String>> {
        (from..from + count).map(|at| column(row, at)).collect()
    };
    let (events, logs) = (EVENT_COLUMNS.len(), LOG_COLUMNS.len());
    let receipts = 3 + events + logs;
    let bodies = receipts + RECEIPT_COLUMNS.len();
    let record = |from: usize, count: usize, at: usize| {
        column(row, at).map(|text| RawRecord {
            // One that cannot be unpacked fits no digest.
            bytes: body::unpack(text, row.get(at + 1)).unwrap_or_default(),
            columns: columns(from, count),
            keys: Vec::new(),
        })
    };
    let receipt = record(receipts, RECEIPT_COLUMNS.len(), bodies + 2)
        .map(|receipt| RawRecord { keys: row.get(bodies + 4), ..receipt });
    RawEntry {
        writer: row.get(0),
        seq: row.get::<_, i64>(1).unsigned_abs(),
        bytes: row.get(2),
        columns: columns(3, events),
        log: record(3 + events, logs, bodies),
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
        rows.first().map(|row| body::read("a receipt", row.get(0), row.get(1))).transpose()
    }

    async fn receipts(&self, filter: ReceiptFilter) -> Result<(Vec<Receipt>, bool), LedgerError> {
        let mut conditions = Conditions::default();
        conditions.text("tool =", filter.tool);
        conditions.text("call_id =", filter.call);
        conditions.text("state =", filter.state);
        conditions.text("receipt_id <", filter.after);
        let sql = format!(
            "SELECT body, zbody FROM receipts {} ORDER BY receipt_id DESC LIMIT {}",
            conditions.shown(),
            count(filter.limit.saturating_add(1))
        );
        let mut rows = self.rows(&sql, &conditions).await?;
        let more = rows.len() > filter.limit;
        rows.truncate(filter.limit);
        let receipts: Result<Vec<Receipt>, LedgerError> =
            rows.iter().map(|row| body::read("a receipt", row.get(0), row.get(1))).collect();
        Ok((receipts?, more))
    }

    async fn agent_log(&self, id: &str) -> Result<Option<AgentLog>, LedgerError> {
        let mut conditions = Conditions::default();
        conditions.text("id =", Some(id.to_owned()));
        let sql = format!("SELECT body, zbody FROM agent_logs {}", conditions.shown());
        let rows = self.rows(&sql, &conditions).await?;
        rows.first().map(|row| body::read("an agent log", row.get(0), row.get(1))).transpose()
    }

    async fn agent_logs(&self, filter: LogFilter) -> Result<Vec<AgentLog>, LedgerError> {
        let mut conditions = Conditions::default();
        conditions.text("tool =", filter.tool);
        conditions.text("agent =", filter.agent);
        conditions.add("turn =", number(filter.turn));
        conditions.text("phase =", filter.phase);
        conditions.text("epic =", filter.epic);
        conditions.text("call_id =", filter.call);
        conditions.add("is_error =", filter.error);
        conditions.text("time >=", filter.since);
        conditions.text("time <", filter.until);
        let sql = format!(
            "SELECT body, zbody FROM agent_logs {} ORDER BY time DESC, id DESC LIMIT {}",
            conditions.shown(),
            count(filter.limit)
        );
        let rows = self.rows(&sql, &conditions).await?;
        rows.iter().rev().map(|row| body::read("an agent log", row.get(0), row.get(1))).collect()
    }

    async fn events(&self, filter: EventFilter) -> Result<Vec<PlacedEvent>, LedgerError> {
        let mut conditions = Conditions::default();
        conditions.text("tool =", filter.tool);
        conditions.text("agent =", filter.agent);
        conditions.text("status =", filter.status);
        conditions.text("code =", filter.code);
        conditions.text("call_id =", filter.call);
        conditions.text("time >=", filter.since);
        conditions.text("time <", filter.until);
        conditions.add("place >", number(filter.after));
        let order = if filter.after.is_some() {
            // What transactions that still run write comes after. A place beyond all of them is
            // of the server that the database was brought from.
            let horizon = |of: &str| format!("({of}(pg_current_snapshot())::text::bigint << 20)");
            conditions.sql.push(format!(
                "(place < {} OR place >= {})",
                horizon("pg_snapshot_xmin"),
                horizon("pg_snapshot_xmax")
            ));
            "place ASC, writer ASC, seq ASC"
        } else {
            "time DESC, place DESC, writer DESC, seq DESC"
        };
        let sql = format!(
            "SELECT place, body FROM events {} ORDER BY {order} LIMIT {}",
            conditions.shown(),
            count(filter.limit)
        );
        let mut rows = self.rows(&sql, &conditions).await?;
        if filter.after.is_none() {
            rows.reverse();
        }
        rows.iter()
            .map(|row| {
                let (place, text): (i64, String) = (row.get(0), row.get(1));
                let event =
                    serde_json::from_str(&text).map_err(|error| corrupt("an event", &error))?;
                Ok(PlacedEvent { place: place.unsigned_abs(), event })
            })
            .collect()
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
                "SELECT e.writer, e.seq, e.body,
                     e.time, e.tool, e.agent, e.call_id, e.status, e.code, e.receipt_id,
                     e.has_log::int::text, e.milestone::int::text,
                     l.id, l.time, l.tool, l.agent, l.turn::text, l.phase, l.epic, l.call_id,
                     l.is_error::int::text,
                     NULL::text, r.receipt_id, r.call_id, r.tool, r.state, r.writer, r.fence::text,
                     CASE WHEN r.receipt_id IS NULL THEN NULL ELSE coalesce(r.settled, '') END,
                     l.body, l.zbody, r.body, r.zbody,
                     ARRAY(SELECT k.key FROM keys k WHERE k.receipt_id = r.receipt_id)
                 FROM events e
                 LEFT JOIN agent_logs l ON l.writer = e.writer AND l.seq = e.seq
                 LEFT JOIN receipts r ON r.receipt_id = e.receipt_id
                 WHERE (e.writer, e.seq) > ($1, $2) ORDER BY e.writer, e.seq LIMIT $3"
            }
            Include::Events => {
                "SELECT writer, seq, body FROM events
                 WHERE (writer, seq) > ($1, $2) ORDER BY writer, seq LIMIT $3"
            }
            Include::Milestones => {
                "SELECT writer, seq, body FROM events
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
                    bytes: row.get(2),
                    ..RawEntry::default()
                },
            })
            .collect())
    }

    async fn heads(&self) -> Result<Vec<WriterHead>, LedgerError> {
        let sql = format!("SELECT {HEAD} FROM writers w ORDER BY w.writer");
        Ok(self.rows(&sql, &Conditions::default()).await?.iter().map(head).collect())
    }

    async fn gone_page(
        &self,
        after: Option<(String, u64)>,
        limit: usize,
    ) -> Result<Vec<(String, Gone)>, LedgerError> {
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
            // What is no hash fits no root.
            let root = Hash::parse(row.get(3)).unwrap_or(Hash([0; 32]));
            (row.get(0), Gone { seq: seq.unsigned_abs(), size: size.unsigned_abs(), root })
        };
        Ok(rows.iter().map(part).collect())
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
            "SELECT l.id FROM agent_logs l
             LEFT JOIN events e ON e.writer = l.writer AND e.seq = l.seq AND e.has_log
             WHERE e.writer IS NULL AND {lacking} n.writer = l.writer AND l.seq < n.size)
             ORDER BY l.id LIMIT 100"
        );
        let receipts = format!(
            "SELECT r.receipt_id FROM receipts r
             WHERE NOT EXISTS (SELECT 1 FROM events e
                     WHERE e.call_id = r.call_id AND e.receipt_id = r.receipt_id)
                 AND {lacking} n.writer = r.writer)
             ORDER BY r.receipt_id LIMIT 100"
        );
        let keys = "SELECT k.key FROM keys k WHERE NOT EXISTS (
                        SELECT 1 FROM receipts r WHERE r.receipt_id = k.receipt_id)
                    ORDER BY k.key LIMIT 100";
        let ids = |rows: Vec<Row>| rows.iter().map(|row| row.get(0)).collect();
        Ok(Unaccounted {
            logs: if logs_match { Vec::new() } else { ids(self.rows(&logs, &excused).await?) },
            receipts: if receipts_match {
                Vec::new()
            } else {
                ids(self.rows(&receipts, &excused).await?)
            },
            keys: ids(self.rows(keys, &none).await?),
            milestones: Vec::new(),
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
             FROM approvals a {} ORDER BY a.approval_id LIMIT {}",
            conditions.shown(),
            count(limit)
        );
        let raw = |row: &Row| RawApproval {
            id: row.get(0),
            bytes: row.get(1),
            event: row.get(2),
            columns: (3..8).map(|at| column(row, at)).collect(),
        };
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
        self.calls("(caller, call_id) > ($1, $2)", after.unwrap_or_default(), limit).await
    }

    async fn healthy(&self) -> Result<(), LedgerError> {
        self.rows("SELECT 1", &Conditions::default()).await.map(drop)
    }
}
