//! Calls that wait: for a worker, for a person, and what is kept of their payloads.
//!
//! Path: 2, 6, 7, 9. Doc: call-path.md#asynchronous-calls

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use toolbooth_audit::memory::MemoryLedger;
use toolbooth_audit::queue::{CallQueue, QueuedCall};
use toolbooth_audit::reads::{LogFilter, ReceiptFilter};
use toolbooth_audit::{LedgerReads, verify};
use toolbooth_contracts::agent_log::LogLevel;
use toolbooth_contracts::contract::{AdapterId, ToolContract};
use toolbooth_contracts::conversation::Progress;
use toolbooth_contracts::coverage::Readiness;
use toolbooth_contracts::receipt::ClaimState;
use toolbooth_contracts::{
    CallRequest, Caller, Conversation, Dispatch, Executor, Guard, Outcome, ToolCall, ToolOutput,
};
use toolbooth_policy::{Authorizer, FeatureFlags};
use toolbooth_proxy::{
    AsyncCall, AsyncCalls, Clock, Executors, Handed, Keeping, Limits, Parts, Results, SystemClock,
    SystemIds, ToolProxy, World, Worlds,
};
use toolbooth_registry::{RegisteredTool, Source, ToolRegistry};

/// Says how far it has come, asks where it can, waits for a cancel where it is told to, and
/// counts how often it ran.
#[derive(Default)]
struct Tool {
    ran: AtomicUsize,
}

#[async_trait]
impl Executor for Tool {
    async fn execute(&self, dispatch: Dispatch, conversation: Conversation) -> Outcome {
        self.ran.fetch_add(1, Ordering::SeqCst);
        let arguments: Value = serde_json::from_str(dispatch.arguments.get()).unwrap();
        conversation.progress(Progress { progress: 0.5, total: Some(1.0), message: None });
        if arguments["wait"] == true {
            conversation.cancelled().await;
        }
        if arguments["ask"] == true {
            return match conversation.ask(json!({"question": "sure?"})).await {
                Ok(answer) => Outcome::Done(ToolOutput::data(answer)),
                Err(error) => Outcome::Done(ToolOutput::text(error.to_string()).into_error()),
            };
        }
        Outcome::Done(ToolOutput::text(format!("ran {}", dispatch.arguments.get())))
    }

    async fn readiness(&self, _: &ToolContract, _: bool) -> Readiness {
        Readiness::Ready
    }
}

struct House {
    tool: Arc<Tool>,
    ledger: Arc<MemoryLedger>,
    proxy: ToolProxy,
    calls: AsyncCalls,
}

fn house(limits: Limits, keeping: Keeping) -> House {
    let mut registry = ToolRegistry::default();
    let entry = json!({
        "name": "shop.order", "description": "Orders.", "execution": {"localRuntimeId": "shop"},
        "input_schema": {"type": "object"}, "output_schema": {}, "permissions": [],
        "timeout_ms": 60_000, "idempotency": {"mode": "none"}
    });
    let tool = RegisteredTool::from_entry(&entry, Source::File, &Guard::default()).unwrap();
    let _ = registry.register(tool);
    let policy = Authorizer::new(FeatureFlags { mcp_tools: true, tools_policy: true });
    let tool = Arc::new(Tool::default());
    let clock = SystemClock::default();
    let ledger = Arc::new(MemoryLedger::new("writer", &[3; 32], &clock.now()));
    let proxy = ToolProxy::new(Parts {
        worlds: Worlds::new(World::new(policy).with_registry(registry)),
        catalogue: None,
        ledger: Arc::clone(&ledger) as _,
        executors: Executors::default()
            .with(AdapterId::Local("shop".into()), Arc::clone(&tool) as _),
        clock: Arc::new(clock),
        ids: Arc::new(SystemIds),
        shapes: toolbooth_contracts::secret::SecretShapes::builtin(),
        limits,
        upstreams: Default::default(),
        keeping,
    });
    let calls = AsyncCalls::new(proxy.clone(), Arc::clone(&ledger) as _, Arc::clone(&ledger) as _);
    House { tool, ledger, proxy, calls }
}

impl House {
    async fn hand_over(&self, id: &str, args: &str) -> Handed {
        let mut request = CallRequest::new("shop.order", args).unwrap();
        request.context.call_id = Some(id.to_owned());
        self.calls.hand_over(request, &Caller::local()).await.unwrap()
    }

    async fn until(&self, id: &str, done: impl Fn(&AsyncCall) -> bool) -> AsyncCall {
        loop {
            let call = self.calls.get(&Caller::local(), id).await.unwrap().unwrap();
            if done(&call) {
                return call;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

#[tokio::test]
async fn a_call_that_is_handed_over_runs_once_however_often_it_is_delivered() {
    let house = house(Limits::default(), Keeping::default());
    assert!(matches!(house.hand_over("a", "{\"n\":1}").await, Handed::Taken(_)));
    assert!(matches!(house.hand_over("a", "{\"n\":1}").await, Handed::Taken(_)), "the same call");
    assert!(matches!(house.hand_over("a", "{\"n\":2}").await, Handed::Conflict));
    assert!(matches!(house.hand_over(" ", "{}").await, Handed::BadId(_)));
    let stop = CancellationToken::new();
    let calls = house.calls.clone();
    let working = tokio::spawn({
        let stop = stop.clone();
        async move { calls.work(2, stop).await }
    });
    let done = house.until("a", |call| call.state == "done").await;
    let result = done.result.unwrap();
    assert_eq!(result["callId"], "a");
    assert_eq!(result["content"][0]["text"], "ran {\"n\":1}");
    // The row again, as after a worker that ended before it could say that it was done.
    let again = QueuedCall::new("b".into(), "local".into(), String::new(), &now());
    let request = json!({"toolId": "shop.order", "args": {"n": 1}, "context": {"callId": "b"}});
    let row = QueuedCall { request: request.to_string(), ..again };
    house.ledger.enqueue(row.clone(), 10).await.unwrap();
    house.until("b", |call| call.state == "done").await;
    assert_eq!(house.ledger.forget("9999".into()).await.unwrap(), 2);
    house.ledger.enqueue(row, 10).await.unwrap();
    let second = house.until("b", |call| call.state == "done").await.result.unwrap();
    assert_eq!((&second["replayed"], &second["callId"]), (&json!(true), &json!("b")));
    assert_eq!(house.tool.ran.load(Ordering::SeqCst), 2, "one run for each call");
    stop.cancel();
    working.await.unwrap();
    assert!(verify::store(&*house.ledger, Default::default()).await.unwrap().ok);
}

fn now() -> toolbooth_audit::ledger::Moment {
    SystemClock::default().now()
}

#[tokio::test]
async fn a_queued_call_shows_its_progress_and_can_be_cancelled() {
    let house = house(Limits::default(), Keeping::default());
    let stop = CancellationToken::new();
    let calls = house.calls.clone();
    house.hand_over("waits", "{\"wait\":true}").await;
    house.hand_over("never", "{}").await;
    assert!(house.calls.cancel(&Caller::local(), "never").await.unwrap());
    tokio::spawn({
        let stop = stop.clone();
        async move { calls.work(4, stop).await }
    });
    let running = house.until("waits", |call| call.progress.is_some()).await;
    assert_eq!(running.progress.unwrap()["progress"], 0.5);
    let never = house.until("never", |call| call.state == "done").await.result.unwrap();
    assert_eq!(never["error"]["code"], "cancelled", "{never}");
    assert!(house.calls.cancel(&Caller::local(), "waits").await.unwrap());
    let done = house.until("waits", |call| call.state == "done").await;
    assert!(done.result.unwrap()["content"][0]["text"].as_str().unwrap().starts_with("ran"));
    assert_eq!(house.tool.ran.load(Ordering::SeqCst), 1, "cancelled before it began");
    stop.cancel();
}

#[tokio::test]
async fn a_call_that_asks_waits_durably_and_without_a_slot() {
    let house = house(Limits { in_flight_max: 1, ..Limits::default() }, Keeping::default());
    let (conversation, counterpart) = Conversation::pair(true);
    let request = CallRequest::new("shop.order", "{\"ask\":true}").unwrap();
    let proxy = house.proxy.clone();
    let asking = tokio::spawn(async move {
        proxy.call(ToolCall::new(request, Caller::local()), conversation).await
    });
    let question = counterpart.questions.recv().await.unwrap();
    assert_eq!(question.request["question"], "sure?");
    let (receipts, _) =
        house.ledger.receipts(ReceiptFilter { limit: 9, ..Default::default() }).await.unwrap();
    assert_eq!(receipts[0].state, ClaimState::AwaitingInput);
    // There is one slot, and the call that waits does not hold it.
    let other = ToolCall::new(CallRequest::new("shop.order", "{}").unwrap(), Caller::local());
    assert!(!house.proxy.call(other, Conversation::detached().0).await.is_error);
    question.answer(json!({"yes": true}));
    let result = asking.await.unwrap();
    assert_eq!(result.structured_content, Some(json!({"yes": true})));
    let receipt = house.ledger.receipt(&result.receipt_id.unwrap()).await.unwrap().unwrap();
    assert_eq!(receipt.state, ClaimState::Succeeded);
}

#[tokio::test(start_paused = true)]
async fn a_question_that_nobody_answers_expires() {
    let house = house(Limits::default(), Keeping::default());
    let (conversation, counterpart) = Conversation::pair(true);
    let request = CallRequest::new("shop.order", "{\"ask\":true}").unwrap();
    let result = house.proxy.call(ToolCall::new(request, Caller::local()), conversation).await;
    assert!(result.is_error, "the tool says that nobody answered: {result:?}");
    drop(counterpart);
}

#[tokio::test]
async fn payloads_are_kept_as_the_operator_says() {
    for (level, results, input, kept) in [
        (LogLevel::Full, Results::Keep, true, true),
        (LogLevel::Digest, Results::Digest, false, false),
        (LogLevel::None, Results::Keep, false, true),
    ] {
        let keeping =
            Keeping::default().with_log(level, Vec::new()).with_results(results, Vec::new());
        let house = house(Limits::default(), keeping);
        let request = CallRequest::new("shop.order", "{\"secret\":\"of mine\"}").unwrap();
        let call = ToolCall::new(request, Caller::local());
        let result = house.proxy.call(call, Conversation::detached().0).await;
        let logs =
            house.ledger.agent_logs(LogFilter { limit: 1, ..Default::default() }).await.unwrap();
        let log = serde_json::to_value(&logs[0]).unwrap();
        assert_eq!(log["input"]["secret"].is_string(), input, "{log}");
        assert_eq!(log["input"]["digest"].is_string(), level == LogLevel::Digest, "{log}");
        assert_eq!(log["output"].is_null(), level == LogLevel::None, "{log}");
        let receipt = house.ledger.receipt(&result.receipt_id.unwrap()).await.unwrap().unwrap();
        assert_eq!((receipt.result.is_some(), receipt.result_digest.is_some()), (kept, true));
    }
}

#[tokio::test]
async fn what_has_become_known_since_reaches_the_one_who_asked() {
    let house = house(Limits::default(), Keeping::default());
    let request = CallRequest::new("shop.order", "{\"n\":7}").unwrap();
    let call = ToolCall::new(request, Caller::local());
    let ran = house.proxy.call(call, Conversation::detached().0).await;
    let receipt = ran.receipt_id.unwrap();
    for (id, told, known) in [
        ("doubt", json!({"effect": "unknown", "receiptId": receipt}), true),
        (
            "unrecorded",
            json!({"effect": "completed", "error": {"code": "outcome-unrecorded"},
                "receiptId": receipt}),
            true,
        ),
        ("failed", json!({"effect": "completed", "receiptId": receipt}), false),
    ] {
        house.hand_over(id, "{}").await;
        house.ledger.take(Vec::new()).await.unwrap().unwrap();
        house.ledger.finish("local", id, told.to_string(), now()).await.unwrap();
        let call = house.calls.get(&Caller::local(), id).await.unwrap().unwrap();
        let result = call.result.unwrap();
        assert_eq!(result["content"][0]["text"] == "ran {\"n\":7}", known, "{id}: {result}");
        assert_eq!(result == told, !known, "{id}: {result}");
    }
}
