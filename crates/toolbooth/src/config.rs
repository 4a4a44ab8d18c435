//! The configuration: `toolbooth.toml`, what the environment overrides, and the defaults.
//!
//! Doc: configuration.md

pub(crate) mod endpoints;
pub(crate) mod lock;
mod parse;
pub(crate) mod sandbox;
pub(crate) mod toolsets;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::Deserialize;
use toolbooth_adapters::command::ErrorText;
use toolbooth_adapters::handlers::Language;
use toolbooth_contracts::ToolPattern;
use toolbooth_contracts::agent_log::LogLevel;
use toolbooth_contracts::contract::IdempotencyMode;
use toolbooth_contracts::secret::{SecretLocation, SecretRef};
use toolbooth_contracts::trust::TrustLevel;
use toolbooth_proxy::{Intent, OutputRule, Results};
use toolbooth_registry::lock::{NewTools, Suspicious};
use toolbooth_registry::wire::{Naming, Prefix};
use toolbooth_server::Listing;
use toolbooth_server::auth::Loopback;

pub(crate) use parse::parse;

use crate::config::lock::LockMode;
use crate::failure::Failure;
use crate::pins::PinFile;

/// The name of the file that is looked for.
pub(crate) const FILE: &str = "toolbooth.toml";
/// The folder for data beside it.
pub(crate) const DATA: &str = ".toolbooth";
/// The lock file, where nothing is said.
pub(crate) const LOCK: &str = "tools.lock.json";
/// The registry file, where nothing is said.
pub(crate) const REGISTRY: &str = "tools.registry.json";
/// Where to listen, where nothing is said.
pub(crate) const LISTEN: &str = "127.0.0.1:7717";

/// The whole configuration.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Config {
    /// The registry file.
    pub(crate) registry: Option<PathBuf>,
    /// Which discovered tools are approved.
    pub(crate) lock: lock::Lock,
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
    pub(crate) endpoints: BTreeMap<String, endpoints::Endpoint>,
    /// Runtimes on this machine.
    pub(crate) runtimes: BTreeMap<String, Runtime>,
    /// Commands that list and run tools.
    pub(crate) commands: BTreeMap<String, CommandPair>,
    /// How sources are asked.
    pub(crate) discovery: Discovery,
    /// What trust levels mean.
    pub(crate) trust: Trust,
    /// How processes are contained.
    pub(crate) sandbox: sandbox::Sandboxes,
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

/// Where records are kept.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Store {
    /// When an answer is given.
    pub(crate) durability: Durability,
    /// Bytes that the SQLite database and its index may take, at least 16777216; absent = what they
    /// take at the first start, and half of what is free then, at most 20 GiB.
    pub(crate) bytes_max: Option<u64>,
    /// A PostgreSQL database for several replicas; absent = SQLite in the data folder.
    pub(crate) url: Option<Setting>,
    /// The digest key of such a store, the same for all replicas: 64 hex digits.
    pub(crate) digest_key: Option<SecretRef>,
    /// Keys that were such a store's before.
    pub(crate) older_digest_keys: Vec<SecretRef>,
}

/// What receipts keep.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Receipts {
    /// Of results.
    pub(crate) results: Results,
    /// Of the results of single tools, by id or pattern; the narrower one decides.
    pub(crate) tools: BTreeMap<ToolPattern, Results>,
}

/// What agents are shown of results.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct ShownResults {
    /// Bytes of text above which an agent is shown the beginning and a link; 0 = never.
    pub(crate) inline_bytes: Option<usize>,
    /// The same of single tools, by id or pattern; the narrower one decides.
    pub(crate) tools: BTreeMap<ToolPattern, usize>,
}

impl ShownResults {
    /// What holds for tools that are not named.
    pub(crate) fn inline_bytes(&self) -> usize {
        self.inline_bytes.unwrap_or(256 << 10)
    }

    /// Whether any result can be shortened.
    pub(crate) fn shorten(&self) -> bool {
        self.inline_bytes() > 0 || self.tools.values().any(|bytes| *bytes > 0)
    }
}

/// Agent logs and checkpoints.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Audit {
    /// What agent logs keep of payloads: `full`, `digest`, `none`.
    pub(crate) log: LogLevel,
    /// The same of single tools, by id or pattern; the narrower one decides.
    pub(crate) tools: BTreeMap<ToolPattern, LogLevel>,
    /// A checkpoint is signed once so many events are not covered.
    pub(crate) checkpoint_events: Option<u64>,
    /// And once the oldest of them is so old, in milliseconds.
    pub(crate) checkpoint_interval_ms: Option<u64>,
    /// A file, best on another machine's disk, that each checkpoint is appended to.
    pub(crate) checkpoint_file: Option<PathBuf>,
    /// What signs checkpoints: 64 hex digits; else a key in the data folder.
    pub(crate) signing_key: Option<SecretRef>,
}

/// How long records are kept, such as `90d`; absent = for good.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Retention {
    /// Settled receipts; keys that are held leave a tombstone.
    pub(crate) receipts: Option<String>,
    /// Agent logs.
    pub(crate) logs: Option<String>,
    /// Audit events, up to a signed checkpoint.
    pub(crate) audit: Option<String>,
    /// Asynchronous calls that have their result; absent = `1d`.
    pub(crate) calls: Option<String>,
}

/// When an answer is given.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Durability {
    /// After fsync.
    #[default]
    Full,
    /// After the write: may lose the last second with the power.
    Process,
    /// Nothing is kept after the process ends; for tests.
    Memory,
}

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

/// A value that may be a secret.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(untagged)]
pub(crate) enum Setting {
    /// As it is.
    Text(String),
    /// To be looked up when it is needed.
    Kept(KeptSetting),
}

/// A value that is kept elsewhere.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct KeptSetting {
    /// `env:NAME`, `file:PATH` or `keyring:SERVICE/USER`.
    #[serde(alias = "secret_ref")]
    pub(crate) secret_ref: SecretLocation,
    /// Whether it is hidden in answers, records and logs, as a secret is; `false` for an ordinary
    /// word.
    #[serde(default = "is_masked")]
    pub(crate) mask: bool,
}

fn is_masked() -> bool {
    true
}

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
    pub(crate) sandbox: Option<sandbox::Sandbox>,
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
    pub(crate) sandbox: Option<sandbox::Sandbox>,
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
    pub(crate) sandbox: Option<sandbox::Sandbox>,
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

/// What trust levels mean.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Trust {
    /// Trust levels whose tools need an approval for each call.
    pub(crate) approval: Vec<String>,
    /// What words of your own mean.
    pub(crate) levels: BTreeMap<String, TrustLevel>,
}

/// The tools that are compiled in.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Builtin {
    /// Folders that files are read beneath; absent = the working directory.
    pub(crate) roots: Option<Vec<PathBuf>>,
    /// Where searches go.
    pub(crate) web_search: WebSearch,
}

/// Where searches go.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct WebSearch {
    /// A URL that answers in the SearXNG JSON form.
    pub(crate) endpoint: Option<String>,
    /// How long an answer may take, in milliseconds.
    pub(crate) timeout_ms: Option<u64>,
}

/// A configuration with where it comes from.
#[derive(Debug, Clone)]
pub(crate) struct Loaded {
    pub(crate) config: Config,
    /// The file, where there is one.
    pub(crate) file: Option<PathBuf>,
    /// What the file holds.
    pub(crate) text: String,
    /// The folder that relative paths are relative to.
    pub(crate) folder: PathBuf,
    /// The data folder.
    pub(crate) data: PathBuf,
    /// What the command does with the lock.
    pub(crate) lock_use: LockUse,
    /// Whether servers are only tried: they reach the registries of package runners alone.
    pub(crate) is_trial: bool,
}

/// What a command does with the lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LockUse {
    /// Judges tools by it, and pins the first listing of a source.
    Pin,
    /// Judges tools by it, and changes nothing.
    Look,
    /// Compares tools with it, in order to write it: it may be missing.
    Write,
}

impl Loaded {
    /// A path of the configuration.
    pub(crate) fn path(&self, path: &Path) -> PathBuf {
        self.folder.join(path)
    }

    /// The lock file.
    pub(crate) fn lock(&self) -> PathBuf {
        self.path(self.config.lock.file().unwrap_or(Path::new(LOCK)))
    }

    /// Whether the lock file is named without a mode: it has to be there then.
    pub(crate) fn requires_lock(&self) -> bool {
        self.config.lock.mode().is_none() && self.config.lock.file().is_some()
    }

    /// The mode that is in effect: in `first-use`, a lock file that is there counts.
    pub(crate) fn lock_mode(&self) -> LockMode {
        match self.config.lock.mode() {
            Some(mode @ (LockMode::File | LockMode::Off)) => mode,
            None if self.requires_lock() => LockMode::File,
            // A link that leads nowhere stands for a lock file that is missing, not for none.
            _ if self.lock().symlink_metadata().is_ok() => LockMode::File,
            _ => LockMode::FirstUse,
        }
    }

    /// The first-use pins.
    pub(crate) fn pins(&self) -> PinFile {
        PinFile::of(&self.data)
    }

    /// The registry file, and whether the configuration names it.
    pub(crate) fn registry(&self) -> (PathBuf, bool) {
        match &self.config.registry {
            Some(path) => (self.path(path), true),
            None => (self.folder.join(REGISTRY), false),
        }
    }
}

/// Loads the configuration.
pub(crate) fn load(file: Option<&Path>, data: Option<&Path>) -> Result<Loaded, Failure> {
    let here = std::env::current_dir()
        .map_err(|error| Failure::usage(format!("there is no working directory: {error}")))?;
    let file = match file {
        Some(file) => {
            if !file.is_file() {
                let message = format!("the configuration file `{}` is not there", file.display());
                return Err(Failure::configuration(message).hint("`toolbooth init` writes one"));
            }
            Some(here.join(file))
        }
        None => here.ancestors().map(|folder| folder.join(FILE)).find(|path| path.is_file()),
    };
    let folder = file.as_deref().and_then(Path::parent).unwrap_or(&here).to_owned();
    let (config, text) = match &file {
        Some(path) => {
            let text = std::fs::read_to_string(path).map_err(|error| {
                Failure::configuration(format!("the configuration cannot be read: {error}"))
                    .at(path.display().to_string())
            })?;
            (parse(&text, &path.display().to_string(), overrides())?, text)
        }
        None => (parse("", "the environment", overrides())?, String::new()),
    };
    let data = match data {
        Some(data) => here.join(data),
        None => standard_data(&folder)?,
    };
    Ok(Loaded { config, file, text, folder, data, lock_use: LockUse::Pin, is_trial: false })
}

/// As [`load`], for this file, or for its folder where it is not there.
pub(crate) fn load_at(file: &Path, data: Option<&Path>) -> Result<Loaded, Failure> {
    if file.is_file() {
        return load(Some(file), data);
    }
    let file = std::path::absolute(file)
        .map_err(|error| Failure::usage(format!("the folder cannot be found: {error}")))?;
    let loaded = draft("", &file, data)?;
    Ok(Loaded { file: None, lock_use: LockUse::Pin, ..loaded })
}

/// The data folder beside a configuration. One that is a link leads to records of somebody else.
fn standard_data(folder: &Path) -> Result<PathBuf, Failure> {
    let data = folder.join(DATA);
    if data.symlink_metadata().is_ok_and(|data| data.file_type().is_symlink()) {
        return Err(Failure::configuration("the data folder is a link")
            .at(data.display().to_string())
            .hint("where it is meant, name the folder that it leads to: `--data FOLDER`"));
    }
    Ok(data)
}

/// Settings that variables of the environment give.
fn overrides() -> Vec<(String, String)> {
    std::env::vars_os()
        .filter_map(|(name, value)| {
            let name = name.to_str()?.strip_prefix("TOOLBOOTH__")?.to_owned();
            Some((name, value.to_str()?.to_owned()))
        })
        .collect()
}

/// A configuration that is not written yet, as it would be loaded from `file`.
pub(crate) fn draft(text: &str, file: &Path, data: Option<&Path>) -> Result<Loaded, Failure> {
    let config = parse(text, &file.display().to_string(), overrides())?;
    let folder = file.parent().unwrap_or(Path::new("/")).to_owned();
    let data = match data {
        Some(data) => std::path::absolute(data)
            .map_err(|error| Failure::usage(format!("the data folder cannot be found: {error}")))?,
        None => standard_data(&folder)?,
    };
    let (text, file) = (text.to_owned(), Some(file.to_owned()));
    let (lock_use, is_trial) = (LockUse::Look, false);
    Ok(Loaded { config, file, text, folder, data, lock_use, is_trial })
}

/// The configuration file: the named one, the one that is found upwards, or the one that would be
/// written here.
pub(crate) fn place(named: Option<&Path>) -> Result<PathBuf, Failure> {
    let here = std::env::current_dir()
        .map_err(|error| Failure::usage(format!("there is no working directory: {error}")))?;
    if let Some(file) = named {
        return Ok(here.join(file));
    }
    let found = here.ancestors().map(|folder| folder.join(FILE)).find(|path| path.is_file());
    Ok(found.unwrap_or_else(|| here.join(FILE)))
}
