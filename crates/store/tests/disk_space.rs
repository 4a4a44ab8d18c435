//! Tests a store that runs out of space: which records are removed, which stay, and when calls are
//! refused.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)]

use std::sync::Arc;

use rusqlite::Connection;
use serde_json::json;
use toolbooth_audit::LedgerError;
use toolbooth_audit::backend::disk_space::DiskSpace;
use toolbooth_audit::backend::recorder::StepRunner;
use toolbooth_audit::conformance::{moment, request, settlement};
use toolbooth_audit::digest::sha256_hex;
use toolbooth_audit::ledger::{
    ClaimRequest, Claimed, Ledger, Prune, PruneKind, Pruned, Refusal, Settlement,
};
use toolbooth_audit::queue::{CallQueue, QueuedCall};
use toolbooth_audit::reads::{EventFilter, LedgerReads, LogFilter, ReceiptFilter};
use toolbooth_audit::verify::{self, TrustAnchors};
use toolbooth_contracts::contract::IdempotencyMode;
use toolbooth_contracts::event::AuditEventKind;
use toolbooth_contracts::json::JsonText;
use toolbooth_contracts::{ContentBlock, Effect, Identity};
use toolbooth_store::sqlite::{self, DATABASE, SqliteLedger, SqliteOptions, StoreFolder};

const BYTES_MAX: u64 = 4 << 20;

/// Returns text that compresses badly.
fn text(seed: usize) -> String {
    (0..128).map(|n| sha256_hex(format!("{seed} {n}").as_bytes())).collect()
}

fn asked(call: usize) -> ClaimRequest {
    let key = sha256_hex(call.to_string().as_bytes());
    request(&format!("c{call}"), IdempotencyMode::Keyed, &[&key], "args")
}

/// Returns the settlement of a call, with a large input in its log or a large result in its
/// receipt.
fn settled(claimed: Claimed, (input, result): (Option<String>, Option<String>)) -> Arc<Settlement> {
    let Claimed::Fresh(claim) = claimed else { panic!("{claimed:?}") };
    let mut settled = settlement(claim, IdempotencyMode::Keyed, Effect::Completed, None);
    let own = Arc::get_mut(&mut settled).unwrap();
    let log = Arc::make_mut(&mut own.log);
    log.input = input.map(|text| JsonText::of(&json!({ "text": text })).unwrap());
    log.receipt_id = Some(own.claim.receipt_id().to_owned());
    own.terminal.receipt_id = log.receipt_id.clone();
    own.result.as_mut().unwrap().content = result.into_iter().map(ContentBlock::text).collect();
    settled
}

fn refusal(call: usize) -> Refusal {
    let mut log = toolbooth_audit::conformance::log(&format!("r{call}"), None);
    log.input = JsonText::of(&json!({ "text": text(call) })).ok();
    let mut terminal =
        toolbooth_contracts::event::EventBody::new(AuditEventKind::PolicyDenied, moment(2).text);
    terminal.call_id = Some(log.call_id.clone());
    Refusal { log: Arc::new(log), documents: Vec::new(), terminal }
}

/// Returns the numbers of agent logs of refusals and of calls.
async fn logs(ledger: &SqliteLedger) -> (usize, usize) {
    let filter = LogFilter { limit: 100_000, ..LogFilter::default() };
    let logs = ledger.agent_logs(filter).await.unwrap().found;
    let refusals = logs.iter().filter(|log| log.receipt_id.is_none()).count();
    (refusals, logs.len() - refusals)
}

async fn receipts(ledger: &SqliteLedger) -> usize {
    let filter = ReceiptFilter { limit: 100_000, ..ReceiptFilter::default() };
    ledger.receipts(filter).await.unwrap().found.len()
}

async fn sound(ledger: &SqliteLedger) {
    let report = verify::store(ledger, TrustAnchors::default()).await.unwrap();
    assert!(report.ok, "{report:?}");
}

/// Returns the number of agent logs that events report as removed for lack of space, and the kinds
/// that they name.
async fn told(ledger: &SqliteLedger) -> (u64, Vec<String>) {
    let filter = EventFilter { limit: 100_000, ..EventFilter::default() };
    let (mut count, mut kinds) = (0, Vec::new());
    for placed in ledger.events(filter).await.unwrap().found {
        if placed.event.body.event == AuditEventKind::PayloadsDropped {
            let facts = placed.event.body.facts.unwrap();
            assert!(facts["until"].as_u64().is_some(), "{facts:?}");
            count += facts["count"].as_u64().unwrap();
            kinds.push(facts["kind"].as_str().unwrap().to_owned());
        }
    }
    (count, kinds)
}

fn is_full<T>(answer: Result<T, LedgerError>) -> bool {
    matches!(answer, Err(LedgerError::Unavailable { reason, .. }) if reason.contains("full"))
}

#[tokio::test]
async fn logs_give_way_and_then_calls_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let options = SqliteOptions { bytes_max: Some(BYTES_MAX), ..SqliteOptions::default() };
    let ledger = sqlite::open(folder.path(), "one", options, &moment(0)).unwrap();
    assert_eq!(ledger.free_space(moment(1)).await.unwrap(), 0, "there is space");
    let mut call = 0;
    while ledger.runner().disk_space() == DiskSpace::Enough {
        call += 1;
        let claimed = ledger.claim(asked(call)).await.unwrap();
        ledger.settle(settled(claimed, (Some(text(call)), None))).await.unwrap();
        if call % 3 == 0 {
            ledger.refuse(refusal(call)).await.unwrap();
        }
    }
    // Another process measures the same.
    let data = StoreFolder::create(folder.path()).unwrap();
    assert_ne!(sqlite::space_state(&data, Some(BYTES_MAX)).unwrap(), DiskSpace::Enough);
    assert_eq!(sqlite::space_state(&data, Some(BYTES_MAX / 2)).unwrap(), DiskSpace::Full);
    assert_eq!(sqlite::space_state(&data, Some(u64::MAX)).unwrap(), DiskSpace::Enough);
    let (refusals, others) = logs(&ledger).await;
    assert!(refusals > 10 && others == call, "{refusals} {others}");
    let removed = ledger.free_space(moment(3)).await.unwrap();
    assert!(removed as usize >= refusals, "{removed}");
    assert_eq!(ledger.runner().disk_space(), DiskSpace::Enough);
    let (left, others) = logs(&ledger).await;
    assert_eq!((left, others + removed as usize - refusals), (0, call), "refusals go first");
    sound(&ledger).await;
    let (dropped, kinds) = told(&ledger).await;
    assert_eq!(
        (dropped, kinds.iter().any(|kind| kind == "refusals")),
        (removed, true),
        "{kinds:?}"
    );
    let more = ledger.free_space(moment(4)).await.unwrap();
    assert_eq!(more, 0, "no more goes than has to");

    // Verification reports a removed log as missing if no event reports its removal.
    ledger.refuse(refusal(call)).await.unwrap();
    let copy = folder.path().join("copy.db");
    let connection = Connection::open(folder.path().join(DATABASE)).unwrap();
    connection.execute("VACUUM INTO ?1", [copy.to_str().unwrap()]).unwrap();
    let changed = Connection::open(&copy).unwrap();
    changed
        .execute("DELETE FROM agent_logs WHERE place = (SELECT max(place) FROM agent_logs)", [])
        .unwrap();
    let reads = sqlite::SqliteReads::open(&copy).unwrap();
    let report = verify::store(&reads, TrustAnchors::default()).await.unwrap();
    assert!(report.problems.iter().any(|problem| problem.kind == "log-missing"), "{report:?}");

    // Receipts are never removed to free space, so calls are refused in the end.
    let running = ledger.claim(asked(usize::MAX)).await.unwrap();
    let refused = loop {
        call += 1;
        match ledger.claim(asked(call)).await {
            Ok(claimed) => {
                let own = (Some(text(call)), Some(text(call)));
                ledger.settle(settled(claimed, own)).await.unwrap();
            }
            Err(error) => break error,
        }
        if call % 50 == 0 {
            ledger.free_space(moment(5)).await.unwrap();
        }
    };
    assert!(is_full(Err::<(), _>(refused)));
    ledger.free_space(moment(6)).await.unwrap();
    while !is_full(ledger.runner().healthy()) {
        call += 1;
        if let Ok(claimed) = ledger.claim(asked(call)).await {
            ledger.settle(settled(claimed, (None, Some(text(call))))).await.unwrap();
        }
        ledger.free_space(moment(6)).await.unwrap();
    }
    assert_eq!(logs(&ledger).await.1, 0, "all that could give way has");
    assert!(is_full(ledger.claim(asked(0)).await));
    assert!(is_full(ledger.refuse(refusal(0)).await));
    let queued = QueuedCall::new("q".into(), &Identity::local(), "{}".into(), &moment(1));
    assert!(is_full(ledger.enqueue(queued, 10).await));
    let again = ledger.claim(asked(1)).await.unwrap();
    assert!(matches!(again, Claimed::Replay { .. }), "what is known is told");
    ledger.settle(settled(running, (None, None))).await.unwrap();
    sound(&ledger).await;
    let kept = receipts(&ledger).await;
    let size = std::fs::metadata(folder.path().join(DATABASE)).unwrap().len();
    assert!(size < BYTES_MAX + (1 << 20), "{size} bytes, {kept} receipts");

    // An operator prunes receipts.
    let prune = Prune {
        kind: PruneKind::Receipts,
        before: moment(9).text,
        at: moment(10),
        windows: Vec::new(),
    };
    while ledger.prune(prune.clone()).await.unwrap() != Pruned::default() {}
    ledger.free_space(moment(11)).await.unwrap();
    assert_eq!(ledger.runner().disk_space(), DiskSpace::Enough);
    let claimed = ledger.claim(asked(0)).await.unwrap();
    ledger.settle(settled(claimed, (None, None))).await.unwrap();
    assert!(matches!(ledger.claim(asked(1)).await.unwrap(), Claimed::Replay { .. }), "keys stay");
    sound(&ledger).await;
}
