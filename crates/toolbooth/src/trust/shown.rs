//! What a person is shown of a configuration before it is trusted.
//!
//! Doc: trust.md#the-question

use std::path::{Path, PathBuf};

use toolbooth_adapters::mcp::Reach;
use toolbooth_adapters::sandbox::{default_profile, is_wide, of_call, server_profile};
use toolbooth_adapters::{secret_place_of, secrets};
use toolbooth_contracts::sandbox::SandboxProfile;

use super::entries::{Change, leaves};
use crate::config::{self, CommandText, Loaded, RuntimeKind, Setting};
use crate::executors;

/// Most characters of one line.
const LINE_MAX: usize = 400;
/// Most tools of the registry file that are named.
const TOOLS_MAX: usize = 10;

/// Each change as lines, those that start something first.
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
        if let Some(before) = &change.before {
            own.extend(differences(before, change.now.as_ref().unwrap_or_default()));
        }
        lines.extend(own);
    }
    let levels = executors::levels(&loaded.config);
    if !tools.is_empty() {
        lines.push(format!(
            "{} tool(s) of the registry file are contained as their contracts say:",
            tools.len()
        ));
        for change in tools.iter().take(TOOLS_MAX) {
            let own = change.now.as_ref().unwrap_or_default();
            let level = own.get("trustLevel").and_then(|level| level.as_str()).unwrap_or_default();
            let id = change.name.trim_start_matches("tools.");
            let runtime = own.get("runtime").and_then(|own| own.as_str()).unwrap_or_default();
            let sandbox = own.get("sandbox").cloned().unwrap_or_default();
            let sandbox: Option<SandboxProfile> = serde_json::from_value(sandbox).ok();
            let profile = of_call(sandbox.as_ref(), levels.of(level));
            let contained = contained(profile.as_ref());
            lines.push(format!("    {id} (`{level}`, runtime `{runtime}`): {}", contained.trim()));
            if let Some(before) = &change.before {
                lines.extend(differences(before, own));
            }
        }
        if tools.len() > TOOLS_MAX {
            lines.push(format!("    and {} more", tools.len() - TOOLS_MAX));
        }
    }
    lines.into_iter().map(shortened).collect()
}

fn shortened(line: String) -> String {
    // One line for one thing, whatever a text of the configuration holds.
    let line = line.replace(['\n', '\r'], " ");
    match line.char_indices().nth(LINE_MAX) {
        Some((at, _)) => format!("{}… ({} characters)", &line[..at], line.chars().count()),
        None => line,
    }
}

/// What is different in an entry that was trusted before.
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

fn described(loaded: &Loaded, change: &Change) -> Vec<String> {
    let config = &loaded.config;
    let (section, name) = change.name.split_once('.').unwrap_or((&change.name, ""));
    let described = match section {
        "servers" => config.servers.get(name).map(|server| of_server(loaded, name, server)),
        "commands" => config.commands.get(name).map(|pair| of_commands(loaded, name, pair)),
        "runtimes" => config.runtimes.get(name).map(|runtime| of_runtime(loaded, name, runtime)),
        "endpoints" => config.endpoints.get(name).map(|endpoint| {
            let url = endpoint.url.as_deref().unwrap_or("the servers of its document");
            let mut lines = vec![format!("endpoint `{name}` sends requests to {url}")];
            lines.extend(given("with", endpoint.headers.iter()));
            if endpoint.allow_private {
                lines.push("    addresses that are not public too".to_owned());
            }
            lines
        }),
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

/// A path that an argument names.
fn named(path: &Path) -> String {
    let home = std::env::var_os("HOME").map(PathBuf::from);
    match secret_place_of(path, home.as_deref()) {
        Some(place) => format!(
            "    its argument names {}: it does not start, because {} holds secrets",
            path.display(),
            place.display()
        ),
        None if is_wide(path, home.as_deref()) => format!(
            "    its argument names {}, which it may not read: it holds all kinds of things",
            path.display()
        ),
        None => format!("    may read {} too, which an argument names", path.display()),
    }
}

/// Variables or headers, by their names, with where secrets come from.
fn given<'s>(
    word: &str,
    settings: impl Iterator<Item = (&'s String, &'s Setting)>,
) -> Option<String> {
    let of = |(name, setting): (&String, &Setting)| match setting {
        Setting::Text(text) if text.contains("${") => format!("{name} (from {text})"),
        Setting::Text(_) => name.clone(),
        Setting::Secret(reference) => format!("{name} (the secret {})", reference.secret_ref),
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
    match settings.reach {
        Reach::Stdio(child) => {
            let words = child.line.argv.iter().map(secrets::Setting::shown);
            let mut lines = vec![format!("server `{name}` starts: {}", words_of(words))];
            lines.extend(child.line.cwd.as_ref().map(|cwd| format!("    in {}", cwd.shown())));
            lines.push(contained(child.profile.as_ref()));
            if child.profile.is_some() {
                lines.extend(executors::named_paths(&child).iter().map(|path| named(path)));
            }
            lines.extend(given("is given", server.env.iter()));
            lines
        }
        Reach::Http { url, .. } => {
            let mut lines = vec![format!("server `{name}` is reached at {}", url.shown())];
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
    lines.push(contained(of_call(tools.sandbox.as_ref(), tools.trust).as_ref()));
    lines.extend(given("is given", pair.env.iter()));
    lines
}

fn of_runtime(loaded: &Loaded, name: &str, runtime: &config::Runtime) -> Vec<String> {
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
    let place = format!("runtimes.{name}.sandbox");
    match sandbox.of_calls(runtime.sandbox.as_ref(), &place, Some(&loaded.folder)) {
        Ok(Some(profile)) => lines.push(contained(Some(&profile))),
        // The trust level of each contract decides.
        Ok(None) => lines.push(format!(
            "{}, unless a contract says `trusted`",
            contained(Some(&default_profile()))
        )),
        Err(failure) => lines.push(format!("    which cannot be used: {}", failure.message)),
    }
    lines.extend(given("is given", runtime.env.iter()));
    lines
}

/// A command line as a shell would be given it.
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

fn contained(profile: Option<&SandboxProfile>) -> String {
    let Some(profile) = profile else {
        return "    NOT CONTAINED: it may do all that you may".to_owned();
    };
    let list = |items: Vec<String>, none: &str| match items.is_empty() {
        true => none.to_owned(),
        false => items.join(", "),
    };
    let fs = profile.fs.clone().unwrap_or_default();
    let shipped = server_profile().fs.unwrap_or_default().read;
    let is_toolchain = |path: &String| path.as_str() != "." && shipped.contains(path);
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
    format!(
        "    contained: may read {}; may write {}; may reach {}",
        list(read, "nothing of yours"),
        list(fs.write.into_iter().map(|write| write.path).collect(), "nothing"),
        list(hosts.collect(), "no host")
    )
}
