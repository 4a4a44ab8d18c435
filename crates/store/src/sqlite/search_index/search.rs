//! Searches the index: scans the blocks that may have matching events, newest first.
//!
//! Doc: records.md#reading

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};

use rusqlite::OptionalExtension;
use toolbooth_audit::LedgerError;
use toolbooth_audit::reads::{FoundId, IdKind};

use super::Lookup;
use super::blocks::{Block, Column, Id, Ids, text_of};
use super::entry::time_number;
use super::write::tail;
use crate::sqlite::unavailable;

/// A search for events; all conditions must hold.
#[derive(Debug, Clone, Default)]
pub(in crate::sqlite) struct Search {
    pub(in crate::sqlite) tool: Option<String>,
    pub(in crate::sqlite) agent: Option<String>,
    pub(in crate::sqlite) caller: Option<String>,
    pub(in crate::sqlite) code: Option<String>,
    pub(in crate::sqlite) status: Option<String>,
    /// Excludes events with this status, and events without a status.
    pub(in crate::sqlite) not_status: Option<String>,
    pub(in crate::sqlite) call: Option<String>,
    pub(in crate::sqlite) since: Option<String>,
    pub(in crate::sqlite) until: Option<String>,
    /// Only entries after this one, oldest first. Without it, newest first.
    pub(in crate::sqlite) after: Option<i64>,
    /// Only events with an agent log.
    pub(in crate::sqlite) has_log: bool,
}

/// A search in which names are the numbers of the file.
struct Wanted {
    names: Vec<(Column, u32)>,
    not_status: Option<u32>,
    call: Option<Id>,
    since: i64,
    until: i64,
    after: i64,
    has_log: bool,
}

/// The summary of a block, which may exclude it before its entries are read.
struct Summary {
    first: i64,
    oldest: i64,
    newest: i64,
    /// The least and the greatest of the block's UUIDs.
    uuids: Option<([u8; 16], [u8; 16])>,
    has_texts: bool,
    last_receipt: Option<String>,
    names: Vec<u8>,
    /// The entries themselves, if they are in no block yet.
    tail: Option<(Block, Ids)>,
}

pub(super) fn damaged() -> LedgerError {
    LedgerError::unavailable("the search index was damaged and is rebuilt; search again")
}

impl Summary {
    fn has_name(&self, name: u32) -> bool {
        let mut names = self.names.as_chunks::<4>().0.iter().map(|name| u32::from_le_bytes(*name));
        names.any(|own| own == name)
    }

    fn may_have(&self, id: &Id) -> bool {
        match id {
            Id::Uuid(id) => self.uuids.is_some_and(|(low, high)| low <= *id && *id <= high),
            Id::Text(_) => self.has_texts,
        }
    }

    fn may_fit(&self, wanted: &Wanted) -> bool {
        let after = wanted.after - self.first;
        self.newest >= wanted.since
            && self.oldest <= wanted.until
            && (self.tail.is_some() || after < super::BLOCK as i64)
            && wanted.names.iter().all(|(_, name)| self.has_name(*name))
            && wanted.call.as_ref().is_none_or(|call| self.may_have(call))
    }

    fn of_tail(first: i64, (block, ids): (Block, Ids)) -> Self {
        let uuids = ids.uuids.iter().min().copied().zip(ids.uuids.iter().max().copied());
        Self {
            first,
            oldest: block.times.iter().min().copied().unwrap_or_default(),
            newest: block.times.iter().max().copied().unwrap_or_default(),
            uuids,
            has_texts: !ids.texts.is_empty(),
            last_receipt: block.last_receipt(&ids),
            names: block.all_names().into_iter().flat_map(u32::to_le_bytes).collect(),
            tail: Some((block, ids)),
        }
    }
}

/// Returns the indexes of the entries in a block that match.
fn fitting(wanted: &Wanted, first: i64, block: &Block, call: Option<u16>) -> Vec<usize> {
    let is = |values: &[u32], at: usize, name: u32| values.get(at) == Some(&name);
    (0..block.len())
        .filter(|at| {
            let no = first + i64::try_from(*at).unwrap_or(i64::MAX);
            let time = block.times.get(*at).copied().unwrap_or_default();
            let status = || block.column(Column::Status).get(*at).copied().unwrap_or_default();
            no > wanted.after
                && (wanted.since..=wanted.until).contains(&time)
                && (!wanted.has_log || block.logs.get(*at) == Some(&1))
                && wanted.names.iter().all(|(column, name)| is(block.column(*column), *at, *name))
                && wanted.not_status.is_none_or(|not| status() != not && status() != 0)
                && call.is_none_or(|call| block.calls.get(*at) == Some(&call))
        })
        .collect()
}

impl Lookup {
    fn number(&self, name: &str) -> rusqlite::Result<Option<u32>> {
        self.connection
            .prepare_cached("SELECT no FROM names WHERE name = ?1")?
            .query_row([name], |row| row.get(0))
            .optional()
    }

    /// Translates the names of a search into numbers. `None` if a name never occurs, so that
    /// nothing matches.
    fn wanted(&self, search: &Search) -> Result<Option<Wanted>, LedgerError> {
        let mut names = Vec::new();
        for (column, name) in [
            (Column::Tool, &search.tool),
            (Column::Agent, &search.agent),
            (Column::Caller, &search.caller),
            (Column::Code, &search.code),
            (Column::Status, &search.status),
        ] {
            let Some(name) = name else { continue };
            let Some(number) = self.number(name).map_err(unavailable)? else { return Ok(None) };
            names.push((column, number));
        }
        let not_status = match &search.not_status {
            // A status that never occurs matches no event that has a status.
            Some(name) => Some(self.number(name).map_err(unavailable)?.unwrap_or(u32::MAX)),
            None => None,
        };
        Ok(Some(Wanted {
            names,
            not_status,
            call: search.call.as_deref().map(Id::of),
            since: search.since.as_deref().map_or(i64::MIN, time_number),
            until: search.until.as_deref().map_or(i64::MAX, time_number),
            after: search.after.unwrap_or_default(),
            has_log: search.has_log,
        }))
    }

    /// Returns the summaries of all blocks, and of the entries that are in no block yet.
    fn summaries(&self) -> Result<Vec<Summary>, LedgerError> {
        // One transaction, since entries move from rows into blocks between two queries.
        let transaction = self.connection.unchecked_transaction().map_err(unavailable)?;
        let mut statement = transaction
            .prepare_cached(
                "SELECT no, oldest, newest, low, high, has_texts, last_receipt, names FROM blocks
                 ORDER BY no",
            )
            .map_err(unavailable)?;
        let read = |row: &rusqlite::Row<'_>| {
            let (low, high): (Option<[u8; 16]>, Option<[u8; 16]>) = (row.get(3)?, row.get(4)?);
            Ok(Summary {
                first: row.get(0)?,
                oldest: row.get(1)?,
                newest: row.get(2)?,
                uuids: low.zip(high),
                has_texts: row.get(5)?,
                last_receipt: row.get(6)?,
                names: row.get(7)?,
                tail: None,
            })
        };
        let mut all: Vec<Summary> =
            statement.query_map([], read).and_then(Iterator::collect).map_err(unavailable)?;
        if let Some((first, entries)) = tail(&transaction, usize::MAX).map_err(unavailable)? {
            all.push(Summary::of_tail(first, Block::of(&entries)));
        }
        Ok(all)
    }

    fn column<T>(
        &self,
        sql: &str,
        no: i64,
        unpack: impl FnOnce(&[u8]) -> Option<T>,
    ) -> Result<T, LedgerError> {
        let packed: Option<Vec<u8>> = self
            .connection
            .prepare_cached(sql)
            .and_then(|mut statement| statement.query_row([no], |row| row.get(0)).optional())
            .map_err(unavailable)?;
        packed.and_then(|packed| unpack(&packed)).ok_or_else(|| {
            self.discard();
            damaged()
        })
    }

    /// Clears the index; the next search rebuilds it.
    fn discard(&self) {
        let cleared = self.connection.unchecked_transaction().and_then(|transaction| {
            Self::clear(&transaction)?;
            transaction.commit()
        });
        if let Err(error) = cleared {
            tracing::warn!(%error, "the search index is damaged");
        }
    }

    /// Returns the entries of a block, and its ids if `with_ids`.
    fn read(&self, of: &mut Summary, with_ids: bool) -> Result<(Block, Ids), LedgerError> {
        if let Some(tail) = of.tail.take() {
            return Ok(tail);
        }
        let sql = "SELECT entries FROM blocks WHERE no = ?1";
        let block = self.column(sql, of.first, Block::unpack)?;
        let ids = if with_ids { self.ids(of.first)? } else { Ids::default() };
        Ok((block, ids))
    }

    fn ids(&self, first: i64) -> Result<Ids, LedgerError> {
        self.column("SELECT ids FROM ids WHERE no = ?1", first, Ids::unpack)
    }

    /// Calls `take` with the number and place of each matching entry, until it returns `false`.
    pub(in crate::sqlite) fn search(
        &self,
        search: &Search,
        mut take: impl FnMut(i64, i64) -> Result<bool, LedgerError>,
    ) -> Result<(), LedgerError> {
        let Some(wanted) = self.wanted(search)? else { return Ok(()) };
        let mut blocks = self.summaries()?;
        blocks.retain(|block| block.may_fit(&wanted));
        let ascending = search.after.is_some();
        // Logs are indexed one after the other, so that only the time shows which entry is newer.
        if !ascending {
            blocks.sort_by_key(|block| Reverse(block.newest));
        }
        let mut found: BinaryHeap<(i64, i64, i64)> = BinaryHeap::new();
        let mut blocks = blocks.into_iter().peekable();
        loop {
            while let Some(mut block) = blocks.next_if(|block| {
                found.peek().is_none_or(|(time, ..)| !ascending && block.newest >= *time)
            }) {
                let first = block.first;
                let (entries, ids) = self.read(&mut block, wanted.call.is_some())?;
                let call = match &wanted.call {
                    Some(call) => match ids.number(call) {
                        Some(number) => Some(number),
                        None => continue,
                    },
                    None => None,
                };
                for at in fitting(&wanted, first, &entries, call) {
                    let Some((time, place)) = entries.at(at) else { continue };
                    let no = first + i64::try_from(at).unwrap_or_default();
                    // The heap pops the greatest first.
                    found.push(if ascending { (-no, no, place) } else { (time, no, place) });
                }
            }
            let Some((_, no, place)) = found.pop() else { return Ok(()) };
            if !take(no, place)? {
                return Ok(());
            }
        }
    }

    /// Calls `take` with the id of each receipt that may match, until it returns `false`. Ids are
    /// in descending order, each once, and only those below `before`.
    pub(in crate::sqlite) fn receipts(
        &self,
        search: &Search,
        before: Option<&str>,
        mut take: impl FnMut(&str) -> Result<bool, LedgerError>,
    ) -> Result<(), LedgerError> {
        let Some(wanted) = self.wanted(search)? else { return Ok(()) };
        let mut blocks = self.summaries()?;
        blocks.retain(|block| block.last_receipt.is_some() && block.may_fit(&wanted));
        blocks.sort_by(|one, other| other.last_receipt.cmp(&one.last_receipt));
        let mut found: BTreeSet<String> = BTreeSet::new();
        let mut given: Option<String> = before.map(str::to_owned);
        let mut blocks = blocks.into_iter().peekable();
        loop {
            while let Some(mut block) = blocks.next_if(|block| {
                found.last().is_none_or(|last| block.last_receipt.as_ref() >= Some(last))
            }) {
                let first = block.first;
                let (entries, ids) = self.read(&mut block, true)?;
                let call = match &wanted.call {
                    Some(call) => match ids.number(call) {
                        Some(number) => Some(number),
                        None => continue,
                    },
                    None => None,
                };
                let numbers: BTreeSet<u16> = fitting(&wanted, first, &entries, call)
                    .into_iter()
                    .filter_map(|at| entries.receipts.get(at).copied())
                    .collect();
                let texts = numbers.into_iter().filter_map(|number| ids.text(number));
                found.extend(texts.filter(|id| given.as_ref().is_none_or(|given| id < given)));
            }
            let Some(id) = found.pop_last() else { return Ok(()) };
            if !take(&id)? {
                return Ok(());
            }
            given = Some(id);
        }
    }

    /// Returns the ids of calls and receipts with a prefix, at most `limit`, those of the newest
    /// blocks first.
    pub(in crate::sqlite) fn named(
        &self,
        prefix: &str,
        limit: usize,
    ) -> Result<Vec<FoundId>, LedgerError> {
        let range = uuid_range(prefix);
        let mut blocks = self.summaries()?;
        blocks.retain(|block| {
            let within = |(from, to): ([u8; 16], [u8; 16])| {
                block.uuids.is_some_and(|(low, high)| low <= to && from <= high)
            };
            block.has_texts || range.is_some_and(within)
        });
        blocks.sort_by_key(|block| Reverse(block.newest));
        let mut found: Vec<FoundId> = Vec::new();
        for mut block in blocks {
            let ids = match &block.tail {
                Some(_) => None,
                None => Some(self.ids(block.first)?),
            };
            let hits = |ids: &Ids| -> Vec<u16> {
                let of = |(from, to)| {
                    let is = move |id: &[u8; 16]| from <= *id && *id <= to;
                    ids.uuids.iter().zip(1u16..).filter(move |(id, _)| is(id)).map(|(_, no)| no)
                };
                let uuids = range.map(of).into_iter().flatten();
                let after = u16::try_from(ids.uuids.len() + 1).unwrap_or(u16::MAX);
                let texts = ids.texts.iter().zip(after..);
                uuids
                    .chain(texts.filter(|(text, _)| text.starts_with(prefix)).map(|(_, no)| no))
                    .collect()
            };
            if ids.as_ref().is_some_and(|ids| hits(ids).is_empty()) {
                continue;
            }
            let (entries, own) = self.read(&mut block, false)?;
            let ids = ids.unwrap_or(own);
            for number in hits(&ids).into_iter().rev() {
                let Some(id) = ids.text(number) else { continue };
                for (kind, column) in
                    [(IdKind::Call, &entries.calls), (IdKind::Receipt, &entries.receipts)]
                {
                    let one = FoundId { kind, id: id.clone() };
                    if column.contains(&number) && !found.contains(&one) {
                        found.push(one);
                    }
                }
                if found.len() >= limit {
                    found.truncate(limit);
                    return Ok(found);
                }
            }
        }
        Ok(found)
    }
}

/// Returns the least and the greatest UUID with a prefix; `None` if no UUID has this prefix.
fn uuid_range(prefix: &str) -> Option<([u8; 16], [u8; 16])> {
    let (low, high) = (text_of(&[0; 16]), text_of(&[255; 16]));
    let end = |rest: &str| format!("{prefix}{}", rest.get(prefix.len()..).unwrap_or_default());
    let uuid = |text: String| crate::digits::uuid(text.as_bytes());
    Some((uuid(end(&low))?, uuid(end(&high))?))
}
