//! Cases about rate limits and budgets.

use std::sync::Arc;

use toolbooth_contracts::charge::{Charge, budget_of_caller, budget_of_epic};
use toolbooth_contracts::contract::IdempotencyMode;
use toolbooth_contracts::{Effect, ErrorCode};

use super::fixtures::{fresh, moment, request, settlement};
use crate::ledger::{ClaimRequest, Claimed, Ledger, Moment};
use crate::reads::LedgerReads;
use crate::verify::{self, TrustAnchors};

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
    // A call that one limit refuses is charged to no limit, including the rate.
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
