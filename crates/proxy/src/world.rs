//! The published world: registry, policy and wire names, replaced together and taken once per call.
//!
//! Path: 3. Doc: call-path.md#the-world

mod statuses;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use toolbooth_contracts::contract::{CLIENT_RUNTIMES, GATEWAY_RUNTIME};
use toolbooth_contracts::coverage::CoverageState;
use toolbooth_contracts::history::{History, WindowName, seen};
use toolbooth_contracts::port::ItemKind;
use toolbooth_contracts::{Arguments, CallContext, Caller, ToolId, ToolName};
use toolbooth_policy::{
    AskedCall, Authorizer, EngineTool, Explanation, Item, Pauses, Permit, RuleFit, ToolSet,
    ToolStatus,
};
use toolbooth_registry::lock::{Approvals, Objection};
use toolbooth_registry::uris::{ResourceUris, is_normal};
use toolbooth_registry::wire::WireCandidate;
use toolbooth_registry::{
    ItemRegistry, RegisteredItem, RegisteredTool, Replaced, Source, ToolRegistry, WireNames,
};

pub use self::statuses::Judged;

/// Whether a tool can run, as determined when the world was published.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolState {
    /// The state.
    pub state: CoverageState,
    /// The reason if it cannot.
    pub reason: Option<String>,
}

/// Everything that determines which tools exist and who can call them.
#[derive(Debug, Clone)]
pub struct World {
    /// The tools.
    pub(crate) registry: ToolRegistry,
    /// The policy, with the pauses in force.
    pub(crate) policy: Authorizer,
    /// The pauses that are not by an order.
    pub(crate) own_pauses: Pauses,
    /// The names on the wire.
    pub(crate) names: WireNames,
    /// Prompts, resources and templates.
    pub(crate) items: ItemRegistry,
    /// The names of prompts on the wire.
    pub(crate) prompt_names: WireNames,
    /// How resource URIs are shown.
    pub(crate) uris: ResourceUris,
    /// The tool sets of front doors, by name.
    pub(crate) toolsets: Arc<BTreeMap<String, ToolSet>>,
    /// The approvals by which discovered tools are judged.
    pub(crate) approvals: Arc<Approvals>,
    /// The objections to discovered tools, by id, and to items, by id with their kind.
    pub(crate) objections: Arc<HashMap<String, Objection>>,
    /// Tools that are quarantined or paused.
    pub(crate) statuses: HashMap<ToolId, ToolStatus>,
    /// The statuses that were set by [`World::set_status`].
    pub(crate) set_statuses: HashMap<ToolId, ToolStatus>,
    /// Items that are quarantined, by source, kind and key: ids of two sources may be the same.
    pub(crate) item_statuses: BTreeMap<Source, ItemStatuses>,
    /// Whether each tool can run.
    pub(crate) states: HashMap<ToolId, ToolState>,
    /// Permissions with an unmet requirement, each with the missing setting.
    pub(crate) unmet: BTreeMap<String, String>,
    /// How the rules of the policy fit the tools.
    pub(crate) rule_fit: Arc<RuleFit>,
    /// Increases with each published change.
    pub(crate) generation: u64,
}

/// An operator's settings of a world.
#[derive(Debug, Default)]
pub struct WorldSettings {
    /// The approvals by which discovered tools are judged.
    pub approvals: Approvals,
    /// The names on the wire, as assigned before.
    pub names: WireNames,
    /// The names of prompts on the wire, as assigned before.
    pub prompt_names: WireNames,
    /// How resource URIs are shown.
    pub uris: ResourceUris,
    /// The tool sets of front doors, by name.
    pub toolsets: BTreeMap<String, ToolSet>,
    /// Permissions with an unmet requirement, each with the missing setting.
    pub unmet: BTreeMap<String, String>,
}

/// The statuses of the items of one source, by kind and key.
type ItemStatuses = BTreeMap<ItemKind, BTreeMap<String, ToolStatus>>;

impl World {
    /// A world without tools.
    #[must_use]
    pub fn new(policy: Authorizer) -> Self {
        Self {
            registry: ToolRegistry::default(),
            own_pauses: policy.pauses().clone(),
            policy,
            names: WireNames::default(),
            items: ItemRegistry::default(),
            prompt_names: WireNames::default(),
            uris: ResourceUris::default(),
            toolsets: Arc::default(),
            approvals: Arc::default(),
            objections: Arc::default(),
            statuses: HashMap::new(),
            set_statuses: HashMap::new(),
            item_statuses: BTreeMap::new(),
            states: HashMap::new(),
            unmet: BTreeMap::new(),
            rule_fit: Arc::default(),
            generation: 0,
        }
    }

    /// Returns the world with an operator's settings.
    #[must_use]
    pub fn with_settings(self, settings: WorldSettings) -> Self {
        let WorldSettings { approvals, names, prompt_names, uris, toolsets, unmet } = settings;
        let (approvals, toolsets) = (Arc::new(approvals), Arc::new(toolsets));
        Self { approvals, names, prompt_names, uris, toolsets, unmet, ..self }
    }

    /// The tools.
    #[must_use]
    pub fn registry(&self) -> &ToolRegistry {
        &self.registry
    }

    /// Replaces the tools of a source.
    pub fn replace_source(&mut self, source: &Source, tools: Vec<RegisteredTool>) -> Replaced {
        self.registry.replace_source(source, tools)
    }

    /// Sets a tool's status. A quarantine by judging is stronger; [`ToolStatus::Active`] ends what was set before.
    pub fn set_status(&mut self, id: ToolId, status: ToolStatus) {
        self.statuses.insert(id.clone(), status.clone());
        self.set_statuses.insert(id, status);
    }

    /// The policy.
    #[must_use]
    pub fn policy(&self) -> &Authorizer {
        &self.policy
    }

    /// The names on the wire.
    #[must_use]
    pub fn names(&self) -> &WireNames {
        &self.names
    }

    /// The names of prompts on the wire.
    #[must_use]
    pub fn prompt_names(&self) -> &WireNames {
        &self.prompt_names
    }

    /// Prompts, resources and templates.
    #[must_use]
    pub fn items(&self) -> &ItemRegistry {
        &self.items
    }

    /// The approvals by which discovered tools are judged.
    #[must_use]
    pub fn approvals(&self) -> &Approvals {
        &self.approvals
    }

    /// The objections to discovered tools, by id, and to items, by id with their kind.
    #[must_use]
    pub fn objections(&self) -> &HashMap<String, Objection> {
        &self.objections
    }

    /// Whether a tool can run, if that was determined.
    #[must_use]
    pub fn state(&self, tool: &RegisteredTool) -> Option<&ToolState> {
        self.states.get(tool.id())
    }

    /// As [`World::with_names`], with the tools of `registry`.
    #[must_use]
    pub fn with_registry(self, registry: ToolRegistry) -> Self {
        Self { registry, ..self }.with_names()
    }

    /// Binds the rules of the policy to the tools.
    pub(crate) fn bind_rules(&mut self) {
        let (policy, rule_fit) = self.policy.bound(&self.engine_tools());
        self.policy = policy;
        self.rule_fit = Arc::new(rule_fit);
    }

    fn engine_tools(&self) -> Vec<EngineTool<'_>> {
        let tools = self.registry.iter();
        tools
            .map(|tool| EngineTool { contract: tool.contract(), digest: tool.contract_digest() })
            .collect()
    }

    /// Increases with each published change.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Whether a tool is quarantined.
    #[must_use]
    pub fn is_quarantined(&self, tool_id: &str) -> bool {
        matches!(self.statuses.get(tool_id), Some(ToolStatus::Quarantined(_)))
    }

    /// Returns how the rules of the policy fit the tools.
    #[must_use]
    pub fn rule_fit(&self) -> &RuleFit {
        &self.rule_fit
    }

    /// Returns another policy, bound to the tools of this world, and how its rules fit them.
    #[must_use]
    pub fn bind(&self, policy: &Authorizer) -> (Authorizer, RuleFit) {
        policy.bound(&self.engine_tools())
    }

    /// Returns how the rules of another policy fit the tools of this world.
    #[must_use]
    pub fn fit_of(&self, policy: &Authorizer) -> RuleFit {
        self.bind(policy).1
    }

    /// Returns the world as it is published: with its tools and items judged, the rules bound to them, and names on
    /// the wire. [`crate::Worlds`] does this too.
    #[must_use]
    pub fn with_names(mut self) -> Self {
        let _ = self.judge();
        self.name();
        self
    }

    /// Gives names on the wire to tools and prompts. One in quarantine takes no name from one that may be used.
    pub(crate) fn name(&mut self) {
        let tools = self.registry.iter();
        let trusted = tools.filter(|tool| !matches!(self.status(tool), ToolStatus::Quarantined(_)));
        self.names = self.names.with(trusted.map(|tool| WireCandidate::of(tool)));
        let items = self.items.iter().filter(|item| {
            item.kind() == ItemKind::Prompt
                && !matches!(self.item_status(item), ToolStatus::Quarantined(_))
        });
        self.prompt_names =
            self.prompt_names.with(items.map(|prompt| WireCandidate::of_prompt(prompt)));
    }

    /// Returns the server of a resource URI on the wire, and the URI to request from that server;
    /// `None` if the spelling is neither listed nor the normal one.
    #[must_use]
    pub fn asked_resource<'u>(&'u self, uri: &'u str) -> Option<(String, &'u str)> {
        let (server, own) = self.uris.of_wire(uri)?;
        let own = match self.items.source(&Source::Mcp(server.clone())) {
            Some(items) => items.asked_uri(own)?,
            // The URIs of the gateway's own resources have no scheme.
            None if server == GATEWAY_RUNTIME => {
                let is_one = own.starts_with("results/") && is_normal(&format!("x:{own}"));
                is_one.then_some(own)?
            }
            None => is_normal(own).then_some(own)?,
        };
        Some((server, own))
    }

    /// Returns the tool id of a name in this world, or the name itself if no tool has it.
    #[must_use]
    pub fn tool_id<'n>(&'n self, name: &'n ToolName) -> &'n str {
        match name {
            ToolName::Id(id) => id,
            ToolName::IdOrWire(id) if self.registry.get(id).is_some() => id,
            ToolName::IdOrWire(name) | ToolName::Wire(name) => self.names.tool_id(name),
        }
    }

    /// Whether a door's tool set contains a tool. A door without a tool set shows everything. A door
    /// with a tool set that does not exist shows nothing. Tools that a client runs itself are in no set but
    /// that of the client's hooks ([`CLIENT_RUNTIMES`]), which contains nothing else.
    #[must_use]
    pub fn shows_tool(&self, toolset: Option<&Arc<str>>, tool_id: &str) -> bool {
        let run_by = self.registry.get(tool_id).and_then(|tool| tool.adapter().client());
        let asked_by = toolset.and_then(|name| name.strip_prefix(CLIENT_RUNTIMES));
        if run_by.is_some() || asked_by.is_some() {
            return run_by == asked_by;
        }
        toolset.is_none_or(|name| {
            self.toolsets.get(name.as_ref()).is_some_and(|set| set.has_tool(tool_id))
        })
    }

    /// As [`World::shows_tool`], for prompts, resources and templates.
    #[must_use]
    pub fn shows_item(&self, toolset: Option<&Arc<str>>, item: &Item<'_>) -> bool {
        toolset.is_none_or(|name| self.toolsets.get(name.as_ref()).is_some_and(|set| set.has(item)))
    }

    /// Replaces the policy; the pauses in force stay.
    pub fn set_policy(&mut self, policy: Authorizer) {
        let pauses = self.policy.pauses().clone();
        self.policy = policy.with_pauses(pauses);
    }

    /// Replaces the pauses that are not by an order. Those of orders hold beside them once the world is published.
    pub fn set_pauses(&mut self, pauses: Pauses) {
        self.policy = self.policy.clone().with_pauses(pauses.clone());
        self.own_pauses = pauses;
    }

    /// Puts the pauses of orders in force, beside those that are not by an order.
    pub(crate) fn order_pauses(&mut self, ordered: &Pauses) {
        self.policy = self.policy.clone().with_pauses(self.own_pauses.and(ordered));
    }

    /// Returns the missing setting that the tool's permissions require.
    #[must_use]
    pub fn unmet(&self, tool: &RegisteredTool) -> Option<&str> {
        let permissions = &tool.contract().permissions;
        permissions.iter().find_map(|permission| self.unmet.get(permission)).map(String::as_str)
    }

    /// Returns the windows over earlier calls that the rules of a call read, by their names. Empty if there is
    /// no such tool, or the call is decided without them.
    #[must_use]
    pub fn windows(
        &self,
        caller: &Caller,
        name: &ToolName,
        arguments: &Arguments,
        claimed: &CallContext,
        at: &str,
    ) -> BTreeMap<String, WindowName> {
        let Some(tool) = self.registry.get(self.tool_id(name)) else { return BTreeMap::new() };
        let (contract, arguments) = (tool.contract(), arguments.tree());
        let call = AskedCall { caller, contract, arguments, claimed, at };
        let access = self.policy.access(caller, contract, self.status(tool));
        let permit = access.and_then(|access| self.policy.authorize(access, &call));
        permit.ok().and_then(|permit| permit.windows().cloned()).unwrap_or_default()
    }

    /// Explains the decision on a call without running it; `None` if the tool does not exist.
    /// `earlier` are the calls in the windows that its rules read.
    #[must_use]
    pub fn explain(
        &self,
        caller: &Caller,
        name: &ToolName,
        arguments: Arguments,
        claimed: &CallContext,
        at: &str,
        earlier: &History,
    ) -> Option<Explanation> {
        let tool = self.registry.get(self.tool_id(name))?;
        let guarded = tool.guard(arguments.clone());
        let objection = guarded.as_ref().err().map(|errors| {
            let told = errors.iter().map(|error| format!("{} {}", error.path, error.message));
            told.collect::<Vec<_>>().join("; ")
        });
        let contract = tool.contract();
        let arguments = guarded.as_ref().map_or(arguments.tree(), |guarded| guarded.tree());
        let call = AskedCall { caller, contract, arguments, claimed, at };
        let history = |permit: &Permit| {
            permit.windows().map(|own| seen(own, permit.counted(), earlier)).unwrap_or_default()
        };
        Some(self.policy.explain(self.status(tool), &call, objection.as_deref(), &history))
    }

    /// Whether the caller can see the tool at a door that shows `toolset`, if it has this status.
    #[must_use]
    pub fn knows(
        &self,
        caller: &Caller,
        toolset: Option<&Arc<str>>,
        tool: &RegisteredTool,
        status: &ToolStatus,
    ) -> bool {
        self.shows_tool(toolset, tool.id().as_str())
            && self.policy.lists(caller, tool.contract(), status)
    }

    /// Whether the caller sees the tool in a listing for agents: permitted and able to run.
    #[must_use]
    pub fn lists(&self, caller: &Caller, tool: &RegisteredTool) -> bool {
        let state = self.states.get(tool.id()).map(|state| state.state);
        state != Some(CoverageState::NotConfigured)
            && self.policy.lists(caller, tool.contract(), self.status(tool))
    }
}

/// Returns the item in the form that the policy uses.
pub(crate) fn policy_item(item: &RegisteredItem) -> Item<'_> {
    Item { kind: item.kind(), server: item.server_id(), id: item.id() }
}

#[cfg(test)]
mod tests {
    use toolbooth_policy::FeatureFlags;

    use super::*;

    #[test]
    fn the_gateways_own_resources_have_one_spelling_too() {
        let world = World::new(Authorizer::new(FeatureFlags::default()));
        let asked = |own: &str| {
            let uri = format!("toolbooth+gateway:{own}");
            world.asked_resource(&uri).map(|(server, own)| format!("{server} {own}"))
        };
        assert_eq!(asked("results/ab/0").as_deref(), Some("gateway results/ab/0"));
        for odd in
            ["ab/0", "results/../results/ab/0", "results/%61b/0", "results//ab", "results/a#"]
        {
            assert_eq!(asked(odd), None, "{odd}");
        }
        assert!(world.asked_resource("toolbooth+s:results/ab/0").is_none());
    }
}
