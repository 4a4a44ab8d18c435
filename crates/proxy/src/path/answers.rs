//! The responses to calls that were not dispatched, and to calls with an earlier outcome.
//!
//! There are two messages: one for the agent, one for the operator.
//!
//! Path: 9. Doc: records.md#of-one-call

use serde_json::Map;
use toolbooth_contracts::event::AuditEventKind;
use toolbooth_contracts::receipt::{Receipt, StoredResult};
use toolbooth_contracts::result::CallError;
use toolbooth_contracts::{ContentBlock, Effect, ErrorCode, Status, ToolResult};

use super::claim::Replayed;
use crate::ending::Ending;
use crate::entry::{Recorded, Refused};
use crate::state::ProxyState;

/// The warning of a replay, if another caller made the first call.
pub(crate) const FIRST_BY_ANOTHER: &str = "first-by-another-caller";

/// Returns a response without a result.
pub(super) fn failed_result(
    tool_id: String,
    call_id: String,
    code: ErrorCode,
    effect: Effect,
    message: String,
) -> ToolResult {
    ToolResult {
        tool_id,
        call_id,
        status: code.status(),
        is_error: true,
        effect,
        content: vec![ContentBlock::text(message.clone())],
        structured_content: None,
        meta: None,
        error: Some(CallError { code, message, details: Map::new() }),
        replayed: false,
        warnings: Vec::new(),
        receipt_id: None,
        retry_after_ms: None,
        duration_ms: 0.0,
        execute_ms: None,
    }
}

/// Returns the response for a fault of the proxy itself: the effect is unknown.
pub(crate) fn broken(tool_id: String, call_id: String) -> ToolResult {
    refused(tool_id, call_id, ErrorCode::AdapterFailed, Effect::Unknown)
}

/// Returns a response without a result, outside the path.
pub(crate) fn refused(
    tool_id: String,
    call_id: String,
    code: ErrorCode,
    effect: Effect,
) -> ToolResult {
    failed_result(tool_id, call_id, code, effect, code.safe_sentence().to_owned())
}

/// Records a refusal and returns its response. A record that cannot be written is counted; the refusal
/// keeps its code.
pub(super) async fn refuse(state: &ProxyState, refused: Refused) -> ToolResult {
    let duration_ms = refused.trail.duration_ms(state);
    let Recorded { trail, code, message, reason } =
        refused.record(state, ErrorCode::safe_sentence).await;
    let mut result = failed_result(trail.tool_id, trail.call_id, code, Effect::NotStarted, message);
    if let Some(error) = &mut result.error {
        error.details = reason.details;
    }
    let retry_after_ms = reason.retry_after_ms;
    ToolResult { warnings: trail.warnings, retry_after_ms, duration_ms, ..result }
}

/// Records a replay and returns the earlier outcome.
pub(super) async fn replay(state: &ProxyState, replayed: Replayed) -> ToolResult {
    let Replayed { mut trail, receipt, arguments_differ, .. } = replayed;
    let receipt = *receipt;
    let status = receipt.status.unwrap_or(Status::Failed);
    let mut kept = kept_of(&receipt, &mut trail.warnings);
    if arguments_differ {
        trail.warnings.push("arguments-differ".to_owned());
        let remark = "This is the outcome of the first call with this key. The arguments of this \
                    call differed and were not applied.";
        kept.content.insert(0, ContentBlock::text(remark));
    }
    if receipt.caller != trail.caller.name() {
        trail.warnings.push(FIRST_BY_ANOTHER.to_owned());
    }
    let duration_ms = trail.duration_ms(state);
    let digest = receipt.result_digest.as_ref();
    let structured = kept.structured_content.as_ref();
    let end = Ending {
        code: receipt.error_code,
        receipt_id: Some(receipt.receipt_id.clone()),
        result_digest: receipt.result_digest.clone(),
        output: trail.logged_output(state, digest, &kept.content, structured),
        ..Ending::new(AuditEventKind::ToolReplayed, status, receipt.effect)
    };
    if let Err(error) = trail.record(state, &state.parts.clock.now(), end).await {
        state.count_gap(&error);
    }
    let call_id = std::mem::take(&mut trail.call_id);
    let warnings = std::mem::take(&mut trail.warnings);
    ToolResult {
        warnings: kept.warnings.iter().cloned().chain(warnings).collect(),
        tool_id: trail.tool_id,
        duration_ms,
        ..given_before(receipt, kept, call_id)
    }
}

/// The warning of a replay whose result the receipt does not store.
pub(crate) const RESULT_NOT_KEPT: &str = "result-not-kept";

/// Returns the stored result of a receipt, or adds a warning if the receipt stores none.
fn kept_of(receipt: &Receipt, warnings: &mut Vec<String>) -> StoredResult {
    receipt.result.clone().unwrap_or_else(|| {
        warnings.push(RESULT_NOT_KEPT.to_owned());
        StoredResult {
            content: Vec::new(),
            structured_content: None,
            meta: None,
            error: receipt.error_code.map(|code| CallError {
                code,
                message: code.safe_sentence().to_owned(),
                details: Map::new(),
            }),
            warnings: Vec::new(),
        }
    })
}

/// Returns the response to a call with an outcome that became known after it ended.
pub(crate) fn outcome_of(receipt: Receipt, call_id: &str) -> ToolResult {
    let mut warnings = Vec::new();
    let kept = kept_of(&receipt, &mut warnings);
    let warnings = kept.warnings.iter().cloned().chain(warnings).collect();
    ToolResult { warnings, ..given_before(receipt, kept, call_id.to_owned()) }
}

/// Builds a response from a receipt.
fn given_before(receipt: Receipt, kept: StoredResult, call_id: String) -> ToolResult {
    let status = receipt.status.unwrap_or(Status::Failed);
    ToolResult {
        tool_id: receipt.tool_id,
        call_id,
        status,
        is_error: status != Status::Succeeded,
        effect: receipt.effect,
        content: kept.content,
        structured_content: kept.structured_content,
        meta: kept.meta,
        error: kept.error,
        replayed: true,
        warnings: Vec::new(),
        receipt_id: Some(receipt.receipt_id),
        retry_after_ms: None,
        duration_ms: receipt.duration_ms.unwrap_or_default(),
        execute_ms: None,
    }
}
