//! Describes a configuration to the user before it is trusted.
//!
//! Doc: trust.md#the-question

use std::path::{Path, PathBuf};

use toolbooth_adapters::endpoint::Operations;
use toolbooth_adapters::mcp::ServerTransport;
use toolbooth_adapters::sandbox::{default_profile, is_wide, of_call, opened_with, server_profile};
use toolbooth_adapters::{secret_path_of, secrets};
use toolbooth_contracts::sandbox::{Enforce, SandboxProfile};

use super::entries::{Change, leaves};
use crate::config::endpoints::Endpoint;
use crate::config::{self, CommandText, Loaded, RuntimeKind, Setting};
use crate::{executors, openapi_file};

/// The maximum number of sandboxed registry tools that are listed; tools without a sandbox are always listed.
const TOOLS_MAX: usize = 20;
/// The maximum number of hosts of one document that are shown.
const HOSTS_MAX: usize = 100;
/// The maximum length of white space that is shown unchanged.
const BLANKS_MAX: usize = 3;

/// Returns each change as lines; changes that start a process are first.
pub(crate) fn told(loaded: &Loaded, changes: &[Change]) -> Vec<String> {
    let mut lines = Vec::new();
    let rank = |change: &&Change| {
        let starts = ["servers.", "commands.", "runtimes.", "endpoints."];
        !starts.iter().any(|start| change.name.starts_with(start))
    };
    let mut sorted: Vec<&Change> = changes.iter().collect();
    sorted.sort_by_key(rank);
    let (tools, others): (Vec<&Change>, Vec<&Change>) =
        sorted.into_iter().partition(|change| change.name.starts_with("tools."));
    for change in others {
        let mut own = described(loaded, change);
        if let Some(now) = &change.now {
            own.extend(files(now));
            own.extend(change.before.iter().flat_map(|before| differences(before, now)));
        }
        lines.extend(own);
    }
    lines.extend(of_tools(loaded, &tools));
    lines.into_iter().map(|line| one_line(&line)).collect()
}

/// Returns a text as one line without omissions. Line breaks are escaped, and long white space is counted.
fn one_line(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let indent = text.len() - text.trim_start_matches(' ').len();
    let (start, rest) = text.split_at(indent);
    out.push_str(start);
    let mut blanks = 0;
    let flush = |out: &mut String, blanks: usize| match blanks {
        0..=BLANKS_MAX => out.push_str(&" ".repeat(blanks)),
        many => out.push_str(&format!(" [{many} blanks] ")),
    };
    for character in rest.chars() {
        if character == ' ' {
            blanks += 1;
            continue;
        }
        flush(&mut out, std::mem::take(&mut blanks));
        match character {
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            other => out.push(other),
        }
    }
    out
}

/// Describes the contracts of the registry file, those without a sandbox first.
fn of_tools(loaded: &Loaded, tools: &[&Change]) -> Vec<String> {
    if tools.is_empty() {
        return Vec::new();
    }
    let levels = executors::levels(&loaded.config);
    let mut lines = vec![format!("{} tool(s) of the registry file:", tools.len())];
    let mut contained_lines = Vec::new();
    for change in tools {
        let id = change.name.trim_start_matches("tools.");
        let Some(own) = &change.now else {
            lines.push(format!("    {id} was removed, with the access of its contract"));
            continue;
        };
        let text = |name: &str| own.get(name).and_then(|own| own.as_str()).unwrap_or_default();
        let (level, adapter) = (text("trustLevel"), text("adapter"));
        let sandbox = own.get("sandbox").cloned().unwrap_or_default();
        let sandbox: Option<SandboxProfile> = serde_json::from_value(sandbox).ok();
        let is_local = adapter.starts_with("local:");
        let profile = of_call(sandbox.as_ref(), levels.of(level));
        let how = match is_local {
            true => contained(profile.as_ref()),
            false => vec!["    as its server or endpoint is".to_owned()],
        };
        let mut own_lines = vec![format!("    {id} (`{level}`, {adapter}):")];
        own_lines.extend(how.into_iter().map(|line| format!("    {line}")));
        if let (Some(before), Some(now)) = (&change.before, &change.now) {
            own_lines.extend(differences(before, now));
        }
        match is_local && profile.is_none() {
            true => lines.extend(own_lines),
            false => contained_lines.push(own_lines),
        }
    }
    let more = contained_lines.len().saturating_sub(TOOLS_MAX);
    lines.extend(contained_lines.into_iter().take(TOOLS_MAX).flatten());
    if more > 0 {
        lines.push(format!("    and {more} more that are contained, or as their servers are"));
    }
    lines
}

/// Describes the facts that files add to an entry.
fn files(now: &serde_json::Value) -> Vec<String> {
    let of = |name: &str| now.get(name).map(leaves).unwrap_or_default();
    let links = of("leadsTo").into_iter().map(|(path, real)| format!("    {path} leads to {real}"));
    let own = of("files").into_iter().map(|(name, value)| match name.as_str() {
        "documentDigest" => "    its document names the hosts that get these requests".to_owned(),
        "authoritiesDigest" => "    certificates of a file of its own are believed".to_owned(),
        _ => format!("    a file of the folder sets {name} to {value}: packages come from there"),
    });
    links.chain(own).collect()
}

/// Describes the differences of an entry that was trusted before.
fn differences(before: &serde_json::Value, now: &serde_json::Value) -> Vec<String> {
    let (before, now) = (leaves(before), leaves(now));
    let mut lines = Vec::new();
    for (path, old) in &before {
        match now.get(path) {
            Some(new) if new == old => (),
            Some(new) => lines.push(format!("    changed: {path}: {old} → {new}")),
            None => lines.push(format!("    gone: {path} = {old}")),
        }
    }
    let added = now.iter().filter(|(path, _)| !before.contains_key(*path));
    lines.extend(added.map(|(path, new)| format!("    new: {path} = {new}")));
    lines
}

/// Returns the hosts that the document of an endpoint names, if it can be read.
fn document_hosts(loaded: &Loaded, endpoint: &Endpoint) -> Option<String> {
    let document = openapi_file::configured(&loaded.path(endpoint.openapi.as_ref()?)).ok()?;
    let hosts = Operations::read(&document, None).ok()?.hosts();
    let shown: Vec<String> = hosts.iter().take(HOSTS_MAX).map(|host| format!("`{host}`")).collect();
    let more = match hosts.len().saturating_sub(HOSTS_MAX) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    (!shown.is_empty()).then(|| format!("{}{more}", shown.join(", ")))
}

fn described(loaded: &Loaded, change: &Change) -> Vec<String> {
    let config = &loaded.config;
    let (section, name) = change.name.split_once('.').unwrap_or((&change.name, ""));
    let described = match section {
        "servers" => config.servers.get(name).map(|server| of_server(loaded, name, server)),
        "commands" => config.commands.get(name).map(|pair| of_commands(loaded, name, pair)),
        "runtimes" => config.runtimes.get(name).map(|runtime| of_runtime(loaded, name, runtime)),
        "endpoints" => config.endpoints.get(name).map(|endpoint| {
            let url = match &endpoint.url {
                Some(url) => with_host(url),
                None => match document_hosts(loaded, endpoint) {
                    Some(hosts) => format!("{hosts}, as its document names them"),
                    None => "the servers that its document names".to_owned(),
                },
            };
            let method = endpoint.method.as_deref().unwrap_or("requests");
            let mut lines = vec![format!("endpoint `{name}` sends {method} to {url}")];
            lines.extend(given("with", endpoint.headers.iter()));
            if endpoint.allow_private {
                lines.push("    addresses that are not public too".to_owned());
            }
            if endpoint.redirects > 0 {
                lines.push(format!("    and follows {} redirect(s)", endpoint.redirects));
            }
            lines
        }),
        "hooks" => change.now.as_ref().map(|now| {
            let mut lines = vec![format!(
                "hooks of `{name}` are answered: what this policy permits, its client runs"
            )];
            let of = leaves(now);
            lines.extend(
                of.iter()
                    .filter(|(path, _)| !path.is_empty())
                    .map(|(path, value)| format!("    {path} = {value}")),
            );
            lines
        }),
        "approvals" => config.approvals.notify.as_ref().map(|notify| of_notify(loaded, notify)),
        "handlers" if change.now.is_some() => {
            let mut lines = vec!["functions in the files of `handlers/` are run".to_owned()];
            lines.extend(contained(Some(&default_profile())));
            Some(lines)
        }
        _ => None,
    };
    described.unwrap_or_else(|| match &change.now {
        Some(now) => {
            let of = leaves(now);
            let lines = of.iter().map(|(path, value)| match path.as_str() {
                "" => format!("{} = {value}", change.name),
                path => format!("{}.{path} = {value}", change.name),
            });
            lines.collect()
        }
        None => vec![format!("`{}` is gone, and less is checked without it", change.name)],
    })
}

/// Describes the access to a path that an argument names.
fn named(path: &Path) -> String {
    let home = std::env::var_os("HOME").map(PathBuf::from);
    match secret_path_of(path, home.as_deref()) {
        Some(secret) => format!(
            "    its argument names {}: it does not start, because {} holds secrets",
            path.display(),
            secret.display()
        ),
        None if is_wide(path, home.as_deref()) => format!(
            "    its argument names {}, which it may not read: it has mixed content",
            path.display()
        ),
        None => match opened_with(path, home.as_deref()) {
            Some(project) if project != path => format!(
                "    may read {} too, without files that hold secrets: its argument names {}",
                project.display(),
                path.display()
            ),
            _ => format!("    may read {} too, which an argument names", path.display()),
        },
    }
}

/// Describes variables or headers by name, with the locations of secrets.
fn given<'s>(
    word: &str,
    settings: impl Iterator<Item = (&'s String, &'s Setting)>,
) -> Option<String> {
    let of = |(name, setting): (&String, &Setting)| match setting {
        Setting::Text(text) if text.contains("${") => format!("{name} (from {text})"),
        Setting::Text(_) => name.clone(),
        Setting::Kept(kept) if kept.mask => format!("{name} (the secret {})", kept.secret_ref),
        Setting::Kept(kept) => format!("{name} (from {}, shown in answers)", kept.secret_ref),
    };
    let names: Vec<String> = settings.map(of).collect();
    (!names.is_empty()).then(|| format!("    {word} {}", names.join(", ")))
}

fn of_server(loaded: &Loaded, name: &str, server: &config::Server) -> Vec<String> {
    let settings = match executors::server_settings(loaded, name, server) {
        Ok(settings) => settings,
        Err(failure) => {
            return vec![format!("server `{name}` cannot be used: {}", failure.message)];
        }
    };
    match settings.transport {
        ServerTransport::Stdio(child) => {
            let words = child.line.argv.iter().map(secrets::Setting::shown);
            let mut lines = vec![format!("server `{name}` starts: {}", words_of(words))];
            lines.extend(child.line.cwd.as_ref().map(|cwd| format!("    in {}", cwd.shown())));
            lines.extend(contained(child.profile.as_ref()));
            if child.profile.is_some() {
                lines.extend(executors::named_paths(&child).iter().map(|path| named(path)));
            }
            lines.extend(given("is given", server.env.iter()));
            lines
        }
        ServerTransport::Http { url, .. } => {
            let mut lines =
                vec![format!("server `{name}` is reached at {}", with_host(&url.shown()))];
            lines.extend(given("with", server.headers.iter()));
            lines
        }
    }
}

fn of_commands(loaded: &Loaded, name: &str, pair: &config::CommandPair) -> Vec<String> {
    let tools = match executors::command_tools(loaded, name, pair) {
        Ok(tools) => tools,
        Err(failure) => {
            return vec![format!("command `{name}` cannot be used: {}", failure.message)];
        }
    };
    let shown = |line: &toolbooth_adapters::CommandLine| {
        words_of(line.argv.iter().map(secrets::Setting::shown))
    };
    let mut lines = vec![
        format!("command `{name}` lists its tools by starting: {}", shown(&tools.discover)),
        format!("    and runs each call by starting: {} TOOL", shown(&tools.call)),
    ];
    lines.extend(tools.discover.cwd.as_ref().map(|cwd| format!("    in {}", cwd.shown())));
    lines.extend(contained(of_call(tools.sandbox.as_ref(), tools.trust).as_ref()));
    let levels = executors::levels(&loaded.config);
    for (tool, own) in &pair.overrides {
        if own.trust_level.as_ref().is_some_and(|level| levels.of(level).is_free()) {
            lines.push(format!(
                "    NOT CONTAINED for its tool `{tool}`: it may do all that you may"
            ));
        }
    }
    lines.extend(given("is given", pair.env.iter()));
    lines
}

fn of_runtime(loaded: &Loaded, name: &str, runtime: &config::RuntimeSection) -> Vec<String> {
    let mut lines = match runtime.kind {
        RuntimeKind::Command => {
            let words = match &runtime.command {
                Some(CommandText::Words(words)) => words_of(words.iter().cloned()),
                Some(CommandText::Text(text)) => text.clone(),
                None => "nothing".to_owned(),
            };
            vec![format!("runtime `{name}` starts for each call: {words}")]
        }
        RuntimeKind::Handlers => {
            let folder = runtime.dir.as_deref().unwrap_or(&loaded.folder);
            let folder = loaded.path(folder);
            vec![format!("runtime `{name}` runs the functions in {}", folder.display())]
        }
    };
    if let Some(interpreter) = &runtime.interpreter {
        lines.push(format!("    with {interpreter}"));
    }
    lines.extend(runtime.cwd.as_ref().map(|cwd| format!("    in {}", loaded.path(cwd).display())));
    let sandbox = &loaded.config.sandbox;
    let setting = format!("runtimes.{name}.sandbox");
    match sandbox.of_calls(runtime.sandbox.as_ref(), &setting, Some(&loaded.folder)) {
        Ok(Some(profile)) => lines.extend(contained(Some(&profile))),
        // The trust level of each contract determines the sandbox.
        Ok(None) => {
            lines.extend(contained(Some(&default_profile())));
            lines.push("    unless the contract of a tool says `trusted`".to_owned());
        }
        Err(failure) => lines.push(format!("    which cannot be used: {}", failure.message)),
    }
    lines.extend(given("is given", runtime.env.iter()));
    lines
}

/// Returns a command line with shell quoting.
/// Returns what a requested approval starts or reaches.
fn of_notify(loaded: &Loaded, notify: &config::Notify) -> Vec<String> {
    match (&notify.command, &notify.url) {
        (Some(words), _) => {
            let words = words.iter().map(|word| executors::setting(loaded, word).shown());
            let mut lines = vec![format!("a requested approval starts: {}", words_of(words))];
            lines.push(format!("    in {}", loaded.folder.display()));
            lines.extend(contained(None));
            lines
        }
        (None, Some(url)) => {
            let url = executors::setting(loaded, url).shown();
            vec![format!(
                "a requested approval, with its arguments, is posted to {}",
                with_host(&url)
            )]
        }
        (None, None) => vec!["`approvals.notify` names no command and no URL".to_owned()],
    }
}

fn words_of(words: impl Iterator<Item = String>) -> String {
    let quoted = |word: String| {
        let is_plain = |c: char| {
            c.is_alphanumeric()
                || matches!(c, '-' | '_' | '.' | '/' | ':' | '@' | '=' | ',' | '+' | '~')
        };
        match !word.is_empty() && word.chars().all(is_plain) {
            true => word,
            false => format!("'{}'", word.replace('\'', "'\\''")),
        }
    };
    words.map(quoted).collect::<Vec<_>>().join(" ")
}

/// Returns a URL, with its host if the host is not obvious.
fn with_host(url: &str) -> String {
    let parsed: Option<http::Uri> = url.parse().ok();
    let host = parsed.as_ref().and_then(http::Uri::host);
    match host {
        _ if url.contains("${") => url.to_owned(),
        Some(_) if !url.contains('@') => url.to_owned(),
        Some(host) => format!("{url} (the host is {host})"),
        None => format!("{url} (a host in letters that are not ASCII, or none)"),
    }
}

/// Describes the sandbox of a process: its permissions, and differences from the shipped profiles.
fn contained(profile: Option<&SandboxProfile>) -> Vec<String> {
    let Some(profile) = profile else {
        return vec!["    NOT CONTAINED: it may do all that you may".to_owned()];
    };
    let list = |items: Vec<String>, none: &str| match items.is_empty() {
        true => none.to_owned(),
        false => items.join(", "),
    };
    let fs = profile.fs.clone().unwrap_or_default();
    let shipped = server_profile();
    let toolchains = shipped.fs.unwrap_or_default().read;
    let is_toolchain = |path: &String| path.as_str() != "." && toolchains.contains(path);
    let (toolchains, mut read): (Vec<String>, Vec<String>) =
        fs.read.into_iter().partition(is_toolchain);
    if !toolchains.is_empty() {
        read.push("the toolchains of your home".to_owned());
    }
    let hosts = profile.net.clone().unwrap_or_default().hosts;
    let hosts = hosts.into_iter().map(|host| match host.as_str() {
        "*" => "every public host at port 443".to_owned(),
        _ => host,
    });
    let mut lines = vec![format!(
        "    contained: may read {}; may write {}; may reach {}",
        list(read, "nothing of yours"),
        list(fs.write.into_iter().map(|write| write.path).collect(), "nothing"),
        list(hosts.collect(), "no host")
    )];
    let env = profile.env.clone().unwrap_or_default();
    let usual = shipped.env.unwrap_or_default().allow;
    let passed: Vec<String> = env.allow.into_iter().filter(|name| !usual.contains(name)).collect();
    if !passed.is_empty() {
        lines.push(format!("    is given {} of your environment", passed.join(", ")));
    }
    for (name, secret) in env.secrets {
        lines.push(format!("    is given {name}, the secret {}", secret.secret_ref));
    }
    if profile.enforce == Enforce::BestEffort {
        lines.push(
            "    with what this machine has of a sandbox, if that is not all of it".to_owned(),
        );
    }
    lines
}

#[cfg(test)]
mod tests;
