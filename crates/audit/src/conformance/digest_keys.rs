//! A digest key that another writer has added to the store.

use toolbooth_contracts::contract::IdempotencyMode;
use toolbooth_contracts::{Effect, Identity};

use super::fixtures::{moment, request, settlement};
use crate::ledger::{Claimed, Ledger, LedgerError};
use crate::queue::{CallQueue, QueuedCall};
use crate::reads::LedgerReads;

/// Checks that a writer makes no claims and takes no calls of the queue once another writer has added a digest key
/// that it does not have, and still settles. `open_newer` opens a second writer of the same store with both keys.
///
/// # Panics
/// If it does.
pub async fn added_digest_key<L: Ledger + CallQueue + LedgerReads>(
    earlier: &L,
    open_newer: impl AsyncFnOnce() -> L,
) {
    let mode = IdempotencyMode::OnKey;
    let own = |text: &str| earlier.digester().of_parts(&[text]);
    let claim = earlier.claim(request("begun", mode, &[&own("begun")], "x")).await;
    let Ok(Claimed::Fresh(begun)) = claim else { panic!("fresh: {claim:?}") };
    let newer = open_newer().await;
    let keys: Vec<String> = newer.digester().all().map(|one| one.of_parts(&["key"])).collect();
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    assert_eq!(keys.get(1), Some(&&*own("key")), "the newer writer has both keys");
    let claim = newer.claim(request("new", mode, &keys, "by the new key")).await;
    let Ok(Claimed::Fresh(done)) = claim else { panic!("fresh: {claim:?}") };
    newer.settle(settlement(done, mode, Effect::Completed, None)).await.expect("settles");
    let queued = QueuedCall::new("q".into(), &Identity::local(), "{}".into(), &moment(2));
    newer.enqueue(queued.clone(), 10).await.expect("is queued");

    let newest = newer.digester().key_id().to_owned();
    let refused = |what: &str, error: Option<LedgerError>| {
        let told = matches!(&error, Some(LedgerError::Unavailable { reason, .. }) if reason.contains(&newest));
        assert!(told, "{what}: {error:?}");
    };
    // A duplicate of the claim by the new key: its arguments cannot be compared here.
    let again = earlier.claim(request("again", mode, &[&own("key")], "by the old key")).await;
    refused("a claim", again.err());
    refused("taking a call", earlier.take(Vec::new()).await.err());
    let other = QueuedCall::new("other".into(), &Identity::local(), "{}".into(), &moment(2));
    refused("a call for the queue", earlier.enqueue(other, 10).await.err());
    refused("the health", earlier.healthy().await.err());
    earlier.settle(settlement(begun, mode, Effect::Completed, None)).await.expect("settles");
    let taken = newer.take(Vec::new()).await.expect("takes").map(|call| call.call_id);
    assert_eq!(taken, Some(queued.call_id), "the call was left in the queue");
    newer.healthy().await.expect("is healthy");
}
