//! Defines the tables and their migrations: forward only, applied at start under a lock.
//!
//! Identifiers are compared byte by byte (`COLLATE "C"`), as everywhere in Toolbooth.
//!
//! Doc: records.md#stores

use tokio_postgres::{Client, Error};

/// The newest version that this build knows.
pub(super) const VERSION: i32 = 10;
/// The first version with records that this build reads. Missing data is written when a writer
/// begins.
pub(super) const READABLE: i32 = 6;
/// A version without records to take over, unlike the ones before it.
const TAKEN_OVER: i32 = 5;
/// The first version from which on no version has records to take over.
const COMPLETE: i32 = 7;
/// The advisory lock under which migrations are applied.
const MIGRATION_LOCK: i64 = 0x746f_6f6c_626f_6f74;

const V1: &str = r#"
CREATE TABLE digest_keys (
    key_id text COLLATE "C" PRIMARY KEY,
    added timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE TABLE writers (
    ordinal bigserial,
    writer text COLLATE "C" PRIMARY KEY,
    started text COLLATE "C" NOT NULL,
    renewed timestamptz NOT NULL DEFAULT clock_timestamp(),
    stopped boolean NOT NULL DEFAULT false,
    size bigint NOT NULL DEFAULT 0,
    last_leaf text,
    root text,
    checkpoint text,
    named boolean NOT NULL DEFAULT false,
    pruned_size bigint NOT NULL DEFAULT 0,
    pruned text
);
CREATE INDEX writers_unnamed ON writers (writer) WHERE NOT named;
CREATE TABLE receipts (
    receipt_id text COLLATE "C" PRIMARY KEY,
    call_id text COLLATE "C" NOT NULL,
    tool text COLLATE "C" NOT NULL,
    state text COLLATE "C" NOT NULL,
    writer text COLLATE "C" NOT NULL,
    fence bigint NOT NULL,
    settled text COLLATE "C",
    body text NOT NULL,
    zbody bytea
);
CREATE INDEX receipts_call ON receipts (call_id);
CREATE INDEX receipts_running ON receipts (tool) WHERE state IN ('in_flight', 'awaiting_input');
CREATE INDEX receipts_settled ON receipts (settled) WHERE settled IS NOT NULL;
CREATE TABLE keys (
    key text COLLATE "C" PRIMARY KEY,
    receipt_id text COLLATE "C" NOT NULL
);
CREATE INDEX keys_receipt ON keys (receipt_id);
CREATE TABLE rates (
    tool text COLLATE "C" NOT NULL,
    caller text COLLATE "C" NOT NULL,
    tat_ms bigint NOT NULL,
    PRIMARY KEY (tool, caller)
);
CREATE TABLE approvals (
    approval_id text COLLATE "C" PRIMARY KEY,
    tool text COLLATE "C" NOT NULL,
    caller text COLLATE "C" NOT NULL,
    args_digest text COLLATE "C" NOT NULL,
    contract_digest text COLLATE "C" NOT NULL,
    state text COLLATE "C" NOT NULL,
    body text NOT NULL
);
CREATE INDEX approvals_call ON approvals (tool, caller, args_digest);
CREATE TABLE events (
    writer text COLLATE "C" NOT NULL,
    seq bigint NOT NULL,
    place bigint NOT NULL,
    time text COLLATE "C" NOT NULL,
    tool text COLLATE "C",
    agent text COLLATE "C",
    call_id text COLLATE "C",
    status text COLLATE "C",
    code text COLLATE "C",
    receipt_id text COLLATE "C",
    has_log boolean NOT NULL,
    milestone boolean NOT NULL,
    body text NOT NULL,
    PRIMARY KEY (writer, seq)
);
CREATE INDEX events_place ON events (place);
CREATE INDEX events_time ON events (time);
CREATE INDEX events_call ON events (call_id);
CREATE INDEX events_milestone ON events (writer, seq) WHERE milestone;
CREATE TABLE agent_logs (
    id text COLLATE "C" PRIMARY KEY,
    writer text COLLATE "C" NOT NULL,
    seq bigint NOT NULL,
    time text COLLATE "C" NOT NULL,
    tool text COLLATE "C" NOT NULL,
    agent text COLLATE "C",
    turn bigint,
    phase text COLLATE "C",
    epic text COLLATE "C",
    call_id text COLLATE "C" NOT NULL,
    is_error boolean NOT NULL,
    body text NOT NULL,
    zbody bytea,
    UNIQUE (writer, seq)
);
CREATE INDEX agent_logs_call ON agent_logs (call_id);
CREATE INDEX agent_logs_time ON agent_logs (time);
CREATE TABLE queue (
    place bigserial PRIMARY KEY,
    caller text COLLATE "C" NOT NULL,
    call_id text COLLATE "C" NOT NULL,
    state text COLLATE "C" NOT NULL,
    worker text COLLATE "C",
    request text NOT NULL,
    enqueued text COLLATE "C" NOT NULL,
    finished text COLLATE "C",
    deliveries integer NOT NULL DEFAULT 0,
    cancel boolean NOT NULL DEFAULT false,
    progress text,
    result text,
    UNIQUE (caller, call_id)
);
CREATE INDEX queue_open ON queue (state, place) WHERE state <> 'done';
CREATE INDEX queue_finished ON queue (finished) WHERE finished IS NOT NULL;
"#;

/// Adds the places of the events that account for asynchronous calls, as JSON. `gone` contains the
/// removed subtrees of logs, `stale` the blocks that pruning must examine again.
const V2: &str = "
ALTER TABLE queue ADD COLUMN queued_by text;
ALTER TABLE queue ADD COLUMN finished_by text;
ALTER TABLE writers DROP COLUMN pruned_size;
CREATE TABLE gone (
    writer text COLLATE \"C\" NOT NULL,
    seq bigint NOT NULL,
    size bigint NOT NULL,
    root text NOT NULL,
    PRIMARY KEY (writer, seq)
);
CREATE TABLE stale (
    writer text COLLATE \"C\" NOT NULL,
    block bigint NOT NULL,
    PRIMARY KEY (writer, block)
);
";

/// Replaces B-trees on times by BRIN, since rows are written in the order of time. Agent logs and
/// receipts are also found through their events: an index for each filter would cost more than it
/// saves.
///
/// Records are written encoded, in `zbody`; older ones stay in `body`. An agent log omits the part
/// that its receipt has; `shared` locates it as `own,given,len`.
const V3: &str = "
DROP INDEX events_place;
DROP INDEX events_time;
DROP INDEX receipts_call;
DROP INDEX receipts_settled;
ALTER TABLE receipts DROP COLUMN call_id;
ALTER TABLE agent_logs DROP CONSTRAINT agent_logs_pkey;
ALTER TABLE agent_logs DROP COLUMN id;
ALTER TABLE agent_logs DROP COLUMN tool;
ALTER TABLE agent_logs DROP COLUMN agent;
ALTER TABLE agent_logs DROP COLUMN turn;
ALTER TABLE agent_logs DROP COLUMN phase;
ALTER TABLE agent_logs DROP COLUMN epic;
ALTER TABLE agent_logs DROP COLUMN call_id;
ALTER TABLE agent_logs DROP COLUMN is_error;
ALTER TABLE agent_logs ADD COLUMN shared text;
ALTER TABLE events ADD COLUMN zbody bytea;
ALTER TABLE events ALTER COLUMN body SET DEFAULT '';
ALTER TABLE receipts ALTER COLUMN body SET DEFAULT '';
ALTER TABLE agent_logs ALTER COLUMN body SET DEFAULT '';
DROP INDEX agent_logs_time;
CREATE INDEX events_written ON events USING brin (place, time)
    WITH (pages_per_range = 16, autosummarize = on);
CREATE INDEX agent_logs_written ON agent_logs USING brin (time)
    WITH (pages_per_range = 16, autosummarize = on);
CREATE INDEX receipts_written ON receipts USING brin (settled)
    WITH (pages_per_range = 16, autosummarize = on);
";

/// Adds the MACs of asynchronous calls, and an index for taking the calls in the order of their
/// times.
///
/// The ends of all logs are named again, because an earlier version may have removed the event that
/// permanently named an end.
const V4: &str = "
UPDATE writers SET named = false;
ALTER TABLE queue ADD COLUMN mac text;
DROP INDEX queue_open;
CREATE INDEX queue_open ON queue (state, enqueued, place) WHERE state <> 'done';
";

/// Changes nothing. Version 5 dropped the column that [`V7`] drops.
const V5: &str = "";

/// Adds the identities of the callers of asynchronous calls, as JSON, the orders of operators, and the
/// used budgets.
const V6: &str = "
ALTER TABLE queue ADD COLUMN identity text;
CREATE TABLE orders (
    kind text COLLATE \"C\" NOT NULL,
    name text COLLATE \"C\" NOT NULL,
    body text NOT NULL,
    used text COLLATE \"C\",
    PRIMARY KEY (kind, name)
);
CREATE TABLE budgets (
    key text COLLATE \"C\" PRIMARY KEY,
    day text COLLATE \"C\" NOT NULL,
    units bigint NOT NULL,
    changed_by text NOT NULL
);
CREATE INDEX budgets_day ON budgets (day);
";

/// Drops the beginnings of logs that a version before 5 removed, once a writer has taken them over.
/// Until then, the version of the database shows a writer that such data exists.
const V7: &str = "ALTER TABLE writers DROP COLUMN IF EXISTS pruned;";

/// Changes nothing: [`ADDED`] is applied before.
const V8: &str = "";

/// Changes nothing: [`ADDED`] is applied before.
const V9: &str = "";

/// Changes nothing: [`ADDED`] is applied before. A writer of an earlier version would not keep
/// `window_sums` up to date, so it must end.
const V10: &str = "";

/// Adds what receipts count in the windows of the policy, with its sums, an index of undecided approvals, and the documents
/// that logs name. Steps use them, so they are there before a writer takes over the records of an earlier
/// version.
const ADDED: &str = "
CREATE TABLE IF NOT EXISTS history (
    key text COLLATE \"C\" NOT NULL,
    at_ms bigint NOT NULL,
    receipt_id text COLLATE \"C\" NOT NULL,
    amount bigint,
    until_ms bigint NOT NULL,
    PRIMARY KEY (key, at_ms, receipt_id)
);
CREATE INDEX IF NOT EXISTS history_receipt ON history (receipt_id, until_ms);
CREATE TABLE IF NOT EXISTS window_sums (
    key text COLLATE \"C\" NOT NULL,
    length_ms bigint NOT NULL,
    after_ms bigint NOT NULL,
    calls bigint NOT NULL,
    amount numeric NOT NULL,
    until_ms bigint NOT NULL,
    PRIMARY KEY (key, length_ms)
) WITH (fillfactor = 50);
CREATE INDEX IF NOT EXISTS approvals_pending ON approvals (caller, approval_id)
    WHERE state = 'pending';
CREATE TABLE IF NOT EXISTS documents (
    digest text COLLATE \"C\" PRIMARY KEY,
    zbody bytea NOT NULL,
    used text COLLATE \"C\" NOT NULL
);
";

/// Whether a database of this version has records that a writer must take over.
pub(super) fn has_earlier_records(version: i32) -> bool {
    version < COMPLETE && version != TAKEN_OVER
}

/// Whether this build reads a database of this version.
pub(super) async fn is_readable(client: &Client, version: i32) -> Result<bool, Error> {
    if version < READABLE {
        return Ok(false);
    }
    let sql = "SELECT to_regclass('window_sums') IS NOT NULL";
    Ok(client.query_one(sql, &[]).await?.get(0))
}

/// Returns the schema version of a database; 0 if it has no tables yet.
pub(super) async fn version(client: &Client) -> Result<i32, Error> {
    let there: bool =
        client.query_one("SELECT to_regclass('toolbooth_version') IS NOT NULL", &[]).await?.get(0);
    if !there {
        return Ok(0);
    }
    let row = client.query_opt("SELECT version FROM toolbooth_version", &[]).await?;
    Ok(row.map_or(0, |row| row.get(0)))
}

/// The names of all tables.
pub(super) const TABLES: [&str; 17] = [
    "agent_logs",
    "approvals",
    "budgets",
    "digest_keys",
    "documents",
    "events",
    "gone",
    "history",
    "keys",
    "orders",
    "queue",
    "rates",
    "receipts",
    "stale",
    "toolbooth_version",
    "window_sums",
    "writers",
];

/// Migrates a database to version `to`, at most [`VERSION`]. Returns the version it had.
pub(super) async fn migrate(client: &mut Client, to: i32) -> Result<i32, Error> {
    let transaction = client.transaction().await?;
    // Serializes replicas that start at the same time.
    transaction.execute("SELECT pg_advisory_xact_lock($1)", &[&MIGRATION_LOCK]).await?;
    transaction
        .batch_execute(
            "CREATE TABLE IF NOT EXISTS toolbooth_version (
                 only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
                 version integer NOT NULL
             );
             INSERT INTO toolbooth_version (version) VALUES (0) ON CONFLICT DO NOTHING",
        )
        .await?;
    let found: i32 = transaction
        .query_one("SELECT version FROM toolbooth_version FOR UPDATE", &[])
        .await?
        .get(0);
    if (1..to).contains(&found) {
        // A writer that waits for this lock sees the new version afterwards, and ends its work.
        transaction.batch_execute("LOCK TABLE writers IN EXCLUSIVE MODE").await?;
    }
    for (version, script) in (1i32..).zip([V1, V2, V3, V4, V5, V6, V7, V8, V9, V10]) {
        if found < version && version <= to {
            transaction.batch_execute(script).await?;
            transaction.execute("UPDATE toolbooth_version SET version = $1", &[&version]).await?;
        }
    }
    if found < VERSION && READABLE <= to {
        transaction.batch_execute(ADDED).await?;
    }
    transaction.commit().await?;
    Ok(found)
}
