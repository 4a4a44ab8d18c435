//! The interface of policy engines: a pure verdict on one question.
//!
//! Path: 5. Doc: policy.md#rules

use serde_json::Value;
use toolbooth_contracts::contract::ToolContract;
use toolbooth_contracts::{CallContext, Caller};

use crate::error::EngineError;

/// The inputs of a rule for a tool call.
#[derive(Debug)]
pub struct Question<'q> {
    /// The caller.
    pub caller: &'q Caller,
    /// The tool.
    pub contract: &'q ToolContract,
    /// The final arguments.
    pub arguments: &'q Value,
    /// The context that the agent claims.
    pub claimed: &'q CallContext,
}

/// The inputs of a rule for a prompt, a resource or a template.
#[derive(Debug)]
pub struct ItemQuestion<'q> {
    /// The caller.
    pub caller: &'q Caller,
    /// The requested item.
    pub item: &'q crate::Item<'q>,
    /// The context that the agent claims.
    pub claimed: &'q CallContext,
}

/// The verdict of an engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// A rule permits the request; it may require an approval.
    Permit {
        /// The rule.
        rule: String,
        /// Whether the rule requires an approval.
        approval: bool,
    },
    /// A rule forbids the request, or no rule permits it.
    Deny {
        /// The rule.
        rule: String,
        /// The reason, in one sentence.
        reason: String,
    },
}

/// An engine that judges questions by rules. Pure: the same question has the same verdict.
pub trait PolicyEngine: Send + Sync {
    /// Returns the verdict on a tool call.
    ///
    /// # Errors
    /// Where the rules cannot be evaluated; the call is denied then.
    fn judge(&self, question: &Question<'_>) -> Result<Verdict, EngineError>;

    /// Returns the verdict on a prompt, a resource or a template. An engine without rules for these
    /// denies all of them.
    ///
    /// # Errors
    /// Where the rules cannot be evaluated; the request is denied then.
    fn judge_item(&self, _question: &ItemQuestion<'_>) -> Result<Verdict, EngineError> {
        Ok(Verdict::Deny {
            rule: "no-rule".to_owned(),
            reason: "the rules speak of tools only".to_owned(),
        })
    }

    /// Returns the digest of the rules.
    fn version(&self) -> &str;
}
