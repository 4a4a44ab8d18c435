//! The proxy's face for tools: what a caller may see, and the refreshing of sources that publishes
//! one world after the other.
//!
//! Path: 3. Doc: registry.md#discovery

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt};
use serde_json::Value;
use tokio::sync::watch;
use toolbooth_contracts::coverage::{CoverageReport, CoverageRow, CoverageState, Readiness};
use toolbooth_contracts::declaration::Declaration;
use toolbooth_contracts::port::ToolSource;
use toolbooth_contracts::sandbox::Enforce;
use toolbooth_contracts::{Caller, Guard, ToolId};
use toolbooth_policy::Standing;
use toolbooth_registry::discovered::{self, SourcePolicy};
use toolbooth_registry::{RegisteredTool, Source, coverage};

use crate::executors::Executors;
use crate::world::{ToolState, World, Worlds};

/// How long further changes of a source are waited for, before it is asked again.
const DEBOUNCE: Duration = Duration::from_millis(200);

/// A source and what the operator says of its tools.
pub struct SourceEntry {
    /// The source.
    pub id: Source,
    /// The way to it.
    pub source: Arc<dyn ToolSource>,
    /// The operator's settings.
    pub policy: SourcePolicy,
}

/// What came of asking a source.
#[derive(Debug, Clone, serde::Serialize, schemars::JsonSchema)]
pub struct SourceState {
    /// The source.
    pub source: String,
    /// How many of its tools are registered.
    pub tools: usize,
    /// Tools that were left out, each with the reason.
    pub problems: Vec<String>,
    /// Why it did not answer; its last tools are kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unhealthy: Option<String>,
}

/// Publishes worlds, and tells callers what they may see.
pub struct Catalogue {
    worlds: Arc<Worlds>,
    executors: Executors,
    guard: Guard,
    sources: Vec<SourceEntry>,
    unhealthy: Mutex<BTreeMap<Source, String>>,
    /// One change of the world at a time; readers are never held up.
    editing: tokio::sync::Mutex<()>,
    generation: watch::Sender<u64>,
    /// Whether the state of every tool is worked out with each change. A single call wants none.
    states_wanted: AtomicBool,
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
            sources,
            unhealthy: Mutex::new(BTreeMap::new()),
            editing: tokio::sync::Mutex::new(()),
            generation: watch::Sender::new(0),
            states_wanted: AtomicBool::new(false),
        }
    }

    /// From now on works out whether each tool can run, with every change of the world.
    pub async fn want_states(&self) {
        self.states_wanted.store(true, Ordering::Relaxed);
        self.edit(|_| ()).await;
    }

    /// Tells whenever what is listed may have changed.
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.generation.subscribe()
    }

    /// The guard by which tools are judged.
    #[must_use]
    pub fn guard(&self) -> &Guard {
        &self.guard
    }

    /// Changes the world and publishes it, with the state of every tool worked out again where
    /// that is wanted.
    pub async fn edit<T>(&self, change: impl FnOnce(&mut World) -> T) -> T {
        let _editing = self.editing.lock().await;
        let before = self.worlds.now();
        let mut world = World::clone(&before);
        let out = change(&mut world);
        world.names = world.names.with(world.registry.iter().map(|tool| tool.id().as_str()));
        if self.states_wanted.load(Ordering::Relaxed) {
            world.states = self.states(&world, false).await;
        }
        world.generation = before.generation + 1;
        self.worlds.publish(world);
        self.generation.send_modify(|generation| *generation += 1);
        out
    }

    /// Swaps in the tools of a source that needs no asking, such as the registry file.
    pub async fn replace_source(
        &self,
        source: &Source,
        tools: Vec<RegisteredTool>,
    ) -> toolbooth_registry::Replaced {
        self.edit(|world| world.registry.replace_source(source, tools)).await
    }

    /// Asks every source at the same time, each with its own timeout, and swaps in what each
    /// one says as soon as it has said it.
    pub async fn refresh_all(&self) -> Vec<SourceState> {
        self.refresh_only(|_| true).await
    }

    /// As [`Catalogue::refresh_all`], for the sources that `wanted` names.
    pub async fn refresh_only(&self, wanted: impl Fn(&Source) -> bool) -> Vec<SourceState> {
        let chosen = self.sources.iter().filter(|entry| wanted(&entry.id));
        let mut states: Vec<SourceState> = chosen
            .map(|entry| self.refresh(entry))
            .collect::<FuturesUnordered<_>>()
            .collect()
            .await;
        states.sort_by(|a, b| a.source.cmp(&b.source));
        states
    }

    async fn refresh(&self, entry: &SourceEntry) -> SourceState {
        let name = entry.id.to_string();
        let listed = match tokio::time::timeout(entry.source.timeout(), entry.source.list()).await {
            Ok(Ok(listing)) => Ok(listing),
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err(format!("no answer within {} ms", entry.source.timeout().as_millis())),
        };
        match listed {
            Err(reason) => {
                tracing::warn!(
                    source = name,
                    reason,
                    "a source does not answer, its last tools are kept"
                );
                self.unhealthy().insert(entry.id.clone(), reason.clone());
                let tools = self.edit(|world| count(world, &entry.id)).await;
                SourceState { source: name, tools, problems: Vec::new(), unhealthy: Some(reason) }
            }
            Ok(listing) => {
                let (tools, mut problems) =
                    discovered::register_all(&entry.id, listing, &entry.policy, &self.guard);
                self.unhealthy().remove(&entry.id);
                let replaced = self.replace_source(&entry.id, tools).await;
                for shadowed in &replaced.shadowed {
                    problems.push(format!(
                        "`{}` is left out: {} has a tool of this id (shadowed-tool)",
                        shadowed.tool_id, shadowed.held_by
                    ));
                }
                for problem in &problems {
                    tracing::warn!(source = name, problem, "a tool of a source is left out");
                }
                let tools = count(&self.worlds.now(), &entry.id);
                SourceState { source: name, tools, problems, unhealthy: None }
            }
        }
    }

    fn unhealthy(&self) -> std::sync::MutexGuard<'_, BTreeMap<Source, String>> {
        self.unhealthy.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks sources again when they say that they changed, and all that cannot say so every
    /// `interval`. Runs until it is dropped.
    pub async fn keep_fresh(&self, interval: Duration) {
        let mut watching: FuturesUnordered<_> =
            self.sources.iter().map(|entry| self.keep_one_fresh(entry, interval)).collect();
        while watching.next().await.is_some() {}
    }

    async fn keep_one_fresh(&self, entry: &SourceEntry, interval: Duration) {
        let changes = entry.source.changes();
        loop {
            match &changes {
                Some(changes) => {
                    let lost = self.unhealthy().contains_key(&entry.id);
                    tokio::select! {
                        told = changes.recv() => if told.is_err() { return },
                        // A source that was lost cannot say that it is back.
                        () = tokio::time::sleep(interval), if lost => (),
                    }
                    // Several changes at once are one refresh.
                    tokio::time::sleep(DEBOUNCE).await;
                    while changes.try_recv().is_ok() {}
                }
                None => tokio::time::sleep(interval).await,
            }
            self.refresh(entry).await;
        }
    }

    /// Whether each tool can run.
    async fn states(&self, world: &World, probe: bool) -> HashMap<ToolId, ToolState> {
        let mut states = HashMap::with_capacity(world.registry.len());
        for tool in world.registry.iter() {
            let state = self.state(world, tool, probe).await;
            states.insert(tool.id().clone(), state);
        }
        states
    }

    async fn state(&self, world: &World, tool: &RegisteredTool, probe: bool) -> ToolState {
        let told = |state, reason: String| ToolState { state, reason: Some(reason) };
        if let Standing::Quarantined(reason) = world.standing(tool) {
            return told(CoverageState::Quarantined, reason.clone());
        }
        if let Some(setting) = world.unmet(tool) {
            return told(CoverageState::NotConfigured, format!("`{setting}` is missing"));
        }
        let Some(executor) = self.executors.get(tool.adapter()) else {
            let reason = format!("nothing is configured for `{}`", tool.adapter());
            return told(CoverageState::NotConfigured, reason);
        };
        if let Some(profile) = &tool.contract().sandbox
            && profile.enforce == Enforce::Required
            && let Err(reason) = executor.contains(profile)
        {
            return told(
                CoverageState::NotConfigured,
                format!("its sandbox is required: {reason}"),
            );
        }
        if let Some(reason) = self.unhealthy().get(tool.source()).cloned() {
            return told(CoverageState::Unhealthy, reason);
        }
        match executor.readiness(tool.contract(), probe).await {
            Readiness::Ready => ToolState { state: CoverageState::Real, reason: None },
            Readiness::NotConfigured(reason) => told(CoverageState::NotConfigured, reason),
            Readiness::Unhealthy(reason) => told(CoverageState::Unhealthy, reason),
        }
    }

    /// The coverage of every registered tool; `probe` really connects.
    pub async fn coverage(&self, probe: bool) -> CoverageReport {
        let world = self.worlds.now();
        let states = self.states(&world, probe).await;
        let rows = world
            .registry
            .iter()
            .map(|tool| {
                let contract = tool.contract();
                let state = states.get(tool.id());
                CoverageRow {
                    tool_id: tool.id().to_string(),
                    category: contract.category.as_str().to_owned(),
                    source: tool.source().to_string(),
                    target: tool.adapter().to_string(),
                    idempotency: contract.idempotency.mode.as_str().to_owned(),
                    permissions: contract.permissions.clone(),
                    state: state.map_or(CoverageState::NotConfigured, |state| state.state),
                    reason: state.and_then(|state| state.reason.clone()),
                }
            })
            .collect();
        coverage::report(rows)
    }

    /// What the caller may see, in the world as it is now.
    #[must_use]
    pub fn view(&self, caller: &Caller) -> View {
        View { world: self.worlds.now(), caller: caller.clone() }
    }
}

fn count(world: &World, source: &Source) -> usize {
    world.registry.iter().filter(|tool| tool.source() == source).count()
}

/// A tool that a caller may see.
#[derive(Debug, Clone)]
pub struct Visible {
    /// The tool.
    pub tool: Arc<RegisteredTool>,
    /// Its name on the wire.
    pub wire_name: String,
    /// Whether it can run.
    pub state: CoverageState,
}

/// What one caller may see of one world.
#[derive(Debug, Clone)]
pub struct View {
    world: Arc<World>,
    caller: Caller,
}

impl View {
    /// Tools for agents, sorted by id, after the id `after`: allowed, and able to run. The id to
    /// go on from comes with them where more follow.
    #[must_use]
    pub fn listed(&self, after: Option<&str>, limit: usize) -> (Vec<Visible>, Option<String>) {
        self.page(after, limit, |tool| self.world.lists(&self.caller, tool))
    }

    /// Tools for people: as [`View::listed`], and those that miss a setting.
    #[must_use]
    pub fn all(&self, after: Option<&str>, limit: usize) -> (Vec<Visible>, Option<String>) {
        let world = &self.world;
        self.page(after, limit, |tool| {
            world.policy.lists(&self.caller, tool.contract(), world.standing(tool))
        })
    }

    fn page(
        &self,
        after: Option<&str>,
        limit: usize,
        filter: impl Fn(&RegisteredTool) -> bool,
    ) -> (Vec<Visible>, Option<String>) {
        let (tools, more) = self.world.registry.list(after, limit, filter);
        let next = tools.last().filter(|_| more).map(|tool| tool.id().to_string());
        (tools.into_iter().map(|tool| self.visible(tool)).collect(), next)
    }

    fn visible(&self, tool: Arc<RegisteredTool>) -> Visible {
        let state = self.world.states.get(tool.id()).map(|state| state.state);
        Visible {
            wire_name: self.world.names.name_of(tool.id().as_str()).to_owned(),
            state: state.unwrap_or(CoverageState::NotConfigured),
            tool,
        }
    }

    /// One tool that the caller sees in a listing, by its id or its name on the wire.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<Visible> {
        let tool = self.world.registry.get(self.tool_id(name))?;
        let policy = &self.world.policy;
        policy
            .lists(&self.caller, tool.contract(), self.world.standing(tool))
            .then(|| self.visible(Arc::clone(tool)))
    }

    /// The tool id that a name on the wire stands for; the name itself where it stands for none.
    #[must_use]
    pub fn tool_id<'n>(&'n self, name: &'n str) -> &'n str {
        self.world.names.tool_id(name)
    }

    /// Neutral declarations of all tools for agents.
    #[must_use]
    pub fn declarations(&self) -> Vec<Declaration> {
        let (tools, _) = self.listed(None, usize::MAX);
        tools.iter().map(declaration).collect()
    }
}

/// The neutral declaration of a tool.
#[must_use]
pub fn declaration(visible: &Visible) -> Declaration {
    let contract = visible.tool.contract();
    let anything = contract.output_schema.as_object().is_some_and(serde_json::Map::is_empty);
    Declaration {
        wire_name: visible.wire_name.clone(),
        tool_id: contract.tool_id.to_string(),
        title: contract.title.clone(),
        description: contract.description.clone(),
        parameters: contract.input_schema.clone(),
        output_schema: (!anything && contract.output_schema != Value::Bool(true))
            .then(|| contract.output_schema.clone()),
        annotations: contract.annotations.clone(),
    }
}
