//! The executors that a program supplies, by the adapter ids of contracts.
//!
//! Only the call path asks them to execute.
//!
//! Path: 7. Doc: execution.md#executors

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use toolbooth_contracts::Executor;
use toolbooth_contracts::contract::AdapterId;

/// Executors by their adapter ids.
#[derive(Clone, Default)]
pub struct Executors(HashMap<AdapterId, Arc<dyn Executor>>);

impl fmt::Debug for Executors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

impl Executors {
    /// Returns the executors with one more; replaces an executor with the same id.
    #[must_use]
    pub fn with(mut self, id: AdapterId, executor: Arc<dyn Executor>) -> Self {
        self.0.insert(id, executor);
        self
    }

    pub(crate) fn get(&self, id: &AdapterId) -> Option<&Arc<dyn Executor>> {
        self.0.get(id)
    }

    /// Closes everything that the executors hold open.
    pub async fn close(&self) {
        // An executor can have several ids; closing it twice does nothing.
        futures_util::future::join_all(self.0.values().map(|executor| executor.close())).await;
    }
}
