//! Tests of catching up with several writers and processes.

use rusqlite::StatementStatus::Run;

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

#[test]
fn events_are_not_added_to_a_file_that_was_changed() {
    let found = |seq| {
        let (place, names) = (place(ENDED + 1, seq), [const { None }; COLUMNS]);
        vec![Found { place, time: 1, names, call: None, receipt: None, has_log: false }]
    };
    for change in [
        "UPDATE ends SET size = 1 WHERE writer = 1",
        "INSERT INTO names VALUES (9, 'x')",
        "UPDATE tail SET time = 2",
    ] {
        let (folder, database) = (tempfile::tempdir().unwrap(), database());
        let mut own = lookup(&folder);
        own.catch_up(&database).unwrap();
        assert_eq!(own.take(found(1)), Ok(true));
        assert_eq!(lookup(&folder).connection.execute(change, []), Ok(1));
        assert_eq!(own.take(found(2)), Ok(false), "{change}");
    }
}
