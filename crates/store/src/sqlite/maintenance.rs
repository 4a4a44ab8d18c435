//! Backs up, restores and vacuums a store.
//!
//! Doc: records.md#backups

use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rusqlite::{Connection, OpenFlags};

use super::error::MaintenanceError;
use super::folder::{DATABASE, RESTORED, StoreFolder};
use super::schema;

/// Files next to the database that store the wire names of tools and prompts.
const NAMES: [&str; 2] = ["wire-names.json", "prompt-names.json"];
/// The pins of listings. Without them a changed tool would be pinned as if it was new.
const PINS: &str = "tools.pins.json";
/// The folder with secrets that an import has kept.
const IMPORTED: &str = "secrets";

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
    private_folder(data)
}

fn private_folder(data: &Path) -> Result<StoreFolder, MaintenanceError> {
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

/// Copies a store into the new folder `to`, also while the store is in use. The copy has the
/// database as of one moment, the keys, the newest checkpoint and the wire names.
///
/// # Errors
/// [`MaintenanceError`]. A failed copy is removed.
pub fn backup(data: &Path, to: &Path) -> Result<(), MaintenanceError> {
    let source = folder(data)?;
    if to.exists() {
        return Err(MaintenanceError::There(shown(to)));
    }
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(to).map_err(file(to))?;
    let copied = copy_into(&source, to);
    if copied.is_err() {
        // The folder is new, so it contains only the copy.
        let _ = std::fs::remove_dir_all(to);
    }
    copied
}

fn copy_into(source: &StoreFolder, to: &Path) -> Result<(), MaintenanceError> {
    let target = to.join(DATABASE);
    // The checkpoint is copied first, so that the later copy of the database covers it. If it does
    // not, the store was restored to an earlier state, and the copy is refused at start like the
    // store itself.
    for key in source.keys().iter().filter(|key| key.is_file()) {
        if let Some(name) = key.file_name() {
            private_copy(key, &to.join(name))?;
        }
    }
    for name in NAMES.into_iter().chain([PINS]) {
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
    sound(&target)
}

/// Replaces a store that is not in use by the backup in `from`. The old folder is moved into the new one, where
/// no tool may read; returns its path, or `None` if there was no old folder.
///
/// The newest checkpoint of the old store stays. The store is refused until an operator accepts the restored
/// records.
///
/// # Errors
/// [`MaintenanceError`]. The old store then stays in its place.
pub fn restore(data: &Path, from: &Path) -> Result<Option<PathBuf>, MaintenanceError> {
    // Renames must move the folder, and not a link to it.
    let real = data.canonicalize();
    let data = real.as_deref().unwrap_or(data);
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
    // A store that lost its database still has a checkpoint and names to preserve, and perhaps a
    // writer.
    let there = std::fs::read_dir(data).is_ok_and(|mut entries| entries.next().is_some());
    let old = if there { Some(private_folder(data)?) } else { None };
    if old.as_ref().is_some_and(StoreFolder::has_writers) {
        return Err(MaintenanceError::InUse);
    }
    // The backup is copied next to the store first, so that only renames remain.
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
        let renamed = std::fs::rename(&draft, data).map_err(file(data));
        if renamed.is_err() && there {
            // Moves the old store back.
            let _ = std::fs::rename(&aside, data);
        }
        renamed
    });
    if moved.is_err() {
        let _ = std::fs::remove_dir_all(&draft);
    }
    moved?;
    if !there {
        return Ok(None);
    }
    // Secrets that an import has kept belong to the configuration, which is not restored.
    let secrets = data.join(IMPORTED);
    if !secrets.exists() {
        let _ = std::fs::rename(aside.join(IMPORTED), secrets);
    }
    let kept = data.join(format!("before-restore-{}", std::process::id()));
    // If it cannot be moved, the store is restored all the same.
    Ok(Some(if std::fs::rename(&aside, &kept).is_ok() { kept } else { aside }))
}

fn copy_back(from: &Path, draft: &Path, data: &Path) -> Result<(), MaintenanceError> {
    let target = StoreFolder::create(draft).map_err(|error| MaintenanceError::File {
        path: shown(draft),
        source: std::io::Error::other(error),
    })?;
    private_copy(&from.join(DATABASE), &target.database())?;
    for key in target.keys() {
        let Some(name) = key.file_name() else { continue };
        // The newest checkpoint is taken from the replaced store.
        let newest = data.join(name);
        let is_checkpoint = name == "checkpoint.note";
        let source = if is_checkpoint && newest.is_file() { newest } else { from.join(name) };
        if source.is_file() {
            private_copy(&source, &key)?;
        }
    }
    let mark = draft.join(RESTORED);
    std::fs::write(&mark, "see `toolbooth audit accept-restore`\n").map_err(file(&mark))?;
    // Clients know the wire names of the replaced store, so these are preserved.
    for name in NAMES {
        let names = [data.join(name), from.join(name)];
        if let Some(names) = names.iter().find(|names| names.is_file()) {
            private_copy(names, &draft.join(name))?;
        }
    }
    // Those of the backup are in its records. A backup without any may be of an earlier version.
    let pins = [from.join(PINS), data.join(PINS)];
    if let Some(pins) = pins.iter().find(|pins| pins.is_file()) {
        private_copy(pins, &draft.join(PINS))?;
    }
    Ok(())
}

/// Returns the space of removed records to the file system. Calls wait meanwhile.
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
