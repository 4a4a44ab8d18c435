//! The errors of the front doors.

use crate::http::BODY_BYTES_MAX;

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

/// An error of reading a body.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BodyError {
    /// Longer than [`BODY_BYTES_MAX`].
    #[error("a request's body has at most {BODY_BYTES_MAX} bytes")]
    TooLarge,
    /// Larger than the rest of the shared budget.
    #[error("too many bytes of requests are held at the moment; try again later")]
    OverBudget,
    /// Not complete in time.
    #[error("the request's body was not complete in time")]
    Timeout,
    /// Not framed as HTTP/1.1, or not complete.
    #[error("the request's body is not framed as HTTP/1.1 has it, or is not complete")]
    Malformed(#[source] hyper::Error),
}

/// The reason why a request was not authenticated.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct NotAuthenticated(pub String);

/// The reason why no session was made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NoSession {
    #[error("this caller has as many sessions in use as it may have; end one with DELETE")]
    TooMany,
    #[error("the gateway has as many sessions as it may have; try again later")]
    Full,
}
