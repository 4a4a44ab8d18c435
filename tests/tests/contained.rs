//! Tests sandboxing in the whole gateway: nothing outlives a call, a client or the gateway.
//!
//! Path: 7. Doc: execution.md#the-launcher, execution.md#primitives, execution.md#trust-and-containment

use std::collections::BTreeMap;
use std::io::Write;
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use toolbooth_tests::waiting::until;
use toolbooth_tests::{Place, STATE, binary, request};

/// A server of the legacy era with tools that respond, hang or exit.
const SERVER: &str = r#"import json, os, sys, subprocess
mark = sys.argv[1]
child = subprocess.Popen(["sleep", mark])
tools = [{"name": n, "description": "d", "inputSchema": {"type": "object"}} for n in ["echo", "hang", "die"]]
for line in sys.stdin:
    message = json.loads(line)
    id, method = message.get("id"), message.get("method")
    if id is None:
        continue
    if method == "initialize":
        result = {"protocolVersion": message["params"]["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": {"name": "s", "version": "1"}}
    elif method == "tools/list":
        result = {"tools": tools}
    elif method == "tools/call":
        name = message["params"]["name"]
        if name == "die":
            os._exit(7)
        if name == "hang":
            continue
        result = {"content": [{"type": "text", "text": "ok"}]}
    else:
        print(json.dumps({"jsonrpc": "2.0", "id": id, "error": {"code": -32601, "message": "no"}}), flush=True)
        continue
    print(json.dumps({"jsonrpc": "2.0", "id": id, "result": result}), flush=True)
"#;

fn tool(id: &str, runtime: &str, trust: &str, timeout_ms: u64, sandbox: Option<Value>) -> Value {
    let mut entry = json!({
        "toolId": id, "category": "function", "description": "d",
        "inputSchema": {"type": "object", "properties": {"script": {"type": "string"}}},
        "outputSchema": {}, "capabilities": {}, "execution": {"localRuntimeId": runtime},
        "policy": {"timeoutMs": timeout_ms, "trustLevel": trust}, "permissions": [],
        "idempotency": {"mode": "none"},
    });
    if let Some(sandbox) = sandbox {
        entry["sandbox"] = sandbox;
    }
    entry
}

const SCRIPTS: &str =
    "[runtimes.sh]\nkind = \"command\"\ncommand = [\"/bin/sh\", \"-c\", \"{script}\"]\n";

fn registry(tools: &[Value]) -> String {
    json!({ "version": "1.0.0", "tools": tools }).to_string()
}

/// Returns a unique number of seconds for `sleep`, by which the processes of a test are found.
fn mark() -> String {
    static NEXT: AtomicUsize = AtomicUsize::new(1);
    format!("{}.{}", 200_000 + std::process::id(), NEXT.fetch_add(1, Ordering::SeqCst))
}

/// Everything that a gateway and its children can leave on this machine.
#[derive(Debug, Default)]
struct Left {
    processes: Vec<String>,
    zombies: usize,
    mounts: usize,
    cgroups: usize,
    files: usize,
}

impl Left {
    /// Whether nothing new is left. Other programs also use this machine, so counts are compared.
    fn is_within(&self, before: &Self) -> bool {
        self.processes.is_empty()
            && self.zombies == 0
            && self.mounts <= before.mounts
            && self.cgroups <= before.cgroups
            && self.files <= before.files
    }
}

fn left(mark: &str, folder: &Path, gateway: u32) -> Left {
    let mut left = Left::default();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let line = std::fs::read_to_string(entry.path().join("cmdline")).unwrap_or_default();
        if line.contains(mark) || line.contains(folder.to_str().unwrap()) {
            left.processes.push(line.replace('\0', " "));
        }
        let stat = std::fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        // The state and the parent follow the name, which can contain any character.
        let rest = stat.rsplit_once(')').map(|(_, rest)| rest.to_owned()).unwrap_or_default();
        let words: Vec<&str> = rest.split_whitespace().take(2).collect();
        left.zombies += usize::from(words == ["Z", gateway.to_string().as_str()]);
    }
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    left.mounts = mounts.lines().count();
    left.cgroups = count("/sys/fs/cgroup", "toolbooth-", 4);
    left.files = std::fs::read_dir(folder.join("tmp")).map_or(0, Iterator::count);
    left
}

/// Counts folders in `path` with names that begin with `prefix`.
fn count(path: impl AsRef<Path>, prefix: &str, depth: u32) -> usize {
    let Ok(entries) = std::fs::read_dir(path) else { return 0 };
    let of = |entry: std::fs::DirEntry| {
        let own = entry.file_name().to_string_lossy().starts_with(prefix);
        let folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
        let inner = if folder && depth > 0 { count(entry.path(), prefix, depth - 1) } else { 0 };
        usize::from(own && folder) + inner
    };
    entries.flatten().map(of).sum()
}

/// Returns the numbers of descriptors and threads of a process.
fn weight(pid: u32) -> (usize, usize) {
    let count =
        |name: &str| std::fs::read_dir(format!("/proc/{pid}/{name}")).map_or(0, Iterator::count);
    (count("fd"), count("task"))
}

fn pid_of(place: &Place) -> u32 {
    let folder = place.path().to_str().unwrap();
    std::fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .find(|pid: &u32| {
            let text = |name: &str| {
                std::fs::read_to_string(format!("/proc/{pid}/{name}")).unwrap_or_default()
            };
            let cwd = std::fs::read_link(format!("/proc/{pid}/cwd")).unwrap_or_default();
            text("cmdline").contains("serve\0") && cwd.to_str() == Some(folder)
        })
        .unwrap()
}

fn body(tool: &str, script: &str) -> String {
    json!({ "toolId": tool, "args": { "script": script } }).to_string()
}

/// Sends a call and closes the connection.
fn hang_up(address: &str, body: &str) {
    let mut stream = TcpStream::connect(address).unwrap();
    let head = format!(
        "POST /v1/calls HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).unwrap();
    stream.write_all(body.as_bytes()).unwrap();
    // The gateway needs a moment to begin the call.
    std::thread::sleep(Duration::from_millis(20));
}

#[test]
fn a_thousand_calls_with_faults_leave_nothing() {
    let mark = mark();
    let place = Place::new();
    std::fs::create_dir(place.path().join("tmp")).unwrap();
    let tmp = place.path().join("tmp").display().to_string();
    let place = place.env("TMPDIR", &tmp);
    let servers: String = ["one", "two"]
        .iter()
        .map(|name| {
            let sandbox = if *name == "one" { "" } else { "sandbox = \"none\"\n" };
            format!("[servers.{name}]\ncommand = \"/usr/bin/python3\"\nargs = [\"server.py\", \"{mark}\"]\ntimeout_ms = 700\n{sandbox}")
        })
        .collect();
    place.write("toolbooth.toml", &format!("{SCRIPTS}{servers}")).write("server.py", SERVER).write(
        "tools.registry.json",
        &registry(&[
            tool("in.run", "sh", "untrusted", 100_000, None),
            tool("free.run", "sh", "trusted", 100_000, None),
            tool("in.slow", "sh", "untrusted", 400, None),
            tool("free.slow", "sh", "trusted", 400, None),
        ]),
    );
    let before = left(&mark, place.path(), 0);
    assert_eq!(before.processes, Vec::<String>::new());
    let gateway = place.serve();
    let address = gateway.address.clone();
    // Warm-up: connects the servers and starts the threads of the pools.
    for name in ["one.echo", "two.echo", "in.run", "free.run"] {
        request(&address, "POST", "/v1/calls", &body(name, "true"), &[]).unwrap();
    }
    let pid = pid_of(&place);
    let warm = weight(pid);
    let next = Arc::new(AtomicUsize::new(0));
    let statuses = Arc::new(std::sync::Mutex::new(BTreeMap::<(String, u16), usize>::new()));
    let clients: Vec<_> = (0..32)
        .map(|_| {
            let (address, next, mark) = (address.clone(), Arc::clone(&next), mark.clone());
            let statuses = Arc::clone(&statuses);
            std::thread::spawn(move || {
                loop {
                    let n = next.fetch_add(1, Ordering::SeqCst);
                    if n >= 1000 {
                        return;
                    }
                    let stay = format!("setsid sleep {mark} & sleep {mark} & echo ok");
                    let hold =
                        format!("trap '' TERM; setsid sleep {mark} & sleep {mark}; sleep {mark}");
                    let (tool, script) = match n % 20 {
                        0 => ("in.slow", hold),
                        1 => ("free.slow", hold),
                        2 => ("one.die", String::new()),
                        3 => ("two.die", String::new()),
                        4 => ("one.hang", String::new()),
                        5 => ("two.hang", String::new()),
                        6 | 7 => ("in.run", stay),
                        8 | 9 => ("free.run", stay),
                        10 => ("in.run", "kill -9 $$".to_owned()),
                        11 => ("free.run", "exit 3".to_owned()),
                        12 | 13 => ("one.echo", String::new()),
                        14 | 15 => ("two.echo", String::new()),
                        16 => ("in.run", "echo ok".to_owned()),
                        17 => ("free.run", "echo ok".to_owned()),
                        18 => {
                            hang_up(&address, &body("in.slow", &hold));
                            continue;
                        }
                        _ => {
                            hang_up(&address, &body("one.hang", ""));
                            continue;
                        }
                    };
                    let answer = request(&address, "POST", "/v1/calls", &body(tool, &script), &[]);
                    let (status, _) = answer.unwrap();
                    *statuses.lock().unwrap().entry((tool.to_owned(), status)).or_default() += 1;
                }
            })
        })
        .collect();
    for client in clients {
        client.join().unwrap();
    }
    let statuses = statuses.lock().unwrap();
    let of = |tool: &str, status: u16| {
        statuses.get(&(tool.to_owned(), status)).copied().unwrap_or_default()
    };
    // The faults happened, and the other calls succeeded meanwhile.
    assert_eq!((of("in.slow", 504), of("free.slow", 504)), (50, 50), "{statuses:?}");
    assert_eq!((of("in.run", 200), of("free.run", 200)), (150, 150), "{statuses:?}");
    assert!(of("one.echo", 200) > 0 && of("two.echo", 200) > 0, "{statuses:?}");
    // At most the two servers remain, each with its child and its launcher.
    until("the calls' processes are gone", || left(&mark, place.path(), pid).processes.len() <= 4);
    until("children are buried", || left(&mark, place.path(), pid).zombies == 0);
    until("descriptors and threads are given back", || {
        let now = weight(pid);
        now.0 <= warm.0 + 4 && now.1 <= warm.1 + 4
    });
    // The gateway is killed while 32 calls run, so only the lifelines end the children.
    let runners: Vec<_> = (0..32)
        .map(|n| {
            let (address, mark) = (address.clone(), mark.clone());
            std::thread::spawn(move || {
                let tool = if n % 2 == 0 { "in.run" } else { "free.run" };
                let script = format!("trap '' TERM; setsid sleep {mark} & sleep {mark}");
                let _ = request(&address, "POST", "/v1/calls", &body(tool, &script), &[]);
            })
        })
        .collect();
    until("they run", || left(&mark, place.path(), pid).processes.len() > 60);
    gateway.signal("KILL");
    for runner in runners {
        runner.join().unwrap();
    }
    drop(gateway);
    until("nothing is left", || left(&mark, place.path(), pid).is_within(&before));
}

/// Runs a command in a user namespace in which no further one can be created.
fn without_namespaces(place: &Place, arguments: &[&str]) -> (Value, i32) {
    let script = "echo 0 > /proc/sys/user/max_user_namespaces && exec \"$@\"";
    let mut command = std::process::Command::new("unshare");
    command.args(["-Ur", "sh", "-c", script, "sh"]).arg(binary()).args(arguments);
    command.args(["--format", "json"]).env(STATE, place.state()).current_dir(place.path());
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let document = serde_json::from_str(&text)
        .unwrap_or_else(|_| panic!("{text}\n{}", String::from_utf8_lossy(&output.stderr)));
    (document, output.status.code().unwrap_or(-1))
}

#[test]
fn what_is_missing_refuses_or_is_written_down() {
    let place = Place::new();
    place.write("toolbooth.toml", SCRIPTS).write(
        "tools.registry.json",
        &registry(&[
            tool("strict.run", "sh", "untrusted", 10_000, None),
            tool("mild.run", "sh", "sandbox", 10_000, None),
        ]),
    );
    let (doctor, exit) = without_namespaces(&place, &["doctor"]);
    assert_eq!((exit, &doctor["ok"]), (0, &json!(true)), "{doctor}");
    let checks = doctor["checks"].as_array().unwrap();
    let row = |name: &str| checks.iter().find(|check| check["name"] == name).unwrap().clone();
    let missing = row("sandbox user-namespace");
    assert_eq!(missing["state"], "warning");
    assert!(missing["remedy"].as_str().unwrap().contains("max_user_namespaces"), "{missing}");
    assert_eq!(row("sandbox seccomp")["state"], "ok");
    // Required: the call is refused. Operators see the primitive and the remedy; the agent sees neither.
    let script = "{\"script\":\"echo ran\"}";
    let (refused, exit) =
        without_namespaces(&place, &["call", "strict.run", "--args", script, "--call-id", "c-1"]);
    assert_eq!((exit, &refused["error"]["code"]), (1, &json!("sandbox-unavailable")), "{refused}");
    assert_eq!(refused["effect"], "not_started");
    assert!(!refused.to_string().contains("namespace"), "{refused}");
    let log = &place.records("c-1").logs[0];
    let internal = log["internal"].as_str().unwrap();
    assert!(
        internal.contains("user-namespace") && internal.contains("max_user_namespaces"),
        "{log}"
    );
    let (listed, _) = without_namespaces(&place, &["list"]);
    let tools = listed["tools"].as_array().unwrap();
    let state = |id: &str| tools.iter().find(|tool| tool["toolId"] == id).unwrap()["state"].clone();
    assert_eq!((state("strict.run"), state("mild.run")), (json!("not_configured"), json!("real")));
    // Best effort: the tool runs with the available primitives, and the receipt lists the others.
    let (ran, exit) =
        without_namespaces(&place, &["call", "mild.run", "--args", script, "--call-id", "c-2"]);
    assert_eq!((exit, &ran["warnings"]), (0, &json!(["sandbox-partial"])), "{ran}");
    let receipt = &place.records("c-2").receipts[0];
    let missing = receipt["sandboxMissing"].as_array().unwrap();
    assert!(
        missing.contains(&json!("user-namespace")) && !missing.contains(&json!("seccomp")),
        "{receipt}"
    );
    let (whole, _) = place.json(&["call", "mild.run", "--args", script, "--call-id", "c-3"]);
    assert_eq!(
        (&whole["status"], &whole["warnings"]),
        (&json!("succeeded"), &json!([])),
        "{whole}"
    );
    let other = &place.records("c-3").receipts[0];
    assert_ne!(receipt["sandboxDigest"], other["sandboxDigest"]);
    assert!(other.get("sandboxMissing").is_none(), "{other}");
    // The available primitives still apply: no socket can be created.
    let script = r#"{"script":"python3 -c 'import socket; socket.socket()'"}"#;
    let (stopped, _) = without_namespaces(&place, &["call", "mild.run", "--args", script]);
    assert_eq!(stopped["error"]["code"], "tool-error", "{stopped}");
}

#[test]
fn a_contract_that_asks_for_less_than_its_server_has_is_a_finding() {
    let place = Place::new();
    place
        .write(
            "toolbooth.toml",
            "[runtimes.own]\nkind = \"handlers\"\ndir = \"handlers\"\nsandbox = \"server\"\n",
        )
        .write("handlers/os.py", "def run(args, context=None): return 1\n")
        .write(
            "tools.registry.json",
            &registry(&[tool("os.run", "own", "sandbox", 10_000, Some(json!({})))]),
        );
    let (checked, exit) = place.json(&["check"]);
    assert_eq!((exit, &checked["ok"]), (0, &json!(true)), "{checked}");
    let finding = &checked["findings"][0];
    assert_eq!(
        (&finding["code"], &finding["severity"]),
        (&json!("sandbox-exceeded"), &json!("warning"))
    );
    assert!(finding["message"].as_str().unwrap().contains("may reach `*`"), "{finding}");
    let (refused, _) = place.json(&["call", "os.run", "--args", "{}"]);
    assert_eq!(refused["error"]["code"], "sandbox-unavailable", "{refused}");
}

#[test]
fn documents_that_break_their_reader_end_the_worker_alone() {
    let place = Place::new();
    // These are nested objects, deeper than the stack of any reader.
    let deep = format!("%PDF-1.4\n1 0 obj {}", "<< /A ".repeat(500_000));
    // This is a small stream that expands to 1.5 GiB.
    let mut packed = Vec::new();
    let mut encoder = flate2::write::ZlibEncoder::new(&mut packed, flate2::Compression::best());
    let zeroes = vec![b' '; 1 << 20];
    for _ in 0..1500 {
        encoder.write_all(&zeroes).unwrap();
    }
    encoder.finish().unwrap();
    std::fs::write(place.path().join("bomb.pdf"), pdf(&packed)).unwrap();
    place.write("deep.pdf", &deep);
    let gateway = place.serve();
    for name in ["deep.pdf", "bomb.pdf"] {
        let (_, answer) = gateway.post(
            "/v1/calls",
            &json!({ "toolId": "doc_parser", "args": { "path": name } }).to_string(),
        );
        assert!(
            answer["code"] == "tool-error" || answer["status"] == "succeeded",
            "{name}: {answer}"
        );
    }
    let (status, answer) = gateway.post(
        "/v1/calls",
        &json!({ "toolId": "calculator", "args": { "expression": "6*7" } }).to_string(),
    );
    assert_eq!((status, &answer["status"]), (200, &json!("succeeded")), "{answer}");
}

/// Returns a document of one page with the content `packed`.
fn pdf(packed: &[u8]) -> Vec<u8> {
    let mut out = b"%PDF-1.4\n".to_vec();
    let mut offsets = Vec::new();
    let objects: [Vec<u8>; 4] = [
        b"<< /Type /Catalog /Pages 2 0 R >>".to_vec(),
        b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>".to_vec(),
        b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 9 9] /Contents 4 0 R >>".to_vec(),
        [
            format!("<< /Length {} /Filter /FlateDecode >>\nstream\n", packed.len()).into_bytes(),
            packed.to_vec(),
            b"\nendstream".to_vec(),
        ]
        .concat(),
    ];
    for (at, object) in objects.iter().enumerate() {
        offsets.push(out.len());
        out.extend_from_slice(format!("{} 0 obj\n", at + 1).as_bytes());
        out.extend_from_slice(object);
        out.extend_from_slice(b"\nendobj\n");
    }
    let start = out.len();
    out.extend_from_slice(b"xref\n0 5\n0000000000 65535 f \n");
    for offset in offsets {
        out.extend_from_slice(format!("{offset:010} 00000 n \n").as_bytes());
    }
    out.extend_from_slice(
        format!("trailer << /Size 5 /Root 1 0 R >>\nstartxref\n{start}\n%%EOF\n").as_bytes(),
    );
    out
}

#[test]
fn what_a_tool_puts_in_the_place_of_a_path_opens_nothing() {
    let outside = tempfile::tempdir().unwrap();
    std::fs::write(outside.path().join("secret"), "TOPSECRET").unwrap();
    let place = Place::new();
    std::fs::create_dir_all(place.path().join("work/out")).unwrap();
    let profile =
        json!({"fs": {"read": ["."], "write": [{"path": "./work"}, {"path": "./work/out"}]}});
    let script = "[runtimes.sh]\nkind = \"command\"\ncommand = [\"/bin/sh\", \"./work/run.sh\", \"./work/settings.json\", \"./work/folder\", \"{script}\"]\n";
    place
        .write("toolbooth.toml", script)
        .write("work/run.sh", "eval \"$3\"\n")
        .write("work/folder/own", "")
        .write("work/settings.json", "{}")
        .write(
            "tools.registry.json",
            &registry(&[tool("t.run", "sh", "sandbox", 10_000, Some(profile))]),
        );
    let run = |script: &str| {
        // This also applies if a user trusts the targets of the links.
        assert_eq!(place.json(&["trust", "--yes"]).1, 0);
        let arguments = json!({ "script": script }).to_string();
        place.json(&["call", "t.run", "--args", &arguments]).0
    };
    let target = outside.path().display();
    // These are paths on the command line, inside a folder that the tool can write: a folder, then a file.
    std::fs::remove_dir_all(place.path().join("work/folder")).unwrap();
    std::os::unix::fs::symlink(outside.path(), place.path().join("work/folder")).unwrap();
    let read = run(&format!("cat {target}/secret work/folder/secret; echo ran"));
    assert!(read.to_string().contains("ran") && !read.to_string().contains("TOPSECRET"), "{read}");
    let swap =
        format!("rm work/settings.json; ln -s {target}/secret work/settings.json; echo done");
    assert_eq!(run(&swap)["status"], "succeeded");
    let read = run(&format!("cat {target}/secret; cat work/settings.json"));
    assert!(!read.to_string().contains("TOPSECRET"), "{read}");
    // This is a path of the profile, inside another one.
    let swap = format!("rmdir work/out && ln -s {target} work/out; ls work");
    run(&swap);
    let _ = std::fs::remove_dir(place.path().join("work/out"));
    let _ = std::os::unix::fs::symlink(outside.path(), place.path().join("work/out"));
    let read = run(&format!("cat work/out/secret {target}/secret; echo x > work/out/new"));
    assert!(!read.to_string().contains("TOPSECRET"), "{read}");
    assert_eq!(read["error"]["code"], "sandbox-unavailable", "{read}");
    assert!(!outside.path().join("new").exists());
}

#[test]
fn the_gateways_own_files_are_seen_by_no_tool() {
    let place = Place::new();
    place
        .write(
            "toolbooth.toml",
            &format!(
                "# OWNSECRET\n[http]\ntls = {{ cert = \"open.txt\", key = \"door.pem\" }}\n\
                 [policy]\nrules = \"own.cedar\"\n\
                 [approvals]\nnotify = {{ command = [\"sh\", \"tell.sh\"] }}\n\
                 [audit]\nsigning_key = {{ secret_ref = \"file:audit.key\" }}\n{SCRIPTS}"
            ),
        )
        .write("audit.key", &"a1b2".repeat(16))
        // Another gateway's data folder, in which only an import has kept a secret.
        .write("inner/.toolbooth/secrets/token", "OTHERTOKEN")
        .write("own.cedar", "// OWNRULE\n@id(\"all\") permit (principal, action, resource);")
        .write("own.cases.toml", "# OWNCASE\n")
        .write("tell.sh", "# OWNTELL")
        .write("door.pem", "KEYOFTHEDOOR")
        .write("open.txt", "open")
        .write("tools.registry.json", &registry(&[tool("t.run", "sh", "sandbox", 10_000, None)]));
    let script = r#"{"script":"cat toolbooth.toml door.pem own.cedar own.cases.toml tell.sh audit.key .toolbooth/* copies/today/* inner/.toolbooth/*/* open.txt /etc/passwd; ls -la .toolbooth copies/today"}"#;
    place.json(&["call", "calculator", "--args", r#"{"expression":"1"}"#]);
    std::fs::set_permissions(place.path().join("audit.key"), PermissionsExt::from_mode(0o600))
        .unwrap();
    place.json(&["call", "calculator", "--args", r#"{"expression":"1"}"#]);
    assert_eq!(place.json(&["store", "backup", "copies/today"]).1, 0);
    // The command runs from another folder by an indirect path, and without namespaces.
    let elsewhere = tempfile::tempdir().unwrap();
    let name = place.path().file_name().unwrap().to_str().unwrap();
    let around = format!("../{name}/toolbooth.toml");
    let output = std::process::Command::new(binary())
        .args(["--config", &around, "call", "t.run", "--args", script, "--format", "json"])
        .env(STATE, place.state())
        .current_dir(elsewhere.path())
        .output()
        .unwrap();
    let by_another_name = String::from_utf8_lossy(&output.stdout).into_owned();
    let (without, _) = without_namespaces(&place, &["call", "t.run", "--args", script]);
    let (whole, _) = place.json(&["call", "t.run", "--args", script]);
    for said in [by_another_name, without.to_string(), whole.to_string()] {
        assert!(said.contains("open"), "{said}");
        for own in [
            "OWNSECRET",
            "KEYOFTHEDOOR",
            "OWNRULE",
            "OWNCASE",
            "OWNTELL",
            "OTHERTOKEN",
            "a1b2",
            "signing",
            "SQLite format",
        ] {
            assert!(!said.contains(own), "{own}: {said}");
        }
    }
    assert!(whole.to_string().contains("tool:x:1000"), "{whole}");
    for own in ["audit.key", "copies/today/digest.key", "inner/.toolbooth/secrets/token"] {
        assert!(place.path().join(own).is_file(), "{own}");
        let (read, exit) =
            place.json(&["call", "read_file", "--args", &json!({ "path": own }).to_string()]);
        assert_eq!((&read["error"]["code"], exit), (&json!("tool-error"), 1), "{own}: {read}");
    }
}

#[test]
fn without_namespaces_a_tool_has_a_temporary_folder_of_its_own_and_no_hosts() {
    let place = Place::new();
    let hosts = json!({"enforce": "best-effort", "fs": {"tmpMb": 4}, "net": {"hosts": ["example.com:443"]}});
    place.write("toolbooth.toml", SCRIPTS).write(
        "tools.registry.json",
        &registry(&[tool("t.run", "sh", "sandbox", 10_000, Some(hosts))]),
    );
    let marker = format!("/tmp/toolbooth-marker-{}", mark());
    let script = format!(
        "echo own > $TMPDIR/x && cat $TMPDIR/x; touch {marker}; ls /tmp; python3 -c 'import socket; socket.socket()' && echo net; echo $TMPDIR"
    );
    let arguments = json!({ "script": script }).to_string();
    let (ran, _) = without_namespaces(&place, &["call", "t.run", "--args", &arguments]);
    let said = ran["content"][0]["text"].as_str().unwrap();
    assert!(said.starts_with("own\n") && !said.contains("net\n"), "{ran}");
    assert!(!Path::new(&marker).exists(), "{said}");
    let folder = said.lines().last().unwrap();
    assert!(folder.contains("toolbooth-") && !Path::new(folder).exists(), "{said}");
}

#[test]
fn escapes_in_results_of_programs_are_in_no_record_and_no_answer() {
    let place = Place::new();
    place
        .write(
            "toolbooth.toml",
            &format!("{SCRIPTS}[runtimes.py]\nkind = \"handlers\"\ndir = \"handlers\"\n"),
        )
        .write("handlers/py.py", "def data(args):\n    return {'title': '\\x1b]0;owned\\x07fine\\x9b2J', 'lines': 'a\\r\\nb'}\ndef text(args):\n    return '\\x1b[2Jfine'\n")
        .write(
            "tools.registry.json",
            &registry(&[
                tool("c.run", "sh", "untrusted", 10_000, None),
                tool("py.data", "py", "untrusted", 10_000, None),
                tool("py.text", "py", "untrusted", 10_000, None),
            ]),
        );
    let script = r#"printf '{"title":"\\u001b]0;owned\\u0007fine","raw":"a"}'"#;
    let script = json!({ "script": script }).to_string();
    for (tool, arguments) in [("c.run", script.as_str()), ("py.data", "{}"), ("py.text", "{}")] {
        let (result, exit) = place.json(&["call", tool, "--args", arguments]);
        assert_eq!(exit, 0, "{result}");
        let structured = result["structuredContent"].to_string();
        let shown = result["content"][0]["text"].as_str().unwrap();
        assert!(format!("{structured}{shown}").contains("fine"), "{result}");
        let has_escape =
            |text: &str| text.contains(['\u{1b}', '\u{7}', '\u{9b}']) || text.contains("\\u001b");
        assert!(!has_escape(&structured), "{result}");
        assert!(!shown.contains(['\u{1b}', '\u{7}', '\u{9b}']), "{result}");
        let records = place.records(result["callId"].as_str().unwrap());
        let kept = json!([records.events, records.receipts]).to_string();
        assert!(!has_escape(&kept.replace("\\\\u001b", "")), "{kept}");
    }
    let (data, _) = place.json(&["call", "py.data"]);
    assert_eq!(data["structuredContent"]["lines"], "a\r\nb", "line ends of data stay");
    place.assert_sound();
}
