//! Records a request, with names and digests only, and returns the response.
//!
//! Path: 9. Doc: records.md#of-requests

use serde_json::Value;
use toolbooth_audit::LedgerError;
use toolbooth_audit::redact;
use toolbooth_contracts::event::AuditEventKind;
use toolbooth_contracts::{Effect, ErrorCode, Status};

use super::answer::Screened;
use super::forward::Unanswered;
use super::request::{RequestError, sentence};
use crate::ending::Ending;
use crate::entry::{RECORD_RETRY_MS, Recorded, Refused};
use crate::state::ProxyState;

/// Why a request has no response.
pub(super) enum NoAnswer {
    Refused(Refused),
    Unanswered(Unanswered),
}

impl From<Refused> for NoAnswer {
    fn from(refused: Refused) -> Self {
        Self::Refused(refused)
    }
}

impl From<Unanswered> for NoAnswer {
    fn from(unanswered: Unanswered) -> Self {
        Self::Unanswered(unanswered)
    }
}

/// Records a response before it is returned, if responses of its kind are recorded.
pub(super) async fn answered(
    state: &ProxyState,
    screened: Screened,
    event: Option<AuditEventKind>,
) -> Result<Value, RequestError> {
    let Screened { trail, value, .. } = screened;
    let Some(kind) = event else { return Ok(value) };
    let digester = state.parts.ledger.digester();
    let digest = serde_json::to_vec(&value).map(|bytes| digester.of_bytes(&bytes)).ok();
    let end = Ending {
        output: trail.logged_answer(state, digest.as_ref()),
        result_digest: digest,
        attempt: 1,
        ..Ending::new(kind, Status::Succeeded, Effect::Completed)
    };
    match trail.record(state, &state.parts.clock.now(), end).await {
        Ok(()) => Ok(value),
        Err(error) => Err(withheld(state, trail.call_id, &error)),
    }
}

/// Records why there is no response, and returns the error.
pub(super) async fn no_answer(state: &ProxyState, why: NoAnswer) -> RequestError {
    match why {
        NoAnswer::Refused(refused) => {
            let Recorded { trail, code, message, reason } = refused.record(state, sentence).await;
            RequestError {
                code,
                message,
                details: reason.details,
                retry_after_ms: reason.retry_after_ms,
                ..RequestError::broken(trail.call_id)
            }
        }
        NoAnswer::Unanswered(unanswered) => {
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
    let end = Ending {
        code: Some(code),
        sentence: Some(redact::sentence(message_of(unanswered), &state.parts.shapes)),
        internal: Some(unanswered.internal.clone()),
        attempt: u32::from(code != ErrorCode::NotConfigured),
        ..Ending::new(kind, code.status(), effect)
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
