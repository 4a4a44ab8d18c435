//! The errors of the front doors.

/// An error that prevents or ends the service of a stdio client.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The requested tool set does not exist.
    #[error("there is no tool set `{}`", name.escape_debug())]
    NoToolSet {
        /// The name.
        name: String,
    },
    /// The client's input failed.
    #[error("standard input: {0}")]
    Input(#[source] std::io::Error),
}
