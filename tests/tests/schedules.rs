//! Tests random orders of runs, kills, prunes, retention, backups, restores and upgrades against a plain
//! model. The model lists keys, calls with their events, and asynchronous calls.
//!
//! After each step `verify` succeeds, and no key of the model is free. All events that account for stored
//! records exist, and so do all asynchronous calls that were not pruned.
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
use toolbooth_audit::queue::{CallQueue, Enqueued, QueueState, QueuedCall};
use toolbooth_audit::reads::{Include, LedgerReads};
use toolbooth_audit::verify::{self, TrustAnchors};
use toolbooth_contracts::contract::IdempotencyMode;
use toolbooth_contracts::{Effect, Identity};
use toolbooth_store::postgres::{self, PostgresLedger, PostgresOptions, PostgresReads};
use toolbooth_store::sqlite::{self, SqliteLedger, SqliteOptions};
use toolbooth_tests::postgres::Postgres;

/// The number of schedules for each store; `PROPTEST_CASES` overrides it.
const CASES_SQLITE: u32 = 200;
const CASES_POSTGRES: u32 = 12;
const KINDS: [PruneKind; 4] =
    [PruneKind::Receipts, PruneKind::Logs, PruneKind::Events, PruneKind::Calls];
/// The age of records that a partial prune leaves, in milliseconds.
const KEPT_MS: i64 = 3_000;
/// Stores that earlier releases wrote.
const EARLIER_SQLITE: [&str; 3] = ["version-1", "version-2", "version-2-pruned"];
const EARLIER_POSTGRES: &str = include_str!("../fixtures/postgres-version-1.sql");
const MODE: IdempotencyMode = IdempotencyMode::Keyed;

#[derive(Debug, Clone)]
enum Step {
    /// A number of calls, each with its own key, claimed and settled.
    Calls(u8),
    /// A call without a key.
    Plain,
    /// A claimed call that does not end.
    Hold,
    /// Submits an asynchronous call.
    Enqueue,
    /// Takes the oldest asynchronous call, with or without storing its result.
    Work(bool),
    Checkpoint,
    /// The writer closes, and another one begins.
    Stop,
    /// The writer ends without closing, and another one begins.
    Kill,
    /// Removes records of a kind: also those of the last steps, or only older ones.
    Prune(usize, bool),
    /// Removes old records of all kinds, as retention does.
    Retain,
    /// Copies the store, or restores the last copy. SQLite only.
    Backup,
    Restore,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (1..8u8).prop_map(Step::Calls),
        2 => Just(Step::Plain),
        1 => Just(Step::Hold),
        2 => Just(Step::Enqueue),
        2 => any::<bool>().prop_map(Step::Work),
        3 => Just(Step::Checkpoint),
        2 => Just(Step::Stop),
        2 => Just(Step::Kill),
        6 => (0..KINDS.len(), any::<bool>()).prop_map(|(kind, all)| Step::Prune(kind, all)),
        1 => Just(Step::Retain),
        1 => Just(Step::Backup),
        1 => Just(Step::Restore),
    ]
}

/// The expected content of the store.
#[derive(Debug, Clone, Default)]
struct Known {
    /// The keys in use, each with its call.
    keys: BTreeMap<String, String>,
    /// Calls with the minimum number of their events that must exist.
    events: BTreeMap<String, usize>,
    /// Calls without keys.
    plain: BTreeMap<String, Plain>,
    /// Asynchronous calls, with the time of their results.
    queued: BTreeMap<String, Option<i64>>,
}

/// A call without a key: its end time, and its records that must exist.
#[derive(Debug, Clone)]
struct Plain {
    at: i64,
    receipt: bool,
    log: bool,
}

impl Known {
    /// Marks records of a kind that are older than `before` as possibly removed.
    fn prune(&mut self, kind: PruneKind, before: i64) {
        for (call, plain) in self.plain.iter_mut().filter(|(_, plain)| plain.at < before) {
            match kind {
                PruneKind::Receipts => plain.receipt = false,
                PruneKind::Logs => plain.log = false,
                // The last event accounts for both, and the dispatch event for the receipt.
                PruneKind::Events => {
                    let least = if plain.receipt { 2 } else { usize::from(plain.log) };
                    self.events.insert(call.clone(), least);
                }
                PruneKind::Calls | PruneKind::Approvals | PruneKind::Documents => (),
            }
        }
        if kind == PruneKind::Calls {
            self.queued.retain(|_, finished| finished.is_none_or(|finished| finished >= before));
        }
    }
}

enum Place<'s> {
    Sqlite { folder: tempfile::TempDir, copies: u32, copy: Option<(PathBuf, Known)> },
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

    fn queue(&self) -> &dyn CallQueue {
        match self {
            Self::Sqlite(ledger) => ledger,
            Self::Postgres(ledger, _) => ledger,
        }
    }

    fn reads(&self) -> &dyn LedgerReads {
        match self {
            Self::Sqlite(ledger) => ledger,
            Self::Postgres(_, reads) => reads,
        }
    }

    /// Returns the number of events of each call in the logs.
    async fn events(&self) -> BTreeMap<String, usize> {
        let (mut found, mut after) = (BTreeMap::new(), None);
        loop {
            let page = self.reads().log_page(after, 1_000, Include::Events).await.expect("reads");
            let Some(last) = page.last() else { return found };
            after = Some((last.writer.clone(), last.seq));
            for entry in &page {
                let event: serde_json::Value = serde_json::from_str(&entry.bytes).expect("JSON");
                if let Some(call) = event["callId"].as_str() {
                    *found.entry(call.to_owned()).or_default() += 1;
                }
            }
        }
    }

    async fn assert_sound(&self, after: &str) -> Result<(), TestCaseError> {
        let digester = Some(self.ledger().digester().clone());
        let known = TrustAnchors { digester, ..TrustAnchors::default() };
        let report = verify::store(self.reads(), known).await;
        let report = report.map_err(|error| TestCaseError::fail(format!("{after}: {error}")))?;
        prop_assert!(report.ok, "after {}: {:?}", after, report.problems);
        Ok(())
    }
}

struct Walk<'s> {
    // This is closed before its folder is removed.
    opened: Option<Opened>,
    place: Place<'s>,
    known: Known,
    /// The current time, and the numbers of writers and calls.
    now: i64,
    writers: u32,
    calls: u32,
}

impl<'s> Walk<'s> {
    async fn begin(place: Place<'s>) -> Self {
        let mut walk =
            Self { opened: None, place, known: Known::default(), now: 1_000, writers: 0, calls: 0 };
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
                    kept: Vec::new(),
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

    fn queue(&self) -> &dyn CallQueue {
        self.opened().queue()
    }

    fn request(&self, call: &str, mode: IdempotencyMode, keys: &[&str]) -> ClaimRequest {
        let mut asked = ClaimRequest { at: moment(self.now), ..request(call, mode, keys, "x") };
        asked.dispatched.time = moment(self.now).text;
        asked
    }

    /// Makes a call with its own key, or without one.
    async fn call(&mut self, is_keyed: bool, is_settled: bool) -> Result<(), TestCaseError> {
        self.calls += 1;
        let (call, key) = (format!("walk-{}", self.calls), format!("walk-key-{}", self.calls));
        let (mode, keys) = match is_keyed {
            true => (MODE, &[key.as_str()][..]),
            false => (IdempotencyMode::None, &[][..]),
        };
        let claimed = self.ledger().claim(self.request(&call, mode, keys)).await.expect("claims");
        let Claimed::Fresh(claim) = claimed else {
            return Err(TestCaseError::fail(format!("{call}: {claimed:?}")));
        };
        if is_settled {
            let mut settled = settlement(claim, mode, Effect::Completed, None);
            let own = Arc::get_mut(&mut settled).expect("it is new");
            (own.at, own.terminal.time) = (moment(self.now), moment(self.now).text);
            Arc::make_mut(&mut own.log).timestamp = moment(self.now).text;
            self.ledger().settle(settled).await.expect("settles");
        }
        self.known.events.insert(call.clone(), if is_settled { 2 } else { 1 });
        if is_keyed {
            self.known.keys.insert(key, call);
        } else {
            self.known.plain.insert(call, Plain { at: self.now, receipt: true, log: true });
        }
        Ok(())
    }

    async fn enqueue(&mut self) {
        self.calls += 1;
        let id = format!("walk-{}", self.calls);
        let call = QueuedCall::new(id.clone(), &Identity::local(), "{}".into(), &moment(self.now));
        let enqueued = self.queue().enqueue(call, 1_000).await.expect("takes it");
        assert_eq!(enqueued, Enqueued::New);
        self.known.queued.insert(id, None);
    }

    async fn work(&mut self, finishes: bool) {
        let taken = self.queue().take(Vec::new()).await.expect("answers");
        let Some(call) = taken else {
            let waiting = self.known.queued.values().filter(|finished| finished.is_none()).count();
            assert_eq!(waiting, 0, "calls that wait are taken");
            return;
        };
        if finishes {
            let (caller, id) = (&call.caller, &call.call_id);
            let done = self.queue().finish(caller, id, "{}".into(), moment(self.now)).await;
            done.expect("finishes");
            self.known.queued.entry(call.call_id).and_modify(|finished| *finished = Some(self.now));
        }
    }

    async fn prune(&mut self, kind: PruneKind, all: bool) {
        let before = if all { self.now } else { self.now - KEPT_MS };
        let text = moment(before.max(0)).text;
        let prune = Prune { kind, before: text, at: moment(self.now), windows: Vec::new() };
        while self.ledger().prune(prune.clone()).await.expect("prunes") != Pruned::default() {}
        self.known.prune(kind, before);
    }

    /// Ends the writer, either without closing it or with its end recorded.
    async fn leave(&mut self, with_a_word: bool) {
        let opened = self.opened.take().expect("a writer is there");
        if with_a_word {
            opened.ledger().close(moment(self.now)).await.expect("closes");
        }
        drop(opened);
        if let Place::Postgres { server, database } = &self.place {
            // The lease of an ended writer expires.
            let lapse = "UPDATE writers SET renewed = renewed - interval '1 hour'";
            server.sql(database, lapse);
        }
    }

    async fn take(&mut self, step: &Step) -> Result<(), TestCaseError> {
        self.now += 1_000;
        match step {
            Step::Calls(count) => {
                for _ in 0..*count {
                    self.call(true, true).await?;
                }
            }
            Step::Plain => self.call(false, true).await?,
            Step::Hold => self.call(true, false).await?,
            Step::Enqueue => self.enqueue().await,
            Step::Work(finishes) => self.work(*finishes).await,
            Step::Checkpoint => {
                let signed = self.ledger().checkpoint(Due::NOW, moment(self.now)).await;
                signed.expect("signs");
            }
            Step::Stop | Step::Kill => {
                self.leave(matches!(step, Step::Stop)).await;
                self.open(false).await;
            }
            Step::Prune(kind, all) => self.prune(KINDS[*kind], *all).await,
            Step::Retain => {
                for kind in KINDS {
                    self.prune(kind, false).await;
                }
            }
            Step::Backup => {
                let Place::Sqlite { folder, copies, copy } = &mut self.place else { return Ok(()) };
                *copies += 1;
                let to = folder.path().join(format!("copy-{copies}"));
                sqlite::backup(&folder.path().join("data"), &to).expect("copies");
                *copy = Some((to, self.known.clone()));
            }
            Step::Restore => {
                let Place::Sqlite { copy: Some((from, known)), folder, .. } = &self.place else {
                    return Ok(());
                };
                let (from, known, data) = (from.clone(), known.clone(), folder.path().join("data"));
                self.leave(true).await;
                if let Some(old) = sqlite::restore(&data, &from).expect("is put back") {
                    std::fs::remove_dir_all(old).expect("is removed");
                }
                // An operator who accepts a restored store knows that it lacks the records after the copy.
                self.known = known;
                self.open(true).await;
                // The acceptance is valid from the next checkpoint on. Before it, the store is refused again.
                let signed = self.ledger().checkpoint(Due::NOW, moment(self.now)).await;
                signed.expect("signs");
            }
        }
        self.check(&format!("{step:?}")).await
    }

    async fn check(&self, after: &str) -> Result<(), TestCaseError> {
        self.opened().assert_sound(after).await?;
        let found = self.opened().events().await;
        for (call, count) in &self.known.events {
            let has = found.get(call).copied().unwrap_or_default();
            prop_assert!(has >= *count, "after {}: {} has {} events", after, call, has);
        }
        for (id, finished) in &self.known.queued {
            let row = self.queue().queued("local", id).await.expect("reads");
            let is_done = row.map(|call| call.state == QueueState::Done);
            prop_assert_eq!(is_done, Some(finished.is_some()), "after {}: {}", after, id);
        }
        for key in self.known.keys.keys() {
            let asked = self.request("again", MODE, &[key]);
            let claimed = self.ledger().claim(asked).await.expect("claims");
            let is_held = matches!(
                claimed,
                Claimed::Replay { .. } | Claimed::InFlight { .. } | Claimed::InDoubt { .. }
            );
            prop_assert!(is_held, "after {}: {} gave {:?}", after, key, claimed);
        }
        Ok(())
    }
}

/// Runs random schedules in places from `place`: with an empty store, or with the store of an earlier
/// release, by its number.
fn walk<'s>(cases: u32, mut place: impl FnMut(Option<usize>) -> Place<'s>) {
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
    let begun = prop_oneof![3 => Just(None), 1 => any::<usize>().prop_map(Some)];
    let schedule = (begun, proptest::collection::vec(step(), 1..24));
    let walked = TestRunner::new(config).run(&schedule, |(earlier, steps)| {
        let fresh = (place.borrow_mut())(earlier);
        runtime.block_on(async {
            let mut walk = Walk::begin(fresh).await;
            walk.check("the beginning").await?;
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
    walk(CASES_SQLITE, |earlier| {
        let folder = tempfile::tempdir().expect("a folder");
        if let Some(number) = earlier {
            let version = EARLIER_SQLITE[number % EARLIER_SQLITE.len()];
            let from =
                toolbooth_tests::repository().join("crates/store/tests/fixtures").join(version);
            let data = folder.path().join("data");
            std::fs::create_dir(&data).expect("a folder");
            for file in std::fs::read_dir(from).expect("fixtures") {
                let file = file.expect("a file");
                std::fs::copy(file.path(), data.join(file.file_name())).expect("copies");
            }
        }
        Place::Sqlite { folder, copies: 0, copy: None }
    });
}

#[test]
fn every_order_of_runs_kills_and_prunes_keeps_keys_and_proofs_on_postgres() {
    let Some(server) = Postgres::start() else { return };
    walk(CASES_POSTGRES, |earlier| {
        let database = server.database();
        if earlier.is_some() {
            server.sql(&database, EARLIER_POSTGRES);
        }
        Place::Postgres { server: &server, database }
    });
}
