//! Measures the cost of the whole path with an in-process tool and the ledger in memory.
//!
//! Calls are small, or have a megabyte of arguments and of result; small ones also beside rules that name other
//! tools. Each run prints one measurement
//! as a line of JSON, so that two releases can take turns.
//!
//! `cargo xtask compare-path REVISION` builds this next to an earlier release, and prints ratios.
#![allow(missing_docs)]

#[path = "release.rs"]
mod release;

use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use serde_json::json;
use toolbooth_audit::memory::MemoryLedger;
use toolbooth_contracts::contract::ToolContract;
use toolbooth_contracts::coverage::Readiness;
use toolbooth_contracts::{
    CallRequest, Caller, Conversation, Dispatch, Executor, Guard, Outcome, ToolCall,
};
use toolbooth_proxy::{Clock, SystemClock, ToolProxy};
use toolbooth_registry::{RegisteredTool, Source, ToolRegistry};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// A tool that returns the text of its arguments.
struct Echo;

#[async_trait]
impl Executor for Echo {
    async fn execute(&self, dispatch: Dispatch, _: Conversation) -> Outcome {
        Outcome::Done(release::echo(&dispatch))
    }

    async fn readiness(&self, _: &ToolContract, _: bool) -> Readiness {
        Readiness::Ready
    }
}

fn proxy(is_ruled: bool) -> ToolProxy {
    let entry = json!({
        "name": "bench.echo", "description": "Echoes.",
        "execution": { "localRuntimeId": "bench" },
        "input_schema": {
            "type": "object", "required": ["text"], "properties": { "text": { "type": "string" } }
        },
        "output_schema": {}
    });
    let tool = RegisteredTool::from_entry(&entry, Source::File, &Guard::default());
    let mut registry = ToolRegistry::default();
    let _ = registry.register(tool.expect("the contract holds"));
    let now = SystemClock::default().now();
    let ledger = Arc::new(MemoryLedger::new("bench", &[7; 32], &now));
    release::proxy(registry, ledger, Arc::new(Echo), is_ruled)
}

/// Returns the processor time that this process has used.
fn cpu() -> Duration {
    let text = std::fs::read_to_string("/proc/self/schedstat").expect("the kernel tells");
    let nanos = text.split(' ').next().and_then(|word| word.parse().ok()).expect("a number");
    Duration::from_nanos(nanos)
}

/// Returns prose of `bytes` bytes, so that texts are neither uniform nor random.
fn prose(bytes: usize) -> String {
    let words =
        ["invoice ", "of the ", "second ", "quarter, ", "paid by ", "transfer ", "on time. "];
    let mut text = String::with_capacity(bytes + 16);
    for at in 0.. {
        if text.len() >= bytes {
            break;
        }
        text.push_str(words[(at * 5 + at / 7) % words.len()]);
    }
    text.truncate(bytes);
    text
}

fn main() {
    let words: Vec<String> = std::env::args().collect();
    // `cargo bench` adds its own argument.
    let Some([what, seconds]) = words.get(1..3) else {
        println!("the path: small|large|ruled SECONDS");
        return;
    };
    // The ledger in memory only grows, so each batch of calls uses a new one.
    let (bytes, calls_each) = match what.as_str() {
        "small" | "ruled" => (80, 20_000),
        "large" => (1_000_000, 50),
        other => panic!("there is no `{other}`"),
    };
    let time = Duration::from_secs(seconds.parse().expect("a number of seconds"));
    let arguments = json!({ "text": prose(bytes) }).to_string();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
    let runtime = runtime.expect("a runtime");
    let (mut calls, mut spent, mut on_cpu) = (0u64, Duration::ZERO, Duration::ZERO);
    let mut warm = false;
    while spent < time {
        let proxy = proxy(what == "ruled");
        runtime.block_on(async {
            let (began, before) = (Instant::now(), cpu());
            for _ in 0..calls_each {
                let request = CallRequest::new("bench.echo", &arguments).expect("it is JSON");
                let call = ToolCall::new(request, Caller::local());
                let result = proxy.call(call, Conversation::detached().0).await;
                assert!(!result.is_error, "{:?}", result.error);
                std::hint::black_box(serde_json::to_vec(&result).expect("an answer"));
            }
            if warm {
                calls += calls_each;
                spent += began.elapsed();
                on_cpu += cpu().saturating_sub(before);
            }
            warm = true;
        });
    }
    let per_call = |time: Duration| time.as_secs_f64() * 1e6 / calls as f64;
    println!(
        "{}",
        json!({
            "what": what, "calls": calls,
            "microsPerCall": per_call(spent), "cpuMicrosPerCall": per_call(on_cpu),
        })
    );
}
