//! What is written down of a call, and the answers that go with it.
//!
//! Two messages: what the agent may see, and what the operator sees.
//!
//! Path: 9. Doc: records.md#of-one-call

use std::sync::Arc;
use std::time::Duration;

use serde_json::value::RawValue;
use serde_json::{Map, Value, json};
use toolbooth_audit::LedgerError;
use toolbooth_audit::ledger::{Moment, Refusal, Settlement};
use toolbooth_audit::redact;
use toolbooth_contracts::agent_log::{AgentLog, LogLevel};
use toolbooth_contracts::event::{AuditEventKind, DecisionNote, EventBody};
use toolbooth_contracts::json::{self, JsonText, WRAPPED_DEPTH_MAX};
use toolbooth_contracts::payload;
use toolbooth_contracts::receipt::{Receipt, StoredResult};
use toolbooth_contracts::result::CallError;
use toolbooth_contracts::{
    Arguments, CallContext, Caller, ContentBlock, Effect, ErrorCode, Status, ToolResult,
};

use super::screen::Screened;
use super::{Refused, Replayed};
use crate::payload_retention::Results;
use crate::proxy::ProxyState;

/// Bytes of a payload that an agent log keeps; of a larger one it keeps the size.
const LOGGED_BYTES_MAX: usize = 256 << 10;
/// Bytes of its input that the record of a refusal keeps.
const REFUSED_BYTES_MAX: usize = 4 << 10;
/// First pause before a record is tried again; it doubles up to a second.
const RETRY_FIRST: Duration = Duration::from_millis(20);

/// The arguments, as far as they are known.
pub(crate) enum Input {
    None,
    /// As they came.
    Raw(Box<RawValue>),
    /// As they were judged.
    Judged(Arguments),
}

/// Who called what, as far as it is known: goes along the path and into the records.
pub(crate) struct CallTrail {
    pub(crate) tool_id: String,
    pub(crate) call_id: String,
    pub(crate) caller: Caller,
    pub(crate) context: CallContext,
    /// When the call came in, on the monotonic clock.
    pub(crate) began: Duration,
    pub(crate) input: Input,
    pub(crate) args_digest: Option<String>,
    /// The same by keys that were the store's before.
    pub(crate) older_args_digests: Vec<String>,
    pub(crate) policy_version: String,
    pub(crate) decision: Option<DecisionNote>,
    pub(crate) warnings: Vec<String>,
}

impl CallTrail {
    pub(crate) fn begin(
        inner: &ProxyState,
        tool_id: String,
        call_id: String,
        caller: Caller,
        context: CallContext,
    ) -> Self {
        Self {
            tool_id,
            call_id,
            caller,
            context,
            began: inner.parts.clock.monotonic(),
            input: Input::None,
            args_digest: None,
            older_args_digests: Vec::new(),
            policy_version: String::new(),
            decision: None,
            warnings: Vec::new(),
        }
    }

    /// Cuts names that are too long to be kept.
    pub(crate) fn shorten(&mut self) {
        let cut = |text: &mut String| {
            if text.len() > super::NAME_BYTES_MAX {
                let mut end = super::NAME_BYTES_MAX;
                while !text.is_char_boundary(end) {
                    end -= 1;
                }
                text.truncate(end);
            }
        };
        cut(&mut self.tool_id);
        let context = &mut self.context;
        for name in [&mut context.agent_id, &mut context.phase_id, &mut context.epic_id] {
            name.as_mut().map(cut).unwrap_or_default();
        }
    }

    pub(crate) fn duration_ms(&self, inner: &ProxyState) -> f64 {
        crate::port::milliseconds(inner.parts.clock.monotonic().saturating_sub(self.began))
    }

    /// An event about this call.
    pub(crate) fn event(&self, kind: AuditEventKind, at: &Moment) -> EventBody {
        let mut event = EventBody::new(kind, at.text.clone());
        event.tool_name = Some(self.tool_id.clone());
        event.agent_id.clone_from(&self.context.agent_id);
        event.turn_index = self.context.turn_index;
        event.caller = Some(self.caller.name().to_owned());
        event.call_id = Some(self.call_id.clone());
        event.decision.clone_from(&self.decision);
        event.policy_version =
            (!self.policy_version.is_empty()).then(|| self.policy_version.clone());
        event.args_digest.clone_from(&self.args_digest);
        event
    }

    /// The arguments, as the log keeps them.
    fn logged_input(&self, inner: &ProxyState) -> Option<JsonText> {
        let bytes = match &self.input {
            Input::None => return None,
            Input::Raw(raw) => raw.get().len(),
            Input::Judged(arguments) => arguments.bytes(),
        };
        match inner.parts.retention.log(&self.tool_id) {
            LogLevel::Full => (),
            LogLevel::Digest => return self.args_digest.as_ref().map(logged_digest),
            LogLevel::None => return None,
        }
        if bytes > LOGGED_BYTES_MAX {
            return Some(omitted(bytes));
        }
        let shapes = &inner.parts.shapes;
        let logged = match &self.input {
            Input::None => return None,
            Input::Judged(arguments) => redact::tree(arguments.tree(), shapes).ok(),
            // What the gate refuses is logged as far as it can be read: as mere text the names of
            // its secrets could not be told.
            Input::Raw(raw) => {
                let read = json::parse_all_faults(raw.get().as_bytes(), &mut |_, _, _| ()).ok();
                read.and_then(|(tree, _)| redact::tree(&tree, shapes).ok())
            }
        };
        // A record wraps a few levels around it, and must be readable all the same.
        let readable = logged.filter(|logged| logged.depth() <= WRAPPED_DEPTH_MAX);
        Some(readable.unwrap_or_else(|| omitted(bytes)))
    }

    pub(crate) fn log(&self, inner: &ProxyState, at: &Moment, duration_ms: f64) -> AgentLog {
        AgentLog {
            id: inner.parts.ids.next(),
            tool_name: self.tool_id.clone(),
            agent_id: self.context.agent_id.clone(),
            turn_index: self.context.turn_index,
            phase_id: self.context.phase_id.clone(),
            epic_id: self.context.epic_id.clone(),
            call_id: self.call_id.clone(),
            receipt_id: None,
            caller: self.caller.name().to_owned(),
            input: self.logged_input(inner),
            output: None,
            duration_ms,
            is_error: false,
            error_code: None,
            attempt: 0,
            decision_inputs: self.decision.as_ref().map(|decision| {
                json!({
                    "rule": decision.rule,
                    "reason": decision.reason,
                    "policyVersion": self.policy_version,
                })
            }),
            timestamp: at.text.clone(),
            internal: None,
        }
    }
}

/// What stands for a payload that is too large to be kept.
fn omitted(bytes: usize) -> JsonText {
    plain(&json!({ "omitted": true, "bytes": bytes }))
}

pub(crate) fn logged_digest(digest: &String) -> JsonText {
    plain(&json!({ "digest": digest }))
}

/// A document of our own, which passes the gate.
fn plain(tree: &Value) -> JsonText {
    JsonText::of(tree).unwrap_or_else(|_| JsonText::of_text(redact::OMITTED))
}

/// What a refusal keeps of its input, which nobody has accepted: all of a small one, of a larger one
/// its size and how it begins.
fn begins(input: JsonText) -> JsonText {
    let text = input.as_str();
    if text.len() <= REFUSED_BYTES_MAX {
        return input;
    }
    let mut end = REFUSED_BYTES_MAX;
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    let begins = text.get(..end).unwrap_or_default();
    plain(&json!({ "omitted": true, "bytes": text.len(), "begins": begins }))
}

/// The answer, as the log keeps it.
fn logged_output(
    inner: &ProxyState,
    tool: &str,
    digest: Option<&String>,
    content: &[ContentBlock],
    structured: Option<&JsonText>,
) -> Option<JsonText> {
    match inner.parts.retention.log(tool) {
        LogLevel::Full => (),
        LogLevel::Digest => return digest.map(logged_digest),
        LogLevel::None => return None,
    }
    let bytes = payload::size(content, structured);
    if bytes > LOGGED_BYTES_MAX {
        return Some(omitted(bytes));
    }
    let redacted = |document: &JsonText| redact::document(document, &inner.parts.shapes);
    let content = JsonText::array(content.iter().map(|block| redacted(block.json())));
    let structured = structured.map(|structured| ("structuredContent", redacted(structured)));
    Some(JsonText::object(std::iter::once(("content", content)).chain(structured)))
}

/// An answer without a result.
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

/// Records a refusal and answers it. A record that cannot be written is counted; the refusal
/// keeps its code.
pub(super) async fn refuse(inner: &ProxyState, refused: Refused) -> ToolResult {
    let Refused { trail, code, message, mut details, retry_after_ms, receipt_id, internal } =
        refused;
    let message = message.unwrap_or_else(|| code.safe_sentence().to_owned());
    let duration_ms = trail.duration_ms(inner);
    let at = inner.parts.clock.now();
    if let Some(receipt_id) = receipt_id {
        details.insert("receiptId".to_owned(), receipt_id.into());
    }
    if code.event().is_some() && !inner.is_single(trail.caller.name(), code, &at) {
        tracing::debug!(code = code.as_str(), "a refusal is counted with others");
    } else if let Some(kind) = code.event() {
        let mut terminal = trail.event(kind, &at);
        terminal.status = Some(code.status());
        terminal.error_code = Some(code);
        terminal.error = Some(redact::sentence(&message, &inner.parts.shapes));
        terminal.effect = Some(Effect::NotStarted);
        terminal.duration_ms = Some(duration_ms);
        let mut log = trail.log(inner, &at, duration_ms);
        log.input = log.input.map(begins);
        log.is_error = true;
        log.error_code = Some(code);
        log.internal = internal;
        if let Err(error) =
            inner.parts.ledger.refuse(Refusal { log: Arc::new(log), terminal }).await
        {
            inner.count_gap(&error);
        }
    } else {
        // Only `record-unavailable` comes here without an event: there is nowhere to write it.
        inner.count_gap(&LedgerError::unavailable(internal.unwrap_or_default()));
    }
    let mut result = failed_result(trail.tool_id, trail.call_id, code, Effect::NotStarted, message);
    if let Some(error) = &mut result.error {
        error.details = details;
    }
    ToolResult { warnings: trail.warnings, retry_after_ms, duration_ms, ..result }
}

/// Records a replay and gives the earlier outcome again.
pub(super) async fn replay(inner: &ProxyState, replayed: Replayed) -> ToolResult {
    let Replayed { mut trail, receipt, arguments_differ } = replayed;
    let receipt = *receipt;
    let status = receipt.status.unwrap_or(Status::Failed);
    let mut kept = kept_of(&receipt, &mut trail.warnings);
    if arguments_differ {
        trail.warnings.push("arguments-differ".to_owned());
        let note = "This is the outcome of the first call with this key. The arguments of this \
                    call differed and were not applied.";
        kept.content.insert(0, ContentBlock::text(note));
    }
    if receipt.caller != trail.caller.name() {
        trail.warnings.push(super::FIRST_BY_ANOTHER.to_owned());
    }
    let duration_ms = trail.duration_ms(inner);
    let at = inner.parts.clock.now();
    let mut terminal = trail.event(AuditEventKind::ToolReplayed, &at);
    terminal.receipt_id = Some(receipt.receipt_id.clone());
    terminal.status = Some(status);
    terminal.error_code = receipt.error_code;
    terminal.effect = Some(receipt.effect);
    terminal.duration_ms = Some(duration_ms);
    terminal.result_digest.clone_from(&receipt.result_digest);
    let mut log = trail.log(inner, &at, duration_ms);
    log.receipt_id = Some(receipt.receipt_id.clone());
    log.is_error = status != Status::Succeeded;
    log.error_code = receipt.error_code;
    let digest = receipt.result_digest.as_ref();
    let (content, structured) = (&kept.content, kept.structured_content.as_ref());
    log.output = logged_output(inner, &trail.tool_id, digest, content, structured);
    if let Err(error) = inner.parts.ledger.refuse(Refusal { log: Arc::new(log), terminal }).await {
        inner.count_gap(&error);
    }
    let mut warnings = kept.warnings;
    warnings.extend(trail.warnings);
    ToolResult {
        tool_id: trail.tool_id,
        call_id: trail.call_id,
        status,
        is_error: status != Status::Succeeded,
        effect: receipt.effect,
        content: kept.content,
        structured_content: kept.structured_content,
        meta: kept.meta,
        error: kept.error,
        replayed: true,
        warnings,
        receipt_id: Some(receipt.receipt_id),
        retry_after_ms: None,
        duration_ms,
        execute_ms: None,
    }
}

/// What a receipt keeps of its result.
fn kept_of(receipt: &Receipt, warnings: &mut Vec<String>) -> StoredResult {
    receipt.result.clone().unwrap_or_else(|| {
        warnings.push("result-not-kept".to_owned());
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

/// The answer to a call whose outcome has become known since it ended.
pub(super) fn outcome_of(receipt: Receipt, call_id: &str) -> ToolResult {
    let mut warnings = Vec::new();
    let kept = kept_of(&receipt, &mut warnings);
    let status = receipt.status.unwrap_or(Status::Failed);
    ToolResult {
        tool_id: receipt.tool_id,
        call_id: call_id.to_owned(),
        status,
        is_error: status != Status::Succeeded,
        effect: receipt.effect,
        content: kept.content,
        structured_content: kept.structured_content,
        meta: kept.meta,
        error: kept.error,
        replayed: true,
        warnings: kept.warnings.into_iter().chain(warnings).collect(),
        receipt_id: Some(receipt.receipt_id),
        retry_after_ms: None,
        duration_ms: receipt.duration_ms.unwrap_or_default(),
        execute_ms: None,
    }
}

/// What is to be written of a call that was dispatched, and its answer.
pub(super) fn settlement(inner: &ProxyState, screened: Screened) -> (Arc<Settlement>, ToolResult) {
    let Screened {
        trail,
        claim,
        tool,
        rate_per_min,
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
    } = screened;
    let duration_ms = trail.duration_ms(inner);
    let at = inner.parts.clock.now();
    let status = code.map_or(Status::Succeeded, ErrorCode::status);
    let error = code.map(|code| CallError { code, message: message.clone(), details });
    let kept = StoredResult {
        content: content.clone(),
        structured_content: structured.clone(),
        meta: meta.clone(),
        error: error.clone(),
        warnings: trail.warnings.clone(),
    };
    let result_digest = Some(inner.parts.ledger.digester().of_written(&kept));
    let kind = code.and_then(ErrorCode::event).unwrap_or(AuditEventKind::ToolExecuted);
    let mut terminal = trail.event(kind, &at);
    terminal.status = Some(status);
    terminal.error_code = code;
    terminal.error = code.map(|_| redact::sentence(&message, &inner.parts.shapes));
    terminal.effect = Some(effect);
    terminal.duration_ms = Some(duration_ms);
    terminal.result_digest.clone_from(&result_digest);
    let mut log = trail.log(inner, &at, duration_ms);
    let (id, digest) = (&trail.tool_id, result_digest.as_ref());
    log.output = logged_output(inner, id, digest, &content, structured.as_ref());
    log.is_error = code.is_some();
    log.error_code = code;
    log.internal = internal.map(|text| inner.parts.shapes.redact(&text).into_owned());
    log.receipt_id = Some(claim.receipt_id().to_owned());
    log.attempt = claim.attempt();
    let settlement = Arc::new(Settlement {
        claim,
        mode: tool.contract().idempotency.mode,
        status,
        effect,
        error_code: code,
        fields,
        result_digest,
        result: (inner.parts.retention.results(&trail.tool_id) == Results::Keep).then_some(kept),
        sandbox,
        rate_per_min,
        duration_ms,
        at,
        log: Arc::new(log),
        events,
        terminal,
        sync: super::must_last(tool.contract()),
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

/// Tries until the store has taken the settlement, or says that it never will.
pub(super) async fn settle_until_done(
    inner: &ProxyState,
    settlement: &Arc<Settlement>,
) -> Result<Arc<Receipt>, LedgerError> {
    let mut pause = RETRY_FIRST;
    loop {
        match inner.parts.ledger.settle(Arc::clone(settlement)).await {
            Err(LedgerError::Unavailable { reason, .. }) => {
                tracing::warn!(reason, "an outcome waits for the store");
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(Duration::from_secs(1));
            }
            done => return done,
        }
    }
}

/// The tool ran, and its outcome is not recorded yet: the caller learns that, and no more.
pub(super) fn outcome_unrecorded(result: ToolResult, receipt_id: &str) -> ToolResult {
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
