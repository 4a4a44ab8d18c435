//! Tests invalid and odd messages: each receives its JSON-RPC error, and the next message is served.
//!
//! Path: 1. Doc: front-doors.md#messages

use serde_json::{Value, json};
use toolbooth_tests::Place;
use toolbooth_tests::mcp::{
    BATCHES, LEGACY, Peer, Pipe, Session, initialize, modern, modern_headers, notification, post,
    request,
};

use super::code;

const DEPTH: usize = 100_000;

/// Returns a call in one era, with the given JSON as its arguments.
fn call(is_modern: bool, arguments: &str) -> Vec<u8> {
    let params = json!({ "name": "calculator", "arguments": "HERE" });
    let message =
        if is_modern { modern(1, "tools/call", params) } else { request(1, "tools/call", params) };
    message.to_string().replace("\"HERE\"", arguments).into_bytes()
}

fn deep(inside: &str) -> String {
    format!("{}{inside}{}", "[".repeat(DEPTH), "]".repeat(DEPTH))
}

/// Returns for each case a name, the bytes, the code of the response, and its id.
fn malformed() -> Vec<(&'static str, Vec<u8>, i64, Value)> {
    let text = |text: &str| text.as_bytes().to_vec();
    vec![
        ("no JSON", text("{nonsense"), -32_700, Value::Null),
        ("half a message", text(r#"{"jsonrpc":"2.0","id":1,"#), -32_700, Value::Null),
        (
            "two messages",
            text(r#"{"jsonrpc":"2.0","id":1,"method":"ping"}{}"#),
            -32_700,
            Value::Null,
        ),
        (
            "invalid UTF-8",
            b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"p\xffng\"}".to_vec(),
            -32_700,
            Value::Null,
        ),
        (
            "a cut character",
            b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"\xc3\"}".to_vec(),
            -32_700,
            Value::Null,
        ),
        ("UTF-16", "{}".encode_utf16().flat_map(u16::to_le_bytes).collect(), -32_700, Value::Null),
        ("only a BOM", b"\xEF\xBB\xBF".to_vec(), -32_700, Value::Null),
        ("a BOM inside", text("{\u{feff}}"), -32_700, Value::Null),
        ("NaN", text(r#"{"jsonrpc":"2.0","id":NaN,"method":"ping"}"#), -32_700, Value::Null),
        (
            "Infinity",
            text(r#"{"jsonrpc":"2.0","id":1,"method":"ping","params":{"a":Infinity}}"#),
            -32_700,
            Value::Null,
        ),
        (
            "a comment",
            text(r#"{"jsonrpc":"2.0","id":1,"method":"ping"/**/}"#),
            -32_700,
            Value::Null,
        ),
        ("an open end", text(&"[".repeat(DEPTH)), -32_700, Value::Null),
        ("text", text("\"ping\""), -32_600, Value::Null),
        ("a number", text("7"), -32_600, Value::Null),
        ("null", text("null"), -32_600, Value::Null),
        ("no version", text(r#"{"id":1,"method":"ping"}"#), -32_600, json!(1)),
        ("no method", text(r#"{"jsonrpc":"2.0","id":1}"#), -32_600, json!(1)),
        (
            "a method of another type",
            text(r#"{"jsonrpc":"2.0","id":1,"method":7}"#),
            -32_600,
            Value::Null,
        ),
        (
            "no id that may be",
            text(r#"{"jsonrpc":"2.0","id":1.5,"method":"ping"}"#),
            -32_600,
            Value::Null,
        ),
        (
            "an id of null",
            text(r#"{"jsonrpc":"2.0","id":null,"method":"ping"}"#),
            -32_600,
            Value::Null,
        ),
        (
            "a member twice",
            text(r#"{"jsonrpc":"2.0","id":1,"id":2,"method":"ping"}"#),
            -32_600,
            Value::Null,
        ),
        (
            "half an id",
            text(r#"{"jsonrpc":"2.0","id":"\ud800","method":"ping"}"#),
            -32_600,
            Value::Null,
        ),
        (
            "half a method",
            text(r#"{"jsonrpc":"2.0","id":1,"method":"\udc00"}"#),
            -32_600,
            Value::Null,
        ),
        (
            "params of a list",
            text(r#"{"jsonrpc":"2.0","id":1,"method":"ping","params":[1]}"#),
            -32_602,
            json!(1),
        ),
    ]
}

#[test]
fn what_is_no_message_is_refused_over_http() {
    let place = Place::new();
    let gateway = place.serve();
    let session = Session::begin(&gateway);
    let headers = modern_headers(&request(1, "ping", json!({})));
    let modern: Vec<(&str, &str)> =
        headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    let legacy = [("Mcp-Session-Id", session.id.as_str()), ("MCP-Protocol-Version", LEGACY)];
    for (of, body, expected, id) in malformed() {
        for headers in [&modern[..], &legacy[..], &[]] {
            let answer = post(&gateway.address, headers, &body).answer();
            assert_eq!(
                (answer.status, answer.header("content-type")),
                (400, Some("application/json")),
                "{of}"
            );
            let answer = answer.json();
            assert_eq!((code(&answer), &answer["id"]), (expected, &id), "{of}: {answer}");
            assert_eq!(answer["jsonrpc"], "2.0", "{of}");
        }
    }
    assert_eq!(session.ping(), 200);
}

#[test]
fn what_is_no_message_is_refused_over_stdio_and_the_next_is_served() {
    let place = Place::new();
    for mut peer in Peer::over_pipes(&place) {
        for (of, mut line, expected, id) in malformed() {
            line.push(b'\n');
            let (Peer::ModernPipe(pipe) | Peer::LegacyPipe(pipe)) = &mut peer else { continue };
            pipe.write(&line);
            let answer = pipe.message().unwrap();
            assert_eq!((code(&answer), &answer["id"]), (expected, &id), "{of}: {answer}");
            peer.assert_served(of);
        }
    }
}

#[test]
fn odd_arguments_are_answered_at_once_and_what_follows_is_served() {
    let place = Place::new();
    let gateway = place.serve();
    for mut peer in Peer::all(&place, &gateway) {
        for (of, arguments) in [
            ("half a pair", r#"{"expression":"\ud800"}"#.to_owned()),
            ("the other half", r#"{"expression":"1\udfff"}"#.to_owned()),
            ("half a pair in a name", r#"{"\ud800":1}"#.to_owned()),
            ("depth", format!(r#"{{"expression":{}}}"#, deep("1"))),
            ("an overflowing number", r#"{"expression":1e999999}"#.to_owned()),
            ("a member twice", r#"{"expression":"1","expression":"2"}"#.to_owned()),
            ("a list", "[1]".to_owned()),
            ("text", "\"x\"".to_owned()),
        ] {
            let bytes = call(peer.is_modern(), &arguments);
            let answer = raw(&mut peer, &bytes);
            let failed = code(&answer) != 0 || answer["result"]["isError"] == true;
            assert!(failed, "{} {of}: {answer}", peer.name());
            assert_eq!(answer["id"], 1, "{} {of}: {answer}", peer.name());
            peer.assert_served(of);
        }
        let marked =
            [&b"\xEF\xBB\xBF"[..], &call(peer.is_modern(), r#"{"expression":"1+1"}"#)].concat();
        let answer = raw(&mut peer, &marked);
        assert_eq!(super::text(&answer), "2", "{} a BOM: {answer}", peer.name());
    }
}

/// Sends bytes with the headers of a call of the calculator.
fn raw(peer: &mut Peer, bytes: &[u8]) -> Value {
    match peer {
        Peer::ModernHttp(address) => {
            let headers =
                modern_headers(&request(1, "tools/call", json!({ "name": "calculator" })));
            let headers: Vec<(&str, &str)> =
                headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
            post(address, &headers, bytes).answer().json()
        }
        Peer::LegacyHttp(session) => {
            let headers =
                [("Mcp-Session-Id", session.id.as_str()), ("MCP-Protocol-Version", LEGACY)];
            post(&session.address, &headers, bytes).answer().json()
        }
        Peer::ModernPipe(pipe) | Peer::LegacyPipe(pipe) => {
            pipe.write(bytes);
            pipe.write(b"\n");
            pipe.message().unwrap()
        }
    }
}

#[test]
fn a_message_that_is_too_long_is_refused_by_its_id() {
    let place = Place::new();
    let gateway = place.serve();
    let long = "x".repeat(9_000_000);
    for mut peer in Peer::all(&place, &gateway) {
        let arguments = json!({ "expression": long }).to_string();
        match &mut peer {
            Peer::ModernHttp(_) | Peer::LegacyHttp(_) => {
                let body = call(true, &arguments);
                let answer = post(&gateway.address, &[], &body).answer();
                assert_eq!(answer.status, 413);
                assert_eq!(code(&answer.json()), -32_600);
            }
            Peer::ModernPipe(pipe) | Peer::LegacyPipe(pipe) => {
                pipe.send(&request(
                    "long",
                    "tools/call",
                    json!({ "name": "calculator", "arguments": { "expression": long } }),
                ));
                // A message that follows immediately is not lost.
                pipe.send(&modern(2, "tools/list", json!({})));
                let answer = pipe.message().unwrap();
                assert_eq!((code(&answer), &answer["id"]), (-32_600, &json!("long")), "{answer}");
                assert!(pipe.answer(2)["result"]["tools"].is_array());
                // These are long lines without an id at their beginning.
                pipe.write(format!("{}\n", " ".repeat(9_000_000)).as_bytes());
                pipe.write(format!("{}\n", "[".repeat(9_000_000)).as_bytes());
            }
        }
        peer.assert_served("a long message");
    }
}

#[test]
fn blank_lines_and_foreign_line_ends_say_nothing() {
    let place = Place::new();
    for mut peer in Peer::over_pipes(&place) {
        let (Peer::ModernPipe(pipe) | Peer::LegacyPipe(pipe)) = &mut peer else { continue };
        pipe.write(b"\n\r\n  \n\t\r\n\n");
        pipe.write(format!("{}\r\n", modern(1, "tools/list", json!({}))).as_bytes());
        let answer = pipe.message().unwrap();
        assert_eq!(answer["id"], 1, "nothing is said to blank lines: {answer}");
        assert!(answer["result"]["tools"].is_array());
    }
}

/// Returns a batch with requests, a notification, a response, and an invalid message.
fn mixed() -> Value {
    json!([
        request(1, "ping", json!({})),
        notification("notifications/cancelled", json!({ "requestId": "none" })),
        7,
        request("two", "tools/call", json!({ "name": "calculator", "arguments": { "expression": "6*7" } })),
        { "jsonrpc": "2.0", "id": 3, "method": "no/such" },
        { "jsonrpc": "2.0", "id": "ours", "result": {} },
        initialize(4, BATCHES),
    ])
}

fn assert_mixed(answers: &Value) {
    let all = answers.as_array().unwrap_or_else(|| panic!("no array: {answers}"));
    let of = |id: Value| all.iter().find(|answer| answer["id"] == id).unwrap_or(&Value::Null);
    assert_eq!(all.len(), 5, "one for each request and for what is no message: {answers}");
    assert_eq!(of(json!(1))["result"], json!({}));
    assert_eq!(super::text(of(json!("two"))), "42");
    assert_eq!(code(of(json!(3))), -32_601);
    assert_eq!(code(of(Value::Null)), -32_600);
    assert_ne!(code(of(json!(4))), 0, "`initialize` is never part of a batch");
}

#[test]
fn batches_are_answered_in_the_revision_that_has_them() {
    let place = Place::new();
    let gateway = place.serve();
    let session = Session::of(&gateway.address, BATCHES);
    let answer = session.post(&mixed()).answer();
    assert_eq!(answer.status, 200);
    assert_mixed(&answer.json());
    let silent = json!([notification("notifications/initialized", json!({}))]);
    let answer = session.post(&silent).answer();
    assert_eq!((answer.status, answer.bytes()), (202, Vec::new()));
    let empty = session.post(&json!([])).answer().json();
    assert_eq!(
        (code(&empty), &empty["id"]),
        (-32_600, &Value::Null),
        "one answer, no list: {empty}"
    );
    let twice = json!([request(1, "ping", json!({})), request(1, "ping", json!({}))]);
    assert_eq!(session.post(&twice).answer().json().as_array().map(Vec::len), Some(2));

    let mut pipe = Pipe::session(&place, BATCHES);
    pipe.send(&mixed());
    assert_mixed(&pipe.message().unwrap());
    pipe.send(&silent);
    pipe.send(&json!([]));
    let empty = pipe.message().unwrap();
    assert_eq!((code(&empty), &empty["id"]), (-32_600, &Value::Null), "{empty}");
    pipe.send(&request(9, "ping", json!({})));
    assert_eq!(pipe.message().unwrap()["id"], 9);
}

#[test]
fn a_batch_whose_client_hangs_up_stays_in_hand() {
    let (place, stage) = super::staged("");
    let gateway = place.serve();
    let session = Session::of(&gateway.address, BATCHES);
    let params = json!({ "name": "stage_wait", "arguments": { "key": "batch" } });
    let sent = session.post(&json!([request(1, "tools/call", params)]));
    let mut actor = stage.next();
    sent.hang_up();
    let duplicate = session.post(&request(1, "ping", json!({}))).answer().json();
    assert_eq!(code(&duplicate), -32_600, "its id is in use: {duplicate}");
    assert_eq!(session.delete().status, 204);
    assert_eq!(actor.line(), "cancelled", "the end of the session reaches it");
    gateway.stop();
    place.assert_sound();
}

#[test]
fn batches_are_refused_in_every_other_revision() {
    let place = Place::new();
    let gateway = place.serve();
    let batch = json!([request(1, "ping", json!({}))]);
    let refused = |answer: &Value, of: &str| {
        assert_eq!((code(answer), &answer["id"]), (-32_600, &Value::Null), "{of}: {answer}");
    };
    for version in ["2024-11-05", "2025-06-18", LEGACY] {
        let session = Session::of(&gateway.address, version);
        for body in [&batch, &json!([])] {
            let answer = session.post(body).answer();
            assert_eq!(answer.status, 400);
            refused(&answer.json(), version);
        }
        assert_eq!(session.ping(), 200);
        let mut pipe = Pipe::session(&place, version);
        pipe.send(&batch);
        refused(&pipe.message().unwrap(), version);
        pipe.send(&request(2, "ping", json!({})));
        assert_eq!(pipe.message().unwrap()["result"], json!({}));
    }
    let mut body = modern(1, "tools/list", json!({}));
    let headers = modern_headers(&body);
    let headers: Vec<(&str, &str)> =
        headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    body = json!([body]);
    let answer = post(&gateway.address, &headers, body.to_string().as_bytes()).answer();
    assert_eq!(answer.status, 400);
    refused(&answer.json(), "modern");
    let mut pipe = Pipe::start(&place);
    pipe.send(&body);
    refused(&pipe.message().unwrap(), "modern over stdio");
    pipe.send(&json!([initialize(1, BATCHES)]));
    refused(&pipe.message().unwrap(), "a session begins without a batch");
    // This is a batch without a session.
    let answer = post(&gateway.address, &[], batch.to_string().as_bytes()).answer();
    assert_eq!(answer.status, 400);
    refused(&answer.json(), "no session");
}
