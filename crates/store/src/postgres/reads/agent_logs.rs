//! Finds agent logs, and completes them by their receipts.
//!
//! Doc: records.md#reading

use tokio_postgres::Row;
use tokio_postgres::types::ToSql;
use toolbooth_audit::LedgerError;
use toolbooth_audit::reads::{LogFilter, Page};
use toolbooth_contracts::agent_log::AgentLog;

use super::PostgresReads;
use super::conditions::{Conditions, PAGE_MAX, PAGE_MIN};
use crate::digits::{made_ms, uuid};
use crate::postgres::clean;
use crate::postgres::rows::log_text;
use crate::{Unreadable, body};

/// Columns of agent logs as [`log`] reads them.
const LOG: &str = "l.body, l.zbody, l.shared, r.body, r.zbody, l.writer || ' ' || l.seq";

/// Agent logs, joined with their events and receipts.
const LOGS: &str = "agent_logs l JOIN events e ON e.writer = l.writer AND e.seq = l.seq
                    LEFT JOIN receipts r ON r.receipt_id = e.receipt_id";

/// Maximum distance between the time of an id and that of its record.
const AROUND_MS: i64 = 10_000;

/// Reads an agent log, including the part that its receipt has.
fn log(row: &Row) -> Result<AgentLog, LedgerError> {
    let text = log_text_at(row, 0);
    text.and_then(|text| serde_json::from_str(&text).map_err(Unreadable::of))
        .map_err(|damage| damage.at("agent_logs", row.get::<_, String>(5)))
}

/// Returns the text of an agent log. Its columns, and those of its receipt, begin at the column
/// `at`.
pub(super) fn log_text_at(row: &Row, at: usize) -> Result<String, Unreadable> {
    log_text((row.get(at), row.get(at + 1), row.get(at + 2)), || {
        let text: Option<String> = row.get(at + 3);
        text.map(|text| body::unpack(text, row.get(at + 4))).transpose()
    })
}

impl PostgresReads {
    /// Returns the agent log with an id.
    pub(super) async fn agent_log_by_id(&self, id: &str) -> Result<Option<AgentLog>, LedgerError> {
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

    /// Returns a page of agent logs, in the order of time.
    pub(super) async fn agent_logs_page(
        &self,
        filter: &LogFilter,
    ) -> Result<Page<AgentLog>, LedgerError> {
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
}
