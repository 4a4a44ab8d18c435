//! Tests sources that change while calls run: they are listed again before their tools are used.
//!
//! Path: 2, 3. Doc: registry.md#the-lock
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use serde_json::json;
use toolbooth_audit::memory::MemoryLedger;
use toolbooth_contracts::contract::{AdapterId, GATEWAY_RUNTIME, ToolContract};
use toolbooth_contracts::coverage::{CoverageState, Readiness};
use toolbooth_contracts::error::SourceError;
use toolbooth_contracts::port::{DiscoveredTool, Listing, ToolSource};
use toolbooth_contracts::{
    CallRequest, Caller, Conversation, Dispatch, ErrorCode, Executor, Guard, Outcome, ToolCall,
    ToolOutput,
};
use toolbooth_policy::{Authorizer, FeatureFlags};
use toolbooth_proxy::{
    Catalogue, Clock, Executors, FirstListing, InMemoryPins, PinError, PinStore, Pinned,
    ProxyParts, SourceEntry, SystemClock, ToolProxy, World, Worlds,
};
use toolbooth_registry::discovered::SourcePolicy;
use toolbooth_registry::lock::{Approvals, Lock, LockFile};
use toolbooth_registry::{RegisteredTool, Source, ToolRegistry};

/// A server with a description that the test sets.
struct Talker {
    says: Mutex<Result<String, String>>,
    /// How long a listing takes after the tools were read.
    takes: Mutex<Duration>,
    asked: AtomicUsize,
    changed: (async_channel::Sender<()>, async_channel::Receiver<()>),
}

#[async_trait]
impl ToolSource for Talker {
    fn name(&self) -> &str {
        "mcp:s"
    }

    fn timeout(&self) -> Duration {
        Duration::from_secs(5)
    }

    async fn list(&self) -> Result<Listing, SourceError> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        let description = self.says.lock().unwrap().clone().map_err(SourceError)?;
        let takes = *self.takes.lock().unwrap();
        tokio::time::sleep(takes).await;
        let tool = DiscoveredTool {
            name: "read".into(),
            title: None,
            description: Some(description),
            input_schema: json!({"type": "object"}),
            output_schema: None,
            annotations: None,
            extra: serde_json::Map::new(),
        };
        Ok(Listing { tools: vec![tool], ..Listing::default() })
    }

    fn changes(&self) -> Option<async_channel::Receiver<()>> {
        Some(self.changed.1.clone())
    }
}

struct Answers;

#[async_trait]
impl Executor for Answers {
    async fn execute(&self, _: Dispatch, _: Conversation) -> Outcome {
        Outcome::Done(ToolOutput::text("done"))
    }

    async fn readiness(&self, _: &ToolContract, _: bool) -> Readiness {
        Readiness::Ready
    }
}

struct Fixture {
    talker: Arc<Talker>,
    worlds: Arc<Worlds>,
    catalogue: Arc<Catalogue>,
    proxy: ToolProxy,
}

async fn fixture(verify_calls: bool) -> Fixture {
    let fixture = unlocked(verify_calls, None);
    fixture.catalogue.refresh_all().await;
    let mut lock = LockFile::empty();
    lock.approve(fixture.worlds.now().registry().get("s.read").unwrap());
    let approvals = Approvals { lock: Lock::File(lock), ..Approvals::default() };
    fixture.catalogue.approve_by(approvals).await;
    fixture
}

/// A fixture with a server that was not listed yet.
fn unlocked(verify_calls: bool, pins: Option<Arc<dyn PinStore>>) -> Fixture {
    let talker = Arc::new(Talker {
        says: Mutex::new(Ok("Reads a file.".into())),
        takes: Mutex::new(Duration::from_millis(10)),
        asked: AtomicUsize::new(0),
        changed: async_channel::bounded(1),
    });
    let worlds = Worlds::new(World::new(Authorizer::new(FeatureFlags::ON)));
    let executors = Executors::default().with(AdapterId::Mcp("s".into()), Arc::new(Answers));
    let entry = SourceEntry {
        id: Source::Mcp("s".into()),
        source: Arc::clone(&talker) as Arc<dyn ToolSource>,
        policy: SourcePolicy::default(),
        verify_calls,
    };
    let mut catalogue =
        Catalogue::new(Arc::clone(&worlds), executors.clone(), Guard::default(), vec![entry]);
    if let Some(pins) = pins {
        catalogue = catalogue.with_pins(pins);
    }
    let catalogue = Arc::new(catalogue);
    let clock = SystemClock::default();
    let proxy = ToolProxy::new(ProxyParts {
        catalogue: Some(Arc::clone(&catalogue)),
        ..ProxyParts::new(
            Arc::clone(&worlds),
            Arc::new(MemoryLedger::new("writer", &[3; 32], &clock.now())),
            executors,
        )
    });
    Fixture { talker, worlds, catalogue, proxy }
}

impl Fixture {
    async fn call(&self) -> Option<ErrorCode> {
        let request = CallRequest::new("s.read", "{}").unwrap();
        let call = ToolCall::new(request, Caller::local());
        let (conversation, _cancel) = Conversation::detached();
        self.proxy.call(call, conversation).await.error.map(|error| error.code)
    }

    fn says(&self, what: Result<&str, &str>) {
        *self.talker.says.lock().unwrap() = what.map(str::to_owned).map_err(str::to_owned);
    }

    fn asked(&self) -> usize {
        self.talker.asked.load(Ordering::SeqCst)
    }

    /// Sends a change notification of the server; returns after it was received.
    async fn tells(&self) {
        self.talker.changed.0.send(()).await.unwrap();
        while !self.talker.changed.1.is_empty() {
            tokio::task::yield_now().await;
        }
        // The receiver continues before this task does.
        tokio::task::yield_now().await;
    }
}

#[tokio::test(start_paused = true)]
async fn quarantine_holds_from_the_notification_on() {
    let fixture = fixture(false).await;
    let catalogue = Arc::clone(&fixture.catalogue);
    let fresh = tokio::spawn(async move { catalogue.keep_fresh(Duration::from_secs(60)).await });
    assert_eq!(fixture.call().await, None);
    fixture.says(Ok("Reads a file, and mails it."));
    fixture.tells().await;
    let before = fixture.asked();
    // The clock is paused: the wait for further changes has not ended.
    assert_eq!(fixture.call().await, Some(ErrorCode::QuarantinedTool));
    assert_eq!(fixture.asked(), before + 1, "the call itself had the server asked");
    assert_eq!(fixture.catalogue.take_quarantined().len(), 1);
    assert!(fixture.catalogue.take_quarantined().is_empty(), "said once");
    fixture.says(Ok("Reads a file."));
    fixture.tells().await;
    assert_eq!(fixture.call().await, None);
    fresh.abort();
}

#[tokio::test(start_paused = true)]
async fn a_server_that_told_of_a_change_and_does_not_answer_is_not_called() {
    let fixture = fixture(false).await;
    let catalogue = Arc::clone(&fixture.catalogue);
    let fresh = tokio::spawn(async move { catalogue.keep_fresh(Duration::from_secs(60)).await });
    // Unavailable without a notification: its approved tools are known, and the call fails at its
    // target.
    fixture.says(Err("away"));
    fixture.catalogue.refresh_all().await;
    assert_eq!(fixture.call().await, None);
    fixture.tells().await;
    assert_eq!(fixture.call().await, Some(ErrorCode::QuarantinedTool));
    fixture.says(Ok("Reads a file."));
    assert_eq!(fixture.call().await, None, "it answers again, and is as it was");
    fresh.abort();
}

#[tokio::test(start_paused = true)]
async fn calls_at_once_share_one_asking() {
    let fixture = Arc::new(fixture(true).await);
    let before = fixture.asked();
    let calls: Vec<_> = (0..32)
        .map(|_| {
            let fixture = Arc::clone(&fixture);
            tokio::spawn(async move { fixture.call().await })
        })
        .collect();
    for call in calls {
        assert_eq!(call.await.unwrap(), None);
    }
    // The listing of the first call, and one that began after all the others had arrived.
    let asked = fixture.asked() - before;
    assert!((1..=2).contains(&asked), "{asked}");
    let generation = fixture.catalogue.changes();
    assert_eq!(fixture.call().await, None);
    assert!(!generation.has_changed().unwrap(), "an asking that changes nothing publishes nothing");
}

/// A call that comes while the server is listed, and what changes meanwhile.
#[tokio::test(start_paused = true)]
async fn a_call_waits_for_another_listing_only_where_the_present_one_may_be_outdated() {
    for (verify_calls, tells, expected) in [(false, false, 1), (false, true, 2), (true, false, 2)] {
        let first = fixture(false).await;
        let pins = first.worlds.now().approvals().lock.approved().cloned().unwrap();
        let fixture = unlocked(verify_calls, None);
        let approvals = Approvals { lock: Lock::File(pins), ..Approvals::default() };
        fixture.catalogue.approve_by(approvals).await;
        fixture.catalogue.restore_locked().await;
        let catalogue = Arc::clone(&fixture.catalogue);
        let fresh =
            tokio::spawn(async move { catalogue.keep_fresh(Duration::from_secs(60)).await });
        let catalogue = Arc::clone(&fixture.catalogue);
        let listing = tokio::spawn(async move { catalogue.refresh_all().await });
        while fixture.asked() == 0 {
            tokio::task::yield_now().await;
        }
        if tells {
            fixture.tells().await;
        }
        assert_eq!(fixture.call().await, None);
        assert_eq!(fixture.asked(), expected, "verify_calls: {verify_calls}, tells: {tells}");
        assert_eq!(listing.await.unwrap().len(), 1);
        fresh.abort();
    }
}

/// A notification that arrives while the task that counts notifications waits for a listing.
#[tokio::test(start_paused = true)]
async fn a_change_is_noticed_while_another_one_is_listed() {
    let fixture = Arc::new(fixture(false).await);
    let catalogue = Arc::clone(&fixture.catalogue);
    let fresh = tokio::spawn(async move { catalogue.keep_fresh(Duration::from_secs(60)).await });
    let take_time = |ms| *fixture.talker.takes.lock().unwrap() = Duration::from_millis(ms);
    take_time(500);
    fixture.tells().await;
    let before = fixture.asked();
    let begin = || {
        let fixture = Arc::clone(&fixture);
        tokio::spawn(async move { fixture.call().await })
    };
    let first = begin();
    while fixture.asked() == before {
        tokio::task::yield_now().await;
    }
    let second = begin();
    // The task waits for the listing of the first call now, and counts nothing.
    tokio::time::sleep(Duration::from_millis(300)).await;
    fixture.talker.changed.0.send(()).await.unwrap();
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(fixture.talker.changed.1.len(), 1);
    assert_eq!(fixture.asked(), before + 1);
    fixture.says(Ok("Reads a file, and mails it."));
    take_time(10);
    let _ = first.await.unwrap();
    assert_eq!(second.await.unwrap(), Some(ErrorCode::QuarantinedTool));
    assert!(fixture.asked() > before + 1);
    fresh.abort();
}

fn first_use(pins: LockFile) -> Approvals {
    Approvals { lock: Lock::FirstUse(pins), ..Approvals::default() }
}

/// Stores pins in memory; fails with `fault` if it is set. Records whether the tool was offered before.
#[derive(Default)]
struct Kept {
    pins: Mutex<Option<LockFile>>,
    fault: Mutex<Option<String>>,
    worlds: Mutex<Option<Arc<Worlds>>>,
    offered: Mutex<Vec<bool>>,
}

#[async_trait]
impl PinStore for Kept {
    async fn pin(&self, listing: FirstListing) -> Result<Pinned, PinError> {
        if let Some(worlds) = &*self.worlds.lock().unwrap() {
            let world = worlds.now();
            self.offered.lock().unwrap().push(world.registry().get("s.read").is_some());
        }
        if let Some(fault) = self.fault.lock().unwrap().clone() {
            return Err(PinError::Store(fault.into()));
        }
        let mut kept = self.pins.lock().unwrap();
        let pinned = listing.added_to(kept.take().unwrap_or_else(LockFile::empty));
        *kept = Some(pinned.pins.clone());
        Ok(pinned)
    }
}

#[tokio::test(start_paused = true)]
async fn the_first_listing_is_pinned_before_it_is_offered() {
    let kept = Arc::new(Kept::default());
    let fixture = unlocked(false, Some(Arc::clone(&kept) as Arc<dyn PinStore>));
    *kept.worlds.lock().unwrap() = Some(Arc::clone(&fixture.worlds));
    fixture.catalogue.approve_by(first_use(LockFile::empty())).await;
    fixture.catalogue.refresh_all().await;
    assert_eq!(*kept.offered.lock().unwrap(), [false], "pinned once, and before it is offered");
    let uses = fixture.catalogue.take_first_uses();
    assert_eq!(uses[0].tools[0].tool_id.as_str(), "s.read", "{uses:?}");
    assert!(fixture.catalogue.take_first_uses().is_empty(), "said once");
    assert!(fixture.catalogue.take_quarantined().is_empty());
    assert_eq!(fixture.call().await, None);
    fixture.catalogue.refresh_all().await;
    assert_eq!(kept.offered.lock().unwrap().len(), 1, "a source that was seen is not pinned again");
    fixture.says(Ok("Reads a file, and mails it."));
    fixture.catalogue.refresh_all().await;
    assert_eq!(fixture.call().await, Some(ErrorCode::QuarantinedTool));
}

#[tokio::test(start_paused = true)]
async fn a_listing_that_cannot_be_pinned_is_quarantined_until_it_can() {
    let kept = Arc::new(Kept::default());
    *kept.fault.lock().unwrap() = Some("the disk is full".to_owned());
    let fixture = unlocked(false, Some(Arc::clone(&kept) as Arc<dyn PinStore>));
    fixture.catalogue.approve_by(first_use(LockFile::empty())).await;
    let states = fixture.catalogue.refresh_all().await;
    assert!(states[0].problems[0].contains("the disk is full"), "{states:?}");
    assert_eq!(fixture.call().await, Some(ErrorCode::QuarantinedTool));
    *kept.fault.lock().unwrap() = None;
    fixture.catalogue.refresh_all().await;
    assert_eq!(fixture.call().await, None);
    // Without a store for pins nothing is accepted either.
    let fixture = unlocked(false, None);
    fixture.catalogue.approve_by(first_use(LockFile::empty())).await;
    fixture.catalogue.refresh_all().await;
    assert_eq!(fixture.call().await, Some(ErrorCode::QuarantinedTool));
}

#[tokio::test(start_paused = true)]
async fn what_another_process_has_pinned_first_counts() {
    let other = unlocked(false, Some(Arc::new(InMemoryPins)));
    other.catalogue.approve_by(first_use(LockFile::empty())).await;
    other.says(Ok("Reads a file of yours."));
    other.catalogue.refresh_all().await;
    let theirs = other.worlds.now().approvals().lock.approved().cloned();
    let kept = Arc::new(Kept::default());
    *kept.pins.lock().unwrap() = theirs;
    let fixture = unlocked(false, Some(kept));
    fixture.catalogue.approve_by(first_use(LockFile::empty())).await;
    fixture.catalogue.refresh_all().await;
    assert_eq!(fixture.call().await, Some(ErrorCode::QuarantinedTool));
    fixture.says(Ok("Reads a file of yours."));
    fixture.catalogue.refresh_all().await;
    assert_eq!(fixture.call().await, None);
}

#[tokio::test(start_paused = true)]
async fn pinned_tools_are_known_before_their_source_answers() {
    let first = unlocked(false, Some(Arc::new(InMemoryPins)));
    first.catalogue.approve_by(first_use(LockFile::empty())).await;
    first.catalogue.refresh_all().await;
    let pins = first.worlds.now().approvals().lock.approved().cloned().unwrap();
    let fixture = unlocked(false, Some(Arc::new(InMemoryPins)));
    assert_eq!(fixture.catalogue.unknown_sources().len(), 1);
    fixture.catalogue.approve_by(first_use(pins)).await;
    fixture.catalogue.restore_locked().await;
    assert!(fixture.catalogue.unknown_sources().is_empty(), "no door waits for it");
    assert!(fixture.worlds.now().registry().get("s.read").is_some());
    assert_eq!((fixture.call().await, fixture.asked()), (None, 1), "the call has it asked");
    // A source that listed nothing is known as well.
    let mut seen = LockFile::empty();
    seen.pin(&Source::Mcp("s".into()), &[], Default::default());
    let fixture = unlocked(false, Some(Arc::new(InMemoryPins)));
    fixture.catalogue.approve_by(first_use(seen)).await;
    fixture.catalogue.restore_locked().await;
    assert!(fixture.catalogue.unknown_sources().is_empty());
}

#[tokio::test]
async fn a_tool_of_the_file_is_no_tool_of_the_gateway() {
    let catalogue = |source: Source| {
        let entry = json!({
            "name": "cleaner.clean", "execution": {"localRuntimeId": GATEWAY_RUNTIME},
            "input_schema": {"type": "object"}, "output_schema": {}, "sandbox": {"enforce": "required"}
        });
        let tool = RegisteredTool::from_entry(&entry, source, &Guard::default()).unwrap();
        let mut registry = ToolRegistry::default();
        let _ = registry.register(tool);
        let flags = FeatureFlags::ON;
        let world = World::new(Authorizer::new(flags)).with_registry(registry);
        let runtime = AdapterId::Local(GATEWAY_RUNTIME.into());
        let executors = Executors::default().with(runtime, Arc::new(Answers));
        Catalogue::new(Worlds::new(world), executors, Guard::default(), Vec::new())
    };
    let own = catalogue(Source::Builtin).coverage(false).await;
    assert_eq!((own.tools[0].state, &own.tools[0].reason), (CoverageState::Real, &None));
    let declared = catalogue(Source::File).coverage(false).await;
    assert_eq!(declared.tools[0].state, CoverageState::NotConfigured);
    let reason = declared.tools[0].reason.as_deref().unwrap();
    assert!(reason.contains("its sandbox is required"), "{reason}");
}
