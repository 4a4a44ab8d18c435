//! Finds receipts, agent logs and events, by the search index where it helps.
//!
//! Doc: records.md#reading

use rusqlite::{Connection, OptionalExtension};
use toolbooth_audit::LedgerError;
use toolbooth_audit::reads::{EventFilter, LogFilter, Page, PlacedEvent, ReceiptFilter};
use toolbooth_contracts::Status;
use toolbooth_contracts::agent_log::AgentLog;
use toolbooth_contracts::event::AuditEvent;
use toolbooth_contracts::receipt::{ClaimState, Receipt};

use super::Reader;
use crate::sqlite::compact::{Compact, Shown};
use crate::sqlite::queries::{EVENT, LOG, body};
use crate::sqlite::rows::{RECEIPT, receipt_row};
use crate::sqlite::schema::SEQ_BITS;
use crate::sqlite::search_index::{Lookup, Search};
use crate::sqlite::{result_reference, unavailable, unreadable_at};
use crate::{Unreadable, packing};

pub(super) fn receipt(connection: &Connection, id: &str) -> Result<Option<Receipt>, LedgerError> {
    let row = connection
        .prepare_cached(RECEIPT)
        .and_then(|mut statement| statement.query_row([Compact::of(id)], receipt_row).optional())
        .map_err(unavailable)?;
    row.map(|(_, body)| packing::read(&body))
        .transpose()
        .map_err(|damage| damage.at("receipts", id))
}

/// Reads the event that is stored at `place`.
fn read_event(place: i64, stored: &[u8]) -> Result<AuditEvent, LedgerError> {
    packing::read(stored).map_err(|damage| damage.at(EVENT, place))
}

/// Reads the agent log that is stored at `place`, including the part that it shares with its
/// receipt.
pub(super) fn read_log(
    database: &Connection,
    place: i64,
    stored: &[u8],
) -> Result<AgentLog, LedgerError> {
    let text = result_reference::unpack(stored, place, |id| {
        let sql = "SELECT body FROM receipts WHERE id = ?1";
        let body: Option<Vec<u8>> = database
            .prepare_cached(sql)
            .and_then(|mut statement| {
                statement.query_row([Compact::of(id)], |row| row.get(0)).optional()
            })
            .map_err(unavailable)?;
        let damaged = |damage: Unreadable| damage.at("receipts", id);
        body.map(|body| packing::unpack(&body).map_err(damaged)).transpose()
    })?;
    serde_json::from_str(&text).map_err(|error| Unreadable::of(error).at(LOG, place))
}

impl Reader {
    /// Returns the updated search index and the database.
    pub(super) fn lookup(&mut self) -> Result<(&Lookup, &Connection), LedgerError> {
        let mut lookup = match self.lookup.take() {
            Some(lookup) if !lookup.is_outdated() => lookup,
            _ => Lookup::open(&self.path).map_err(unavailable)?,
        };
        lookup.catch_up_to_search(&self.database)?;
        Ok((self.lookup.insert(lookup), &self.database))
    }

    /// Calls `fits` with the number and place of each candidate, until it returns `false`. The
    /// order is newest first, or oldest first after an entry.
    fn search(
        &mut self,
        search: &Search,
        mut fits: impl FnMut(&Connection, i64, i64) -> Result<bool, LedgerError>,
    ) -> Result<(), LedgerError> {
        let (lookup, database) = self.lookup()?;
        lookup.search(search, |no, place| fits(database, no, place))
    }

    pub(super) fn agent_logs(&mut self, filter: &LogFilter) -> Result<Page<AgentLog>, LedgerError> {
        let search = Search {
            tool: filter.tool.clone(),
            agent: filter.agent.clone(),
            caller: filter.caller.clone(),
            code: filter.code.clone(),
            call: filter.call.clone(),
            since: filter.since.clone(),
            until: filter.until.clone(),
            has_log: true,
            ..Search::default()
        };
        let mut page = Page::default();
        if filter.limit == 0 {
            return Ok(page);
        }
        self.search(&search, |database, _, place| {
            let Some(body) = body(database, LOG, place)? else { return Ok(true) };
            page.add(read_log(database, place, &body), |log| filter.fits(log))?;
            Ok(page.found.len() < filter.limit)
        })?;
        page.found.reverse();
        Ok(page)
    }

    pub(super) fn events(
        &mut self,
        filter: &EventFilter,
    ) -> Result<Page<PlacedEvent>, LedgerError> {
        let search = Search {
            tool: filter.tool.clone(),
            agent: filter.agent.clone(),
            caller: filter.caller.clone(),
            code: filter.code.clone(),
            status: filter.status.clone(),
            call: filter.call.clone(),
            since: filter.since.clone(),
            until: filter.until.clone(),
            after: filter.after.map(|after| i64::try_from(after).unwrap_or(i64::MAX)),
            ..Search::default()
        };
        let mut page = Page::default();
        if filter.limit == 0 {
            return Ok(page);
        }
        self.search(&search, |database, no, place| {
            let Some(body) = body(database, EVENT, place)? else { return Ok(true) };
            let event = read_event(place, &body)
                .map(|event| PlacedEvent { place: no.unsigned_abs(), event });
            page.add(event, |placed| filter.fits(&placed.event))?;
            Ok(page.found.len() < filter.limit)
        })?;
        if filter.after.is_none() {
            page.found.reverse();
        }
        Ok(page)
    }

    pub(super) fn receipts(
        &mut self,
        filter: &ReceiptFilter,
    ) -> Result<Page<Receipt>, LedgerError> {
        let mut page = match self.search_of(filter)? {
            Some(search) => self.searched_receipts(filter, &search)?,
            None => self.listed_receipts(filter)?,
        };
        page.truncate(filter.limit);
        Ok(page)
    }

    /// Returns the search for receipts by the events that name them. `None` if listing the receipts
    /// is as fast, or if events are missing.
    fn search_of(&self, filter: &ReceiptFilter) -> Result<Option<Search>, LedgerError> {
        let succeeded = || Some(Status::Succeeded.as_str().to_owned());
        let state = filter.state.as_deref().and_then(ClaimState::parse);
        let (status, not_status) = match state {
            Some(ClaimState::Succeeded) => (succeeded(), None),
            Some(ClaimState::Failed) => (None, succeeded()),
            // Few receipts are open, so listing them is as fast.
            Some(_) => return Ok(None),
            None => (None, None),
        };
        let names_one = [&filter.tool, &filter.caller, &filter.call].iter().any(|of| of.is_some());
        if !names_one && state.is_none() {
            return Ok(None);
        }
        if filter.call.is_none() {
            // Pruning retains the first event of a log. If it is missing, an earlier version
            // removed it, and events of receipts with it.
            let sql = "SELECT EXISTS (SELECT 1 FROM writers JOIN gone ON place = no << ?1)";
            let lacks = self.database.query_row(sql, [SEQ_BITS], |row| row.get::<_, bool>(0));
            if lacks.map_err(unavailable)? {
                return Ok(None);
            }
        }
        Ok(Some(Search {
            tool: filter.tool.clone(),
            caller: filter.caller.clone(),
            call: filter.call.clone(),
            status,
            not_status,
            ..Search::default()
        }))
    }

    fn searched_receipts(
        &mut self,
        filter: &ReceiptFilter,
        search: &Search,
    ) -> Result<Page<Receipt>, LedgerError> {
        let mut page = Page::default();
        let (lookup, database) = self.lookup()?;
        lookup.receipts(search, filter.after.as_deref(), |id| {
            if let Some(receipt) = receipt(database, id).transpose() {
                page.add(receipt, |receipt| filter.fits(receipt))?;
            }
            Ok(page.found.len() <= filter.limit)
        })?;
        Ok(page)
    }

    fn listed_receipts(&self, filter: &ReceiptFilter) -> Result<Page<Receipt>, LedgerError> {
        let mut page = Page::default();
        let tables = match filter.state.as_deref().and_then(ClaimState::parse) {
            Some(ClaimState::Succeeded | ClaimState::Failed) => &["receipts", "tombstones"][..],
            Some(_) => &["open_receipts"][..],
            None => &["receipts", "tombstones", "open_receipts"][..],
        };
        let of = |table: &&str| format!("SELECT id, body FROM {table} WHERE ?1 IS NULL OR id < ?1");
        let tables: Vec<String> = tables.iter().map(of).collect();
        let sql = format!("{} ORDER BY id DESC", tables.join(" UNION ALL "));
        let mut statement = self.database.prepare_cached(&sql).map_err(unavailable)?;
        let after = filter.after.as_deref().map(Compact::of);
        let mut rows = statement.query([after]).map_err(unavailable)?;
        while page.found.len() <= filter.limit
            && let Some(row) = rows.next().map_err(unavailable)?
        {
            let id: Shown = row.get(0).map_err(unavailable)?;
            let body: Vec<u8> = row.get(1).map_err(unreadable_at("receipts", &id.0))?;
            let receipt = packing::read(&body).map_err(|damage| damage.at("receipts", &id.0));
            page.add(receipt, |receipt| filter.fits(receipt))?;
        }
        Ok(page)
    }

    /// Returns the search for an agent log by its id, near the creation time of a UUIDv7 (RFC 9562,
    /// 5.7).
    fn near(&self, id: &str) -> Result<Search, LedgerError> {
        const AROUND_MS: i64 = 10_000;
        let Some(made) = crate::digits::made_ms(id) else {
            return Ok(Search { has_log: true, ..Search::default() });
        };
        let time = |ms: i64| {
            let sql = "SELECT strftime('%Y-%m-%dT%H:%M:%fZ', ?1 / 1000.0, 'unixepoch')";
            self.database.query_row(sql, [ms], |row| row.get(0)).map_err(unavailable)
        };
        let (since, until) = (time(made - AROUND_MS)?, time(made + AROUND_MS)?);
        Ok(Search { since, until, has_log: true, ..Search::default() })
    }

    pub(super) fn agent_log(&mut self, id: &str) -> Result<Option<AgentLog>, LedgerError> {
        let (mut found, mut damaged) = (None, None);
        let near = self.near(id)?;
        for search in [near, Search { has_log: true, ..Search::default() }] {
            self.search(&search, |database, _, place| {
                let Some(body) = body(database, LOG, place)? else { return Ok(true) };
                match read_log(database, place, &body) {
                    Ok(log) => found = Some(log).filter(|log| log.id == id),
                    // The damaged log may be the requested one.
                    Err(error @ LedgerError::Damaged(_)) => {
                        damaged = damaged.take().or(Some(error))
                    }
                    Err(error) => return Err(error),
                }
                Ok(found.is_none())
            })?;
            // A UUIDv7 that is not found near its creation time does not exist.
            if found.is_some() || search.since.is_some() {
                break;
            }
        }
        match (found, damaged) {
            (None, Some(damaged)) => Err(damaged),
            (found, _) => Ok(found),
        }
    }
}
