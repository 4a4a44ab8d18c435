//! Tests that a large value keeps no thread of the runtime from other calls.
#![allow(clippy::unwrap_used, clippy::panic)]

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
use toolbooth_policy::{Authorizer, FeatureFlags};
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

/// A rule for secrets that stays at the first large text until it is released.
struct SlowRule {
    reached: Mutex<Sender<()>>,
    released: Mutex<Receiver<()>>,
    was_released: Arc<AtomicBool>,
}

impl SecretShape for SlowRule {
    fn find_all<'s>(&'s self, text: &str) -> Vec<FoundSecret<'s>> {
        if text.len() > 100_000 && !self.was_released.load(Ordering::SeqCst) {
            self.reached.lock().unwrap().send(()).unwrap();
            let released = self.released.lock().unwrap().recv_timeout(Duration::from_secs(20));
            self.was_released.store(released.is_ok(), Ordering::SeqCst);
        }
        Vec::new()
    }
}

fn proxy(rule: SlowRule) -> ToolProxy {
    let entry = json!({
        "name": "shop.order", "description": "Orders.", "execution": {"localRuntimeId": "shop"},
        "input_schema": {"type": "object", "properties": {"text": {"type": "string"}}},
        "output_schema": {}, "permissions": [], "timeout_ms": 5000,
        "idempotency": {"mode": "none"}
    });
    let tool = RegisteredTool::from_entry(&entry, Source::File, &Guard::default()).unwrap();
    let mut registry = ToolRegistry::default();
    let _ = registry.register(tool);
    let world = World::new(Authorizer::new(FeatureFlags::ON)).with_registry(registry);
    let tool: Arc<dyn Executor> = Arc::new(Tool);
    let clock = SystemClock::default();
    let mut parts = ProxyParts::new(
        Worlds::new(world),
        Arc::new(MemoryLedger::new("writer", &[3; 32], &clock.now())),
        Executors::default().with(AdapterId::Local("shop".into()), tool),
    );
    parts.shapes = SecretShapes::with([Arc::new(rule) as Arc<dyn SecretShape>]);
    ToolProxy::new(parts)
}

#[test]
fn other_calls_are_answered_while_a_large_result_is_judged() {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(1).enable_all().build().unwrap();
    let (reached, reaches) = mpsc::channel();
    let (release, released) = mpsc::channel();
    let was_released = Arc::<AtomicBool>::default();
    let proxy = proxy(SlowRule {
        reached: Mutex::new(reached),
        released: Mutex::new(released),
        was_released: Arc::clone(&was_released),
    });
    let call = |bytes: usize| {
        let arguments = json!({ "text": "a".repeat(bytes) }).to_string();
        let request = CallRequest::new("shop.order", &arguments).unwrap();
        let call = ToolCall::new(request, Caller::local());
        let proxy = proxy.clone();
        runtime.spawn(async move { proxy.call(call, Conversation::detached().0).await })
    };
    let failed = |result: ToolResult| assert_eq!(result.status, Status::Failed, "{result:?}");
    let large = call(200_000);
    reaches.recv_timeout(Duration::from_secs(60)).expect("the large result is judged");
    failed(runtime.block_on(call(10)).unwrap());
    release.send(()).unwrap();
    failed(runtime.block_on(large).unwrap());
    assert!(was_released.load(Ordering::SeqCst), "the small call was answered first");
}
