//! The tool contract: all information that is needed to call one tool.
//!
//! The types specify the content of a contract; the guard decides whether an entry is a contract.
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
/// The runtime id of tools that are compiled in.
pub const BUILTIN_RUNTIME: &str = "builtin";
/// The runtime id of the handler that owns the domain of a tool.
pub const HANDLERS_RUNTIME: &str = "handlers";

/// The runtime id of the gateway's own tools, and the server name of its own resources.
pub const GATEWAY_RUNTIME: &str = "gateway";

/// The beginning of the runtime ids of tools that a client runs itself: `client:NAME`. The tool set of the door
/// that answers its hooks has the same name.
pub const CLIENT_RUNTIMES: &str = "client:";

/// One entry of the registry, in canonical form.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ToolContract {
    /// Stable id.
    pub tool_id: ToolId,
    /// A short display name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// The description of the tool, for users and models.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// The kind of work.
    pub category: Category,
    /// JSON Schema of the arguments; root `type: object`.
    pub input_schema: Value,
    /// JSON Schema of `structuredContent`; `{}` = any value.
    pub output_schema: Value,
    /// The capabilities of the tool, for description and filtering.
    pub capabilities: Capabilities,
    /// The target of the tool.
    pub execution: Execution,
    /// Limits and trust, set by the operator.
    pub policy: ContractPolicy,
    /// Permissions that a caller must have, each `verb:resource`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub permissions: Vec<String>,
    /// The behaviour of a second call.
    #[serde(default)]
    pub idempotency: Idempotency,
    /// Dotted paths, starting at `result`, of the values that the receipt stores.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub receipt_fields: Vec<String>,
    /// The sandbox profile of the tool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<SandboxProfile>,
    /// The tool's own hints; they are listed, and never relax a rule.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub annotations: Option<Map<String, Value>>,
    /// Other members that the tool's source lists for clients, such as `icons` and `_meta`.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub shown: Map<String, Value>,
    /// Keys that this version does not know, stored unchanged.
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

    /// Returns the category as it is written.
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

/// The capabilities of a tool. Only `maxAssetBytes` is enforced, on arguments and results.
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
    /// Maximum number of tokens that it reads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schemars", schemars(with = "Option<f64>"))]
    pub max_input_tokens: Option<Number>,
    /// Maximum number of tokens that it writes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schemars", schemars(with = "Option<f64>"))]
    pub max_output_tokens: Option<Number>,
    /// Maximum size of the arguments, and of a result, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schemars", schemars(with = "Option<f64>"))]
    pub max_asset_bytes: Option<Number>,
    /// Further keys, stored unchanged.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

impl Capabilities {
    /// Returns `maxAssetBytes` in whole bytes.
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

/// The target of a tool. Several targets are a priority (local, MCP, endpoint), never a failover.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Execution {
    /// A runtime on this machine; `builtin`, `handlers`, `gateway` and `client:NAME` are reserved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub local_runtime_id: Option<String>,
    /// A configured MCP server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mcp_server_id: Option<String>,
    /// A configured HTTP endpoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoint_ref: Option<String>,
    /// The tool's name at the target, if it is not the tool id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// Further keys, stored unchanged.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

/// The adapter that serves a tool.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum AdapterId {
    /// A runtime on this machine.
    Local(String),
    /// An MCP server.
    Mcp(String),
    /// An HTTP endpoint.
    Endpoint(String),
}

impl AdapterId {
    /// Returns the client that runs the tool itself; `None` if the gateway runs it.
    #[must_use]
    pub fn client(&self) -> Option<&str> {
        match self {
            Self::Local(id) => id.strip_prefix(CLIENT_RUNTIMES),
            Self::Mcp(_) | Self::Endpoint(_) => None,
        }
    }
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
    /// Returns the adapter that serves the tool: local before MCP before endpoint.
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

/// Limits and trust that an operator sets.
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
    /// A label for reports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost_tier: Option<String>,
    /// Units that one call takes from a budget.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schemars", schemars(with = "Option<f64>"))]
    pub cost_units: Option<Number>,
    /// Maximum number of concurrent calls.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schemars", schemars(range(min = 1)))]
    pub max_concurrency: Option<u64>,
    /// Whether an operator must approve each call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approval: Option<ApprovalSetting>,
    /// The operator's statement that the tool changes nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read_only: Option<bool>,
    /// Further keys, stored unchanged.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

/// Whether an operator must approve each call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum ApprovalSetting {
    /// The contract requires no approval.
    Never,
    /// Each call needs one.
    Always,
}

/// The behaviour of a second call with the same key.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Idempotency {
    /// The mode; `on-key` if it is not specified.
    #[serde(default)]
    pub mode: IdempotencyMode,
    /// The argument that is the key of a `keyed` tool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_field: Option<String>,
    /// Whether a `keyed` key applies to all callers or to one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_scope: Option<KeyScope>,
    /// The response to a `keyed` call with other arguments.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_different_args: Option<OnDifferentArgs>,
    /// Whether the target honours an idempotency key that is sent with the call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accepts_idempotency_key: Option<bool>,
    /// The known effect if a signal ended the tool's process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_signal: Option<OnSignal>,
    /// Further keys, stored unchanged.
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
    /// A call with an explicit key that was used before returns the first outcome.
    #[default]
    OnKey,
    /// As `on-key`, also by call id; the call may be run again after a crash.
    SafeRetry,
    /// An argument is the key.
    Keyed,
}

impl IdempotencyMode {
    /// All modes, as they are written.
    pub const NAMES: [&str; 4] = ["none", "on-key", "safe-retry", "keyed"];

    /// Returns the mode as it is written.
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

/// The callers to which a key applies.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum KeyScope {
    /// All callers of the tool.
    #[default]
    Tool,
    /// One caller.
    Caller,
}

/// The response to a `keyed` call with other arguments.
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

/// The known effect if a signal ended the tool's process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum OnSignal {
    /// The effect is `unknown`, and a key is held in doubt.
    #[default]
    Unknown,
    /// The operator states that the tool has no effect then. The signal is the tool's error, and a
    /// natural key is free.
    Failed,
}
