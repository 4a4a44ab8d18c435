//! The errors of the front doors.

/// Why a client over stdio is not served, or no longer.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The tool set that its door should show does not exist.
    #[error("there is no tool set `{}`", name.escape_debug())]
    NoToolSet {
        /// The name.
        name: String,
    },
    /// Its input failed.
    #[error("standard input: {0}")]
    Input(#[source] std::io::Error),
}
