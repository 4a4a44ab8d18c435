//! The published world, which each change replaces.
//!
//! Path: 3. Doc: registry.md#discovery

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arc_swap::ArcSwap;
use toolbooth_policy::Pauses;

use crate::world::World;

/// The published world. Readers keep the world that they took; a change publishes a new one.
///
/// Where there is a [`crate::Catalogue`], its `edit` publishes changes.
#[derive(Debug)]
pub struct Worlds {
    now: ArcSwap<World>,
    /// The pauses by orders. Held from the reading of the world that is replaced until it is replaced.
    ordered: Mutex<Pauses>,
}

impl Worlds {
    /// Publishes the first world, as [`Worlds::publish`].
    #[must_use]
    pub fn new(world: World) -> Arc<Self> {
        let now = ArcSwap::from_pointee(world.with_names());
        Arc::new(Self { now, ordered: Mutex::default() })
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

    /// Judges another world, binds the rules to its tools and publishes it. Pauses by orders stay in force
    /// ([`crate::ToolProxy::order`]).
    pub fn publish(&self, world: World) {
        let ordered = self.ordered();
        let mut world = world.with_names();
        world.order_pauses(&ordered);
        world.generation = self.now().generation + 1;
        self.replace(world);
    }

    /// Puts pauses by orders in force, in the published world and in those that follow.
    pub(crate) fn order(&self, pauses: Pauses) {
        let mut ordered = self.ordered();
        *ordered = pauses;
        let mut world = World::clone(&self.now());
        world.order_pauses(&ordered);
        self.replace(world);
    }

    /// Remembers pauses by orders for worlds that follow.
    pub(crate) fn remember(&self, pauses: Pauses) {
        *self.ordered() = pauses;
    }

    /// Publishes another world that is judged.
    pub(crate) fn replace(&self, world: World) {
        self.now.store(Arc::new(world));
    }

    fn ordered(&self) -> MutexGuard<'_, Pauses> {
        self.ordered.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
