//! Tests the HTTP door of the real gateway: refused requests, JSON responses, callers and limits.
//!
//! Path: 1, 10. Doc: front-doors.md#limits, front-doors.md#who-may-call

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::process::Command;
use std::sync::mpsc;

use serde_json::{Value, json};
use toolbooth_tests::waiting::CEILING;
use toolbooth_tests::{Place, RunningGateway, is_root, skip};

const CALL: &str = r#"{"toolId":"calculator","args":{"expression":"6*7"}}"#;

struct Answer {
    status: u16,
    kind: String,
    head: String,
    body: Value,
}

fn parsed(answer: &[u8]) -> Answer {
    let text = String::from_utf8_lossy(answer);
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer: {text}"));
    let head = head.to_ascii_lowercase();
    let kind = head.lines().find_map(|line| line.strip_prefix("content-type: "));
    Answer {
        status: head.split(' ').nth(1).and_then(|s| s.parse().ok()).unwrap_or_default(),
        kind: kind.unwrap_or_default().to_owned(),
        body: serde_json::from_str(body).unwrap_or(Value::String(body.to_owned())),
        head,
    }
}

/// Sends bytes unchanged and reads until the gateway closes the connection.
fn raw(address: &str, bytes: &[u8]) -> Answer {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(bytes).unwrap();
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    parsed(&answer)
}

fn post(path: &str, host: &str, headers: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!("POST {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n{headers}Content-Length: {length}\r\n\r\n{body}").into_bytes()
}

const JSON: &str = "Content-Type: application/json\r\n";
const ACCEPT: &str = "Accept: application/json, text/event-stream\r\n";

fn assert_problem(answer: &Answer, status: u16, code: &str, of: &str) {
    assert_eq!(
        (answer.status, answer.kind.as_str()),
        (status, "application/problem+json"),
        "{of}: {}",
        answer.body
    );
    assert_eq!(answer.body["code"], code, "{of}: {}", answer.body);
    assert_eq!(answer.body["status"], status, "{of}");
    assert!(answer.body["title"].as_str().is_some_and(|title| !title.is_empty()), "{of}");
}

/// Checks a JSON-RPC error, which the MCP endpoint returns for every error.
fn assert_rpc_error(answer: &Answer, status: u16, code: i64, of: &str) {
    let kind = (answer.status, answer.kind.as_str());
    assert_eq!(kind, (status, "application/json"), "{of}: {}", answer.body);
    assert_eq!(answer.body["jsonrpc"], "2.0", "{of}");
    assert_eq!(answer.body["error"]["code"], code, "{of}: {}", answer.body);
    assert!(answer.body["error"]["message"].as_str().is_some_and(|text| !text.is_empty()), "{of}");
}

#[test]
fn only_json_bodies_are_taken() {
    let place = Place::new();
    let gateway = place.serve();
    let at = &gateway.address;
    for path in ["/v1/calls", "/mcp"] {
        for kind in [
            "",
            "Content-Type: text/plain\r\n",
            "Content-Type: application/x-www-form-urlencoded\r\n",
            "Content-Type: application/json\r\nContent-Type: text/plain\r\n",
        ] {
            let answer = raw(at, &post(path, at, &format!("{ACCEPT}{kind}"), CALL));
            let of = format!("{path} {kind}");
            if path == "/mcp" {
                assert_rpc_error(&answer, 415, -32_600, &of);
            } else {
                assert_problem(&answer, 415, "unsupported-media-type", &of);
            }
        }
    }
    let kind = "Content-Type: application/json; charset=utf-8\r\n";
    assert_eq!(raw(at, &post("/v1/calls", at, kind, CALL)).status, 200);
}

#[test]
fn only_the_own_origin_passes() {
    let place = Place::new();
    let gateway = place.serve();
    let at = &gateway.address;
    let port: u16 = at.rsplit(':').next().unwrap().parse().unwrap();
    let status = |origin: &str| {
        let headers = format!("{JSON}Origin: {origin}\r\n");
        raw(at, &post("/v1/calls", at, &headers, CALL)).status
    };
    for host in ["localhost", "127.0.0.1", "[::1]"] {
        assert_eq!(status(&format!("http://{host}:{port}")), 200);
        assert_eq!(status(&format!("https://{host}:{port}")), 403);
        let other = if port == 3_000 { 3_001 } else { 3_000 };
        assert_eq!(status(&format!("http://{host}:{other}")), 403, "another local server's page");
        assert_eq!(status(&format!("http://{host}")), 403);
    }
    assert_eq!((status("null"), status("http://evil.example")), (403, 403));
    gateway.stop();
    let (logs, _) = place.json(&["logs", "query"]);
    assert_eq!(logs["logs"].as_array().unwrap().len(), 3, "refused requests called no tool");
}

#[test]
fn ambiguous_and_malformed_requests_are_refused() {
    let place = Place::new();
    let gateway = place.serve();
    let at = &gateway.address;
    let length = CALL.len();
    let rest = format!("{JSON}Connection: close\r\nContent-Length: {length}\r\n\r\n{CALL}");
    let chunks = |chunks: &str| {
        format!(
            "POST /v1/calls HTTP/1.1\r\nHost: {at}\r\n{JSON}Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n{chunks}"
        )
    };
    for (of, request) in [
        ("no host", format!("POST /v1/calls HTTP/1.1\r\n{rest}")),
        (
            "two hosts",
            format!("POST /v1/calls HTTP/1.1\r\nHost: {at}\r\nHost: evil.example\r\n{rest}"),
        ),
        (
            "two equal hosts",
            format!("POST /v1/calls HTTP/1.1\r\nHost: {at}\r\nHost: {at}\r\n{rest}"),
        ),
        (
            "two origins",
            format!(
                "POST /v1/calls HTTP/1.1\r\nHost: {at}\r\nOrigin: http://{at}\r\nOrigin: http://{at}\r\n{rest}"
            ),
        ),
        ("absolute form", format!("POST http://{at}/v1/calls HTTP/1.1\r\nHost: {at}\r\n{rest}")),
        (
            "foreign absolute form",
            format!("POST http://evil.example/v1/calls HTTP/1.1\r\nHost: {at}\r\n{rest}"),
        ),
        ("bad chunk size", chunks("zz\r\n{}\r\n0\r\n\r\n")),
        ("bad chunk end", chunks(&format!("{length:x}\r\n{CALL}XX0\r\n\r\n"))),
        (
            "two lengths",
            format!("POST /v1/calls HTTP/1.1\r\nHost: {at}\r\nContent-Length: 1\r\n{rest}"),
        ),
        (
            "coded body",
            format!("POST /v1/calls HTTP/1.1\r\nHost: {at}\r\nTransfer-Encoding: gzip\r\n{rest}"),
        ),
        (
            "two equal lengths",
            format!("POST /v1/calls HTTP/1.1\r\nHost: {at}\r\nContent-Length: {length}\r\n{rest}"),
        ),
        (
            "a length and chunks",
            chunks(&format!("{length:x}\r\n{CALL}\r\n0\r\n\r\n"))
                .replace(JSON, &format!("{JSON}Content-Length: {length}\r\n")),
        ),
        (
            "a coding before chunks",
            chunks(&format!("{length:x}\r\n{CALL}\r\n0\r\n\r\n"))
                .replace("chunked", "gzip, chunked"),
        ),
        (
            "two keys",
            format!(
                "POST /v1/calls HTTP/1.1\r\nHost: {at}\r\nIdempotency-Key: a\r\nIdempotency-Key: b\r\n{rest}"
            ),
        ),
        ("no HTTP", "hello\r\n\r\n".to_owned()),
        ("LF after the request line", format!("POST /v1/calls HTTP/1.1\nHost: {at}\r\n{rest}")),
        ("LF after a header", format!("POST /v1/calls HTTP/1.1\r\nHost: {at}\n{rest}")),
        (
            "LF at the end of the head",
            format!(
                "POST /v1/calls HTTP/1.1\r\nHost: {at}\r\n{}",
                rest.replacen("\r\n\r\n", "\r\n\n", 1)
            ),
        ),
        ("LF before a request", format!("\nPOST /v1/calls HTTP/1.1\r\nHost: {at}\r\n{rest}")),
        ("LF at another door", format!("POST /mcp HTTP/1.1\nHost: {at}\r\n{rest}")),
    ] {
        assert_problem(&raw(at, request.as_bytes()), 400, "invalid-request", of);
    }
    // An invalid request after an answered one also closes the connection.
    let first = format!("GET /v1/tools HTTP/1.1\r\nHost: {at}\r\n\r\n");
    let second =
        raw(at, format!("{first}POST /v1/calls HTTP/1.1\nHost: {at}\r\n{rest}").as_bytes());
    assert!(second.body.to_string().contains("the request is not HTTP/1.1"), "{}", second.body);
    let whole = chunks(&format!("{length:x}\r\n{CALL}\r\n0\r\n\r\n"));
    assert_eq!(raw(at, whole.as_bytes()).status, 200);
    // Bytes after a chunked body, or after a body with its length far to the right, are never read.
    let kept = whole.replace("Connection: close\r\n", "");
    let far = format!("{JSON}Content-Length: {}{length}\r\n\r\n{CALL}", " ".repeat(80));
    // A length that is truncated where it is stored has another value.
    let filled = format!("{CALL}{}", " ".repeat(1234 - length));
    let cut = format!("{JSON}Content-Length:{}1234\r\n\r\n{filled}", " ".repeat(47));
    for first in [
        kept,
        format!("POST /v1/calls HTTP/1.1\r\nHost: {at}\r\n{far}"),
        format!("POST /v1/calls HTTP/1.1\r\nHost: {at}\r\n{cut}"),
    ] {
        let two = format!("{first}POST /v1/calls HTTP/1.1\nHost: {at}\r\n{rest}");
        assert_eq!(raw(at, two.as_bytes()).status, 200, "{two}");
    }
    gateway.stop();
    let (logs, _) = place.json(&["logs", "query"]);
    assert_eq!(logs["logs"].as_array().unwrap().len(), 4, "refused requests called no tool");
}

#[test]
fn every_error_is_json() {
    let place = Place::new();
    let gateway = place.serve();
    let at = &gateway.address;
    let plain = |method: &str, path: &str, headers: &str| {
        let head = format!("{method} {path} HTTP/1.1\r\nHost: {at}\r\nConnection: close\r\n");
        raw(at, format!("{head}{headers}\r\n").as_bytes())
    };
    for (method, path, headers, status, code) in [
        ("GET", "/nothing", "", 404, "not-found"),
        ("GET", "/v1/calls/none", "", 404, "not-found"),
        ("GET", "/v1/calls/%FF", "", 400, "invalid-request"),
        ("GET", "/v1/receipts/%FF", "", 400, "invalid-request"),
        ("GET", "/v1/tools?limit=x", "", 400, "invalid-request"),
        ("GET", "/v1/calls", "", 405, "method-not-allowed"),
        ("POST", "/healthz", "", 405, "method-not-allowed"),
        ("OPTIONS", "*", "", 404, "not-found"),
    ] {
        let answer = plain(method, path, headers);
        assert_problem(&answer, status, code, &format!("{method} {path}"));
    }
    let modern = "MCP-Protocol-Version: 2026-07-28\r\n";
    for (method, headers, status, code) in [
        ("PUT", "", 405, -32_600),
        ("GET", "", 400, -32_600),
        ("GET", modern, 405, -32_600),
        ("DELETE", "", 400, -32_600),
        ("DELETE", modern, 405, -32_600),
        ("GET", "Mcp-Session-Id: none\r\n", 404, -32_001),
        ("DELETE", "Mcp-Session-Id: none\r\n", 404, -32_001),
    ] {
        let answer = plain(method, "/mcp", headers);
        assert_rpc_error(&answer, status, code, &format!("{method} {headers}"));
    }
    assert!(plain("PUT", "/mcp", "").head.contains("\r\nallow: "));
    assert!(plain("POST", "/healthz", "").head.contains("\r\nallow: "));
    let long = "x".repeat(40_000);
    assert_problem(&plain("GET", "/", &format!("X: {long}\r\n")), 431, "head-too-large", "head");

    let mcp = |headers: &str, body: &str| raw(at, &post("/mcp", at, headers, body));
    let html = format!("{JSON}Accept: text/html\r\n");
    assert_rpc_error(&mcp(&html, "{}"), 406, -32_600, "no form that there is");
    let large = format!("{JSON}{ACCEPT}Content-Length: 9000000\r\n\r\n");
    let large = format!("POST /mcp HTTP/1.1\r\nHost: {at}\r\nConnection: close\r\n{large}");
    assert_rpc_error(&raw(at, large.as_bytes()), 413, -32_600, "body");
    for (body, code) in [("{nonsense", -32_700), ("[1]", -32_600), (r#"{"a":1}"#, -32_600)] {
        let answer = mcp(&format!("{JSON}{ACCEPT}"), body);
        assert_eq!((answer.status, answer.kind.as_str()), (400, "application/json"), "{body}");
        assert_eq!(answer.body["error"]["code"], code, "{body}: {}", answer.body);
    }
    // A JSON-RPC error remains unchanged.
    let version = "MCP-Protocol-Version: 1999-01-01\r\n";
    let list = r#"{"jsonrpc":"2.0","id":1,"method":"tools/list"}"#;
    let answer = mcp(&format!("{JSON}{ACCEPT}{version}"), list);
    assert_eq!(answer.status, 400, "{}", answer.body);
    assert!(answer.kind.contains("json"), "{}: {}", answer.kind, answer.body);
}

#[test]
fn bodies_that_stay_half_sent_are_held_within_one_budget() {
    let place = Place::new();
    place.write("toolbooth.toml", "[http]\nbody_bytes_budget = 16777216\n");
    let gateway = place.serve();
    let head = format!(
        "POST /v1/calls HTTP/1.1\r\nHost: {}\r\n{JSON}Content-Length: 8000000\r\n\r\n",
        gateway.address
    );
    let half = vec![b' '; 7_000_000];
    let (answers, answered) = mpsc::channel();
    for _ in 0..12 {
        let mut stream = TcpStream::connect(&gateway.address).unwrap();
        let (head, half, answers) = (head.clone(), half.clone(), answers.clone());
        std::thread::spawn(move || {
            stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(&half)).unwrap();
            let mut answer = Vec::new();
            let _ = stream.read_to_end(&mut answer);
            let _ = answers.send(answer);
        });
    }
    // The budget has space for two of them, so at least ten are refused.
    for _ in 0..10 {
        let answer = answered.recv_timeout(CEILING).expect("a refusal");
        let answer = parsed(&answer);
        assert_problem(&answer, 503, "overloaded", "over the budget");
        assert!(answer.head.contains("\r\nretry-after: 1"), "{}", answer.head);
    }
    // The bodies in memory leave space for calls of common size.
    assert_eq!(gateway.post("/v1/calls", CALL).0, 200);
}

#[test]
fn a_full_gateway_still_answers() {
    let place = Place::new();
    place.write("toolbooth.toml", "[http]\nconnections_max = 20\n");
    let gateway = place.serve();
    let held: Vec<TcpStream> = (0..100)
        .map(|n| {
            let mut stream = TcpStream::connect(&gateway.address).unwrap();
            // Half of them are slow, half are idle.
            if n % 2 == 0 {
                stream.write_all(b"POST /v1/calls HT").unwrap();
            }
            stream
        })
        .collect();
    for _ in 0..20 {
        assert_eq!(gateway.post("/v1/calls", CALL).0, 200);
    }
    drop(held);
}

#[test]
fn connections_fit_the_limit_of_open_files() {
    let place = Place::new();
    let limited = |arguments: &str| {
        let script = format!("ulimit -n 300; exec \"$0\" {arguments}");
        let output = Command::new("sh")
            .args(["-c", &script])
            .arg(toolbooth_tests::binary())
            .env(toolbooth_tests::STATE, place.state())
            .current_dir(place.path())
            .output()
            .unwrap();
        (
            output.status.code(),
            String::from_utf8_lossy(&output.stdout).into_owned()
                + &String::from_utf8_lossy(&output.stderr),
        )
    };
    let (_, said) = limited("doctor");
    assert!(said.contains("up to 150 connections"), "{said}");
    assert!(said.contains("the user that runs the gateway, and holders of keys"), "{said}");
    place.write("toolbooth.toml", "[http]\nconnections_max = 200\n");
    let (exit, said) = limited("serve --http 127.0.0.1:0");
    assert_eq!(exit, Some(2), "{said}");
    assert!(said.contains("connections_max") && said.contains("ulimit"), "{said}");
}

/// Makes a call with curl as another user. Without root, prints a notice and returns `None`.
fn call_as_stranger(gateway: &RunningGateway) -> Option<Answer> {
    if !is_root() {
        skip("root");
        return None;
    }
    let url = format!("http://{}/v1/calls", gateway.address);
    let output = Command::new("setpriv")
        .args([
            "--reuid=65534",
            "--regid=65534",
            "--clear-groups",
            "curl",
            "-sSi",
            "--max-time",
            "30",
        ])
        .args(["-H", "content-type: application/json", "-d", CALL, &url])
        .output()
        .expect("setpriv starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(parsed(&output.stdout))
}

#[test]
fn another_user_of_this_machine_is_not_local() {
    let place = Place::new();
    let gateway = place.serve();
    assert_eq!(gateway.post("/v1/calls", CALL).0, 200);
    let Some(answer) = call_as_stranger(&gateway) else { return };
    assert_problem(&answer, 401, "not-authenticated", "a stranger");
    assert!(answer.head.contains("\r\nconnection: close"), "{}", answer.head);
    let title = answer.body["title"].as_str().unwrap();
    assert!(title.contains("as that user") && title.contains("loopback = \"any\""), "{title}");
    gateway.stop();
    let (logs, _) = place.json(&["logs", "query"]);
    assert_eq!(logs["logs"].as_array().unwrap().len(), 1);
}

#[test]
fn every_user_is_local_where_the_operator_says_so_and_the_risk_is_named() {
    let place = Place::new();
    place.write("toolbooth.toml", "[http]\nloopback = \"any\"\n");
    let (report, _) = place.json(&["doctor"]);
    let check = report["checks"].as_array().unwrap().iter().find(|c| c["name"] == "http callers");
    let check = check.unwrap();
    assert_eq!(check["state"], "warning");
    assert!(check["message"].as_str().unwrap().contains("every user of this machine"), "{check}");
    let gateway = place.serve();
    assert_eq!(gateway.post("/v1/calls", CALL).0, 200);
    let answer = call_as_stranger(&gateway);
    let (_, _, said) = gateway.stop();
    assert!(said.contains("risk:") && said.contains("every user of this machine"), "{said}");
    assert!(answer.is_none_or(|answer| answer.status == 200));
}

/// Waits until each thread of a process has stopped, because a running thread could accept a connection.
fn wait_until_stopped(process: u32) {
    let stopped = |thread: std::path::PathBuf| {
        let stat = std::fs::read_to_string(thread.join("stat")).unwrap_or_default();
        // The state follows the name, which ends with the last parenthesis.
        stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'))
    };
    let began = std::time::Instant::now();
    let threads = format!("/proc/{process}/task");
    while !std::fs::read_dir(&threads).unwrap().all(|thread| stopped(thread.unwrap().path())) {
        assert!(began.elapsed() < CEILING, "it does not stop");
        std::thread::yield_now();
    }
}

#[test]
fn a_client_that_closed_before_it_was_accepted_is_not_local() {
    let place = Place::new();
    let gateway = place.serve();
    let at = gateway.address.clone();
    assert_eq!(gateway.post("/v1/calls", CALL).0, 200);
    // While the gateway is stopped, the kernel completes connections that the gateway accepts later.
    gateway.signal("STOP");
    wait_until_stopped(gateway.id());
    let request =
        post("/v1/calls", &at, JSON, r#"{"toolId":"calculator","args":{"expression":"1+1"}}"#);
    let mut gone = TcpStream::connect(&at).unwrap();
    gone.write_all(&request).unwrap();
    drop(gone);
    let mut half = TcpStream::connect(&at).unwrap();
    half.write_all(&request).unwrap();
    half.shutdown(Shutdown::Write).unwrap();
    gateway.signal("CONT");
    let mut answer = Vec::new();
    half.read_to_end(&mut answer).unwrap();
    // hyper can close the connection of a client that has closed its sending half. If there is a response, it
    // is a refusal.
    if !answer.is_empty() {
        assert_problem(&parsed(&answer), 401, "not-authenticated", "half closed");
    }
    // This connection is accepted after the others, so they have been handled.
    assert_eq!(gateway.post("/v1/calls", CALL).0, 200);
    gateway.stop();
    let (logs, _) = place.json(&["logs", "query"]);
    let inputs: Vec<&Value> =
        logs["logs"].as_array().unwrap().iter().map(|log| &log["input"]).collect();
    assert_eq!(inputs, vec![&json!({ "expression": "6*7" }); 2]);
}
