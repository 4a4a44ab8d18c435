//! One source of tools, and its state in the catalogue.
//!
//! Path: 3. Doc: registry.md#discovery

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use toolbooth_contracts::port::ToolSource;
use toolbooth_registry::Source;
use toolbooth_registry::discovered::SourcePolicy;

/// A source of tools with the operator's settings.
pub struct SourceEntry {
    /// The source's id.
    pub id: Source,
    /// The port that lists its tools.
    pub source: Arc<dyn ToolSource>,
    /// The operator's settings.
    pub policy: SourcePolicy,
    /// Whether its tools are listed again before each call.
    pub verify_calls: bool,
}

/// The outcome of one listing of a source.
#[derive(Debug, Clone, serde::Serialize, schemars::JsonSchema)]
pub struct SourceState {
    /// The source.
    pub source: String,
    /// How many of its tools are registered.
    pub tools: usize,
    /// How many prompts it has.
    #[serde(skip_serializing_if = "is_zero")]
    pub prompts: usize,
    /// How many resources it has.
    #[serde(skip_serializing_if = "is_zero")]
    pub resources: usize,
    /// How many resource templates it has.
    #[serde(skip_serializing_if = "is_zero")]
    pub templates: usize,
    /// Rejected tools and settings that match no tool, each with the reason.
    pub problems: Vec<String>,
    /// Tools in quarantine, each with the reason.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub quarantined: Vec<String>,
    /// Suspicious text that is not approved, by tool.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub suspicious: Vec<String>,
    /// Why the listing failed. The tools of the last successful listing stay registered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unhealthy: Option<String>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks for a reference")]
fn is_zero(count: &usize) -> bool {
    *count == 0
}

/// A place in the order in which calls arrive and listings begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Ticket(pub(super) u64);

/// A source, its present status, and the order of its listings.
pub(super) struct TrackedSource {
    pub(super) entry: SourceEntry,
    status: Mutex<SourceStatus>,
    /// The ticket of the listing that was published last. Locked during a listing, so that an older
    /// listing is never published after a newer one.
    pub(super) published: tokio::sync::Mutex<Option<Ticket>>,
    /// Change notifications that are not counted yet.
    pub(super) notified: Option<async_channel::Receiver<()>>,
}

/// The state of a source between two listings.
#[derive(Debug, Default)]
pub(super) struct SourceStatus {
    /// Why the last listing failed; `None` if it succeeded or none was tried.
    pub(super) unhealthy: Option<String>,
    /// The tool names of the last successful listing; `None` before the first.
    pub(super) listed: Option<HashSet<String>>,
    /// Change notifications since the listing that is published; zero if it is up to date.
    pub(super) changes: u64,
    /// Whether its tools come from the lock or the pins, not yet from a listing of this process.
    pub(super) unverified: bool,
}

impl TrackedSource {
    pub(super) fn new(entry: SourceEntry) -> Self {
        let notified = entry.source.changes();
        Self { entry, status: Mutex::default(), published: tokio::sync::Mutex::default(), notified }
    }

    pub(super) fn status(&self) -> MutexGuard<'_, SourceStatus> {
        self.status.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the source is listed before the next call of its tools: always by setting, after a
    /// change notification, and before the first listing of this process.
    pub(super) fn needs_verification(&self) -> bool {
        let is_notified = self.notified.as_ref().is_some_and(|notified| !notified.is_empty());
        let status = self.status();
        self.entry.verify_calls || status.changes > 0 || status.unverified || is_notified
    }

    /// Returns the number of change notifications that a listing which begins now covers.
    pub(super) fn begin_listing(&self) -> u64 {
        let mut status = self.status();
        while self.notified.as_ref().is_some_and(|notified| notified.try_recv().is_ok()) {
            status.changes += 1;
        }
        status.changes
    }

    /// Whether its tools are quarantined because the last listing failed. Without a change notification
    /// and without `verify_calls`, the tools of the last successful listing stay callable.
    pub(super) fn is_unavailable(&self) -> bool {
        let status = self.status();
        (self.entry.verify_calls || status.changes > 0) && status.unhealthy.is_some()
    }
}
