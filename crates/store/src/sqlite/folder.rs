//! The folder of a store: its database, its digest key, and a lock file for each live writer.
//!
//! Doc: records.md#stores

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use toolbooth_audit::checkpoint::Checkpoint;
use toolbooth_audit::digest::{Digester, KEY_BYTES};
use toolbooth_audit::note::Signer;

use super::OpenError;

/// The name of the database in its folder.
pub const DATABASE: &str = "toolbooth.db";
const KEY: &str = "digest.key";
const SIGNING_KEY: &str = "signing.key";
/// The newest checkpoint, beside the database: a database that was put back to an earlier state
/// does not have it.
const CHECKPOINT: &str = "checkpoint.note";
const WRITERS: &str = "writers";
/// How old a draft becomes before nobody is at it any more.
const YOUNG: Duration = Duration::from_secs(3600);

/// The folder of a store.
#[derive(Debug, Clone)]
pub struct StoreFolder(PathBuf);

impl StoreFolder {
    /// The folder at `path`, made when it is not there: 0700, with a `.gitignore`.
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
            .and_then(|()| folder.write_new(".gitignore", b"*\n"))
            .map_err(|source| Self::error(path, source))?;
        Ok(folder)
    }

    fn error(path: &Path, source: std::io::Error) -> OpenError {
        OpenError::Folder { path: path.display().to_string(), source }
    }

    /// The database.
    #[must_use]
    pub fn database(&self) -> PathBuf {
        self.0.join(DATABASE)
    }

    /// A name that nobody else writes under.
    fn draft(&self, name: &str) -> PathBuf {
        static DRAFTS: AtomicU64 = AtomicU64::new(0);
        let draft = DRAFTS.fetch_add(1, Ordering::Relaxed);
        self.0.join(format!("{name}.{}-{draft}.draft", std::process::id()))
    }

    /// Writes a file that is not there yet, whole or not at all; one that is there stays.
    fn write_new(&self, name: &str, content: &[u8]) -> std::io::Result<()> {
        let path = self.0.join(name);
        if path.exists() {
            return Ok(());
        }
        let draft = self.draft(name);
        let mut file = private().create(true).truncate(true).write(true).open(&draft)?;
        file.write_all(content)?;
        file.sync_all()?;
        // A link is made only where nothing stands: of two that start at once, one wins.
        let linked = std::fs::hard_link(&draft, &path);
        std::fs::remove_file(&draft)?;
        match linked {
            Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => Err(error),
            _ => Ok(()),
        }
    }

    /// Makes the database file with mode 0600, where it is not there yet.
    pub(super) fn touch_database(&self) -> Result<(), OpenError> {
        let path = self.database();
        private()
            .create(true)
            .append(true)
            .open(&path)
            .map(drop)
            .map_err(|source| Self::error(&path, source))
    }

    /// The digest keys: one is made at first start and never again; further lines are keys that
    /// were the store's before.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn digester(&self, may_make: bool) -> Result<Digester, OpenError> {
        if !may_make && !self.0.join(KEY).is_file() {
            let path = self.0.join(KEY).display().to_string();
            return Err(OpenError::Key { path, what: "is missing" });
        }
        let (newest, older) = self.keys_of(KEY)?;
        Ok(Digester::new(&newest).with_older(&older))
    }

    /// The key that signs checkpoints, made when it is not there.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn signer(&self) -> Result<Signer, OpenError> {
        self.keys_of(SIGNING_KEY).map(|(seed, _)| Signer::new(&seed))
    }

    /// The first key of a file, made when it is not there, and the others.
    fn keys_of(&self, name: &str) -> Result<([u8; KEY_BYTES], Vec<[u8; KEY_BYTES]>), OpenError> {
        let path = self.0.join(name);
        let mut fresh = [0u8; KEY_BYTES];
        getrandom::fill(&mut fresh)
            .map_err(|error| Self::error(&path, std::io::Error::other(error.to_string())))?;
        let text: String = fresh.iter().map(|byte| format!("{byte:02x}")).collect();
        self.write_new(name, format!("{text}\n").as_bytes())
            .map_err(|source| Self::error(&path, source))?;
        let mut text = String::new();
        File::open(&path)
            .and_then(|file| file.take(64 << 10).read_to_string(&mut text))
            .map_err(|source| Self::error(&path, source))?;
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

    /// The newest checkpoint that was kept beside the database.
    ///
    /// # Errors
    /// [`OpenError::Folder`]; [`OpenError::Note`] where the file says something else.
    pub fn kept_checkpoint(&self) -> Result<Option<Checkpoint>, OpenError> {
        let path = self.0.join(CHECKPOINT);
        match std::fs::read(&path) {
            Ok(bytes) => {
                let note = String::from_utf8_lossy(&bytes);
                let what = if bytes.is_empty() { "is empty" } else { "is no signed checkpoint" };
                Checkpoint::of_note(&note)
                    .map(Some)
                    .map_err(|_| OpenError::Note { path: path.display().to_string(), what })
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(Self::error(&path, source)),
        }
    }

    /// Keeps the newest checkpoint beside the database; it survives the loss of power.
    ///
    /// # Errors
    /// [`OpenError::Folder`].
    pub fn keep_checkpoint(&self, note: &str) -> Result<(), OpenError> {
        let path = self.0.join(CHECKPOINT);
        let draft = self.draft(CHECKPOINT);
        let written = private()
            .create(true)
            .truncate(true)
            .write(true)
            .open(&draft)
            .and_then(|mut file| file.write_all(note.as_bytes()).and_then(|()| file.sync_all()))
            .and_then(|()| std::fs::rename(&draft, &path))
            .and_then(|()| File::open(&self.0)?.sync_all());
        written.map_err(|source| Self::error(&path, source))
    }

    /// Removes the lock files of writers that are dead: that there is none says the same. Files that
    /// cannot be asked stay.
    pub(super) fn sweep_locks(&self) {
        let Ok(entries) = std::fs::read_dir(self.0.join(WRITERS)) else { return };
        for path in entries.flatten().map(|entry| entry.path()) {
            // A draft that is not locked yet is about to be: it is young.
            let is_young = path.extension().is_some_and(|kind| kind == "draft")
                && path
                    .metadata()
                    .and_then(|file| file.modified())
                    .is_ok_and(|at| at.elapsed().is_ok_and(|age| age < YOUNG));
            let Ok(file) = File::open(&path) else { continue };
            if !is_young && file.try_lock().is_ok() {
                // The lock is held until the name is gone.
                let _ = std::fs::remove_file(&path);
            }
        }
    }

    /// Forgets the checkpoint that was kept beside the database.
    pub(super) fn forget_checkpoint(&self) -> std::io::Result<()> {
        std::fs::remove_file(self.0.join(CHECKPOINT))
    }

    /// Whether any writer lives.
    pub fn has_writers(&self) -> bool {
        let Ok(entries) = std::fs::read_dir(self.0.join(WRITERS)) else { return false };
        entries.flatten().any(|entry| {
            let name = entry.file_name();
            name.to_str()
                .and_then(|name| name.strip_suffix(".lock"))
                .is_some_and(|writer| !self.writer_lost(writer))
        })
    }

    /// The files that a backup takes beside the database.
    #[must_use]
    pub fn keys(&self) -> [PathBuf; 3] {
        [KEY, SIGNING_KEY, CHECKPOINT].map(|name| self.0.join(name))
    }

    /// Takes the lock that says that `writer` lives; it is released when the process ends.
    pub(super) fn lock_writer(&self, writer: &str) -> Result<File, OpenError> {
        let path = self.writer_lock(writer);
        let draft = path.with_extension("draft");
        let locked =
            private().create(true).truncate(true).write(true).open(&draft).and_then(|file| {
                file.lock()?;
                // Others see the file under its name only once it is locked.
                std::fs::rename(&draft, &path)?;
                Ok(file)
            });
        locked.map_err(|source| Self::error(&path, source))
    }

    fn writer_lock(&self, writer: &str) -> PathBuf {
        self.0.join(WRITERS).join(format!("{writer}.lock"))
    }

    /// Removes the lock file of a writer that ends.
    pub(super) fn unlock_writer(&self, writer: &str) {
        // A file that stays behind unlocked says the same.
        let _ = std::fs::remove_file(self.writer_lock(writer));
    }

    /// Whether a writer is known to be dead: nobody holds its lock.
    pub(super) fn writer_lost(&self, writer: &str) -> bool {
        match File::open(self.writer_lock(writer)) {
            Ok(file) => match file.try_lock_shared() {
                Ok(()) => true,
                Err(TryLockError::WouldBlock) => false,
                // Who cannot be asked counts as alive: its claim is not taken over.
                Err(TryLockError::Error(_)) => false,
            },
            Err(error) => error.kind() == std::io::ErrorKind::NotFound,
        }
    }
}

fn private() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.mode(0o600);
    options
}

fn decode(text: &str) -> Option<[u8; KEY_BYTES]> {
    if text.len() != KEY_BYTES * 2 || !text.is_ascii() {
        return None;
    }
    let mut key = [0u8; KEY_BYTES];
    for (index, byte) in key.iter_mut().enumerate() {
        *byte = u8::from_str_radix(text.get(index * 2..index * 2 + 2)?, 16).ok()?;
    }
    Some(key)
}
