//! Copying a store, putting a copy back, giving space back.
//!
//! Doc: records.md#backups

use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rusqlite::{Connection, OpenFlags};

use super::folder::{DATABASE, StoreFolder};
use super::schema;

/// The names that tools and prompts were given on the wire, beside the database.
const NAMES: [&str; 2] = ["wire-names.json", "prompt-names.json"];

/// Why a store was not copied, put back or made smaller.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MaintenanceError {
    /// The target is there already.
    #[error("`{0}` is there already")]
    There(String),
    /// The folder holds no backup.
    #[error("`{0}` holds no backup")]
    NoBackup(String),
    /// A gateway uses the store.
    #[error("the store is in use")]
    InUse,
    /// There is no store.
    #[error("there is no store in `{0}`")]
    NoStore(String),
    /// A file cannot be used.
    #[error("`{path}` cannot be used")]
    File {
        /// The path.
        path: String,
        /// Why.
        source: std::io::Error,
    },
    /// The database does not answer.
    #[error("the database does not answer")]
    Database(#[from] rusqlite::Error),
    /// The copy is not sound.
    #[error("the copy is damaged: {0}")]
    Damaged(String),
}

fn shown(path: &Path) -> String {
    path.display().to_string()
}

fn file(path: &Path) -> impl FnOnce(std::io::Error) -> MaintenanceError {
    let path = shown(path);
    move |source| MaintenanceError::File { path, source }
}

fn folder(data: &Path) -> Result<StoreFolder, MaintenanceError> {
    if !data.join(DATABASE).is_file() {
        return Err(MaintenanceError::NoStore(shown(data)));
    }
    StoreFolder::create(data).map_err(|error| MaintenanceError::File {
        path: shown(data),
        source: std::io::Error::other(error),
    })
}

fn sound(path: &Path) -> Result<(), MaintenanceError> {
    let connection = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
    let verdict: String =
        connection.query_row("PRAGMA integrity_check(1)", [], |row| row.get(0))?;
    if verdict == "ok" { Ok(()) } else { Err(MaintenanceError::Damaged(verdict)) }
}

fn private_copy(from: &Path, to: &Path) -> Result<(), MaintenanceError> {
    std::fs::copy(from, to).map_err(file(to))?;
    std::fs::set_permissions(to, PermissionsExt::from_mode(0o600)).map_err(file(to))?;
    std::fs::File::open(to).and_then(|copy| copy.sync_all()).map_err(file(to))
}

/// Copies a store into a new folder, as it is at one moment, also while it is used: the database
/// and the keys without which it means nothing.
///
/// # Errors
/// [`MaintenanceError`]; nothing is left of a copy that failed.
pub fn backup(data: &Path, to: &Path) -> Result<(), MaintenanceError> {
    let source = folder(data)?;
    if to.exists() {
        return Err(MaintenanceError::There(shown(to)));
    }
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(to).map_err(file(to))?;
    let copied = copy_into(&source, to);
    if copied.is_err() {
        // The folder is new: nothing of somebody else's is in it.
        let _ = std::fs::remove_dir_all(to);
    }
    copied
}

fn copy_into(source: &StoreFolder, to: &Path) -> Result<(), MaintenanceError> {
    let target = to.join(DATABASE);
    // Keys before the database: a key that is made later is no key of what is copied.
    for key in source.keys().iter().filter(|key| key.is_file()) {
        if let Some(name) = key.file_name() {
            private_copy(key, &to.join(name))?;
        }
    }
    for name in NAMES {
        let names = source.database().with_file_name(name);
        if names.is_file() {
            private_copy(&names, &to.join(name))?;
        }
    }
    let connection = Connection::open(source.database())?;
    connection.busy_timeout(std::time::Duration::from_secs(30))?;
    connection.execute("VACUUM INTO ?1", [shown(&target)])?;
    std::fs::set_permissions(&target, PermissionsExt::from_mode(0o600)).map_err(file(&target))?;
    std::fs::File::open(&target).and_then(|copy| copy.sync_all()).map_err(file(&target))?;
    // A checkpoint that was signed in between covers more than the copy has.
    keep_what_is_covered(&target, to)?;
    sound(&target)
}

/// Removes a kept checkpoint that the database of the same folder does not have.
fn keep_what_is_covered(database: &Path, folder: &Path) -> Result<(), MaintenanceError> {
    let own = StoreFolder::create(folder).map_err(|error| MaintenanceError::File {
        path: shown(folder),
        source: std::io::Error::other(error),
    })?;
    let kept = own.kept_checkpoint().ok().flatten();
    let Some(kept) = kept else { return Ok(()) };
    let connection = Connection::open_with_flags(database, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
    let size: i64 = connection
        .query_row("SELECT size FROM writers WHERE writer = ?1", [&kept.writer], |row| row.get(0))
        .unwrap_or_default();
    if size.unsigned_abs() < kept.size {
        own.forget_checkpoint().map_err(file(folder))?;
    }
    Ok(())
}

/// Puts a backup in the place of a store that nobody uses. What was there is moved aside; gives
/// where to. The newest checkpoint stays, so that the store does not open before somebody accepts
/// that it was put back.
///
/// # Errors
/// [`MaintenanceError`]; the store is as it was then.
pub fn restore(data: &Path, from: &Path) -> Result<Option<PathBuf>, MaintenanceError> {
    let backup = from.join(DATABASE);
    if !backup.is_file() || !from.join("digest.key").is_file() {
        return Err(MaintenanceError::NoBackup(shown(from)));
    }
    sound(&backup)?;
    let connection = Connection::open_with_flags(&backup, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
    if schema::version(&connection)? > schema::VERSION {
        return Err(MaintenanceError::Damaged("it is of a newer version".to_owned()));
    }
    drop(connection);
    let there = data.join(DATABASE).is_file();
    let old = if there { Some(folder(data)?) } else { None };
    if old.as_ref().is_some_and(StoreFolder::has_writers) {
        return Err(MaintenanceError::InUse);
    }
    // Everything is copied beside the place first; then folders change names.
    let beside = |suffix: &str| {
        let mut name = data.as_os_str().to_owned();
        name.push(format!(".{suffix}-{}", std::process::id()));
        PathBuf::from(name)
    };
    let (draft, aside) = (beside("restoring"), beside("before-restore"));
    if draft.exists() || aside.exists() {
        let taken = if draft.exists() { draft } else { aside };
        return Err(MaintenanceError::There(shown(&taken)));
    }
    let copied = copy_back(from, &draft, data);
    let moved = copied.and_then(|()| {
        if there {
            std::fs::rename(data, &aside).map_err(file(data))?;
        }
        let placed = std::fs::rename(&draft, data).map_err(file(data));
        if placed.is_err() && there {
            // What was there comes back.
            let _ = std::fs::rename(&aside, data);
        }
        placed
    });
    if moved.is_err() {
        let _ = std::fs::remove_dir_all(&draft);
    }
    moved.map(|()| there.then_some(aside))
}

fn copy_back(from: &Path, draft: &Path, data: &Path) -> Result<(), MaintenanceError> {
    let target = StoreFolder::create(draft).map_err(|error| MaintenanceError::File {
        path: shown(draft),
        source: std::io::Error::other(error),
    })?;
    private_copy(&from.join(DATABASE), &target.database())?;
    for key in target.keys() {
        let Some(name) = key.file_name() else { continue };
        // The newest checkpoint is the one of the store that is replaced.
        let newest = data.join(name);
        let is_checkpoint = name == "checkpoint.note";
        let source = if is_checkpoint && newest.is_file() { newest } else { from.join(name) };
        if source.is_file() {
            private_copy(&source, &key)?;
        }
    }
    // Names on the wire belong to clients, not to records: they stay as they are.
    for name in NAMES {
        let names = [data.join(name), from.join(name)];
        if let Some(names) = names.iter().find(|names| names.is_file()) {
            private_copy(names, &draft.join(name))?;
        }
    }
    Ok(())
}

/// Gives the space of removed records back to the disk. Calls wait meanwhile.
///
/// # Errors
/// [`MaintenanceError`].
pub fn vacuum(data: &Path) -> Result<(), MaintenanceError> {
    let source = folder(data)?;
    let connection = Connection::open(source.database())?;
    connection.busy_timeout(std::time::Duration::from_secs(30))?;
    connection.execute_batch("VACUUM; PRAGMA wal_checkpoint(TRUNCATE);")?;
    Ok(())
}
