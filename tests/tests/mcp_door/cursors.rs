//! Tests cursors of listings: valid for the listing that issued them, rejected for others.
//!
//! Path: 1. Doc: front-doors.md#cursors

use std::collections::BTreeSet;

use serde_json::{Value, json};
use toolbooth_tests::Place;
use toolbooth_tests::mcp::{BATCHES, Peer, Session, modern, modern_headers, request, send};

use super::code;

const LISTINGS: [&str; 4] =
    ["tools/list", "prompts/list", "resources/list", "resources/templates/list"];

/// Returns a place with more tools than one page holds.
fn large() -> Place {
    let place = Place::new();
    let description = "d".repeat(15 << 10);
    let tools: Vec<Value> = (0..600)
        .map(|n| {
            json!({ "name": format!("os.tool_{n}"), "description": description, "input_schema": {"type": "object"},
                "output_schema": {} })
        })
        .collect();
    let handlers: String = (0..600).map(|n| format!("export function tool_{n}() {{}}\n")).collect();
    place
        .write("toolbooth.toml", "[runtimes.own]\nkind = \"handlers\"\ndir = \"handlers\"\n")
        .write("handlers/os.js", &handlers)
        .write("tools.registry.json", &json!({ "version": "1.0.0", "tools": tools }).to_string());
    place
}

fn names(page: &Value) -> Vec<&str> {
    let tools = page["result"]["tools"].as_array().unwrap_or_else(|| panic!("{page}"));
    tools.iter().map(|tool| tool["name"].as_str().unwrap()).collect()
}

#[test]
fn cursors_that_no_listing_gave_are_refused() {
    let place = Place::new();
    let gateway = place.serve();
    for mut peer in Peer::all(&place, &gateway) {
        for method in LISTINGS {
            let whole = peer.ask(1, method, json!({}));
            let empty = peer.ask(1, method, json!({ "cursor": "" }));
            assert_eq!(whole, empty, "{} {method}: an empty cursor is a cursor", peer.name());
            assert!(whole["result"].is_object(), "{whole}");
            for cursor in
                [json!("5"), json!("unknown"), json!("a.b"), json!("\u{0}"), json!(5), json!({})]
            {
                let answer = peer.ask(2, method, json!({ "cursor": cursor }));
                assert_eq!(code(&answer), -32_602, "{} {method} {cursor}: {answer}", peer.name());
            }
        }
        peer.assert_served("wrong cursors");
    }
}

#[test]
fn a_cursor_is_good_for_its_own_listing_alone() {
    let place = large();
    let gateway = place.serve();
    for mut peer in Peer::all(&place, &gateway) {
        let first = peer.ask(1, "tools/list", json!({}));
        let cursor = first["result"]["nextCursor"].as_str().expect("another page").to_owned();
        let second = peer.ask(2, "tools/list", json!({ "cursor": cursor }));
        assert!(second["result"].get("nextCursor").is_none(), "{}", peer.name());
        let all: BTreeSet<&str> = names(&first).into_iter().chain(names(&second)).collect();
        assert_eq!(all.len(), names(&first).len() + names(&second).len(), "no tool twice");
        assert!((0..600).all(|n| all.contains(format!("os_tool_{n}").as_str())), "none is lost");
        assert_eq!(second, peer.ask(2, "tools/list", json!({ "cursor": cursor })), "taken again");
        for method in &LISTINGS[1..] {
            let answer = peer.ask(3, method, json!({ "cursor": cursor }));
            assert_eq!(code(&answer), -32_602, "{} {method}: {answer}", peer.name());
        }
        let other = if cursor.ends_with('0') { "1" } else { "0" };
        let changed = format!("{}{other}", &cursor[..cursor.len() - 1]);
        for cursor in [changed, cursor.to_uppercase(), format!("{cursor}{cursor}")] {
            let answer = peer.ask(4, "tools/list", json!({ "cursor": cursor }));
            assert_eq!(code(&answer), -32_602, "{} {cursor}: {answer}", peer.name());
        }
    }
}

#[test]
fn a_page_is_as_large_as_the_form_of_its_answer_allows() {
    let place = large();
    let gateway = place.serve();
    let message = modern(1, "tools/list", json!({}));
    let page = |accept: &str| {
        let mut headers = modern_headers(&message);
        headers.push(("Accept".to_owned(), accept.to_owned()));
        headers.push(("Content-Type".to_owned(), "application/json".to_owned()));
        let headers: Vec<(&str, &str)> =
            headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        send(&gateway.address, "POST", &headers, message.to_string().as_bytes()).answer()
    };
    // A document of a tool has 16 KiB at most; the other members of an answer have less than 1 KiB.
    let fills = |what: &str, bytes: usize, most: usize| {
        assert!((most - (16 << 10)..most + (1 << 10)).contains(&bytes), "{what}: {bytes}");
    };
    let both = "application/json, text/event-stream";
    let document = page(both);
    let stated = document.header("content-length").and_then(|length| length.parse().ok());
    let document = document.bytes();
    assert_eq!(stated, Some(document.len()));
    fills("a document", document.len(), 8 << 20);
    assert_eq!(page(both).bytes(), document, "it is the same each time");
    let event = page("text/event-stream").event().unwrap();
    fills("an event", event.to_string().len(), 1 << 20);
    assert!(event["result"]["nextCursor"].is_string() && !names(&event).is_empty());
    let session = Session::of(&gateway.address, BATCHES);
    let batch = session.post(&json!([request(1, "tools/list", json!({}))])).answer().json();
    fills("a batch", batch.to_string().len(), 256 << 10);
    assert!(batch[0]["result"]["nextCursor"].is_string() && !names(&batch[0]).is_empty());
}
