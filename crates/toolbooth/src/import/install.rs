//! Replaces the servers in a client's file by Toolbooth, with a backup, and restores them.
//!
//! Doc: importing.md#install

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use toolbooth_contracts::causes::with_causes;
use toolbooth_import::permissions::{self, Change, Exchange};
use toolbooth_import::{Client, ImportError, Replaced, with_gateway};

use crate::failure::{Failure, OUT_OF_REACH};

/// The maximum number of backups of one file.
const BACKUPS_MAX: usize = 1_000;

fn backup(path: &Path, number: usize) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".toolbooth-backup-{number}"));
    PathBuf::from(name)
}

/// Whether the path exists, also as a dangling link.
fn is_there(path: &Path) -> bool {
    path.symlink_metadata().is_ok()
}

fn failed(path: &Path, what: &str, error: &std::io::Error) -> Failure {
    Failure::new(OUT_OF_REACH, "cannot-write", format!("{what}: {error}"))
        .at(path.display().to_string())
}

/// Returns the command line with which a client starts this gateway.
fn runtime(configuration: &Path) -> Result<(String, Vec<String>), Failure> {
    let this = std::env::current_exe()
        .map_err(|error| Failure::usage(format!("this program cannot be found: {error}")))?;
    let configuration =
        std::path::absolute(configuration).unwrap_or_else(|_| configuration.to_owned());
    let arguments = ["stdio", "--config"].map(str::to_owned).into_iter();
    let arguments = arguments.chain([configuration.display().to_string()]).collect();
    Ok((this.display().to_string(), arguments))
}

/// A changed file, with its backup.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Backup {
    pub(crate) file: PathBuf,
    pub(crate) backup: PathBuf,
}

/// The changes of an installation.
#[derive(Debug)]
pub(crate) struct Installed {
    pub(crate) backup: PathBuf,
    /// Files with copied permissions.
    pub(crate) permissions: Vec<(Backup, Vec<Change>)>,
    /// Copied permissions of the client's file itself.
    pub(crate) own: Vec<Change>,
}

/// Replaces servers in a client's file by this gateway, and copies their permissions.
pub(crate) fn install(
    client: Client,
    path: &Path,
    configuration: &Path,
    replaced: Replaced<'_>,
    exchange: Exchange<'_>,
) -> Result<Installed, Failure> {
    let wrong = |path: &Path, error: ImportError| {
        Failure::usage(with_causes(&error)).at(path.display().to_string())
    };
    let read = |path: &Path| {
        std::fs::read_to_string(path)
            .map_err(|error| failed(path, "the client's file cannot be read", &error))
    };
    let (command, arguments) = runtime(configuration)?;
    let text = read(path)?;
    let changed = with_gateway(&text, client, replaced, &command, &arguments);
    let mut text = changed.map_err(|error| wrong(path, error))?;
    let (mut own, mut others) = (Vec::new(), Vec::new());
    for file in permissions::files(client, path) {
        let is_own = same(&file.path, path);
        let before = if is_own { text.clone() } else { read(&file.path)? };
        let (after, changes) =
            permissions::carried_over(&before, &file, exchange).map_err(|error| {
                wrong(&file.path, error).hint("mend the file; nothing was installed")
            })?;
        if is_own {
            (text, own) = (after, changes);
        } else if after != before {
            others.push((file.path, after, changes));
        }
    }
    // All files are copied before the first one is changed.
    let backup = copy(path)?;
    let mut permissions = Vec::new();
    for (file, _, changes) in &others {
        permissions.push((Backup { file: file.clone(), backup: copy(file)? }, changes.clone()));
    }
    let kept: Vec<&Backup> = permissions.iter().map(|(backup, _)| backup).collect();
    if !kept.is_empty() {
        let list = record(&backup);
        let text = serde_json::to_vec_pretty(&kept).unwrap_or_default();
        crate::files::replace_private(&list, &text)
            .map_err(|error| failed(&list, "the list of backups cannot be written", &error))?;
    }
    // Refusals are written before the tools to which they apply.
    let texts = others.iter().map(|(file, text, _)| (file.as_path(), text)).chain([(path, &text)]);
    for (file, text) in texts {
        if let Err(error) = crate::files::replace(file, text.as_bytes()) {
            for Backup { file, backup } in kept {
                let _ = std::fs::copy(backup, file);
            }
            return Err(failed(file, "the client's file cannot be written", &error));
        }
    }
    Ok(Installed { backup, permissions, own })
}

fn same(one: &Path, other: &Path) -> bool {
    match (one.canonicalize(), other.canonicalize()) {
        (Ok(one), Ok(other)) => one == other,
        _ => one == other,
    }
}

/// Returns the path of the list of the other files that were changed with this backup's file.
fn record(backup: &Path) -> PathBuf {
    let mut name = backup.as_os_str().to_owned();
    name.push(".files");
    PathBuf::from(name)
}

/// Copies a file to its next backup.
fn copy(path: &Path) -> Result<PathBuf, Failure> {
    let last = (1..=BACKUPS_MAX).rev().find(|number| is_there(&backup(path, *number)));
    let free = Some(last.unwrap_or(0) + 1).filter(|number| *number <= BACKUPS_MAX);
    let backup = free.map(|number| backup(path, number)).ok_or_else(|| {
        Failure::usage("there are too many backups of this file")
            .at(path.display().to_string())
            .hint("remove those that are not needed")
    })?;
    // The copy keeps the mode of the file, because it can contain secrets.
    std::fs::copy(path, &backup)
        .map_err(|error| failed(&backup, "the backup cannot be written", &error))?;
    Ok(backup)
}

/// Restores the latest backup, and those of the files that were changed with it. The current files are stored
/// next to them. Returns the backup of the file, the new path of the replaced file, and the other backups.
pub(crate) fn undo(
    client: Client,
    path: &Path,
) -> Result<(PathBuf, PathBuf, Vec<Backup>), Failure> {
    let latest =
        (1..=BACKUPS_MAX).rev().map(|number| backup(path, number)).find(|path| is_there(path));
    let latest = latest.ok_or_else(|| {
        Failure::usage("there is no backup of this file").at(path.display().to_string())
    })?;
    let list = record(&latest);
    let others: Vec<Backup> = match std::fs::read(&list) {
        Ok(text) => serde_json::from_slice(&text).map_err(|_| {
            Failure::usage("the list of backups cannot be understood")
                .at(list.display().to_string())
        })?,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Vec::new(),
        Err(error) => return Err(failed(&list, "the list of backups cannot be read", &error)),
    };
    // The list is next to the client's file, where other users may be able to write it.
    let own = permissions::files(client, path);
    let is_ours = |one: &Backup| {
        own.iter().any(|file| file.path == one.file)
            && (1..=BACKUPS_MAX).any(|number| one.backup == backup(&one.file, number))
    };
    if let Some(other) = others.iter().find(|one| !is_ours(one)) {
        let message = "the list of backups names a file that Toolbooth does not change";
        return Err(Failure::usage(message)
            .at(other.file.display().to_string())
            .hint(format!("see {}; nothing was restored", list.display())));
    }
    let undone = bring_back(path, &latest)?;
    for Backup { file, backup } in &others {
        if is_there(backup) {
            bring_back(file, backup)?;
        }
    }
    let _ = std::fs::remove_file(&list);
    Ok((latest, undone, others))
}

fn bring_back(path: &Path, backup: &Path) -> Result<PathBuf, Failure> {
    let mut undone = path.as_os_str().to_owned();
    undone.push(".toolbooth-undone");
    let undone = PathBuf::from(undone);
    if is_there(path) {
        std::fs::rename(path, &undone)
            .map_err(|error| failed(path, "the client's file cannot be set aside", &error))?;
    }
    std::fs::rename(backup, path)
        .map_err(|error| failed(backup, "the backup cannot be restored", &error))?;
    Ok(undone)
}
