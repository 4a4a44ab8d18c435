//! The published world, which each change replaces.
//!
//! Path: 3. Doc: registry.md#discovery

use std::sync::Arc;

use arc_swap::ArcSwap;

use crate::world::World;

/// The published world. Readers keep the world that they took; a change publishes a new one.
#[derive(Debug)]
pub struct Worlds(ArcSwap<World>);

impl Worlds {
    /// Publishes the first world.
    #[must_use]
    pub fn new(world: World) -> Arc<Self> {
        Arc::new(Self(ArcSwap::from_pointee(world)))
    }

    /// Returns the current world.
    #[must_use]
    pub fn now(&self) -> Arc<World> {
        self.0.load_full()
    }

    /// Whether a world is still the published one.
    #[must_use]
    pub fn is_now(&self, world: &Arc<World>) -> bool {
        Arc::ptr_eq(&self.0.load(), world)
    }

    /// Publishes another world.
    pub fn publish(&self, world: World) {
        self.0.store(Arc::new(world));
    }
}
