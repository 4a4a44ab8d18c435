//! The settings of the rights of callers: `[flags]`, `[policy]`, `[permissions]`, `[callers]`, `[trust]`.
//!
//! Doc: configuration.md

use std::collections::BTreeMap;
use std::num::NonZeroU64;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::Deserialize;
use toolbooth_contracts::ToolPattern;
use toolbooth_contracts::secret_location::SecretRef;
use toolbooth_contracts::trust::TrustLevel;
use toolbooth_policy::rules::Within;

use super::setting::Setting;

/// The feature flags.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Flags {
    /// Whether tools can be called.
    pub(crate) mcp_tools: bool,
    /// Whether the whitelist is enforced.
    pub(crate) tools_policy: bool,
}

impl Default for Flags {
    fn default() -> Self {
        Self { mcp_tools: true, tools_policy: true }
    }
}

/// The tools that can be called, and the rules about calls.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Policy {
    /// Tools that can be called; absent = all.
    pub(crate) whitelist: Option<Vec<ToolPattern>>,
    /// Rules in the Cedar language: a file, or a folder of files `NAME.cedar`; absent = no rules.
    pub(crate) rules: Option<PathBuf>,
    /// Whether the rules are enforced.
    pub(crate) mode: RuleMode,
    /// Windows over earlier calls that rules can read, by name.
    pub(crate) history: BTreeMap<String, HistoryWindow>,
}

/// A window over earlier calls.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct HistoryWindow {
    /// The tools whose calls are counted.
    pub(crate) tool: ToolPattern,
    /// How long a call counts, such as `90s`, `5m`, `1h`, `7d`.
    pub(crate) window: String,
    /// The JSON pointer of the argument that is summed, such as `/amount`; absent = calls are only counted.
    pub(crate) sum: Option<String>,
    /// Whose calls are counted together.
    #[serde(default)]
    pub(crate) within: Within,
}

/// Whether rules are enforced.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum RuleMode {
    /// What the rules do not permit is denied.
    #[default]
    Enforce,
    /// What the rules would deny is recorded, and passes.
    Shadow,
}

/// Approvals of calls.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Approvals {
    /// How long a request can be decided, and a decision holds.
    pub(crate) expiry_ms: Option<NonZeroU64>,
    /// How long a call waits for its approval before it is answered.
    pub(crate) wait_ms: Option<u64>,
    /// Who is told of requests: a command, or a URL.
    pub(crate) notify: Option<Notify>,
}

/// Who is told of requested approvals: `command`, or `url` and `secret`.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Notify {
    /// A program with its arguments. It gets the notification on its standard input.
    pub(crate) command: Option<Vec<Setting>>,
    /// A URL to which the notification is posted.
    pub(crate) url: Option<Setting>,
    /// The key with which it is signed.
    pub(crate) secret: Option<SecretRef>,
}

/// The requirement of a permission.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Permission {
    /// A section that must exist, such as `servers.mail`.
    pub(crate) requires: String,
}

/// A named set of rights.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Caller {
    /// Callers with these rights: `local`, `operator`, `key:NAME`, `key:*`, `jwt:ISSUER#SUBJECT`,
    /// `jwt:ISSUER#*`, `group:NAME`; absent = the caller with the name of the section.
    #[serde(rename = "match")]
    pub(crate) matches: Vec<String>,
    /// Tools that they can see; absent = all.
    pub(crate) tools: Option<Vec<ToolPattern>>,
    /// Tools that they cannot see.
    pub(crate) deny: Vec<ToolPattern>,
    /// Permissions they have.
    pub(crate) grants: Vec<String>,
    /// Whether they are operators, who read the receipts and agent logs of all callers over HTTP.
    pub(crate) operate: bool,
    /// The cost that each of them may have in a day; absent = `[budgets]`.
    pub(crate) budget: Option<Budgets>,
    /// Variables or headers of their own, by server.
    pub(crate) secrets: BTreeMap<String, BTreeMap<String, Setting>>,
}

/// The cost that the calls of one caller may have in a day (UTC), in units of the tools' `costUnits`.
#[derive(Debug, Clone, Copy, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Budgets {
    /// All calls; absent = no limit.
    pub(crate) daily: Option<f64>,
    /// The calls of one epic that the agent claims; absent = no limit. Needs `daily`.
    pub(crate) daily_per_epic: Option<f64>,
}

/// The meaning of trust levels.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Trust {
    /// Trust levels that require an approval for each call.
    pub(crate) approval: Vec<String>,
    /// The meaning of trust levels that the operator defines.
    pub(crate) levels: BTreeMap<String, TrustLevel>,
}
