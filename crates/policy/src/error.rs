//! The errors of the policy.

use toolbooth_contracts::id::InvalidName;

/// Why a setting of the policy cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SettingError {
    /// A variable of the environment is no switch.
    #[error("the variable {name}: expected 1, true or on, or 0, false or off")]
    Switch {
        /// The variable.
        name: &'static str,
    },
    /// A text is no grant: neither `*` nor `verb:resource`.
    #[error("`{}` is no grant, expected for example `read:*`", text.escape_debug())]
    Grant {
        /// The text.
        text: String,
    },
    /// An item of the whitelist is no pattern of tool ids.
    #[error(transparent)]
    Pattern(#[from] InvalidName),
}

/// Why an engine gave no verdict. The call is denied.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct EngineError(pub String);
