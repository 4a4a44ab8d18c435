//! Tests the form of responses over HTTP: JSON, or a stream if notifications precede them.
//!
//! Path: 10. Doc: front-doors.md#answers

use serde_json::{Value, json};
use toolbooth_tests::mcp::{
    Answer, Peer, Sent, Session, modern, modern_headers, post, request, send,
};

use super::{staged, text};

/// Posts a call in one era with a header `Accept`.
fn call(is_modern: bool, session: &Session, accept: &str, params: &Value) -> Sent {
    let message = if is_modern {
        modern(1, "tools/call", params.clone())
    } else {
        request(1, "tools/call", params.clone())
    };
    let mut headers = if is_modern {
        modern_headers(&message)
    } else {
        vec![("Mcp-Session-Id".to_owned(), session.id.clone())]
    };
    headers.push(("Accept".to_owned(), accept.to_owned()));
    headers.push(("Content-Type".to_owned(), "application/json".to_owned()));
    let headers: Vec<(&str, &str)> =
        headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    send(&session.address, "POST", &headers, message.to_string().as_bytes())
}

const ERAS: [bool; 2] = [true, false];
const BOTH: &str = "application/json, text/event-stream";

fn is_json(answer: &Answer) -> bool {
    answer.header("content-type") == Some("application/json")
}

#[test]
fn where_nothing_came_before_it_an_answer_is_plain_json() {
    const LENGTH: usize = 2_000_000;
    let (place, _stage) = staged("[results]\ninline_bytes = 0\n");
    let gateway = place.serve();
    let session = Session::begin(&gateway);
    // The client asks for progress, but the tool reports none.
    let params = json!({ "name": "stage_large", "arguments": { "length": LENGTH },
        "_meta": { "progressToken": "t" } });
    for accept in [BOTH, "application/json", "*/*"] {
        for is_modern in ERAS {
            let answer = call(is_modern, &session, accept, &params).answer();
            assert!(answer.status == 200 && is_json(&answer), "{accept}: {:?}", answer.head);
            assert_eq!(
                answer
                    .header("content-length")
                    .and_then(|l| l.parse::<usize>().ok())
                    .map(|l| l > LENGTH),
                Some(true)
            );
            assert_eq!(text(&answer.json()).len(), LENGTH, "{accept}");
        }
    }
    for is_modern in ERAS {
        let mut answer = call(is_modern, &session, "text/event-stream", &params).answer();
        assert!(answer.is_stream(), "{:?}", answer.head);
        assert_eq!(text(&answer.event().unwrap()).len(), LENGTH);
        assert_eq!(answer.event(), None);
    }
}

#[test]
fn an_answer_is_a_stream_from_the_first_progress_on() {
    let (place, stage) = staged("");
    let gateway = place.serve();
    let session = Session::begin(&gateway);
    let params = json!({ "name": "stage_steps", "arguments": { "key": "k", "first": 1, "last": 2 },
        "_meta": { "progressToken": "t" } });
    for is_modern in ERAS {
        let sent = call(is_modern, &session, BOTH, &params);
        let mut actor = stage.next();
        actor.go();
        let mut answer = sent.answer();
        assert!(answer.status == 200 && answer.is_stream(), "{:?}", answer.head);
        assert_eq!(answer.header("x-accel-buffering"), Some("no"));
        assert!(answer.header("cache-control").is_some_and(|value| value.contains("no-cache")));
        assert_eq!(answer.event().unwrap()["params"]["progress"].as_f64(), Some(1.0));
        actor.go();
        assert_eq!(answer.event().unwrap()["params"]["progress"].as_f64(), Some(2.0));
        actor.go();
        let last = std::iter::from_fn(|| answer.event()).last().unwrap();
        assert_eq!(text(&last), "done k", "the answer is the last");

        // A client that does not accept events receives only the response.
        let sent = call(is_modern, &session, "application/json", &params);
        let mut actor = stage.next();
        (0..3).for_each(|_| actor.go());
        let answer = sent.answer();
        assert!(is_json(&answer), "{:?}", answer.head);
        assert_eq!(text(&answer.json()), "done k");
    }
}

#[test]
fn results_have_the_members_of_their_era() {
    let (place, _stage) = staged("");
    let gateway = place.serve();
    for mut peer in Peer::all(&place, &gateway) {
        let methods = ["tools/list", "prompts/list", "resources/list", "resources/templates/list"];
        for method in methods {
            let answer = peer.ask(1, method, json!({}));
            let result = &answer["result"];
            if peer.is_modern() {
                assert_eq!(result["resultType"], "complete", "{method}: {answer}");
                assert!(result["ttlMs"].is_u64(), "{method}: {answer}");
                assert_eq!(result["cacheScope"], "private", "{method}: {answer}");
            } else {
                for member in ["resultType", "ttlMs", "cacheScope"] {
                    assert!(result.get(member).is_none(), "{method}: {answer}");
                }
            }
        }
        let answer = peer.call(2, "stage_fail", json!({}));
        assert_eq!(
            (&answer["result"]["isError"], text(&answer)),
            (&json!(true), "it did not work")
        );
        assert_eq!(answer["result"].get("resultType").is_some(), peer.is_modern(), "{answer}");
        if !peer.is_modern() {
            assert_eq!(peer.ask(3, "ping", json!({}))["result"], json!({}));
            assert_eq!(
                peer.ask(4, "logging/setLevel", json!({ "level": "info" }))["result"],
                json!({})
            );
            let answer = peer.ask(5, "logging/setLevel", json!({ "level": "loud" }));
            assert_eq!(answer["error"]["code"], -32_602, "{answer}");
        }
    }
}

#[test]
fn a_call_of_no_tool_and_a_malformed_call_differ_by_their_words() {
    let (place, _stage) = staged("");
    let gateway = place.serve();
    for mut peer in Peer::over_pipes(&place) {
        for params in [
            json!({}),
            json!({ "name": 7 }),
            json!({ "name": null }),
            json!({ "name": "calculator", "arguments": "x" }),
        ] {
            let answer = peer.ask(1, "tools/call", params.clone());
            assert_eq!(answer["error"]["code"], -32_602, "{} {params}: {answer}", peer.name());
        }
    }
    let session = Session::begin(&gateway);
    let answer = post(
        &gateway.address,
        &[("Mcp-Session-Id", session.id.as_str())],
        request(1, "tools/call", json!({})).to_string().as_bytes(),
    )
    .answer();
    // Before 2026-07-28 the status of this error is 200.
    assert_eq!((answer.status, answer.json()["error"]["code"].as_i64()), (200, Some(-32_602)));
}
