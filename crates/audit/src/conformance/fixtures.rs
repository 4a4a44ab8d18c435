//! Requests, settlements and logs of the cases.

use std::sync::Arc;

use serde_json::{Map, json};
use toolbooth_contracts::agent_log::AgentLog;
use toolbooth_contracts::contract::IdempotencyMode;
use toolbooth_contracts::decision::DecisionInputs;
use toolbooth_contracts::event::{AuditEventKind, EventBody};
use toolbooth_contracts::json::{JsonText, canonical};
use toolbooth_contracts::receipt::StoredResult;
use toolbooth_contracts::{ContentBlock, Effect, ErrorCode, Status};

use crate::claim::KeyRules;
use crate::digest::sha256_hex;
use crate::documents::Document;
use crate::ledger::{Claim, ClaimRequest, Claimed, Ledger, Moment, Resolution, Settlement};
use crate::reads::LedgerReads;
use crate::verify::{self, TrustAnchors};

/// Returns the moment `n` milliseconds after the start of 2026.
#[must_use]
pub fn moment(n: i64) -> Moment {
    let (seconds, ms) = (n / 1000, n % 1000);
    let (minutes, second) = (seconds / 60, seconds % 60);
    let (hour, minute) = (minutes / 60, minutes % 60);
    Moment {
        text: format!("2026-01-01T{hour:02}:{minute:02}:{second:02}.{ms:03}Z"),
        epoch_ms: 1_767_225_600_000 + n,
    }
}

/// Returns a claim request of the call `call` with these keys and arguments.
#[must_use]
pub fn request(call: &str, mode: IdempotencyMode, keys: &[&str], args: &str) -> ClaimRequest {
    let mut dispatched = EventBody::new(AuditEventKind::ToolDispatched, moment(1).text);
    dispatched.call_id = Some(call.to_owned());
    ClaimRequest {
        sync: true,
        relaxed: false,
        older_args_digests: Vec::new(),
        counted: Vec::new(),
        history: None,
        receipt_id: format!("receipt-{call}"),
        call_id: call.to_owned(),
        tool_id: "tool.one".to_owned(),
        contract_digest: "c0".to_owned(),
        caller: "local".to_owned(),
        mode,
        keys: keys.iter().map(|key| (*key).to_owned()).collect(),
        rules: KeyRules {
            refuse_different_args: mode != IdempotencyMode::Keyed,
            rerunnable: mode == IdempotencyMode::SafeRetry,
        },
        args_digest: args.to_owned(),
        charges: Vec::new(),
        approval: None,
        policy_version: "p0".to_owned(),
        at: moment(1),
        dispatched,
    }
}

/// Returns an agent log of the call `call`.
#[must_use]
pub fn log(call: &str, code: Option<ErrorCode>) -> AgentLog {
    AgentLog {
        id: format!("log-{call}"),
        tool_name: "tool.one".to_owned(),
        agent_id: Some("agent".to_owned()),
        turn_index: Some(3),
        phase_id: None,
        epic_id: None,
        call_id: call.to_owned(),
        receipt_id: None,
        caller: "local".to_owned(),
        input: JsonText::of(&json!({"n": 1.5})).ok(),
        output: None,
        duration_ms: 1.25,
        is_error: code.is_some(),
        error_code: code,
        attempt: 0,
        decision_inputs: None,
        timestamp: moment(2).text,
        internal: None,
    }
}

/// Returns the settlement of a claim with this effect and code.
#[must_use]
pub fn settlement(
    claim: Claim,
    mode: IdempotencyMode,
    effect: Effect,
    code: Option<ErrorCode>,
) -> Arc<Settlement> {
    let call = claim.receipt_id().trim_start_matches("receipt-").to_owned();
    let mut row = log(&call, code);
    if claim.attempt() > 1 {
        row.id = format!("{}-{}", row.id, claim.attempt());
    }
    let kind = code.and_then(ErrorCode::event).unwrap_or(AuditEventKind::ToolExecuted);
    let mut terminal = EventBody::new(kind, moment(2).text);
    terminal.call_id = Some(call.clone());
    terminal.tool_name = Some("tool.one".to_owned());
    terminal.status = Some(code.map_or(Status::Succeeded, ErrorCode::status));
    terminal.error_code = code;
    terminal.duration_ms = Some(1.25);
    Arc::new(Settlement {
        sync: true,
        claim,
        mode,
        status: code.map_or(Status::Succeeded, ErrorCode::status),
        effect,
        error_code: code,
        fields: Map::new(),
        result_digest: Some("r0".to_owned()),
        result: Some(StoredResult {
            content: vec![ContentBlock::text("first")],
            structured_content: JsonText::of(
                &json!({"big": 9_007_199_254_740_993_u64, "half": 0.5}),
            )
            .ok(),
            meta: None,
            error: None,
            warnings: Vec::new(),
        }),
        sandbox: None,
        duration_ms: 1.25,
        at: moment(2),
        log: Arc::new(row),
        documents: Vec::new(),
        events: Vec::new(),
        terminal,
    })
}

/// Returns the resolution of a call that is in doubt: it succeeded.
pub(super) fn resolution(call: &str) -> Resolution {
    Resolution {
        receipt_id: format!("receipt-{call}"),
        succeeded: true,
        result: StoredResult {
            content: vec![ContentBlock::text("said")],
            structured_content: None,
            meta: None,
            error: None,
            warnings: Vec::new(),
        },
        result_digest: None,
        by: "ada".to_owned(),
        at: moment(5),
    }
}

pub(super) async fn fresh(ledger: &dyn Ledger, request: ClaimRequest) -> Claim {
    let call = request.call_id.clone();
    match ledger.claim(request).await {
        Ok(Claimed::Fresh(claim)) => claim,
        other => panic!("call {call} should get a fresh claim, got {other:?}"),
    }
}

/// Settles at a time after the pruning times.
pub(super) async fn settle_late(ledger: &dyn Ledger, claim: Claim) {
    let at = moment(12);
    let mut settled = settlement(claim, IdempotencyMode::Keyed, Effect::Completed, None);
    if let Some(own) = Arc::get_mut(&mut settled) {
        own.terminal.time.clone_from(&at.text);
        let named = |content| document(content, &at);
        naming(own, named("contract"), named("policy"), &at);
        own.at = at;
    }
    ledger.settle(settled).await.expect("settles");
}

/// Returns a document with this content, used at a time.
#[must_use]
pub(super) fn document(content: &str, used: &Moment) -> Document {
    let text = canonical(&json!({ "content": content }));
    let digest = sha256_hex(text.as_bytes());
    Document { digest, text: text.into(), used: used.text.clone() }
}

/// Makes a settlement name a contract and a policy.
pub(super) fn naming(settled: &mut Settlement, contract: Document, policy: Document, at: &Moment) {
    let log = Arc::make_mut(&mut settled.log);
    log.timestamp.clone_from(&at.text);
    log.decision_inputs = Some(DecisionInputs {
        documents: true,
        contract_digest: Some(contract.digest.clone()),
        policy_version: policy.digest.clone(),
        ..DecisionInputs::default()
    });
    settled.documents = vec![contract, policy];
}

/// Checks that the store verifies.
pub(super) async fn assert_sound(ledger: &impl LedgerReads) {
    let report = verify::store(ledger, TrustAnchors::default()).await.expect("reads");
    assert!(report.ok, "{report:?}");
}
