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

/// Claims a call that is counted in the windows of a key and judged by them, and compares what was seen with
/// the tables.
async fn claim(
    ledger: &SqliteLedger,
    name: String,
    key: &str,
    numbers: &mut Numbers,
    at: i64,
) -> Claim {
    let notes = Arc::new(Notes::default());
    let (judge, windows): (Arc<dyn HistoryJudge>, _) = (Arc::clone(&notes) as _, windows(key));
    let amount = Amount::of_ten_thousandths(numbers.below(1 << 40).cast_signed());
    let counted = CountedIn { key: key.into(), amount, length_ms: 400 };
    let asked = ClaimRequest {
        at: moment(at),
        counted: vec![counted],
        history: Some(HistoryQuestion { windows: windows.clone(), judge }),
        ..request(&name, IdempotencyMode::None, &[], "x")
    };
    let expected: BTreeMap<String, WindowTotals> = {
        let mut totals = BTreeMap::new();
        for (name, window) in windows {
            let found = ledger.window(window, moment(at).epoch_ms).await.unwrap();
            totals.insert(name, found);
        }
        totals
    };
    let claimed = ledger.claim(asked).await.unwrap();
    let Claimed::Fresh(claim) = claimed else { panic!("fresh, got {claimed:?}") };
    let seen = notes.0.lock().unwrap().clone();
    for (name, totals) in expected {
        let (seen, before) = (&seen[&name], totals.seen(moment(at).epoch_ms));
        let own = amount.map_or(0, |amount| i128::from(amount.ten_thousandths()));
        let expected = (before.count + 1, before.sum + own, before.since_ms);
        assert_eq!((seen.count, seen.sum, seen.since_ms), expected, "{name} at {at}");
    }
    claim
}

#[tokio::test]
async fn windows_that_a_writer_keeps_are_those_of_the_tables() {
    for seed in 0..6 {
        let folder = tempfile::tempdir().unwrap();
        let open = |writer: &str| {
            sqlite::open(folder.path(), writer, SqliteOptions::default(), &moment(0)).unwrap()
        };
        let ledgers = [open("one"), open("two")];
        let mut numbers = Numbers(seed);
        let mut running: Vec<(usize, Claim)> = Vec::new();
        let mut now = 1_000;
        for step in 0..250 {
            // The second writer is another process, and works now and then.
            let who = usize::from(numbers.below(20) == 0);
            now += numbers.below(12).cast_signed();
            // Calls wait for each other, so their times are not in order.
            let at = now - numbers.below(5).cast_signed();
            match numbers.below(10) {
                0..6 => {
                    let key = if numbers.below(4) == 0 { "a" } else { "b" };
                    let name = format!("c{step}");
                    running.push((who, claim(&ledgers[who], name, key, &mut numbers, at).await));
                }
                6..9 if !running.is_empty() => {
                    let index = numbers.below(running.len() as u64);
                    let (who, claim) = running.remove(usize::try_from(index).unwrap());
                    let (effect, code) = match numbers.below(3) {
                        0 => (Effect::NotStarted, Some(ErrorCode::NotConfigured)),
                        1 => (Effect::Unknown, Some(ErrorCode::Timeout)),
                        _ => (Effect::Completed, None),
                    };
                    let settled = settlement(claim, IdempotencyMode::None, effect, code);
                    ledgers[who].settle(settled).await.unwrap();
                }
                _ => {
                    let at = moment(at);
                    let prune = Prune { kind: PruneKind::Receipts, before: at.text.clone(), at };
                    ledgers[who].prune(prune).await.unwrap();
                }
            }
        }
        let report = verify::store(&ledgers[0], verify::TrustAnchors::default()).await.unwrap();
        assert!(report.ok, "{report:?}");
    }
}
