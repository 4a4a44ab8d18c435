//! The store for several replicas: the same suite, leases, tampering, and what stops working with
//! its server comes back with it.
//!
//! Path: 6, 9. Doc: records.md#stores

use toolbooth_audit::LedgerReads;
use toolbooth_audit::checkpoint::Due;
use toolbooth_audit::conformance::{moment, request, settlement, suite};
use toolbooth_audit::ledger::{
    Claim, ClaimRequest, Claimed, Ledger, LedgerError, Prune, PruneKind, Pruned,
};
use toolbooth_audit::note::Signer;
use toolbooth_audit::proof;
use toolbooth_audit::queue::{CallQueue, QueuedCall};
use toolbooth_audit::reads::EventFilter;
use toolbooth_audit::verify::{self, Known};
use toolbooth_contracts::Effect;
use toolbooth_contracts::contract::IdempotencyMode;
use toolbooth_contracts::receipt::ClaimState;
use toolbooth_store::postgres::{self, OpenError, PostgresLedger, PostgresOptions, PostgresReads};
use toolbooth_tests::postgres::Postgres;

fn options(url: &str) -> PostgresOptions {
    PostgresOptions {
        url: url.to_owned(),
        digest_key: [5; 32],
        older_digest_keys: Vec::new(),
        signer: Signer::new(&[6; 32]),
        kept: None,
        accept_restored: false,
    }
}

async fn open(url: &str, writer: &str) -> PostgresLedger {
    postgres::open(options(url), writer, &moment(0)).await.expect("opens")
}

async fn claim(ledger: &PostgresLedger, call: &str, mode: IdempotencyMode, key: &str) -> Claim {
    match ledger.claim(request(call, mode, &[key], "x")).await {
        Ok(Claimed::Fresh(claim)) => claim,
        other => panic!("{call} should get a fresh claim, got {other:?}"),
    }
}

async fn sound(reads: &PostgresReads) {
    let report = verify::store(reads, Known::default()).await.expect("reads");
    assert!(report.ok, "{report:?}");
}

/// Makes a replica look as if it had not renewed its lease for long.
fn lapse(server: &Postgres, database: &str, writer: &str) {
    let sql = format!(
        "UPDATE writers SET renewed = renewed - interval '1 hour' WHERE writer = '{writer}'"
    );
    server.sql(database, &sql);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_ledger_of_many_replicas_conforms() {
    let Some(server) = Postgres::start() else { return };
    suite(async || {
        let database = server.database();
        open(&server.url(&database), "writer").await
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_replica_leaves_a_doubt_and_its_outcome_may_still_arrive() {
    let Some(server) = Postgres::start() else { return };
    let database = server.database();
    let url = server.url(&database);
    let (first, second) = (open(&url, "one").await, open(&url, "two").await);
    let reads = PostgresReads::open(&url).await.expect("opens");
    let mode = IdempotencyMode::Keyed;
    let late = claim(&first, "a", mode, "k").await;
    let twin = second.claim(request("b", mode, &["k"], "x")).await.expect("answers");
    assert!(matches!(twin, Claimed::InFlight { settled: None, .. }), "{twin:?}");
    assert!(second.sweep(moment(1)).await.expect("sweeps").is_empty(), "the first lives");
    lapse(&server, &database, "one");
    assert_eq!(second.sweep(moment(2)).await.expect("sweeps").len(), 1);
    let doubt = second.claim(request("c", mode, &["k"], "x")).await.expect("answers");
    assert!(matches!(doubt, Claimed::InDoubt { .. }), "{doubt:?}");
    sound(&reads).await;
    // The replica had only slept: what it has to say is taken.
    let receipt =
        first.settle(settlement(late, mode, Effect::Completed, None)).await.expect("is taken");
    assert_eq!(receipt.state, ClaimState::Succeeded);
    let call = EventFilter { call: Some("a".into()), limit: 9, ..EventFilter::default() };
    let events = reads.events(call).await.expect("reads");
    let kinds: Vec<&str> = events.iter().map(|placed| placed.event.body.event.as_str()).collect();
    for kind in ["TOOL_DISPATCHED", "TOOL_CALL_IN_DOUBT", "TOOL_SETTLED_LATE", "TOOL_EXECUTED"] {
        assert!(kinds.contains(&kind), "{kinds:?}");
    }
    let replay = second.claim(request("d", mode, &["k"], "x")).await.expect("answers");
    assert!(matches!(replay, Claimed::Replay { .. }), "{replay:?}");
    // A tool that may run again is dispatched again, and the first outcome comes too late then.
    let mode = IdempotencyMode::SafeRetry;
    let slept = claim(&first, "e", mode, "r").await;
    lapse(&server, &database, "one");
    let again = claim(&second, "f", mode, "r").await;
    assert_eq!((again.receipt_id(), again.attempt()), ("receipt-e", 2));
    let stale = first.settle(settlement(slept, mode, Effect::Completed, None)).await;
    assert_eq!(stale.err(), Some(LedgerError::Stale));
    second.settle(settlement(again, mode, Effect::Completed, None)).await.expect("settles");
    sound(&reads).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replicas_share_a_digest_key_or_do_not_start() {
    let Some(server) = Postgres::start() else { return };
    let database = server.database();
    let url = server.url(&database);
    assert!(matches!(PostgresReads::open(&url).await, Err(OpenError::Empty)));
    open(&url, "one").await.close(moment(1)).await.expect("closes");
    let other = PostgresOptions { digest_key: [9; 32], ..options(&url) };
    let refused = postgres::open(other, "two", &moment(2)).await;
    assert!(matches!(refused, Err(OpenError::Key { .. })));
    // A key is added, and from then on every replica needs both.
    let both =
        PostgresOptions { digest_key: [9; 32], older_digest_keys: vec![[5; 32]], ..options(&url) };
    let added = postgres::open(both, "newer", &moment(2)).await.expect("knows both");
    assert_eq!(Ledger::digester(&added).older().len(), 1);
    let refused = postgres::open(options(&url), "older", &moment(2)).await;
    assert!(matches!(refused, Err(OpenError::Key { .. })));
    server.sql(&database, "UPDATE toolbooth_version SET version = 99");
    let refused = postgres::open(options(&url), "three", &moment(3)).await;
    assert!(matches!(refused, Err(OpenError::Newer { found: 99, .. })));
    let secret = "postgres://somebody:hunter2@127.0.0.1:1/x?nonsense=1";
    let told = postgres::open(options(secret), "four", &moment(3)).await;
    let told = told.err().map(|error| format!("{error:?} {error}")).unwrap_or_default();
    assert!(!told.contains("hunter2"), "{told}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tampering_with_the_tables_is_found() {
    let Some(server) = Postgres::start() else { return };
    for (sql, kind) in [
        ("UPDATE receipts SET body = replace(body, 'tool.one', 'tool.two')", "receipt-changed"),
        ("UPDATE receipts SET state = 'failed'", "receipt-changed"),
        ("DELETE FROM receipts", "receipt-missing"),
        ("DELETE FROM keys", "key-missing"),
        ("UPDATE keys SET key = 'another'", "key-missing"),
        ("UPDATE keys SET receipt_id = 'nobody'", "key-unaccounted"),
        ("INSERT INTO keys VALUES ('another', 'receipt-a')", "key-unaccounted"),
        (
            "UPDATE approvals SET state = 'granted',
                 body = replace(body, '\"pending\"', '\"granted\"')",
            "approval-changed",
        ),
        ("UPDATE approvals SET caller = 'other'", "approval-changed"),
        ("DELETE FROM approvals", "approval-missing"),
        ("UPDATE queue SET queued_by = NULL", "call-changed"),
        ("UPDATE queue SET request = '{\"tool\":\"other\"}'", "call-changed"),
        ("UPDATE queue SET result = '{}' WHERE call_id = 'queued'", "call-changed"),
        ("UPDATE agent_logs SET is_error = true", "log-changed"),
        ("DELETE FROM agent_logs", "log-missing"),
        ("UPDATE events SET tool = 'other' WHERE seq = 2", "changed"),
        ("UPDATE events SET body = 'nonsense' WHERE seq = 1", "changed"),
        ("DELETE FROM events WHERE seq = 1", "missing"),
        ("DELETE FROM events WHERE seq = 3", "missing"),
        ("UPDATE events SET receipt_id = NULL WHERE seq = 2", "receipt-missing"),
    ] {
        let database = server.database();
        let url = server.url(&database);
        let ledger = open(&url, "one").await;
        let mode = IdempotencyMode::OnKey;
        let claimed = claim(&ledger, "a", mode, "k").await;
        ledger.settle(settlement(claimed, mode, Effect::Completed, None)).await.expect("settles");
        let asks = |call: &str| ClaimRequest {
            approval_rule: Some("rule".into()),
            ..request(call, IdempotencyMode::None, &[], "args")
        };
        ledger.claim(asks("asks")).await.expect("asks");
        let call = QueuedCall::new("queued".into(), "local".into(), "{}".into(), &moment(2));
        ledger.enqueue(call, 10).await.expect("enqueues");
        ledger.checkpoint(Due::NOW, moment(3)).await.expect("signs").expect("is due");
        let reads = PostgresReads::open(&url).await.expect("opens");
        sound(&reads).await;
        server.sql(&database, sql);
        let known = Known { digester: Some(ledger.digester().clone()), ..Known::default() };
        let report = verify::store(&reads, known).await.expect("reads");
        // Whatever somebody wrote into the tables, the tool does not run.
        let again = ledger.claim(asks("again")).await;
        assert!(!matches!(again, Ok(Claimed::Fresh(_))), "{sql}: {again:?}");
        let taken = ledger.take(Vec::new()).await.expect("asks");
        let forged = sql.contains("queued_by") || sql.contains("SET request");
        assert_eq!(taken.is_none(), forged, "{sql}: {taken:?}");
        assert!(report.problems.iter().any(|problem| problem.kind == kind), "{sql}: {report:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_that_the_database_cannot_keep_do_no_harm() {
    let Some(server) = Postgres::start() else { return };
    let database = server.database();
    let url = server.url(&database);
    let ledger = open(&url, "one").await;
    let mode = IdempotencyMode::OnKey;
    let mut odd = request("nul\0", mode, &["k"], "x");
    odd.receipt_id = "receipt-nul".into();
    odd.tool_id = "tool\0".into();
    odd.rate_per_min = Some(5);
    odd.dispatched.agent_id = Some("agent\0".into());
    let claimed = match ledger.claim(odd).await {
        Ok(Claimed::Fresh(claimed)) => claimed,
        other => panic!("fresh, got {other:?}"),
    };
    ledger.settle(settlement(claimed, mode, Effect::Completed, None)).await.expect("settles");
    let waiting = QueuedCall::new("c\0".into(), "a\0".into(), "{}".into(), &moment(1));
    ledger.enqueue(waiting, 5).await.expect("is taken");
    assert!(ledger.take(Vec::new()).await.expect("answers").is_some());
    sound(&PostgresReads::open(&url).await.expect("opens")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_is_shortened_up_to_a_checkpoint() {
    let Some(server) = Postgres::start() else { return };
    let database = server.database();
    let url = server.url(&database);
    let ledger = open(&url, "one").await;
    for n in 0..3 {
        let mode = IdempotencyMode::None;
        let claimed = claim(&ledger, &format!("c{n}"), mode, &format!("k{n}")).await;
        ledger.settle(settlement(claimed, mode, Effect::Completed, None)).await.expect("settles");
        ledger.checkpoint(Due::NOW, moment(3)).await.expect("signs");
    }
    for kind in [PruneKind::Receipts, PruneKind::Logs, PruneKind::Events] {
        let prune = Prune { kind, before: moment(9).text, at: moment(10) };
        while ledger.prune(prune.clone()).await.expect("prunes") != Pruned::default() {}
    }
    let reads = PostgresReads::open(&url).await.expect("opens");
    sound(&reads).await;
    let gone = reads.gone_page(None, 100).await.expect("reads");
    assert!(!gone.is_empty(), "its checkpoints but the last");
    // What stays keeps its proof.
    let proof = proof::inclusion(&reads, "c0").await.expect("is covered");
    assert!(proof.check(&options(&url).signer.verifier()).is_ok(), "{proof:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn following_events_misses_none_while_replicas_write() {
    let Some(server) = Postgres::start() else { return };
    let database = server.database();
    let url = server.url(&database);
    let mut writing = Vec::new();
    for n in 0..3 {
        let ledger = open(&url, &format!("w{n}")).await;
        writing.push(tokio::spawn(async move {
            for call in 0..60 {
                let mode = IdempotencyMode::None;
                let name = format!("w{n}-{call}");
                let claimed = claim(&ledger, &name, mode, &name).await;
                let settled = settlement(claimed, mode, Effect::Completed, None);
                ledger.settle(settled).await.expect("settles");
            }
            ledger.close(moment(9)).await.expect("closes");
        }));
    }
    let reads = PostgresReads::open(&url).await.expect("opens");
    let (mut after, mut seen) = (0, std::collections::BTreeSet::new());
    let expected = 3 * (1 + 120 + 2);
    while seen.len() < expected {
        let filter = EventFilter { after: Some(after), limit: 50, ..EventFilter::default() };
        for placed in reads.events(filter).await.expect("reads") {
            after = placed.place;
            assert!(seen.insert((placed.event.writer, placed.event.seq)), "none comes twice");
        }
    }
    for task in writing {
        task.await.expect("writes");
    }
    sound(&reads).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_goes_away_comes_back_and_nothing_is_lost() {
    let Some(mut server) = Postgres::start() else { return };
    let database = server.database();
    let url = server.url(&database);
    let ledger = open(&url, "one").await;
    let mode = IdempotencyMode::Keyed;
    let before = claim(&ledger, "a", mode, "a").await;
    server.stop();
    let refused = ledger.claim(request("b", mode, &["b"], "x")).await;
    assert!(matches!(refused, Err(LedgerError::Unavailable(_))), "{refused:?}");
    assert!(ledger.healthy().await.is_err());
    server.resume();
    let settled = ledger.settle(settlement(before, mode, Effect::Completed, None)).await;
    assert_eq!(settled.expect("settles").state, ClaimState::Succeeded);
    assert!(ledger.healthy().await.is_ok());
    // Its connections are cut in mid-flight, again and again.
    for n in 0..20 {
        let cut = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
                   WHERE application_name = 'toolbooth' AND pid <> pg_backend_pid()";
        let (call, again) = (format!("c{n}"), format!("d{n}"));
        let claiming = ledger.claim(request(&call, mode, &[&call], "x"));
        let cutting = async {
            server.sql(&database, cut);
        };
        let (claimed, ()) = tokio::join!(claiming, cutting);
        match claimed {
            Ok(Claimed::Fresh(claim)) => {
                let settling = settlement(claim, mode, Effect::Completed, None);
                while ledger.settle(std::sync::Arc::clone(&settling)).await.is_err() {}
            }
            // Refused: nothing was dispatched, so the key is free.
            Err(LedgerError::Unavailable(_)) => {
                let claimed = loop {
                    match ledger.claim(request(&again, mode, &[&call], "x")).await {
                        Ok(claimed) => break claimed,
                        Err(LedgerError::Unavailable(_)) => (),
                        Err(other) => panic!("{other:?}"),
                    }
                };
                assert!(matches!(claimed, Claimed::Fresh(_)), "{claimed:?}");
            }
            other => panic!("{other:?}"),
        }
    }
    sound(&PostgresReads::open(&url).await.expect("opens")).await;
}
