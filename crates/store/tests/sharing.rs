//! Tests several writers on one SQLite file: claims that another writer changes, and searches.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)]

use toolbooth_audit::LedgerReads;
use toolbooth_audit::conformance::{moment, request, settlement};
use toolbooth_audit::ledger::{Claimed, Ledger};
use toolbooth_audit::reads::{EventFilter, LogFilter};
use toolbooth_audit::verify::{self, TrustAnchors};
use toolbooth_contracts::Effect;
use toolbooth_contracts::contract::IdempotencyMode;
use toolbooth_contracts::event::{AuditEventKind, EventBody};
use toolbooth_contracts::receipt::ClaimState;
use toolbooth_store::sqlite::{self, OpenError, SqliteLedger, SqliteOptions};

fn open(folder: &std::path::Path, writer: &str) -> SqliteLedger {
    sqlite::open(folder, writer, SqliteOptions::default(), &moment(0)).unwrap()
}

#[tokio::test]
async fn what_others_did_to_a_claim_is_seen_when_it_is_settled() {
    let folder = tempfile::tempdir().unwrap();
    let (first, second) = (open(folder.path(), "one"), open(folder.path(), "two"));
    let mode = IdempotencyMode::Keyed;
    let claimed = first.claim(request("a", mode, &["k"], "x")).await.unwrap();
    let Claimed::Fresh(claim) = claimed else { panic!("fresh") };
    // Without its lock file, the live writer counts as lost.
    std::fs::remove_file(folder.path().join("writers/one.lock")).unwrap();
    assert_eq!(second.sweep(moment(5)).await.unwrap().len(), 1);
    let settled = first.settle(settlement(claim, mode, Effect::Completed, None)).await.unwrap();
    assert_eq!(settled.state, ClaimState::Succeeded);
    let filter = EventFilter { call: Some("a".into()), limit: 10, ..EventFilter::default() };
    let kinds: Vec<AuditEventKind> = first
        .events(filter)
        .await
        .unwrap()
        .found
        .into_iter()
        .map(|placed| placed.event.body.event)
        .collect();
    assert!(kinds.contains(&AuditEventKind::ToolSettledLate), "{kinds:?}");
    assert!(verify::store(&first, TrustAnchors::default()).await.unwrap().ok);
}

#[tokio::test]
async fn searching_tells_the_newest_by_time_also_after_its_file_was_made_anew() {
    let folder = tempfile::tempdir().unwrap();
    let (first, second) = (open(folder.path(), "one"), open(folder.path(), "two"));
    // The events of both writers alternate.
    for n in 1..=6 {
        let mut event = EventBody::new(AuditEventKind::Paused, moment(n * 1_000).text);
        event.tool_name = Some("tool.one".into());
        event.call_id = Some(format!("c{n}"));
        let ledger = if n % 2 == 1 { &first } else { &second };
        ledger.record_events(vec![event]).await.unwrap();
    }
    let newest = || async {
        let tool = Some("tool.one".to_owned());
        let filter = EventFilter { tool, limit: 3, ..EventFilter::default() };
        let events = first.events(filter).await.unwrap().found;
        events.into_iter().map(|placed| placed.event.body.call_id.unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(newest().await, ["c4", "c5", "c6"]);
    drop(second);
    for suffix in ["", "-wal", "-shm"] {
        let _ = std::fs::remove_file(folder.path().join(format!("lookup.db{suffix}")));
    }
    let third = open(folder.path(), "three");
    let tool = Some("tool.one".to_owned());
    let filter = EventFilter { tool, limit: 3, ..EventFilter::default() };
    let events = third.events(filter).await.unwrap().found;
    let calls: Vec<String> =
        events.into_iter().map(|placed| placed.event.body.call_id.unwrap()).collect();
    assert_eq!(calls, ["c4", "c5", "c6"]);
    let logs =
        third.agent_logs(LogFilter { limit: 3, ..LogFilter::default() }).await.unwrap().found;
    assert!(logs.is_empty());
}

#[tokio::test]
async fn an_id_that_was_used_is_refused_and_its_writer_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let again = |writer: &str| {
        sqlite::open(folder.path(), writer, SqliteOptions::default(), &moment(1)).unwrap_err()
    };
    let (first, second) = (open(folder.path(), "one"), open(folder.path(), "two"));
    let mode = IdempotencyMode::Keyed;
    let claimed = first.claim(request("a", mode, &["k"], "x")).await.unwrap();
    assert!(matches!(claimed, Claimed::Fresh(_)));
    assert!(matches!(again("one"), OpenError::WriterUsed { .. }));
    // The first writer is alive for the others still.
    assert!(second.sweep(moment(5)).await.unwrap().is_empty());
    let duplicate = second.claim(request("b", mode, &["k"], "x")).await.unwrap();
    assert!(matches!(duplicate, Claimed::InFlight { .. }), "{duplicate:?}");
    // A log that has ended has its id for good.
    first.close(moment(6)).await.unwrap();
    drop(first);
    assert!(matches!(again("one"), OpenError::WriterUsed { .. }));
    for none in ["", "../up", "a/b", "a\nb", ".hidden", "ä", &"x".repeat(129)] {
        assert!(matches!(again(none), OpenError::WriterId { .. }), "{none:?}");
    }
    assert!(verify::store(&second, TrustAnchors::default()).await.unwrap().ok);
}
