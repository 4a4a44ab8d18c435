//! The queued calls that this process runs, each with the number of its newest delivery.
//!
//! Doc: call-path.md#asynchronous-calls

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Caller and id of a call.
pub(crate) type QueuedName = (String, String);

/// The calls that run. A call that was put back can be taken again before its earlier delivery has ended.
#[derive(Debug, Default)]
pub(crate) struct Deliveries(Mutex<Running>);

#[derive(Debug, Default)]
struct Running {
    calls: BTreeMap<QueuedName, u64>,
    newest: u64,
}

impl Deliveries {
    /// Adds a call, and returns the number of this delivery.
    pub(crate) fn begin(&self, name: QueuedName) -> u64 {
        let mut running = self.locked();
        running.newest += 1;
        let delivery = running.newest;
        running.calls.insert(name, delivery);
        delivery
    }

    /// Removes a call whose delivery has ended, unless it was delivered again meanwhile.
    pub(crate) fn end(&self, name: &QueuedName, delivery: u64) {
        let mut running = self.locked();
        if running.calls.get(name) == Some(&delivery) {
            running.calls.remove(name);
        }
    }

    /// Returns the calls.
    pub(crate) fn names(&self) -> Vec<QueuedName> {
        self.locked().calls.keys().cloned().collect()
    }

    fn locked(&self) -> MutexGuard<'_, Running> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_that_is_delivered_again_runs_until_its_newest_delivery_ends() {
        let deliveries = Deliveries::default();
        let name = ("local".to_owned(), "a".to_owned());
        let (first, second) = (deliveries.begin(name.clone()), deliveries.begin(name.clone()));
        deliveries.end(&name, first);
        assert_eq!(deliveries.names(), std::slice::from_ref(&name));
        deliveries.end(&name, second);
        assert_eq!(deliveries.names(), []);
    }
}
