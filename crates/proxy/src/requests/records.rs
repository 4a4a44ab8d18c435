//! Records a request, with names and digests only, and returns the response.
//!
//! Path: 9. Doc: records.md#of-requests

use serde_json::Value;
use toolbooth_audit::LedgerError;
use toolbooth_audit::redact;
use toolbooth_contracts::event::AuditEventKind;
use toolbooth_contracts::{Effect, ErrorCode, Status};

use super::forward::Unanswered;
use super::request::{RequestError, sentence};
use crate::entry::{RECORD_RETRY_MS, Refused};
use crate::state::ProxyState;
use crate::trail::{CallTrail, UnclaimedEnd};

/// Why a request has no response.
pub(super) enum Stop {
    Refused(Refused),
    Unanswered(Unanswered),
}

impl From<Refused> for Stop {
    fn from(refused: Refused) -> Self {
        Self::Refused(refused)
    }
}

impl From<Unanswered> for Stop {
    fn from(unanswered: Unanswered) -> Self {
        Self::Unanswered(unanswered)
    }
}

/// Records a response before it is returned, if responses of its kind are recorded.
pub(super) async fn answered(
    state: &ProxyState,
    trail: Box<CallTrail>,
    event: Option<AuditEventKind>,
    value: Value,
) -> Result<Value, RequestError> {
    let Some(kind) = event else { return Ok(value) };
    let digester = state.parts.ledger.digester();
    let digest = serde_json::to_vec(&value).map(|bytes| digester.of_bytes(&bytes)).ok();
    let end = UnclaimedEnd {
        output: trail.logged_answer(state, digest.as_ref()),
        result_digest: digest,
        was_sent: true,
        ..UnclaimedEnd::new(kind, Status::Succeeded, Effect::Completed)
    };
    match trail.record(state, &state.parts.clock.now(), end).await {
        Ok(()) => Ok(value),
        Err(error) => Err(withheld(state, trail.call_id, &error)),
    }
}

/// Records why there is no response, and returns the error.
pub(super) async fn stopped(state: &ProxyState, stop: Stop) -> RequestError {
    match stop {
        Stop::Refused(refused) => {
            let code = refused.code;
            let message =
                refused.reason.message.clone().unwrap_or_else(|| sentence(code).to_owned());
            refused.record(state, &message).await;
            let Refused { trail, reason, .. } = refused;
            RequestError {
                code,
                message,
                details: reason.details,
                retry_after_ms: reason.retry_after_ms,
                ..RequestError::broken(trail.call_id)
            }
        }
        Stop::Unanswered(unanswered) => {
            // A server's error is withheld if it cannot be recorded.
            if let Err(error) = record_unanswered(state, &unanswered).await {
                return withheld(state, unanswered.trail.call_id, &error);
            }
            let message = message_of(&unanswered).to_owned();
            let Unanswered { trail, code, upstream, .. } = unanswered;
            let upstream = upstream.map(|own| *own);
            RequestError { code, message, upstream, ..RequestError::broken(trail.call_id) }
        }
    }
}

async fn record_unanswered(state: &ProxyState, unanswered: &Unanswered) -> Result<(), LedgerError> {
    let code = unanswered.code;
    let Some(kind) = code.event().filter(|_| unanswered.recorded) else { return Ok(()) };
    let effect = match code {
        ErrorCode::ToolError | ErrorCode::InvalidToolResult | ErrorCode::ResultTooLarge => {
            Effect::Completed
        }
        ErrorCode::NotConfigured => Effect::NotStarted,
        _ => Effect::Unknown,
    };
    let end = UnclaimedEnd {
        code: Some(code),
        sentence: Some(redact::sentence(message_of(unanswered), &state.parts.shapes)),
        internal: Some(unanswered.internal.clone()),
        was_sent: code != ErrorCode::NotConfigured,
        ..UnclaimedEnd::new(kind, code.status(), effect)
    };
    unanswered.trail.record(state, &state.parts.clock.now(), end).await
}

/// Returns the sentence for the caller: the server's own, the gateway's own, or that of the code.
fn message_of(unanswered: &Unanswered) -> &str {
    let upstream = unanswered.upstream.as_ref().map(|own| own.message.as_str());
    upstream.or(unanswered.sentence.as_deref()).unwrap_or_else(|| sentence(unanswered.code))
}

/// Withholds a response that cannot be recorded.
fn withheld(state: &ProxyState, call_id: String, error: &LedgerError) -> RequestError {
    state.count_gap(error);
    let code = ErrorCode::RecordUnavailable;
    RequestError {
        code,
        message: sentence(code).to_owned(),
        retry_after_ms: Some(RECORD_RETRY_MS),
        ..RequestError::broken(call_id)
    }
}
