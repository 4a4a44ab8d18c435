//! The published world: registry, policy and wire names, swapped together and taken once per call.
//!
//! Path: 3. Doc: call-path.md#the-world

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;
use toolbooth_contracts::coverage::CoverageState;
use toolbooth_contracts::{Caller, ToolId};
use toolbooth_policy::{Authorizer, Standing};
use toolbooth_registry::lock::{Approvals, Objection};
use toolbooth_registry::search::SearchIndex;
use toolbooth_registry::wire::WireCandidate;
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
    /// By what discovered tools are judged.
    pub approvals: Arc<Approvals>,
    /// What is held against discovered tools, by id.
    pub objections: Arc<HashMap<String, Objection>>,
    /// Tools that are quarantined or paused.
    pub standings: HashMap<ToolId, Standing>,
    /// Whether each tool can run.
    pub states: HashMap<ToolId, ToolState>,
    /// Permissions whose requirement is unmet, and the setting that is missing.
    pub unmet: BTreeMap<String, String>,
    /// Grows with each change of what is listed.
    pub generation: u64,
    /// Indices for searching, one per caller that has searched in this world.
    pub(crate) indices: Indices,
}

/// Indices by caller, made when they are first wanted.
#[derive(Debug, Clone, Default)]
pub(crate) struct Indices(Arc<Mutex<HashMap<String, Arc<SearchIndex>>>>);

/// Callers whose indices are kept at once.
const INDICES_MAX: usize = 32;

impl Indices {
    /// The index of a caller; `make` gives the tools that it sees.
    pub(crate) fn of(
        &self,
        caller: &Caller,
        make: impl FnOnce() -> Vec<Arc<RegisteredTool>>,
    ) -> Arc<SearchIndex> {
        let mut indices = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(index) = indices.get(caller.name()) {
            return Arc::clone(index);
        }
        if indices.len() >= INDICES_MAX {
            indices.clear();
        }
        let index = Arc::new(SearchIndex::new(make()));
        indices.insert(caller.name().to_owned(), Arc::clone(&index));
        index
    }
}

impl World {
    /// A world without tools.
    #[must_use]
    pub fn new(policy: Authorizer) -> Self {
        Self {
            registry: ToolRegistry::default(),
            policy,
            names: WireNames::default(),
            approvals: Arc::default(),
            objections: Arc::default(),
            standings: HashMap::new(),
            states: HashMap::new(),
            unmet: BTreeMap::new(),
            generation: 0,
            indices: Indices::default(),
        }
    }

    /// The same with the tools of `registry`, and names for them.
    #[must_use]
    pub fn with_registry(mut self, registry: ToolRegistry) -> Self {
        self.names = self.names.with(registry.iter().map(|tool| WireCandidate::of(tool)));
        self.registry = registry;
        self
    }

    /// Judges the discovered tools by the approvals. Gives the tools that are quarantined now and
    /// were not before, or for another reason, each with the reason.
    pub fn judge(&mut self) -> Vec<(ToolId, String)> {
        let tools = self.registry.iter().map(AsRef::as_ref);
        self.objections = Arc::new(self.approvals.judge(tools));
        let before = std::mem::take(&mut self.standings);
        let mut fresh = Vec::new();
        for tool in self.registry.iter() {
            let id = tool.id();
            let objection = self.objections.get(id.as_str());
            match objection.and_then(|objection| objection.quarantine.clone()) {
                Some(reason) => {
                    let standing = Standing::Quarantined(reason.clone());
                    if before.get(id) != Some(&standing) {
                        fresh.push((id.clone(), reason));
                    }
                    self.standings.insert(id.clone(), standing);
                }
                None if before.get(id) == Some(&Standing::Paused) => {
                    self.standings.insert(id.clone(), Standing::Paused);
                }
                None => (),
            }
        }
        fresh
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
