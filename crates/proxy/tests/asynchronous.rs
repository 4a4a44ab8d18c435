//! Tests calls that wait for a worker or a person, and the storage of their payloads.
//!
//! Path: 2, 6, 7, 9. Doc: call-path.md#asynchronous-calls

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use serde_json::json;
use tokio_util::sync::CancellationToken;
use toolbooth_audit::ledger::{Ledger, Moment, Prune, PruneKind};
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
    CallRequest, Caller, Conversation, Dispatch, Executor, Guard, Identity, Outcome, ToolCall,
    ToolOutput,
};
use toolbooth_policy::{Authorizer, FeatureFlags};
use toolbooth_proxy::{
    AsyncCall, AsyncCalls, Clock, Executors, Limits, PayloadRetention, ProxyParts, Results,
    Submission, SystemClock, ToolProxy, World, Worlds,
};
use toolbooth_registry::{RegisteredTool, Source, ToolRegistry};

/// Reports progress, asks a question or waits for a cancel if its arguments request that, and counts
/// its runs.
#[derive(Default)]
struct Tool {
    ran: Arc<AtomicUsize>,
}

#[async_trait]
impl Executor for Tool {
    async fn execute(&self, dispatch: Dispatch, conversation: Conversation) -> Outcome {
        self.ran.fetch_add(1, Ordering::SeqCst);
        let arguments = dispatch.arguments.tree();
        conversation.progress(Progress { progress: 0.5, total: Some(1.0), message: None });
        if arguments["wait"] == true {
            conversation.cancelled().await;
        }
        if arguments["ask"] == true {
            return match conversation.ask(json!({"question": "sure?"})).await {
                Ok(answer) => Outcome::Done(ToolOutput::data(&answer)),
                Err(error) => Outcome::Done(ToolOutput::text(error.to_string()).into_error()),
            };
        }
        Outcome::Done(ToolOutput::text(format!("ran {}", dispatch.arguments.as_str())))
    }

    async fn readiness(&self, _: &ToolContract, _: bool) -> Readiness {
        Readiness::Ready
    }
}

struct Fixture {
    /// How often the tool ran.
    ran: Arc<AtomicUsize>,
    ledger: Arc<MemoryLedger>,
    proxy: ToolProxy,
    calls: AsyncCalls,
}

fn memory() -> Arc<MemoryLedger> {
    Arc::new(MemoryLedger::new("writer", &[3; 32], &SystemClock::default().now()))
}

/// Returns a proxy with the tool `shop.order`.
fn proxy(
    ledger: &Arc<MemoryLedger>,
    limits: Limits,
    retention: PayloadRetention,
    tool: impl Executor + 'static,
) -> ToolProxy {
    let mut registry = ToolRegistry::default();
    let entry = json!({
        "name": "shop.order", "description": "Orders.", "execution": {"localRuntimeId": "shop"},
        "input_schema": {"type": "object"}, "output_schema": {}, "permissions": [],
        "timeout_ms": 60_000, "idempotency": {"mode": "none"}
    });
    let made = RegisteredTool::from_entry(&entry, Source::File, &Guard::default()).unwrap();
    let _ = registry.register(made);
    let policy = Authorizer::new(FeatureFlags::ON);
    ToolProxy::new(ProxyParts {
        limits,
        retention,
        reads: Some(Arc::clone(ledger) as _),
        ..ProxyParts::new(
            Worlds::new(World::new(policy).with_registry(registry)),
            Arc::clone(ledger) as _,
            Executors::default().with(AdapterId::Local("shop".into()), Arc::new(tool)),
        )
    })
}

fn fixture(limits: Limits, retention: PayloadRetention) -> Fixture {
    let (tool, ledger) = (Tool::default(), memory());
    let ran = Arc::clone(&tool.ran);
    let proxy = proxy(&ledger, limits, retention, tool);
    let calls = AsyncCalls::new(proxy.clone(), Arc::clone(&ledger) as _, Arc::clone(&ledger) as _);
    Fixture { ran, ledger, proxy, calls }
}

impl Fixture {
    async fn submit(&self, id: &str, args: &str) -> Submission {
        let mut request = CallRequest::new("shop.order", args).unwrap();
        request.context.call_id = Some(id.to_owned());
        self.calls.submit(request, &Caller::local()).await.unwrap()
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
    let fixture = fixture(Limits::default(), PayloadRetention::default());
    assert!(matches!(fixture.submit("a", "{\"n\":1}").await, Submission::Taken(_)));
    assert!(
        matches!(fixture.submit("a", "{\"n\":1}").await, Submission::Taken(_)),
        "the same call"
    );
    assert!(matches!(fixture.submit("a", "{\"n\":2}").await, Submission::Conflict));
    assert!(matches!(fixture.submit(" ", "{}").await, Submission::BadId(_)));
    let stop = CancellationToken::new();
    let calls = fixture.calls.clone();
    let working = tokio::spawn({
        let stop = stop.clone();
        async move { calls.work(2, stop).await }
    });
    let done = fixture.until("a", |call| call.state == "done").await;
    let result = done.result.unwrap();
    assert_eq!(result["callId"], "a");
    assert_eq!(result["content"][0]["text"], "ran {\"n\":1}");
    // Enqueues the row again, as after a worker that ended before it could report completion.
    let again = QueuedCall::new("b".into(), &Identity::local(), String::new(), &now());
    let request = json!({"toolId": "shop.order", "args": {"n": 1}, "context": {"callId": "b"}});
    let row = QueuedCall { request: request.to_string(), ..again };
    fixture.ledger.enqueue(row.clone(), 10).await.unwrap();
    fixture.until("b", |call| call.state == "done").await;
    let later = Moment { text: "2999-01-01T00:00:00.000Z".into(), ..now() };
    let prune = Prune {
        kind: PruneKind::Calls,
        before: later.text.clone(),
        at: later,
        windows: Vec::new(),
    };
    assert_eq!(fixture.ledger.prune(prune).await.unwrap().removed, 2);
    fixture.ledger.enqueue(row, 10).await.unwrap();
    let second = fixture.until("b", |call| call.state == "done").await.result.unwrap();
    assert_eq!((&second["replayed"], &second["callId"]), (&json!(true), &json!("b")));
    assert_eq!(fixture.ran.load(Ordering::SeqCst), 2, "one run for each call");
    stop.cancel();
    working.await.unwrap();
    assert!(verify::store(&*fixture.ledger, Default::default()).await.unwrap().ok);
}

fn now() -> toolbooth_audit::ledger::Moment {
    SystemClock::default().now()
}

#[tokio::test]
async fn a_queued_call_shows_its_progress_and_can_be_cancelled() {
    let fixture = fixture(Limits::default(), PayloadRetention::default());
    let stop = CancellationToken::new();
    let calls = fixture.calls.clone();
    fixture.submit("waits", "{\"wait\":true}").await;
    fixture.submit("never", "{}").await;
    assert!(fixture.calls.cancel(&Caller::local(), "never").await.unwrap());
    tokio::spawn({
        let stop = stop.clone();
        async move { calls.work(4, stop).await }
    });
    let running = fixture.until("waits", |call| call.progress.is_some()).await;
    assert_eq!(running.progress.unwrap()["progress"], 0.5);
    let never = fixture.until("never", |call| call.state == "done").await.result.unwrap();
    assert_eq!(never["error"]["code"], "cancelled", "{never}");
    assert!(fixture.calls.cancel(&Caller::local(), "waits").await.unwrap());
    let done = fixture.until("waits", |call| call.state == "done").await;
    assert!(done.result.unwrap()["content"][0]["text"].as_str().unwrap().starts_with("ran"));
    assert_eq!(fixture.ran.load(Ordering::SeqCst), 1, "cancelled before it began");
    stop.cancel();
}

#[tokio::test]
async fn a_call_that_asks_waits_durably_and_without_a_slot() {
    let fixture =
        fixture(Limits { in_flight_max: 1, ..Limits::default() }, PayloadRetention::default());
    let (conversation, counterpart) = Conversation::pair(true);
    let request = CallRequest::new("shop.order", "{\"ask\":true}").unwrap();
    let proxy = fixture.proxy.clone();
    let asking = tokio::spawn(async move {
        proxy.call(ToolCall::new(request, Caller::local()), conversation).await
    });
    let question = counterpart.questions.recv().await.unwrap();
    assert_eq!(question.request["question"], "sure?");
    let receipts =
        fixture.ledger.receipts(ReceiptFilter { limit: 9, ..Default::default() }).await.unwrap();
    assert_eq!(receipts.found[0].state, ClaimState::AwaitingInput);
    // There is one slot, and the call that waits does not hold it.
    let other = ToolCall::new(CallRequest::new("shop.order", "{}").unwrap(), Caller::local());
    assert!(!fixture.proxy.call(other, Conversation::detached().0).await.is_error);
    question.answer(json!({"yes": true}));
    let result = asking.await.unwrap();
    assert_eq!(result.structured_content.unwrap(), json!({"yes": true}));
    let receipt = fixture.ledger.receipt(&result.receipt_id.unwrap()).await.unwrap().unwrap();
    assert_eq!(receipt.state, ClaimState::Succeeded);
}

/// Asks a question, and does something else until it is answered.
struct Busy {
    go: async_channel::Receiver<()>,
    done: async_channel::Sender<()>,
}

#[async_trait]
impl Executor for Busy {
    async fn execute(&self, _: Dispatch, conversation: Conversation) -> Outcome {
        let busy = async {
            self.go.recv().await.unwrap();
            self.done.send(()).await.unwrap();
        };
        let (answer, ()) = tokio::join!(conversation.ask(json!({"question": "sure?"})), busy);
        Outcome::Done(ToolOutput::data(&answer.unwrap()))
    }

    async fn readiness(&self, _: &ToolContract, _: bool) -> Readiness {
        Readiness::Ready
    }

    fn may_block(&self) -> bool {
        false
    }
}

#[tokio::test]
async fn a_tool_goes_on_while_its_caller_is_asked() {
    let ledger = memory();
    let ((go, gate), (done, ended)) = (async_channel::bounded(1), async_channel::bounded(1));
    let proxy =
        proxy(&ledger, Limits::default(), PayloadRetention::default(), Busy { go: gate, done });
    let (conversation, counterpart) = Conversation::pair(true);
    let request = CallRequest::new("shop.order", "{}").unwrap();
    let asking = tokio::spawn(async move {
        proxy.call(ToolCall::new(request, Caller::local()), conversation).await
    });
    let question = counterpart.questions.recv().await.unwrap();
    go.send(()).await.unwrap();
    let ended = tokio::time::timeout(Duration::from_secs(60), ended.recv()).await;
    ended.expect("it goes on").unwrap();
    question.answer(json!({"yes": true}));
    assert_eq!(asking.await.unwrap().structured_content.unwrap(), json!({"yes": true}));
}

#[tokio::test(start_paused = true)]
async fn a_question_without_an_answer_expires() {
    let fixture = fixture(Limits::default(), PayloadRetention::default());
    let (conversation, counterpart) = Conversation::pair(true);
    let request = CallRequest::new("shop.order", "{\"ask\":true}").unwrap();
    let result = fixture.proxy.call(ToolCall::new(request, Caller::local()), conversation).await;
    assert!(result.is_error, "the tool says that no answer came: {result:?}");
    drop(counterpart);
}

#[tokio::test]
async fn payloads_are_kept_as_the_operator_says() {
    for (level, results, input, kept) in [
        (LogLevel::Full, Results::Keep, true, true),
        (LogLevel::Digest, Results::Digest, false, false),
        (LogLevel::None, Results::Keep, false, true),
    ] {
        let retention = PayloadRetention::default()
            .with_log(level, Vec::new())
            .with_results(results, Vec::new());
        let fixture = fixture(Limits::default(), retention);
        let request = CallRequest::new("shop.order", "{\"secret\":\"of mine\"}").unwrap();
        let call = ToolCall::new(request, Caller::local());
        let result = fixture.proxy.call(call, Conversation::detached().0).await;
        let logs =
            fixture.ledger.agent_logs(LogFilter { limit: 1, ..Default::default() }).await.unwrap();
        let log = serde_json::to_value(&logs.found[0]).unwrap();
        assert_eq!(log["input"]["secret"].is_string(), input, "{log}");
        assert_eq!(log["input"]["digest"].is_string(), level == LogLevel::Digest, "{log}");
        assert_eq!(log["output"].is_null(), level == LogLevel::None, "{log}");
        let receipt = fixture.ledger.receipt(&result.receipt_id.unwrap()).await.unwrap().unwrap();
        assert_eq!((receipt.result.is_some(), receipt.result_digest.is_some()), (kept, true));
    }
}

#[tokio::test]
async fn what_has_become_known_since_reaches_the_one_who_asked() {
    let fixture = fixture(Limits::default(), PayloadRetention::default());
    let request = CallRequest::new("shop.order", "{\"n\":7}").unwrap();
    let call = ToolCall::new(request, Caller::local());
    let ran = fixture.proxy.call(call, Conversation::detached().0).await;
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
        fixture.submit(id, "{}").await;
        fixture.ledger.take(Vec::new()).await.unwrap().unwrap();
        fixture.ledger.finish("local", id, told.to_string(), now()).await.unwrap();
        let call = fixture.calls.get(&Caller::local(), id).await.unwrap().unwrap();
        let result = call.result.unwrap();
        assert_eq!(result["content"][0]["text"] == "ran {\"n\":7}", known, "{id}: {result}");
        assert_eq!(result == told, !known, "{id}: {result}");
    }
}

#[tokio::test]
async fn a_call_that_is_given_up_or_whose_key_is_revoked_is_refused_and_recorded() {
    let fixture = fixture(Limits::default(), PayloadRetention::default());
    fixture.submit("a", "{\"n\":1}").await;
    // Five workers took it and ended.
    for _ in 0..5 {
        assert!(fixture.ledger.take(Vec::new()).await.unwrap().is_some());
    }
    let mut request = CallRequest::new("shop.order", "{}").unwrap();
    request.context.call_id = Some("b".to_owned());
    let holder = Caller::authenticated(Identity {
        key_digest: Some("of no key".into()),
        ..Identity::named("key:bob").unwrap()
    });
    fixture.proxy.refresh_orders().await.unwrap();
    fixture.calls.submit(request, &holder).await.unwrap();
    let stop = CancellationToken::new();
    let (calls, stopping) = (fixture.calls.clone(), stop.clone());
    let worker = tokio::spawn(async move { calls.work(1, stopping).await });
    let done = fixture.until("a", |call| call.result.is_some()).await;
    let result = done.result.unwrap();
    assert_eq!(
        (&result["toolId"], &result["effect"]),
        (&json!("shop.order"), &json!("not_started"))
    );
    let error = &result["error"];
    assert_eq!(error["code"], "adapter-failed");
    assert!(error["message"].as_str().unwrap().contains("its workers ended 5 times"), "{error}");
    loop {
        let call = fixture.calls.get(&holder, "b").await.unwrap().unwrap();
        if let Some(result) = call.result {
            assert_eq!(result["error"]["code"], "policy-denied");
            assert_eq!(result["effect"], "not_started");
            break;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    stop.cancel();
    worker.await.unwrap();
    assert_eq!(fixture.ran.load(Ordering::SeqCst), 0);
    for (call, code) in [("a", "adapter-failed"), ("b", "policy-denied")] {
        let filter = LogFilter { call: Some(call.into()), limit: 10, ..LogFilter::default() };
        let logs = fixture.ledger.agent_logs(filter).await.unwrap().found;
        assert_eq!(logs.len(), 1, "{call}");
        assert_eq!(logs[0].error_code.unwrap().as_str(), code);
        assert_eq!(logs[0].tool_name, "shop.order");
    }
}

#[tokio::test]
async fn a_queued_call_means_one_tool_at_each_delivery() {
    let fixture = fixture(Limits::default(), PayloadRetention::default());
    for (name, id, tool) in [
        ("shop_order", "a", "shop.order"),
        ("shop.order", "b", "shop.order"),
        ("no.such", "c", "no.such"),
    ] {
        let mut request = CallRequest::new(name, "{}").unwrap();
        request.context.call_id = Some(id.to_owned());
        fixture.calls.submit(request, &Caller::local()).await.unwrap();
        let stored = CallQueue::queued(&*fixture.ledger, "local", id).await.unwrap().unwrap();
        let request: serde_json::Value = serde_json::from_str(&stored.request).unwrap();
        assert_eq!(request["toolId"], tool, "{name}");
    }
    // What is hidden is not told from what is unknown.
    let without_rights = Caller::authenticated(Identity::named("key:none").unwrap());
    let mut request = CallRequest::new("shop_order", "{}").unwrap();
    request.context.call_id = Some("d".to_owned());
    let Submission::Taken(call) = fixture.calls.submit(request, &without_rights).await.unwrap()
    else {
        panic!("it is taken")
    };
    assert_eq!(call.tool_id, "shop_order");
}

#[tokio::test]
async fn a_call_that_is_given_up_has_the_receipt_of_its_earlier_delivery() {
    let fixture = fixture(Limits::default(), PayloadRetention::default());
    fixture.submit("a", "{}").await;
    let work = || {
        let (calls, stop) = (fixture.calls.clone(), CancellationToken::new());
        let stopping = stop.clone();
        (stop, tokio::spawn(async move { calls.work(1, stopping).await }))
    };
    let (stop, worker) = work();
    let first = fixture.until("a", |call| call.result.is_some()).await.result.unwrap();
    stop.cancel();
    worker.await.unwrap();
    // The row of a call that ran, whose workers ended each time before they could say so.
    let later = Moment { text: "2999-01-01T00:00:00.000Z".into(), ..now() };
    let before = later.text.clone();
    let prune = Prune { kind: PruneKind::Calls, before, at: later, windows: Vec::new() };
    assert_eq!(fixture.ledger.prune(prune).await.unwrap().removed, 1);
    fixture.submit("a", "{}").await;
    for _ in 0..5 {
        assert!(fixture.ledger.take(Vec::new()).await.unwrap().is_some());
    }
    let (stop, worker) = work();
    let given_up = fixture.until("a", |call| call.result.is_some()).await.result.unwrap();
    stop.cancel();
    worker.await.unwrap();
    assert_eq!(given_up["error"]["code"], "adapter-failed");
    assert_eq!(given_up["effect"], "completed");
    assert_eq!(given_up["receiptId"], first["receiptId"]);
    assert_eq!(fixture.ran.load(Ordering::SeqCst), 1);
}
