//! The inputs of a decision, with which other rules can judge the same call.
//!
//! Doc: policy.md#rehearsing

use std::collections::BTreeMap;

#[cfg(feature = "schemars")]
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::approval::Approvers;
use crate::caller::{Caller, CallerKind, Identity};
use crate::history::{History, WindowName};
use crate::port::ItemKind;

/// A decision of the policy, with the inputs that the log of the call does not have otherwise. Those after
/// `documents` are absent where they did not count, and in logs of earlier versions.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct DecisionInputs {
    /// The rule that decided.
    pub rule: String,
    /// The reason, for operators.
    pub reason: String,
    /// The digest of the policy in force.
    pub policy_version: String,
    /// Whether the policy denied the call.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub denied: bool,
    /// Whether the store keeps the contract, the policy and a large caller under their digests. Logs of earlier
    /// versions do not have it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub documents: bool,
    /// Whether the call was denied before its arguments were checked, or the request by a pause or a quarantine.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub unchecked: bool,
    /// The prompt, the resource or the template that was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub item: Option<RequestedItem>,
    /// SHA-256 of the canonical contract, in hex; absent for prompts and resources.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub contract_digest: Option<String>,
    /// What was known of the caller.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub caller: Option<CallerInputs>,
    /// SHA-256 of what was known of the caller, in hex, in the place of `caller` where that is large: the store
    /// keeps it under this digest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub caller_digest: Option<String>,
    /// The session that the agent claims.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_id: Option<String>,
    /// When the rules judged, RFC 3339 UTC; absent where there were none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub judged_at: Option<String>,
    /// The rule that asked for an approval.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub approval: Option<String>,
    /// Who had to approve, by that rule; absent in logs of earlier versions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub approvers: Option<Approvers>,
    /// The windows that the rules read.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub windows: BTreeMap<String, WindowName>,
    /// What the rules have seen of the windows, with this call; absent if they were not read.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub history: History,
}

/// A prompt, a resource or a template that was asked for. Its id is in the place of the tool's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct RequestedItem {
    /// What it is.
    pub kind: ItemKind,
    /// The name of its server, as in ids.
    pub server: String,
    /// Whether the log has only a part of its id, because the rest was redacted or cut.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub partial: bool,
}

/// What the policy knew of a caller in addition to its name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct CallerInputs {
    /// How it was authenticated.
    pub kind: CallerKind,
    /// Its groups.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<String>,
    /// The scopes of its token.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub scopes: Vec<String>,
    /// Its permissions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub grants: Vec<String>,
}

impl CallerInputs {
    /// Returns what is known of a caller with these permissions.
    #[must_use]
    pub fn of(caller: &Caller, grants: Vec<String>) -> Self {
        let Identity { kind, groups, scopes, .. } = caller.identity().clone();
        Self { kind, groups, scopes, grants }
    }

    /// Whether it is so large that logs name it by its digest.
    #[must_use]
    pub fn is_large(&self) -> bool {
        /// Bytes of all names together.
        const BYTES_MAX: usize = 256;
        let names = self.groups.iter().chain(&self.scopes).chain(&self.grants);
        names.map(|name| name.len() + 3).sum::<usize>() > BYTES_MAX
    }

    /// Returns the identity of the caller with this name.
    #[must_use]
    pub fn identity(&self, name: &str) -> Identity {
        let Self { kind, groups, scopes, .. } = self.clone();
        Identity { name: name.to_owned(), kind, groups, scopes, key_digest: None }
    }
}
