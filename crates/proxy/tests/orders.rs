//! Tests that API keys name their holders as long as the orders of operators say so.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use toolbooth_audit::ledger::Moment;
use toolbooth_audit::memory::MemoryLedger;
use toolbooth_audit::orders::{OrderChange, Ordered};
use toolbooth_contracts::{Caller, CallerKind};
use toolbooth_policy::{Authorizer, FeatureFlags, Operator};
use toolbooth_proxy::{
    Clock, Executors, KeyRefusal, ORDERS_AGE_MAX, ProxyParts, ToolProxy, World, Worlds,
    secret_digest,
};

/// A clock that the test sets, in milliseconds since its start.
struct TestClock(AtomicU64);

impl Clock for TestClock {
    fn now(&self) -> Moment {
        let ms = self.0.load(Ordering::SeqCst);
        let text = format!("2026-01-01T00:00:{:02}.{:03}Z", ms / 1_000, ms % 1_000);
        Moment { text, epoch_ms: ms.cast_signed() }
    }
    fn monotonic(&self) -> Duration {
        Duration::from_millis(self.0.load(Ordering::SeqCst))
    }
}

fn proxy(clock: &Arc<TestClock>) -> ToolProxy {
    let worlds = Worlds::new(World::new(Authorizer::new(FeatureFlags::ON)));
    let ledger = Arc::new(MemoryLedger::new("writer", &[1; 32], &clock.now()));
    ToolProxy::new(ProxyParts {
        reads: Some(Arc::clone(&ledger) as _),
        clock: Arc::clone(clock) as _,
        ..ProxyParts::new(worlds, ledger, Executors::default())
    })
}

fn operator() -> Operator {
    Authorizer::new(FeatureFlags::ON).operator(&Caller::operator()).unwrap()
}

#[tokio::test]
async fn a_key_names_its_holder_until_it_ends() {
    let clock = Arc::new(TestClock(AtomicU64::new(0)));
    let proxy = proxy(&clock);
    let digest = secret_digest("tbk_1");
    assert_eq!(proxy.key_holder(&digest), Err(KeyRefusal::Unread), "nothing was read yet");
    let change = OrderChange::CreateKey {
        name: "ci".into(),
        digest: digest.clone(),
        groups: vec!["builds".into()],
        expires_at: Some("2026-01-01T00:00:04.000Z".into()),
    };
    assert!(matches!(proxy.order(&operator(), change).await, Ok(Ordered::Done(_))));
    let holder = proxy.key_holder(&digest).unwrap();
    assert_eq!((holder.name.as_str(), holder.kind), ("key:ci", CallerKind::Key));
    assert_eq!(holder.groups, ["builds"]);
    assert_eq!(proxy.key_holder(&secret_digest("tbk_2")), Err(KeyRefusal::Unknown));
    clock.0.store(4_000, Ordering::SeqCst);
    assert_eq!(proxy.key_holder(&digest), Err(KeyRefusal::Expired { name: "ci".into() }));
    let revoke = OrderChange::RevokeKey { name: "ci".into() };
    proxy.order(&operator(), revoke).await.unwrap();
    assert_eq!(proxy.key_holder(&digest), Err(KeyRefusal::Revoked { name: "ci".into() }));
}

#[tokio::test]
async fn keys_that_were_not_read_for_too_long_are_refused() {
    let clock = Arc::new(TestClock(AtomicU64::new(0)));
    let proxy = proxy(&clock);
    let digest = secret_digest("tbk_1");
    let (name, groups, expires_at) = ("ci".into(), Vec::new(), None);
    let change = OrderChange::CreateKey { name, digest: digest.clone(), groups, expires_at };
    proxy.order(&operator(), change).await.unwrap();
    let most = u64::try_from(ORDERS_AGE_MAX.as_millis()).unwrap();
    clock.0.store(most, Ordering::SeqCst);
    assert!(proxy.key_holder(&digest).is_ok());
    clock.0.store(most + 1, Ordering::SeqCst);
    assert_eq!(proxy.key_holder(&digest), Err(KeyRefusal::Unread));
    proxy.refresh_orders().await.unwrap();
    assert!(proxy.key_holder(&digest).is_ok());
}

#[tokio::test]
async fn an_ended_key_is_not_that_of_a_new_one_with_its_name() {
    let clock = Arc::new(TestClock(AtomicU64::new(0)));
    let proxy = proxy(&clock);
    let create = |key: &str| OrderChange::CreateKey {
        name: "ci".into(),
        digest: secret_digest(key),
        groups: Vec::new(),
        expires_at: None,
    };
    proxy.order(&operator(), create("tbk_1")).await.unwrap();
    let old = proxy.key_holder(&secret_digest("tbk_1")).unwrap();
    assert_eq!(proxy.check_identity(&old), Ok(()));
    proxy.order(&operator(), OrderChange::RevokeKey { name: "ci".into() }).await.unwrap();
    proxy.order(&operator(), create("tbk_2")).await.unwrap();
    let new = proxy.key_holder(&secret_digest("tbk_2")).unwrap();
    assert_eq!(proxy.check_identity(&new), Ok(()));
    assert_eq!(proxy.check_identity(&old), Err(KeyRefusal::Unknown));
}
