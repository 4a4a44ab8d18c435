//! The seam for policy engines: a pure verdict over one question.
//!
//! Path: 5. Doc: policy.md#rules

use serde_json::Value;
use toolbooth_contracts::contract::ToolContract;
use toolbooth_contracts::{CallContext, Caller};

use crate::error::EngineError;

/// Everything that a rule may look at.
#[derive(Debug)]
pub struct Question<'q> {
    /// Who calls.
    pub caller: &'q Caller,
    /// The tool.
    pub contract: &'q ToolContract,
    /// The final arguments.
    pub arguments: &'q Value,
    /// What the agent claims.
    pub claimed: &'q CallContext,
}

/// Everything that a rule may look at where something else than a tool is asked for.
#[derive(Debug)]
pub struct ItemQuestion<'q> {
    /// Who asks.
    pub caller: &'q Caller,
    /// What is asked for.
    pub item: &'q crate::Item<'q>,
    /// What the agent claims.
    pub claimed: &'q CallContext,
}

/// What an engine says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// A rule permits; it may ask for an approval.
    Permit {
        /// The rule.
        rule: String,
        /// Whether the rule asks for an approval.
        approval: bool,
    },
    /// A rule forbids, or none permits.
    Deny {
        /// The rule.
        rule: String,
        /// A sentence.
        reason: String,
    },
}

/// Judges questions by rules. Pure: the same question gives the same verdict.
pub trait PolicyEngine: Send + Sync {
    /// The verdict.
    ///
    /// # Errors
    /// Where the rules cannot be evaluated; the call is denied then.
    fn judge(&self, question: &Question<'_>) -> Result<Verdict, EngineError>;

    /// The verdict on a prompt, a resource or a template. Rules that do not speak of these permit
    /// none of them.
    ///
    /// # Errors
    /// Where the rules cannot be evaluated; the request is denied then.
    fn judge_item(&self, _question: &ItemQuestion<'_>) -> Result<Verdict, EngineError> {
        Ok(Verdict::Deny {
            rule: "no-rule".to_owned(),
            reason: "the rules speak of tools only".to_owned(),
        })
    }

    /// Digest of the rules.
    fn version(&self) -> &str;
}
