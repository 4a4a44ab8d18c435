//! The caller and the target of a call, as far as they are known, and the records of the call.
//!
//! Path: 9. Doc: records.md#of-one-call

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::value::RawValue;
use serde_json::{Value, json};
use toolbooth_audit::digest::sha256_hex;
use toolbooth_audit::documents::Document;
use toolbooth_audit::ledger::Moment;
use toolbooth_audit::redact;
use toolbooth_contracts::agent_log::{AgentLog, LogLevel};
use toolbooth_contracts::decision::{CallerInputs, DecisionInputs};
use toolbooth_contracts::event::{AuditEventKind, DecisionSummary, EventBody};
use toolbooth_contracts::history::{History, WindowName};
use toolbooth_contracts::json::{JsonText, WRAPPED_DEPTH_MAX, canonical, parse_with_doubles};
use toolbooth_contracts::secret::SecretShapes;
use toolbooth_contracts::{Arguments, CallContext, Caller, ContentBlock, payload};
use toolbooth_policy::ApprovalNeed;

use crate::kept_documents::JudgedBy;
use crate::state::ProxyState;

/// Maximum bytes of any name that a caller sends.
pub(crate) const NAME_BYTES_MAX: usize = 512;
/// Bytes of a payload that an agent log stores; of a larger one it stores the size.
const LOGGED_BYTES_MAX: usize = 256 << 10;
/// Bytes of arguments that an approval stores until it is decided.
const SHOWN_BYTES_MAX: usize = 64 << 10;

/// The input of a call, as far as it is known.
pub(crate) enum Input {
    None,
    /// Arguments as received.
    Raw(Box<RawValue>),
    /// Arguments as judged.
    Judged(Arguments),
    /// Input that is recorded by its digest only.
    Digest,
}

impl Input {
    /// Returns the bytes of the input; 0 if only its digest is known.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::None | Self::Digest => 0,
            Self::Raw(raw) => raw.get().len(),
            Self::Judged(arguments) => arguments.bytes(),
        }
    }
}

/// The inputs of a judgement, except the arguments and the claims of the call.
pub(crate) struct Judged {
    pub(crate) by: JudgedBy,
    pub(crate) grants: Vec<String>,
    /// Whether the arguments were checked and the rules were asked.
    pub(crate) is_checked: bool,
    /// When the rules judged; `None` without rules.
    pub(crate) at: Option<String>,
    /// The approval that the call needs.
    pub(crate) approval: Option<ApprovalNeed>,
    /// The windows that the rules read.
    pub(crate) windows: BTreeMap<String, WindowName>,
    /// What the rules have seen of the windows.
    pub(crate) history: History,
}

/// The caller and the target of a call, as far as they are known: passed along the path and into the
/// records.
pub(crate) struct CallTrail {
    pub(crate) tool_id: String,
    pub(crate) call_id: String,
    pub(crate) caller: Caller,
    pub(crate) context: CallContext,
    /// When the call arrived, on the monotonic clock.
    pub(crate) began: Duration,
    pub(crate) input: Input,
    pub(crate) args_digest: Option<String>,
    /// The same by earlier keys of the store.
    pub(crate) older_args_digests: Vec<String>,
    pub(crate) policy_version: String,
    pub(crate) decision: Option<DecisionSummary>,
    /// Whether that is a denial.
    pub(crate) is_denied: bool,
    /// The inputs of the judgement; `None` before the call was judged.
    pub(crate) judged: Option<Box<Judged>>,
    /// The decision of the rules in shadow mode, until it is recorded.
    pub(crate) shadow: Option<DecisionSummary>,
    /// Whether such a decision is recorded: a call that waits for an approval is judged again.
    pub(crate) is_shadow_recorded: bool,
    pub(crate) warnings: Vec<String>,
}

impl CallTrail {
    /// Begins with the received values; truncates names that are too long to be stored.
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
            is_denied: false,
            judged: None,
            shadow: None,
            is_shadow_recorded: false,
            warnings: Vec::new(),
        };
        cut(&mut trail.tool_id);
        let context = &mut trail.context;
        let CallContext { agent_id, phase_id, epic_id, session_id, .. } = context;
        for name in [agent_id, phase_id, epic_id, session_id] {
            name.as_mut().map(cut).unwrap_or_default();
        }
        trail
    }

    /// Sets the name of the target, truncated if it is too long to be stored.
    pub(crate) fn name(&mut self, tool_id: String) {
        self.tool_id = tool_id;
        cut(&mut self.tool_id);
    }

    /// Stores the inputs of the policy before it judges the call.
    pub(crate) fn judge_by(&mut self, by: JudgedBy) {
        let rights = by.world.policy.rights(&self.caller);
        let grants = rights.map(|rights| rights.grants.as_slice()).unwrap_or_default();
        self.judged = Some(Box::new(Judged {
            grants: grants.iter().map(|grant| grant.as_str().to_owned()).collect(),
            by,
            is_checked: false,
            at: None,
            approval: None,
            windows: BTreeMap::new(),
            history: History::new(),
        }));
    }

    /// Notes that the arguments were checked, and when rules were asked, if there are any.
    pub(crate) fn checked(&mut self, at: Option<String>) {
        if let Some(judged) = &mut self.judged {
            judged.is_checked = true;
            judged.at = at;
        }
    }

    /// Notes what the policy has permitted, and what rules in shadow would have decided.
    pub(crate) fn permitted(
        &mut self,
        decision: DecisionSummary,
        shadow: Option<&DecisionSummary>,
    ) {
        self.decision = Some(decision);
        self.shadow = shadow.cloned();
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
            decision_inputs: self.decision.as_ref().map(|decision| self.inputs(decision)),
            timestamp: at.text.clone(),
            internal: None,
        }
    }

    /// Returns the documents that the log of this call names and that the store may not have.
    pub(crate) fn documents(&self, state: &ProxyState, at: &Moment) -> Vec<Document> {
        // Without a decision the log names none.
        let judged = self.judged.as_deref().filter(|_| self.decision.is_some());
        let Some(judged) = judged.filter(|judged| judged.by.is_kept()) else { return Vec::new() };
        let caller = Some(self.caller_inputs(judged)).filter(CallerInputs::is_large);
        let caller = caller.as_ref().map(document_of);
        state.kept_documents.lacking(&judged.by, caller, at)
    }

    /// Returns the attributes of the caller that the policy used.
    fn caller_inputs(&self, judged: &Judged) -> CallerInputs {
        CallerInputs::of(&self.caller, judged.grants.clone())
    }

    /// Returns a decision with its inputs.
    fn inputs(&self, decision: &DecisionSummary) -> DecisionInputs {
        let judged = self.judged.as_deref();
        let need = judged.and_then(|judged| judged.approval.as_ref());
        let caller = judged.map(|judged| self.caller_inputs(judged));
        let is_kept = judged.is_some_and(|judged| judged.by.is_kept());
        let large = caller.as_ref().filter(|caller| is_kept && caller.is_large());
        let named = large.map(document_of);
        DecisionInputs {
            rule: decision.rule.clone(),
            reason: decision.reason.clone(),
            policy_version: self.policy_version.clone(),
            denied: self.is_denied,
            documents: is_kept,
            unchecked: self.is_denied && judged.is_some_and(|judged| !judged.is_checked),
            item: judged.and_then(|judged| judged.by.item.clone()),
            contract_digest: judged
                .and_then(|judged| judged.by.tool.as_ref())
                .map(|tool| tool.contract_digest().to_owned()),
            caller: caller.filter(|_| named.is_none()),
            caller_digest: named.map(|(digest, _)| digest),
            session_id: judged.and(self.context.session_id.clone()),
            judged_at: judged.and_then(|judged| judged.at.clone()),
            approval: need.map(|need| need.rule.clone()),
            approvers: need.map(|need| need.by),
            windows: judged.map(|judged| judged.windows.clone()).unwrap_or_default(),
            history: judged.map(|judged| judged.history.clone()).unwrap_or_default(),
        }
    }

    /// Returns the input in the form that the log stores.
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
            // Input that the gate rejects is logged parsed, if possible: in unparsed text the names of
            // secrets could not be recognized.
            Input::Raw(raw) => {
                let read = parse_with_doubles(raw.get()).ok();
                read.and_then(|tree| redact::tree(&tree, shapes).ok())
            }
        };
        // A record adds a few levels around the input, and must still be readable.
        let readable = logged.filter(|logged| logged.depth() <= WRAPPED_DEPTH_MAX);
        Some(readable.unwrap_or_else(|| omitted(bytes)))
    }

    /// Returns a result in the form that the log stores.
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

    /// Returns the digest of a response in the form that the log stores.
    pub(crate) fn logged_answer(
        &self,
        state: &ProxyState,
        digest: Option<&String>,
    ) -> Option<JsonText> {
        logged_digest(state.parts.retention.log(&self.tool_id), digest)
    }
}

/// Returns the digest and the canonical form of what is known of a caller.
fn document_of(caller: &CallerInputs) -> (String, String) {
    let text = canonical(&serde_json::to_value(caller).unwrap_or_default());
    (sha256_hex(text.as_bytes()), text)
}

/// Truncates a name that is too long to be stored.
fn cut(text: &mut String) {
    if text.len() > NAME_BYTES_MAX {
        text.truncate(boundary(text, NAME_BYTES_MAX));
    }
}

/// Returns the last place at or before `at` where a character begins.
pub(crate) fn boundary(text: &str, at: usize) -> usize {
    let mut at = at.min(text.len());
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    at
}

/// Returns the digest of a payload, if the level stores anything of payloads.
fn logged_digest(level: LogLevel, digest: Option<&String>) -> Option<JsonText> {
    let digest = digest.filter(|_| level != LogLevel::None)?;
    Some(plain(&json!({ "digest": digest })))
}

/// Returns arguments for those who decide on an approval: redacted, and only their size if they are large.
pub(crate) fn shown_arguments(arguments: &Arguments, shapes: &SecretShapes) -> JsonText {
    let bytes = arguments.bytes();
    if bytes > SHOWN_BYTES_MAX {
        return omitted(bytes);
    }
    let shown = redact::tree(arguments.tree(), shapes).ok();
    shown.filter(|shown| shown.depth() <= WRAPPED_DEPTH_MAX).unwrap_or_else(|| omitted(bytes))
}

/// Returns the replacement of a payload that is too large to be stored.
fn omitted(bytes: usize) -> JsonText {
    plain(&json!({ "omitted": true, "bytes": bytes }))
}

/// Converts a document of the gateway's own, which passes the gate.
pub(crate) fn plain(tree: &Value) -> JsonText {
    JsonText::of(tree).unwrap_or_else(|_| JsonText::of_text(redact::OMITTED))
}
