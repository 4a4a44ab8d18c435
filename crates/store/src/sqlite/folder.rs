//! Manages the folder of a store: its database, its keys, its newest checkpoint, and a lock file
//! for each live writer.
//!
//! Doc: records.md#stores

use std::fs::{File, Metadata, OpenOptions, TryLockError};
use std::io::{Read, Write};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use data_encoding::{HEXLOWER, HEXLOWER_PERMISSIVE};
use toolbooth_audit::digest::{Digester, KEY_BYTES};
use toolbooth_audit::note::Signer;

use super::OpenError;

/// The name of the database in its folder.
pub const DATABASE: &str = "toolbooth.db";
const KEY: &str = "digest.key";
const SIGNING_KEY: &str = "signing.key";
const OPERATOR_KEY: &str = "operator.key";
/// The beginning of every operator key.
const OPERATOR_KEY_START: &str = "tbo_";
/// The shortest text that a person may choose as operator key.
const OPERATOR_KEY_BYTES_MIN: usize = 36;
/// The file of the newest checkpoint. A database that was restored to an earlier state does not
/// have that checkpoint.
pub(super) const CHECKPOINT: &str = "checkpoint.note";
/// The last check that the database has passed.
const LAST_CHECK: &str = "last-check";
const WRITERS: &str = "writers";
/// The bound that was chosen at the first start, in bytes.
const BYTES_MAX: &str = "bytes-max";
/// Marks a store that was restored from a backup, until an operator accepts the restoration. The calls since the
/// backup are unknown, even if no trace of the replaced store is left.
pub const RESTORED: &str = "restored";
/// The age at which a draft counts as abandoned.
const YOUNG: Duration = Duration::from_secs(3600);

/// The folder of a store.
#[derive(Debug, Clone)]
pub struct StoreFolder(pub(super) PathBuf);

impl StoreFolder {
    /// Returns the folder at `path`, whether or not it exists.
    #[must_use]
    pub fn at(path: &Path) -> Self {
        Self(path.to_owned())
    }

    /// Returns the folder of the database at `path`.
    pub(super) fn of(database: &Path) -> Self {
        Self::at(database.parent().unwrap_or(Path::new("")))
    }

    /// Opens the folder at `path`, and creates it if it is missing: mode 0700, with a `.gitignore`.
    ///
    /// # Errors
    /// [`OpenError::Folder`].
    pub fn create(path: &Path) -> Result<Self, OpenError> {
        let folder = Self(path.to_owned());
        let make = |path: &Path| {
            if !path.is_dir() {
                std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path)?;
            }
            Ok(())
        };
        make(path)
            .and_then(|()| make(&path.join(WRITERS)))
            .and_then(|()| std::fs::set_permissions(path, PermissionsExt::from_mode(0o700)))
            .map_err(|source| Self::error(path, source))?;
        folder.check_pipes()?;
        folder.write_new(".gitignore", b"*\n").map_err(|source| Self::error(path, source))?;
        Ok(folder)
    }

    /// Checks that no file of the store is a pipe. Opening a pipe blocks until another process
    /// writes to it.
    fn check_pipes(&self) -> Result<(), OpenError> {
        for folder in [self.0.clone(), self.0.join(WRITERS)] {
            for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
                // Follows links, because opening a file follows them too.
                let kind = entry.path().metadata().map(|data| data.file_type());
                if kind.is_ok_and(|kind| kind.is_fifo()) {
                    let message = "it is a pipe, and no file of a store; remove it";
                    return Err(Self::error(&entry.path(), std::io::Error::other(message)));
                }
            }
        }
        Ok(())
    }

    pub(super) fn error(path: &Path, source: std::io::Error) -> OpenError {
        OpenError::Folder { path: path.display().to_string(), source }
    }

    /// Returns the path of the folder.
    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    /// Returns the bound that was chosen at the first start, in bytes; `None` before.
    ///
    /// # Errors
    /// [`OpenError::Folder`], also if the file has no number.
    pub fn kept_bytes_max(&self) -> Result<Option<u64>, OpenError> {
        let path = self.0.join(BYTES_MAX);
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(Self::error(&path, source)),
        };
        let number = text.trim().parse().map_err(|_| {
            let message = "it has no number of bytes; if it is removed, one is chosen anew";
            Self::error(&path, std::io::Error::new(std::io::ErrorKind::InvalidData, message))
        });
        number.map(Some)
    }

    /// Stores the bound of the store, and returns the bound that counts. If two processes start at
    /// once, the bound of the first one counts.
    pub(super) fn keep_bytes_max(&self, bytes_max: u64) -> Result<u64, OpenError> {
        let path = self.0.join(BYTES_MAX);
        self.write_new(BYTES_MAX, format!("{bytes_max}\n").as_bytes())
            .map_err(|source| Self::error(&path, source))?;
        Ok(self.kept_bytes_max()?.unwrap_or(bytes_max))
    }

    /// Returns the path of the database.
    #[must_use]
    pub fn database(&self) -> PathBuf {
        self.0.join(DATABASE)
    }

    /// Returns a path for a temporary file, unique per process and call.
    pub(super) fn draft(&self, name: &str) -> PathBuf {
        static DRAFTS: AtomicU64 = AtomicU64::new(0);
        let draft = DRAFTS.fetch_add(1, Ordering::Relaxed);
        self.0.join(format!("{name}.{}-{draft}.draft", std::process::id()))
    }

    /// Writes a file atomically if it does not exist; an existing file stays.
    fn write_new(&self, name: &str, content: &[u8]) -> std::io::Result<()> {
        let path = self.0.join(name);
        if path.exists() {
            return Ok(());
        }
        let draft = self.draft(name);
        let mut file = private().create(true).truncate(true).write(true).open(&draft)?;
        file.write_all(content)?;
        file.sync_all()?;
        // `hard_link` fails if the file exists, so that only one of two processes that start at
        // once succeeds.
        let linked = std::fs::hard_link(&draft, &path);
        std::fs::remove_file(&draft)?;
        match linked {
            Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => Err(error),
            _ => Ok(()),
        }
    }

    /// Creates the database file with mode 0600 if it does not exist.
    pub(super) fn touch_database(&self) -> Result<(), OpenError> {
        let path = self.database();
        private()
            .create(true)
            .append(true)
            .open(&path)
            .map(drop)
            .map_err(|source| Self::error(&path, source))
    }

    /// Returns the digest keys: the first line of the file is the newest key, further lines are
    /// older ones. A missing file is created with a new key if `may_make`.
    ///
    /// # Errors
    /// [`OpenError::Key`] if the file has no valid key, or is missing and may not be created;
    /// [`OpenError::Folder`].
    pub fn digester(&self, may_make: bool) -> Result<Digester, OpenError> {
        if !may_make && !self.0.join(KEY).is_file() {
            let path = self.0.join(KEY).display().to_string();
            return Err(OpenError::Key { path, what: "is missing" });
        }
        let (newest, older) = self.keys_of(KEY)?;
        Ok(Digester::new(&newest).with_older(&older))
    }

    /// Returns the key that signs checkpoints; creates it if it is missing.
    ///
    /// # Errors
    /// [`OpenError::Key`] if the file has no valid key; [`OpenError::Folder`].
    pub fn signer(&self) -> Result<Signer, OpenError> {
        self.keys_of(SIGNING_KEY).map(|(seed, _)| Signer::new(&seed))
    }

    /// Returns the operator key, whose holder is the operator; creates it if it is missing.
    ///
    /// # Errors
    /// [`OpenError::Key`] if the file has no valid key; [`OpenError::Folder`].
    pub fn operator_key(&self) -> Result<String, OpenError> {
        let path = self.0.join(OPERATOR_KEY);
        let text = format!("{OPERATOR_KEY_START}{}\n", HEXLOWER.encode(&self.random(&path)?));
        let found = self.read_or_write(OPERATOR_KEY, &text)?;
        let key = found.trim();
        let fits = key.starts_with(OPERATOR_KEY_START)
            && key.len() >= OPERATOR_KEY_BYTES_MIN
            && key.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
        match fits {
            true => Ok(key.to_owned()),
            false => Err(OpenError::Key {
                path: path.display().to_string(),
                what: "is not an operator key",
            }),
        }
    }

    fn random(&self, path: &Path) -> Result<[u8; KEY_BYTES], OpenError> {
        let mut fresh = [0u8; KEY_BYTES];
        getrandom::fill(&mut fresh)
            .map_err(|error| Self::error(path, std::io::Error::other(error.to_string())))?;
        Ok(fresh)
    }

    /// Returns the text of a file, which is created with `text` if it is missing.
    fn read_or_write(&self, name: &str, text: &str) -> Result<String, OpenError> {
        let path = self.0.join(name);
        self.write_new(name, text.as_bytes()).map_err(|source| Self::error(&path, source))?;
        let mut text = String::new();
        File::open(&path)
            .and_then(|file| file.take(64 << 10).read_to_string(&mut text))
            .map_err(|source| Self::error(&path, source))?;
        Ok(text)
    }

    /// Returns the first key of a file, and the others. A missing file is created with a new key.
    fn keys_of(&self, name: &str) -> Result<([u8; KEY_BYTES], Vec<[u8; KEY_BYTES]>), OpenError> {
        let path = self.0.join(name);
        let fresh = HEXLOWER.encode(&self.random(&path)?);
        let text = self.read_or_write(name, &format!("{fresh}\n"))?;
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
        let keys: Option<Vec<[u8; KEY_BYTES]>> = lines.map(decode).collect();
        let mut keys = keys.unwrap_or_default().into_iter();
        let newest = keys.next().ok_or_else(|| OpenError::Key {
            path: path.display().to_string(),
            what: match (name, text.trim().is_empty()) {
                (_, true) => "is empty",
                (KEY, false) => "is not a digest key",
                (_, false) => "is not a signing key",
            },
        })?;
        Ok((newest, keys.collect()))
    }

    /// Returns the record of the last check that the database has passed.
    pub(super) fn last_check(&self) -> Option<Vec<u8>> {
        let mut check = Vec::new();
        let file = File::open(self.0.join(LAST_CHECK)).ok()?;
        file.take(4 << 10).read_to_end(&mut check).ok()?;
        Some(check)
    }

    /// Writes the record of a check. If the record is missing or incomplete, the next start checks
    /// again.
    pub(super) fn keep_check(&self, check: &[u8]) {
        let mut options = private();
        let file = options.create(true).truncate(true).write(true).open(self.0.join(LAST_CHECK));
        if let Err(error) = file.and_then(|mut file| file.write_all(check)) {
            tracing::debug!(%error, "the check of the database is not recorded");
        }
    }

    /// Lets the next start check the database.
    pub(super) fn forget_check(&self) {
        let _ = std::fs::remove_file(self.0.join(LAST_CHECK));
    }

    /// Removes the lock files of dead writers; a missing file also marks a dead writer. Files with
    /// a lock that cannot be tested stay.
    pub(super) fn sweep_locks(&self) {
        let Ok(entries) = std::fs::read_dir(self.0.join(WRITERS)) else { return };
        for path in entries.flatten().map(|entry| entry.path()) {
            // The writer of a young draft may be about to lock it.
            let is_young = path.extension().is_some_and(|kind| kind == "draft")
                && path
                    .metadata()
                    .and_then(|file| file.modified())
                    .is_ok_and(|at| at.elapsed().is_ok_and(|age| age < YOUNG));
            let Ok(file) = File::open(&path) else { continue };
            if !is_young && file.try_lock().is_ok() {
                // `file` is still open, so the lock is held until the name is removed.
                let _ = std::fs::remove_file(&path);
            }
        }
    }

    /// Whether any writer is alive.
    pub fn has_writers(&self) -> bool {
        let Ok(entries) = std::fs::read_dir(self.0.join(WRITERS)) else { return false };
        entries.flatten().any(|entry| {
            let name = entry.file_name();
            name.to_str()
                .and_then(|name| name.strip_suffix(".lock"))
                .is_some_and(|writer| !self.writer_lost(writer))
        })
    }

    /// Returns the paths of the keys and of the newest checkpoint, which a backup copies with the
    /// database.
    #[must_use]
    pub fn keys(&self) -> [PathBuf; 3] {
        [KEY, SIGNING_KEY, CHECKPOINT].map(|name| self.0.join(name))
    }

    /// Whether the store was restored from a backup, and no operator has accepted that.
    pub(super) fn is_restored(&self) -> bool {
        self.0.join(RESTORED).exists()
    }

    /// Removes the mark of a restored store.
    pub(super) fn accept_restored(&self) -> Result<(), OpenError> {
        let path = self.0.join(RESTORED);
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(Self::error(&path, error))
            }
            _ => Ok(()),
        }
    }

    /// Acquires the lock of `writer`; `None` if a process has it. It is released when the file is closed, at
    /// the latest when the process ends.
    pub(super) fn lock_writer(&self, writer: &str) -> Result<Option<File>, OpenError> {
        let path = self.writer_lock(writer);
        let draft = path.with_extension("draft");
        let locked = || {
            let file = private().create(true).truncate(true).write(true).open(&draft)?;
            match file.try_lock() {
                Err(TryLockError::WouldBlock) => return Ok(None),
                locked => locked?,
            }
            // Another process may have removed the name between both.
            let is_there = std::fs::metadata(&draft).is_ok_and(|own| is_same(&own, &file));
            if !is_there || (path.exists() && !self.writer_lost(writer)) {
                return Ok(None);
            }
            // The file gets its name once it is locked, so that no process sees it unlocked.
            std::fs::rename(&draft, &path)?;
            Ok(Some(file))
        };
        locked().map_err(|source| Self::error(&path, source))
    }

    fn writer_lock(&self, writer: &str) -> PathBuf {
        self.0.join(WRITERS).join(format!("{writer}.lock"))
    }

    /// Removes the lock file of a writer that ends.
    pub(super) fn unlock_writer(&self, writer: &str) {
        // If this fails, the unlocked file also shows that the writer is dead.
        let _ = std::fs::remove_file(self.writer_lock(writer));
    }

    /// Whether a writer is known to be dead: its lock file is missing or not locked.
    pub(super) fn writer_lost(&self, writer: &str) -> bool {
        match File::open(self.writer_lock(writer)) {
            Ok(file) => match file.try_lock_shared() {
                Ok(()) => true,
                Err(TryLockError::WouldBlock) => false,
                // If the lock cannot be tested, the writer counts as alive: its claims are not
                // taken over.
                Err(TryLockError::Error(_)) => false,
            },
            Err(error) => error.kind() == std::io::ErrorKind::NotFound,
        }
    }
}

/// Whether a file that was opened is the one with these properties.
fn is_same(named: &Metadata, opened: &File) -> bool {
    opened.metadata().is_ok_and(|own| (own.dev(), own.ino()) == (named.dev(), named.ino()))
}

pub(super) fn private() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.mode(0o600);
    options
}

fn decode(text: &str) -> Option<[u8; KEY_BYTES]> {
    HEXLOWER_PERMISSIVE.decode(text.as_bytes()).ok()?.try_into().ok()
}
