//! Neutral declarations: what a model is told about a tool.
//!
//! Doc: registry.md#declarations

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// What a model is told about a tool, before a provider's form is given to it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Declaration {
    /// The name on the wire.
    pub wire_name: String,
    /// The tool id.
    pub tool_id: String,
    /// A short name for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// What the tool does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// JSON Schema of the arguments.
    pub parameters: Value,
    /// JSON Schema of the structured result; absent where anything goes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_schema: Option<Value>,
    /// The tool's own hints.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub annotations: Option<Map<String, Value>>,
}

/// Something that a provider's form cannot say.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DeclarationFinding {
    /// The tool.
    pub tool_id: String,
    /// Where in its schema, as a JSON Pointer.
    pub path: String,
    /// What cannot be said.
    pub message: String,
}

/// Declarations in a provider's form.
#[derive(Debug, Clone, PartialEq)]
pub struct RenderedDeclarations {
    /// The document to hand to the provider.
    pub document: Value,
    /// What could not be said.
    pub findings: Vec<DeclarationFinding>,
}
