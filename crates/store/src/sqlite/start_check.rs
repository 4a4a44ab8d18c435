//! The check of a database before it is used.
//!
//! Doc: records.md#check-at-start

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, UNIX_EPOCH};

use rusqlite::{Connection, ErrorCode};
use serde::{Deserialize, Serialize};
use toolbooth_audit::ledger::Moment;

use super::folder::StoreFolder;
use super::schema;

/// How long a check that has passed counts, in milliseconds.
const PASSED_MS: i64 = 3_600_000;
/// The kernel's id of the time since it has started.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// When a database is checked before it is used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum StartCheck {
    /// Always.
    #[default]
    Always,
    /// Unless this file has passed a check within an hour, on this machine since it has started.
    IfDue,
}

/// A check that a database has passed.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Passed {
    boot_id: String,
    device: u64,
    inode: u64,
    /// When the file was made, in milliseconds since 1970: another file can have its inode.
    made_ms: u64,
    /// The version of the tables.
    version: i64,
    at_ms: i64,
}

impl Passed {
    /// Returns a check of this file now; `None` if the system does not tell which file it is.
    fn now(path: &Path, version: i64, at: &Moment) -> Option<Self> {
        let file = path.metadata().ok()?;
        let made = file.created().ok()?.duration_since(UNIX_EPOCH).ok()?;
        Some(Self {
            boot_id: std::fs::read_to_string(BOOT_ID).ok()?.trim().to_owned(),
            device: file.dev(),
            inode: file.ino(),
            made_ms: u64::try_from(made.as_millis()).ok()?,
            version,
            at_ms: at.epoch_ms,
        })
    }

    /// Whether a later check is not needed.
    fn covers(self, later: &Self) -> bool {
        let age_ms = later.at_ms.saturating_sub(self.at_ms);
        (0..PASSED_MS).contains(&age_ms) && Self { at_ms: later.at_ms, ..self } == *later
    }
}

/// Checks a database, if that is due, for at most `time_max`. Returns the damage that it found.
///
/// # Errors
/// Those of the database.
pub(super) fn damage(
    connection: &Connection,
    folder: &StoreFolder,
    when: StartCheck,
    time_max: Duration,
    at: &Moment,
) -> rusqlite::Result<Option<String>> {
    let version = schema::version(connection)?;
    let passed = Passed::now(&folder.database(), version, at);
    // The tables of an earlier version are about to be rewritten.
    if when == StartCheck::IfDue
        && version == schema::VERSION
        && let Some(passed) = &passed
        && folder
            .last_check()
            .and_then(|last| serde_json::from_slice::<Passed>(&last).ok())
            .is_some_and(|last| last.covers(passed))
    {
        return Ok(None);
    }
    folder.forget_check();
    let found = look_over(connection, time_max)?;
    if let (None, Some(passed)) = (&found, passed) {
        folder.keep_check(&serde_json::to_vec(&passed).unwrap_or_default());
    }
    Ok(found)
}

/// Runs `quick_check` for at most `time_max`. Returns the damage that it found in that time.
fn look_over(connection: &Connection, time_max: Duration) -> rusqlite::Result<Option<String>> {
    let interrupt = connection.get_interrupt_handle();
    let (done, waiting) = std::sync::mpsc::channel::<()>();
    let timer = std::thread::spawn(move || {
        if waiting.recv_timeout(time_max) == Err(RecvTimeoutError::Timeout) {
            interrupt.interrupt();
        }
    });
    let verdict: rusqlite::Result<String> =
        connection.query_row("PRAGMA quick_check(1)", [], |row| row.get(0));
    drop(done);
    let _ = timer.join();
    match verdict {
        Ok(verdict) => Ok((verdict != "ok").then_some(verdict)),
        Err(error) => match error.sqlite_error_code() {
            // The time limit expired; pages that were not read count as sound.
            Some(ErrorCode::OperationInterrupted) => Ok(None),
            Some(ErrorCode::DatabaseCorrupt) => Ok(Some(error.to_string())),
            _ => Err(error),
        },
    }
}
