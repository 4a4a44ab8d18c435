//! A store with a row of every kind.

use std::sync::Arc;

use toolbooth_contracts::charge::{Charge, budget_of_caller, budget_of_epic};
use toolbooth_contracts::contract::IdempotencyMode;
use toolbooth_contracts::order::PauseTarget;
use toolbooth_contracts::{Effect, ErrorCode, Identity};

use super::fixtures::{fresh, moment, request, settle_late, settlement};
use super::{approvals, history};
use crate::checkpoint::Due;
use crate::ledger::{Ledger, Moment, Prune, PruneKind, Refusal};
use crate::orders::{OrderChange, OrderRequest};
use crate::queue::{CallQueue, QueuedCall};
use crate::reads::LedgerReads;

/// Fills a store with a row of every kind, through two writers that `open` returns by name and
/// time.
pub async fn every_kind_of_row<L: Ledger + LedgerReads + CallQueue>(
    open: impl AsyncFn(&str, i64) -> L,
) {
    let mode = IdempotencyMode::Keyed;
    let first = open("one", 0).await;
    for (call, keys) in [("old", &["k-old"][..]), ("bare", &[][..])] {
        let claim = fresh(&first, request(call, mode, keys, "args")).await;
        first.settle(settlement(claim, mode, Effect::Completed, None)).await.expect("settles");
    }
    let prune = Prune {
        kind: PruneKind::Receipts,
        before: moment(9).text,
        at: moment(10),
        windows: Vec::new(),
    };
    first.prune(prune).await.expect("prunes");
    for call in ["a", "b"] {
        let mut asked = request(call, mode, &[&format!("k-{call}")], "args");
        if call == "a" {
            asked.counted = history::in_two_windows();
        }
        settle_late(&first, fresh(&first, asked).await).await;
    }
    let doubt = fresh(&first, request("doubt", mode, &["k-doubt"], "args")).await;
    let unknown = settlement(doubt, mode, Effect::Unknown, Some(ErrorCode::Timeout));
    first.settle(unknown).await.expect("settles");
    let left = fresh(&first, request("refused", mode, &[], "args")).await;
    let refused = settlement(left, mode, Effect::NotStarted, None);
    let refusal = Refusal {
        log: Arc::clone(&refused.log),
        documents: Vec::new(),
        terminal: refused.terminal.clone(),
    };
    first.refuse(refusal).await.expect("records");
    approvals::fill(&first).await;
    let mut limited = request("limited", mode, &[], "args");
    limited.charges = vec![
        Charge::Rate { per_min: 5 },
        Charge::Budget { key: budget_of_caller("a"), units: 3, limit: 100 },
        Charge::Budget { key: budget_of_epic("a", None), units: 3, limit: 100 },
    ];
    // On a day whose events the pruning below does not reach.
    limited.at = Moment {
        text: "2026-01-05T00:00:00.001Z".to_owned(),
        epoch_ms: moment(1).epoch_ms + 4 * 86_400_000,
    };
    settle_late(&first, fresh(&first, limited).await).await;
    // The identity says more than the name, so that it is stored.
    let caller = Identity { groups: vec!["interns".to_owned()], ..Identity::local() };
    for call in ["queued", "done", "waiting"] {
        let queued = QueuedCall::new(call.into(), &caller, "{}".into(), &moment(3));
        first.enqueue(queued, 10).await.expect("is taken");
    }
    let taken = first.take(Vec::new()).await.expect("answers").expect("one waits");
    let answer = "{\"status\":\"succeeded\"}".to_owned();
    first.finish("local", &taken.call_id, answer, moment(4)).await.expect("finishes");
    first.take(Vec::new()).await.expect("answers").expect("one waits");
    for name in ["intern", "gone"] {
        let change = OrderChange::CreateKey {
            name: name.to_owned(),
            digest: name.to_owned(),
            groups: vec!["interns".to_owned()],
            expires_at: Some(moment(1_000_000).text),
        };
        let request = OrderRequest { change, by: "operator".to_owned(), at: moment(4) };
        first.order(request).await.expect("is recorded");
    }
    let revoke = OrderChange::RevokeKey { name: "gone".to_owned() };
    let pause =
        OrderChange::Pause { target: PauseTarget::All, cancel_running: false, reason: None };
    for change in [revoke, pause] {
        let request = OrderRequest { change, by: "operator".to_owned(), at: moment(5) };
        first.order(request).await.expect("is recorded");
    }
    let _running = fresh(&first, request("running", mode, &["k-running"], "args")).await;
    first.close(moment(11)).await.expect("closes");
    let second = open("two", 20).await;
    settle_late(&second, fresh(&second, request("second", mode, &["k-second"], "args")).await)
        .await;
    let _running = fresh(&second, request("going", mode, &["k-going"], "args")).await;
    second.checkpoint(Due::NOW, moment(21)).await.expect("signs").expect("is due");
    settle_late(&second, fresh(&second, request("late", mode, &["k-late"], "args")).await).await;
    let prune = Prune {
        kind: PruneKind::Events,
        before: moment(15).text,
        at: moment(22),
        windows: Vec::new(),
    };
    while second.prune(prune.clone()).await.expect("prunes").more {}
}
