//! Measures decisions by rules, and the time until a set of rules judges many tools.
#![allow(missing_docs, clippy::unwrap_used, clippy::indexing_slicing, clippy::print_stdout)]

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use toolbooth_contracts::trust::TrustLevel;
use toolbooth_contracts::{CallContext, Guard, Identity, ToolContract};
use toolbooth_policy::rules::{HistoryWindows, RuleFile, RuleSet};
use toolbooth_policy::{EngineTool, PolicyEngine, Question, Verdict};

/// The allocator of the program.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Rules in the set, and rules that can apply to one tool.
const RULES: usize = 1_000;
const RULES_OF_A_TOOL: usize = 20;
const TOOLS: usize = 10_000;
const ROUNDS: usize = 21;
const DECISIONS: usize = 5_000;

fn tool(number: usize) -> ToolContract {
    let entry = json!({
        "name": format!("shop{}.order{number}", number % 100), "description": "Orders.",
        "execution": { "localRuntimeId": "shop" }, "output_schema": {},
        "input_schema": {
            "type": "object",
            "properties": {
                "to": { "type": "string" }, "cents": { "type": "integer" },
                "amount": { "type": "number" }, "tags": { "type": "array", "items": { "type": "string" } },
            },
            "required": ["to", "cents"],
        },
    });
    Guard::default().validate_entry(&entry).unwrap()
}

/// Rules for 50 tools, 19 for each that read its arguments, and 50 for all tools of which 1 permits.
fn rules(tools: &[ToolContract]) -> String {
    let mut text = "@id(\"all\")\npermit (principal, action, resource);\n".to_owned();
    let mut count = 1;
    for tool in tools {
        for number in 0..RULES_OF_A_TOOL - 1 {
            if count == RULES {
                return text;
            }
            count += 1;
            let id = &tool.tool_id;
            writeln!(
                text,
                "@id(\"{id}-{number}\")\nforbid (principal, action == Action::\"{id}\", resource)\n\
                 when {{ context.args.cents > {} && context.args.to like \"*{number}\" }}\n\
                 unless {{ principal in Group::\"finance\" }};",
                100_000 + number
            )
            .unwrap();
        }
    }
    text
}

fn middle(mut times: Vec<Duration>, part: f64) -> Duration {
    times.sort();
    times[((times.len() - 1) as f64 * part) as usize]
}

/// Works for about 10 µs without memory, to show what the machine adds to the slowest.
fn work() -> u64 {
    (0..13_000_u64).fold(1, |sum, number| std::hint::black_box(sum.wrapping_mul(31) ^ number))
}

fn main() {
    let tools: Vec<ToolContract> = (0..TOOLS).map(tool).collect();
    let text = rules(&tools);
    let digests: Vec<String> = (0..TOOLS).map(|number| number.to_string()).collect();
    let known: Vec<EngineTool<'_>> = tools
        .iter()
        .zip(&digests)
        .map(|(contract, digest)| EngineTool { contract, digest })
        .collect();
    let mut loads = Vec::new();
    let mut engine = None;
    for _ in 0..5 {
        let file = RuleFile { name: "bench.cedar".into(), text: text.clone(), cases: None };
        let began = Instant::now();
        let set = RuleSet::read(&[file], &HistoryWindows::default()).unwrap();
        let binding = set.bind(&known).unwrap();
        loads.push(began.elapsed());
        assert!(binding.failures.is_empty() && set.len() == RULES);
        engine = Some(binding.engine);
    }
    let engine = engine.unwrap();
    let again = Instant::now();
    let again = (engine.bind(&known).unwrap().failures.len(), again.elapsed()).1;
    println!("| {RULES} rules, {RULES_OF_A_TOOL} of a tool | |");
    println!("| --- | --- |");
    let callers = |names: &[&str]| -> Vec<Identity> {
        let named = names.iter().map(|name| Identity::named(name).unwrap());
        named.map(|caller| caller.with_groups(vec!["agents".to_owned()])).collect()
    };
    let (one, two) = (callers(&["key:agent"]), callers(&["key:agent", "key:other"]));
    let permitted = json!({ "to": "ada", "cents": 1_250, "amount": 12.5, "tags": ["a", "b"] });
    let forbidden =
        json!({ "to": "number 3", "cents": 200_000, "amount": 12.5, "tags": ["a", "b"] });
    decisions("decision", &*engine, &tools, &one, &permitted);
    decisions("two callers in turns", &*engine, &tools, &two, &permitted);
    decisions("forbidden by two rules", &*engine, &tools, &one, &forbidden);
    println!(
        "| load, with {TOOLS} tools, median of 5 | {:.0} ms |",
        middle(loads, 0.5).as_secs_f64() * 1e3
    );
    println!("| bind again, no tool changed | {:.1} ms |", again.as_secs_f64() * 1e3);
}

/// Measures decisions on the tools that rules name, and what the machine adds.
fn decisions(
    what: &str,
    engine: &dyn PolicyEngine,
    tools: &[ToolContract],
    callers: &[Identity],
    arguments: &Value,
) {
    let claimed = CallContext::default();
    let (mut medians, mut tails) = (Vec::new(), Vec::new());
    let (mut idle, mut idle_tails) = (Vec::new(), Vec::new());
    let mut times = Vec::with_capacity(DECISIONS);
    let named = RULES / RULES_OF_A_TOOL;
    for number in 0..ROUNDS * DECISIONS {
        let question = Question {
            caller: &callers[number / named % callers.len()],
            grants: &[],
            contract: &tools[number % named],
            arguments,
            trust: TrustLevel::Trusted,
            claimed: &claimed,
            at: "2026-05-01T12:00:00.000Z",
        };
        let began = Instant::now();
        let verdict = engine.judge(&question).unwrap();
        times.push(began.elapsed());
        let expects_permit = arguments["cents"] == 1_250;
        assert_eq!(matches!(verdict, Verdict::Permit { .. }), expects_permit);
        let began = Instant::now();
        std::hint::black_box(work());
        idle.push(began.elapsed());
        if times.len() == DECISIONS {
            medians.push(middle(times.clone(), 0.5));
            tails.push(middle(std::mem::take(&mut times), 0.99));
            idle_tails.push(middle(std::mem::take(&mut idle), 0.99));
        }
    }
    let micros = |times: &[Duration], part| middle(times.to_vec(), part).as_secs_f64() * 1e6;
    let rows = [
        ("median", medians),
        ("99th percentile", tails),
        ("arithmetic of 10 µs beside it, 99th percentile", idle_tails),
    ];
    for (name, times) in rows {
        let (low, mid, high) = (micros(&times, 0.0), micros(&times, 0.5), micros(&times, 1.0));
        println!(
            "| {what}, {name}, median of {ROUNDS} rounds | {mid:.1} µs ({low:.1}–{high:.1}) |"
        );
    }
}
