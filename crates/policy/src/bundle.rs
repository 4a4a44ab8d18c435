//! The policy as one document: all that affects decisions. Its digest is the version of the policy.
//!
//! Doc: policy.md#versions

use serde_json::{Value, json};

use crate::authorizer::Authorizer;

impl Authorizer {
    /// Returns the policy as a document. Pauses are not in it, since each has an event of its own.
    #[must_use]
    pub fn bundle(&self) -> Value {
        json!({
            "flags": self.flags,
            "mode": if self.is_shadow { "shadow" } else { "enforce" },
            "whitelist": self.whitelist,
            "callers": self.callers.document(),
            "approvalByTrust": self.approval_by_trust,
            "trust": self.trust_levels,
            "budget": self.budget,
            "rules": self.engine.as_ref().map(|engine| engine.bundle()),
        })
    }
}
