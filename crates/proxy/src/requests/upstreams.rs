//! The servers that can be asked for more than tools, by name.
//!
//! Path: 7. Doc: call-path.md#requests

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use toolbooth_contracts::port::Upstream;

/// A server, and what configuration says of it.
#[derive(Clone)]
pub struct UpstreamEntry {
    /// The way to it.
    pub upstream: Arc<dyn Upstream>,
    /// How long one request may take without progress.
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
    /// The same with one more; a server of the same name is replaced.
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
