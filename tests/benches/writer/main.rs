//! Measures the cost of a store's bare writer, and of verification.
//!
//! 64 callers make two durable commits for each call, without the path. Each run prints one
//! measurement as a line of JSON, so that two releases can take turns.
//!
//! `cargo xtask compare-records REVISION` builds this next to an earlier release, and prints ratios.
#![allow(missing_docs)]

#[path = "release.rs"]
mod release;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::json;
use toolbooth_audit::checkpoint::Due;
use toolbooth_audit::ledger::{Claim, ClaimRequest, Claimed, Ledger, Settlement};
use toolbooth_audit::verify;
use toolbooth_contracts::agent_log::AgentLog;
use toolbooth_contracts::contract::IdempotencyMode;
use toolbooth_contracts::event::{AuditEventKind, EventBody};
use toolbooth_contracts::receipt::StoredResult;
use toolbooth_contracts::{ContentBlock, Effect, Status};
use toolbooth_proxy::{Clock, IdSource, SystemClock, SystemIds};
use toolbooth_tests::postgres::Postgres;

/// Builds a claim request from the members that both releases have; the caller adds the others.
macro_rules! claim_request {
    ($at:expr, $dispatched:expr, $sync:expr $(, $member:ident: $value:expr)*) => {
        ClaimRequest {
            receipt_id: String::new(),
            call_id: String::new(),
            tool_id: "bench.echo".into(),
            contract_digest: "0".repeat(64),
            caller: "local".into(),
            mode: IdempotencyMode::None,
            keys: Vec::new(),
            rules: KeyRules { refuse_different_args: true, rerunnable: false },
            args_digest: "0".repeat(64),
            older_args_digests: Vec::new(),
            charges: Vec::new(),
            policy_version: "0".repeat(32),
            at: $at,
            dispatched: $dispatched,
            sync: $sync,
            $($member: $value,)*
        }
    };
}
use claim_request;

const CALLERS: usize = 64;
/// The time before the measurement, in which connections, files and caches become ready.
const WARM: Duration = Duration::from_secs(1);

/// The parts that are the same for every call.
struct Call {
    claim: ClaimRequest,
    content: Vec<ContentBlock>,
    terminal: EventBody,
    log: AgentLog,
    sync: bool,
}

impl Call {
    fn new(sync: bool) -> Self {
        let text = json!({ "text": "x".repeat(80) }).to_string();
        let at = SystemClock::default().now();
        let event = |kind| {
            let mut body = EventBody::new(kind, at.text.clone());
            body.tool_name = Some("bench.echo".into());
            body.caller = Some("local".into());
            body.args_digest = Some("0".repeat(64));
            body
        };
        let mut terminal = event(AuditEventKind::ToolExecuted);
        terminal.status = Some(Status::Succeeded);
        terminal.duration_ms = Some(1.5);
        Self {
            claim: release::claim(at.clone(), event(AuditEventKind::ToolDispatched), sync),
            content: vec![ContentBlock::text(text.clone())],
            terminal,
            log: AgentLog {
                id: String::new(),
                tool_name: "bench.echo".into(),
                agent_id: Some("agent".into()),
                turn_index: Some(1),
                phase_id: None,
                epic_id: None,
                call_id: String::new(),
                receipt_id: None,
                caller: "local".into(),
                input: serde_json::from_str(&text).ok(),
                output: serde_json::from_value(
                    json!({ "content": [{ "type": "text", "text": text }] }),
                )
                .ok(),
                duration_ms: 1.5,
                is_error: false,
                error_code: None,
                attempt: 1,
                decision_inputs: None,
                timestamp: at.text,
                internal: None,
            },
            sync,
        }
    }

    /// Returns a claim request with new ids.
    fn claim(&self, clock: &SystemClock) -> ClaimRequest {
        let (call_id, receipt_id) = (SystemIds.next(), SystemIds.next());
        let at = clock.now();
        let mut claim = self.claim.clone();
        claim.dispatched.time.clone_from(&at.text);
        claim.dispatched.call_id = Some(call_id.clone());
        claim.receipt_id = receipt_id;
        claim.call_id = call_id;
        claim.at = at;
        claim
    }

    /// Returns the settlement of a claim.
    fn settlement(&self, claim: Claim, call_id: String, clock: &SystemClock) -> Settlement {
        let at = clock.now();
        let mut terminal = self.terminal.clone();
        terminal.time.clone_from(&at.text);
        terminal.call_id = Some(call_id.clone());
        let log = AgentLog {
            id: SystemIds.next(),
            call_id,
            receipt_id: Some(claim.receipt_id().to_owned()),
            timestamp: at.text.clone(),
            ..self.log.clone()
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
                content: self.content.clone(),
                structured_content: None,
                meta: None,
                error: None,
                warnings: Vec::new(),
            }),
            sandbox: None,
            duration_ms: 1.5,
            at,
            log: release::log(log),
            documents: Vec::new(),
            events: Vec::new(),
            terminal,
            sync: self.sync,
        }
    }

    /// Makes two dependent commits and returns the time of each.
    async fn run(&self, ledger: &dyn Ledger, clock: &SystemClock) -> [Duration; 2] {
        let request = self.claim(clock);
        let call_id = request.call_id.clone();
        let began = Instant::now();
        let Ok(Claimed::Fresh(claim)) = ledger.claim(request).await else { panic!("fresh") };
        let claimed = began.elapsed();
        let settlement = self.settlement(claim, call_id, clock);
        let began = Instant::now();
        ledger.settle(Arc::new(settlement)).await.expect("settles");
        [claimed, began.elapsed()]
    }

    /// Returns the CPU seconds for creating the requests of one call, without a ledger.
    fn making(&self) -> f64 {
        const CALLS: u32 = 30_000;
        let (clock, used) = (SystemClock::default(), cpu());
        for _ in 0..CALLS {
            let request = std::hint::black_box(self.claim(&clock));
            let claim = Claim::granted(request.receipt_id.clone(), 1, 1);
            std::hint::black_box(self.settlement(claim, request.call_id.clone(), &clock));
        }
        (cpu() - used) / f64::from(CALLS)
    }
}

/// Returns the CPU seconds that this process has used.
fn cpu() -> f64 {
    const TICKS_A_SECOND: f64 = 100.0;
    let stat = std::fs::read_to_string("/proc/self/stat").expect("stat");
    let after_name = stat.rsplit(')').next().expect("fields");
    let fields: Vec<&str> = after_name.split_whitespace().collect();
    let ticks = |at: usize| fields[at].parse::<f64>().expect("a number");
    (ticks(11) + ticks(12)) / TICKS_A_SECOND
}

async fn drive(ledger: Arc<dyn Ledger>, time: Duration) -> serde_json::Value {
    let (call, calls) = (Arc::new(Call::new(true)), Arc::new(AtomicU64::new(0)));
    let all = Arc::new(AtomicU64::new(0));
    let making = call.making();
    let began = Instant::now();
    let end = began + WARM + time;
    let tasks: Vec<_> = (0..CALLERS)
        .map(|_| {
            let (call, ledger) = (Arc::clone(&call), Arc::clone(&ledger));
            let (calls, all_calls) = (Arc::clone(&calls), Arc::clone(&all));
            tokio::spawn(async move {
                let clock = SystemClock::default();
                let mut times = Vec::new();
                while Instant::now() < end {
                    let took = call.run(&*ledger, &clock).await;
                    all_calls.fetch_add(1, Ordering::Relaxed);
                    if began.elapsed() >= WARM {
                        times.extend(took);
                        calls.fetch_add(1, Ordering::Relaxed);
                    }
                }
                times
            })
        })
        .collect();
    tokio::time::sleep(WARM).await;
    let (from, used) = (Instant::now(), cpu());
    let mut took: Vec<Duration> = Vec::new();
    for task in tasks {
        took.extend(task.await.expect("ends"));
    }
    let (calls, used) = (calls.load(Ordering::Relaxed) as f64, cpu() - used);
    let time = from.elapsed().as_secs_f64();
    took.sort_unstable();
    let at = |share: f64| took[((took.len() - 1) as f64 * share) as usize].as_secs_f64() * 1_000.0;
    json!({
        "callsPerSecond": calls / time,
        "cpuMicrosPerCall": used / calls * 1e6,
        "storeMicrosPerCall": (used / calls - making) * 1e6,
        "commitP50Ms": at(0.5),
        "commitP99Ms": at(0.99),
        "allCalls": all.load(Ordering::Relaxed),
    })
}

fn bytes(folder: &Path) -> u64 {
    let files = std::fs::read_dir(folder).expect("a folder").flatten();
    let databases = files.filter(|file| file.file_name().to_string_lossy().ends_with(".db"));
    databases.map(|file| file.metadata().map_or(0, |data| data.len())).sum()
}

async fn sqlite(time: Duration) -> serde_json::Value {
    let folder = tempfile::tempdir().expect("a folder");
    let ledger = release::sqlite(folder.path(), true);
    let mut line = drive(Arc::clone(&ledger), time).await;
    ledger.close(SystemClock::default().now()).await.expect("closes");
    drop(ledger);
    line["bytes"] = bytes(folder.path()).into();
    line
}

async fn postgres(time: Duration) -> serde_json::Value {
    let server = Postgres::start().expect("a server");
    let ledger = release::postgres(server.url(&server.database())).await;
    let line = drive(Arc::clone(&ledger), time).await;
    ledger.close(SystemClock::default().now()).await.expect("closes");
    line
}

/// Fills a store with events and their records, and verifies it `runs` times.
async fn verification(events: u64, runs: usize) {
    let folder = tempfile::tempdir().expect("a folder");
    let (ledger, reads) = release::sqlite_reads(folder.path());
    let left = Arc::new(AtomicU64::new(events / 2));
    let tasks: Vec<_> = (0..256)
        .map(|_| {
            let (ledger, left) = (Arc::clone(&ledger), Arc::clone(&left));
            tokio::spawn(async move {
                let (call, clock) = (Call::new(false), SystemClock::default());
                let next = |n: u64| n.checked_sub(1);
                while left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).is_ok() {
                    call.run(&*ledger, &clock).await;
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.expect("ends");
        let _ = ledger.checkpoint(Due::NOW, SystemClock::default().now()).await;
    }
    for _ in 0..runs {
        let (began, used) = (Instant::now(), cpu());
        let report = verify::store(&*reads, release::TrustAnchors::default()).await.expect("reads");
        assert!(report.ok, "{:?}", report.problems.first());
        let line = json!({
            "events": report.events,
            "seconds": began.elapsed().as_secs_f64(),
            "cpuSeconds": cpu() - used,
        });
        println!("{line}");
        // Waits for the turn of the other release.
        let mut turn = String::new();
        let _ = std::io::stdin().read_line(&mut turn);
    }
}

fn main() {
    let words: Vec<String> =
        std::env::args().skip(1).filter(|word| !word.starts_with("--")).collect();
    let number = |at: usize, default: u64| {
        words.get(at).map_or(default, |word| word.parse().expect("a number"))
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        match words.first().map_or("sqlite", String::as_str) {
            "sqlite" => println!("{}", sqlite(Duration::from_secs(number(1, 4))).await),
            "postgres" => println!("{}", postgres(Duration::from_secs(number(1, 4))).await),
            "verify" => verification(number(1, 1_000_000), number(2, 1) as usize).await,
            other => panic!("sqlite, postgres or verify, not `{other}`"),
        }
    });
}
