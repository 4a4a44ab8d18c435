//! The executors that a program brought with it, under the adapter ids of contracts.
//!
//! Only the path asks them to execute.
//!
//! Path: 7. Doc: execution.md#executors

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use toolbooth_contracts::Executor;
use toolbooth_contracts::contract::AdapterId;

/// Executors under their adapter ids.
#[derive(Clone, Default)]
pub struct Executors(HashMap<AdapterId, Arc<dyn Executor>>);

impl fmt::Debug for Executors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

impl Executors {
    /// The same with one more; an executor under the same id is replaced.
    #[must_use]
    pub fn with(mut self, id: AdapterId, executor: Arc<dyn Executor>) -> Self {
        self.0.insert(id, executor);
        self
    }

    pub(crate) fn get(&self, id: &AdapterId) -> Option<&Arc<dyn Executor>> {
        self.0.get(id)
    }

    /// Ends what the executors hold open.
    pub async fn close(&self) {
        // An executor may stand under several ids; closing twice does nothing.
        futures_util::future::join_all(self.0.values().map(|executor| executor.close())).await;
    }
}
