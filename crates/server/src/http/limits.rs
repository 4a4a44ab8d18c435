//! Defines the limits of the HTTP door.
//!
//! Doc: front-doors.md#limits

use std::time::Duration;

use rustix::process::{Resource, getrlimit};

use crate::mcp::SessionLimits;
use crate::message_size::BODY_BYTES_MAX;

/// Bytes of one request's line and headers.
pub(super) const HEAD_BYTES_MAX: usize = 32 << 10;
/// Bytes that are read or buffered at once for one connection.
pub(super) const BUFFER_BYTES_MAX: usize = 64 << 10;
/// Maximum connections at once, unless a setting or the limit of open files allows fewer.
pub const CONNECTIONS_MAX: usize = 16_384;
/// File descriptors reserved for the store, for upstream connections and for children.
pub const DESCRIPTORS_RESERVED: usize = 256;

/// Limits of the HTTP door.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Connections at once.
    pub connections_max: usize,
    /// Bytes of one request's body.
    pub body_bytes_max: usize,
    /// Time for a request's head, from its first byte.
    pub header_timeout: Duration,
    /// Time for a request's body, from the end of its head.
    pub body_timeout: Duration,
    /// Time in which a client must read the next 16 KiB of a pending answer, or its rest.
    pub write_timeout: Duration,
    /// Bytes of request bodies in memory, over all connections.
    pub body_bytes_budget: usize,
    /// Sessions of MCP's legacy era.
    pub sessions: SessionLimits,
}

impl Default for Limits {
    /// Returns the defaults; connections are also bounded by the limit of open files.
    fn default() -> Self {
        Self {
            connections_max: CONNECTIONS_MAX.min(connections_fitting()),
            body_bytes_max: BODY_BYTES_MAX,
            header_timeout: Duration::from_secs(10),
            body_timeout: Duration::from_secs(30),
            write_timeout: Duration::from_secs(30),
            body_bytes_budget: 64 << 20,
            sessions: SessionLimits::default(),
        }
    }
}

/// Returns the number of connections that the soft limit of open files (`RLIMIT_NOFILE`) allows, at
/// least 1.
///
/// Reserves [`DESCRIPTORS_RESERVED`] descriptors, or half of the limit if that is less.
#[must_use]
pub fn connections_fitting() -> usize {
    let limit = getrlimit(Resource::Nofile).current;
    let limit = limit.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX));
    limit.saturating_sub(DESCRIPTORS_RESERVED.min(limit / 2)).max(1)
}
