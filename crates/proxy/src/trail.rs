//! Who calls what, as far as it is known, and what is written down of it.
//!
//! Path: 9. Doc: records.md#of-one-call

use std::sync::Arc;
use std::time::Duration;

use serde_json::value::RawValue;
use serde_json::{Value, json};
use toolbooth_audit::LedgerError;
use toolbooth_audit::ledger::{Moment, Refusal};
use toolbooth_audit::redact;
use toolbooth_contracts::agent_log::{AgentLog, LogLevel};
use toolbooth_contracts::event::{AuditEventKind, DecisionNote, EventBody};
use toolbooth_contracts::json::{JsonText, WRAPPED_DEPTH_MAX, parse_with_doubles};
use toolbooth_contracts::{
    Arguments, CallContext, Caller, ContentBlock, Effect, ErrorCode, Status, payload,
};

use crate::state::ProxyState;

/// Longest name that a caller may give anything, in bytes.
pub(crate) const NAME_BYTES_MAX: usize = 512;
/// Bytes of a payload that an agent log keeps; of a larger one it keeps the size.
const LOGGED_BYTES_MAX: usize = 256 << 10;
/// Bytes of its input that the record of a refusal keeps.
const REFUSED_BYTES_MAX: usize = 4 << 10;

/// What was sent along, as far as it is known.
pub(crate) enum Input {
    None,
    /// Arguments as they came.
    Raw(Box<RawValue>),
    /// Arguments as they were judged.
    Judged(Arguments),
    /// What is recorded by its digest only.
    Digest,
}

impl Input {
    /// Bytes of what was sent; none where only a digest is known of it.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::None | Self::Digest => 0,
            Self::Raw(raw) => raw.get().len(),
            Self::Judged(arguments) => arguments.bytes(),
        }
    }
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
    /// Begins with what came in; names that are too long to be kept are cut.
    pub(crate) fn begin(
        state: &ProxyState,
        tool_id: String,
        call_id: String,
        caller: Caller,
        context: CallContext,
    ) -> Self {
        let mut trail = Self {
            tool_id,
            call_id,
            caller,
            context,
            began: state.parts.clock.monotonic(),
            input: Input::None,
            args_digest: None,
            older_args_digests: Vec::new(),
            policy_version: String::new(),
            decision: None,
            warnings: Vec::new(),
        };
        cut(&mut trail.tool_id);
        let context = &mut trail.context;
        for name in [&mut context.agent_id, &mut context.phase_id, &mut context.epic_id] {
            name.as_mut().map(cut).unwrap_or_default();
        }
        trail
    }

    /// Names what is called, cut where the name is too long to be kept.
    pub(crate) fn name(&mut self, tool_id: String) {
        self.tool_id = tool_id;
        cut(&mut self.tool_id);
    }

    pub(crate) fn duration_ms(&self, state: &ProxyState) -> f64 {
        crate::port::milliseconds(state.parts.clock.monotonic().saturating_sub(self.began))
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

    /// The agent log of this call.
    pub(crate) fn log(&self, state: &ProxyState, at: &Moment, duration_ms: f64) -> AgentLog {
        AgentLog {
            id: state.parts.ids.next(),
            tool_name: self.tool_id.clone(),
            agent_id: self.context.agent_id.clone(),
            turn_index: self.context.turn_index,
            phase_id: self.context.phase_id.clone(),
            epic_id: self.context.epic_id.clone(),
            call_id: self.call_id.clone(),
            receipt_id: None,
            caller: self.caller.name().to_owned(),
            input: self.logged_input(state),
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

    /// What was sent along, as the log keeps it.
    fn logged_input(&self, state: &ProxyState) -> Option<JsonText> {
        let level = state.parts.retention.log(&self.tool_id);
        if level != LogLevel::Full || matches!(self.input, Input::Digest) {
            return logged_digest(level, self.args_digest.as_ref());
        }
        let bytes = self.input.bytes();
        if bytes > LOGGED_BYTES_MAX {
            return Some(omitted(bytes));
        }
        let shapes = &state.parts.shapes;
        let logged = match &self.input {
            Input::None | Input::Digest => return None,
            Input::Judged(arguments) => redact::tree(arguments.tree(), shapes).ok(),
            // What the gate refuses is logged as far as it can be read: as mere text the names of
            // its secrets could not be told.
            Input::Raw(raw) => {
                let read = parse_with_doubles(raw.get()).ok();
                read.and_then(|tree| redact::tree(&tree, shapes).ok())
            }
        };
        // A record wraps a few levels around it, and must be readable all the same.
        let readable = logged.filter(|logged| logged.depth() <= WRAPPED_DEPTH_MAX);
        Some(readable.unwrap_or_else(|| omitted(bytes)))
    }

    /// An answer, as the log keeps it.
    pub(crate) fn logged_output(
        &self,
        state: &ProxyState,
        digest: Option<&String>,
        content: &[ContentBlock],
        structured: Option<&JsonText>,
    ) -> Option<JsonText> {
        let level = state.parts.retention.log(&self.tool_id);
        if level != LogLevel::Full {
            return logged_digest(level, digest);
        }
        let bytes = payload::size(content, structured);
        if bytes > LOGGED_BYTES_MAX {
            return Some(omitted(bytes));
        }
        let redacted = |document: &JsonText| redact::document(document, &state.parts.shapes);
        let content = JsonText::array(content.iter().map(|block| redacted(block.json())));
        let structured = structured.map(|structured| ("structuredContent", redacted(structured)));
        Some(JsonText::object(std::iter::once(("content", content)).chain(structured)))
    }

    /// The digest of an answer, as the log keeps it.
    pub(crate) fn logged_answer(
        &self,
        state: &ProxyState,
        digest: Option<&String>,
    ) -> Option<JsonText> {
        logged_digest(state.parts.retention.log(&self.tool_id), digest)
    }

    /// Writes down how a call or a request ended that has no claim: its terminal event and its log,
    /// in one durable step.
    ///
    /// # Errors
    /// Where the store does not take it.
    pub(crate) async fn record(
        &self,
        state: &ProxyState,
        at: &Moment,
        end: UnclaimedEnd,
    ) -> Result<(), LedgerError> {
        let duration_ms = self.duration_ms(state);
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
        log.attempt = u32::from(end.was_sent);
        if end.effect == Effect::NotStarted && end.receipt_id.is_none() {
            log.input = log.input.map(begins);
        }
        log.receipt_id = end.receipt_id;
        state.parts.ledger.refuse(Refusal { log: Arc::new(log), terminal }).await
    }
}

/// How a call or a request ended that has no claim, beside what its trail says.
pub(crate) struct UnclaimedEnd {
    pub(crate) kind: AuditEventKind,
    pub(crate) status: Status,
    pub(crate) code: Option<ErrorCode>,
    /// The safe sentence, redacted.
    pub(crate) sentence: Option<String>,
    pub(crate) effect: Effect,
    pub(crate) receipt_id: Option<String>,
    pub(crate) result_digest: Option<String>,
    /// The answer, as the log keeps it.
    pub(crate) output: Option<JsonText>,
    /// The full cause, for operators.
    pub(crate) internal: Option<String>,
    /// Whether a server was asked.
    pub(crate) was_sent: bool,
}

impl UnclaimedEnd {
    /// An end of this kind with this status, of which nothing else is known.
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
            was_sent: false,
        }
    }
}

/// Cuts a name that is too long to be kept.
fn cut(text: &mut String) {
    if text.len() > NAME_BYTES_MAX {
        text.truncate(boundary(text, NAME_BYTES_MAX));
    }
}

/// The last place at or before `at` where a character begins.
pub(crate) fn boundary(text: &str, at: usize) -> usize {
    let mut at = at.min(text.len());
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    at
}

/// The digest of a payload, where anything of payloads is kept.
fn logged_digest(level: LogLevel, digest: Option<&String>) -> Option<JsonText> {
    let digest = digest.filter(|_| level != LogLevel::None)?;
    Some(plain(&json!({ "digest": digest })))
}

/// What stands for a payload that is too large to be kept.
fn omitted(bytes: usize) -> JsonText {
    plain(&json!({ "omitted": true, "bytes": bytes }))
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
    let begins = text.get(..boundary(text, REFUSED_BYTES_MAX)).unwrap_or_default();
    plain(&json!({ "omitted": true, "bytes": text.len(), "begins": begins }))
}
