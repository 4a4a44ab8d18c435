#![allow(clippy::unwrap_used)]

use toolbooth_audit::conformance::moment;
use toolbooth_audit::queue::CallQueue;
use toolbooth_audit::reads::LedgerReads;
use toolbooth_audit::verify::{self, TrustAnchors};

use super::*;

#[test]
fn an_upgrade_that_was_interrupted_is_done_again() {
    for (version, pruned, queued) in [("version-2", 0, 1), ("version-2-pruned", 40, 0)] {
        let folder = tempfile::tempdir().unwrap();
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
        for file in std::fs::read_dir(fixtures.join(version)).unwrap() {
            let file = file.unwrap();
            std::fs::copy(file.path(), folder.path().join(file.file_name())).unwrap();
        }
        let path = folder.path().join(super::super::DATABASE);
        let mut connection = connect(&path, Durability::Full).unwrap();
        // A writer that ended before its first event.
        assert_eq!(schema::migrate(&mut connection, schema::READABLE).unwrap(), 2);
        connection
            .execute("INSERT INTO writers (writer, started) VALUES ('ended', '')", [])
            .unwrap();
        drop(connection);
        let digester = StoreFolder::create(folder.path()).unwrap().digester(false).unwrap();
        for writer in ["later", "latest"] {
            let options = SqliteOptions::default();
            let ledger = open(folder.path(), writer, options, &moment(100)).unwrap();
            let known = TrustAnchors { digester: Some(digester.clone()), ..Default::default() };
            let report = block_on(verify::store(&ledger, known)).unwrap();
            assert!(
                report.problems.iter().all(|problem| problem.writer == "ended"),
                "{version}: {report:?}"
            );
            let gone = block_on(ledger.pruned_ranges(None, 100)).unwrap();
            let gone: u64 = gone.iter().map(|(_, part)| part.size).sum();
            assert!(gone >= pruned && (pruned > 0 || gone == 0), "{version}: {gone}");
            let taken = block_on(CallQueue::queued(&ledger, "local", "queued")).unwrap();
            assert_eq!(taken.iter().count(), queued, "{version}");
        }
        let connection = connect(&path, Durability::Full).unwrap();
        assert_eq!(schema::version(&connection).unwrap(), schema::VERSION);
    }
}
