//! The whole configuration.
//!
//! Doc: configuration.md

use std::collections::BTreeMap;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::Deserialize;

use super::builtin::Builtin;
use super::doors::Auth;
use super::doors::Http;
use super::doors::Mcp;
use super::doors::Proxy;
use super::doors::ToolSet;
use super::hooks::Hooks;
use super::policy::Approvals;
use super::policy::Budgets;
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
use super::runtimes::RuntimeSection;
use super::servers::Server;

/// The whole configuration.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Config {
    /// The files that settings name as secrets, as they are written.
    #[serde(skip)]
    pub(crate) secret_files: Vec<PathBuf>,
    /// The registry file.
    pub(crate) registry: Option<PathBuf>,
    /// Which discovered tools are approved.
    pub(crate) lock: super::lock::Lock,
    /// The store of the records.
    pub(crate) store: Store,
    /// The feature flags.
    pub(crate) flags: Flags,
    /// The tools that can be called.
    pub(crate) policy: Policy,
    /// Requirements of permissions.
    pub(crate) permissions: BTreeMap<String, Permission>,
    /// Limits of the call path.
    pub(crate) proxy: Proxy,
    /// The MCP front door.
    pub(crate) mcp: Mcp,
    /// The HTTP front door.
    pub(crate) http: Http,
    /// Who calls.
    pub(crate) auth: Auth,
    /// Tool sets, each with a front door of its own.
    pub(crate) toolsets: BTreeMap<String, ToolSet>,
    /// Named sets of rights.
    pub(crate) callers: BTreeMap<String, Caller>,
    /// The budget of each caller.
    pub(crate) budgets: Budgets,
    /// Approvals of calls.
    pub(crate) approvals: Approvals,
    /// Hooks of clients that run tools of their own.
    pub(crate) hooks: Hooks,
    /// Upstream MCP servers.
    pub(crate) servers: BTreeMap<String, Server>,
    /// HTTP endpoints.
    pub(crate) endpoints: BTreeMap<String, super::endpoints::Endpoint>,
    /// Runtimes on this machine.
    pub(crate) runtimes: BTreeMap<String, RuntimeSection>,
    /// Commands that list and run tools.
    pub(crate) commands: BTreeMap<String, CommandPair>,
    /// How tools are discovered.
    pub(crate) discovery: Discovery,
    /// The meaning of trust levels.
    pub(crate) trust: Trust,
    /// Sandbox settings.
    pub(crate) sandbox: super::sandbox::Sandboxes,
    /// The built-in tools.
    pub(crate) builtin: Builtin,
    /// The part of results that agents see.
    pub(crate) results: ShownResults,
    /// The content of receipts.
    pub(crate) receipts: Receipts,
    /// Agent logs and checkpoints.
    pub(crate) audit: Audit,
    /// How long records are stored.
    pub(crate) retention: Retention,
}
