//! Why a call is denied, and by which rule.
//!
//! Path: 5. Doc: policy.md

use toolbooth_contracts::ErrorCode;
use toolbooth_contracts::event::DecisionNote;

/// The rule that denies.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum DenialRule {
    /// Step 1: tool calls are switched off.
    ToolsDisabled,
    /// Step 2: the caller's tool set does not have it.
    ToolSet,
    /// Step 3: it is not on the whitelist.
    Whitelist,
    /// Step 4: it is in quarantine.
    Quarantine,
    /// Step 4: an operator paused it.
    Pause,
    /// Step 5: the caller lacks permissions.
    Permissions,
    /// Step 6: a rule of the engine, by its name.
    Engine(String),
    /// Step 6: the engine failed.
    EngineError,
    /// The caller is no operator.
    Operator,
}

impl DenialRule {
    /// The rule as records and answers name it.
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

/// Why a call is denied: the rule that decided, and what it saw.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Denial {
    /// The code of the call.
    pub code: ErrorCode,
    /// The rule.
    pub rule: DenialRule,
    /// A sentence that caller and operator may see.
    pub reason: String,
    /// What the rule misses, such as permissions.
    pub missing: Vec<String>,
}

impl Denial {
    pub(crate) fn new(code: ErrorCode, rule: DenialRule, reason: impl Into<String>) -> Self {
        Self { code, rule, reason: reason.into(), missing: Vec::new() }
    }

    /// The denial as records keep it.
    #[must_use]
    pub fn note(&self) -> DecisionNote {
        DecisionNote { rule: self.rule.as_str().to_owned(), reason: self.reason.clone() }
    }
}
