//! Agent logs: one row per call, refusals and replays included, with redacted payloads.
//!
//! Doc: records.md#agent-logs

#[cfg(feature = "schemars")]
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::code::ErrorCode;
use crate::decision::DecisionInputs;
use crate::json::JsonText;

/// The log row of one call, for the operator of an agent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct AgentLog {
    /// UUIDv7.
    pub id: String,
    /// The tool id.
    pub tool_name: String,
    /// The agent's claimed name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent_id: Option<String>,
    /// The agent's turn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn_index: Option<u64>,
    /// A phase of the agent's work.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase_id: Option<String>,
    /// A larger piece of work.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epic_id: Option<String>,
    /// The call.
    pub call_id: String,
    /// The receipt: this call's, or the one that was replayed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub receipt_id: Option<String>,
    /// The caller.
    pub caller: String,
    /// The arguments, redacted; absent where the tool is not logged in full.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input: Option<JsonText>,
    /// The result, redacted; absent where the tool is not logged in full.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<JsonText>,
    /// Milliseconds of the whole call.
    pub duration_ms: f64,
    /// Whether it did not succeed.
    pub is_error: bool,
    /// The error code, if it did not succeed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error_code: Option<ErrorCode>,
    /// The number of this dispatch of the claim; 0 if the tool was not dispatched.
    pub attempt: u32,
    /// The inputs of the decision.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decision_inputs: Option<DecisionInputs>,
    /// When the call ended, RFC 3339 UTC.
    pub timestamp: String,
    /// The full cause, for operators only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub internal: Option<String>,
}

/// The form in which the agent log stores a call's payloads.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum LogLevel {
    /// Redacted payloads.
    #[default]
    Full,
    /// Digests instead of payloads.
    Digest,
    /// Neither; the row is still written.
    None,
}
