//! Starts imported servers once in their sandboxes to list their tools.
//!
//! It pins nothing, writes no configuration, and stores no name.
//!
//! Doc: importing.md#trial

use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::sync::Arc;

use serde_json::{Value, json};
use tokio::task::JoinSet;
use toolbooth_import::permissions::ListedTool;
use toolbooth_policy::ToolStatus;
use toolbooth_proxy::SourceState;
use toolbooth_registry::wire::WireCandidate;
use toolbooth_registry::{Source, WireNames};
use tracing::instrument::WithSubscriber;
use tracing::subscriber::NoSubscriber;

use crate::config::{Loaded, LockUse};
use crate::executors;
use crate::failure::Failure;
use crate::offline::{self, OfflineGateway};
use crate::settings;
use crate::trust::Consent;

/// The result of a source in the trial.
#[derive(Debug, Clone)]
pub(crate) enum Attempt {
    /// It listed its tools.
    Answered(SourceState),
    /// It did not start, or did not respond.
    Failed(String),
    /// It was not started.
    NotTried(String),
}

impl Attempt {
    /// Returns the reason why a source has no tools here.
    pub(crate) fn reason(&self) -> Option<&str> {
        match self {
            Self::Answered(_) => None,
            Self::Failed(reason) | Self::NotTried(reason) => Some(reason),
        }
    }
}

/// The results of a trial.
pub(crate) struct Trial {
    /// The result of each section, by its kind and name.
    pub(crate) attempts: BTreeMap<(&'static str, String), Attempt>,
    /// Names on the wire before the trial.
    names: WireNames,
    offline: Option<OfflineGateway>,
}

fn source(kind: &str, name: &str) -> Source {
    match kind {
        "commands" => Source::Command(name.to_owned()),
        _ => Source::Mcp(name.to_owned()),
    }
}

/// Starts the sources of these sections concurrently, each within its own startup timeout. Sources in
/// `skipped` are not started; these include all that `consent` does not cover.
pub(crate) async fn run(
    mut loaded: Loaded,
    sections: &[(&'static str, String)],
    skipped: &BTreeMap<(&'static str, String), String>,
    consent: &Consent,
) -> Result<Trial, Failure> {
    let wire_names = settings::wire_names(&loaded)?;
    let mut attempts = BTreeMap::new();
    let mut starts = |kind: &'static str, name: &String, enabled: Option<bool>| {
        if !sections.iter().any(|(own, section)| *own == kind && section == name) {
            return false;
        }
        let reason = match skipped.get(&(kind, name.clone())) {
            Some(reason) => reason.clone(),
            _ if enabled == Some(false) => "it is not enabled".to_owned(),
            _ => return true,
        };
        attempts.insert((kind, name.clone()), Attempt::NotTried(reason));
        false
    };
    loaded.lock_use = LockUse::Look;
    loaded.is_trial = true;
    loaded.config.servers.retain(|name, server| starts("servers", name, server.enabled));
    loaded.config.commands.retain(|name, pair| starts("commands", name, pair.enabled));
    // One invalid section must not prevent the trial of the others.
    for (name, server) in std::mem::take(&mut loaded.config.servers) {
        match executors::server_settings(&loaded, &name, &server) {
            Ok(_) => drop(loaded.config.servers.insert(name, server)),
            Err(failure) => {
                attempts.insert(("servers", name), Attempt::Failed(failure.message));
            }
        }
    }
    for (name, pair) in std::mem::take(&mut loaded.config.commands) {
        match executors::command_tools(&loaded, &name, &pair) {
            Ok(_) => drop(loaded.config.commands.insert(name, pair)),
            Err(failure) => {
                attempts.insert(("commands", name), Attempt::Failed(failure.message));
            }
        }
    }
    let names = |kind, names: Vec<&String>| -> Vec<(&'static str, String)> {
        names.into_iter().map(|name| (kind, name.clone())).collect()
    };
    let mut tried = names("servers", loaded.config.servers.keys().collect());
    tried.extend(names("commands", loaded.config.commands.keys().collect()));
    // Nothing is written where the whole would not load.
    let offline = OfflineGateway::build(consent.trusted(loaded)).await?;
    let progress = std::io::stderr().is_terminal();
    if progress && !tried.is_empty() {
        let shown: Vec<&str> = tried.iter().map(|(_, name)| name.as_str()).collect();
        crate::notice(&format!("starting {}", shown.join(", ")));
    }
    let mut starting = JoinSet::new();
    for (kind, name) in tried {
        let catalogue = Arc::clone(&offline.catalogue);
        let trying = async move {
            let own = source(kind, &name);
            let states = catalogue.refresh_only(|source| *source == own).await;
            ((kind, name), states.into_iter().next())
        };
        // Its warnings are reported below.
        starting.spawn(trying.with_subscriber(NoSubscriber::default()));
    }
    while let Some(joined) = starting.join_next().await {
        let Ok((section, Some(state))) = joined else { continue };
        let attempt = match &state.unhealthy {
            Some(reason) => failed(reason, &offline.refused_hosts(&source(section.0, &section.1))),
            None => Attempt::Answered(state),
        };
        if progress {
            let told = match &attempt {
                Attempt::Answered(state) => format!("{} tool(s)", state.tools),
                Attempt::NotTried(_) => "not tried".to_owned(),
                Attempt::Failed(_) => "did not answer".to_owned(),
            };
            crate::notice(&format!("{}: {told}", section.1));
        }
        attempts.insert(section, attempt);
    }
    offline.close().await;
    Ok(Trial { attempts, names: wire_names, offline: Some(offline) })
}

/// Returns the result of a failed start, depending on the hosts that it was refused.
fn failed(reason: &str, refused: &[String]) -> Attempt {
    let reason = reason.trim_end().to_owned();
    match refused.first() {
        None => Attempt::Failed(reason),
        Some(host) => Attempt::NotTried(format!(
            "it asked for {host} before it listed its tools, and the trial reaches package registries alone; `toolbooth discover` starts it with its whole network ({reason})"
        )),
    }
}

/// Returns a trial in which nothing was started.
pub(crate) fn untried(
    loaded: &Loaded,
    sections: &[(&'static str, String)],
    reason: &str,
) -> Result<Trial, Failure> {
    settings::check_defaults(&loaded.config)?;
    let attempt = Attempt::NotTried(reason.to_owned());
    let attempts = sections.iter().map(|section| (section.clone(), attempt.clone()));
    let names = settings::wire_names(loaded)?;
    Ok(Trial { attempts: attempts.collect(), names, offline: None })
}

impl Trial {
    /// Returns the tools that a server listed.
    pub(crate) fn tools(&self, server: &str) -> Vec<ListedTool> {
        let Some(offline) = &self.offline else { return Vec::new() };
        let world = offline.worlds.now();
        let own = source("servers", server);
        let tools = world.registry().iter().filter(|tool| *tool.source() == own);
        let names = self.names();
        tools
            .map(|tool| {
                let id = tool.id().as_str();
                let expected_name = names.name_of(id).to_owned();
                let is_quarantined = matches!(world.status(tool), ToolStatus::Quarantined(_));
                ListedTool {
                    name: tool.target().to_owned(),
                    wire_name: (!is_quarantined).then(|| expected_name.clone()),
                    expected_name,
                }
            })
            .collect()
    }

    /// Returns the names on the wire of all listed tools, quarantined ones last.
    pub(crate) fn names(&self) -> WireNames {
        let Some(offline) = &self.offline else { return self.names.clone() };
        let world = offline.worlds.now();
        world.names().with(world.registry().iter().map(|tool| WireCandidate::of(tool)))
    }

    /// Stores the names on the wire of the tools, once a client's file contains them.
    pub(crate) fn remember_names(&self) {
        if let Some(offline) = &self.offline {
            offline::remember_names(offline);
        }
    }

    /// Returns each section as a document.
    pub(crate) fn json(&self) -> Vec<Value> {
        let rows = self.attempts.iter().map(|((kind, name), attempt)| {
            let mut row = json!({ "section": format!("{kind}.{name}") });
            let facts = match attempt {
                Attempt::Answered(state) => json!({
                    "state": "answers",
                    "tools": state.tools,
                    "problems": state.problems,
                    "quarantined": state.quarantined,
                    "suspicious": state.suspicious,
                }),
                Attempt::Failed(reason) => json!({ "state": "failed", "reason": reason }),
                Attempt::NotTried(reason) => json!({ "state": "not-tried", "reason": reason }),
            };
            if let (Some(row), Value::Object(facts)) = (row.as_object_mut(), facts) {
                row.extend(facts);
            }
            row
        });
        rows.collect()
    }
}
