//! The settings of upstream servers, `[servers.NAME]`, and the default settings of tools.
//!
//! Doc: configuration.md

use std::collections::BTreeMap;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::Deserialize;
use toolbooth_contracts::contract::IdempotencyMode;

use super::setting::Setting;

/// The operator's settings for the tools of a source.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct ToolDefaults {
    /// Wall time of one call, in milliseconds.
    pub(crate) timeout_ms: Option<u64>,
    /// The trust level.
    pub(crate) trust_level: Option<String>,
    /// Calls of one caller per minute.
    pub(crate) rate_limit_per_min: Option<u64>,
    /// Permissions that a caller must have.
    pub(crate) permissions: Option<Vec<String>>,
    /// The idempotency mode.
    pub(crate) idempotency: Option<IdempotencyMode>,
    /// Whether the tools change nothing, as the operator declares.
    pub(crate) read_only: Option<bool>,
}

/// An upstream MCP server.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Server {
    /// The program, for a child process.
    pub(crate) command: Option<String>,
    /// Its arguments.
    pub(crate) args: Vec<String>,
    /// Its variables.
    pub(crate) env: BTreeMap<String, Setting>,
    /// Its working directory.
    pub(crate) cwd: Option<PathBuf>,
    /// The URL, for streamable HTTP.
    pub(crate) url: Option<String>,
    /// Its headers.
    pub(crate) headers: BTreeMap<String, Setting>,
    /// `false` disables it.
    pub(crate) enabled: Option<bool>,
    /// Tools that are included; absent = all.
    pub(crate) tools: Option<Vec<String>>,
    /// Tools that are excluded.
    pub(crate) deny: Vec<String>,
    /// Tools with another id.
    pub(crate) rename: BTreeMap<String, String>,
    /// A description for operators.
    pub(crate) description: Option<String>,
    /// Timeout of connecting, in milliseconds.
    pub(crate) startup_timeout_ms: Option<u64>,
    /// Wall time of one call, in milliseconds.
    pub(crate) timeout_ms: Option<u64>,
    /// Settings for its tools.
    pub(crate) defaults: ToolDefaults,
    /// Settings for single tools, by their names at the server.
    pub(crate) overrides: BTreeMap<String, ToolDefaults>,
    /// When its tools are compared with the approved ones.
    pub(crate) verify: Verify,
    /// The sandbox of its process; absent = the shipped profile `server`, by trust.
    pub(crate) sandbox: Option<super::sandbox::Sandbox>,
    /// The callers that share a connection.
    pub(crate) isolation: Isolation,
    /// The credentials that it receives.
    pub(crate) credentials: Credentials,
}

/// The callers that share a connection to a server.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Isolation {
    /// All callers.
    #[default]
    Shared,
    /// None: each caller has its own connection.
    Caller,
}

/// The credentials that a server receives.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Credentials {
    /// Its own, from `env` and `headers`.
    #[default]
    Server,
    /// The caller's, from `[callers.NAME.secrets.SERVER]`.
    Caller,
}

/// When the tools of a server are compared with the approved ones.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Verify {
    /// When the server lists its tools.
    #[default]
    Refresh,
    /// Also before each call, with a new listing.
    Call,
}
