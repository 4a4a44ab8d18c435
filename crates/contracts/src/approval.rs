//! Approvals: an operator's decision on one call.
//!
//! Doc: policy.md#approval

#[cfg(feature = "schemars")]
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::receipt::AuditPlace;

/// The state of an approval.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum ApprovalState {
    /// Not decided yet.
    Pending,
    /// An operator granted it; it can be spent once.
    Granted,
    /// An operator rejected it.
    Rejected,
    /// A call has spent it.
    Spent,
}

/// Who must approve a call. The order is that of strictness.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Approvers {
    /// The caller itself.
    #[serde(rename = "self")]
    Caller,
    /// One operator.
    One,
    /// Two different operators.
    Two,
}

impl Approvers {
    /// Returns the approvers that are written as `text`.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "self" => Some(Self::Caller),
            "one" => Some(Self::One),
            "two" => Some(Self::Two),
            _ => None,
        }
    }
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
    /// The caller that requested it.
    pub caller: String,
    /// Digest of the arguments to which it applies.
    pub args_digest: String,
    /// Digest of the contract to which it applies.
    pub contract_digest: String,
    /// The state.
    pub state: ApprovalState,
    /// The time of the request, RFC 3339 UTC.
    pub requested_at: String,
    /// The last audit event of this approval; absent in records of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub audit_seq: Option<AuditPlace>,
}
