//! Programs of this machine that are tools: `[runtimes.NAME]`.
//!
//! Doc: configuration.md

use super::servers::ToolDefaults;
use super::setting::Setting;
use schemars::JsonSchema;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::PathBuf;
use toolbooth_adapters::command::ErrorText;
use toolbooth_adapters::handlers::Language;
use toolbooth_registry::lock::NewTools;
use toolbooth_registry::lock::Suspicious;

/// A runtime on this machine.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Runtime {
    /// `handlers` or `command`.
    pub(crate) kind: RuntimeKind,
    /// The language; absent = whichever file is there.
    pub(crate) language: Option<Language>,
    /// The folder with the handler files.
    pub(crate) dir: Option<PathBuf>,
    /// The domains: a list, or `"*"` for every domain that no other runtime names.
    #[serde(default)]
    pub(crate) domains: Domains,
    /// The interpreter; absent = `node` or `python3`.
    pub(crate) interpreter: Option<String>,
    /// Workers of one domain at once.
    pub(crate) workers: Option<usize>,
    /// The command line of a call, in which `{name}` stands for an argument.
    pub(crate) command: Option<CommandText>,
    /// What an agent sees of a command that fails.
    #[serde(default)]
    pub(crate) error_text: ErrorText,
    /// Variables.
    #[serde(default)]
    pub(crate) env: BTreeMap<String, Setting>,
    /// Where commands run.
    pub(crate) cwd: Option<PathBuf>,
    /// How its processes are contained; absent = the shipped profile `default`, by trust.
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
    /// These.
    Some(Vec<String>),
}

impl Default for Domains {
    fn default() -> Self {
        Self::One("*".to_owned())
    }
}

/// A command line: a list, or a text that is split into words.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(untagged)]
pub(crate) enum CommandText {
    /// Program and arguments.
    Words(Vec<String>),
    /// To be split into POSIX words.
    Text(String),
}

/// Commands that list and run tools.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct CommandPair {
    /// Lists the tools.
    pub(crate) discover_command: CommandText,
    /// Runs one tool; its name comes last.
    pub(crate) call_command: CommandText,
    /// Variables.
    #[serde(default)]
    pub(crate) env: BTreeMap<String, Setting>,
    /// Where they run.
    pub(crate) cwd: Option<PathBuf>,
    /// `safe` or `full`.
    #[serde(default)]
    pub(crate) error_text: ErrorText,
    /// How long listing may take, in milliseconds.
    pub(crate) discover_timeout_ms: Option<u64>,
    /// Bytes of a listing.
    pub(crate) listing_bytes_max: Option<usize>,
    /// Settings for the tools.
    #[serde(default)]
    pub(crate) defaults: ToolDefaults,
    /// Settings for single tools, by their names.
    #[serde(default)]
    pub(crate) overrides: BTreeMap<String, ToolDefaults>,
    /// Tools that are taken; absent = all.
    pub(crate) tools: Option<Vec<String>>,
    /// Tools that are left out.
    #[serde(default)]
    pub(crate) deny: Vec<String>,
    /// Tools that get another id.
    #[serde(default)]
    pub(crate) rename: BTreeMap<String, String>,
    /// `false` leaves it out.
    pub(crate) enabled: Option<bool>,
    /// How its processes are contained, where a contract says nothing; absent = by trust.
    pub(crate) sandbox: Option<super::sandbox::Sandbox>,
}

/// How sources are asked.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Discovery {
    /// How often sources that cannot tell are asked again, in milliseconds.
    #[serde(alias = "interval")]
    pub(crate) interval_ms: Option<u64>,
    /// Settings for all discovered tools.
    pub(crate) defaults: ToolDefaults,
    /// What becomes of tools that neither the lock nor a pin names.
    pub(crate) new_tools: NewTools,
    /// What becomes of suspicious text that nobody has approved.
    pub(crate) suspicious: Suspicious,
}
