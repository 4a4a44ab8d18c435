//! Makes the calls whose API differs between the compared releases, in this release.

use std::sync::Arc;

use toolbooth_audit::Ledger;
use toolbooth_contracts::contract::AdapterId;
use toolbooth_contracts::{Dispatch, Executor, ToolOutput};
use toolbooth_policy::{Authorizer, FeatureFlags};
use toolbooth_proxy::{
    Executors, Limits, ProxyParts, SystemClock, SystemIds, ToolProxy, World, Worlds,
};
use toolbooth_registry::ToolRegistry;

pub(crate) fn echo(dispatch: &Dispatch) -> ToolOutput {
    ToolOutput::text(dispatch.arguments.as_str())
}

pub(crate) fn proxy(
    registry: ToolRegistry,
    ledger: Arc<dyn Ledger>,
    executor: Arc<dyn Executor>,
) -> ToolProxy {
    let policy = Authorizer::new(FeatureFlags { mcp_tools: true, tools_policy: true });
    ToolProxy::new(ProxyParts {
        worlds: Worlds::new(World::new(policy).with_registry(registry)),
        catalogue: None,
        ledger,
        reads: None,
        executors: Executors::default().with(AdapterId::Local("bench".into()), executor),
        clock: Arc::new(SystemClock::default()),
        ids: Arc::new(SystemIds),
        shapes: toolbooth_contracts::secret::SecretShapes::with([
            toolbooth_adapters::secret_rules::shapes(),
        ]),
        limits: Limits::default(),
        upstreams: Default::default(),
        retention: Default::default(),
    })
}
