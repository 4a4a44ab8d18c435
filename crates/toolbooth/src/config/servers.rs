//! Servers of tools: `[servers.NAME]`, and what holds for tools where nothing is said.
//!
//! Doc: configuration.md

use super::setting::Setting;
use schemars::JsonSchema;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::PathBuf;
use toolbooth_contracts::contract::IdempotencyMode;

/// What the operator says of the tools of a source.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct ToolDefaults {
    /// Wall time of one call, in milliseconds.
    pub(crate) timeout_ms: Option<u64>,
    /// The trust level.
    pub(crate) trust_level: Option<String>,
    /// Calls per minute of one caller.
    pub(crate) rate_limit_per_min: Option<u64>,
    /// What a caller must be granted.
    pub(crate) permissions: Option<Vec<String>>,
    /// The idempotency mode.
    pub(crate) idempotency: Option<IdempotencyMode>,
    /// The operator's word that the tools change nothing.
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
    /// Where it runs.
    pub(crate) cwd: Option<PathBuf>,
    /// The URL, for streamable HTTP.
    pub(crate) url: Option<String>,
    /// Its headers.
    pub(crate) headers: BTreeMap<String, Setting>,
    /// `false` leaves it out.
    pub(crate) enabled: Option<bool>,
    /// Tools that are taken; absent = all.
    pub(crate) tools: Option<Vec<String>>,
    /// Tools that are left out.
    pub(crate) deny: Vec<String>,
    /// Tools that get another id.
    pub(crate) rename: BTreeMap<String, String>,
    /// For people.
    pub(crate) description: Option<String>,
    /// How long connecting may take, in milliseconds.
    pub(crate) startup_timeout_ms: Option<u64>,
    /// Wall time of one call, in milliseconds.
    pub(crate) timeout_ms: Option<u64>,
    /// Settings for its tools.
    pub(crate) defaults: ToolDefaults,
    /// Settings for single tools, by their names over there.
    pub(crate) overrides: BTreeMap<String, ToolDefaults>,
    /// When its tools are compared with what was approved.
    pub(crate) verify: Verify,
    /// How its process is contained; absent = the shipped profile `server`, by trust.
    pub(crate) sandbox: Option<super::sandbox::Sandbox>,
    /// Who shares a connection.
    pub(crate) isolation: Isolation,
    /// Whose credentials it gets.
    pub(crate) credentials: Credentials,
}

/// Who shares a connection to a server.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Isolation {
    /// All callers.
    #[default]
    Shared,
    /// Nobody: each caller has its own.
    Caller,
}

/// Whose credentials a server gets.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Credentials {
    /// Its own, from `env` and `headers`.
    #[default]
    Server,
    /// The caller's, from `[callers.NAME.secrets.SERVER]`.
    Caller,
}

/// When the tools of a server are compared with what was approved.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Verify {
    /// When the server is asked for its tools.
    #[default]
    Refresh,
    /// Before each call too: the server is asked again.
    Call,
}
