//! The settings of local programs that are tools: `[runtimes.NAME]`.
//!
//! Doc: configuration.md

use std::collections::BTreeMap;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::Deserialize;
use toolbooth_adapters::command::ErrorText;
use toolbooth_adapters::handlers::Language;
use toolbooth_registry::lock::NewTools;
use toolbooth_registry::lock::Suspicious;

use super::servers::ToolDefaults;
use super::setting::Setting;

/// A runtime on this machine.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Runtime")]
pub(crate) struct RuntimeSection {
    /// `handlers` or `command`.
    pub(crate) kind: RuntimeKind,
    /// The language; absent = derived from the handler file that exists.
    pub(crate) language: Option<Language>,
    /// The folder with the handler files.
    pub(crate) dir: Option<PathBuf>,
    /// The domains: a list, or `"*"` for every domain that no other runtime names.
    #[serde(default)]
    pub(crate) domains: Domains,
    /// The interpreter; absent = `node` or `python3`.
    pub(crate) interpreter: Option<String>,
    /// Concurrent workers of one domain.
    pub(crate) workers: Option<usize>,
    /// The command line of a call, in which `{name}` is replaced by an argument.
    pub(crate) command: Option<CommandText>,
    /// The error text that an agent sees if a command fails.
    #[serde(default)]
    pub(crate) error_text: ErrorText,
    /// Variables.
    #[serde(default)]
    pub(crate) env: BTreeMap<String, Setting>,
    /// The working directory of commands.
    pub(crate) cwd: Option<PathBuf>,
    /// The sandbox of its processes; absent = the shipped profile `default`, by trust.
    pub(crate) sandbox: Option<super::sandbox::Sandbox>,
}

/// The kind of a runtime.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum RuntimeKind {
    /// Functions in files.
    Handlers,
    /// A command for each call.
    Command,
}

/// The domains of a runtime.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(untagged)]
pub(crate) enum Domains {
    /// `"*"`, or one domain.
    One(String),
    /// Several domains.
    Some(Vec<String>),
}

impl Default for Domains {
    fn default() -> Self {
        Self::One("*".to_owned())
    }
}

/// A command line: a list, or text that is split into words.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(untagged)]
pub(crate) enum CommandText {
    /// Program and arguments.
    Words(Vec<String>),
    /// Text that is split into POSIX words.
    Text(String),
}

/// Commands that list and run tools.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct CommandPair {
    /// Lists the tools.
    pub(crate) discover_command: CommandText,
    /// Runs one tool; its name is the last argument.
    pub(crate) call_command: CommandText,
    /// Variables.
    #[serde(default)]
    pub(crate) env: BTreeMap<String, Setting>,
    /// Their working directory.
    pub(crate) cwd: Option<PathBuf>,
    /// `safe` or `full`.
    #[serde(default)]
    pub(crate) error_text: ErrorText,
    /// Timeout of listing, in milliseconds.
    pub(crate) discover_timeout_ms: Option<u64>,
    /// Bytes of a listing.
    pub(crate) listing_bytes_max: Option<usize>,
    /// Settings for the tools.
    #[serde(default)]
    pub(crate) defaults: ToolDefaults,
    /// Settings for single tools, by name.
    #[serde(default)]
    pub(crate) overrides: BTreeMap<String, ToolDefaults>,
    /// Tools that are included; absent = all.
    pub(crate) tools: Option<Vec<String>>,
    /// Tools that are excluded.
    #[serde(default)]
    pub(crate) deny: Vec<String>,
    /// Tools with another id.
    #[serde(default)]
    pub(crate) rename: BTreeMap<String, String>,
    /// `false` disables it.
    pub(crate) enabled: Option<bool>,
    /// The sandbox of its processes if a contract contains none; absent = by trust.
    pub(crate) sandbox: Option<super::sandbox::Sandbox>,
}

/// How tools are discovered.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Discovery {
    /// The polling interval of sources that do not report changes, in milliseconds.
    #[serde(alias = "interval")]
    pub(crate) interval_ms: Option<u64>,
    /// Settings for all discovered tools.
    pub(crate) defaults: ToolDefaults,
    /// The handling of tools that neither the lock nor a pin names.
    pub(crate) new_tools: NewTools,
    /// The handling of suspicious text without approval.
    pub(crate) suspicious: Suspicious,
}
