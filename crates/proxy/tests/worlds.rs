//! Tests what holds of each world that is published, without a catalogue.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use async_trait::async_trait;
use serde_json::{Value, json};
use toolbooth_audit::memory::MemoryLedger;
use toolbooth_audit::orders::OrderChange;
use toolbooth_contracts::contract::AdapterId;
use toolbooth_contracts::coverage::Readiness;
use toolbooth_contracts::order::PauseTarget;
use toolbooth_contracts::{
    CallRequest, Caller, Conversation, Dispatch, ErrorCode, Executor, Guard, Outcome, ToolCall,
    ToolContract, ToolOutput,
};
use toolbooth_policy::{
    Authorizer, Binding, EngineError, EngineTool, FeatureFlags, PolicyEngine, Question, ToolStatus,
    Verdict,
};
use toolbooth_proxy::{
    Clock, Executors, ProxyParts, SystemClock, ToolProxy, World, WorldSettings, Worlds,
};
use toolbooth_registry::{RegisteredTool, Source, ToolRegistry};

struct Tool;

#[async_trait]
impl Executor for Tool {
    async fn execute(&self, _: Dispatch, _: Conversation) -> Outcome {
        Outcome::Done(ToolOutput::text("done"))
    }
    async fn readiness(&self, _: &ToolContract, _: bool) -> Readiness {
        Readiness::Ready
    }
}

fn tool(source: Source, description: &str) -> RegisteredTool {
    let entry: Value = json!({
        "name": "shop.order", "description": description,
        "execution": {"localRuntimeId": "shop"}, "input_schema": {"type": "object"},
        "output_schema": {}, "permissions": [],
    });
    RegisteredTool::from_entry(&entry, source, &Guard::default()).unwrap()
}

fn registry() -> ToolRegistry {
    let mut registry = ToolRegistry::default();
    let _ = registry.register(tool(Source::File, "Orders."));
    registry
}

fn everything() -> Authorizer {
    Authorizer::new(FeatureFlags::ON)
}

fn proxy(worlds: &Arc<Worlds>) -> ToolProxy {
    let clock = SystemClock::default();
    let ledger = Arc::new(MemoryLedger::new("writer", &[3; 32], &clock.now()));
    let executors = Executors::default().with(AdapterId::Local("shop".into()), Arc::new(Tool) as _);
    let reads = Some(Arc::clone(&ledger) as _);
    ToolProxy::new(ProxyParts { reads, ..ProxyParts::new(Arc::clone(worlds), ledger, executors) })
}

async fn code(proxy: &ToolProxy) -> Option<ErrorCode> {
    let request = CallRequest::new("shop.order", "{}").unwrap();
    let call = ToolCall::new(request, Caller::local());
    let result = proxy.call(call, Conversation::detached().0).await;
    result.error.map(|error| error.code)
}

/// Permits every call, but fits no tool.
struct FitsNothing;

impl PolicyEngine for FitsNothing {
    fn judge(&self, _: &Question<'_>) -> Result<Verdict, EngineError> {
        Ok(Verdict::Permit { rule: "all".into(), approval: None })
    }
    fn bind(&self, tools: &[EngineTool<'_>]) -> Option<Binding> {
        let misfit = |tool: &EngineTool<'_>| (tool.contract.tool_id.to_string(), "misfit".into());
        Some(Binding {
            engine: Arc::new(Self),
            failures: tools.iter().map(misfit).collect(),
            findings: Vec::new(),
        })
    }
    fn version(&self) -> &str {
        "0"
    }
}

#[tokio::test]
async fn rules_are_bound_to_every_world_that_is_published() {
    let strict = || everything().with_engine(Arc::new(FitsNothing));
    let filled = |mut world: World| {
        let _ = world.replace_source(&Source::File, vec![tool(Source::File, "Orders.")]);
        world
    };
    for (what, world) in [
        ("a registry", World::new(strict()).with_registry(registry())),
        ("a source", filled(World::new(strict()))),
    ] {
        let worlds = Worlds::new(world);
        assert_eq!(code(&proxy(&worlds)).await, Some(ErrorCode::QuarantinedTool), "{what}");
    }
    let worlds = Worlds::new(World::new(everything()));
    let proxy = proxy(&worlds);
    worlds.publish(filled(World::new(strict())));
    assert_eq!(code(&proxy).await, Some(ErrorCode::QuarantinedTool));
    worlds.publish(filled(World::new(everything())));
    assert_eq!(code(&proxy).await, None);
    let mut world = World::clone(&worlds.now());
    world.set_policy(strict());
    worlds.publish(world);
    assert_eq!(code(&proxy).await, Some(ErrorCode::QuarantinedTool));
    // A policy that fits ends the quarantine.
    let mut world = World::clone(&worlds.now());
    world.set_policy(everything());
    worlds.publish(world);
    assert_eq!(code(&proxy).await, None);
}

#[tokio::test]
async fn suspicious_tools_are_quarantined_and_names_given_when_a_world_is_published() {
    let server = Source::Mcp("shop".into());
    let worlds = Worlds::new(World::new(everything()));
    let proxy = proxy(&worlds);
    let mut world = World::new(everything());
    let hidden = "Orders.\u{e0041}\u{202e}";
    let _ = world.replace_source(&server, vec![tool(server.clone(), hidden)]);
    worlds.publish(world);
    assert_eq!(code(&proxy).await, Some(ErrorCode::QuarantinedTool));
    // Settings that come last take no names away.
    let world = World::new(everything()).with_registry(registry());
    worlds.publish(world.with_settings(WorldSettings::default()));
    assert_eq!(code(&proxy).await, None);
    assert_eq!(worlds.now().names().name_of("shop.order"), "shop_order");
    assert!(worlds.now().generation() >= 2);
}

#[tokio::test]
async fn a_status_that_is_set_stays_until_it_is_set_again() {
    let worlds = Worlds::new(World::new(everything()).with_registry(registry()));
    let proxy = proxy(&worlds);
    for (status, expected) in [
        (ToolStatus::Quarantined("looked at".into()), Some(ErrorCode::QuarantinedTool)),
        (ToolStatus::Paused, Some(ErrorCode::Paused)),
        (ToolStatus::Active, None),
    ] {
        let mut world = World::clone(&worlds.now());
        world.set_status("shop.order".try_into().unwrap(), status);
        worlds.publish(world);
        assert_eq!(code(&proxy).await, expected);
    }
}

#[tokio::test]
async fn pauses_outlive_a_world_and_need_records() {
    let worlds = Worlds::new(World::new(everything()).with_registry(registry()));
    let own = proxy(&worlds);
    let operator = everything().operator(&Caller::operator()).unwrap();
    let pause =
        || OrderChange::Pause { target: PauseTarget::All, cancel_running: false, reason: None };
    own.order(&operator, pause()).await.unwrap();
    assert_eq!(code(&own).await, Some(ErrorCode::Paused));
    worlds.publish(World::new(everything()).with_registry(registry()));
    assert_eq!(code(&own).await, Some(ErrorCode::Paused));
    let during = World::clone(&worlds.now());
    own.order(&operator, OrderChange::Resume { target: PauseTarget::All }).await.unwrap();
    assert_eq!(code(&own).await, None);
    // What was copied before does not bring an ended pause back.
    worlds.publish(during);
    assert_eq!(code(&own).await, None);
    // Pauses that are not by an order are those of the world.
    for (paused, expected) in [(true, Some(ErrorCode::Paused)), (false, None)] {
        let mut world = World::clone(&worlds.now());
        world.set_pauses(paused.then_some(PauseTarget::All).into_iter().collect());
        worlds.publish(world);
        assert_eq!(code(&own).await, expected);
    }
    worlds.publish(World::new(everything()).with_registry(registry()));
    assert_eq!(code(&own).await, None);
    // Without records a decision would not hold, so it is not taken.
    let clock = SystemClock::default();
    let ledger = Arc::new(MemoryLedger::new("writer", &[3; 32], &clock.now()));
    let blind = ToolProxy::new(ProxyParts::new(worlds, ledger, Executors::default()));
    assert!(blind.order(&operator, pause()).await.unwrap_err().to_string().contains("`reads`"));
}
