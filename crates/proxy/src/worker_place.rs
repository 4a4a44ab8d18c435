//! The place of an asynchronous call among those that a process runs at once.
//!
//! Path: 2, 6. Doc: call-path.md#asynchronous-calls

use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Calls that can wait without a place, at most. Further ones keep theirs, so that the rest stays in the queue,
/// whose length is no load.
const AWAY_MAX: usize = 64;

/// The places of the asynchronous calls that a process runs at once.
#[derive(Debug, Clone)]
pub(crate) struct WorkerPlaces {
    places: Arc<Semaphore>,
    away: Arc<Semaphore>,
}

impl WorkerPlaces {
    pub(crate) fn new(at_once: usize) -> Self {
        Self { places: Arc::new(Semaphore::new(at_once)), away: Arc::new(Semaphore::new(AWAY_MAX)) }
    }

    /// Waits for a place.
    pub(crate) async fn take(&self) -> WorkerPlace {
        let permit = Arc::clone(&self.places).acquire_owned().await.ok();
        let held = Mutex::new(Held { is_away: false, _permit: permit });
        WorkerPlace(Arc::new(Inner { all: self.clone(), held }))
    }
}

/// A place that a call can leave while it waits. The last clone that is dropped leaves it.
#[derive(Debug, Clone)]
pub(crate) struct WorkerPlace(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    all: WorkerPlaces,
    held: Mutex<Held>,
}

#[derive(Debug)]
struct Held {
    /// Whether the permit is one to be away, in place of one to run.
    is_away: bool,
    _permit: Option<OwnedSemaphorePermit>,
}

impl WorkerPlace {
    /// Leaves the place to another call, unless too many others have left theirs.
    pub(crate) fn leave(&self) {
        if let Ok(away) = Arc::clone(&self.0.all.away).try_acquire_owned() {
            self.set(Held { is_away: true, _permit: Some(away) });
        }
    }

    /// Waits for a place after [`WorkerPlace::leave`].
    pub(crate) async fn take_again(&self) {
        if self.is_away() {
            let permit = Arc::clone(&self.0.all.places).acquire_owned().await.ok();
            self.set(Held { is_away: false, _permit: permit });
        }
    }

    fn is_away(&self) -> bool {
        self.0.held.lock().unwrap_or_else(PoisonError::into_inner).is_away
    }

    fn set(&self, held: Held) {
        *self.0.held.lock().unwrap_or_else(PoisonError::into_inner) = held;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_place_is_left_while_few_others_are_away() {
        let places = WorkerPlaces::new(1);
        let mut away = Vec::new();
        for _ in 0..AWAY_MAX {
            let place = places.take().await;
            place.leave();
            away.push(place);
        }
        let last = places.take().await;
        last.leave();
        assert!(!last.is_away() && places.places.available_permits() == 0, "it keeps its place");
        last.take_again().await;
        drop(last);
        let again = away.pop().unwrap();
        again.take_again().await;
        assert_eq!((places.places.available_permits(), places.away.available_permits()), (0, 1));
        drop((again, away));
        let all = (places.places.available_permits(), places.away.available_permits());
        assert_eq!(all, (1, AWAY_MAX));
    }
}
