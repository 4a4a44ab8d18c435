//! Carries what stands in SQLite's log over into the database, beside the writer, so that a commit
//! does not wait for it.
//!
//! Doc: records.md#stores

use std::path::Path;
use std::sync::mpsc::{Receiver, SyncSender};

use rusqlite::Connection;

use super::open;

/// Whenever the log has grown by so many pages it is carried over.
const PAGES: i32 = 1_000;
/// From so many pages on the writer does it itself: the log does not grow without end, and only
/// where it stands still can it begin anew.
const PAGES_MAX: i32 = 8_000;

/// Says that the log has grown, and who hears it.
pub(super) fn notices() -> (SyncSender<()>, Receiver<()>) {
    std::sync::mpsc::sync_channel(1)
}

/// Watches how long the log is after each commit of a writer.
pub(super) fn watch(connection: &mut Connection, grown: SyncSender<()>) -> rusqlite::Result<()> {
    let mut told = 0;
    connection.wal_hook(Some(move |log: &mut rusqlite::hooks::Wal, pages| {
        // It has begun anew.
        told = if pages < told { 0 } else { told };
        if pages >= PAGES_MAX {
            // What is not carried over now is the next time.
            if let Err(error) = log.checkpoint() {
                tracing::warn!(%error, "the database's log is not carried over");
            }
        } else if pages >= told + PAGES {
            told = pages;
            let _ = grown.try_send(());
        }
        Ok(())
    }))
}

/// Carries over whenever the log has grown, until nobody writes any more.
pub(super) fn serve(database: &Path, grown: &Receiver<()>) {
    let mut opened = None;
    while grown.recv().is_ok() {
        let carried = carry(database, &mut opened);
        if let Err(error) = carried {
            tracing::warn!(%error, "the database's log is not carried over");
            opened = None;
        }
    }
}

fn carry(database: &Path, opened: &mut Option<Connection>) -> rusqlite::Result<()> {
    let connection = match opened.take() {
        Some(connection) => connection,
        None => {
            let connection = Connection::open(database)?;
            connection.busy_timeout(open::BUSY)?;
            connection
        }
    };
    // As far as nobody reads or writes there: it waits for nobody.
    connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()))?;
    *opened = Some(connection);
    Ok(())
}
