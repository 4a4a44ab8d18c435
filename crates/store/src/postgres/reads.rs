//! Reads the store over a read-only pool.
//!
//! Doc: records.md#reading

mod agent_logs;
mod conditions;
mod events;
mod pool;
mod raw_entries;
mod unaccounted;

use async_trait::async_trait;
use deadpool_postgres::Pool;
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
    Accounted, ApprovalFilter, EventFilter, FoundId, IdKind, Include, LedgerReads, LogFilter, Page,
    PlacedEvent, RawApproval, RawEntry, ReceiptFilter, Unaccounted, WriterHead,
};
use toolbooth_contracts::agent_log::AgentLog;
use toolbooth_contracts::order::OrderName;
use toolbooth_contracts::receipt::{AuditPlace, Receipt};

use self::conditions::{Conditions, count, fetched};
use self::pool::rows_over;
use super::connect::{READERS, Server};
use super::error::OpenError;
use super::rows::{call, head, raw_budget, raw_order, window};
use super::statements::{
    ACCOUNTED_APPROVALS, ACCOUNTED_ORDERS, ACCOUNTING_EVENT, CALL, EVENT, HEAD, WINDOWS,
};
use super::{clean, schema};
use crate::body;
use crate::packing;

/// Read access to a store, without a writer.
#[derive(Debug, Clone)]
pub struct PostgresReads {
    pool: Pool,
    /// For orders alone: keys are accepted only while they are read every few seconds, so no search may hold them up.
    orders: Pool,
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

impl PostgresReads {
    pub(super) fn over(server: &Server) -> Result<Self, OpenError> {
        Ok(Self { pool: server.pool(READERS)?, orders: server.pool(1)? })
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

    async fn rows(&self, sql: &str, conditions: &Conditions) -> Result<Vec<Row>, LedgerError> {
        rows_over(&self.pool, sql, conditions).await
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
        self.agent_log_by_id(id).await
    }

    async fn agent_logs(&self, filter: LogFilter) -> Result<Page<AgentLog>, LedgerError> {
        self.agent_logs_page(&filter).await
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
        self.raw_entries(after, limit, include).await
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
        self.find_unaccounted(known).await
    }

    async fn approval_page(
        &self,
        after: Option<String>,
        limit: usize,
    ) -> Result<Vec<RawApproval>, LedgerError> {
        let mut conditions = Conditions::default();
        conditions.text("a.approval_id >", after);
        let sql = format!(
            "SELECT a.approval_id, a.body, {ACCOUNTING_EVENT},
                 a.tool, a.caller, a.args_digest, a.contract_digest, a.state
             FROM {ACCOUNTED_APPROVALS} {} ORDER BY a.approval_id LIMIT {}",
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
            "SELECT a.approval_id, a.body, {ACCOUNTING_EVENT},
                 a.tool, a.caller, a.args_digest, a.contract_digest, a.state
             FROM {ACCOUNTED_APPROVALS} {} ORDER BY a.approval_id DESC LIMIT {}",
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
            "SELECT a.kind, a.name, a.body, {ACCOUNTING_EVENT}, a.used FROM {ACCOUNTED_ORDERS} {}
             ORDER BY (a.kind || ':' || a.name) COLLATE \"C\" LIMIT {}",
            conditions.shown(),
            count(limit)
        );
        let rows = rows_over(&self.orders, &sql, &conditions).await?;
        Ok(rows.iter().map(raw_order).collect())
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
