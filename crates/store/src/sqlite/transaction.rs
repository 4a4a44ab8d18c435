//! One transaction of a writer.
//!
//! Doc: records.md#stores

use std::cell::Cell;
use std::collections::HashMap;

use rusqlite::{Connection, ErrorCode, Params};
use toolbooth_audit::backend::pruning::Progress;
use toolbooth_audit::backend::writer::Failure;

use super::folder::StoreFolder;
use super::unavailable;

/// Classifies the failure of a statement: values that cannot be stored or read, or the store
/// itself.
pub(super) fn failed(error: rusqlite::Error) -> Failure {
    let refused = match &error {
        rusqlite::Error::SqliteFailure(failure, _) => matches!(
            failure.code,
            ErrorCode::TooBig | ErrorCode::ConstraintViolation | ErrorCode::TypeMismatch
        ),
        // The row has a value that no writer stores.
        rusqlite::Error::FromSqlConversionFailure(..)
        | rusqlite::Error::IntegralValueOutOfRange(..)
        | rusqlite::Error::InvalidColumnType(..)
        | rusqlite::Error::Utf8Error(..) => true,
        _ => false,
    };
    match refused {
        true => Failure::Refused(unavailable(error)),
        false => Failure::Unknown(unavailable(error)),
    }
}

/// One transaction of a writer.
pub(super) struct Transaction<'c> {
    pub(super) connection: &'c Connection,
    pub(super) folder: &'c StoreFolder,
    pub(super) writer: &'c str,
    pub(super) writer_no: i64,
    pub(super) searched: &'c Cell<i64>,
    /// The last receipt that a step of pruning has examined, if another step must continue.
    pub(super) receipts_seen: &'c Cell<String>,
    pub(super) progress: &'c HashMap<String, Progress>,
}

impl Transaction<'_> {
    pub(super) fn execute(&self, sql: &str, params: impl Params) -> Result<usize, Failure> {
        self.connection
            .prepare_cached(sql)
            .and_then(|mut statement| statement.execute(params))
            .map_err(failed)
    }

    /// Whether another writer is known to be dead.
    pub(super) fn is_lost(&self, writer: &str) -> bool {
        writer != self.writer && self.folder.writer_lost(writer)
    }
}
