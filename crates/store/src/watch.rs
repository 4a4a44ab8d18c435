//! Who waits for whom within this process: twins wait for the call that runs.
//!
//! Path: 6, 9. Doc: records.md#the-ledger

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::{Mutex, MutexGuard, PoisonError};

use async_channel::{Receiver, Sender};
use toolbooth_audit::LedgerError;
use toolbooth_audit::ledger::Moment;
use toolbooth_contracts::receipt::{ClaimState, Receipt};

type Watched = (Sender<Infallible>, Receiver<Infallible>);

/// What a writer and those who wait share.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    health: Mutex<Option<String>>,
    running: Mutex<HashMap<String, Watched>>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Watch {
    pub(crate) fn set_health(&self, error: Option<&LedgerError>) {
        *locked(&self.health) = error.map(ToString::to_string);
    }

    pub(crate) fn health(&self) -> Result<(), LedgerError> {
        match locked(&self.health).clone() {
            None => Ok(()),
            Some(error) => Err(LedgerError::Unavailable(error)),
        }
    }

    /// Closes when the claim of this process is settled.
    pub(crate) fn of(&self, receipt_id: &str) -> Option<Receiver<Infallible>> {
        locked(&self.running).get(receipt_id).map(|(_, receiver)| receiver.clone())
    }

    /// A claim of this process is about to be durable: twins of the same batch wait for it too.
    pub(crate) fn expect(&self, receipt_id: &str) {
        let mut running = locked(&self.running);
        running.entry(receipt_id.to_owned()).or_insert_with(|| async_channel::bounded(1));
    }

    /// What a batch has begun is not durable: nobody waits for it.
    pub(crate) fn forget(&self, changes: &Changes) {
        let mut running = locked(&self.running);
        for (id, _, _) in &changes.begun {
            if let Some((sender, _)) = running.remove(id) {
                sender.close();
            }
        }
    }

    /// What a batch has done is durable.
    pub(crate) fn tell(&self, changes: Changes) {
        let mut running = locked(&self.running);
        for id in changes.ended {
            if let Some((sender, _)) = running.remove(&id) {
                sender.close();
            }
        }
    }
}

/// What a batch does to claims, to be told once it is durable.
#[derive(Debug, Default)]
pub(crate) struct Changes {
    /// Claims that were dispatched: their fences, and when.
    pub(crate) begun: Vec<(String, u64, Moment)>,
    /// Claims that run no more.
    pub(crate) ended: Vec<String>,
    /// The writer's log has ended: nothing follows.
    pub(crate) stopped: bool,
}

impl Changes {
    pub(crate) fn note(&mut self, receipt: &Receipt) {
        if !matches!(receipt.state, ClaimState::InFlight | ClaimState::AwaitingInput) {
            self.ended.push(receipt.receipt_id.clone());
        }
    }
}
