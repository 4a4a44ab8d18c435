//! Seals the search index with an HMAC over its content, under the store's digest key.
//!
//! A change of the file without the key breaks the seal. The seal is compared with the content of
//! the file before entries are added, and every few seconds before a search. A file that does not
//! match its seal is rebuilt from the database.
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

/// Computes and compares the seal of one open index.
pub(super) struct Sealer {
    digester: Digester,
    /// Blocks and names that this process compared or wrote. They are not read again for each seal.
    known: SealDigests,
    /// SQLite's number of the state that this process sealed last; commits of other connections
    /// change it.
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
        let fits = unless_damaged(self.blocks_fit(connection))? && self.fits(connection)?;
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
    /// nothing if no other connection has written since the last seal.
    pub(super) fn fits(&mut self, connection: &Connection) -> rusqlite::Result<bool> {
        if self.sealed.is_some() && self.sealed == Some(state(connection)?) {
            return Ok(true);
        }
        // Another connection has written, so entries are read again.
        self.known.first = None;
        unless_damaged(self.seal_fits(connection))
    }

    fn seal_fits(&mut self, connection: &Connection) -> rusqlite::Result<bool> {
        let sql = "SELECT mac FROM seal WHERE one = 1";
        let mac: Option<String> =
            connection.prepare_cached(sql)?.query_row([], |row| row.get(0)).optional()?;
        // A file that was just made has no entries and no seal.
        let is_new = mac.is_none() && is_empty(connection)?;
        Ok(is_new || mac == Some(self.mac(connection)?))
    }

    /// Seals the current content of the file.
    pub(super) fn seal(&mut self, connection: &Connection) -> rusqlite::Result<()> {
        let mac = self.mac(connection)?;
        connection
            .prepare_cached("INSERT OR REPLACE INTO seal (one, mac) VALUES (1, ?1)")?
            .execute([mac])?;
        self.sealed = Some(state(connection)?);
        Ok(())
    }

    fn mac(&mut self, connection: &Connection) -> rusqlite::Result<String> {
        let made = connection.query_row("PRAGMA application_id", [], |row| row.get(0))?;
        if self.known.made != made {
            self.known = SealDigests { made, ..SealDigests::default() };
        }
        let first = connection.query_row("SELECT min(no) FROM tail", [], |row| row.get(0))?;
        if self.known.first != first || first.is_none() {
            (self.known.first, self.known.tail) = (first, Part::default());
        }
        let SealDigests { blocks, names, tail, .. } = &mut self.known;
        add(
            connection,
            "SELECT no, digest FROM blocks WHERE ?1 IS NULL OR no > ?1 ORDER BY no",
            blocks,
        )?;
        add(
            connection,
            "SELECT no, name FROM names WHERE ?1 IS NULL OR no > ?1 ORDER BY no",
            names,
        )?;
        add(connection, "SELECT * FROM tail WHERE ?1 IS NULL OR no > ?1 ORDER BY no", tail)?;
        let mut ends = Part::default();
        add(
            connection,
            "SELECT * FROM ends WHERE ?1 IS NULL OR writer > ?1 ORDER BY writer",
            &mut ends,
        )?;
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

/// Adds the rows after a number to a digest over those up to it.
fn add(connection: &Connection, sql: &str, known: &mut Part) -> rusqlite::Result<()> {
    let mut statement = connection.prepare_cached(sql)?;
    let mut rows = statement.query([known.0])?;
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
