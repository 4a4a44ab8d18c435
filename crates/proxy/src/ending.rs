//! The records of the end of a call or a request: its terminal event and its log, in one durable step.
//!
//! Path: 9. Doc: records.md#of-one-call

use std::sync::Arc;

use serde_json::json;
use toolbooth_audit::LedgerError;
use toolbooth_audit::ledger::{Moment, Refusal};
use toolbooth_contracts::agent_log::AgentLog;
use toolbooth_contracts::event::{AuditEventKind, EventBody};
use toolbooth_contracts::json::JsonText;
use toolbooth_contracts::{Effect, ErrorCode, Status};

use crate::state::ProxyState;
use crate::trail::{CallTrail, boundary, plain};

/// Bytes of its input that the record of a refusal stores.
const REFUSED_BYTES_MAX: usize = 4 << 10;

/// The end of a call or a request, in addition to its trail.
pub(crate) struct Ending {
    pub(crate) kind: AuditEventKind,
    pub(crate) status: Status,
    pub(crate) code: Option<ErrorCode>,
    /// The safe sentence, redacted.
    pub(crate) sentence: Option<String>,
    pub(crate) effect: Effect,
    pub(crate) receipt_id: Option<String>,
    pub(crate) result_digest: Option<String>,
    /// The result, in the form that the log stores.
    pub(crate) output: Option<JsonText>,
    /// The full cause, for operators.
    pub(crate) internal: Option<String>,
    /// How often the tool, or the server, was asked.
    pub(crate) attempt: u32,
}

impl Ending {
    /// Returns an end with this kind, status and effect, and nothing else.
    pub(crate) fn new(kind: AuditEventKind, status: Status, effect: Effect) -> Self {
        Self {
            kind,
            status,
            code: None,
            sentence: None,
            effect,
            receipt_id: None,
            result_digest: None,
            output: None,
            internal: None,
            attempt: 0,
        }
    }
}

impl CallTrail {
    /// Returns the terminal event and the log of an end.
    pub(crate) fn ended(
        &self,
        state: &ProxyState,
        at: &Moment,
        duration_ms: f64,
        end: Ending,
    ) -> (EventBody, AgentLog) {
        let mut terminal = self.event(end.kind, at);
        terminal.status = Some(end.status);
        terminal.error_code = end.code;
        terminal.error = end.sentence;
        terminal.effect = Some(end.effect);
        terminal.duration_ms = Some(duration_ms);
        terminal.receipt_id.clone_from(&end.receipt_id);
        terminal.result_digest = end.result_digest;
        let mut log = self.log(state, at, duration_ms);
        log.is_error = end.status != Status::Succeeded;
        log.error_code = end.code;
        log.output = end.output;
        log.internal = end.internal;
        log.attempt = end.attempt;
        if end.effect == Effect::NotStarted && end.receipt_id.is_none() {
            log.input = log.input.map(begins);
        }
        log.receipt_id = end.receipt_id;
        (terminal, log)
    }

    /// Records the end of a call or a request without a claim.
    ///
    /// # Errors
    /// If the store rejects it.
    pub(crate) async fn record(
        &self,
        state: &ProxyState,
        at: &Moment,
        end: Ending,
    ) -> Result<(), LedgerError> {
        let (terminal, log) = self.ended(state, at, self.duration_ms(state), end);
        let documents = self.documents(state, at);
        let refusal = Refusal { log: Arc::new(log), documents: documents.clone(), terminal };
        state.parts.ledger.refuse(refusal).await?;
        state.kept_documents.keep(&documents, at);
        Ok(())
    }
}

/// Shortens the input of a refusal, which no check accepted. A small input stays whole; a larger one is
/// replaced by its size and its beginning.
fn begins(input: JsonText) -> JsonText {
    let text = input.as_str();
    if text.len() <= REFUSED_BYTES_MAX {
        return input;
    }
    let begins = text.get(..boundary(text, REFUSED_BYTES_MAX)).unwrap_or_default();
    plain(&json!({ "omitted": true, "bytes": text.len(), "begins": begins }))
}
