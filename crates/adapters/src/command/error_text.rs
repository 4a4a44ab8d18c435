//! What an agent sees of a command's failure.
//!
//! Doc: execution.md#command-runtimes

/// What an agent sees of a command that fails.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ErrorText {
    /// Exit code or signal, and standard output.
    #[default]
    Safe,
    /// Standard error too.
    Full,
}
