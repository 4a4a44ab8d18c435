//! Tests the SQLite ledger: the conformance suite, several writers on one file, tampering,
//! migrations.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)]

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use rusqlite::Connection;
use toolbooth_audit::approvals::{
    ApprovalFilter, ApprovalName, ApprovalRequest, ApprovalVerdict, Decided,
};
use toolbooth_audit::checkpoint::Due;
use toolbooth_audit::conformance::{added_digest_key, moment, request, settlement, suite};
use toolbooth_audit::ledger::{ClaimRequest, Claimed, Ledger, Prune, PruneKind, Pruned};
use toolbooth_audit::orders::{OrderChange, OrderRequest, Ordered};
use toolbooth_audit::queue::{CallQueue, QueuedCall};
use toolbooth_audit::reads::{EventFilter, Include, LogFilter, PlacedEvent, ReceiptFilter};
use toolbooth_audit::verify::TrustAnchors;
use toolbooth_audit::{LedgerReads, verify};
use toolbooth_contracts::approval::Approvers;
use toolbooth_contracts::contract::IdempotencyMode;
use toolbooth_contracts::event::{AuditEventKind, EventBody};
use toolbooth_contracts::history::CountedIn;
use toolbooth_contracts::json::JsonText;
use toolbooth_contracts::order::PauseTarget;
use toolbooth_contracts::receipt::ClaimState;
use toolbooth_contracts::{ContentBlock, Effect, ErrorCode, Identity};
use toolbooth_store::sqlite::{
    self, DATABASE, OpenError, SqliteLedger, SqliteOptions, SqliteReads, StartCheck, StoreFolder,
};

fn open(folder: &std::path::Path, writer: &str) -> SqliteLedger {
    sqlite::open(folder, writer, SqliteOptions::default(), &moment(0)).unwrap()
}

#[tokio::test]
async fn sqlite_ledger_conforms() {
    let place = tempfile::tempdir().unwrap();
    let count = std::cell::Cell::new(0);
    suite(async || {
        count.set(count.get() + 1);
        open(&place.path().join(count.get().to_string()), "writer")
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
    let duplicate = second.claim(request("b", mode, &["k"], "x")).await.unwrap();
    assert!(matches!(duplicate, Claimed::InFlight { settled: None, .. }), "{duplicate:?}");
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
    assert!(verify::store(&second, TrustAnchors::default()).await.unwrap().ok);
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
    assert!(verify::store(&*ledger, TrustAnchors::default()).await.unwrap().ok);
}

/// Returns a body that is stored without encoding.
fn plain(text: &str) -> Vec<u8> {
    [&[0], text.as_bytes()].concat()
}

/// Changes the texts of a table's bodies.
fn rewrite(
    connection: &Connection,
    table: &str,
    texts: &[(i64, String)],
    change: impl Fn(&str) -> String,
) {
    for (place, text) in texts {
        let changed = change(text);
        assert_ne!(changed, *text, "{table}");
        let sql = format!("UPDATE {table} SET body = ?2 WHERE place = ?1 OR ?1 < 0");
        assert!(connection.execute(&sql, (place, plain(&changed))).unwrap() > 0);
    }
}

#[tokio::test]
async fn tampering_with_the_file_is_found() {
    const WRITER: i64 = 1 << 40;
    type Tamper = fn(&Connection, &[(i64, String)], &str, &str);
    let sql = |connection: &Connection, sql: &str| {
        assert!(connection.execute(sql, []).unwrap() > 0, "{sql}");
    };
    let tampers: &[(&str, Tamper, &str)] = &[
        (
            "a receipt's text",
            |c, _, receipt, _| {
                let text = receipt.replace("tool.one", "tool.two");
                assert_eq!(
                    c.execute(
                        "UPDATE receipts SET body = ?1 WHERE id = 'receipt-a'",
                        [plain(&text)]
                    )
                    .unwrap(),
                    1
                );
            },
            "receipt-changed",
        ),
        (
            "a log's text",
            |c, _, _, log| {
                let text = log.replace("\"isError\":false", "\"isError\":true");
                assert_eq!(
                    c.execute(
                        "UPDATE agent_logs SET body = ?1 WHERE place & 255 = 2",
                        [plain(&text)]
                    )
                    .unwrap(),
                    1
                );
            },
            "log-changed",
        ),
        (
            "an event's text",
            |c, events, _, _| {
                rewrite(c, "events", &events[2..3], |text| text.replace("tool.one", "tool.two"));
            },
            "changed",
        ),
        (
            "nonsense for an event",
            |c, events, _, _| {
                rewrite(c, "events", &events[1..2], |_| "nonsense".to_owned());
            },
            "changed",
        ),
        (
            "an event beyond the end",
            |c, events, _, _| {
                let text = events[2].1.replace("\"seq\":2", "\"seq\":7");
                c.execute("INSERT INTO events VALUES (?1, ?2)", (WRITER | 7, plain(&text)))
                    .unwrap();
            },
            "unaccounted-event",
        ),
        (
            "a log of a stranger",
            |c, events, _, _| {
                c.execute("INSERT INTO events VALUES (?1, ?2)", (9i64 << 40, plain(&events[0].1)))
                    .unwrap();
            },
            "head-differs",
        ),
        (
            "a receipt of no call",
            |c, _, receipt, _| {
                let text = receipt.replace("receipt-a", "receipt-x");
                c.execute("INSERT INTO receipts VALUES ('receipt-x', 1, ?1)", [plain(&text)])
                    .unwrap();
            },
            "receipt-unaccounted",
        ),
        (
            "a log of no call",
            |c, _, _, log| {
                c.execute("INSERT INTO agent_logs VALUES (?1, ?2)", (WRITER | 99, plain(log)))
                    .unwrap();
            },
            "log-unaccounted",
        ),
        (
            "a log beside another event",
            |c, _, _, log| {
                c.execute("INSERT INTO agent_logs VALUES (?1, ?2)", (WRITER | 1, plain(log)))
                    .unwrap();
            },
            "log-unaccounted",
        ),
        (
            "a receipt as it was before",
            |c, _, _, _| {
                let before: Vec<u8> =
                    c.query_row("SELECT body FROM earlier", [], |row| row.get(0)).unwrap();
                c.execute_batch("DELETE FROM receipts WHERE id = 'receipt-a'").unwrap();
                let sql = "INSERT INTO open_receipts VALUES ('receipt-a', 'tool.one', 'in_flight', 'one', 1, ?1)";
                c.execute(sql, [before]).unwrap();
            },
            "receipt-changed",
        ),
        (
            "a settled receipt that runs again",
            |c, _, receipt, _| {
                c.execute_batch("DELETE FROM receipts").unwrap();
                let sql = "INSERT INTO open_receipts VALUES ('receipt-a', 'tool.one', 'in_flight', 'one', 1, ?1)";
                c.execute(sql, [plain(receipt)]).unwrap();
            },
            "receipt-changed",
        ),
    ];
    let statements = [
        ("DELETE FROM receipts", "receipt-missing"),
        ("DELETE FROM keys", "key-missing"),
        ("UPDATE keys SET key = 'another' WHERE key = 'k'", "key-missing"),
        ("UPDATE keys SET receipt = 'receipt-b' WHERE receipt = 'receipt-a'", "key-unaccounted"),
        ("UPDATE keys SET receipt = 'unknown'", "key-unaccounted"),
        ("INSERT INTO keys VALUES ('another', 'receipt-a')", "key-unaccounted"),
        ("INSERT INTO keys VALUES ('another', 'unknown')", "key-unaccounted"),
        ("UPDATE receipts SET fence = 9", "receipt-changed"),
        ("UPDATE receipts SET id = 'receipt-x' WHERE id = 'receipt-a'", "receipt-missing"),
        ("DELETE FROM agent_logs", "log-missing"),
        ("DELETE FROM milestones WHERE place & 255 = 3", "changed"),
        ("DELETE FROM milestones", "changed"),
        ("INSERT INTO milestones VALUES (1 << 40 | 1)", "changed"),
        ("INSERT INTO gone VALUES (1 << 40 | 1, 1, zeroblob(32))", "missing"),
        ("INSERT INTO gone VALUES (7 << 40, 1, zeroblob(32))", "head-differs"),
        ("DELETE FROM events WHERE place & 255 = 1", "missing"),
        ("DELETE FROM events WHERE place & 255 = 2", "missing"),
        ("UPDATE writers SET size = 3", "unaccounted-event"),
        ("UPDATE writers SET writer = 'other'", "changed"),
    ];
    for index in 0..tampers.len() + statements.len() {
        let folder = tempfile::tempdir().unwrap();
        let ledger = open(folder.path(), "one");
        let mode = IdempotencyMode::OnKey;
        let Claimed::Fresh(claim) = ledger.claim(request("a", mode, &["k"], "x")).await.unwrap()
        else {
            panic!("fresh")
        };
        let connection = Connection::open(folder.path().join(DATABASE)).unwrap();
        connection
            .execute_batch("CREATE TEMP TABLE earlier AS SELECT body FROM open_receipts")
            .unwrap();
        ledger.settle(settlement(claim, mode, Effect::Completed, None)).await.unwrap();
        ledger.checkpoint(Due::NOW, moment(3)).await.unwrap().unwrap();
        let claimed = ledger.claim(request("b", mode, &["kb"], "x")).await.unwrap();
        let Claimed::Fresh(claim) = claimed else { panic!("fresh") };
        ledger.settle(settlement(claim, mode, Effect::Completed, None)).await.unwrap();
        assert!(verify::store(&ledger, TrustAnchors::default()).await.unwrap().ok);
        let page = ledger.log_page(None, 100, Include::Records).await.unwrap();
        let events: Vec<(i64, String)> = page
            .iter()
            .map(|entry| (WRITER | entry.seq.cast_signed(), entry.bytes.clone()))
            .collect();
        let receipt = page[2].receipt.as_ref().unwrap().bytes.clone();
        let log = page[2].log.as_ref().unwrap().bytes.clone();
        let (of, kind) = match tampers.get(index) {
            Some((of, tamper, kind)) => {
                tamper(&connection, &events, &receipt, &log);
                (*of, *kind)
            }
            None => {
                let (of, kind) = statements[index - tampers.len()];
                sql(&connection, of);
                (of, kind)
            }
        };
        let report = verify::store(&ledger, TrustAnchors::default()).await.unwrap();
        assert!(report.problems.iter().any(|problem| problem.kind == kind), "{of}: {report:?}");
    }
}

fn needed(call: &str) -> ApprovalRequest {
    ApprovalRequest {
        approval_id: format!("approval-{call}"),
        rule: "rule".into(),
        rule_digest: "r0".into(),
        approvers: Approvers::One,
        expires_at: moment(1_000).text,
        arguments: None,
        open_after: String::new(),
    }
}

#[tokio::test]
async fn an_approval_that_is_put_back_to_an_earlier_state_is_found() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = open(folder.path(), "one");
    let ask = || async {
        let call = request("a", IdempotencyMode::None, &[], "args");
        ledger.claim(ClaimRequest { approval: Some(needed("a")), ..call }).await.unwrap()
    };
    assert!(matches!(ask().await, Claimed::ApprovalRequired { .. }));
    let connection = Connection::open(folder.path().join(DATABASE)).unwrap();
    let row = || -> (String, String) {
        let sql = "SELECT state, body FROM approvals";
        connection.query_row(sql, [], |row| Ok((row.get(0)?, row.get(1)?))).unwrap()
    };
    let pending = row();
    let filter = ApprovalFilter { limit: 1, ..ApprovalFilter::default() };
    let stored = ledger.approvals(filter).await.unwrap().remove(0).accounted().unwrap();
    let verdict = ApprovalVerdict {
        approval_id: stored.approval_id.clone(),
        name: ApprovalName::of(&stored),
        grants: true,
        by: "operator".into(),
        is_operator: true,
        reason: None,
        expires_at: moment(1_000).text,
        at: moment(2),
    };
    assert!(matches!(ledger.decide_approval(verdict).await, Ok(Decided::Done(_))));
    let granted = row();
    assert!(matches!(ask().await, Claimed::Fresh(_)));
    for (state, body) in [pending, granted] {
        let put = "UPDATE approvals SET state = ?1, body = ?2";
        assert_eq!(connection.execute(put, [state, body]).unwrap(), 1);
        let report = verify::store(&ledger, TrustAnchors::default()).await.unwrap();
        let kinds: Vec<&str> = report.problems.iter().map(|one| one.kind.as_str()).collect();
        assert_eq!(kinds, ["approval-changed"], "{report:?}");
    }
}

#[tokio::test]
async fn pruning_excuses_only_approvals_that_have_expired() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = open(folder.path(), "one");
    for (call, expires) in [("old", 10), ("new", 1_000)] {
        let approval = ApprovalRequest { expires_at: moment(expires).text, ..needed(call) };
        let asking = request(call, IdempotencyMode::None, &[], call);
        let asked = ledger.claim(ClaimRequest { approval: Some(approval), ..asking }).await;
        assert!(matches!(asked, Ok(Claimed::ApprovalRequired { .. })), "{asked:?}");
    }
    let prune = Prune {
        kind: PruneKind::Approvals,
        before: moment(500).text,
        at: moment(600),
        windows: Vec::new(),
    };
    assert_eq!(ledger.prune(prune).await.unwrap().removed, 1);
    assert!(verify::store(&ledger, TrustAnchors::default()).await.unwrap().ok);
    let connection = Connection::open(folder.path().join(DATABASE)).unwrap();
    assert_eq!(connection.execute("DELETE FROM approvals", []).unwrap(), 1);
    let report = verify::store(&ledger, TrustAnchors::default()).await.unwrap();
    let kinds: Vec<&str> = report.problems.iter().map(|one| one.kind.as_str()).collect();
    assert_eq!(kinds, ["approval-missing"], "{report:?}");
}

#[tokio::test]
async fn a_caller_has_a_limited_number_of_undecided_requests() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = open(folder.path(), "one");
    let ask = async |call: &str, caller: &str, open_after: &str| {
        let approval = ApprovalRequest { open_after: open_after.to_owned(), ..needed(call) };
        let asking = ClaimRequest {
            approval: Some(approval),
            caller: caller.to_owned(),
            ..request(call, IdempotencyMode::None, &[], call)
        };
        ledger.claim(asking).await.unwrap()
    };
    assert!(matches!(ask("a", "local", "").await, Claimed::ApprovalRequired { .. }));
    let connection = Connection::open(folder.path().join(DATABASE)).unwrap();
    let many = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1000)
        INSERT INTO approvals SELECT 'b' || i, tool, caller, 'x', contract_digest, state, body
        FROM approvals, n";
    assert_eq!(connection.execute(many, []).unwrap(), 1_000);
    assert!(matches!(ask("c", "local", "").await, Claimed::RateLimited { .. }));
    assert!(matches!(ask("a", "local", "").await, Claimed::ApprovalRequired { .. }), "it is known");
    // Those of others, those that are decided, and those that have expired do not count.
    assert!(matches!(ask("d", "key:x", "").await, Claimed::ApprovalRequired { .. }));
    assert!(matches!(ask("e", "local", "c").await, Claimed::ApprovalRequired { .. }));
    connection
        .execute("UPDATE approvals SET state = 'rejected' WHERE approval_id > 'b'", [])
        .unwrap();
    assert!(matches!(ask("f", "local", "").await, Claimed::ApprovalRequired { .. }));
}

#[tokio::test]
async fn an_approval_is_believed_by_its_event_and_not_by_its_row() {
    let granted =
        "UPDATE approvals SET state = 'granted', body = json_set(body, '$.state', 'granted')";
    for (sql, kind) in [
        (granted, "approval-changed"),
        ("UPDATE approvals SET state = 'granted'", "approval-changed"),
        ("UPDATE approvals SET tool = 'other'", "approval-changed"),
        ("UPDATE approvals SET caller = 'other'", "approval-changed"),
        ("UPDATE approvals SET args_digest = 'other'", "approval-changed"),
        ("UPDATE approvals SET contract_digest = 'other'", "approval-changed"),
        ("UPDATE approvals SET body = json_remove(body, '$.auditSeq')", "approval-changed"),
        ("UPDATE approvals SET body = 'nonsense'", "approval-changed"),
        ("UPDATE approvals SET body = json_remove(body, '$.auditSeq', '$.revision')", "approval-changed"),
        (
            "INSERT INTO approvals SELECT 'x', tool, caller, args_digest, contract_digest, state,
                 json_set(json_remove(body, '$.auditSeq', '$.revision'), '$.approvalId', 'x',
                          '$.approvers', 'self') FROM approvals",
            "approval-changed",
        ),
        ("UPDATE approvals SET approval_id = 'other'", "approval-missing"),
        ("DELETE FROM approvals", "approval-missing"),
        (
            "INSERT INTO approvals SELECT 'x', tool, caller, args_digest, contract_digest, 'granted',
                 json_set(body, '$.state', 'granted', '$.approvalId', 'x') FROM approvals",
            "approval-changed",
        ),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let ledger = open(folder.path(), "one");
        let asks = |call: &str| ClaimRequest {
            approval: Some(needed(call)),
            ..request(call, IdempotencyMode::None, &[], "args")
        };
        let asked = ledger.claim(asks("a")).await.unwrap();
        assert!(matches!(asked, Claimed::ApprovalRequired { .. }), "{asked:?}");
        assert!(verify::store(&ledger, TrustAnchors::default()).await.unwrap().ok);
        let connection = Connection::open(folder.path().join(DATABASE)).unwrap();
        assert_eq!(connection.execute(sql, []).unwrap(), 1, "{sql}");
        let report = verify::store(&ledger, TrustAnchors::default()).await.unwrap();
        assert!(report.problems.iter().any(|problem| problem.kind == kind), "{sql}: {report:?}");
        // The tool does not run, regardless of the change to the row.
        let again = ledger.claim(asks("b")).await;
        assert!(!matches!(again, Ok(Claimed::Fresh(_))), "{sql}: {again:?}");
    }
}

#[tokio::test]
async fn a_queued_call_and_its_result_are_believed_by_their_events() {
    let call = |id: &str, request: &str| {
        QueuedCall::new(id.into(), &Identity::local(), request.into(), &moment(1))
    };
    for (sql, runs, is_served) in [
        ("UPDATE queue SET result = '{\"forged\":1}' WHERE call_id = 'done'", true, false),
        ("UPDATE queue SET finished_by = NULL WHERE call_id = 'done'", true, false),
        ("UPDATE queue SET finished_by = queued_by WHERE call_id = 'done'", true, false),
        ("UPDATE queue SET request = '{\"tool\":\"other\"}' WHERE call_id = 'waits'", false, true),
        ("UPDATE queue SET queued_by = NULL WHERE call_id = 'waits'", false, true),
        ("UPDATE queue SET caller = 'other' WHERE call_id = 'waits'", false, true),
        ("UPDATE queue SET call_id = 'other' WHERE call_id = 'waits'", false, true),
        (
            "UPDATE queue SET queued_by = (SELECT queued_by FROM queue WHERE call_id = 'done')
             WHERE call_id = 'waits'",
            false,
            true,
        ),
        (
            "INSERT INTO queue (place, caller, call_id, state, request, enqueued)
             VALUES (-1, 'local', 'forged', 'queued', '{}', '')",
            false,
            true,
        ),
        // Data that no event accounts for has a MAC.
        ("UPDATE queue SET deliveries = 4 WHERE call_id = 'waits'", false, true),
        ("UPDATE queue SET cancel = 1 WHERE call_id = 'waits'", false, true),
        ("UPDATE queue SET mac = NULL WHERE call_id = 'waits'", false, true),
        (
            "UPDATE queue SET mac = (SELECT mac FROM queue WHERE call_id = 'done')
             WHERE call_id = 'waits'",
            false,
            true,
        ),
        ("UPDATE queue SET progress = '{\"message\":\"x\"}' WHERE call_id = 'done'", true, false),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let ledger = open(folder.path(), "one");
        ledger.enqueue(call("done", "{}"), 10).await.unwrap();
        ledger.take(Vec::new()).await.unwrap().unwrap();
        ledger.finish("local", "done", "{}".into(), moment(2)).await.unwrap();
        ledger.enqueue(call("waits", "{}"), 10).await.unwrap();
        let known = || TrustAnchors {
            digester: Some(ledger.digester().clone()),
            ..TrustAnchors::default()
        };
        let report = verify::store(&ledger, known()).await.unwrap();
        assert!(report.ok, "{report:?}");
        let connection = Connection::open(folder.path().join(DATABASE)).unwrap();
        assert_eq!(connection.execute(sql, []).unwrap(), 1, "{sql}");
        let report = verify::store(&ledger, known()).await.unwrap();
        assert!(report.problems.iter().any(|one| one.kind == "call-changed"), "{sql}: {report:?}");
        // A forged call is not run, and a forged result is not returned.
        let served = CallQueue::queued(&ledger, "local", "done").await;
        assert_eq!(served.is_ok(), is_served, "{sql}: {served:?}");
        let taken = ledger.take(Vec::new()).await.unwrap();
        assert_eq!(taken.is_some(), runs, "{sql}: {taken:?}");
    }
}

#[tokio::test]
async fn calls_of_live_workers_hide_no_call_of_a_lost_one() {
    let folder = tempfile::tempdir().unwrap();
    let (first, live, lost) =
        (open(folder.path(), "one"), open(folder.path(), "two"), open(folder.path(), "three"));
    let call = |id: &str, at: i64| {
        QueuedCall::new(id.into(), &Identity::local(), "{}".into(), &moment(at))
    };
    live.enqueue(call("waits", 1), 10).await.unwrap();
    live.take(Vec::new()).await.unwrap().unwrap();
    // Many more like it, which are older than the call of the lost worker.
    Connection::open(folder.path().join(DATABASE))
        .unwrap()
        .execute_batch(
            "WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < 3000)
             INSERT INTO queue (caller, call_id, state, worker, request, enqueued)
             SELECT caller, call_id || n, state, worker, request, enqueued FROM queue, n;",
        )
        .unwrap();
    lost.enqueue(call("left", 2), 10).await.unwrap();
    assert_eq!(lost.take(Vec::new()).await.unwrap().unwrap().call_id, "left");
    assert_eq!(first.take(Vec::new()).await.unwrap(), None, "all workers are alive");
    drop(lost);
    let taken = first.take(Vec::new()).await.unwrap().unwrap();
    assert_eq!((taken.call_id.as_str(), taken.deliveries), ("left", 2));
}

/// A trigger can undo what is written, a changed index can hide rows, and a page of an index is no row.
#[tokio::test]
async fn a_changed_structure_is_found() {
    let folder = filled().await;
    let file = folder.path().join(DATABASE);
    let whole = std::fs::read(&file).unwrap();
    let kinds = async || -> BTreeSet<String> {
        let reads = SqliteReads::open(&file).unwrap();
        let report = verify::store(&reads, TrustAnchors::default()).await.unwrap();
        report.problems.into_iter().map(|problem| problem.kind).collect()
    };
    assert_eq!(kinds().await, BTreeSet::new());
    for sql in [
        "CREATE TRIGGER t AFTER INSERT ON rates BEGIN UPDATE rates SET tat_ms = 0; END",
        "CREATE TRIGGER t AFTER INSERT ON rates BEGIN UPDATE rates SET tat_ms = 0; END;
         PRAGMA writable_schema = ON;
         UPDATE sqlite_schema SET name = 'sqlite_t', sql = replace(sql, 'TRIGGER t', 'TRIGGER sqlite_t')
             WHERE name = 't'",
        "CREATE TABLE other (a)",
        "CREATE VIEW other AS SELECT 1",
        "CREATE INDEX other ON rates (tat_ms)",
        "ALTER TABLE rates ADD COLUMN other TEXT",
        "DROP TABLE rates",
        "DROP INDEX approvals_call",
        "DROP INDEX queue_open;
         CREATE INDEX queue_open ON queue (state, enqueued, place) WHERE state = 'zzz'",
        // An index that lacks its rows.
        "PRAGMA writable_schema = ON;
         UPDATE sqlite_schema SET rootpage = (SELECT rootpage FROM sqlite_schema WHERE name = 'budgets_day')
             WHERE name = 'keys_of_receipt'",
    ] {
        std::fs::write(&file, &whole).unwrap();
        Connection::open(&file).unwrap().execute_batch(sql).unwrap();
        assert!(kinds().await.contains("structure-differs"), "{sql}");
    }
}

/// Writes a log with a call before each of two checkpoints, and one after them.
async fn checkpointed(ledger: &SqliteLedger) {
    for n in 0..3 {
        let mode = IdempotencyMode::None;
        let claimed = ledger.claim(request(&format!("c{n}"), mode, &[], "x")).await.unwrap();
        let Claimed::Fresh(claim) = claimed else { panic!("fresh") };
        ledger.settle(settlement(claim, mode, Effect::Completed, None)).await.unwrap();
        if n < 2 {
            ledger.checkpoint(Due::NOW, moment(3)).await.unwrap().unwrap();
        }
    }
}

#[tokio::test]
async fn a_result_is_stored_once_and_either_record_is_kept_without_the_other() {
    for first in [PruneKind::Receipts, PruneKind::Logs] {
        let folder = tempfile::tempdir().unwrap();
        let ledger = open(folder.path(), "one");
        for (call, keys) in [("plain", &[][..]), ("keyed", &["k"][..])] {
            let request = request(call, IdempotencyMode::Keyed, keys, "args");
            let Claimed::Fresh(claim) = ledger.claim(request).await.unwrap() else { panic!() };
            let mut settled = settlement(claim, IdempotencyMode::Keyed, Effect::Completed, None);
            let own = Arc::get_mut(&mut settled).unwrap();
            let text = format!("what the agent was given: {}", "grüße ".repeat(20));
            own.result.as_mut().unwrap().content = vec![ContentBlock::text(text)];
            let output = serde_json::to_string(own.result.as_ref().unwrap()).unwrap();
            Arc::make_mut(&mut own.log).output = JsonText::parse(output).ok();
            ledger.settle(settled).await.unwrap();
        }
        let shared = |of: &str| -> i64 {
            let connection = Connection::open(folder.path().join(DATABASE)).unwrap();
            let sql = format!("SELECT count(*) FROM agent_logs WHERE hex(substr(body, 1, 1)) {of}");
            connection.query_row(&sql, [], |row| row.get(0)).unwrap()
        };
        assert_eq!(shared("= '03'"), 2, "both lack what their receipts have");
        let filter = || LogFilter { limit: 10, ..LogFilter::default() };
        let before = ledger.agent_logs(filter()).await.unwrap().found;
        assert!(before.iter().all(|log| log.output.is_some()), "{before:?}");
        let sound = verify::store(&ledger, TrustAnchors::default()).await.unwrap();
        assert!(sound.ok, "{sound:?}");
        let prune =
            Prune { kind: first, before: moment(9).text, at: moment(10), windows: Vec::new() };
        ledger.prune(prune).await.unwrap();
        match first {
            PruneKind::Receipts => {
                assert_eq!(shared("<> '03'"), 2, "they have it back");
                assert_eq!(ledger.agent_logs(filter()).await.unwrap().found, before);
            }
            _ => {
                let again = request("again", IdempotencyMode::Keyed, &["k"], "args");
                let again = ledger.claim(again).await.unwrap();
                let Claimed::Replay { receipt, .. } = again else { panic!("{again:?}") };
                assert!(receipt.result.is_some());
            }
        }
        let sound = verify::store(&ledger, TrustAnchors::default()).await.unwrap();
        assert!(sound.ok, "{sound:?}");
    }
}

#[tokio::test]
async fn a_database_that_was_put_back_is_refused_until_an_operator_accepts_it() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let ledger = open(&data, "one");
    ledger.close(moment(1)).await.unwrap();
    drop(ledger);
    let (file, copy) = (data.join(DATABASE), folder.path().join("copy"));
    std::fs::copy(&file, &copy).unwrap();
    let ledger = open(&data, "two");
    checkpointed(&ledger).await;
    let note = ledger.checkpoint(Due::NOW, moment(4)).await.unwrap().unwrap();
    let key = ledger.signer().verifier();
    ledger.close(moment(5)).await.unwrap();
    drop(ledger);
    for name in [DATABASE, "toolbooth.db-wal", "toolbooth.db-shm"] {
        let _ = std::fs::remove_file(data.join(name));
    }
    std::fs::copy(&copy, &file).unwrap();
    let refused = sqlite::open(&data, "three", SqliteOptions::default(), &moment(6));
    assert!(
        matches!(&refused, Err(OpenError::RolledBack { writer, found: 0, .. }) if writer == "two"),
        "{refused:?}"
    );
    // The start of a backup of the restored database is refused too.
    let backup = folder.path().join("backup");
    sqlite::backup(&data, &backup).unwrap();
    let refused = sqlite::open(&backup, "three", SqliteOptions::default(), &moment(6));
    assert!(matches!(refused, Err(OpenError::RolledBack { .. })), "{refused:?}");
    let known = || TrustAnchors {
        keys: vec![key.clone()],
        notes: vec![note.clone()],
        ..TrustAnchors::default()
    };
    let reads = SqliteReads::open(&file).unwrap();
    let report = verify::store(&reads, known()).await.unwrap();
    assert_eq!(report.problems[0].kind, "missing", "{report:?}");
    let options = SqliteOptions { accept_restored: true, ..SqliteOptions::default() };
    let ledger = sqlite::open(&data, "three", options, &moment(6)).unwrap();
    ledger.close(moment(7)).await.unwrap();
    let report = verify::store(&reads, known()).await.unwrap();
    assert!(report.ok, "{report:?}");
    open(&data, "four").close(moment(8)).await.unwrap();
    drop((ledger, reads));
    for name in [DATABASE, "toolbooth.db-wal", "toolbooth.db-shm"] {
        let _ = std::fs::remove_file(data.join(name));
    }
    let gone = sqlite::open(&data, "five", SqliteOptions::default(), &moment(9));
    assert!(matches!(gone, Err(OpenError::RolledBack { found: 0, .. })), "{gone:?}");
    assert!(!file.exists(), "a database that is gone is not made anew silently");
    std::fs::write(&file, "this is no database, whatever it is called").unwrap();
    let damaged = sqlite::open(&data, "six", SqliteOptions::default(), &moment(9));
    assert!(matches!(damaged, Err(OpenError::Database { .. })), "{damaged:?}");
    assert!(std::fs::read(&file).unwrap().starts_with(b"this is no database"));
}

#[tokio::test]
async fn a_later_checkpoint_of_an_idle_log_hides_no_database_that_was_put_back() {
    let folder = tempfile::tempdir().unwrap();
    let (data, backup) = (folder.path().join("data"), folder.path().join("backup"));
    let idle = open(&data, "idle");
    idle.record_events(vec![EventBody::new(AuditEventKind::Paused, moment(1).text)]).await.unwrap();
    sqlite::backup(&data, &backup).unwrap();
    let busy = open(&data, "busy");
    let mode = IdempotencyMode::Keyed;
    let claimed = busy.claim(request("a", mode, &["k"], "x")).await.unwrap();
    let Claimed::Fresh(claim) = claimed else { panic!("fresh") };
    busy.settle(settlement(claim, mode, Effect::Completed, None)).await.unwrap();
    busy.close(moment(2)).await.unwrap();
    drop(busy);
    // It covers only what the backup has too.
    idle.checkpoint(Due::NOW, moment(3)).await.unwrap().unwrap();
    drop(idle);
    sqlite::restore(&data, &backup).unwrap();
    let refused = sqlite::open(&data, "next", SqliteOptions::default(), &moment(4));
    assert!(
        matches!(&refused, Err(OpenError::RolledBack { writer, .. }) if writer == "busy"),
        "{refused:?}"
    );
    let options = SqliteOptions { accept_restored: true, ..SqliteOptions::default() };
    sqlite::open(&data, "accepts", options, &moment(5)).unwrap().close(moment(6)).await.unwrap();
    let known = || StoreFolder::create(&data).unwrap().kept_checkpoints().unwrap();
    let writers: Vec<String> = known().into_iter().map(|kept| kept.writer).collect();
    assert_eq!(writers, ["idle", "accepts"]);
    // The checkpoints of the logs that wrote last are kept, and no more.
    for n in 0..40 {
        open(&data, &format!("w{n}")).close(moment(10 + n)).await.unwrap();
    }
    let writers: Vec<String> = known().into_iter().map(|kept| kept.writer).collect();
    assert_eq!((writers.len(), writers[0].as_str(), writers[31].as_str()), (32, "w8", "w39"));
    let last = open(&data, "last");
    assert!(verify::store(&last, TrustAnchors::default()).await.unwrap().ok);
}

#[tokio::test]
async fn a_backup_in_a_new_folder_is_refused_until_it_is_accepted() {
    let folder = tempfile::tempdir().unwrap();
    let (data, copy) = (folder.path().join("data"), folder.path().join("copy"));
    let first = open(&data, "one");
    checkpointed(&first).await;
    sqlite::backup(&data, &copy).unwrap();
    drop(first);
    let new = folder.path().join("new");
    assert_eq!(sqlite::restore(&new, &copy).unwrap(), None, "nothing was there");
    // Calls since the backup could run twice.
    for _ in 0..2 {
        let refused = sqlite::open(&new, "two", SqliteOptions::default(), &moment(7));
        assert!(matches!(refused, Err(OpenError::Restored { .. })), "{refused:?}");
    }
    let options = SqliteOptions { accept_restored: true, ..SqliteOptions::default() };
    let accepting = sqlite::open(&new, "three", options, &moment(8)).unwrap();
    accepting.close(moment(9)).await.unwrap();
    drop(accepting);
    let next = open(&new, "four");
    let events = next.events(EventFilter { limit: 100, ..EventFilter::default() }).await.unwrap();
    let is_told = |placed: &PlacedEvent| placed.event.body.event == AuditEventKind::StoreRestored;
    let told = events.found.iter().filter(|placed| is_told(placed)).count();
    assert_eq!(told, 1, "{events:?}");
    assert!(verify::store(&next, TrustAnchors::default()).await.unwrap().ok);
}

#[tokio::test]
async fn an_acceptance_excuses_no_log_that_is_cut_later() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let running = open(&data, "one");
    let options = SqliteOptions { accept_restored: true, ..SqliteOptions::default() };
    let accepting = sqlite::open(&data, "two", options, &moment(1)).unwrap();
    accepting.checkpoint(Due::NOW, moment(2)).await.unwrap().unwrap();
    accepting.close(moment(3)).await.unwrap();
    drop(accepting);
    // What is there now is put back after the other log has grown.
    let copy = folder.path().join("copy");
    sqlite::backup(&data, &copy).unwrap();
    checkpointed(&running).await;
    let note = running.checkpoint(Due::NOW, moment(5)).await.unwrap().unwrap();
    let keys = vec![running.signer().verifier()];
    running.close(moment(6)).await.unwrap();
    drop(running);
    let reads = SqliteReads::open(&copy.join(DATABASE)).unwrap();
    let known = TrustAnchors { keys, notes: vec![note], ..TrustAnchors::default() };
    let report = verify::store(&reads, known.clone()).await.unwrap();
    let told: Vec<_> =
        report.problems.iter().map(|one| (one.kind.as_str(), &*one.writer)).collect();
    assert_eq!(told, [("missing", "one")], "{report:?}");
    // An operator who accepts this state too is believed.
    sqlite::restore(&data, &copy).unwrap();
    let options = SqliteOptions { accept_restored: true, ..SqliteOptions::default() };
    let accepting = sqlite::open(&data, "three", options, &moment(7)).unwrap();
    accepting.close(moment(8)).await.unwrap();
    drop(accepting);
    let reads = SqliteReads::open(&data.join(DATABASE)).unwrap();
    let report = verify::store(&reads, known).await.unwrap();
    assert!(report.ok, "{report:?}");
}

#[tokio::test]
async fn a_store_behind_a_link_is_put_back_with_its_folder() {
    let folder = tempfile::tempdir().unwrap();
    let (real, link) = (folder.path().join("real"), folder.path().join("link"));
    open(&real, "one").close(moment(1)).await.unwrap();
    std::os::unix::fs::symlink("real", &link).unwrap();
    let copy = folder.path().join("copy");
    sqlite::backup(&link, &copy).unwrap();
    std::fs::create_dir(real.join("secrets")).unwrap();
    std::fs::write(real.join("secrets/token"), "t").unwrap();
    let kept = sqlite::restore(&link, &copy).unwrap().unwrap();
    assert!(kept.starts_with(real.canonicalize().unwrap()), "{}", kept.display());
    assert!(kept.join(DATABASE).is_file() && real.join(DATABASE).is_file() && link.is_symlink());
    assert!(real.join("secrets/token").is_file(), "secrets of the configuration stay");
}

#[tokio::test]
async fn a_store_that_is_dropped_leaves_one_file_at_rest() {
    let folder = tempfile::tempdir().unwrap();
    for round in 0..20 {
        let ledger = open(folder.path(), &format!("writer-{round}"));
        assert!(verify::store(&ledger, TrustAnchors::default()).await.unwrap().ok);
        ledger.close(moment(round)).await.unwrap();
        drop(ledger);
        // SQLite removes the WAL when the last connection closes, readers included.
        assert!(!folder.path().join("toolbooth.db-wal").exists());
    }
}

#[test]
fn several_writers_begin_a_store_at_once() {
    for _ in 0..25 {
        let folder = tempfile::tempdir().unwrap();
        let together = std::sync::Barrier::new(4);
        std::thread::scope(|scope| {
            for writer in ["one", "two", "three", "four"] {
                let (path, together) = (folder.path(), &together);
                scope.spawn(move || {
                    together.wait();
                    drop(open(path, writer));
                });
            }
        });
    }
}

#[tokio::test]
async fn a_kept_checkpoint_or_a_key_that_is_empty_is_called_so() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = open(folder.path(), "one");
    ledger.close(moment(1)).await.unwrap();
    drop(ledger);
    let at = |name: &str| folder.path().join(name);
    for (name, what) in
        [("checkpoint.note", "is empty"), ("signing.key", "is empty"), ("digest.key", "is empty")]
    {
        let before = std::fs::read(at(name)).unwrap();
        std::fs::write(at(name), "").unwrap();
        let refused =
            sqlite::open(folder.path(), "two", SqliteOptions::default(), &moment(2)).unwrap_err();
        let told = refused.to_string();
        assert!(told.contains(name) && told.contains(what), "{told}");
        std::fs::write(at(name), before).unwrap();
    }
    std::fs::write(at("checkpoint.note"), "no note").unwrap();
    let accepted = SqliteOptions { accept_restored: true, ..SqliteOptions::default() };
    drop(sqlite::open(folder.path(), "three", accepted, &moment(3)).unwrap());
}

#[tokio::test]
async fn a_database_that_goes_away_under_a_gateway_is_refused() {
    for (name, replaced) in [
        (DATABASE, false),
        (DATABASE, true),
        ("toolbooth.db-wal", false),
        ("toolbooth.db-wal", true),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let ledger = open(folder.path(), "one");
        let mode = IdempotencyMode::Keyed;
        let Claimed::Fresh(claim) = ledger.claim(request("a", mode, &["k"], "x")).await.unwrap()
        else {
            panic!("fresh")
        };
        let (file, aside) = (folder.path().join(name), folder.path().join("aside"));
        let note = folder.path().join("last-check");
        assert!(note.exists());
        std::fs::rename(&file, &aside).unwrap();
        if replaced {
            std::fs::copy(&aside, &file).unwrap();
        }
        for call in ["b", "c"] {
            let refused = ledger.claim(request(call, mode, &[call], "x")).await;
            let told = refused.unwrap_err().to_string();
            assert!(told.contains("removed or replaced"), "{name} {replaced}: {told}");
            assert!(ledger.healthy().await.is_err(), "{name} {replaced}");
        }
        assert!(!note.exists(), "the next start checks the database");
        // The store works again once the file is restored: no record was written meanwhile, and
        // none was lost.
        std::fs::rename(&aside, &file).unwrap();
        let settled = settlement(claim, mode, Effect::Completed, None);
        assert_eq!(ledger.settle(settled).await.unwrap().state, ClaimState::Succeeded);
        assert!(ledger.healthy().await.is_ok());
        let report = verify::store(&ledger, TrustAnchors::default()).await.unwrap();
        assert!(report.ok, "{name} {replaced}: {report:?}");
    }
}

/// Makes a store with 200 receipts, all pages of which are in the database file and in use.
async fn filled() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let ledger = open(folder.path(), "one");
    for n in 0..200 {
        let mode = IdempotencyMode::None;
        let claimed = ledger.claim(request(&format!("c{n}"), mode, &[], "x")).await.unwrap();
        let Claimed::Fresh(claim) = claimed else { panic!("fresh") };
        ledger.settle(settlement(claim, mode, Effect::Completed, None)).await.unwrap();
    }
    ledger.close(moment(9)).await.unwrap();
    drop(ledger);
    // `VACUUM` removes free pages, because no check would find damage in them.
    Connection::open(folder.path().join(DATABASE)).unwrap().execute_batch("VACUUM").unwrap();
    folder
}

/// Options with a check that reads all pages, however slow the machine is.
fn whole_check(check: StartCheck) -> SqliteOptions {
    SqliteOptions { check, check_max: Duration::from_secs(60), ..SqliteOptions::default() }
}

/// A page is damaged after a check has passed. Whether the next start checks depends on the note of that check.
#[tokio::test]
async fn a_check_that_has_passed_counts_for_an_hour_and_for_its_file_only() {
    let folder = filled().await;
    let (file, note) = (folder.path().join(DATABASE), folder.path().join("last-check"));
    let writers = std::cell::Cell::new(0);
    let start = |check: StartCheck, second: i64| {
        writers.set(writers.get() + 1);
        let options = whole_check(check);
        let writer = format!("later{}", writers.get());
        sqlite::open(folder.path(), &writer, options, &moment(second * 1_000)).map(drop)
    };
    let is_damaged =
        |opened: &Result<(), OpenError>| matches!(opened, Err(OpenError::Damaged { .. }));
    start(StartCheck::IfDue, 100).unwrap();
    let noted = std::fs::read(&note).unwrap();
    let page = {
        let connection = Connection::open(&file).unwrap();
        let sql = "SELECT max(pageno) FROM dbstat WHERE name = 'receipts'";
        connection.query_row(sql, [], |row| row.get::<_, u32>(0)).unwrap()
    };
    let damage = || {
        use std::os::unix::fs::FileExt;
        let file = std::fs::OpenOptions::new().write(true).open(&file).unwrap();
        file.write_all_at(&[0xAA; 4096], u64::from(page - 1) * 4096).unwrap();
    };
    damage();
    // Within the hour the check counts.
    assert!(!is_damaged(&start(StartCheck::IfDue, 100)));
    assert!(!is_damaged(&start(StartCheck::IfDue, 3_600 + 99)));
    // A reader that finds the damage lets the next command check.
    let reads = SqliteReads::open(&file).unwrap();
    assert!(verify::store(&reads, TrustAnchors::default()).await.is_err());
    drop(reads);
    assert!(!note.exists());
    // Later, or earlier, the check does not count.
    for second in [3_600 + 100, 99] {
        std::fs::write(&note, &noted).unwrap();
        assert!(is_damaged(&start(StartCheck::IfDue, second)), "{second}");
        assert!(!note.exists(), "what is damaged has no note");
    }
    // Without a note, with one that is cut off, or that is of something else.
    let whole: serde_json::Value = serde_json::from_slice(&noted).unwrap();
    let other = |name: &str| {
        let mut other = whole.clone();
        other[name] = match &whole[name] {
            serde_json::Value::String(_) => "other".into(),
            number => (number.as_i64().unwrap() + 1_000_000_000).into(),
        };
        other.to_string().into_bytes()
    };
    let names = whole.as_object().unwrap().keys();
    let mut wrong: Vec<Vec<u8>> = names.map(|name| other(name)).collect();
    assert_eq!(wrong.len(), 6);
    wrong.extend([vec![], noted[..noted.len() - 2].to_vec(), b"{}".to_vec()]);
    for note_of_another in wrong {
        std::fs::write(&note, &note_of_another).unwrap();
        let opened = start(StartCheck::IfDue, 101);
        assert!(is_damaged(&opened), "{}", String::from_utf8_lossy(&note_of_another));
    }
    // A gateway checks each time, and another one that finds the damage lets the next command check.
    std::fs::write(&note, &noted).unwrap();
    assert!(is_damaged(&start(StartCheck::Always, 101)));
    assert!(is_damaged(&start(StartCheck::IfDue, 101)));
    // A copy is another file.
    std::fs::write(&note, &noted).unwrap();
    let copy = folder.path().join("copy");
    std::fs::copy(&file, &copy).unwrap();
    std::fs::rename(&copy, &file).unwrap();
    assert!(is_damaged(&start(StartCheck::IfDue, 101)));
}

#[tokio::test]
async fn a_damaged_page_is_found_at_start_and_named_by_verification() {
    let folder = filled().await;
    let file = folder.path().join(DATABASE);
    let whole = std::fs::read(&file).unwrap();
    let pages = whole.len() / 4096;
    assert!(pages > 20);
    let mut named = 0;
    // The first page is not damaged, because the file is not a database without it.
    for page in 1..pages {
        let mut bytes = whole.clone();
        bytes[page * 4096..(page + 1) * 4096].fill(0xAA);
        std::fs::write(&file, bytes).unwrap();
        let refused =
            sqlite::open(folder.path(), "two", whole_check(StartCheck::Always), &moment(10));
        assert!(matches!(refused, Err(OpenError::Damaged { .. })), "{page}: {refused:?}");
        let reads = match SqliteReads::open(&file) {
            Ok(reads) => reads,
            // A page that holds the definitions of tables.
            Err(error) => {
                assert!(error.to_string().contains("cannot be opened"), "{page}: {error}");
                continue;
            }
        };
        if let Err(error) = verify::store(&reads, TrustAnchors::default()).await {
            named += usize::from(error.to_string().contains("table `"));
        }
    }
    assert!(named > pages / 3, "{named} of {pages}");
}

#[tokio::test]
async fn lock_files_of_dead_writers_are_removed() {
    let folder = tempfile::tempdir().unwrap();
    let files = || {
        let entries = std::fs::read_dir(folder.path().join("writers")).unwrap();
        let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    };
    let live = open(folder.path(), "live");
    for dead in ["a", "b"] {
        drop(open(folder.path(), dead));
    }
    let next = open(folder.path(), "next");
    assert_eq!(files(), ["live.lock", "next.lock"]);
    drop((live, next));
}

#[tokio::test]
async fn a_writer_that_is_missing_is_found_by_the_checkpoints_of_others() {
    let folder = tempfile::tempdir().unwrap();
    let first = open(folder.path(), "one");
    first.close(moment(1)).await.unwrap();
    let second = open(folder.path(), "two");
    second.close(moment(2)).await.unwrap();
    let third = open(folder.path(), "three");
    third.close(moment(3)).await.unwrap();
    let connection = Connection::open(folder.path().join(DATABASE)).unwrap();
    let reads = SqliteReads::open(&folder.path().join(DATABASE)).unwrap();
    assert!(verify::store(&reads, TrustAnchors::default()).await.unwrap().ok);
    connection
        .execute_batch(
            "DELETE FROM events WHERE place >> 40 = (SELECT no FROM writers WHERE writer = 'one');
             DELETE FROM milestones WHERE place NOT IN (SELECT place FROM events);
             DELETE FROM writers WHERE writer = 'one'",
        )
        .unwrap();
    let report = verify::store(&reads, TrustAnchors::default()).await.unwrap();
    assert!(report.problems.iter().all(|p| p.kind == "missing" && p.writer == "one"), "{report:?}");
    assert!(!report.ok);
}

/// Returns a copy of a store that an earlier version has written.
fn fixture(version: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let from =
        std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(version);
    for name in [DATABASE, "digest.key", "signing.key", "checkpoint.note"] {
        std::fs::copy(from.join(name), folder.path().join(name)).unwrap();
    }
    folder
}

#[tokio::test]
async fn a_database_of_the_first_version_is_brought_up_to_date() {
    let folder = fixture("version-1");
    let ledger = open(folder.path(), "later");
    let report = verify::store(&ledger, TrustAnchors::default()).await.unwrap();
    assert!(report.ok, "{report:?}");
    let prune = Prune {
        kind: PruneKind::Receipts,
        before: moment(9).text,
        at: moment(9),
        windows: Vec::new(),
    };
    assert_eq!(ledger.prune(prune).await.unwrap().removed, 3);
    // Its logs have no roots in their rows, but a checkpoint still names their ends.
    let paused = EventBody::new(AuditEventKind::Paused, moment(10).text);
    ledger.record_events(vec![paused]).await.unwrap();
    ledger.checkpoint(Due::NOW, moment(10)).await.unwrap().unwrap();
    let report = verify::store(&ledger, TrustAnchors::default()).await.unwrap();
    assert!(report.ok, "{report:?}");
}

/// An earlier version removed checkpoints that named the ends of other logs, and nothing repaired
/// this.
#[tokio::test]
async fn the_end_of_a_log_that_lost_its_name_is_named_again() {
    let folder = fixture("version-2");
    let connection = Connection::open(folder.path().join(DATABASE)).unwrap();
    assert!(connection.execute("UPDATE writers SET named = 1", []).unwrap() > 1);
    let ledger = open(folder.path(), "later");
    for step in ["after the upgrade", "after a checkpoint"] {
        let report = verify::store(&ledger, TrustAnchors::default()).await.unwrap();
        assert!(report.ok, "{step}: {report:?}");
        let paused = EventBody::new(AuditEventKind::Paused, moment(200).text);
        ledger.record_events(vec![paused]).await.unwrap();
        ledger.checkpoint(Due::NOW, moment(201)).await.unwrap().unwrap();
    }
    let sql = "SELECT count(*) FROM writers WHERE named = 0";
    let unnamed: i64 = connection.query_row(sql, [], |row| row.get(0)).unwrap();
    assert_eq!(unnamed, 1, "only the log that goes on");
}

#[tokio::test]
async fn events_of_a_writer_without_a_row_take_no_place_of_the_next_writer() {
    let folder = fixture("version-2");
    let connection = Connection::open(folder.path().join(DATABASE)).unwrap();
    let removed =
        connection.execute("DELETE FROM writers WHERE writer <> 'writer-two'", []).unwrap();
    assert!(removed > 0);
    drop(connection);
    let ledger = open(folder.path(), "later");
    let events = ledger.events(EventFilter { limit: 1_000, ..EventFilter::default() }).await;
    let writers: BTreeSet<String> =
        events.unwrap().found.into_iter().map(|placed| placed.event.writer).collect();
    assert!(writers.contains("later") && writers.len() > removed, "{writers:?}");
}

#[tokio::test]
async fn a_log_that_an_earlier_version_has_shortened_is_taken_over() {
    // The log of the writer that takes over is read before the shortened log, or after it.
    for writer in ["later", "sooner"] {
        a_shortened_log_is_taken_over_by(writer).await;
    }
}

async fn a_shortened_log_is_taken_over_by(writer: &str) {
    let folder = fixture("version-2-pruned");
    let ledger = open(folder.path(), writer);
    let gone = ledger.pruned_ranges(None, 100).await.unwrap();
    assert!(gone.iter().map(|(_, part)| part.size).sum::<u64>() > 40, "{gone:?}");
    let report = verify::store(&ledger, TrustAnchors::default()).await.unwrap();
    assert!(report.ok, "{report:?}");
    // Pruning continues from there.
    for kind in [PruneKind::Receipts, PruneKind::Logs, PruneKind::Events] {
        let prune = Prune { kind, before: moment(9).text, at: moment(20), windows: Vec::new() };
        while ledger.prune(prune.clone()).await.unwrap() != Pruned::default() {}
        let report = verify::store(&ledger, TrustAnchors::default()).await.unwrap();
        assert!(report.ok, "{kind:?}: {report:?}");
    }
    let connection = Connection::open(folder.path().join(DATABASE)).unwrap();
    connection.execute("UPDATE gone SET root = zeroblob(32) WHERE size = 64", []).unwrap();
    let report = verify::store(&ledger, TrustAnchors::default()).await.unwrap();
    assert!(!report.ok, "what is gone is under a signed root");
}

#[tokio::test]
async fn a_database_of_the_second_version_is_brought_up_to_date() {
    let folder = fixture("version-2");
    let refused = SqliteReads::open(&folder.path().join(DATABASE)).unwrap_err();
    assert!(matches!(refused, OpenError::Older { found: 2, .. }), "{refused:?}");
    let key = folder.path().join("digest.key");
    let own = std::fs::read(&key).unwrap();
    std::fs::write(&key, "ab".repeat(32)).unwrap();
    let refused = sqlite::open(folder.path(), "other", SqliteOptions::default(), &moment(100));
    assert!(matches!(refused, Err(OpenError::OtherKey { .. })), "{refused:?}");
    std::fs::write(&key, own).unwrap();
    let ledger = open(folder.path(), "later");
    let report = verify::store(&ledger, TrustAnchors::default()).await.unwrap();
    assert!(report.ok && report.events == 37, "{report:?}");
    // All claims are still known: a tombstone, a receipt with a large result, an unknown outcome, a
    // claim of a dead writer, a waiting claim.
    let of = |call: &str, mode, key: &str, args: &str| request(call, mode, &[key], args);
    let pruned = format!("{:064x}", 1);
    let again = ledger.claim(of("t", IdempotencyMode::OnKey, &pruned, "other")).await.unwrap();
    assert!(matches!(again, Claimed::Conflict { .. }), "{again:?}");
    let again = ledger.claim(of("r", IdempotencyMode::OnKey, "key-0", "x")).await.unwrap();
    let Claimed::Replay { receipt, .. } = again else { panic!("{again:?}") };
    let result = receipt.result.unwrap();
    assert_eq!(result.content[0].as_text().unwrap(), "large ".repeat(2_000));
    for (call, key) in [("d", "doubt-key"), ("l", "left")] {
        let again = ledger.claim(of(call, IdempotencyMode::Keyed, key, "x")).await.unwrap();
        assert!(matches!(again, Claimed::InDoubt { .. }), "{key}: {again:?}");
    }
    let swept = ledger.sweep(moment(200)).await.unwrap();
    assert_eq!(swept.len(), 2, "one ran and one waited when their writer died: {swept:?}");
    // The queued call had no event before the migration, and has one now.
    let waiting = CallQueue::queued(&ledger, "local", "queued").await.unwrap().unwrap();
    assert!(waiting.request == "{}" && waiting.queued_by.is_some());
    assert_eq!(ledger.take(Vec::new()).await.unwrap().unwrap().call_id, "queued");
    // The migrated records can be read and searched.
    let filter = ReceiptFilter { limit: 100, ..ReceiptFilter::default() };
    assert_eq!(ledger.receipts(filter).await.unwrap().found.len(), 9);
    let filter = EventFilter { call: Some("doubt".into()), limit: 10, ..EventFilter::default() };
    assert_eq!(ledger.events(filter).await.unwrap().found.len(), 2);
    let filter = LogFilter { tool: Some("tool.one".into()), limit: 100, ..LogFilter::default() };
    let logs = ledger.agent_logs(filter).await.unwrap().found;
    assert_eq!(logs.len(), 12);
    let last = logs.last().unwrap();
    assert_eq!(ledger.agent_log(&last.id).await.unwrap().as_ref(), Some(last));
    ledger.checkpoint(Due::NOW, moment(201)).await.unwrap().unwrap();
    let report = verify::store(&ledger, TrustAnchors::default()).await.unwrap();
    assert!(report.ok, "{report:?}");
}

#[tokio::test]
async fn a_digest_key_is_added_and_the_old_one_still_known() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let ledger = open(&data, "one");
    let old = Ledger::digester(&ledger).of_parts(&["key"]);
    ledger.close(moment(1)).await.unwrap();
    let file = data.join("digest.key");
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, format!("{}\n{text}", "ab".repeat(32))).unwrap();
    let ledger = open(&data, "two");
    let digester = Ledger::digester(&ledger);
    let all: Vec<String> = digester.all().map(|own| own.of_parts(&["key"])).collect();
    assert_eq!((all.len(), &all[1]), (2, &old));
    let mode = IdempotencyMode::OnKey;
    // A claim under the old key, with the old digest of its arguments, is the same call.
    let first = ledger.claim(request("a", mode, &[&old], "old args")).await.unwrap();
    let Claimed::Fresh(claim) = first else { panic!("fresh") };
    assert_eq!(claim.key(), Some(old.as_str()), "what travels");
    ledger.settle(settlement(claim, mode, Effect::Completed, None)).await.unwrap();
    let mut again = request("b", mode, &[&all[0], &all[1]], "new args");
    again.older_args_digests = vec!["old args".into()];
    let again = ledger.claim(again).await.unwrap();
    assert!(matches!(again, Claimed::Replay { arguments_differ: false, .. }), "{again:?}");
    drop(ledger);
    // A different or missing key would let keyed calls run again.
    let both = std::fs::read_to_string(&file).unwrap();
    for swapped in ["cd".repeat(32), "ab".repeat(32), text.clone()] {
        std::fs::write(&file, swapped).unwrap();
        let refused = sqlite::open(&data, "three", SqliteOptions::default(), &moment(3));
        assert!(matches!(refused, Err(OpenError::OtherKey { .. })), "{refused:?}");
    }
    std::fs::write(&file, both).unwrap();
    drop(open(&data, "knows-both"));
    std::fs::write(&file, "no key\n").unwrap();
    let refused = sqlite::open(&data, "three", SqliteOptions::default(), &moment(3));
    assert!(matches!(refused, Err(OpenError::Key { .. })), "{refused:?}");
}

#[tokio::test]
async fn a_writer_without_an_added_digest_key_begins_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let earlier = open(&data, "earlier");
    let newer = async || {
        let file = data.join("digest.key");
        let text = std::fs::read_to_string(&file).unwrap();
        std::fs::write(&file, format!("{}\n{text}", "ab".repeat(32))).unwrap();
        open(&data, "newer")
    };
    added_digest_key(&earlier, newer).await;
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
    let refused = sqlite::open(&data, "two", SqliteOptions::default(), &moment(2));
    assert!(matches!(refused, Err(OpenError::Newer { found: 99, .. })), "{refused:?}");
}

#[tokio::test]
async fn a_writer_ends_its_work_when_a_newer_version_migrates_the_database() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = open(folder.path(), "one");
    let mode = IdempotencyMode::Keyed;
    let Claimed::Fresh(claim) = ledger.claim(request("a", mode, &["k"], "x")).await.unwrap() else {
        panic!("fresh")
    };
    let newer = Connection::open(folder.path().join(DATABASE)).unwrap();
    newer.execute_batch("PRAGMA user_version = 99").unwrap();
    let settled = ledger.settle(settlement(claim, mode, Effect::Completed, None)).await;
    assert!(settled.unwrap_err().to_string().contains("a newer Toolbooth"));
    for call in ["b", "c"] {
        let refused = ledger.claim(request(call, mode, &[call], "x")).await.unwrap_err();
        assert!(refused.to_string().contains("version 99"), "{refused}");
    }
    let claims: i64 =
        newer.query_row("SELECT count(*) FROM open_receipts", [], |row| row.get(0)).unwrap();
    assert_eq!(claims, 1);
}

#[tokio::test]
async fn retention_excuses_no_receipt_that_a_window_counts() {
    let window = |length_ms| CountedIn { key: "w".into(), amount: None, length_ms };
    let prune = Prune {
        kind: PruneKind::Receipts,
        before: moment(1_000).text,
        at: moment(1_000),
        windows: Vec::new(),
    };
    let rows = "DELETE FROM history WHERE until_ms > 1767225600000 + 1000";
    let receipt = "DELETE FROM receipts WHERE id IN (SELECT receipt FROM history WHERE until_ms \
                   > 1767225600000 + 1000)";
    for (removed, kinds) in [
        (vec![], vec![]),
        // Pruning believes the receipt.
        (vec![rows], vec!["history-changed"]),
        (vec![receipt, rows], vec!["receipt-missing"]),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let ledger = open(folder.path(), "one");
        for (call, length_ms) in [("long", 86_400_000), ("short", 500)] {
            let asked = request(call, IdempotencyMode::None, &[], "x");
            let asked = ClaimRequest { counted: vec![window(length_ms)], ..asked };
            let Claimed::Fresh(claim) = ledger.claim(asked).await.unwrap() else { panic!("fresh") };
            let settled = settlement(claim, IdempotencyMode::None, Effect::Completed, None);
            ledger.settle(settled).await.unwrap();
        }
        let connection = Connection::open(folder.path().join(DATABASE)).unwrap();
        removed.iter().for_each(|removed| connection.execute_batch(removed).unwrap());
        let pruned = ledger.prune(prune.clone()).await.unwrap();
        assert_eq!((pruned.removed, pruned.more), (1, false), "{removed:?}");
        let report = verify::store(&ledger, TrustAnchors::default()).await.unwrap();
        let found: Vec<&str> = report.problems.iter().map(|found| found.kind.as_str()).collect();
        assert_eq!(found, kinds, "{removed:?}");
    }
}

/// A step of pruning removes only what was settled before its time, so a later step with an earlier time
/// must not excuse what the first one had to keep.
#[tokio::test]
async fn each_pruning_excuses_only_what_it_could_remove() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = open(folder.path(), "one");
    let settled = async |call: &str, length_ms: Option<i64>, at: i64| {
        let counted =
            length_ms.map(|length_ms| CountedIn { key: "w".into(), amount: None, length_ms });
        let mode = IdempotencyMode::None;
        let asked = request(call, mode, &[], "x");
        let asked = ClaimRequest { counted: counted.into_iter().collect(), ..asked };
        let Claimed::Fresh(claim) = ledger.claim(asked).await.unwrap() else { panic!("fresh") };
        let mut settled = settlement(claim, mode, Effect::Completed, None);
        let own = Arc::get_mut(&mut settled).unwrap();
        (own.at, own.terminal.time) = (moment(at), moment(at).text);
        ledger.settle(settled).await.unwrap();
    };
    let prune = async |before: i64, at: i64| {
        let (before, at) = (moment(before).text, moment(at));
        let step = Prune { kind: PruneKind::Receipts, before, at, windows: Vec::new() };
        ledger.prune(step).await.unwrap().removed
    };
    settled("kept", Some(2_000), 500).await;
    settled("first", None, 2).await;
    assert_eq!(prune(1_000, 1_000).await, 1);
    settled("second", None, 2).await;
    assert_eq!(prune(100, 3_000).await, 1);
    let problems = async || {
        let report = verify::store(&ledger, TrustAnchors::default()).await.unwrap();
        report.problems.into_iter().map(|found| found.kind).collect::<Vec<_>>()
    };
    assert_eq!(problems().await, [""; 0]);
    let connection = Connection::open(folder.path().join(DATABASE)).unwrap();
    connection.execute_batch("DELETE FROM receipts; DELETE FROM history").unwrap();
    assert_eq!(problems().await, ["receipt-missing"]);
}

#[tokio::test]
async fn pruning_passes_over_the_receipts_that_windows_count_in_steps() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = open(folder.path(), "one");
    let mode = IdempotencyMode::None;
    let claimed = ledger.claim(request("a", mode, &[], "x")).await.unwrap();
    let Claimed::Fresh(claim) = claimed else { panic!("fresh") };
    ledger.settle(settlement(claim, mode, Effect::Completed, None)).await.unwrap();
    // Receipts that are counted are not read, so these need no content.
    let connection = Connection::open(folder.path().join(DATABASE)).unwrap();
    connection
        .execute_batch(
            "WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < 25000)
             INSERT INTO receipts (id, fence, body) SELECT printf('counted-%05d', n), 1, x'00' FROM n;
             INSERT INTO history (key, at_ms, receipt, amount, until_ms)
                 SELECT 'w', 1, id, NULL, 9000000000000 FROM receipts WHERE id LIKE 'counted-%';",
        )
        .unwrap();
    let prune = Prune {
        kind: PruneKind::Receipts,
        before: moment(50).text,
        at: moment(50),
        windows: Vec::new(),
    };
    let mut steps = Vec::new();
    loop {
        let pruned = ledger.prune(prune.clone()).await.unwrap();
        steps.push((pruned.removed, pruned.more));
        if pruned == Pruned::default() {
            break;
        }
    }
    assert_eq!(steps, [(0, true), (0, true), (1, false), (0, true), (0, true), (0, false)]);
}

/// Rows of an earlier version are taken over without events that account for them. Therefore a
/// store that had a later version must not pass as one of an earlier version.
#[tokio::test]
async fn a_store_that_was_put_back_to_an_earlier_version_is_not_taken_over() {
    let folder = tempfile::tempdir().unwrap();
    open(folder.path(), "one").close(moment(1)).await.unwrap();
    let connection = Connection::open(folder.path().join(DATABASE)).unwrap();
    connection
        .execute_batch(
            "PRAGMA user_version = 5; ALTER TABLE writers ADD COLUMN pruned TEXT;
             DROP TABLE orders; DROP TABLE budgets; ALTER TABLE queue DROP COLUMN identity;
             INSERT INTO queue (caller, call_id, state, request, enqueued)
             VALUES ('local', 'forged', 'queued', '{}', '2026-01-01T00:00:00.000Z');",
        )
        .unwrap();
    let refused = sqlite::open(folder.path(), "two", SqliteOptions::default(), &moment(2));
    let Err(OpenError::Ledger(toolbooth_audit::LedgerError::Damaged(row))) = refused else {
        panic!("{refused:?}")
    };
    assert_eq!((row.table.as_str(), row.row.as_str()), ("version", "7"), "{row}");
}

#[tokio::test]
async fn a_store_without_orders_is_brought_up_to_date() {
    let folder = tempfile::tempdir().unwrap();
    let first = open(folder.path(), "one");
    let caller = Identity { groups: vec!["staff".into()], ..Identity::local() };
    let queued = QueuedCall::new("old".into(), &caller, "{}".into(), &moment(1));
    first.enqueue(queued, 5).await.unwrap();
    first.close(moment(2)).await.unwrap();
    let connection = Connection::open(folder.path().join(DATABASE)).unwrap();
    connection
        .execute_batch(
            "PRAGMA user_version = 6; DROP TABLE orders; DROP TABLE budgets;
             ALTER TABLE queue DROP COLUMN identity;",
        )
        .unwrap();
    let second = open(folder.path(), "two");
    let change =
        OrderChange::Pause { target: PauseTarget::All, cancel_running: false, reason: None };
    let order = OrderRequest { change, by: "operator".into(), at: moment(3) };
    assert!(matches!(second.order(order).await.unwrap(), Ordered::Done(_)));
    // A call whose identity was removed is damaged, and is not run.
    let taken = second.take(Vec::new()).await;
    assert!(!matches!(taken, Ok(Some(_))), "{taken:?}");
    second.close(moment(4)).await.unwrap();
}
