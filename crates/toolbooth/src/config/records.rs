//! What is kept of calls, where and for how long: `[store]`, `[receipts]`, `[results]`, `[audit]`, `[retention]`.
//!
//! Doc: configuration.md

use std::collections::BTreeMap;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::Deserialize;
use toolbooth_contracts::ToolPattern;
use toolbooth_contracts::agent_log::LogLevel;
use toolbooth_contracts::secret_location::SecretRef;
use toolbooth_proxy::Results;

use super::setting::Setting;

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
