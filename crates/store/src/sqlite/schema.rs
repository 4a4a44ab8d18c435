//! Defines the tables and their migrations: forward only, applied at start under a lock.
//!
//! Doc: records.md#stores

use rusqlite::{Connection, Transaction, TransactionBehavior};

use super::compact::Compact;
use super::error::MigrateError;
use crate::body;
use crate::packing;

/// The newest version that this build knows.
pub(super) const VERSION: i64 = 10;
/// The first version with records that this build reads. Missing data is written when a writer
/// begins.
pub(super) const READABLE: i64 = 7;
/// A version without records to take over, unlike the ones before it.
const TAKEN_OVER: i64 = 6;
/// The first version from which on no version has records to take over.
pub(super) const COMPLETE: i64 = 8;

/// Whether a database of this version has records that a writer must take over.
pub(super) fn has_earlier_records(version: i64) -> bool {
    version < COMPLETE && version != TAKEN_OVER
}

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

/// Adds Merkle roots and checkpoints, compressed bodies, tombstones, and the queue.
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

/// Stores records by their places, encoded. The columns for searches move to a separate file.
///
/// A place is the number of the writer times 2^40, plus the sequence number in that writer's log.
const V3: &str = "
CREATE TABLE writers_v3 (
    no INTEGER PRIMARY KEY AUTOINCREMENT,
    writer TEXT NOT NULL UNIQUE,
    started TEXT NOT NULL,
    renewed_ms INTEGER NOT NULL,
    stopped INTEGER NOT NULL DEFAULT 0,
    size INTEGER NOT NULL DEFAULT 0,
    last_leaf TEXT,
    root TEXT,
    checkpoint TEXT,
    named INTEGER NOT NULL DEFAULT 0,
    pruned_size INTEGER NOT NULL DEFAULT 0,
    pruned TEXT
) STRICT;
INSERT INTO writers_v3 (writer, started, renewed_ms, stopped, size, last_leaf, root, checkpoint,
        named, pruned_size, pruned)
    SELECT writer, started, renewed_ms, stopped, size, last_leaf, root, checkpoint,
        named, pruned_size, pruned
    FROM writers ORDER BY rowid;
DROP TABLE writers;
ALTER TABLE writers_v3 RENAME TO writers;
CREATE INDEX writers_unnamed ON writers (writer) WHERE named = 0;
ALTER TABLE events RENAME TO events_v2;
CREATE TABLE events (place INTEGER PRIMARY KEY, body BLOB NOT NULL) STRICT;
CREATE TABLE milestones (place INTEGER PRIMARY KEY) STRICT;
ALTER TABLE receipts RENAME TO receipts_v2;
CREATE TABLE open_receipts (
    id ANY PRIMARY KEY,
    tool TEXT NOT NULL,
    state TEXT NOT NULL,
    writer TEXT NOT NULL,
    fence INTEGER NOT NULL,
    body BLOB NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE receipts (
    id ANY PRIMARY KEY,
    fence INTEGER NOT NULL,
    body BLOB NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE tombstones (
    id ANY PRIMARY KEY,
    fence INTEGER NOT NULL,
    body BLOB NOT NULL
) STRICT, WITHOUT ROWID;
ALTER TABLE keys RENAME TO keys_v2;
CREATE TABLE keys (key ANY PRIMARY KEY, receipt ANY NOT NULL) STRICT, WITHOUT ROWID;
CREATE INDEX keys_of_receipt ON keys (receipt);
ALTER TABLE agent_logs RENAME TO agent_logs_v2;
CREATE TABLE agent_logs (place INTEGER PRIMARY KEY, body BLOB NOT NULL) STRICT;
CREATE TABLE digest_keys (key_id TEXT PRIMARY KEY) STRICT, WITHOUT ROWID;
INSERT INTO digest_keys (key_id)
    SELECT body ->> '$.facts.digestKeyId' FROM events_v2
    WHERE milestone = 1 AND body ->> 'event' = 'WRITER_STARTED'
        AND body ->> '$.facts.digestKeyId' IS NOT NULL
    ORDER BY place DESC LIMIT 1;
";

/// Adds the places of the events that account for asynchronous calls, as JSON. `gone` contains the
/// removed subtrees of logs, `stale` the blocks that pruning must examine again.
const V4: &str = "
ALTER TABLE queue ADD COLUMN queued_by TEXT;
ALTER TABLE queue ADD COLUMN finished_by TEXT;
ALTER TABLE writers DROP COLUMN pruned_size;
CREATE TABLE gone (place INTEGER PRIMARY KEY, size INTEGER NOT NULL, root ANY NOT NULL) STRICT;
CREATE TABLE stale (place INTEGER PRIMARY KEY) STRICT;
";

/// Adds the MACs of asynchronous calls, and an index for taking the calls in the order of their
/// times.
///
/// The ends of all logs are named again, because an earlier version may have removed the event that
/// permanently named an end.
const V5: &str = "
UPDATE writers SET named = 0;
ALTER TABLE queue ADD COLUMN mac TEXT;
DROP INDEX queue_open;
CREATE INDEX queue_open ON queue (state, enqueued, place) WHERE state <> 'done';
ALTER TABLE writers DROP COLUMN renewed_ms;
";

/// Changes nothing. Version 6 dropped the column that [`V8_OF_OLD`] drops.
const V6: &str = "";

/// Adds the identities of the callers of asynchronous calls, as JSON, the orders of operators, and the
/// used budgets.
const V7: &str = "
ALTER TABLE queue ADD COLUMN identity TEXT;
CREATE TABLE orders (
    kind TEXT NOT NULL,
    name TEXT NOT NULL,
    body TEXT NOT NULL,
    used TEXT,
    PRIMARY KEY (kind, name)
) STRICT, WITHOUT ROWID;
CREATE TABLE budgets (
    key TEXT PRIMARY KEY,
    day TEXT NOT NULL,
    units INTEGER NOT NULL,
    changed_by TEXT NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX budgets_day ON budgets (day);
";

/// Changes nothing in a database of version 6.
const V8: &str = "";

/// Drops the beginnings of logs that a version before 6 removed, once a writer has taken them over.
/// Until then, the version of the database shows a writer that such data exists.
const V8_OF_OLD: &str = "ALTER TABLE writers DROP COLUMN pruned;";

/// Changes nothing: [`ADDED`] is applied before.
const V9: &str = "";

/// Changes nothing: [`ADDED`] is applied before.
const V10: &str = "";

/// Adds what receipts count in the windows of the policy, an index of undecided approvals, and the documents
/// that logs name. Steps use them, so they are there before a writer takes over the records of an earlier
/// version.
const ADDED: &str = "
CREATE TABLE IF NOT EXISTS history (
    key TEXT NOT NULL,
    at_ms INTEGER NOT NULL,
    receipt ANY NOT NULL,
    amount INTEGER,
    until_ms INTEGER NOT NULL,
    PRIMARY KEY (key, at_ms, receipt)
) STRICT, WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS history_receipt ON history (receipt, until_ms);
CREATE INDEX IF NOT EXISTS approvals_pending ON approvals (caller, approval_id)
    WHERE state = 'pending';
CREATE TABLE IF NOT EXISTS documents (
    digest TEXT PRIMARY KEY,
    body BLOB NOT NULL,
    used TEXT NOT NULL
) STRICT;
";

/// Drops the tables of version 2 once their rows are migrated.
const V3_END: &str = "
DROP TABLE events_v2;
DROP TABLE receipts_v2;
DROP TABLE keys_v2;
DROP TABLE agent_logs_v2;
";

/// Returns the schema version of a database.
pub(super) fn version(connection: &Connection) -> rusqlite::Result<i64> {
    connection.query_row("PRAGMA user_version", [], |row| row.get(0))
}

/// Whether this build reads a database.
pub(super) fn is_readable(connection: &Connection) -> rusqlite::Result<bool> {
    if version(connection)? < READABLE {
        return Ok(false);
    }
    let sql = "SELECT EXISTS (SELECT 1 FROM sqlite_schema WHERE name = 'documents')";
    connection.query_row(sql, [], |row| row.get(0))
}

/// Migrates a database to version `to`, at most [`VERSION`]. Returns the version it had.
pub(super) fn migrate(connection: &mut Connection, to: i64) -> Result<i64, MigrateError> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let found = version(&transaction)?;
    for (version, script) in (1..).zip([V1, V2, V3, V4, V5, V6, V7, V8, V9, V10]) {
        if found < version && version <= to {
            transaction.execute_batch(script)?;
            if version == 3 {
                carry_over(&transaction)?;
                transaction.execute_batch(V3_END)?;
            }
            if version == 8 && has_pruned_beginnings(&transaction)? {
                transaction.execute_batch(V8_OF_OLD)?;
            }
            transaction.execute_batch(&format!("PRAGMA user_version = {version}"))?;
        }
    }
    if found < VERSION && READABLE <= to {
        transaction.execute_batch(ADDED)?;
    }
    transaction.commit()?;
    Ok(found)
}

fn has_pruned_beginnings(connection: &Connection) -> rusqlite::Result<bool> {
    let sql = "SELECT EXISTS (SELECT 1 FROM pragma_table_info('writers') WHERE name = 'pruned')";
    connection.query_row(sql, [], |row| row.get(0))
}

/// Migrates the rows of version 2. Their texts stay identical byte for byte, since digests cover
/// them.
fn carry_over(transaction: &Transaction<'_>) -> Result<(), MigrateError> {
    // Events of a writer without a row get a separate log, under another number.
    transaction.execute_batch(
        "CREATE TEMP TABLE numbers AS SELECT writer, no FROM writers;
         INSERT INTO numbers SELECT writer, (SELECT coalesce(max(no), 0) FROM writers)
                 + row_number() OVER (ORDER BY writer)
             FROM (SELECT writer FROM events_v2 UNION SELECT writer FROM agent_logs_v2)
             WHERE writer NOT IN (SELECT writer FROM writers);
         CREATE UNIQUE INDEX temp.numbers_writer ON numbers (writer);
         -- The next writer must not get one of these numbers.
         INSERT INTO sqlite_sequence (name, seq) SELECT 'writers', 0
             WHERE NOT EXISTS (SELECT 1 FROM sqlite_sequence WHERE name = 'writers');
         UPDATE sqlite_sequence SET seq = max(seq, (SELECT coalesce(max(no), 0) FROM numbers))
             WHERE name = 'writers';",
    )?;
    let mut events = transaction.prepare(
        "SELECT no, seq, body, milestone FROM events_v2 JOIN numbers USING (writer)
         ORDER BY no, seq",
    )?;
    let mut put_event = transaction.prepare("INSERT INTO events (place, body) VALUES (?1, ?2)")?;
    let mut put_milestone = transaction.prepare("INSERT INTO milestones (place) VALUES (?1)")?;
    let mut rows = events.query([])?;
    while let Some(row) = rows.next()? {
        let place = place(row.get(0)?, row.get::<_, i64>(1)?);
        put_event.execute((place, packing::pack(&row.get::<_, String>(2)?)?))?;
        if row.get(3)? {
            put_milestone.execute([place])?;
        }
    }
    let mut logs = transaction.prepare(
        "SELECT no, seq, body, zbody FROM agent_logs_v2 JOIN numbers USING (writer)
         ORDER BY no, seq",
    )?;
    let mut put_log =
        transaction.prepare("INSERT INTO agent_logs (place, body) VALUES (?1, ?2)")?;
    let mut rows = logs.query([])?;
    while let Some(row) = rows.next()? {
        let place = place(row.get(0)?, row.get::<_, i64>(1)?);
        let text = body::unpack(row.get(2)?, row.get(3)?)
            .map_err(|damage| damage.at("agent_logs", place))?;
        put_log.execute((place, packing::pack(&text)?))?;
    }
    let mut receipts = transaction.prepare(
        "SELECT receipt_id, tool, state, writer, fence, body, zbody,
             (SELECT 1 FROM json_each(CASE WHEN json_valid(body) THEN body ELSE '{}' END)
              WHERE key = 'prunedAt')
         FROM receipts_v2 ORDER BY receipt_id",
    )?;
    let mut rows = receipts.query([])?;
    while let Some(row) = rows.next()? {
        let (id, fence) = (row.get::<_, String>(0)?, row.get::<_, i64>(4)?);
        let text = body::unpack(row.get(5)?, row.get(6)?);
        let text = packing::pack(&text.map_err(|damage| damage.at("receipts", &id))?)?;
        let id = Compact::of(&id);
        let state: String = row.get(2)?;
        if matches!(state.as_str(), "in_flight" | "awaiting_input" | "in_doubt") {
            transaction
                .prepare_cached(
                    "INSERT INTO open_receipts (id, tool, state, writer, fence, body)
                     VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
                )?
                .execute((
                    id,
                    row.get::<_, String>(1)?,
                    state,
                    row.get::<_, String>(3)?,
                    fence,
                    text,
                ))?;
        } else {
            let table =
                if row.get::<_, Option<i64>>(7)?.is_some() { "tombstones" } else { "receipts" };
            let sql = format!("INSERT INTO {table} (id, fence, body) VALUES (?1, ?2, ?3)");
            transaction.prepare_cached(&sql)?.execute((id, fence, text))?;
        }
    }
    let mut keys = transaction.prepare("SELECT key, receipt_id FROM keys_v2")?;
    let mut put_key = transaction.prepare("INSERT INTO keys (key, receipt) VALUES (?1, ?2)")?;
    let mut rows = keys.query([])?;
    while let Some(row) = rows.next()? {
        let (key, id): (String, String) = (row.get(0)?, row.get(1)?);
        put_key.execute((Compact::of(&key), Compact::of(&id)))?;
    }
    transaction.execute_batch("DROP TABLE temp.numbers")?;
    Ok(())
}

/// Returns the place of an event, from the number of its writer and its sequence number in that
/// writer's log.
pub(super) fn place(writer: i64, seq: i64) -> i64 {
    (writer << SEQ_BITS) | seq
}

/// Bits of a place that contain the sequence number.
pub(super) const SEQ_BITS: u32 = 40;
