//! The reports of the steps of a plan.
//!
//! Path: 10. Doc: call-path.md#plans

use std::time::Duration;

use serde_json::{Map, Value, json};
use toolbooth_contracts::plan::{PlanStep, StepReport, StepStatus};
use toolbooth_contracts::result::CallError;
use toolbooth_contracts::{ErrorCode, Status, ToolResult};

use crate::path::RESULT_NOT_KEPT;

/// Returns the report of a step that was called, and the result that later steps can refer to.
pub(super) fn report(
    step: &PlanStep,
    result: ToolResult,
    elapsed: Duration,
) -> (StepReport, Option<Value>) {
    let status = match result.status {
        Status::Succeeded => StepStatus::Succeeded,
        Status::Failed => StepStatus::Failed,
        Status::NotConfigured => StepStatus::NotConfigured,
        Status::Denied => StepStatus::Denied,
    };
    let mut value = Map::new();
    value.insert("content".to_owned(), serde_json::to_value(&result.content).unwrap_or_default());
    if let Some(structured) = &result.structured_content {
        value.insert("structuredContent".to_owned(), structured.tree());
    }
    // A replay whose result was not stored does not show the result of the step.
    let is_kept = !result.warnings.iter().any(|warning| warning == RESULT_NOT_KEPT);
    let value = is_kept.then_some(Value::Object(value));
    let code = result.error.as_ref().map(|error| error.code);
    // Of a failure, only the tool's own answer says more than the error.
    let shown = value.filter(|_| code.is_none_or(|code| code == ErrorCode::ToolError));
    let value = shown.clone().filter(|_| status == StepStatus::Succeeded);
    let report = StepReport {
        result: shown,
        effect: Some(result.effect),
        retry_after_ms: result.retry_after_ms,
        call_id: Some(result.call_id),
        receipt_id: result.receipt_id,
        replayed: result.replayed,
        warnings: result.warnings,
        ..blank(step, status, result.error, elapsed)
    };
    (report, value)
}

/// Returns the report of a step without a call.
pub(super) fn blank(
    step: &PlanStep,
    status: StepStatus,
    error: Option<CallError>,
    elapsed: Duration,
) -> StepReport {
    StepReport {
        id: step.id.clone(),
        tool: step.tool.clone(),
        status,
        success: status == StepStatus::Succeeded,
        result: None,
        code: error.as_ref().map(|error| error.code),
        error,
        effect: None,
        retry_after_ms: None,
        call_id: None,
        receipt_id: None,
        replayed: false,
        warnings: Vec::new(),
        elapsed: elapsed.as_secs_f64(),
    }
}

/// Returns the report of a step that needs one which did not succeed.
pub(super) fn skipped_step(step: &PlanStep, need: &str) -> StepReport {
    let report = blank(step, StepStatus::Skipped, None, Duration::ZERO);
    StepReport { result: Some(json!({ "skippedBecauseOf": need })), ..report }
}

/// Returns the report of a step that had not begun when the plan was stopped.
pub(super) fn stopped_step(step: &PlanStep) -> StepReport {
    let code = ErrorCode::Cancelled;
    let message = "the plan was stopped before this step began".to_owned();
    let error = CallError { code, message, details: Map::new() };
    blank(step, StepStatus::Skipped, Some(error), Duration::ZERO)
}
