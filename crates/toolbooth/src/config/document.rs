//! The whole configuration.
//!
//! Doc: configuration.md

use super::builtin::Builtin;
use super::doors::Http;
use super::doors::Mcp;
use super::doors::Proxy;
use super::doors::ToolSet;
use super::policy::Caller;
use super::policy::Flags;
use super::policy::Permission;
use super::policy::Policy;
use super::policy::Trust;
use super::records::Audit;
use super::records::Receipts;
use super::records::Retention;
use super::records::ShownResults;
use super::records::Store;
use super::runtimes::CommandPair;
use super::runtimes::Discovery;
use super::runtimes::Runtime;
use super::servers::Server;
use schemars::JsonSchema;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// The whole configuration.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Config {
    /// The registry file.
    pub(crate) registry: Option<PathBuf>,
    /// Which discovered tools are approved.
    pub(crate) lock: super::lock::Lock,
    /// Where records are kept.
    pub(crate) store: Store,
    /// The two switches.
    pub(crate) flags: Flags,
    /// Who may call what.
    pub(crate) policy: Policy,
    /// What permissions require.
    pub(crate) permissions: BTreeMap<String, Permission>,
    /// Bounds of the path.
    pub(crate) proxy: Proxy,
    /// The MCP front door.
    pub(crate) mcp: Mcp,
    /// The HTTP front door.
    pub(crate) http: Http,
    /// What doors of their own show.
    pub(crate) toolsets: BTreeMap<String, ToolSet>,
    /// Named sets of rights.
    pub(crate) callers: BTreeMap<String, Caller>,
    /// Upstream MCP servers.
    pub(crate) servers: BTreeMap<String, Server>,
    /// HTTP endpoints.
    pub(crate) endpoints: BTreeMap<String, super::endpoints::Endpoint>,
    /// Runtimes on this machine.
    pub(crate) runtimes: BTreeMap<String, Runtime>,
    /// Commands that list and run tools.
    pub(crate) commands: BTreeMap<String, CommandPair>,
    /// How sources are asked.
    pub(crate) discovery: Discovery,
    /// What trust levels mean.
    pub(crate) trust: Trust,
    /// How processes are contained.
    pub(crate) sandbox: super::sandbox::Sandboxes,
    /// The tools that are compiled in.
    pub(crate) builtin: Builtin,
    /// What agents are shown of results.
    pub(crate) results: ShownResults,
    /// What receipts keep.
    pub(crate) receipts: Receipts,
    /// Agent logs and checkpoints.
    pub(crate) audit: Audit,
    /// How long records are kept.
    pub(crate) retention: Retention,
}
