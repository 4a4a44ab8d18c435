//! Tests the PostgreSQL store: the conformance suite, leases, tampering, pruning, and outages of
//! its server.
//!
//! Path: 6, 9. Doc: records.md#stores

use std::collections::BTreeMap;
use std::sync::Arc;

use toolbooth_audit::LedgerReads;
use toolbooth_audit::approvals::ApprovalRequest;
use toolbooth_audit::checkpoint::Due;
use toolbooth_audit::conformance::{added_digest_key, moment, request, settlement, suite};
use toolbooth_audit::history::{
    CountedIn, History, HistoryJudge, HistoryQuestion, HistoryVerdict, WindowName,
};
use toolbooth_audit::ledger::{
    Claim, ClaimRequest, Claimed, Ledger, LedgerError, Prune, PruneKind, Pruned,
};
use toolbooth_audit::note::Signer;
use toolbooth_audit::proof;
use toolbooth_audit::queue::{CallQueue, QueuedCall};
use toolbooth_audit::reads::{EventFilter, LogFilter};
use toolbooth_audit::verify::{self, TrustAnchors};
use toolbooth_contracts::approval::Approvers;
use toolbooth_contracts::contract::IdempotencyMode;
use toolbooth_contracts::event::DecisionSummary;
use toolbooth_contracts::json::JsonText;
use toolbooth_contracts::receipt::ClaimState;
use toolbooth_contracts::{ContentBlock, Effect, ErrorCode, Identity};
use toolbooth_store::postgres::{self, OpenError, PostgresLedger, PostgresOptions, PostgresReads};
use toolbooth_tests::postgres::Postgres;

pub(crate) fn options(url: &str) -> PostgresOptions {
    PostgresOptions {
        url: url.to_owned(),
        digest_key: [5; 32],
        older_digest_keys: Vec::new(),
        signer: Signer::new(&[6; 32]),
        kept: Vec::new(),
        accept_restored: false,
    }
}

pub(crate) async fn open(url: &str, writer: &str) -> PostgresLedger {
    postgres::open(options(url), writer, &moment(0)).await.expect("opens")
}

async fn claim(ledger: &PostgresLedger, call: &str, mode: IdempotencyMode, key: &str) -> Claim {
    match ledger.claim(request(call, mode, &[key], "x")).await {
        Ok(Claimed::Fresh(claim)) => claim,
        other => panic!("{call} should get a fresh claim, got {other:?}"),
    }
}

async fn sound(reads: &PostgresReads) {
    let report = verify::store(reads, TrustAnchors::default()).await.expect("reads");
    assert!(report.ok, "{report:?}");
}

/// Makes the lease of a replica expire.
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
    let duplicate = second.claim(request("b", mode, &["k"], "x")).await.expect("answers");
    assert!(matches!(duplicate, Claimed::InFlight { settled: None, .. }), "{duplicate:?}");
    assert!(second.sweep(moment(1)).await.expect("sweeps").is_empty(), "the first lives");
    lapse(&server, &database, "one");
    assert_eq!(second.sweep(moment(2)).await.expect("sweeps").len(), 1);
    let doubt = second.claim(request("c", mode, &["k"], "x")).await.expect("answers");
    assert!(matches!(doubt, Claimed::InDoubt { .. }), "{doubt:?}");
    sound(&reads).await;
    // The replica was only paused, so its late outcome is accepted.
    let receipt =
        first.settle(settlement(late, mode, Effect::Completed, None)).await.expect("is taken");
    assert_eq!(receipt.state, ClaimState::Succeeded);
    let call = EventFilter { call: Some("a".into()), limit: 9, ..EventFilter::default() };
    let events = reads.events(call).await.expect("reads").found;
    let kinds: Vec<&str> = events.iter().map(|placed| placed.event.body.event.as_str()).collect();
    for kind in ["TOOL_DISPATCHED", "TOOL_CALL_IN_DOUBT", "TOOL_SETTLED_LATE", "TOOL_EXECUTED"] {
        assert!(kinds.contains(&kind), "{kinds:?}");
    }
    let replay = second.claim(request("d", mode, &["k"], "x")).await.expect("answers");
    assert!(matches!(replay, Claimed::Replay { .. }), "{replay:?}");
    // A `safe-retry` tool is dispatched again, and the first outcome is stale then.
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
async fn a_call_that_a_late_outcome_gives_back_may_be_pruned() {
    let Some(server) = Postgres::start() else { return };
    let database = server.database();
    let url = server.url(&database);
    let (first, second) = (open(&url, "one").await, open(&url, "two").await);
    let mode = IdempotencyMode::None;
    let counted = CountedIn { key: "w".into(), amount: None, length_ms: 86_400_000 };
    let asked = ClaimRequest { counted: vec![counted], ..request("a", mode, &[], "x") };
    let Ok(Claimed::Fresh(late)) = first.claim(asked).await else { panic!("fresh") };
    lapse(&server, &database, "one");
    assert_eq!(second.sweep(moment(5)).await.expect("sweeps").len(), 1);
    // Its event has an earlier time than the one of the doubt.
    let gone = settlement(late, mode, Effect::NotStarted, Some(ErrorCode::NotConfigured));
    first.settle(gone).await.expect("is taken");
    let before = moment(1_000);
    let prune = Prune {
        kind: PruneKind::Receipts,
        before: before.text.clone(),
        at: before,
        windows: Vec::new(),
    };
    assert_eq!(second.prune(prune).await.expect("prunes").removed, 1);
    sound(&PostgresReads::open(&url).await.expect("opens")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_without_an_added_digest_key_begins_nothing() {
    let Some(server) = Postgres::start() else { return };
    let url = server.url(&server.database());
    let both =
        PostgresOptions { digest_key: [9; 32], older_digest_keys: vec![[5; 32]], ..options(&url) };
    let newer = async || postgres::open(both, "newer", &moment(2)).await.expect("knows both");
    added_digest_key(&open(&url, "earlier").await, newer).await;
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
    // A key is added. From then on every replica needs both keys.
    let both = || PostgresOptions {
        digest_key: [9; 32],
        older_digest_keys: vec![[5; 32]],
        ..options(&url)
    };
    let added = postgres::open(both(), "newer", &moment(2)).await.expect("knows both");
    assert_eq!(Ledger::digester(&added).older().len(), 1);
    let refused = postgres::open(options(&url), "older", &moment(2)).await;
    assert!(matches!(refused, Err(OpenError::Key { .. })));
    server.sql(
        &database,
        "UPDATE toolbooth_version SET version = 4; ALTER TABLE writers ADD COLUMN pruned text;
         DROP TABLE orders; DROP TABLE budgets; ALTER TABLE queue DROP COLUMN identity",
    );
    let refused = postgres::open(both(), "earlier", &moment(3)).await;
    assert!(
        matches!(&refused, Err(OpenError::Ledger(LedgerError::Damaged(row))) if row.row == "6"),
        "{:?}",
        refused.err()
    );
    server.sql(&database, "UPDATE toolbooth_version SET version = 99");
    let refused = postgres::open(options(&url), "three", &moment(3)).await;
    assert!(matches!(refused, Err(OpenError::Newer { found: 99, .. })));
    let secret = "postgres://stranger:hunter2@127.0.0.1:1/x?nonsense=1";
    let told = postgres::open(options(secret), "four", &moment(3)).await;
    let told = told.err().map(|error| format!("{error:?} {error}")).unwrap_or_default();
    assert!(!told.contains("hunter2"), "{told}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tampering_with_the_tables_is_found() {
    let Some(server) = Postgres::start() else { return };
    for (sql, kind) in [
        ("UPDATE receipts SET body = '{}'", "receipt-changed"),
        ("UPDATE receipts SET zbody = set_byte(zbody, 40, 65)", "receipt-changed"),
        ("UPDATE receipts SET state = 'failed'", "receipt-changed"),
        ("DELETE FROM receipts", "receipt-missing"),
        ("DELETE FROM keys", "key-missing"),
        ("UPDATE keys SET key = 'another'", "key-missing"),
        ("UPDATE keys SET receipt_id = 'unknown'", "key-unaccounted"),
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
        ("UPDATE agent_logs SET time = '2026-02-01'", "log-changed"),
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
            approval: Some(ApprovalRequest {
                approval_id: format!("approval-{call}"),
                rule: "rule".into(),
                rule_digest: "r0".into(),
                approvers: Approvers::One,
                expires_at: moment(1_000).text,
                arguments: None,
                open_after: String::new(),
            }),
            ..request(call, IdempotencyMode::None, &[], "args")
        };
        ledger.claim(asks("asks")).await.expect("asks");
        let call = QueuedCall::new("queued".into(), &Identity::local(), "{}".into(), &moment(2));
        ledger.enqueue(call, 10).await.expect("enqueues");
        ledger.checkpoint(Due::NOW, moment(3)).await.expect("signs").expect("is due");
        let reads = PostgresReads::open(&url).await.expect("opens");
        sound(&reads).await;
        server.sql(&database, sql);
        let known =
            TrustAnchors { digester: Some(ledger.digester().clone()), ..TrustAnchors::default() };
        let report = verify::store(&reads, known).await.expect("reads");
        // No change of the tables makes the tool run.
        let again = ledger.claim(asks("again")).await;
        assert!(!matches!(again, Ok(Claimed::Fresh(_))), "{sql}: {again:?}");
        let taken = ledger.take(Vec::new()).await.expect("asks");
        let forged = sql.contains("queued_by") || sql.contains("SET request");
        assert_eq!(taken.is_none(), forged, "{sql}: {taken:?}");
        assert!(report.problems.iter().any(|problem| problem.kind == kind), "{sql}: {report:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_ends_its_work_when_a_newer_version_migrates_the_database() {
    let Some(server) = Postgres::start() else { return };
    let database = server.database();
    let ledger = open(&server.url(&database), "one").await;
    let mode = IdempotencyMode::Keyed;
    let claimed = claim(&ledger, "a", mode, "k").await;
    server.sql(&database, "UPDATE toolbooth_version SET version = 99");
    let settled = ledger.settle(settlement(claimed, mode, Effect::Completed, None)).await;
    assert!(settled.is_err());
    // The first failure looks like one of the connection; what it reads then tells the cause.
    for call in ["b", "c"] {
        let refused = ledger.claim(request(call, mode, &[call], "x")).await.expect_err("refused");
        assert!(refused.to_string().contains("version 99"), "{refused}");
    }
    let claims = server.sql(&database, "SELECT count(*) FROM receipts");
    assert!(claims.contains('1'), "{claims}");
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
    odd.charges = vec![toolbooth_contracts::charge::Charge::Rate { per_min: 5 }];
    odd.dispatched.agent_id = Some("agent\0".into());
    let claimed = match ledger.claim(odd).await {
        Ok(Claimed::Fresh(claimed)) => claimed,
        other => panic!("fresh, got {other:?}"),
    };
    ledger.settle(settlement(claimed, mode, Effect::Completed, None)).await.expect("settles");
    let nul = Identity { name: "a\0".into(), ..Identity::local() };
    let waiting = QueuedCall::new("c\0".into(), &nul, "{}".into(), &moment(1));
    ledger.enqueue(waiting, 5).await.expect("is taken");
    assert!(ledger.take(Vec::new()).await.expect("answers").is_some());
    sound(&PostgresReads::open(&url).await.expect("opens")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_result_is_stored_once_and_either_record_is_kept_without_the_other() {
    let Some(server) = Postgres::start() else { return };
    for first in [PruneKind::Receipts, PruneKind::Logs] {
        let database = server.database();
        let url = server.url(&database);
        let ledger = open(&url, "one").await;
        let mode = IdempotencyMode::Keyed;
        for (call, keys, bytes) in
            [("plain", &[][..], 200), ("keyed", &["k"], 200), ("large", &["l"], 9_000)]
        {
            let asked = ledger.claim(request(call, mode, keys, "args")).await;
            let Ok(Claimed::Fresh(claim)) = asked else { panic!("fresh, got {asked:?}") };
            let mut settled = settlement(claim, mode, Effect::Completed, None);
            let own = Arc::get_mut(&mut settled).expect("it has no other owner");
            let result = own.result.as_mut().expect("there is one");
            result.content = vec![ContentBlock::text("grüße ".repeat(bytes / 7))];
            let output = serde_json::to_string(result).expect("is JSON");
            let log = Arc::make_mut(&mut own.log);
            log.output = JsonText::parse(output).ok();
            log.receipt_id = Some(own.claim.receipt_id().to_owned());
            own.terminal.receipt_id = log.receipt_id.clone();
            ledger.settle(settled).await.expect("settles");
        }
        let shared = || {
            let sql = "SELECT count(*) FROM agent_logs WHERE shared IS NOT NULL";
            server.sql(&database, sql)
        };
        assert_eq!(shared(), "3", "all lack what their receipts have");
        let reads = PostgresReads::open(&url).await.expect("opens");
        let logs = async || {
            let filter = LogFilter { limit: 10, ..LogFilter::default() };
            reads.agent_logs(filter).await.expect("reads").found
        };
        let before = logs().await;
        assert!(before.iter().all(|log| log.output.is_some()), "{before:?}");
        let one = reads.agent_log(&before[0].id).await.expect("reads");
        assert_eq!(one.as_ref(), before.first());
        sound(&reads).await;
        let prune =
            Prune { kind: first, before: moment(9).text, at: moment(10), windows: Vec::new() };
        ledger.prune(prune).await.expect("prunes");
        match first {
            PruneKind::Receipts => {
                assert_eq!(shared(), "0", "they have it back");
                assert_eq!(logs().await, before);
            }
            _ => {
                let again = ledger.claim(request("again", mode, &["l"], "args")).await;
                let Ok(Claimed::Replay { receipt, .. }) = again else { panic!("{again:?}") };
                assert!(receipt.result.is_some());
            }
        }
        sound(&reads).await;
    }
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
        let prune = Prune { kind, before: moment(9).text, at: moment(10), windows: Vec::new() };
        while ledger.prune(prune.clone()).await.expect("prunes") != Pruned::default() {}
    }
    let reads = PostgresReads::open(&url).await.expect("opens");
    sound(&reads).await;
    let gone = reads.pruned_ranges(None, 100).await.expect("reads");
    assert!(!gone.is_empty(), "its checkpoints but the last");
    // The remaining records keep their proofs.
    let proof = proof::inclusion(&reads, "c0").await.expect("is covered");
    assert!(proof.check(&options(&url).signer.verifier()).is_ok(), "{proof:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_of_the_first_version_is_brought_up_to_date() {
    let Some(server) = Postgres::start() else { return };
    let database = server.database();
    let url = server.url(&database);
    server.sql(&database, include_str!("../fixtures/postgres-version-1.sql"));
    let refused = PostgresReads::open(&url).await;
    assert!(matches!(refused, Err(OpenError::Older { found: 1, .. })), "{refused:?}");
    let ledger = open(&url, "later").await;
    let reads = PostgresReads::open(&url).await.expect("opens");
    sound(&reads).await;
    // All kinds of claims are stored: a tombstone, a large result, an unknown outcome, a claim of a dead
    // replica, and a claim that waits for input.
    let of = |call: &str, mode, key: &str| ledger.claim(request(call, mode, &[key], "x"));
    let pruned = of("t", IdempotencyMode::OnKey, &format!("{:064x}", 1)).await;
    let Ok(Claimed::Replay { receipt, .. }) = pruned else { panic!("{pruned:?}") };
    assert!(receipt.result.is_none() && receipt.pruned_at.is_some(), "{receipt:?}");
    let large = of("r", IdempotencyMode::OnKey, "key-0").await;
    let Ok(Claimed::Replay { receipt, .. }) = large else { panic!("{large:?}") };
    let result = receipt.result.expect("a result");
    assert_eq!(result.content[0].as_text().expect("a text"), "large ".repeat(2_000));
    for key in ["doubt-key", "left", "parked"] {
        let again = of(key, IdempotencyMode::Keyed, key).await;
        assert!(matches!(again, Ok(Claimed::InDoubt { .. })), "{key}: {again:?}");
    }
    let queued = CallQueue::queued(&ledger, "local", "queued").await.expect("reads");
    assert!(queued.is_some_and(|call| call.request == "{}" && call.queued_by.is_some()));
    let filter = EventFilter { call: Some("doubt".into()), limit: 10, ..EventFilter::default() };
    assert_eq!(reads.events(filter).await.expect("reads").found.len(), 2);
    let filter = LogFilter { tool: Some("tool.one".into()), limit: 99, ..LogFilter::default() };
    assert_eq!(reads.agent_logs(filter).await.expect("reads").found.len(), 7);
    sound(&reads).await;
    // Pruning continues from the point at which the earlier release stopped.
    ledger.checkpoint(Due::NOW, moment(201)).await.expect("signs");
    for kind in [PruneKind::Receipts, PruneKind::Logs, PruneKind::Events] {
        let prune = Prune { kind, before: moment(300).text, at: moment(300), windows: Vec::new() };
        while ledger.prune(prune.clone()).await.expect("prunes") != Pruned::default() {}
        sound(&reads).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replicas_prune_at_once_while_they_write() {
    let Some(server) = Postgres::start() else { return };
    let database = server.database();
    let url = server.url(&database);
    let (one, two) = (Arc::new(open(&url, "one").await), Arc::new(open(&url, "two").await));
    let reads = PostgresReads::open(&url).await.expect("opens");
    let mut writing = Vec::new();
    for (n, ledger) in [&one, &two].into_iter().enumerate() {
        let ledger = ledger.clone();
        writing.push(tokio::spawn(async move {
            for round in 0..40 {
                let mode = IdempotencyMode::None;
                let asked = request(&format!("c{n}-{round}"), mode, &[], "x");
                let Ok(Claimed::Fresh(claimed)) = ledger.claim(asked).await else {
                    panic!("a fresh claim")
                };
                let settled = settlement(claimed, mode, Effect::Completed, None);
                ledger.settle(settled).await.expect("settles");
                if round % 10 == 9 {
                    ledger.checkpoint(Due::NOW, moment(3)).await.expect("signs");
                }
                for kind in [PruneKind::Receipts, PruneKind::Logs, PruneKind::Events] {
                    let at = moment(10 + round);
                    let prune = Prune { kind, before: at.text.clone(), at, windows: Vec::new() };
                    ledger.prune(prune).await.expect("prunes");
                }
            }
        }));
    }
    for task in writing {
        task.await.expect("writes");
    }
    sound(&reads).await;
    for ledger in [&one, &two] {
        ledger.checkpoint(Due::NOW, moment(60)).await.expect("signs");
    }
    // A replica that was behind has looked at a block only as far as it had come, and does the rest when it goes on.
    for (kind, ledger) in [
        (PruneKind::Receipts, &one),
        (PruneKind::Logs, &two),
        (PruneKind::Events, &two),
        (PruneKind::Events, &one),
    ] {
        let prune = Prune { kind, before: moment(70).text, at: moment(70), windows: Vec::new() };
        while ledger.prune(prune.clone()).await.expect("prunes") != Pruned::default() {}
    }
    let calls = "SELECT count(*) FROM events WHERE receipt_id IS NOT NULL";
    assert_eq!(server.sql(&database, calls), "0", "all of them are covered");
    assert_eq!(server.sql(&database, "SELECT count(*) FROM receipts"), "0");
    sound(&reads).await;
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
        for placed in reads.events(filter).await.expect("reads").found {
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
    assert!(matches!(refused, Err(LedgerError::Unavailable { .. })), "{refused:?}");
    assert!(ledger.healthy().await.is_err());
    server.resume();
    let settled = ledger.settle(settlement(before, mode, Effect::Completed, None)).await;
    assert_eq!(settled.expect("settles").state, ClaimState::Succeeded);
    assert!(ledger.healthy().await.is_ok());
    // Connections are cut repeatedly while claims are in progress.
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
            Err(LedgerError::Unavailable { .. }) => {
                let claimed = loop {
                    match ledger.claim(request(&again, mode, &[&call], "x")).await {
                        Ok(claimed) => break claimed,
                        Err(LedgerError::Unavailable { .. }) => (),
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replicas_never_exceed_a_rate_together() {
    use toolbooth_audit::ledger::ClaimRequest;
    use toolbooth_contracts::charge::Charge;

    const PER_MIN: u64 = 30;
    let Some(server) = Postgres::start() else { return };
    let url = server.url(&server.database());
    let mut tasks = tokio::task::JoinSet::new();
    let began = std::time::Instant::now();
    for writer in ["one", "two", "three"] {
        let ledger = Arc::new(open(&url, writer).await);
        for n in 0..60 {
            let ledger = Arc::clone(&ledger);
            tasks.spawn(async move {
                let charges = vec![Charge::Rate { per_min: PER_MIN }];
                let call = format!("{writer}-{n}");
                let claim =
                    ClaimRequest { charges, ..request(&call, IdempotencyMode::None, &[], "x") };
                match ledger.claim(claim).await.expect("answers") {
                    Claimed::Fresh(_) => 1,
                    Claimed::RateLimited { .. } => 0,
                    other => panic!("{other:?}"),
                }
            });
        }
    }
    let granted: u64 = tasks.join_all().await.into_iter().sum();
    // A burst has the calls of one minute, and more become free as time passes.
    let freed = began.elapsed().as_secs_f64() * PER_MIN as f64 / 60.0;
    let most = PER_MIN + freed.ceil() as u64;
    assert!((PER_MIN..=most).contains(&granted), "{granted} of at most {most}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replicas_never_exceed_a_budget_together() {
    use toolbooth_audit::ledger::ClaimRequest;
    use toolbooth_contracts::charge::{Charge, budget_of_caller};

    const LIMIT: u64 = 40;
    let Some(server) = Postgres::start() else { return };
    let url = server.url(&server.database());
    let mut replicas = Vec::new();
    for writer in ["one", "two", "three"] {
        replicas.push(Arc::new(open(&url, writer).await));
    }
    let mode = IdempotencyMode::None;
    let mut tasks = tokio::task::JoinSet::new();
    for (of, ledger) in replicas.iter().enumerate() {
        for n in 0..60 {
            let ledger = Arc::clone(ledger);
            tasks.spawn(async move {
                let key = budget_of_caller("a");
                let call = format!("{of}-{n}");
                let claim = ClaimRequest {
                    charges: vec![Charge::Budget { key, units: 1, limit: LIMIT }],
                    ..request(&call, mode, &[], "x")
                };
                match ledger.claim(claim).await.expect("answers") {
                    Claimed::Fresh(claim) => Some((of, claim)),
                    Claimed::BudgetExceeded { .. } => None,
                    other => panic!("{other:?}"),
                }
            });
        }
    }
    let granted: Vec<_> = tasks.join_all().await.into_iter().flatten().collect();
    assert_eq!(granted.len() as u64, LIMIT);
    // The calls of the third replica are lost with it: nothing of them comes back, and nothing more
    // is taken. Those of the others that did not start are given back.
    let mut returned = 0;
    for (of, claim) in granted {
        if of < 2 {
            returned += 1;
            let gone = settlement(claim, mode, Effect::NotStarted, None);
            replicas[of].settle(gone).await.expect("settles");
        }
    }
    drop(replicas.pop());
    let mut again = 0;
    for n in 0..LIMIT {
        let charges = vec![Charge::Budget { key: budget_of_caller("a"), units: 1, limit: LIMIT }];
        let claim = ClaimRequest { charges, ..request(&format!("again-{n}"), mode, &[], "x") };
        let claimed = replicas[0].claim(claim).await.expect("answers");
        again += u64::from(matches!(claimed, Claimed::Fresh(_)));
    }
    assert_eq!(again, returned);
    sound(&PostgresReads::open(&url).await.expect("opens")).await;
}

/// Permits a call while the window `calls` has at most this number of calls.
#[derive(Debug)]
struct AtMost(u64);

impl HistoryJudge for AtMost {
    fn judge(&self, history: &History) -> HistoryVerdict {
        match history.get("calls").is_some_and(|calls| calls.count <= self.0) {
            true => HistoryVerdict::Permit {
                decision: DecisionSummary { rule: "at-most".into(), reason: "permitted".into() },
                approval: None,
                shadow: None,
            },
            false => HistoryVerdict::Deny,
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replicas_never_exceed_a_window_together() {
    const LIMIT: usize = 3;
    const LENGTH_MS: i64 = 60;
    const CALLS: usize = 150;
    let Some(server) = Postgres::start() else { return };
    let url = server.url(&server.database());
    let mut tasks = tokio::task::JoinSet::new();
    for writer in ["one", "two", "three"] {
        let ledger = Arc::new(open(&url, writer).await);
        for task in 0..4 {
            let ledger = Arc::clone(&ledger);
            tasks.spawn(async move {
                let mut times = Vec::new();
                for n in 0..CALLS {
                    let call = format!("{writer}-{task}-{n}");
                    let name = WindowName { key: "w".into(), length_ms: LENGTH_MS };
                    let question = HistoryQuestion {
                        windows: BTreeMap::from([("calls".to_owned(), name)]),
                        judge: Arc::new(AtMost(LIMIT as u64)),
                    };
                    let counted = CountedIn { key: "w".into(), amount: None, length_ms: LENGTH_MS };
                    let claim = ClaimRequest {
                        counted: vec![counted],
                        history: Some(question),
                        ..request(&call, IdempotencyMode::None, &[], "x")
                    };
                    match ledger.claim(claim).await.expect("answers") {
                        Claimed::Fresh(claim) => {
                            let receipt = ledger.receipt(claim.receipt_id()).await.expect("reads");
                            times.extend(receipt.expect("is stored").history);
                        }
                        Claimed::Denied => (),
                        other => panic!("{other:?}"),
                    }
                }
                times
            });
        }
    }
    let counted: Vec<_> = tasks.join_all().await.into_iter().flatten().collect();
    let mut times: Vec<i64> = counted.iter().map(|entry| entry.at_ms).collect();
    times.sort_unstable();
    assert!(times.len() > 3 * LIMIT, "{times:?}");
    // No window of this length, wherever it ends, has more calls.
    for at in &times {
        let within = times.iter().filter(|other| **other <= *at && **other > *at - LENGTH_MS);
        assert!(within.count() <= LIMIT, "up to {at}: {times:?}");
    }
    sound(&PostgresReads::open(&url).await.expect("opens")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_rights_that_a_user_lacks_are_named_and_open_nothing() {
    let Some(server) = Postgres::start() else { return };
    let database = server.database();
    let user = format!("reader_{database}");
    let url = server.url(&database).replace("//toolbooth@", &format!("//{user}@"));
    server.sql(&database, &format!("CREATE ROLE {user} LOGIN"));
    server.sql(&database, "REVOKE CREATE ON SCHEMA public FROM PUBLIC");
    let missing = async || postgres::missing_rights(&url).await.expect("answers");
    assert_eq!(missing().await, ["CREATE on the schema"], "there is no table yet");
    drop(open(&server.url(&database), "one").await);
    server.sql(&database, &format!("GRANT SELECT ON ALL TABLES IN SCHEMA public TO {user}"));
    let tables = "SELECT string_agg(tablename, ', ' ORDER BY tablename) FROM pg_tables
                  WHERE schemaname = 'public'";
    let tables = format!("INSERT, UPDATE, DELETE on {}", server.sql(&database, tables));
    let lacking =
        ["CREATE on the schema", &tables, "USAGE on queue_place_seq, writers_ordinal_seq"];
    assert_eq!(missing().await, lacking);
    let denied = postgres::open(options(&url), "two", &moment(0)).await;
    assert!(matches!(denied, Err(OpenError::Denied(_))), "{denied:?}");
    for grant in [
        "CREATE ON SCHEMA public",
        "SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public",
        "USAGE ON ALL SEQUENCES IN SCHEMA public",
    ] {
        server.sql(&database, &format!("GRANT {grant} TO {user}"));
    }
    assert!(missing().await.is_empty());
    drop(open(&url, "three").await);
}
