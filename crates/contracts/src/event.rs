//! Audit events: facts in names and digests only, so that they can be retained for years.
//!
//! Doc: records.md#audit-events

#[cfg(feature = "schemars")]
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::code::{Effect, ErrorCode, Status};
pub use crate::event_kind::AuditEventKind;
use crate::json::CanonicalObject;

/// The rule that decided, and its reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(JsonSchema))]
pub struct DecisionSummary {
    /// The rule, such as `whitelist` or `permissions`.
    pub rule: String,
    /// The reason, in one sentence.
    pub reason: String,
}

/// The content of an event, before a writer assigns its place in the log.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct EventBody {
    /// The kind.
    pub event: AuditEventKind,
    /// The time, RFC 3339 UTC with milliseconds.
    pub time: String,
    /// The tool id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_name: Option<String>,
    /// The agent's claimed name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent_id: Option<String>,
    /// The agent's turn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn_index: Option<u64>,
    /// The authenticated caller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub caller: Option<String>,
    /// The call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub call_id: Option<String>,
    /// The receipt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub receipt_id: Option<String>,
    /// How the call ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<Status>,
    /// Why it did not succeed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error_code: Option<ErrorCode>,
    /// The safe sentence, redacted, at most 512 bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The known effect.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effect: Option<Effect>,
    /// Milliseconds of the whole call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration_ms: Option<f64>,
    /// The rule that decided, and its reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decision: Option<DecisionSummary>,
    /// Digest of the policy in force.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy_version: Option<String>,
    /// Digest of the arguments.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub args_digest: Option<String>,
    /// Digest of the result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result_digest: Option<String>,
    /// Digest of the receipt that was written with this event.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub receipt_digest: Option<String>,
    /// Digest of the agent log that was written with this event.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log_digest: Option<String>,
    /// Digest of the approval that was requested, decided, spent or returned with this event.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approval_digest: Option<String>,
    /// Whether the receipt holds keys after this event. If so, it is never removed without a trace.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub holds_keys: bool,
    /// Until when a window of the policy may count the receipt, in milliseconds since 1970-01-01 UTC. It is
    /// not removed before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counted_until_ms: Option<u64>,
    /// Facts of events that are not calls, such as names and digests; never payloads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub facts: Option<serde_json::Map<String, serde_json::Value>>,
}

impl EventBody {
    /// Creates an event of a kind at `time` (RFC 3339), with all other fields empty.
    #[must_use]
    pub fn new(event: AuditEventKind, time: String) -> Self {
        Self {
            event,
            time,
            tool_name: None,
            agent_id: None,
            turn_index: None,
            caller: None,
            call_id: None,
            receipt_id: None,
            status: None,
            error_code: None,
            error: None,
            effect: None,
            duration_ms: None,
            decision: None,
            policy_version: None,
            args_digest: None,
            result_digest: None,
            receipt_digest: None,
            log_digest: None,
            approval_digest: None,
            holds_keys: false,
            counted_until_ms: None,
            facts: None,
        }
    }
}

/// An event in its place in a writer's log.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "schemars", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct AuditEvent {
    /// The writer: one run of one process.
    pub writer: String,
    /// The place in the writer's log, from 0.
    pub seq: u64,
    /// Leaf hash of the previous event, in hex; absent in the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prev: Option<String>,
    /// The content.
    #[serde(flatten)]
    pub body: EventBody,
}

impl AuditEvent {
    /// Returns the canonical form (RFC 8785) that is hashed: the members in the order of their names.
    #[must_use]
    pub fn canonical(&self) -> String {
        // The members are listed by name, so that a new member does not compile without its place here.
        let Self { writer, seq, prev, body } = self;
        let EventBody {
            event,
            time,
            tool_name,
            agent_id,
            turn_index,
            caller,
            call_id,
            receipt_id,
            status,
            error_code,
            error,
            effect,
            duration_ms,
            decision,
            policy_version,
            args_digest,
            result_digest,
            receipt_digest,
            log_digest,
            approval_digest,
            holds_keys,
            counted_until_ms,
            facts,
        } = body;
        let decision = decision.as_ref().map(|decided| {
            let mut out = CanonicalObject::new();
            out.text("reason", Some(&decided.reason));
            out.text("rule", Some(&decided.rule));
            out
        });
        let mut out = CanonicalObject::new();
        out.text("agentId", agent_id.as_deref());
        out.text("approvalDigest", approval_digest.as_deref());
        out.text("argsDigest", args_digest.as_deref());
        out.text("callId", call_id.as_deref());
        out.text("caller", caller.as_deref());
        out.number("countedUntilMs", *counted_until_ms);
        out.object("decision", decision);
        out.double("durationMs", *duration_ms);
        out.text("effect", effect.map(Effect::as_str));
        out.text("error", error.as_deref());
        out.text("errorCode", error_code.map(ErrorCode::as_str));
        out.text("event", Some(event.as_str()));
        out.members("facts", facts.as_ref());
        out.flag("holdsKeys", *holds_keys);
        out.text("logDigest", log_digest.as_deref());
        out.text("policyVersion", policy_version.as_deref());
        out.text("prev", prev.as_deref());
        out.text("receiptDigest", receipt_digest.as_deref());
        out.text("receiptId", receipt_id.as_deref());
        out.text("resultDigest", result_digest.as_deref());
        out.number("seq", Some(*seq));
        out.text("status", status.map(Status::as_str));
        out.text("time", Some(time));
        out.text("toolName", tool_name.as_deref());
        out.number("turnIndex", *turn_index);
        out.text("writer", Some(writer));
        out.end()
    }
}

// Implemented by hand, because serde buffers a flattened member. Buffered numbers with a fraction cannot
// be read back while `serde_json` retains their digits.
impl<'de> Deserialize<'de> for AuditEvent {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        use serde::de::Error;

        #[derive(Deserialize)]
        struct LogPlace {
            writer: String,
            seq: u64,
            prev: Option<String>,
        }
        let value = serde_json::Value::deserialize(deserializer)?;
        let place: LogPlace = serde_json::from_value(value.clone()).map_err(D::Error::custom)?;
        let body: EventBody = serde_json::from_value(value).map_err(D::Error::custom)?;
        Ok(Self { writer: place.writer, seq: place.seq, prev: place.prev, body })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn events_with_fractions_are_read_back() {
        let mut body =
            EventBody::new(AuditEventKind::ToolExecuted, "2026-01-01T00:00:00.000Z".into());
        body.duration_ms = Some(1.25);
        let event = AuditEvent { writer: "w".into(), seq: 3, prev: None, body };
        let text = serde_json::to_string(&event).unwrap();
        assert_eq!(serde_json::from_str::<AuditEvent>(&text).unwrap(), event);
    }

    prop_compose! {
        fn events()(
            texts in proptest::collection::vec(proptest::option::of(any::<String>()), 14),
            numbers in proptest::collection::vec(proptest::option::of(any::<u64>()), 2),
            duration_ms in proptest::option::of(any::<f64>()),
            kind in 0..AuditEventKind::ALL.len(),
            code in proptest::option::of(0..ErrorCode::ALL.len()),
            status in proptest::option::of(0usize..4),
            effect in proptest::option::of(0usize..3),
        ) -> AuditEvent {
            let mut texts = texts.into_iter();
            let mut text = || texts.next().flatten();
            let mut body = EventBody::new(AuditEventKind::ALL[kind], text().unwrap_or_default());
            body.tool_name = text();
            body.agent_id = text();
            body.turn_index = numbers[0];
            body.caller = text();
            body.call_id = text();
            body.receipt_id = text();
            let all = [Status::Succeeded, Status::Failed, Status::Denied, Status::NotConfigured];
            body.status = status.map(|at| all[at]);
            body.error_code = code.map(|at| ErrorCode::ALL[at]);
            body.error = text();
            let all = [Effect::NotStarted, Effect::Completed, Effect::Unknown];
            body.effect = effect.map(|at| all[at]);
            body.duration_ms = duration_ms;
            let reason = text();
            body.decision =
                reason.map(|reason| DecisionSummary { rule: text().unwrap_or_default(), reason });
            body.policy_version = text();
            body.args_digest = text();
            let fact = text();
            body.facts = fact.map(|fact| {
                let mut facts = serde_json::Map::new();
                facts.insert(fact.clone(), json!({ "b": [1.5, -0.0, 1e300], "a": fact }));
                facts
            });
            body.log_digest = text();
            body.holds_keys = numbers[0].is_some();
            body.counted_until_ms = numbers[0].filter(|n| n % 2 == 0);
            let prev = text();
            AuditEvent { writer: text().unwrap_or_default(), seq: numbers[1].unwrap_or(7), prev, body }
        }
    }

    proptest! {
        #[test]
        fn the_canonical_form_is_that_of_the_document(event in events()) {
            let document = serde_json::to_value(&event).unwrap();
            prop_assert_eq!(event.canonical(), crate::json::canonical(&document));
        }
    }

    #[test]
    fn each_member_has_its_position_in_the_canonical_form() {
        let mut body = EventBody::new(AuditEventKind::ToolExecuted, "t".into());
        let text = || Some("x".to_owned());
        (body.tool_name, body.agent_id, body.caller) = (text(), text(), text());
        (body.call_id, body.receipt_id, body.error) = (text(), text(), text());
        (body.policy_version, body.args_digest) = (text(), text());
        (body.result_digest, body.receipt_digest, body.log_digest) = (text(), text(), text());
        body.approval_digest = text();
        body.holds_keys = true;
        (body.turn_index, body.duration_ms) = (Some(1), Some(2.5));
        (body.status, body.error_code) = (Some(Status::Failed), Some(ErrorCode::ToolError));
        body.effect = Some(Effect::Completed);
        body.decision = Some(DecisionSummary { rule: "r".into(), reason: "s".into() });
        body.facts = Some(serde_json::Map::new());
        let event = AuditEvent { writer: "w".into(), seq: 1, prev: text(), body };
        let document = serde_json::to_value(&event).unwrap();
        assert_eq!(event.canonical(), crate::json::canonical(&document));
        assert_eq!(document.as_object().unwrap().len(), 25);
    }

    #[test]
    fn wire_names_agree_with_serde() {
        for kind in AuditEventKind::ALL {
            assert_eq!(serde_json::to_value(kind).unwrap(), kind.as_str());
        }
    }
}
