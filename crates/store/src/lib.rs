#![doc = include_str!("../README.md")]

#[cfg(any(feature = "postgres", feature = "sqlite"))]
mod body;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
mod digits;
#[cfg(feature = "postgres")]
pub mod postgres;
mod pruned;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
mod share;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
mod shorten;
#[cfg(feature = "sqlite")]
pub mod sqlite;

use toolbooth_audit::LedgerError;

fn corrupt(what: &str, error: &impl std::fmt::Display) -> LedgerError {
    LedgerError::Unavailable(format!("{what} in the store cannot be read: {error}"))
}
