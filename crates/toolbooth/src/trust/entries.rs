//! Divides a configuration into the entries that a user trusts: the processes that it starts, the data and
//! hosts that it accesses, and their sandboxes.
//!
//! Doc: trust.md#what-counts

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path};

use serde_json::{Map, Value};
use toolbooth_audit::digest::sha256_hex;
use toolbooth_contracts::contract::{
    AdapterId, BUILTIN_RUNTIME, GATEWAY_RUNTIME, HANDLERS_RUNTIME,
};
use toolbooth_contracts::secret::SecretShapes;
use toolbooth_registry::RegisteredTool;

/// Entries by name: `servers.NAME`, `tools.ID`, or a section such as `http`.
pub(crate) type Entries = BTreeMap<String, Value>;

/// Sections in which each name is a separate entry.
const NAMED: [&str; 5] = ["servers", "commands", "runtimes", "endpoints", "tools"];

/// The section in which each name is a separate entry, also if it is empty.
const HOOKS: &str = "hooks";

/// Sections that restrict access or enable checks, so that removing one is a change. Removing an entry that
/// starts a process is not, because it then starts nothing.
const LOOSER_WITHOUT: [&str; 14] = [
    "approvals",
    "audit",
    "auth",
    "budgets",
    "builtin",
    "callers",
    "discovery",
    "flags",
    "lock",
    "permissions",
    "policy",
    "store",
    "tools",
    "trust",
];

/// Settings that start nothing, loosen nothing and reach no host; `*` matches any name. All other settings
/// are relevant for trust, so that a new setting requires trust until it is reviewed.
const HARMLESS: &[&str] = &[
    "audit.checkpoint_events",
    "audit.checkpoint_interval_ms",
    "commands.*.defaults.rate_limit_per_min",
    "commands.*.defaults.timeout_ms",
    "commands.*.discover_timeout_ms",
    "commands.*.enabled",
    "commands.*.listing_bytes_max",
    "commands.*.overrides.*.rate_limit_per_min",
    "commands.*.overrides.*.timeout_ms",
    "discovery.defaults.rate_limit_per_min",
    "discovery.defaults.timeout_ms",
    "discovery.interval",
    "discovery.interval_ms",
    "endpoints.*.connect_timeout_ms",
    "endpoints.*.response_bytes_max",
    "http.body_bytes_budget",
    "http.body_timeout_ms",
    "http.connections_max",
    "http.header_timeout_ms",
    "http.session_idle_ms",
    "http.sessions_max",
    "http.sessions_per_caller_max",
    "http.write_timeout_ms",
    "mcp",
    "proxy.argument_bytes_max",
    "proxy.in_flight_max",
    "proxy.input_patience_ms",
    "proxy.progress_cap_ms",
    "proxy.queued_max",
    "proxy.result_bytes_max",
    "proxy.shutdown_grace_ms",
    "proxy.workers",
    // The contracts of the file are separate entries.
    "registry",
    "results",
    "runtimes.*.workers",
    "servers.*.defaults.rate_limit_per_min",
    "servers.*.defaults.timeout_ms",
    "servers.*.description",
    "servers.*.enabled",
    "servers.*.overrides.*.rate_limit_per_min",
    "servers.*.overrides.*.timeout_ms",
    "servers.*.startup_timeout_ms",
    "servers.*.timeout_ms",
    "store.bytes_max",
    "toolsets",
];

/// The maximum number of separate contract entries of a registry file; above it, all contracts are one entry.
const TOOLS_MAX: usize = 1_000;
/// The largest file with a digest in an entry, in bytes.
const FILE_BYTES_MAX: u64 = 32 << 20;

/// Maps with texts that can be secrets. An entry contains only their digests.
const MASKED: [&str; 6] = ["env", "headers", "query", "secrets", "set", "body"];

fn is_harmless(path: &[&str]) -> bool {
    HARMLESS.iter().any(|pattern| {
        let parts: Vec<&str> = pattern.split('.').collect();
        parts.len() == path.len()
            && parts.iter().zip(path).all(|(part, name)| *part == "*" || part == name)
    })
}

/// Returns the part of a value that is relevant for trust; `None` if there is none.
fn counting<'v>(value: &'v Value, path: &mut Vec<&'v str>) -> Option<Value> {
    if is_harmless(path) {
        return None;
    }
    let Value::Object(members) = value else { return Some(value.clone()) };
    let mut kept = Map::new();
    for (name, member) in members {
        path.push(name);
        if let Some(member) = counting(member, path) {
            kept.insert(name.clone(), member);
        }
        path.pop();
    }
    (!kept.is_empty()).then_some(Value::Object(kept))
}

/// Maps whose names the author of a configuration chooses. A name in them is never that of a map with secrets.
const CHOSEN: [&str; 11] = [
    "callers",
    "history",
    "intents",
    "issuers",
    "levels",
    "overrides",
    "permissions",
    "profiles",
    "rename",
    "tools",
    "toolsets",
];

/// Replaces secrets in a value by digests, which still show whether a text has changed. `map` is the name of the
/// value as a map; empty for a map with settings of a name that was chosen.
fn masked(value: Value, map: &str, is_secret: bool, shapes: &SecretShapes) -> Value {
    match value {
        Value::String(text) if is_secret || shapes.recognise(&text).is_some() => {
            Value::String(format!("sha256:{}", sha256_hex(text.as_bytes())))
        }
        Value::Array(items) => {
            items.into_iter().map(|item| masked(item, "", is_secret, shapes)).collect()
        }
        Value::Object(members) => {
            let names = ["secretRef", "secret_ref"];
            let is_reference = names.iter().any(|name| members.contains_key(*name))
                && members.keys().all(|name| names.contains(&name.as_str()) || name == "mask");
            let member = |(name, member): (String, Value)| {
                let is_chosen = CHOSEN.contains(&map);
                let is_masked = !is_chosen && MASKED.contains(&name.as_str());
                let is_secret = !is_reference && (is_secret || is_masked);
                let map = if is_chosen { "" } else { name.as_str() };
                let member = masked(member, map, is_secret, shapes);
                (name, member)
            };
            Value::Object(members.into_iter().map(member).collect())
        }
        other => other,
    }
}

/// Converts TOML into JSON. This is done by hand, because the JSON library reads some keys as numbers.
fn json(value: &toml::Value) -> Value {
    match value {
        toml::Value::String(text) => Value::String(text.clone()),
        toml::Value::Integer(number) => (*number).into(),
        toml::Value::Float(number) => Value::String(number.to_string()),
        toml::Value::Boolean(yes) => (*yes).into(),
        toml::Value::Datetime(time) => Value::String(time.to_string()),
        toml::Value::Array(items) => items.iter().map(json).collect(),
        toml::Value::Table(table) => {
            Value::Object(table.iter().map(|(name, value)| (name.clone(), json(value))).collect())
        }
    }
}

/// Collects the texts of a value.
fn texts<'v>(value: &'v Value, found: &mut Vec<&'v str>) {
    match value {
        Value::String(text) => found.push(text),
        Value::Array(items) => items.iter().for_each(|item| texts(item, found)),
        Value::Object(members) => members.values().for_each(|member| texts(member, found)),
        _ => (),
    }
}

/// Returns the targets of relative paths in an entry that links lead out of the configuration's folder.
fn links(value: &Value, folder: &Path) -> Map<String, Value> {
    let Ok(root) = folder.canonicalize() else { return Map::new() };
    let mut found = Vec::new();
    texts(value, &mut found);
    let cwd = value.get("cwd").and_then(Value::as_str).map(|cwd| root.join(cwd));
    let mut links = Map::new();
    for text in found.into_iter().filter(|text| !text.is_empty() && !Path::new(text).is_absolute())
    {
        for base in [Some(&root), cwd.as_ref()].into_iter().flatten() {
            let path = base.join(text);
            let is_outside = Path::new(text).components().any(|part| part == Component::ParentDir);
            let real = path.canonicalize().ok();
            if let Some(real) = real.filter(|real| !is_outside && !real.starts_with(&root)) {
                links.insert(text.to_owned(), real.display().to_string().into());
            }
        }
    }
    links
}

/// Returns the digest of a file that an entry names, if the file exists and is not too large.
fn digest_of_file(path: &Path) -> Option<String> {
    let data = std::fs::metadata(path).ok()?;
    let is_read = data.is_file() && data.len() <= FILE_BYTES_MAX;
    let text = is_read.then(|| std::fs::read(path).ok()).flatten()?;
    Some(format!("sha256:{}", sha256_hex(&text)))
}

/// Adds facts from files to an entry: targets of links, digests of endpoint files, and package registries.
fn with_files(section: &str, mut value: Value, folder: &Path) -> Value {
    let links = links(&value, folder);
    let text = |name: &str| value.get(name).and_then(Value::as_str).map(str::to_owned);
    let mut more = Map::new();
    if section == "endpoints" {
        let document = text("openapi").filter(|_| text("url").is_none());
        let files = [("documentDigest", document), ("authoritiesDigest", text("ca_file"))];
        for (name, file) in files.into_iter().filter_map(|(name, file)| Some((name, file?))) {
            more.extend(digest_of_file(&folder.join(file)).map(|it| (name.to_owned(), it.into())));
        }
    }
    if section == "servers" && text("command").is_some() {
        let cwd = text("cwd").map_or_else(|| folder.to_owned(), |cwd| folder.join(cwd));
        for (name, url) in toolbooth_adapters::project_registries(&cwd) {
            more.insert(name, url.into());
        }
    }
    if let (Some(members), false) = (value.as_object_mut(), links.is_empty()) {
        members.insert("leadsTo".to_owned(), Value::Object(links));
    }
    if let (Some(members), false) = (value.as_object_mut(), more.is_empty()) {
        members.insert("files".to_owned(), Value::Object(more));
    }
    value
}

/// Returns the entries of a configuration in a folder, from its document.
pub(crate) fn of_configuration(
    document: &toml::Table,
    folder: &Path,
    shapes: &SecretShapes,
) -> Entries {
    let mut entries = Entries::new();
    for (section, value) in document {
        let value = json(value);
        // A hook needs no setting: its section alone lets it permit calls.
        if section == HOOKS {
            let hooks = value.as_object().into_iter().flatten();
            entries.extend(hooks.map(|(name, hook)| (format!("{HOOKS}.{name}"), hook.clone())));
            continue;
        }
        if !NAMED.contains(&section.as_str()) {
            let counted = counting(&value, &mut vec![section]);
            let counted = counted.map(|counted| with_files(section, counted, folder));
            entries.extend(counted.map(|counted| (section.clone(), counted)));
            continue;
        }
        for (name, value) in value.as_object().into_iter().flatten() {
            if value.get("enabled") == Some(&Value::Bool(false)) {
                continue;
            }
            let counted = counting(value, &mut vec![section, name]);
            let counted = counted.map(|counted| with_files(section, counted, folder));
            entries.extend(counted.map(|counted| (format!("{section}.{name}"), counted)));
        }
    }
    let mask = |(name, value): (String, Value)| {
        // The entry of a section has its name, and that of one of its members has a name that was chosen.
        let map = if name.contains('.') { "" } else { name.as_str() };
        let value = masked(value, map, false, shapes);
        (name, value)
    };
    entries.into_iter().map(mask).collect()
}

/// Returns the entries of the contracts of a registry file. Tools of servers and endpoints have entries,
/// because their contracts replace the listed ones. Local tools have entries if they have their own sandbox,
/// or a level other than `untrusted` and `sandbox`. Other tools of a trusted runtime use its sandbox.
pub(crate) fn of_tools(tools: &[RegisteredTool]) -> Entries {
    let entry = |tool: &RegisteredTool| {
        let contract = tool.contract();
        let adapter = contract.execution.adapter()?;
        let level = contract.policy.trust_level.as_str();
        let is_contained = ["untrusted", "sandbox"].contains(&level) && contract.sandbox.is_none();
        match &adapter {
            AdapterId::Local(own) if [BUILTIN_RUNTIME, GATEWAY_RUNTIME].contains(&own.as_str()) => {
                return None;
            }
            // This runtime uses a default folder that needs no configuration.
            AdapterId::Local(own) if is_contained && own == HANDLERS_RUNTIME => {
                let value = serde_json::json!({ "folder": HANDLERS_RUNTIME });
                return Some((HANDLERS_RUNTIME.to_owned(), value));
            }
            // What a client runs itself is in no sandbox of the gateway.
            adapter if adapter.client().is_some() => (),
            AdapterId::Local(_) if is_contained => return None,
            _ => (),
        }
        let value = serde_json::json!({
            "adapter": adapter.to_string(),
            "target": contract.execution.target,
            "trustLevel": contract.policy.trust_level,
            "sandbox": contract.sandbox,
            "approval": contract.policy.approval,
            "readOnly": contract.policy.read_only,
            "permissions": contract.permissions,
        });
        Some((format!("tools.{}", contract.tool_id), value))
    };
    let entries: Entries = tools.iter().filter_map(entry).collect();
    if entries.len() <= TOOLS_MAX {
        return entries;
    }
    let text = serde_json::to_string(&entries).unwrap_or_default();
    let all = serde_json::json!({
        "count": entries.len(), "digest": format!("sha256:{}", sha256_hex(text.as_bytes())),
    });
    Entries::from([("tools".to_owned(), all)])
}

/// Whether an entry belongs to the registry file.
pub(crate) fn is_of_registry(name: &str) -> bool {
    [HANDLERS_RUNTIME, "tools"].contains(&name) || name.starts_with("tools.")
}

/// An entry that differs from its trusted state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Change {
    pub(crate) name: String,
    /// The trusted state; `None` if the entry is new.
    pub(crate) before: Option<Value>,
    /// The current state; `None` if the entry was removed and removing it loosens a check.
    pub(crate) now: Option<Value>,
}

/// Returns the entries of `now` that differ from the trusted ones.
pub(crate) fn changes(trusted: &Entries, now: &Entries) -> Vec<Change> {
    let is_looser = |name: &str| {
        let section = name.split_once('.').map_or(name, |(section, _)| section);
        LOOSER_WITHOUT.contains(&section)
    };
    let names: BTreeSet<&String> = trusted.keys().chain(now.keys()).collect();
    names
        .into_iter()
        .filter(|name| now.contains_key(*name) || is_looser(name))
        .filter(|name| trusted.get(*name) != now.get(*name))
        .map(|name| Change {
            name: name.clone(),
            before: trusted.get(name).cloned(),
            now: now.get(name).cloned(),
        })
        .collect()
}

/// Returns the leaves of a value by path.
pub(crate) fn leaves(value: &Value) -> BTreeMap<String, String> {
    fn walk(value: &Value, path: String, found: &mut BTreeMap<String, String>) {
        match value {
            Value::Object(members) => {
                for (name, member) in members {
                    let path =
                        if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                    walk(member, path, found);
                }
            }
            leaf => drop(found.insert(path, leaf.to_string())),
        }
    }
    let mut found = BTreeMap::new();
    walk(value, String::new(), &mut found);
    found
}

#[cfg(test)]
mod tests;
