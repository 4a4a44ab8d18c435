//! Cases about approvals: who decides, for which call, how often and how long.

use serde_json::json;
use toolbooth_contracts::Effect;
use toolbooth_contracts::approval::{Approval, ApprovalState, Approvers};
use toolbooth_contracts::contract::IdempotencyMode;
use toolbooth_contracts::json::JsonText;

use super::fixtures::assert_sound;
use super::{fresh, moment, request, settle_late, settlement};
use crate::approvals::{ApprovalFilter, ApprovalName, ApprovalRequest, ApprovalVerdict, Decided};
use crate::ledger::{ClaimRequest, Claimed, Due, Ledger, Prune, PruneKind, Pruned};
use crate::reads::LedgerReads;

/// The times at which the requests and the decisions of these cases expire.
const REQUEST_ENDS: i64 = 100;
const DECISION_ENDS: i64 = 200;

/// Returns the request of a call that needs an approval, at a time.
fn asking(call: &str, args: &str, by: Approvers, at: i64) -> ClaimRequest {
    let approval = ApprovalRequest {
        approval_id: format!("approval-{call}"),
        rule: "careful".to_owned(),
        rule_digest: format!("digest-{}", by.as_str()),
        approvers: by,
        expires_at: moment(at + REQUEST_ENDS).text,
        arguments: JsonText::of(&arguments(args)).ok(),
        open_after: String::new(),
    };
    let call = request(call, IdempotencyMode::None, &[], args);
    ClaimRequest { approval: Some(approval), at: moment(at), ..call }
}

/// Returns arguments with members that look like those of the record that holds them.
fn arguments(args: &str) -> serde_json::Value {
    json!({ "args": args, "auditSeq": { "writer": "x", "seq": 1 }, "state": "granted" })
}

/// Returns an approval that must be stored and accounted for.
async fn stored<L: LedgerReads>(ledger: &L, id: &str) -> Approval {
    let filter = ApprovalFilter { id: Some(id.to_owned()), limit: 2, ..ApprovalFilter::default() };
    let found = ledger.approvals(filter).await.expect("reads");
    let [raw] = &found[..] else { panic!("there is one approval {id}, got {found:?}") };
    raw.accounted().expect("its event accounts for it")
}

/// Decides as `by`; an operator's name begins with `op`.
async fn decide<L: Ledger + LedgerReads>(
    ledger: &L,
    id: &str,
    grants: bool,
    by: &str,
    at: i64,
) -> Decided {
    let verdict = ApprovalVerdict {
        approval_id: id.to_owned(),
        name: ApprovalName::of(&stored(ledger, id).await),
        grants,
        by: by.to_owned(),
        is_operator: by.starts_with("op"),
        reason: Some("a reason".to_owned()),
        expires_at: moment(at + DECISION_ENDS).text,
        at: moment(at),
    };
    ledger.decide_approval(verdict).await.expect("answers")
}

/// Returns the id of the approval that a call must wait for.
async fn required(ledger: &impl Ledger, request: ClaimRequest) -> String {
    match ledger.claim(request).await.expect("answers") {
        Claimed::ApprovalRequired { approval_id } => approval_id,
        other => panic!("an approval is needed, got {other:?}"),
    }
}

async fn rejected(ledger: &impl Ledger, request: ClaimRequest) -> String {
    match ledger.claim(request).await.expect("answers") {
        Claimed::ApprovalRejected { approval_id } => approval_id,
        other => panic!("the call is rejected, got {other:?}"),
    }
}

/// Checks that an approval is requested once per call, and that no call runs before a decision.
pub async fn are_asked_once<L: Ledger + LedgerReads>(ledger: &L) {
    let one = Approvers::One;
    let mut ids = Vec::new();
    for (call, args, by) in
        [("p1", "one", one), ("p2", "one", one), ("p3", "two", one), ("p4", "one", Approvers::Two)]
    {
        ids.push(required(ledger, asking(call, args, by, 1)).await);
    }
    assert_eq!(ids, ["approval-p1", "approval-p1", "approval-p3", "approval-p4"]);
    let first = stored(ledger, "approval-p1").await;
    assert_eq!((first.state, first.revision), (ApprovalState::Pending, 1));
    assert_eq!(first.arguments, JsonText::of(&arguments("one")).ok());
    // A request that was not decided expires.
    assert_eq!(required(ledger, asking("p5", "one", one, 100)).await, "approval-p1");
    assert_eq!(required(ledger, asking("p6", "one", one, 101)).await, "approval-p6");
    assert_eq!(decide(ledger, "approval-p1", true, "op", 102).await, Decided::Expired);
    let pending = ApprovalFilter {
        state: Some(ApprovalState::Pending),
        before: Some("approval-p6".to_owned()),
        limit: 2,
        ..ApprovalFilter::default()
    };
    let found = ledger.approvals(pending).await.expect("reads");
    let found: Vec<&str> = found.iter().map(|raw| raw.id.as_str()).collect();
    assert_eq!(found, ["approval-p4", "approval-p3"], "the newest are first");
    assert_sound(ledger).await;
}

/// Checks that the right persons decide, and that a grant is spent once by exactly its call.
pub async fn are_granted_and_spent_once<L: Ledger + LedgerReads>(ledger: &L) {
    let one = Approvers::One;
    let id = required(ledger, asking("g1", "a", one, 1)).await;
    assert_eq!(decide(ledger, &id, true, "local", 2).await, Decided::OwnCall);
    assert_eq!(decide(ledger, &id, true, "stranger", 2).await, Decided::Denied);
    let granted = decide(ledger, &id, true, "op", 2).await;
    let Decided::Done(approval) = granted else { panic!("it is granted, got {granted:?}") };
    assert_eq!((approval.state, approval.arguments.clone()), (ApprovalState::Granted, None));
    assert_eq!(stored(ledger, &id).await, *approval);
    assert!(matches!(decide(ledger, &id, true, "op2", 3).await, Decided::Already(_)));
    // Only the same call spends it.
    for other in [
        asking("g2", "b", one, 4),
        asking("g3", "a", Approvers::Two, 4),
        ClaimRequest { caller: "key:x".to_owned(), ..asking("g4", "a", one, 4) },
        ClaimRequest { tool_id: "tool.two".to_owned(), ..asking("g5", "a", one, 4) },
        ClaimRequest { contract_digest: "c1".to_owned(), ..asking("g6", "a", one, 4) },
    ] {
        assert_ne!(required(ledger, other).await, id);
    }
    let claim = fresh(ledger, asking("g7", "a", one, 5)).await;
    assert_eq!(stored(ledger, &id).await.state, ApprovalState::Spent);
    assert_eq!(required(ledger, asking("g8", "a", one, 5)).await, "approval-g8");
    assert!(matches!(decide(ledger, &id, false, "op", 5).await, Decided::Expired));
    // What did not start gives it back, for the rest of its time.
    let code = toolbooth_contracts::ErrorCode::UnknownAdapter;
    let not_started = settlement(claim, IdempotencyMode::None, Effect::NotStarted, Some(code));
    ledger.settle(not_started).await.expect("settles");
    assert_eq!(stored(ledger, &id).await.state, ApprovalState::Granted);
    assert_sound(ledger).await;
    // It is spent although there is a newer request, and can still be taken back before.
    let _claim = fresh(ledger, asking("g9", "a", one, 6)).await;
    assert_eq!(stored(ledger, &id).await.state, ApprovalState::Spent);
    assert_eq!(required(ledger, asking("g10", "a", one, 7)).await, "approval-g8");
    assert!(matches!(decide(ledger, "approval-g8", true, "op", 7).await, Decided::Done(_)));
    // A grant that was not spent expires.
    assert_eq!(required(ledger, asking("g11", "a", one, 207)).await, "approval-g11");
    assert_sound(ledger).await;
}

/// Checks two approvers, approvals by the caller itself, and rejections.
pub async fn are_decided_by_the_right_persons<L: Ledger + LedgerReads>(ledger: &L) {
    let two = required(ledger, asking("w1", "a", Approvers::Two, 1)).await;
    let half = decide(ledger, &two, true, "op", 2).await;
    let Decided::Done(half) = half else { panic!("one has granted, got {half:?}") };
    assert_eq!((half.state, half.revision), (ApprovalState::Pending, 2));
    assert!(half.arguments.is_some(), "the second person sees them too");
    assert_eq!(decide(ledger, &two, true, "op", 3).await, Decided::SamePerson);
    assert_eq!(decide(ledger, &two, true, "local", 3).await, Decided::OwnCall);
    assert_eq!(required(ledger, asking("w2", "a", Approvers::Two, 3)).await, two);
    assert!(matches!(decide(ledger, &two, true, "op2", 4).await, Decided::Done(_)));
    let _claim = fresh(ledger, asking("w3", "a", Approvers::Two, 5)).await;
    // The caller itself, where the rule says so.
    let own = required(ledger, asking("w4", "b", Approvers::Caller, 6)).await;
    assert_eq!(decide(ledger, &own, true, "stranger", 7).await, Decided::Denied);
    assert!(matches!(decide(ledger, &own, true, "local", 7).await, Decided::Done(_)));
    let _claim = fresh(ledger, asking("w5", "b", Approvers::Caller, 8)).await;
    // A rejection holds until it expires.
    let no = required(ledger, asking("w6", "c", Approvers::One, 9)).await;
    assert!(matches!(decide(ledger, &no, false, "op", 10).await, Decided::Done(_)));
    assert!(matches!(decide(ledger, &no, true, "op", 11).await, Decided::Already(_)));
    assert_eq!(rejected(ledger, asking("w7", "c", Approvers::One, 209)).await, no);
    assert_eq!(required(ledger, asking("w8", "c", Approvers::One, 210)).await, "approval-w8");
    // A grant can be taken back until it is spent.
    assert!(matches!(decide(ledger, "approval-w8", true, "op", 211).await, Decided::Done(_)));
    assert!(matches!(decide(ledger, "approval-w8", false, "op", 212).await, Decided::Done(_)));
    assert_eq!(rejected(ledger, asking("w9", "c", Approvers::One, 213)).await, "approval-w8");
    let last = stored(ledger, "approval-w8").await;
    let decisions: Vec<bool> = last.decisions.iter().map(|decision| decision.granted).collect();
    assert_eq!((decisions, last.revision), (vec![true, false], 3));
    assert_sound(ledger).await;
}

/// Checks that a claim that is taken over needs a new approval, unless it is the same call by the same rule.
pub async fn are_bound_when_a_claim_is_taken_over<L: Ledger + LedgerReads>(ledger: &L) {
    let mode = IdempotencyMode::SafeRetry;
    let keyed = |call: &str, key: &str| {
        let asking = asking(call, "a", Approvers::One, 1);
        let plain = request(call, mode, &[key], "a");
        ClaimRequest { keys: plain.keys, mode, rules: plain.rules, ..asking }
    };
    for (key, changed) in [
        ("same", None),
        ("caller", Some(ClaimRequest { caller: "key:x".into(), ..keyed("caller-2", "caller") })),
        ("contract", {
            let contract_digest = "c1".to_owned();
            Some(ClaimRequest { contract_digest, ..keyed("contract-2", "contract") })
        }),
        ("rule", {
            let call = keyed("rule-2", "rule");
            let approval = asking("rule-2", "a", Approvers::Two, 1).approval;
            Some(ClaimRequest { approval, ..call })
        }),
    ] {
        let id = required(ledger, keyed(&format!("{key}-1"), key)).await;
        assert!(matches!(decide(ledger, &id, true, "op", 2).await, Decided::Done(_)), "{key}");
        let claim = fresh(ledger, keyed(&format!("{key}-1"), key)).await;
        let code = toolbooth_contracts::ErrorCode::Timeout;
        let lost = settlement(claim, mode, Effect::Unknown, Some(code));
        ledger.settle(lost).await.expect("settles");
        match changed {
            None => drop(fresh(ledger, keyed(&format!("{key}-2"), key)).await),
            Some(changed) => assert_ne!(required(ledger, changed).await, id, "{key}"),
        }
    }
    // A grant of fewer persons than are needed now does not count.
    let id = required(ledger, asking("f1", "f", Approvers::One, 1)).await;
    assert!(matches!(decide(ledger, &id, true, "op", 2).await, Decided::Done(_)));
    let mut stricter = asking("f2", "f", Approvers::One, 3);
    if let Some(approval) = &mut stricter.approval {
        approval.approvers = Approvers::Two;
    }
    assert_ne!(required(ledger, stricter).await, id);
    assert_sound(ledger).await;
}

/// Checks that expired approvals can be removed, and no others.
pub async fn are_removed_once_they_have_expired<L: Ledger + LedgerReads>(ledger: &L) {
    let pending = required(ledger, asking("r1", "a", Approvers::One, 1)).await;
    let granted = required(ledger, asking("r2", "b", Approvers::One, 1)).await;
    decide(ledger, &granted, true, "op", 2).await;
    let prune = async |before: i64| {
        let before = moment(before).text;
        let prune =
            Prune { kind: PruneKind::Approvals, before, at: moment(1_000), windows: Vec::new() };
        ledger.prune(prune).await.expect("prunes").removed
    };
    assert_eq!((prune(101).await, prune(102).await, prune(202).await), (0, 1, 0));
    let left = ApprovalFilter { limit: 10, ..ApprovalFilter::default() };
    let left = ledger.approvals(left).await.expect("reads");
    let left: Vec<&str> = left.iter().map(|raw| raw.id.as_str()).collect();
    assert_eq!(left, [granted.as_str()], "{pending} has expired");
    assert_sound(ledger).await;
    assert_eq!(prune(203).await, 1);
    assert_sound(ledger).await;
}

/// Checks that an approval, which names the event of its dispatch, outlives the records of its call.
pub async fn outlive_their_calls<L: Ledger + LedgerReads>(ledger: &L) {
    let granted = required(ledger, asking("a", "x", Approvers::One, 1)).await;
    decide(ledger, &granted, true, "op", 2).await;
    settle_late(ledger, fresh(ledger, asking("a", "x", Approvers::One, 3)).await).await;
    ledger.checkpoint(Due::NOW, moment(40)).await.expect("signs");
    for kind in [PruneKind::Receipts, PruneKind::Logs, PruneKind::Events] {
        let (before, at) = (moment(100).text, moment(100));
        let prune = Prune { kind, before, at, windows: Vec::new() };
        while ledger.prune(prune.clone()).await.expect("prunes") != Pruned::default() {}
    }
    assert!(ledger.receipt("receipt-a").await.expect("reads").is_none(), "it is pruned");
    assert_sound(ledger).await;
    ledger.checkpoint(Due::NOW, moment(101)).await.expect("signs");
    assert_sound(ledger).await;
}

/// Makes approvals in every state.
pub(super) async fn fill<L: Ledger + LedgerReads>(ledger: &L) {
    for (call, by) in [("pending", Approvers::One), ("half", Approvers::Two)] {
        required(ledger, asking(call, call, by, 1)).await;
    }
    decide(ledger, "approval-half", true, "op", 2).await;
    for call in ["granted", "refused", "spent", "returned"] {
        let id = required(ledger, asking(call, call, Approvers::One, 1)).await;
        decide(ledger, &id, call != "refused", "op", 2).await;
    }
    let mode = IdempotencyMode::None;
    settle_late(ledger, fresh(ledger, asking("spent", "spent", Approvers::One, 3)).await).await;
    let returned = fresh(ledger, asking("returned", "returned", Approvers::One, 3)).await;
    let code = toolbooth_contracts::ErrorCode::UnknownAdapter;
    let mut returned = settlement(returned, mode, Effect::NotStarted, Some(code));
    if let Some(own) = std::sync::Arc::get_mut(&mut returned) {
        own.at = moment(12);
        own.terminal.time.clone_from(&own.at.text);
    }
    ledger.settle(returned).await.expect("settles");
}
