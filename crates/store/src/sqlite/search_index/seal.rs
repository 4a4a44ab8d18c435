//! Seals the search index with an HMAC over its content, under the store's digest key.
//!
//! A change of the file without the key breaks the seal. The seal is compared with the content of
//! the file before entries are added, if another connection has written since, and every few seconds
//! before a search. A file that does not match its seal is rebuilt from the database.
//!
//! Doc: records.md#reading

use std::path::Path;
use std::time::{Duration, Instant};

use rusqlite::types::ValueRef;
use rusqlite::{Connection, OptionalExtension, Row};
use toolbooth_audit::Digester;
use toolbooth_audit::sha256::Sha256;

use crate::sqlite::folder::StoreFolder;

/// The time that a comparison of the whole file stays valid.
const FRESH: Duration = Duration::from_secs(3);
/// The columns of a block that its digest covers.
const BLOCK_COLUMNS: &str =
    "no, oldest, newest, low, high, has_texts, last_receipt, names, entries, ids";
const ENDS: &str = "SELECT * FROM ends WHERE writer BETWEEN ?1 AND ?2 ORDER BY writer";

/// Computes and compares the seal of one open index.
pub(super) struct Sealer {
    digester: Digester,
    /// Blocks and names that this process compared or wrote. They are not read again for each seal.
    known: SealDigests,
    /// SQLite's number of the state that this process sealed or compared last; commits of other
    /// connections change it.
    sealed: Option<i64>,
    /// The time of the last comparison of the whole file.
    compared: Option<Instant>,
}

/// Digests over the rows up to a number.
#[derive(Clone, Default)]
struct SealDigests {
    made: i64,
    blocks: Part,
    names: Part,
    /// The digest of the entries that are in no block yet; `first` is the number of the first one.
    tail: Part,
    first: Option<i64>,
    /// The writer whose entries were added last, and the ends of the logs of the writers before it. Most of
    /// these have ended, and stay as they are.
    ends: Option<(i64, Part)>,
}

/// The number of the last row, if one exists, and the digest up to it.
type Part = (Option<i64>, Sha256);

impl Sealer {
    /// Creates a sealer with the digest key next to the database. Without that key any process can
    /// make a valid seal, but no gateway starts on such a store.
    pub(super) fn of(database: &Path) -> Self {
        let folder = database.parent().map(StoreFolder::at);
        let digester = folder.and_then(|folder| folder.digester(false).ok());
        let digester = digester.unwrap_or_else(|| Digester::new(&[0; 32]));
        Self { digester, known: SealDigests::default(), sealed: None, compared: None }
    }

    /// Discards the known digests, after a transaction that was not committed.
    pub(super) fn forget(&mut self) {
        (self.known, self.sealed, self.compared) = (SealDigests::default(), None, None);
    }

    /// Whether the whole file must be compared.
    pub(super) fn is_due(&self) -> bool {
        self.compared.is_none_or(|at| at.elapsed() >= FRESH)
    }

    /// Compares the whole file with its seal, blocks included. Returns whether it fits.
    pub(super) fn compare(&mut self, connection: &Connection) -> rusqlite::Result<bool> {
        self.forget();
        let fits = unless_damaged(self.blocks_fit(connection))? && self.fits(connection, None)?;
        self.compared = Some(Instant::now());
        Ok(fits)
    }

    fn blocks_fit(&self, connection: &Connection) -> rusqlite::Result<bool> {
        let sql = format!("SELECT digest, {BLOCK_COLUMNS} FROM blocks LEFT JOIN ids USING (no)");
        let mut statement = connection.prepare_cached(&sql)?;
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            let digest: Vec<u8> = row.get(0)?;
            if digest != digest_of(row, 1)? {
                return Ok(false);
            }
        }
        let sql = "SELECT NOT EXISTS (SELECT 1 FROM ids WHERE no NOT IN (SELECT no FROM blocks))";
        connection.query_row(sql, [], |row| row.get(0))
    }

    /// Compares everything except the contents of blocks that were compared before. Compares
    /// nothing if no other connection has written since the last seal or comparison. `writer` is the one
    /// whose entries are added next, if that is known.
    pub(super) fn fits(
        &mut self,
        connection: &Connection,
        writer: Option<i64>,
    ) -> rusqlite::Result<bool> {
        let state = state(connection)?;
        if self.sealed == Some(state) {
            return Ok(true);
        }
        // Another connection has written, so entries and ends are read again.
        (self.known.first, self.known.ends) = (None, None);
        let fits = unless_damaged(self.seal_fits(connection, writer))?;
        self.sealed = fits.then_some(state);
        Ok(fits)
    }

    fn seal_fits(
        &mut self,
        connection: &Connection,
        writer: Option<i64>,
    ) -> rusqlite::Result<bool> {
        let sql = "SELECT mac FROM seal WHERE one = 1";
        let mac: Option<String> =
            connection.prepare_cached(sql)?.query_row([], |row| row.get(0)).optional()?;
        // A file that was just made has no entries and no seal.
        let is_new = mac.is_none() && is_empty(connection)?;
        Ok(is_new || mac == Some(self.mac(connection, writer)?))
    }

    /// Seals the current content of the file. Since the last seal or comparison, entries of this writer
    /// were added.
    pub(super) fn seal(&mut self, connection: &Connection, writer: i64) -> rusqlite::Result<()> {
        let mac = self.mac(connection, Some(writer))?;
        connection
            .prepare_cached("INSERT OR REPLACE INTO seal (one, mac) VALUES (1, ?1)")?
            .execute([mac])?;
        self.sealed = Some(state(connection)?);
        Ok(())
    }

    fn mac(&mut self, connection: &Connection, writer: Option<i64>) -> rusqlite::Result<String> {
        let made = connection.query_row("PRAGMA application_id", [], |row| row.get(0))?;
        if self.known.made != made {
            self.known = SealDigests { made, ..SealDigests::default() };
        }
        let first = connection.query_row("SELECT min(no) FROM tail", [], |row| row.get(0))?;
        if self.known.first != first || first.is_none() {
            (self.known.first, self.known.tail) = (first, Part::default());
        }
        let SealDigests { blocks, names, tail, ends: known, .. } = &mut self.known;
        add(
            connection,
            "SELECT no, digest FROM blocks WHERE no BETWEEN ?1 AND ?2 ORDER BY no",
            i64::MAX,
            blocks,
        )?;
        add(
            connection,
            "SELECT no, name FROM names WHERE no BETWEEN ?1 AND ?2 ORDER BY no",
            i64::MAX,
            names,
        )?;
        add(
            connection,
            "SELECT * FROM tail WHERE no BETWEEN ?1 AND ?2 ORDER BY no",
            i64::MAX,
            tail,
        )?;
        let mut ends = Part::default();
        if let Some(writer) = writer {
            if let Some((_, before)) = known.take_if(|(own, _)| *own <= writer) {
                ends = before;
            }
            add(connection, ENDS, writer.saturating_sub(1), &mut ends)?;
            *known = Some((writer, ends.clone()));
        }
        add(connection, ENDS, i64::MAX, &mut ends)?;
        let mut whole = Sha256::default();
        whole.update(&made.to_le_bytes());
        for part in [&*blocks, names, tail, &ends] {
            whole.update(&part.1.clone().finish());
        }
        Ok(self.digester.of_bytes(&whole.finish()))
    }
}

/// Returns the digest of a block that was just written.
pub(super) fn digest_of_block(connection: &Connection, no: i64) -> rusqlite::Result<Vec<u8>> {
    let sql = format!("SELECT {BLOCK_COLUMNS} FROM blocks LEFT JOIN ids USING (no) WHERE no = ?1");
    connection.prepare_cached(&sql)?.query_row([no], |row| digest_of(row, 0))
}

/// Treats an unreadable value as a mismatch, because no writer stores it.
fn unless_damaged(fits: rusqlite::Result<bool>) -> rusqlite::Result<bool> {
    match fits {
        Err(error) if error.sqlite_error_code().is_none() => Ok(false),
        fits => fits,
    }
}

fn state(connection: &Connection) -> rusqlite::Result<i64> {
    connection.query_row("PRAGMA data_version", [], |row| row.get(0))
}

fn is_empty(connection: &Connection) -> rusqlite::Result<bool> {
    let sql = "SELECT NOT EXISTS (SELECT 1 FROM blocks) AND NOT EXISTS (SELECT 1 FROM tail)
                   AND NOT EXISTS (SELECT 1 FROM names) AND NOT EXISTS (SELECT 1 FROM ends)";
    connection.query_row(sql, [], |row| row.get(0))
}

/// Adds the rows after those of a digest to it, those with a number up to `until`.
fn add(connection: &Connection, sql: &str, until: i64, known: &mut Part) -> rusqlite::Result<()> {
    let Some(from) = known.0.map_or(Some(i64::MIN), |last| last.checked_add(1)) else {
        return Ok(());
    };
    let mut statement = connection.prepare_cached(sql)?;
    let mut rows = statement.query([from, until])?;
    while let Some(row) = rows.next()? {
        known.0 = Some(row.get(0)?);
        known.1.update(&digest_of(row, 0)?);
    }
    Ok(())
}

/// Returns the digest of the columns of a row, from the column `from` on.
fn digest_of(row: &Row<'_>, from: usize) -> rusqlite::Result<Vec<u8>> {
    let mut digest = Sha256::default();
    for at in from..row.as_ref().column_count() {
        let mut put = |kind: u8, bytes: &[u8]| {
            digest.update(&[kind]);
            digest.update(&(bytes.len() as u64).to_le_bytes());
            digest.update(bytes);
        };
        match row.get_ref(at)? {
            ValueRef::Null => put(0, &[]),
            ValueRef::Integer(number) => put(1, &number.to_le_bytes()),
            ValueRef::Real(number) => put(2, &number.to_le_bytes()),
            ValueRef::Text(text) => put(3, text),
            ValueRef::Blob(bytes) => put(4, bytes),
        }
    }
    Ok(digest.finish().to_vec())
}

#[cfg(test)]
mod tests {
    use rusqlite::StatementStatus::VmStep;

    use super::*;
    use crate::sqlite::search_index::{Lookup, set_end};

    const WRITERS: i64 = 2_000;

    fn sealed() -> (Connection, Sealer) {
        let connection = Connection::open_in_memory().unwrap();
        Lookup::make(&connection).unwrap();
        for writer in 1..=WRITERS {
            set_end(&connection, writer, 3).unwrap();
        }
        let mut sealer = Sealer::of(Path::new("toolbooth.db"));
        sealer.seal(&connection, WRITERS).unwrap();
        (connection, sealer)
    }

    #[test]
    fn a_seal_does_not_read_the_ends_of_all_writers() {
        let (connection, mut sealer) = sealed();
        let steps = || connection.prepare_cached(ENDS).unwrap().get_status(VmStep);
        let of_all = steps();
        for size in 4..9 {
            set_end(&connection, WRITERS, size).unwrap();
            sealer.seal(&connection, WRITERS).unwrap();
        }
        assert!(steps() - of_all < of_all / 10, "{} after {of_all}", steps());
        assert_eq!(sealer.compare(&connection), Ok(true));
    }

    #[test]
    fn each_row_is_sealed() {
        let (connection, mut sealer) = sealed();
        let tail = "(no, place, time, tool, agent, caller, code, status, has_log)";
        let rows = ["no", "place", "time", "tool", "agent", "caller", "code", "status", "has_log"];
        let mut changes: Vec<String> = [i64::MIN, -1, 0, i64::MAX]
            .into_iter()
            .flat_map(|no| {
                [
                    format!("INSERT INTO ends VALUES ({no}, 1)"),
                    format!("INSERT INTO names VALUES ({no}, 'x')"),
                    format!("INSERT INTO tail {tail} VALUES ({no}, 1, 2, 3, 4, 5, 6, 7, 0)"),
                ]
            })
            .collect();
        for own in ["(1, 2, 3, 4, 5, 6, 7, 8, 0)", "(2, 9, 9, 9, 9, 9, 9, 9, 1)"] {
            connection.execute(&format!("INSERT INTO tail {tail} VALUES {own}"), []).unwrap();
        }
        for writer in [1, 17, WRITERS - 1, WRITERS] {
            changes.push(format!("UPDATE ends SET size = 4 WHERE writer = {writer}"));
            changes.push(format!("DELETE FROM ends WHERE writer = {writer}"));
        }
        changes.extend(rows.map(|row| format!("UPDATE tail SET {row} = {row} + 5 WHERE no = 2")));
        for (writer, change) in
            changes.iter().enumerate().map(|(at, change)| (1 + at as i64 * 40, change))
        {
            // Each seal is one of another writer, after some of the same one.
            for size in 10..12 {
                set_end(&connection, writer, size).unwrap();
                sealer.seal(&connection, writer).unwrap();
            }
            connection.execute_batch("SAVEPOINT changed").unwrap();
            assert_eq!(connection.execute(change, []), Ok(1), "{change}");
            assert_eq!(sealer.compare(&connection), Ok(false), "{change}");
            connection.execute_batch("ROLLBACK TO changed; RELEASE changed").unwrap();
            assert_eq!(sealer.compare(&connection), Ok(true), "{change}");
        }
    }
}
