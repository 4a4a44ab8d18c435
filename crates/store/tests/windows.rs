//! Windows over earlier calls, which a writer keeps from one batch to the next: they must always be those that
//! the tables contain.
//!
//! Doc: policy.md#history
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)]

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use toolbooth_audit::conformance::{moment, request, settlement};
use toolbooth_audit::history::{
    CountedIn, History, HistoryJudge, HistoryQuestion, HistoryVerdict, WindowName, WindowTotals,
};
use toolbooth_audit::ledger::{Claim, ClaimRequest, Claimed, Ledger, Prune, PruneKind};
use toolbooth_audit::{LedgerReads, verify};
use toolbooth_contracts::contract::IdempotencyMode;
use toolbooth_contracts::event::DecisionSummary;
use toolbooth_contracts::history::Amount;
use toolbooth_contracts::{Effect, ErrorCode};
use toolbooth_store::sqlite::{self, SqliteLedger, SqliteOptions};

const LENGTHS: [i64; 3] = [7, 60, 400];
/// Calls in doubt may be run again.
const MODE: IdempotencyMode = IdempotencyMode::SafeRetry;

/// Permits everything, and notes what it has seen last.
#[derive(Debug, Default)]
struct Notes(Mutex<History>);

impl HistoryJudge for Notes {
    fn judge(&self, history: &History) -> HistoryVerdict {
        self.0.lock().unwrap().clone_from(history);
        let decision = DecisionSummary { rule: "all".into(), reason: "permitted".into() };
        HistoryVerdict::Permit { decision, approval: None, shadow: None }
    }
}

/// Random numbers that are the same in each run (a linear congruential generator).
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }
}

fn windows(key: &str) -> BTreeMap<String, WindowName> {
    let window = |length_ms| (format!("w{length_ms}"), WindowName { key: key.into(), length_ms });
    LENGTHS.into_iter().map(window).collect()
}

/// A call that may be run again, as it is counted.
struct Call {
    key: &'static str,
    name: String,
    attempts: u32,
    at: i64,
    amount: i128,
}

/// Claims a call, also again, that is counted in the windows of a key and judged by them, and compares what
/// was seen with the tables.
async fn claim(ledger: &SqliteLedger, call: &mut Call, numbers: &mut Numbers, at: i64) -> Claim {
    let notes = Arc::new(Notes::default());
    let (judge, windows): (Arc<dyn HistoryJudge>, _) = (Arc::clone(&notes) as _, windows(call.key));
    let amount = Amount::of_ten_thousandths(numbers.below(1 << 40).cast_signed());
    let counted = CountedIn { key: call.key.into(), amount, length_ms: 400 };
    let asked = ClaimRequest {
        at: moment(at),
        counted: vec![counted],
        history: Some(HistoryQuestion { windows: windows.clone(), judge }),
        ..request(&format!("{}-{}", call.name, call.attempts), MODE, &[&call.name], "x")
    };
    let expected: BTreeMap<String, WindowTotals> = {
        let mut totals = BTreeMap::new();
        for (name, window) in windows {
            let mut found = ledger.window(window, moment(at).epoch_ms).await.unwrap();
            let before = moment(call.at).epoch_ms;
            if call.attempts > 0 && before > found.after_ms {
                // It counts once, however often it is run.
                found.count -= 1;
                found.sum -= call.amount;
                if found.last_ms == Some(before) {
                    found.last_ms = found.second_last_ms;
                }
            }
            totals.insert(name, found);
        }
        totals
    };
    let claimed = ledger.claim(asked).await.unwrap();
    let Claimed::Fresh(claim) = claimed else { panic!("fresh, got {claimed:?}") };
    let seen = notes.0.lock().unwrap().clone();
    let own = amount.map_or(0, |amount| i128::from(amount.ten_thousandths()));
    (call.attempts, call.at, call.amount) = (call.attempts + 1, at, own);
    for (name, totals) in expected {
        let (seen, before) = (&seen[&name], totals.seen(moment(at).epoch_ms));
        let expected = (before.count + 1, before.sum + own, before.since_ms);
        assert_eq!((seen.count, seen.sum, seen.since_ms), expected, "{name} at {at}");
    }
    claim
}

#[tokio::test]
async fn windows_that_a_writer_keeps_are_those_of_the_tables() {
    let mut again = 0;
    for seed in 0..6 {
        let folder = tempfile::tempdir().unwrap();
        let open = |writer: &str| {
            sqlite::open(folder.path(), writer, SqliteOptions::default(), &moment(0)).unwrap()
        };
        let ledgers = [open("one"), open("two")];
        let mut numbers = Numbers(seed);
        let mut running: Vec<(usize, Call, Claim)> = Vec::new();
        let mut in_doubt: Vec<Call> = Vec::new();
        let mut now = 1_000;
        for step in 0..250 {
            // The second writer is another process, and works now and then.
            let who = usize::from(numbers.below(20) == 0);
            now += numbers.below(12).cast_signed();
            // Calls wait for each other, so their times are not in order.
            let at = now - numbers.below(5).cast_signed();
            match numbers.below(15) {
                0..6 => {
                    let key = if numbers.below(4) == 0 { "a" } else { "b" };
                    let name = format!("c{step}");
                    let mut call = Call { key, name, attempts: 0, at, amount: 0 };
                    let claim = claim(&ledgers[who], &mut call, &mut numbers, at).await;
                    running.push((who, call, claim));
                }
                9..14 if !in_doubt.is_empty() => {
                    // Mostly of the last two calls.
                    in_doubt.sort_by_key(|call| call.at);
                    let from_last = numbers.below(3.min(in_doubt.len() as u64));
                    let index = in_doubt.len() - 1 - usize::try_from(from_last).unwrap();
                    let mut call = in_doubt.remove(index);
                    again += 1;
                    // The clock may have been put back since the call was claimed before.
                    let at = at - numbers.below(30).cast_signed();
                    let claim = claim(&ledgers[who], &mut call, &mut numbers, at).await;
                    running.push((who, call, claim));
                }
                6..9 if !running.is_empty() => {
                    let index = numbers.below(running.len() as u64);
                    let (who, call, claim) = running.remove(usize::try_from(index).unwrap());
                    let (effect, code) = match numbers.below(6) {
                        0 => (Effect::NotStarted, Some(ErrorCode::NotConfigured)),
                        1..5 => (Effect::Unknown, Some(ErrorCode::Timeout)),
                        _ => (Effect::Completed, None),
                    };
                    let settled = settlement(claim, MODE, effect, code);
                    ledgers[who].settle(settled).await.unwrap();
                    if effect == Effect::Unknown {
                        in_doubt.push(call);
                    }
                }
                _ => {
                    let at = moment(at);
                    let prune = Prune {
                        kind: PruneKind::Receipts,
                        before: at.text.clone(),
                        at,
                        windows: Vec::new(),
                    };
                    ledgers[who].prune(prune).await.unwrap();
                }
            }
        }
        let report = verify::store(&ledgers[0], verify::TrustAnchors::default()).await.unwrap();
        assert!(report.ok, "{report:?}");
    }
    assert!(again > 100, "{again} calls were run again");
}

#[tokio::test]
async fn the_times_of_others_stay_right_when_the_clock_goes_back() {
    let folder = tempfile::tempdir().unwrap();
    let options = SqliteOptions::default();
    let ledger = sqlite::open(folder.path(), "one", options, &moment(0)).unwrap();
    let mut numbers = Numbers(1);
    let mut calls: Vec<Call> = Vec::new();
    for at in [1_010, 1_012, 1_013] {
        let mut call = Call { key: "a", name: format!("c{at}"), attempts: 0, at, amount: 0 };
        let claim = claim(&ledger, &mut call, &mut numbers, at).await;
        let in_doubt = settlement(claim, MODE, Effect::Unknown, Some(ErrorCode::Timeout));
        ledger.settle(in_doubt).await.unwrap();
        calls.push(call);
    }
    // The last one is run again, before all others; then the one that is last now.
    drop(claim(&ledger, &mut calls[2], &mut numbers, 1_008).await);
    drop(claim(&ledger, &mut calls[1], &mut numbers, 1_014).await);
}

#[tokio::test]
async fn calls_that_come_back_into_a_window_are_seen_by_those_that_do_not_count_in_it() {
    let folder = tempfile::tempdir().unwrap();
    let options = SqliteOptions::default();
    let ledger = sqlite::open(folder.path(), "one", options, &moment(0)).unwrap();
    let mut counted = Call { key: "a", name: "counted".into(), attempts: 0, at: 1_000, amount: 0 };
    drop(claim(&ledger, &mut counted, &mut Numbers(1), 1_000).await);
    // The second clock is behind the first.
    for (name, at, expected) in [("later", 1_020, (0, None)), ("earlier", 1_004, (1, Some(4)))] {
        let notes = Arc::new(Notes::default());
        let judge = Arc::clone(&notes) as Arc<dyn HistoryJudge>;
        let asked = ClaimRequest {
            at: moment(at),
            history: Some(HistoryQuestion { windows: windows("a"), judge }),
            ..request(name, MODE, &[name], "x")
        };
        let claimed = ledger.claim(asked).await.unwrap();
        assert!(matches!(claimed, Claimed::Fresh(_)), "{claimed:?}");
        let seen = notes.0.lock().unwrap().clone();
        assert_eq!((seen["w7"].count, seen["w7"].since_ms), expected, "{name}");
    }
}
