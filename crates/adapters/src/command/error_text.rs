//! Defines how much of a command's failure an agent sees.
//!
//! Doc: execution.md#command-runtimes

/// The output of a failed command that an agent sees.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ErrorText {
    /// Exit code or signal, and standard output.
    #[default]
    Safe,
    /// Standard error in addition.
    Full,
}
