//! The errors of the proxy beside those of single calls.

/// Why the first listing of a source is not pinned.
#[derive(Debug, thiserror::Error)]
pub enum PinError {
    /// There is no store for pins.
    #[error("there is no place for pins")]
    NoStore,
    /// The store did not take it.
    #[error("{0}")]
    Store(Box<dyn std::error::Error + Send + Sync>),
}
