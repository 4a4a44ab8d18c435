//! The errors of ports, names and questions. The findings of the guard are in `finding`.

use serde_json::Value;

/// The reason why a question has no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AskError {
    /// The caller cannot be asked.
    #[error("the caller cannot be asked")]
    NotPossible,
    /// The caller disconnected.
    #[error("the caller disconnected")]
    Gone,
}

/// The reason why a text is not a valid name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidName(pub(crate) String);

/// The reason why an executor does not satisfy the sandbox profile of a contract; for operators.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SandboxMismatch {
    /// The executor has no sandbox.
    #[error("this executor has no sandbox")]
    NoSandbox,
    /// The program that it runs is on another machine.
    #[error("its server is not on this machine")]
    Elsewhere,
    /// The program that it runs does not exist.
    #[error("{0}")]
    Missing(String),
    /// The program that it runs has more rights than the contract grants.
    #[error("its {what} has more than the contract grants: {}", more.join("; "))]
    Wider {
        /// The kind of program: a server, a handler.
        what: &'static str,
        /// The additional rights.
        more: Vec<String>,
    },
}

/// The reason why a source could not list its tools.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SourceError(pub String);

/// The reason why an upstream server did not serve a request.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum UpstreamError {
    /// The server cannot be reached.
    #[error("the server cannot be reached: {0}")]
    Unreachable(String),
    /// A setting is missing, such as the caller's own credentials; the sentence is for the caller.
    #[error("{0}")]
    NotConfigured(String),
    /// The server refused, with its own code.
    #[error("the server refused with code {code}: {message}")]
    Refused {
        /// The protocol's error code.
        code: i64,
        /// The server's message.
        message: String,
        /// The data of the error, in addition to its message.
        data: Option<Value>,
    },
    /// The server did not answer in time.
    #[error("the server did not answer in time")]
    Timeout,
    /// The caller cancelled the request.
    #[error("the request was cancelled")]
    Cancelled,
    /// The server responded, but the response does not conform to the protocol.
    #[error("the server's answer cannot be read: {0}")]
    Unreadable(String),
}

/// A text that is not the target of a pause.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{}` is not `all`, `tool:ID`, `server:NAME` or `caller:NAME`", .0.escape_debug())]
pub struct InvalidTarget(pub String);
