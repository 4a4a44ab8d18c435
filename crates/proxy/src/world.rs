//! The published world: registry, policy and wire names, swapped together and taken once per call.
//!
//! Path: 3. Doc: call-path.md#the-world

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;
use toolbooth_contracts::contract::GATEWAY_RUNTIME;
use toolbooth_contracts::coverage::CoverageState;
use toolbooth_contracts::port::ItemKind;
use toolbooth_contracts::{Caller, ToolId};
use toolbooth_policy::{Authorizer, Item, Standing, ToolSet};
use toolbooth_registry::lock::{Approvals, Objection};
use toolbooth_registry::search::SearchIndex;
use toolbooth_registry::template::Reading;
use toolbooth_registry::uris::{ResourceUris, is_normal};
use toolbooth_registry::wire::WireCandidate;
use toolbooth_registry::{
    ItemRegistry, RegisteredItem, RegisteredTool, Source, ToolRegistry, WireNames,
};

use crate::view::ListingDigests;

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
    /// Prompts, resources and templates.
    pub items: ItemRegistry,
    /// The names of prompts on the wire.
    pub prompt_names: WireNames,
    /// How resource URIs are shown.
    pub uris: ResourceUris,
    /// What doors may show of all this, by name.
    pub toolsets: Arc<BTreeMap<String, ToolSet>>,
    /// By what discovered tools are judged.
    pub approvals: Arc<Approvals>,
    /// What is held against discovered tools, by id, and against items, by id with their kind.
    pub objections: Arc<HashMap<String, Objection>>,
    /// Tools that are quarantined or paused.
    pub standings: HashMap<ToolId, Standing>,
    /// Items that are quarantined, by source, kind and key: ids of two sources may be the same.
    pub item_standings: BTreeMap<Source, ItemStandings>,
    /// Whether each tool can run.
    pub states: HashMap<ToolId, ToolState>,
    /// Permissions whose requirement is unmet, and the setting that is missing.
    pub unmet: BTreeMap<String, String>,
    /// Grows with each change of what is listed.
    pub generation: u64,
    /// Indices for searching.
    pub(crate) indices: PerView<Arc<SearchIndex>>,
    /// What tells listings apart.
    pub(crate) digests: PerView<ListingDigests>,
}

/// Where items of one source stand, by kind and key.
type ItemStandings = BTreeMap<ItemKind, BTreeMap<String, Standing>>;

/// What is worked out for a caller and a tool set in one world, when it is first wanted.
#[derive(Debug)]
pub(crate) struct PerView<T>(Arc<Mutex<ByView<T>>>);

type ByView<T> = HashMap<(Caller, Option<Arc<str>>), T>;

/// Callers and tool sets for which something is kept at once.
const VIEWS_MAX: usize = 32;

impl<T> Default for PerView<T> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<T> Clone for PerView<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T: Clone> PerView<T> {
    /// What is kept for a caller and a tool set, else what `make` gives.
    pub(crate) fn of(
        &self,
        caller: &Caller,
        toolset: Option<&Arc<str>>,
        make: impl FnOnce() -> T,
    ) -> T {
        let key = (caller.clone(), toolset.cloned());
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = kept.get(&key) {
            return known.clone();
        }
        if kept.len() >= VIEWS_MAX {
            kept.clear();
        }
        let made = make();
        kept.insert(key, made.clone());
        made
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
            items: ItemRegistry::default(),
            prompt_names: WireNames::default(),
            uris: ResourceUris::default(),
            toolsets: Arc::default(),
            approvals: Arc::default(),
            objections: Arc::default(),
            standings: HashMap::new(),
            item_standings: BTreeMap::new(),
            states: HashMap::new(),
            unmet: BTreeMap::new(),
            generation: 0,
            indices: PerView::default(),
            digests: PerView::default(),
        }
    }

    /// The same with the tools of `registry`, and names for them.
    #[must_use]
    pub fn with_registry(mut self, registry: ToolRegistry) -> Self {
        self.names = self.names.with(registry.iter().map(|tool| WireCandidate::of(tool)));
        self.registry = registry;
        self
    }

    /// Judges the discovered tools and items by the approvals. Gives those that are quarantined
    /// now and were not before, or for another reason, each with the reason.
    pub fn judge(&mut self) -> Vec<(Judged, String)> {
        let tools = self.registry.iter().map(AsRef::as_ref);
        let mut objections = self.approvals.judge(tools);
        objections.extend(self.approvals.judge_items(self.items.iter().map(AsRef::as_ref)));
        self.objections = Arc::new(objections);
        let mut fresh = self.judge_items();
        let before = std::mem::take(&mut self.standings);
        for tool in self.registry.iter() {
            let id = tool.id();
            let objection = self.objections.get(id.as_str());
            match objection.and_then(|objection| objection.quarantine.clone()) {
                Some(reason) => {
                    let standing = Standing::Quarantined(reason.clone());
                    if before.get(id) != Some(&standing) {
                        fresh.push((
                            Judged { id: id.to_string(), source: tool.source().clone() },
                            reason,
                        ));
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

    fn judge_items(&mut self) -> Vec<(Judged, String)> {
        let before = std::mem::take(&mut self.item_standings);
        let mut fresh = Vec::new();
        for item in self.items.iter() {
            let id = item.locked_id();
            let objection = self.objections.get(&id);
            let Some(reason) = objection.and_then(|one| one.quarantine.clone()) else { continue };
            let standing = Standing::Quarantined(reason.clone());
            let source = item.source();
            let known =
                before.get(source).and_then(|kinds| kinds.get(&item.kind())?.get(item.key()));
            if known != Some(&standing) {
                fresh.push((Judged { id, source: source.clone() }, reason));
            }
            let kinds = self.item_standings.entry(source.clone()).or_default();
            kinds.entry(item.kind()).or_default().insert(item.key().to_owned(), standing);
        }
        fresh
    }

    /// Where a prompt, a resource or a template stands.
    #[must_use]
    pub fn item_standing(&self, item: &RegisteredItem) -> &Standing {
        self.standing_of(item.source(), item.kind(), item.key())
    }

    /// As [`World::item_standing`], by source, kind and key.
    #[must_use]
    pub fn standing_of(&self, source: &Source, kind: ItemKind, key: &str) -> &Standing {
        let kinds = self.item_standings.get(source);
        kinds.and_then(|kinds| kinds.get(&kind)?.get(key)).unwrap_or(&Standing::Active)
    }

    /// The server of a resource by its URI on the wire, and the URI by which that server is asked;
    /// `None` for a spelling that is neither listed nor the normal one.
    #[must_use]
    pub fn asked_resource<'u>(&'u self, uri: &'u str) -> Option<(String, &'u str)> {
        let (server, own) = self.uris.of_wire(uri)?;
        let own = match self.items.source(&Source::Mcp(server.clone())) {
            Some(items) => items.asked_uri(own)?,
            // The gateway's own have no scheme.
            None if server == GATEWAY_RUNTIME => {
                let is_one = own.starts_with("results/") && is_normal(&format!("x:{own}"));
                is_one.then_some(own)?
            }
            None => is_normal(own).then_some(own)?,
        };
        Some((server, own))
    }

    /// Where a resource stands by its server's own URI, listed or not: servers hand out links to
    /// what they do not list. One that only templates in quarantine give stands as they do.
    #[must_use]
    pub fn resource_standing(&self, server: &str, uri: &str) -> &Standing {
        let source = Source::Mcp(server.to_owned());
        let (Some(items), Some(standings)) =
            (self.items.source(&source), self.item_standings.get(&source))
        else {
            return &Standing::Active;
        };
        if items.get(ItemKind::Resource, uri).is_some() {
            return self.standing_of(&source, ItemKind::Resource, uri);
        }
        // Servers may take a URI with a query or a slash at its end for the one without.
        let bare = uri.split('?').next().unwrap_or(uri).trim_end_matches('/');
        let resources = standings.get(&ItemKind::Resource);
        let near = |key: &str| resources.and_then(|resources| resources.get(key));
        if let Some(near) = near(bare).or_else(|| near(&format!("{bare}/"))) {
            return near;
        }
        // Only what is in quarantine is tried first; open templates, where one of these fits.
        let shut = standings.get(&ItemKind::Template).into_iter().flatten();
        let shut = shut
            .map(|(key, standing)| (items.get(ItemKind::Template, key), standing))
            .find(|(template, _)| template.is_some_and(|one| one.may_give(uri, Reading::Wide)));
        let Some((_, shut)) = shut else { return &Standing::Active };
        let open = items.of_kind(ItemKind::Template, None).any(|template| {
            *self.item_standing(template) == Standing::Active
                && template.may_give(uri, Reading::Narrow)
        });
        if open { &Standing::Active } else { shut }
    }

    /// Whether a door's tool set has a tool. A door without one shows everything; one whose set is
    /// not there shows nothing.
    #[must_use]
    pub fn shows_tool(&self, toolset: Option<&Arc<str>>, tool_id: &str) -> bool {
        toolset.is_none_or(|name| {
            self.toolsets.get(name.as_ref()).is_some_and(|set| set.has_tool(tool_id))
        })
    }

    /// As [`World::shows_tool`], for prompts, resources and templates.
    #[must_use]
    pub fn shows_item(&self, toolset: Option<&Arc<str>>, item: &Item<'_>) -> bool {
        toolset.is_none_or(|name| self.toolsets.get(name.as_ref()).is_some_and(|set| set.has(item)))
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

/// A tool or an item that was judged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Judged {
    /// The tool's id, or the item's with its kind, such as `prompt:s.greet`.
    pub id: String,
    /// Its source.
    pub source: Source,
}

/// An item as policy knows it.
pub(crate) fn policy_item(item: &RegisteredItem) -> Item<'_> {
    Item { kind: item.kind(), server: item.server_id(), id: item.id() }
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
