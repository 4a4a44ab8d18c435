//! Measures what rules that read earlier calls add to a call, by the number of calls in their window.
//!
//! A call that rules limit is compared with one of a tool that no window concerns, and with one of a tool that a rule
//! of the same form, without a window, is about.
//!
//! All kinds of calls are made in turns, one after the other, over one store; then in turns of many callers at
//! once, who share the work of a transaction.
//!
//! `cargo bench -p toolbooth-tests --bench history`.
#![allow(missing_docs)]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use serde_json::json;
use toolbooth_audit::Ledger;
use toolbooth_audit::note::Signer;
use toolbooth_contracts::contract::{AdapterId, ToolContract};
use toolbooth_contracts::coverage::Readiness;
use toolbooth_contracts::{
    CallRequest, Caller, Conversation, Dispatch, Executor, Guard, Outcome, ToolCall, ToolOutput,
    ToolPattern,
};
use toolbooth_policy::rules::{HistoryWindow, HistoryWindows, RuleFile, RuleSet, Within};
use toolbooth_policy::{Authorizer, FeatureFlags};
use toolbooth_proxy::{
    Clock, Executors, IdSource, ProxyParts, SystemClock, SystemIds, ToolProxy, World, Worlds,
};
use toolbooth_registry::{RegisteredTool, Source, ToolRegistry};
use toolbooth_store::postgres::{self, PostgresOptions};
use toolbooth_store::sqlite::{self, SqliteOptions};
use toolbooth_tests::postgres::Postgres;

/// The calls in the window for each measurement.
const SIZES: [usize; 3] = [600, 1_200, 10_000];
const ROUNDS: usize = 600;
const TOOLS: [&str; 4] = ["plain.do", "ruled.do", "counted.do", "limited.do"];
/// Callers at once, the calls of each in a turn, and the turns of each tool.
const CALLERS: usize = 16;
const CALLS_EACH: usize = 25;
const TURNS: usize = 24;
/// Each tool follows each other one equally often.
const ORDERS: [[usize; 4]; 4] = [[0, 1, 3, 2], [1, 2, 0, 3], [2, 3, 1, 0], [3, 0, 2, 1]];

const RULES: &str = "\
@id(\"all\") permit (principal, action, resource);
@id(\"large\") forbid (principal, action == Action::\"ruled.do\", resource)
when { context.args.amount.greaterThan(decimal(\"500.0\")) };
@id(\"limit\") forbid (principal, action == Action::\"limited.do\", resource)
when { context.history.taken.sum.greaterThan(decimal(\"900000000.0\")) };
";

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

fn registry() -> ToolRegistry {
    let mut registry = ToolRegistry::default();
    for id in TOOLS {
        let entry = json!({
            "name": id, "description": "Echoes.", "execution": { "localRuntimeId": "bench" },
            "input_schema": { "type": "object", "required": ["amount"],
                "properties": { "amount": { "type": "number" } } },
            "output_schema": {}
        });
        let tool = RegisteredTool::from_entry(&entry, Source::File, &Guard::default());
        let _ = registry.register(tool.expect("fits"));
    }
    registry
}

/// Declares `taken`, which counts `limited.do`, and `others`, which counts `counted.do`.
fn windows() -> HistoryWindows {
    let window = |tool: &str| HistoryWindow {
        tool: ToolPattern::try_from(tool.to_owned()).expect("an id"),
        length: Duration::from_secs(86_400),
        sum: Some("/amount".to_owned()),
        within: Within::Caller,
    };
    let all = [("taken", window("limited.do")), ("others", window("counted.do"))];
    let all: BTreeMap<String, HistoryWindow> =
        all.into_iter().map(|(name, window)| (name.to_owned(), window)).collect();
    HistoryWindows::new(all).expect("are valid")
}

fn proxy(ledger: Arc<dyn Ledger>) -> ToolProxy {
    let file = RuleFile { name: "bench.cedar".into(), text: RULES.into(), cases: None };
    let rules = RuleSet::read(&[file], &windows()).expect("are valid");
    let policy = Authorizer::new(FeatureFlags::ON).with_engine(Arc::new(rules));
    ToolProxy::new(ProxyParts::new(
        Worlds::new(World::new(policy).with_registry(registry())),
        ledger,
        Executors::default().with(AdapterId::Local("bench".into()), Arc::new(Echo)),
    ))
}

async fn call(proxy: &ToolProxy, tool: &str) -> Duration {
    let began = Instant::now();
    let request = CallRequest::new(tool, "{\"amount\":1.25}").expect("JSON");
    let call = ToolCall::new(request, Caller::local());
    let result = proxy.call(call, Conversation::detached().0).await;
    assert!(!result.is_error, "{result:?}");
    began.elapsed()
}

fn median(times: &mut [Duration]) -> f64 {
    times.sort_unstable();
    times[times.len() / 2].as_secs_f64() * 1e6
}

async fn measure(name: &str, ledger: Arc<dyn Ledger>) {
    let proxy = proxy(ledger);
    let mut counted = 0;
    for size in SIZES {
        while counted + ROUNDS < size {
            call(&proxy, "limited.do").await;
            counted += 1;
        }
        let mut times: [Vec<Duration>; 4] = Default::default();
        for round in 0..ROUNDS {
            // A call may wait for the end of the one before it, so the order changes.
            for index in ORDERS[round % ORDERS.len()] {
                times[index].push(call(&proxy, TOOLS[index]).await);
            }
            counted += 1;
        }
        report(
            &format!(
                "{name}, {} to {counted} calls in the window, time of a call",
                counted - ROUNDS
            ),
            times,
        );
    }
    measure_together(name, &proxy).await;
}

/// Measures the time that passes for each call, the inverse of the throughput, while many callers call at once.
async fn measure_together(name: &str, proxy: &ToolProxy) {
    let mut times: [Vec<Duration>; 4] = Default::default();
    for turn in 0..TURNS {
        for index in ORDERS[turn % ORDERS.len()] {
            let began = Instant::now();
            let callers = (0..CALLERS).map(|_| {
                let proxy = proxy.clone();
                tokio::spawn(async move {
                    for _ in 0..CALLS_EACH {
                        call(&proxy, TOOLS[index]).await;
                    }
                })
            });
            for caller in callers.collect::<Vec<_>>() {
                caller.await.expect("every call succeeds");
            }
            times[index].push(began.elapsed() / (CALLERS * CALLS_EACH) as u32);
        }
    }
    report(&format!("{name}, {CALLERS} callers at once, time for each call"), times);
}

fn report(what: &str, times: [Vec<Duration>; 4]) {
    let [plain, ruled, own, limited] = times.map(|mut times| median(&mut times));
    println!(
        "{what}: {plain:.0} µs, with a rule {:+.0} µs, counted {:+.0} µs, limited {:+.0} µs",
        ruled - plain,
        own - plain,
        limited - plain
    );
}

#[tokio::main]
async fn main() {
    let (clock, ids) = (SystemClock::default(), SystemIds);
    let folder = tempfile::tempdir().expect("a folder");
    let options = SqliteOptions::default();
    let ledger = sqlite::open(folder.path(), &ids.next(), options, &clock.now()).expect("opens");
    measure("SQLite", Arc::new(ledger)).await;
    let Some(server) = Postgres::start() else { return };
    let options = PostgresOptions {
        url: server.url(&server.database()),
        digest_key: [7; 32],
        older_digest_keys: Vec::new(),
        signer: Signer::new(&[7; 32]),
        kept: Vec::new(),
        accept_restored: false,
    };
    let ledger = postgres::open(options, &ids.next(), &clock.now()).await.expect("opens");
    measure("PostgreSQL", Arc::new(ledger)).await;
}
