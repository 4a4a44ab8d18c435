//! Runs WAL checkpoints on a separate thread, so that commits do not wait for them.
//!
//! Doc: records.md#stores

use std::path::Path;
use std::sync::mpsc::{Receiver, SyncSender};

use rusqlite::Connection;

use super::connection::BUSY;
use super::folder::StoreFolder;

/// WAL pages after which a checkpoint is requested.
const PAGES: i32 = 1_000;
/// WAL pages from which the writer itself runs the checkpoint. A checkpoint that runs concurrently
/// with a busy writer may never be complete, and only a complete one lets the WAL restart.
const PAGES_MAX: i32 = 8_000;

/// Creates the channel by which a writer requests checkpoints; it holds one request.
pub(super) fn notices() -> (SyncSender<()>, Receiver<()>) {
    std::sync::mpsc::sync_channel(1)
}

/// Checks the size of the WAL after each commit of a writer.
pub(super) fn watch(connection: &mut Connection, grown: SyncSender<()>) -> rusqlite::Result<()> {
    let mut told = 0;
    connection.wal_hook(Some(move |log: &mut rusqlite::hooks::Wal, pages| {
        // The WAL has restarted.
        told = if pages < told { 0 } else { told };
        if pages >= PAGES_MAX {
            // If this fails, the next commit tries again.
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

/// Runs a checkpoint for each request, until the writer ends.
pub(super) fn serve(folder: &StoreFolder, grown: &Receiver<()>) {
    let database = folder.database();
    let mut opened = None;
    while grown.recv().is_ok() {
        let carried = carry(&database, &mut opened);
        if let Err(error) = carried {
            tracing::warn!(%error, "the database's log is not carried over");
            folder.forget_check();
            opened = None;
        }
    }
}

fn carry(database: &Path, opened: &mut Option<Connection>) -> rusqlite::Result<()> {
    let connection = match opened.take() {
        Some(connection) => connection,
        None => {
            let connection = Connection::open(database)?;
            connection.busy_timeout(BUSY)?;
            connection
        }
    };
    // `PASSIVE` waits for no reader or writer, and copies only the pages that are free to copy.
    connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()))?;
    *opened = Some(connection);
    Ok(())
}
