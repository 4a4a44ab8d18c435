//! Tests the methods, revisions and sessions of each era, and that refusals are JSON-RPC in both.
//!
//! Path: 1. Doc: front-doors.md#mcp

use serde_json::json;
use toolbooth_tests::Place;
use toolbooth_tests::mcp::{
    LEGACY, MODERN, Pipe, Session, initialize, modern, modern_headers, post, request, send,
};

use super::code;

#[test]
fn a_session_id_of_the_other_era_is_left_alone() {
    let place = Place::new();
    let gateway = place.serve();
    let session = Session::begin(&gateway);
    for id in ["none", session.id.as_str(), ""] {
        for message in [
            modern(1, "server/discover", json!({})),
            modern(2, "tools/list", json!({})),
            modern(
                3,
                "tools/call",
                json!({ "name": "calculator", "arguments": { "expression": "1" } }),
            ),
        ] {
            let mut headers = modern_headers(&message);
            headers.push(("Mcp-Session-Id".to_owned(), id.to_owned()));
            let headers: Vec<(&str, &str)> =
                headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
            let answer = post(&gateway.address, &headers, message.to_string().as_bytes()).answer();
            assert_eq!((answer.status, answer.header("mcp-session-id")), (200, None), "{message}");
            assert!(answer.json()["result"].is_object(), "{message}");
        }
    }
}

#[test]
fn methods_that_an_era_does_not_have_are_not_found() {
    let place = Place::new();
    let gateway = place.serve();
    let only_legacy =
        ["initialize", "ping", "logging/setLevel", "resources/subscribe", "resources/unsubscribe"];
    let unknown = ["no/such", "", "tools/List", "notifications/cancelled", "tasks/get", "\u{0}"];
    let mut modern_pipe = Pipe::start(&place);
    for method in only_legacy.iter().chain(&unknown[..]) {
        let message = modern(1, method, json!({}));
        // No header can repeat such a method, so other refusals are valid as well.
        if !method.is_empty() && *method != "\u{0}" {
            let sent = toolbooth_tests::mcp::post_modern(&gateway.address, &message);
            let answer = sent.answer();
            assert_eq!(
                (answer.status, answer.header("content-type")),
                (404, Some("application/json")),
                "{method}"
            );
            let answer = answer.json();
            assert_eq!((code(&answer), &answer["id"]), (-32_601, &json!(1)), "{method}: {answer}");
        }
        modern_pipe.send(&message);
        let answer = modern_pipe.message().unwrap();
        assert_eq!((code(&answer), &answer["id"]), (-32_601, &json!(1)), "{method}: {answer}");
    }
    let session = Session::begin(&gateway);
    let mut pipe = Pipe::session(&place, LEGACY);
    for method in unknown.iter().chain(&["subscriptions/listen"]) {
        let message = request(1, method, json!({}));
        let answer = session.post(&message).answer();
        assert_eq!(answer.status, 200, "{method}");
        pipe.send(&message);
        for answer in [answer.json(), pipe.message().unwrap()] {
            assert_eq!((code(&answer), &answer["id"]), (-32_601, &json!(1)), "{method}: {answer}");
        }
    }
}

#[test]
fn each_era_says_which_revisions_there_are() {
    let place = Place::new();
    let gateway = place.serve();
    let address = gateway.address.as_str();
    for (asked, given) in [
        ("2024-11-05", "2024-11-05"),
        ("2025-03-26", "2025-03-26"),
        ("2025-06-18", "2025-06-18"),
        (LEGACY, LEGACY),
        // `initialize` begins a session, so the answer is a legacy revision.
        (MODERN, LEGACY),
        ("1999-01-01", LEGACY),
        ("", LEGACY),
    ] {
        let message = initialize(1, asked);
        let answer = post(address, &[], message.to_string().as_bytes()).answer();
        let mut pipe = Pipe::start(&place);
        pipe.send(&message);
        for answer in [answer.json(), pipe.message().unwrap()] {
            assert_eq!(answer["result"]["protocolVersion"], given, "{asked}: {answer}");
            assert!(answer["result"].get("resultType").is_none(), "{answer}");
        }
    }
    let mut later = modern(1, "tools/list", json!({}));
    later["params"]["_meta"]["io.modelcontextprotocol/protocolVersion"] = json!("2099-01-01");
    let headers = [("MCP-Protocol-Version", "2099-01-01"), ("Mcp-Method", "tools/list")];
    let answer = post(address, &headers, later.to_string().as_bytes()).answer();
    assert_eq!(answer.status, 400);
    let mut pipe = Pipe::start(&place);
    pipe.send(&later);
    pipe.send(&modern(1, "server/discover", json!({})));
    let mut refusals = vec![answer.json(), pipe.message().unwrap()];
    let discovered = pipe.message().unwrap();
    let known = &discovered["result"]["supportedVersions"];
    assert!(known.as_array().unwrap().contains(&json!(MODERN)), "{discovered}");
    while let Some(refused) = refusals.pop() {
        assert_eq!((code(&refused), &refused["id"]), (-32_022, &json!(1)), "{refused}");
        let data = &refused["error"]["data"];
        assert_eq!(
            (&data["requested"], &data["supported"]),
            (&json!("2099-01-01"), known),
            "{refused}"
        );
    }
    // The required members of `_meta`.
    for missing in ["protocolVersion", "clientCapabilities"] {
        let mut message = modern(1, "tools/list", json!({}));
        let meta = message["params"]["_meta"].as_object_mut().unwrap();
        meta.shift_remove(&format!("io.modelcontextprotocol/{missing}"));
        let answer = toolbooth_tests::mcp::post_modern(address, &message).answer();
        assert_eq!(answer.status, 400);
        let answer = answer.json();
        assert_eq!((code(&answer), &answer["id"]), (-32_602, &json!(1)), "{missing}: {answer}");
    }
    // An unknown version in the head alone.
    let session = Session::begin(&gateway);
    let ping = request(1, "ping", json!({})).to_string();
    let headers = [("Mcp-Session-Id", session.id.as_str()), ("MCP-Protocol-Version", "1999-01-01")];
    assert_eq!(post(address, &headers, ping.as_bytes()).answer().status, 400);
}

#[test]
fn no_refusal_is_plain_text() {
    let place = Place::new();
    let gateway = place.serve();
    let address = gateway.address.as_str();
    let session = Session::begin(&gateway);
    let ours = ("Mcp-Session-Id", session.id.as_str());
    let (json_kind, both) =
        (("Content-Type", "application/json"), ("Accept", "application/json, text/event-stream"));
    let modern_version = ("MCP-Protocol-Version", MODERN);
    let ping = request(1, "ping", json!({})).to_string();
    for (of, method, headers, body, status) in [
        ("no type", "POST", vec![both, ours], ping.as_str(), 415),
        ("plain text", "POST", vec![both, ours, ("Content-Type", "text/plain")], &ping, 415),
        ("nothing accepted", "POST", vec![json_kind, ours, ("Accept", "text/html")], &ping, 406),
        (
            "refused by weight",
            "POST",
            vec![json_kind, ours, ("Accept", "application/json;q=0")],
            &ping,
            406,
        ),
        ("a stream as JSON", "GET", vec![ours, ("Accept", "application/json")], "", 406),
        ("no session", "POST", vec![json_kind, both], &ping, 400),
        ("no session", "GET", vec![both], "", 400),
        ("no session", "DELETE", vec![both], "", 400),
        (
            "an unknown session",
            "POST",
            vec![json_kind, both, ("Mcp-Session-Id", "none")],
            &ping,
            404,
        ),
        ("an unknown session", "GET", vec![both, ("Mcp-Session-Id", "none")], "", 404),
        ("an unknown session", "DELETE", vec![both, ("Mcp-Session-Id", "none")], "", 404),
        ("two sessions", "POST", vec![json_kind, both, ours, ours], &ping, 400),
        ("no body", "POST", vec![json_kind, both, ours], "", 400),
        ("modern GET", "GET", vec![both, modern_version], "", 405),
        ("modern DELETE", "DELETE", vec![both, modern_version], "", 405),
        ("PUT", "PUT", vec![json_kind, both], &ping, 405),
        ("PATCH", "PATCH", vec![json_kind, both], &ping, 405),
        ("OPTIONS", "OPTIONS", vec![both], "", 405),
        ("TRACE", "TRACE", vec![both], "", 405),
        ("an unknown method", "BREW", vec![both], "", 405),
    ] {
        let answer = send(address, method, &headers, body.as_bytes()).answer();
        assert_eq!(
            (answer.status, answer.header("content-type")),
            (status, Some("application/json")),
            "{of} {method}"
        );
        if status == 405 {
            let allowed = answer.header("allow").unwrap_or_default().to_owned();
            assert!(allowed.contains("POST"), "{of} {method}: {allowed}");
        }
        let answer = answer.json();
        assert_eq!(answer["jsonrpc"], "2.0", "{of} {method}: {answer}");
        assert!(
            code(&answer) < 0 && answer["error"]["message"].is_string(),
            "{of} {method}: {answer}"
        );
    }
    assert_eq!(session.ping(), 200);
}
