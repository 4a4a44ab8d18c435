//! The gateway without a store, which is sufficient to list tools.
//!
//! Doc: configuration.md

use std::sync::Arc;

use toolbooth_adapters::launcher::Launcher;
use toolbooth_adapters::secret_rules;
use toolbooth_contracts::{ExecutionLog, Guard, ToolId, schema};
use toolbooth_policy::{Authorizer, RuleFit};
use toolbooth_proxy::{
    Catalogue, Executors, InMemoryPins, PinStore, Upstreams, World, WorldSettings, Worlds,
    own_tools,
};
use toolbooth_registry::lock::{Lock, locked_id};
use toolbooth_registry::wire::GivenNames;
use toolbooth_registry::{RegisteredTool, Source, file};
use toolbooth_server::Listing;
use toolbooth_store::sqlite::StoreFolder;

use crate::caller_sets::CallersInForce;
use crate::config::{self, Loaded, LockUse};
use crate::executors::Adapters;
use crate::failure::Failure;
use crate::settings::{
    PROMPT_NAMES, WIRE_NAMES, approvals, authorizer, check_defaults, kept_names, remembered_names,
    unmet, wire_names,
};
use crate::trust::Trusted;
use crate::{executors, files, registry_file, retention, rules, secret_shapes};

/// The name of the lock that a process holds while it stores names on the wire.
const NAMES_LOCK: &str = "names.lock";

/// The components that need no store.
pub(crate) struct OfflineGateway {
    pub(crate) loaded: Trusted,
    pub(crate) worlds: Arc<Worlds>,
    /// The policy of the start, with rules that are not bound to tools.
    policy: Authorizer,
    pub(crate) catalogue: Arc<Catalogue>,
    /// Tools of other sources that the registry file has replaced.
    pub(crate) replaced: Vec<(ToolId, Source)>,
    /// Connections that were refused to processes of many calls, by source.
    pub(crate) refusals: Vec<(String, ExecutionLog)>,
    pub(crate) executors: Executors,
    pub(crate) upstreams: Upstreams,
    /// The sets of callers that are in force, for their own credentials.
    pub(crate) callers: Arc<CallersInForce>,
    /// Starts every child process.
    pub(crate) launcher: Launcher,
}

/// Initialises the guard on another thread during the start. If no thread can be started, the guard is
/// initialised at its first use.
pub(crate) fn prepare_guard() {
    for (name, prepare) in
        [("toolbooth-rules", secret_rules::prepare as fn()), ("toolbooth-schemas", schema::prepare)]
    {
        let _ = std::thread::Builder::new().name(name.to_owned()).spawn(prepare);
    }
}

/// Prints the defaults in effect on standard error if there is no configuration.
pub(crate) fn report_assumptions(loaded: &Loaded) {
    if loaded.file.is_none() {
        let (registry, _) = loaded.registry();
        let tools = if registry.is_file() {
            format!("built-in tools and {}", config::REGISTRY)
        } else {
            "built-in tools".to_owned()
        };
        crate::notice(&format!(
            "no {} found: {tools}, records under {}",
            config::FILE,
            loaded.data.display()
        ));
    }
}

/// Prints the effect of the lock mode once, if it accepts or quarantines all discovered tools.
pub(crate) fn report_lock(offline: &OfflineGateway) {
    if offline.catalogue.sources().next().is_none() {
        return;
    }
    match &offline.worlds.now().approvals().lock {
        Lock::Off => crate::notice(
            "the lock is off: all discovered tools are accepted as their sources describe them",
        ),
        Lock::Missing => crate::notice(&format!(
            "there is no {}: all discovered tools are quarantined; `toolbooth lock` writes it",
            offline.loaded.lock().display()
        )),
        Lock::File(_) | Lock::FirstUse(_) => (),
    }
}

/// Prints how many tools and items were pinned at first use.
pub(crate) fn report_first_uses(offline: &OfflineGateway) {
    for first in offline.catalogue.take_first_uses() {
        let items =
            first.tools.iter().filter(|pinned| locked_id(&pinned.tool_id).is_some()).count();
        let tools = first.tools.len() - items;
        let more = match items {
            0 => String::new(),
            items => format!(" and {items} prompt(s) and resource(s)"),
        };
        crate::notice(&format!("{}: {tools} tool(s){more} pinned at first use", first.source));
    }
}

impl OfflineGateway {
    /// Builds every component that needs no store.
    ///
    /// # Errors
    /// [`Failure`], if the configuration is not valid, or its rules do not fit the known tools.
    pub(crate) async fn build(loaded: Trusted) -> Result<Self, Failure> {
        let offline = Self::build_for_check(loaded).await?;
        rules::check(&offline.rule_fit())?;
        Ok(offline)
    }

    /// Returns how the rules fit the tools that are known now, and whether their cases hold.
    pub(crate) fn rule_fit(&self) -> RuleFit {
        self.worlds.now().fit_of(&self.policy)
    }

    /// As [`OfflineGateway::build`], also with rules that do not fit the tools.
    pub(crate) async fn build_for_check(mut loaded: Trusted) -> Result<Self, Failure> {
        let read = loaded.take_read();
        let config = &loaded.config;
        let policy = authorizer(&loaded)?;
        check_defaults(config)?;
        config::toolsets::check_servers(config)?;
        config.sandbox.check()?;
        retention::retained(&loaded)?;
        let guard = Guard::new(secret_shapes::shapes());
        let mut world = World::new(policy.clone()).with_settings(WorldSettings {
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
        let Adapters { executors, sources, upstreams, refusals, callers } = adapters;
        let worlds = Worlds::new(world.with_names());
        let pins: Arc<dyn PinStore> = match loaded.lock_use {
            LockUse::Pin => Arc::new(loaded.pins()),
            LockUse::Look | LockUse::Write => Arc::new(InMemoryPins),
        };
        let catalogue = Catalogue::new(Arc::clone(&worlds), executors.clone(), guard, sources);
        let catalogue = Arc::new(catalogue.with_pins(pins));
        catalogue.restore_locked().await;
        Ok(Self {
            loaded,
            worlds,
            policy,
            catalogue,
            replaced,
            refusals,
            executors,
            upstreams,
            callers,
            launcher,
        })
    }

    /// Returns the hosts that a source was refused.
    pub(crate) fn refused_hosts(&self, source: &Source) -> Vec<String> {
        let name = source.to_string();
        let own = self.refusals.iter().filter(|(own, _)| *own == name);
        let refused = own.flat_map(|(_, log)| log.egress());
        let mut hosts: Vec<String> =
            refused.map(|refusal| format!("{}:{}", refusal.host, refusal.port)).collect();
        hosts.dedup();
        hosts
    }

    /// Closes the connections that discovery opened, for commands that build no gateway.
    pub(crate) async fn close(&self) {
        self.executors.close().await;
    }
}

/// Stores the names on the wire, so that no other tool or prompt is given one of them.
pub(crate) fn remember_names(offline: &OfflineGateway) {
    let world = offline.worlds.now();
    remember(offline, WIRE_NAMES, world.names().given());
    // Without prompts there are no names to store.
    if !world.prompt_names().given().is_empty() {
        remember(offline, PROMPT_NAMES, world.prompt_names().given());
    }
}

fn remember(offline: &OfflineGateway, file: &str, names: &GivenNames) {
    let stored = || remembered_names(&offline.loaded, file);
    if stored().with(names) == stored() {
        return;
    }
    // Assigned names are stored even if nothing was recorded yet.
    if let Err(error) = StoreFolder::create(&offline.loaded.data) {
        tracing::warn!(%error, "the names on the wire cannot be kept");
        return;
    }
    let path = offline.loaded.data.join(file);
    let written = files::hold(&offline.loaded.data.join(NAMES_LOCK)).and_then(|_held| {
        // Another process may have stored names meanwhile.
        let names = stored().with(names);
        files::replace_private(&path, &serde_json::to_vec_pretty(&names).unwrap_or_default())
    });
    if let Err(error) = written {
        tracing::warn!(%error, "the names on the wire cannot be kept");
    }
}
