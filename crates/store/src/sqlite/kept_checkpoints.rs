//! The newest checkpoints of a store's logs, beside its database. A database that lacks one was rolled
//! back.
//!
//! Doc: records.md#tamper-evidence

use std::fs::File;
use std::io::Write;
use std::time::Duration;

use toolbooth_audit::checkpoint::{self, Checkpoint};

use super::error::OpenError;
use super::folder::{CHECKPOINT, StoreFolder, private};

/// Locked while the file of checkpoints is changed.
const LOCK: &str = "checkpoint.lock";
/// How often, and how long each time, a process waits for the lock.
const LOCK_WAITS: u32 = 100;
const LOCK_WAIT: Duration = Duration::from_millis(10);
/// Logs whose newest checkpoints are kept: those that wrote last.
const CHECKPOINTS_MAX: usize = 32;

impl StoreFolder {
    /// Returns the newest checkpoints of the logs that wrote last, which are stored next to the database, the newest
    /// last; none without the file.
    ///
    /// # Errors
    /// [`OpenError::Folder`]; [`OpenError::Note`] if the file contains anything else, or nothing.
    pub fn kept_checkpoints(&self) -> Result<Vec<Checkpoint>, OpenError> {
        let path = self.0.join(CHECKPOINT);
        let text = match std::fs::read(&path) {
            Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(source) => return Err(Self::error(&path, source)),
        };
        let what = if text.is_empty() { "is empty" } else { "is not a signed checkpoint" };
        let unreadable = || OpenError::Note { path: path.display().to_string(), what };
        let notes = checkpoint::notes(&text);
        if notes.is_empty() {
            return Err(unreadable());
        }
        notes.iter().map(|note| Checkpoint::of_note(note).map_err(|_| unreadable())).collect()
    }

    /// Writes a checkpoint next to the database, in place of an earlier one of its log, atomically and with fsync.
    /// Those of other logs stay: one that is written later can cover fewer events of the store.
    ///
    /// # Errors
    /// [`OpenError::Folder`].
    pub fn keep_checkpoint(&self, note: &str) -> Result<(), OpenError> {
        let writer = Checkpoint::of_note(note).ok().map(|checkpoint| checkpoint.writer);
        self.change_checkpoints(|kept| {
            kept.retain(|(other, _)| Some(other) != writer.as_ref());
            kept.extend(writer.map(|writer| (writer, note.to_owned())));
        })
    }

    /// Removes the checkpoints of these writers, or all.
    ///
    /// # Errors
    /// [`OpenError::Folder`].
    pub fn forget_checkpoints(&self, writers: Option<&Vec<String>>) -> Result<(), OpenError> {
        self.change_checkpoints(|kept| match writers {
            Some(writers) => kept.retain(|(writer, _)| !writers.contains(writer)),
            None => kept.clear(),
        })
    }

    /// Changes the checkpoints, each with its writer. What cannot be read is left out.
    fn change_checkpoints(
        &self,
        change: impl FnOnce(&mut Vec<(String, String)>),
    ) -> Result<(), OpenError> {
        let path = self.0.join(CHECKPOINT);
        let write = || {
            let lock =
                private().create(true).truncate(false).write(true).open(self.0.join(LOCK))?;
            // Several processes keep theirs in one file. One that was stopped with it must not stop the others.
            let mut waits = LOCK_WAITS;
            while let Err(held) = lock.try_lock() {
                if waits == 0 {
                    return Err(held.into());
                }
                waits -= 1;
                std::thread::sleep(LOCK_WAIT);
            }
            let text = match std::fs::read(&path) {
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => Vec::new(),
                text => text?,
            };
            let notes = checkpoint::notes(&String::from_utf8_lossy(&text)).into_iter();
            let named = |note: String| Some((Checkpoint::of_note(&note).ok()?.writer, note));
            let mut kept: Vec<(String, String)> = notes.filter_map(named).collect();
            change(&mut kept);
            let newest = kept.split_off(kept.len().saturating_sub(CHECKPOINTS_MAX));
            if newest.is_empty() {
                return match std::fs::remove_file(&path) {
                    Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
                    _ => Ok(()),
                };
            }
            let notes: Vec<String> = newest.into_iter().map(|(_, note)| note).collect();
            let draft = self.draft(CHECKPOINT);
            let written = (|| {
                let mut file = private().create(true).truncate(true).write(true).open(&draft)?;
                file.write_all(notes.join("\n").as_bytes())?;
                file.sync_all()?;
                std::fs::rename(&draft, &path)
            })();
            if written.is_err() {
                // On a full disk, a draft would be left behind each time.
                let _ = std::fs::remove_file(&draft);
            }
            written?;
            // The rename survives a power loss only once the folder is synced.
            File::open(&self.0)?.sync_all()
        };
        write().map_err(|source| Self::error(&path, source))
    }
}
