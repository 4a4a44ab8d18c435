//! The errors of the proxy other than those of single calls.

use toolbooth_audit::LedgerError;
use toolbooth_contracts::receipt::ClaimState;
use toolbooth_policy::Denial;

/// Why the first listing of a source is not pinned.
#[derive(Debug, thiserror::Error)]
pub enum PinError {
    /// There is no store for pins.
    #[error("no store for pins is configured")]
    NoStore,
    /// The store rejected the pin.
    #[error("{0}")]
    Store(#[source] Box<dyn std::error::Error + Send + Sync>),
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
    #[error("a pointer has at most 128 steps and 4,096 bytes")]
    LongPointer,
    #[error("the result has nothing at the pointer `{}`", .0.escape_debug())]
    NothingThere(String),
}

/// Why a reference of a plan has no value; the sentences are for the agent.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ReferenceError {
    #[error("the result of step `{step}` has nothing at `{pointer}`")]
    NothingThere { step: String, pointer: String },
    #[error(
        "the result of step `{step}` was not kept, so its value is not known any more; whether this step ran before is in its receipt"
    )]
    NotKept { step: String },
    #[error("the results that it refers to are too large")]
    TooLarge,
}

/// Why a caller has no access to the records.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OperationsError {
    /// The caller is not an operator.
    #[error("{}", .0.reason)]
    Denied(Denial),
    /// The proxy was built without a reader of records.
    #[error("there are no records to read")]
    NoRecords,
    /// The store did not answer, or a record in it is damaged.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
}

/// Why a key names no caller.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KeyRefusal {
    /// No key has this digest.
    #[error("there is no such key")]
    Unknown,
    /// It has expired.
    #[error("the key `{name}` has expired")]
    Expired {
        /// Its name.
        name: String,
    },
    /// It was revoked.
    #[error("the key `{name}` was revoked")]
    Revoked {
        /// Its name.
        name: String,
    },
    /// The keys were not read for too long.
    #[error("the keys were not read for a while")]
    Unread,
}

/// Why an unknown outcome was not resolved.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ResolveError {
    /// The store does not respond.
    #[error(transparent)]
    Store(#[from] LedgerError),
    /// The receipt does not exist.
    #[error("there is no such receipt")]
    Missing,
    /// The outcome is known already, or the call is still running.
    #[error("the call is not in doubt, it is `{}`", .0.as_str())]
    NotInDoubt(ClaimState),
    /// The result is not one that a tool could return.
    #[error("{0}")]
    Result(String),
}

/// Why a plan cannot run; no step was run.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct InvalidPlan {
    /// The step, if the fault is in one.
    pub step: Option<String>,
    /// The reason as a sentence.
    pub message: String,
}

/// The key of a keyed tool is missing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "the argument `{field}` is this tool's idempotency key: it must be a text that is not blank, a \
     number or a boolean"
)]
pub(crate) struct NoKey {
    /// The argument that is the key.
    pub(crate) field: String,
}

/// The reason why a task has no output.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum TaskFailed {
    /// It panicked with this text.
    #[error("it panicked: {0}")]
    Panicked(String),
    /// The runtime ended before it.
    #[error("it was aborted")]
    Aborted,
}
