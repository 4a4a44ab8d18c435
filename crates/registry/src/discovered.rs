//! Turns what a source lists into contracts, with the operator's settings for that source.
//!
//! What a source says of itself never loosens anything.
//!
//! Doc: registry.md#discovery

use serde_json::{Map, Value, json};
use toolbooth_contracts::Guard;
use toolbooth_contracts::contract::{IdempotencyMode, TIMEOUT_MS_DEFAULT};
use toolbooth_contracts::id::TOOL_ID_MAX;
use toolbooth_contracts::port::{DiscoveredTool, Listing};

use crate::digest::sha256_hex;
use crate::tool::{RegisteredTool, Source};

/// What the operator says of the tools of a source.
#[derive(Debug, Clone, PartialEq)]
pub struct SourcePolicy {
    /// Wall time of one execution, in milliseconds.
    pub timeout_ms: u64,
    /// The trust level.
    pub trust_level: String,
    /// Calls per minute of one caller.
    pub rate_limit_per_min: Option<u64>,
    /// What a caller must be granted.
    pub permissions: Vec<String>,
    /// The idempotency mode.
    pub idempotency: IdempotencyMode,
    /// The operator's word that the tools change nothing.
    pub read_only: Option<bool>,
    /// Names that are taken; `None` = all.
    pub tools: Option<Vec<String>>,
    /// Names that are left out.
    pub deny: Vec<String>,
    /// Names that get another id.
    pub rename: Vec<(String, String)>,
}

impl Default for SourcePolicy {
    fn default() -> Self {
        Self {
            timeout_ms: TIMEOUT_MS_DEFAULT,
            trust_level: "untrusted".to_owned(),
            rate_limit_per_min: None,
            permissions: Vec::new(),
            idempotency: IdempotencyMode::OnKey,
            read_only: None,
            tools: None,
            deny: Vec::new(),
            rename: Vec::new(),
        }
    }
}

/// The tools of `listing`, and what is wrong with those that were left out. One bad tool never
/// drops its source.
#[must_use]
pub fn register_all(
    source: &Source,
    listing: Listing,
    policy: &SourcePolicy,
    guard: &Guard,
) -> (Vec<RegisteredTool>, Vec<String>) {
    let mut problems = listing.problems;
    let mut tools = Vec::new();
    for tool in listing.tools {
        let taken = policy.tools.as_ref().is_none_or(|names| names.contains(&tool.name));
        if !taken || policy.deny.contains(&tool.name) {
            continue;
        }
        let entry = entry(source, &tool, policy);
        match RegisteredTool::from_entry(&entry, source.clone(), guard) {
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

/// The contract of a discovered tool, in canonical form and not yet guarded.
#[must_use]
pub fn entry(source: &Source, tool: &DiscoveredTool, policy: &SourcePolicy) -> Value {
    let renamed = policy.rename.iter().find(|(name, _)| *name == tool.name);
    let id = match (renamed, source) {
        (Some((_, id)), _) => id.clone(),
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
        "policy": { "timeoutMs": policy.timeout_ms, "trustLevel": policy.trust_level },
        "idempotency": { "mode": policy.idempotency },
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
        if !policy.permissions.is_empty() {
            members.insert("permissions".to_owned(), json!(policy.permissions));
        }
    }
    if let Some(members) = out.get_mut("policy").and_then(Value::as_object_mut) {
        if let Some(limit) = policy.rate_limit_per_min {
            members.insert("rateLimitPerMin".to_owned(), json!(limit));
        }
        if let Some(read_only) = policy.read_only {
            members.insert("readOnly".to_owned(), json!(read_only));
        }
    }
    out
}

/// A schema of arguments whose root says that it is an object, which many servers leave out.
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

/// An id from any name: other characters become `_`, an overlong one ends in `_` and 8 hex.
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
        }
    }

    #[test]
    fn ids_name_server_and_tool_and_keep_the_original_as_target() {
        let source = Source::Mcp("my srv".into());
        let listing = Listing { tools: vec![tool("get sum!", json!({}))], problems: vec![] };
        let (tools, problems) =
            register_all(&source, listing, &SourcePolicy::default(), &Guard::default());
        assert!(problems.is_empty(), "{problems:?}");
        assert_eq!(tools[0].id().as_str(), "my_srv.get_sum_");
        assert_eq!(tools[0].contract().execution.target.as_deref(), Some("get sum!"));
        assert_eq!(tool_id(&"x".repeat(200)).len(), 128);
    }

    #[test]
    fn one_bad_tool_never_drops_its_source() {
        let source = Source::Mcp("s".into());
        let bad = tool("bad", json!({"type": "object", "properties": {"a": {"type": "strin"}}}));
        let listing =
            Listing { tools: vec![bad, tool("good", json!({"type": "object"}))], problems: vec![] };
        let (tools, problems) =
            register_all(&source, listing, &SourcePolicy::default(), &Guard::default());
        assert_eq!((tools.len(), problems.len()), (1, 1));
        assert!(problems[0].contains("`bad`"), "{problems:?}");
    }

    #[test]
    fn operators_choose_and_rename() {
        let source = Source::Mcp("s".into());
        let policy = SourcePolicy {
            deny: vec!["b".into()],
            rename: vec![("a".into(), "mine.a".into())],
            ..SourcePolicy::default()
        };
        let listing =
            Listing { tools: vec![tool("a", json!({})), tool("b", json!({}))], problems: vec![] };
        let (tools, _) = register_all(&source, listing, &policy, &Guard::default());
        assert_eq!(tools.len(), 1);
        assert_eq!(tools[0].id().as_str(), "mine.a");
    }
}
