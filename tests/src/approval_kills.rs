//! Kills gateways while approvals are asked for, decided and spent, and checks that none is spent twice.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::postgres::Postgres;
use crate::torture::{Chance, RAW, body, effects, on_server, place, recorded, text};
use crate::waiting::until;
use crate::{Gateway, Place, request};

/// The calls that clients contend for: few, so that several clients spend one approval.
const KEYS: u64 = 6;
const CLIENTS: u64 = 6;

const RULES: &str = "\
@id(\"all\") permit (principal, action, resource);
@id(\"asks\") @approval(\"one\") forbid (principal, action == Action::\"raw.do\", resource);
";

/// More settings of a gateway whose tool needs an approval for each call.
const SETTINGS: &str =
    "[policy]\nrules = \"rules.cedar\"\n[approvals]\nwait_ms = 200\nexpiry_ms = 1500\n";

/// An address, and the operator key of its gateway.
type Door = (String, String);

/// Calls, and decides on the approvals that the calls need, until `stop` is set. Returns the calls that
/// succeeded.
fn client(
    doors: &Mutex<Vec<Door>>,
    seed: u64,
    stop: &AtomicBool,
    successes: &AtomicU64,
) -> Vec<String> {
    let mut chance = Chance::new(seed);
    let (mut succeeded, mut calls) = (Vec::new(), 0_u64);
    while !stop.load(Ordering::Relaxed) {
        let mut door = || {
            let doors = doors.lock().expect("whole");
            doors[chance.below(doors.len() as u64) as usize].clone()
        };
        let ((address, _), (other, operator)) = (door(), door());
        let call = format!("{seed}-{calls}");
        calls += 1;
        let sent = body(RAW.0, &format!("key-{}", chance.below(KEYS)), &call, 1);
        let Some((status, answer)) = request(&address, "POST", "/v1/calls", &sent, &[]) else {
            std::thread::sleep(Duration::from_millis(10));
            continue;
        };
        if status == 200 {
            succeeded.push(call);
            successes.fetch_add(1, Ordering::Relaxed);
        }
        let Some(id) = answer["details"]["approvalId"].as_str() else { continue };
        let decision = match chance.below(10) {
            0 => "reject",
            1..=3 => continue,
            _ => "approve",
        };
        let bearer = format!("Bearer {operator}");
        let headers = [("Authorization", bearer.as_str())];
        let decision = json!({ "decision": decision }).to_string();
        request(&other, "POST", &format!("/v1/approvals/{id}"), &decision, &headers);
    }
    succeeded
}

/// Kills gateways on one store `count` times at random moments, while clients spend approvals.
fn kill(places: &[Place], count: u64, seed: u64) {
    let began = Instant::now();
    let door = |gateway: &Gateway| (gateway.address.clone(), gateway.operator_key());
    let mut gateways: Vec<Gateway> = places.iter().map(Place::serve).collect();
    let doors = Mutex::new(gateways.iter().map(door).collect::<Vec<_>>());
    let (stop, successes) = (AtomicBool::new(false), AtomicU64::new(0));
    let mut chance = Chance::new(seed);
    let succeeded: Vec<String> = std::thread::scope(|scope| {
        let client = |n| client(&doors, seed * 1_000 + n, &stop, &successes);
        let clients: Vec<_> = (0..CLIENTS).map(|n| scope.spawn(move || client(n))).collect();
        for _ in 0..count {
            std::thread::sleep(Duration::from_millis(50 + chance.below(250)));
            let which = chance.below(places.len() as u64) as usize;
            gateways[which].signal("KILL");
            let fresh = places[which].serve();
            doors.lock().expect("whole")[which] = door(&fresh);
            gateways[which] = fresh;
        }
        let before = successes.load(Ordering::Relaxed);
        until("approvals are spent", || successes.load(Ordering::Relaxed) > before + CLIENTS);
        stop.store(true, Ordering::Relaxed);
        clients.into_iter().flat_map(|client| client.join().expect("ends")).collect()
    });
    for gateway in gateways {
        gateway.stop();
    }
    places[0].assert_sound();
    let found = promises(places, &succeeded);
    println!("  {count} kills in {:.0} s: {found}", began.elapsed().as_secs_f64());
}

/// Checks the promises about approvals; returns what was found.
fn promises(places: &[Place], succeeded: &[String]) -> String {
    let recorded = recorded(&places[0]);
    let fact = |event: &Value, name: &str| text(&event["facts"], name);
    let of_kind = |kind: &'static str| {
        recorded
            .events
            .iter()
            .filter(move |event| event["event"] == kind && event["facts"].is_object())
    };
    let granted: BTreeSet<String> =
        of_kind("APPROVAL_GRANTED").map(|event| fact(event, "approvalId")).collect();
    let rejected: BTreeSet<String> =
        of_kind("APPROVAL_REJECTED").map(|event| fact(event, "approvalId")).collect();
    // Each approval has run at most one call, which was granted.
    let mut spent: BTreeMap<String, String> = BTreeMap::new();
    for receipt in recorded.receipts.values().filter(|receipt| receipt["toolId"] == RAW.0) {
        let (id, call) = (text(receipt, "approvalId"), text(receipt, "callId"));
        assert!(granted.contains(&id), "the call {call} ran without a grant of {id:?}");
        if receipt["effect"] != "not_started" {
            let other = spent.insert(id.clone(), call.clone());
            assert_eq!(other, None, "{call} has spent {id} too");
        }
    }
    let calls: BTreeSet<&String> = spent.values().collect();
    let mut ran = BTreeSet::new();
    for (_, _, call) in places.iter().flat_map(effects) {
        assert!(calls.contains(&call), "the call {call} had an effect and spent no approval");
        assert!(ran.insert(call.clone()), "the call {call} ran twice");
    }
    for call in succeeded {
        assert!(ran.contains(call), "the call {call} has succeeded without an effect");
    }
    format!(
        "{} granted, {} rejected, {} spent once each, {} effects, {} answered",
        granted.len(),
        rejected.len(),
        spent.len(),
        ran.len(),
        succeeded.len()
    )
}

/// Kills a gateway on SQLite, and three replicas on PostgreSQL, `count` times each.
pub fn approvals(count: u64, seed: u64) {
    println!("approvals: {count} times kill -9 while approvals are decided and spent, seed {seed}");
    let own = place(SETTINGS);
    own.write("rules.cedar", RULES);
    kill(&[own], count, seed);
    let Some(server) = Postgres::start() else { return };
    let database = server.database();
    let replica = |_| {
        let place = on_server(&server, &database, SETTINGS);
        place.write("rules.cedar", RULES);
        place
    };
    kill(&(0..3).map(replica).collect::<Vec<_>>(), count, seed);
}
