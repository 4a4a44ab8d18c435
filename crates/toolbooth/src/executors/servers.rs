//! Builds the executors of upstream MCP servers.
//!
//! Doc: execution.md#mcp-servers

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use data_encoding::HEXLOWER;
use toolbooth_adapters::CommandLine;
use toolbooth_adapters::launcher::Launcher;
use toolbooth_adapters::mcp::{
    CallerSettings, Child, Credentials, McpServer, ServerSettings, ServerTransport,
};
use toolbooth_adapters::sandbox::{server_profile, trial_profile};
use toolbooth_adapters::secrets;
use toolbooth_contracts::Executor;
use toolbooth_contracts::contract::{AdapterId, TIMEOUT_MS_DEFAULT};
use toolbooth_contracts::port::Upstream;
use toolbooth_proxy::{SourceEntry, UpstreamEntry};
use toolbooth_registry::Source;

use super::{Adapters, Choice, folder, present, settings, source_policy, trust};
use crate::caller_sets::CallersInForce;
use crate::config::{self, Loaded};
use crate::failure::Failure;

/// The default timeout of connecting to a server.
const STARTUP_TIMEOUT: Duration = Duration::from_secs(20);
/// The folder in the data folder with the homes and caches of servers.
const OWN_FOLDERS: &str = "servers";

/// Adds each server: an executor, a source of tools, and an upstream of prompts and resources.
pub(super) fn add(
    loaded: &Loaded,
    launcher: &Launcher,
    adapters: &mut Adapters,
) -> Result<(), Failure> {
    for (name, server) in &loaded.config.servers {
        if server.enabled == Some(false) {
            continue;
        }
        let mut settings = server_settings(loaded, name, server)?;
        settings.callers = caller_settings(loaded, name, server, &adapters.callers);
        let refusals = adapters.refusals_of(&format!("mcp:{name}"));
        let connection = McpServer::new(settings, launcher.clone(), refusals);
        adapters.add(AdapterId::Mcp(name.clone()), Arc::clone(&connection) as Arc<dyn Executor>);
        let choice =
            Choice { tools: server.tools.as_ref(), deny: &server.deny, rename: &server.rename };
        let mut policy = source_policy(&loaded.config, &server.defaults, &server.overrides, choice);
        policy.settings.timeout_ms = server.timeout_ms.or(policy.settings.timeout_ms);
        let timeout_ms = policy.settings.timeout_ms.unwrap_or(TIMEOUT_MS_DEFAULT);
        adapters.add_upstream(UpstreamEntry {
            upstream: Arc::clone(&connection) as Arc<dyn Upstream>,
            timeout: Duration::from_millis(timeout_ms),
            per_caller: server.isolation == config::Isolation::Caller
                || server.credentials == config::Credentials::Caller,
        });
        let verify_calls = server.verify == config::Verify::Call;
        let id = Source::Mcp(name.clone());
        adapters.sources.push(SourceEntry { id, source: connection, policy, verify_calls });
    }
    Ok(())
}

/// Returns the settings of one server.
pub(crate) fn server_settings(
    loaded: &Loaded,
    name: &str,
    server: &config::Server,
) -> Result<ServerSettings, Failure> {
    let setting = format!("servers.{name}");
    let wrong = |message: &str| Failure::configuration(message.to_owned()).at(setting.clone());
    let transport = match (&server.command, &server.url) {
        (Some(_), Some(_)) => {
            return Err(wrong("a server has either `command` or `url`, not both"));
        }
        (None, None) => return Err(wrong("a server needs `command` or `url`")),
        (Some(program), None) => {
            if !server.headers.is_empty() {
                return Err(wrong("`headers` belong to a server with `url`"));
            }
            let argv = std::iter::once(program).chain(&server.args);
            let argv: Vec<_> = argv.map(|word| secrets::Setting::Template(word.clone())).collect();
            let cwd = folder(loaded, server.cwd.as_ref());
            let written = argv.len();
            let env = settings(loaded, &server.env);
            let own = Some(loaded.data.join(OWN_FOLDERS).join(folder_name(name)));
            let profile_setting = loaded.config.sandbox.profile_setting(
                server.sandbox.as_ref(),
                &format!("{setting}.sandbox"),
                present(&cwd).as_deref(),
            )?;
            let profile_name = server.sandbox.as_ref().and_then(|said| said.name(name));
            let line = CommandLine { argv, env, cwd: Some(cwd), written, own, profile_name };
            let profile =
                profile_setting.profile(server_profile, trust(&loaded.config, &server.defaults));
            let profile = match loaded.is_trial {
                true => profile.map(|profile| trial_profile(profile, &loaded.folder)),
                false => profile,
            };
            ServerTransport::Stdio(Box::new(Child { line, profile }))
        }
        (None, Some(url)) => {
            if !["http://", "https://", "${"].iter().any(|start| url.starts_with(start)) {
                return Err(wrong("`url` must begin with http:// or https://"));
            }
            if server.sandbox.is_some() {
                return Err(wrong("`sandbox` belongs to a server with `command`"));
            }
            let url = secrets::Setting::Template(url.clone());
            ServerTransport::Http { url, headers: settings(loaded, &server.headers) }
        }
    };
    let startup_timeout = server.startup_timeout_ms.map_or(STARTUP_TIMEOUT, Duration::from_millis);
    Ok(ServerSettings { name: name.to_owned(), transport, startup_timeout, callers: None })
}

/// Returns the settings for connections of each caller, if a server has them.
fn caller_settings(
    loaded: &Loaded,
    name: &str,
    server: &config::Server,
    callers: &Arc<CallersInForce>,
) -> Option<CallerSettings> {
    let own = server.credentials == config::Credentials::Caller;
    let apart = own || server.isolation == config::Isolation::Caller;
    let credentials = own.then(|| credentials(loaded, name, Arc::clone(callers)));
    apart.then(|| CallerSettings { server: name.to_owned(), credentials })
}

/// Returns the folder name of a server: its own name if that is a plain file name, else `@` and its first 100
/// bytes in hex.
pub(crate) fn folder_name(server: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let leads_away = server.starts_with('.') || server.is_empty() || server.len() > 64;
    if server.chars().all(plain) && !leads_away {
        return server.to_owned();
    }
    let bytes = server.as_bytes();
    format!("@{}", HEXLOWER.encode(bytes.get(..100).unwrap_or(bytes)))
}

/// Returns the callers' own variables or headers for a server. They are in the set that defines a caller's
/// rights now, with the values of the start.
fn credentials(loaded: &Loaded, server: &str, callers: Arc<CallersInForce>) -> Credentials {
    let own: BTreeMap<String, Vec<(String, secrets::Setting)>> = loaded
        .config
        .callers
        .iter()
        .filter_map(|(set, caller)| {
            Some((set.clone(), settings(loaded, caller.secrets.get(server)?)))
        })
        .collect();
    Arc::new(move |caller| own.get(&callers.set_of(caller)?).cloned())
}
