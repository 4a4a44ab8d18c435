//! Tests the call path with every port mocked or in memory: order, bytes, codes, events and secrecy.
//!
//! Path: 2, 3, 4, 5, 6, 7, 8, 9. Doc: call-path.md#codes

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)]

mod common;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_channel::{Receiver, Sender};
use async_trait::async_trait;
use mockall::mock;
use serde_json::{Value, json};
use toolbooth_audit::approvals::{ApprovalVerdict, Decided};
use toolbooth_audit::checkpoint::Due;
use toolbooth_audit::ledger::{
    ClaimRequest, Claimed, Ledger, LedgerError, Moment, Prune, Pruned, Refusal, Resolution,
    Settlement, Swept,
};
use toolbooth_audit::memory::MemoryLedger;
use toolbooth_audit::orders::{OrderRequest, Ordered};
use toolbooth_audit::reads::{EventFilter, LogFilter, PlacedEvent};
use toolbooth_audit::{Digester, LedgerReads, verify};
use toolbooth_contracts::agent_log::AgentLog;
use toolbooth_contracts::contract::{AdapterId, ToolContract};
use toolbooth_contracts::coverage::Readiness;
use toolbooth_contracts::event::{AuditEvent, AuditEventKind, EventBody};
use toolbooth_contracts::json::JsonText;
use toolbooth_contracts::port::{ExecutionError, InputNeeded};
use toolbooth_contracts::receipt::Receipt;
use toolbooth_contracts::result::ArgumentError;
use toolbooth_contracts::{
    Arguments, CallRequest, Caller, ContentBlock, Conversation, Dispatch, Effect, ErrorCode,
    Executor, Guard, Identity, Outcome, Payload, Status, ToolCall, ToolOutput, ToolResult,
};
use toolbooth_policy::{
    Authorizer, CallerRights, CallerSets, EngineError, FeatureFlags, PolicyEngine, Question,
    ToolStatus, Verdict, Whitelist,
};
use toolbooth_proxy::{
    ArgumentRules, Clock, DeniedAuthentication, Executors, Intent, Limits, OutputRule,
    PayloadRetention, ProxyParts, SystemClock, ToolProxy, World, Worlds,
};
use toolbooth_registry::{RegisteredTool, Source, ToolRegistry};

use common::{Tape, TapedIds, TapedLedger, is_golden};

mock! {
    Tool {}
    #[async_trait]
    impl Executor for Tool {
        async fn execute(&self, dispatch: Dispatch, conversation: Conversation) -> Outcome;
        async fn readiness(&self, contract: &ToolContract, probe: bool) -> Readiness;
    }
}

mock! {
    Store {}
    #[async_trait]
    impl Ledger for Store {
        fn writer(&self) -> &str;
        fn digester(&self) -> &Digester;
        async fn claim(&self, request: ClaimRequest) -> Result<Claimed, LedgerError>;
        async fn settle(&self, settlement: Arc<Settlement>) -> Result<Arc<Receipt>, LedgerError>;
        async fn refuse(&self, refusal: Refusal) -> Result<(), LedgerError>;
        async fn record_events(&self, events: Vec<EventBody>) -> Result<(), LedgerError>;
        async fn record_uses(&self, uses: Vec<(String, String)>) -> Result<(), LedgerError>;
        async fn decide_approval(&self, verdict: ApprovalVerdict) -> Result<Decided, LedgerError>;
        async fn order(&self, order: OrderRequest) -> Result<Ordered, LedgerError>;
        async fn renew(&self, at: Moment) -> Result<(), LedgerError>;
        async fn sweep(&self, at: Moment) -> Result<Vec<Swept>, LedgerError>;
        async fn suspend(&self, receipt_id: String, fence: u64, at: Moment) -> Result<(), LedgerError>;
        async fn resume(&self, receipt_id: String, fence: u64, at: Moment) -> Result<(), LedgerError>;
        async fn resolve(&self, resolution: Resolution) -> Result<Arc<Receipt>, LedgerError>;
        async fn prune(&self, prune: Prune) -> Result<Pruned, LedgerError>;
        async fn checkpoint(&self, due: Due, at: Moment) -> Result<Option<String>, LedgerError>;
        async fn close(&self, at: Moment) -> Result<Option<String>, LedgerError>;
    }
}

fn entry() -> Value {
    json!({
        "name": "shop.order", "description": "Orders.", "execution": {"localRuntimeId": "shop"},
        "input_schema": {"type": "object", "properties": {"n": {"type": "integer"}, "key": {}}},
        "output_schema": {}, "permissions": ["write:orders"], "timeout_ms": 5000,
        "idempotency": {"mode": "on-key"}
    })
}

fn with(pointer: &str, value: Value) -> Value {
    let mut entry = entry();
    let (parent, key) = pointer.rsplit_once('/').unwrap();
    let parent = if parent.is_empty() { &mut entry } else { entry.pointer_mut(parent).unwrap() };
    parent.as_object_mut().unwrap().insert(key.to_owned(), value);
    entry
}

fn on() -> FeatureFlags {
    FeatureFlags::ON
}

fn world(entry: &Value, policy: Authorizer) -> World {
    let mut registry = ToolRegistry::default();
    let tool = RegisteredTool::from_entry(entry, Source::File, &Guard::default()).unwrap();
    let _ = registry.register(tool);
    World::new(policy).with_registry(registry)
}

fn limits() -> Limits {
    Limits {
        cancel_grace: Duration::from_millis(50),
        settle_patience: Duration::from_millis(200),
        ..Limits::default()
    }
}

fn parts(world: World, ledger: Arc<dyn Ledger>, tool: impl Executor + 'static) -> ProxyParts {
    ProxyParts {
        limits: limits(),
        ..ProxyParts::new(
            Worlds::new(world),
            ledger,
            Executors::default().with(AdapterId::Local("shop".into()), Arc::new(tool)),
        )
    }
}

fn memory() -> Arc<MemoryLedger> {
    Arc::new(MemoryLedger::new("writer", &[3; 32], &SystemClock::default().now()))
}

fn answering(outcome: Outcome) -> MockTool {
    let mut tool = MockTool::new();
    tool.expect_execute().returning(move |_, _| outcome.clone());
    tool
}

fn untouched() -> MockTool {
    let mut tool = MockTool::new();
    tool.expect_execute().never();
    tool
}

fn request(args: &str, key: Option<&str>) -> CallRequest {
    let mut request = CallRequest::new("shop.order", args).unwrap();
    request.context.agent_id = Some("agent".into());
    request.context.turn_index = Some(2);
    request.context.idempotency_key = key.map(str::to_owned);
    request
}

fn key(name: &str) -> Caller {
    Caller::authenticated(Identity::named(&format!("key:{name}")).unwrap())
}

async fn call(proxy: &ToolProxy, request: CallRequest) -> ToolResult {
    proxy.call(ToolCall::new(request, Caller::local()), Conversation::detached().0).await
}

/// The terminal event and the agent log of a call.
async fn records(ledger: &MemoryLedger, call_id: &str) -> (Vec<AuditEvent>, Vec<AgentLog>) {
    let filter = EventFilter { call: Some(call_id.into()), limit: 100, ..EventFilter::default() };
    let events =
        ledger.events(filter).await.unwrap().found.into_iter().map(|placed| placed.event).collect();
    let filter = LogFilter { call: Some(call_id.into()), limit: 100, ..LogFilter::default() };
    (events, ledger.agent_logs(filter).await.unwrap().found)
}

/// Asserts everything that must hold of a call that ended with `code`.
async fn holds(ledger: &MemoryLedger, result: &ToolResult, code: ErrorCode) {
    let error = result.error.as_ref().unwrap_or_else(|| panic!("{code}: {result:?}"));
    assert_eq!(error.code, code, "{result:?}");
    assert_eq!((result.status, result.is_error), (code.status(), true));
    assert!(!serde_json::to_string(result).unwrap().contains("internal cause"), "{result:?}");
    let (events, logs) = records(ledger, &result.call_id).await;
    assert_eq!(logs.len(), 1, "{code}: exactly one agent log");
    let (log, terminal) = (&logs[0], &events.last().unwrap().body);
    assert_eq!(Some(terminal.event), code.event(), "{code}");
    let ends = events.iter().filter(|event| event.body.log_digest.is_some()).count();
    assert_eq!(ends, 1, "{code}: exactly one terminal event");
    assert_eq!((terminal.error_code, log.error_code), (Some(code), Some(code)));
    assert_eq!((terminal.status, terminal.effect), (Some(code.status()), Some(result.effect)));
    assert_eq!(
        (terminal.tool_name.as_deref(), log.tool_name.as_str()),
        (Some(result.tool_id.as_str()), result.tool_id.as_str())
    );
    assert_eq!((terminal.agent_id.as_deref(), terminal.turn_index), (Some("agent"), Some(2)));
    assert_eq!(
        (log.agent_id.as_deref(), log.turn_index, log.is_error),
        (Some("agent"), Some(2), true)
    );
    assert_eq!(terminal.caller.as_deref(), Some("local"));
    assert!(terminal.duration_ms.is_some() && terminal.error.is_some());
    assert_eq!((&terminal.receipt_id, &log.receipt_id), (&result.receipt_id, &result.receipt_id));
    let report = verify::store(ledger, Default::default()).await.unwrap();
    assert!(report.ok, "{report:?}");
}

#[tokio::test]
async fn only_what_an_operator_marked_read_only_starts_before_its_claim_is_durable() {
    for (intent, read_only, relaxed) in [
        (Intent::Relaxed, json!(true), true),
        (Intent::Relaxed, json!(false), false),
        (Intent::Relaxed, Value::Null, false),
        (Intent::Durable, json!(true), false),
    ] {
        let mut entry = entry();
        if !read_only.is_null() {
            entry["policy"] = json!({ "readOnly": read_only });
        }
        let mut book = MockStore::new();
        let digester = Digester::new(&[3; 32]);
        book.expect_digester().return_const(digester);
        book.expect_writer().return_const("writer".to_owned());
        book.expect_claim()
            .withf(move |request| request.relaxed == relaxed)
            .times(1)
            .returning(|_| Ok(Claimed::TooManyInFlight));
        book.expect_refuse().returning(|_| Ok(()));
        let mut parts = parts(world(&entry, Authorizer::new(on())), Arc::new(book), untouched());
        parts.retention = PayloadRetention::default().with_intent(intent, Vec::new());
        let result = call(&ToolProxy::new(parts), request("{}", None)).await;
        assert_eq!(result.error.unwrap().code, ErrorCode::TooManyInFlight);
    }
}

#[tokio::test]
async fn a_hundred_thousand_refusals_are_a_bounded_number_of_records() {
    const FLOOD: u64 = 100_000;
    let ledger = memory();
    let proxy =
        ToolProxy::new(parts(world(&entry(), Authorizer::new(on())), ledger.clone(), untouched()));
    for n in 0..FLOOD {
        let peer = std::net::Ipv4Addr::from_bits(n as u32).into();
        let denied = DeniedAuthentication { reason: "unknown-key", key: None, caller: None, peer };
        proxy.record_denied_authentication(denied).await;
        let request = CallRequest::new(format!("shop.none{n}"), "{}").unwrap();
        let result = proxy.call(ToolCall::new(request, key("flood")), Conversation::detached().0);
        assert_eq!(result.await.error.unwrap().code, ErrorCode::UnregisteredTool);
    }
    proxy.shut_down(Duration::from_secs(5)).await.unwrap();
    let filter = EventFilter { limit: 100_000, ..EventFilter::default() };
    let events = ledger.events(filter).await.unwrap().found;
    for kind in [AuditEventKind::UnknownTool, AuditEventKind::AuthDenied] {
        let own = events.iter().filter(|placed| placed.event.body.event == kind);
        let facts: Vec<Value> = own.map(|placed| json!(placed.event.body.facts)).collect();
        // At most 300 a minute and one for the others; the test may take several minutes of the clock.
        assert!(facts.len() < 3_000, "{} of {kind:?}", facts.len());
        let counted: u64 = facts.iter().map(|facts| facts["folded"].as_u64().unwrap_or(1)).sum();
        assert_eq!(counted, FLOOD, "{kind:?}");
    }
    let filter = LogFilter { limit: 100_000, ..LogFilter::default() };
    assert!(ledger.agent_logs(filter).await.unwrap().found.len() < 3_000);
}

#[tokio::test]
async fn a_flood_of_refusals_is_counted_and_its_inputs_are_cut() {
    let ledger = memory();
    let proxy =
        ToolProxy::new(parts(world(&entry(), Authorizer::new(on())), ledger.clone(), untouched()));
    let text = "x".repeat(100_000);
    for n in 0..1_000 {
        let args = if n == 0 { json!({ "text": text }) } else { json!({ "n": n }) };
        let result = call(&proxy, CallRequest::new("shop.none", &args.to_string()).unwrap()).await;
        assert_eq!(result.error.unwrap().code, ErrorCode::UnregisteredTool);
    }
    proxy.shut_down(Duration::from_secs(5)).await.unwrap();
    let filter = EventFilter { limit: 10_000, ..EventFilter::default() };
    let events = ledger.events(filter).await.unwrap().found;
    let of = |events: &[PlacedEvent], folded: bool| -> Vec<AuditEvent> {
        let kind =
            events.iter().filter(|placed| placed.event.body.event == AuditEventKind::UnknownTool);
        kind.filter(|placed| placed.event.body.facts.is_some() == folded)
            .map(|placed| placed.event.clone())
            .collect()
    };
    assert_eq!(of(&events, false).len(), 300);
    let folded = of(&events, true);
    assert_eq!(folded.len(), 1);
    assert_eq!(folded[0].body.facts.as_ref().unwrap()["folded"], 700);
    let logs =
        ledger.agent_logs(LogFilter { limit: 10_000, ..LogFilter::default() }).await.unwrap().found;
    assert_eq!(logs.len(), 300);
    let kept = logs[0].input.as_ref().unwrap().tree();
    assert_eq!((&kept["omitted"], &kept["bytes"]), (&json!(true), &json!(100_011)));
    assert!(kept["begins"].as_str().unwrap().starts_with(r#"{"text":"xxxx"#));
    assert!(logs.iter().all(|log| serde_json::to_string(log).unwrap().len() < 6_000));
    assert_eq!(logs[1].input.clone().unwrap(), json!({ "n": 1 }));
}

/// Asserts that a call is refused before the executor is touched.
async fn refused(entry: Value, policy: Authorizer, request: CallRequest, code: ErrorCode) {
    refused_in(world(&entry, policy), request, code).await;
}

fn for_local(rights: CallerRights) -> CallerSets<CallerRights> {
    CallerSets::new(BTreeMap::from([("local".to_owned(), (Vec::new(), rights))])).unwrap()
}

async fn refused_in(world: World, request: CallRequest, code: ErrorCode) {
    let ledger = memory();
    let proxy = ToolProxy::new(parts(world, Arc::clone(&ledger) as _, untouched()));
    let result = call(&proxy, request).await;
    assert_eq!(result.effect, Effect::NotStarted);
    holds(&ledger, &result, code).await;
}

#[tokio::test]
async fn denied_and_invalid_calls_never_reach_an_executor() {
    use ErrorCode as C;
    let good = || request(r#"{"n":1}"#, None);
    refused(entry(), Authorizer::new(FeatureFlags::default()), good(), C::ToolsDisabled).await;
    let stranger = CallRequest { tool_id: "shop.other".into(), ..good() };
    refused(entry(), Authorizer::new(on()), stranger, C::UnregisteredTool).await;
    let blind = CallerRights { tools: Some(vec![]), ..CallerRights::everything() };
    let hidden = Authorizer::new(on()).with_callers(for_local(blind));
    refused(entry(), hidden, good(), C::UnregisteredTool).await;
    let listed = Authorizer::new(on()).with_whitelist(Whitelist::parse("other").unwrap());
    refused(entry(), listed, good(), C::PolicyDenied).await;
    let poor = CallerRights { grants: vec![], ..CallerRights::everything() };
    let grants = Authorizer::new(on()).with_callers(for_local(poor));
    refused(entry(), grants, good(), C::PolicyDenied).await;
    for (status, code) in [
        (ToolStatus::Quarantined("changed".into()), C::QuarantinedTool),
        (ToolStatus::Paused, C::Paused),
    ] {
        let mut world = world(&entry(), Authorizer::new(on()));
        world.set_status("shop.order".try_into().unwrap(), status);
        refused_in(world, good(), code).await;
    }
    for bad in [
        r#"{"n":"x"}"#,
        "[1]",
        "null",
        r#"{"n":1e400}"#,
        r#"{"n":1,"n":2}"#,
        r#"{"__proto__":1}"#,
        r#"{"a":{"constructor":1}}"#,
    ] {
        refused(entry(), Authorizer::new(on()), request(bad, None), C::InvalidArgs).await;
    }
    let keyed = with("/idempotency", json!({"mode": "keyed", "key_field": "key"}));
    for bad in ["{}", r#"{"key":null}"#, r#"{"key":" "}"#, r#"{"key":[1]}"#] {
        refused(keyed.clone(), Authorizer::new(on()), request(bad, None), C::MissingIdempotencyKey)
            .await;
    }
    let asking = with("/policy", json!({"approval": "always"}));
    refused(asking, Authorizer::new(on()), good(), C::ApprovalRequired).await;
    let none = with("/policy", json!({"rateLimitPerMin": 0}));
    refused(none, Authorizer::new(on()), good(), C::RateLimited).await;
    refused(entry(), Authorizer::new(on()).with_engine(Arc::new(Broken)), good(), C::PolicyDenied)
        .await;
}

/// The rules of a door that refuses every call, and counts how often it was asked.
#[derive(Default)]
struct RefusesAll(AtomicUsize);

impl ArgumentRules for RefusesAll {
    fn apply(&self, _: &Arc<ToolContract>, _: Arguments) -> Result<Arguments, ArgumentError> {
        self.0.fetch_add(1, Ordering::SeqCst);
        Err(ArgumentError {
            path: "/n".into(),
            keyword: "door".into(),
            message: "the door refuses".into(),
        })
    }
}

#[tokio::test]
async fn the_door_is_asked_of_the_arguments_only_for_a_caller_with_the_permissions() {
    use ErrorCode as C;
    let without = CallerRights { grants: vec![], ..CallerRights::everything() };
    for (rights, code, asked) in
        [(without, C::PolicyDenied, 0), (CallerRights::everything(), C::InvalidArgs, 1)]
    {
        let ledger = memory();
        let policy = Authorizer::new(on()).with_callers(for_local(rights));
        let parts = parts(world(&entry(), policy), Arc::clone(&ledger) as _, untouched());
        let rules = Arc::new(RefusesAll::default());
        let call = ToolCall::new(request(r#"{"n":1}"#, None), Caller::local());
        let (conversation, _cancel) = Conversation::detached();
        let told = Arc::clone(&rules) as Arc<dyn ArgumentRules>;
        let result = ToolProxy::new(parts).call_shown(call, conversation, Some(told)).await;
        assert_eq!(rules.0.load(Ordering::SeqCst), asked, "{code}");
        holds(&ledger, &result, code).await;
    }
}

struct Broken;
impl PolicyEngine for Broken {
    fn judge(&self, _: &Question<'_>) -> Result<Verdict, EngineError> {
        Err(EngineError("internal cause".into()))
    }
    fn version(&self) -> &str {
        "0"
    }
}

#[tokio::test]
async fn each_outcome_of_an_executor_has_its_code_and_records() {
    use ErrorCode as C;
    let failed = |code, effect| {
        Outcome::Failed(ExecutionError {
            code,
            effect,
            safe: None,
            internal: "internal cause".into(),
        })
    };
    let block = |block: Value| {
        Outcome::Done(ToolOutput::of(
            ContentBlock::of(&block)
                .map(|block| Payload { content: Some(vec![block]), ..Payload::default() }),
        ))
    };
    let cases = [
        (failed(C::AdapterFailed, Effect::Unknown), C::AdapterFailed, Effect::Unknown),
        (failed(C::AdapterFailed, Effect::NotStarted), C::AdapterFailed, Effect::NotStarted),
        (failed(C::NotConfigured, Effect::NotStarted), C::NotConfigured, Effect::NotStarted),
        (failed(C::SandboxDenied, Effect::Unknown), C::SandboxDenied, Effect::Unknown),
        (failed(C::Timeout, Effect::Unknown), C::Timeout, Effect::Unknown),
        (failed(C::Cancelled, Effect::Unknown), C::Cancelled, Effect::Unknown),
        (Outcome::Done(ToolOutput::text("no").into_error()), C::ToolError, Effect::Completed),
        (Outcome::Done(ToolOutput::default()), C::MissingToolResult, Effect::Completed),
        (block(json!("x")), C::InvalidToolResult, Effect::Completed),
        (
            Outcome::Done(ToolOutput { tool_id: Some("other".into()), ..ToolOutput::text("x") }),
            C::ToolIdMismatch,
            Effect::Completed,
        ),
        (
            Outcome::Done(ToolOutput::text("x".repeat(11 << 20))),
            C::ResultTooLarge,
            Effect::Completed,
        ),
        (
            Outcome::NeedsInput(InputNeeded { requests: json!({}), state: None }),
            C::AdapterFailed,
            Effect::Unknown,
        ),
    ];
    for (outcome, code, effect) in cases {
        let ledger = memory();
        let world = world(&entry(), Authorizer::new(on()));
        let proxy = ToolProxy::new(parts(world, Arc::clone(&ledger) as _, answering(outcome)));
        let result = call(&proxy, request("{}", None)).await;
        assert_eq!(result.effect, effect, "{code}");
        assert!(result.receipt_id.is_some(), "{code}: a dispatched call has a receipt");
        holds(&ledger, &result, code).await;
    }
    let ledger = memory();
    let elsewhere = with("/execution", json!({"mcpServerId": "none"}));
    let world = world(&elsewhere, Authorizer::new(on()));
    let proxy = ToolProxy::new(parts(world, Arc::clone(&ledger) as _, untouched()));
    let result = call(&proxy, request("{}", None)).await;
    assert!(result.error.as_ref().unwrap().message.contains("[servers.none]"), "{result:?}");
    holds(&ledger, &result, C::UnknownAdapter).await;
}

#[tokio::test]
async fn required_containment_is_refused_where_there_is_none() {
    let ledger = memory();
    let contained = with("/sandbox", json!({"enforce": "required"}));
    let world = world(&contained, Authorizer::new(on()));
    let proxy = ToolProxy::new(parts(world, Arc::clone(&ledger) as _, untouched()));
    holds(&ledger, &call(&proxy, request("{}", None)).await, ErrorCode::SandboxUnavailable).await;
}

fn hologram() -> ContentBlock {
    ContentBlock::of(&json!({"type": "hologram", "data": 1})).unwrap()
}

#[tokio::test]
async fn the_executor_gets_the_guarded_bytes_and_its_answer_comes_back() {
    let ledger = memory();
    let seen = Arc::new(Mutex::new(String::new()));
    let heard = Arc::clone(&seen);
    let mut tool = MockTool::new();
    tool.expect_execute().times(1).returning(move |dispatch, _| {
        *heard.lock().unwrap() = dispatch.arguments.as_str().to_owned();
        Outcome::Done(ToolOutput::new(Payload {
            content: Some(vec![hologram()]),
            structured_content: JsonText::of(&json!({"half": 0.5, "unknown": [null]})).ok(),
            meta: JsonText::of(&json!({"x": 1})).ok(),
        }))
    });
    let proxy = ToolProxy::new(parts(
        world(&entry(), Authorizer::new(on())),
        Arc::clone(&ledger) as _,
        tool,
    ));
    let bytes = r#"{ "n" : 9007199254740993,   "key":"ä" }"#;
    let result = call(&proxy, request(bytes, None)).await;
    assert_eq!(*seen.lock().unwrap(), bytes);
    assert_eq!(result.status, Status::Succeeded);
    assert_eq!(result.content, [hologram()]);
    assert_eq!(result.structured_content.unwrap(), json!({"half": 0.5, "unknown": [null]}));
    assert_eq!(result.meta.unwrap(), json!({"x": 1}));
    let (events, logs) = records(&ledger, &result.call_id).await;
    let kinds: Vec<AuditEventKind> = events.iter().map(|event| event.body.event).collect();
    assert_eq!(kinds, [AuditEventKind::ToolDispatched, AuditEventKind::ToolExecuted]);
    assert!(!logs[0].is_error && logs[0].attempt == 1);
}

#[tokio::test]
async fn panics_hangs_and_late_answers_are_outcomes() {
    let ledger = memory();
    let mut tool = MockTool::new();
    tool.expect_execute().returning(|_, _| panic!("internal cause"));
    let proxy = ToolProxy::new(parts(
        world(&entry(), Authorizer::new(on())),
        Arc::clone(&ledger) as _,
        tool,
    ));
    let result = call(&proxy, request("{}", Some("k"))).await;
    assert_eq!(result.effect, Effect::Unknown);
    holds(&ledger, &result, ErrorCode::AdapterFailed).await;
    let again = call(&proxy, request("{}", Some("k"))).await;
    assert_eq!(
        again.error.unwrap().code,
        ErrorCode::CallInDoubt,
        "the proxy goes on, and the key is in doubt"
    );

    struct Sleepy {
        answers_when_told: bool,
    }
    #[async_trait]
    impl Executor for Sleepy {
        async fn execute(&self, _: Dispatch, conversation: Conversation) -> Outcome {
            if self.answers_when_told {
                conversation.cancelled().await;
                return Outcome::Done(ToolOutput::text("too late"));
            }
            std::future::pending().await
        }
        async fn readiness(&self, _: &ToolContract, _: bool) -> Readiness {
            Readiness::Ready
        }
    }
    for answers_when_told in [true, false] {
        let ledger = memory();
        let short = with("/timeout_ms", json!(30));
        let tool = Sleepy { answers_when_told };
        let proxy = ToolProxy::new(parts(
            world(&short, Authorizer::new(on())),
            Arc::clone(&ledger) as _,
            tool,
        ));
        let result = call(&proxy, request("{}", None)).await;
        assert_eq!(result.effect, Effect::Unknown);
        holds(&ledger, &result, ErrorCode::Timeout).await;
    }
}

/// Blocks its thread until it is told to go on.
struct Blocking(Mutex<std::sync::mpsc::Receiver<()>>);

#[async_trait]
impl Executor for Blocking {
    async fn execute(&self, _: Dispatch, _: Conversation) -> Outcome {
        let _ = self.0.lock().unwrap().recv();
        Outcome::Done(ToolOutput::text("late"))
    }
    async fn readiness(&self, _: &ToolContract, _: bool) -> Readiness {
        Readiness::Ready
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_tool_that_blocks_its_thread_is_cut_in_time() {
    let ledger = memory();
    let (go, gate) = std::sync::mpsc::channel();
    let proxy = ToolProxy::new(parts(
        world(&with("/timeout_ms", json!(30)), Authorizer::new(on())),
        Arc::clone(&ledger) as _,
        Blocking(Mutex::new(gate)),
    ));
    let result = tokio::time::timeout(Duration::from_secs(60), call(&proxy, request("{}", None)));
    let result = result.await.expect("its time limit holds");
    holds(&ledger, &result, ErrorCode::Timeout).await;
    go.send(()).unwrap();
}

#[tokio::test]
async fn a_cancelled_call_is_settled_by_what_the_tool_says() {
    struct Obedient;
    #[async_trait]
    impl Executor for Obedient {
        async fn execute(&self, _: Dispatch, conversation: Conversation) -> Outcome {
            conversation.cancelled().await;
            Outcome::Done(ToolOutput::text("finished all the same"))
        }
        async fn readiness(&self, _: &ToolContract, _: bool) -> Readiness {
            Readiness::Ready
        }
    }
    for (read_only, code) in [(false, None), (true, Some(ErrorCode::Cancelled))] {
        let ledger = memory();
        let entry = with("/policy", json!({"readOnly": read_only}));
        let proxy = ToolProxy::new(parts(
            world(&entry, Authorizer::new(on())),
            Arc::clone(&ledger) as _,
            Obedient,
        ));
        let (conversation, cancel) = Conversation::detached();
        let calling = proxy.call(ToolCall::new(request("{}", None), Caller::local()), conversation);
        let (result, ()) = tokio::join!(calling, async {
            // The call is claimed once its dispatch is written.
            loop {
                let filter = EventFilter { limit: 10, ..EventFilter::default() };
                if ledger.events(filter).await.unwrap().found.len() > 1 {
                    break;
                }
                tokio::task::yield_now().await;
            }
            cancel.cancel();
        });
        assert_eq!(result.error.map(|error| error.code), code);
    }
}

#[tokio::test]
async fn a_blank_key_and_arguments_that_are_null_are_refused() {
    let ledger = memory();
    let tool = answering(Outcome::Done(ToolOutput::text("ok")));
    let world = world(&entry(), Authorizer::new(on()));
    let proxy = ToolProxy::new(parts(world, Arc::clone(&ledger) as _, tool));
    for key in ["", "  "] {
        let result = call(&proxy, request("{}", Some(key))).await;
        holds(&ledger, &result, ErrorCode::InvalidArgs).await;
    }
    let null = r#"{"toolId": "shop.order", "args": null}"#;
    let null: CallRequest = serde_json::from_str(null).unwrap();
    let result = call(&proxy, CallRequest { args: null.args, ..request("{}", None) }).await;
    holds(&ledger, &result, ErrorCode::InvalidArgs).await;
}

#[tokio::test]
async fn a_caller_that_is_gone_ends_what_has_no_effect() {
    /// Says that it has begun, and whether it was cancelled once it may go on.
    struct Patient(async_channel::Sender<()>, async_channel::Receiver<()>);
    #[async_trait]
    impl Executor for Patient {
        async fn execute(&self, _: Dispatch, conversation: Conversation) -> Outcome {
            self.0.send(()).await.unwrap();
            tokio::select! {
                () = conversation.cancelled() => Outcome::Done(ToolOutput::text("cancelled")),
                gone_on = self.1.recv() => {
                    gone_on.unwrap();
                    Outcome::Done(ToolOutput::text("whole"))
                }
            }
        }
        async fn readiness(&self, _: &ToolContract, _: bool) -> Readiness {
            Readiness::Ready
        }
    }
    for read_only in [false, true] {
        let ((begun, has_begun), (go, gate)) =
            (async_channel::bounded(1), async_channel::bounded(1));
        let entry = with("/policy", json!({"readOnly": read_only}));
        let tool = Patient(begun, gate);
        let proxy =
            ToolProxy::new(parts(world(&entry, Authorizer::new(on())), memory() as _, tool));
        let (conversation, caller) = Conversation::detached();
        let calling = proxy.call(ToolCall::new(request("{}", None), Caller::local()), conversation);
        let (result, ()) = tokio::join!(calling, async {
            has_begun.recv().await.unwrap();
            caller.hang_up();
            // A cancellation would arrive before.
            for _ in 0..10 {
                tokio::task::yield_now().await;
            }
            let _ = go.send(()).await;
        });
        let expected = read_only.then_some(ErrorCode::Cancelled);
        assert_eq!(result.error.as_ref().map(|error| error.code), expected, "{result:?}");
        assert!(read_only || result.content[0].as_text().as_deref() == Some("whole"), "{result:?}");
    }
    // A call that is not dispatched yet does not start.
    let (begun, has_begun) = async_channel::bounded(1);
    let (_go, gate) = async_channel::bounded(1);
    let policy = Authorizer::new(on());
    let proxy = ToolProxy::new(parts(world(&entry(), policy), memory() as _, Patient(begun, gate)));
    let (conversation, caller) = Conversation::detached();
    caller.hang_up();
    let call = ToolCall::new(request("{}", None), Caller::local());
    let result = proxy.call(call, conversation).await;
    assert_eq!(result.error.map(|error| error.code), Some(ErrorCode::Cancelled));
    assert!(has_begun.is_empty());
}

#[tokio::test]
async fn limits_and_conflicts_are_refused_at_the_claim() {
    let ledger = memory();
    let proxy = ToolProxy::new(parts(
        world(&entry(), Authorizer::new(on())),
        Arc::clone(&ledger) as _,
        answering(Outcome::Done(ToolOutput::text("ok"))),
    ));
    let first = call(&proxy, request(r#"{"n":1}"#, Some("k"))).await;
    let again = call(&proxy, request(r#"{"n":1}"#, Some("k"))).await;
    assert!(
        again.replayed && again.receipt_id == first.receipt_id && again.content == first.content
    );
    let (events, logs) = records(&ledger, &again.call_id).await;
    assert_eq!(
        (events.len(), events[0].body.event, logs.len()),
        (1, AuditEventKind::ToolReplayed, 1)
    );
    holds(
        &ledger,
        &call(&proxy, request(r#"{"n":2}"#, Some("k"))).await,
        ErrorCode::IdempotencyConflict,
    )
    .await;

    let keyed = with("/idempotency", json!({"mode": "keyed", "key_field": "key"}));
    let ledger = memory();
    let mut tool = MockTool::new();
    tool.expect_execute().times(1).returning(|_, _| Outcome::Done(ToolOutput::text("once")));
    let proxy =
        ToolProxy::new(parts(world(&keyed, Authorizer::new(on())), Arc::clone(&ledger) as _, tool));
    let _ = call(&proxy, request(r#"{"key":"a","n":1}"#, None)).await;
    let differs = call(&proxy, request(r#"{"key":"a","n":2}"#, None)).await;
    assert!(differs.replayed && differs.warnings.contains(&"arguments-differ".to_owned()));
    assert!(differs.content[0].as_text().unwrap().contains("not applied"));

    let ledger = memory();
    let mut small =
        parts(world(&entry(), Authorizer::new(on())), Arc::clone(&ledger) as _, untouched());
    small.limits.in_flight_max = 0;
    holds(&ledger, &call(&ToolProxy::new(small), request("{}", None)).await, ErrorCode::Overloaded)
        .await;
    let mut small =
        parts(world(&entry(), Authorizer::new(on())), Arc::clone(&ledger) as _, untouched());
    small.limits.argument_bytes_max = 4;
    holds(
        &ledger,
        &call(&ToolProxy::new(small), request(r#"{"n":12345}"#, None)).await,
        ErrorCode::InvalidArgs,
    )
    .await;
}

/// Tells that it has begun, and waits.
struct Gated {
    start: Sender<()>,
    gate: Receiver<()>,
    may_block: bool,
}

impl Gated {
    /// Returns a tool, the channel in which it tells that it has begun, and the one that lets it go on.
    fn new(may_block: bool) -> (Self, Receiver<()>, Sender<()>) {
        let ((start, started), (go, gate)) = (async_channel::bounded(1), async_channel::bounded(1));
        (Self { start, gate, may_block }, started, go)
    }
}

#[async_trait]
impl Executor for Gated {
    async fn execute(&self, _: Dispatch, _: Conversation) -> Outcome {
        self.start.send(()).await.unwrap();
        let _ = self.gate.recv().await;
        Outcome::Done(ToolOutput::text("one"))
    }
    async fn readiness(&self, _: &ToolContract, _: bool) -> Readiness {
        Readiness::Ready
    }
    fn may_block(&self) -> bool {
        self.may_block
    }
}

#[tokio::test]
async fn of_two_duplicates_one_runs_and_the_other_gets_its_outcome() {
    let ledger = memory();
    let (gated, started, go) = Gated::new(true);
    // One slot: the duplicate that waits must not hold it.
    let mut small = parts(world(&entry(), Authorizer::new(on())), Arc::clone(&ledger) as _, gated);
    small.limits.in_flight_max = 2;
    let proxy = ToolProxy::new(small);
    let first = tokio::spawn({
        let proxy = proxy.clone();
        async move { call(&proxy, request("{}", Some("k"))).await }
    });
    started.recv().await.unwrap();
    let mut impatient = request("{}", Some("k"));
    impatient.context.deadline_ms = Some(20);
    holds(&ledger, &call(&proxy, impatient).await, ErrorCode::CallInFlight).await;
    let second = tokio::spawn({
        let proxy = proxy.clone();
        async move { call(&proxy, request("{}", Some("k"))).await }
    });
    tokio::task::yield_now().await;
    go.send(()).await.unwrap();
    let (first, second) = (first.await.unwrap(), second.await.unwrap());
    assert!(!first.replayed && second.replayed);
    assert_eq!((first.receipt_id, first.content), (second.receipt_id, second.content));
}

#[tokio::test]
async fn a_call_that_a_door_drops_goes_on_and_is_drained() {
    let ledger = memory();
    let (gated, started, go) = Gated::new(false);
    let proxy = ToolProxy::new(parts(
        world(&entry(), Authorizer::new(on())),
        Arc::clone(&ledger) as _,
        gated,
    ));
    let mut asked = request("{}", Some("k"));
    asked.context.call_id = Some("dropped".to_owned());
    let (conversation, _) = Conversation::detached();
    let mut shown =
        Box::pin(proxy.call_shown(ToolCall::new(asked, Caller::local()), conversation, None));
    tokio::select! {
        biased;
        result = &mut shown => panic!("the tool waits: {result:?}"),
        started = started.recv() => started.unwrap(),
    }
    drop(shown);
    assert!(proxy.running() > 0);
    let ending = tokio::spawn({
        let proxy = proxy.clone();
        async move { proxy.shut_down(Duration::from_secs(60)).await }
    });
    tokio::task::yield_now().await;
    assert!(!ending.is_finished(), "it waits for the call");
    go.send(()).await.unwrap();
    ending.await.unwrap().unwrap();
    assert_eq!(proxy.running(), 0);
    let (events, logs) = records(&ledger, "dropped").await;
    let ends = events.iter().filter(|event| event.body.log_digest.is_some()).count();
    assert_eq!((ends, logs.len()), (1, 1));
    assert_eq!(events.last().unwrap().body.event, AuditEventKind::ToolExecuted);
}

#[tokio::test]
async fn a_result_that_does_not_fit_warns_or_is_refused() {
    let strict = with("/output_schema", json!({"type": "object", "required": ["id"]}));
    for (rule, code) in
        [(OutputRule::Warn, None), (OutputRule::Enforce, Some(ErrorCode::InvalidToolResult))]
    {
        let ledger = memory();
        let mut parts = parts(
            world(&strict, Authorizer::new(on())),
            Arc::clone(&ledger) as _,
            answering(Outcome::Done(ToolOutput::text("no data"))),
        );
        parts.limits.output = rule;
        let result = call(&ToolProxy::new(parts), request("{}", None)).await;
        let (events, _) = records(&ledger, &result.call_id).await;
        assert!(events.iter().any(|event| event.body.event == AuditEventKind::ToolOutputMismatch));
        assert_eq!(result.error.as_ref().map(|error| error.code), code);
        assert_eq!(result.warnings.contains(&"output-mismatch".to_owned()), code.is_none());
    }
}

fn away() -> MockStore {
    let mut book = MockStore::new();
    book.expect_digester().return_const(Digester::new(&[1; 32]));
    book
}

#[derive(Debug, thiserror::Error)]
#[error("internal cause")]
struct InternalCause;

fn unavailable<T>() -> Result<T, LedgerError> {
    Err(LedgerError::unavailable("internal cause"))
}

#[tokio::test]
async fn without_a_record_nothing_runs_and_a_refusal_keeps_its_code() {
    let mut book = away();
    book.expect_claim().returning(|_| Err(LedgerError::unavailable_by(InternalCause)));
    book.expect_settle().never();
    let proxy =
        ToolProxy::new(parts(world(&entry(), Authorizer::new(on())), Arc::new(book), untouched()));
    let result = call(&proxy, request("{}", None)).await;
    assert_eq!(result.error.as_ref().unwrap().code, ErrorCode::RecordUnavailable);
    assert!(!serde_json::to_string(&result).unwrap().contains("internal cause"));
    assert!(proxy.are_claims_failing());

    let mut book = away();
    book.expect_refuse().times(1).returning(|_| unavailable());
    book.expect_renew().returning(|_| Ok(()));
    book.expect_sweep().returning(|_| Ok(Vec::new()));
    book.expect_checkpoint().returning(|_, _| Ok(None));
    book.expect_record_events().times(1).returning(|events| {
        assert_eq!(events[0].event, AuditEventKind::AuditGap);
        assert_eq!(events[0].facts.as_ref().unwrap()["missed"], 1);
        Ok(())
    });
    let proxy =
        ToolProxy::new(parts(world(&entry(), Authorizer::new(on())), Arc::new(book), untouched()));
    let result = call(&proxy, request("[]", None)).await;
    assert_eq!(result.error.unwrap().code, ErrorCode::InvalidArgs);
    proxy.maintain(Due::NOW).await.unwrap();
}

#[tokio::test]
async fn an_outcome_without_a_record_says_that_the_tool_ran() {
    let mut book = away();
    book.expect_claim().returning(|request| {
        Ok(Claimed::Fresh(toolbooth_audit::ledger::Claim::granted(request.receipt_id, 1, 1)))
    });
    book.expect_settle().returning(|_| unavailable());
    let proxy = ToolProxy::new(parts(
        world(&entry(), Authorizer::new(on())),
        Arc::new(book),
        answering(Outcome::Done(ToolOutput::text("the body"))),
    ));
    let result = call(&proxy, request("{}", None)).await;
    assert_eq!(result.error.as_ref().unwrap().code, ErrorCode::OutcomeUnrecorded);
    assert_eq!(result.effect, Effect::Completed);
    assert!(result.receipt_id.is_some() && !format!("{result:?}").contains("the body"));
}

struct TapedTool(Tape);

#[async_trait]
impl Executor for TapedTool {
    async fn execute(&self, _: Dispatch, _: Conversation) -> Outcome {
        self.0.say("executor.execute");
        Outcome::Done(ToolOutput::text("ok"))
    }
    async fn readiness(&self, _: &ToolContract, _: bool) -> Readiness {
        Readiness::Ready
    }
}

struct TapedEngine(Tape);

impl PolicyEngine for TapedEngine {
    fn judge(&self, _: &Question<'_>) -> Result<Verdict, EngineError> {
        self.0.say("policy.judge");
        Ok(Verdict::Permit { rule: "all".into(), approval: None })
    }
    fn version(&self) -> &str {
        "1"
    }
}

#[tokio::test]
async fn the_order_of_the_stages_is_the_recorded_one() {
    let tape = Tape::default();
    let policy = Authorizer::new(on()).with_engine(Arc::new(TapedEngine(tape.clone())));
    let ledger = Arc::new(TapedLedger::new(&tape));
    let mut parts = parts(world(&entry(), policy), ledger, TapedTool(tape.clone()));
    parts.ids = Arc::new(TapedIds(tape.clone()));
    let proxy = ToolProxy::new(parts);
    for (name, args) in [("success", "{}"), ("invalid arguments", "[]")] {
        tape.say(&format!("# {name}"));
        let _ = call(&proxy, request(args, None)).await;
    }
    for (name, tool, caller) in [
        ("an unknown tool", "shop.other", Caller::local()),
        ("a tool that is hidden from the caller", "shop.order", key("stranger")),
        ("an unknown tool, called by that caller", "shop.other", key("stranger")),
    ] {
        tape.say(&format!("# {name}"));
        let mut request = request("{}", None);
        request.tool_id = tool.to_owned();
        let result = proxy.call(ToolCall::new(request, caller), Conversation::detached().0).await;
        assert_eq!(result.error.unwrap().code, ErrorCode::UnregisteredTool, "{name}");
    }
    let recorded = tape.recorded();
    let mut sections = recorded.split("# ").skip(3).map(|text| text.split_once('\n').unwrap().1);
    let unknown = sections.next().unwrap().to_owned();
    assert!(sections.all(|hidden| hidden == unknown), "{recorded}");
    is_golden(&recorded, "order.txt");
}

#[tokio::test]
async fn a_sentence_for_the_agent_has_no_secrets() {
    let error = ExecutionError::adapter(Effect::Completed, "internal");
    let safe = "refused by https://ann:p4ssw0rd@host.example/";
    let ledger = memory();
    let tool = answering(Outcome::Failed(error.with_safe(safe)));
    let proxy = ToolProxy::new(parts(world(&entry(), Authorizer::new(on())), ledger, tool));
    let message = call(&proxy, request("{}", Some("k"))).await.error.unwrap().message;
    assert!(message.contains("refused by") && !message.contains("p4ssw0rd"), "{message}");
}

#[tokio::test]
async fn limits_without_an_end_do_not_panic() {
    let tool = answering(Outcome::Done(ToolOutput::text("done")));
    let limits = Limits {
        in_flight_max: usize::MAX,
        progress_cap: Some(Duration::MAX),
        cancel_grace: Duration::MAX,
        settle_patience: Duration::MAX,
        ..Limits::default()
    };
    let own = parts(world(&entry(), Authorizer::new(on())), memory(), tool);
    let proxy = ToolProxy::new(ProxyParts { limits, ..own });
    assert_eq!(call(&proxy, request("{}", Some("k"))).await.error, None);
    proxy.shut_down(Duration::ZERO).await.unwrap();
}
