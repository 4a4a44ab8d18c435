//! Cases about the documents that logs name.

use std::sync::Arc;

use toolbooth_contracts::Effect;
use toolbooth_contracts::contract::IdempotencyMode;

use super::fixtures::{assert_sound, document, naming};
use super::{fresh, moment, request, settlement};
use crate::ledger::{Ledger, Moment, Prune, PruneKind, Refusal};
use crate::reads::LedgerReads;

const DAY_MS: i64 = 86_400_000;

/// Returns the moment at the beginning of a day of January 2026, from 1.
fn day(day: i64) -> Moment {
    let text = format!("2026-01-{day:02}T00:00:00.000Z");
    Moment { text, epoch_ms: moment(0).epoch_ms + (day - 1) * DAY_MS }
}

/// Settles a call at a time, with a log that names a contract and the policy. `is_handed_over`: whether the
/// documents are given, as a process does that does not remember the store's having them.
async fn settle_as<L: Ledger>(
    ledger: &L,
    call: &str,
    contract: &str,
    at: &Moment,
    is_handed_over: bool,
) {
    let mode = IdempotencyMode::None;
    let claim = fresh(ledger, request(call, mode, &[], "args")).await;
    let mut settled = settlement(claim, mode, Effect::Completed, None);
    if let Some(own) = Arc::get_mut(&mut settled) {
        naming(own, document(contract, at), document("policy", at), at);
        if !is_handed_over {
            own.documents.clear();
        }
        own.at = at.clone();
        own.terminal.time.clone_from(&at.text);
    }
    ledger.settle(settled).await.expect("settles");
}

async fn settle<L: Ledger>(ledger: &L, call: &str, contract: &str, at: &Moment) {
    settle_as(ledger, call, contract, at, true).await;
}

/// Checks that a document outlives all logs of a process that remembers having handed it over.
pub async fn are_kept_for_processes_that_remember_them<L: Ledger + LedgerReads>(ledger: &L) {
    let hour = |hour: i64| Moment {
        text: format!("2026-01-{:02}T{:02}:00:00.000Z", 1 + hour / 24, hour % 24),
        epoch_ms: moment(0).epoch_ms + hour * 3_600_000,
    };
    settle(ledger, "m1", "one", &hour(0)).await;
    // Another process hands it over, and remembers that for twelve hours.
    settle(ledger, "m2", "one", &hour(23)).await;
    settle_as(ledger, "m3", "one", &hour(34), false).await;
    for kind in [PruneKind::Logs, PruneKind::Documents] {
        let prune = Prune { kind, before: hour(33).text, at: hour(40), windows: Vec::new() };
        ledger.prune(prune).await.expect("prunes");
    }
    assert!(ledger.document(&document("one", &hour(0)).digest).await.expect("reads").is_some());
    assert_sound(ledger).await;
}

/// Checks that documents are kept with the logs that name them, each once, and are removed after the last of
/// these.
pub async fn are_kept_as_long_as_a_log_names_them<L: Ledger + LedgerReads>(ledger: &L) {
    settle(ledger, "d1", "one", &day(1)).await;
    settle(ledger, "d2", "two", &day(1)).await;
    settle(ledger, "d3", "two", &day(5)).await;
    let refused = fresh(ledger, request("d4", IdempotencyMode::None, &[], "args")).await;
    let mut refused = settlement(refused, IdempotencyMode::None, Effect::NotStarted, None);
    if let Some(own) = Arc::get_mut(&mut refused) {
        naming(own, document("three", &day(9)), document("policy", &day(9)), &day(9));
    }
    let (log, documents) = (Arc::clone(&refused.log), refused.documents.clone());
    let refusal = Refusal { log, documents, terminal: refused.terminal.clone() };
    ledger.refuse(refusal).await.expect("is recorded");
    let left = async || {
        let mut left = Vec::new();
        for content in ["one", "two", "three", "policy"] {
            let wanted = document(content, &day(1));
            let found = ledger.document(&wanted.digest).await.expect("reads");
            assert!(found.as_ref().is_none_or(|text| **text == *wanted.text), "{found:?}");
            left.extend(found.map(|_| content));
        }
        left
    };
    assert_eq!(left().await, ["one", "two", "three", "policy"]);
    let page = ledger.document_page(None, 3).await.expect("reads");
    let rest = ledger.document_page(page.last().map(|raw| raw.digest.clone()), 3).await;
    assert_eq!((page.len(), rest.expect("reads").len()), (3, 1));
    assert_eq!(ledger.document("").await.expect("reads"), None);
    assert_sound(ledger).await;
    let prune = async |kind: PruneKind, before: i64| {
        let prune = Prune { kind, before: day(before).text, at: day(20), windows: Vec::new() };
        ledger.prune(prune).await.expect("prunes").removed
    };
    // None is removed before all logs of its time are.
    assert_eq!(prune(PruneKind::Documents, 4).await, 0);
    assert_eq!(prune(PruneKind::Logs, 4).await, 2);
    // A use counts for a day: a process does not state each.
    assert_eq!(prune(PruneKind::Documents, 2).await, 0);
    assert_eq!(prune(PruneKind::Documents, 4).await, 1);
    assert_eq!(left().await, ["two", "three", "policy"]);
    assert_sound(ledger).await;
    assert_eq!(prune(PruneKind::Logs, 9).await, 1);
    assert_eq!(prune(PruneKind::Documents, 9).await, 1);
    assert_eq!(left().await, ["three", "policy"]);
    assert_sound(ledger).await;
    assert_eq!((prune(PruneKind::Logs, 19).await, prune(PruneKind::Documents, 19).await), (1, 2));
    assert_eq!(left().await, [""; 0]);
    assert_sound(ledger).await;
}
