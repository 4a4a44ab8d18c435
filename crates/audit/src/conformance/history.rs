//! Cases about windows over earlier calls: the calls that count, for how long, and the values that
//! rules read.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use toolbooth_contracts::contract::IdempotencyMode;
use toolbooth_contracts::event::{AuditEventKind, DecisionSummary};
use toolbooth_contracts::history::Amount;
use toolbooth_contracts::{Effect, ErrorCode, ToolPattern};

use super::fixtures::assert_sound;
use super::{fresh, moment, request, resolution, settlement};
use crate::history::{
    CountedIn, DeclaredWindow, History, HistoryJudge, HistoryQuestion, HistoryVerdict, WindowName,
};
use crate::ledger::{Claim, ClaimRequest, Claimed, Ledger, Prune, PruneKind};
use crate::reads::{EventFilter, LedgerReads};

/// A length of which no end is reached here.
const LONG_MS: i64 = 1_000_000_000_000;

/// Permits a call while the window `paid` has at most this number of calls, and stores the values that
/// it has read.
#[derive(Debug)]
struct AtMost {
    count: u64,
    approval: Option<String>,
    seen: Mutex<Vec<History>>,
}

impl AtMost {
    fn new(count: u64) -> Arc<Self> {
        Arc::new(Self { count, approval: None, seen: Mutex::default() })
    }

    /// Returns the last read values: the count, the sum, and whether there was an earlier call.
    fn last(&self) -> (u64, i128, bool) {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let last = seen.last().and_then(|history| history.get("paid"));
        last.map(|paid| (paid.count, paid.sum, paid.since_ms.is_some())).expect("it was asked")
    }
}

impl HistoryJudge for AtMost {
    fn judge(&self, history: &History) -> HistoryVerdict {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).push(history.clone());
        match history.get("paid").is_some_and(|paid| paid.count <= self.count) {
            true => HistoryVerdict::Permit {
                decision: DecisionSummary { rule: "at-most".into(), reason: "permitted".into() },
                approval: self.approval.clone(),
                shadow: None,
            },
            false => HistoryVerdict::Deny,
        }
    }
}

fn counted(key: &str, amount: Option<i64>) -> CountedIn {
    let amount = amount.and_then(Amount::of_ten_thousandths);
    CountedIn { key: key.to_owned(), amount, length_ms: LONG_MS }
}

/// Returns a window that sums an amount, and one that only counts.
pub(super) fn in_two_windows() -> Vec<CountedIn> {
    vec![counted("sums", Some(125_000)), counted("counts", None)]
}

/// Returns a call that is counted in the window `w`, with an amount.
fn paying(call: &str, amount: i64) -> ClaimRequest {
    let call = request(call, IdempotencyMode::None, &[], call);
    ClaimRequest { counted: vec![counted("w", Some(amount))], ..call }
}

/// Returns the call, which is judged by the window `w`.
fn judged(judge: &Arc<AtMost>, call: ClaimRequest) -> ClaimRequest {
    let window = WindowName { key: "w".to_owned(), length_ms: LONG_MS };
    let windows = BTreeMap::from([("paid".to_owned(), window)]);
    let judge: Arc<dyn HistoryJudge> = Arc::clone(judge) as _;
    ClaimRequest { history: Some(HistoryQuestion { windows, judge }), ..call }
}

/// Returns the window as seen by a call that does not count in it.
async fn seen(ledger: &impl Ledger, call: &str) -> (u64, i128, bool) {
    let judge = AtMost::new(u64::MAX);
    let looking = request(call, IdempotencyMode::None, &[], call);
    let _claim = fresh(ledger, judged(&judge, looking)).await;
    judge.last()
}

async fn settle(ledger: &impl Ledger, claim: Claim, effect: Effect, code: Option<ErrorCode>) {
    let settled = ledger.settle(settlement(claim, IdempotencyMode::None, effect, code)).await;
    settled.expect("settles");
}

/// Checks which calls count: those that run, those in doubt and those with an effect.
pub async fn counts_what_may_have_had_an_effect<L: Ledger + LedgerReads>(ledger: &L) {
    assert_eq!(seen(ledger, "n0").await, (0, 0, false));
    let runs = fresh(ledger, paying("n1", 10_000)).await;
    assert_eq!(seen(ledger, "s1").await, (1, 10_000, true), "a call that runs counts");
    let failed = fresh(ledger, paying("n2", 2)).await;
    settle(ledger, failed, Effect::Completed, Some(ErrorCode::ToolError)).await;
    let unknown = fresh(ledger, paying("n3", 300)).await;
    settle(ledger, unknown, Effect::Unknown, Some(ErrorCode::Timeout)).await;
    assert_eq!(seen(ledger, "s2").await, (3, 10_302, true));
    let not_started = fresh(ledger, paying("n4", 5_000_000)).await;
    settle(ledger, not_started, Effect::NotStarted, Some(ErrorCode::NotConfigured)).await;
    assert_eq!(seen(ledger, "s3").await, (3, 10_302, true), "a call that did not start does not");
    settle(ledger, runs, Effect::NotStarted, Some(ErrorCode::NotConfigured)).await;
    assert_eq!(seen(ledger, "s4").await, (2, 302, true));
    // A person who says what happened says that it had an effect.
    ledger.resolve(resolution("n3")).await.expect("resolves");
    assert_eq!(seen(ledger, "s5").await, (2, 302, true));
    // Another key is another window.
    let other = ClaimRequest { counted: vec![counted("x", Some(7))], ..paying("n5", 0) };
    settle(ledger, fresh(ledger, other).await, Effect::Completed, None).await;
    assert_eq!(seen(ledger, "s6").await, (2, 302, true));
    // The largest amounts add up exactly.
    for call in ["n6", "n7", "n8"] {
        settle(ledger, fresh(ledger, paying(call, i64::MAX)).await, Effect::Completed, None).await;
    }
    assert_eq!(seen(ledger, "s7").await, (5, 302 + 3 * i128::from(i64::MAX), true));
    assert_sound(ledger).await;
}

/// Checks that a judged call sees itself, that a denied or replayed one writes nothing, and that what was
/// seen is recorded.
pub async fn judges_in_the_claim<L: Ledger + LedgerReads>(ledger: &L) {
    let most = AtMost::new(2);
    for (call, count, sum) in [("j1", 1, 5), ("j2", 2, 10)] {
        let claim = fresh(ledger, judged(&most, paying(call, 5))).await;
        settle(ledger, claim, Effect::Completed, None).await;
        assert_eq!(most.last(), (count, sum, count > 1));
    }
    let denied = ledger.claim(judged(&most, paying("j3", 5))).await.expect("answers");
    assert!(matches!(denied, Claimed::Denied), "got {denied:?}");
    assert!(ledger.receipt("receipt-j3").await.expect("reads").is_none());
    assert_eq!(seen(ledger, "s1").await, (2, 10, true), "a denied call does not count");
    // A replay asks no one, and does not count.
    let keyed = |call: &str| ClaimRequest {
        counted: vec![counted("w", Some(5))],
        ..request(call, IdempotencyMode::Keyed, &["k"], "same")
    };
    let more = AtMost::new(3);
    let claim = fresh(ledger, judged(&more, keyed("j4"))).await;
    let done = settlement(claim, IdempotencyMode::Keyed, Effect::Completed, None);
    ledger.settle(done).await.expect("settles");
    let again = ledger.claim(judged(&AtMost::new(0), keyed("j5"))).await.expect("answers");
    assert!(matches!(again, Claimed::Replay { .. }), "got {again:?}");
    assert_eq!(seen(ledger, "s2").await, (3, 15, true));
    // The rule and what it has seen are in the event.
    let filter = EventFilter { call: Some("j2".to_owned()), limit: 9, ..EventFilter::default() };
    let events = ledger.events(filter).await.expect("reads").found;
    let event = events
        .iter()
        .map(|placed| &placed.event.body)
        .find(|body| body.event == AuditEventKind::ToolDispatched)
        .expect("it was dispatched");
    let rule = event.decision.as_ref().map(|decision| decision.rule.as_str());
    assert_eq!(rule, Some("at-most"));
    let seen = event.facts.as_ref().and_then(|facts| facts.get("history")?.get("paid"));
    let seen = seen.expect("what was seen is a fact");
    assert_eq!((seen["count"].as_u64(), seen["sum"].as_str()), (Some(2), Some("0.0010")));
    assert!(seen["sinceMs"].is_i64() || seen["sinceMs"].is_u64(), "{seen}");
    // A rule that reads windows may ask for an approval.
    let approval = Some("digest".to_owned());
    let asking = AtMost { count: 9, approval, seen: Mutex::default() };
    let asked = ledger.claim(judged(&Arc::new(asking), paying("j6", 5))).await.expect("answers");
    assert!(matches!(asked, Claimed::OtherApproval), "got {asked:?}");
    assert_sound(ledger).await;
}

/// Checks that a claim that is taken over counts once, however often it is dispatched.
pub async fn counts_a_call_once<L: Ledger + LedgerReads>(ledger: &L) {
    let mode = IdempotencyMode::SafeRetry;
    let call = |call: &str, amount| ClaimRequest {
        counted: vec![counted("w", Some(amount)), counted("other", None)],
        ..request(call, mode, &["k"], "same")
    };
    let claim = fresh(ledger, call("o1", 10)).await;
    let lost = settlement(claim, mode, Effect::Unknown, Some(ErrorCode::Timeout));
    ledger.settle(lost).await.expect("settles");
    let most = AtMost::new(1);
    let again = ClaimRequest { counted: vec![counted("w", Some(10))], ..call("o2", 10) };
    let claim = fresh(ledger, judged(&most, again)).await;
    assert_eq!((claim.receipt_id(), claim.attempt()), ("receipt-o1", 2));
    assert_eq!(most.last(), (1, 10, false), "it sees itself once, and no earlier call");
    assert_eq!(seen(ledger, "s1").await, (1, 10, true));
    let receipt = ledger.receipt("receipt-o1").await.expect("reads").expect("is stored");
    let keys: Vec<&str> = receipt.history.iter().map(|entry| entry.key.as_str()).collect();
    assert_eq!(keys, ["w", "other"], "what another window counts is kept");
    // The first dispatch may have had an effect.
    let gone = settlement(claim, mode, Effect::NotStarted, Some(ErrorCode::NotConfigured));
    ledger.settle(gone).await.expect("settles");
    assert_eq!(seen(ledger, "s2").await, (1, 10, true));
    // Beside another call it sees when that was.
    settle(ledger, fresh(ledger, paying("o3", 1)).await, Effect::Completed, None).await;
    let most = AtMost::new(2);
    let _claim = fresh(ledger, judged(&most, call("o4", 10))).await;
    assert_eq!(most.last(), (2, 11, true));
    assert_sound(ledger).await;
}

/// Checks that no receipt is pruned while a window counts it.
pub async fn are_kept_while_they_count<L: Ledger + LedgerReads>(ledger: &L) {
    let past = CountedIn { length_ms: -LONG_MS, ..counted("past", None) };
    for (call, counted) in [
        ("k1", vec![counted("w", Some(1))]),
        ("k2", vec![past.clone()]),
        ("k3", vec![past, counted("w", None)]),
        ("k4", vec![]),
    ] {
        let claim = fresh(ledger, ClaimRequest { counted, ..paying(call, 0) }).await;
        settle(ledger, claim, Effect::Completed, None).await;
    }
    let prune = async |tool: &str, length_ms: i64| {
        let tool = ToolPattern::try_from(tool.to_owned()).expect("a pattern");
        let windows = vec![DeclaredWindow { tool, length_ms }];
        let (kind, before) = (PruneKind::Receipts, moment(1_000).text);
        let prune = Prune { kind, before, windows, at: moment(1_000) };
        let pruned = ledger.prune(prune).await.expect("prunes");
        assert_eq!(pruned.tombstones, 0);
        pruned.removed
    };
    // A window that is longer now keeps what it has counted, and no other calls.
    assert_eq!(prune("tool.*", LONG_MS).await, 1);
    for tool in ["tool.*", "tool.one", "*"] {
        assert_eq!(prune(tool, LONG_MS).await, 0, "{tool}");
    }
    for call in ["k1", "k2", "k3"] {
        let receipt = ledger.receipt(&format!("receipt-{call}")).await.expect("reads");
        assert!(receipt.is_some(), "{call}");
    }
    // One that counts other tools does not, nor one that is too short.
    assert_eq!(prune("tool.one.*", LONG_MS).await, 1);
    assert_eq!((prune("tool", LONG_MS).await, prune("*", -LONG_MS).await), (0, 0));
    for (call, is_there) in [("k1", true), ("k2", false), ("k3", true), ("k4", false)] {
        let receipt = ledger.receipt(&format!("receipt-{call}")).await.expect("reads");
        assert_eq!(receipt.is_some(), is_there, "{call}");
    }
    assert_eq!(seen(ledger, "s1").await, (2, 1, true));
    assert_sound(ledger).await;
}
