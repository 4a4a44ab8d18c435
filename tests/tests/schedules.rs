//! Tests random orders of runs, kills, prunes, backups and restores against a plain list of keys.
//!
//! After each step `verify` is sound, and no key of the list is free.
//!
//! Path: 6, 9. Doc: records.md#retention, records.md#backups

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use proptest::prelude::*;
use proptest::test_runner::{TestCaseError, TestRunner};
use toolbooth_audit::checkpoint::Due;
use toolbooth_audit::conformance::{moment, request, settlement};
use toolbooth_audit::ledger::{ClaimRequest, Claimed, Ledger, Prune, PruneKind, Pruned};
use toolbooth_audit::note::Signer;
use toolbooth_audit::verify::{self, TrustAnchors};
use toolbooth_contracts::Effect;
use toolbooth_contracts::contract::IdempotencyMode;
use toolbooth_store::postgres::{self, PostgresLedger, PostgresOptions, PostgresReads};
use toolbooth_store::sqlite::{self, SqliteLedger, SqliteOptions};
use toolbooth_tests::postgres::Postgres;

/// Schedules for each store; `PROPTEST_CASES` asks for more.
const CASES_SQLITE: u32 = 100;
const CASES_POSTGRES: u32 = 12;
const KINDS: [PruneKind; 3] = [PruneKind::Receipts, PruneKind::Logs, PruneKind::Events];
const MODE: IdempotencyMode = IdempotencyMode::Keyed;

#[derive(Debug, Clone)]
enum Step {
    /// So many calls, each with a key of its own, claimed and settled.
    Calls(u8),
    /// A call that is claimed and does not end.
    Hold,
    Checkpoint,
    /// The writer ends, and another one begins.
    Stop,
    /// The writer is gone without a word, and another one begins.
    Kill,
    /// Removes records of a kind: of the last steps too, or only older ones.
    Prune(usize, bool),
    /// Copies the store, or puts the last copy back. SQLite only.
    Backup,
    Restore,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (1..8u8).prop_map(Step::Calls),
        1 => Just(Step::Hold),
        3 => Just(Step::Checkpoint),
        2 => Just(Step::Stop),
        2 => Just(Step::Kill),
        6 => (0..KINDS.len(), any::<bool>()).prop_map(|(kind, all)| Step::Prune(kind, all)),
        1 => Just(Step::Backup),
        1 => Just(Step::Restore),
    ]
}

/// What the store should know: the keys in use, each with the call that has it.
type Keys = BTreeMap<String, String>;

enum Place<'s> {
    Sqlite { folder: tempfile::TempDir, copies: u32, copy: Option<(PathBuf, Keys)> },
    Postgres { server: &'s Postgres, database: String },
}

enum Opened {
    Sqlite(SqliteLedger),
    Postgres(PostgresLedger, PostgresReads),
}

impl Opened {
    fn ledger(&self) -> &dyn Ledger {
        match self {
            Self::Sqlite(ledger) => ledger,
            Self::Postgres(ledger, _) => ledger,
        }
    }

    async fn assert_sound(&self, after: &str) -> Result<(), TestCaseError> {
        let known = TrustAnchors::default();
        let report = match self {
            Self::Sqlite(ledger) => verify::store(ledger, known).await,
            Self::Postgres(_, reads) => verify::store(reads, known).await,
        };
        let report = report.map_err(|error| TestCaseError::fail(format!("{after}: {error}")))?;
        prop_assert!(report.ok, "after {}: {:?}", after, report.problems);
        Ok(())
    }
}

struct Walk<'s> {
    // Closed before its folder is removed.
    opened: Option<Opened>,
    place: Place<'s>,
    keys: Keys,
    /// The time, the writers and the calls so far.
    now: i64,
    writers: u32,
    calls: u32,
}

impl<'s> Walk<'s> {
    async fn begin(place: Place<'s>) -> Self {
        let mut walk =
            Self { opened: None, place, keys: Keys::new(), now: 0, writers: 0, calls: 0 };
        walk.open(false).await;
        walk
    }

    async fn open(&mut self, accept_restored: bool) {
        self.writers += 1;
        let writer = format!("writer-{}", self.writers);
        let at = moment(self.now);
        self.opened = Some(match &self.place {
            Place::Sqlite { folder, .. } => {
                let options = SqliteOptions { accept_restored, ..SqliteOptions::default() };
                let data = folder.path().join("data");
                Opened::Sqlite(sqlite::open(&data, &writer, options, &at).expect("opens"))
            }
            Place::Postgres { server, database } => {
                let options = PostgresOptions {
                    url: server.url(database),
                    digest_key: [5; 32],
                    older_digest_keys: Vec::new(),
                    signer: Signer::new(&[6; 32]),
                    kept: None,
                    accept_restored,
                };
                let url = options.url.clone();
                let ledger = postgres::open(options, &writer, &at).await.expect("opens");
                Opened::Postgres(ledger, PostgresReads::open(&url).await.expect("opens"))
            }
        });
        let _ = self.ledger().sweep(at).await.expect("sweeps");
    }

    fn opened(&self) -> &Opened {
        self.opened.as_ref().expect("a writer is there")
    }

    fn ledger(&self) -> &dyn Ledger {
        self.opened().ledger()
    }

    fn request(&self, call: &str, key: &str) -> ClaimRequest {
        let mut asked = ClaimRequest { at: moment(self.now), ..request(call, MODE, &[key], "x") };
        asked.dispatched.time = moment(self.now).text;
        asked
    }

    async fn call(&mut self, is_settled: bool) -> Result<(), TestCaseError> {
        self.calls += 1;
        let (call, key) = (format!("call-{}", self.calls), format!("key-{}", self.calls));
        let claimed = self.ledger().claim(self.request(&call, &key)).await.expect("claims");
        let Claimed::Fresh(claim) = claimed else {
            return Err(TestCaseError::fail(format!("{call}: {claimed:?}")));
        };
        if is_settled {
            let mut settled = settlement(claim, MODE, Effect::Completed, None);
            let own = Arc::get_mut(&mut settled).expect("it is new");
            (own.at, own.terminal.time) = (moment(self.now), moment(self.now).text);
            Arc::make_mut(&mut own.log).timestamp = moment(self.now).text;
            self.ledger().settle(settled).await.expect("settles");
        }
        self.keys.insert(key, call);
        Ok(())
    }

    async fn prune(&self, kind: PruneKind, all: bool) {
        let before = if all { self.now } else { self.now - 3_000 };
        let before = moment(before.max(0)).text;
        let prune = Prune { kind, before, at: moment(self.now) };
        while self.ledger().prune(prune.clone()).await.expect("prunes") != Pruned::default() {}
    }

    /// Takes the writer away, without a word or with its end on record.
    async fn leave(&mut self, with_a_word: bool) {
        let opened = self.opened.take().expect("a writer is there");
        if with_a_word {
            opened.ledger().close(moment(self.now)).await.expect("closes");
        }
        drop(opened);
        if let Place::Postgres { server, database } = &self.place {
            // The lease of a writer that is gone lapses.
            let lapse = "UPDATE writers SET renewed = renewed - interval '1 hour'";
            server.sql(database, lapse);
        }
    }

    async fn take(&mut self, step: &Step) -> Result<(), TestCaseError> {
        self.now += 1_000;
        match step {
            Step::Calls(count) => {
                for _ in 0..*count {
                    self.call(true).await?;
                }
            }
            Step::Hold => self.call(false).await?,
            Step::Checkpoint => {
                let signed = self.ledger().checkpoint(Due::NOW, moment(self.now)).await;
                signed.expect("signs");
            }
            Step::Stop | Step::Kill => {
                self.leave(matches!(step, Step::Stop)).await;
                self.open(false).await;
            }
            Step::Prune(kind, all) => self.prune(KINDS[*kind], *all).await,
            Step::Backup => {
                let Place::Sqlite { folder, copies, copy } = &mut self.place else { return Ok(()) };
                *copies += 1;
                let to = folder.path().join(format!("copy-{copies}"));
                sqlite::backup(&folder.path().join("data"), &to).expect("copies");
                *copy = Some((to, self.keys.clone()));
            }
            Step::Restore => {
                let Place::Sqlite { copy: Some((from, keys)), folder, .. } = &self.place else {
                    return Ok(());
                };
                let (from, keys, data) = (from.clone(), keys.clone(), folder.path().join("data"));
                self.leave(true).await;
                if let Some(old) = sqlite::restore(&data, &from).expect("is put back") {
                    std::fs::remove_dir_all(old).expect("is removed");
                }
                // Whoever accepts a restored store loses the keys since the copy, and knows it.
                self.keys = keys;
                self.open(true).await;
                // The acceptance counts from the next checkpoint on; before it, the store is
                // refused again.
                let signed = self.ledger().checkpoint(Due::NOW, moment(self.now)).await;
                signed.expect("signs");
            }
        }
        let after = format!("{step:?}");
        self.opened().assert_sound(&after).await?;
        for key in self.keys.keys() {
            let claimed = self.ledger().claim(self.request("again", key)).await.expect("claims");
            let is_held = matches!(
                claimed,
                Claimed::Replay { .. } | Claimed::InFlight { .. } | Claimed::InDoubt { .. }
            );
            prop_assert!(is_held, "after {}: {} gave {:?}", after, key, claimed);
        }
        Ok(())
    }
}

/// Walks random schedules in places that `place` makes.
fn walk<'s>(cases: u32, mut place: impl FnMut() -> Place<'s>) {
    let asked = std::env::var("PROPTEST_CASES").ok().and_then(|text| text.parse().ok());
    let config = ProptestConfig {
        max_shrink_iters: 50,
        failure_persistence: None,
        ..ProptestConfig::with_cases(asked.unwrap_or(cases))
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    let place = std::cell::RefCell::new(&mut place);
    let walked = TestRunner::new(config).run(&proptest::collection::vec(step(), 1..24), |steps| {
        let fresh = (place.borrow_mut())();
        runtime.block_on(async {
            let mut walk = Walk::begin(fresh).await;
            for step in &steps {
                walk.take(step).await?;
            }
            Ok(())
        })
    });
    walked.unwrap_or_else(|failure| panic!("{failure}"));
}

#[test]
fn every_order_of_runs_kills_prunes_and_restores_keeps_keys_and_proofs() {
    walk(CASES_SQLITE, || Place::Sqlite {
        folder: tempfile::tempdir().expect("a folder"),
        copies: 0,
        copy: None,
    });
}

#[test]
fn every_order_of_runs_kills_and_prunes_keeps_keys_and_proofs_on_postgres() {
    let Some(server) = Postgres::start() else { return };
    walk(CASES_POSTGRES, || Place::Postgres { server: &server, database: server.database() });
}
