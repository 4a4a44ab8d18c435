//! Measures the cost of records.
//!
//! Compares the whole path with the bare writer, for both stores, in turns. Verifies a million
//! events, and queries a million calls.
//!
//! `cargo bench -p toolbooth-tests --bench records [-- path|verify|query]`.
#![allow(missing_docs)]

use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use serde_json::json;
use toolbooth_audit::LedgerReads;
use toolbooth_audit::checkpoint::Due;
use toolbooth_audit::claim::KeyRules;
use toolbooth_audit::export::{Exporter, Line};
use toolbooth_audit::ledger::{ClaimRequest, Claimed, Ledger, Moment, Settlement};
use toolbooth_audit::note::Signer;
use toolbooth_audit::reads::{EventFilter, LogFilter, ReceiptFilter};
use toolbooth_audit::verify::{self, TrustAnchors};
use toolbooth_contracts::agent_log::AgentLog;
use toolbooth_contracts::contract::{AdapterId, IdempotencyMode, ToolContract};
use toolbooth_contracts::coverage::Readiness;
use toolbooth_contracts::event::{AuditEventKind, EventBody};
use toolbooth_contracts::json::JsonText;
use toolbooth_contracts::receipt::StoredResult;
use toolbooth_contracts::{
    CallRequest, Caller, ContentBlock, Conversation, Dispatch, Effect, Executor, Guard, Outcome,
    Status, ToolCall, ToolOutput,
};
use toolbooth_policy::{Authorizer, FeatureFlags};
use toolbooth_proxy::{
    Clock, Executors, IdSource, ProxyParts, SystemClock, SystemIds, ToolProxy, World, Worlds,
};
use toolbooth_registry::{RegisteredTool, Source, ToolRegistry};
use toolbooth_store::postgres::{self, PostgresOptions};
use toolbooth_store::sqlite::{self, DATABASE, Durability, SqliteOptions, SqliteReads};
use toolbooth_tests::postgres::Postgres;

const CALLERS: usize = 64;
const ROUND: Duration = Duration::from_secs(4);
const ROUNDS: usize = 3;

struct Echo;

#[async_trait]
impl Executor for Echo {
    async fn execute(&self, dispatch: Dispatch, _: Conversation) -> Outcome {
        Outcome::Done(ToolOutput::text(dispatch.arguments.as_str()))
    }

    async fn readiness(&self, _: &ToolContract, _: bool) -> Readiness {
        Readiness::Ready
    }
}

fn proxy(ledger: Arc<dyn Ledger>) -> ToolProxy {
    let entry = json!({
        "name": "bench.echo", "description": "Echoes.", "execution": {"localRuntimeId": "bench"},
        "input_schema": {"type": "object", "required": ["text"],
            "properties": {"text": {"type": "string"}}},
        "output_schema": {}
    });
    let mut registry = ToolRegistry::default();
    let tool = RegisteredTool::from_entry(&entry, Source::File, &Guard::default()).expect("fits");
    let _ = registry.register(tool);
    let policy = Authorizer::new(FeatureFlags::ON);
    ToolProxy::new(ProxyParts::new(
        Worlds::new(World::new(policy).with_registry(registry)),
        ledger,
        Executors::default().with(AdapterId::Local("bench".into()), Arc::new(Echo)),
    ))
}

fn arguments() -> String {
    json!({ "text": "x".repeat(80) }).to_string()
}

fn request(clock: &SystemClock, ids: &SystemIds) -> ClaimRequest {
    let at = clock.now();
    let mut dispatched = EventBody::new(AuditEventKind::ToolDispatched, at.text.clone());
    let call_id = ids.next();
    dispatched.call_id = Some(call_id.clone());
    dispatched.tool_name = Some("bench.echo".into());
    dispatched.caller = Some("local".into());
    ClaimRequest {
        receipt_id: ids.next(),
        call_id,
        tool_id: "bench.echo".into(),
        contract_digest: "0".repeat(64),
        caller: "local".into(),
        mode: IdempotencyMode::None,
        keys: Vec::new(),
        rules: KeyRules { refuse_different_args: true, rerunnable: false },
        args_digest: "0".repeat(64),
        older_args_digests: Vec::new(),
        relaxed: false,
        charges: Vec::new(),
        approval: None,
        counted: Vec::new(),
        history: None,
        policy_version: "0".repeat(32),
        dispatched,
        at,
        sync: true,
    }
}

fn settlement(
    claim: toolbooth_audit::ledger::Claim,
    call_id: String,
    at: Moment,
    ids: &SystemIds,
) -> Settlement {
    let content = vec![ContentBlock::text(arguments())];
    let mut terminal = EventBody::new(AuditEventKind::ToolExecuted, at.text.clone());
    terminal.call_id = Some(call_id.clone());
    terminal.tool_name = Some("bench.echo".into());
    terminal.caller = Some("local".into());
    terminal.status = Some(Status::Succeeded);
    terminal.duration_ms = Some(1.5);
    terminal.args_digest = Some("0".repeat(64));
    let log = AgentLog {
        id: ids.next(),
        tool_name: "bench.echo".into(),
        agent_id: Some("agent".into()),
        turn_index: Some(1),
        phase_id: None,
        epic_id: None,
        call_id,
        receipt_id: None,
        caller: "local".into(),
        input: serde_json::from_str(&arguments()).ok(),
        output: JsonText::of(&json!({ "content": [{ "type": "text", "text": arguments() }] })).ok(),
        duration_ms: 1.5,
        is_error: false,
        error_code: None,
        attempt: 0,
        decision_inputs: None,
        timestamp: at.text.clone(),
        internal: None,
    };
    Settlement {
        claim,
        mode: IdempotencyMode::None,
        status: Status::Succeeded,
        effect: Effect::Completed,
        error_code: None,
        fields: serde_json::Map::new(),
        result_digest: Some("0".repeat(64)),
        result: Some(StoredResult {
            content,
            structured_content: None,
            meta: None,
            error: None,
            warnings: Vec::new(),
        }),
        sandbox: None,
        duration_ms: 1.5,
        at,
        log: Arc::new(log),
        documents: Vec::new(),
        events: Vec::new(),
        terminal,
        sync: true,
    }
}

/// Makes two dependent commits and returns the time of each.
async fn bare(ledger: &dyn Ledger, clock: &SystemClock, ids: &SystemIds) -> [Duration; 2] {
    let request = request(clock, ids);
    let call_id = request.call_id.clone();
    let began = Instant::now();
    let Ok(Claimed::Fresh(claim)) = ledger.claim(request).await else { panic!("fresh") };
    let claimed = began.elapsed();
    let settlement = Arc::new(settlement(claim, call_id, clock.now(), ids));
    let began = Instant::now();
    ledger.settle(settlement).await.expect("settles");
    [claimed, began.elapsed()]
}

struct Measured {
    per_second: f64,
    /// The time of a commit for the bare writer, or of a call for the path.
    p50: Duration,
    p99: Duration,
}

fn measured(mut all: Vec<Duration>, calls: u64, took: Duration) -> Measured {
    all.sort_unstable();
    let at = |share: f64| all[((all.len() - 1) as f64 * share) as usize];
    Measured { per_second: calls as f64 / took.as_secs_f64(), p50: at(0.5), p99: at(0.99) }
}

async fn drive<F, R>(work: F) -> Measured
where
    F: Fn() -> R + Send + Sync + 'static,
    R: std::future::Future<Output = Vec<Duration>> + Send,
{
    let (work, calls) = (Arc::new(work), Arc::new(AtomicU64::new(0)));
    let began = Instant::now();
    let tasks: Vec<_> = (0..CALLERS)
        .map(|_| {
            let (work, calls) = (Arc::clone(&work), Arc::clone(&calls));
            tokio::spawn(async move {
                let mut all = Vec::new();
                while began.elapsed() < ROUND {
                    all.extend(work().await);
                    calls.fetch_add(1, Ordering::Relaxed);
                }
                all
            })
        })
        .collect();
    let mut all = Vec::new();
    for task in tasks {
        all.extend(task.await.expect("ends"));
    }
    measured(all, calls.load(Ordering::Relaxed), began.elapsed())
}

async fn compare(name: &str, ledger: Arc<dyn Ledger>) {
    let proxy = proxy(Arc::clone(&ledger));
    let arguments = arguments();
    let (mut writers, mut paths) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let own = Arc::clone(&ledger);
        writers.push(
            drive(move || {
                let ledger = Arc::clone(&own);
                async move { bare(&*ledger, &SystemClock::default(), &SystemIds).await.to_vec() }
            })
            .await,
        );
        let (proxy, arguments) = (proxy.clone(), arguments.clone());
        paths.push(
            drive(move || {
                let (proxy, arguments) = (proxy.clone(), arguments.clone());
                async move {
                    let began = Instant::now();
                    let request = CallRequest::new("bench.echo", &arguments).expect("JSON");
                    let call = ToolCall::new(request, Caller::local());
                    let result = proxy.call(call, Conversation::detached().0).await;
                    assert!(!result.is_error, "{result:?}");
                    vec![began.elapsed()]
                }
            })
            .await,
        );
    }
    let middle = |all: &[Measured], of: &dyn Fn(&Measured) -> f64| {
        let mut values: Vec<f64> = all.iter().map(of).collect();
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    };
    let ms = |duration: Duration| duration.as_secs_f64() * 1_000.0;
    let (bare, path) = (middle(&writers, &|m| m.per_second), middle(&paths, &|m| m.per_second));
    let (commit, call) = (middle(&writers, &|m| ms(m.p99)), middle(&paths, &|m| ms(m.p99)));
    println!(
        "{name}: bare writer {bare:.0} calls/s (commit p50 {:.2} ms, p99 {commit:.2} ms); path {path:.0} calls/s (call p50 {:.2} ms, p99 {call:.2} ms); path/bare {:.2}; call p99 / commit p99 {:.2}",
        middle(&writers, &|m| ms(m.p50)),
        middle(&paths, &|m| ms(m.p50)),
        path / bare,
        call / commit
    );
}

/// Returns the median of `fdatasync` on the disk of the stores.
fn sync_median(folder: &Path) -> Duration {
    let mut file = std::fs::File::create(folder.join("sync")).expect("a file");
    let mut all: Vec<Duration> = (0..500)
        .map(|_| {
            file.write_all(&[0; 4096]).expect("writes");
            let began = Instant::now();
            file.sync_data().expect("syncs");
            began.elapsed()
        })
        .collect();
    all.sort_unstable();
    all[all.len() / 2]
}

async fn paths() {
    let folder = tempfile::tempdir().expect("a folder");
    println!("fdatasync median {:.3} ms", sync_median(folder.path()).as_secs_f64() * 1_000.0);
    let now = SystemClock::default().now();
    let data = folder.path().join("data");
    let sqlite = sqlite::open(&data, "bench", SqliteOptions::default(), &now).expect("opens");
    compare("SQLite, durability full", Arc::new(sqlite)).await;
    let Some(server) = Postgres::start() else { return };
    let options = PostgresOptions {
        url: server.url(&server.database()),
        digest_key: [7; 32],
        older_digest_keys: Vec::new(),
        signer: Signer::new(&[7; 32]),
        kept: Vec::new(),
        accept_restored: false,
    };
    let postgres = postgres::open(options, "bench", &now).await.expect("opens");
    compare("PostgreSQL, one replica", Arc::new(postgres)).await;
}

fn peak_memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap_or_default();
    line.split_whitespace().nth(1).and_then(|kib| kib.parse().ok()).unwrap_or_default()
}

fn reset_peak() {
    let _ = std::fs::write("/proc/self/clear_refs", "5");
}

async fn verification() {
    const EVENTS: u64 = 1_000_000;
    let folder = tempfile::tempdir().expect("a folder");
    let clock = SystemClock::default();
    let options = SqliteOptions { durability: Durability::Process, ..SqliteOptions::default() };
    let ledger =
        Arc::new(sqlite::open(folder.path(), "bench", options, &clock.now()).expect("opens"));
    let left = Arc::new(AtomicU64::new(EVENTS / 2));
    let tasks: Vec<_> = (0..256)
        .map(|_| {
            let (ledger, left) = (Arc::clone(&ledger), Arc::clone(&left));
            tokio::spawn(async move {
                let (clock, ids) = (SystemClock::default(), SystemIds);
                while left
                    .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1))
                    .is_ok()
                {
                    let mut request = request(&clock, &ids);
                    request.sync = false;
                    let call_id = request.call_id.clone();
                    let Ok(Claimed::Fresh(claim)) = ledger.claim(request).await else {
                        panic!("fresh")
                    };
                    let mut settled = settlement(claim, call_id, clock.now(), &ids);
                    settled.sync = false;
                    ledger.settle(Arc::new(settled)).await.expect("settles");
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.expect("ends");
        let _ = ledger.checkpoint(Due::NOW, clock.now()).await;
    }
    for run in ["first", "second"] {
        reset_peak();
        let before = peak_memory();
        let began = Instant::now();
        let report = verify::store(&*ledger, TrustAnchors::default()).await.expect("reads");
        assert!(report.ok, "{:?}", report.problems.first());
        println!(
            "verify, store of {} events with receipts and logs: {:.1} s, {} MiB more than before ({run} run)",
            report.events,
            began.elapsed().as_secs_f64(),
            (peak_memory() - before) / 1024
        );
    }
    let file = folder.path().join("export.jsonl");
    let mut exporter = Exporter::begin(&*ledger).await.expect("reads");
    let mut out = std::io::BufWriter::new(std::fs::File::create(&file).expect("a file"));
    while let Some(page) = exporter.page().await.expect("reads") {
        for line in page {
            let Line::Event(entry) = line else { continue };
            writeln!(out, "{}", entry.bytes).expect("writes");
        }
    }
    writeln!(out, "{}", exporter.trailer()).expect("writes");
    out.flush().expect("writes");
    drop(out);
    reset_peak();
    let (before, began) = (peak_memory(), Instant::now());
    let open = || std::fs::File::open(&file).map(std::io::BufReader::new);
    let report = verify::export(open, TrustAnchors::default()).expect("reads");
    assert!(report.ok, "{:?}", report.problems.first());
    println!(
        "verify, export of {} events: {:.1} s, {} MiB more than before",
        report.events,
        began.elapsed().as_secs_f64(),
        (peak_memory() - before) / 1024
    );
}

/// The number of calls in the queried store.
const CALLS: u64 = 1_000_000;

/// Fills a store with calls of the last thirty days, each with two events, an agent log and a
/// receipt. Ids are in the order of time.
fn fill(file: &Path) {
    let connection = rusqlite::Connection::open(file).expect("opens");
    let now = jiff::Timestamp::now().as_millisecond();
    let ms = format!("({now} - ({CALLS} - i) * 2592)");
    let time = format!("strftime('%Y-%m-%dT%H:%M:%fZ', {ms} / 1000.0, 'unixepoch')");
    let id = |kind: &str| {
        let digits = format!("printf('%012x7{kind}008%015x', {ms}, i * 7919)");
        let part = |from: u8, len: u8| format!("substr({digits}, {from}, {len})");
        let parts = [part(1, 8), part(9, 4), part(13, 4), part(17, 4), part(21, 12)];
        parts.join(" || '-' || ")
    };
    let (call, receipt) = (id("a"), id("b"));
    let of = |text: &str| format!("CAST(char(0) || {text} AS BLOB)");
    let members = format!(
        "'caller', iif(i % 250000 = 7, 'rare', 'caller-' || (i % 5)), 'callId', {call},
         'receiptId', {receipt}, 'time', {time}, 'toolName', 'tool.' || (i % 50), 'writer', 'bench'"
    );
    let dispatched = of(&format!(
        "json_object('event', 'TOOL_DISPATCHED', 'seq', size + 2 * i, 'agentId',
             'agent-' || (i % 20), {members})"
    ));
    let executed = of(&format!(
        "json_patch(json_object('event', 'TOOL_EXECUTED', 'seq', size + 2 * i + 1, 'agentId',
             'agent-' || (i % 20), 'logDigest', '', 'status',
             iif(i % 10 = 0, 'failed', 'succeeded'), {members}),
             json_object('errorCode', iif(i % 10 = 0,
                 iif(i % 200000 = 0, 'rate-limited', 'tool-error'), NULL)))"
    ));
    let log = of(&format!(
        "json_object('id', printf('%016x', i), 'toolName', 'tool.' || (i % 50), 'agentId',
             'agent-' || (i % 20), 'callId', {call}, 'caller', 'local', 'input',
             json_object('text', hex(zeroblob(60))), 'durationMs', 1.5, 'isError',
             json(iif(i % 10 = 0, 'true', 'false')), 'attempt', 1, 'timestamp', {time})"
    ));
    let settled = of(&format!(
        "json_object('receiptId', {receipt}, 'callId', {call}, 'toolId', 'tool.' || (i % 50),
             'contractDigest', '', 'caller', iif(i % 250000 = 7, 'rare', 'caller-' || (i % 5)),
             'idempotency', json_object('mode', 'none'), 'argsDigest', '', 'state',
             iif(i % 10 = 0, 'failed', 'succeeded'), 'effect', 'completed', 'attempt', 1,
             'startedAt', {time}, 'writer', 'bench', 'policyVersion', '')"
    ));
    connection
        .execute_batch(&format!(
            "PRAGMA synchronous = OFF;
             BEGIN;
             CREATE TEMP TABLE n AS
                 WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {CALLS})
                 SELECT i, (SELECT size FROM writers) AS size FROM n;
             INSERT INTO events (place, body)
                 SELECT (1 << 40) | (size + 2 * i), {dispatched} FROM n;
             INSERT INTO events (place, body)
                 SELECT (1 << 40) | (size + 2 * i + 1), {executed} FROM n;
             INSERT INTO agent_logs (place, body)
                 SELECT (1 << 40) | (size + 2 * i + 1), {log} FROM n;
             INSERT INTO receipts (id, fence, body)
                 SELECT unhex({receipt}, '-'), 1, {settled} FROM n;
             UPDATE writers SET size = size + 2 * {CALLS} + 2;
             COMMIT;"
        ))
        .expect("fills");
}

/// Prints the time of a query: of the first run, and the median of five.
async fn asked<F: Future<Output = usize>>(name: &str, ask: impl Fn() -> F) {
    let mut all: Vec<Duration> = Vec::new();
    let mut rows = 0;
    for _ in 0..5 {
        let began = Instant::now();
        rows = ask().await;
        all.push(began.elapsed());
    }
    let first = all[0].as_secs_f64() * 1_000.0;
    all.sort_unstable();
    let median = all[2].as_secs_f64() * 1_000.0;
    println!("query of {name}: {rows} rows, first {first:.1} ms, median {median:.1} ms");
}

async fn query() {
    let folder = tempfile::tempdir().expect("a folder");
    let clock = SystemClock::default();
    let ledger = sqlite::open(folder.path(), "bench", SqliteOptions::default(), &clock.now())
        .expect("opens");
    ledger.close(clock.now()).await.expect("closes");
    drop(ledger);
    let file = folder.path().join(DATABASE);
    let filled = Instant::now();
    fill(&file);
    let size = |file: &Path| std::fs::metadata(file).expect("is there").size() >> 20;
    let took = filled.elapsed().as_secs_f64();
    println!("filled {CALLS} calls ({} MiB) in {took:.0} s", size(&file));
    let reads = SqliteReads::open(&file).expect("opens");
    let began = Instant::now();
    let none = LogFilter { tool: Some("none".into()), limit: 1, ..LogFilter::default() };
    assert!(reads.agent_logs(none).await.expect("reads").found.is_empty());
    let searched = size(&folder.path().join("lookup.db"));
    let took = began.elapsed().as_secs_f64();
    println!("taken in for searching in {took:.1} s ({searched} MiB)");
    let hour = {
        let at = jiff::Timestamp::now() - jiff::SignedDuration::from_secs(3_600);
        Some(format!("{at:.3}"))
    };
    let text = |text: &str| Some(text.to_owned());
    let logs = |filter: LogFilter| LogFilter { limit: 1_000, ..filter };
    for (name, filter) in [
        ("the last hour", LogFilter { since: hour.clone(), ..LogFilter::default() }),
        (
            "the last hour of one tool",
            LogFilter { since: hour.clone(), tool: text("tool.7"), ..LogFilter::default() },
        ),
        (
            "the errors of one agent in the last hour",
            LogFilter {
                since: hour.clone(),
                agent: text("agent-10"),
                error: Some(true),
                ..LogFilter::default()
            },
        ),
    ] {
        asked(name, async || {
            reads.agent_logs(logs(filter.clone())).await.expect("reads").found.len()
        })
        .await;
    }
    let newest = EventFilter { limit: 2, ..EventFilter::default() };
    let newest = reads.events(newest).await.expect("reads").found.remove(0).event.body;
    let (call, receipt) = (newest.call_id.expect("a call"), newest.receipt_id.expect("one"));
    for (name, filter) in [
        ("one call", EventFilter { call: Some(call.clone()), ..EventFilter::default() }),
        ("a call that is not there", EventFilter { call: text("none"), ..EventFilter::default() }),
        ("the newest of a tool", EventFilter { tool: text("tool.7"), ..EventFilter::default() }),
        ("a rare caller", EventFilter { caller: text("rare"), ..EventFilter::default() }),
        ("a rare code", EventFilter { code: text("rate-limited"), ..EventFilter::default() }),
        (
            "the failures of a tool",
            EventFilter { tool: text("tool.10"), status: text("failed"), ..EventFilter::default() },
        ),
        (
            "what a caller has never done",
            EventFilter {
                tool: text("tool.7"),
                caller: text("caller-1"),
                ..EventFilter::default()
            },
        ),
    ] {
        let of = || EventFilter { limit: 100, ..filter.clone() };
        asked(name, async || reads.events(of()).await.expect("reads").found.len()).await;
    }
    for (name, filter) in [
        ("receipts of a tool", ReceiptFilter { tool: text("tool.7"), ..ReceiptFilter::default() }),
        (
            "receipts of a rare caller",
            ReceiptFilter { caller: text("rare"), ..ReceiptFilter::default() },
        ),
        (
            "failed receipts of a tool",
            ReceiptFilter {
                tool: text("tool.10"),
                state: text("failed"),
                ..ReceiptFilter::default()
            },
        ),
    ] {
        let of = || ReceiptFilter { limit: 100, ..filter.clone() };
        asked(name, async || reads.receipts(of()).await.expect("reads").found.len()).await;
    }
    for (name, prefix) in [
        ("the beginning of an id", &receipt[..13]),
        ("the beginning of many ids", &receipt[..3]),
        ("the beginning of no id", "none"),
    ] {
        asked(name, async || reads.named(prefix, 20).await.expect("reads").len()).await;
    }
}

fn main() {
    let wanted: Vec<String> =
        std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    let wants = |what: &str| wanted.is_empty() || wanted.iter().any(|word| word == what);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        if wants("path") {
            paths().await;
        }
        if wants("verify") {
            verification().await;
        }
        if wants("query") {
            query().await;
        }
    });
}
