//! Tests that replicas keep the sums of windows as the calls in them are.
//!
//! Path: 6. Doc: policy.md#history, records.md#stores

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use toolbooth_audit::LedgerReads;
use toolbooth_audit::conformance::{request, settlement};
use toolbooth_audit::history::{
    CountedIn, History, HistoryJudge, HistoryQuestion, HistoryVerdict, WindowName, WindowTotals,
};
use toolbooth_audit::ledger::{ClaimRequest, Claimed, Ledger, Prune, PruneKind, Pruned};
use toolbooth_audit::verify::{self, TrustAnchors};
use toolbooth_contracts::contract::IdempotencyMode;
use toolbooth_contracts::event::DecisionSummary;
use toolbooth_contracts::history::Amount;
use toolbooth_contracts::{Effect, ErrorCode};
use toolbooth_proxy::{Clock, SystemClock};
use toolbooth_store::postgres::{PostgresLedger, PostgresReads};
use toolbooth_tests::postgres::Postgres;

use crate::postgres::open;

/// The window that no call leaves here, and the one that all leave.
const LONG: (&str, i64) = ("w", 600_000);
const SHORT: (&str, i64) = ("s", 2_000);
const TASKS: i64 = 3;
const CALLS: i64 = 60;

/// Permits every call, and keeps what it has seen.
#[derive(Debug, Default)]
struct Noting(Mutex<History>);

impl HistoryJudge for Noting {
    fn judge(&self, history: &History) -> HistoryVerdict {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone_from(history);
        HistoryVerdict::Permit {
            decision: DecisionSummary { rule: "all".into(), reason: "permitted".into() },
            approval: None,
            shadow: None,
        }
    }
}

fn counted((key, length_ms): (&str, i64), amount: i64) -> CountedIn {
    CountedIn { key: key.into(), amount: Amount::of_ten_thousandths(amount), length_ms }
}

/// The windows that a call reads: those of a key with its length, with a tenth of it, and with ten times it: from that
/// one, calls are pruned while they are in it.
fn question((key, length_ms): (&str, i64), judge: &Arc<Noting>) -> HistoryQuestion {
    let name = |length_ms| WindowName { key: key.into(), length_ms };
    let windows = [
        ("whole", name(length_ms)),
        ("part", name(length_ms / 10)),
        ("longer", name(length_ms * 10)),
    ];
    let windows = windows.map(|(of, name)| (of.to_owned(), name));
    HistoryQuestion { windows: BTreeMap::from(windows), judge: Arc::clone(judge) as _ }
}

/// Returns what a call sees of a window that does not count it.
async fn seen(ledger: &PostgresLedger, call: &str, window: (&str, i64)) -> (u64, i128) {
    let judge = Arc::new(Noting::default());
    let asked = ClaimRequest {
        history: Some(question(window, &judge)),
        ..request(call, IdempotencyMode::None, &[], "x")
    };
    let claimed = ledger.claim(asked).await.expect("answers");
    assert!(matches!(claimed, Claimed::Fresh(_)), "{claimed:?}");
    let history = judge.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
    history.get("whole").map(|seen| (seen.count, seen.sum)).expect("it was read")
}

async fn problems(url: &str) -> Vec<String> {
    let reads = PostgresReads::open(url).await.expect("opens");
    let report = verify::store(&reads, TrustAnchors::default()).await.expect("reads");
    report.problems.iter().map(|problem| problem.kind.clone()).collect()
}

async fn prune(ledger: &PostgresLedger) {
    let prune = Prune {
        kind: PruneKind::Receipts,
        before: "2099-01-01T00:00:00.000Z".to_owned(),
        windows: Vec::new(),
        at: SystemClock::default().now(),
    };
    while ledger.prune(prune.clone()).await.expect("prunes") != Pruned::default() {}
}

/// Makes calls of all kinds; returns how many of them count in the long window in the end, and their sum.
async fn call(ledger: Arc<PostgresLedger>, name: String, task: i64) -> (u64, i128) {
    let mut expected = (0, 0);
    for n in 0..CALLS {
        let mode = IdempotencyMode::None;
        let (amount, judge) = (n * 100 + task, Arc::new(Noting::default()));
        let asked = request(&format!("{name}-{task}-{n}"), mode, &[], "x");
        let kind = (n + task) % 7;
        let window = if kind == 6 { SHORT } else { LONG };
        let asked = ClaimRequest {
            // The third kind is not counted, and the second reads nothing.
            counted: if kind == 2 { Vec::new() } else { vec![counted(window, amount)] },
            history: [0, 2, 3, 6].contains(&kind).then(|| question(window, &judge)),
            ..asked
        };
        let claim = match ledger.claim(asked).await.expect("answers") {
            Claimed::Fresh(claim) => claim,
            other => panic!("{other:?}"),
        };
        // Some are not settled.
        let (effect, code) = match kind {
            3 | 4 => (Effect::NotStarted, Some(ErrorCode::NotConfigured)),
            _ => (Effect::Completed, None),
        };
        if kind != 5 {
            ledger.settle(settlement(claim, mode, effect, code)).await.expect("settles");
        }
        if [0, 1, 5].contains(&kind) {
            expected = (expected.0 + 1, expected.1 + i128::from(amount));
        }
        if n % 10 == 9 {
            prune(&ledger).await;
        }
    }
    expected
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replicas_keep_the_sums_of_windows_as_their_calls_are() {
    let Some(server) = Postgres::start() else { return };
    let database = server.database();
    let url = server.url(&database);
    let mut tasks = tokio::task::JoinSet::new();
    for writer in ["one", "two", "three"] {
        let ledger = Arc::new(open(&url, writer).await);
        for task in 0..TASKS {
            tasks.spawn(call(Arc::clone(&ledger), writer.to_owned(), task));
        }
    }
    let all = tasks.join_all().await;
    let expected = all.iter().fold((0, 0), |sum, own| (sum.0 + own.0, sum.1 + own.1));
    let ledger = open(&url, "four").await;
    assert_eq!(seen(&ledger, "look", LONG).await, expected);
    // The calls themselves say the same.
    let reads = PostgresReads::open(&url).await.expect("opens");
    let name = WindowName { key: LONG.0.into(), length_ms: LONG.1 };
    let WindowTotals { count, sum, .. } = reads.window(name, 0).await.expect("reads");
    assert_eq!((count, sum), expected);
    assert_eq!(problems(&url).await, Vec::<String>::new());
    let stored = |key: &str| {
        server.sql(&database, &format!("SELECT count(*) FROM window_sums WHERE key = '{key}'"))
    };
    assert_eq!(stored("w"), "3");
    assert_ne!(stored("s"), "0");

    // What is stored is what counts, so a change of it is found.
    for change in ["calls = calls - 1", "amount = amount - 1"] {
        server.sql(&database, &format!("UPDATE window_sums SET {change} WHERE key = 'w'"));
        assert_eq!(problems(&url).await, ["history-changed"; 3], "{change}");
    }
    let changed = (expected.0 - 1, expected.1 - 1);
    assert_eq!(seen(&ledger, "changed", LONG).await, changed);
    // Sums that cannot be right, that begin too early, or that are gone are made anew.
    for change in [
        "UPDATE window_sums SET calls = -5",
        "UPDATE window_sums SET amount = amount + 0.5",
        "UPDATE window_sums SET amount = 'NaN'",
        "UPDATE window_sums SET after_ms = 1, calls = 1",
        "DELETE FROM window_sums",
    ] {
        server.sql(&database, &format!("{change} WHERE key = 'w'"));
        assert_eq!(seen(&ledger, &format!("again {change}"), LONG).await, expected, "{change}");
        // They are stored then, although this call was not counted.
        assert_eq!(stored("w"), "3", "{change}");
        let right = "SELECT count(*) FROM window_sums WHERE key = 'w' AND after_ms > 1";
        assert_eq!(server.sql(&database, right), "3", "{change}");
        assert_eq!(problems(&url).await, Vec::<String>::new(), "{change}");
    }

    // Sums in which nothing counts any more are removed by pruning.
    server.sql(&database, "UPDATE window_sums SET until_ms = 1 WHERE key = 's'");
    prune(&ledger).await;
    let call = request("end", IdempotencyMode::None, &[], "x");
    let Ok(Claimed::Fresh(claim)) = ledger.claim(call).await else { panic!("fresh") };
    let end = settlement(claim, IdempotencyMode::None, Effect::Completed, None);
    ledger.settle(end).await.expect("settles");
    prune(&ledger).await;
    assert_eq!((stored("w"), stored("s")), ("3".to_owned(), "0".to_owned()));
}

/// Locks the window `p`, as a claim does that reads it.
const LOCK_P: &str = "SELECT pg_advisory_xact_lock(('x' || substr(encode(sha256(convert_to(
    'history' || chr(31) || 'p', 'UTF8')), 'hex'), 1, 16))::bit(64)::bigint)";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pruning_leaves_the_calls_of_a_window_that_another_transaction_has_locked() {
    let Some(server) = Postgres::start() else { return };
    let database = server.database();
    let url = server.url(&database);
    let ledger = open(&url, "one").await;
    for (call, key) in [("held", "p"), ("free", "q")] {
        let asked = request(call, IdempotencyMode::None, &[], "x");
        let asked = ClaimRequest { counted: vec![counted((key, 1), 7)], ..asked };
        let Ok(Claimed::Fresh(claim)) = ledger.claim(asked).await else { panic!("fresh") };
        let settled = settlement(claim, IdempotencyMode::None, Effect::Completed, None);
        ledger.settle(settled).await.expect("settles");
    }
    let (mut client, connection) =
        tokio_postgres::connect(&url, tokio_postgres::NoTls).await.expect("connects");
    tokio::spawn(connection);
    // What a claim holds that has read the window and not yet stored its sums.
    let other = client.transaction().await.expect("begins");
    other.execute(LOCK_P, &[]).await.expect("locks");
    let left = || server.sql(&database, "SELECT string_agg(receipt_id, ',') FROM receipts");
    while left().contains("receipt-free") {
        prune(&ledger).await;
    }
    prune(&ledger).await;
    assert_eq!(left(), "receipt-held");
    other.rollback().await.expect("ends");
    prune(&ledger).await;
    assert_eq!((left().as_str(), problems(&url).await.len()), ("", 0));
}
