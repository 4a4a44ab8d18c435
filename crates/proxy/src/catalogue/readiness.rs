//! Whether each registered tool can run, and the coverage report.
//!
//! Doc: registry.md#coverage

use std::collections::HashMap;
use std::sync::atomic::Ordering;

use toolbooth_contracts::ToolId;
use toolbooth_contracts::contract::{AdapterId, GATEWAY_RUNTIME};
use toolbooth_contracts::coverage::{CoverageReport, CoverageRow, CoverageState, Readiness};
use toolbooth_contracts::sandbox::Enforce;
use toolbooth_policy::ToolStatus;
use toolbooth_registry::{RegisteredTool, Source, coverage};

use super::Catalogue;
use crate::world::{ToolState, World};

impl Catalogue {
    /// Determines whether each tool can run, now and with every later change of the world. A
    /// process that makes a single call skips this work.
    pub async fn want_states(&self) {
        self.states_wanted.store(true, Ordering::Relaxed);
        self.edit(|_| ()).await;
    }

    pub(super) fn wants_states(&self) -> bool {
        self.states_wanted.load(Ordering::Relaxed)
    }

    /// The state of every tool of a world; `probe` connects to the tools' servers.
    pub(super) async fn states(&self, world: &World, probe: bool) -> HashMap<ToolId, ToolState> {
        let mut states = HashMap::with_capacity(world.registry.len());
        let mut servers = HashMap::new();
        for tool in world.registry.iter() {
            let state = self.state(world, tool, probe, &mut servers).await;
            states.insert(tool.id().clone(), state);
            // An executor may read files, and other calls must be answered meanwhile.
            tokio::task::yield_now().await;
        }
        states
    }

    /// The state of a tool. `servers` holds the answers of MCP servers, which are the same for all their tools.
    async fn state<'w>(
        &self,
        world: &World,
        tool: &'w RegisteredTool,
        probe: bool,
        servers: &mut HashMap<&'w str, Readiness>,
    ) -> ToolState {
        let because = |state, reason: String| ToolState { state, reason: Some(reason) };
        if let ToolStatus::Quarantined(reason) = world.status(tool) {
            return because(CoverageState::Quarantined, reason.clone());
        }
        if let Some(setting) = world.unmet(tool) {
            return because(CoverageState::NotConfigured, format!("`{setting}` is missing"));
        }
        // The gateway's own tools need nothing.
        let is_own = matches!(tool.adapter(), AdapterId::Local(id) if id == GATEWAY_RUNTIME);
        if is_own && *tool.source() == Source::Builtin {
            return ToolState { state: CoverageState::Real, reason: None };
        }
        let Some(executor) = self.executors.get(tool.adapter()) else {
            let reason = format!("nothing is configured for `{}`", tool.adapter());
            return because(CoverageState::NotConfigured, reason);
        };
        if let Some(profile) = &tool.contract().sandbox
            && profile.enforce == Enforce::Required
            && let Err(reason) = executor.satisfies_sandbox(tool.contract(), profile)
        {
            return because(
                CoverageState::NotConfigured,
                format!("its sandbox is required: {reason}"),
            );
        }
        let unhealthy = self.tracked(tool.source()).and_then(|one| one.status().unhealthy.clone());
        if let Some(reason) = unhealthy {
            return because(CoverageState::Unhealthy, reason);
        }
        if let Some(reason) = self.missing_at_server(world, tool) {
            return because(CoverageState::NotConfigured, reason);
        }
        let known = match tool.adapter() {
            AdapterId::Mcp(server) => servers.get(server.as_str()).cloned(),
            _ => None,
        };
        let readiness = match known {
            Some(known) => known,
            None => executor.readiness(tool.contract(), probe).await,
        };
        if let AdapterId::Mcp(server) = tool.adapter() {
            servers.insert(server, readiness.clone());
        }
        match readiness {
            Readiness::Ready => ToolState { state: CoverageState::Real, reason: None },
            Readiness::NotConfigured(reason) => because(CoverageState::NotConfigured, reason),
            Readiness::Unhealthy(reason) => because(CoverageState::Unhealthy, reason),
        }
    }

    /// Why a tool that the registry file declares for a server does not exist there: neither the
    /// server's listing nor, before the first listing, the lock contains it.
    fn missing_at_server(&self, world: &World, tool: &RegisteredTool) -> Option<String> {
        let AdapterId::Mcp(server) = tool.adapter() else { return None };
        if tool.source().is_discovered() {
            return None;
        }
        let source = Source::Mcp(server.clone());
        let listed = self.tracked(&source).and_then(|one| {
            one.status().listed.as_ref().map(|names| names.contains(tool.target()))
        });
        let exists = match listed {
            Some(listed) => listed,
            None => {
                let locked = world.approvals.lock.approved()?.listing(&source);
                locked.tools.iter().any(|locked| locked.name == tool.target())
            }
        };
        let missing = format!("the server `{server}` lists no tool `{}`", tool.target());
        (!exists).then_some(missing)
    }

    /// Tools of the registry file with a sandbox profile that their executor does not satisfy, each
    /// with the reason.
    #[must_use]
    pub fn uncontained(&self) -> Vec<(ToolId, String)> {
        let world = self.worlds.now();
        let of_file = world.registry.iter().filter(|tool| *tool.source() == Source::File);
        of_file
            .filter_map(|tool| {
                let profile = tool.contract().sandbox.as_ref()?;
                let executor = self.executors.get(tool.adapter())?;
                let reason = executor.satisfies_sandbox(tool.contract(), profile).err()?;
                Some((tool.id().clone(), reason.to_string()))
            })
            .collect()
    }

    /// The coverage of every registered tool; `probe` connects to the tools' servers.
    pub async fn coverage(&self, probe: bool) -> CoverageReport {
        let world = self.worlds.now();
        let states = self.states(&world, probe).await;
        let rows = world
            .registry
            .iter()
            .map(|tool| {
                let contract = tool.contract();
                let state = states.get(tool.id());
                CoverageRow {
                    tool_id: tool.id().to_string(),
                    category: contract.category.as_str().to_owned(),
                    source: tool.source().to_string(),
                    target: tool.adapter().to_string(),
                    idempotency: contract.idempotency.mode.as_str().to_owned(),
                    permissions: contract.permissions.clone(),
                    state: state.map_or(CoverageState::NotConfigured, |state| state.state),
                    reason: state.and_then(|state| state.reason.clone()),
                }
            })
            .collect();
        coverage::report(rows)
    }
}
