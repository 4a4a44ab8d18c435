//! Reads approvals as stored.
//!
//! Doc: records.md#reading

use rusqlite::Connection;
use toolbooth_audit::LedgerError;
use toolbooth_audit::approvals::{ApprovalFilter, RawApproval};

use super::compact::Shown;
use super::log_pages::{RawText, column};
use super::queries::{limited, readable};
use super::schema::SEQ_BITS;
use super::unavailable;
use crate::packing;

/// The columns of an approval with its event; `?1` are the bits of a sequence number.
const COLUMNS: &str = "approval_id, body, tool, caller, args_digest, contract_digest, state,
    (SELECT e.body FROM events e WHERE e.place = (
        SELECT w.no << ?1 | (a.body ->> '$.auditSeq.seq') FROM writers w
        WHERE json_valid(a.body) AND w.writer = a.body ->> '$.auditSeq.writer'))";

/// Returns the id as stored, and the approval if the id can be read.
fn read(row: &rusqlite::Row<'_>) -> rusqlite::Result<(Option<RawText>, Option<RawApproval>)> {
    let at: RawText = row.get(0)?;
    let id = at.text().map(str::to_owned);
    let columns = (2..7).map(|at| column(row, at)).collect::<Result<Vec<_>, _>>()?;
    let event: Option<Vec<u8>> = row.get(7)?;
    let event = event.and_then(|body| packing::unpack(&body).ok());
    let bytes = row.get::<_, Shown>(1)?.0;
    Ok((Some(at), id.map(|id| RawApproval { id, bytes, columns, event })))
}

/// Returns approvals in pages after an id.
pub(super) fn page(
    database: &Connection,
    after: Option<String>,
    limit: usize,
) -> Result<Vec<RawApproval>, LedgerError> {
    let sql = format!(
        "SELECT {COLUMNS} FROM approvals a WHERE ?2 IS NULL OR approval_id > ?2
         ORDER BY approval_id LIMIT ?3"
    );
    let mut statement = database.prepare_cached(&sql).map_err(unavailable)?;
    readable(after.map(|id| RawText(id.into_bytes())), limit, |after| {
        statement.query_map((SEQ_BITS, after, limited(limit)), read)?.collect()
    })
}

/// Returns the newest approvals that pass a filter. Rows that cannot be read are left out.
pub(super) fn newest(
    database: &Connection,
    filter: &ApprovalFilter,
) -> Result<Vec<RawApproval>, LedgerError> {
    let sql = format!(
        "SELECT {COLUMNS} FROM approvals a
         WHERE (?2 IS NULL OR approval_id = ?2) AND (?3 IS NULL OR state = ?3)
             AND (?4 IS NULL OR tool = ?4) AND (?5 IS NULL OR caller = ?5)
             AND (?6 IS NULL OR approval_id < ?6)
         ORDER BY approval_id DESC LIMIT ?7"
    );
    let mut statement = database.prepare_cached(&sql).map_err(unavailable)?;
    let given = (
        SEQ_BITS,
        &filter.id,
        filter.state.map(|state| state.as_str()),
        &filter.tool,
        &filter.caller,
        &filter.before,
        limited(filter.limit),
    );
    let rows = statement.query_map(given, read).map_err(unavailable)?;
    let found: Result<Vec<_>, _> = rows.collect();
    Ok(found.map_err(unavailable)?.into_iter().filter_map(|(_, approval)| approval).collect())
}
