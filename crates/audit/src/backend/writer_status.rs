//! The state that a writer shares within its process: duplicates waiting for a running call, and
//! the health and space of the store.
//!
//! Path: 6, 9. Doc: records.md#the-ledger

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::{Mutex, MutexGuard, PoisonError};

use async_channel::{Receiver, Sender};

use crate::backend::disk_space::DiskSpace;
use crate::ledger::LedgerError;

type Watched = (Sender<Infallible>, Receiver<Infallible>);

/// The state shared between a writer and waiting callers.
#[derive(Debug, Default)]
pub struct WriterStatus {
    health: Mutex<Option<LedgerError>>,
    running: Mutex<HashMap<String, Watched>>,
    disk_space: Mutex<DiskSpace>,
    /// The id of a digest key of the store that this writer does not have.
    unknown_key: Mutex<Option<String>>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl WriterStatus {
    pub(crate) fn set_health(&self, error: Option<&LedgerError>) {
        *locked(&self.health) = error.cloned();
    }

    /// Checks whether the last commit succeeded, the store has space, and all of its digest keys are known.
    ///
    /// # Errors
    /// The reason why the store does not accept records.
    pub fn health(&self) -> Result<(), LedgerError> {
        match locked(&self.health).clone() {
            None => self.disk_space().check().and_then(|()| self.check_keys()),
            Some(error) => Err(error),
        }
    }

    /// Returns the last known space state of the store.
    #[must_use]
    pub fn disk_space(&self) -> DiskSpace {
        *locked(&self.disk_space)
    }

    pub(crate) fn set_disk_space(&self, disk_space: DiskSpace) {
        *locked(&self.disk_space) = disk_space;
    }

    /// Notes that the store has a digest key that this writer does not have. That lasts until the process ends.
    pub(crate) fn set_unknown_key(&self, id: &str) {
        *locked(&self.unknown_key) = Some(id.to_owned());
    }

    /// Checks whether all digest keys of the store are known.
    ///
    /// # Errors
    /// [`LedgerError::Unavailable`] if another gateway has added one.
    pub(crate) fn check_keys(&self) -> Result<(), LedgerError> {
        match &*locked(&self.unknown_key) {
            None => Ok(()),
            Some(id) => Err(LedgerError::unavailable(format!(
                "another gateway has added the digest key with the id {id} to the store, and this one does not have \
                 it: restart this gateway with all digest keys of the store"
            ))),
        }
    }

    /// Returns a channel that closes when a running claim of this process has ended.
    pub(crate) fn of(&self, receipt_id: &str) -> Receiver<Infallible> {
        let mut running = locked(&self.running);
        let watched =
            running.entry(receipt_id.to_owned()).or_insert_with(|| async_channel::bounded(1));
        watched.1.clone()
    }

    /// Marks claims as ended or never started.
    pub(crate) fn ended<'i>(&self, ids: impl Iterator<Item = &'i String>) {
        let mut running = locked(&self.running);
        if running.is_empty() {
            return;
        }
        for id in ids {
            if let Some((sender, _)) = running.remove(id) {
                sender.close();
            }
        }
    }
}
