//! The access of a caller to a tool.
//!
//! Path: 3. Doc: policy.md#steps

use std::sync::Arc;

use toolbooth_contracts::id::ToolId;
use toolbooth_contracts::{Caller, ErrorCode};

use crate::denial::{Denial, DenialRule};
use crate::permit::AskedCall;

/// The access of a caller to a tool that it may see and that is active. The permissions are judged
/// later, with the final arguments. Only [`Authorizer::access`] creates one.
#[derive(Debug)]
#[must_use]
pub struct Access {
    pub(super) missing: Vec<String>,
    pub(super) caller: Caller,
    pub(super) tool_id: ToolId,
    /// The document of the policy that granted it.
    pub(super) document: Arc<str>,
}

impl Access {
    /// Whether the caller has every permission that the tool needs. [`Authorizer::authorize`] reports
    /// the missing ones.
    #[must_use]
    pub fn has_permissions(&self) -> bool {
        self.missing.is_empty()
    }

    /// Returns the denial for missing permissions, if there are any.
    pub(crate) fn lacking(&self) -> Option<Denial> {
        let reason = || format!("missing permissions: {}", self.missing.join(", "));
        let denial = || Denial::new(ErrorCode::PolicyDenied, DenialRule::Permissions, reason());
        (!self.missing.is_empty()).then(|| Denial { missing: self.missing.clone(), ..denial() })
    }

    /// Whether it was granted for this call, by the policy with this document.
    pub(super) fn is_of(&self, call: &AskedCall<'_>, document: &Arc<str>) -> bool {
        self.caller == *call.caller
            && self.tool_id == call.contract.tool_id
            && Arc::ptr_eq(&self.document, document)
    }
}
