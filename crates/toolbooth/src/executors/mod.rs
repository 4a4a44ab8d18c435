//! Builds executors, sources and upstreams from the configuration, with one builder for each kind of adapter.
//!
//! Starts no process.
//!
//! Doc: configuration.md

mod builtin;
mod commands;
mod endpoints;
mod handlers;
mod hooks;
mod servers;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use secrecy::{ExposeSecret, SecretString};
use serde_json::Value;
use toolbooth_adapters::launcher::Launcher;
use toolbooth_adapters::mcp::Child;
use toolbooth_adapters::secrets;
use toolbooth_contracts::contract::AdapterId;
use toolbooth_contracts::secret_location::SecretLocation;
use toolbooth_contracts::trust::{TrustLevel, TrustLevels};
use toolbooth_contracts::{ExecutionLog, Executor};
use toolbooth_proxy::{Executors, SourceEntry, UpstreamEntry, Upstreams};
use toolbooth_registry::discovered::{SourcePolicy, ToolSettings};

pub(crate) use self::commands::tools as command_tools;
pub(crate) use self::servers::{folder_name, server_settings};
use crate::caller_sets::CallersInForce;
use crate::config::{Config, Loaded, Setting, ToolDefaults};
use crate::failure::Failure;

/// The configured adapters.
#[derive(Default)]
pub(crate) struct Adapters {
    pub(crate) executors: Executors,
    pub(crate) sources: Vec<SourceEntry>,
    pub(crate) upstreams: Upstreams,
    /// Connections that were refused to processes of many calls, by source.
    pub(crate) refusals: Vec<(String, ExecutionLog)>,
    /// The sets of callers, for their own credentials.
    pub(crate) callers: Arc<CallersInForce>,
}

impl Adapters {
    /// Builds all adapters of a configuration, and the registry entries of the built-in tools and of clients'
    /// own tools.
    pub(crate) fn build(
        loaded: &Loaded,
        launcher: &Launcher,
    ) -> Result<(Self, Vec<Value>), Failure> {
        let mut adapters = Self::default();
        adapters.callers.replace(&loaded.config)?;
        let mut entries = builtin::add(loaded, launcher, &mut adapters)?;
        entries.extend(hooks::add(loaded, &mut adapters));
        handlers::add(loaded, launcher, &mut adapters)?;
        commands::add_runtimes(loaded, launcher, &mut adapters)?;
        endpoints::add(loaded, launcher, &mut adapters)?;
        commands::add_sources(loaded, launcher, &mut adapters)?;
        servers::add(loaded, launcher, &mut adapters)?;
        Ok((adapters, entries))
    }

    /// Adds the executor of an adapter.
    pub(crate) fn add(&mut self, id: AdapterId, executor: Arc<dyn Executor>) {
        self.executors = std::mem::take(&mut self.executors).with(id, executor);
    }

    /// Adds the executor of a runtime on this machine.
    pub(crate) fn add_local(&mut self, name: &str, executor: Arc<dyn Executor>) {
        self.add(AdapterId::Local(name.to_owned()), executor);
    }

    /// Adds a server of prompts and resources.
    pub(crate) fn add_upstream(&mut self, entry: UpstreamEntry) {
        self.upstreams = std::mem::take(&mut self.upstreams).with(entry);
    }

    /// Adds a log for the connections that are refused to the processes of a source.
    fn refusals_of(&mut self, source: &str) -> ExecutionLog {
        let log = ExecutionLog::default();
        self.refusals.push((source.to_owned(), log.clone()));
        log
    }
}

/// Selects the tools of a source that are registered, and their ids.
struct Choice<'c> {
    /// The tools; `None` = all.
    tools: Option<&'c Vec<String>>,
    /// Tools that are excluded.
    deny: &'c [String],
    /// Tools with another id.
    rename: &'c BTreeMap<String, String>,
}

/// Returns the launcher of all child processes, which runs this program itself.
pub(crate) fn launcher(loaded: &Loaded) -> Result<Launcher, Failure> {
    let sandbox = &loaded.config.sandbox;
    let cgroup = sandbox.cgroup.as_ref().map(|folder| loaded.path(folder));
    let launcher = Launcher::of_this_program(cgroup).hiding(hidden(loaded));
    Ok(launcher.with_network(sandbox.network()?))
}

/// Returns the files that no tool can see or change: records, keys, rules, and settings that can contain
/// secrets.
fn hidden(loaded: &Loaded) -> Vec<PathBuf> {
    let key = loaded.config.http.tls.as_ref().map(|tls| loaded.path(&tls.key));
    let rules = crate::rules::own_paths(loaded);
    let notify = notify_files(loaded);
    let secrets = secret_files(loaded);
    let own = std::iter::once(&loaded.data).chain(&loaded.file).chain(&key).chain(&rules);
    let own = own.chain(&notify).chain(&secrets);
    own.map(|path| {
        // A path that does not exist yet is resolved by its parent folder.
        let beside = || Some(path.parent()?.canonicalize().ok()?.join(path.file_name()?));
        path.canonicalize().ok().or_else(beside).unwrap_or_else(|| path.clone())
    })
    .collect()
}

/// Returns the files that the configuration and the registry file name as secrets.
fn secret_files(loaded: &Loaded) -> Vec<PathBuf> {
    fn collect(value: &Value, found: &mut Vec<PathBuf>) {
        match value {
            Value::Object(members) => {
                for (name, member) in members {
                    let is_reference = ["secretRef", "secret_ref"].contains(&name.as_str());
                    match member.as_str().and_then(|text| text.strip_prefix("file:")) {
                        Some(path) if is_reference => found.push(path.into()),
                        _ => collect(member, found),
                    }
                }
            }
            Value::Array(items) => items.iter().for_each(|item| collect(item, found)),
            _ => (),
        }
    }
    // A registry file that cannot be read is told when it is loaded.
    let text = crate::files::read(&loaded.registry().0).unwrap_or_default();
    // Most registry files have no such text, also not in escapes.
    let names_files = [&b"\"file:"[..], &b"\\u"[..]];
    let names_files =
        names_files.iter().any(|part| text.windows(part.len()).any(|own| own == *part));
    let registry = names_files.then(|| serde_json::from_slice(&text).ok()).flatten();
    let mut found = loaded.config.secret_files.clone();
    registry.iter().for_each(|value| collect(value, &mut found));
    found.into_iter().map(|path| loaded.path(&path)).collect()
}

/// Returns the files beneath the folder of the configuration that the command of
/// `[approvals] notify` names: it runs them without a
/// sandbox, so no tool can change them.
fn notify_files(loaded: &Loaded) -> Vec<PathBuf> {
    let notify = loaded.config.approvals.notify.as_ref();
    let words = notify.and_then(|notify| notify.command.as_ref()).into_iter().flatten();
    let file = |word: &Setting| match word {
        Setting::Text(text) => Some(loaded.folder.join(text)).filter(|path| path.is_file()),
        Setting::Kept(_) => None,
    };
    words.filter_map(file).collect()
}

/// Returns the meaning of trust level names.
pub(crate) fn levels(config: &Config) -> TrustLevels {
    TrustLevels::with(config.trust.levels.clone())
}

/// Returns the trust level of the processes of a source that do not belong to a single call.
fn trust(config: &Config, own: &ToolDefaults) -> TrustLevel {
    let word = own.trust_level.as_ref().or(config.discovery.defaults.trust_level.as_ref());
    word.map_or(TrustLevel::Untrusted, |word| levels(config).of(word))
}

fn tool_settings(settings: &ToolDefaults) -> ToolSettings {
    ToolSettings {
        timeout_ms: settings.timeout_ms,
        trust_level: settings.trust_level.clone(),
        rate_limit_per_min: settings.rate_limit_per_min,
        permissions: settings.permissions.clone(),
        idempotency: settings.idempotency,
        read_only: settings.read_only,
    }
}

fn source_policy(
    config: &Config,
    own: &ToolDefaults,
    overrides: &BTreeMap<String, ToolDefaults>,
    choice: Choice<'_>,
) -> SourcePolicy {
    SourcePolicy {
        settings: tool_settings(own).or(&tool_settings(&config.discovery.defaults)),
        overrides: overrides
            .iter()
            .map(|(name, settings)| (name.clone(), tool_settings(settings)))
            .collect(),
        tools: choice.tools.cloned(),
        deny: choice.deny.to_vec(),
        rename: choice.rename.clone(),
    }
}

pub(crate) fn setting(loaded: &Loaded, setting: &Setting) -> secrets::Setting {
    match setting {
        Setting::Text(text) => secrets::Setting::Template(text.clone()),
        Setting::Kept(kept) if kept.mask => {
            secrets::Setting::Secret(location(loaded, &kept.secret_ref))
        }
        Setting::Kept(kept) => secrets::Setting::Kept(location(loaded, &kept.secret_ref)),
    }
}

/// Returns the location of a secret. A relative path is relative to the configuration.
pub(crate) fn location(loaded: &Loaded, reference: &SecretLocation) -> SecretLocation {
    match reference {
        SecretLocation::File(path) => {
            SecretLocation::File(loaded.path(Path::new(path)).display().to_string())
        }
        other => other.clone(),
    }
}

pub(crate) fn settings(
    loaded: &Loaded,
    map: &BTreeMap<String, Setting>,
) -> Vec<(String, secrets::Setting)> {
    map.iter().map(|(name, value)| (name.clone(), setting(loaded, value))).collect()
}

/// Returns the folder of a child. A folder that begins with a variable is not resolved against the
/// configuration.
fn folder(loaded: &Loaded, cwd: Option<&PathBuf>) -> secrets::Setting {
    let cwd = cwd.map_or_else(
        || loaded.folder.clone(),
        |cwd| {
            if cwd.starts_with("~") || cwd.to_string_lossy().starts_with("${") {
                cwd.clone()
            } else {
                loaded.path(cwd)
            }
        },
    );
    secrets::Setting::Template(cwd.display().to_string())
}

/// Returns the existing paths that the arguments of a server name. The sandboxed server can read them.
pub(crate) fn named_paths(child: &Child) -> Vec<PathBuf> {
    let Some(cwd) = child.line.cwd.as_ref().and_then(present) else { return Vec::new() };
    let words = child.line.argv.iter().take(child.line.written).skip(1);
    let words = words.filter_map(|word| word.resolve().ok());
    let path = |word: SecretString| {
        let word = word.expose_secret();
        let is_word = !word.starts_with('-') && !word.is_empty();
        is_word.then(|| cwd.join(word).canonicalize().ok()).flatten()
    };
    words.filter_map(path).collect()
}

/// Resolves `cwd` to a folder; `None` if one of its variables is not set.
pub(crate) fn present(cwd: &secrets::Setting) -> Option<PathBuf> {
    let cwd = PathBuf::from(cwd.resolve().ok()?.expose_secret());
    Some(cwd.canonicalize().unwrap_or(cwd))
}
