//! The published world: registry, policy and wire names, swapped together and taken once per call.
//!
//! Path: 3. Doc: call-path.md#the-world

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use arc_swap::ArcSwap;
use toolbooth_contracts::coverage::CoverageState;
use toolbooth_contracts::{Caller, ToolId};
use toolbooth_policy::{Authorizer, Standing};
use toolbooth_registry::{RegisteredTool, ToolRegistry, WireNames};

/// Whether a tool can run, as it was when the world was published.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolState {
    /// The state.
    pub state: CoverageState,
    /// Why it cannot.
    pub reason: Option<String>,
}

/// Everything that decides which tools there are and who may call them.
#[derive(Debug, Clone)]
pub struct World {
    /// The tools.
    pub registry: ToolRegistry,
    /// The policy.
    pub policy: Authorizer,
    /// The names on the wire.
    pub names: WireNames,
    /// Tools that are quarantined or paused.
    pub standings: HashMap<ToolId, Standing>,
    /// Whether each tool can run.
    pub states: HashMap<ToolId, ToolState>,
    /// Permissions whose requirement is unmet, and the setting that is missing.
    pub unmet: BTreeMap<String, String>,
    /// Grows with each change of what is listed.
    pub generation: u64,
}

impl World {
    /// A world without tools.
    #[must_use]
    pub fn new(policy: Authorizer) -> Self {
        Self {
            registry: ToolRegistry::default(),
            policy,
            names: WireNames::default(),
            standings: HashMap::new(),
            states: HashMap::new(),
            unmet: BTreeMap::new(),
            generation: 0,
        }
    }

    /// The same with the tools of `registry`, and names for them.
    #[must_use]
    pub fn with_registry(mut self, registry: ToolRegistry) -> Self {
        self.names = self.names.with(registry.iter().map(|tool| tool.id().as_str()));
        self.registry = registry;
        self
    }

    /// Where a tool stands.
    #[must_use]
    pub fn standing(&self, tool: &RegisteredTool) -> &Standing {
        self.standings.get(tool.id()).unwrap_or(&Standing::Active)
    }

    /// The setting that a tool misses because of its permissions.
    #[must_use]
    pub fn unmet(&self, tool: &RegisteredTool) -> Option<&str> {
        let permissions = &tool.contract().permissions;
        permissions.iter().find_map(|permission| self.unmet.get(permission)).map(String::as_str)
    }

    /// Whether the caller sees the tool in a listing for agents: allowed, and able to run.
    #[must_use]
    pub fn lists(&self, caller: &Caller, tool: &RegisteredTool) -> bool {
        let state = self.states.get(tool.id()).map(|state| state.state);
        state != Some(CoverageState::NotConfigured)
            && self.policy.lists(caller, tool.contract(), self.standing(tool))
    }
}

/// Where the world is published. Readers hold the one they took; a change makes a new one.
#[derive(Debug)]
pub struct Worlds(ArcSwap<World>);

impl Worlds {
    /// Publishes the first world.
    #[must_use]
    pub fn new(world: World) -> Arc<Self> {
        Arc::new(Self(ArcSwap::from_pointee(world)))
    }

    /// The world as it is now.
    #[must_use]
    pub fn now(&self) -> Arc<World> {
        self.0.load_full()
    }

    /// Publishes another world.
    pub fn publish(&self, world: World) {
        self.0.store(Arc::new(world));
    }
}
