//! Measures the whole call path with an in-process tool and the ledger in memory, and the tool alone.
#![allow(missing_docs, clippy::unwrap_used)]

use std::sync::Arc;

use async_trait::async_trait;
use criterion::{Criterion, criterion_group, criterion_main};
use serde_json::json;
use toolbooth_audit::approvals::{ApprovalVerdict, Decided};
use toolbooth_audit::checkpoint::Due;
use toolbooth_audit::ledger::{
    Claim, ClaimRequest, Claimed, Moment, Prune, Pruned, Refusal, Resolution, Settlement, Swept,
};
use toolbooth_audit::memory::MemoryLedger;
use toolbooth_audit::orders::{OrderRequest, Ordered};
use toolbooth_audit::{Digester, Ledger, LedgerError};
use toolbooth_contracts::contract::{AdapterId, ToolContract};
use toolbooth_contracts::coverage::Readiness;
use toolbooth_contracts::event::EventBody;
use toolbooth_contracts::receipt::{ClaimState, Receipt, ReceiptKey};
use toolbooth_contracts::{
    CallRequest, Caller, Conversation, Dispatch, Executor, Guard, Outcome, ToolCall, ToolOutput,
};
use toolbooth_policy::{Authorizer, FeatureFlags};
use toolbooth_proxy::{Clock, Executors, ProxyParts, SystemClock, ToolProxy, World, Worlds};
use toolbooth_registry::{RegisteredTool, Source, ToolRegistry};

struct Echo;

#[async_trait]
impl Executor for Echo {
    async fn execute(&self, dispatch: Dispatch, _conversation: Conversation) -> Outcome {
        Outcome::Done(ToolOutput::text(dispatch.arguments.as_str()))
    }

    async fn readiness(&self, _contract: &ToolContract, _probe: bool) -> Readiness {
        Readiness::Ready
    }
}

/// Grants every claim and forgets it, so that only the path is measured.
struct NoStore(Digester);

#[async_trait]
impl Ledger for NoStore {
    fn writer(&self) -> &str {
        "none"
    }
    fn digester(&self) -> &Digester {
        &self.0
    }
    async fn claim(&self, request: ClaimRequest) -> Result<Claimed, LedgerError> {
        Ok(Claimed::Fresh(Claim::granted(request.receipt_id, 1, 1)))
    }
    async fn settle(&self, settlement: Arc<Settlement>) -> Result<Arc<Receipt>, LedgerError> {
        let log = &settlement.log;
        Ok(Arc::new(Receipt {
            receipt_id: settlement.claim.receipt_id().to_owned(),
            call_id: log.call_id.clone(),
            tool_id: log.tool_name.clone(),
            contract_digest: String::new(),
            caller: log.caller.clone(),
            idempotency: ReceiptKey {
                mode: settlement.mode,
                key_digest: None,
                more_key_digests: Vec::new(),
                key_id: None,
            },
            args_digest: String::new(),
            state: ClaimState::Succeeded,
            status: Some(settlement.status),
            effect: settlement.effect,
            error_code: None,
            fields: Default::default(),
            result_digest: None,
            result: None,
            attempt: 1,
            started_at: String::new(),
            settled_at: None,
            duration_ms: None,
            writer: String::new(),
            policy_version: String::new(),
            sandbox_digest: None,
            sandbox_missing: Vec::new(),
            egress: Vec::new(),
            approval_id: None,
            history: Vec::new(),
            audit_seq: None,
            audit_count: None,
            pruned_at: None,
        }))
    }
    async fn refuse(&self, _: Refusal) -> Result<(), LedgerError> {
        Ok(())
    }
    async fn record_events(&self, _: Vec<EventBody>) -> Result<(), LedgerError> {
        Ok(())
    }
    async fn record_uses(&self, _: Vec<(String, String)>) -> Result<(), LedgerError> {
        Ok(())
    }
    async fn decide_approval(&self, _: ApprovalVerdict) -> Result<Decided, LedgerError> {
        Ok(Decided::Missing)
    }
    async fn order(&self, _: OrderRequest) -> Result<Ordered, LedgerError> {
        Ok(Ordered::Missing)
    }
    async fn renew(&self, _: Moment) -> Result<(), LedgerError> {
        Ok(())
    }
    async fn sweep(&self, _: Moment) -> Result<Vec<Swept>, LedgerError> {
        Ok(Vec::new())
    }
    async fn suspend(&self, _: String, _: u64, _: Moment) -> Result<(), LedgerError> {
        Ok(())
    }
    async fn resume(&self, _: String, _: u64, _: Moment) -> Result<(), LedgerError> {
        Ok(())
    }
    async fn resolve(&self, resolution: Resolution) -> Result<Arc<Receipt>, LedgerError> {
        Err(LedgerError::NotFound(resolution.receipt_id))
    }
    async fn prune(&self, _: Prune) -> Result<Pruned, LedgerError> {
        Ok(Pruned::default())
    }
    async fn checkpoint(&self, _: Due, _: Moment) -> Result<Option<String>, LedgerError> {
        Ok(None)
    }
    async fn close(&self, _: Moment) -> Result<Option<String>, LedgerError> {
        Ok(None)
    }
}

fn proxy(ledger: Arc<dyn Ledger>) -> ToolProxy {
    let entry = json!({
        "name": "bench.echo", "description": "Echoes.", "execution": {"localRuntimeId": "bench"},
        "input_schema": {"type": "object", "required": ["text"], "properties": {"text": {"type": "string"}}},
        "output_schema": {}
    });
    let guard = Guard::default();
    let mut registry = ToolRegistry::default();
    let _ = registry.register(RegisteredTool::from_entry(&entry, Source::File, &guard).unwrap());
    let policy = Authorizer::new(FeatureFlags::ON);
    ToolProxy::new(ProxyParts::new(
        Worlds::new(World::new(policy).with_registry(registry)),
        ledger,
        Executors::default().with(AdapterId::Local("bench".into()), Arc::new(Echo)),
    ))
}

fn measure(criterion: &mut Criterion, name: &str, ledger: impl Fn() -> Arc<dyn Ledger>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let arguments = json!({ "text": "x".repeat(80) }).to_string();
    criterion.bench_function(name, |b| {
        // New for each run, because the ledger in memory forgets nothing.
        b.iter_custom(|rounds| {
            let proxy = proxy(ledger());
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

fn benches(criterion: &mut Criterion) {
    measure(criterion, "path/one call without a store", || {
        Arc::new(NoStore(Digester::new(&[7; 32])))
    });
    measure(criterion, "path/one call with the ledger in memory", || {
        let now = SystemClock::default().now();
        Arc::new(MemoryLedger::new("bench", &[7; 32], &now))
    });
}

criterion_group!(all, benches);
criterion_main!(all);
