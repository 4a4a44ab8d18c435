//! Cases about what is read back, pruned and signed.

use std::sync::Arc;

use toolbooth_contracts::contract::IdempotencyMode;
use toolbooth_contracts::event::{AuditEventKind, EventBody};
use toolbooth_contracts::{Effect, ErrorCode};

use super::fixtures::{fresh, log, moment, request, settlement};
use crate::checkpoint::Due;
use crate::ledger::{Claimed, Ledger, Prune, PruneKind, Pruned, Refusal};
use crate::note::{self, Signer};
use crate::proof::{self, Proof, ProofError};
use crate::reads::{EventFilter, LedgerReads, LogFilter, Page, ReceiptFilter};
use crate::verify::{self, TrustAnchors};

/// Checks that written records are read back unchanged and verify.
pub async fn records_are_read_back_and_verify<L: Ledger + LedgerReads>(ledger: &L) {
    let mode = IdempotencyMode::OnKey;
    let claim = fresh(ledger, request("v1", mode, &["v"], "args")).await;
    let receipt =
        ledger.settle(settlement(claim, mode, Effect::Completed, None)).await.expect("settles");
    let mut terminal = EventBody::new(AuditEventKind::UnknownTool, moment(3).text);
    terminal.call_id = Some("v2".into());
    terminal.error_code = Some(ErrorCode::UnregisteredTool);
    let refused = log("v2", Some(ErrorCode::UnregisteredTool));
    ledger
        .refuse(Refusal { log: Arc::new(refused.clone()), documents: Vec::new(), terminal })
        .await
        .expect("is recorded");
    let recorded = EventBody::new(AuditEventKind::RegistryLoaded, moment(4).text);
    ledger.record_events(vec![recorded]).await.expect("is recorded");

    assert_eq!(ledger.receipt("receipt-v1").await.expect("reads").as_ref(), Some(&*receipt));
    let all = ledger
        .receipts(ReceiptFilter { limit: 10, ..ReceiptFilter::default() })
        .await
        .expect("reads");
    assert_eq!(all, Page::of(vec![(*receipt).clone()]));
    let logs = ledger
        .agent_logs(LogFilter { error: Some(true), limit: 10, ..LogFilter::default() })
        .await
        .expect("reads");
    assert_eq!(logs, Page::of(vec![refused]));
    let one = ledger.agent_log("log-v1").await.expect("reads").expect("is there");
    assert_eq!((one.receipt_id.as_deref(), one.attempt), (Some("receipt-v1"), 1));
    let events = ledger
        .events(EventFilter { call: Some("v1".into()), limit: 10, ..EventFilter::default() })
        .await
        .expect("reads")
        .found;
    let kinds: Vec<&str> = events.iter().map(|placed| placed.event.body.event.as_str()).collect();
    assert_eq!(kinds, ["TOOL_DISPATCHED", "TOOL_EXECUTED"]);
    let newest =
        ledger.events(EventFilter { limit: 1, ..EventFilter::default() }).await.expect("reads");
    assert_eq!(
        newest.found.first().map(|placed| placed.event.body.event),
        Some(AuditEventKind::RegistryLoaded)
    );
    let report = verify::store(ledger, TrustAnchors::default()).await.expect("reads");
    assert!(report.ok && report.events == 5, "{report:?}");
}

/// Checks that pruning removes old records, and that held keys stay held.
pub async fn pruned_keys_never_run_again<L: Ledger + LedgerReads>(ledger: &L) {
    let mode = IdempotencyMode::Keyed;
    for (call, key) in [("q1", Some("q")), ("q2", None)] {
        let keys: Vec<&str> = key.into_iter().collect();
        let mode = key.map_or(IdempotencyMode::None, |_| mode);
        let claim = fresh(ledger, request(call, mode, &keys, "args")).await;
        ledger.settle(settlement(claim, mode, Effect::Completed, None)).await.expect("settles");
    }
    let doubt = fresh(ledger, request("q3", mode, &["doubt"], "args")).await;
    let unknown = settlement(doubt, mode, Effect::Unknown, Some(ErrorCode::Timeout));
    ledger.settle(unknown).await.expect("settles");
    let prune = |kind: PruneKind, before: i64| Prune {
        kind,
        before: moment(before).text,
        at: moment(9),
        windows: Vec::new(),
    };
    let nothing = ledger.prune(prune(PruneKind::Receipts, 1)).await.expect("prunes");
    assert_eq!(nothing, Pruned::default(), "nothing is that old");
    let done = ledger.prune(prune(PruneKind::Receipts, 8)).await.expect("prunes");
    assert_eq!(done, Pruned { removed: 1, tombstones: 1, more: false });
    let logs = ledger.prune(prune(PruneKind::Logs, 8)).await.expect("prunes");
    assert_eq!(logs.removed, 3);
    let again = ledger.prune(prune(PruneKind::Receipts, 8)).await.expect("prunes");
    assert_eq!(again, Pruned::default(), "a tombstone stays");
    assert!(ledger.receipt("receipt-q2").await.expect("reads").is_none());
    let replay = ledger.claim(request("q4", mode, &["q"], "args")).await.expect("answers");
    let Claimed::Replay { receipt, .. } = replay else { panic!("held, got {replay:?}") };
    assert!(receipt.result.is_none() && receipt.pruned_at.is_some(), "{receipt:?}");
    let report = verify::store(ledger, TrustAnchors::default()).await.expect("reads");
    assert!(report.ok, "{report:?}");
}

/// Checks that checkpoints are signed when due, cover the log, and allow proofs of its events.
pub async fn checkpoints_are_signed_and_proven<L: Ledger + LedgerReads>(ledger: &L) {
    let mode = IdempotencyMode::None;
    let due = Due { events: 3, age_ms: 1_000_000_000 };
    assert_eq!(ledger.checkpoint(due, moment(1)).await.expect("answers"), None, "not due");
    let claim = fresh(ledger, request("k1", mode, &[], "args")).await;
    ledger.settle(settlement(claim, mode, Effect::Completed, None)).await.expect("settles");
    let missing = proof::inclusion(ledger, "k1").await;
    assert!(matches!(missing, Err(ProofError::Missing(_))), "got {missing:?}");
    let first = ledger.checkpoint(due, moment(2)).await.expect("answers").expect("is due");
    assert_eq!(ledger.checkpoint(due, moment(2)).await.expect("answers"), None, "covered");
    let claim = fresh(ledger, request("k2", mode, &[], "args")).await;
    ledger.settle(settlement(claim, mode, Effect::Completed, None)).await.expect("settles");
    let second = ledger.checkpoint(Due::NOW, moment(3)).await.expect("answers").expect("is due");
    let started = ledger.events(EventFilter { limit: 100, ..EventFilter::default() }).await;
    let key = started.expect("reads").found.first().and_then(|placed| {
        let facts = placed.event.body.facts.as_ref()?;
        note::PublicKey::parse(facts.get("signingKey")?.as_str()?).ok()
    });
    let key = key.expect("the first event names the key");
    for call in ["k1", "k2"] {
        let proof = proof::inclusion(ledger, call).await.expect("is covered");
        let said = proof.check(&key).expect("holds");
        assert!(said.contains(call), "{said}");
    }
    let proof = proof::consistency(ledger, &first, &second).await.expect("is proven");
    proof.check(&key).expect("holds");
    let backwards = Proof::Consistency { first: second.clone(), second: first, hashes: Vec::new() };
    assert!(backwards.check(&key).is_err());
    let known = TrustAnchors { keys: vec![key], notes: vec![second], ..TrustAnchors::default() };
    let report = verify::store(ledger, known).await.expect("reads");
    assert!(report.ok, "{report:?}");
    let other = Signer::new(&[9; 32]);
    let known = TrustAnchors { keys: vec![other.verifier()], ..TrustAnchors::default() };
    let report = verify::store(ledger, known).await.expect("reads");
    assert!(report.problems.iter().all(|problem| problem.kind == "signature"), "{report:?}");
    assert!(!report.ok, "checkpoints by another key are no proof");
}
