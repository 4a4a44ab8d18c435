//! Reads and writes regular files as a whole; a write is atomic.
//!
//! Doc: configuration.md

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// Reads a regular file. Opening a pipe at this path would wait for its writer, so other file types are an
/// error.
pub(crate) fn read(path: &Path) -> std::io::Result<Vec<u8>> {
    if !std::fs::metadata(path)?.is_file() {
        return Err(std::io::Error::other("it is not an ordinary file"));
    }
    std::fs::read(path)
}

/// As [`read`], with a limit of `bytes_max` bytes.
pub(crate) fn read_within(path: &Path, bytes_max: u64) -> std::io::Result<Vec<u8>> {
    if std::fs::metadata(path)?.len() > bytes_max {
        return Err(too_large(bytes_max));
    }
    read(path)
}

/// Reads a file of any kind, such as a pipe that the user names, with a limit of `bytes_max` bytes.
pub(crate) fn read_any_within(path: &Path, bytes_max: u64) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    std::fs::File::open(path)?.take(bytes_max + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > bytes_max {
        return Err(too_large(bytes_max));
    }
    Ok(bytes)
}

fn too_large(bytes_max: u64) -> std::io::Error {
    std::io::Error::other(format!("it has more than {bytes_max} bytes"))
}

/// The metadata that identifies one version of a file.
pub(crate) type Stamp = Option<(u64, u64, u64, Option<std::time::SystemTime>)>;

/// Returns the metadata of a file; `None` if it is missing.
pub(crate) fn stamp(path: &Path) -> Stamp {
    use std::os::unix::fs::MetadataExt;
    let data = std::fs::metadata(path).ok()?;
    Some((data.dev(), data.ino(), data.len(), data.modified().ok()))
}

/// Detects changes of files by their stamps. A change counts once two looks have found the same, so that
/// no half-written file is read. The first state counts as a change.
#[derive(Debug)]
pub(crate) struct Changes<T> {
    seen: Option<T>,
    applied: Option<T>,
}

impl<T> Default for Changes<T> {
    fn default() -> Self {
        Self { seen: None, applied: None }
    }
}

impl<T: Clone + PartialEq> Changes<T> {
    /// Takes the result of a look. Whether the files are to be read now.
    pub(crate) fn look(&mut self, now: T) -> bool {
        let now = Some(now);
        let is_due = now == self.seen && now != self.applied;
        if is_due {
            self.applied.clone_from(&now);
        }
        self.seen = now;
        is_due
    }
}

/// The longest wait for a process that holds a lock.
const LOCK_PATIENCE: Duration = Duration::from_secs(5);
/// The interval between attempts to take a lock.
const LOCK_RETRY: Duration = Duration::from_millis(10);

/// Takes the lock of a file between processes; the file is made if it is not there. Closing it releases the lock,
/// also if this process dies.
pub(crate) fn hold(path: &Path) -> std::io::Result<File> {
    let file = OpenOptions::new().create(true).append(true).mode(0o600).open(path)?;
    let began = Instant::now();
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::WouldBlock) if began.elapsed() < LOCK_PATIENCE => {
                std::thread::sleep(LOCK_RETRY);
            }
            Err(TryLockError::WouldBlock) => {
                return Err(std::io::Error::other("another process holds the file"));
            }
            Err(TryLockError::Error(error)) => return Err(error),
        }
    }
}

/// Replaces a file. Writes a new file with the same mode in the same folder, makes it durable and renames it.
/// If the path is a link, its target is replaced.
pub(crate) fn replace(path: &Path, text: &[u8]) -> std::io::Result<()> {
    replace_with_mode(path, text, None)
}

/// As [`replace`], with mode 0600. Makes the folder durable too.
pub(crate) fn replace_private(path: &Path, text: &[u8]) -> std::io::Result<()> {
    replace_with_mode(path, text, Some(0o600))?;
    match path.parent() {
        // A bare file name refers to the working directory.
        Some(folder) if folder.as_os_str().is_empty() => std::fs::File::open(".")?.sync_all(),
        Some(folder) => std::fs::File::open(folder)?.sync_all(),
        None => Ok(()),
    }
}

fn replace_with_mode(path: &Path, text: &[u8], mode: Option<u32>) -> std::io::Result<()> {
    let target = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let mut name = target.as_os_str().to_owned();
    name.push(format!(".{}.draft", uuid::Uuid::now_v7().simple()));
    let draft = std::path::PathBuf::from(name);
    let written =
        write_new(&draft, text, &target, mode).and_then(|()| std::fs::rename(&draft, &target));
    if written.is_err() {
        let _ = std::fs::remove_file(&draft);
    }
    written
}

fn write_new(draft: &Path, text: &[u8], target: &Path, mode: Option<u32>) -> std::io::Result<()> {
    let mut options = std::fs::OpenOptions::new();
    let mut file = options.write(true).create_new(true).mode(mode.unwrap_or(0o666)).open(draft)?;
    if let (None, Ok(there)) = (mode, std::fs::metadata(target)) {
        file.set_permissions(there.permissions())?;
    }
    file.write_all(text)?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_change_counts_once_it_was_seen_twice() {
        let mut changes = Changes::default();
        let due: Vec<bool> =
            [1, 1, 1, 2, 3, 3, 3, 2, 3, 3, 1, 1].map(|stamp| changes.look(stamp)).into();
        let at: Vec<usize> = (0..due.len()).filter(|at| due[*at]).collect();
        // The change to 2 and back was never seen twice.
        assert_eq!(at, [1, 5, 11]);
    }

    #[test]
    fn modes_and_links_stay() {
        let folder = tempfile::tempdir().unwrap();
        let (file, link) = (folder.path().join("file"), folder.path().join("link"));
        std::fs::write(&file, "old").unwrap();
        std::fs::set_permissions(&file, PermissionsExt::from_mode(0o600)).unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        replace(&link, b"new").unwrap();
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "new");
        assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(link.symlink_metadata().unwrap().is_symlink());
        replace(&folder.path().join("fresh"), b"x").unwrap();
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 3, "no draft is left");
        assert!(replace(&folder.path().join("no/such/folder"), b"x").is_err());
    }
}
