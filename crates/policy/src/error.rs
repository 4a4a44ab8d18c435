//! The errors of the policy.

use toolbooth_contracts::error::InvalidName;

/// An invalid setting of the policy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SettingError {
    /// An environment variable is not a valid switch.
    #[error("the variable {name}: expected 1, true or on, or 0, false or off")]
    Switch {
        /// The variable.
        name: &'static str,
    },
    /// A text is not a grant: neither `*` nor `verb:resource`.
    #[error("`{}` is no grant, expected for example `read:*`", text.escape_debug())]
    Grant {
        /// The text.
        text: String,
    },
    /// An item of the whitelist is not a pattern of tool ids.
    #[error(transparent)]
    Pattern(#[from] InvalidName),
}

/// The reason why an engine returned no verdict. The call is denied.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct EngineError(pub String);
