//! The claims of a source about a tool, without the operator's settings.
//!
//! Doc: registry.md#digests

use serde_json::{Map, Value, json};
use toolbooth_contracts::contract::ToolContract;
use toolbooth_contracts::json::canonical;
use toolbooth_contracts::port::DiscoveredTool;

use crate::digest;

/// The claims of a source about one tool: the part that clients and models see.
#[derive(Debug, Clone, PartialEq)]
pub struct SourceClaims {
    /// The name of the tool at its source.
    pub name: String,
    /// The display name.
    pub title: Option<String>,
    /// The description of the tool.
    pub description: Option<String>,
    /// JSON Schema of the arguments.
    pub input_schema: Value,
    /// JSON Schema of the structured result; `{}` = anything.
    pub output_schema: Value,
    /// The hints of the source about the tool, as MCP defines them.
    pub annotations: Option<Map<String, Value>>,
    /// Other members that the source lists for clients, such as `icons` and `_meta`.
    pub extra: Map<String, Value>,
}

impl SourceClaims {
    /// The claims from which a contract was made.
    #[must_use]
    pub fn of(contract: &ToolContract) -> Self {
        let name = contract.execution.target.as_deref().unwrap_or(contract.tool_id.as_str());
        Self {
            name: name.to_owned(),
            title: contract.title.clone(),
            description: contract.description.clone(),
            input_schema: contract.input_schema.clone(),
            output_schema: contract.output_schema.clone(),
            annotations: contract.annotations.clone(),
            extra: contract.shown.clone(),
        }
    }

    /// The *source digest*: SHA-256 of the canonical JSON, in hex.
    #[must_use]
    pub fn digest(&self) -> String {
        digest::of(&self.with_extra(json!({
            "name": self.name,
            "title": self.title,
            "description": self.description,
            "inputSchema": self.input_schema,
            "outputSchema": self.output_schema,
            "annotations": self.annotations,
        })))
    }

    /// Adds the extra members to `claims`, if there are any. Without them the digest is the same as
    /// in versions that did not have them.
    fn with_extra(&self, mut claims: Value) -> Value {
        if let (false, Some(members)) = (self.extra.is_empty(), claims.as_object_mut()) {
            members.insert("extra".to_owned(), Value::Object(self.extra.clone()));
        }
        claims
    }

    /// The canonical form with each run of white space as one blank in titles, descriptions and
    /// comments. Claims of the same form differ in nothing that is read.
    #[must_use]
    pub(crate) fn spaced(&self) -> String {
        let text = |text: &Option<String>| text.as_deref().map(collapsed);
        canonical(&self.with_extra(json!({
            "name": self.name,
            "title": text(&self.title),
            "description": text(&self.description),
            "inputSchema": spaced(&self.input_schema),
            "outputSchema": spaced(&self.output_schema),
            "annotations": self.annotations,
        })))
    }

    /// The claims in the form of a listing.
    #[must_use]
    pub fn into_discovered(self) -> DiscoveredTool {
        DiscoveredTool {
            name: self.name,
            title: self.title,
            description: self.description,
            input_schema: self.input_schema,
            output_schema: Some(self.output_schema),
            annotations: self.annotations,
            extra: self.extra,
        }
    }
}

fn collapsed(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// A copy with collapsed white space in titles, descriptions and comments, and with sorted sets.
pub(crate) fn spaced(value: &Value) -> Value {
    match value {
        Value::Array(items) => items.iter().map(spaced).collect(),
        Value::Object(members) => members
            .iter()
            .map(|(key, member)| {
                let kept = match (key.as_str(), member) {
                    ("title" | "description" | "$comment", Value::String(text)) => {
                        Value::String(collapsed(text))
                    }
                    // Lists that are sets.
                    ("required" | "enum" | "type", Value::Array(items)) => {
                        let mut items = items.clone();
                        items.sort_by_cached_key(canonical);
                        Value::Array(items)
                    }
                    (_, other) => spaced(other),
                };
                (key.clone(), kept)
            })
            .collect(),
        other => other.clone(),
    }
}
