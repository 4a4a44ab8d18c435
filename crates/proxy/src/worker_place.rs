//! The place of an asynchronous call among those that a process runs at once.
//!
//! Path: 2, 6. Doc: call-path.md#asynchronous-calls

use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// A place that a call can leave while it waits. The last clone that is dropped leaves it.
#[derive(Debug, Clone)]
pub(crate) struct WorkerPlace(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    places: Arc<Semaphore>,
    held: Mutex<Option<OwnedSemaphorePermit>>,
}

impl WorkerPlace {
    /// Waits for a place among `places`, which are never closed.
    pub(crate) async fn take(places: &Arc<Semaphore>) -> Self {
        let places = Arc::clone(places);
        let place = Self(Arc::new(Inner { places, held: Mutex::default() }));
        place.take_again().await;
        place
    }

    /// Leaves the place to another call.
    pub(crate) fn leave(&self) {
        self.set(None);
    }

    /// Waits for a place after [`WorkerPlace::leave`].
    pub(crate) async fn take_again(&self) {
        let held = Arc::clone(&self.0.places).acquire_owned().await;
        self.set(held.ok());
    }

    fn set(&self, held: Option<OwnedSemaphorePermit>) {
        *self.0.held.lock().unwrap_or_else(PoisonError::into_inner) = held;
    }
}
