//! Tests that verification finds every change of a PostgreSQL store.
//!
//! Each column of each table is changed in turn, and each row is removed and duplicated.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use tokio_postgres::{Client, NoTls};
use toolbooth_audit::conformance::{every_kind_of_row, moment};
use toolbooth_audit::verify::{self, TrustAnchors};
use toolbooth_audit::{Digester, Ledger};
use toolbooth_store::postgres::{self, PostgresReads};
use toolbooth_tests::postgres::Postgres;

use crate::postgres::{open, options};

/// Columns whose changes verification does not find, each with the reason.
const UNSEEN: [(&str, &str, &str); 14] = [
    ("documents", "used", "when it was used last: one that is removed too early is missing"),
    ("orders", "used", "a hint for operators: when a key was last used"),
    ("window_sums", "length_ms", "sums of another length are made anew"),
    ("window_sums", "after_ms", "the calls from then on are compared with the sums"),
    ("window_sums", "until_ms", "sums that are removed too early are made anew"),
    ("stale", "*", "blocks of logs that pruning looks at again"),
    ("toolbooth_version", "*", "another version is refused at start, or brought up to date"),
    ("rates", "*", "nothing follows from it but how soon the next call may come"),
    ("digest_keys", "added", "it is never read"),
    ("writers", "renewed", "a lease: how long ago is judged by the database's clock"),
    ("writers", "ordinal", "the order in which writers began, for the next one's first event"),
    ("writers", "named", "one that was named is named again"),
    ("events", "place", "the order in which events are followed"),
    ("queue", "place", "the order of calls that came in the same millisecond"),
];

/// Tables of which verification does not find a row that is removed, or that is there again with another key.
const ROWS_UNSEEN: [(&str, &str); 1] =
    [("window_sums", "sums that are gone are made anew, and those of another length are not read")];

async fn names(client: &Client, sql: &str) -> Vec<String> {
    let rows = client.query(sql, &[]).await.expect("reads");
    rows.iter().map(|row| row.get(0)).collect()
}

async fn rows(client: &Client, table: &str) -> Vec<Value> {
    let sql = format!("SELECT to_jsonb(t)::text FROM {table} t");
    let rows = names(client, &sql).await;
    rows.iter().map(|row| serde_json::from_str(row).expect("JSON")).collect()
}

/// Returns other values for a column.
fn others(value: &Value) -> Vec<Value> {
    let changed = match value {
        Value::Null => vec![json!(7), json!("other"), json!(true)],
        Value::Bool(is) => vec![json!(!is)],
        Value::Number(number) => {
            let number = number.as_i64().expect("a whole number");
            vec![json!(number + 1), json!(i64::from(number == 0))]
        }
        Value::String(text) => vec![
            json!(format!("{text}x")),
            json!("one"),
            json!("2099-01-01T00:00:00.000Z"),
            json!("queued"),
            json!(""),
        ],
        other => panic!("no column is {other}"),
    };
    changed.into_iter().chain([Value::Null]).filter(|other| other != value).collect()
}

/// Replaces one row with another. Returns the stored row, or `None` if the table rejects it.
async fn replace(
    client: &mut Client,
    table: &str,
    from: Option<&Value>,
    to: Option<&Value>,
) -> Option<Value> {
    let transaction = client.transaction().await.expect("begins");
    if let Some(from) = from {
        let sql = format!("DELETE FROM {table} t WHERE to_jsonb(t) = $1::text::jsonb");
        let gone = transaction.execute(&sql, &[&from.to_string()]).await.expect("removes");
        assert_eq!(gone, 1, "{table}: {from}");
    }
    let mut now = Value::Null;
    if let Some(to) = to {
        let sql = format!(
            "INSERT INTO {table} AS t SELECT * FROM jsonb_populate_record(NULL::{table},
                 $1::text::jsonb) RETURNING to_jsonb(t)::text"
        );
        let row = transaction.query_one(&sql, &[&to.to_string()]).await.ok()?;
        now = serde_json::from_str(row.get(0)).expect("JSON");
    }
    transaction.commit().await.ok()?;
    Some(now)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_column_that_is_changed_and_every_row_that_is_added_or_removed_is_found() {
    let Some(server) = Postgres::start() else { return };
    let database = server.database();
    let url = server.url(&database);
    every_kind_of_row(async |writer, at| {
        postgres::open(options(&url), writer, &moment(at)).await.expect("opens")
    })
    .await;
    let digester: Digester = {
        let other = server.url(&server.database());
        let own = open(&other, "key").await;
        Ledger::digester(&own).clone()
    };
    let known = || TrustAnchors { digester: Some(digester.clone()), ..TrustAnchors::default() };
    let reads = PostgresReads::open(&url).await.expect("opens");
    let report = verify::store(&reads, known()).await.expect("reads");
    assert!(report.ok, "{report:?}");
    let (mut client, connection) = tokio_postgres::connect(&url, NoTls).await.expect("connects");
    tokio::spawn(connection);
    // Sums of windows are stored if there are many calls.
    let sums = "INSERT INTO window_sums SELECT key, 1000, 0, count(*), coalesce(sum(amount), 0), 0
                FROM history GROUP BY key";
    assert_ne!(client.execute(sums, &[]).await.expect("sums"), 0);
    let sql = "SELECT tablename::text FROM pg_tables WHERE schemaname = 'public' ORDER BY 1";
    let tables = names(&client, sql).await;
    let excused = |table: &str, column: &str| {
        UNSEEN.iter().any(|(own, of, _)| *own == table && (*of == "*" || *of == column))
    };
    let (mut unseen, mut tried, mut covered) = (Vec::new(), 0, BTreeSet::new());
    for table in tables.iter().filter(|table| !excused(table, "*")) {
        for row in rows(&client, table).await {
            let columns = row.as_object().expect("a row").clone();
            let name = row["call_id"].clone();
            let mut changes: Vec<(&str, String, Option<Value>, bool)> =
                vec![("*", format!("{name} is removed"), None, true)];
            for (column, value) in &columns {
                for other in others(value) {
                    let mut changed = row.clone();
                    changed[column] = other.clone();
                    let what = format!("{name}: {value} becomes {other}");
                    changes.push((column, what, Some(changed.clone()), true));
                    let what = format!("{name} again, with {other} in {column}");
                    changes.push(("*", what, Some(changed), false));
                }
            }
            for (column, what, to, replaces) in changes {
                let from = replaces.then_some(&row);
                let is_row = |(own, _): &(&str, &str)| own == table;
                if excused(table, column) || (column == "*" && ROWS_UNSEEN.iter().any(is_row)) {
                    continue;
                }
                // A change that the table rejects does not count.
                let Some(now) = replace(&mut client, table, from, to.as_ref()).await else {
                    continue;
                };
                tried += 1;
                covered.insert((table.clone(), column.to_owned()));
                // The rest of a damaged store can still be verified.
                let report = verify::store(&reads, known()).await;
                let found = !report.unwrap_or_else(|error| panic!("{what}: {error}")).ok;
                if !found {
                    unseen.push(format!("{table}.{column}: {what}"));
                }
                let now = Some(&now).filter(|now| now.is_object());
                replace(&mut client, table, now, from).await.expect("as it was");
            }
        }
    }
    unseen.iter().for_each(|what| println!("{what}"));
    assert!(unseen.is_empty(), "{} of {tried} are not found", unseen.len());
    for table in &tables {
        let sql = format!(
            "SELECT attname::text FROM pg_attribute
             WHERE attrelid = '{table}'::regclass AND attnum > 0 AND NOT attisdropped"
        );
        for column in names(&client, &sql).await {
            let is = covered.contains(&(table.clone(), column.clone()));
            assert!(is || excused(table, &column), "{table}.{column} was not tried");
        }
    }
    let report = verify::store(&reads, known()).await.expect("reads");
    assert!(report.ok, "all is as it was: {report:?}");
    println!("{tried} tamperings");
}
