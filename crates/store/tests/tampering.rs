//! Tests that verification finds each changed column, and each removed or added row, of a SQLite
//! store.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use rusqlite::Connection;
use rusqlite::types::Value;
use toolbooth_audit::Ledger;
use toolbooth_audit::conformance::{every_kind_of_row, moment};
use toolbooth_audit::orders::{OrderChange, OrderRequest, Ordered};
use toolbooth_audit::reads::{EventFilter, LedgerReads, LogFilter, ReceiptFilter};
use toolbooth_audit::verify::{self, TrustAnchors};
use toolbooth_contracts::event::{AuditEventKind, EventBody};
use toolbooth_store::sqlite::{self, DATABASE, SqliteOptions, SqliteReads, StoreFolder};

/// Columns that can change without a verification problem, each with the reason.
const UNSEEN: [(&str, &str, &str); 7] = [
    ("documents", "used", "when it was used last: one that is removed too early is missing"),
    ("orders", "used", "a hint for operators: when a key was last used"),
    ("stale", "*", "blocks of logs that pruning looks at again"),
    ("sqlite_sequence", "*", "SQLite's own counters: it goes on from the largest row as well"),
    ("rates", "*", "nothing follows from it but how soon the next call may come"),
    ("writers", "named", "one that was named is named again"),
    ("queue", "place", "the order of calls that came in the same millisecond"),
];

fn tables(connection: &Connection) -> Vec<(String, Vec<String>)> {
    let names: Vec<String> = connection
        .prepare("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")
        .unwrap()
        .query_map([], |row| row.get(0))
        .unwrap()
        .collect::<Result<_, _>>()
        .unwrap();
    let columns = |table: &String| {
        let sql = format!("SELECT name FROM pragma_table_info('{table}')");
        let mut statement = connection.prepare(&sql).unwrap();
        let columns = statement.query_map([], |row| row.get(0)).unwrap();
        columns.collect::<Result<Vec<String>, _>>().unwrap()
    };
    names.iter().map(|table| (table.clone(), columns(table))).collect()
}

fn rows(connection: &Connection, table: &str) -> Vec<Vec<Value>> {
    let mut statement = connection.prepare(&format!("SELECT * FROM \"{table}\"")).unwrap();
    let count = statement.column_count();
    let read = |row: &rusqlite::Row<'_>| (0..count).map(|at| row.get(at)).collect();
    statement.query_map([], read).unwrap().collect::<Result<_, _>>().unwrap()
}

/// Returns other values for a column.
fn others(value: &Value) -> Vec<Value> {
    let changed = match value {
        Value::Null => vec![Value::Integer(7), Value::Text("other".to_owned())],
        Value::Integer(number) => {
            vec![Value::Integer(number + 1), Value::Integer(i64::from(*number == 0))]
        }
        Value::Real(number) => vec![Value::Real(number + 1.0)],
        Value::Text(text) => vec![
            Value::Text(format!("{text}x")),
            Value::Text("one".to_owned()),
            Value::Text("2099-01-01T00:00:00.000Z".to_owned()),
            Value::Text("queued".to_owned()),
            Value::Text(String::new()),
        ],
        Value::Blob(bytes) => {
            let mut other = bytes.clone();
            let last = other.len() - 1;
            other[last] ^= 1;
            vec![Value::Blob(other), Value::Blob(vec![0])]
        }
    };
    let all = changed.into_iter().chain([Value::Null]);
    all.filter(|other| other != value).collect()
}

/// One change to the database: its description and its statement.
struct Tampering {
    table: String,
    column: String,
    what: String,
    sql: String,
    values: Vec<Value>,
}

fn tamperings(connection: &Connection) -> Vec<Tampering> {
    let mut all = Vec::new();
    for (table, columns) in tables(connection) {
        for (number, row) in rows(connection, &table).iter().enumerate() {
            let is_row: Vec<String> =
                (0..row.len()).map(|at| format!("\"{}\" IS ?{}", columns[at], at + 1)).collect();
            let is_row = is_row.join(" AND ");
            let mut add = |column: &str, what: String, sql: String, values: Vec<Value>| {
                let (table, column) = (table.clone(), column.to_owned());
                all.push(Tampering { table, column, what, sql, values });
            };
            let sql = format!("DELETE FROM \"{table}\" WHERE {is_row}");
            add("*", format!("row {number} is removed"), sql, row.clone());
            for (at, column) in columns.iter().enumerate() {
                for other in others(&row[at]) {
                    let mut values = row.clone();
                    values.push(other.clone());
                    let set = format!("\"{column}\" = ?{}", values.len());
                    let sql = format!("UPDATE \"{table}\" SET {set} WHERE {is_row}");
                    let what = format!("row {number}: {:?} becomes {other:?}", row[at]);
                    add(column, what, sql, values);
                    let mut doubled = row.clone();
                    doubled[at] = other.clone();
                    let names = (1..=row.len()).map(|at| format!("?{at}")).collect::<Vec<_>>();
                    let sql = format!("INSERT INTO \"{table}\" VALUES ({})", names.join(", "));
                    let what = format!("row {number} again, with {other:?} in {column}");
                    add("*", what, sql, doubled);
                }
                if matches!(row[at], Value::Text(_)) {
                    let sql = format!(
                        "UPDATE \"{table}\" SET \"{column}\" = CAST(x'61ff' AS TEXT) WHERE {is_row}"
                    );
                    let what =
                        format!("row {number}: {:?} becomes bytes that are no text", row[at]);
                    add(column, what, sql, row.clone());
                }
            }
        }
    }
    all
}

#[tokio::test]
async fn every_column_that_is_changed_and_every_row_that_is_added_or_removed_is_found() {
    let folder = tempfile::tempdir().unwrap();
    every_kind_of_row(async |writer, at| {
        sqlite::open(folder.path(), writer, SqliteOptions::default(), &moment(at)).unwrap()
    })
    .await;
    let digester = StoreFolder::create(folder.path()).unwrap().digester(false).unwrap();
    let known = || TrustAnchors { digester: Some(digester.clone()), ..TrustAnchors::default() };
    let original = folder.path().join(DATABASE);
    let connection = Connection::open(&original).unwrap();
    let sound = verify::store(&SqliteReads::open(&original).unwrap(), known()).await.unwrap();
    assert!(sound.ok, "{sound:?}");
    let all = tamperings(&connection);
    let copies = tempfile::tempdir().unwrap();
    let (mut unseen, mut tried, mut covered) = (Vec::new(), 0, BTreeSet::new());
    let mut blinded = Vec::new();
    for (number, tampering) in all.iter().enumerate() {
        let Tampering { table, column, what, sql, values } = tampering;
        let copy = copies.path().join(format!("{number}.db"));
        connection.execute("VACUUM INTO ?1", [copy.to_str().unwrap()]).unwrap();
        let changing = Connection::open(&copy).unwrap();
        changing.pragma_update(None, "writable_schema", true).unwrap();
        let changed = changing.execute(sql, rusqlite::params_from_iter(values));
        drop(changing);
        // A statement that the table rejects changes nothing.
        if changed.unwrap_or(0) > 0 {
            tried += 1;
            covered.insert((table.clone(), column.clone()));
            let reads = SqliteReads::open(&copy).unwrap();
            match verify::store(&reads, known()).await {
                Ok(report) if report.ok => {
                    unseen.push((table.as_str(), column.as_str(), what.clone()));
                }
                Ok(_) => (),
                // Damage in one place must not prevent the verification of the rest.
                Err(error) => blinded.push(format!("{table}.{column}: {what}: {error}")),
            }
        }
        for suffix in ["", "-wal", "-shm"] {
            let _ = std::fs::remove_file(copies.path().join(format!("{number}.db{suffix}")));
        }
    }
    let excused = |table: &str, column: &str| {
        UNSEEN.iter().any(|(own, of, _)| *own == table && (*of == "*" || *of == column))
    };
    unseen.retain(|(table, column, _)| !excused(table, column));
    for (table, column, what) in &unseen {
        println!("{table}.{column}: {what}");
    }
    assert!(unseen.is_empty(), "{} of {tried} are not found", unseen.len());
    assert!(blinded.is_empty(), "verification does not end: {blinded:#?}");
    for (table, columns) in tables(&connection) {
        for column in columns {
            let is = covered.contains(&(table.clone(), column.clone()));
            assert!(is || excused(&table, &column), "{table}.{column} was not tried");
        }
    }
    println!("{tried} tamperings");
}

/// Returns the counts of the records that are listed without a filter, and the damaged ones.
async fn listed(reads: &SqliteReads) -> ([usize; 3], Vec<String>) {
    let receipts = reads.receipts(ReceiptFilter { limit: 100, ..Default::default() });
    let receipts = receipts.await.unwrap();
    let logs = reads.agent_logs(LogFilter { limit: 100, ..Default::default() }).await.unwrap();
    let events = reads.events(EventFilter { limit: 100, ..Default::default() }).await.unwrap();
    let counts = [receipts.found.len(), logs.found.len(), events.found.len()];
    let damaged = receipts.damaged.into_iter().chain(logs.damaged).chain(events.damaged);
    (counts, damaged.map(|row| format!("{} {}", row.table, row.row)).collect())
}

#[tokio::test]
async fn damaged_rows_are_named_and_the_others_are_listed_and_verified() {
    let folder = tempfile::tempdir().unwrap();
    every_kind_of_row(async |writer, at| {
        sqlite::open(folder.path(), writer, SqliteOptions::default(), &moment(at)).unwrap()
    })
    .await;
    let original = folder.path().join(DATABASE);
    let (all, none) = listed(&SqliteReads::open(&original).unwrap()).await;
    assert!(none.is_empty() && all.iter().all(|count| *count > 2), "{all:?} {none:?}");
    let connection = Connection::open(&original).unwrap();
    let first = |sql: &str| connection.query_row(sql, [], |row| row.get::<_, i64>(0)).unwrap();
    let event = first(
        "SELECT min(place) FROM events WHERE place NOT IN (SELECT place FROM agent_logs)
             AND place NOT IN (SELECT place FROM milestones)",
    );
    let log = first("SELECT min(place) FROM agent_logs");
    let copies = tempfile::tempdir().unwrap();
    for (number, (damage, row, lost)) in [
        (
            "UPDATE receipts SET body = x'00' WHERE id = 'receipt-a'",
            "receipts receipt-a".to_owned(),
            0,
        ),
        (
            "UPDATE open_receipts SET body = x'02' WHERE id = 'receipt-going'",
            "receipts receipt-going".to_owned(),
            0,
        ),
        (
            "UPDATE tombstones SET body = x'' WHERE id = 'receipt-old'",
            "receipts receipt-old".to_owned(),
            0,
        ),
        (
            &format!("UPDATE agent_logs SET body = x'01' WHERE place = {log}"),
            format!("agent_logs {log}"),
            1,
        ),
        (
            &format!("UPDATE events SET body = x'01' WHERE place = {event}"),
            format!("events {event}"),
            2,
        ),
    ]
    .into_iter()
    .enumerate()
    {
        let copy = copies.path().join(format!("{number}.db"));
        connection.execute("VACUUM INTO ?1", [copy.to_str().unwrap()]).unwrap();
        // The search index is filled before the damage.
        std::fs::create_dir(copies.path().join(format!("{number}"))).unwrap();
        let own = copies.path().join(format!("{number}")).join(DATABASE);
        std::fs::rename(copy, &own).unwrap();
        listed(&SqliteReads::open(&own).unwrap()).await;
        assert_eq!(Connection::open(&own).unwrap().execute(damage, []).unwrap(), 1, "{damage}");
        let reads = SqliteReads::open(&own).unwrap();
        let (left, damaged) = listed(&reads).await;
        assert!(damaged.contains(&row), "{damage}: {damaged:?}");
        assert_eq!(left[lost], all[lost] - 1, "{damage}: {left:?} of {all:?}");
        let report = verify::store(&reads, TrustAnchors::default()).await.unwrap();
        assert!(!report.ok && report.events == verified(&original).await, "{damage}: {report:?}");
    }
}

async fn verified(database: &std::path::Path) -> u64 {
    let reads = SqliteReads::open(database).unwrap();
    verify::store(&reads, TrustAnchors::default()).await.unwrap().events
}

#[tokio::test]
async fn a_receipt_that_holds_a_key_is_not_removed_with_its_key() {
    let folder = tempfile::tempdir().unwrap();
    every_kind_of_row(async |writer, at| {
        sqlite::open(folder.path(), writer, SqliteOptions::default(), &moment(at)).unwrap()
    })
    .await;
    let database = folder.path().join(DATABASE);
    let removed = Connection::open(&database).unwrap().execute_batch(
        "DELETE FROM keys WHERE receipt IN (SELECT id FROM tombstones);
             DELETE FROM tombstones;",
    );
    removed.unwrap();
    let reads = SqliteReads::open(&database).unwrap();
    let report = verify::store(&reads, TrustAnchors::default()).await.unwrap();
    let found = |problem: &verify::Problem| problem.kind == "receipt-missing";
    assert!(report.problems.iter().any(found), "{report:?}");
}

/// Returns the results of searches that use the index.
async fn searched(database: &Path) -> Vec<String> {
    let reads = SqliteReads::open(database).unwrap();
    let mut answers = Vec::new();
    let mut asked = vec![EventFilter::default()];
    for name in ["tool.one", "tool.two", "nothing"] {
        asked.push(EventFilter { tool: Some(name.to_owned()), ..Default::default() });
    }
    for status in ["succeeded", "failed", "denied"] {
        asked.push(EventFilter { status: Some(status.to_owned()), ..Default::default() });
    }
    for call in ["a", "doubt", "queued"] {
        asked.push(EventFilter { call: Some(call.to_owned()), ..Default::default() });
    }
    for filter in asked {
        let filter = EventFilter { limit: 50, ..filter };
        let page = reads.events(filter.clone()).await.unwrap();
        let ids =
            page.found.iter().map(|placed| format!("{} {}", placed.event.writer, placed.event.seq));
        answers.push(format!("{filter:?}: {:?}", ids.collect::<Vec<_>>()));
    }
    let filter =
        ReceiptFilter { tool: Some("tool.one".to_owned()), limit: 50, ..Default::default() };
    answers.push(format!("{:?}", reads.receipts(filter).await.unwrap()));
    let mut named = reads.named("receipt-", 50).await.unwrap();
    named.sort_by(|one, other| one.id.cmp(&other.id));
    answers.push(format!("{named:?}"));
    answers
}

/// Copies the database, its index and its key.
fn copy_of(folder: &Path, target: &Path) -> PathBuf {
    std::fs::create_dir(target).unwrap();
    for file in [DATABASE, "lookup.db", "digest.key"] {
        std::fs::copy(folder.join(file), target.join(file)).unwrap();
    }
    target.join(DATABASE)
}

#[tokio::test]
async fn every_row_of_the_index_that_is_changed_is_found_and_no_search_is_led_astray() {
    let folder = tempfile::tempdir().unwrap();
    let open = async |writer: &str, at| {
        sqlite::open(folder.path(), writer, SqliteOptions::default(), &moment(at)).unwrap()
    };
    every_kind_of_row(open).await;
    let target = tempfile::tempdir().unwrap();
    let (mut tried, mut covered) = (0, BTreeSet::new());
    for tables_tried in [&["tail", "names", "ends", "seal"][..], &["blocks", "ids"]] {
        if tables_tried.contains(&"blocks") {
            let ledger = open("many", 100).await;
            let note = |n: i64| {
                let mut body = EventBody::new(AuditEventKind::Paused, moment(100 + n).text);
                body.call_id = Some(format!("01985b6e-7c1a-7e2b-9f00-{n:012x}"));
                body
            };
            ledger.record_events((0..4_200).map(note).collect()).await.unwrap();
            ledger.close(moment(9_000)).await.unwrap();
        }
        let wanted = searched(&folder.path().join(DATABASE)).await;
        let connection = Connection::open(folder.path().join("lookup.db")).unwrap();
        let mut all = tamperings(&connection);
        drop(connection);
        all.retain(|tampering| tables_tried.contains(&tampering.table.as_str()));
        // Only some changes of the many entries are tried. Of the one block, all changes but added
        // blocks are tried.
        let mut number = 0;
        all.retain(|tampering| {
            number += 1;
            match tampering.table.as_str() {
                "tail" => number % 11 == 0,
                "blocks" => !tampering.what.contains("again"),
                _ => true,
            }
        });
        for Tampering { table, column, what, sql, values } in all {
            let own = target.path().join(tried.to_string());
            let database = copy_of(folder.path(), &own);
            let changing = Connection::open(own.join("lookup.db")).unwrap();
            let changed = changing.execute(&sql, rusqlite::params_from_iter(values));
            drop(changing);
            // A statement that the table rejects changes nothing.
            if changed.unwrap_or(0) > 0 {
                tried += 1;
                let reads = SqliteReads::open(&database).unwrap();
                let report = verify::store(&reads, TrustAnchors::default()).await.unwrap();
                drop(reads);
                let is_found =
                    report.problems.iter().any(|problem| problem.kind == "index-differs");
                // A change of the seal alone changes no result.
                assert!(is_found || table == "seal", "{table}.{column}: {what}");
                assert_eq!(searched(&database).await, wanted, "{table}.{column}: {what}");
                // The index was rebuilt.
                let reads = SqliteReads::open(&database).unwrap();
                let report = verify::store(&reads, TrustAnchors::default()).await.unwrap();
                assert!(report.ok, "{table}.{column}: {what}: {report:?}");
                covered.insert((table, column));
            }
            std::fs::remove_dir_all(own).unwrap();
        }
    }
    for (table, columns) in tables(&Connection::open(folder.path().join("lookup.db")).unwrap()) {
        for column in columns {
            assert!(covered.contains(&(table.clone(), column.clone())), "{table}.{column}");
        }
    }
    println!("{tried} tamperings");
}

#[tokio::test]
async fn a_search_of_verification_does_not_hide_that_the_index_was_changed() {
    let folder = tempfile::tempdir().unwrap();
    every_kind_of_row(async |writer, at| {
        sqlite::open(folder.path(), writer, SqliteOptions::default(), &moment(at)).unwrap()
    })
    .await;
    let database = folder.path().join(DATABASE);
    searched(&database).await;
    let index = Connection::open(folder.path().join("lookup.db")).unwrap();
    assert!(index.execute("DELETE FROM tail WHERE no % 2 = 0", []).unwrap() > 0);
    drop(index);
    // Verification uses a search to look up a receipt with a missing event.
    let connection = Connection::open(&database).unwrap();
    let dispatched = "SELECT min(place) FROM events
                      WHERE place > (SELECT min(place) FROM events WHERE place >> 40 = 2)
                          AND place NOT IN (SELECT place FROM milestones)";
    let removed = format!("DELETE FROM events WHERE place = ({dispatched})");
    assert_eq!(connection.execute(&removed, []).unwrap(), 1);
    drop(connection);
    let reads = SqliteReads::open(&database).unwrap();
    let report = verify::store(&reads, TrustAnchors::default()).await.unwrap();
    let kinds: BTreeSet<&str> =
        report.problems.iter().map(|problem| problem.kind.as_str()).collect();
    assert!(kinds.contains("index-differs") && kinds.contains("missing"), "{report:?}");
}

#[tokio::test]
async fn a_budget_is_not_hidden_behind_a_change_that_no_log_contains() {
    let folder = tempfile::tempdir().unwrap();
    every_kind_of_row(async |writer, at| {
        sqlite::open(folder.path(), writer, SqliteOptions::default(), &moment(at)).unwrap()
    })
    .await;
    let database = folder.path().join(DATABASE);
    let connection = Connection::open(&database).unwrap();
    let hidden = "UPDATE budgets SET units = 0, changed_by = json_set(changed_by, '$.seq', 900000)";
    assert!(connection.execute(hidden, []).unwrap() > 0);
    let reads = SqliteReads::open(&database).unwrap();
    let report = verify::store(&reads, TrustAnchors::default()).await.unwrap();
    let found = |problem: &verify::Problem| problem.kind == "budget-changed";
    assert!(report.problems.iter().any(found), "{report:?}");
}

#[tokio::test]
async fn a_decision_that_was_put_back_and_decided_again_is_found() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = sqlite::open(folder.path(), "one", SqliteOptions::default(), &moment(0)).unwrap();
    let decide = async |change: OrderChange, at: i64| {
        let request = OrderRequest { change, by: "operator".to_owned(), at: moment(at) };
        assert!(matches!(ledger.order(request).await.unwrap(), Ordered::Done(_)));
    };
    let create = OrderChange::CreateKey {
        name: "ci".to_owned(),
        digest: "d".to_owned(),
        groups: Vec::new(),
        expires_at: None,
    };
    let revoke = || OrderChange::RevokeKey { name: "ci".to_owned() };
    decide(create, 1).await;
    let database = folder.path().join(DATABASE);
    let connection = Connection::open(&database).unwrap();
    connection.execute_batch("CREATE TEMP TABLE before AS SELECT * FROM orders").unwrap();
    decide(revoke(), 2).await;
    connection
        .execute_batch("DELETE FROM orders; INSERT INTO orders SELECT * FROM before")
        .unwrap();
    ledger.close(moment(3)).await.unwrap();
    let ledger = sqlite::open(folder.path(), "two", SqliteOptions::default(), &moment(4)).unwrap();
    let request = OrderRequest { change: revoke(), by: "operator".to_owned(), at: moment(5) };
    assert!(matches!(ledger.order(request).await.unwrap(), Ordered::Done(_)));
    ledger.close(moment(6)).await.unwrap();
    let reads = SqliteReads::open(&database).unwrap();
    let report = verify::store(&reads, TrustAnchors::default()).await.unwrap();
    let found = |problem: &verify::Problem| problem.kind == "order-changed";
    assert!(report.problems.iter().any(found), "{report:?}");
}
