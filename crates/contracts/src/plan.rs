//! Plans: several calls with their order, and the report that is always returned.
//!
//! Doc: call-path.md#plans

#[cfg(feature = "schemars")]
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::code::{Effect, ErrorCode};
use crate::result::CallError;

/// Several calls with their order. Either `steps` or `tools` is set.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Plan {
    /// The plan's id; a second submission with it resumes the plan. Generated when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan_id: Option<String>,
    /// The steps.
    #[serde(
        default,
        deserialize_with = "crate::named_members::objects",
        skip_serializing_if = "Option::is_none"
    )]
    pub steps: Option<Vec<PlanStep>>,
    /// Short form: one step per tool, without arguments, in sequence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tools: Option<Vec<String>>,
}

/// One call of a plan.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PlanStep {
    /// The step's name in this plan.
    pub id: String,
    /// The tool.
    pub tool: String,
    /// The arguments; `{"$from": STEP, "pointer": POINTER}` refers to an earlier result.
    #[serde(default)]
    pub args: Map<String, Value>,
    /// Steps that must have succeeded before.
    #[serde(default)]
    pub needs: Vec<String>,
}

/// How a step ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum StepStatus {
    /// The tool ran and answered.
    Succeeded,
    /// The step did not return a result.
    Failed,
    /// A setting or a target that the tool needs is not configured.
    NotConfigured,
    /// The call is not allowed.
    Denied,
    /// A step that it needs did not succeed, or the plan was stopped before.
    Skipped,
}

/// The report of a plan.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct PlanReport {
    /// The plan.
    pub plan_id: String,
    /// Whether nothing was run.
    pub skipped: bool,
    /// Why nothing was run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Every step, in the plan's order.
    pub steps: Vec<StepReport>,
}

/// The report of a step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct StepReport {
    /// The step.
    pub id: String,
    /// The tool.
    pub tool: String,
    /// How it ended.
    pub status: StepStatus,
    /// Whether it succeeded.
    pub success: bool,
    /// The tool's result, also if the tool answered with an error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<Value>,
    /// What is known of the tool's effect; absent if there was no call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effect: Option<Effect>,
    /// When to try again, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_ms: Option<u64>,
    /// The error, if it did not succeed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<CallError>,
    /// The code of the error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<ErrorCode>,
    /// The call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub call_id: Option<String>,
    /// The receipt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub receipt_id: Option<String>,
    /// Whether this is an earlier submission's outcome.
    pub replayed: bool,
    /// Warnings of the call, such as `result-not-kept`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
    /// The duration, in seconds.
    pub elapsed: f64,
}
