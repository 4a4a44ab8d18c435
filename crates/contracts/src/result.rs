//! What a call gives back.
//!
//! Path: 10. Doc: call-path.md#the-result

#[cfg(feature = "schemars")]
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::code::{Effect, ErrorCode, Status};
use crate::json::JsonText;
use crate::payload::ContentBlock;

/// Why a call did not succeed, as the agent may see it.
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

/// One thing that is wrong with the arguments.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(JsonSchema))]
pub struct ArgumentError {
    /// Where, as a JSON Pointer into the arguments.
    pub path: String,
    /// The keyword of the schema that failed, or `hygiene`.
    pub keyword: String,
    /// What is expected there; never the value itself.
    pub message: String,
}

/// What a call gives back.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ToolResult {
    /// The tool that was asked for.
    pub tool_id: String,
    /// The call.
    pub call_id: String,
    /// How it ended.
    pub status: Status,
    /// `true` unless it succeeded.
    pub is_error: bool,
    /// What is known about the effect.
    pub effect: Effect,
    /// What the tool said.
    pub content: Vec<ContentBlock>,
    /// What the tool said, as data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub structured_content: Option<JsonText>,
    /// Metadata of the tool's own result, passed on as it came.
    #[serde(rename = "meta", default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schemars", schemars(with = "Option<Map<String, Value>>"))]
    pub meta: Option<JsonText>,
    /// Why it did not succeed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<CallError>,
    /// Whether this is an earlier call's outcome.
    pub replayed: bool,
    /// What the caller should know beside the result, as stable words.
    pub warnings: Vec<String>,
    /// The receipt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub receipt_id: Option<String>,
    /// When to try again, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_ms: Option<u64>,
    /// The whole call, in milliseconds.
    pub duration_ms: f64,
    /// The executor alone, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub execute_ms: Option<f64>,
}
