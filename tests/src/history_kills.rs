//! Kills gateways while calls are limited by what earlier calls have summed, and checks that no sum is exceeded.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::Value;

use crate::approval_kills::{self, Load, kill, on_both_stores};
use crate::torture::{Chance, RAW, Recorded, body, effects, recorded, text};
use crate::{Place, request};

/// The sum that a window must not exceed, in units and in ten thousandths.
const LIMIT: u64 = 40;
const LIMIT_EXACT: i64 = 40 * 10_000;
/// The length of the window, in milliseconds.
const WINDOW_MS: i64 = 2_000;

const RULES: &str = "\
@id(\"all\") permit (principal, action, resource);
@id(\"limit\") forbid (principal, action == Action::\"raw.do\", resource)
when { context.history.taken.sum.greaterThan(decimal(\"40.0\")) };
";

const SETTINGS: &str = "[policy]\nrules = \"rules.cedar\"\n\
                        [policy.history.taken]\ntool = \"raw.*\"\nwindow = \"2s\"\nsum = \"/ms\"\n";

/// Calls with random amounts until the load ends. Returns the calls that succeeded.
fn client(load: &Load, seed: u64) -> Vec<String> {
    let mut chance = Chance::new(seed);
    let (mut succeeded, mut calls) = (Vec::new(), 0_u64);
    while !load.has_ended() {
        let (address, _) = load.door(&mut chance);
        let call = format!("{seed}-{calls}");
        calls += 1;
        let amount = 1 + chance.below(LIMIT / 4);
        let sent = body(RAW.0, &call, &call, amount);
        match request(&address, "POST", "/v1/calls", &sent, &[]) {
            Some((200, _)) => {
                succeeded.push(call);
                load.succeeded();
            }
            Some((403, _)) => std::thread::sleep(Duration::from_millis(chance.below(60))),
            _ => std::thread::sleep(Duration::from_millis(10)),
        }
    }
    succeeded
}

/// What a receipt counts: its time and its amount in ten thousandths.
fn counted(receipt: &Value) -> Option<(i64, i64)> {
    let entry = receipt["history"].get(0)?;
    let amount = entry["amount"].as_str()?.replace('.', "");
    Some((entry["atMs"].as_i64()?, amount.parse().ok()?))
}

/// Returns the number of calls that the limit has denied.
fn denied(recorded: &Recorded) -> usize {
    recorded.events.iter().filter(|event| event["decision"]["rule"] == "limit").count()
}

/// Checks the promises about windows; returns what was found.
fn promises(places: &[Place], succeeded: &[String]) -> String {
    let recorded = recorded(&places[0]);
    let own = || recorded.receipts.values().filter(|receipt| receipt["toolId"] == RAW.0);
    let mut all: Vec<(i64, i64)> = Vec::new();
    for receipt in own() {
        let (call, entry) = (text(receipt, "callId"), counted(receipt));
        assert_eq!(entry.is_none(), receipt["effect"] == "not_started", "{call}: {receipt}");
        all.extend(entry);
    }
    all.sort_unstable();
    let mut most = 0;
    for (at, _) in &all {
        let within = all.iter().filter(|(other, _)| *other <= *at && *other > at - WINDOW_MS);
        let sum: i64 = within.map(|(_, amount)| amount).sum();
        assert!(sum <= LIMIT_EXACT, "{sum} ten thousandths up to {at}");
        most = most.max(sum);
    }
    let receipts: BTreeSet<String> = own().map(|receipt| text(receipt, "callId")).collect();
    let mut ran = BTreeSet::new();
    for (_, _, call) in places.iter().flat_map(effects) {
        assert!(receipts.contains(&call), "the call {call} had an effect and was not counted");
        assert!(ran.insert(call.clone()), "the call {call} ran twice");
    }
    for call in succeeded {
        assert!(ran.contains(call), "the call {call} has succeeded without an effect");
    }
    let denied = denied(&recorded);
    let (counted, most) = (all.len(), most / 10_000);
    format!(
        "{counted} counted, at most {most} of {LIMIT} in a window, {denied} denied, {} effects, {} answered",
        ran.len(),
        succeeded.len()
    )
}

/// Rules by which each call needs an approval, and all together are limited.
const BOTH_RULES: &str = "\
@id(\"all\") permit (principal, action, resource);
@id(\"asks\") @approval(\"one\") forbid (principal, action == Action::\"raw.do\", resource);
@id(\"limit\") forbid (principal, action == Action::\"raw.do\", resource)
when { context.history.taken.sum.greaterThan(decimal(\"40.0\")) };
";

/// As [`history`], where each call needs an approval too.
pub fn both(count: u64, seed: u64) {
    println!(
        "both: {count} times kill -9 while calls need an approval and are limited, seed {seed}"
    );
    let settings = format!("{SETTINGS}[approvals]\nwait_ms = 200\nexpiry_ms = 1500\n");
    on_both_stores(&settings, BOTH_RULES, |places| {
        kill(places, (count, seed), approval_kills::client, |places, succeeded| {
            let approved = approval_kills::promises(places, succeeded);
            format!("{approved}; {}", promises(places, succeeded))
        });
    });
}

/// Kills a gateway on SQLite, and three replicas on PostgreSQL, `count` times each.
pub fn history(count: u64, seed: u64) {
    println!("history: {count} times kill -9 while calls are limited by a window, seed {seed}");
    on_both_stores(SETTINGS, RULES, |places| {
        kill(places, (count, seed), client, |places, succeeded| {
            let found = promises(places, succeeded);
            // The clients have reached the limit.
            assert!(denied(&recorded(&places[0])) > 0, "no call was denied: {found}");
            found
        });
    });
}
