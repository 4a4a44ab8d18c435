//! Tests that searches of a SQLite store find the same records as a full scan.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)]

use std::path::Path;
use std::sync::Arc;

use rusqlite::Connection;
use toolbooth_audit::conformance::{moment, request, settlement};
use toolbooth_audit::ledger::{Claimed, Ledger};
use toolbooth_audit::reads::{
    EventFilter, FoundId, IdKind, LedgerReads, LogFilter, Page, PlacedEvent, ReceiptFilter,
};
use toolbooth_contracts::contract::IdempotencyMode;
use toolbooth_contracts::event::{AuditEventKind, EventBody};
use toolbooth_contracts::{Effect, ErrorCode};
use toolbooth_store::sqlite::{self, SqliteLedger, SqliteOptions};

const ROUNDS: i64 = 24;
const CALLS: i64 = 6;
/// The notes of all rounds fill two blocks and a part of a third.
const NOTES: i64 = 400;
const ALL: usize = 1_000_000;

/// Returns one of the names, chosen by a number.
fn one_of(names: &[&str], n: i64) -> String {
    names[usize::try_from(n).unwrap() % names.len()].to_owned()
}

/// Returns an id as Toolbooth makes it, or an id that a caller claims.
fn call_id(n: i64) -> String {
    if n % 3 == 0 { format!("claimed-{n}") } else { uuid(n, 1) }
}

fn uuid(n: i64, kind: i64) -> String {
    format!("019b{:04x}-0000-7000-8000-{kind:06x}{n:06x}", n / 8)
}

async fn fill(ledger: &SqliteLedger) {
    for round in 0..ROUNDS {
        for call in 0..CALLS {
            let n = round * CALLS + call;
            let mut asked = request(&call_id(n), IdempotencyMode::None, &[], "x");
            asked.receipt_id = uuid(n, 2);
            asked.tool_id = one_of(&["tool.one", "tool.two", "tool.three"], n);
            asked.caller = one_of(&["ann", "bob"], n / 5);
            asked.at = moment(n * 10);
            asked.dispatched.time = asked.at.text.clone();
            asked.dispatched.tool_name = Some(asked.tool_id.clone());
            asked.dispatched.caller = Some(asked.caller.clone());
            let (tool, caller, receipt) =
                (asked.tool_id.clone(), asked.caller.clone(), asked.receipt_id.clone());
            let Claimed::Fresh(claim) = ledger.claim(asked).await.unwrap() else { panic!("fresh") };
            if n == 17 {
                continue;
            }
            let code = (n % 7 == 0).then_some(ErrorCode::ToolError);
            let mut settled = settlement(claim, IdempotencyMode::None, Effect::Completed, code);
            let own = Arc::get_mut(&mut settled).unwrap();
            own.at = moment(n * 10 + 5);
            own.terminal.time = own.at.text.clone();
            own.terminal.tool_name = Some(tool.clone());
            own.terminal.caller = Some(caller.clone());
            own.terminal.call_id = Some(call_id(n));
            own.terminal.agent_id = Some(one_of(&["a1", "a2", "a3", "a4"], n));
            own.terminal.status = Some(code.map_or(own.status, ErrorCode::status));
            own.terminal.error_code = code;
            let log = Arc::make_mut(&mut own.log);
            log.id = format!("log-{n}");
            log.tool_name = tool;
            log.caller = caller;
            log.call_id = call_id(n);
            log.receipt_id = Some(receipt);
            log.agent_id = own.terminal.agent_id.clone();
            log.error_code = code;
            log.is_error = code.is_some();
            log.timestamp = own.at.text.clone();
            ledger.settle(settled).await.unwrap();
        }
        let note = |n: i64| {
            let mut body = EventBody::new(AuditEventKind::Paused, moment(round * 60 + n % 50).text);
            body.tool_name = Some(one_of(&["tool.four", "tool.one"], n / 300));
            body
        };
        ledger.record_events((0..NOTES).map(note).collect()).await.unwrap();
    }
}

fn filters() -> Vec<EventFilter> {
    let (tool, agent) = (Some("tool.one".to_owned()), Some("a2".to_owned()));
    let of = |filter: EventFilter| EventFilter { limit: 50, ..filter };
    let none = EventFilter::default;
    let (since, until) = (Some(moment(300).text), Some(moment(500).text));
    let mut filters = vec![
        of(none()),
        of(EventFilter { tool: tool.clone(), ..none() }),
        of(EventFilter { tool: Some("tool.never".into()), ..none() }),
        of(EventFilter { agent: agent.clone(), ..none() }),
        of(EventFilter { caller: Some("bob".into()), ..none() }),
        of(EventFilter { code: Some("tool-error".into()), ..none() }),
        of(EventFilter { status: Some("failed".into()), ..none() }),
        of(EventFilter { status: Some("succeeded".into()), tool: tool.clone(), ..none() }),
        of(EventFilter { caller: Some("ann".into()), agent, ..none() }),
        of(EventFilter { since: since.clone(), until: until.clone(), ..none() }),
        of(EventFilter { tool, since, until, ..none() }),
        of(EventFilter { call: Some(call_id(3)), ..none() }),
        of(EventFilter { call: Some(call_id(100)), ..none() }),
        of(EventFilter { call: Some(call_id(17)), ..none() }),
        of(EventFilter { call: Some("claimed-1".into()), ..none() }),
        EventFilter { limit: 0, ..none() },
        EventFilter { limit: ALL, ..none() },
    ];
    let following = filters.clone().into_iter();
    filters.extend(following.map(|filter| EventFilter { after: Some(4_000), ..filter }));
    filters
}

/// Returns the events that a full scan finds for a filter.
fn expected(all: &[PlacedEvent], filter: &EventFilter) -> Vec<PlacedEvent> {
    let is = |placed: &&PlacedEvent| {
        filter.fits(&placed.event) && filter.after.is_none_or(|after| placed.place > after)
    };
    let mut found: Vec<PlacedEvent> = all.iter().filter(is).cloned().collect();
    match filter.after {
        Some(_) => found.truncate(filter.limit),
        None => {
            // The newest by time; equal times are in the order of places.
            found.sort_by(|one, other| {
                (&one.event.body.time, one.place).cmp(&(&other.event.body.time, other.place))
            });
            found.drain(..found.len().saturating_sub(filter.limit));
        }
    }
    found
}

async fn everything(ledger: &SqliteLedger) -> Vec<PlacedEvent> {
    let all = EventFilter { after: Some(0), limit: ALL, ..EventFilter::default() };
    let all = ledger.events(all).await.unwrap().found;
    assert!(all.windows(2).all(|two| two[0].place < two[1].place));
    all
}

async fn events_are_found(ledger: &SqliteLedger) {
    let all = everything(ledger).await;
    assert!(all.len() > 9_000, "{}", all.len());
    for filter in filters() {
        let wanted = expected(&all, &filter);
        assert_eq!(ledger.events(filter.clone()).await.unwrap().found, wanted, "{filter:?}");
    }
}

async fn logs_are_found(ledger: &SqliteLedger) {
    let all = LogFilter { limit: ALL, ..LogFilter::default() };
    let all = ledger.agent_logs(all).await.unwrap().found;
    assert_eq!(all.len() as i64, ROUNDS * CALLS - 1);
    let none = LogFilter::default;
    for filter in [
        LogFilter { caller: Some("ann".into()), limit: 9, ..none() },
        LogFilter { code: Some("tool-error".into()), limit: 9, ..none() },
        LogFilter { error: Some(false), tool: Some("tool.two".into()), limit: 9, ..none() },
        LogFilter { turn: Some(4), limit: 9, ..none() },
        LogFilter { call: Some(call_id(50)), limit: 9, ..none() },
        LogFilter { until: Some(moment(700).text), agent: Some("a1".into()), limit: 9, ..none() },
    ] {
        let mut wanted: Vec<_> = all.iter().filter(|log| filter.fits(log)).cloned().collect();
        wanted.drain(..wanted.len().saturating_sub(filter.limit));
        assert_eq!(ledger.agent_logs(filter.clone()).await.unwrap().found, wanted, "{filter:?}");
    }
    assert_eq!(ledger.agent_log("log-40").await.unwrap().unwrap().call_id, call_id(40));
}

async fn receipts_are_found(ledger: &SqliteLedger) {
    let all = ReceiptFilter { limit: ALL, ..ReceiptFilter::default() };
    let Page { found: all, more, .. } = ledger.receipts(all).await.unwrap();
    assert!(!more && all.len() as i64 == ROUNDS * CALLS);
    let none = ReceiptFilter::default;
    for filter in [
        ReceiptFilter { tool: Some("tool.two".into()), ..none() },
        ReceiptFilter { tool: Some("tool.never".into()), ..none() },
        ReceiptFilter { caller: Some("bob".into()), ..none() },
        ReceiptFilter { state: Some("failed".into()), ..none() },
        ReceiptFilter { state: Some("succeeded".into()), caller: Some("ann".into()), ..none() },
        ReceiptFilter { state: Some("in_flight".into()), ..none() },
        ReceiptFilter {
            tool: Some("tool.three".into()),
            state: Some("in_flight".into()),
            ..none()
        },
        ReceiptFilter { call: Some(call_id(60)), ..none() },
    ] {
        // Reads all pages.
        let (mut found, mut after) = (Vec::new(), None);
        loop {
            let page = ReceiptFilter { limit: 7, after, ..filter.clone() };
            let Page { found: page, more, .. } = ledger.receipts(page).await.unwrap();
            after = page.last().map(|receipt| receipt.receipt_id.clone());
            found.extend(page);
            if !more {
                break;
            }
        }
        let wanted: Vec<_> = all.iter().filter(|receipt| filter.fits(receipt)).cloned().collect();
        assert_eq!(found, wanted, "{filter:?}");
    }
}

async fn ids_are_found(ledger: &SqliteLedger) {
    let one = |kind, id: String| FoundId { kind, id };
    for (prefix, wanted) in [
        (call_id(100).as_str(), vec![one(IdKind::Call, call_id(100))]),
        (&call_id(141)[..], vec![one(IdKind::Call, call_id(141))]),
        (
            "claimed-10",
            (100..110).filter(|n| n % 3 == 0).map(|n| one(IdKind::Call, call_id(n))).collect(),
        ),
        ("019b0002-0000-7000-8000-000002000013", vec![one(IdKind::Receipt, uuid(19, 2))]),
        (
            "019b0002-0000-7000-8000-00000200001",
            (16..24).map(|n| one(IdKind::Receipt, uuid(n, 2))).collect(),
        ),
        ("019B", vec![]),
        ("019b0002-", {
            let ids = (16..24)
                .flat_map(|n| [(n, IdKind::Call, call_id(n)), (n, IdKind::Receipt, uuid(n, 2))]);
            ids.filter(|(_, _, id)| id.starts_with("019b"))
                .map(|(_, kind, id)| one(kind, id))
                .collect()
        }),
        ("nothing", vec![]),
    ] {
        let mut found = ledger.named(prefix, 100).await.unwrap();
        let mut wanted = wanted;
        for all in [&mut found, &mut wanted] {
            all.sort_by(|one, other| one.id.cmp(&other.id));
        }
        assert_eq!(found, wanted, "{prefix}");
        assert_eq!(ledger.named(prefix, 1).await.unwrap().len(), wanted.len().min(1));
    }
}

async fn all_is_found(ledger: &SqliteLedger) {
    events_are_found(ledger).await;
    logs_are_found(ledger).await;
    receipts_are_found(ledger).await;
    ids_are_found(ledger).await;
}

fn change(folder: &Path, sql: &str) -> usize {
    let connection = Connection::open(folder.join("lookup.db")).unwrap();
    connection.busy_timeout(std::time::Duration::from_secs(5)).unwrap();
    connection.execute(sql, []).unwrap()
}

#[tokio::test]
async fn a_filter_finds_what_looking_through_everything_finds() {
    let folder = tempfile::tempdir().unwrap();
    let open = |writer: &str| {
        sqlite::open(folder.path(), writer, SqliteOptions::default(), &moment(0)).unwrap()
    };
    let ledger = open("one");
    fill(&ledger).await;
    all_is_found(&ledger).await;
    ledger.close(moment(9_000)).await.unwrap();
    drop(ledger);

    // An index of an earlier version, or a damaged one, is rebuilt.
    for damage in [
        "PRAGMA user_version = 3",
        "UPDATE blocks SET entries = zeroblob(100)",
        "UPDATE ids SET ids = zeroblob(3)",
        "DELETE FROM ids",
    ] {
        change(folder.path(), damage);
        let reads = sqlite::SqliteReads::open(&folder.path().join(sqlite::DATABASE)).unwrap();
        let call = EventFilter { call: Some(call_id(4)), limit: 9, ..EventFilter::default() };
        let first = reads.events(call.clone()).await;
        let second = reads.events(call).await.unwrap().found;
        assert_eq!(second.len(), 2, "{damage}");
        assert!(first.is_err() || first.unwrap().found == second, "{damage}");
        drop(reads);
    }
    all_is_found(&open("two")).await;
}
