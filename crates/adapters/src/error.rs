//! Why a program was not started.
//!
//! Path: 7. Doc: execution.md#processes

/// Why a command was not run: nothing has happened.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The sandbox that is required is not available.
    #[error(transparent)]
    Unavailable(#[from] Unavailable),
    /// The command cannot be started.
    #[error("it cannot be started: {0}")]
    Io(#[from] std::io::Error),
    /// No launcher received the whole order.
    #[error("{0}")]
    Launcher(std::io::Error),
}

impl From<toolbooth_launcher::StartError> for StartError {
    fn from(error: toolbooth_launcher::StartError) -> Self {
        match error {
            toolbooth_launcher::StartError::Io(error) => Self::Io(error),
            toolbooth_launcher::StartError::Launcher(error) => Self::Launcher(error),
        }
    }
}

/// A primitive that a required profile needs is missing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the sandbox is required, and {what}")]
pub struct Unavailable {
    /// What is missing, why, and what helps.
    pub what: String,
}
