//! The SQLite ledger: the suite, several writers on one file, tampering, newer versions.
#![allow(clippy::unwrap_used)]

use rusqlite::Connection;
use toolbooth_audit::conformance::{moment, request, settlement, suite};
use toolbooth_audit::ledger::{Claimed, Ledger};
use toolbooth_audit::{LedgerReads, verify};
use toolbooth_contracts::contract::IdempotencyMode;
use toolbooth_contracts::receipt::ClaimState;
use toolbooth_contracts::{Effect, ErrorCode};
use toolbooth_store::sqlite::{DATABASE, Durability, OpenError, SqliteLedger};

fn open(folder: &std::path::Path, writer: &str) -> SqliteLedger {
    SqliteLedger::open(folder, writer, Durability::Full, &moment(0)).unwrap()
}

#[tokio::test]
async fn sqlite_ledger_conforms() {
    suite(async || {
        let folder = tempfile::tempdir().unwrap().keep();
        open(&folder, "writer")
    })
    .await;
}

#[tokio::test]
async fn two_writers_share_keys_and_a_lost_one_leaves_a_doubt() {
    let folder = tempfile::tempdir().unwrap();
    let first = open(folder.path(), "one");
    let second = open(folder.path(), "two");
    let mode = IdempotencyMode::Keyed;
    let Claimed::Fresh(_claim) = first.claim(request("a", mode, &["k"], "x")).await.unwrap() else {
        panic!("fresh")
    };
    let twin = second.claim(request("b", mode, &["k"], "x")).await.unwrap();
    assert!(matches!(twin, Claimed::InFlight { settled: None, .. }), "{twin:?}");
    assert!(second.sweep(moment(5)).await.unwrap().is_empty(), "the first writer lives");
    drop(first);
    let swept = second.sweep(moment(6)).await.unwrap();
    assert_eq!(swept.len(), 1);
    let receipt = second.receipt("receipt-a").await.unwrap().unwrap();
    assert_eq!(
        (receipt.state, receipt.error_code),
        (ClaimState::InDoubt, Some(ErrorCode::CallInDoubt))
    );
    let again = second.claim(request("c", mode, &["k"], "x")).await.unwrap();
    assert!(matches!(again, Claimed::InDoubt { .. }), "{again:?}");
    assert!(verify::store(&second).await.unwrap().ok);
}

#[tokio::test]
async fn many_callers_share_commits_and_one_key_runs_once() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = std::sync::Arc::new(open(folder.path(), "one"));
    let mut tasks = Vec::new();
    for n in 0..200 {
        let ledger = std::sync::Arc::clone(&ledger);
        tasks.push(tokio::spawn(async move {
            let mode = IdempotencyMode::Keyed;
            match ledger.claim(request(&format!("{n}"), mode, &["same"], "x")).await.unwrap() {
                Claimed::Fresh(claim) => {
                    ledger.settle(settlement(claim, mode, Effect::Completed, None)).await.unwrap();
                    1
                }
                _ => 0,
            }
        }));
    }
    let mut ran = 0;
    for task in tasks {
        ran += task.await.unwrap();
    }
    assert_eq!(ran, 1);
    assert!(verify::store(&*ledger).await.unwrap().ok);
}

#[tokio::test]
async fn tampering_with_the_file_is_found() {
    for (sql, kind) in [
        ("UPDATE receipts SET body = json_set(body, '$.toolId', 'other')", "receipt-changed"),
        ("DELETE FROM receipts", "receipt-missing"),
        ("UPDATE agent_logs SET body = json_set(body, '$.isError', json('true'))", "log-changed"),
        ("DELETE FROM agent_logs", "log-missing"),
        ("UPDATE agent_logs SET is_error = 1", "log-changed"),
        ("UPDATE events SET tool = 'other' WHERE seq = 2", "changed"),
        ("UPDATE receipts SET state = 'failed'", "receipt-changed"),
        (
            "UPDATE receipts SET body = json_set(body, '$.attempt', 2, '$.auditSeq', json('{\"writer\":\"x\",\"seq\":9}'))",
            "receipt-changed",
        ),
        (
            "INSERT INTO receipts SELECT receipt_id || 'x', call_id, tool, state, writer, fence, json_set(body, '$.receiptId', receipt_id || 'x') FROM receipts",
            "receipt-unaccounted",
        ),
        (
            "INSERT INTO events (writer, seq, time, body) SELECT writer, 7, time, json_set(body, '$.seq', 7) FROM events WHERE seq = 2",
            "unaccounted-event",
        ),
        ("UPDATE events SET body = json_set(body, '$.toolName', 'other') WHERE seq = 2", "changed"),
        ("UPDATE events SET body = 'nonsense' WHERE seq = 1", "changed"),
        ("DELETE FROM events WHERE seq = 1", "missing"),
        ("DELETE FROM events WHERE seq = 2", "missing"),
        (
            "INSERT INTO agent_logs SELECT id || 'x', writer, 99, time, tool, agent, turn, phase, epic, call_id, is_error, body FROM agent_logs",
            "log-unaccounted",
        ),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let ledger = open(folder.path(), "one");
        let mode = IdempotencyMode::OnKey;
        let Claimed::Fresh(claim) = ledger.claim(request("a", mode, &["k"], "x")).await.unwrap()
        else {
            panic!("fresh")
        };
        ledger.settle(settlement(claim, mode, Effect::Completed, None)).await.unwrap();
        assert!(verify::store(&ledger).await.unwrap().ok);
        let connection = Connection::open(folder.path().join(DATABASE)).unwrap();
        assert!(connection.execute(sql, []).unwrap() > 0, "{sql}");
        let report = verify::store(&ledger).await.unwrap();
        assert!(report.problems.iter().any(|problem| problem.kind == kind), "{sql}: {report:?}");
    }
}

#[tokio::test]
async fn a_newer_database_is_refused_and_files_are_private() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let ledger = open(&data, "one");
    ledger.close(moment(1)).await.unwrap();
    for (path, mode) in
        [(data.clone(), 0o700), (data.join(DATABASE), 0o600), (data.join("digest.key"), 0o600)]
    {
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, mode, "{path:?}");
    }
    Connection::open(data.join(DATABASE))
        .unwrap()
        .execute_batch("PRAGMA user_version = 99")
        .unwrap();
    let refused = SqliteLedger::open(&data, "two", Durability::Full, &moment(2));
    assert!(matches!(refused, Err(OpenError::Newer { found: 99, .. })), "{refused:?}");
}
