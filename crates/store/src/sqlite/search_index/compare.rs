//! Compares the search index with the events, entry by entry, for verification.
//!
//! Doc: records.md#verification

use std::collections::{BTreeSet, HashMap, HashSet};
use std::path::Path;

use rusqlite::Connection;
use toolbooth_audit::LedgerError;

use super::blocks::{BLOCK, Block, Id, Ids};
use super::seal::digest_of_block;
use super::write::tail;
use super::{Found, LOOKUP, VERSION, is_broken, split};
use crate::packing;
use crate::sqlite::connection::connect_to_read;
use crate::sqlite::schema::place;
use crate::sqlite::unavailable;

/// Maximum differences that are listed.
const MOST: usize = 100;

/// Returns the differences between the events and the index next to a database. An index that is
/// missing or of another version has no differences, because it is rebuilt before it is used.
pub(in crate::sqlite) fn differences(
    database: &Connection,
    path: &Path,
) -> Result<Vec<String>, LedgerError> {
    let path = path.with_file_name(LOOKUP);
    if !path.is_file() {
        return Ok(Vec::new());
    }
    let compared = connect_to_read(&path).and_then(|index| {
        // Reads one state of the index, even if entries are added meanwhile.
        let index = index.unchecked_transaction()?;
        let version: i64 = index.query_row("PRAGMA user_version", [], |row| row.get(0))?;
        match version {
            VERSION => Comparison::of(&index, database)?.whole(),
            _ => Ok(Vec::new()),
        }
    });
    match compared {
        Err(error) if is_damage(&error) => Ok(vec![format!("it cannot be read: {error}")]),
        compared => compared.map_err(unavailable),
    }
}

/// Whether an error shows damage: the index contains a value that no writer stores, or is broken.
fn is_damage(error: &rusqlite::Error) -> bool {
    error.sqlite_error_code().is_none() || is_broken(error)
}

/// The state of a comparison of the index.
struct Comparison<'c> {
    index: &'c Connection,
    database: &'c Connection,
    names: HashMap<u32, String>,
    used: HashSet<u32>,
    /// For each writer, the number of its indexed events in `ends`, and the sequence number after
    /// the last compared event in `next`.
    ends: HashMap<i64, i64>,
    next: HashMap<i64, i64>,
    found: Vec<String>,
}

impl<'c> Comparison<'c> {
    fn of(index: &'c Connection, database: &'c Connection) -> rusqlite::Result<Self> {
        let names = index
            .prepare("SELECT no, name FROM names")?
            .query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?
            .collect::<rusqlite::Result<_>>()?;
        let ends = index
            .prepare("SELECT writer, size FROM ends")?
            .query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?
            .collect::<rusqlite::Result<_>>()?;
        let (used, next, found) = (HashSet::new(), HashMap::new(), Vec::new());
        Ok(Self { index, database, names, used, ends, next, found })
    }

    fn differs(&mut self, what: String) {
        if self.found.len() < MOST {
            self.found.push(what);
        }
    }

    fn whole(mut self) -> rusqlite::Result<Vec<String>> {
        let sql = "SELECT b.no, b.entries, i.ids, b.digest FROM blocks b LEFT JOIN ids i USING (no)
                   ORDER BY b.no";
        let index = self.index;
        let mut statement = index.prepare(sql)?;
        let mut rows = statement.query([])?;
        let mut expected = 1;
        while let Some(row) = rows.next()? {
            let (no, entries, ids): (i64, Vec<u8>, Option<Vec<u8>>) =
                (row.get(0)?, row.get(1)?, row.get(2)?);
            let digest: Vec<u8> = row.get(3)?;
            if no != expected || digest != digest_of_block(index, no)? {
                self.differs(format!("block {no} is not as it was written"));
            }
            expected = no + BLOCK as i64;
            let ids = ids.and_then(|ids| Ids::unpack(&ids));
            match (Block::unpack(&entries), ids) {
                (Some(block), Some(ids)) => {
                    self.summary(no, &block, &ids)?;
                    self.block(&block, &ids)?;
                }
                _ => self.differs(format!("block {no} cannot be read")),
            }
        }
        let sql = "SELECT count(*) = 0 OR (min(no) = ?1 AND max(no) - min(no) + 1 = count(*))
                   FROM tail";
        if !index.query_row(sql, [expected], |row| row.get::<_, bool>(0))? {
            self.differs("its entries are not numbered as they were written".to_owned());
        }
        if let Some((_, entries)) = tail(index, usize::MAX)? {
            for entries in entries.chunks(BLOCK) {
                let (block, ids) = Block::of(entries);
                self.block(&block, &ids)?;
            }
        }
        let writers: Vec<(i64, i64)> = self
            .database
            .prepare("SELECT no, size FROM writers")?
            .query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?
            .collect::<rusqlite::Result<_>>()?;
        for (writer, size) in writers {
            let end = self.ends.remove(&writer).unwrap_or_default();
            if end > size {
                self.differs(format!("it has {end} events of log {writer}, which has {size}"));
            }
            self.lacks(writer, end.min(size))?;
            if self.next.remove(&writer).is_some_and(|next| next > end) {
                self.differs(format!("it has more events of log {writer} than it says"));
            }
        }
        let strangers: BTreeSet<i64> = self.ends.keys().chain(self.next.keys()).copied().collect();
        for writer in strangers {
            self.differs(format!("it has events of a log {writer}, which is not there"));
        }
        let orphans = index.query_row(
            "SELECT count(*) FROM ids WHERE no NOT IN (SELECT no FROM blocks)",
            [],
            |row| row.get::<_, i64>(0),
        )?;
        if orphans > 0 || self.names.keys().any(|number| !self.used.contains(number)) {
            self.differs("it has names or ids of no event".to_owned());
        }
        Ok(self.found)
    }

    /// Compares the columns that exclude blocks from searches with the content of a block.
    fn summary(&mut self, no: i64, block: &Block, ids: &Ids) -> rusqlite::Result<()> {
        let names: Vec<u8> = block.all_names().into_iter().flat_map(u32::to_le_bytes).collect();
        let sql = "SELECT oldest IS ?2 AND newest IS ?3 AND low IS ?4 AND high IS ?5
                       AND has_texts IS ?6 AND last_receipt IS ?7 AND names IS ?8
                   FROM blocks WHERE no = ?1";
        let fits: bool = self.index.prepare_cached(sql)?.query_row(
            (
                no,
                block.times.iter().min(),
                block.times.iter().max(),
                ids.uuids.iter().min(),
                ids.uuids.iter().max(),
                !ids.texts.is_empty(),
                block.last_receipt(ids),
                names,
            ),
            |row| row.get(0),
        )?;
        if !fits {
            self.differs(format!("block {no} and its row differ"));
        }
        Ok(())
    }

    /// Compares entries with their events. The entries of one log must be in its order.
    fn block(&mut self, block: &Block, ids: &Ids) -> rusqlite::Result<()> {
        for at in 0..block.len() {
            let Some((_, place)) = block.at(at) else { continue };
            let (writer, seq) = split(place);
            self.used.extend(block.names.iter().filter_map(|column| column.get(at)));
            let next = self.next.get(&writer).copied().unwrap_or_default();
            if seq < next {
                self.differs(format!("event {seq} of log {writer} is indexed twice"));
                continue;
            }
            self.lacks(writer, seq)?;
            self.next.insert(writer, seq + 1);
            // A pruned event no longer exists.
            let Some(event) = self.event(place)? else { continue };
            let names = &self.names;
            let name = |column: usize| match *block.names.get(column)?.get(at)? {
                0 => None,
                // No event has an empty name.
                number => Some(names.get(&number).map_or("", String::as_str)),
            };
            let id = |numbers: &[u16]| ids.text(*numbers.get(at)?).map(|text| Id::of(&text));
            let fits = block.times.get(at) == Some(&event.time)
                && block.logs.get(at) == Some(&u8::from(event.has_log))
                && event.names.iter().enumerate().all(|(n, own)| own.as_deref() == name(n))
                && event.call == id(&block.calls)
                && event.receipt == id(&block.receipts);
            if !fits {
                self.differs(format!("event {seq} of log {writer} is indexed as another one"));
            }
        }
        Ok(())
    }

    fn event(&self, place: i64) -> rusqlite::Result<Option<Found>> {
        let sql = "SELECT body FROM events WHERE place = ?1";
        let mut statement = self.database.prepare_cached(sql)?;
        let mut rows = statement.query([place])?;
        let Some(row) = rows.next()? else { return Ok(None) };
        let body: Vec<u8> = row.get(0)?;
        // The verification of the events reports an event that cannot be read.
        Ok(packing::read(&body).ok().map(|fields| Found::read(place, fields)))
    }

    /// Reports readable events between the last compared one and `end` that are not indexed.
    fn lacks(&mut self, writer: i64, end: i64) -> rusqlite::Result<()> {
        let next = self.next.get(&writer).copied().unwrap_or_default();
        if next >= end {
            return Ok(());
        }
        let sql = "SELECT place FROM events WHERE place >= ?1 AND place < ?2 ORDER BY place";
        let places: Vec<i64> = self
            .database
            .prepare_cached(sql)?
            .query_map((place(writer, next), place(writer, end)), |row| row.get(0))?
            .take(MOST)
            .collect::<rusqlite::Result<_>>()?;
        for place in places {
            if self.event(place)?.is_some() {
                let seq = split(place).1;
                self.differs(format!("event {seq} of log {writer} is not indexed"));
            }
        }
        Ok(())
    }
}
