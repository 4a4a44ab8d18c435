//! The errors of opening a PostgreSQL store.
//!
//! Doc: records.md#stores

use tokio_postgres::error::SqlState;
use toolbooth_audit::LedgerError;

/// An error of opening a store.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The URL is invalid.
    #[error("the URL of the database cannot be read")]
    Url(#[source] tokio_postgres::Error),
    /// TLS cannot be set up.
    #[error("TLS cannot be set up: {0}")]
    Tls(String),
    /// The database cannot be reached, or a statement failed.
    #[error("the database does not answer")]
    Database(#[source] tokio_postgres::Error),
    /// The user of the URL lacks a right that a gateway needs.
    #[error("the user of the database lacks a right")]
    Denied(#[source] tokio_postgres::Error),
    /// The id of the writer has other characters than an id may have.
    #[error("`{}` is not an id of a writer: 1 to 128 letters, digits, `.`, `_` and `-`, not beginning with `.`", .writer.escape_debug())]
    WriterId {
        /// The id.
        writer: String,
    },
    /// The store has a log of this writer, or a process that runs has the id.
    #[error(
        "the store has a log of the writer `{writer}` already: each start needs an id that was never used"
    )]
    WriterUsed {
        /// The id.
        writer: String,
    },
    /// The database was written by a newer build.
    #[error(
        "the database has version {found}, this build knows versions up to {known}; use a newer build"
    )]
    Newer {
        /// The database's version.
        found: i32,
        /// The newest version that this build knows.
        known: i32,
    },
    /// The database was written by an older build and has not been brought up to date.
    #[error(
        "the database has version {found}, this build reads version {known}; a gateway of this build brings it up to date when it starts"
    )]
    Older {
        /// The database's version.
        found: i32,
        /// The version that this build reads.
        known: i32,
    },
    /// The database has no Toolbooth tables yet.
    #[error("nothing was recorded there yet")]
    Empty,
    /// The store has a digest key that was not given.
    #[error(
        "the digest key has the id {given}; the store also has one with the id {stored}, which is not known here: all replicas need the same keys, and receipts depend on them"
    )]
    Key {
        /// The id of the key that was given.
        given: String,
        /// The id of a key of the store that was not given.
        stored: String,
    },
    /// The database is older than a checkpoint that is stored outside it.
    #[error(
        "the database is older than its last checkpoint: the log of {writer} had {size} events, it has {found}"
    )]
    RolledBack {
        /// The writer of the checkpoint.
        writer: String,
        /// The number of events that it covers.
        size: u64,
        /// The number of events in the database.
        found: u64,
    },
    /// The writer's thread or its runtime could not be started.
    #[error("no thread could be started for the store: {0}")]
    Thread(String),
    /// The first event could not be written.
    #[error("the store takes no records")]
    Ledger(#[source] LedgerError),
}

impl From<tokio_postgres::Error> for OpenError {
    fn from(error: tokio_postgres::Error) -> Self {
        match error.code() == Some(&SqlState::INSUFFICIENT_PRIVILEGE) {
            true => Self::Denied(error),
            false => Self::Database(error),
        }
    }
}
