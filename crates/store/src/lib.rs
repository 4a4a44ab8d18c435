#![doc = include_str!("../README.md")]

#[cfg(any(feature = "postgres", feature = "sqlite"))]
mod body;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
mod digits;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
mod packing;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
mod result_reference;
#[cfg(feature = "sqlite")]
pub mod sqlite;

use toolbooth_audit::LedgerError;
use toolbooth_audit::reads::DamagedRow;

/// The reason why a stored record cannot be read, without its place.
#[derive(Debug)]
struct Unreadable(String);

impl Unreadable {
    fn of(reason: impl std::fmt::Display) -> Self {
        Self(reason.to_string())
    }

    /// Returns the error, with the table and the key of the row.
    fn at(self, table: &str, row: impl std::fmt::Display) -> LedgerError {
        let (table, row) = (table.to_owned(), row.to_string());
        LedgerError::Damaged(DamagedRow { table, row, reason: self.0 })
    }
}

/// Returns the error of a store that a newer version has migrated while this one had it open.
#[cfg(any(feature = "postgres", feature = "sqlite"))]
fn newer(found: i64, known: i64) -> LedgerError {
    LedgerError::unavailable(format!(
        "a newer Toolbooth has migrated the store to version {found}, and this one knows version \
         {known}; restart with the newer one"
    ))
}

/// Returns the error of a record that cannot be encoded.
fn unwritable(error: impl std::fmt::Display) -> LedgerError {
    LedgerError::Defect(format!("a record cannot be encoded: {error}"))
}
