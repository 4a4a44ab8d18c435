//! Tests approvals on the call path: waiting without a slot, decisions, and what judges the call afterwards.
//!
//! Path: 5, 6. Doc: policy.md#approval

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use toolbooth_audit::ledger::Moment;
use toolbooth_audit::memory::MemoryLedger;
use toolbooth_audit::orders::{OrderChange, OrderRequest};
use toolbooth_audit::reads::LogFilter;
use toolbooth_audit::{Ledger, LedgerReads};
use toolbooth_contracts::approval::{Approval, ApprovalState, Approvers};
use toolbooth_contracts::contract::{AdapterId, ToolContract};
use toolbooth_contracts::conversation::CancelHandle;
use toolbooth_contracts::coverage::Readiness;
use toolbooth_contracts::decision::DecisionInputs;
use toolbooth_contracts::order::PauseTarget;
use toolbooth_contracts::{
    CallRequest, Caller, Conversation, Dispatch, ErrorCode, Executor, Guard, Identity, Outcome,
    ToolCall, ToolOutput, ToolPattern, ToolResult,
};
use toolbooth_policy::{
    ApprovalNeed, Authorizer, CallerRights, CallerSets, EngineError, FeatureFlags, PolicyEngine,
    Question, Verdict, Whitelist,
};
use toolbooth_proxy::{
    ApprovalFilter, AsyncCalls, Clock, Decided, Executors, Limits, ProxyParts, Submission,
    SystemClock, ToolProxy, World, Worlds,
};
use toolbooth_registry::{RegisteredTool, Source, ToolRegistry};

/// Asks for an approval by the member `by` of the arguments, where there is one.
struct Asking;

impl PolicyEngine for Asking {
    fn judge(&self, question: &Question<'_>) -> Result<Verdict, EngineError> {
        let by = question.arguments.get("by").and_then(Value::as_str).and_then(Approvers::parse);
        let approval = by.map(|by| ApprovalNeed::of_setting("asking", by));
        Ok(Verdict::Permit { rule: "all".into(), approval })
    }
    fn version(&self) -> &str {
        "1"
    }
}

struct Counted(Arc<AtomicUsize>);

#[async_trait]
impl Executor for Counted {
    async fn execute(&self, _: Dispatch, _: Conversation) -> Outcome {
        self.0.fetch_add(1, Ordering::SeqCst);
        Outcome::Done(ToolOutput::text("ok"))
    }
    async fn readiness(&self, _: &ToolContract, _: bool) -> Readiness {
        Readiness::Ready
    }
}

fn named(name: &str) -> Caller {
    Caller::authenticated(Identity::named(name).unwrap())
}

/// A policy with these rights of the agent.
fn policy(agent: CallerRights) -> Authorizer {
    let operators = CallerRights { operate: true, ..CallerRights::everything() };
    let sets = [("agents", "key:agent", agent), ("ops", "key:op-*", operators)];
    let sets =
        sets.map(|(name, pattern, rights)| (name.to_owned(), (vec![pattern.to_owned()], rights)));
    let sets = CallerSets::new(sets.into_iter().collect()).unwrap();
    Authorizer::new(FeatureFlags::ON).with_engine(Arc::new(Asking)).with_callers(sets)
}

struct Fixture {
    proxy: ToolProxy,
    ledger: Arc<MemoryLedger>,
    clock: Arc<MovedClock>,
    worlds: Arc<Worlds>,
    runs: Arc<AtomicUsize>,
}

impl Fixture {
    /// A proxy in which one call runs at once.
    fn new(wait: Duration) -> Self {
        let entry = json!({
            "name": "shop.order", "description": "Orders.",
            "execution": {"localRuntimeId": "shop"},
            "input_schema": {"type": "object"}, "output_schema": {},
            "timeout_ms": 60_000, "idempotency": {"mode": "on-key"}
        });
        let mut registry = ToolRegistry::default();
        let tool = RegisteredTool::from_entry(&entry, Source::File, &Guard::default()).unwrap();
        let _ = registry.register(tool);
        let everything = CallerRights::everything();
        let worlds = Worlds::new(World::new(policy(everything)).with_registry(registry));
        let ledger = Arc::new(MemoryLedger::new("writer", &[3; 32], &SystemClock::default().now()));
        let clock = Arc::<MovedClock>::default();
        let runs = Arc::new(AtomicUsize::new(0));
        let executors = Executors::default()
            .with(AdapterId::Local("shop".into()), Arc::new(Counted(Arc::clone(&runs))));
        let proxy = ToolProxy::new(ProxyParts {
            reads: Some(Arc::clone(&ledger) as _),
            clock: Arc::clone(&clock) as _,
            limits: Limits { in_flight_max: 1, approval_wait: wait, ..Limits::default() },
            ..ProxyParts::new(Arc::clone(&worlds), Arc::clone(&ledger) as _, executors)
        });
        Self { proxy, ledger, clock, worlds, runs }
    }

    async fn call(&self, args: Value, key: Option<&str>) -> ToolResult {
        let mut request = CallRequest::new("shop.order", &args.to_string()).unwrap();
        request.context.idempotency_key = key.map(str::to_owned);
        let call = ToolCall::new(request, named("key:agent"));
        self.proxy.call(call, Conversation::detached().0).await
    }

    /// Calls in the background; returns the task once the approval is requested.
    async fn waiting(&self, args: Value) -> (JoinHandle<ToolResult>, Approval, CancelHandle) {
        let request = CallRequest::new("shop.order", &args.to_string()).unwrap();
        self.waiting_for(ToolCall::new(request, named("key:agent"))).await
    }

    async fn waiting_for(
        &self,
        call: ToolCall,
    ) -> (JoinHandle<ToolResult>, Approval, CancelHandle) {
        let (conversation, cancel) = Conversation::detached();
        let proxy = self.proxy.clone();
        let task = tokio::spawn(async move { proxy.call(call, conversation).await });
        loop {
            let filter = ApprovalFilter {
                state: Some(ApprovalState::Pending),
                limit: 1,
                ..ApprovalFilter::default()
            };
            let page = self.proxy.approvals(&named("key:op-a"), filter).await.unwrap();
            if let Some(approval) = page.found.into_iter().next() {
                return (task, approval, cancel);
            }
            tokio::task::yield_now().await;
        }
    }

    async fn decide(&self, by: &str, approval: &Approval, grants: bool) -> Decided {
        let id = &approval.approval_id;
        self.proxy.decide_approval(&named(by), id, grants, None).await.unwrap()
    }

    fn runs(&self) -> usize {
        self.runs.load(Ordering::SeqCst)
    }
}

fn code(result: &ToolResult) -> Option<ErrorCode> {
    result.error.as_ref().map(|error| error.code)
}

const LONG: Duration = Duration::from_secs(600);

#[tokio::test]
async fn a_call_waits_for_its_decision_without_a_slot() {
    let fixture = Fixture::new(LONG);
    let (task, approval, _cancel) =
        fixture.waiting(json!({ "by": "two", "password": "hunter2" })).await;
    assert_eq!(approval.rule.as_deref(), Some("asking"));
    let shown = approval.arguments.clone().unwrap();
    assert!(shown.as_str().contains("\"two\"") && !shown.as_str().contains("hunter2"), "{shown:?}");
    // Other calls have the only slot, and a second one that would wait is answered.
    assert_eq!(code(&fixture.call(json!({}), None).await), None);
    let second = fixture.call(json!({ "by": "one" }), None).await;
    assert_eq!(code(&second), Some(ErrorCode::ApprovalRequired));
    assert!(second.retry_after_ms.is_some());
    let error = second.error.unwrap();
    assert!(error.message.contains(error.details["approvalId"].as_str().unwrap()), "{error:?}");
    assert!(matches!(fixture.decide("key:op-a", &approval, true).await, Decided::Done(_)));
    assert_eq!(fixture.decide("key:op-a", &approval, true).await, Decided::SamePerson);
    assert!(!task.is_finished() && fixture.runs() == 1);
    assert!(matches!(fixture.decide("key:op-b", &approval, true).await, Decided::Done(_)));
    assert_eq!(code(&task.await.unwrap()), None);
    assert_eq!(fixture.runs(), 2);
}

#[tokio::test]
async fn an_asynchronous_call_waits_without_a_worker() {
    let working = waits_without_a_worker();
    tokio::time::timeout(Duration::from_secs(60), working).await.expect("it ends");
}

async fn waits_without_a_worker() {
    let fixture = Fixture::new(LONG);
    let ledger = || Arc::clone(&fixture.ledger);
    let calls = AsyncCalls::new(fixture.proxy.clone(), ledger() as _, ledger() as _);
    let stop = CancellationToken::new();
    let working = tokio::spawn({
        let (calls, stop) = (calls.clone(), stop.clone());
        async move { calls.work(1, stop).await }
    });
    let caller = named("key:agent");
    let submit = async |id: &str, args: &str| {
        let mut request = CallRequest::new("shop.order", args).unwrap();
        request.context.call_id = Some(id.to_owned());
        assert!(matches!(calls.submit(request, &caller).await, Ok(Submission::Taken(_))));
    };
    let result = async |id: &str| loop {
        let call = calls.get(&caller, id).await.unwrap().unwrap();
        if let Some(result) = call.result {
            return result["error"]["code"].clone();
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    };
    let pending = async || loop {
        let filter = ApprovalFilter { limit: 1, ..ApprovalFilter::default() };
        let page = fixture.proxy.approvals(&named("key:op-a"), filter).await.unwrap();
        if let Some(approval) = page.found.into_iter().next() {
            return approval;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    };
    submit("waits", r#"{"by":"one"}"#).await;
    let approval = pending().await;
    // The only worker has the next call.
    submit("runs", "{}").await;
    assert_eq!((result("runs").await, fixture.runs()), (Value::Null, 1));
    // As many wait as can run at once: further ones hold no worker either.
    submit("further", r#"{"by":"one","n":2}"#).await;
    assert_eq!(result("further").await, "approval-required");
    assert!(calls.get(&caller, "waits").await.unwrap().unwrap().result.is_none());
    assert!(matches!(fixture.decide("key:op-a", &approval, true).await, Decided::Done(_)));
    assert_eq!((result("waits").await, fixture.runs()), (Value::Null, 2));
    // The worker still runs one call at a time, and goes on.
    submit("later", "{}").await;
    assert_eq!(result("later").await, Value::Null);
    stop.cancel();
    working.await.unwrap();
}

#[tokio::test]
async fn what_is_in_force_at_the_decision_judges_the_call() {
    type Change = fn(&mut World);
    let changes: [(Change, ErrorCode, Option<&str>); 4] = [
        (
            |world| world.set_pauses([PauseTarget::All].into_iter().collect()),
            ErrorCode::Paused,
            Some("pause"),
        ),
        (
            |world| *world = World::clone(world).with_registry(ToolRegistry::default()),
            ErrorCode::UnregisteredTool,
            None,
        ),
        (
            |world| {
                let tools = Some(vec![ToolPattern::try_from("other".to_owned()).unwrap()]);
                world.set_policy(policy(CallerRights { tools, ..CallerRights::everything() }));
            },
            ErrorCode::UnregisteredTool,
            None,
        ),
        (
            |world| {
                let policy = policy(CallerRights::everything());
                world.set_policy(policy.with_whitelist(Whitelist::parse("other").unwrap()));
            },
            ErrorCode::PolicyDenied,
            Some("whitelist"),
        ),
    ];
    for (change, expected, rule) in changes {
        let fixture = Fixture::new(LONG);
        let (task, approval, _cancel) = fixture.waiting(json!({ "by": "one" })).await;
        let mut world = World::clone(&fixture.worlds.now());
        change(&mut world);
        fixture.worlds.publish(world);
        assert!(matches!(fixture.decide("key:op-a", &approval, true).await, Decided::Done(_)));
        let result = task.await.unwrap();
        assert_eq!((code(&result), fixture.runs()), (Some(expected), 0));
        let kept = fixture.proxy.approval(&named("key:op-a"), &approval.approval_id).await.unwrap();
        assert_eq!(kept.unwrap().state, ApprovalState::Granted);
        // The log has no decision of what was in force before.
        let filter = LogFilter { call: Some(result.call_id), limit: 10, ..LogFilter::default() };
        let logs = fixture.ledger.agent_logs(filter).await.unwrap().found;
        let [log] = logs.as_slice() else { panic!("{logs:?}") };
        let decided = log.decision_inputs.as_ref().map(|inputs| inputs.rule.as_str());
        assert_eq!(decided, rule, "{log:?}");
        let is_early = |inputs: &DecisionInputs| inputs.denied && inputs.unchecked;
        assert!(log.decision_inputs.as_ref().is_none_or(is_early), "{log:?}");
    }
}

/// A clock whose monotonic time the test moves.
#[derive(Default)]
struct MovedClock {
    system: SystemClock,
    seconds: AtomicUsize,
}

impl Clock for MovedClock {
    fn now(&self) -> Moment {
        self.system.now()
    }
    fn monotonic(&self) -> Duration {
        let moved = u64::try_from(self.seconds.load(Ordering::SeqCst)).unwrap();
        self.system.monotonic() + Duration::from_secs(moved)
    }
}

#[tokio::test]
async fn orders_of_another_process_during_the_wait_hold() {
    let revoke = || OrderChange::RevokeKey { name: "agent".into() };
    let target = PauseTarget::Tool("shop.order".into());
    let pause = OrderChange::Pause { target, cancel_running: false, reason: None };
    let orders = [
        (None, None),
        (Some(revoke()), Some(ErrorCode::PolicyDenied)),
        (Some(pause), Some(ErrorCode::Paused)),
    ];
    for (order, expected) in orders {
        let fixture = Fixture::new(LONG);
        let operator = fixture.worlds.now().policy().operator(&Caller::operator()).unwrap();
        let digest = "1".repeat(64);
        let (name, groups, expires_at) = ("agent".into(), Vec::new(), None);
        let key = OrderChange::CreateKey { name, digest: digest.clone(), groups, expires_at };
        fixture.proxy.order(&operator, key).await.unwrap();
        let identity = fixture.proxy.key_holder(&digest).unwrap();
        let request = CallRequest::new("shop.order", r#"{"by":"one"}"#).unwrap();
        let call = ToolCall::new(request, Caller::authenticated(identity));
        let (task, approval, _cancel) = fixture.waiting_for(call).await;
        // Longer than a reading of the orders is believed.
        fixture.clock.seconds.store(60, Ordering::SeqCst);
        if let Some(change) = order {
            let by = "operator".to_owned();
            let request = OrderRequest { change, by, at: fixture.clock.now() };
            fixture.ledger.order(request).await.unwrap();
        }
        assert!(matches!(fixture.decide("key:op-a", &approval, true).await, Decided::Done(_)));
        let result = task.await.unwrap();
        assert_eq!(code(&result), expected, "{result:?}");
        assert_eq!(fixture.runs(), usize::from(expected.is_none()));
    }
}

#[tokio::test]
async fn the_holder_of_a_key_that_has_ended_is_not_served_after_its_wait() {
    let fixture = Fixture::new(LONG);
    let identity =
        Identity { key_digest: Some("0".repeat(64)), ..named("key:agent").identity().clone() };
    let request = CallRequest::new("shop.order", r#"{"by":"one"}"#).unwrap();
    let call = ToolCall::new(request, Caller::authenticated(identity));
    let (task, approval, _cancel) = fixture.waiting_for(call).await;
    assert!(matches!(fixture.decide("key:op-a", &approval, true).await, Decided::Done(_)));
    assert_eq!(code(&task.await.unwrap()), Some(ErrorCode::PolicyDenied));
    assert_eq!(fixture.runs(), 0);
}

#[tokio::test]
async fn a_rejection_and_a_cancellation_end_the_wait() {
    let fixture = Fixture::new(LONG);
    let (task, approval, _cancel) = fixture.waiting(json!({ "by": "one" })).await;
    assert!(matches!(fixture.decide("key:op-a", &approval, false).await, Decided::Done(_)));
    assert_eq!(code(&task.await.unwrap()), Some(ErrorCode::ApprovalRejected));
    let (task, _, cancel) = fixture.waiting(json!({ "by": "two" })).await;
    cancel.cancel();
    assert_eq!(code(&task.await.unwrap()), Some(ErrorCode::Cancelled));
    assert_eq!(fixture.runs(), 0);
}

#[tokio::test]
async fn a_call_that_waits_does_not_hold_up_the_end() {
    let fixture = Fixture::new(LONG);
    let (task, _, _cancel) = fixture.waiting(json!({ "by": "one" })).await;
    fixture.proxy.shut_down(LONG).await.unwrap();
    assert_eq!(code(&task.await.unwrap()), Some(ErrorCode::ApprovalRequired));
}

#[tokio::test]
async fn a_wait_ends() {
    let fixture = Fixture::new(Duration::from_millis(20));
    let result = fixture.call(json!({ "by": "one" }), None).await;
    assert_eq!(code(&result), Some(ErrorCode::ApprovalRequired));
}

#[tokio::test]
async fn callers_see_their_own_approvals_and_decide_where_the_rule_says_so() {
    let fixture = Fixture::new(Duration::ZERO);
    let of = |result: ToolResult| {
        let error = result.error.unwrap();
        assert_eq!(error.code, ErrorCode::ApprovalRequired);
        error.details["approvalId"].as_str().unwrap().to_owned()
    };
    let one = of(fixture.call(json!({ "by": "one" }), Some("k1")).await);
    let own = of(fixture.call(json!({ "by": "self" }), Some("k2")).await);
    let seen = async |caller: &str| {
        let filter = ApprovalFilter { limit: 10, ..ApprovalFilter::default() };
        let page = fixture.proxy.approvals(&named(caller), filter).await.unwrap();
        page.found.len()
    };
    assert_eq!((seen("key:agent").await, seen("key:op-a").await, seen("key:x").await), (2, 2, 0));
    let decide = async |caller: &str, id: &str| {
        fixture.proxy.decide_approval(&named(caller), id, true, None).await.unwrap()
    };
    assert_eq!(decide("key:agent", &one).await, Decided::OwnCall);
    assert_eq!(decide("key:x", &one).await, Decided::Missing);
    assert_eq!(decide("key:x", &own).await, Decided::Missing);
    assert!(matches!(decide("key:agent", &own).await, Decided::Done(_)));
    assert_eq!(code(&fixture.call(json!({ "by": "self" }), Some("k2")).await), None);
    // A replay asks no person.
    let replayed = fixture.call(json!({ "by": "self" }), Some("k2")).await;
    assert!(replayed.replayed && replayed.error.is_none(), "{replayed:?}");
    assert_eq!(fixture.runs(), 1);
    of(fixture.call(json!({ "by": "self" }), Some("k3")).await);
}
