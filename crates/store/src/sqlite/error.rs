//! The errors of opening, migrating, copying and restoring a SQLite store.
//!
//! Doc: records.md#stores

use toolbooth_audit::LedgerError;

/// An error of opening a store.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The folder or a file in it cannot be used.
    #[error("`{path}` cannot be used")]
    Folder {
        /// The path.
        path: String,
        /// The cause.
        source: std::io::Error,
    },
    /// The database cannot be opened or migrated.
    #[error("the database `{path}` cannot be opened")]
    Database {
        /// The path.
        path: String,
        /// The cause.
        source: rusqlite::Error,
    },
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
        found: i64,
        /// The newest version that this build knows.
        known: i64,
    },
    /// The database was written by an older build and has not been brought up to date.
    #[error(
        "the database has version {found}, this build reads version {known}; a gateway of this build brings it up to date when it starts"
    )]
    Older {
        /// The database's version.
        found: i64,
        /// The version that this build reads.
        known: i64,
    },
    /// The rows of an older version cannot be migrated.
    #[error("the database `{path}` cannot be brought up to date; it is as it was")]
    Migration {
        /// The path.
        path: String,
        /// The cause.
        source: LedgerError,
    },
    /// The database is damaged.
    #[error("the database `{path}` is damaged: {what}; restore it from a backup")]
    Damaged {
        /// The path.
        path: String,
        /// The problem that was found.
        what: String,
    },
    /// The store has a digest key that is not in `digest.key`.
    #[error(
        "`digest.key` has the key {given}; the store also has one with the id {stored}, which is not in the file: put it back, since receipts depend on it"
    )]
    OtherKey {
        /// The id of the key that was given.
        given: String,
        /// The id of a key of the store that was not given.
        stored: String,
    },
    /// A key file is missing or has no valid key.
    #[error(
        "`{path}` {what}; restore it from a backup, since receipts and checkpoints depend on it"
    )]
    Key {
        /// The path.
        path: String,
        /// The problem that was found.
        what: &'static str,
    },
    /// The file of the newest checkpoint contains no checkpoint.
    #[error(
        "`{path}` {what}, so a rollback of the database cannot be detected; restore the file from a backup"
    )]
    Note {
        /// The path.
        path: String,
        /// The problem that was found.
        what: &'static str,
    },
    /// The database is older than a checkpoint that is stored next to it.
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
    /// The store was restored from a backup, and no operator has accepted that.
    #[error("the store in `{path}` was restored from a backup: calls since then are not in it")]
    Restored {
        /// The folder.
        path: String,
    },
    /// The first event could not be written.
    #[error("the store takes no records")]
    Ledger(#[source] LedgerError),
}

/// An error of a backup, a restore or a vacuum.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MaintenanceError {
    /// The target already exists.
    #[error("`{0}` is there already")]
    There(String),
    /// The folder contains no backup.
    #[error("`{0}` holds no backup")]
    NoBackup(String),
    /// A gateway uses the store.
    #[error("the store is in use")]
    InUse,
    /// The store does not exist.
    #[error("there is no store in `{0}`")]
    NoStore(String),
    /// A file cannot be used.
    #[error("`{path}` cannot be used")]
    File {
        /// The path.
        path: String,
        /// The cause.
        source: std::io::Error,
    },
    /// The database cannot be opened, or a statement failed.
    #[error("the database does not answer")]
    Database(#[from] rusqlite::Error),
    /// The copy or the backup is damaged, or of a newer version.
    #[error("the copy is damaged: {0}")]
    Damaged(String),
}

/// An error of a migration; the database is then unchanged.
#[derive(Debug, thiserror::Error)]
pub(super) enum MigrateError {
    #[error(transparent)]
    Database(#[from] rusqlite::Error),
    #[error(transparent)]
    Record(#[from] LedgerError),
}
