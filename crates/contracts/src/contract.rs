//! The tool contract: everything that must be known to let one tool be called.
//!
//! The types say what a contract holds; whether an entry *is* a contract decides the guard.
//!
//! Doc: contract.md#fields

#[cfg(feature = "schemars")]
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Number, Value};

use crate::id::ToolId;
use crate::sandbox::SandboxProfile;

/// Default wall time of a tool, in milliseconds.
pub const TIMEOUT_MS_DEFAULT: u64 = 30_000;
/// The runtime id under which tools that are compiled in are reached.
pub const BUILTIN_RUNTIME: &str = "builtin";
/// The runtime id of the handler that owns the domain of a tool.
pub const HANDLERS_RUNTIME: &str = "handlers";

/// The runtime id of the gateway's own tools, and the name of the server that its own resources
/// are of.
pub const GATEWAY_RUNTIME: &str = "gateway";

/// One entry of the registry, in canonical form.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ToolContract {
    /// Stable id.
    pub tool_id: ToolId,
    /// A short name for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// What the tool does, for people and models.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// The kind of work.
    pub category: Category,
    /// JSON Schema of the arguments; root `type: object`.
    pub input_schema: Value,
    /// JSON Schema of `structuredContent`; `{}` = anything.
    pub output_schema: Value,
    /// What the tool can take; describes and filters.
    pub capabilities: Capabilities,
    /// Where the tool is.
    pub execution: Execution,
    /// Limits and trust, by the operator.
    pub policy: ContractPolicy,
    /// What a caller must be granted, each `verb:resource`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub permissions: Vec<String>,
    /// What a second call does.
    #[serde(default)]
    pub idempotency: Idempotency,
    /// Dotted paths, starting at `result`, that the receipt keeps.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub receipt_fields: Vec<String>,
    /// How the tool must be contained.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<SandboxProfile>,
    /// The tool's own hints; shown, never loosening anything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub annotations: Option<Map<String, Value>>,
    /// What else the tool's source lists for clients, such as `icons` and `_meta`.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub shown: Map<String, Value>,
    /// Keys that this version does not know, kept as they came.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

/// The kind of work a tool does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Category {
    /// Calls a language model.
    Llm,
    /// Makes speech.
    Tts,
    /// Renders media.
    Renderer,
    /// Turns one thing into another.
    Transformer,
    /// Checks something.
    Validator,
    /// Everything else: reads, writes, sends.
    Function,
}

impl Category {
    /// All categories, as they are written.
    pub const NAMES: [&str; 6] = ["llm", "tts", "renderer", "transformer", "validator", "function"];

    /// The category as it is written.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Llm => "llm",
            Self::Tts => "tts",
            Self::Renderer => "renderer",
            Self::Transformer => "transformer",
            Self::Validator => "validator",
            Self::Function => "function",
        }
    }
}

/// What a tool can take. Only `maxAssetBytes` is enforced, on arguments and results.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Capabilities {
    /// Languages, as BCP 47 tags.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub locales: Option<Vec<String>>,
    /// Media types.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub media_types: Option<Vec<String>>,
    /// Most tokens it reads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schemars", schemars(with = "Option<f64>"))]
    pub max_input_tokens: Option<Number>,
    /// Most tokens it writes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schemars", schemars(with = "Option<f64>"))]
    pub max_output_tokens: Option<Number>,
    /// Most bytes of arguments, and of a result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schemars", schemars(with = "Option<f64>"))]
    pub max_asset_bytes: Option<Number>,
    /// Further keys, kept as they came.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

impl Capabilities {
    /// `maxAssetBytes` in whole bytes.
    #[must_use]
    pub fn asset_bytes_max(&self) -> Option<usize> {
        let number = self.max_asset_bytes.as_ref()?;
        match number.as_u64() {
            Some(whole) => Some(usize::try_from(whole).unwrap_or(usize::MAX)),
            // A fraction of a byte is rounded down; `as` saturates.
            None => number.as_f64().map(|bytes| bytes as usize),
        }
    }
}

/// Where a tool is. Several targets are a priority (local, MCP, endpoint), never a failover.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Execution {
    /// A runtime on this machine; `builtin` and `handlers` are reserved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub local_runtime_id: Option<String>,
    /// A configured MCP server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mcp_server_id: Option<String>,
    /// A configured HTTP endpoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoint_ref: Option<String>,
    /// The tool's name over there, when it is not the tool id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// Further keys, kept as they came.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

/// Which adapter reaches a tool.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum AdapterId {
    /// A runtime on this machine.
    Local(String),
    /// An MCP server.
    Mcp(String),
    /// An HTTP endpoint.
    Endpoint(String),
}

impl std::fmt::Display for AdapterId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Local(id) => write!(f, "local:{id}"),
            Self::Mcp(id) => write!(f, "mcp:{id}"),
            Self::Endpoint(reference) => write!(f, "endpoint:{reference}"),
        }
    }
}

impl Execution {
    /// The adapter that serves the tool: local before MCP before endpoint.
    #[must_use]
    pub fn adapter(&self) -> Option<AdapterId> {
        if let Some(id) = &self.local_runtime_id {
            return Some(AdapterId::Local(id.clone()));
        }
        if let Some(id) = &self.mcp_server_id {
            return Some(AdapterId::Mcp(id.clone()));
        }
        self.endpoint_ref.clone().map(AdapterId::Endpoint)
    }
}

/// Limits and trust that an operator wrote.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ContractPolicy {
    /// Wall time of one execution, in milliseconds, above 0.
    #[cfg_attr(feature = "schemars", schemars(range(min = 1)))]
    pub timeout_ms: u64,
    /// `builtin`, `trusted`, `sandbox`, `untrusted`, or a custom word mapped to one of them.
    pub trust_level: String,
    /// Calls per minute of one caller; 0 = every call refused, absent = no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate_limit_per_min: Option<u64>,
    /// A word for reports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost_tier: Option<String>,
    /// Units that one call takes from a budget.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schemars", schemars(with = "Option<f64>"))]
    pub cost_units: Option<Number>,
    /// Most calls at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schemars", schemars(range(min = 1)))]
    pub max_concurrency: Option<u64>,
    /// Whether a person must agree to each call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approval: Option<ApprovalSetting>,
    /// The operator's word that the tool changes nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read_only: Option<bool>,
    /// Further keys, kept as they came.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

/// Whether a person must agree to each call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum ApprovalSetting {
    /// No approval is asked.
    Never,
    /// Each call needs one.
    Always,
}

/// What a second call with the same key does.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Idempotency {
    /// The mode; `on-key` where nothing is said.
    #[serde(default)]
    pub mode: IdempotencyMode,
    /// The argument that is the key of a `keyed` tool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_field: Option<String>,
    /// Whether a `keyed` key counts for all callers or for one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_scope: Option<KeyScope>,
    /// What a `keyed` call with other arguments gets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_different_args: Option<OnDifferentArgs>,
    /// Whether the target honours a key that travels with the call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accepts_idempotency_key: Option<bool>,
    /// What is known of the effect where a signal ended the tool's process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_signal: Option<OnSignal>,
    /// Further keys, kept as they came.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

/// The four idempotency modes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum IdempotencyMode {
    /// Every call runs.
    None,
    /// A call with an explicit key that was seen gets the first outcome.
    #[default]
    OnKey,
    /// As `on-key`, by call id too; may be run again after a crash.
    SafeRetry,
    /// An argument is the key.
    Keyed,
}

impl IdempotencyMode {
    /// All modes, as they are written.
    pub const NAMES: [&str; 4] = ["none", "on-key", "safe-retry", "keyed"];

    /// The mode as it is written.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::OnKey => "on-key",
            Self::SafeRetry => "safe-retry",
            Self::Keyed => "keyed",
        }
    }
}

/// For whom a key counts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum KeyScope {
    /// For all callers of the tool.
    #[default]
    Tool,
    /// For one caller.
    Caller,
}

/// What a `keyed` call with other arguments gets.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum OnDifferentArgs {
    /// The first outcome, with a warning.
    #[default]
    Replay,
    /// `idempotency-conflict`.
    Refuse,
}

/// What is known of the effect where a signal ended the tool's process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum OnSignal {
    /// Nothing: the effect is `unknown`, and a key is held in doubt.
    #[default]
    Unknown,
    /// The operator's word that the tool has no effect then: the signal is its error, and a natural
    /// key is free.
    Failed,
}
