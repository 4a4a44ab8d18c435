//! The registered tools as callers see them: lists sources and publishes one world after another.
//!
//! Runs no tool, and decides no call: the path judges each call by the published world.
//!
//! Path: 3. Doc: registry.md#discovery

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;
use toolbooth_contracts::{Caller, Guard};
use toolbooth_registry::lock::Approvals;
use toolbooth_registry::{RegisteredTool, Source};

mod definitions;
mod first_use;
mod publish;
mod readiness;
mod refresh;
mod source;
mod verification;

pub use definitions::AddedDefinitions;
pub use publish::Quarantined;
pub use source::{SourceEntry, SourceState};
pub(crate) use verification::Verification;

use crate::executors::Executors;
use crate::pins::{FirstUse, PinStore};
use crate::view::View;
use crate::view_cache::ViewCache;
use crate::world::World;
use crate::worlds::Worlds;
use source::{Ticket, TrackedSource};

/// Publishes worlds, and returns each caller's view of them.
pub struct Catalogue {
    worlds: Arc<Worlds>,
    executors: Executors,
    guard: Guard,
    sources: Vec<TrackedSource>,
    /// Quarantined tools without an audit event yet, by id.
    notices: Mutex<BTreeMap<String, Quarantined>>,
    /// Where first listings are pinned; `None` pins nothing.
    pins: Option<Arc<dyn PinStore>>,
    /// Pinned listings without an audit event yet.
    first_uses: Mutex<Vec<FirstUse>>,
    /// One change of the world at a time. Readers never wait for it.
    editing: tokio::sync::Mutex<()>,
    generation: watch::Sender<u64>,
    /// The next ticket.
    tickets: AtomicU64,
    /// Whether each change of the world determines the state of every tool.
    states_wanted: AtomicBool,
    /// Search indices and listing digests of the present world.
    views: ViewCache,
}

impl Catalogue {
    /// A catalogue that publishes to `worlds`.
    #[must_use]
    pub fn new(
        worlds: Arc<Worlds>,
        executors: Executors,
        guard: Guard,
        sources: Vec<SourceEntry>,
    ) -> Self {
        Self {
            worlds,
            executors,
            guard,
            sources: sources.into_iter().map(TrackedSource::new).collect(),
            notices: Mutex::default(),
            pins: None,
            first_uses: Mutex::default(),
            editing: tokio::sync::Mutex::new(()),
            generation: watch::Sender::new(0),
            tickets: AtomicU64::new(0),
            states_wanted: AtomicBool::new(false),
            views: ViewCache::default(),
        }
    }

    /// Returns the catalogue with a store for first-use pins.
    #[must_use]
    pub fn with_pins(self, pins: Arc<dyn PinStore>) -> Self {
        Self { pins: Some(pins), ..self }
    }

    /// Changes whenever the listed tools, prompts or resources may have changed.
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.generation.subscribe()
    }

    /// The guard that checks discovered tools.
    #[must_use]
    pub fn guard(&self) -> &Guard {
        &self.guard
    }

    /// Judges all discovered tools by other approvals from now on.
    pub async fn approve_by(&self, approvals: Approvals) {
        self.approve_with(|_| Some(approvals)).await;
    }

    /// Judges all discovered tools by the approvals that `read` makes of the present ones; `None`
    /// changes nothing. No source is pinned during `read`, so `read` finds every pin in the store.
    pub async fn approve_with(&self, read: impl FnOnce(&Approvals) -> Option<Approvals>) {
        let _editing = self.editing.lock().await;
        let mut world = World::clone(&self.worlds.now());
        if let Some(approvals) = read(&world.approvals) {
            world.approvals = Arc::new(approvals);
            self.publish(world).await;
        }
    }

    /// The ids of all sources that list tools.
    pub fn sources(&self) -> impl Iterator<Item = &Source> {
        self.sources.iter().map(|source| &source.entry.id)
    }

    /// Replaces the tools of a source that is not listed, such as the registry file.
    pub async fn replace_source(
        &self,
        source: &Source,
        tools: Vec<RegisteredTool>,
    ) -> toolbooth_registry::Replaced {
        self.edit(|world| world.registry.replace_source(source, tools)).await
    }

    /// Sources without any known tool, prompt or resource: neither a listing nor the lock nor the
    /// pins contain them.
    #[must_use]
    pub fn unknown_sources(&self) -> Vec<Source> {
        let world = self.worlds.now();
        let known = |source: &Source| {
            // A source may have been pinned with an empty listing.
            world.approvals.lock.approved().is_some_and(|lock| lock.has_seen(source))
                || world.registry.iter().any(|tool| tool.source() == source)
                || world.items.source(source).is_some()
        };
        self.sources().filter(|source| !known(source)).cloned().collect()
    }

    /// Whether a source has listed its tools, and its last listing succeeded.
    #[must_use]
    pub fn has_answered(&self, source: &Source) -> bool {
        self.tracked(source).is_some_and(|source| {
            let status = source.status();
            status.listed.is_some() && status.unhealthy.is_none()
        })
    }

    /// The view of a caller on the present world.
    #[must_use]
    pub fn view(&self, caller: &Caller) -> View {
        let world = self.worlds.now();
        let derived = self.views.of(&world);
        View::new(world, derived, caller.clone())
    }

    /// Whether a tool set of this name exists.
    #[must_use]
    pub fn has_toolset(&self, name: &str) -> bool {
        self.worlds.now().toolsets.contains_key(name)
    }

    /// The names of all tool sets, sorted.
    #[must_use]
    pub fn toolsets(&self) -> Vec<String> {
        self.worlds.now().toolsets.keys().cloned().collect()
    }

    fn ticket(&self) -> Ticket {
        Ticket(self.tickets.fetch_add(1, Ordering::Relaxed))
    }

    fn tracked(&self, id: &Source) -> Option<&TrackedSource> {
        self.sources.iter().find(|source| source.entry.id == *id)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
