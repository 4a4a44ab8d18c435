//! The worker slots of a process: each running asynchronous call holds one.
//!
//! Path: 2, 6. Doc: call-path.md#asynchronous-calls

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_channel::{Receiver, Sender};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

/// How long a call that returns waits for its worker.
const RETURN_PATIENCE: Duration = Duration::from_secs(5);

/// The worker slots of a process.
#[derive(Debug, Clone)]
pub(crate) struct WorkerSlots {
    running: Arc<Semaphore>,
    away: Arc<Semaphore>,
}

impl WorkerSlots {
    /// Creates `at_once` slots. At most `away_max` calls can release theirs while they wait.
    pub(crate) fn new(at_once: usize, away_max: usize) -> Self {
        Self {
            running: Arc::new(Semaphore::new(at_once)),
            away: Arc::new(Semaphore::new(away_max)),
        }
    }

    /// Waits for a slot.
    pub(crate) async fn take(&self) -> WorkerSlot {
        let permit = Arc::clone(&self.running).acquire_owned().await.ok();
        let held = Mutex::new(Held { is_away: false, _permit: permit });
        let returns = async_channel::bounded(1);
        WorkerSlot(Arc::new(Inner { all: self.clone(), held, returns }))
    }
}

/// A slot that a call can release while it waits. Dropping the last clone releases it.
#[derive(Debug, Clone)]
pub(crate) struct WorkerSlot(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    all: WorkerSlots,
    held: Mutex<Held>,
    /// Returns to a slot, until the worker of the call has read the call's row again.
    returns: (Sender<oneshot::Sender<()>>, Receiver<oneshot::Sender<()>>),
}

#[derive(Debug)]
struct Held {
    /// Whether the permit is for waiting without a slot, and not for running.
    is_away: bool,
    _permit: Option<OwnedSemaphorePermit>,
}

impl WorkerSlot {
    /// Releases the slot for another call; `false` if too many calls wait without a slot. A call that still holds
    /// its slot must not wait, because the calls without a slot could then never resume.
    #[must_use]
    pub(crate) fn leave(&self) -> bool {
        let away = Arc::clone(&self.0.all.away).try_acquire_owned();
        match away {
            Ok(away) => self.set(Held { is_away: true, _permit: Some(away) }),
            Err(_) => return false,
        }
        true
    }

    /// Waits for a slot after [`WorkerSlot::leave`], and until the call's worker has seen whether the call was
    /// cancelled meanwhile; `false` if it has not seen that in time.
    pub(crate) async fn take_again(&self) -> bool {
        if !self.is_away() {
            return true;
        }
        let permit = Arc::clone(&self.0.all.running).acquire_owned().await.ok();
        self.set(Held { is_away: false, _permit: permit });
        let (seen, is_seen) = oneshot::channel();
        let asking = async {
            let _ = self.0.returns.0.send(seen).await;
            // The worker drops its end once it has seen it.
            let _ = is_seen.await;
        };
        tokio::time::timeout(RETURN_PATIENCE, asking).await.is_ok()
    }

    /// Waits until the call returns to a slot. It goes on once the returned value is dropped.
    pub(crate) async fn returned(&self) -> Option<oneshot::Sender<()>> {
        self.0.returns.1.recv().await.ok()
    }

    pub(crate) fn is_away(&self) -> bool {
        self.locked().is_away
    }

    fn locked(&self) -> MutexGuard<'_, Held> {
        self.0.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, held: Held) {
        *self.locked() = held;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_slot_is_left_while_few_others_are_away() {
        let slots = WorkerSlots::new(1, 2);
        let free = || (slots.running.available_permits(), slots.away.available_permits());
        let first = slots.take().await;
        assert!(first.leave());
        let second = slots.take().await;
        assert!(second.leave());
        let last = slots.take().await;
        assert!(!last.leave() && free() == (0, 0), "it keeps its place");
        assert!(last.take_again().await);
        drop(last);
        let seeing = async { drop(first.returned().await) };
        let (is_seen, ()) = tokio::join!(first.take_again(), seeing);
        assert!(is_seen);
        assert_eq!(free(), (0, 1));
        drop((first, second));
        assert_eq!(free(), (1, 2));
    }
}
