//! What is written down of a request: names and digests, in the agent log too.
//!
//! Path: 9. Doc: records.md#of-requests

use std::sync::Arc;

use serde_json::Value;
use toolbooth_audit::LedgerError;
use toolbooth_audit::ledger::Refusal;
use toolbooth_audit::redact;
use toolbooth_contracts::agent_log::LogLevel;
use toolbooth_contracts::event::AuditEventKind;
use toolbooth_contracts::{Effect, ErrorCode, Status};

use super::{Refused, sentence};
use crate::path::records::{CallTrail, logged_digest};
use crate::proxy::ProxyState;

/// Names the request in its records. A URI may carry a secret and have any length.
pub(super) fn name(inner: &ProxyState, trail: &mut CallTrail, id: &str) {
    trail.tool_id = inner.parts.shapes.redact(id).into_owned();
    trail.shorten();
}

/// Records an answer, where answers of its kind are recorded.
pub(super) async fn answered(
    inner: &ProxyState,
    trail: &CallTrail,
    event: Option<AuditEventKind>,
    value: &Value,
) -> Result<(), LedgerError> {
    let Some(kind) = event else { return Ok(()) };
    let digest =
        serde_json::to_vec(value).map(|bytes| inner.parts.ledger.digester().of_bytes(&bytes)).ok();
    let outcome = Outcome {
        kind,
        code: None,
        sentence: None,
        effect: Effect::Completed,
        result_digest: digest,
        internal: None,
        forwarded: true,
    };
    write(inner, trail, outcome).await
}

/// Records a refusal, or that the server gave no answer.
pub(super) async fn refused(inner: &ProxyState, refused: &Refused) -> Result<(), LedgerError> {
    let code = refused.code;
    let Some(kind) = code.event() else { return Ok(()) };
    let effect = match code {
        _ if !refused.forwarded => Effect::NotStarted,
        ErrorCode::ToolError | ErrorCode::InvalidToolResult | ErrorCode::ResultTooLarge => {
            Effect::Completed
        }
        _ => Effect::Unknown,
    };
    let sentence = refused.message.as_deref().unwrap_or_else(|| sentence(code));
    let outcome = Outcome {
        kind,
        code: Some(code),
        sentence: Some(redact::sentence(sentence, &inner.parts.shapes)),
        effect,
        result_digest: None,
        internal: refused.internal.clone(),
        forwarded: refused.forwarded,
    };
    write(inner, &refused.trail, outcome).await
}

struct Outcome {
    kind: AuditEventKind,
    code: Option<ErrorCode>,
    sentence: Option<String>,
    effect: Effect,
    result_digest: Option<String>,
    internal: Option<String>,
    forwarded: bool,
}

async fn write(inner: &ProxyState, trail: &CallTrail, outcome: Outcome) -> Result<(), LedgerError> {
    let duration_ms = trail.duration_ms(inner);
    let at = inner.parts.clock.now();
    if let (Some(code), false) = (outcome.code, outcome.forwarded)
        && !inner.is_single(trail.caller.name(), code, &at)
    {
        return Ok(());
    }
    let mut terminal = trail.event(outcome.kind, &at);
    terminal.status = Some(outcome.code.map_or(Status::Succeeded, ErrorCode::status));
    terminal.error_code = outcome.code;
    terminal.error = outcome.sentence;
    terminal.effect = Some(outcome.effect);
    terminal.duration_ms = Some(duration_ms);
    terminal.result_digest.clone_from(&outcome.result_digest);
    let mut log = trail.log(inner, &at, duration_ms);
    log.is_error = outcome.code.is_some();
    log.error_code = outcome.code;
    log.internal = outcome.internal;
    log.attempt = u32::from(outcome.forwarded);
    if inner.parts.retention.log(&trail.tool_id) != LogLevel::None {
        let digest = |digest: &Option<String>| digest.as_ref().map(logged_digest);
        log.input = digest(&trail.args_digest);
        log.output = digest(&outcome.result_digest);
    }
    inner.parts.ledger.refuse(Refusal { log: Arc::new(log), terminal }).await
}
