//! Kills launchers, workers, commands and HTTP targets below a running gateway, at random and under
//! load, and checks that no key has two effects.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::{Value, json};

use crate::torture::Chance;
use crate::waiting::Running;
use crate::{Place, WRITING_HANDLERS, request};

/// Clients that call at the same time.
const CLIENTS: u64 = 12;

/// The kinds of executors.
const KINDS: [&str; 3] = ["command", "handler", "http"];

/// The modes that promise one effect per key.
const MODES: [&str; 2] = ["keyed", "on-key"];

/// Appends one line per effect, with a process to kill before and after it.
const COMMAND: &str = "head -c 3000 /dev/urandom > /dev/null\n\
    echo \"$1 $2\" >> out/effects.txt\n\
    head -c 3000 /dev/urandom > /dev/null\necho done\n";

const HANDLER: &str = r#"import os, time
FILE = os.open("effects.txt", os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)
def run(args, context):
    time.sleep(0.002)
    os.write(FILE, ("%s %s\n" % (context["toolId"], args["key"])).encode())
    time.sleep(0.002)
    return {"key": args["key"]}
"#;

/// An HTTP target on a fixed port, so that a new one can replace one that was killed.
const TARGET: &str = r#"import http.server, json, os, sys, time
FILE = os.open("effects.txt", os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)
class Target(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_POST(self):
        args = json.loads(self.rfile.read(int(self.headers["content-length"])))
        time.sleep(0.002)
        os.write(FILE, ("%s %s\n" % (self.path[1:], args["key"])).encode())
        time.sleep(0.002)
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", "2")
        self.end_headers()
        self.wfile.write(b"{}")
    def log_message(self, *words): pass
class Server(http.server.ThreadingHTTPServer):
    request_queue_size = 64
server = Server(("127.0.0.1", int(sys.argv[1])), Target)
print(server.server_port, flush=True)
server.serve_forever()
"#;

fn tool(kind: &str, mode: &str) -> String {
    match kind {
        // A handler's domain is the name of its file.
        "handler" => format!("{}.run", mode.replace('-', "")),
        _ => format!("{kind}.{mode}"),
    }
}

fn registry() -> String {
    let mut tools = Vec::new();
    for kind in KINDS {
        for mode in MODES {
            let mut idempotency = json!({ "mode": mode });
            if mode == "keyed" {
                idempotency["key_field"] = json!("key");
            }
            let mut entry = json!({
                "name": tool(kind, mode), "description": "Has an effect.",
                "input_schema": {"type": "object", "properties": {"key": {"type": "string"}}},
                "output_schema": {}, "permissions": [], "timeout_ms": 20_000,
                "idempotency": idempotency
            });
            match kind {
                "command" => {
                    entry["execution"] = json!({"localRuntimeId": format!("command-{mode}")});
                }
                "http" => entry["execution"] = json!({"endpointRef": format!("http-{mode}")}),
                _ => (),
            }
            tools.push(entry);
        }
    }
    json!({ "version": "1.0.0", "tools": tools }).to_string()
}

fn place(port: u16) -> Place {
    let place = Place::new();
    let mut configuration = WRITING_HANDLERS.to_owned();
    for mode in MODES {
        let (command, http) = (tool("command", mode), tool("http", mode));
        configuration.push_str(&format!(
            "[runtimes.command-{mode}]\nkind = \"command\"\n\
             command = [\"sh\", \"effect.sh\", \"{command}\", \"{{key}}\"]\n\
             sandbox = {{ base = \"default\", fs = {{ read = [\".\"], write = [\"out\"] }} }}\n\
             [endpoints.http-{mode}]\nurl = \"http://127.0.0.1:{port}/{http}\"\nmethod = \"POST\"\n\
             allow_private = true\n"
        ));
    }
    place.write("toolbooth.toml", &configuration).write("tools.registry.json", &registry());
    place.write("effect.sh", COMMAND).write("target.py", TARGET).write("out/.keep", "");
    for mode in MODES {
        place.write(&format!("handlers/{}.py", mode.replace('-', "")), HANDLER);
    }
    place
}

fn target(place: &Place, port: u16) -> Running {
    let mut child = Running::start(
        Command::new("/usr/bin/python3")
            .args(["target.py", &port.to_string()])
            .current_dir(place.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped()),
    );
    let mut line = String::new();
    let stdout = child.0.stdout.as_mut().expect("a pipe");
    BufReader::new(stdout).read_line(&mut line).expect("a line");
    assert_eq!(line.trim(), port.to_string(), "the target listens");
    child
}

/// Returns every process below `root`.
fn descendants(root: u32) -> Vec<u32> {
    let mut children: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        let stat = std::fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        let parent = stat.rsplit_once(')').and_then(|(_, rest)| rest.split(' ').nth(2));
        if let Some(parent) = parent.and_then(|parent| parent.parse().ok()) {
            children.entry(parent).or_default().push(pid);
        }
    }
    let (mut found, mut next) = (Vec::new(), vec![root]);
    while let Some(pid) = next.pop() {
        let own = children.remove(&pid).unwrap_or_default();
        found.extend(&own);
        next.extend(own);
    }
    found
}

/// Starts clients that call until `stop` is set. Each returns the number of its calls.
fn load(address: &str, seed: u64, stop: &Arc<AtomicBool>) -> Vec<std::thread::JoinHandle<u64>> {
    (0..CLIENTS)
        .map(|client| {
            let (address, stop) = (address.to_owned(), Arc::clone(stop));
            std::thread::spawn(move || {
                let mut chance = Chance::new(seed * 1_000 + client);
                let mut calls = 0;
                while !stop.load(Ordering::Relaxed) {
                    let kind = KINDS[chance.below(3) as usize];
                    let mode = MODES[chance.below(2) as usize];
                    // A few keys are used at a time, so that a released key is claimed at once.
                    let key = format!("key-{}-{}", calls / 8, chance.below(4));
                    let mut context = json!({});
                    if mode == "on-key" {
                        context["idempotencyKey"] = json!(key);
                    }
                    let body = json!({
                        "toolId": tool(kind, mode), "args": {"key": key}, "context": context,
                    });
                    request(&address, "POST", "/v1/calls", &body.to_string(), &[])
                        .expect("the gateway answers");
                    calls += 1;
                }
                calls
            })
        })
        .collect()
}

/// Kills `kills` random processes below a gateway, and checks the promises.
pub fn children(kills: u64, seed: u64) {
    println!(
        "children: kill -9 below a running gateway, {CLIENTS} clients, {kills} kills, seed {seed}"
    );
    // All targets use one port, one after the other.
    let port = crate::ports::free();
    let place = place(port);
    let mut behind = target(&place, port);
    let gateway = place.serve();
    let stop = Arc::new(AtomicBool::new(false));
    let clients = load(&gateway.address, seed, &stop);
    let mut chance = Chance::new(seed);
    let (mut killed, mut targets) = (0u64, 0u64);
    let own = std::process::id();
    let pid = gateway.id();
    let mut turn = 0;
    while killed < kills {
        // The pauses spread the kills; the test waits for nothing here.
        std::thread::sleep(Duration::from_millis(5 + chance.below(60)));
        turn += 1;
        if turn % 25 == 0 {
            behind.kill();
            targets += 1;
            behind = target(&place, port);
            continue;
        }
        let below = descendants(pid);
        let Some(victim) = below.get(chance.below(below.len().max(1) as u64) as usize) else {
            continue;
        };
        assert!(*victim != own && *victim != pid);
        let kill = Command::new("kill").args(["-KILL", &victim.to_string()]).output();
        // A process that has already ended does not count.
        killed += u64::from(kill.expect("kill starts").status.success());
    }
    stop.store(true, Ordering::Relaxed);
    let calls: u64 = clients.into_iter().map(|client| client.join().expect("ends")).sum();
    let (status, _, words) = gateway.stop();
    behind.kill();
    assert_eq!(status, Some(0), "{words}");
    place.assert_sound();

    let mut effects: BTreeMap<(String, String), u64> = BTreeMap::new();
    for file in ["out/effects.txt", "handlers/effects.txt", "effects.txt"] {
        let text = std::fs::read_to_string(place.path().join(file)).unwrap_or_default();
        for (tool, key) in text.lines().filter_map(|line| line.split_once(' ')) {
            *effects.entry((tool.to_owned(), key.to_owned())).or_default() += 1;
        }
    }
    let twice: Vec<_> = effects.iter().filter(|(_, count)| **count > 1).collect();
    assert!(twice.is_empty(), "keys with two effects: {twice:?}");
    let kinds: BTreeSet<&str> = effects.keys().map(|(tool, _)| tool.as_str()).collect();
    assert_eq!(kinds.len(), KINDS.len() * MODES.len(), "every tool had an effect: {kinds:?}");

    let (listed, _) =
        place.json(&["receipts", "list", "--state", "in_doubt", "--limit", "1000000"]);
    let doubts = listed["receipts"].as_array().cloned().unwrap_or_default();
    let of = |http: bool| {
        let is_http = |receipt: &&Value| {
            receipt["toolId"].as_str().unwrap_or_default().starts_with("http.") == http
        };
        doubts.iter().filter(is_http).count() as u64
    };
    // A process below the gateway serves one call at a time; a target serves all clients.
    assert!(of(false) <= killed, "{} doubts, {killed} kills", of(false));
    assert!(of(true) <= targets * CLIENTS, "{} doubts, {targets} targets killed", of(true));
    println!(
        "children: {calls} calls, {killed} processes and {targets} targets killed, {} effects, \
         none twice, {} doubts of processes, {} of targets, verified",
        effects.len(),
        of(false),
        of(true),
    );
}
