//! The tables, and their migrations: forward only, applied at start under a lock.
//!
//! Doc: records.md#stores

use rusqlite::{Connection, TransactionBehavior};

/// The newest version that this build knows.
pub(super) const VERSION: i64 = 2;

const V1: &str = "
CREATE TABLE writers (
    writer TEXT PRIMARY KEY,
    started TEXT NOT NULL,
    renewed_ms INTEGER NOT NULL,
    stopped INTEGER NOT NULL DEFAULT 0,
    size INTEGER NOT NULL DEFAULT 0,
    last_leaf TEXT
) STRICT;
CREATE TABLE receipts (
    receipt_id TEXT PRIMARY KEY,
    call_id TEXT NOT NULL,
    tool TEXT NOT NULL,
    state TEXT NOT NULL,
    writer TEXT NOT NULL,
    fence INTEGER NOT NULL,
    body TEXT NOT NULL
) STRICT;
CREATE INDEX receipts_call ON receipts (call_id);
CREATE INDEX receipts_running ON receipts (tool, state) WHERE state = 'in_flight';
CREATE TABLE keys (
    key TEXT PRIMARY KEY,
    receipt_id TEXT NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX keys_receipt ON keys (receipt_id);
CREATE TABLE rates (
    tool TEXT NOT NULL,
    caller TEXT NOT NULL,
    tat_ms INTEGER NOT NULL,
    PRIMARY KEY (tool, caller)
) STRICT, WITHOUT ROWID;
CREATE TABLE approvals (
    approval_id TEXT PRIMARY KEY,
    tool TEXT NOT NULL,
    caller TEXT NOT NULL,
    args_digest TEXT NOT NULL,
    contract_digest TEXT NOT NULL,
    state TEXT NOT NULL,
    body TEXT NOT NULL
) STRICT;
CREATE INDEX approvals_call ON approvals (tool, caller, args_digest);
CREATE TABLE events (
    place INTEGER PRIMARY KEY AUTOINCREMENT,
    writer TEXT NOT NULL,
    seq INTEGER NOT NULL,
    time TEXT NOT NULL,
    tool TEXT,
    agent TEXT,
    call_id TEXT,
    status TEXT,
    code TEXT,
    body TEXT NOT NULL,
    UNIQUE (writer, seq)
) STRICT;
CREATE INDEX events_call ON events (call_id);
CREATE INDEX events_time ON events (time);
CREATE TABLE agent_logs (
    id TEXT PRIMARY KEY,
    writer TEXT NOT NULL,
    seq INTEGER NOT NULL,
    time TEXT NOT NULL,
    tool TEXT NOT NULL,
    agent TEXT,
    turn INTEGER,
    phase TEXT,
    epic TEXT,
    call_id TEXT NOT NULL,
    is_error INTEGER NOT NULL,
    body TEXT NOT NULL,
    UNIQUE (writer, seq)
) STRICT;
CREATE INDEX agent_logs_call ON agent_logs (call_id);
CREATE INDEX agent_logs_time ON agent_logs (time);
";

/// Merkle roots and checkpoints, compressed bodies, tombstones, and the queue.
const V2: &str = "
ALTER TABLE writers ADD COLUMN root TEXT;
ALTER TABLE writers ADD COLUMN checkpoint TEXT;
ALTER TABLE writers ADD COLUMN named INTEGER NOT NULL DEFAULT 0;
ALTER TABLE writers ADD COLUMN pruned_size INTEGER NOT NULL DEFAULT 0;
ALTER TABLE writers ADD COLUMN pruned TEXT;
CREATE INDEX writers_unnamed ON writers (writer) WHERE named = 0;
ALTER TABLE receipts ADD COLUMN settled TEXT;
ALTER TABLE receipts ADD COLUMN zbody BLOB;
CREATE INDEX receipts_settled ON receipts (settled) WHERE settled IS NOT NULL;
UPDATE receipts SET settled = body ->> 'settledAt' WHERE state IN ('succeeded', 'failed');
ALTER TABLE agent_logs ADD COLUMN zbody BLOB;
ALTER TABLE events ADD COLUMN milestone INTEGER NOT NULL DEFAULT 0;
UPDATE events SET milestone = 1 WHERE body ->> 'event' IN
    ('WRITER_STARTED', 'WRITER_STOPPED', 'CHECKPOINT', 'RECEIPTS_PRUNED', 'STORE_RESTORED');
CREATE INDEX events_milestone ON events (writer, seq) WHERE milestone = 1;
CREATE TABLE queue (
    place INTEGER PRIMARY KEY AUTOINCREMENT,
    caller TEXT NOT NULL,
    call_id TEXT NOT NULL,
    state TEXT NOT NULL,
    worker TEXT,
    request TEXT NOT NULL,
    enqueued TEXT NOT NULL,
    finished TEXT,
    deliveries INTEGER NOT NULL DEFAULT 0,
    cancel INTEGER NOT NULL DEFAULT 0,
    progress TEXT,
    result TEXT,
    UNIQUE (caller, call_id)
) STRICT;
CREATE INDEX queue_open ON queue (state, place) WHERE state <> 'done';
CREATE INDEX queue_finished ON queue (finished) WHERE finished IS NOT NULL;
";

/// The version of a database.
pub(super) fn version(connection: &Connection) -> rusqlite::Result<i64> {
    connection.query_row("PRAGMA user_version", [], |row| row.get(0))
}

/// Brings a database to [`VERSION`]; gives the version it had.
pub(super) fn migrate(connection: &mut Connection) -> rusqlite::Result<i64> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let found = version(&transaction)?;
    for (version, script) in (1..).zip([V1, V2]) {
        if found < version {
            transaction.execute_batch(script)?;
            transaction.execute_batch(&format!("PRAGMA user_version = {version}"))?;
        }
    }
    transaction.commit()?;
    Ok(found)
}
