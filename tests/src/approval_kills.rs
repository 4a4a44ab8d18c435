//! Kills gateways while approvals are asked for, decided and spent, and checks that none is spent twice.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::postgres::Postgres;
use crate::torture::{Chance, RAW, body, effects, on_server, place, recorded, text};
use crate::waiting::until;
use crate::{Place, RunningGateway, request};

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
pub(crate) type Door = (String, String);

/// The doors of gateways that are killed under load, and what their clients report.
pub(crate) struct Load {
    doors: Mutex<Vec<Door>>,
    stop: AtomicBool,
    successes: AtomicU64,
}

impl Load {
    /// Whether clients end.
    pub(crate) fn has_ended(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Returns any of the doors.
    pub(crate) fn door(&self, chance: &mut Chance) -> Door {
        let doors = self.doors.lock().expect("whole");
        doors[chance.below(doors.len() as u64) as usize].clone()
    }

    /// Counts a call that succeeded.
    pub(crate) fn succeeded(&self) {
        self.successes.fetch_add(1, Ordering::Relaxed);
    }
}

/// Calls, and decides on the approvals that the calls need, until the load ends. Returns the calls that
/// succeeded.
pub(crate) fn client(load: &Load, seed: u64) -> Vec<String> {
    let mut chance = Chance::new(seed);
    let (mut succeeded, mut calls) = (Vec::new(), 0_u64);
    while !load.has_ended() {
        let ((address, _), (other, operator)) = (load.door(&mut chance), load.door(&mut chance));
        let call = format!("{seed}-{calls}");
        calls += 1;
        let key = chance.below(KEYS);
        let sent = body(RAW.0, &format!("key-{key}"), &call, 1 + 2 * key);
        let Some((status, answer)) = request(&address, "POST", "/v1/calls", &sent, &[]) else {
            std::thread::sleep(Duration::from_millis(10));
            continue;
        };
        if status == 200 {
            succeeded.push(call);
            load.succeeded();
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

/// Kills gateways on one store `count` times at random moments, under the load of clients. Then checks the
/// promises about the calls that succeeded.
pub(crate) fn kill(
    places: &[Place],
    (count, seed): (u64, u64),
    client: fn(&Load, u64) -> Vec<String>,
    promises: fn(&[Place], &[String]) -> String,
) {
    let began = Instant::now();
    let door = |gateway: &RunningGateway| (gateway.address.clone(), gateway.operator_key());
    let mut gateways: Vec<RunningGateway> = places.iter().map(Place::serve).collect();
    let load = Load {
        doors: Mutex::new(gateways.iter().map(door).collect()),
        stop: AtomicBool::new(false),
        successes: AtomicU64::new(0),
    };
    let mut chance = Chance::new(seed);
    let succeeded: Vec<String> = std::thread::scope(|scope| {
        let client = |n| client(&load, seed * 1_000 + n);
        let clients: Vec<_> = (0..CLIENTS).map(|n| scope.spawn(move || client(n))).collect();
        for _ in 0..count {
            std::thread::sleep(Duration::from_millis(50 + chance.below(250)));
            let which = chance.below(places.len() as u64) as usize;
            gateways[which].signal("KILL");
            let fresh = places[which].serve();
            load.doors.lock().expect("whole")[which] = door(&fresh);
            gateways[which] = fresh;
        }
        let done = || load.successes.load(Ordering::Relaxed);
        let before = done();
        until("calls succeed", || done() > before + CLIENTS);
        load.stop.store(true, Ordering::Relaxed);
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
pub(crate) fn promises(places: &[Place], succeeded: &[String]) -> String {
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

/// Calls `each` with a place with these rules on SQLite, and with three on one PostgreSQL server, if there is one.
pub(crate) fn on_both_stores(settings: &str, rules: &str, mut each: impl FnMut(&[Place])) {
    let own = place(settings);
    own.write("rules.cedar", rules);
    each(&[own]);
    let Some(server) = Postgres::start() else { return };
    let database = server.database();
    let replica = |_| {
        let place = on_server(&server, &database, settings);
        place.write("rules.cedar", rules);
        place
    };
    each(&(0..3).map(replica).collect::<Vec<_>>());
}

/// Kills a gateway on SQLite, and three replicas on PostgreSQL, `count` times each.
pub fn approvals(count: u64, seed: u64) {
    println!("approvals: {count} times kill -9 while approvals are decided and spent, seed {seed}");
    on_both_stores(SETTINGS, RULES, |places| kill(places, (count, seed), client, promises));
}
