//! The errors of ledgers and of their readers.
//!
//! Doc: records.md#the-ledger

use std::error::Error;
use std::fmt;
use std::sync::Arc;

use toolbooth_contracts::causes::with_causes;

/// A row of the store that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, thiserror::Error)]
#[error("table `{table}`, row {row} cannot be read: {reason}")]
pub struct DamagedRow {
    /// The table.
    pub table: String,
    /// The key of the row.
    pub row: String,
    /// The reason.
    pub reason: String,
}

/// An error of the storage layer: a database, a file, a connection.
#[derive(Debug, Clone)]
pub struct Cause(Arc<dyn Error + Send + Sync>);

impl Cause {
    /// Returns the error.
    #[must_use]
    pub fn error(&self) -> &(dyn Error + Send + Sync + 'static) {
        &*self.0
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Error for Cause {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.0.source()
    }
}

/// Two causes are equal if their messages are equal.
impl PartialEq for Cause {
    fn eq(&self, other: &Self) -> bool {
        self.to_string() == other.to_string()
    }
}

impl Eq for Cause {}

/// An error of a ledger.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LedgerError {
    /// Nothing was written, or the outcome is unknown. The call must not be dispatched.
    #[error("the store is not available: {reason}")]
    Unavailable {
        /// The reason.
        reason: String,
        /// The underlying error, if there is one.
        source: Option<Cause>,
    },
    /// A row of the store cannot be read, although the store answers.
    #[error("the store is damaged: {0}")]
    Damaged(DamagedRow),
    /// The ledger is closed and rejects further steps.
    #[error("the store is closed")]
    Closed,
    /// A defect of this build: nothing was written.
    #[error("a defect of this build: {0}")]
    Defect(String),
    /// The claim no longer belongs to this writer.
    #[error("the claim has been taken over")]
    Stale,
    /// The record does not exist.
    #[error("there is no record `{0}`")]
    NotFound(String),
}

impl LedgerError {
    /// Returns an unavailable error with this reason.
    pub fn unavailable(reason: impl Into<String>) -> Self {
        Self::Unavailable { reason: reason.into(), source: None }
    }

    /// Returns the defect of a claim whose receipt has the id of another one.
    #[must_use]
    pub fn used_receipt_id(id: &str) -> Self {
        Self::Defect(format!("the store has a receipt with the id `{}` already", id.escape_debug()))
    }

    /// Returns an unavailable error caused by `error`; the reason includes its causes.
    pub fn unavailable_by(error: impl Error + Send + Sync + 'static) -> Self {
        Self::Unavailable { reason: with_causes(&error), source: Some(Cause(Arc::new(error))) }
    }
}

/// An error of a signed note.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NoteError {
    /// The text does not have the form of a signed note.
    #[error("this is not a signed note: {0}")]
    Form(&'static str),
    /// The text is not a verifier key.
    #[error("this is not a verifier key such as `NAME+HASH+KEY`")]
    Key,
    /// No signature is by the key.
    #[error("no signature is by the key `{0}`")]
    OtherKey(String),
    /// A signature by the key does not match the text.
    #[error("the signature by `{0}` does not fit the text")]
    Signature(String),
}

/// An error of creating or checking a proof.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProofError {
    /// The store returned an error.
    #[error(transparent)]
    Store(#[from] LedgerError),
    /// A checkpoint is invalid.
    #[error(transparent)]
    Note(#[from] NoteError),
    /// There is nothing to prove.
    #[error("{0}")]
    Missing(String),
    /// The hashes do not lead to the signed root.
    #[error("the proof does not fit: {0}")]
    Wrong(&'static str),
}
