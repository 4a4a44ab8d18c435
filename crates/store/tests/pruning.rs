//! Tests that verification accepts pruned logs and records, and still reports tampering.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)]

use std::path::Path;
use std::sync::Arc;

use rusqlite::Connection;
use toolbooth_audit::LedgerError;
use toolbooth_audit::backend::pruning::Removal;
use toolbooth_audit::backend::recorder::StepRunner;
use toolbooth_audit::backend::steps::Step;
use toolbooth_audit::backend::working::{Changes, Needs, NewEvent, StoreQuery, WorkingSet};
use toolbooth_audit::checkpoint::Due;
use toolbooth_audit::conformance::{moment, request, settlement};
use toolbooth_audit::ledger::{
    ClaimRequest, Claimed, Ledger, Prune, PruneKind, Pruned, Resolution,
};
use toolbooth_audit::queue::{CallQueue, QueuedCall};
use toolbooth_audit::reads::LedgerReads;
use toolbooth_audit::verify::{self, TrustAnchors, VerifyReport};
use toolbooth_contracts::contract::IdempotencyMode;
use toolbooth_contracts::event::{AuditEventKind, EventBody};
use toolbooth_contracts::receipt::StoredResult;
use toolbooth_contracts::{ContentBlock, Effect, ErrorCode, Identity};
use toolbooth_store::sqlite::{self, DATABASE, SqliteLedger, SqliteOptions};

fn open(folder: &Path, writer: &str) -> SqliteLedger {
    sqlite::open(folder, writer, SqliteOptions::default(), &moment(0)).unwrap()
}

async fn verified(ledger: &SqliteLedger) -> VerifyReport {
    verify::store(ledger, TrustAnchors::default()).await.unwrap()
}

async fn sound(ledger: &SqliteLedger) {
    let report = verified(ledger).await;
    assert!(report.ok, "{report:?}");
}

/// Claims and settles a call at the given times.
async fn call(ledger: &SqliteLedger, call: &str, mode: IdempotencyMode, at: (i64, i64)) {
    let mut asked = ClaimRequest { at: moment(at.0), ..request(call, mode, &[], "x") };
    asked.dispatched.time = moment(at.0).text;
    let Claimed::Fresh(claim) = ledger.claim(asked).await.unwrap() else { panic!("fresh") };
    let mut settled = settlement(claim, mode, Effect::Completed, None);
    let own = Arc::get_mut(&mut settled).unwrap();
    (own.at, own.terminal.time) = (moment(at.1), moment(at.1).text);
    Arc::make_mut(&mut own.log).timestamp = moment(at.1).text;
    ledger.settle(settled).await.unwrap();
}

async fn checkpoint(ledger: &SqliteLedger, at: i64) {
    ledger
        .record_events(vec![EventBody::new(AuditEventKind::Paused, moment(at).text)])
        .await
        .unwrap();
    ledger.checkpoint(Due::NOW, moment(at)).await.unwrap().unwrap();
}

/// Prunes until no record older than `before` is left to remove.
async fn prune(ledger: &SqliteLedger, kinds: &[PruneKind], before: i64, at: i64) {
    for kind in kinds {
        let prune =
            Prune { kind: *kind, before: moment(before).text, at: moment(at), windows: Vec::new() };
        while ledger.prune(prune.clone()).await.unwrap() != Pruned::default() {}
    }
}

const ALL: [PruneKind; 3] = [PruneKind::Receipts, PruneKind::Logs, PruneKind::Events];

fn change(folder: &Path, sql: &str) -> usize {
    Connection::open(folder.join(DATABASE)).unwrap().execute(sql, []).unwrap()
}

#[tokio::test]
async fn what_an_operator_says_to_be_old_in_the_future_excuses_nothing_later() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = open(folder.path(), "one");
    call(&ledger, "old", IdempotencyMode::None, (1, 2)).await;
    for kind in [PruneKind::Receipts, PruneKind::Logs] {
        let prune = Prune {
            kind,
            before: "2099-01-01T00:00:00.000Z".into(),
            at: moment(10),
            windows: Vec::new(),
        };
        assert_eq!(ledger.prune(prune).await.unwrap().removed, 1, "{kind:?}");
    }
    call(&ledger, "new", IdempotencyMode::None, (20, 21)).await;
    checkpoint(&ledger, 22).await;
    sound(&ledger).await;
    assert_eq!(change(folder.path(), "DELETE FROM receipts"), 1);
    assert_eq!(change(folder.path(), "DELETE FROM agent_logs"), 1);
    let report = verified(&ledger).await;
    for kind in ["receipt-missing", "log-missing"] {
        assert!(report.problems.iter().any(|problem| problem.kind == kind), "{report:?}");
    }
}

#[tokio::test]
async fn a_shortened_log_that_is_cut_is_found() {
    // Cuts everything from a place on.
    for places in ["(SELECT max(place) FROM gone)", "(SELECT max(place) - 1 FROM events)"] {
        let folder = tempfile::tempdir().unwrap();
        let ledger = open(folder.path(), "one");
        for n in 0..20 {
            call(&ledger, &format!("c{n}"), IdempotencyMode::None, (1, 2)).await;
        }
        checkpoint(&ledger, 3).await;
        prune(&ledger, &ALL, 9, 10).await;
        checkpoint(&ledger, 11).await;
        sound(&ledger).await;
        let names = ["gone", "milestones", "events"];
        let connection = Connection::open(folder.path().join(DATABASE)).unwrap();
        let from: i64 =
            connection.query_row(&format!("SELECT {places}"), [], |row| row.get(0)).unwrap();
        for name in names {
            connection.execute(&format!("DELETE FROM {name} WHERE place >= ?1"), [from]).unwrap();
        }
        let report = verified(&ledger).await;
        assert!(!report.ok, "{places}: {report:?}");
        // A head that is changed to match does not hide the cut.
        let seq = from & ((1 << 40) - 1);
        connection.execute("UPDATE writers SET size = ?1", [seq]).unwrap();
        let report = verified(&ledger).await;
        assert!(!report.ok, "{places}: {report:?}");
    }
}

#[tokio::test]
async fn what_a_person_says_in_another_log_is_in_no_order_of_names() {
    // Both orders of the writers' names.
    for (first, second) in [("a", "b"), ("b", "a")] {
        let folder = tempfile::tempdir().unwrap();
        let one = open(folder.path(), first);
        let two = open(folder.path(), second);
        let mode = IdempotencyMode::Keyed;
        let asked = |call: &str| request(call, mode, &["k"], "args");
        let Claimed::Fresh(claim) = one.claim(asked("c")).await.unwrap() else { panic!("fresh") };
        let doubt = Some(ErrorCode::CallInDoubt);
        one.settle(settlement(claim, mode, Effect::Unknown, doubt)).await.unwrap();
        let text = vec![ContentBlock::text("it did not happen")];
        let resolution = Resolution {
            receipt_id: "receipt-c".into(),
            succeeded: false,
            result: StoredResult {
                content: text,
                structured_content: None,
                meta: None,
                error: None,
                warnings: Vec::new(),
            },
            result_digest: Some("r1".into()),
            by: "operator".into(),
            at: moment(3),
        };
        two.resolve(resolution).await.unwrap();
        sound(&one).await;
        let again = one.claim(asked("c2")).await.unwrap();
        let Claimed::Fresh(claim) = again else { panic!("{again:?}") };
        one.settle(settlement(claim, mode, Effect::Completed, None)).await.unwrap();
        checkpoint(&one, 4).await;
        checkpoint(&two, 4).await;
        sound(&one).await;
        prune(&one, &ALL, 9, 10).await;
        sound(&one).await;
    }
}

#[tokio::test]
async fn a_name_of_a_call_is_used_again_after_pruning() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = open(folder.path(), "one");
    let queued =
        |at: i64| QueuedCall::new("again".into(), &Identity::local(), "{}".into(), &moment(at));
    for round in 0..3 {
        let at = 1 + round * 100;
        ledger.enqueue(queued(at), 10).await.unwrap();
        sound(&ledger).await;
        ledger.take(Vec::new()).await.unwrap().unwrap();
        ledger.finish("local", "again", "{}".into(), moment(at + 1)).await.unwrap();
        sound(&ledger).await;
        checkpoint(&ledger, at + 2).await;
        prune(&ledger, &ALL, at + 5, at + 6).await;
        sound(&ledger).await;
        prune(&ledger, &[PruneKind::Calls], at + 5, at + 6).await;
        sound(&ledger).await;
    }
}

#[tokio::test]
async fn a_pruned_log_still_verifies_and_still_shows_tampering() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = open(folder.path(), "one");
    for n in 0..3 {
        call(&ledger, &format!("c{n}"), IdempotencyMode::None, (1, 2)).await;
        if n < 2 {
            checkpoint(&ledger, 3).await;
        }
    }
    prune(&ledger, &ALL, 9, 10).await;
    sound(&ledger).await;
    let gone = ledger.pruned_ranges(None, 100).await.unwrap();
    assert!(!gone.is_empty(), "{gone:?}");
    // Prunes again, with the events of the previous pruning in the log.
    for _ in 0..3 {
        checkpoint(&ledger, 6).await;
        prune(&ledger, &[PruneKind::Events], 10, 10).await;
        sound(&ledger).await;
    }
    let connection = Connection::open(folder.path().join(DATABASE)).unwrap();
    connection
        .execute(
            "UPDATE gone SET root = zeroblob(32) WHERE place = (SELECT min(place) FROM gone)",
            [],
        )
        .unwrap();
    let report = verified(&ledger).await;
    assert_eq!(report.problems[0].kind, "checkpoint-differs", "{report:?}");
}

/// A step that finds removable records and removes none of them. It writes an event, so that its
/// transaction commits.
struct Look(StoreQuery);

impl Step for Look {
    type Answer = ();

    fn needs(&self) -> Needs {
        Needs::of(self.0.clone())
    }

    fn decide(&self, set: &WorkingSet) -> Result<((), Changes), LedgerError> {
        let found = &set.surveyed;
        let is_any = found.removal != Removal::default() || !found.prunable.is_empty();
        // The first search for logs to drop examines refusals, and there are none.
        assert!(is_any || found.more, "{found:?}");
        let body = EventBody::new(AuditEventKind::Paused, moment(4).text);
        Ok(((), Changes { events: vec![NewEvent { body, log: None }], ..Changes::default() }))
    }
}

#[tokio::test]
async fn what_a_step_finds_stays_until_the_step_removes_it() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = open(folder.path(), "one");
    for n in 0..3 {
        call(&ledger, &format!("c{n}"), IdempotencyMode::None, (1, 2)).await;
    }
    let queued = QueuedCall::new("queued".into(), &Identity::local(), "{}".into(), &moment(1));
    ledger.enqueue(queued, 10).await.unwrap();
    ledger.take(Vec::new()).await.unwrap().unwrap();
    ledger.finish("local", "queued", "{}".into(), moment(2)).await.unwrap();
    checkpoint(&ledger, 3).await;
    let tables = ["milestones", "gone", "stale", "receipts", "agent_logs", "queue"];
    let counts = || {
        let connection = Connection::open(folder.path().join(DATABASE)).unwrap();
        tables.map(|table| {
            let sql = format!("SELECT count(*) FROM {table}");
            connection.query_row(&sql, [], |row| row.get::<_, i64>(0)).unwrap()
        })
    };
    let (before, old) = (counts(), moment(9).text);
    for survey in [
        StoreQuery::PrunableReceipts {
            before: old.clone(),
            now_ms: 0,
            windows: Vec::new(),
            limit: 10,
        },
        StoreQuery::PrunableLogs(old.clone(), 10),
        StoreQuery::DroppableLogs(10),
        StoreQuery::PrunableEvents(old.clone()),
        StoreQuery::PrunableCalls(old, 10),
    ] {
        let end = ledger.heads().await.unwrap()[0].size;
        ledger.runner().run(Look(survey.clone())).await.unwrap();
        assert_eq!(counts(), before, "{survey:?}");
        assert_eq!(ledger.heads().await.unwrap()[0].size, end + 1, "it was committed");
    }
    // No event was removed either.
    sound(&ledger).await;
}

#[tokio::test]
async fn a_damaged_log_holds_up_no_other() {
    let folder = tempfile::tempdir().unwrap();
    let (one, two) = (open(folder.path(), "one"), open(folder.path(), "two"));
    for (n, ledger) in [&one, &two].into_iter().enumerate() {
        for round in 0..3 {
            call(ledger, &format!("c{n}-{round}"), IdempotencyMode::None, (1, 2)).await;
            checkpoint(ledger, 3).await;
        }
    }
    prune(&two, &[PruneKind::Receipts, PruneKind::Logs], 9, 10).await;
    let connection = Connection::open(folder.path().join(DATABASE)).unwrap();
    let damaged = "UPDATE events SET body = (SELECT body FROM events WHERE place =
                       (SELECT no FROM writers WHERE writer = 'one') << 40 | 2)
                   WHERE place = (SELECT no FROM writers WHERE writer = 'one') << 40 | 1";
    assert_eq!(connection.execute(damaged, []).unwrap(), 1);
    let of = "SELECT count(*) FROM events WHERE place >> 40 =
                  (SELECT no FROM writers WHERE writer = ?1)";
    let count = |writer| connection.query_row(of, [writer], |row| row.get::<_, i64>(0)).unwrap();
    let before = (count("one"), count("two"));
    let ask = Prune {
        kind: PruneKind::Events,
        before: moment(9).text,
        at: moment(10),
        windows: Vec::new(),
    };
    let refused = loop {
        match two.prune(ask.clone()).await {
            Ok(pruned) => assert!(pruned != Pruned::default(), "the damage is told"),
            Err(refused) => break refused,
        }
    };
    assert!(refused.to_string().contains("does not fit its checkpoint"), "{refused}");
    assert_eq!(count("one"), before.0, "what is damaged is not removed");
    assert!(count("two") < before.1, "the other is shortened");
    let report = verified(&two).await;
    // The index has the event as it was, if it was indexed before the damage.
    let is_expected =
        |problem: &verify::Problem| problem.writer == "one" || problem.kind == "index-differs";
    assert!(report.problems.iter().all(is_expected), "{report:?}");
    assert!(report.problems.iter().any(|problem| problem.writer == "one"), "{report:?}");
}

/// The end of a log is named by a checkpoint of the next one, which is pruned later.
#[tokio::test]
async fn the_end_of_a_log_stays_named_when_the_next_log_is_pruned() {
    let folder = tempfile::tempdir().unwrap();
    for (writer, calls) in [("one", 5), ("two", 600), ("three", 1)] {
        let ledger = open(folder.path(), writer);
        for n in 0..calls {
            call(&ledger, &format!("{writer}-{n}"), IdempotencyMode::None, (1, 2)).await;
            if n % 100 == 0 {
                checkpoint(&ledger, 3).await;
            }
        }
        ledger.close(moment(4)).await.unwrap();
    }
    let ledger = open(folder.path(), "four");
    sound(&ledger).await;
    for kind in ALL {
        prune(&ledger, &[kind], 9, 10).await;
        sound(&ledger).await;
    }
    assert!(!ledger.pruned_ranges(None, 100).await.unwrap().is_empty(), "events are gone");
    ledger.close(moment(11)).await.unwrap();
    let ledger = open(folder.path(), "five");
    prune(&ledger, &ALL, 12, 13).await;
    sound(&ledger).await;
}
