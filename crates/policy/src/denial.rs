//! Denials of calls: the rule and the reason.
//!
//! Path: 5. Doc: policy.md

use toolbooth_contracts::ErrorCode;
use toolbooth_contracts::event::DecisionSummary;

use crate::error::EngineError;

/// The rule that denies.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum DenialRule {
    /// Step 1: tool calls are switched off.
    ToolsDisabled,
    /// Step 2: the caller's tool set does not contain the tool.
    ToolSet,
    /// Step 3: the tool is not on the whitelist.
    Whitelist,
    /// Step 4: the tool is in quarantine.
    Quarantine,
    /// Step 4: an operator paused the tool.
    Pause,
    /// Step 5: the caller lacks permissions.
    Permissions,
    /// Step 6: a rule of the engine, with its name.
    Engine(String),
    /// Step 6: the engine failed.
    EngineError,
    /// The caller is not an operator.
    Operator,
}

impl DenialRule {
    /// Returns the name of the rule in records and responses.
    #[must_use]
    pub fn as_str(&self) -> &str {
        match self {
            Self::ToolsDisabled => "flags.mcp_tools",
            Self::ToolSet => "tool-set",
            Self::Whitelist => "whitelist",
            Self::Quarantine => "quarantine",
            Self::Pause => "pause",
            Self::Permissions => "permissions",
            Self::Engine(name) => name,
            Self::EngineError => "engine-error",
            Self::Operator => "operator",
        }
    }
}

/// A denial of a call: the rule that decided, with its reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Denial {
    /// The code of the call.
    pub code: ErrorCode,
    /// The rule.
    pub rule: DenialRule,
    /// The reason, in one sentence that caller and operator may see.
    pub reason: String,
    /// The cause, which only an operator may see.
    pub cause: Option<String>,
    /// Missing requirements of the rule, such as permissions.
    pub missing: Vec<String>,
}

impl Denial {
    pub(crate) fn new(code: ErrorCode, rule: DenialRule, reason: impl Into<String>) -> Self {
        Self { code, rule, reason: reason.into(), cause: None, missing: Vec::new() }
    }

    /// Returns the denial of a call or an item on which an engine returned no verdict.
    pub(crate) fn of_engine(error: EngineError) -> Self {
        let reason = "the policy could not be evaluated";
        let denial = Self::new(ErrorCode::PolicyDenied, DenialRule::EngineError, reason);
        Self { cause: Some(error.0), ..denial }
    }

    /// Returns the denial as records store it, which only operators read.
    #[must_use]
    pub fn summary(&self) -> DecisionSummary {
        let reason = match &self.cause {
            Some(cause) => format!("{}: {cause}", self.reason),
            None => self.reason.clone(),
        };
        DecisionSummary { rule: self.rule.as_str().to_owned(), reason }
    }
}
