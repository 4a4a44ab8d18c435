//! The embedded store: one SQLite file in a folder that only its user can read.
//!
//! Path: 6, 9. Doc: records.md#stores

mod approvals;
mod backend;
mod compact;
mod connection;
mod error;
mod folder;
mod kept_checkpoints;
mod load;
mod log_pages;
mod maintenance;
mod open;
mod prune;
mod queries;
mod reads;
mod result_reference;
mod rows;
mod schema;
mod search_index;
mod space_monitor;
mod start_check;
mod structure;
mod transaction;
mod wal_checkpoint;
mod write;

pub use error::{MaintenanceError, OpenError};
pub use folder::{DATABASE, RESTORED, StoreFolder};
pub use maintenance::{backup, restore, vacuum};
pub use open::{Durability, Sqlite, SqliteLedger, SqliteOptions, open};
pub use reads::SqliteReads;
pub use space_monitor::{BYTES_MAX_LEAST, space_state, standard_bytes_max, used_bytes};
pub use start_check::StartCheck;

use rusqlite::ErrorCode;
use toolbooth_audit::LedgerError;

use crate::Unreadable;

fn unavailable(error: rusqlite::Error) -> LedgerError {
    LedgerError::unavailable_by(error)
}

/// Whether an error means that the database is damaged.
fn is_damage(error: &LedgerError) -> bool {
    match error {
        LedgerError::Damaged(_) => true,
        LedgerError::Unavailable { source: Some(cause), .. } => {
            let cause = cause.error().downcast_ref::<rusqlite::Error>();
            cause.and_then(rusqlite::Error::sqlite_error_code) == Some(ErrorCode::DatabaseCorrupt)
        }
        _ => false,
    }
}

/// Makes an error that names the table and the row, for a row that cannot be read.
fn unreadable_at(
    table: &'static str,
    row: impl std::fmt::Display,
) -> impl FnOnce(rusqlite::Error) -> LedgerError {
    move |error| match error.sqlite_error_code() {
        None | Some(ErrorCode::DatabaseCorrupt) => Unreadable::of(error).at(table, row),
        Some(_) => unavailable(error),
    }
}
