//! Who waits for whom within this process: duplicates wait for the call that runs; and whether the store
//! takes records.
//!
//! Path: 6, 9. Doc: records.md#the-ledger

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::{Mutex, MutexGuard, PoisonError};

use async_channel::{Receiver, Sender};

use crate::backend::room::Room;
use crate::ledger::LedgerError;

type Watched = (Sender<Infallible>, Receiver<Infallible>);

/// What a writer and those who wait share.
#[derive(Debug, Default)]
pub struct WriterStatus {
    health: Mutex<Option<LedgerError>>,
    running: Mutex<HashMap<String, Watched>>,
    room: Mutex<Room>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl WriterStatus {
    pub(crate) fn set_health(&self, error: Option<&LedgerError>) {
        *locked(&self.health) = error.cloned();
    }

    /// Whether the last commit went well, and there is room for more.
    ///
    /// # Errors
    /// Why not.
    pub fn health(&self) -> Result<(), LedgerError> {
        match locked(&self.health).clone() {
            None => self.room().check(),
            Some(error) => Err(error),
        }
    }

    /// How much room the store has left, as far as was looked.
    #[must_use]
    pub fn room(&self) -> Room {
        *locked(&self.room)
    }

    pub(crate) fn set_room(&self, room: Room) {
        *locked(&self.room) = room;
    }

    /// Closes when a claim of this process that runs has ended.
    pub(crate) fn of(&self, receipt_id: &str) -> Receiver<Infallible> {
        let mut running = locked(&self.running);
        let watched =
            running.entry(receipt_id.to_owned()).or_insert_with(|| async_channel::bounded(1));
        watched.1.clone()
    }

    /// These claims run no more, or have never run.
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
