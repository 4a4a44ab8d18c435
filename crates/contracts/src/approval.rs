//! Approvals: a person's word on one call.
//!
//! Doc: policy.md#approval

#[cfg(feature = "schemars")]
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::receipt::AuditPlace;

/// Where an approval stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum ApprovalState {
    /// Nobody has decided.
    Pending,
    /// A person agreed; it can be spent once.
    Granted,
    /// A person did not agree.
    Rejected,
    /// A call has spent it.
    Spent,
}

/// An approval, bound to one caller, tool and set of arguments.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Approval {
    /// UUIDv7.
    pub approval_id: String,
    /// The tool.
    pub tool_id: String,
    /// Who asked.
    pub caller: String,
    /// Digest of the arguments it is about.
    pub args_digest: String,
    /// Digest of the contract it is about.
    pub contract_digest: String,
    /// Where it stands.
    pub state: ApprovalState,
    /// When it was asked, RFC 3339 UTC.
    pub requested_at: String,
    /// The last audit event that accounts for it; absent in records of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub audit_seq: Option<AuditPlace>,
}
