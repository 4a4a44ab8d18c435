//! Names the concrete parts and puts the house together.
//!
//! Doc: configuration.md

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use toolbooth_adapters::declarations;
use toolbooth_adapters::launcher::Launcher;
use toolbooth_audit::LedgerReads;
use toolbooth_contracts::agent_log::LogLevel;
use toolbooth_contracts::contract::GATEWAY_RUNTIME;
use toolbooth_contracts::event::{AuditEventKind, EventBody};
use toolbooth_contracts::{ExecutionLog, Guard, ToolId, ToolPattern};
use toolbooth_policy::{Authorizer, CallerRights, FeatureFlags, Grant, Whitelist};
use toolbooth_proxy::{
    AsyncCalls, Catalogue, Clock, Executors, IdSource, Limits, PayloadRetention, PinStore,
    ProxyParts, READ_RESULT, Results, SystemClock, SystemIds, ToolProxy, UnkeptPins, Upstreams,
    World, WorldSettings, Worlds, own_tools,
};
use toolbooth_registry::lock::{Approvals, Lock, LockFile, UnrecordedPin, locked_id};
use toolbooth_registry::wire::{GivenNames, Naming, Prefix};
use toolbooth_registry::{RegisteredTool, Source, WireNames, file};
use toolbooth_server::{Gateway, Listing};
use toolbooth_store::sqlite::StoreFolder;

use crate::config::lock::LockMode;
use crate::config::{self, Config, Loaded, LockUse};
use crate::executors::Adapters;
use crate::failure::Failure;
use crate::trust::Trusted;
use crate::{executors, records, registry_file, retention, secret_shapes};

/// The file that remembers names on the wire.
const WIRE_NAMES: &str = "wire-names.json";
/// The file that remembers the names of prompts on the wire.
const PROMPT_NAMES: &str = "prompt-names.json";
/// Pins that are recorded in one commit.
const PINS_AT_ONCE: usize = 200;

/// The parts that stand without a store: enough to list tools.
pub(crate) struct Frame {
    pub(crate) loaded: Trusted,
    pub(crate) worlds: Arc<Worlds>,
    pub(crate) catalogue: Arc<Catalogue>,
    /// Tools of other sources that the registry file has taken the place of.
    pub(crate) replaced: Vec<(ToolId, Source)>,
    /// Ways out that were refused to processes of many calls, by source.
    refusals: Vec<(String, ExecutionLog)>,
    executors: Executors,
    upstreams: Upstreams,
    /// What starts every child.
    pub(crate) launcher: Launcher,
}

/// A composed gateway.
pub(crate) struct Runtime {
    pub(crate) frame: Frame,
    pub(crate) proxy: ToolProxy,
    pub(crate) reads: Arc<dyn LedgerReads>,
    pub(crate) calls: AsyncCalls,
    clock: Arc<dyn Clock>,
    /// Held while pins are recorded: what one task has just pinned must not be found by another.
    recording_pins: tokio::sync::Mutex<()>,
}

/// Says on standard error what is assumed where there is no configuration.
pub(crate) fn say_assumptions(loaded: &Loaded) {
    if loaded.file.is_none() {
        let (registry, _) = loaded.registry();
        let tools = if registry.is_file() {
            format!("built-in tools and {}", config::REGISTRY)
        } else {
            "built-in tools".to_owned()
        };
        crate::note(&format!(
            "no {} found: {tools}, records under {}",
            config::FILE,
            loaded.data.display()
        ));
    }
}

/// Settings of discovered tools that no contract could have.
fn check_defaults(config: &Config) -> Result<(), Failure> {
    let named = |kind: &str, name: &str| format!("{kind}.{name}");
    let reserved = [
        ("servers", config.servers.contains_key(GATEWAY_RUNTIME)),
        ("runtimes", config.runtimes.contains_key(GATEWAY_RUNTIME)),
    ];
    if let Some((kind, _)) = reserved.into_iter().find(|(_, there)| *there) {
        let message = format!("`{GATEWAY_RUNTIME}` is the gateway's own name");
        return Err(Failure::configuration(message)
            .at(named(kind, GATEWAY_RUNTIME))
            .hint("give it another name"));
    }
    let mut all = vec![("discovery.defaults".to_owned(), &config.discovery.defaults)];
    for (name, server) in &config.servers {
        all.push((format!("{}.defaults", named("servers", name)), &server.defaults));
        for (tool, own) in &server.overrides {
            all.push((format!("{}.overrides.{tool}", named("servers", name)), own));
        }
    }
    for (name, pair) in &config.commands {
        all.push((format!("{}.defaults", named("commands", name)), &pair.defaults));
        for (tool, own) in &pair.overrides {
            all.push((format!("{}.overrides.{tool}", named("commands", name)), own));
        }
    }
    for (place, defaults) in all {
        let wrong = |message: String| Err(Failure::configuration(message).at(place.clone()));
        if defaults.timeout_ms == Some(0) {
            return wrong("`timeout_ms` must be more than 0".to_owned());
        }
        if defaults.trust_level.as_deref().is_some_and(|level| level.trim().is_empty()) {
            return wrong("`trust_level` must not be blank".to_owned());
        }
        for permission in defaults.permissions.iter().flatten() {
            if Grant::parse(permission).is_err() || permission.contains('*') {
                return wrong(format!("`{permission}` is no permission such as `read:files`"));
            }
        }
    }
    Ok(())
}

/// Says once what the mode of the lock means, where discovered tools are all accepted or all
/// quarantined.
pub(crate) fn say_lock(frame: &Frame) {
    if frame.catalogue.sources().next().is_none() {
        return;
    }
    match &frame.worlds.now().approvals().lock {
        Lock::Off => crate::note(
            "the lock is off: all discovered tools are accepted as their sources describe them",
        ),
        Lock::Missing => crate::note(&format!(
            "there is no {}: all discovered tools are quarantined; `toolbooth lock` writes it",
            frame.loaded.lock().display()
        )),
        Lock::File(_) | Lock::FirstUse(_) => (),
    }
}

/// Says how many tools and items were pinned at first use.
pub(crate) fn say_first_uses(frame: &Frame) {
    for first in frame.catalogue.take_first_uses() {
        let items =
            first.tools.iter().filter(|pinned| locked_id(&pinned.tool_id).is_some()).count();
        let tools = first.tools.len() - items;
        let more = match items {
            0 => String::new(),
            items => format!(" and {items} prompt(s) and resource(s)"),
        };
        crate::note(&format!("{}: {tools} tool(s){more} pinned at first use", first.source));
    }
}

impl Frame {
    /// Everything that needs no store.
    pub(crate) async fn build(mut loaded: Trusted) -> Result<Self, Failure> {
        let read = loaded.take_read();
        let config = &loaded.config;
        let policy = authorizer(config)?;
        check_defaults(config)?;
        config::toolsets::check_servers(config)?;
        config.sandbox.check()?;
        retention::retained(&loaded)?;
        let guard = Guard::new(secret_shapes::shapes());
        let mut world = World::new(policy).with_settings(WorldSettings {
            approvals: approvals(&loaded)?,
            names: wire_names(&loaded)?,
            prompt_names: kept_names(&loaded, PROMPT_NAMES)?,
            uris: config::toolsets::uris(config)?,
            toolsets: config::toolsets::toolsets(config)?,
            unmet: unmet(config),
        });
        let launcher = executors::launcher(&loaded)?;
        let (adapters, mut entries) = Adapters::build(&loaded, &launcher)?;
        let searching = config.mcp.listing == Listing::Search;
        entries.extend(own_tools(config.results.shorten(), searching));
        let tools: Result<Vec<RegisteredTool>, _> = entries
            .iter()
            .map(|entry| RegisteredTool::from_entry(entry, Source::Builtin, &guard))
            .collect();
        let tools = tools.map_err(|findings| {
            Failure::configuration(format!("a built-in tool is not a contract: {findings:?}"))
        })?;
        world.replace_source(&Source::Builtin, tools);
        let mut replaced = Vec::new();
        if let Some((name, text)) = loaded.registry_text()? {
            let tools = match read {
                Some(tools) => tools,
                None => {
                    file::load(&text, &name, &guard)
                        .map_err(|error| registry_file::rejected(&error))?
                        .tools
                }
            };
            replaced = world.replace_source(&Source::File, tools).replaced;
            for (id, source) in &replaced {
                tracing::warn!(tool.id = %id, was = %source, now = "file", "a tool is replaced");
            }
        }
        let known: Vec<&str> = world.registry().iter().map(|tool| tool.id().as_str()).collect();
        config::toolsets::check_tools(config, &known)?;
        let Adapters { executors, sources, upstreams, refusals } = adapters;
        let worlds = Worlds::new(world.with_names());
        let pins: Arc<dyn PinStore> = match loaded.lock_use {
            LockUse::Pin => Arc::new(loaded.pins()),
            LockUse::Look | LockUse::Write => Arc::new(UnkeptPins),
        };
        let catalogue = Catalogue::new(Arc::clone(&worlds), executors.clone(), guard, sources);
        let catalogue = Arc::new(catalogue.with_pins(pins));
        catalogue.restore_locked().await;
        Ok(Self { loaded, worlds, catalogue, replaced, refusals, executors, upstreams, launcher })
    }

    /// The hosts that a source was refused.
    pub(crate) fn refused_hosts(&self, source: &Source) -> Vec<String> {
        let name = source.to_string();
        let own = self.refusals.iter().filter(|(own, _)| *own == name);
        let refused = own.flat_map(|(_, log)| log.egress());
        let mut hosts: Vec<String> =
            refused.map(|refusal| format!("{}:{}", refusal.host, refusal.port)).collect();
        hosts.dedup();
        hosts
    }

    /// Ends what was opened for discovery, where no gateway is built.
    pub(crate) async fn close(&self) {
        self.executors.close().await;
    }
}

impl Runtime {
    /// The whole gateway over a frame; begins a log in the store.
    pub(crate) async fn build(frame: Frame) -> Result<Self, Failure> {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::default());
        let ids = Arc::new(SystemIds);
        let config = &frame.loaded.config;
        let opened = records::open(&frame.loaded, ids.next(), clock.now(), false).await?;
        let proxy = ToolProxy::new(ProxyParts {
            worlds: Arc::clone(&frame.worlds),
            catalogue: Some(Arc::clone(&frame.catalogue)),
            ledger: opened.ledger,
            reads: Some(Arc::clone(&opened.reads)),
            executors: frame.executors.clone(),
            upstreams: frame.upstreams.clone(),
            clock: Arc::clone(&clock),
            ids,
            shapes: secret_shapes::of_records(),
            limits: limits(config),
            retention: retention(config),
        });
        let calls = AsyncCalls::new(proxy.clone(), opened.queue, Arc::clone(&opened.reads));
        let runtime = Self {
            frame,
            proxy,
            reads: opened.reads,
            calls,
            clock,
            recording_pins: tokio::sync::Mutex::new(()),
        };
        runtime.maintain().await?;
        Ok(runtime)
    }

    /// Keeps the lease, finds lost writers, and hands a checkpoint outside where one was signed.
    pub(crate) async fn maintain(&self) -> Result<(), Failure> {
        self.note_refusals().await;
        let loaded = &self.frame.loaded;
        let note = self
            .proxy
            .maintain(records::due(&loaded.config))
            .await
            .map_err(|error| Failure::store(error.to_string()))?;
        records::hand_outside(loaded, note.as_deref());
        Ok(())
    }

    /// Signs a checkpoint where one is due, and hands it outside.
    pub(crate) async fn checkpoint(&self) -> Result<(), Failure> {
        let loaded = &self.frame.loaded;
        let note = self
            .proxy
            .checkpoint(records::due(&loaded.config))
            .await
            .map_err(|error| Failure::store(error.to_string()))?;
        records::hand_outside(loaded, note.as_deref());
        Ok(())
    }

    pub(crate) fn gateway(&self) -> Gateway {
        let listing = self.frame.loaded.config.mcp.listing;
        let catalogue = Arc::clone(&self.frame.catalogue);
        let strict_dialect = declarations::STRICT_DIALECT;
        let calls = self.calls.clone();
        Gateway { proxy: self.proxy.clone(), calls, catalogue, listing, strict_dialect }
    }

    /// Writes down that a registry was loaded or refused, and which tools it replaced.
    pub(crate) async fn note(&self, kind: AuditEventKind, facts: serde_json::Value) {
        if let Err(failure) = self.record(kind, facts).await {
            tracing::error!(reason = failure.message, "an event is not recorded");
        }
    }

    /// As [`Gateway::note`], for what must not happen without a record.
    pub(crate) async fn record(
        &self,
        kind: AuditEventKind,
        facts: serde_json::Value,
    ) -> Result<(), Failure> {
        let mut event = EventBody::new(kind, self.clock.now().text);
        event.facts = facts.as_object().cloned();
        self.proxy.note(vec![event]).await.map_err(|error| Failure::store(error.to_string()))
    }

    /// Writes down which tools the registry file has taken the place of.
    pub(crate) async fn note_replaced(&self, replaced: &[(ToolId, Source)]) {
        for (id, source) in replaced {
            let facts = json!({ "tool": id, "was": source.to_string(), "now": "file" });
            self.note(AuditEventKind::ToolReplaced, facts).await;
        }
    }

    /// Writes down which tools were pinned at first use, and which were quarantined and why.
    pub(crate) async fn note_discovered(&self) {
        self.note_first_uses().await;
        for quarantined in self.frame.catalogue.take_quarantined() {
            let facts = json!({
                "tool": quarantined.tool_id,
                "source": quarantined.source.to_string(),
                "reason": quarantined.reason,
            });
            self.note(AuditEventKind::ToolQuarantined, facts).await;
        }
    }

    /// Writes down which tools and items are pinned and not on record yet: those that this process has
    /// pinned at first use, and those that it found.
    async fn note_first_uses(&self) {
        let _held = self.recording_pins.lock().await;
        let firsts = self.frame.catalogue.take_first_uses();
        let is_found = match &self.frame.worlds.now().approvals().lock {
            Lock::FirstUse(pins) => !pins.unrecorded().is_empty(),
            _ => false,
        };
        if self.frame.loaded.lock_use != LockUse::Pin || (firsts.is_empty() && !is_found) {
            return;
        }
        let own: BTreeSet<&str> = firsts
            .iter()
            .flat_map(|first| first.tools.iter().map(|tool| tool.tool_id.as_str()))
            .collect();
        if let Err(failure) = self.record_pins(&own).await {
            let reason = failure.message;
            tracing::error!(reason, "first-use pins are not recorded; the next start does it");
        }
    }

    async fn record_pins(&self, own: &BTreeSet<&str>) -> Result<(), Failure> {
        let file = self.frame.loaded.pins();
        let pins = file.read()?.map(|pins| pins.unrecorded()).unwrap_or_default();
        let found: Vec<&str> =
            pins.iter().map(|pin| pin.id.as_str()).filter(|id| !own.contains(id)).collect();
        if !found.is_empty() {
            tracing::warn!(
                pins = found.len(),
                first = found.first(),
                file = %file.path().display(),
                "pins that were not on record are, from now on"
            );
        }
        for some in pins.chunks(PINS_AT_ONCE) {
            let event = |pin: &UnrecordedPin| {
                let change = if own.contains(pin.id.as_str()) { "first-use" } else { "found" };
                let facts = json!({
                    "tool": pin.id,
                    "source": pin.source,
                    "change": change,
                    "sourceDigest": pin.source_digest,
                });
                let mut event = EventBody::new(AuditEventKind::ToolApproved, self.clock.now().text);
                event.facts = facts.as_object().cloned();
                event
            };
            let noted = self.proxy.note(some.iter().map(event).collect()).await;
            noted.map_err(|error| Failure::store(error.to_string()))?;
        }
        file.change(true, |kept| kept.mark_recorded(&pins)).map(drop)
    }

    /// Writes down which ways out were refused to processes that belong to no call.
    async fn note_refusals(&self) {
        for (source, execution_log) in &self.frame.refusals {
            for refusal in execution_log.take().egress {
                let mut facts = serde_json::to_value(refusal).unwrap_or_default();
                if let Some(facts) = facts.as_object_mut() {
                    facts.insert("source".to_owned(), json!(source));
                }
                self.note(AuditEventKind::EgressDenied, facts).await;
            }
        }
    }

    /// Settles what runs and closes the store.
    pub(crate) async fn shut_down(&self) -> Result<(), Failure> {
        self.note_refusals().await;
        self.note_first_uses().await;
        remember_names(&self.frame);
        let grace = self.frame.loaded.config.proxy.shutdown_grace_ms.unwrap_or(10_000);
        let note = self
            .proxy
            .shut_down(Duration::from_millis(grace))
            .await
            .map_err(|error| Failure::store(error.to_string()))?;
        records::hand_outside(&self.frame.loaded, note.as_deref());
        Ok(())
    }
}

fn authorizer(config: &Config) -> Result<Authorizer, Failure> {
    let variable = |name: &str| std::env::var(name).ok();
    let flags =
        FeatureFlags { mcp_tools: config.flags.mcp_tools, tools_policy: config.flags.tools_policy }
            .overridden(variable)
            .map_err(|error| Failure::configuration(error.to_string()))?;
    let whitelist = match variable("TOOL_WHITELIST").filter(|list| !list.is_empty()) {
        Some(list) => Whitelist::parse(&list)
            .map_err(|error| Failure::configuration(error.to_string()))
            .map_err(|failure| failure.at("the variable TOOL_WHITELIST"))?,
        None => config.policy.whitelist.clone().map_or_else(Whitelist::all, Whitelist::only),
    };
    let mut callers = BTreeMap::new();
    for (name, caller) in &config.callers {
        let grants = caller
            .grants
            .iter()
            .map(|grant| Grant::parse(grant))
            .collect::<Result<Vec<_>, _>>()
            .map_err(|error| {
                Failure::configuration(error.to_string()).at(format!("callers.{name}.grants"))
            })?;
        let rights = CallerRights {
            matches: caller.matches.clone(),
            tools: caller.tools.clone(),
            deny: caller.deny.clone(),
            grants,
            operate: caller.operate,
        };
        callers.insert(name.clone(), rights);
    }
    Ok(Authorizer::new(flags)
        .with_whitelist(whitelist)
        .with_callers(callers)
        .with_approval_by_trust(config.trust.approval.clone()))
}

fn limits(config: &Config) -> Limits {
    let standard = Limits::default();
    let proxy = &config.proxy;
    Limits {
        in_flight_max: proxy.in_flight_max.unwrap_or(standard.in_flight_max),
        argument_bytes_max: proxy.argument_bytes_max.unwrap_or(standard.argument_bytes_max),
        result_bytes_max: proxy.result_bytes_max.unwrap_or(standard.result_bytes_max),
        output: proxy.output,
        input_patience: proxy
            .input_patience_ms
            .map_or(standard.input_patience, Duration::from_millis),
        progress_cap: proxy.progress_cap_ms.map(Duration::from_millis),
        queued_max: proxy.queued_max.unwrap_or(standard.queued_max),
        ..standard
    }
}

/// What is kept of payloads.
fn retention(config: &Config) -> PayloadRetention {
    let logs = config.audit.tools.iter().map(|(tool, level)| (tool.clone(), *level));
    let receipts = &config.receipts;
    let kept = receipts.tools.iter().map(|(tool, own)| (tool.clone(), *own));
    // What a read gives stands in the receipt that it reads.
    let read = ToolPattern::try_from(READ_RESULT.to_owned()).ok();
    let logs = logs.chain(read.clone().map(|read| (read, LogLevel::Digest)));
    let kept = kept.chain(read.map(|read| (read, Results::Digest)));
    let shown = config.results.tools.iter().map(|(tool, bytes)| (tool.clone(), *bytes));
    let inline_bytes = config.results.inline_bytes();
    let proxy = &config.proxy;
    let intents = proxy.intents.iter().map(|(tool, own)| (tool.clone(), *own));
    PayloadRetention::default()
        .with_log(config.audit.log, logs.collect())
        .with_results(receipts.results, kept.collect())
        .with_inline_bytes(inline_bytes, shown.collect())
        .with_intent(proxy.intent, intents.collect())
}

/// Permissions whose requirement is not there.
fn unmet(config: &Config) -> BTreeMap<String, String> {
    let there = |requirement: &str| match requirement.split_once('.') {
        Some(("servers", name)) => {
            config.servers.get(name).is_some_and(|server| server.enabled != Some(false))
        }
        Some(("runtimes", name)) => config.runtimes.contains_key(name),
        Some(("commands", name)) => {
            config.commands.get(name).is_some_and(|pair| pair.enabled != Some(false))
        }
        Some(("endpoints", name)) => config.endpoints.contains_key(name),
        _ => requirement == "builtin.web_search" && config.builtin.web_search.endpoint.is_some(),
    };
    config
        .permissions
        .iter()
        .filter(|(_, permission)| !there(&permission.requires))
        .map(|(name, permission)| (name.clone(), permission.requires.clone()))
        .collect()
}

/// By what discovered tools are judged: the lock, and two settings.
pub(crate) fn approvals(loaded: &Loaded) -> Result<Approvals, Failure> {
    let discovery = &loaded.config.discovery;
    Ok(Approvals {
        lock: read_lock(loaded)?,
        new_tools: discovery.new_tools,
        suspicious: discovery.suspicious,
    })
}

/// Reads the lock file, or the pins, as the mode says. One that cannot be read approves nothing,
/// so nothing starts with it.
fn read_lock(loaded: &Loaded) -> Result<Lock, Failure> {
    match loaded.lock_mode() {
        LockMode::Off => Ok(Lock::Off),
        LockMode::File => match read_lock_file(loaded)? {
            Some(lock) => Ok(Lock::File(lock)),
            None if loaded.requires_lock() && loaded.lock_use != LockUse::Write => {
                Err(Failure::configuration("the lock file is not there")
                    .at(loaded.lock().display().to_string())
                    .hint("`toolbooth lock` writes it"))
            }
            None => Ok(Lock::Missing),
        },
        LockMode::FirstUse => {
            if loaded.lock_use != LockUse::Write {
                check_replicas(loaded)?;
            }
            Ok(Lock::FirstUse(loaded.pins().read()?.unwrap_or_else(LockFile::empty)))
        }
    }
}

/// Refuses first-use pins for a store that replicas share: each replica would pin what its own
/// first listing says.
pub(crate) fn check_replicas(loaded: &Loaded) -> Result<(), Failure> {
    if loaded.config.store.url.is_none() {
        return Ok(());
    }
    let written = if loaded.config.lock.mode().is_some() { "" } else { ", the default," };
    Err(Failure::configuration(format!(
        "`[lock] mode = \"first-use\"`{written} does not work with `[store] url`: each replica \
         would pin its own first listing"
    ))
    .at("lock.mode")
    .hint(
        "write `[lock]` with `mode = \"file\"`, and give every replica the file that `toolbooth \
         lock` writes; or write `mode = \"off\"` to accept tools as their sources describe them",
    ))
}

/// Reads the lock file; `None` where there is none.
pub(crate) fn read_lock_file(loaded: &Loaded) -> Result<Option<LockFile>, Failure> {
    let path = loaded.lock();
    let shown = path.display().to_string();
    match crate::files::read(&path) {
        Ok(text) => LockFile::parse(&text).map(Some).map_err(|error| {
            let place = error
                .place
                .map_or(shown.clone(), |(line, column)| format!("{shown}:{line}:{column}"));
            Failure::new(crate::failure::USAGE, "invalid-lock", error.message).at(place).hint(
                "get the file back from version control, or remove it and run `toolbooth lock`",
            )
        }),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Failure::configuration(format!("the lock file cannot be read: {error}"))
            .at(shown)
            .hint("`toolbooth lock` writes it")),
    }
}

/// The names on the wire that were given so far, and how further ones are made.
pub(crate) fn wire_names(loaded: &Loaded) -> Result<WireNames, Failure> {
    kept_names(loaded, WIRE_NAMES)
}

/// The names that a file keeps, and how further ones are made.
fn kept_names(loaded: &Loaded, file: &str) -> Result<WireNames, Failure> {
    let config = &loaded.config;
    let (naming, prefix) = (config.mcp.names, config.mcp.prefix);
    if naming == Naming::Native && prefix != Prefix::Always {
        return Err(Failure::configuration("`prefix` is about short names; ids stay as they are")
            .at("mcp.prefix")
            .hint("take `prefix` or `names = \"native\"` out"));
    }
    Ok(WireNames::new(naming, prefix, remembered_names(loaded, file)))
}

fn remembered_names(loaded: &Loaded, file: &str) -> GivenNames {
    let path = loaded.data.join(file);
    // At first start there is none.
    let Ok(text) = crate::files::read(&path) else { return GivenNames::default() };
    GivenNames::read(&text).unwrap_or_else(|| {
        tracing::warn!("the names on the wire are given anew, their file cannot be read");
        GivenNames::default()
    })
}

/// Keeps the names on the wire, so that no name is ever given to another tool or prompt.
pub(crate) fn remember_names(frame: &Frame) {
    let world = frame.worlds.now();
    remember(frame, WIRE_NAMES, world.names().given());
    // Without prompts there is nothing to keep.
    if !world.prompt_names().given().is_empty() {
        remember(frame, PROMPT_NAMES, world.prompt_names().given());
    }
}

fn remember(frame: &Frame, file: &str, names: &GivenNames) {
    if *names == remembered_names(&frame.loaded, file) {
        return;
    }
    // Names that are given out are kept, also where nothing was recorded yet.
    if let Err(error) = StoreFolder::create(&frame.loaded.data) {
        tracing::warn!(%error, "the names on the wire cannot be kept");
        return;
    }
    let path = frame.loaded.data.join(file);
    let draft = path.with_extension("draft");
    let text = serde_json::to_vec_pretty(names).unwrap_or_default();
    let written = std::fs::write(&draft, text).and_then(|()| {
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(&draft, PermissionsExt::from_mode(0o600))?;
        std::fs::rename(&draft, &path)
    });
    if let Err(error) = written {
        tracing::warn!(%error, "the names on the wire cannot be kept");
    }
}
