//! What a source says of a tool, and nothing that an operator says of it.
//!
//! Doc: registry.md#digests

use serde_json::{Map, Value, json};
use toolbooth_contracts::contract::ToolContract;
use toolbooth_contracts::json::canonical;
use toolbooth_contracts::port::DiscoveredTool;

use crate::digest;

/// What a source says of a tool: the part that a model is shown.
#[derive(Debug, Clone, PartialEq)]
pub struct Said {
    /// The name over there.
    pub name: String,
    /// A short name for people.
    pub title: Option<String>,
    /// What it does.
    pub description: Option<String>,
    /// JSON Schema of the arguments.
    pub input_schema: Value,
    /// JSON Schema of the structured result; `{}` = anything.
    pub output_schema: Value,
    /// The tool's own hints.
    pub annotations: Option<Map<String, Value>>,
    /// What else it lists for clients.
    pub extra: Map<String, Value>,
}

impl Said {
    /// What the source said that a contract was made of.
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

    /// The members of `said`, and the extra ones where there are any: without them the digest is
    /// what it was before they were kept.
    fn with_extra(&self, mut said: Value) -> Value {
        if let (false, Some(members)) = (self.extra.is_empty(), said.as_object_mut()) {
            members.insert("extra".to_owned(), Value::Object(self.extra.clone()));
        }
        said
    }

    /// The canonical form with white space of every length as one blank in titles, descriptions and
    /// comments: what is the same in it differs in nothing that is read.
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

    /// The same as a source would list it.
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

/// The same with white space collapsed in titles, descriptions and comments, and sets sorted.
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
