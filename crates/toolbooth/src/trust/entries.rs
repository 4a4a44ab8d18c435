//! What a person has to trust of a configuration, in entries: what it starts, reads and reaches, and
//! how that is contained.
//!
//! Doc: trust.md#what-counts

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};
use toolbooth_audit::digest::sha256_hex;
use toolbooth_contracts::contract::{AdapterId, BUILTIN_RUNTIME, GATEWAY_RUNTIME};
use toolbooth_contracts::secret::SecretShapes;
use toolbooth_registry::RegisteredTool;

/// Entries by their names: `servers.NAME`, `tools.ID`, or a section such as `http`.
pub(crate) type Entries = BTreeMap<String, Value>;

/// Sections of which each name is an entry of its own: one that is gone asks nothing.
const NAMED: [&str; 6] = ["servers", "commands", "runtimes", "endpoints", "callers", "tools"];

/// Sections without which less is checked than with them; what holds without another is the safest.
const LOOSER_WITHOUT: [&str; 3] = ["discovery", "lock", "trust"];

/// Settings that start nothing, loosen nothing and reach nobody; `*` stands for any name. A setting
/// that is not here counts, so that a new one is asked for until somebody has thought about it.
const HARMLESS: &[&str] = &[
    "audit.checkpoint_events",
    "audit.checkpoint_interval_ms",
    "audit.log",
    "audit.tools",
    "callers.*.deny",
    "callers.*.grants",
    "callers.*.match",
    "callers.*.operate",
    "callers.*.tools",
    "commands.*.defaults.idempotency",
    "commands.*.defaults.permissions",
    "commands.*.defaults.rate_limit_per_min",
    "commands.*.defaults.read_only",
    "commands.*.defaults.timeout_ms",
    "commands.*.deny",
    "commands.*.discover_timeout_ms",
    "commands.*.enabled",
    "commands.*.error_text",
    "commands.*.listing_bytes_max",
    "commands.*.overrides.*.idempotency",
    "commands.*.overrides.*.permissions",
    "commands.*.overrides.*.rate_limit_per_min",
    "commands.*.overrides.*.read_only",
    "commands.*.overrides.*.timeout_ms",
    "commands.*.rename",
    "commands.*.tools",
    "discovery.defaults.idempotency",
    "discovery.defaults.permissions",
    "discovery.defaults.rate_limit_per_min",
    "discovery.defaults.read_only",
    "discovery.defaults.timeout_ms",
    "discovery.interval",
    "discovery.interval_ms",
    "endpoints.*.connect_timeout_ms",
    "endpoints.*.idempotency_header",
    "endpoints.*.response_bytes_max",
    "flags",
    "http.body_bytes_budget",
    "http.body_timeout_ms",
    "http.connections_max",
    "http.header_timeout_ms",
    "http.session_idle_ms",
    "http.sessions_max",
    "http.sessions_per_caller_max",
    "http.write_timeout_ms",
    "mcp",
    "permissions",
    "policy",
    "proxy",
    "receipts",
    // Its contracts are entries of their own.
    "registry",
    "results",
    "retention",
    "runtimes.*.error_text",
    "runtimes.*.workers",
    "servers.*.defaults.idempotency",
    "servers.*.defaults.permissions",
    "servers.*.defaults.rate_limit_per_min",
    "servers.*.defaults.read_only",
    "servers.*.defaults.timeout_ms",
    "servers.*.deny",
    "servers.*.description",
    "servers.*.enabled",
    "servers.*.isolation",
    "servers.*.overrides.*.idempotency",
    "servers.*.overrides.*.permissions",
    "servers.*.overrides.*.rate_limit_per_min",
    "servers.*.overrides.*.read_only",
    "servers.*.overrides.*.timeout_ms",
    "servers.*.rename",
    "servers.*.startup_timeout_ms",
    "servers.*.timeout_ms",
    "servers.*.tools",
    "servers.*.verify",
    "store.bytes_max",
    "store.durability",
    "toolsets",
];

/// Maps whose texts may be secrets: an entry has their digests.
const MASKED: [&str; 6] = ["env", "headers", "query", "secrets", "set", "body"];

fn is_harmless(path: &[&str]) -> bool {
    HARMLESS.iter().any(|pattern| {
        let parts: Vec<&str> = pattern.split('.').collect();
        parts.len() == path.len()
            && parts.iter().zip(path).all(|(part, name)| *part == "*" || part == name)
    })
}

/// What counts of a value; `None` where nothing does.
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

/// The same without secrets: a digest says whether a text is the same.
fn masked(value: Value, is_secret: bool, shapes: &SecretShapes) -> Value {
    match value {
        Value::String(text) if is_secret || shapes.recognise(&text).is_some() => {
            Value::String(format!("sha256:{}", sha256_hex(text.as_bytes())))
        }
        Value::Array(items) => {
            items.into_iter().map(|item| masked(item, is_secret, shapes)).collect()
        }
        Value::Object(members) => {
            let is_reference = members.len() == 1
                && ["secretRef", "secret_ref"].iter().any(|name| members.contains_key(*name));
            let member = |(name, member): (String, Value)| {
                let is_secret = !is_reference && (is_secret || MASKED.contains(&name.as_str()));
                let member = masked(member, is_secret, shapes);
                (name, member)
            };
            Value::Object(members.into_iter().map(member).collect())
        }
        other => other,
    }
}

/// The entries of a configuration, from its document.
pub(crate) fn of_configuration(document: &Value, shapes: &SecretShapes) -> Entries {
    let mut entries = Entries::new();
    for (section, value) in document.as_object().into_iter().flatten() {
        if !NAMED.contains(&section.as_str()) {
            let counted = counting(value, &mut vec![section]);
            entries.extend(counted.map(|counted| (section.clone(), counted)));
            continue;
        }
        for (name, value) in value.as_object().into_iter().flatten() {
            if value.get("enabled") == Some(&Value::Bool(false)) {
                continue;
            }
            let counted = counting(value, &mut vec![section, name]);
            entries.extend(counted.map(|counted| (format!("{section}.{name}"), counted)));
        }
    }
    let mask = |(name, value): (String, Value)| (name, masked(value, false, shapes));
    entries.into_iter().map(mask).collect()
}

/// The entries of the contracts of a registry file: how the tools that run on this machine are contained,
/// where that is not decided by the deepest distrust.
pub(crate) fn of_tools(tools: &[RegisteredTool]) -> Entries {
    let entry = |tool: &RegisteredTool| {
        let contract = tool.contract();
        let Some(AdapterId::Local(runtime)) = contract.execution.adapter() else { return None };
        if [BUILTIN_RUNTIME, GATEWAY_RUNTIME].contains(&runtime.as_str()) {
            return None;
        }
        let level = contract.policy.trust_level.as_str();
        let contained = ["untrusted", "sandbox"].contains(&level);
        if contained && contract.sandbox.is_none() {
            return None;
        }
        let value = serde_json::json!({
            "runtime": runtime,
            "trustLevel": level,
            "sandbox": contract.sandbox,
        });
        Some((format!("tools.{}", contract.tool_id), value))
    };
    tools.iter().filter_map(entry).collect()
}

/// An entry that is not as it was trusted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Change {
    pub(crate) name: String,
    /// As it was trusted; `None` where it is new.
    pub(crate) before: Option<Value>,
    /// As it is; `None` where it is gone and less is checked without it.
    pub(crate) now: Option<Value>,
}

/// What of `now` was not trusted.
pub(crate) fn changes(trusted: &Entries, now: &Entries) -> Vec<Change> {
    let names: BTreeSet<&String> = trusted.keys().chain(now.keys()).collect();
    names
        .into_iter()
        .filter(|name| now.contains_key(*name) || LOOSER_WITHOUT.contains(&name.as_str()))
        .filter(|name| trusted.get(*name) != now.get(*name))
        .map(|name| Change {
            name: name.clone(),
            before: trusted.get(name).cloned(),
            now: now.get(name).cloned(),
        })
        .collect()
}

/// The leaves of a value, by their paths.
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
mod tests {
    use super::*;

    fn entries(text: &str) -> Entries {
        let document: Value = toml::from_str(text).unwrap();
        of_configuration(&document, &crate::compose::shapes())
    }

    fn names(before: &str, now: &str) -> Vec<String> {
        changes(&entries(before), &entries(now)).into_iter().map(|change| change.name).collect()
    }

    const SERVER: &str = "[servers.a]\ncommand = \"x\"\nargs = [\"1\"]\n";

    #[test]
    fn what_starts_something_else_or_loosens_counts() {
        for more in [
            "env = { B = \"2\" }",
            "cwd = \"/\"",
            "sandbox = \"none\"",
            "sandbox = { base = \"server\", net = { hosts = [\"h:1\"] } }",
            "defaults = { trust_level = \"trusted\" }",
            "overrides = { t = { trust_level = \"trusted\" } }",
            "credentials = \"caller\"",
        ] {
            assert_eq!(names(SERVER, &format!("{SERVER}{more}\n")), ["servers.a"], "{more}");
        }
        assert_eq!(names(SERVER, &SERVER.replace('1', "2")), ["servers.a"]);
        assert_eq!(names(SERVER, &format!("{SERVER}[servers.b]\nurl = \"u\"\n")), ["servers.b"]);
        for section in [
            "[http]\nloopback = \"any\"",
            "[sandbox]\nallow_addresses = [\"10.0.0.1\"]",
            "[sandbox.profiles.p]\nbase = \"server\"",
            "[trust.levels]\nfoo = \"trusted\"",
            "[store]\nurl = \"postgres://h/d\"",
            "[audit]\ncheckpoint_file = \"/f\"",
            "[builtin]\nroots = [\"/\"]",
            "[lock]\nmode = \"off\"",
            "[discovery.defaults]\ntrust_level = \"trusted\"",
            "[runtimes.r]\nkind = \"command\"\ncommand = \"x\"",
            "[commands.c]\ndiscover_command = \"x\"\ncall_command = \"y\"",
            "[endpoints.e]\nurl = \"u\"",
            "[callers.c.secrets.s]\nTOKEN = \"t\"",
            "[callers.c]\nsomething_new = 1",
        ] {
            assert_eq!(names(SERVER, &format!("{SERVER}{section}\n")).len(), 1, "{section}");
        }
        let lock = format!("{SERVER}[lock]\nmode = \"file\"\n");
        assert_eq!(names(&lock, SERVER), ["lock"], "less is checked without it");
    }

    #[test]
    fn what_starts_nothing_else_does_not_count() {
        for more in [
            "timeout_ms = 5",
            "description = \"d\"",
            "tools = [\"t\"]",
            "enabled = true",
            "defaults = { timeout_ms = 5 }",
        ] {
            assert_eq!(names(SERVER, &format!("{SERVER}{more}\n")), [""; 0], "{more}");
        }
        let more = "[proxy]\nworkers = 1\n[policy]\nwhitelist = [\"a\"]\n[retention]\nlogs = \"9d\"\n[store]\ndurability = \"process\"\n";
        assert_eq!(names(SERVER, &format!("{SERVER}{more}")), [""; 0]);
        assert_eq!(names(SERVER, ""), [""; 0], "what is gone starts nothing");
        assert_eq!(names("", &format!("{SERVER}enabled = false\n")), [""; 0]);
    }

    #[test]
    fn secrets_are_not_kept_and_a_change_of_one_counts() {
        let with = |value: &str| {
            format!("{SERVER}env = {{ T = \"{value}\", R = {{ secret_ref = \"env:X\" }} }}\n")
        };
        let kept = serde_json::to_string(&entries(&with("hunter2"))).unwrap();
        assert!(!kept.contains("hunter2") && kept.contains("env:X"), "{kept}");
        assert_eq!(names(&with("hunter2"), &with("hunter3")), ["servers.a"]);
    }

    #[test]
    fn every_harmless_setting_is_one() {
        let schema = serde_json::to_value(schemars::schema_for!(crate::config::Config)).unwrap();
        fn has(schema: &Value, root: &Value, path: &[&str]) -> bool {
            let Some((first, rest)) = path.split_first() else { return true };
            let mut stands = vec![schema];
            while let Some(one) = stands.pop() {
                if let Some(reference) = one.get("$ref").and_then(Value::as_str) {
                    stands.extend(root.pointer(reference.trim_start_matches('#')));
                }
                for list in ["anyOf", "oneOf", "allOf"] {
                    stands.extend(one.get(list).and_then(Value::as_array).into_iter().flatten());
                }
                let inner = match *first {
                    "*" => one.get("additionalProperties"),
                    name => one.pointer(&format!("/properties/{name}")),
                };
                if inner.is_some_and(|inner| has(inner, root, rest)) {
                    return true;
                }
            }
            false
        }
        for pattern in HARMLESS.iter().filter(|pattern| **pattern != "discovery.interval") {
            let path: Vec<&str> = pattern.split('.').collect();
            assert!(has(&schema, &schema, &path), "there is no setting `{pattern}`");
        }
    }
}
