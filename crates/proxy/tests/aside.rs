//! Tests that a large value keeps no thread of the runtime from other calls.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use serde_json::json;
use toolbooth_audit::memory::MemoryLedger;
use toolbooth_contracts::contract::AdapterId;
use toolbooth_contracts::coverage::Readiness;
use toolbooth_contracts::secret::{FoundSecret, SecretShape, SecretShapes};
use toolbooth_contracts::{
    CallRequest, Caller, Conversation, Dispatch, Executor, Guard, Outcome, Status, ToolCall,
    ToolContract, ToolOutput, ToolResult,
};
use toolbooth_policy::{Authorizer, EngineError, FeatureFlags, PolicyEngine, Question, Verdict};
use toolbooth_proxy::{Clock, Executors, ProxyParts, SystemClock, ToolProxy, World, Worlds};
use toolbooth_registry::{RegisteredTool, Source, ToolRegistry};

/// Fails with the text of its arguments.
struct Tool;

#[async_trait]
impl Executor for Tool {
    async fn execute(&self, dispatch: Dispatch, _: Conversation) -> Outcome {
        let text = dispatch.arguments.tree()["text"].as_str().unwrap().to_owned();
        Outcome::Done(ToolOutput::text(text).into_error())
    }

    async fn readiness(&self, _: &ToolContract, _: bool) -> Readiness {
        Readiness::Ready
    }
}

/// Work that stays until it is released, once.
struct Gate {
    reached: Mutex<Sender<()>>,
    released: Mutex<Receiver<()>>,
    was_released: AtomicBool,
}

impl Gate {
    /// Returns the gate, where it is told that work has come to it, and where it is released.
    fn new() -> (Arc<Self>, Receiver<()>, Sender<()>) {
        let (reached, reaches) = mpsc::channel();
        let (release, released) = mpsc::channel();
        let (reached, released) = (Mutex::new(reached), Mutex::new(released));
        (
            Arc::new(Self { reached, released, was_released: AtomicBool::new(false) }),
            reaches,
            release,
        )
    }

    fn pass(&self) {
        if !self.was_released() {
            self.reached.lock().unwrap().send(()).unwrap();
            let released = self.released.lock().unwrap().recv_timeout(Duration::from_secs(20));
            self.was_released.store(released.is_ok(), Ordering::SeqCst);
        }
    }

    fn was_released(&self) -> bool {
        self.was_released.load(Ordering::SeqCst)
    }
}

/// A rule for secrets that stays at the first large text.
struct SlowRule(Arc<Gate>);

impl SecretShape for SlowRule {
    fn find_all<'s>(&'s self, text: &str) -> Vec<FoundSecret<'s>> {
        if text.len() > 100_000 {
            self.0.pass();
        }
        Vec::new()
    }
}

/// A policy engine that stays at the first large arguments.
struct SlowEngine(Arc<Gate>);

impl PolicyEngine for SlowEngine {
    fn judge(&self, question: &Question<'_>) -> Result<Verdict, EngineError> {
        if question.arguments.to_string().len() > 100_000 {
            self.0.pass();
        }
        Ok(Verdict::Permit { rule: "all".into(), approval: None })
    }

    fn version(&self) -> &str {
        "1"
    }
}

fn proxy(policy: Authorizer, shapes: SecretShapes) -> ToolProxy {
    let entry = json!({
        "name": "shop.order", "description": "Orders.", "execution": {"localRuntimeId": "shop"},
        "input_schema": {"type": "object", "properties": {"text": {"type": "string"}}},
        "output_schema": {}, "permissions": [], "timeout_ms": 5000,
        "idempotency": {"mode": "none"}
    });
    let tool = RegisteredTool::from_entry(&entry, Source::File, &Guard::default()).unwrap();
    let mut registry = ToolRegistry::default();
    let _ = registry.register(tool);
    let world = World::new(policy).with_registry(registry);
    let tool: Arc<dyn Executor> = Arc::new(Tool);
    let clock = SystemClock::default();
    let mut parts = ProxyParts::new(
        Worlds::new(world),
        Arc::new(MemoryLedger::new("writer", &[3; 32], &clock.now())),
        Executors::default().with(AdapterId::Local("shop".into()), tool),
    );
    parts.shapes = shapes;
    ToolProxy::new(parts)
}

/// Calls with a large value that stays at the gate, and with a small one meanwhile, on one thread.
fn is_answered_meanwhile(proxy: &ToolProxy, gate: (Arc<Gate>, Receiver<()>, Sender<()>)) {
    let (gate, reaches, release) = gate;
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(1).enable_all().build().unwrap();
    let call = |bytes: usize| {
        let arguments = json!({ "text": "a".repeat(bytes) }).to_string();
        let request = CallRequest::new("shop.order", &arguments).unwrap();
        let call = ToolCall::new(request, Caller::local());
        let proxy = proxy.clone();
        runtime.spawn(async move { proxy.call(call, Conversation::detached().0).await })
    };
    let failed = |result: ToolResult| assert_eq!(result.status, Status::Failed, "{result:?}");
    let large = call(200_000);
    reaches.recv_timeout(Duration::from_secs(60)).expect("the large value is judged");
    failed(runtime.block_on(call(10)).unwrap());
    release.send(()).unwrap();
    failed(runtime.block_on(large).unwrap());
    assert!(gate.was_released(), "the small call was answered first");
}

#[test]
fn other_calls_are_answered_while_a_large_result_is_judged() {
    let gate = Gate::new();
    let rule: Arc<dyn SecretShape> = Arc::new(SlowRule(Arc::clone(&gate.0)));
    let proxy = proxy(Authorizer::new(FeatureFlags::ON), SecretShapes::with([rule]));
    is_answered_meanwhile(&proxy, gate);
}

#[test]
fn other_calls_are_answered_while_rules_read_large_arguments() {
    let gate = Gate::new();
    let engine = Arc::new(SlowEngine(Arc::clone(&gate.0)));
    let policy = Authorizer::new(FeatureFlags::ON).with_engine(engine);
    is_answered_meanwhile(&proxy(policy, SecretShapes::default()), gate);
}
