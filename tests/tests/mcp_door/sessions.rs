//! Tests sessions of the legacy era over HTTP: their ends, their limits and their memory.
//!
//! Sessions of another caller cannot be tested here: every client of this machine's user is
//! `local`.
//!
//! Path: 1. Doc: front-doors.md#sessions

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::{Value, json};
use toolbooth_tests::mcp::{LEGACY, Peer, Session, initialize, post, request};
use toolbooth_tests::stage::Actor;
use toolbooth_tests::{Place, RunningGateway};

use super::{code, staged, text, until};

fn waiting(key: &str) -> Value {
    let params = json!({ "name": "stage_wait", "arguments": { "key": key }, "_meta": { "toolbooth/callId": key } });
    request(1, "tools/call", params)
}

#[test]
fn an_ended_session_is_gone_and_its_calls_are_cancelled() {
    let (place, stage) = staged("");
    let gateway = place.serve();
    let (session, other) = (Session::begin(&gateway), Session::begin(&gateway));
    assert_ne!(session.id, other.id);
    let mut stream = session.get();
    let sent = session.post(&waiting("mine"));
    let mut mine = stage.next();
    let kept = other.post(&waiting("kept"));
    let mut theirs = stage.next();

    let ended = session.delete();
    assert_eq!((ended.status, ended.bytes()), (204, Vec::new()));
    assert_eq!(mine.line(), "cancelled");
    until("the call has records", || !place.records("mine").logs.is_empty());
    let records = place.records("mine");
    assert_eq!(records.logs[0]["errorCode"], "cancelled");
    assert_eq!(records.receipts[0]["errorCode"], "cancelled", "{:?}", records.receipts);
    while stream.line().is_some() {}
    // The client of the cancelled call receives a response or a closed connection; this test needs neither.
    drop(sent);
    for answer in [
        session.delete(),
        session.get(),
        session.post(&request(2, "ping", json!({}))).answer(),
        session
            .post(&toolbooth_tests::mcp::notification("notifications/initialized", json!({})))
            .answer(),
    ] {
        assert_eq!((answer.status, answer.header("content-type")), (404, Some("application/json")));
        assert!(code(&answer.json()) < 0);
    }
    theirs.go();
    assert_eq!(text(&kept.answer().json()), "done kept", "another session goes on");
    assert_eq!(other.ping(), 200);
}

#[test]
fn idle_sessions_end_and_busy_ones_do_not() {
    let (place, stage) = staged("[http]\nsession_idle_ms = 2000\n");
    let gateway = place.serve();
    let calling = Session::begin(&gateway);
    let sent = calling.post(&waiting("long"));
    let mut actor = stage.next();
    let listening = Session::begin(&gateway);
    let stream = listening.get();
    assert_eq!(stream.status, 200);
    let idle = Session::begin(&gateway);
    // A ping uses the session, so the interval between pings exceeds the permitted idle time.
    until("an idle session ends", || {
        std::thread::sleep(Duration::from_millis(2_500));
        idle.ping() == 404
    });
    assert_eq!((calling.ping(), listening.ping()), (200, 200), "they began before and are in use");
    actor.go();
    assert_eq!(text(&sent.answer().json()), "done long");
    stream.hang_up();
    for session in [calling, listening] {
        until("a session ends that was busy", || {
            std::thread::sleep(Duration::from_millis(2_500));
            session.ping() == 404
        });
    }
}

#[test]
fn a_caller_with_too_many_sessions_loses_the_longest_idle_one() {
    let (place, stage) = staged("[http]\nsessions_per_caller_max = 4\n");
    let gateway = place.serve();
    let calling = Session::begin(&gateway);
    let sent = calling.post(&waiting("long"));
    let mut actor: Actor = stage.next();
    let listening = Session::begin(&gateway);
    let mut streams = vec![listening.get()];
    let (first, second) = (Session::begin(&gateway), Session::begin(&gateway));
    // The first session is used last.
    assert_eq!(second.ping(), 200);
    assert_eq!(first.ping(), 200);
    let third = Session::begin(&gateway);
    assert_eq!((first.ping(), second.ping(), third.ping()), (200, 404, 200));
    assert_eq!((calling.ping(), listening.ping()), (200, 200), "never one that is in use");
    // If all sessions are in use, none can be ended.
    streams.extend([first.get(), third.get()]);
    let refused =
        post(&gateway.address, &[], initialize(1, LEGACY).to_string().as_bytes()).answer();
    assert_eq!((refused.status, refused.header("content-type")), (429, Some("application/json")));
    let refused = refused.json();
    assert_eq!((code(&refused), &refused["id"]), (-32_000, &json!(1)), "{refused}");
    for session in [&calling, &listening, &first, &third] {
        assert_eq!(session.ping(), 200);
    }
    actor.go();
    assert_eq!(text(&sent.answer().json()), "done long");
    assert_eq!(first.delete().status, 204);
    assert_eq!(Session::begin(&gateway).ping(), 200, "a session can begin again");
}

#[test]
fn the_gateway_bounds_the_sessions_of_all() {
    let place = Place::new();
    place.write("toolbooth.toml", "[http]\nsessions_max = 2\n");
    let gateway = place.serve();
    let (one, other) = (Session::begin(&gateway), Session::begin(&gateway));
    let answer = post(&gateway.address, &[], initialize(1, LEGACY).to_string().as_bytes()).answer();
    let status = answer.status;
    let answer = answer.json();
    if status == 200 {
        // An idle session of the caller can end instead.
        assert_eq!([one.ping(), other.ping()].iter().filter(|status| **status == 404).count(), 1);
    } else {
        assert_eq!((status, code(&answer)), (503, -32_000), "{answer}");
        assert_eq!((one.ping(), other.ping()), (200, 200));
    }
}

#[test]
fn the_second_stream_of_a_session_takes_over() {
    let place = Place::new();
    place.write("tools.registry.json", r#"{"version":"1.0.0","tools":[]}"#);
    let gateway = place.serve();
    let session = Session::begin(&gateway);
    let mut first = session.get();
    assert_eq!((first.status, first.is_stream()), (200, true));
    let mut second = session.get();
    assert_eq!((second.status, second.is_stream()), (200, true));
    while let Some(line) = first.line() {
        assert!(line.is_empty() || line.starts_with(':'), "nothing but comments: {line}");
    }
    place
        .write(
            "toolbooth.toml",
            "",
        )
        .write("tools.registry.json", r#"{"version":"1.0.0","tools":[{"name":"calculator","description":"Another.",
            "input_schema":{"type":"object"},"output_schema":{},"execution":{"localRuntimeId":"builtin"}}]}"#);
    assert_eq!(second.event().unwrap()["method"], "notifications/tools/list_changed");
    assert_eq!(session.ping(), 200);
    // The end of the first stream has not ended the second.
    assert_eq!(session.delete().status, 204);
    assert_eq!(second.event(), None);
}

/// A connection that is reused.
struct Connection {
    address: String,
    stream: BufReader<TcpStream>,
}

impl Connection {
    fn new(gateway: &RunningGateway) -> Self {
        let stream = TcpStream::connect(&gateway.address).unwrap();
        stream.set_nodelay(true).unwrap();
        Self { address: gateway.address.clone(), stream: BufReader::new(stream) }
    }

    /// Sends a request; returns the status of the answer, and the session that it names.
    fn ask(&mut self, method: &str, session: Option<&str>, body: &str) -> (u16, Option<String>) {
        let session = session.map(|id| format!("Mcp-Session-Id: {id}\r\n")).unwrap_or_default();
        let request = format!(
            "{method} /mcp HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\n\
             Accept: application/json, text/event-stream\r\n{session}Content-Length: {}\r\n\r\n{body}",
            self.address,
            body.len()
        );
        self.stream.get_mut().write_all(request.as_bytes()).unwrap();
        let (mut status, mut length, mut id) = (0, 0, None);
        loop {
            let mut line = String::new();
            self.stream.read_line(&mut line).unwrap();
            let line = line.trim().to_ascii_lowercase();
            if line.is_empty() {
                break;
            }
            if let Some(rest) = line.strip_prefix("http/1.1 ") {
                status = rest[..3].parse().unwrap();
            } else if let Some(value) = line.strip_prefix("content-length: ") {
                length = value.parse().unwrap();
            } else if let Some(value) = line.strip_prefix("mcp-session-id: ") {
                id = Some(value.to_owned());
            }
        }
        let mut body = vec![0; length];
        self.stream.read_exact(&mut body).unwrap();
        (status, id)
    }
}

/// Opens many sessions: half of them end by DELETE, the others are abandoned.
fn open_and_drop(gateway: &RunningGateway, sessions: usize) {
    const WORKERS: usize = 4;
    std::thread::scope(|scope| {
        for _ in 0..WORKERS {
            scope.spawn(|| {
                let mut connection = Connection::new(gateway);
                let body = initialize(1, LEGACY).to_string();
                for n in 0..sessions / WORKERS {
                    let (status, id) = connection.ask("POST", None, &body);
                    assert_eq!(status, 200);
                    if n % 2 == 0 {
                        assert_eq!(connection.ask("DELETE", id.as_deref(), "").0, 204);
                    }
                }
            });
        }
    });
}

/// Returns the resident memory of the gateway's process, in KiB.
fn resident(gateway: &RunningGateway) -> i64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", gateway.id())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// The memory that ten thousand sessions can leave: 200 bytes each, which an allocator can retain.
const ALLOWANCE_KIB: i64 = 2_000;
/// The number of repetitions. An allocator requests memory only occasionally, but leaked sessions add to it
/// each time.
const ROUNDS: usize = 4;

#[test]
fn ten_thousand_sessions_leave_the_memory_where_it_was() {
    let place = Place::new();
    let gateway = place.serve();
    open_and_drop(&gateway, 10_000);
    let mut measured = vec![resident(&gateway)];
    let stays = (0..ROUNDS).any(|_| {
        let before = measured.last().copied().unwrap();
        open_and_drop(&gateway, 10_000);
        measured.push(resident(&gateway));
        measured.last().unwrap() - before <= ALLOWANCE_KIB
    });
    assert!(stays, "KiB after each ten thousand sessions: {measured:?}");
    assert_eq!(Session::begin(&gateway).ping(), 200);
}

/// A client can reuse the id of a request as soon as it has read the response.
#[test]
fn the_id_of_an_answered_request_is_free() {
    let place = Place::new();
    let gateway = place.serve();
    for mut peer in Peer::all(&place, &gateway) {
        for round in 0..20 {
            let listed = peer.ask(7, "tools/list", json!({}));
            assert!(listed["result"].is_object(), "{} {round}: {listed}", peer.name());
            let called = peer.call(7, "calculator", json!({ "expression": "1+1" }));
            assert_eq!(text(&called), "2", "{} {round}: {called}", peer.name());
        }
    }
}
