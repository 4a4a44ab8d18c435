//! Makes the calls whose API differs between the compared releases, in this release.

use std::sync::Arc;

use toolbooth_audit::Ledger;
use toolbooth_contracts::contract::AdapterId;
use toolbooth_contracts::{Dispatch, Executor, ToolOutput};
use toolbooth_policy::{Authorizer, FeatureFlags};
use toolbooth_proxy::{Executors, ProxyParts, ToolProxy, World, Worlds};
use toolbooth_registry::ToolRegistry;

pub(crate) fn echo(dispatch: &Dispatch) -> ToolOutput {
    ToolOutput::text(dispatch.arguments.as_str())
}

pub(crate) fn proxy(
    registry: ToolRegistry,
    ledger: Arc<dyn Ledger>,
    executor: Arc<dyn Executor>,
) -> ToolProxy {
    let policy = Authorizer::new(FeatureFlags::ON);
    ToolProxy::new(ProxyParts {
        shapes: toolbooth_contracts::secret::SecretShapes::with([
            toolbooth_adapters::secret_rules::shapes(),
        ]),
        ..ProxyParts::new(
            Worlds::new(World::new(policy).with_registry(registry)),
            ledger,
            Executors::default().with(AdapterId::Local("bench".into()), executor),
        )
    })
}
