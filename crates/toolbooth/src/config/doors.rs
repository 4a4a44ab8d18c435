//! What doors take and show: `[proxy]`, `[mcp]`, `[http]`.
//!
//! Doc: configuration.md

use schemars::JsonSchema;
use serde::Deserialize;
use std::collections::BTreeMap;
use toolbooth_contracts::ToolPattern;
use toolbooth_proxy::Intent;
use toolbooth_proxy::OutputRule;
use toolbooth_registry::wire::Naming;
use toolbooth_registry::wire::Prefix;
use toolbooth_server::Listing;
use toolbooth_server::auth::Loopback;

/// Where to listen, where nothing is said.
pub(crate) const LISTEN: &str = "127.0.0.1:7717";

/// Bounds of the path.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Proxy {
    /// Calls at once.
    pub(crate) in_flight_max: Option<usize>,
    /// Bytes of arguments.
    pub(crate) argument_bytes_max: Option<usize>,
    /// Bytes of a result.
    pub(crate) result_bytes_max: Option<usize>,
    /// What a result that does not fit its schema means.
    pub(crate) output: OutputRule,
    /// When a tool starts that an operator marked `readOnly`: once its claim is durable, or at once.
    /// Calls with a key always wait.
    pub(crate) intent: Intent,
    /// The same for single tools or patterns; the narrower one decides.
    pub(crate) intents: BTreeMap<ToolPattern, Intent>,
    /// How long running calls may take at the end, in milliseconds.
    pub(crate) shutdown_grace_ms: Option<u64>,
    /// The longest that a tool may run where its progress starts its time anew, in milliseconds.
    pub(crate) progress_cap_ms: Option<u64>,
    /// How long a tool's question waits for its answer, in milliseconds.
    pub(crate) input_patience_ms: Option<u64>,
    /// Asynchronous calls that may wait.
    pub(crate) queued_max: Option<usize>,
    /// Asynchronous calls that `serve` runs at once; 0 leaves them to `toolbooth worker`.
    pub(crate) workers: Option<usize>,
}

/// The MCP front door.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Mcp {
    /// How tools are named on the wire.
    pub(crate) names: Naming,
    /// Whether names of upstream tools begin with their server's.
    pub(crate) prefix: Prefix,
    /// What `tools/list` gives.
    pub(crate) listing: Listing,
    /// The server whose resource URIs are shown as they are, without its name before them.
    pub(crate) bare_uris: Option<String>,
}

/// The HTTP front door.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Http {
    /// Where to listen.
    pub(crate) listen: Option<String>,
    /// Whose loopback connections call without credentials.
    pub(crate) loopback: Loopback,
    /// Connections at once; absent = 16384, or what the limit of open files allows.
    pub(crate) connections_max: Option<usize>,
    /// Time for a request's head from its first byte, in milliseconds.
    pub(crate) header_timeout_ms: Option<u64>,
    /// Time for a request's body, in milliseconds.
    pub(crate) body_timeout_ms: Option<u64>,
    /// Time in which a client must take some of its answer, in milliseconds.
    pub(crate) write_timeout_ms: Option<u64>,
    /// Bytes of request bodies that are held over all connections.
    pub(crate) body_bytes_budget: Option<usize>,
    /// MCP sessions of all callers.
    pub(crate) sessions_max: Option<usize>,
    /// MCP sessions of one caller; a further one ends its longest idle one.
    pub(crate) sessions_per_caller_max: Option<usize>,
    /// How long an MCP session may be idle, in milliseconds.
    pub(crate) session_idle_ms: Option<u64>,
}

/// What a door of its own shows: never more than the caller may see.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ToolSet {
    /// Tools, by id or pattern.
    pub(crate) tools: Vec<ToolPattern>,
    /// Prompts, by `SERVER.NAME` or pattern; absent = those of servers that `tools` has whole.
    #[serde(default)]
    pub(crate) prompts: Option<Vec<ToolPattern>>,
    /// Resources, by `SERVER.URI` or pattern; absent as for prompts.
    #[serde(default)]
    pub(crate) resources: Option<Vec<ToolPattern>>,
}
