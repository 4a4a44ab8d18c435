//! The test suite that every ledger must pass; other crates can use it.
//!
//! Each case panics with a sentence if the ledger does not meet the contract of the port.
#![expect(clippy::panic, clippy::expect_used, reason = "a suite reports by panicking")]

pub mod approvals;
mod digest_keys;
pub mod documents;
mod fixtures;
pub mod history;
mod limits;
mod records;
mod rows;

use std::sync::Arc;

use serde_json::json;
use toolbooth_contracts::contract::IdempotencyMode;
use toolbooth_contracts::order::{OrderSubject, PauseTarget};
use toolbooth_contracts::receipt::ClaimState;
use toolbooth_contracts::{ContentBlock, Effect, ErrorCode, Identity};

pub use digest_keys::added_digest_key;
use fixtures::{fresh, resolution, settle_late};
pub use fixtures::{log, moment, request, settlement};
pub use limits::{budgets_are_charged_and_given_back, limits_are_charged_and_given_back};
pub use records::{
    checkpoints_are_signed_and_proven, pruned_keys_never_run_again,
    records_are_read_back_and_verify,
};
pub use rows::every_kind_of_row;

use crate::ledger::{
    Claim, ClaimRequest, Claimed, Ledger, LedgerError, Prune, PruneKind, Resolution,
};
use crate::orders::{OrderChange, OrderRequest, Ordered};
use crate::queue::{CallQueue, Enqueued, Heartbeat, QueueState, QueuedCall};
use crate::reads::LedgerReads;
use crate::stored_orders::StoredOrders;
use crate::verify::{self, TrustAnchors};

/// Runs every case against a new, empty ledger from `make`.
pub async fn suite<L: Ledger + LedgerReads + CallQueue>(make: impl AsyncFn() -> L) {
    keys_are_held_by_effect(&make().await).await;
    duplicates_do_not_both_run(&make().await).await;
    conflicts_are_told(&make().await).await;
    a_receipt_id_is_used_once(&make().await).await;
    limits_are_charged_and_given_back(&make().await).await;
    budgets_are_charged_and_given_back(&make().await).await;
    approvals::are_asked_once(&make().await).await;
    approvals::are_granted_and_spent_once(&make().await).await;
    approvals::are_decided_by_the_right_persons(&make().await).await;
    approvals::are_bound_when_a_claim_is_taken_over(&make().await).await;
    approvals::are_removed_once_they_have_expired(&make().await).await;
    approvals::outlive_their_calls(&make().await).await;
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

/// Checks that a claim is refused whose receipt has the id of another one, running or settled.
pub async fn a_receipt_id_is_used_once<L: Ledger + LedgerReads>(ledger: &L) {
    let mode = IdempotencyMode::Keyed;
    let refused = async |key: &str| {
        let again = ClaimRequest {
            receipt_id: "receipt-a".to_owned(),
            ..request("b", mode, &[key], "args")
        };
        let refused = ledger.claim(again).await;
        assert!(refused.is_err(), "{refused:?}");
    };
    let claim = fresh(ledger, request("a", mode, &["one"], "args")).await;
    refused("two").await;
    ledger.settle(settlement(claim, mode, Effect::Completed, None)).await.expect("settles");
    refused("three").await;
    let again = ledger.claim(request("c", mode, &["one"], "args")).await.expect("answers");
    assert!(matches!(again, Claimed::Replay { .. }), "{again:?}");
    let _ = fresh(ledger, request("d", mode, &["two"], "args")).await;
    let report = verify::store(ledger, TrustAnchors::default()).await.expect("verifies");
    assert!(report.ok, "{report:?}");
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
        let new = queue.enqueue(call(id, "{}"), 4).await.expect("answers");
        assert_eq!(new, Enqueued::New);
    }
    let full = queue.enqueue(call("c", "{}"), 4).await.expect("answers");
    assert_eq!(full, Enqueued::Full, "half of the places are for others");
    let mut others = call("o", "{}");
    others.caller = "another".to_owned();
    assert_eq!(queue.enqueue(others.clone(), 2).await.expect("answers"), Enqueued::Full);
    assert_eq!(queue.enqueue(others, 4).await.expect("answers"), Enqueued::New);
    let known = queue.enqueue(call("a", "{}"), 2).await.expect("answers");
    assert!(matches!(known, Enqueued::Known(_)), "got {known:?}");
    let other = queue.enqueue(call("a", "{\"x\":1}"), 2).await.expect("answers");
    assert_eq!(other, Enqueued::Conflict);
    let taken = take(&[]).await.expect("waits");
    assert_eq!((taken.call_id.as_str(), taken.deliveries), ("a", 1), "in the order they came");
    let heartbeat =
        queue.heartbeat("local", "a", Some(json!({"progress": 0.5}))).await.expect("answers");
    assert_eq!(heartbeat, Heartbeat::Go);
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
        let prune = Prune { kind: PruneKind::Calls, before, at: moment(6), windows: Vec::new() };
        queue.prune(prune).await.expect("answers").removed
    };
    assert_eq!(prune(3).await, 0);
    assert_eq!(prune(5).await, 1);
    assert!(queue.queued("local", "a").await.expect("answers").is_none(), "it is gone");
    let next = take(&[]).await.expect("waits");
    assert_eq!((next.call_id.as_str(), next.deliveries), ("b", 1));
    let others = take(&["b"]).await.expect("another caller's call waits");
    assert_eq!((others.caller.as_str(), others.call_id.as_str()), ("another", "o"));
    queue.finish("another", "o", "{}".to_owned(), moment(4)).await.expect("finishes");
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
