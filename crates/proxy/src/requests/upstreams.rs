//! The servers that answer requests other than tool calls, by name.
//!
//! Path: 7. Doc: call-path.md#requests

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use toolbooth_contracts::port::Upstream;

/// A server and its settings.
#[derive(Clone)]
pub struct UpstreamEntry {
    /// The port that reaches it.
    pub upstream: Arc<dyn Upstream>,
    /// How long one request can take without progress.
    pub timeout: Duration,
    /// Whether each caller has a connection of its own.
    pub per_caller: bool,
}

/// Servers by name.
#[derive(Clone, Default)]
pub struct Upstreams(BTreeMap<String, UpstreamEntry>);

impl fmt::Debug for Upstreams {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

impl Upstreams {
    /// Returns the servers with one more; replaces a server of the same name.
    #[must_use]
    pub fn with(mut self, entry: UpstreamEntry) -> Self {
        self.0.insert(entry.upstream.name().to_owned(), entry);
        self
    }

    pub(crate) fn get(&self, server: &str) -> Option<&UpstreamEntry> {
        self.0.get(server)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&String, &UpstreamEntry)> {
        self.0.iter()
    }
}
