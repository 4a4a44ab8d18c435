//! Approvals: the decision of a person on one call.
//!
//! Doc: policy.md#approval

#[cfg(feature = "schemars")]
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::json::JsonText;
use crate::receipt::AuditPlace;

/// The state of an approval.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum ApprovalState {
    /// Not decided yet.
    Pending,
    /// It was granted; it can be spent once.
    Granted,
    /// It was rejected.
    Rejected,
    /// A call has spent it.
    Spent,
}

impl ApprovalState {
    /// All states.
    pub const ALL: [Self; 4] = [Self::Pending, Self::Granted, Self::Rejected, Self::Spent];

    /// Returns the state as it is written.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Granted => "granted",
            Self::Rejected => "rejected",
            Self::Spent => "spent",
        }
    }

    /// Returns the state that is written as `text`.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.as_str() == text)
    }
}

/// Who must approve a call. The order is that of strictness.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[cfg_attr(feature = "schemars", derive(JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Approvers {
    /// The caller itself, or an operator.
    #[serde(rename = "self")]
    Caller,
    /// One operator, who is not the caller.
    #[default]
    One,
    /// Two different operators, neither of whom is the caller.
    Two,
}

impl Approvers {
    /// Returns the approvers as they are written.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Caller => "self",
            Self::One => "one",
            Self::Two => "two",
        }
    }

    /// Returns the approvers that are written as `text`.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        [Self::Caller, Self::One, Self::Two].into_iter().find(|known| known.as_str() == text)
    }

    /// Returns the number of persons who must grant.
    #[must_use]
    pub fn count(self) -> usize {
        match self {
            Self::Caller | Self::One => 1,
            Self::Two => 2,
        }
    }
}

/// The decision of one person on an approval.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ApprovalDecision {
    /// The caller who decided.
    pub by: String,
    /// The time, RFC 3339 UTC.
    pub at: String,
    /// Whether the approval was granted; otherwise it was rejected.
    pub granted: bool,
    /// The reason. The caller can read it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// An approval, bound to one caller, tool, contract, set of arguments and rule.
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
    /// The rule that asks for it; absent in records of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule: Option<String>,
    /// Digest of the rule that asks for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule_digest: Option<String>,
    /// Who must approve; absent where it is one operator.
    #[serde(default, skip_serializing_if = "is_default")]
    pub approvers: Approvers,
    /// The state.
    pub state: ApprovalState,
    /// The time of the request, RFC 3339 UTC.
    pub requested_at: String,
    /// The time from which it counts for nothing, RFC 3339 UTC: a request that was not decided, a grant
    /// that was not spent, a rejection.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<String>,
    /// The call that requested it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub call_id: Option<String>,
    /// The redacted arguments, until it is decided.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arguments: Option<JsonText>,
    /// The decisions so far.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub decisions: Vec<ApprovalDecision>,
    /// The number of changes so far; the request has 1. 0 in records of earlier versions.
    #[serde(default, skip_serializing_if = "is_default")]
    pub revision: u64,
    /// The last audit event of this approval; absent in records of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub audit_seq: Option<AuditPlace>,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

impl Approval {
    /// Whether it counts for nothing at a time, RFC 3339 UTC with milliseconds.
    #[must_use]
    pub fn has_expired(&self, at: &str) -> bool {
        self.expires_at.as_deref().is_some_and(|end| end <= at)
    }
}
