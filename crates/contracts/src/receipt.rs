//! Receipts: the proof that a tool was run once, with the outcome.
//!
//! Doc: records.md#receipts

#[cfg(feature = "schemars")]
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::code::{Effect, ErrorCode, Status};
use crate::contract::IdempotencyMode;
use crate::execution_log::EgressReached;
use crate::history::HistoryEntry;
use crate::json::JsonText;
use crate::payload::ContentBlock;

/// The state of a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum ClaimState {
    /// Waits for a worker.
    Queued,
    /// Durable, dispatched or about to be.
    InFlight,
    /// Waits for input.
    AwaitingInput,
    /// Settled with a result.
    Succeeded,
    /// Settled with an error.
    Failed,
    /// The outcome is unknown: the tool may have taken effect.
    InDoubt,
}

impl ClaimState {
    /// Returns the state as it is written.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::InFlight => "in_flight",
            Self::AwaitingInput => "awaiting_input",
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
            Self::InDoubt => "in_doubt",
        }
    }

    /// Returns the state that is written as `text`.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        [
            Self::Queued,
            Self::InFlight,
            Self::AwaitingInput,
            Self::Succeeded,
            Self::Failed,
            Self::InDoubt,
        ]
        .into_iter()
        .find(|state| state.as_str() == text)
    }
}

/// The key by which a call was claimed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ReceiptKey {
    /// The tool's mode.
    pub mode: IdempotencyMode,
    /// HMAC of scope and key, in hex; absent where the call had no key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_digest: Option<String>,
    /// Digests of the call's further keys, of its keys by earlier digest keys of the store, and of later
    /// calls that took the claim over.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub more_key_digests: Vec<String>,
    /// The id of the store's digest key that made it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_id: Option<String>,
}

impl ReceiptKey {
    /// Returns all digests that identify the claim.
    pub fn all(&self) -> impl Iterator<Item = &String> {
        self.key_digest.iter().chain(&self.more_key_digests)
    }
}

/// A place in the audit log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(JsonSchema))]
pub struct AuditPlace {
    /// The writer.
    pub writer: String,
    /// The place in its log.
    pub seq: u64,
}

/// The record of one claim.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Receipt {
    /// UUIDv7.
    pub receipt_id: String,
    /// The call that made the claim.
    pub call_id: String,
    /// The tool.
    pub tool_id: String,
    /// SHA-256 of the canonical contract, in hex.
    pub contract_digest: String,
    /// The caller.
    pub caller: String,
    /// The key.
    pub idempotency: ReceiptKey,
    /// HMAC of the canonical arguments, in hex.
    pub args_digest: String,
    /// The state of the claim.
    pub state: ClaimState,
    /// How the call ended; absent while it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<Status>,
    /// The known effect.
    pub effect: Effect,
    /// The error code, if it did not succeed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error_code: Option<ErrorCode>,
    /// The values of the contract's `receiptFields`; null for a value that was not found.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub fields: Map<String, Value>,
    /// HMAC of the result, in hex.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result_digest: Option<String>,
    /// The result itself, for replay.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<StoredResult>,
    /// The number of this dispatch of the claim, from 1.
    pub attempt: u32,
    /// When it was claimed, RFC 3339 UTC.
    pub started_at: String,
    /// When it was settled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub settled_at: Option<String>,
    /// Milliseconds of the whole call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration_ms: Option<f64>,
    /// The writer that holds or held the claim.
    pub writer: String,
    /// Digest of the policy in force.
    pub policy_version: String,
    /// Digest of the sandbox profile that was applied.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox_digest: Option<String>,
    /// Primitives that the profile requests and this machine lacks, such as `landlock`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sandbox_missing: Vec<String>,
    /// Hosts that the tool reached through the gateway, if the tool has its own network.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub egress: Vec<EgressReached>,
    /// The approval that was spent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approval_id: Option<String>,
    /// What it counts in the windows of the policy. Empty where the call had no effect.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub history: Vec<HistoryEntry>,
    /// The last audit event of this receipt: the dispatch while it runs, the terminal event afterwards.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub audit_seq: Option<AuditPlace>,
    /// The number of audit events of this receipt so far; absent in records of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub audit_count: Option<u32>,
    /// The time at which the rest was pruned. The receipt is then a tombstone that prevents a further
    /// run with its key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pruned_at: Option<String>,
}

/// The result that a replay returns.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct StoredResult {
    /// The content blocks.
    pub content: Vec<ContentBlock>,
    /// The structured content.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub structured_content: Option<JsonText>,
    /// Metadata of the tool's own result.
    #[serde(rename = "meta", default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schemars", schemars(with = "Option<Map<String, Value>>"))]
    pub meta: Option<JsonText>,
    /// The error, if the outcome was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<crate::result::CallError>,
    /// Warnings of the first outcome.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}
