//! Makes the calls whose API differs in the earlier release, before the path kept one copy of the arguments
//! and of the result (f742264).

use std::sync::Arc;

use toolbooth_audit::Ledger;
use toolbooth_contracts::contract::AdapterId;
use toolbooth_contracts::{Dispatch, Executor, ToolOutput};
use toolbooth_policy::{Authorizer, FeatureFlags};
use toolbooth_proxy::{Executors, Limits, Parts, SystemClock, SystemIds, ToolProxy, World, Worlds};
use toolbooth_registry::ToolRegistry;

pub(crate) fn echo(dispatch: &Dispatch) -> ToolOutput {
    ToolOutput::text(dispatch.arguments.get())
}

pub(crate) fn proxy(
    registry: ToolRegistry,
    ledger: Arc<dyn Ledger>,
    executor: Arc<dyn Executor>,
    is_ruled: bool,
) -> ToolProxy {
    assert!(!is_ruled, "there were no rules");
    let policy = Authorizer::new(FeatureFlags { mcp_tools: true, tools_policy: true });
    ToolProxy::new(Parts {
        worlds: Worlds::new(World::new(policy).with_registry(registry)),
        catalogue: None,
        ledger,
        executors: Executors::default().with(AdapterId::Local("bench".into()), executor),
        clock: Arc::new(SystemClock::default()),
        ids: Arc::new(SystemIds),
        shapes: toolbooth_contracts::secret::SecretShapes::with([
            toolbooth_adapters::secret_rules::shapes(),
        ]),
        limits: Limits::default(),
        upstreams: Default::default(),
        keeping: Default::default(),
    })
}
