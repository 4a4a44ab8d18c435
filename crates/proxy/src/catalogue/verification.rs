//! Listing of a source before a call, where its tools may have changed since they were published.
//!
//! Path: 3. Doc: registry.md#discovery

use std::sync::Arc;
use std::time::Duration;

use toolbooth_contracts::{Caller, ToolName};
use toolbooth_policy::ToolStatus;
use toolbooth_registry::Source;

use super::Catalogue;
use super::source::{Ticket, TrackedSource};
use crate::world::World;

/// A request to list a source before a call.
pub(crate) struct Verification {
    source: Source,
    /// When the call came; calls that come during a listing share the next one.
    arrived: Ticket,
    /// How long the call may wait for it.
    pub(crate) bound: Duration,
}

impl Catalogue {
    /// Whether the source of a tool is to be listed before the call: where it may have changed, and the
    /// caller may call the tool. A hidden tool must take no longer than one that does not exist.
    pub(crate) fn tool_to_verify(
        &self,
        world: &World,
        name: &ToolName,
        caller: &Caller,
        toolset: Option<&Arc<str>>,
    ) -> Option<Verification> {
        if !self.sources.iter().any(TrackedSource::needs_verification) {
            return None;
        }
        let tool_id = world.tool_id(name);
        let tool = world.registry.get(tool_id)?;
        let source = self.tracked(tool.source())?;
        let policy = &world.policy;
        let may = policy.enabled().is_ok()
            && world.shows_tool(toolset, tool_id)
            && policy.access(caller, tool.contract(), &ToolStatus::Active).is_ok();
        let timeout = Duration::from_millis(tool.contract().policy.timeout_ms);
        (may && source.needs_verification()).then(|| self.verification(source, Some(timeout)))
    }

    /// Whether a server is to be listed before its prompts and resources are used. Whether the caller
    /// may know the server is checked before.
    pub(crate) fn server_to_verify(&self, server: &str) -> Option<Verification> {
        let is_it = |source: &&TrackedSource| matches!(&source.entry.id, Source::Mcp(name) if name == server);
        let source = self.sources.iter().find(is_it)?;
        source.needs_verification().then(|| self.verification(source, None))
    }

    fn verification(&self, source: &TrackedSource, most: Option<Duration>) -> Verification {
        let listing = source.entry.source.timeout();
        Verification {
            source: source.entry.id.clone(),
            arrived: self.ticket(),
            bound: most.map_or(listing, |most| most.min(listing)),
        }
    }

    /// Lists a source again.
    pub(crate) async fn verify(&self, verification: Verification) {
        if let Some(source) = self.tracked(&verification.source) {
            let _ = self.refresh_after(source, Some(verification.arrived)).await;
        }
    }
}
