//! Listing of a source before a call, where its tools may have changed since they were published.
//!
//! Path: 3. Doc: registry.md#discovery

use std::sync::Arc;
use std::time::Duration;

use toolbooth_contracts::{Caller, ToolName};
use toolbooth_policy::ToolStatus;
use toolbooth_registry::{RegisteredTool, Source};

use super::Catalogue;
use super::source::TrackedSource;

impl Catalogue {
    /// How long a call may wait for the listing of its tool's source; `None` if it needs no
    /// listing.
    pub(crate) fn verification_bound(
        &self,
        name: &ToolName,
        caller: &Caller,
        toolset: Option<&Arc<str>>,
    ) -> Option<Duration> {
        let (source, tool) = self.to_verify(name, caller, toolset)?;
        let timeout = Duration::from_millis(tool.contract().policy.timeout_ms);
        Some(timeout.min(source.entry.source.timeout()))
    }

    /// The source of a tool, if it is to be listed before the call and the caller may call it.
    fn to_verify(
        &self,
        name: &ToolName,
        caller: &Caller,
        toolset: Option<&Arc<str>>,
    ) -> Option<(&TrackedSource, Arc<RegisteredTool>)> {
        if !self.sources.iter().any(TrackedSource::needs_verification) {
            return None;
        }
        let world = self.worlds.now();
        let tool_id = world.tool_id(name);
        let tool = world.registry.get(tool_id)?;
        let source = self.tracked(tool.source())?;
        // A hidden tool must take no longer than one that does not exist.
        let policy = &world.policy;
        let may = policy.enabled().is_ok()
            && world.shows_tool(toolset, tool_id)
            && policy.access(caller, tool.contract(), &ToolStatus::Active).is_ok();
        (may && source.needs_verification()).then(|| (source, Arc::clone(tool)))
    }

    /// Lists the source of a tool again, if it is to be listed before the call and the caller may
    /// call the tool. Calls that arrive during a listing share the next one.
    pub(crate) async fn verify(
        &self,
        name: &ToolName,
        caller: &Caller,
        toolset: Option<&Arc<str>>,
    ) {
        let arrived = self.ticket();
        if let Some((source, _)) = self.to_verify(name, caller, toolset) {
            let _ = self.refresh_after(source, Some(arrived)).await;
        }
    }

    /// How long a request may wait for the listing of its server; `None` if it needs no listing.
    /// The request checks first that the caller may know the server.
    pub(crate) fn server_verification_bound(&self, server: &str) -> Option<Duration> {
        let source = self.tracked_server(server)?;
        source.needs_verification().then(|| source.entry.source.timeout())
    }

    /// Lists a server again, if it is to be listed before its prompts and resources are used.
    pub(crate) async fn verify_server(&self, server: &str) {
        let arrived = self.ticket();
        let source = self.tracked_server(server).filter(|source| source.needs_verification());
        if let Some(source) = source {
            let _ = self.refresh_after(source, Some(arrived)).await;
        }
    }

    fn tracked_server(&self, server: &str) -> Option<&TrackedSource> {
        let is_it = |source: &&TrackedSource| matches!(&source.entry.id, Source::Mcp(name) if name == server);
        self.sources.iter().find(is_it)
    }
}
