//! Shows Toolbooth's crates as a library in another program.
//!
//! Uses contracts, registry, policy, audit and proxy, with its own executor and in-memory records. It needs
//! no server, no MCP and no files.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use serde_json::json;
use toolbooth_audit::memory::MemoryLedger;
use toolbooth_audit::verify;
use toolbooth_contracts::contract::{AdapterId, ToolContract};
use toolbooth_contracts::coverage::Readiness;
use toolbooth_contracts::{
    CallRequest, Caller, Conversation, Dispatch, Executor, Guard, Outcome, ToolCall, ToolOutput,
};
use toolbooth_policy::{Authorizer, FeatureFlags, Whitelist};
use toolbooth_proxy::{Clock, Executors, ProxyParts, SystemClock, ToolProxy, World, Worlds};
use toolbooth_registry::{RegisteredTool, Source, ToolRegistry};

/// The tool: counts the orders that it places.
#[derive(Default)]
struct Orders(AtomicU64);

#[async_trait]
impl Executor for Orders {
    async fn execute(&self, _dispatch: Dispatch, _conversation: Conversation) -> Outcome {
        let id = self.0.fetch_add(1, Ordering::Relaxed) + 1;
        Outcome::Done(ToolOutput::data(&json!({ "orderId": id })))
    }

    async fn readiness(&self, _contract: &ToolContract, _probe: bool) -> Readiness {
        Readiness::Ready
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let entry = json!({
        "name": "shop.order", "description": "Places an order.",
        "input_schema": {"type": "object", "required": ["number"], "properties": {"number": {"type": "string"}}},
        "output_schema": {"type": "object", "required": ["orderId"]},
        "execution": {"localRuntimeId": "shop"},
        "idempotency": {"mode": "keyed", "key_field": "number"},
        "receipt_fields": ["result.orderId"],
    });
    let tool = RegisteredTool::from_entry(&entry, Source::File, &Guard::default())
        .expect("the entry is a contract");
    let mut registry = ToolRegistry::default();
    let _ = registry.register(tool);

    let policy = Authorizer::new(FeatureFlags::ON)
        .with_whitelist(Whitelist::parse("shop.*").expect("a whitelist"));
    let clock = SystemClock::default();
    let ledger = Arc::new(MemoryLedger::new("embed", &[7; 32], &clock.now()));
    let orders = Arc::new(Orders::default());
    let proxy = ToolProxy::new(ProxyParts::new(
        Worlds::new(World::new(policy).with_registry(registry)),
        Arc::clone(&ledger) as _,
        Executors::default().with(AdapterId::Local("shop".into()), Arc::clone(&orders) as _),
    ));

    let call = async |arguments: &str| {
        let request = CallRequest::new("shop.order", arguments).expect("JSON");
        let (conversation, _cancel) = Conversation::detached();
        proxy.call(ToolCall::new(request, Caller::local()), conversation).await
    };
    let first = call(r#"{"number":"A-1"}"#).await;
    let again = call(r#"{"number":"A-1"}"#).await;
    let wrong = call(r#"{"number":7}"#).await;
    println!("first:  {} {}", first.status, first.content[0].as_text().unwrap_or_default());
    println!("again:  {} replayed={}", again.status, again.replayed);
    println!("wrong:  {} {}", wrong.status, wrong.error.as_ref().map_or("", |e| e.code.as_str()));

    assert_eq!(orders.0.load(Ordering::Relaxed), 1, "one key, one effect");
    assert!(again.replayed && again.receipt_id == first.receipt_id);
    let report = verify::store(&*ledger, Default::default()).await.expect("the records are there");
    assert!(report.ok);
    println!("records: {} event(s), all digests fit", report.events);
}
