//! Who may call what: `[flags]`, `[policy]`, `[permissions]`, `[callers]`, `[trust]`.
//!
//! Doc: configuration.md

use super::setting::Setting;
use schemars::JsonSchema;
use serde::Deserialize;
use std::collections::BTreeMap;
use toolbooth_contracts::ToolPattern;
use toolbooth_contracts::trust::TrustLevel;

/// The two switches.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Flags {
    /// Whether tools may be called at all.
    pub(crate) mcp_tools: bool,
    /// Whether the whitelist is enforced.
    pub(crate) tools_policy: bool,
}

impl Default for Flags {
    fn default() -> Self {
        Self { mcp_tools: true, tools_policy: true }
    }
}

/// Who may call what.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Policy {
    /// Tools that may be called; absent = all.
    pub(crate) whitelist: Option<Vec<ToolPattern>>,
}

/// What a permission requires.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Permission {
    /// A section that must be there, such as `servers.mail`.
    pub(crate) requires: String,
}

/// A named set of rights.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Caller {
    /// Callers that have it: `local`, `key:NAME`, `key:*`.
    #[serde(rename = "match")]
    pub(crate) matches: Vec<String>,
    /// Tools they see; absent = all.
    pub(crate) tools: Option<Vec<ToolPattern>>,
    /// Tools they do not see.
    pub(crate) deny: Vec<ToolPattern>,
    /// Permissions they have.
    pub(crate) grants: Vec<String>,
    /// Whether they are operators.
    pub(crate) operate: bool,
    /// Variables or headers of their own, by server.
    pub(crate) secrets: BTreeMap<String, BTreeMap<String, Setting>>,
}

/// What trust levels mean.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Trust {
    /// Trust levels whose tools need an approval for each call.
    pub(crate) approval: Vec<String>,
    /// What words of your own mean.
    pub(crate) levels: BTreeMap<String, TrustLevel>,
}
