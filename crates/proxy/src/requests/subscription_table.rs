//! Counts the subscribers of each resource, so that a server is asked once to subscribe and once to
//! unsubscribe.
//!
//! Path: 7. Doc: call-path.md#subscriptions

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use toolbooth_contracts::Caller;

/// Subscriptions that may be held at once, over all callers.
const SUBSCRIPTIONS_MAX: usize = 16_384;
/// Subscriptions that one caller may hold at once.
const SUBSCRIPTIONS_OF_CALLER_MAX: usize = 4_096;

/// A resource at a server; with the caller, if each caller has its own connection.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Key {
    pub(super) server: String,
    pub(super) uri: String,
    pub(super) caller: Option<Caller>,
}

/// Whether the server was asked to subscribe. Locked while it is asked to subscribe or unsubscribe, so
/// that these requests never overtake one another.
pub(super) type AskedOnce = Arc<tokio::sync::Mutex<bool>>;

#[derive(Default)]
struct Table {
    held: HashMap<Key, (usize, AskedOnce)>,
    by_caller: HashMap<Caller, usize>,
    all: usize,
}

/// All subscriptions of callers.
#[derive(Default)]
pub(crate) struct Subscriptions(Mutex<Table>);

impl Subscriptions {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn hold(&self, key: &Key, caller: &Caller) -> Option<AskedOnce> {
        let mut table = self.table();
        let own = table.by_caller.get(caller).copied().unwrap_or_default();
        if table.all >= SUBSCRIPTIONS_MAX || own >= SUBSCRIPTIONS_OF_CALLER_MAX {
            return None;
        }
        table.all += 1;
        table.by_caller.insert(caller.clone(), own + 1);
        let (count, asked) = table.held.entry(key.clone()).or_default();
        *count += 1;
        Some(Arc::clone(asked))
    }

    /// Removes one subscriber. Returns whether it was the last.
    pub(super) fn give_up(&self, key: &Key, caller: &Caller) -> bool {
        let mut table = self.table();
        table.all = table.all.saturating_sub(1);
        if let Some(own) = table.by_caller.get_mut(caller) {
            *own = own.saturating_sub(1);
            if *own == 0 {
                table.by_caller.remove(caller);
            }
        }
        table.held.get_mut(key).is_some_and(|(count, _)| {
            *count = count.saturating_sub(1);
            *count == 0
        })
    }

    pub(super) fn is_held(&self, key: &Key) -> bool {
        self.table().held.get(key).is_some_and(|(count, _)| *count > 0)
    }

    pub(super) fn forget(&self, key: &Key) {
        let mut table = self.table();
        if table.held.get(key).is_some_and(|(count, _)| *count == 0) {
            table.held.remove(key);
        }
    }
}
