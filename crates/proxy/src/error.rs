//! The errors of the proxy other than those of single calls.

/// Why the first listing of a source is not pinned.
#[derive(Debug, thiserror::Error)]
pub enum PinError {
    /// There is no store for pins.
    #[error("there is no place for pins")]
    NoStore,
    /// The store rejected the pin.
    #[error("{0}")]
    Store(Box<dyn std::error::Error + Send + Sync>),
}

/// Why a stored result lacks the part that an agent asks for; the sentences are for the agent.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum PieceError {
    #[error("give either `offset` and `length` or `line` and `lines`")]
    BytesAndLines,
    #[error("the result has {0} bytes; `offset` is beyond its end")]
    BytesEnd(usize),
    #[error("the result has {0} lines; `line` is beyond its end")]
    LinesEnd(usize),
    #[error("the result is not JSON, so that it has no pointers")]
    NoJson,
    #[error("a pointer begins with `/`, for example `/items/0/name`; an empty one is the whole")]
    NoPointer,
    #[error("the result has nothing at the pointer `{}`", .0.escape_debug())]
    NothingThere(String),
}
