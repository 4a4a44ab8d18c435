#![doc = include_str!("../README.md")]

mod body;
#[cfg(feature = "postgres")]
pub mod postgres;
mod pruned;
#[cfg(feature = "sqlite")]
pub mod sqlite;

use toolbooth_audit::LedgerError;

fn corrupt(what: &str, error: &impl std::fmt::Display) -> LedgerError {
    LedgerError::Unavailable(format!("{what} in the store cannot be read: {error}"))
}
