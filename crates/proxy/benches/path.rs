//! The whole path with an in-process tool and the ledger in memory, and the tool alone.
#![allow(missing_docs, clippy::unwrap_used)]

use std::sync::Arc;

use async_trait::async_trait;
use criterion::{Criterion, criterion_group, criterion_main};
use serde_json::json;
use toolbooth_audit::memory::MemoryLedger;
use toolbooth_contracts::contract::{AdapterId, ToolContract};
use toolbooth_contracts::coverage::Readiness;
use toolbooth_contracts::{
    CallRequest, Caller, Conversation, Dispatch, Executor, Guard, Outcome, ToolCall, ToolOutput,
};
use toolbooth_policy::{Authorizer, FeatureFlags};
use toolbooth_proxy::{
    Clock, Executors, Limits, Parts, SystemClock, SystemIds, ToolProxy, World, Worlds,
};
use toolbooth_registry::{RegisteredTool, Source, ToolRegistry};

struct Echo;

#[async_trait]
impl Executor for Echo {
    async fn execute(&self, dispatch: Dispatch, _conversation: Conversation) -> Outcome {
        Outcome::Done(ToolOutput::text(dispatch.arguments.get()))
    }

    async fn readiness(&self, _contract: &ToolContract, _probe: bool) -> Readiness {
        Readiness::Ready
    }
}

fn proxy() -> ToolProxy {
    let entry = json!({
        "name": "bench.echo", "description": "Echoes.", "execution": {"localRuntimeId": "bench"},
        "input_schema": {"type": "object", "required": ["text"], "properties": {"text": {"type": "string"}}},
        "output_schema": {}
    });
    let guard = Guard::default();
    let mut registry = ToolRegistry::default();
    let _ = registry.register(RegisteredTool::from_entry(&entry, Source::File, &guard).unwrap());
    let policy = Authorizer::new(FeatureFlags { mcp_tools: true, tools_policy: true });
    let clock = SystemClock::default();
    ToolProxy::new(Parts {
        worlds: Worlds::new(World::new(policy).with_registry(registry)),
        ledger: Arc::new(MemoryLedger::new("bench", &[7; 32], &clock.now())),
        executors: Executors::default().with(AdapterId::Local("bench".into()), Arc::new(Echo)),
        clock: Arc::new(clock),
        ids: Arc::new(SystemIds),
        shapes: toolbooth_contracts::secret::SecretShapes::builtin(),
        limits: Limits::default(),
    })
}

fn benches(criterion: &mut Criterion) {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_time().build().unwrap();
    let arguments = json!({ "text": "x".repeat(80) }).to_string();
    criterion.bench_function("path/one call with the ledger in memory", |b| {
        // Fresh for each run: the ledger in memory forgets nothing.
        b.iter_custom(|rounds| {
            let proxy = proxy();
            runtime.block_on(async {
                let began = std::time::Instant::now();
                for _ in 0..rounds {
                    let request = CallRequest::new("bench.echo", &arguments).unwrap();
                    let call = ToolCall::new(request, Caller::local());
                    let result = proxy.call(call, Conversation::detached().0).await;
                    assert!(!result.is_error);
                }
                began.elapsed()
            })
        });
    });
}

criterion_group!(all, benches);
criterion_main!(all);
