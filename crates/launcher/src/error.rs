//! Defines the errors of the client half.
//!
//! Doc: execution.md#the-launcher

use std::io;

/// Why a program was not started. Nothing was run.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The program's pipes or its order could not be created.
    #[error("it cannot be started: {0}")]
    Io(#[from] io::Error),
    /// No launcher received the whole order.
    #[error("{0}")]
    Launcher(io::Error),
}
