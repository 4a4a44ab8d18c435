//! Reads the store on separate connections, which never block the writer.
//!
//! Doc: records.md#reading

mod reader_threads;
mod search;
mod unaccounted;

use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use rusqlite::{Connection, OptionalExtension};
use toolbooth_audit::LedgerError;
use toolbooth_audit::backend::pruning::PrunedRange;
use toolbooth_audit::backend::working::CallName;
use toolbooth_audit::charges::RawBudget;
use toolbooth_audit::documents::{RawDocument, checked};
use toolbooth_audit::history::{WindowName, WindowTotals};
use toolbooth_audit::orders::RawOrder;
use toolbooth_audit::queue::{QueuedCall, RawCall};
use toolbooth_audit::reads::{
    Accounted, ApprovalFilter, EventFilter, FoundId, Include, LedgerReads, LogFilter, Page,
    PlacedEvent, RawApproval, RawEntry, ReceiptFilter, Unaccounted, WriterHead,
};
use toolbooth_contracts::agent_log::AgentLog;
use toolbooth_contracts::order::OrderName;
use toolbooth_contracts::receipt::{AuditPlace, Receipt};

use self::reader_threads::{QueryKind, Reader, Readers};
use self::search::receipt;
use self::unaccounted::unaccounted;
use super::approvals;
use super::compact::Shown;
use super::error::OpenError;
use super::log_pages::{RawText, log_page, pruned_ranges, writer_name};
use super::queries::{EVENT, body, budget_row, limited, orders, readable, window};
use super::rows::{CALL, HEAD, call, head_of};
use super::schema::place;
use super::search_index;
use super::{structure, unavailable};
use crate::packing;

/// Read access to a store, without a writer.
#[derive(Debug, Clone)]
pub struct SqliteReads {
    readers: Arc<Readers>,
}

impl SqliteReads {
    /// Opens an existing database for reading.
    ///
    /// # Errors
    /// [`OpenError`]; [`OpenError::Older`] if the database was not migrated yet.
    pub fn open(path: &Path) -> Result<Self, OpenError> {
        Ok(Self { readers: Arc::new(Readers::start(path)?) })
    }

    async fn run<T: Send + 'static>(
        &self,
        query: impl FnOnce(&mut Reader) -> Result<T, LedgerError> + Send + 'static,
    ) -> Result<T, LedgerError> {
        self.readers.run(QueryKind::Any, query).await
    }
}

/// Returns asynchronous calls, with the events that they name and that account for them. A row with
/// invalid text in a column is omitted; [`unaccounted`] returns it.
fn calls(
    database: &Connection,
    which: &str,
    name: Option<CallName>,
    limit: usize,
) -> Result<Vec<RawCall>, LedgerError> {
    let sql = format!("SELECT {CALL} FROM queue WHERE {which} ORDER BY caller, call_id LIMIT ?3");
    let mut statement = database.prepare_cached(&sql).map_err(unavailable)?;
    let read = |row: &rusqlite::Row<'_>| {
        let at: Option<(RawText, RawText)> = Some((row.get(1)?, row.get(0)?));
        let found: rusqlite::Result<(QueuedCall, String)> =
            call(row).and_then(|call| Ok((call, row.get(3)?)));
        Ok((at, found.ok()))
    };
    let raw = |text: String| RawText(text.into_bytes());
    let name = name.map(|(caller, call_id)| (raw(caller), raw(call_id)));
    let found = readable(name, limit, |name| {
        let caller = name.as_ref().map(|name| &name.0);
        let call_id = name.as_ref().map(|name| &name.1);
        statement.query_map((caller, call_id, limited(limit)), read)?.collect()
    })?;
    let event = |at: &Option<AuditPlace>| -> Result<Option<String>, LedgerError> {
        let Some(at) = at else { return Ok(None) };
        let sql = "SELECT no FROM writers WHERE writer = ?1";
        let no: Option<i64> = database
            .query_row(sql, [&at.writer], |row| row.get(0))
            .optional()
            .map_err(unavailable)?;
        let Some(no) = no else { return Ok(None) };
        let seq = i64::try_from(at.seq).unwrap_or(i64::MAX);
        let body = body(database, EVENT, place(no, seq))?;
        Ok(body.and_then(|body| packing::unpack(&body).ok()))
    };
    let raw = |(call, state): (QueuedCall, String)| {
        let (queued, finished) = (event(&call.queued_by)?, event(&call.finished_by)?);
        Ok(RawCall { call, state, queued, finished })
    };
    found.into_iter().map(raw).collect()
}

fn budget_page(
    database: &Connection,
    after: Option<String>,
    limit: usize,
) -> Result<Vec<RawBudget>, LedgerError> {
    let sql = "SELECT key, day, units, changed_by FROM budgets WHERE ?1 IS NULL OR key > ?1
               ORDER BY key LIMIT ?2";
    let mut statement = database.prepare_cached(sql).map_err(unavailable)?;
    let read = |row: &rusqlite::Row<'_>| {
        let at: RawText = row.get(0)?;
        let key = at.text().map(str::to_owned);
        let row = budget_row(row, 1)?;
        Ok((Some(at), key.map(|key| RawBudget { key, row })))
    };
    readable(after.map(|key| RawText(key.into_bytes())), limit, |after| {
        statement.query_map((after, limited(limit)), read)?.collect()
    })
}

fn document(database: &Connection, digest: &str) -> Result<Option<String>, LedgerError> {
    let sql = "SELECT body FROM documents WHERE digest = ?1";
    let body: Option<Vec<u8>> = database
        .prepare_cached(sql)
        .and_then(|mut statement| statement.query_row([digest], |row| row.get(0)).optional())
        .map_err(unavailable)?;
    let Some(body) = body else { return Ok(None) };
    checked(digest, packing::unpack(&body).ok()).map(Some)
}

fn document_page(
    database: &Connection,
    after: Option<String>,
    limit: usize,
) -> Result<Vec<RawDocument>, LedgerError> {
    let sql = "SELECT digest, body FROM documents WHERE ?1 IS NULL OR digest > ?1
               ORDER BY digest LIMIT ?2";
    let mut statement = database.prepare_cached(sql).map_err(unavailable)?;
    let read = |row: &rusqlite::Row<'_>| {
        let at: RawText = row.get(0)?;
        let digest = at.text().map(str::to_owned);
        let text = packing::unpack(&row.get::<_, Vec<u8>>(1)?).ok();
        Ok((Some(at), digest.map(|digest| RawDocument { digest, text })))
    };
    readable(after.map(|digest| RawText(digest.into_bytes())), limit, |after| {
        statement.query_map((after, limited(limit)), read)?.collect()
    })
}

#[async_trait]
impl LedgerReads for SqliteReads {
    async fn receipt(&self, receipt_id: &str) -> Result<Option<Receipt>, LedgerError> {
        let id = receipt_id.to_owned();
        self.run(move |reader| receipt(&reader.database, &id)).await
    }

    async fn receipts(&self, filter: ReceiptFilter) -> Result<Page<Receipt>, LedgerError> {
        self.run(move |reader| reader.receipts(&filter)).await
    }

    async fn agent_log(&self, id: &str) -> Result<Option<AgentLog>, LedgerError> {
        let id = id.to_owned();
        self.run(move |reader| reader.agent_log(&id)).await
    }

    async fn agent_logs(&self, filter: LogFilter) -> Result<Page<AgentLog>, LedgerError> {
        self.run(move |reader| reader.agent_logs(&filter)).await
    }

    async fn events(&self, filter: EventFilter) -> Result<Page<PlacedEvent>, LedgerError> {
        self.run(move |reader| reader.events(&filter)).await
    }

    async fn named(&self, prefix: &str, limit: usize) -> Result<Vec<FoundId>, LedgerError> {
        let prefix = prefix.to_owned();
        self.run(move |reader| reader.lookup()?.0.named(&prefix, limit)).await
    }

    async fn log_page(
        &self,
        after: Option<(String, u64)>,
        limit: usize,
        include: Include,
    ) -> Result<Vec<RawEntry>, LedgerError> {
        self.run(move |reader| log_page(&reader.database, after, limit, include)).await
    }

    async fn heads(&self) -> Result<Vec<WriterHead>, LedgerError> {
        self.run(|reader| {
            let sql = format!("SELECT {HEAD}, no FROM writers ORDER BY writer");
            let mut statement = reader.database.prepare_cached(&sql).map_err(unavailable)?;
            let read = |row: &rusqlite::Row<'_>| {
                let name = writer_name(&row.get(0)?, row.get(8)?).0;
                let text = |at| Ok(row.get::<_, Option<Shown>>(at)?.map(|shown| shown.0));
                head_of(row, name, text)
            };
            let heads = statement.query_map([], read).map_err(unavailable)?;
            heads.collect::<rusqlite::Result<Vec<WriterHead>>>().map_err(unavailable)
        })
        .await
    }

    async fn pruned_ranges(
        &self,
        after: Option<(String, u64)>,
        limit: usize,
    ) -> Result<Vec<(String, PrunedRange)>, LedgerError> {
        self.run(move |reader| pruned_ranges(&reader.database, after, limit)).await
    }

    async fn window(&self, name: WindowName, at_ms: i64) -> Result<WindowTotals, LedgerError> {
        self.run(move |reader| window(&reader.database, &name, at_ms, None).map_err(unavailable))
            .await
    }

    async fn key_ids(&self) -> Result<Option<Vec<String>>, LedgerError> {
        self.run(|reader| {
            let sql = "SELECT key_id FROM digest_keys";
            let mut statement = reader.database.prepare_cached(sql).map_err(unavailable)?;
            let read = |row: &rusqlite::Row<'_>| Ok(row.get::<_, Shown>(0)?.0);
            let ids = statement.query_map([], read).map_err(unavailable)?;
            ids.collect::<rusqlite::Result<_>>().map(Some).map_err(unavailable)
        })
        .await
    }

    async fn unaccounted(&self, known: Accounted) -> Result<Unaccounted, LedgerError> {
        self.run(move |reader| unaccounted(&reader.database, &known)).await
    }

    async fn index_differences(&self) -> Result<Vec<String>, LedgerError> {
        self.run(|reader| search_index::differences(&reader.database, &reader.path)).await
    }

    async fn structure_differences(&self) -> Result<Vec<String>, LedgerError> {
        self.run(|reader| structure::differences(&reader.database)).await
    }

    async fn approval_page(
        &self,
        after: Option<String>,
        limit: usize,
    ) -> Result<Vec<RawApproval>, LedgerError> {
        self.run(move |reader| approvals::page(&reader.database, after, limit)).await
    }

    async fn approvals(&self, filter: ApprovalFilter) -> Result<Vec<RawApproval>, LedgerError> {
        self.run(move |reader| approvals::newest(&reader.database, &filter)).await
    }

    async fn order_page(
        &self,
        after: Option<OrderName>,
        limit: usize,
    ) -> Result<Vec<RawOrder>, LedgerError> {
        let query = move |reader: &mut Reader| {
            let mut most = limit;
            loop {
                let mut found =
                    orders(&reader.database, after.as_ref(), limited(most)).map_err(unavailable)?;
                // A page does not end with a name whose text is invalid, because the next page
                // starts after the name as it is shown.
                let ends_invalid = found.last().is_some_and(|raw| raw.name.contains('\u{fffd}'));
                if ends_invalid && found.len() == most {
                    most = most.saturating_mul(2);
                    continue;
                }
                found.retain(|raw| after.as_ref().is_none_or(|after| raw.order_name() > *after));
                return Ok(found);
            }
        };
        self.readers.run(QueryKind::Orders, query).await
    }

    async fn budget_page(
        &self,
        after: Option<String>,
        limit: usize,
    ) -> Result<Vec<RawBudget>, LedgerError> {
        self.run(move |reader| budget_page(&reader.database, after, limit)).await
    }

    async fn document(&self, digest: &str) -> Result<Option<String>, LedgerError> {
        let digest = digest.to_owned();
        self.run(move |reader| document(&reader.database, &digest)).await
    }

    async fn document_page(
        &self,
        after: Option<String>,
        limit: usize,
    ) -> Result<Vec<RawDocument>, LedgerError> {
        self.run(move |reader| document_page(&reader.database, after, limit)).await
    }

    async fn queued(&self, caller: &str, call_id: &str) -> Result<Option<RawCall>, LedgerError> {
        let name = (caller.to_owned(), call_id.to_owned());
        self.run(move |reader| {
            // At most one row exists. A page with fewer rows than the limit is the last one, so no
            // further page is read.
            let found = calls(&reader.database, "(caller, call_id) = (?1, ?2)", Some(name), 2)?;
            Ok(found.into_iter().next())
        })
        .await
    }

    async fn call_page(
        &self,
        after: Option<CallName>,
        limit: usize,
    ) -> Result<Vec<RawCall>, LedgerError> {
        self.run(move |reader| {
            let which = "(?1 IS NULL OR (caller, call_id) > (?1, ?2))";
            calls(&reader.database, which, after, limit)
        })
        .await
    }

    async fn healthy(&self) -> Result<(), LedgerError> {
        let ask = |reader: &mut Reader| {
            reader.database.query_row("SELECT 1", [], |_| Ok(())).map_err(unavailable)
        };
        self.run(ask).await
    }
}
