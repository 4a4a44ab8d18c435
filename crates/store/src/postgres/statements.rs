//! The statements of a writer, prepared once for each connection.
//!
//! Doc: records.md#stores

use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Error, Statement};
use toolbooth_audit::approvals::PENDING_MAX;

use super::schema::VERSION;

/// The time since its last renewal after which a writer counts as lost, as an SQL interval.
const LOST: &str = "interval '15 seconds'";
/// Columns of `receipts` that a stored receipt is read from.
const RECEIPT: &str = "r.fence, r.body, r.zbody, r.receipt_id";
/// Columns of `writers` that a head is read from.
pub(super) const HEAD: &str = "w.writer, w.size, w.last_leaf, w.root, w.started, w.stopped, w.named, \
                               w.checkpoint";
/// Columns of `queue` that a call is read from.
pub(super) const CALL: &str = "call_id, caller, request, state, enqueued, finished, worker, \
                               deliveries, cancel, progress, result, queued_by, finished_by, mac, identity";

/// Selects an event by its writer and sequence number.
pub(super) const EVENT: &str = "SELECT body, zbody FROM events WHERE writer = $1 AND seq = $2";

/// Selects windows by their keys and lengths, with the calls in them. All end at one time of the database.
pub(super) const WINDOWS: &str = "
    WITH now AS MATERIALIZED (SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint AS ms)
    SELECT n.key, n.length, now.ms - n.length, counted.count, counted.sum, last.at_ms[1], last.at_ms[2]
    FROM unnest($1::text[], $2::bigint[]) AS n (key, length)
    CROSS JOIN now
    CROSS JOIN LATERAL (
        SELECT count(*) AS count, coalesce(sum(amount), 0)::text AS sum
        FROM history h WHERE h.key = n.key AND h.at_ms > now.ms - n.length) AS counted
    CROSS JOIN LATERAL (
        SELECT array_agg(l.at_ms ORDER BY l.at_ms DESC) AS at_ms
        FROM (SELECT at_ms FROM history h WHERE h.key = n.key AND h.at_ms > now.ms - n.length
              ORDER BY at_ms DESC LIMIT 2) AS l) AS last";

/// As [`WINDOWS`], by their stored sums. If the sums are known, only the calls that have left the window
/// since are read. The last columns state whether sums are stored, and how many calls were read.
///
/// Sums are known if they begin before the window, by at most its length, and are not less than what has left it.
const WINDOWS_BY_SUMS: &str = "
    WITH now AS MATERIALIZED (SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint AS ms)
    SELECT n.key, n.length, now.ms - n.length,
        CASE WHEN k.known THEN s.calls - gone.calls ELSE counted.calls END,
        (CASE WHEN k.known THEN s.amount - gone.amount ELSE counted.amount END)::text,
        last.at_ms[1], last.at_ms[2], s.key IS NOT NULL, gone.calls + counted.calls
    FROM unnest($1::text[], $2::bigint[]) AS n (key, length)
    CROSS JOIN now
    LEFT JOIN window_sums s ON s.key = n.key AND s.length_ms = n.length
        AND s.after_ms <= now.ms - n.length AND s.after_ms > now.ms - 2 * n.length
    CROSS JOIN LATERAL (
        SELECT count(*) AS calls, coalesce(sum(h.amount), 0) AS amount FROM history h
        WHERE h.key = n.key AND h.at_ms > s.after_ms AND h.at_ms <= now.ms - n.length) AS gone
    CROSS JOIN LATERAL (
        SELECT coalesce(s.calls >= gone.calls AND s.amount >= gone.amount AND s.amount < 1e36
            AND s.amount = trunc(s.amount), false) AS known) AS k
    CROSS JOIN LATERAL (
        SELECT count(*) AS calls, coalesce(sum(h.amount), 0) AS amount FROM history h
        WHERE NOT k.known AND h.key = n.key AND h.at_ms > now.ms - n.length) AS counted
    CROSS JOIN LATERAL (
        SELECT array_agg(l.at_ms ORDER BY l.at_ms DESC) AS at_ms
        FROM (SELECT at_ms FROM history h WHERE h.key = n.key AND h.at_ms > now.ms - n.length
              ORDER BY at_ms DESC LIMIT 2) AS l) AS last";

/// Columns of the event that accounts for an approval or an order.
pub(super) const ACCOUNTING_EVENT: &str = "v.body, v.zbody";
/// A table `a` with records, joined with the events that they name.
///
/// The place is matched as text, because a cast of a body that is not JSON would fail the whole
/// query. Text that matches the pattern is a JSON string. The place is the last member of a record: texts
/// before it are not the gateway's own.
macro_rules! accounted {
    ($table:literal) => {
        concat!(
            $table,
            r#" a LEFT JOIN events v
     ON v.writer = ('"' || substring(a.body FROM
             '"auditSeq":\{"writer":"((?:[^"\\[:cntrl:]]|\\["\\/bfnrt])*)","seq":[0-9]{1,18}\}\}$'
         ) || '"')::json #>> '{}'
         AND v.seq = substring(a.body FROM
             '"auditSeq":\{"writer":"(?:[^"\\[:cntrl:]]|\\["\\/bfnrt])*","seq":([0-9]{1,18})\}\}$'
         )::bigint"#
        )
    };
}

/// Approvals `a`, joined with the events that they name.
pub(super) const ACCOUNTED_APPROVALS: &str = accounted!("approvals");
/// Orders `a`, joined with the events that they name.
pub(super) const ACCOUNTED_ORDERS: &str = accounted!("orders");

/// The parameters of a statement.
pub(super) type Parameters<'p> = Vec<Box<dyn ToSql + Sync + Send + 'p>>;

macro_rules! statements {
    ($($name:ident = $sql:expr;)+) => {
        pub(super) struct Statements { $(pub(super) $name: Statement,)+ }

        impl Statements {
            pub(super) async fn prepare(client: &Client) -> Result<Self, Error> {
                $(let $name = client.prepare(&$sql).await?;)+
                Ok(Self { $($name,)+ })
            }
        }
    };
}

/// Returns the SQL condition that the writer `w` of a row is lost.
fn is_lost() -> String {
    format!("(w.writer IS NULL OR w.stopped OR w.renewed < clock_timestamp() - {LOST})")
}

/// Makes a change fail with a division by zero unless it affects exactly `count` rows.
fn exactly(change: &str, count: &str) -> String {
    format!(
        "WITH changed AS ({change} RETURNING 1) SELECT 1 / (count(*) = {count})::int FROM changed"
    )
}

statements! {
    // Each statement must see what was committed while it waited for a lock.
    begin = "BEGIN ISOLATION LEVEL READ COMMITTED";
    // For the start, which takes over all records of an earlier version between reading and writing.
    may_idle = "SET LOCAL idle_in_transaction_session_timeout = '60s'";
    commit = "COMMIT";
    rollback = "ROLLBACK";
    locks = "SELECT pg_advisory_xact_lock(l) FROM unnest($1::bigint[]) AS l";
    try_locks = "SELECT l, pg_try_advisory_xact_lock(l) FROM unnest($1::bigint[]) AS l";
    keys = "SELECT key, receipt_id FROM keys WHERE key = ANY($1)";
    receipts = format!(
        "SELECT {RECEIPT}, {} AS owner_lost FROM receipts r
         LEFT JOIN writers w ON w.writer = r.writer
         WHERE r.receipt_id IN (SELECT k.receipt_id FROM keys k WHERE k.key = ANY($1)
                                UNION SELECT unnest($2::text[]))
         ORDER BY r.receipt_id FOR UPDATE OF r", is_lost());
    rates = "SELECT r.tool, r.caller, r.tat_ms FROM rates r
             JOIN unnest($1::text[], $2::text[]) AS n (tool, caller)
                 ON n.tool = r.tool AND n.caller = r.caller";
    budgets = "SELECT key, day, units, changed_by FROM budgets WHERE key = ANY($1)";
    clock = "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint";
    running = format!(
        "SELECT r.tool, count(*) FROM receipts r JOIN writers w ON w.writer = r.writer
         WHERE r.state = 'in_flight' AND r.tool = ANY($1)
             AND NOT w.stopped AND w.renewed >= clock_timestamp() - {LOST}
         GROUP BY r.tool");
    approvals = format!("SELECT a.body, {ACCOUNTING_EVENT} FROM {ACCOUNTED_APPROVALS}
                 JOIN unnest($1::text[], $2::text[], $3::text[]) AS n (tool, caller, args)
                     ON n.tool = a.tool AND n.caller = a.caller AND n.args = a.args_digest
                 WHERE a.state <> 'spent'");
    pending = format!(
        "SELECT n.caller, n.after, (SELECT count(*) FROM (
             SELECT 1 FROM approvals a
             WHERE a.approval_id > n.after AND a.caller = n.caller AND a.state = 'pending'
             LIMIT {PENDING_MAX}) AS found)
         FROM unnest($1::text[], $2::text[]) AS n (caller, after)");
    windows = WINDOWS_BY_SUMS;
    remove_history = "DELETE FROM history WHERE receipt_id = ANY($1)";
    put_history = "INSERT INTO history (key, at_ms, receipt_id, amount, until_ms)
                   SELECT * FROM unnest($1::text[], $2::bigint[], $3::text[], $4::bigint[],
                       $5::bigint[])";
    // Calls from before the sums begin are not in them.
    change_sums = "UPDATE window_sums s SET
                       calls = s.calls + (SELECT coalesce(sum(d.calls), 0)
                           FROM unnest($1::text[], $2::bigint[], $3::bigint[]) AS d (key, at_ms, calls)
                           WHERE d.key = s.key AND d.at_ms > s.after_ms),
                       amount = s.amount + (SELECT coalesce(sum(d.amount), 0)
                           FROM unnest($1::text[], $2::bigint[], $4::bigint[]) AS d (key, at_ms, amount)
                           WHERE d.key = s.key AND d.at_ms > s.after_ms)
                   WHERE s.key = ANY($1)";
    put_sums = "INSERT INTO window_sums (key, length_ms, after_ms, calls, amount, until_ms)
                SELECT n.key, n.length, n.after, n.calls, n.amount::numeric, n.after + 2 * n.length
                FROM unnest($1::text[], $2::bigint[], $3::bigint[], $4::bigint[], $5::text[])
                    AS n (key, length, after, calls, amount)
                ON CONFLICT (key, length_ms) DO UPDATE SET after_ms = excluded.after_ms,
                    calls = excluded.calls, amount = excluded.amount, until_ms = excluded.until_ms";
    // All calls that were in these windows when they were read have left them since.
    end_sums = "DELETE FROM window_sums s USING (
                    SELECT key, length_ms FROM window_sums
                    WHERE until_ms < (extract(epoch FROM clock_timestamp()) * 1000)::bigint
                    ORDER BY key, length_ms LIMIT 1000 FOR UPDATE SKIP LOCKED) AS ended
                WHERE s.key = ended.key AND s.length_ms = ended.length_ms";
    approvals_by_id = format!(
        "SELECT a.body, {ACCOUNTING_EVENT} FROM {ACCOUNTED_APPROVALS} WHERE a.approval_id = ANY($1)");
    orders = format!("SELECT a.kind, a.name, a.body, {ACCOUNTING_EVENT}, a.used FROM {ACCOUNTED_ORDERS}");
    calls = format!(
        "SELECT {CALL} FROM queue q JOIN unnest($1::text[], $2::text[]) AS n (own, id)
             ON n.own = q.caller AND n.id = q.call_id
         ORDER BY q.place FOR UPDATE OF q");
    key_ids = "SELECT key_id FROM digest_keys";
    waiting = "SELECT caller, count(*) FROM queue WHERE state = 'queued' GROUP BY caller";
    lost_claims = format!(
        "SELECT {RECEIPT}, true FROM receipts r LEFT JOIN writers w ON w.writer = r.writer
         WHERE r.state IN ('in_flight', 'awaiting_input') AND r.writer <> $1 AND {}
         ORDER BY r.receipt_id LIMIT 1000 FOR UPDATE OF r SKIP LOCKED", is_lost());
    heads = format!(
        "SELECT {HEAD}, {} FROM writers w WHERE w.writer <> $1 ORDER BY w.writer", is_lost());
    unnamed = format!(
        "SELECT {HEAD}, {} FROM writers w
         WHERE w.writer <> $1 AND NOT w.named ORDER BY w.writer LIMIT $2", is_lost());
    prunable = format!(
        "SELECT {RECEIPT}, false, EXISTS (SELECT 1 FROM keys k WHERE k.receipt_id = r.receipt_id)
         FROM receipts r WHERE r.settled < $1 AND NOT EXISTS (
             SELECT 1 FROM history h WHERE h.receipt_id = r.receipt_id
                 AND h.until_ms > least($3, (extract(epoch FROM clock_timestamp()) * 1000)::bigint))
         AND NOT EXISTS (
             SELECT 1 FROM unnest($4::text[], $5::bool[], $6::bigint[]) AS w (tool, is_prefix, length_ms)
             JOIN history h ON h.receipt_id = r.receipt_id AND h.at_ms + w.length_ms
                 > least($3, (extract(epoch FROM clock_timestamp()) * 1000)::bigint)
             WHERE CASE WHEN w.is_prefix
                 THEN starts_with(r.tool, w.tool) AND r.tool <> w.tool
                 ELSE r.tool = w.tool END)
         LIMIT $2
         FOR UPDATE OF r SKIP LOCKED");
    // Rows are read in physical order, so the oldest are usually first.
    prunable_logs = "SELECT writer, seq FROM agent_logs WHERE time < $1 LIMIT $2
                     FOR UPDATE SKIP LOCKED";
    remove_logs = "DELETE FROM agent_logs l
                   USING unnest($1::text[], $2::bigint[]) AS n (writer, seq)
                   WHERE l.writer = n.writer AND l.seq = n.seq";
    // Receipts whose shared parts are written back into agent logs.
    ended_at = "SELECT body, zbody, receipt_id FROM receipts WHERE receipt_id = ANY($1)";
    shared_logs = "SELECT l.writer, l.seq, l.body, l.zbody, l.shared
                   FROM agent_logs l JOIN unnest($1::text[], $2::bigint[]) AS n (writer, seq)
                       ON n.writer = l.writer AND n.seq = l.seq
                   WHERE l.shared IS NOT NULL FOR UPDATE OF l";
    give_logs = "UPDATE agent_logs l SET body = '', zbody = n.zbody, shared = NULL
                 FROM unnest($1::text[], $2::bigint[], $3::bytea[]) AS n (writer, seq, zbody)
                 WHERE l.writer = n.writer AND l.seq = n.seq";
    // Marks the blocks of removed records as stale, and the preceding blocks, which may contain the
    // dispatch. `DO UPDATE` locks an existing row: a replica that takes that block waits until the
    // records are removed.
    lost = "INSERT INTO stale (writer, block)
            SELECT DISTINCT w.writer, b.block FROM unnest($1::text[], $2::bigint[]) AS n (writer, seq)
            JOIN writers w ON w.writer = n.writer
            CROSS JOIN LATERAL
                (VALUES (n.seq / $3::bigint), (greatest(n.seq / $3::bigint - 1, 0))) AS b (block)
            ORDER BY 1, 2 ON CONFLICT (writer, block) DO UPDATE SET block = excluded.block";
    // Calls of lost workers were queued first, so they are taken first.
    next_call = format!(
        "SELECT {CALL} FROM queue WHERE place = (
             SELECT q.place FROM queue q LEFT JOIN writers w ON w.writer = q.worker
             WHERE q.state = 'queued' OR (q.state = 'running' AND ({}
                 OR (q.worker = $1 AND NOT (q.caller || chr(31) || q.call_id = ANY($2)))))
             ORDER BY q.state DESC, q.enqueued, q.place LIMIT 1 FOR UPDATE OF q SKIP LOCKED)", is_lost());
    event = EVENT;
    put_gone = "INSERT INTO gone (writer, seq, size, root)
                SELECT $1::text, n.seq, n.size, n.root
                FROM unnest($2::bigint[], $3::bigint[], $4::text[]) AS n (seq, size, root)";
    remove_gone = "DELETE FROM gone WHERE writer = $1 AND seq >= $2 AND seq < $3";
    remove_events = "DELETE FROM events WHERE writer = $1 AND seq = ANY($2)";
    looked_at = "DELETE FROM stale WHERE writer = $1 AND block = $2";
    prunable_calls = "SELECT caller, call_id FROM queue WHERE finished < $1
                      ORDER BY finished LIMIT $2 FOR UPDATE SKIP LOCKED";
    prunable_approvals = r#"SELECT approval_id FROM approvals
                          WHERE coalesce(substring(body FROM '"expiresAt":"([^"]*)"'),
                              substring(body FROM '"requestedAt":"([^"]*)"')) < $1
                          ORDER BY approval_id LIMIT $2 FOR UPDATE SKIP LOCKED"#;
    // Without `FOR UPDATE`, a use that another replica states meanwhile would be lost.
    prunable_documents = "SELECT digest FROM documents
                          WHERE used < $1 AND NOT EXISTS (SELECT 1 FROM agent_logs WHERE time < $2)
                          ORDER BY digest LIMIT $3 FOR UPDATE SKIP LOCKED";
    remove_documents = "DELETE FROM documents WHERE digest = ANY($1)";
    remove_approvals = "DELETE FROM approvals WHERE approval_id = ANY($1)";
    remove_calls = "DELETE FROM queue q USING unnest($1::text[], $2::text[]) AS n (caller, call_id)
                    WHERE q.caller = n.caller AND q.call_id = n.call_id";
    insert_receipts = "INSERT INTO receipts
                           (receipt_id, tool, state, writer, fence, settled, zbody)
                       SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::text[],
                           $5::bigint[], $6::text[], $7::bytea[])";
    // The cached state of a claim is valid only while the row has the same state and fence.
    update_receipts = exactly(
        "UPDATE receipts r SET state = n.state, writer = n.writer, fence = n.fence,
             settled = n.settled, body = '', zbody = n.zbody
         FROM unnest($1::text[], $2::text[], $3::bigint[], $4::text[], $5::text[], $6::bigint[],
             $7::text[], $8::bytea[])
             AS n (id, was, held, state, writer, fence, settled, zbody)
         WHERE r.receipt_id = n.id AND r.state = n.was AND r.fence = n.held", "$9::bigint");
    remove_receipts = "DELETE FROM receipts WHERE receipt_id = ANY($1)";
    free_keys = "DELETE FROM keys WHERE receipt_id = ANY($1)";
    hold_keys = "INSERT INTO keys (key, receipt_id) SELECT * FROM unnest($1::text[], $2::text[])
                 ON CONFLICT (key) DO UPDATE SET receipt_id = excluded.receipt_id";
    put_rates = "INSERT INTO rates (tool, caller, tat_ms)
                 SELECT * FROM unnest($1::text[], $2::text[], $3::bigint[])
                 ON CONFLICT (tool, caller) DO UPDATE SET tat_ms = excluded.tat_ms";
    put_approvals = "INSERT INTO approvals
                         (approval_id, tool, caller, args_digest, contract_digest, state, body)
                     SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::text[],
                         $5::text[], $6::text[], $7::text[])
                     ON CONFLICT (approval_id) DO UPDATE SET
                         state = excluded.state, body = excluded.body";
    // Those that another replica changes are left to it.
    end_budgets = "DELETE FROM budgets WHERE key IN (
                       SELECT key FROM budgets WHERE day < $1 ORDER BY key LIMIT 1000
                       FOR UPDATE SKIP LOCKED)";
    put_budgets = "INSERT INTO budgets (key, day, units, changed_by)
                   SELECT * FROM unnest($1::text[], $2::text[], $3::bigint[], $4::text[])
                   ON CONFLICT (key) DO UPDATE SET day = excluded.day, units = excluded.units,
                       changed_by = excluded.changed_by";
    put_orders = "INSERT INTO orders (kind, name, body)
                  SELECT * FROM unnest($1::text[], $2::text[], $3::text[])
                  ON CONFLICT (kind, name) DO UPDATE SET body = excluded.body";
    record_uses = "UPDATE orders o SET used = n.used
                 FROM unnest($1::text[], $2::text[]) AS n (name, used)
                 WHERE o.kind = 'key' AND o.name = n.name
                     AND (o.used IS NULL OR o.used < n.used)";
    // A place is derived from the transaction id, so that transactions need no shared counter.
    put_events = "INSERT INTO events (writer, seq, place, time, tool, agent, call_id, status, code,
                      receipt_id, has_log, milestone, zbody)
                  SELECT $1::text, n.seq,
                      ((pg_current_xact_id()::text::bigint << 20) + n.ord),
                      n.time, n.tool, n.agent, n.call_id, n.status, n.code, n.receipt_id, n.has_log,
                      n.milestone, n.zbody
                  FROM unnest($2::bigint[], $3::text[], $4::text[], $5::text[], $6::text[],
                      $7::text[], $8::text[], $9::text[], $10::boolean[], $11::boolean[],
                      $12::bytea[])
                      WITH ORDINALITY AS n (seq, time, tool, agent, call_id, status, code,
                          receipt_id, has_log, milestone, zbody, ord)";
    put_logs = "INSERT INTO agent_logs (writer, seq, time, zbody, shared)
                SELECT $1::text, n.seq, n.time, n.zbody, n.shared
                FROM unnest($2::bigint[], $3::text[], $4::bytea[], $5::text[])
                    AS n (seq, time, zbody, shared)";
    // A row is written anew only if its use is old, because it can be large.
    put_documents = "INSERT INTO documents (digest, zbody, used)
                     SELECT n.digest, n.zbody, n.used
                     FROM unnest($1::text[], $2::bytea[], $3::text[]) AS n (digest, zbody, used)
                     ON CONFLICT (digest) DO UPDATE SET used = excluded.used
                         WHERE documents.used < $4";
    put_calls = "INSERT INTO queue (caller, call_id, request, enqueued, state, finished, worker,
                     deliveries, cancel, progress, result, queued_by, finished_by, mac,
                     identity)
                 SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[],
                     $6::text[], $7::text[], $8::integer[], $9::boolean[], $10::text[], $11::text[],
                     $12::text[], $13::text[], $14::text[], $15::text[])
                 ON CONFLICT (caller, call_id) DO UPDATE SET
                     state = excluded.state, finished = excluded.finished,
                     worker = excluded.worker, deliveries = excluded.deliveries,
                     cancel = excluded.cancel, progress = excluded.progress,
                     result = excluded.result, queued_by = excluded.queued_by,
                     finished_by = excluded.finished_by, mac = excluded.mac";
    // A log that has grown since its head was read is named by a later checkpoint.
    name_writers = "UPDATE writers w SET named = true
                    FROM unnest($1::text[], $2::bigint[]) AS n (writer, size)
                    WHERE w.writer = n.writer AND w.size = n.size";
    set_checkpoint = "UPDATE writers SET checkpoint = $2 WHERE writer = $1";
    // A newer version may have migrated the database since, here and below.
    renew = exactly(
        &format!(
            "UPDATE writers SET renewed = clock_timestamp() WHERE writer = $1 AND NOT stopped
                 AND (SELECT version FROM toolbooth_version) <= {VERSION}"), "1");
    // Resets `named`, because other writers may have treated this one as lost and permanently named
    // its end.
    advance = exactly(
        &format!(
            "UPDATE writers SET size = $3, last_leaf = $4, root = $5, named = false,
                 renewed = clock_timestamp()
             WHERE writer = $1 AND size = $2 AND NOT stopped
                 AND (SELECT version FROM toolbooth_version) <= {VERSION}"), "1");
    stop = "UPDATE writers SET stopped = true WHERE writer = $1";
}
