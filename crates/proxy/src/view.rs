//! The view of one caller on one world, at a front door that can be limited to one tool set.
//!
//! Path: 3. Doc: registry.md#what-a-caller-sees

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;

use serde_json::{Map, Value};
use tokio::sync::Semaphore;
use toolbooth_contracts::Caller;
use toolbooth_contracts::coverage::CoverageState;
use toolbooth_contracts::declaration::Declaration;
use toolbooth_contracts::port::{ItemKind, Offers};
use toolbooth_policy::{Item, ToolStatus};
use toolbooth_registry::discovered::tool_id;
use toolbooth_registry::search::SearchIndex;
use toolbooth_registry::{RegisteredItem, RegisteredTool, item_id};

use crate::aside;
use crate::tool_documents::{DocumentForm, ToolBits, ToolDocuments};
use crate::view_cache::{Derived, ListingDigests};
use crate::world::{World, policy_item};

/// Searches of this process at once. Each keeps a core busy, and the first one of a caller makes an index.
const SEARCHES_MAX: usize = 2;
static SEARCHES: Semaphore = Semaphore::const_new(SEARCHES_MAX);

/// A tool that the caller can see.
#[derive(Debug, Clone)]
pub struct Visible {
    /// The tool.
    pub tool: Arc<RegisteredTool>,
    /// Its name on the wire.
    pub wire_name: String,
    /// Whether it can run, if that was determined.
    pub state: Option<CoverageState>,
    /// Whether the members that its source lists in addition to its texts are approved, and shown.
    pub whole: bool,
}

/// A prompt, a resource or a template that the caller can see.
#[derive(Debug, Clone, PartialEq)]
pub struct VisibleItem {
    /// A prompt's name on the wire, a resource's URI, a template's URI template.
    pub key: String,
    /// The whole item, with `key` as its key.
    pub document: Map<String, Value>,
}

/// The view of one caller on one world.
#[derive(Debug, Clone)]
pub struct View {
    world: Arc<World>,
    derived: Arc<Derived>,
    caller: Caller,
    toolset: Option<Arc<str>>,
}

impl View {
    pub(crate) fn new(world: Arc<World>, derived: Arc<Derived>, caller: Caller) -> Self {
        Self { world, derived, caller, toolset: None }
    }

    /// Limits the view to the tool set of a door. If the set does not exist, the view is empty.
    #[must_use]
    pub fn within(self, toolset: Option<Arc<str>>) -> Self {
        Self { toolset, ..self }
    }

    /// Returns the tools for agents, sorted by id, after the id `after`: permitted and able to run. If
    /// more follow, also returns the id to continue from.
    #[must_use]
    pub fn listed(&self, after: Option<&str>, limit: usize) -> (Vec<Visible>, Option<String>) {
        self.page(after, limit, |tool| self.lists(tool))
    }

    /// Returns the tools for operators: as [`View::listed`], and those with a missing setting.
    #[must_use]
    pub fn all(&self, after: Option<&str>, limit: usize) -> (Vec<Visible>, Option<String>) {
        self.page(after, limit, |tool| self.knows(tool, self.world.status(tool)))
    }

    /// Returns the documents of the tools for agents, as `write` writes them in a form. They are written once for all
    /// callers who see the same tools.
    #[must_use]
    pub fn documents(
        &self,
        form: DocumentForm,
        write: impl Fn(&Visible) -> String,
    ) -> Arc<ToolDocuments> {
        let view = (&self.caller, self.toolset.as_ref());
        self.derived.documents.of(
            view,
            form,
            || self.listed_bits(),
            || {
                let tools = self.world.registry.list(None, usize::MAX, |tool| self.lists(tool)).0;
                let documents = tools.into_iter().map(|tool| {
                    let id = tool.id().as_str().into();
                    (id, write(&self.visible(tool)))
                });
                ToolDocuments::new(documents)
            },
        )
    }

    /// Returns which tools are listed, in the order of the registry.
    fn listed_bits(&self) -> ToolBits {
        let mut bits = Vec::new();
        for (at, tool) in self.world.registry.iter().enumerate() {
            if at % 64 == 0 {
                bits.push(0_u64);
            }
            if let Some(last) = bits.last_mut().filter(|_| self.lists(tool)) {
                *last |= 1 << (at % 64);
            }
        }
        bits.into_boxed_slice()
    }

    fn lists(&self, tool: &RegisteredTool) -> bool {
        self.world.shows_tool(self.toolset.as_ref(), tool.id().as_str())
            && self.world.lists(&self.caller, tool)
    }

    /// Whether the caller can see the tool, if it has this status.
    fn knows(&self, tool: &RegisteredTool, status: &ToolStatus) -> bool {
        self.world.knows(&self.caller, self.toolset.as_ref(), tool, status)
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
            state,
            whole: !self.world.approvals.hides_extra(&tool),
            tool,
        }
    }

    /// Returns the best `limit` tools for agents that match `query`, best first.
    #[must_use]
    pub fn search(&self, query: &str, limit: usize) -> Vec<Visible> {
        let index = self.derived.indices.of(&self.caller, self.toolset.as_ref(), || {
            let tools = self.world.registry.list(None, usize::MAX, |tool| self.lists(tool)).0;
            Arc::new(SearchIndex::new(tools))
        });
        index.search(query, limit).into_iter().map(|tool| self.visible(tool)).collect()
    }

    /// As [`View::search`], on a thread that runs no calls; few searches run at once. `None` if the process ends.
    pub async fn search_aside(self, query: String, limit: usize) -> Option<Vec<Visible>> {
        // A search goes on where its caller has given up, and keeps its place.
        let permit = SEARCHES.acquire().await.ok()?;
        let found = aside::run(move || {
            let _permit = permit;
            self.search(&query, limit)
        });
        Some(found.await)
    }

    /// Returns one tool that the caller can see in a listing, by its id or its name on the wire.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<Visible> {
        let tool = self.world.registry.get(self.any_tool_id(name))?;
        self.knows(tool, self.world.status(tool)).then(|| self.visible(Arc::clone(tool)))
    }

    /// As [`View::find`], also for a quarantined tool, so that operators can see the reason.
    #[must_use]
    pub fn find_any(&self, name: &str) -> Option<Visible> {
        let tool = self.world.registry.get(self.any_tool_id(name))?;
        self.knows(tool, &ToolStatus::Active).then(|| self.visible(Arc::clone(tool)))
    }

    /// Returns the tool id of a name, which can be an id or a name on the wire. An id takes precedence.
    fn any_tool_id<'n>(&'n self, name: &'n str) -> &'n str {
        if self.world.registry.get(name).is_some() { name } else { self.tool_id(name) }
    }

    /// Returns the tool id of a name on the wire, or the name itself if no tool has it.
    #[must_use]
    pub fn tool_id<'n>(&'n self, name: &'n str) -> &'n str {
        self.world.names.tool_id(name)
    }

    /// Returns neutral declarations of all tools for agents.
    #[must_use]
    pub fn declarations(&self) -> Vec<Declaration> {
        let (tools, _) = self.listed(None, usize::MAX);
        tools.iter().map(declaration).collect()
    }

    /// Returns at most `limit` items of a kind, by server and then by key, after the place `after` that
    /// an earlier page returned. If more follow, also returns the place to continue from. For an
    /// invalid place it returns nothing.
    #[must_use]
    pub fn items(
        &self,
        kind: ItemKind,
        after: Option<&str>,
        limit: usize,
    ) -> (Vec<VisibleItem>, Option<String>) {
        let from = match after.map(page_end) {
            None => None,
            Some(Some(page_end)) => Some(page_end),
            Some(None) => return (Vec::new(), None),
        };
        let (mut found, mut last) = (Vec::new(), None);
        for (source, items) in self.world.items.sources() {
            let after = match from {
                Some((server, _)) if source.name() < server => continue,
                Some((server, key)) if source.name() == server => Some(key),
                _ => None,
            };
            for item in items.of_kind(kind, after).filter(|item| self.lists_item(item)) {
                if found.len() == limit {
                    return (found, last);
                }
                let key = self.shown_key(item);
                found.push(VisibleItem { document: item.shown(&key), key });
                last = Some(format!("{}:{}{}", item.server().len(), item.server(), item.key()));
            }
        }
        (found, None)
    }

    fn shown_key(&self, item: &RegisteredItem) -> String {
        match item.kind() {
            ItemKind::Prompt => self.world.prompt_names.name_of(item.id()).to_owned(),
            ItemKind::Resource | ItemKind::Template => item.shown_uri(&self.world.uris),
        }
    }

    fn lists_item(&self, item: &RegisteredItem) -> bool {
        self.may_have(&policy_item(item), self.world.item_status(item))
    }

    fn may_have(&self, item: &Item<'_>, status: &ToolStatus) -> bool {
        self.world.shows_item(self.toolset.as_ref(), item)
            && self.world.policy.lists_item(&self.caller, item, status)
    }

    /// Whether the caller can read a resource by its URI on the wire, by the rules of listings.
    #[must_use]
    pub fn reads(&self, uri: &str) -> bool {
        let Some((server, own)) = self.world.asked_resource(uri) else { return false };
        let id = item_id(ItemKind::Resource, &server, own);
        let item = Item { kind: ItemKind::Resource, server: &tool_id(&server), id: &id };
        // The policy is checked first: templates are tried only if the caller can see the server.
        self.may_have(&item, &ToolStatus::Active)
            && self.may_have(&item, self.world.resource_status(&server, own))
    }

    /// Returns the features other than tools that the servers offer and this caller can use.
    #[must_use]
    pub fn offers(&self) -> Offers {
        let mut all = Offers::default();
        let set = self.toolset.as_deref().map(|name| self.world.toolsets.get(name));
        let policy = &self.world.policy;
        for (source, items) in self.world.items.sources() {
            let server = tool_id(source.name());
            let of_kind = |kind| {
                let shown = match set {
                    None => true,
                    Some(set) => set.is_some_and(|set| set.has_some_of(kind, &server)),
                };
                shown && policy.may_have_of(&self.caller, kind, &server)
            };
            let tools = match set {
                None => true,
                Some(set) => set.is_some_and(|set| set.has_tools_of(&server)),
            };
            let tools = tools && policy.may_call_of(&self.caller, &server);
            let offers = items.offers();
            let prompts = offers.prompts && of_kind(ItemKind::Prompt);
            let resources = offers.resources && of_kind(ItemKind::Resource);
            all.prompts |= prompts;
            all.resources |= resources;
            all.subscribe |= resources && offers.subscribe;
            all.completions |= (prompts || resources) && offers.completions;
            all.logging |= (prompts || resources || tools) && offers.logging;
        }
        all
    }

    /// Returns hashes of this caller's listings, by which a change of a listing is detected.
    #[must_use]
    pub fn digest(&self) -> ListingDigests {
        self.derived.digests.of(&self.caller, self.toolset.as_ref(), || {
            let mut tools = DefaultHasher::new();
            for tool in self.listed(None, usize::MAX).0 {
                (tool.tool.id().as_str(), tool.wire_name, tool.tool.listing_digest(), tool.whole)
                    .hash(&mut tools);
            }
            let of_kinds = |kinds: &[ItemKind]| {
                let mut hasher = DefaultHasher::new();
                for item in self.world.items.iter().filter(|item| kinds.contains(&item.kind())) {
                    if self.lists_item(item) {
                        (item.kind(), self.shown_key(item), item.source_digest()).hash(&mut hasher);
                    }
                }
                hasher.finish()
            };
            ListingDigests {
                tools: tools.finish(),
                prompts: of_kinds(&[ItemKind::Prompt]),
                resources: of_kinds(&[ItemKind::Resource, ItemKind::Template]),
            }
        })
    }
}

/// Parses a place into the server and the key that a page ended with.
fn page_end(text: &str) -> Option<(&str, &str)> {
    let (length, rest) = text.split_once(':')?;
    rest.split_at_checked(length.parse().ok()?)
}

/// Returns the neutral declaration of a tool.
#[must_use]
pub fn declaration(visible: &Visible) -> Declaration {
    let contract = visible.tool.contract();
    Declaration {
        wire_name: visible.wire_name.clone(),
        tool_id: contract.tool_id.to_string(),
        title: contract.title.clone(),
        description: contract.description.clone(),
        parameters: visible.tool.shown_input().clone(),
        output_schema: visible.tool.declares_output().then(|| visible.tool.shown_output().clone()),
        annotations: contract.annotations.clone(),
        extra: if visible.whole { contract.shown.clone() } else { Map::new() },
    }
}
