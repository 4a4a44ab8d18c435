//! The call that is authorized, and the permit for it.
//!
//! Path: 5. Doc: policy.md#steps

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;
use toolbooth_contracts::charge::Charge;
use toolbooth_contracts::contract::ToolContract;
use toolbooth_contracts::event::DecisionSummary;
use toolbooth_contracts::history::{CountedIn, WindowName};
use toolbooth_contracts::{CallContext, Caller};

use crate::engine::{ApprovalNeed, DependentVerdict};

/// The call that is authorized, with its final arguments.
#[derive(Debug, Clone, Copy)]
pub struct AskedCall<'c> {
    /// The caller.
    pub caller: &'c Caller,
    /// The tool.
    pub contract: &'c ToolContract,
    /// The final arguments.
    pub arguments: &'c Value,
    /// The context that the agent claims.
    pub claimed: &'c CallContext,
    /// The time, RFC 3339 UTC with milliseconds.
    pub at: &'c str,
}

/// A permit for a call, which may run once its charges are recorded and its approval is spent. Only
/// [`crate::Authorizer::authorize`] creates one.
///
/// ```compile_fail
/// let charges = Vec::new();
/// let (approval, rule, shadow) = (None, String::new(), None);
/// let (counted, uncountable, depends) = (Vec::new(), None, None);
/// let forged =
///     toolbooth_policy::Permit { charges, approval, rule, shadow, counted, uncountable, depends };
/// ```
#[derive(Debug)]
#[must_use]
pub struct Permit {
    pub(crate) charges: Vec<Charge>,
    pub(crate) approval: Option<ApprovalNeed>,
    pub(crate) rule: String,
    pub(crate) shadow: Option<DecisionSummary>,
    pub(crate) counted: Vec<CountedIn>,
    /// Why windows cannot count the call, if that is not enforced.
    pub(crate) uncountable: Option<DecisionSummary>,
    /// The verdict on which the permit depends.
    pub(crate) depends: Option<Arc<dyn DependentVerdict>>,
}

impl Permit {
    /// Returns the windows over earlier calls that count the call.
    #[must_use]
    pub fn counted(&self) -> &[CountedIn] {
        &self.counted
    }

    /// Returns the windows on which the permit depends, by their names in rules. The call must not run
    /// before [`crate::Authorizer::complete`] has permitted it with them, in the transaction of its claim.
    #[must_use]
    pub fn windows(&self) -> Option<&BTreeMap<String, WindowName>> {
        self.depends.as_ref().map(|verdict| verdict.windows())
    }

    /// Returns the decision of rules that are not enforced, if they would not have permitted the call
    /// unchanged. The code that asks the policy records the decision.
    #[must_use]
    pub fn shadow(&self) -> Option<&DecisionSummary> {
        self.shadow.as_ref()
    }

    /// Returns the limits that the call is charged to.
    #[must_use]
    pub fn charges(&self) -> &[Charge] {
        &self.charges
    }

    /// Returns the approval that the call needs.
    #[must_use]
    pub fn approval(&self) -> Option<&ApprovalNeed> {
        self.approval.as_ref()
    }

    /// Returns the rule that permits the call.
    #[must_use]
    pub fn rule(&self) -> &str {
        &self.rule
    }

    /// Returns the permit as records store it.
    #[must_use]
    pub fn summary(&self) -> DecisionSummary {
        DecisionSummary { rule: self.rule.clone(), reason: "permitted".to_owned() }
    }
}
