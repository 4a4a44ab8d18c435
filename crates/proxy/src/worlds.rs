//! The published world, which each change replaces.
//!
//! Path: 3. Doc: registry.md#discovery

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arc_swap::ArcSwap;

use crate::world::World;

/// The published world. Readers keep the world that they took; a change publishes a new one.
///
/// Where there is a [`crate::Catalogue`], its `edit` publishes changes.
#[derive(Debug)]
pub struct Worlds {
    now: ArcSwap<World>,
    /// Held from the reading of the world that is replaced until it is replaced.
    replacing: Mutex<()>,
}

impl Worlds {
    /// Publishes the first world, as [`Worlds::publish`].
    #[must_use]
    pub fn new(world: World) -> Arc<Self> {
        let now = ArcSwap::from_pointee(world.with_names());
        Arc::new(Self { now, replacing: Mutex::default() })
    }

    /// Returns the current world.
    #[must_use]
    pub fn now(&self) -> Arc<World> {
        self.now.load_full()
    }

    /// Whether a world is still the published one.
    #[must_use]
    pub fn is_now(&self, world: &Arc<World>) -> bool {
        Arc::ptr_eq(&self.now.load(), world)
    }

    /// Judges another world, binds the rules to its tools and publishes it. The pauses of the world that it replaces
    /// stay in force: only an order ends them ([`crate::ToolProxy::order`]).
    pub fn publish(&self, world: World) {
        let _replacing = self.replacing();
        let mut world = world.with_names();
        let now = self.now();
        world.set_pauses(now.policy.pauses().and(world.policy.pauses()));
        world.generation = now.generation + 1;
        self.replace(world);
    }

    /// Changes the world without judging it again.
    pub(crate) fn edit(&self, change: impl FnOnce(&mut World)) {
        let _replacing = self.replacing();
        let mut world = World::clone(&self.now());
        change(&mut world);
        self.replace(world);
    }

    /// Publishes another world that is judged.
    pub(crate) fn replace(&self, world: World) {
        self.now.store(Arc::new(world));
    }

    fn replacing(&self) -> MutexGuard<'_, ()> {
        self.replacing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
