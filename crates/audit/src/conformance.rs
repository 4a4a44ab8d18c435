//! The test suite that every ledger must pass; other crates can use it.
//!
//! Each case panics with a sentence if the ledger does not meet the contract of the port.
#![expect(clippy::panic, clippy::expect_used, reason = "a suite reports by panicking")]

pub mod approvals;
pub mod documents;
pub mod history;

use std::sync::Arc;

use serde_json::{Map, json};
use toolbooth_contracts::agent_log::AgentLog;
use toolbooth_contracts::charge::{Charge, budget_of_caller, budget_of_epic};
use toolbooth_contracts::contract::IdempotencyMode;
use toolbooth_contracts::event::{AuditEventKind, EventBody};
use toolbooth_contracts::json::JsonText;
use toolbooth_contracts::order::{OrderSubject, PauseTarget};
use toolbooth_contracts::receipt::{ClaimState, StoredResult};
use toolbooth_contracts::{ContentBlock, Effect, ErrorCode, Identity, Status};

use crate::checkpoint::Due;
use crate::claim::KeyRules;
use crate::ledger::{
    Claim, ClaimRequest, Claimed, Ledger, LedgerError, Moment, Prune, PruneKind, Pruned, Refusal,
    Resolution, Settlement,
};
use crate::note::{self, Signer};
use crate::orders::{OrderChange, OrderRequest, Ordered};
use crate::proof::{self, Proof, ProofError};
use crate::queue::{CallQueue, Enqueued, Heartbeat, QueueState, QueuedCall};
use crate::reads::{EventFilter, LedgerReads, LogFilter, Page, ReceiptFilter};
use crate::stored_orders::StoredOrders;
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
fn resolution(call: &str) -> Resolution {
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

async fn fresh(ledger: &dyn Ledger, request: ClaimRequest) -> Claim {
    let call = request.call_id.clone();
    match ledger.claim(request).await {
        Ok(Claimed::Fresh(claim)) => claim,
        other => panic!("call {call} should get a fresh claim, got {other:?}"),
    }
}

/// Runs every case against a new, empty ledger from `make`.
pub async fn suite<L: Ledger + LedgerReads + CallQueue>(make: impl AsyncFn() -> L) {
    keys_are_held_by_effect(&make().await).await;
    duplicates_do_not_both_run(&make().await).await;
    conflicts_are_told(&make().await).await;
    limits_are_charged_and_given_back(&make().await).await;
    budgets_are_charged_and_given_back(&make().await).await;
    approvals::are_asked_once(&make().await).await;
    approvals::are_granted_and_spent_once(&make().await).await;
    approvals::are_decided_by_the_right_persons(&make().await).await;
    approvals::are_bound_when_a_claim_is_taken_over(&make().await).await;
    approvals::are_removed_once_they_have_expired(&make().await).await;
    history::counts_what_may_have_had_an_effect(&make().await).await;
    history::judges_in_the_claim(&make().await).await;
    history::counts_a_call_once(&make().await).await;
    history::are_kept_while_they_count(&make().await).await;
    documents::are_kept_as_long_as_a_log_names_them(&make().await).await;
    documents::are_kept_for_processes_that_remember_them(&make().await).await;
    old_fences_match_nothing(&make().await).await;
    settling_twice_is_settling_once(&make().await).await;
    records_are_read_back_and_verify(&make().await).await;
    a_claim_waits_for_input(&make().await).await;
    a_person_settles_a_doubt(&make().await).await;
    pruned_keys_never_run_again(&make().await).await;
    checkpoints_are_signed_and_proven(&make().await).await;
    orders_hold_until_the_next_one(&make().await).await;
    queued_calls_are_taken_once(&make().await).await;
    a_closed_ledger_refuses(&make().await).await;
}

/// Checks that the known effect decides whether a key is free, replayed or in doubt.
pub async fn keys_are_held_by_effect<L: Ledger + LedgerReads>(ledger: &L) {
    use IdempotencyMode::{Keyed, OnKey, SafeRetry};
    let cases = [
        (Keyed, Effect::Completed, None, "replay"),
        (Keyed, Effect::NotStarted, Some(ErrorCode::NotConfigured), "fresh"),
        (Keyed, Effect::Completed, Some(ErrorCode::ToolError), "fresh"),
        (OnKey, Effect::Completed, Some(ErrorCode::ToolError), "replay"),
        (Keyed, Effect::Completed, Some(ErrorCode::ResultTooLarge), "replay"),
        (Keyed, Effect::Unknown, Some(ErrorCode::Timeout), "doubt"),
        (OnKey, Effect::Unknown, Some(ErrorCode::Timeout), "doubt"),
        (SafeRetry, Effect::Unknown, Some(ErrorCode::Timeout), "fresh"),
    ];
    for (n, (mode, effect, code, expected)) in cases.into_iter().enumerate() {
        let key = format!("key-{n}");
        let claim = fresh(ledger, request(&format!("a{n}"), mode, &[&key], "args")).await;
        ledger.settle(settlement(claim, mode, effect, code)).await.expect("settles");
        let again = ledger.claim(request(&format!("b{n}"), mode, &[&key], "args")).await;
        let got = match again.expect("the ledger answers") {
            Claimed::Fresh(_) => "fresh",
            Claimed::Replay { receipt, arguments_differ } => {
                assert!(!arguments_differ, "the arguments were the same");
                assert_eq!(receipt.error_code, code, "the first outcome is given again");
                "replay"
            }
            Claimed::InDoubt { .. } => "doubt",
            other => panic!("case {n}: unexpected {other:?}"),
        };
        assert_eq!(got, expected, "{mode:?} after {effect:?} {code:?}");
    }
}

/// Checks that the second of two calls with one key does not run and can wait for the first.
pub async fn duplicates_do_not_both_run<L: Ledger + LedgerReads>(ledger: &L) {
    let mode = IdempotencyMode::Keyed;
    let claim = fresh(ledger, request("t1", mode, &["same"], "args")).await;
    let second = ledger.claim(request("t2", mode, &["same"], "args")).await.expect("answers");
    let Claimed::InFlight { receipt_id, settled } = second else {
        panic!("the first call still runs, got {second:?}")
    };
    assert_eq!(receipt_id, "receipt-t1", "it names the first one's receipt");
    ledger.settle(settlement(claim, mode, Effect::Completed, None)).await.expect("settles");
    if let Some(settled) = settled {
        assert!(settled.recv().await.is_err(), "the channel closes when the first is settled");
    }
    let third = ledger.claim(request("t3", mode, &["same"], "args")).await.expect("answers");
    assert!(matches!(third, Claimed::Replay { .. }), "got {third:?}");
}

/// Checks that different arguments are rejected under an explicit key, and reported under a natural
/// key.
pub async fn conflicts_are_told<L: Ledger + LedgerReads>(ledger: &L) {
    let mode = IdempotencyMode::OnKey;
    let claim = fresh(ledger, request("c1", mode, &["k"], "one")).await;
    ledger.settle(settlement(claim, mode, Effect::Completed, None)).await.expect("settles");
    let other = ledger.claim(request("c2", mode, &["k"], "two")).await.expect("answers");
    assert!(matches!(other, Claimed::Conflict { .. }), "got {other:?}");
    let mode = IdempotencyMode::Keyed;
    let claim = fresh(ledger, request("c3", mode, &["n"], "one")).await;
    ledger.settle(settlement(claim, mode, Effect::Completed, None)).await.expect("settles");
    let other = ledger.claim(request("c4", mode, &["n"], "two")).await.expect("answers");
    assert!(matches!(other, Claimed::Replay { arguments_differ: true, .. }), "got {other:?}");
}

/// Checks that rates and concurrency are charged with the claim, and refunded for a call that did
/// not start.
pub async fn limits_are_charged_and_given_back<L: Ledger + LedgerReads>(ledger: &L) {
    let mode = IdempotencyMode::None;
    let limited = |call: &str| ClaimRequest {
        charges: vec![Charge::Rate { per_min: 2 }],
        ..request(call, mode, &[], "args")
    };
    let claim = fresh(ledger, limited("r1")).await;
    let gone = settlement(claim, mode, Effect::NotStarted, Some(ErrorCode::NotConfigured));
    ledger.settle(gone).await.expect("settles");
    for call in ["r2", "r3"] {
        let _ = fresh(ledger, limited(call)).await;
    }
    let refused = ledger.claim(limited("r4")).await.expect("answers");
    let Claimed::RateLimited { retry_after_ms } = refused else {
        panic!("the rate is used up, got {refused:?}")
    };
    assert!((1..=60_000).contains(&retry_after_ms), "{retry_after_ms}");
    // A clock that ran fast for one call must not block later calls until its time.
    let of = |call: &str, at: Moment| ClaimRequest {
        at,
        charges: vec![Charge::Rate { per_min: 60 }],
        tool_id: "tool.clocks".into(),
        ..request(call, mode, &[], "args")
    };
    ledger.claim(of("r6", moment(86_400_000))).await.expect("claims");
    let mut waited = 0;
    for n in 0..3 {
        match ledger.claim(of(&format!("r7-{n}"), moment(n * 1_000))).await.expect("claims") {
            Claimed::Fresh(_) => break,
            Claimed::RateLimited { .. } => waited += 1,
            other => panic!("{other:?}"),
        }
    }
    assert!(waited < 2, "at most one call is refused for a clock that was wrong");
    let zero = ClaimRequest {
        charges: vec![Charge::Rate { per_min: 0 }],
        tool_id: "tool.none".into(),
        ..limited("r5")
    };
    let refused = ledger.claim(zero).await.expect("answers");
    assert!(matches!(refused, Claimed::RateLimited { .. }), "0 = every call refused");
    let single = |call: &str| ClaimRequest {
        charges: vec![Charge::Slots { max: 1 }],
        tool_id: "tool.single".into(),
        ..request(call, mode, &[], "args")
    };
    let claim = fresh(ledger, single("s1")).await;
    let refused = ledger.claim(single("s2")).await.expect("answers");
    assert!(matches!(refused, Claimed::TooManyInFlight), "got {refused:?}");
    ledger.settle(settlement(claim, mode, Effect::Completed, None)).await.expect("settles");
    let _ = fresh(ledger, single("s3")).await;
}

/// Checks that budgets are charged together with the other limits, given back for a call that did not
/// start, and new on the next day.
pub async fn budgets_are_charged_and_given_back<L: Ledger + LedgerReads>(ledger: &L) {
    let mode = IdempotencyMode::None;
    let of = |call: &str, epic: &str, units: u64| ClaimRequest {
        charges: vec![
            Charge::Rate { per_min: 5 },
            Charge::Budget { key: budget_of_caller("a"), units, limit: 10 },
            Charge::Budget { key: budget_of_epic("a", Some(epic)), units, limit: 6 },
        ],
        ..request(call, mode, &[], "args")
    };
    let _ = fresh(ledger, of("b1", "one", 4)).await;
    // What one limit refuses is taken from none: not from the rate either.
    for n in 0..9 {
        let refused = ledger.claim(of(&format!("b2-{n}"), "one", 3)).await.expect("answers");
        let Claimed::BudgetExceeded { retry_after_ms } = refused else { panic!("{refused:?}") };
        assert!((1..=86_400_000).contains(&retry_after_ms), "{retry_after_ms}");
    }
    // Another epic gives no more than the caller has.
    let claim = fresh(ledger, of("b3", "two", 6)).await;
    let refused = ledger.claim(of("b4", "three", 1)).await.expect("answers");
    assert!(matches!(refused, Claimed::BudgetExceeded { .. }), "got {refused:?}");
    let gone = settlement(claim, mode, Effect::NotStarted, Some(ErrorCode::NotConfigured));
    ledger.settle(Arc::clone(&gone)).await.expect("settles");
    ledger.settle(gone).await.expect("a second time, which gives nothing back again");
    let claim = fresh(ledger, of("b5", "two", 6)).await;
    let unknown = settlement(claim, mode, Effect::Unknown, Some(ErrorCode::Timeout));
    ledger.settle(unknown).await.expect("settles");
    let refused = ledger.claim(of("b6", "one", 1)).await.expect("answers");
    assert!(matches!(refused, Claimed::BudgetExceeded { .. }), "an unknown effect counts");
    let report = verify::store(ledger, TrustAnchors::default()).await.expect("reads");
    assert!(report.ok, "{report:?}");
}

/// Checks that a claim that was taken over cannot be settled with the old fence.
pub async fn old_fences_match_nothing<L: Ledger + LedgerReads>(ledger: &L) {
    let mode = IdempotencyMode::SafeRetry;
    let claim = fresh(ledger, request("f1", mode, &["f"], "args")).await;
    let old = Claim::granted(claim.receipt_id().to_owned(), claim.fence(), claim.attempt());
    let unknown = settlement(claim, mode, Effect::Unknown, Some(ErrorCode::Timeout));
    ledger.settle(unknown).await.expect("settles");
    let again = fresh(ledger, request("f2", mode, &["f"], "args")).await;
    assert_eq!((again.receipt_id(), again.attempt()), ("receipt-f1", 2), "the claim is taken over");
    let late = ledger.settle(settlement(old, mode, Effect::Completed, None)).await;
    assert_eq!(late.err(), Some(LedgerError::Stale));
    let receipt = ledger
        .settle(settlement(again, mode, Effect::Completed, None))
        .await
        .expect("the new owner settles");
    assert_eq!(receipt.state, ClaimState::Succeeded);
}

/// Checks that a settlement can be sent again after its answer was lost. A second dispatch that did not
/// start does not reveal the effect of the first one.
pub async fn settling_twice_is_settling_once<L: Ledger + LedgerReads>(ledger: &L) {
    let mode = IdempotencyMode::SafeRetry;
    let claim = fresh(ledger, request("w1", mode, &["w"], "args")).await;
    let unknown = settlement(claim, mode, Effect::Unknown, Some(ErrorCode::Timeout));
    let first = ledger.settle(Arc::clone(&unknown)).await.expect("settles");
    let again = ledger.settle(unknown).await.expect("settles again");
    assert_eq!(first, again, "nothing is written twice");
    let retry = fresh(ledger, request("w2", mode, &["w"], "args")).await;
    let gone = settlement(retry, mode, Effect::NotStarted, Some(ErrorCode::AdapterFailed));
    let receipt = ledger.settle(gone).await.expect("settles");
    assert_eq!((receipt.state, receipt.effect), (ClaimState::InDoubt, Effect::Unknown));
    assert!(
        verify::store(ledger, TrustAnchors::default()).await.expect("reads").ok,
        "the records fit"
    );
}

/// Checks that written records are read back unchanged and verify.
pub async fn records_are_read_back_and_verify<L: Ledger + LedgerReads>(ledger: &L) {
    let mode = IdempotencyMode::OnKey;
    let claim = fresh(ledger, request("v1", mode, &["v"], "args")).await;
    let receipt =
        ledger.settle(settlement(claim, mode, Effect::Completed, None)).await.expect("settles");
    let mut terminal = EventBody::new(AuditEventKind::UnknownTool, moment(3).text);
    terminal.call_id = Some("v2".into());
    terminal.error_code = Some(ErrorCode::UnregisteredTool);
    let refused = log("v2", Some(ErrorCode::UnregisteredTool));
    ledger
        .refuse(Refusal { log: Arc::new(refused.clone()), documents: Vec::new(), terminal })
        .await
        .expect("is recorded");
    let noted = EventBody::new(AuditEventKind::RegistryLoaded, moment(4).text);
    ledger.record_events(vec![noted]).await.expect("is recorded");

    assert_eq!(ledger.receipt("receipt-v1").await.expect("reads").as_ref(), Some(&*receipt));
    let all = ledger
        .receipts(ReceiptFilter { limit: 10, ..ReceiptFilter::default() })
        .await
        .expect("reads");
    assert_eq!(all, Page::of(vec![(*receipt).clone()]));
    let logs = ledger
        .agent_logs(LogFilter { error: Some(true), limit: 10, ..LogFilter::default() })
        .await
        .expect("reads");
    assert_eq!(logs, Page::of(vec![refused]));
    let one = ledger.agent_log("log-v1").await.expect("reads").expect("is there");
    assert_eq!((one.receipt_id.as_deref(), one.attempt), (Some("receipt-v1"), 1));
    let events = ledger
        .events(EventFilter { call: Some("v1".into()), limit: 10, ..EventFilter::default() })
        .await
        .expect("reads")
        .found;
    let kinds: Vec<&str> = events.iter().map(|placed| placed.event.body.event.as_str()).collect();
    assert_eq!(kinds, ["TOOL_DISPATCHED", "TOOL_EXECUTED"]);
    let newest =
        ledger.events(EventFilter { limit: 1, ..EventFilter::default() }).await.expect("reads");
    assert_eq!(
        newest.found.first().map(|placed| placed.event.body.event),
        Some(AuditEventKind::RegistryLoaded)
    );
    let report = verify::store(ledger, TrustAnchors::default()).await.expect("reads");
    assert!(report.ok && report.events == 5, "{report:?}");
}

/// Checks that a claim that waits for input holds its key, and continues after the input has
/// arrived.
pub async fn a_claim_waits_for_input<L: Ledger + LedgerReads>(ledger: &L) {
    let mode = IdempotencyMode::Keyed;
    let claim = fresh(ledger, request("i1", mode, &["i"], "args")).await;
    let (id, fence) = (claim.receipt_id().to_owned(), claim.fence());
    ledger.suspend(id.clone(), fence, moment(2)).await.expect("parks");
    let parked = ledger.receipt(&id).await.expect("reads").expect("is there");
    assert_eq!(parked.state, ClaimState::AwaitingInput);
    let duplicate = ledger.claim(request("i2", mode, &["i"], "args")).await.expect("answers");
    assert!(matches!(duplicate, Claimed::InFlight { .. }), "got {duplicate:?}");
    let stale = ledger.resume(id.clone(), fence + 1, moment(3)).await;
    assert_eq!(stale, Err(LedgerError::Stale));
    ledger.resume(id.clone(), fence, moment(3)).await.expect("runs on");
    let receipt =
        ledger.settle(settlement(claim, mode, Effect::Completed, None)).await.expect("settles");
    assert_eq!(receipt.state, ClaimState::Succeeded);
    assert_eq!(ledger.suspend(id, fence, moment(4)).await, Err(LedgerError::Stale));
}

/// Checks that later calls receive an operator's resolution, and that an old outcome is rejected.
pub async fn a_person_settles_a_doubt<L: Ledger + LedgerReads>(ledger: &L) {
    use IdempotencyMode::{Keyed, OnKey};
    let resolution = |call: &str, succeeded| Resolution { succeeded, ..resolution(call) };
    for (call, mode, succeeded, later) in [
        ("d1", Keyed, true, "replay"),
        ("d2", Keyed, false, "fresh"),
        ("d3", OnKey, false, "replay"),
    ] {
        let claim = fresh(ledger, request(call, mode, &[call], "args")).await;
        let late = Claim::granted(claim.receipt_id().to_owned(), claim.fence(), 1);
        let unknown = settlement(claim, mode, Effect::Unknown, Some(ErrorCode::Timeout));
        ledger.settle(unknown).await.expect("settles");
        let receipt = ledger.resolve(resolution(call, succeeded)).await.expect("resolves");
        assert_eq!(receipt.state == ClaimState::Succeeded, succeeded);
        let twice = ledger.resolve(resolution(call, succeeded)).await;
        assert_eq!(twice.err(), Some(LedgerError::Stale), "only doubts are settled");
        let arrives = ledger.settle(settlement(late, mode, Effect::Completed, None)).await;
        assert_eq!(arrives.err(), Some(LedgerError::Stale), "a person's word raises the fence");
        let again = ledger.claim(request(&format!("{call}x"), mode, &[call], "args")).await;
        let got = match again.expect("answers") {
            Claimed::Fresh(_) => "fresh",
            Claimed::Replay { receipt, .. } => {
                let text = receipt.result.and_then(|result| result.content.first().cloned());
                assert_eq!(text, Some(ContentBlock::text("said")));
                "replay"
            }
            other => panic!("unexpected {other:?}"),
        };
        assert_eq!(got, later, "{mode:?} {succeeded}");
    }
    let missing = ledger.resolve(resolution("another", true)).await;
    assert!(matches!(missing, Err(LedgerError::NotFound(_))), "got {missing:?}");
    let report = verify::store(ledger, TrustAnchors::default()).await.expect("reads");
    assert!(report.ok, "{report:?}");
}

/// Checks that pruning removes old records, and that held keys stay held.
pub async fn pruned_keys_never_run_again<L: Ledger + LedgerReads>(ledger: &L) {
    let mode = IdempotencyMode::Keyed;
    for (call, key) in [("q1", Some("q")), ("q2", None)] {
        let keys: Vec<&str> = key.into_iter().collect();
        let mode = key.map_or(IdempotencyMode::None, |_| mode);
        let claim = fresh(ledger, request(call, mode, &keys, "args")).await;
        ledger.settle(settlement(claim, mode, Effect::Completed, None)).await.expect("settles");
    }
    let doubt = fresh(ledger, request("q3", mode, &["doubt"], "args")).await;
    let unknown = settlement(doubt, mode, Effect::Unknown, Some(ErrorCode::Timeout));
    ledger.settle(unknown).await.expect("settles");
    let prune =
        |kind: PruneKind, before: i64| Prune { kind, before: moment(before).text, at: moment(9) };
    let nothing = ledger.prune(prune(PruneKind::Receipts, 1)).await.expect("prunes");
    assert_eq!(nothing, Pruned::default(), "nothing is that old");
    let done = ledger.prune(prune(PruneKind::Receipts, 8)).await.expect("prunes");
    assert_eq!(done, Pruned { removed: 1, tombstones: 1, more: false });
    let logs = ledger.prune(prune(PruneKind::Logs, 8)).await.expect("prunes");
    assert_eq!(logs.removed, 3);
    let again = ledger.prune(prune(PruneKind::Receipts, 8)).await.expect("prunes");
    assert_eq!(again, Pruned::default(), "a tombstone stays");
    assert!(ledger.receipt("receipt-q2").await.expect("reads").is_none());
    let replay = ledger.claim(request("q4", mode, &["q"], "args")).await.expect("answers");
    let Claimed::Replay { receipt, .. } = replay else { panic!("held, got {replay:?}") };
    assert!(receipt.result.is_none() && receipt.pruned_at.is_some(), "{receipt:?}");
    let report = verify::store(ledger, TrustAnchors::default()).await.expect("reads");
    assert!(report.ok, "{report:?}");
}

/// Checks that checkpoints are signed when due, cover the log, and allow proofs of its events.
pub async fn checkpoints_are_signed_and_proven<L: Ledger + LedgerReads>(ledger: &L) {
    let mode = IdempotencyMode::None;
    let due = Due { events: 3, age_ms: 1_000_000_000 };
    assert_eq!(ledger.checkpoint(due, moment(1)).await.expect("answers"), None, "not due");
    let claim = fresh(ledger, request("k1", mode, &[], "args")).await;
    ledger.settle(settlement(claim, mode, Effect::Completed, None)).await.expect("settles");
    let missing = proof::inclusion(ledger, "k1").await;
    assert!(matches!(missing, Err(ProofError::Missing(_))), "got {missing:?}");
    let first = ledger.checkpoint(due, moment(2)).await.expect("answers").expect("is due");
    assert_eq!(ledger.checkpoint(due, moment(2)).await.expect("answers"), None, "covered");
    let claim = fresh(ledger, request("k2", mode, &[], "args")).await;
    ledger.settle(settlement(claim, mode, Effect::Completed, None)).await.expect("settles");
    let second = ledger.checkpoint(Due::NOW, moment(3)).await.expect("answers").expect("is due");
    let started = ledger.events(EventFilter { limit: 100, ..EventFilter::default() }).await;
    let key = started.expect("reads").found.first().and_then(|placed| {
        let facts = placed.event.body.facts.as_ref()?;
        note::PublicKey::parse(facts.get("signingKey")?.as_str()?).ok()
    });
    let key = key.expect("the first event names the key");
    for call in ["k1", "k2"] {
        let proof = proof::inclusion(ledger, call).await.expect("is covered");
        let said = proof.check(&key).expect("holds");
        assert!(said.contains(call), "{said}");
    }
    let proof = proof::consistency(ledger, &first, &second).await.expect("is proven");
    proof.check(&key).expect("holds");
    let backwards = Proof::Consistency { first: second.clone(), second: first, hashes: Vec::new() };
    assert!(backwards.check(&key).is_err());
    let known = TrustAnchors { keys: vec![key], notes: vec![second], ..TrustAnchors::default() };
    let report = verify::store(ledger, known).await.expect("reads");
    assert!(report.ok, "{report:?}");
    let other = Signer::new(&[9; 32]);
    let known = TrustAnchors { keys: vec![other.verifier()], ..TrustAnchors::default() };
    let report = verify::store(ledger, known).await.expect("reads");
    assert!(report.problems.iter().all(|problem| problem.kind == "signature"), "{report:?}");
    assert!(!report.ok, "checkpoints by another key are no proof");
}

/// Checks that decisions of operators hold until the next one, each with an event.
pub async fn orders_hold_until_the_next_one<L: Ledger + LedgerReads>(ledger: &L) {
    let order = async |n: i64, change: OrderChange| {
        let request = OrderRequest { change, by: "operator".to_owned(), at: moment(n) };
        ledger.order(request).await.expect("answers")
    };
    let create = |digest: &str, expires: Option<i64>| OrderChange::CreateKey {
        name: "a".to_owned(),
        digest: digest.to_owned(),
        groups: vec!["g".to_owned()],
        expires_at: expires.map(|at| moment(at).text),
    };
    let revoke = || OrderChange::RevokeKey { name: "a".to_owned() };
    let all = PauseTarget::All;
    assert_eq!(order(1, revoke()).await, Ordered::Missing);
    assert_eq!(order(1, OrderChange::Resume { target: all.clone() }).await, Ordered::Missing);
    let Ordered::Done(created) = order(2, create("one", Some(5))).await else { panic!("is new") };
    assert_eq!((created.revision, created.by.as_str()), (1, "operator"));
    assert_eq!(order(3, create("two", None)).await, Ordered::Taken(created));
    // A key that has expired or was revoked can be replaced.
    assert!(matches!(order(6, create("two", None)).await, Ordered::Done(_)));
    let Ordered::Done(revoked) = order(7, revoke()).await else { panic!("was active") };
    assert_eq!(order(8, revoke()).await, Ordered::Already(revoked));
    assert!(matches!(order(9, create("three", None)).await, Ordered::Done(_)));
    let pause = || OrderChange::Pause {
        target: PauseTarget::All,
        cancel_running: false,
        reason: Some("why".to_owned()),
    };
    let Ordered::Done(paused) = order(10, pause()).await else { panic!("is new") };
    assert_eq!(order(11, pause()).await, Ordered::Already(paused));
    let Ordered::Done(resumed) = order(12, OrderChange::Resume { target: all }).await else {
        panic!("was paused")
    };
    assert_eq!(resumed.revision, 2);
    let stored = StoredOrders::read(ledger).await.expect("reads");
    assert!(stored.damaged.is_empty(), "{:?}", stored.damaged);
    let names: Vec<String> = stored.orders.iter().map(|order| order.name().to_string()).collect();
    assert_eq!(names, ["key:a", "pause:all"]);
    assert!(stored.orders.iter().any(|order| matches!(
        &order.subject,
        OrderSubject::Key(key) if key.digest == "three" && key.groups == ["g"] && order.revision == 4
    )));
    let report = verify::store(ledger, TrustAnchors::default()).await.expect("reads");
    assert!(report.ok, "{report:?}");
}

/// Checks that a submitted call is taken once, reports progress, and has one result.
pub async fn queued_calls_are_taken_once<L: CallQueue + Ledger>(queue: &L) {
    let call = |id: &str, text: &str| {
        QueuedCall::new(id.to_owned(), &Identity::local(), text.to_owned(), &moment(1))
    };
    let take = async |running: &[&str]| {
        let running = running.iter().map(|id| ("local".to_owned(), (*id).to_owned())).collect();
        queue.take(running).await.expect("answers")
    };
    assert_eq!(take(&[]).await, None);
    for id in ["a", "b"] {
        let new = queue.enqueue(call(id, "{}"), 2).await.expect("answers");
        assert_eq!(new, Enqueued::New);
    }
    assert_eq!(queue.enqueue(call("c", "{}"), 2).await.expect("answers"), Enqueued::Full);
    let known = queue.enqueue(call("a", "{}"), 2).await.expect("answers");
    assert!(matches!(known, Enqueued::Known(_)), "got {known:?}");
    let other = queue.enqueue(call("a", "{\"x\":1}"), 2).await.expect("answers");
    assert_eq!(other, Enqueued::Conflict);
    let taken = take(&[]).await.expect("waits");
    assert_eq!((taken.call_id.as_str(), taken.deliveries), ("a", 1), "in the order they came");
    let beat =
        queue.heartbeat("local", "a", Some(json!({"progress": 0.5}))).await.expect("answers");
    assert_eq!(beat, Heartbeat::Go);
    assert!(queue.cancel("local", "a").await.expect("answers"));
    assert!(!queue.cancel("another", "a").await.expect("answers"), "not their call");
    assert_eq!(queue.heartbeat("local", "a", None).await.expect("answers"), Heartbeat::Cancel);
    queue.finish("local", "a", "{\"done\":true}".to_owned(), moment(4)).await.expect("finishes");
    let done = queue.queued("local", "a").await.expect("answers").expect("is there");
    assert_eq!((done.state, done.progress.is_some()), (QueueState::Done, true));
    assert_eq!(done.result.as_deref(), Some("{\"done\":true}"));
    assert!(!queue.cancel("local", "a").await.expect("answers"), "it is done");
    assert!(queue.queued("another", "a").await.expect("answers").is_none());
    let prune = async |before: i64| {
        let before = moment(before).text;
        let prune = Prune { kind: PruneKind::Calls, before, at: moment(6) };
        queue.prune(prune).await.expect("answers").removed
    };
    assert_eq!(prune(3).await, 0);
    assert_eq!(prune(5).await, 1);
    assert!(queue.queued("local", "a").await.expect("answers").is_none(), "it is gone");
    let next = take(&[]).await.expect("waits");
    assert_eq!((next.call_id.as_str(), next.deliveries), ("b", 1));
    assert_eq!(take(&["b"]).await, None);
    let again = take(&[]).await.expect("it is free");
    assert_eq!((again.call_id.as_str(), again.deliveries), ("b", 2));
    queue.release("local", "b").await.expect("answers");
    let back = take(&["b"]).await.expect("waits again");
    assert_eq!((back.call_id.as_str(), back.deliveries), ("b", 2), "that was no delivery");
}

/// Checks that a writer writes nothing after the end of its log.
pub async fn a_closed_ledger_refuses<L: Ledger + LedgerReads>(ledger: &L) {
    ledger.close(moment(9)).await.expect("closes");
    let refused = ledger.claim(request("z1", IdempotencyMode::None, &[], "args")).await;
    assert!(matches!(refused, Err(LedgerError::Closed)), "got {refused:?}");
}

/// Settles at a time after the pruning times.
async fn settle_late(ledger: &dyn Ledger, claim: Claim) {
    let at = moment(12);
    let mut settled = settlement(claim, IdempotencyMode::Keyed, Effect::Completed, None);
    if let Some(own) = Arc::get_mut(&mut settled) {
        own.terminal.time.clone_from(&at.text);
        let named = |content| documents::document(content, &at);
        documents::naming(own, named("contract"), named("policy"), &at);
        own.at = at;
    }
    ledger.settle(settled).await.expect("settles");
}

/// Fills a store with a row of every kind, through two writers that `open` returns by name and
/// time.
pub async fn every_kind_of_row<L: Ledger + LedgerReads + CallQueue>(
    open: impl AsyncFn(&str, i64) -> L,
) {
    let mode = IdempotencyMode::Keyed;
    let first = open("one", 0).await;
    for (call, keys) in [("old", &["k-old"][..]), ("bare", &[][..])] {
        let claim = fresh(&first, request(call, mode, keys, "args")).await;
        first.settle(settlement(claim, mode, Effect::Completed, None)).await.expect("settles");
    }
    let prune = Prune { kind: PruneKind::Receipts, before: moment(9).text, at: moment(10) };
    first.prune(prune).await.expect("prunes");
    for call in ["a", "b"] {
        let mut asked = request(call, mode, &[&format!("k-{call}")], "args");
        if call == "a" {
            asked.counted = history::in_two_windows();
        }
        settle_late(&first, fresh(&first, asked).await).await;
    }
    let doubt = fresh(&first, request("doubt", mode, &["k-doubt"], "args")).await;
    let unknown = settlement(doubt, mode, Effect::Unknown, Some(ErrorCode::Timeout));
    first.settle(unknown).await.expect("settles");
    let left = fresh(&first, request("refused", mode, &[], "args")).await;
    let refused = settlement(left, mode, Effect::NotStarted, None);
    let refusal = Refusal {
        log: Arc::clone(&refused.log),
        documents: Vec::new(),
        terminal: refused.terminal.clone(),
    };
    first.refuse(refusal).await.expect("records");
    approvals::fill(&first).await;
    let mut limited = request("limited", mode, &[], "args");
    limited.charges = vec![
        Charge::Rate { per_min: 5 },
        Charge::Budget { key: budget_of_caller("a"), units: 3, limit: 100 },
        Charge::Budget { key: budget_of_epic("a", None), units: 3, limit: 100 },
    ];
    // On a day whose events the pruning below does not reach.
    limited.at = Moment {
        text: "2026-01-05T00:00:00.001Z".to_owned(),
        epoch_ms: moment(1).epoch_ms + 4 * 86_400_000,
    };
    settle_late(&first, fresh(&first, limited).await).await;
    // The identity says more than the name, so that it is stored.
    let caller = Identity { groups: vec!["interns".to_owned()], ..Identity::local() };
    for call in ["queued", "done", "waiting"] {
        let queued = QueuedCall::new(call.into(), &caller, "{}".into(), &moment(3));
        first.enqueue(queued, 10).await.expect("is taken");
    }
    let taken = first.take(Vec::new()).await.expect("answers").expect("one waits");
    let answer = "{\"status\":\"succeeded\"}".to_owned();
    first.finish("local", &taken.call_id, answer, moment(4)).await.expect("finishes");
    first.take(Vec::new()).await.expect("answers").expect("one waits");
    for name in ["intern", "gone"] {
        let change = OrderChange::CreateKey {
            name: name.to_owned(),
            digest: name.to_owned(),
            groups: vec!["interns".to_owned()],
            expires_at: Some(moment(1_000_000).text),
        };
        let request = OrderRequest { change, by: "operator".to_owned(), at: moment(4) };
        first.order(request).await.expect("is recorded");
    }
    let revoke = OrderChange::RevokeKey { name: "gone".to_owned() };
    let pause =
        OrderChange::Pause { target: PauseTarget::All, cancel_running: false, reason: None };
    for change in [revoke, pause] {
        let request = OrderRequest { change, by: "operator".to_owned(), at: moment(5) };
        first.order(request).await.expect("is recorded");
    }
    let _running = fresh(&first, request("running", mode, &["k-running"], "args")).await;
    first.close(moment(11)).await.expect("closes");
    let second = open("two", 20).await;
    settle_late(&second, fresh(&second, request("second", mode, &["k-second"], "args")).await)
        .await;
    let _running = fresh(&second, request("going", mode, &["k-going"], "args")).await;
    second.checkpoint(Due::NOW, moment(21)).await.expect("signs").expect("is due");
    settle_late(&second, fresh(&second, request("late", mode, &["k-late"], "args")).await).await;
    let prune = Prune { kind: PruneKind::Events, before: moment(15).text, at: moment(22) };
    while second.prune(prune.clone()).await.expect("prunes").more {}
}
