//! The store for several replicas, on any server that speaks PostgreSQL's protocol.
//!
//! Each replica has one writer task with one connection, and a read-only pool. Leases use the
//! database's clock.
//!
//! Path: 6, 9. Doc: records.md#stores

mod backend;
mod connect;
mod error;
mod load;
mod open;
mod prune;
mod reads;
mod rights;
mod rows;
mod schema;
mod statements;
mod windows;
mod write;

pub use error::OpenError;
pub use open::{Postgres, PostgresLedger, PostgresOptions, open};
pub use reads::PostgresReads;
pub use rights::missing_rights;

use std::borrow::Cow;

use toolbooth_audit::LedgerError;

fn unavailable(error: tokio_postgres::Error) -> LedgerError {
    LedgerError::unavailable_by(error)
}

/// Replaces NUL by U+FFFD, since PostgreSQL's `text` cannot contain NUL.
fn clean(text: &str) -> Cow<'_, str> {
    if text.contains('\0') { text.replace('\0', "\u{fffd}").into() } else { text.into() }
}
