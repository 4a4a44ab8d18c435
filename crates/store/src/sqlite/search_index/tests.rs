//! Tests of catching up with several writers and processes.

use rusqlite::StatementStatus::Run;

use super::blocks::COLUMNS;
use super::*;

const ENDED: i64 = 300;

/// Returns a database of writers that have ended without an event, and of one that has one.
fn database() -> Connection {
    let database = Connection::open_in_memory().unwrap();
    let tables = "CREATE TABLE writers (no INTEGER PRIMARY KEY, size INTEGER NOT NULL);
                  CREATE TABLE events (place INTEGER PRIMARY KEY, body BLOB NOT NULL);";
    database.execute_batch(tables).unwrap();
    for no in 1..=ENDED {
        database.execute("INSERT INTO writers VALUES (?1, 0)", [no]).unwrap();
    }
    database.execute("INSERT INTO writers VALUES (?1, 1)", [ENDED + 1]).unwrap();
    database
}

/// Sets the length of the log of the last writer.
fn grow(database: &Connection, size: i64) {
    let sql = "UPDATE writers SET size = ?1 WHERE no = ?2";
    assert_eq!(database.execute(sql, [size, ENDED + 1]), Ok(1));
}

fn lookup(folder: &tempfile::TempDir) -> Lookup {
    Lookup::open(&folder.path().join("toolbooth.db")).unwrap()
}

#[test]
fn only_writers_that_have_written_are_read_again() {
    let (folder, database) = (tempfile::tempdir().unwrap(), database());
    let mut own = lookup(&folder);
    own.catch_up(&database).unwrap();
    // Another process reads the same file.
    let mut other = lookup(&folder);
    for size in 2..5 {
        grow(&database, size);
        let sql = "SELECT size FROM ends WHERE writer = ?1";
        for reader in [&mut own, &mut other] {
            let runs =
                |reader: &Lookup| reader.connection.prepare_cached(sql).unwrap().get_status(Run);
            let before = runs(reader);
            reader.catch_up(&database).unwrap();
            assert!(runs(reader) - before <= 1, "{size}");
            assert_eq!(reader.ends().unwrap().get(&(ENDED + 1)), Some(&size));
        }
    }
}

#[test]
fn a_file_that_is_changed_meanwhile_is_filled_again() {
    let (folder, database) = (tempfile::tempdir().unwrap(), database());
    let mut own = lookup(&folder);
    own.catch_up(&database).unwrap();
    let mut sizes: HashMap<i64, i64> = (1..=ENDED).map(|no| (no, 0)).collect();
    for size in 2..4 {
        let changed = lookup(&folder).connection.execute("INSERT INTO names VALUES (9, 'x')", []);
        assert_eq!(changed, Ok(1));
        sizes.insert(ENDED + 1, size);
        grow(&database, size);
        own.catch_up(&database).unwrap();
        assert_eq!(own.ends().unwrap(), sizes);
    }
}

/// Returns an event of a writer, with the name of a tool.
fn found(writer: i64, seq: i64, tool: &str) -> Vec<Found> {
    let mut names = [const { None }; COLUMNS];
    names[0] = Some(Cow::from(tool.to_owned()));
    let place = place(writer, seq);
    vec![Found { place, time: 1, names, call: None, receipt: None, has_log: false }]
}

#[test]
fn events_are_not_added_to_a_file_that_was_changed() {
    for change in [
        "UPDATE ends SET size = 1 WHERE writer = 1",
        "INSERT INTO names VALUES (9, 'x')",
        "UPDATE tail SET time = 2",
    ] {
        let (folder, database) = (tempfile::tempdir().unwrap(), database());
        let mut own = lookup(&folder);
        own.catch_up(&database).unwrap();
        assert_eq!(own.take(found(ENDED + 1, 1, "a")), Ok(true));
        assert_eq!(lookup(&folder).connection.execute(change, []), Ok(1));
        for _ in 0..2 {
            assert_eq!(own.take(found(ENDED + 1, 2, "b")), Ok(false), "{change}");
        }
    }
}

#[test]
fn two_processes_add_events_of_their_writers_in_turns() {
    let (folder, database) = (tempfile::tempdir().unwrap(), database());
    let [mut own, mut other] = [lookup(&folder), lookup(&folder)];
    own.catch_up(&database).unwrap();
    for (seq, tool) in (0..20).zip(["a", "b", "c"].into_iter().cycle()) {
        assert_eq!(own.take(found(ENDED - 5, seq, tool)), Ok(true), "{seq}");
        assert_eq!(other.take(found(ENDED - 2, seq, tool)), Ok(true), "{seq}");
        assert_eq!(own.take(found(ENDED + 1, seq + 1, "d")), Ok(true), "{seq}");
    }
    for lookup in [own, other] {
        let Lookup { mut sealer, connection, .. } = lookup;
        assert_eq!(sealer.compare(&connection), Ok(true));
    }
}

#[test]
fn names_of_a_transaction_that_was_rolled_back_are_not_used() {
    let (folder, database) = (tempfile::tempdir().unwrap(), database());
    let mut own = lookup(&folder);
    own.catch_up(&database).unwrap();
    let refuse = "CREATE TEMP TRIGGER refused BEFORE INSERT ON tail
                  BEGIN SELECT RAISE(ABORT, 'refused'); END";
    own.connection.execute_batch(refuse).unwrap();
    assert!(own.take(found(ENDED + 1, 1, "lost")).is_err());
    own.connection.execute_batch("DROP TRIGGER refused").unwrap();
    assert_eq!(own.take(found(ENDED + 1, 1, "kept")), Ok(true));
    assert_eq!(own.take(found(ENDED + 1, 2, "lost")), Ok(true));
    let sql = "SELECT group_concat(name, ' ') FROM (SELECT name FROM tail
               JOIN names ON names.no = tail.tool ORDER BY tail.no)";
    let names: String = own.connection.query_row(sql, [], |row| row.get(0)).unwrap();
    assert_eq!(names, "kept lost");
}
