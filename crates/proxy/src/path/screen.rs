//! Stage 8: screens the result of a tool before any other code reads it.
//!
//! Path: 8. Doc: call-path.md#the-result

use serde_json::{Map, Value};
use toolbooth_audit::ledger::Claim;
use toolbooth_audit::redact;
use toolbooth_contracts::contract::AdapterId;
use toolbooth_contracts::event::{AuditEventKind, EventBody};
use toolbooth_contracts::execution_log::{
    AppliedSandbox, EgressRefusal, SandboxDenial, ServerRefusal,
};
use toolbooth_contracts::json::{JsonText, WRAPPED_DEPTH_MAX};
use toolbooth_contracts::payload::{Payload, text_as_data};
use toolbooth_contracts::port::{ExecutionError, ToolOutput};
use toolbooth_contracts::sandbox::Enforce;
use toolbooth_contracts::{ContentBlock, Effect, ErrorCode};
use toolbooth_registry::RegisteredTool;
use toolbooth_registry::uris::ResourceUris;

use super::claim::ClaimedCall;
use super::execute::{Executed, Execution};
use crate::limits::{Limits, OutputRule};
use crate::server_error::shown_data;
use crate::state::ProxyState;
use crate::trail::CallTrail;

/// A result that can be shown and recorded.
pub(super) struct Screened {
    pub(super) trail: Box<CallTrail>,
    pub(super) claim: Claim,
    pub(super) tool: std::sync::Arc<RegisteredTool>,
    pub(super) effect: Effect,
    pub(super) code: Option<ErrorCode>,
    /// The safe sentence, if there is a code.
    pub(super) message: String,
    /// Facts about the error, for programs.
    pub(super) details: Map<String, Value>,
    pub(super) content: Vec<ContentBlock>,
    pub(super) structured: Option<JsonText>,
    pub(super) meta: Option<JsonText>,
    pub(super) fields: Map<String, Value>,
    pub(super) events: Vec<EventBody>,
    pub(super) internal: Option<String>,
    pub(super) sandbox: Option<AppliedSandbox>,
    pub(super) execute_ms: f64,
    _stage: (),
}

impl Screened {
    pub(super) fn description(&self) -> &'static str {
        self.code.map_or("the result fits", ErrorCode::as_str)
    }
}

pub(super) fn screen(state: &ProxyState, executed: Executed) -> Screened {
    let Executed { claimed, outcome, observed, execute_ms, .. } = executed;
    let ClaimedCall { found, claim, .. } = claimed;
    let mut screened = Screened {
        trail: found.entered.trail,
        claim,
        tool: found.tool,
        effect: Effect::Completed,
        code: None,
        message: String::new(),
        details: Map::new(),
        content: Vec::new(),
        structured: None,
        meta: None,
        fields: Map::new(),
        events: Vec::new(),
        internal: None,
        sandbox: None,
        execute_ms,
        _stage: (),
    };
    let wanted = screened.tool.contract().sandbox.as_ref();
    let best_effort = wanted.is_some_and(|profile| profile.enforce == Enforce::BestEffort);
    match &observed.sandbox {
        None if best_effort && matches!(outcome, Execution::Answered(_)) => {
            screened.trail.warnings.push("sandbox-not-applied".to_owned())
        }
        Some(sandbox) if !sandbox.missing.is_empty() => {
            screened.trail.warnings.push("sandbox-partial".to_owned());
        }
        _ => (),
    }
    let reached = observed.reached;
    screened.sandbox = observed.sandbox.map(|sandbox| AppliedSandbox { reached, ..sandbox });
    let at = state.parts.clock.now();
    let mut denied = observed.denied;
    for refusal in observed.egress {
        let EgressRefusal { host, port, reason, .. } = &refusal;
        // The reason can reveal facts about this machine, so only operators see it.
        let sentence = format!("reaching `{host}:{port}` was refused: {reason}");
        denied.push(SandboxDenial { sentence, open: false });
        let mut event = screened.trail.event(AuditEventKind::EgressDenied, &at);
        let facts = serde_json::to_value(refusal).ok();
        event.facts = facts.and_then(|facts| facts.as_object().cloned());
        screened.events.push(event);
    }
    match outcome {
        Execution::Failed(mut error) => {
            // An adapter may take the sentence from the response, which can contain secrets.
            error.safe = error.safe.map(|safe| state.parts.shapes.redact(&safe).into_owned());
            screened.fail(error);
            if let Some(ServerRefusal { code, data }) = observed.refusal {
                let mut refusal = Map::new();
                refusal.insert("code".to_owned(), code.into());
                if let Some(data) = shown_data(data.as_ref(), &state.parts.shapes) {
                    refusal.insert("data".to_owned(), data);
                }
                screened.details.insert("upstream".to_owned(), Value::Object(refusal));
            }
        }
        Execution::Answered(mut output) => {
            // Before anything is counted or recorded, so that the recorded result equals the shown one.
            if let AdapterId::Mcp(server) = screened.tool.adapter() {
                for block in output.payload.content.iter_mut().flatten() {
                    map_links(block, server, &found.world.uris);
                }
            }
            screened.take(state, output);
        }
    }
    screened.record_denials(denied);
    screened
}

impl Screened {
    /// Reports sandbox denials: to operators in full, to the agent only the sentences that its result
    /// reveals anyway.
    fn record_denials(&mut self, denied: Vec<SandboxDenial>) {
        for denial in denied {
            let SandboxDenial { sentence, open } = denial;
            tracing::warn!(reason = sentence, "the sandbox stopped a tool");
            let told =
                if open { sentence.as_str() } else { "the operator's log says by which rule" };
            let warning = format!("sandbox-denied: {told}");
            if !self.trail.warnings.contains(&warning) {
                self.trail.warnings.push(warning);
            }
            self.add_internal(format!("sandbox-denied: {sentence}"));
        }
    }

    fn fail(&mut self, error: ExecutionError) {
        self.effect = error.effect;
        self.code = Some(error.code);
        self.message = error.safe.unwrap_or_else(|| error.code.safe_sentence().to_owned());
        self.add_internal(error.internal);
        self.content = vec![ContentBlock::text(self.message.clone())];
    }

    /// Adds the message for the operator, after the output of the tool.
    fn add_internal(&mut self, internal: String) {
        self.internal = Some(match self.internal.take() {
            Some(before) => format!("{before}\n{internal}"),
            None => internal,
        });
    }

    /// Rejects the result of a tool that ran to its end.
    fn reject(&mut self, code: ErrorCode, internal: String) {
        let message = code.safe_sentence().to_owned();
        self.fail(ExecutionError {
            code,
            effect: Effect::Completed,
            safe: Some(message),
            internal,
        });
    }

    fn take(&mut self, state: &ProxyState, output: ToolOutput) {
        let limits = &state.parts.limits;
        self.internal.clone_from(&output.internal);
        if let Some((code, internal)) = self.objection(limits, &output) {
            return self.reject(code, internal);
        }
        let Payload { content, structured_content, meta } = output.payload;
        self.structured = structured_content;
        self.meta = meta;
        self.content = content.unwrap_or_default();
        if output.is_error {
            self.code = Some(ErrorCode::ToolError);
            self.message = ErrorCode::ToolError.safe_sentence().to_owned();
            let shapes = &state.parts.shapes;
            for block in &mut self.content {
                if let Some(redacted) = redact::texts(block.json(), shapes) {
                    *block = ContentBlock::new(redacted);
                }
            }
            for document in [&mut self.structured, &mut self.meta].into_iter().flatten() {
                if let Some(redacted) = redact::texts(document, shapes) {
                    *document = redacted;
                }
            }
            return;
        }
        let fields = !self.tool.contract().receipt_fields.is_empty();
        // One tree serves the schema and the receipt's fields, if either needs it.
        let asked = self.structured.as_ref().filter(|_| fields || self.tool.judges_output());
        let structured = asked.map(JsonText::tree);
        self.judge_output(state, structured.as_ref());
        if fields && self.code.is_none() {
            let data = structured.or_else(|| text_as_data(&self.content));
            let paths = &self.tool.contract().receipt_fields;
            let found = |path: &String| (path.clone(), field(data.as_ref(), path));
            self.fields = paths.iter().map(found).collect();
        }
    }

    fn objection(&self, limits: &Limits, output: &ToolOutput) -> Option<(ErrorCode, String)> {
        let contract = self.tool.contract();
        if let Some(id) = &output.tool_id
            && id != contract.tool_id.as_str()
        {
            let internal = format!("the result says that it is of `{}`", id.escape_debug());
            return Some((ErrorCode::ToolIdMismatch, internal));
        }
        if let Some(fault) = &output.fault {
            return Some((ErrorCode::InvalidToolResult, fault.clone()));
        }
        let payload = &output.payload;
        if payload.content.is_none() && payload.structured_content.is_none() {
            let internal = "neither content nor structured content".to_owned();
            return Some((ErrorCode::MissingToolResult, internal));
        }
        let content = payload.content.as_deref().unwrap_or_default();
        if let Some(at) = content.iter().position(|block| !block.is_well_formed()) {
            let internal = format!("content block {at} is not an object with a `type`");
            return Some((ErrorCode::InvalidToolResult, internal));
        }
        // A record adds a few levels around the result, and must still be readable.
        if payload.parts().any(|part| part.depth() > WRAPPED_DEPTH_MAX) {
            let internal = format!("the result is nested deeper than {WRAPPED_DEPTH_MAX} levels");
            return Some((ErrorCode::InvalidToolResult, internal));
        }
        let most = contract
            .capabilities
            .asset_bytes_max()
            .map_or(limits.result_bytes_max, |own| own.min(limits.result_bytes_max));
        let bytes = payload.bytes();
        (bytes > most).then(|| {
            (
                ErrorCode::ResultTooLarge,
                format!("the result has {bytes} bytes, at most {most} are taken"),
            )
        })
    }

    fn judge_output(&mut self, state: &ProxyState, structured: Option<&Value>) {
        let errors = self.tool.output_errors(structured);
        if errors.is_empty() {
            return;
        }
        let told: Vec<String> =
            errors.iter().map(|error| format!("{}: {}", error.path, error.message)).collect();
        let internal = format!("the result does not fit its schema: {}", told.join("; "));
        let at = state.parts.clock.now();
        self.events.push(self.trail.event(AuditEventKind::ToolOutputMismatch, &at));
        match state.parts.limits.output {
            OutputRule::Warn => {
                self.trail.warnings.push("output-mismatch".to_owned());
                self.add_internal(internal);
            }
            OutputRule::Enforce => {
                self.structured = None;
                self.meta = None;
                self.reject(ErrorCode::InvalidToolResult, internal);
            }
        }
    }
}

/// Replaces the URIs of a block by those that clients know.
fn map_links(block: &mut ContentBlock, server: &str, uris: &ResourceUris) {
    if !matches!(block.kind().as_deref(), Some("resource_link" | "resource")) {
        return;
    }
    let mut tree = block.tree();
    uris.map_block(server, &mut tree);
    // A mapped block stays a valid block.
    if let Ok(mapped) = ContentBlock::of(&tree) {
        *block = mapped;
    }
}

/// Returns the value at a dotted path from `result`, or null if the path finds nothing.
fn field(data: Option<&Value>, path: &str) -> Value {
    let mut here = data;
    for part in path.split('.').skip(1) {
        here = here.and_then(|value| match value {
            Value::Array(items) => part.parse::<usize>().ok().and_then(|index| items.get(index)),
            other => other.get(part),
        });
    }
    here.cloned().unwrap_or_default()
}
