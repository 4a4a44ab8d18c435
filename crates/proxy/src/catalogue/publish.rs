//! Publishing of a changed world: judgement, quarantine, wire names and tool states.
//!
//! Path: 3. Doc: registry.md#discovery

use toolbooth_policy::ToolStatus;
use toolbooth_registry::Source;

use super::{Catalogue, lock};
use crate::aside;
use crate::world::{Judged, World};

/// Quarantined tools of one change that are recorded one by one.
const NOTICES_MAX: usize = 200;

/// A tool or an item that was put into quarantine. At most `NOTICES_MAX` of one change are kept; the caller
/// of [`Catalogue::take_quarantined`] records an audit event for each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Quarantined {
    /// The tool's id; an item's id with its kind, such as `prompt:s.greet`.
    pub tool_id: String,
    /// Its source.
    pub source: Source,
    /// The reason.
    pub reason: String,
}

impl Catalogue {
    /// Changes the world and publishes it. Judges discovered tools again, and determines the state
    /// of every tool if [`Catalogue::want_states`] was called.
    pub async fn edit<T>(&self, change: impl FnOnce(&mut World) -> T) -> T {
        let _editing = self.editing.lock().await;
        let mut world = World::clone(&self.worlds.now());
        let out = change(&mut world);
        self.publish(world).await;
        out
    }

    /// Judges a changed world and publishes it. The caller holds `editing`.
    pub(super) async fn publish(&self, mut world: World) {
        let (mut world, quarantined) = aside::run(move || {
            let quarantined = world.judge();
            (world, quarantined)
        })
        .await;
        self.add_notices(quarantined);
        self.quarantine_unavailable(&mut world);
        let mut world = aside::run(move || {
            world.name();
            world
        })
        .await;
        if self.wants_states() {
            world.states = self.states(&world, false).await;
        }
        world.generation += 1;
        self.worlds.replace(world);
        self.generation.send_modify(|generation| *generation += 1);
    }

    fn add_notices(&self, quarantined: Vec<(Judged, String)>) {
        let count = quarantined.len();
        if count > NOTICES_MAX {
            tracing::warn!(
                tools = count,
                recorded = NOTICES_MAX,
                "more tools are quarantined at once than are recorded one by one"
            );
        }
        for (Judged { id, source }, reason) in quarantined.into_iter().take(NOTICES_MAX) {
            tracing::warn!(tool.id = id, reason, "quarantined");
            let notice = Quarantined { tool_id: id.clone(), source, reason };
            lock(&self.notices).insert(id, notice);
        }
    }

    /// Quarantines the tools and items of sources that must be listed before the next call and did
    /// not answer.
    fn quarantine_unavailable(&self, world: &mut World) {
        for source in self.sources.iter().filter(|source| source.is_unavailable()) {
            let source = &source.entry.id;
            let tools = world.registry.iter().filter(|tool| tool.source() == source);
            for id in tools.map(|tool| tool.id().clone()).collect::<Vec<_>>() {
                let reason = "its source did not answer, and is to be asked before it is called";
                world.statuses.entry(id).or_insert(ToolStatus::Quarantined(reason.to_owned()));
            }
            let items = world.items.source(source).cloned();
            for item in items.iter().flat_map(|items| items.iter()) {
                let reason = "its source did not answer, and is to be asked before it is used";
                let status = ToolStatus::Quarantined(reason.to_owned());
                let kinds = world.item_statuses.entry(source.clone()).or_default();
                let kind = kinds.entry(item.kind()).or_default();
                kind.entry(item.key().to_owned()).or_insert(status);
            }
        }
    }

    /// Takes the tools that were quarantined since the last call of this function.
    #[must_use]
    pub fn take_quarantined(&self) -> Vec<Quarantined> {
        std::mem::take(&mut *lock(&self.notices)).into_values().collect()
    }
}
