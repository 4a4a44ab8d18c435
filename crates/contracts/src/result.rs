//! The result of a call.
//!
//! Path: 10. Doc: call-path.md#the-result

#[cfg(feature = "schemars")]
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::code::{Effect, ErrorCode, Status};
use crate::json::JsonText;
use crate::payload::ContentBlock;

/// The error of a call, as the agent may see it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(JsonSchema))]
pub struct CallError {
    /// The stable code.
    pub code: ErrorCode,
    /// A safe sentence.
    pub message: String,
    /// Facts for a program, such as `errors` of the arguments.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub details: Map<String, Value>,
}

/// One error in the arguments.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(JsonSchema))]
pub struct ArgumentError {
    /// The place, as a JSON Pointer into the arguments.
    pub path: String,
    /// The keyword of the schema that failed, or `hygiene`.
    pub keyword: String,
    /// The expected form at that place; never the value itself.
    pub message: String,
}

/// The result of a call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ToolResult {
    /// The requested tool.
    pub tool_id: String,
    /// The call.
    pub call_id: String,
    /// How it ended.
    pub status: Status,
    /// `true` unless it succeeded.
    pub is_error: bool,
    /// The known effect.
    pub effect: Effect,
    /// The content of the tool's result.
    pub content: Vec<ContentBlock>,
    /// The structured content of the tool's result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub structured_content: Option<JsonText>,
    /// Metadata of the tool's own result, passed on unchanged.
    #[serde(rename = "meta", default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schemars", schemars(with = "Option<Map<String, Value>>"))]
    pub meta: Option<JsonText>,
    /// The error, if it did not succeed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<CallError>,
    /// Whether this is an earlier call's outcome.
    pub replayed: bool,
    /// Warnings in addition to the result, as stable identifiers.
    pub warnings: Vec<String>,
    /// The receipt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub receipt_id: Option<String>,
    /// The time until a retry, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_ms: Option<u64>,
    /// Duration of the whole call, in milliseconds.
    pub duration_ms: f64,
    /// Duration of the executor alone, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub execute_ms: Option<f64>,
}
