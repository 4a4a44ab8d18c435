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
    /// A text is not a pattern of callers.
    #[error(
        "`{}` matches no caller, expected `local`, `operator`, `key:NAME`, `key:*`, \
         `jwt:ISSUER#SUBJECT`, `jwt:ISSUER#*` or `group:NAME`",
        text.escape_debug()
    )]
    Caller {
        /// The text.
        text: String,
    },
    /// A set of callers has no patterns, and its name is not that of a caller.
    #[error("`{}` matches no caller: it has no `match`", set.escape_debug())]
    NoCaller {
        /// The set.
        set: String,
    },
    /// Two sets match the same caller.
    #[error(
        "`{}` of `{}` and `{}` of `{}` match the same callers",
        pattern.escape_debug(), set.escape_debug(), other.escape_debug(), other_set.escape_debug()
    )]
    Overlap {
        /// A pattern.
        pattern: String,
        /// Its set.
        set: String,
        /// The other pattern.
        other: String,
        /// The other set.
        other_set: String,
    },
    /// A window over earlier calls is not valid.
    #[error("the window `{}` is not valid: {reason}", window.escape_debug())]
    Window {
        /// The name of the window.
        window: String,
        /// The reason.
        reason: String,
    },
    /// An item of the whitelist is not a pattern of tool ids.
    #[error(transparent)]
    Pattern(#[from] InvalidName),
}

/// The reason why an engine returned no verdict. The call is denied.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct EngineError(pub String);

/// Why the rules of a recorded policy cannot be read.
#[cfg(feature = "cedar")]
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecordedRulesError {
    /// They have another form.
    #[error("its rules are of another form")]
    Form(#[source] serde_json::Error),
    /// They are in another language.
    #[error("its rules are in the language `{}`", .0.escape_debug())]
    Language(String),
    /// A window is not valid.
    #[error(transparent)]
    Window(SettingError),
    /// Rules are not valid; at least one finding.
    #[error("{}", .0.iter().map(|found| format!("{}: {}", found.location, found.message)).collect::<Vec<_>>().join("; "))]
    Rules(Vec<crate::RuleFinding>),
}

/// The rules read a window that was not recorded with a call, or was another one then; its name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the window `{0}` was not recorded with it, or was declared otherwise")]
pub struct UnrecordedWindow(pub String);
