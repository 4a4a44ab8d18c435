//! Stage 9: writes receipt, agent log and events in one durable step, before the response is returned.
//!
//! Path: 9. Doc: records.md#of-one-call

use std::sync::Arc;
use std::time::Duration;

use toolbooth_audit::LedgerError;
use toolbooth_audit::ledger::Settlement;
use toolbooth_audit::redact;
use toolbooth_contracts::event::AuditEventKind;
use toolbooth_contracts::receipt::{Receipt, StoredResult};
use toolbooth_contracts::result::CallError;
use toolbooth_contracts::{ErrorCode, Status, ToolResult};

use super::answers::failed_result;
use super::claim::{KEY_IGNORED, must_last};
use super::screen::Screened;
use crate::ending::Ending;
use crate::payload_retention::Results;
use crate::state::ProxyState;

/// First pause before a record is retried; it doubles up to a second.
const RETRY_FIRST: Duration = Duration::from_millis(20);

/// Retries the record as long as the response can wait. Then it returns without the record and retries
/// in the background.
pub(super) async fn settle(state: &Arc<ProxyState>, screened: Screened) -> ToolResult {
    let (settlement, result) = settlement(state, screened);
    let recorded = tokio::time::timeout(
        state.parts.limits.settle_patience,
        settle_until_done(state, &settlement),
    );
    match recorded.await {
        Ok(Ok(receipt)) => {
            if state.has_gap() {
                state.record_gap().await;
            }
            ToolResult {
                receipt_id: Some(receipt.receipt_id.clone()),
                effect: receipt.effect,
                ..result
            }
        }
        Ok(Err(error)) => {
            tracing::error!(%error, receipt.id = settlement.claim.receipt_id(), "an outcome is not recorded");
            outcome_unrecorded(result, settlement.claim.receipt_id())
        }
        Err(_) => {
            let receipt_id = settlement.claim.receipt_id().to_owned();
            let later = Arc::clone(state);
            state.tasks.spawn(async move {
                let ending = later.ending.clone();
                tokio::select! {
                    done = settle_until_done(&later, &settlement) => {
                        if let Err(error) = done {
                            tracing::error!(%error, "an outcome is not recorded");
                        }
                    }
                    () = ending.cancelled() => (),
                }
            });
            outcome_unrecorded(result, &receipt_id)
        }
    }
}

/// Builds the settlement of a dispatched call, and its response.
fn settlement(state: &ProxyState, screened: Screened) -> (Arc<Settlement>, ToolResult) {
    let Screened {
        trail,
        claim,
        tool,
        effect,
        code,
        message,
        details,
        content,
        structured,
        meta,
        fields,
        events,
        internal,
        sandbox,
        execute_ms,
        ..
    } = screened;
    let duration_ms = trail.duration_ms(state);
    let at = state.parts.clock.now();
    let status = code.map_or(Status::Succeeded, ErrorCode::status);
    let error = code.map(|code| CallError { code, message: message.clone(), details });
    let kept = StoredResult {
        content: content.clone(),
        structured_content: structured.clone(),
        meta: meta.clone(),
        error: error.clone(),
        // A replay tells of its own key.
        warnings: trail.warnings.iter().filter(|own| *own != KEY_IGNORED).cloned().collect(),
    };
    let result_digest = Some(state.parts.ledger.digester().of_written(&kept));
    let kind = code.and_then(ErrorCode::event).unwrap_or(AuditEventKind::ToolExecuted);
    let digest = result_digest.as_ref();
    let end = Ending {
        code,
        sentence: code.map(|_| redact::sentence(&message, &state.parts.shapes)),
        receipt_id: Some(claim.receipt_id().to_owned()),
        result_digest: result_digest.clone(),
        output: trail.logged_output(state, digest, &content, structured.as_ref()),
        internal: internal.map(|text| state.parts.shapes.redact(&text).into_owned()),
        attempt: claim.attempt(),
        ..Ending::new(kind, status, effect)
    };
    let (terminal, log) = trail.ended(state, &at, duration_ms, end);
    let documents = trail.documents(state, &at);
    let settlement = Arc::new(Settlement {
        claim,
        mode: tool.contract().idempotency.mode,
        status,
        effect,
        error_code: code,
        fields,
        result_digest,
        result: (state.parts.retention.results(&trail.tool_id) == Results::Keep).then_some(kept),
        sandbox,
        duration_ms,
        at,
        log: Arc::new(log),
        documents,
        events,
        terminal,
        sync: must_last(tool.contract()),
    });
    let result = ToolResult {
        tool_id: trail.tool_id,
        call_id: trail.call_id,
        status,
        is_error: code.is_some(),
        effect,
        content,
        structured_content: structured,
        meta,
        error,
        replayed: false,
        warnings: trail.warnings,
        receipt_id: None,
        retry_after_ms: None,
        duration_ms,
        execute_ms: Some(execute_ms),
    };
    (settlement, result)
}

/// Retries until the store accepts the settlement or rejects it permanently.
async fn settle_until_done(
    state: &ProxyState,
    settlement: &Arc<Settlement>,
) -> Result<Arc<Receipt>, LedgerError> {
    let mut pause = RETRY_FIRST;
    loop {
        match state.parts.ledger.settle(Arc::clone(settlement)).await {
            Err(LedgerError::Unavailable { reason, .. }) => {
                tracing::warn!(reason, "an outcome waits for the store");
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(Duration::from_secs(1));
            }
            done => {
                if done.is_ok() {
                    state.kept_documents.keep(&settlement.documents, &settlement.at);
                }
                return done;
            }
        }
    }
}

/// Returns the response for a tool that ran without a recorded outcome yet. It contains only this fact.
fn outcome_unrecorded(result: ToolResult, receipt_id: &str) -> ToolResult {
    let code = ErrorCode::OutcomeUnrecorded;
    let message = code.safe_sentence().to_owned();
    let effect = result.effect;
    let unrecorded = failed_result(result.tool_id, result.call_id, code, effect, message);
    ToolResult {
        receipt_id: Some(receipt_id.to_owned()),
        warnings: result.warnings,
        duration_ms: result.duration_ms,
        execute_ms: result.execute_ms,
        ..unrecorded
    }
}
