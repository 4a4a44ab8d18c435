//! Tests the socket at which a running gateway decides on approvals for the commands of an operator.
//!
//! Path: 6. Doc: front-doors.md#operator-socket

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::json;
use toolbooth_tests::waiting::{CEILING, until};
use toolbooth_tests::{Place, is_root, skip};

use crate::approvals::{asked, calculate, code, listed, place};

/// Returns the sockets in a data folder.
fn sockets(data: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(data).into_iter().flatten().flatten();
    let is_socket = |entry: &std::fs::DirEntry| entry.file_type().is_ok_and(|of| of.is_socket());
    entries.filter(is_socket).map(|entry| entry.path()).collect()
}

/// Returns the one socket of a place.
pub(crate) fn socket(place: &Place) -> PathBuf {
    let found = sockets(&place.path().join(".toolbooth"));
    let [one] = found.as_slice() else { panic!("one socket: {found:?}") };
    one.clone()
}

/// Returns the logs in which the events of a kind are.
fn writers(place: &Place, kind: &str) -> BTreeSet<String> {
    let (found, _) = place.json(&["audit", "query", "--limit", "100000"]);
    let events = found["events"].as_array().expect("events");
    let of = events.iter().filter(|event| event["event"] == kind);
    of.map(|event| event["writer"].as_str().expect("a writer").to_owned()).collect()
}

fn logs(place: &Place) -> usize {
    writers(place, "WRITER_STARTED").len()
}

fn approve(place: &Place, id: &str) {
    let (told, exit) = place.json(&["approvals", "approve", id]);
    assert_eq!((&told["state"], exit), (&json!("granted"), 0), "{told}");
}

/// Makes a file as old as one that was made long ago.
fn make_old(path: &Path) {
    let touched = Command::new("touch").args(["-d", "2020-01-01"]).arg(path).status();
    assert!(touched.expect("touch starts").success());
}

/// Sends bytes to a socket; returns what it answers. With `ends`, nothing can follow the bytes.
fn tell(socket: &Path, bytes: &[u8], ends: bool) -> String {
    let mut stream = UnixStream::connect(socket).expect("connects");
    stream.set_read_timeout(Some(CEILING)).expect("is set");
    let _ = stream.write_all(bytes);
    if ends {
        let _ = stream.shutdown(std::net::Shutdown::Write);
    }
    let mut told = Vec::new();
    let _ = stream.read_to_end(&mut told);
    String::from_utf8_lossy(&told).into_owned()
}

#[test]
fn a_running_gateway_decides_for_the_command() {
    let place = place("wait_ms = 120000");
    let gateway = place.serve();
    let path = socket(&place);
    let name = path.file_name().unwrap().to_str().unwrap();
    let writer = name.strip_prefix("gateway-").and_then(|rest| rest.strip_suffix(".sock"));
    assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    std::thread::scope(|scope| {
        let call = scope.spawn(|| calculate(&gateway, "6*7"));
        until("the approval is listed", || listed(&place).len() == 1);
        approve(&place, &listed(&place)[0]);
        assert_eq!(call.join().expect("an answer")["content"][0]["text"], "42");
        let call = scope.spawn(|| calculate(&gateway, "7*7"));
        until("the approval is listed", || listed(&place).len() == 1);
        let rejected = place.run(&["approvals", "reject", &listed(&place)[0], "--reason", "no"]);
        assert_eq!(rejected.status.code(), Some(0), "{rejected:?}");
        let said = String::from_utf8_lossy(&rejected.stdout).into_owned();
        assert!(said.contains("rejected: the call of `calculator` by local is refused"), "{said}");
        assert_eq!(code(&call.join().expect("an answer")), "approval-rejected");
    });
    let own = BTreeSet::from([writer.expect("its name").to_owned()]);
    assert_eq!(writers(&place, "APPROVAL_GRANTED"), own);
    assert_eq!(logs(&place), 1, "the commands have no log of their own");
    // The reasons for which a decision does not count are the same as without a gateway.
    let missing = place.run(&["approvals", "approve", "a/../b c"]);
    let said = String::from_utf8_lossy(&missing.stderr).into_owned();
    assert!(said.contains("there is no approval"), "{said}");
    gateway.stop();
    assert_eq!(sockets(&place.path().join(".toolbooth")), Vec::<PathBuf>::new());
    place.assert_sound();
}

#[test]
fn refusals_are_those_of_the_store() {
    let refusals = |without: bool| {
        let place = place("expiry_ms = 600000");
        let gateway = place.serve();
        if without {
            std::fs::remove_file(socket(&place)).unwrap();
        }
        let one = asked(&calculate(&gateway, "2*3"));
        let two = asked(&calculate(&gateway, "6/3"));
        let told = |arguments: &[&str]| {
            let (told, exit) = place.json(arguments);
            let word = told["state"].as_str().or(told["error"]["code"].as_str());
            (word.expect("a state or a code").to_owned(), exit)
        };
        let all: Vec<(String, i32)> = [
            &["approvals", "approve", &two][..],
            &["approvals", "approve", &two],
            &["approvals", "reject", &one],
            &["approvals", "approve", &one],
            &["approvals", "approve", "nothing"],
        ]
        .map(told)
        .into();
        let own_logs = logs(&place) - 1;
        gateway.stop();
        place.assert_sound();
        (all, own_logs)
    };
    let (by_gateway, own_logs) = refusals(false);
    assert_eq!(own_logs, 1, "only of the approval that the gateway does not know");
    let (by_store, own_logs) = refusals(true);
    assert_eq!(own_logs, 5);
    assert_eq!(by_gateway, by_store);
    let wanted = ["pending", "policy-denied", "rejected", "already-decided", "not-found"];
    assert_eq!(by_store.iter().map(|(word, _)| word.as_str()).collect::<Vec<_>>(), wanted);
}

/// A gateway that is dead, does not answer, or answers nonsense: the command decides through the store.
#[test]
fn a_command_does_not_depend_on_a_gateway_that_does_not_answer() {
    let place = place("");
    let gateway = place.serve();
    let ids = ["2*3", "2*4", "2*5", "2*6"].map(|text| asked(&calculate(&gateway, text)));
    let path = socket(&place);
    gateway.signal("KILL");
    gateway.wait();
    assert!(path.exists(), "a killed gateway cannot remove it");
    approve(&place, &ids[0]);
    // A peer that says nothing, one that closes the connection, and one that answers something else.
    let answers = [None, Some(""), Some("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")];
    for (answer, id) in answers.into_iter().zip(&ids[1..]) {
        std::fs::remove_file(&path).unwrap();
        let listener = UnixListener::bind(&path).unwrap();
        let peer = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut read = [0; 4_096];
            let _ = stream.read(&mut read);
            match answer {
                Some(answer) => drop(stream.write_all(answer.as_bytes())),
                None => while stream.read(&mut read).is_ok_and(|read| read > 0) {},
            }
        });
        approve(&place, id);
        peer.join().unwrap();
    }
    let now = Command::new("touch").arg(&path).status();
    assert!(now.expect("touch starts").success());
    // The next gateway removes what a dead one has left, unless it may be about to be served.
    let gateway = place.serve();
    assert_eq!(sockets(&place.path().join(".toolbooth")).len(), 2);
    gateway.stop();
    make_old(&path);
    let gateway = place.serve();
    assert_ne!(socket(&place), path);
    for text in ["2*3", "2*4", "2*5", "2*6"] {
        assert_eq!(code(&calculate(&gateway, text)), "ok", "{text}");
    }
    gateway.stop();
    place.assert_sound();
}

/// A gateway that has decided, and whose answer is lost: the command tells what counts.
#[test]
fn a_decision_whose_answer_is_lost_is_not_refused() {
    let place = place("wait_ms = 120000");
    let gateway = place.serve();
    let real = socket(&place);
    let data = place.path().join(".toolbooth");
    // It is the newest. It hands each request on, and answers nothing.
    let between = data.join("gateway-ffffffff.sock");
    let listener = UnixListener::bind(&between).unwrap();
    let hand_on = || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut request = vec![0; 64 << 10];
        let read = stream.read(&mut request).unwrap();
        request.truncate(read);
        tell(&real, &request, false)
    };
    let run = |arguments: &[&str]| {
        let (told, exit) = place.json(arguments);
        let word = told["state"].as_str().or(told["error"]["code"].as_str());
        (word.unwrap_or_default().to_owned(), exit)
    };
    std::thread::scope(|scope| {
        for (expression, verb, wanted) in [
            ("2*3", "approve", "spent"),
            ("6/3", "approve", "pending"),
            ("2*4", "reject", "rejected"),
        ] {
            let call = scope.spawn(|| calculate(&gateway, expression));
            until("the approval is listed", || listed(&place).len() == 1);
            let id = listed(&place).remove(0);
            let command = scope.spawn({
                let id = id.clone();
                move || run(&["approvals", verb, &id])
            });
            let answer = hand_on();
            assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
            if wanted == "spent" {
                assert_eq!(call.join().unwrap()["content"][0]["text"], "6");
            }
            let (state, exit) = command.join().unwrap();
            assert_eq!(exit, 0, "{expression}: {state}");
            assert!(state == wanted || (wanted == "spent" && state == "granted"), "{state}");
            if wanted == "pending" {
                // The same person does not count twice, can take it back, and then has not granted it.
                for (verb, wanted) in
                    [("reject", ("rejected", 0)), ("approve", ("already-decided", 1))]
                {
                    let command = scope.spawn({
                        let id = id.clone();
                        move || run(&["approvals", verb, &id])
                    });
                    hand_on();
                    let (word, exit) = command.join().unwrap();
                    assert_eq!((word.as_str(), exit), wanted);
                }
            }
        }
    });
    gateway.stop();
    place.assert_sound();
}

/// A command that has ended before the gateway reads its request has decided nothing.
#[test]
fn a_request_without_a_waiting_client_decides_nothing() {
    let place = place("");
    let gateway = place.serve();
    let path = socket(&place);
    let ids: Vec<String> =
        (0..20).map(|number| asked(&calculate(&gateway, &format!("2*{number}")))).collect();
    gateway.signal("STOP");
    for id in &ids {
        let body = r#"{"decision":"approve"}"#;
        let request = format!(
            "POST /v1/approvals/{id} HTTP/1.1\r\nhost: localhost\r\n\
             content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        let mut stream = UnixStream::connect(&path).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
    }
    gateway.signal("CONT");
    // What is asked later is decided after those.
    for _ in 0..8 {
        assert!(tell(&path, b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n", false).contains("404"));
    }
    let (found, _) = place.json(&["approvals", "list"]);
    assert_eq!(found["approvals"].as_array().unwrap().len(), ids.len(), "{found}");
    gateway.stop();
    place.assert_sound();
}

/// A program of another user, and one that a link leads to, cannot claim that it has decided.
#[test]
fn only_a_program_of_the_owner_is_asked() {
    if !is_root() {
        return skip("root, which can act as another user");
    }
    let place = place("");
    let gateway = place.serve();
    let ids = ["2*3", "2*4"].map(|text| asked(&calculate(&gateway, text)));
    let path = socket(&place);
    gateway.signal("KILL");
    gateway.wait();
    std::fs::remove_file(&path).unwrap();
    let elsewhere = tempfile::tempdir().unwrap();
    let open = std::fs::Permissions::from_mode(0o777);
    std::fs::set_permissions(elsewhere.path(), open).unwrap();
    let own = elsewhere.path().join("s");
    // It accepts, and ends once it is asked for something.
    let script = "import socket, sys\ns = socket.socket(socket.AF_UNIX)\ns.bind(sys.argv[1])\n\
        s.listen()\nprint('listens', flush=True)\nwhile True:\n  c, _ = s.accept()\n  \
        d = c.recv(4096)\n  if d: print('asked', flush=True)\n  c.close()";
    let mut child = Command::new("/usr/bin/python3")
        .args(["-c", script])
        .arg(&own)
        .current_dir("/")
        .uid(65_534)
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("python3 starts");
    let mut said = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    said.read_line(&mut line).unwrap();
    assert_eq!(line.trim(), "listens");
    std::fs::rename(&own, &path).unwrap();
    approve(&place, &ids[0]);
    std::fs::remove_file(&path).unwrap();
    // A program of the own user, elsewhere.
    let listener = UnixListener::bind(&own).unwrap();
    listener.set_nonblocking(true).unwrap();
    std::os::unix::fs::symlink(&own, &path).unwrap();
    approve(&place, &ids[1]);
    assert_eq!(listener.accept().unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
    child.kill().unwrap();
    child.wait().unwrap();
    let mut rest = String::new();
    said.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "", "it was told nothing");
    place.assert_sound();
}

/// Another gateway that is alive keeps its socket, however old.
#[test]
fn gateways_of_one_folder_have_a_socket_each() {
    let place = place("");
    let gateways = [place.serve(), place.serve()];
    let data = place.path().join(".toolbooth");
    sockets(&data).iter().for_each(|path| make_old(path));
    let third = place.serve();
    assert_eq!(sockets(&data).len(), 3);
    let id = asked(&calculate(&gateways[0], "2*3"));
    approve(&place, &id);
    assert_eq!((code(&calculate(&gateways[1], "2*3")), logs(&place)), ("ok", 3));
    third.stop();
    for gateway in gateways {
        gateway.stop();
    }
    place.assert_sound();
}

#[test]
fn a_data_folder_can_have_a_path_of_any_length() {
    let place = place("");
    let data = place.path().join("x".repeat(120)).join("y".repeat(120)).join("data");
    let data_text = data.to_str().unwrap();
    let gateway = place.serve_with(&["--data", data_text]);
    let id = asked(&calculate(&gateway, "2*3"));
    assert_eq!(sockets(&data).len(), 1);
    let (told, exit) = place.json(&["approvals", "approve", &id, "--data", data_text]);
    assert_eq!((&told["state"], exit), (&json!("granted"), 0), "{told}");
    assert_eq!(code(&calculate(&gateway, "2*3")), "ok");
    gateway.stop();
    assert_eq!(sockets(&data), Vec::<PathBuf>::new());
}

/// The socket serves decisions, and nothing else.
#[test]
fn nothing_but_decisions_passes_the_socket() {
    let place = place("");
    let gateway = place.serve();
    let path = socket(&place);
    let id = asked(&calculate(&gateway, "2*3"));
    let request = |method: &str, target: &str, body: &str| {
        let head = format!(
            "{method} {target} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
             content-length: {}\r\n\r\n",
            body.len()
        );
        tell(&path, format!("{head}{body}").as_bytes(), false)
    };
    let status = |told: &str| told.split_whitespace().nth(1).map(str::to_owned);
    let own = format!("/v1/approvals/{id}");
    let large = json!({ "decision": "approve", "reason": "x".repeat(100_000) }).to_string();
    let call = json!({ "toolId": "calculator", "args": { "expression": "6*7" } }).to_string();
    for (method, target, body, wanted) in [
        ("GET", own.as_str(), "", "405"),
        ("PUT", &own, r#"{"decision":"approve"}"#, "405"),
        ("GET", "/v1/approvals", "", "404"),
        ("POST", "/v1/calls", &call, "404"),
        ("POST", "/mcp", r#"{"jsonrpc":"2.0","id":1,"method":"tools/list"}"#, "404"),
        ("GET", "/healthz", "", "404"),
        ("POST", &own, "", "400"),
        ("POST", &own, r#"{"decision":"maybe"}"#, "400"),
        ("POST", &own, &large, "413"),
    ] {
        let told = request(method, target, body);
        assert_eq!(status(&told).as_deref(), Some(wanted), "{method} {target}: {told}");
    }
    for bytes in [&b""[..], b"\0\0\0\0", b"GET", &[b'a'; 1 << 20], b"POST / HTTP/1.1\r\n"] {
        let told = tell(&path, bytes, true);
        assert!(told.is_empty() || told.starts_with("HTTP/1.1 4"), "{told}");
    }
    assert_eq!(asked(&calculate(&gateway, "2*3")), id, "nothing has decided");
    // Connections that say nothing have their places until their time is over; others wait for one.
    let silent: Vec<UnixStream> = (0..8).map(|_| UnixStream::connect(&path).unwrap()).collect();
    approve(&place, &id);
    assert_eq!(logs(&place), 2, "the command has decided through the store");
    drop(silent);
    assert_eq!(code(&calculate(&gateway, "2*3")), "ok");
    gateway.stop();
    place.assert_sound();
}

/// `stdio` and `worker` are gateways too.
#[test]
fn every_gateway_has_a_socket() {
    let place = place("");
    let data = place.path().join(".toolbooth");
    for arguments in [&["stdio"][..], &["worker"]] {
        let mut child = place
            .command(arguments)
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null())
            .spawn()
            .unwrap();
        until("its socket", || sockets(&data).len() == 1);
        let sent = Command::new("kill").arg(child.id().to_string()).status().unwrap();
        assert!(sent.success());
        child.wait().unwrap();
        assert_eq!(sockets(&data), Vec::<PathBuf>::new(), "{arguments:?}");
    }
}

/// A user who can reach the socket, but is neither the gateway's own nor root.
#[test]
fn another_user_is_not_answered() {
    if !is_root() {
        return skip("root, which can act as another user");
    }
    let place = place("");
    let gateway = place.serve();
    let path = socket(&place);
    let open = |path: &Path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    open(place.path(), 0o711);
    open(path.parent().unwrap(), 0o711);
    open(&path, 0o666);
    let id = asked(&calculate(&gateway, "2*3"));
    let ask = |user: u32| {
        let script = "import socket, sys\ns = socket.socket(socket.AF_UNIX)\ns.connect(sys.argv[1])\n\
            s.sendall(sys.argv[2].encode())\nprint(s.recv(4096).decode())";
        let body = r#"{"decision":"approve"}"#;
        let request = format!(
            "POST /v1/approvals/{id} HTTP/1.1\r\nhost: localhost\r\n\
             content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        let mut command = Command::new("/usr/bin/python3");
        command.args(["-c", script]).arg(&path).arg(request).current_dir("/").uid(user);
        let output = command.output().expect("python3 starts");
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    };
    assert_eq!(ask(65_534), "");
    gateway.until_said("another user may not decide", 1);
    assert!(ask(0).contains("granted"));
    gateway.stop();
    place.assert_sound();
}
