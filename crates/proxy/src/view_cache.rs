//! Search indices, listing digests and tool documents of one world, computed once for each caller and tool set.
//!
//! Path: 3. Doc: registry.md#search

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use toolbooth_contracts::Caller;
use toolbooth_registry::search::SearchIndex;

use crate::tool_documents::DocumentCache;
use crate::world::World;

/// Callers and tool sets with cached values at once.
const VIEWS_MAX: usize = 32;

/// The values derived from the last viewed world.
#[derive(Debug, Default)]
pub(crate) struct ViewCache(Mutex<Option<(Weak<World>, Arc<Derived>)>>);

/// The values derived from one world.
#[derive(Debug, Default)]
pub(crate) struct Derived {
    /// Indices for searching.
    pub(crate) indices: PerView<Arc<SearchIndex>>,
    /// Digests that change exactly when a listing changes.
    pub(crate) digests: PerView<ListingDigests>,
    /// The documents of tools.
    pub(crate) documents: DocumentCache,
}

/// Digests of a caller's listings: each changes exactly when that listing changes. For comparisons
/// within one process only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ListingDigests {
    /// Of the tools.
    pub tools: u64,
    /// Of the prompts.
    pub prompts: u64,
    /// Of the resources and the templates.
    pub resources: u64,
}

impl ViewCache {
    /// Returns the derived values of `world`. The values of the previous world are dropped with its
    /// last view.
    pub(crate) fn of(&self, world: &Arc<World>) -> Arc<Derived> {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // A weak reference keeps the address from being used again.
        if let Some((of, derived)) = &*kept
            && std::ptr::eq(of.as_ptr(), Arc::as_ptr(world))
        {
            return Arc::clone(derived);
        }
        let derived = Arc::<Derived>::default();
        *kept = Some((Arc::downgrade(world), Arc::clone(&derived)));
        derived
    }
}

/// One value for each caller and tool set, computed at its first use.
#[derive(Debug)]
pub(crate) struct PerView<T>(Mutex<HashMap<ViewKey, T>>);

/// A caller and the tool set of its door.
type ViewKey = (Caller, Option<Arc<str>>);

impl<T> Default for PerView<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T: Clone> PerView<T> {
    /// The value of a caller and a tool set; `make` computes it at the first use.
    pub(crate) fn of(
        &self,
        caller: &Caller,
        toolset: Option<&Arc<str>>,
        make: impl FnOnce() -> T,
    ) -> T {
        let key = (caller.clone(), toolset.cloned());
        let kept = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = kept().get(&key).cloned() {
            return known;
        }
        // Without the lock, so that other callers do not wait. The first one that is made is kept.
        let made = make();
        let mut kept = kept();
        if kept.len() >= VIEWS_MAX {
            kept.clear();
        }
        kept.entry(key).or_insert(made).clone()
    }
}

#[cfg(test)]
mod tests {
    use toolbooth_policy::{Authorizer, FeatureFlags};

    use super::*;

    #[test]
    fn values_of_one_world_are_never_shown_of_another() {
        let world = || Arc::new(World::new(Authorizer::new(FeatureFlags::default())));
        let (cache, one, two) = (ViewCache::default(), world(), world());
        let first = cache.of(&one);
        assert!(Arc::ptr_eq(&first, &cache.of(&one)), "kept while the world stays");
        let second = cache.of(&two);
        assert!(!Arc::ptr_eq(&first, &second));
        assert!(Arc::ptr_eq(&second, &cache.of(&two)));
        assert!(!Arc::ptr_eq(&first, &cache.of(&one)), "only the last world's values are kept");
    }
}
