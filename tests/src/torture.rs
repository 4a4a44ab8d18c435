//! Injects faults and checks that the promises hold.
//!
//! The faults are killed gateways, failing and full disks, stopped servers, dropped responses and contending
//! replicas. Each scenario is bounded and seeded, prints its results, and panics if a promise is broken.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::postgres::Postgres;
use crate::{Place, RunningGateway, STATE, WRITING_HANDLERS, binary, request, skip};

/// A seeded random number generator (splitmix64).
#[derive(Clone)]
pub struct Chance(u64);

impl Chance {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, most: u64) -> u64 {
        self.roll() % most
    }
}

/// A tool that logs every effect with its call.
const HANDLER: &str = r#"import os, time
FILE = os.open("effects.txt", os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)
def do(args, context):
    line = "%s %s %s %d\n" % (context["toolId"], args["key"], context["callId"], context["attempt"])
    os.write(FILE, line.encode())
    time.sleep(args.get("ms", 0) / 1000)
    return {"key": args["key"]}
"#;

/// Three tools, one for each idempotency mode that makes a promise.
pub const TOOLS: [(&str, &str); 3] =
    [("pay.do", "keyed"), ("mail.do", "on-key"), ("put.do", "safe-retry")];
/// Concurrent calls of each tool.
const SLOTS: u64 = 6;
/// A tool without idempotency.
pub(crate) const RAW: (&str, &str) = ("raw.do", "none");

fn registry() -> String {
    let tools: Vec<Value> = TOOLS
        .iter()
        .chain([&RAW])
        .map(|(id, mode)| {
            let mut idempotency = json!({ "mode": mode });
            if *mode == "keyed" {
                idempotency["key_field"] = json!("key");
            }
            json!({
                "name": id, "description": "Has an effect.",

                "input_schema": {"type": "object", "properties": {"key": {"type": "string"}}},
                "output_schema": {}, "permissions": [], "timeout_ms": 20_000,
                "idempotency": idempotency,
                "policy": {"maxConcurrency": SLOTS, "costUnits": 0.25}
            })
        })
        .collect();
    json!({ "version": "1.0.0", "tools": tools }).to_string()
}

/// Returns a place with these tools and this configuration.
pub fn place(configuration: &str) -> Place {
    let place = Place::new();
    // A budget that no scenario exceeds: what each fault leaves charged is verified with the records.
    let budget = if configuration.contains("[budgets]") { "" } else { "[budgets]\ndaily = 1e9\n" };
    let configuration = format!("{configuration}\n{budget}{WRITING_HANDLERS}");
    place.write("toolbooth.toml", &configuration).write("tools.registry.json", &registry());
    for (id, _) in TOOLS.iter().chain([&RAW]) {
        let domain = id.split('.').next().expect("a domain");
        place.write(&format!("handlers/{domain}.py"), HANDLER);
    }
    place
}

/// One effect: tool, key, call.
pub(crate) type Effect = (String, String, String);

pub(crate) fn effects(place: &Place) -> Vec<Effect> {
    let mut all = Vec::new();
    for folder in ["handlers", "."] {
        let text = std::fs::read_to_string(place.path().join(folder).join("effects.txt"))
            .unwrap_or_default();
        all.extend(text.lines().filter_map(|line| {
            let mut words = line.split(' ').map(str::to_owned);
            Some((words.next()?, words.next()?, words.next()?))
        }));
    }
    all
}

pub(crate) fn body(tool: &str, key: &str, call: &str, ms: u64) -> String {
    let mut context = json!({ "callId": call });
    if tool == "mail.do" || tool == "put.do" {
        context["idempotencyKey"] = json!(key);
    }
    json!({ "toolId": tool, "args": { "key": key, "ms": ms }, "context": context }).to_string()
}

/// All events and receipts in the output of the command line.
pub(crate) struct Recorded {
    pub(crate) events: Vec<Value>,
    pub(crate) receipts: BTreeMap<String, Value>,
}

pub(crate) fn recorded(place: &Place) -> Recorded {
    let output = place.run(&["audit", "export"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let events = String::from_utf8_lossy(&output.stdout)
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .filter(|event| event["event"].is_string())
        .collect();
    let (listed, _) = place.json(&["receipts", "list", "--limit", "1000000"]);
    let receipts = listed["receipts"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|receipt| (text(receipt, "receiptId"), receipt.clone()))
        .collect();
    Recorded { events, receipts }
}

pub(crate) fn text(value: &Value, name: &str) -> String {
    value[name].as_str().unwrap_or_default().to_owned()
}

/// Checks the promises after any faults, and returns a summary. `answered` contains the successes that
/// clients have received: call and receipt.
fn promises(place: &Place, answered: &[(String, String)], nothing_runs: bool) -> String {
    place.assert_sound();
    let effects = effects(place);
    let recorded = recorded(place);
    let modes: BTreeMap<&str, &str> = TOOLS.into_iter().collect();
    let mut by_key: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    for (tool, key, _) in &effects {
        *by_key.entry((tool, key)).or_default() += 1;
    }
    for ((tool, key), count) in &by_key {
        if modes.get(tool) != Some(&"safe-retry") {
            assert_eq!(*count, 1, "{tool} had {count} effects for the key {key}");
        }
    }
    let dispatched: BTreeMap<String, String> = recorded
        .events
        .iter()
        .filter(|event| event["event"] == "TOOL_DISPATCHED")
        .map(|event| (text(event, "callId"), text(event, "receiptId")))
        .collect();
    let is_charged =
        |event: &Value| event["event"] != "TOOL_DISPATCHED" || !event["facts"]["charged"].is_null();
    let charged = recorded.events.iter().filter(|event| event["toolName"] != "calculator");
    assert!(charged.into_iter().all(is_charged), "each dispatch is charged to the budget");
    let with_effect: BTreeSet<&String> = effects.iter().map(|(_, _, call)| call).collect();
    for call in &with_effect {
        assert!(dispatched.contains_key(*call), "the effect of call {call} has no claim");
    }
    for (call, receipt_id) in answered {
        let receipt = recorded.receipts.get(receipt_id);
        let state = receipt.map(|receipt| text(receipt, "state"));
        assert_eq!(state.as_deref(), Some("succeeded"), "call {call} was answered");
        let own = recorded.events.iter().any(|event| {
            event["receiptId"] == receipt_id.as_str()
                && with_effect.contains(&text(event, "callId"))
        });
        assert!(own, "call {call} was answered without an effect");
    }
    let (listed, _) =
        place.json(&["receipts", "list", "--state", "in_doubt", "--limit", "1000000"]);
    let doubts = listed["receipts"].as_array().map_or(0, Vec::len);
    let in_doubt =
        recorded.receipts.values().filter(|receipt| receipt["state"] == "in_doubt").count();
    assert_eq!(doubts, in_doubt, "every doubt is listed");
    if nothing_runs {
        for receipt in recorded.receipts.values() {
            assert_ne!(
                receipt["state"], "in_flight",
                "a lost call is told to be in doubt: {receipt}"
            );
        }
    }
    format!(
        "{} effects, {} receipts, {doubts} in doubt, {} answered, {} events, verified",
        effects.len(),
        recorded.receipts.len(),
        answered.len(),
        recorded.events.len()
    )
}

type Answered = Arc<Mutex<Vec<(String, String)>>>;

/// Starts clients that call until `stop` is set; adds their successes to `answered`.
fn load(
    address: &str,
    clients: u64,
    seed: u64,
    stop: &Arc<AtomicBool>,
    answered: &Answered,
) -> Vec<std::thread::JoinHandle<u64>> {
    (0..clients)
        .map(|client| {
            let (address, stop, answered) =
                (address.to_owned(), Arc::clone(stop), Arc::clone(answered));
            std::thread::spawn(move || {
                let mut chance = Chance::new(seed * 1_000 + client);
                let mut calls = 0;
                while !stop.load(Ordering::Relaxed) {
                    let (tool, _) = TOOLS[chance.below(3) as usize];
                    // Half of the keys are shared by all rounds and clients; half are new.
                    let key = match chance.below(2) {
                        0 => format!("shared-{}", chance.below(60 + seed * 4)),
                        _ => format!("{seed}-{client}-{calls}"),
                    };
                    let call = format!("{seed}-{client}-{calls}");
                    let sent = body(tool, &key, &call, chance.below(4));
                    let Some((status, answer)) = request(&address, "POST", "/v1/calls", &sent, &[])
                    else {
                        break;
                    };
                    if status == 200 {
                        answered.lock().expect("whole").push((call, text(&answer, "receiptId")));
                    }
                    calls += 1;
                }
                calls
            })
        })
        .collect()
}

/// Kills the gateway at random moments under load, and verifies the records after each kill.
pub fn kills(count: u64, seed: u64) {
    println!("kills: {count} times kill -9 under load, seed {seed}");
    let (mut gateway_place, mut answered) = (place(""), Answered::default());
    let mut chance = Chance::new(seed);
    let (began, mut calls) = (Instant::now(), 0);
    for round in 0..count {
        // A new store every 50 rounds: each check reads all records.
        if round > 0 && round % 50 == 0 {
            (gateway_place, answered) = (place(""), Answered::default());
        }
        let place = &gateway_place;
        let gateway = place.serve();
        let stop = Arc::new(AtomicBool::new(false));
        let clients = load(&gateway.address, 6, round + 1, &stop, &answered);
        std::thread::sleep(Duration::from_millis(20 + chance.below(230)));
        gateway.signal("KILL");
        stop.store(true, Ordering::Relaxed);
        calls += clients.into_iter().map(|client| client.join().expect("ends")).sum::<u64>();
        drop(gateway);
        place.assert_sound();
        if (round + 1) % 25 == 0 {
            // A short call detects the lost writer.
            place.run(&["call", "calculator", "--args", r#"{"expression":"1"}"#]);
            let found = promises(place, &answered.lock().expect("whole"), true);
            println!("  after {} kills: {found}", round + 1);
        }
    }
    gateway_place.run(&["call", "calculator", "--args", r#"{"expression":"1"}"#]);
    let found = promises(&gateway_place, &answered.lock().expect("whole"), true);
    all_slots_are_free(&gateway_place);
    println!(
        "kills: {count} kills, {calls} calls in {:.0} s; at last {found}",
        began.elapsed().as_secs_f64()
    );
}

/// Checks that each tool has all its slots: calls that were killed hold none.
fn all_slots_are_free(place: &Place) {
    let gateway = place.serve();
    for (tool, _) in TOOLS {
        let calls: Vec<_> = (0..SLOTS)
            .map(|n| {
                let address = gateway.address.clone();
                // Long enough that all of them run at once.
                let sent = body(tool, &format!("slot-{n}"), &format!("slot-{tool}-{n}"), 300);
                std::thread::spawn(move || request(&address, "POST", "/v1/calls", &sent, &[]))
            })
            .collect();
        for call in calls {
            let (status, answer) = call.join().expect("ends").expect("an answer");
            assert_eq!(status, 200, "{tool}: {answer}");
        }
    }
    gateway.stop();
    place.assert_sound();
}

/// Whether `strace` is installed and can trace.
fn can_trace() -> bool {
    let traced = Command::new("strace")
        .args(["-f", "-o", "/dev/null", "-e", "trace=fsync", "true"])
        .stderr(Stdio::null())
        .status();
    traced.is_ok_and(|status| status.success())
}

/// Makes each write and each sync of a call fail in turn, first once, then permanently.
pub fn io_errors(most: u64, step: u64) {
    if !can_trace() {
        skip("strace that may trace");
        return;
    }
    println!("I/O errors: each fsync, fdatasync, ftruncate and pwrite64 of a call fails in turn");
    let place = place("");
    // Creates the store first: errors of its creation are not part of this scenario.
    assert_eq!(place.json(&["call", "pay.do", "--args", r#"{"key":"first"}"#]).1, 0);
    let (mut answered, mut refused, mut injected) = (Vec::new(), 0, 0);
    // After a permanent error the gateway waits for the disk, so fewer of these are tried.
    for (suffix, step) in [("", step), ("+", step * 7)] {
        let mut n = 1;
        while n <= most {
            let key = format!("k{n}{}", suffix.replace('+', "p"));
            let args = json!({ "key": key }).to_string();
            let trace = place.path().join("trace.txt");
            let inject =
                format!("inject=fsync,fdatasync,ftruncate,pwrite64:error=EIO:when={n}{suffix}");
            let output = Command::new("strace")
                .args(["-f", "-o"])
                .arg(&trace)
                .args(["-e", "trace=fsync,fdatasync,ftruncate,pwrite64", "-e", &inject])
                .arg(binary())
                .args(["call", "pay.do", "--format", "json", "--args", &args])
                .env(STATE, place.state())
                .current_dir(place.path())
                .stdin(Stdio::null())
                .output()
                .expect("strace starts");
            let hit = std::fs::read_to_string(&trace).unwrap_or_default().contains("INJECTED");
            injected += u64::from(hit);
            let result: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
            if result["status"] == "succeeded" {
                answered.push((text(&result, "callId"), text(&result, "receiptId")));
            } else {
                refused += 1;
            }
            if output.status.code() == Some(1) && result["error"]["code"] == "record-unavailable" {
                let done = effects(&place).iter().any(|(_, own, _)| *own == key);
                assert!(!done, "a refused call had an effect ({inject})");
            }
            // The disk works again. The repeated call succeeds or has an unknown outcome, with at most one
            // effect.
            let (again, _) = place.json(&["call", "pay.do", "--args", &args]);
            let code = text(&again["error"], "code");
            assert!(again["status"] == "succeeded" || code == "call-in-doubt", "{inject}: {again}");
            place.assert_sound();
            if !hit {
                break;
            }
            n += step;
        }
    }
    let found = promises(&place, &answered, true);
    println!("I/O errors: {injected} injected, {refused} calls not answered with success: {found}");
    assert!(injected > 3, "errors were injected");
}

/// A small tmpfs, unmounted when it is dropped.
struct Disk(std::path::PathBuf);

impl Disk {
    fn mount(path: &Path, size: &str) -> Option<Self> {
        std::fs::create_dir_all(path).expect("a folder");
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={size}"), "tmpfs"])
            .arg(path)
            .stderr(Stdio::null())
            .status();
        if mounted.is_ok_and(|status| status.success()) {
            return Some(Self(path.to_owned()));
        }
        skip("mounting a small disk");
        None
    }

    fn remount(&self, mode: &str) -> bool {
        Command::new("mount")
            .args(["-o", &format!("remount,{mode}")])
            .arg(&self.0)
            .stderr(Stdio::null())
            .status()
            .is_ok_and(|status| status.success())
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

fn until(what: &str, mut fits: impl FnMut() -> bool) {
    let began = Instant::now();
    while !fits() {
        assert!(began.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn pay(gateway: &RunningGateway, key: &str) -> (u16, Value) {
    gateway.post("/v1/calls", &body("pay.do", key, &format!("call-{key}"), 0))
}

/// Checks that every call is refused before it has an effect while the store is broken. Then checks that
/// service resumes without intervention.
fn refused_and_resumed(
    what: &str,
    place: &Place,
    gateway: &RunningGateway,
    broken: impl FnOnce(),
    meanwhile: impl FnOnce(),
    mended: impl FnOnce(),
) {
    let before = effects(place).len();
    let name = what.replace(' ', "-");
    broken();
    let mut refused = 0;
    until(&format!("{what}: calls are refused"), || {
        let (status, answer) = pay(gateway, &format!("{name}-{refused}"));
        refused += 1;
        (status, &answer["code"]) == (503, &json!("record-unavailable"))
    });
    let had = effects(place).len();
    for n in 0..20 {
        let (status, answer) = pay(gateway, &format!("{name}-while-{n}"));
        assert_eq!((status, &answer["code"]), (503, &json!("record-unavailable")), "{answer}");
    }
    assert_eq!(gateway.get("/readyz").0, 503, "{what}: readiness is red");
    meanwhile();
    assert_eq!(effects(place).len(), had, "{what}: nothing had an effect");
    mended();
    until(&format!("{what}: service resumes"), || pay(gateway, &format!("{name}-after")).0 == 200);
    until(&format!("{what}: readiness is green"), || gateway.get("/readyz").0 == 200);
    println!("  {what}: refused before any effect, resumed by itself ({before} effects before)");
}

/// Fills the disk of a store, then makes it read-only.
pub fn disks() {
    println!("disks: a full one, a read-only one");
    let place = place("");
    let data = place.path().join("data");
    let Some(disk) = Disk::mount(&data, "4m") else { return };
    let gateway = place.serve_with(&["--data", "data"]);
    assert_eq!(pay(&gateway, "first").0, 200);
    let filler = data.join("filler");
    refused_and_resumed(
        "full disk",
        &place,
        &gateway,
        || {
            let mut file = std::fs::File::create(&filler).expect("a file");
            let block = vec![0u8; 4096];
            while file.write_all(&block).is_ok() {}
        },
        || {
            let (checked, exit) = place.json(&["doctor", "--data", "data"]);
            let checks = checked["checks"].as_array().expect("checks");
            let store = checks.iter().find(|check| check["name"] == "store").expect("the store");
            assert_eq!((&store["state"], exit), (&json!("failed"), 1), "{checked}");
            for search in [["audit", "query"], ["logs", "query"], ["audit", "stats"]] {
                let (found, exit) = place.json(&[search[0], search[1], "--data", "data"]);
                assert_eq!(exit, 0, "a full disk can be searched: {found}");
            }
        },
        || std::fs::remove_file(&filler).expect("is removed"),
    );
    let (status, _, words) = gateway.stop();
    assert_eq!(status, Some(0), "{words}");
    let missed = words.matches("an event could not be recorded").count();
    assert!((1..10).contains(&missed), "{missed} lines for what is counted: {words}");
    let files = std::fs::read_dir(&data).expect("a folder").map(|entry| entry.expect("a file"));
    let drafts = files.filter(|file| file.path().extension().is_some_and(|end| end == "draft"));
    assert_eq!(drafts.count(), 0, "a full disk leaves no drafts");
    assert!(disk.remount("ro"), "nothing is open any more");
    let had = effects(&place).len();
    let again = ["call", "pay.do", "--data", "data", "--args", r#"{"key":"read-only"}"#];
    let (refused, exit) = place.json(&again);
    assert_eq!((&refused["error"]["code"], exit), (&json!("store-unavailable"), 3), "{refused}");
    assert_eq!(effects(&place).len(), had, "nothing had an effect");
    assert!(disk.remount("rw"));
    assert_eq!(place.json(&again).1, 0, "service resumes");
    println!("  read-only disk: refused before any effect, resumed");
    let (report, exit) = place.json(&["audit", "verify", "--store", "data"]);
    assert_eq!((&report["ok"], exit), (&json!(true), 0), "{report}");
    println!("disks: {} events, verified", report["events"]);
}

/// Returns the place of a replica with its records in this database, and with more settings.
pub fn on_server(server: &Postgres, database: &str, more: &str) -> Place {
    place(&format!(
        "[lock]\nmode = \"file\"\n[store]\nurl = \"{}\"\ndigest_key = {{ secret_ref = \"env:TORTURE_KEY\" }}\n{more}",
        server.url(database)
    ))
    .env("TORTURE_KEY", &"5a".repeat(32))
}

/// Cuts the connections to PostgreSQL under load, then stops and starts the server.
pub fn server_outages() {
    println!("outages: PostgreSQL stopped and started, its connections cut, under load");
    let Some(mut server) = Postgres::start() else { return };
    let database = server.database();
    let place = on_server(&server, &database, "");
    let gateway = place.serve();
    let (stop, answered) = (Arc::new(AtomicBool::new(false)), Answered::default());
    let clients = load(&gateway.address, 4, 1, &stop, &answered);
    for _ in 0..5 {
        std::thread::sleep(Duration::from_millis(150));
        server.try_sql(
            &database,
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
             WHERE application_name = 'toolbooth' AND pid <> pg_backend_pid()",
        );
    }
    stop.store(true, Ordering::Relaxed);
    let calls: u64 = clients.into_iter().map(|client| client.join().expect("ends")).sum();
    let server = Mutex::new(&mut server);
    refused_and_resumed(
        "stopped server",
        &place,
        &gateway,
        || server.lock().expect("whole").stop(),
        || (),
        || server.lock().expect("whole").resume(),
    );
    let (status, _, words) = gateway.stop();
    assert_eq!(status, Some(0), "{words}");
    let found = promises(&place, &answered.lock().expect("whole"), true);
    println!("outages: {calls} calls: {found}");
}

/// The number of calls that each client of [`replicas`] makes while a key is in use.
const CALLS_PER_KEY: u64 = 2;

/// Runs three replicas on one database with clients that contend for keys, until `keys` keys were
/// used. Kills one replica every second or two, `kills` times, and starts it again.
pub fn replicas(clients: u64, keys: u64, kills: u64, seed: u64) {
    println!(
        "replicas: 3 on one PostgreSQL, {clients} clients, {keys} keys, {kills} kills, seed {seed}"
    );
    let Some(server) = Postgres::start() else { return };
    let database = server.database();
    let places: Vec<Place> = (0..3).map(|_| on_server(&server, &database, "")).collect();
    let mut gateways: Vec<RunningGateway> = places.iter().map(Place::serve).collect();
    let addresses: Arc<Mutex<Vec<String>>> =
        Arc::new(Mutex::new(gateways.iter().map(|gateway| gateway.address.clone()).collect()));
    let stop = Arc::new(AtomicBool::new(false));
    let begun = Arc::new(AtomicU64::new(0));
    let conflicts = Arc::new(AtomicUsize::new(0));
    type Outcomes = Arc<Mutex<BTreeMap<String, BTreeSet<String>>>>;
    let outcomes: Outcomes = Arc::default();
    let answered: Answered = Arc::default();
    let calling: Vec<_> = (0..clients)
        .map(|client| {
            let (stop, begun) = (Arc::clone(&stop), Arc::clone(&begun));
            let (addresses, outcomes, answered, conflicts) = (
                Arc::clone(&addresses),
                Arc::clone(&outcomes),
                Arc::clone(&answered),
                Arc::clone(&conflicts),
            );
            std::thread::spawn(move || {
                let mut chance = Chance::new(seed * 1_000 + client);
                let mut calls = 0u64;
                while !stop.load(Ordering::Relaxed) {
                    let address = {
                        let all = addresses.lock().expect("whole");
                        all[chance.below(all.len() as u64) as usize].clone()
                    };
                    // Keys advance with the calls of all clients, which contend for the same few.
                    let at = begun.fetch_add(1, Ordering::Relaxed) / (clients * CALLS_PER_KEY);
                    let key = format!("key-{}", at.saturating_sub(chance.below(3)));
                    let tool = if chance.below(2) == 0 { "pay.do" } else { "mail.do" };
                    let call = format!("{client}-{calls}");
                    let sent = body(tool, &key, &call, key.len() as u64 * 3);
                    calls += 1;
                    match request(&address, "POST", "/v1/calls", &sent, &[]) {
                        Some((200, answer)) => {
                            let receipt = text(&answer, "receiptId");
                            answered.lock().expect("whole").push((call, receipt.clone()));
                            let mut outcomes = outcomes.lock().expect("whole");
                            outcomes.entry(format!("{tool} {key}")).or_default().insert(receipt);
                        }
                        // The key was used with other arguments.
                        Some((422, _)) => drop(conflicts.fetch_add(1, Ordering::Relaxed)),
                        Some(_) => (),
                        None => std::thread::sleep(Duration::from_millis(20)),
                    }
                }
                calls
            })
        })
        .collect();
    let mut chance = Chance::new(seed);
    let mut killed = 0;
    while killed < kills {
        std::thread::sleep(Duration::from_millis(1_000 + chance.below(1_000)));
        let which = chance.below(3) as usize;
        gateways[which].signal("KILL");
        killed += 1;
        let fresh = places[which].serve();
        addresses.lock().expect("whole")[which].clone_from(&fresh.address);
        gateways[which] = fresh;
    }
    let used = || begun.load(Ordering::Relaxed) / (clients * CALLS_PER_KEY);
    until_within(600, "all keys are used", || used() >= keys);
    stop.store(true, Ordering::Relaxed);
    let calls: u64 = calling.into_iter().map(|client| client.join().expect("ends")).sum();
    // The leases of killed replicas expire by the database's clock.
    let waits = "SELECT count(*) FROM receipts WHERE state = 'in_flight'";
    until_within(60, "calls of the killed are in doubt", || server.sql(&database, waits) == "0");
    for gateway in gateways {
        let (status, _, words) = gateway.stop();
        assert_eq!(status, Some(0), "{words}");
    }
    let mut all: BTreeMap<(String, String), usize> = BTreeMap::new();
    for place in &places {
        for (tool, key, _) in effects(place) {
            *all.entry((tool, key)).or_default() += 1;
        }
    }
    assert!(all.values().all(|count| *count == 1), "a key had two effects: {all:?}");
    let outcomes = outcomes.lock().expect("whole");
    assert!(outcomes.values().all(|ids| ids.len() == 1), "clients got different outcomes");
    places[0].assert_sound();
    println!(
        "replicas: {calls} calls, {} keys with one effect each, {killed} kills, {} answered alike, \
         {} with other arguments refused, verified",
        all.len(),
        answered.lock().expect("whole").len(),
        conflicts.load(Ordering::Relaxed)
    );
}

fn until_within(seconds: u64, what: &str, mut fits: impl FnMut() -> bool) {
    let began = Instant::now();
    while !fits() {
        assert!(began.elapsed() < Duration::from_secs(seconds), "{what}");
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// A proxy that forwards requests and, while `dropping` is set, drops the responses to calls.
struct Dropper {
    address: String,
    dropping: Arc<AtomicBool>,
    dropped: Arc<AtomicUsize>,
}

impl Dropper {
    fn before(upstream: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address").to_string();
        let (dropping, dropped) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let (upstream, own) = (upstream.to_owned(), (Arc::clone(&dropping), Arc::clone(&dropped)));
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let (upstream, own) = (upstream.clone(), own.clone());
                std::thread::spawn(move || pass(client, &upstream, &own.0, &own.1));
            }
        });
        Self { address, dropping, dropped }
    }
}

fn pass(
    mut client: TcpStream,
    upstream: &str,
    dropping: &AtomicBool,
    dropped: &AtomicUsize,
) -> Option<()> {
    let mut server = TcpStream::connect(upstream).ok()?;
    let asked = Arc::new(AtomicBool::new(false));
    let (mut from, mut to) = (client.try_clone().ok()?, server.try_clone().ok()?);
    let seen = Arc::clone(&asked);
    std::thread::spawn(move || {
        let mut buffer = [0u8; 65_536];
        while let Ok(count @ 1..) = from.read(&mut buffer) {
            let part = String::from_utf8_lossy(&buffer[..count]);
            if part.contains("tools/call") {
                seen.store(true, Ordering::SeqCst);
            }
            if to.write_all(&buffer[..count]).is_err() {
                break;
            }
        }
        let _ = to.shutdown(std::net::Shutdown::Write);
    });
    let mut buffer = [0u8; 65_536];
    while let Ok(count @ 1..) = server.read(&mut buffer) {
        if asked.load(Ordering::SeqCst) && dropping.load(Ordering::SeqCst) {
            dropped.fetch_add(1, Ordering::SeqCst);
            let _ = client.shutdown(std::net::Shutdown::Both);
            return None;
        }
        client.write_all(&buffer[..count]).ok()?;
    }
    let _ = client.shutdown(std::net::Shutdown::Both);
    Some(())
}

/// Loses the response of a tool behind another gateway, after its effect. The outcome of a second call
/// depends on the idempotency in the tool's contract.
pub fn dropped_answers() {
    println!("dropped answers: the response of an upstream call is lost");
    let behind = place("");
    let upstream = behind.serve();
    let dropper = Dropper::before(&upstream.address);
    let front = Place::new();
    let tool = |id: &str, target: &str, idempotency: Value| {
        json!({
            "name": id, "description": "Behind.",
            "execution": {"mcpServerId": "far", "target": target},
            "input_schema": {"type": "object", "properties": {"key": {"type": "string"}}},
            "output_schema": {}, "permissions": [], "timeout_ms": 5_000, "idempotency": idempotency
        })
    };
    let tools = json!({ "version": "1.0.0", "tools": [
        tool("front.pay", "raw_do", json!({"mode": "keyed", "key_field": "key"})),
        tool("front.put", "raw_do", json!({"mode": "safe-retry"})),
        tool("front.honours", "mail_do",
            json!({"mode": "keyed", "key_field": "key", "accepts_idempotency_key": true})),
    ]});
    front.write("tools.registry.json", &tools.to_string()).write(
        "toolbooth.toml",
        &format!("[servers.far]\nurl = \"http://{}/mcp\"\n", dropper.address),
    );
    let gateway = front.serve();
    let call = |tool: &str, key: &str| {
        let sent = json!({
            "toolId": tool, "args": {"key": key},
            "context": {"idempotencyKey": format!("{tool}-{key}")}
        });
        gateway.post("/v1/calls", &sent.to_string())
    };
    let (status, answer) = call("front.pay", "well");
    assert_eq!(status, 200, "{answer}");
    let mut told = Vec::new();
    for (tool, expected) in
        [("front.pay", "call-in-doubt"), ("front.put", "again"), ("front.honours", "same")]
    {
        let lost = format!("lost-{tool}");
        dropper.dropping.store(true, Ordering::SeqCst);
        let (status, first) = call(tool, &lost);
        assert_ne!(status, 200, "{tool}: {first}");
        dropper.dropping.store(false, Ordering::SeqCst);
        let (status, second) = call(tool, &lost);
        let count = effects(&behind).iter().filter(|(_, key, _)| *key == lost).count();
        match expected {
            "call-in-doubt" => {
                assert_eq!((status, &second["code"]), (409, &json!("call-in-doubt")), "{second}");
                assert_eq!(count, 1, "{tool}");
            }
            "again" => {
                assert_eq!(status, 200, "{second}");
                assert_eq!(count, 2, "{tool} runs again");
            }
            // The target recognizes the key of the call and returns its first response.
            _ => {
                assert_eq!(status, 200, "{second}");
                assert_eq!(count, 1, "{tool} has had its one effect");
            }
        }
        told.push(format!("{tool} {expected}"));
    }
    assert!(dropper.dropped.load(Ordering::SeqCst) >= 3);
    front.assert_sound();
    behind.assert_sound();
    println!("dropped answers: {}, verified on both sides", told.join(", "));
}
