//! Turns the listing of a source into contracts, with the operator's settings for that source.
//!
//! The claims of a source never relax its settings.
//!
//! Doc: registry.md#discovery

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use serde_json::{Map, Value, json};
use toolbooth_contracts::Guard;
use toolbooth_contracts::contract::{IdempotencyMode, TIMEOUT_MS_DEFAULT};
use toolbooth_contracts::id::{TOOL_ID_MAX, nearest};
use toolbooth_contracts::port::{DiscoveredTool, Listing};

use crate::digest::sha256_hex;
use crate::parallel;
use crate::registry::ToolRegistry;
use crate::tool::{RegisteredTool, Source};

/// The operator's settings of discovered tools. A setting that is `None` falls back to the wider
/// scope.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ToolSettings {
    /// Wall time of one execution, in milliseconds.
    pub timeout_ms: Option<u64>,
    /// The trust level.
    pub trust_level: Option<String>,
    /// Calls per minute of one caller.
    pub rate_limit_per_min: Option<u64>,
    /// The permissions that a caller needs.
    pub permissions: Option<Vec<String>>,
    /// The idempotency mode.
    pub idempotency: Option<IdempotencyMode>,
    /// Whether the operator declares that the tools change nothing.
    pub read_only: Option<bool>,
}

impl ToolSettings {
    /// These settings, with the missing ones taken from `wider`.
    #[must_use]
    pub fn or(&self, wider: &Self) -> Self {
        Self {
            timeout_ms: self.timeout_ms.or(wider.timeout_ms),
            trust_level: self.trust_level.clone().or_else(|| wider.trust_level.clone()),
            rate_limit_per_min: self.rate_limit_per_min.or(wider.rate_limit_per_min),
            permissions: self.permissions.clone().or_else(|| wider.permissions.clone()),
            idempotency: self.idempotency.or(wider.idempotency),
            read_only: self.read_only.or(wider.read_only),
        }
    }
}

/// The operator's settings of the tools of one source.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SourcePolicy {
    /// Settings of all its tools.
    pub settings: ToolSettings,
    /// Settings of single tools, by their names at the source.
    pub overrides: BTreeMap<String, ToolSettings>,
    /// Names of the tools that are accepted; `None` = all.
    pub tools: Option<Vec<String>>,
    /// Names of the tools that are not accepted.
    pub deny: Vec<String>,
    /// Ids of renamed tools, by their names at the source.
    pub rename: BTreeMap<String, String>,
}

impl SourcePolicy {
    /// The settings of one tool.
    fn of(&self, name: &str) -> ToolSettings {
        match self.overrides.get(name) {
            Some(own) => own.or(&self.settings),
            None => self.settings.clone(),
        }
    }

    /// Settings that name tools which the source does not list, each as a sentence.
    #[must_use]
    pub fn idle_settings(&self, listed: &HashSet<String>) -> Vec<String> {
        let named = self.tools.iter().flatten().map(|name| ("tools", name));
        let named = named
            .chain(self.deny.iter().map(|name| ("deny", name)))
            .chain(self.rename.keys().map(|name| ("rename", name)))
            .chain(self.overrides.keys().map(|name| ("overrides", name)));
        let mut idle = Vec::new();
        for (setting, name) in named.filter(|(_, name)| !listed.contains(*name)) {
            let mut told = format!("`{setting}` names `{name}`, which the source does not list");
            if let Some(near) = nearest(name, listed.iter().map(String::as_str)) {
                told.push_str(&format!("; did you mean `{}`?", near.escape_debug()));
            }
            idle.push(told);
        }
        idle
    }
}

/// The default trust level of discovered tools.
const TRUST_LEVEL_DEFAULT: &str = "untrusted";

/// Minimum number of tools per thread; a thread for fewer costs more than it saves.
const TOOLS_PER_THREAD_MIN: usize = 16;
/// The same for tools that are probably known, and need not be examined.
const KNOWN_TOOLS_PER_THREAD_MIN: usize = 256;

/// The valid tools of `listing`, and its problems with the reasons for rejected tools. An invalid
/// tool never affects the others. A tool that the registry `known` has from the same entry is taken from
/// there; its tools must have been made with the same guard.
#[must_use]
pub fn register_all(
    source: &Source,
    listing: Listing,
    policy: &SourcePolicy,
    guard: &Guard,
    known: &ToolRegistry,
) -> (Vec<Arc<RegisteredTool>>, Vec<String>) {
    let Listing { tools: mut listed, mut problems, .. } = listing;
    listed.retain(|tool| {
        let taken = policy.tools.as_ref().is_none_or(|names| names.contains(&tool.name));
        taken && !policy.deny.contains(&tool.name)
    });
    let per_thread_min = match known.iter().any(|tool| tool.source() == source) {
        true => KNOWN_TOOLS_PER_THREAD_MIN,
        false => TOOLS_PER_THREAD_MIN,
    };
    let made = parallel::map(&listed, per_thread_min, |tool| {
        let entry = entry(source, tool, policy);
        let digest = sha256_hex(entry.to_string().as_bytes());
        let id = entry.get("toolId").and_then(Value::as_str).unwrap_or_default();
        match known.get(id).filter(|known| known.is_of(source, &digest)) {
            Some(known) => Ok(Arc::clone(known)),
            None => RegisteredTool::listed(&entry, digest, source.clone(), guard).map(Arc::new),
        }
    });
    let mut tools = Vec::new();
    for (tool, made) in listed.iter().zip(made) {
        match made {
            Ok(tool) => tools.push(tool),
            Err(findings) => {
                let first = findings.first().map_or_else(String::new, |finding| {
                    format!("{}: {} ({})", finding.path, finding.message, finding.code)
                });
                problems.push(format!("`{}` is left out: {first}", tool.name.escape_debug()));
            }
        }
    }
    (tools, problems)
}

/// The contract of a discovered tool in canonical form, before validation by the guard.
#[must_use]
pub fn entry(source: &Source, tool: &DiscoveredTool, policy: &SourcePolicy) -> Value {
    let settings = policy.of(&tool.name);
    let id = match (policy.rename.get(&tool.name), source) {
        (Some(id), _) => id.clone(),
        (None, Source::Mcp(server)) => tool_id(&format!("{server}.{}", tool.name)),
        (None, _) => tool_id(&tool.name),
    };
    let mut execution = Map::new();
    match source {
        Source::Mcp(server) => execution.insert("mcpServerId".to_owned(), json!(server)),
        Source::Command(_) => {
            execution.insert("localRuntimeId".to_owned(), json!(source.to_string()))
        }
        Source::File | Source::Builtin => {
            execution.insert("localRuntimeId".to_owned(), json!("builtin"))
        }
    };
    if tool.name != id {
        execution.insert("target".to_owned(), json!(tool.name));
    }
    let mut out = json!({
        "toolId": id,
        "category": "function",
        "inputSchema": object_schema(&tool.input_schema),
        "outputSchema": tool.output_schema.clone().unwrap_or_else(|| json!({})),
        "capabilities": {},
        "execution": execution,
        "policy": {
            "timeoutMs": settings.timeout_ms.unwrap_or(TIMEOUT_MS_DEFAULT),
            "trustLevel": settings.trust_level.as_deref().unwrap_or(TRUST_LEVEL_DEFAULT),
        },
        "idempotency": { "mode": settings.idempotency.unwrap_or(IdempotencyMode::OnKey) },
    });
    if let Some(members) = out.as_object_mut() {
        for (name, text) in [("title", &tool.title), ("description", &tool.description)] {
            if let Some(text) = text {
                members.insert(name.to_owned(), json!(text));
            }
        }
        if let Some(annotations) = &tool.annotations {
            members.insert("annotations".to_owned(), Value::Object(annotations.clone()));
        }
        if !tool.extra.is_empty() {
            members.insert("shown".to_owned(), Value::Object(tool.extra.clone()));
        }
        if let Some(permissions) = settings.permissions.filter(|list| !list.is_empty()) {
            members.insert("permissions".to_owned(), json!(permissions));
        }
    }
    if let Some(members) = out.get_mut("policy").and_then(Value::as_object_mut) {
        if let Some(limit) = settings.rate_limit_per_min {
            members.insert("rateLimitPerMin".to_owned(), json!(limit));
        }
        if let Some(read_only) = settings.read_only {
            members.insert("readOnly".to_owned(), json!(read_only));
        }
    }
    out
}

/// An input schema with `type: object` at its root, which many servers omit.
fn object_schema(schema: &Value) -> Value {
    match schema {
        Value::Object(members) if !members.contains_key("type") => {
            let mut members = members.clone();
            members.insert("type".to_owned(), json!("object"));
            Value::Object(members)
        }
        Value::Null => json!({ "type": "object" }),
        other => other.clone(),
    }
}

/// An id from any name. Characters that ids do not allow become `_`. An empty or overlong id ends
/// in `_` and 8 hex digits of a digest.
#[must_use]
pub fn tool_id(name: &str) -> String {
    let id: String =
        name.chars()
            .map(|c| {
                if c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | '/') {
                    c
                } else {
                    '_'
                }
            })
            .collect();
    if id.len() <= TOOL_ID_MAX && !id.is_empty() {
        return id;
    }
    let digest = sha256_hex(name.as_bytes());
    let keep = id.get(..TOOL_ID_MAX - 9).unwrap_or_default();
    format!("{keep}_{}", digest.get(..8).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tool(name: &str, schema: Value) -> DiscoveredTool {
        DiscoveredTool {
            name: name.to_owned(),
            title: None,
            description: Some("d".to_owned()),
            input_schema: schema,
            output_schema: None,
            annotations: None,
            extra: serde_json::Map::new(),
        }
    }

    /// Registers a listing where no tool is known.
    fn register(
        source: &Source,
        listing: Listing,
        policy: &SourcePolicy,
    ) -> (Vec<Arc<RegisteredTool>>, Vec<String>) {
        register_all(source, listing, policy, &Guard::default(), &ToolRegistry::default())
    }

    #[test]
    fn tools_that_are_listed_again_are_not_made_again() {
        let source = Source::Mcp("s".into());
        let mut known = ToolRegistry::default();
        let mut again = |listed: &[DiscoveredTool], policy: &SourcePolicy, source: &Source| {
            let listing = Listing { tools: listed.to_vec(), ..Listing::default() };
            let (tools, problems) =
                register_all(source, listing, policy, &Guard::default(), &known);
            assert!(problems.is_empty(), "{problems:?}");
            let before = |tool: &&Arc<RegisteredTool>| {
                known.get(tool.id().as_str()).is_some_and(|known| Arc::ptr_eq(known, tool))
            };
            let same = tools.iter().filter(before).count();
            known.replace_source(source, tools);
            same
        };
        let policy = SourcePolicy::default();
        let mut listed: Vec<_> =
            (0..100).map(|at| tool(&format!("t{at}"), json!({"type": "object"}))).collect();
        assert_eq!(again(&listed, &policy, &source), 0);
        assert_eq!(again(&listed, &policy, &source), 100);
        listed[0].description = Some("other".to_owned());
        listed[1].input_schema = json!({"type": "object", "required": ["a"]});
        listed[2].annotations = json!({"readOnlyHint": true}).as_object().cloned();
        listed[3].title = Some("other".to_owned());
        listed[4].output_schema = Some(json!({"type": "object"}));
        assert_eq!(again(&listed, &policy, &source), 95);
        // The settings of the operator are part of the entry.
        let own = ToolSettings { timeout_ms: Some(5), ..ToolSettings::default() };
        let policy = SourcePolicy { overrides: [("t9".to_owned(), own)].into(), ..policy };
        assert_eq!(again(&listed, &policy, &source), 99);
        // A tool of another source is another tool.
        let (first, second) = (Source::Command("a".into()), Source::Command("b".into()));
        let listed = [tool("same", json!({"type": "object"}))];
        let policy = SourcePolicy::default();
        assert_eq!(again(&listed, &policy, &first), 0);
        assert_eq!(again(&listed, &policy, &second), 0);
    }

    #[test]
    fn ids_name_server_and_tool_and_keep_the_original_as_target() {
        let source = Source::Mcp("my srv".into());
        let listing = Listing { tools: vec![tool("get sum!", json!({}))], ..Listing::default() };
        let (tools, problems) = register(&source, listing, &SourcePolicy::default());
        assert!(problems.is_empty(), "{problems:?}");
        assert_eq!(tools[0].id().as_str(), "my_srv.get_sum_");
        assert_eq!(tools[0].contract().execution.target.as_deref(), Some("get sum!"));
        assert_eq!(tool_id(&"x".repeat(200)).len(), 128);
    }

    #[test]
    fn one_bad_tool_never_drops_its_source() {
        let source = Source::Mcp("s".into());
        let bad = tool("bad", json!({"type": "object", "properties": {"a": {"type": "strin"}}}));
        let listing = Listing {
            tools: vec![bad, tool("good", json!({"type": "object"}))],
            ..Listing::default()
        };
        let (tools, problems) = register(&source, listing, &SourcePolicy::default());
        assert_eq!((tools.len(), problems.len()), (1, 1));
        assert!(problems[0].contains("`bad`"), "{problems:?}");
    }

    #[test]
    fn operators_choose_and_rename() {
        let source = Source::Mcp("s".into());
        let policy = SourcePolicy {
            deny: vec!["b".into()],
            rename: [("a".into(), "mine.a".into())].into(),
            ..SourcePolicy::default()
        };
        let listing = Listing {
            tools: vec![tool("a", json!({})), tool("b", json!({}))],
            ..Listing::default()
        };
        let (tools, _) = register(&source, listing, &policy);
        assert_eq!(tools.len(), 1);
        assert_eq!(tools[0].id().as_str(), "mine.a");
    }

    #[test]
    fn settings_of_a_tool_come_before_those_of_its_source() {
        let source = Source::Mcp("s".into());
        let own = ToolSettings { timeout_ms: Some(5), ..ToolSettings::default() };
        let wide = ToolSettings {
            timeout_ms: Some(50),
            rate_limit_per_min: Some(6),
            ..ToolSettings::default()
        };
        let policy = SourcePolicy {
            settings: wide,
            overrides: [("a".to_owned(), own)].into(),
            tools: Some(vec!["a".into(), "b".into(), "bb".into()]),
            ..SourcePolicy::default()
        };
        let listing = Listing {
            tools: vec![tool("a", json!({})), tool("b", json!({}))],
            ..Listing::default()
        };
        let names = listing.tools.iter().map(|tool| tool.name.clone()).collect();
        let (tools, _) = register(&source, listing, &policy);
        let of = |at: usize| &tools[at].contract().policy;
        assert_eq!((of(0).timeout_ms, of(1).timeout_ms), (5, 50));
        assert_eq!(of(0).rate_limit_per_min, of(1).rate_limit_per_min);
        let idle = policy.idle_settings(&names);
        assert_eq!(idle.len(), 1);
        assert!(idle[0].contains("`bb`"), "{idle:?}");
    }
}
