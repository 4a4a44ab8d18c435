//! Measures the remaining space of a database, and removes agent logs when it runs short.
//!
//! Path: 6. Doc: records.md#disk-space

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rusqlite::{Connection, OpenFlags};
use toolbooth_audit::backend::disk_space::{DiskSpace, Dropped};
use toolbooth_audit::backend::working::WorkingSet;
use toolbooth_audit::backend::writer::Failure;

use super::OpenError;
use super::folder::StoreFolder;
use super::schema::place;
use super::search_index::{self, split};
use super::transaction::{Transaction, failed};

/// The smallest usable bound of a store.
pub const BYTES_MAX_LEAST: u64 = 16 << 20;
/// The time that a measurement stays valid.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// The number of batches that a measurement stays valid for.
const LOOK_BATCHES: u32 = 64;
/// Maximum bytes to keep free on the file system.
const FREE_MAX: u64 = 1 << 30;
/// The part of the file system to keep free, as a divisor of its size.
const FREE_PART: u64 = 20;
/// The part of `bytes_max` to keep free, as a divisor.
const BOUND_PART: u64 = 10;
/// Maximum logs that one step examines in search of refusals.
const LOOKED_MAX: usize = 20_000;

/// The measurement of the remaining space, which is repeated from time to time.
#[derive(Debug)]
pub(super) struct SpaceMonitor {
    database: PathBuf,
    bytes_max: Option<u64>,
    looked: Option<Instant>,
    /// Batches since the last measurement.
    batches: u32,
}

impl SpaceMonitor {
    pub(super) fn new(database: &Path, bytes_max: Option<u64>) -> Self {
        Self { database: database.to_owned(), bytes_max, looked: None, batches: 0 }
    }

    /// Measures again if the last measurement is old, or if it found little space.
    pub(super) fn measure(
        &mut self,
        connection: &Connection,
        set: &mut WorkingSet,
    ) -> Result<(), Failure> {
        self.batches += 1;
        let before = set.disk_space();
        let is_fresh = self.looked.is_some_and(|looked| looked.elapsed() < LOOK_EVERY);
        if before == DiskSpace::Enough && is_fresh && self.batches < LOOK_BATCHES {
            return Ok(());
        }
        (self.looked, self.batches) = (Some(Instant::now()), 0);
        let disk_space = self.disk_space(connection, before).map_err(failed)?;
        if disk_space != before {
            let bytes_max = self.bytes_max;
            match disk_space {
                DiskSpace::Enough => tracing::info!("the store has space again"),
                DiskSpace::Short => tracing::warn!(
                    bytes_max,
                    "space for records runs short; agent logs are removed, oldest first"
                ),
                DiskSpace::Full => {
                    tracing::error!(bytes_max, "there is no space for records; calls are refused")
                }
            }
            set.set_disk_space(disk_space);
        }
        Ok(())
    }

    fn disk_space(
        &self,
        connection: &Connection,
        before: DiskSpace,
    ) -> rusqlite::Result<DiskSpace> {
        measured(connection, &self.database, self.bytes_max, before)
    }
}

/// Returns the space state of a database by its bound and by its file system.
fn measured(
    connection: &Connection,
    database: &Path,
    bytes_max: Option<u64>,
    before: DiskSpace,
) -> rusqlite::Result<DiskSpace> {
    let (used, empty) = used(connection, database)?;
    let bound = bytes_max.map_or(DiskSpace::Enough, |bytes_max| {
        DiskSpace::of(bytes_max.saturating_sub(used), bytes_max / BOUND_PART, before)
    });
    let disk = rustix::fs::statvfs(database).map_or(DiskSpace::Enough, |disk| {
        let free = disk.f_bavail.saturating_mul(disk.f_frsize);
        let reserve = disk.f_blocks.saturating_mul(disk.f_frsize) / FREE_PART;
        // SQLite fills empty pages before the file grows.
        let left = free.saturating_add(empty);
        DiskSpace::of(left, reserve.min(FREE_MAX), before)
    });
    Ok(bound.max(disk))
}

/// Returns the space state of a store that no writer of this process measures.
///
/// # Errors
/// [`OpenError::Database`].
pub fn space_state(folder: &StoreFolder, bytes_max: Option<u64>) -> Result<DiskSpace, OpenError> {
    let path = folder.database();
    if !path.exists() {
        return Ok(DiskSpace::Enough);
    }
    let open = Connection::open_with_flags(&path, OpenFlags::SQLITE_OPEN_READ_ONLY);
    open.and_then(|connection| measured(&connection, &path, bytes_max, DiskSpace::Enough))
        .map_err(|source| OpenError::Database { path: path.display().to_string(), source })
}

/// Returns the bytes of a database and its index that are in use, and those of empty pages.
fn used(connection: &Connection, database: &Path) -> rusqlite::Result<(u64, u64)> {
    let number = |pragma: &str| -> rusqlite::Result<u64> {
        let mut statement = connection.prepare_cached(pragma)?;
        statement.query_row([], |row| row.get::<_, i64>(0)).map(i64::unsigned_abs)
    };
    let page = number("PRAGMA page_size")?;
    let (pages, empty) = (number("PRAGMA page_count")?, number("PRAGMA freelist_count")?);
    let beside = std::fs::metadata(database.with_file_name(search_index::LOOKUP));
    let beside = beside.map_or(0, |file| file.size());
    let used = pages.saturating_sub(empty).saturating_mul(page).saturating_add(beside);
    Ok((used, empty.saturating_mul(page)))
}

/// Returns the bytes that the records of a store use; 0 if there is no database.
///
/// # Errors
/// [`OpenError::Database`].
pub fn used_bytes(folder: &StoreFolder) -> Result<u64, OpenError> {
    let path = folder.database();
    if !path.exists() {
        return Ok(0);
    }
    let open = Connection::open_with_flags(&path, OpenFlags::SQLITE_OPEN_READ_ONLY);
    open.and_then(|connection| used(&connection, &path))
        .map(|(used, _)| used)
        .map_err(|source| OpenError::Database { path: path.display().to_string(), source })
}

/// Returns the bound of a store without a configured one. It is the space in use at the first
/// start, plus half of the free space or 20 GiB, whichever is less. The bound is at least
/// [`BYTES_MAX_LEAST`]. It is stored in the folder, so that it does not change.
///
/// # Errors
/// [`OpenError`]; [`OpenError::Folder`] also where the kept bound is no number.
pub fn standard_bytes_max(folder: &StoreFolder) -> Result<u64, OpenError> {
    const MOST: u64 = 20 << 30;
    if let Some(kept) = folder.kept_bytes_max()? {
        return Ok(kept);
    }
    let used = used_bytes(folder)?;
    let disk = rustix::fs::statvfs(folder.path());
    let free = disk.map_or(0, |disk| disk.f_bavail.saturating_mul(disk.f_frsize));
    let bound = used.saturating_add((free / 2).min(MOST)).max(BYTES_MAX_LEAST);
    folder.keep_bytes_max(bound)
}

impl Transaction<'_> {
    /// Finds agent logs to remove: first those of refusals, starting at the end of the last search,
    /// then the oldest.
    pub(super) fn droppable_logs(&self, limit: usize, set: &mut WorkingSet) -> Result<(), Failure> {
        set.surveyed.more = true;
        if self.drop_refusals(limit, set)? {
            return Ok(());
        }
        let Some(writer) = self.oldest()? else {
            set.surveyed.more = false;
            return Ok(());
        };
        let sql = "SELECT place FROM agent_logs WHERE place >= ?1 AND place < ?2
                   ORDER BY place LIMIT ?3";
        let ends = (place(writer, 0), place(writer + 1, 0), limit as i64);
        let places: Vec<i64> = self.all(sql, ends, |row| row.get(0))?;
        self.drop_logs(&places, places.last().map_or(0, |last| last + 1), false, set)
    }

    /// Finds the next agent logs of calls without a receipt. Returns whether any log was
    /// examined.
    fn drop_refusals(&self, limit: usize, set: &mut WorkingSet) -> Result<bool, Failure> {
        let (mut places, mut looked, mut next) = (Vec::new(), 0, self.searched.get());
        {
            let sql = "SELECT place, body FROM agent_logs WHERE place >= ?1 ORDER BY place";
            let mut statement = self.connection.prepare_cached(sql).map_err(failed)?;
            let mut rows = statement.query([next]).map_err(failed)?;
            while places.len() < limit
                && looked < LOOKED_MAX
                && let Some(row) = rows.next().map_err(failed)?
            {
                let at: i64 = row.get(0).map_err(failed)?;
                if let Some(first) = places.first()
                    && split(*first).0 != split(at).0
                {
                    // One event reports the removals from one writer's log.
                    break;
                }
                let body: Vec<u8> = row.get(1).map_err(failed)?;
                looked += 1;
                next = at + 1;
                if self.told(at, &body)?.receipt_id.is_none() {
                    places.push(at);
                }
            }
        }
        self.searched.set(next);
        if !places.is_empty() {
            self.drop_logs(&places, next, true, set)?;
        }
        Ok(looked > 0)
    }

    /// Returns the number of the writer with the oldest first agent log.
    fn oldest(&self) -> Result<Option<i64>, Failure> {
        let sql = "SELECT place, body FROM agent_logs WHERE place >= ?1 AND place < ?2
                   ORDER BY place LIMIT 1";
        let mut oldest: Option<(String, i64)> = None;
        for (writer, _) in self.writers()? {
            let ends = (place(writer, 0), place(writer + 1, 0));
            let log: Option<(i64, Vec<u8>)> =
                self.one(sql, ends, |row| Ok((row.get(0)?, row.get(1)?)))?;
            let Some((at, body)) = log else { continue };
            let time = self.told(at, &body)?.timestamp;
            if oldest.as_ref().is_none_or(|(known, _)| time < *known) {
                oldest = Some((time, writer));
            }
        }
        Ok(oldest.map(|(_, writer)| writer))
    }

    /// Reports the agent logs of one writer for removal, and the end of the searched range.
    fn drop_logs(
        &self,
        places: &[i64],
        until: i64,
        refusals: bool,
        set: &mut WorkingSet,
    ) -> Result<(), Failure> {
        let Some(first) = places.first() else { return Ok(()) };
        let no = split(*first).0;
        let sql = "SELECT writer FROM writers WHERE no = ?1";
        let Some(writer) = self.one(sql, [no], |row| row.get::<_, String>(0))? else {
            return Ok(());
        };
        let seq = |place: &i64| split(*place).1.unsigned_abs();
        set.surveyed.removal.logs.insert(writer.clone(), places.iter().map(seq).collect());
        set.surveyed.dropped = Some(Dropped { writer, until: seq(&until), refusals });
        Ok(())
    }
}
