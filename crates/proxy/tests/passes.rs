//! Counts how often the path reads the text of arguments and of a result, and how many trees it builds
//! of them: the table of passes in `docs/benchmarks.md`.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)]

use std::sync::Arc;

use async_trait::async_trait;
use serde_json::{Value, json};
use toolbooth_audit::memory::MemoryLedger;
use toolbooth_contracts::contract::AdapterId;
use toolbooth_contracts::coverage::Readiness;
use toolbooth_contracts::json::JsonText;
use toolbooth_contracts::json::counting::{self, Reading};
use toolbooth_contracts::{
    CallRequest, Caller, ContentBlock, Conversation, Dispatch, Executor, Guard, Outcome, Payload,
    Status, ToolCall, ToolContract, ToolOutput,
};
use toolbooth_policy::{Authorizer, FeatureFlags};
use toolbooth_proxy::{Clock, Executors, ProxyParts, SystemClock, ToolProxy, World, Worlds};
use toolbooth_registry::{RegisteredTool, Source, ToolRegistry};

/// Bytes of the text in the arguments. Larger values are judged on other threads, where nothing is counted.
const ARGUMENTS: usize = 10_000;
/// Bytes of the text in the result: more than twice as many, so that both can be distinguished.
const RESULT: usize = 30_000;

/// Answers the same payload to each call.
struct Tool(Payload);

#[async_trait]
impl Executor for Tool {
    async fn execute(&self, dispatch: Dispatch, _: Conversation) -> Outcome {
        assert!(dispatch.arguments.tree()["text"].is_string());
        Outcome::Done(ToolOutput::new(self.0.clone()))
    }

    async fn readiness(&self, _: &ToolContract, _: bool) -> Readiness {
        Readiness::Ready
    }
}

fn proxy(changes: Value, payload: Payload) -> ToolProxy {
    let mut entry = json!({
        "name": "shop.order", "description": "Orders.", "execution": {"localRuntimeId": "shop"},
        "input_schema": {"type": "object", "properties": {"text": {"type": "string"}}},
        "output_schema": {}, "permissions": [], "timeout_ms": 5000,
        "idempotency": {"mode": "on-key"}
    });
    entry.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
    let tool = RegisteredTool::from_entry(&entry, Source::File, &Guard::default()).unwrap();
    let mut registry = ToolRegistry::default();
    let _ = registry.register(tool);
    let policy = Authorizer::new(FeatureFlags::ON);
    let tool: Arc<dyn Executor> = Arc::new(Tool(payload));
    let clock = SystemClock::default();
    ToolProxy::new(ProxyParts::new(
        Worlds::new(World::new(policy).with_registry(registry)),
        Arc::new(MemoryLedger::new("writer", &[3; 32], &clock.now())),
        Executors::default().with(AdapterId::Local("shop".into()), tool),
    ))
}

/// Passes and trees of texts of the size of the arguments, and of the size of the result.
#[derive(Debug, PartialEq)]
struct Counted {
    arguments: (usize, usize),
    result: (usize, usize),
}

async fn counted(changes: Value, payload: Payload) -> Counted {
    let proxy = proxy(changes, payload);
    let arguments = json!({ "text": "a".repeat(ARGUMENTS) }).to_string();
    let request = CallRequest::new("shop.order", &arguments).unwrap();
    counting::begin();
    let call = ToolCall::new(request, Caller::local());
    let result = proxy.call(call, Conversation::detached().0).await;
    let readings = counting::end();
    assert_eq!(result.status, Status::Succeeded, "{:?}", result.error);
    let of = |range: std::ops::Range<usize>| {
        let of = |reading: &&Reading| match reading {
            Reading::Pass(bytes) | Reading::Tree(bytes) => range.contains(bytes),
        };
        let own: Vec<_> = readings.iter().filter(of).collect();
        let trees = own.iter().filter(|reading| matches!(reading, Reading::Tree(_))).count();
        (own.len() - trees, trees)
    };
    Counted { arguments: of(ARGUMENTS..RESULT), result: of(RESULT..10 * RESULT) }
}

fn structured() -> Payload {
    let data = JsonText::of(&json!({ "id": 7, "text": "r".repeat(RESULT) })).unwrap();
    Payload {
        content: Some(vec![ContentBlock::text("done")]),
        structured_content: Some(data),
        meta: None,
    }
}

#[tokio::test]
async fn arguments_are_read_once_and_a_result_only_for_the_log_and_where_something_asks() {
    let text = || Payload::text("r".repeat(RESULT));
    let schema = json!({ "type": "object", "properties": { "id": { "type": "integer" } } });
    for (what, changes, payload, result) in [
        ("a text", json!({}), text(), (1, 0)),
        ("data that nothing asks for", json!({}), structured(), (1, 0)),
        ("a schema", json!({ "output_schema": schema }), structured(), (2, 1)),
        ("receipt fields", json!({ "receiptFields": ["result.id"] }), structured(), (2, 1)),
        (
            "a schema and receipt fields",
            json!({ "output_schema": schema, "receiptFields": ["result.id"] }),
            structured(),
            (2, 1),
        ),
    ] {
        let counted = counted(changes, payload).await;
        assert_eq!(counted, Counted { arguments: (1, 1), result }, "{what}");
    }
}
