//! The settings of records: `[store]`, `[receipts]`, `[results]`, `[audit]`, `[retention]`.
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

/// The store of the records.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Store {
    /// When a response is sent.
    pub(crate) durability: DurabilitySetting,
    /// Maximum bytes of the SQLite database and its index, at least 16777216. Absent = their size at the
    /// first start plus half of the free space then (at most 20 GiB).
    pub(crate) bytes_max: Option<u64>,
    /// A PostgreSQL database for several replicas; absent = SQLite in the data folder.
    pub(crate) url: Option<Setting>,
    /// The digest key of a PostgreSQL store, the same for all replicas: 64 hex digits.
    pub(crate) digest_key: Option<SecretRef>,
    /// Earlier digest keys of such a store.
    pub(crate) older_digest_keys: Vec<SecretRef>,
}

/// The content of receipts.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Receipts {
    /// Which part of results they store.
    pub(crate) results: Results,
    /// The same for single tools, by id or pattern; the narrower pattern applies.
    pub(crate) tools: BTreeMap<ToolPattern, Results>,
}

/// The part of results that agents see.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct ShownResults {
    /// Bytes of text above which an agent receives the beginning and a link; 0 = never.
    pub(crate) inline_bytes: Option<usize>,
    /// The same for single tools, by id or pattern; the narrower pattern applies.
    pub(crate) tools: BTreeMap<ToolPattern, usize>,
}

impl ShownResults {
    /// Returns the limit for tools that are not named.
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
    /// The part of payloads in agent logs: `full`, `digest`, `none`.
    pub(crate) log: LogLevel,
    /// The same for single tools, by id or pattern; the narrower pattern applies.
    pub(crate) tools: BTreeMap<ToolPattern, LogLevel>,
    /// The number of events without a checkpoint after which one is signed.
    pub(crate) checkpoint_events: Option<u64>,
    /// The age of the oldest event without a checkpoint after which one is signed, in milliseconds.
    pub(crate) checkpoint_interval_ms: Option<u64>,
    /// A file to which each checkpoint is appended, preferably on the disk of another machine.
    pub(crate) checkpoint_file: Option<PathBuf>,
    /// The key that signs checkpoints: 64 hex digits; absent = a key in the data folder.
    pub(crate) signing_key: Option<SecretRef>,
}

/// How long records are stored, such as `90d`; absent = without limit.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Retention {
    /// Settled receipts; held keys leave a tombstone.
    pub(crate) receipts: Option<String>,
    /// Agent logs.
    pub(crate) logs: Option<String>,
    /// Audit events, up to a signed checkpoint.
    pub(crate) audit: Option<String>,
    /// Asynchronous calls with a result; absent = `1d`.
    pub(crate) calls: Option<String>,
    /// Expired approvals; absent = `30d`.
    pub(crate) approvals: Option<String>,
}

/// When a response is sent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(rename = "Durability")]
pub(crate) enum DurabilitySetting {
    /// After fsync.
    #[default]
    Full,
    /// After the write; a power failure can lose the last second.
    Process,
    /// Nothing is stored after the process ends; for tests.
    Memory,
}
