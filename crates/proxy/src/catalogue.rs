//! The proxy's face for tools: what a caller may see, and the refreshing of sources that publishes
//! one world after the other.
//!
//! Path: 3. Doc: registry.md#discovery

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::sync::watch;
use toolbooth_contracts::contract::AdapterId;
use toolbooth_contracts::coverage::{CoverageReport, CoverageRow, CoverageState, Readiness};
use toolbooth_contracts::port::{ItemKind, ToolSource};
use toolbooth_contracts::sandbox::Enforce;
use toolbooth_contracts::{Caller, Guard, ToolId};
use toolbooth_policy::Standing;
use toolbooth_registry::discovered::{self, SourcePolicy};
use toolbooth_registry::lock::{Approvals, Lock, NewTools, Suspicious};
use toolbooth_registry::wire::WireCandidate;
use toolbooth_registry::{RegisteredTool, Source, SourceItems, coverage};

use crate::executors::Executors;
use crate::pins::{FirstListing, FirstUse, PinStore, PinnedTool};
use crate::view::View;
use crate::world::{Judged, PerView, ToolState, World, Worlds};

/// How long further changes of a source are waited for, before it is asked again.
const DEBOUNCE: Duration = Duration::from_millis(200);

/// Tools of one change whose quarantine is written down one by one.
const NOTICES_MAX: usize = 200;

/// A source and what the operator says of its tools.
pub struct SourceEntry {
    /// The source.
    pub id: Source,
    /// The way to it.
    pub source: Arc<dyn ToolSource>,
    /// The operator's settings.
    pub policy: SourcePolicy,
    /// Whether it is asked again before each call of its tools.
    pub verify_calls: bool,
}

/// A tool or an item that was put into quarantine; worth an audit event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Quarantined {
    /// The tool's id; an item's with its kind, such as `prompt:s.greet`.
    pub tool_id: String,
    /// Its source.
    pub source: Source,
    /// Why.
    pub reason: String,
}

/// What came of asking a source.
#[derive(Debug, Clone, serde::Serialize, schemars::JsonSchema)]
pub struct SourceState {
    /// The source.
    pub source: String,
    /// How many of its tools are registered.
    pub tools: usize,
    /// How many prompts it has.
    #[serde(skip_serializing_if = "is_none")]
    pub prompts: usize,
    /// How many resources it has.
    #[serde(skip_serializing_if = "is_none")]
    pub resources: usize,
    /// How many resource templates it has.
    #[serde(skip_serializing_if = "is_none")]
    pub templates: usize,
    /// Tools that were left out, and settings that fit none, each with the reason.
    pub problems: Vec<String>,
    /// Tools that are in quarantine, each with the reason.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub quarantined: Vec<String>,
    /// Suspicious text that nobody has approved, by tool.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub suspicious: Vec<String>,
    /// Why it did not answer; its last tools are kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unhealthy: Option<String>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks for a reference")]
fn is_none(count: &usize) -> bool {
    *count == 0
}

/// Publishes worlds, and tells callers what they may see.
pub struct Catalogue {
    worlds: Arc<Worlds>,
    executors: Executors,
    guard: Guard,
    sources: Vec<SourceEntry>,
    unhealthy: Mutex<BTreeMap<Source, String>>,
    /// The names that each source listed last; nothing of those that have not answered yet.
    listed: Mutex<HashMap<Source, HashSet<String>>>,
    /// How often each source has said that its tools changed, since what it lists was published.
    stale: Mutex<HashMap<Source, u64>>,
    /// Sources whose tools are known from the lock or from their pins alone, since the start.
    unasked: Mutex<HashSet<Source>>,
    /// When the asking of each source began whose answer was published last; held while it is
    /// asked, so that no older answer comes after a newer one.
    asked: HashMap<Source, tokio::sync::Mutex<Option<Instant>>>,
    /// Tools that were quarantined and that nobody has written down yet.
    notices: Mutex<BTreeMap<String, Quarantined>>,
    /// Where first listings are pinned; without it none is.
    pins: Option<Arc<dyn PinStore>>,
    /// Listings that were pinned and that nobody has written down yet.
    first_uses: Mutex<Vec<FirstUse>>,
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
        let asked = sources.iter().map(|entry| (entry.id.clone(), tokio::sync::Mutex::default()));
        Self {
            worlds,
            executors,
            guard,
            asked: asked.collect(),
            sources,
            unhealthy: Mutex::new(BTreeMap::new()),
            listed: Mutex::default(),
            stale: Mutex::default(),
            unasked: Mutex::default(),
            notices: Mutex::default(),
            pins: None,
            first_uses: Mutex::default(),
            editing: tokio::sync::Mutex::new(()),
            generation: watch::Sender::new(0),
            states_wanted: AtomicBool::new(false),
        }
    }

    /// The same with a place for first-use pins.
    #[must_use]
    pub fn with_pins(self, pins: Arc<dyn PinStore>) -> Self {
        Self { pins: Some(pins), ..self }
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

    /// Changes the world and publishes it: discovered tools are judged again, and the state of
    /// every tool is worked out where that is wanted.
    pub async fn edit<T>(&self, change: impl FnOnce(&mut World) -> T) -> T {
        let _editing = self.editing.lock().await;
        let mut world = World::clone(&self.worlds.now());
        let out = change(&mut world);
        self.publish(world).await;
        out
    }

    /// Judges a changed world and publishes it; `editing` is held.
    async fn publish(&self, mut world: World) {
        let quarantined = world.judge();
        let count = quarantined.len();
        if count > NOTICES_MAX {
            tracing::warn!(
                tools = count,
                "tools are quarantined; not each of them is written down"
            );
        }
        for (Judged { id, source }, reason) in quarantined.into_iter().take(NOTICES_MAX) {
            tracing::warn!(tool.id = id, reason, "quarantined");
            let notice = Quarantined { tool_id: id.clone(), source, reason };
            lock(&self.notices).insert(id, notice);
        }
        self.doubt_unverified(&mut world);
        // What is in quarantine takes no name from those that may be called.
        let tools = world.registry.iter();
        let trusted =
            tools.filter(|tool| !matches!(world.standing(tool), Standing::Quarantined(_)));
        world.names = world.names.with(trusted.map(|tool| WireCandidate::of(tool)));
        let items = world.items.iter().filter(|item| {
            item.kind() == ItemKind::Prompt && *world.item_standing(item) == Standing::Active
        });
        world.prompt_names =
            world.prompt_names.with(items.map(|prompt| WireCandidate::of_prompt(prompt)));
        if self.states_wanted.load(Ordering::Relaxed) {
            world.states = self.states(&world, false).await;
        }
        world.indices = PerView::default();
        world.digests = PerView::default();
        world.generation += 1;
        self.worlds.publish(world);
        self.generation.send_modify(|generation| *generation += 1);
    }

    /// Whether a source is to be asked before the next call of its tools: always by setting, where
    /// it has said that they changed, and where it was not asked since the start.
    fn is_to_be_asked(&self, entry: &SourceEntry) -> bool {
        self.is_in_doubt(entry) || lock(&self.unasked).contains(&entry.id)
    }

    /// Whether the tools of a source that does not answer are not called.
    fn is_in_doubt(&self, entry: &SourceEntry) -> bool {
        entry.verify_calls || lock(&self.stale).contains_key(&entry.id)
    }

    /// Tools of a source that is to be asked before the next call, and did not answer, are not
    /// called.
    fn doubt_unverified(&self, world: &mut World) {
        for entry in self.sources.iter().filter(|entry| self.is_in_doubt(entry)) {
            if !lock(&self.unhealthy).contains_key(&entry.id) {
                continue;
            }
            let doubtful = world.registry.iter().filter(|tool| *tool.source() == entry.id);
            for id in doubtful.map(|tool| tool.id().clone()).collect::<Vec<_>>() {
                let reason = "its source did not answer, and is to be asked before it is called";
                world.standings.entry(id).or_insert(Standing::Quarantined(reason.to_owned()));
            }
            let items = world.items.source(&entry.id).cloned();
            for item in items.iter().flat_map(|items| items.iter()) {
                let reason = "its source did not answer, and is to be asked before it is used";
                let standing = Standing::Quarantined(reason.to_owned());
                let kinds = world.item_standings.entry(entry.id.clone()).or_default();
                let kind = kinds.entry(item.kind()).or_default();
                kind.entry(item.key().to_owned()).or_insert(standing);
            }
        }
    }

    /// The tools that were quarantined since this was last asked.
    #[must_use]
    pub fn take_quarantined(&self) -> Vec<Quarantined> {
        std::mem::take(&mut *lock(&self.notices)).into_values().collect()
    }

    /// The listings that were pinned at first use since this was last asked.
    #[must_use]
    pub fn take_first_uses(&self) -> Vec<FirstUse> {
        std::mem::take(&mut *lock(&self.first_uses))
    }

    /// Judges all discovered tools by other approvals from now on.
    pub async fn approve_by(&self, approvals: Approvals) {
        self.approve_with(|_| Some(approvals)).await;
    }

    /// Judges all discovered tools by the approvals that `read` gives from the present ones; `None`
    /// changes nothing. No source is pinned during `read`, so it finds every pin that is written.
    pub async fn approve_with(&self, read: impl FnOnce(&Approvals) -> Option<Approvals>) {
        let _editing = self.editing.lock().await;
        let mut world = World::clone(&self.worlds.now());
        if let Some(approvals) = read(&world.approvals) {
            world.approvals = Arc::new(approvals);
            self.publish(world).await;
        }
    }

    /// The sources that are asked for tools.
    pub fn sources(&self) -> impl Iterator<Item = &Source> {
        self.sources.iter().map(|entry| &entry.id)
    }

    /// Registers what the lock or the pins have of every source, until the source itself has
    /// answered: a source that is away loses none of its approved tools.
    pub async fn restore_locked(&self) {
        self.edit(|world| {
            let approvals = Arc::clone(&world.approvals);
            let Some(locked) = approvals.lock.approved() else { return };
            for entry in &self.sources {
                let listing = locked.listing(&entry.id);
                let (items, wrong) = SourceItems::of_listing(&entry.id, &listing);
                let (tools, problems) =
                    discovered::register_all(&entry.id, listing, &entry.policy, &self.guard);
                for problem in problems.into_iter().chain(wrong) {
                    tracing::warn!(source = %entry.id, problem, "an approved tool is left out");
                }
                if !tools.is_empty() || !items.is_empty() {
                    lock(&self.unasked).insert(entry.id.clone());
                }
                if !items.is_empty() {
                    let _ = world.items.replace_source(&entry.id, items.restored());
                }
                let _ = world.registry.replace_source(&entry.id, tools);
            }
        })
        .await;
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

    /// Sources of which nothing is known, not even from the lock or from pins.
    #[must_use]
    pub fn unknown_sources(&self) -> Vec<Source> {
        let world = self.worlds.now();
        let known = |source: &Source| {
            // A source may have listed no tool when it was pinned.
            world.approvals.lock.approved().is_some_and(|lock| lock.has_seen(source))
                || world.registry.iter().any(|tool| tool.source() == source)
                || world.items.source(source).is_some()
        };
        self.sources.iter().map(|entry| entry.id.clone()).filter(|source| !known(source)).collect()
    }

    /// Whether a source has listed its tools, and answered when it was last asked.
    #[must_use]
    pub fn has_answered(&self, source: &Source) -> bool {
        lock(&self.listed).contains_key(source) && !lock(&self.unhealthy).contains_key(source)
    }

    /// How long a call may wait for its tool's source to be asked; `None` where it needs not.
    pub(crate) fn verification_bound(
        &self,
        tool_id: &str,
        caller: &Caller,
        toolset: Option<&Arc<str>>,
    ) -> Option<Duration> {
        let world = self.worlds.now();
        let entry = self.to_be_asked(tool_id, caller, toolset)?;
        let tool = Duration::from_millis(world.registry.get(tool_id)?.contract().policy.timeout_ms);
        Some(tool.min(entry.source.timeout()))
    }

    /// The source of a tool, where it is to be asked before the call and the caller may call it.
    fn to_be_asked(
        &self,
        tool_id: &str,
        caller: &Caller,
        toolset: Option<&Arc<str>>,
    ) -> Option<&SourceEntry> {
        if !self.sources.iter().any(|entry| self.is_to_be_asked(entry)) {
            return None;
        }
        let world = self.worlds.now();
        let tool = world.registry.get(tool_id)?;
        let entry = self.sources.iter().find(|entry| entry.id == *tool.source())?;
        // For whom the tool is hidden, nothing may take longer than for one that is not there.
        let policy = &world.policy;
        let may = policy.enabled().is_ok()
            && world.shows_tool(toolset, tool_id)
            && policy.access(caller, tool.contract(), &Standing::Active).is_ok();
        (may && self.is_to_be_asked(entry)).then_some(entry)
    }

    /// Asks the source of a tool again, where it is to be asked before the call and the caller may
    /// call the tool. Calls that come while a source is asked share the next asking.
    pub(crate) async fn verify(&self, tool_id: &str, caller: &Caller, toolset: Option<&Arc<str>>) {
        let came = Instant::now();
        if let Some(entry) = self.to_be_asked(tool_id, caller, toolset) {
            let _ = self.refresh_after(entry, Some(came)).await;
        }
    }

    /// How long a request may wait for its server to be asked what it lists; `None` where it needs
    /// not. Whether the caller may know the server is for the request to find out first.
    pub(crate) fn server_verification_bound(&self, server: &str) -> Option<Duration> {
        let entry = self.server_entry(server)?;
        self.is_to_be_asked(entry).then(|| entry.source.timeout())
    }

    fn server_entry(&self, server: &str) -> Option<&SourceEntry> {
        self.sources.iter().find(|entry| matches!(&entry.id, Source::Mcp(name) if name == server))
    }

    /// Asks a server again, where it is to be asked before what it lists is used.
    pub(crate) async fn verify_server(&self, server: &str) {
        let came = Instant::now();
        if let Some(entry) = self.server_entry(server).filter(|entry| self.is_to_be_asked(entry)) {
            let _ = self.refresh_after(entry, Some(came)).await;
        }
    }

    async fn refresh(&self, entry: &SourceEntry) -> SourceState {
        self.refresh_after(entry, None).await
    }

    /// Asks a source, one asking at a time; not at all, where one that began after `came` has been
    /// published meanwhile.
    async fn refresh_after(&self, entry: &SourceEntry, came: Option<Instant>) -> SourceState {
        let Some(asked) = self.asked.get(&entry.id) else { return self.told(entry, Vec::new()) };
        let mut asked = asked.lock().await;
        if let (Some(came), Some(asked)) = (came, *asked)
            && asked >= came
        {
            return self.told(entry, Vec::new());
        }
        let began = Instant::now();
        let state = self.ask(entry).await;
        *asked = Some(began);
        state
    }

    /// A source has said that its tools changed.
    fn note_change(&self, source: &Source) {
        *lock(&self.stale).entry(source.clone()).or_default() += 1;
    }

    async fn ask(&self, entry: &SourceEntry) -> SourceState {
        let name = entry.id.to_string();
        // What it says from here on is news again, and outlives this asking.
        let changes = lock(&self.stale).get(&entry.id).copied();
        let listed = match tokio::time::timeout(entry.source.timeout(), entry.source.list()).await {
            Ok(Ok(listing)) => Ok(listing),
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err(format!("no answer within {} ms", entry.source.timeout().as_millis())),
        };
        match listed {
            Err(reason) => {
                let before = lock(&self.unhealthy).insert(entry.id.clone(), reason.clone());
                if changes.is_some() || before.as_ref() != Some(&reason) {
                    tracing::warn!(
                        source = name,
                        reason,
                        "a source does not answer, its last tools are kept"
                    );
                    self.edit(|_| ()).await;
                }
                SourceState { unhealthy: Some(reason), ..self.told(entry, Vec::new()) }
            }
            Ok(listing) => {
                let names = listing.tools.iter().map(|tool| tool.name.clone()).collect();
                let mut problems = entry.policy.idle_settings(&names);
                let (items, wrong) = SourceItems::of_listing(&entry.id, &listing);
                let (tools, left_out) =
                    discovered::register_all(&entry.id, listing, &entry.policy, &self.guard);
                problems.extend(left_out.into_iter().chain(wrong));
                let recovered = lock(&self.unhealthy).remove(&entry.id).is_some();
                let known = lock(&self.listed).insert(entry.id.clone(), names.clone());
                let (replaced, unpinned) =
                    self.swap(entry, tools, items, recovered || known != Some(names)).await;
                problems.extend(unpinned);
                lock(&self.unasked).remove(&entry.id);
                let mut stale = lock(&self.stale);
                if stale.get(&entry.id).copied() == changes {
                    stale.remove(&entry.id);
                }
                drop(stale);
                for shadowed in replaced.shadowed.iter().filter(|shadowed| !shadowed.adopted) {
                    problems.push(format!(
                        "`{}` is left out: {} has a tool of this id (shadowed-tool)",
                        shadowed.tool_id, shadowed.held_by
                    ));
                }
                for problem in &problems {
                    tracing::warn!(source = name, problem, "a source lists what cannot be taken");
                }
                self.told(entry, problems)
            }
        }
    }

    /// Swaps in what a source has listed; a listing that changes nothing publishes nothing. Also
    /// gives the reason where its first listing could not be pinned.
    async fn swap(
        &self,
        entry: &SourceEntry,
        tools: Vec<RegisteredTool>,
        items: SourceItems,
        publish: bool,
    ) -> (toolbooth_registry::Replaced, Vec<String>) {
        let _editing = self.editing.lock().await;
        let mut world = World::clone(&self.worlds.now());
        let replaced = world.registry.replace_source(&entry.id, tools);
        // Commands list tools only.
        let (changed, mut problems) = match &entry.id {
            Source::Mcp(_) => world.items.replace_source(&entry.id, items),
            _ => (false, Vec::new()),
        };
        // INVARIANT: a tool is pinned before the world that offers it is published, so that no
        // crash loses the pin of a tool that an agent has seen.
        let pinned = self.pin(&mut world, &entry.id).await;
        if publish || replaced.changed || changed || pinned == Ok(true) {
            self.publish(world).await;
        }
        problems.extend(pinned.err());
        (replaced, problems)
    }

    /// Pins the first listing of a source in the mode of first use; gives whether the pins are
    /// different now. A listing that cannot be pinned stays quarantined until a refresh pins it.
    async fn pin(&self, world: &mut World, source: &Source) -> Result<bool, String> {
        let approvals = Arc::clone(&world.approvals);
        let Lock::FirstUse(known) = &approvals.lock else { return Ok(false) };
        // One that was pinned before prompts and resources were has these pinned now.
        let seen = known.has_seen(source) && known.has_seen_items(source);
        if seen && approvals.new_tools == NewTools::Deny {
            return Ok(false);
        }
        let tools = approvals.to_pin(source, world.registry.iter());
        let items = approvals.items_to_pin(source, world.items.iter());
        if seen && tools.is_empty() && items.is_empty() {
            return Ok(false);
        }
        if approvals.suspicious == Suspicious::Warn {
            // The judgement of a pinned tool has no suspicions: this is the only warning.
            let objections = approvals.judge(world.registry.iter().map(AsRef::as_ref));
            let objections_to_items = approvals.judge_items(items.iter().map(AsRef::as_ref));
            let ids = tools.iter().map(|tool| tool.id().to_string());
            for id in ids.chain(items.iter().map(|item| item.locked_id())) {
                let objection = objections.get(&id).or_else(|| objections_to_items.get(&id));
                for suspicion in objection.into_iter().flat_map(|found| &found.suspicions) {
                    tracing::warn!(tool.id = id, %suspicion, "pinned, and suspicious");
                }
            }
        }
        let listing = FirstListing {
            source: source.clone(),
            tools,
            items,
            new_tools: approvals.new_tools,
            known: known.clone(),
        };
        let pinned = match &self.pins {
            Some(pins) => pins.pin(listing).await,
            None => Err("there is no place for pins".to_owned()),
        };
        let pinned =
            pinned.map_err(|reason| format!("its first listing cannot be pinned: {reason}"))?;
        let of_tool = |tool_id: &ToolId| {
            let source_digest = world.registry.get(tool_id.as_str())?.source_digest().to_owned();
            Some(PinnedTool { tool_id: tool_id.to_string(), source_digest })
        };
        let of_item = |id: &String| {
            let item = world.items.locked(id)?;
            let source_digest = item.source_digest().to_owned();
            Some(PinnedTool { tool_id: id.clone(), source_digest })
        };
        let tools = pinned.tools.iter().filter_map(of_tool);
        let tools: Vec<PinnedTool> = tools.chain(pinned.items.iter().filter_map(of_item)).collect();
        if !tools.is_empty() {
            tracing::info!(source = %source, tools = tools.len(), "a source is pinned at first use");
            lock(&self.first_uses).push(FirstUse { source: source.clone(), tools });
        }
        let lock = Lock::FirstUse(pinned.pins);
        world.approvals = Arc::new(Approvals { lock, ..Approvals::clone(&approvals) });
        Ok(true)
    }

    /// How a source stands in the world as it is now.
    fn told(&self, entry: &SourceEntry, problems: Vec<String>) -> SourceState {
        let world = self.worlds.now();
        let mut state = SourceState {
            source: entry.id.to_string(),
            tools: 0,
            prompts: 0,
            resources: 0,
            templates: 0,
            problems,
            quarantined: Vec::new(),
            suspicious: Vec::new(),
            unhealthy: None,
        };
        for tool in world.registry.iter().filter(|tool| *tool.source() == entry.id) {
            state.tools += 1;
            if let Standing::Quarantined(reason) = world.standing(tool) {
                state.quarantined.push(format!("`{}`: {reason}", tool.id()));
            }
            let objection = world.objections.get(tool.id().as_str());
            for suspicion in objection.into_iter().flat_map(|objection| &objection.suspicions) {
                state.suspicious.push(format!("`{}`: {suspicion}", tool.id()));
            }
        }
        let Some(items) = world.items.source(&entry.id) else { return state };
        state.prompts = items.count(ItemKind::Prompt);
        state.resources = items.count(ItemKind::Resource);
        state.templates = items.count(ItemKind::Template);
        for item in items.iter() {
            let id = item.locked_id();
            if let Standing::Quarantined(reason) = world.item_standing(item) {
                state.quarantined.push(format!("`{}`: {reason}", id.escape_debug()));
            }
            let objection = world.objections.get(&id);
            for suspicion in objection.into_iter().flat_map(|objection| &objection.suspicions) {
                state.suspicious.push(format!("`{}`: {suspicion}", id.escape_debug()));
            }
        }
        state
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
                    tokio::select! {
                        told = changes.recv() => match told {
                            // From now on, not from the end of the wait for more.
                            Ok(()) => self.note_change(&entry.id),
                            Err(_) => return,
                        },
                        // One that cannot tell, or was lost, is asked by the clock.
                        () = tokio::time::sleep(interval) => {
                            self.refresh(entry).await;
                            continue;
                        }
                    }
                    // Several changes at once are one refresh.
                    let until = tokio::time::Instant::now() + DEBOUNCE;
                    while let Ok(Ok(())) = tokio::time::timeout_at(until, changes.recv()).await {
                        self.note_change(&entry.id);
                    }
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
            && let Err(reason) = executor.contains(tool.contract(), profile)
        {
            return told(
                CoverageState::NotConfigured,
                format!("its sandbox is required: {reason}"),
            );
        }
        if let Some(reason) = lock(&self.unhealthy).get(tool.source()).cloned() {
            return told(CoverageState::Unhealthy, reason);
        }
        if let Some(reason) = self.missing_at_server(world, tool) {
            return told(CoverageState::NotConfigured, reason);
        }
        match executor.readiness(tool.contract(), probe).await {
            Readiness::Ready => ToolState { state: CoverageState::Real, reason: None },
            Readiness::NotConfigured(reason) => told(CoverageState::NotConfigured, reason),
            Readiness::Unhealthy(reason) => told(CoverageState::Unhealthy, reason),
        }
    }

    /// Tools of the registry file whose own profile does not hold where they run, and why.
    #[must_use]
    pub fn uncontained(&self) -> Vec<(ToolId, String)> {
        let world = self.worlds.now();
        let judged =
            world.registry.iter().filter(|tool| *tool.source() == Source::File).filter_map(
                |tool| {
                    let profile = tool.contract().sandbox.as_ref()?;
                    let executor = self.executors.get(tool.adapter())?;
                    let reason = executor.contains(tool.contract(), profile).err()?;
                    Some((tool.id().clone(), reason))
                },
            );
        judged.collect()
    }

    /// Why a tool that an operator wrote for a server is not one that the server, or the lock,
    /// lists.
    fn missing_at_server(&self, world: &World, tool: &RegisteredTool) -> Option<String> {
        let AdapterId::Mcp(server) = tool.adapter() else { return None };
        if tool.source().is_discovered() {
            return None;
        }
        let source = Source::Mcp(server.clone());
        let listed = lock(&self.listed);
        let there = match listed.get(&source) {
            Some(names) => names.contains(tool.target()),
            None => {
                let locked = world.approvals.lock.approved()?.listing(&source);
                locked.tools.iter().any(|locked| locked.name == tool.target())
            }
        };
        let missing = format!("the server `{server}` lists no tool `{}`", tool.target());
        (!there).then_some(missing)
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
        View::new(self.worlds.now(), caller.clone())
    }

    /// The tool sets that doors may show, by name, sorted.
    #[must_use]
    pub fn toolsets(&self) -> Vec<String> {
        self.worlds.now().toolsets.keys().cloned().collect()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
