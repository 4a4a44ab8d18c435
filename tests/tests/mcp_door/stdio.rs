//! Tests that standard output contains only messages, even if everything else fails.
//!
//! Path: 1, 10. Doc: front-doors.md#mcp

use serde_json::{Value, json};
use toolbooth_tests::Place;
use toolbooth_tests::mcp::{LEGACY, Pipe, initialize, modern, notification, request};

use super::{code, text};

const NOISY: &str = r#"
console.log("printed while it is loaded");
export function noise() {
  console.log("{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{\"forged\":true}}");
  console.error("and on standard error");
  return "heard";
}
"#;

const REGISTRY: &str = r#"{"version":"1.0.0","tools":[
{"name":"os.noise","description":"Prints.","input_schema":{"type":"object"},"output_schema":{}},
{"name":"os.program","description":"Prints.","input_schema":{"type":"object"},"output_schema":{},
 "execution":{"localRuntimeId":"program"}}]}"#;

#[test]
fn standard_output_is_the_protocol_alone() {
    let place = Place::new().env("TOOLBOOTH_LOG", "trace").env("RUST_LOG", "trace");
    place
        .write(
            "toolbooth.toml",
            "[lock]\nmode = \"off\"\n[runtimes.own]\nkind = \"handlers\"\ndir = \"handlers\"\n\
             [runtimes.program]\nkind = \"command\"\ncommand = [\"sh\", \"-c\", \"echo out; echo err >&2\"]\n\
             [servers.none]\ncommand = \"/no/such/program\"\n\
             [servers.chatty]\ncommand = \"sh\"\nargs = [\"-c\", \"echo hello; echo words >&2; cat\"]\nsandbox = \"none\"\nstartup_timeout_ms = 2000\n",
        )
        .write("handlers/os.js", NOISY)
        .write("tools.registry.json", REGISTRY);
    let mut pipe = Pipe::session(&place, LEGACY);
    pipe.write(b"{nonsense\n");
    for (id, name) in
        [(2, "os_noise"), (3, "os_program"), (4, "no_such_tool"), (5, "none_x"), (6, "chatty_x")]
    {
        pipe.send(&request(id, "tools/call", json!({ "name": name, "arguments": {} })));
    }
    pipe.send(&modern(7, "tools/list", json!({})));
    assert_eq!(text(&pipe.answer(2)), "heard");
    assert!(text(&pipe.answer(3)).contains("out"));
    for id in 4..=7 {
        pipe.answer(id);
    }
    // Each line was read as JSON; the remaining ones must be messages of the protocol too.
    let (rest, exit, words) = pipe.finish();
    assert_eq!(exit, Some(0), "{words}");
    for message in rest {
        assert_eq!(message["jsonrpc"], "2.0", "{message}");
        assert!(message.get("method").is_some() || code(&message) == -32_700, "{message}");
    }
    assert!(!words.is_empty(), "the logs go to standard error");
}

#[test]
fn a_start_that_fails_prints_nothing() {
    for (config, arguments) in [
        ("nonsense = [", vec!["stdio"]),
        ("unknown = 1\n", vec!["stdio"]),
        ("", vec!["stdio", "--config", "none.toml"]),
        ("", vec!["stdio", "--no-such-option"]),
    ] {
        let place = Place::new();
        place.write("toolbooth.toml", config);
        let output = place.run(&arguments);
        assert_eq!(String::from_utf8_lossy(&output.stdout), "", "{config} {arguments:?}");
        assert_eq!(output.status.code(), Some(2), "{config} {arguments:?}");
        assert!(!output.stderr.is_empty());
    }
}

#[test]
fn what_was_asked_before_the_input_ended_is_answered() {
    let place = Place::new();
    for is_modern in [false, true] {
        let mut pipe = Pipe::start(&place);
        let mut all = String::new();
        if !is_modern {
            all.push_str(&format!("{}\n", initialize("start", LEGACY)));
            all.push_str(&format!("{}\n", notification("notifications/initialized", json!({}))));
        }
        for n in 0..50 {
            let params =
                json!({ "name": "calculator", "arguments": { "expression": format!("{n}+1") } });
            let message = if is_modern {
                modern(n, "tools/call", params)
            } else {
                request(n, "tools/call", params)
            };
            all.push_str(&format!("{message}\n"));
        }
        // The last line has no end.
        let last = if is_modern {
            modern("end", "tools/list", json!({}))
        } else {
            request("end", "ping", json!({}))
        };
        all.push_str(&last.to_string());
        pipe.write(all.as_bytes());
        pipe.end_input();
        let (messages, exit, words) = pipe.finish();
        assert_eq!(exit, Some(0), "{words}");
        let of = |id: Value| messages.iter().filter(|one| one["id"] == id).collect::<Vec<_>>();
        for n in 0..50 {
            let answers = of(json!(n));
            assert_eq!(answers.len(), 1, "{n}: {answers:?}");
            assert_eq!(text(answers[0]), (n + 1).to_string());
        }
        assert_eq!(of(json!("end")).len(), 1);
    }
}

#[test]
fn a_session_begins_once_and_both_eras_share_a_pipe() {
    let place = Place::new();
    let mut pipe = Pipe::start(&place);
    pipe.send(&request(1, "tools/list", json!({})));
    assert_eq!(code(&pipe.answer(1)), -32_600, "before it begins");
    pipe.send(&request(2, "ping", json!({})));
    assert_eq!(pipe.answer(2)["result"], json!({}));
    pipe.send(&modern(3, "tools/list", json!({})));
    assert!(pipe.answer(3)["result"]["tools"].is_array());
    pipe.send(&initialize(4, LEGACY));
    assert_eq!(pipe.answer(4)["result"]["protocolVersion"], LEGACY);
    pipe.send(&initialize(5, "2025-03-26"));
    assert_eq!(code(&pipe.answer(5)), -32_600, "it has begun already");
    pipe.send(&request(6, "tools/list", json!({})));
    pipe.send(&modern(7, "server/discover", json!({})));
    assert!(pipe.answer(6)["result"].get("resultType").is_none());
    assert_eq!(pipe.answer(7)["result"]["resultType"], "complete");
}

#[test]
fn an_answer_to_a_question_of_ours_and_unknown_notifications_say_nothing() {
    let place = Place::new();
    let mut pipe = Pipe::session(&place, LEGACY);
    pipe.send(&json!({ "jsonrpc": "2.0", "id": 9, "result": {} }));
    pipe.send(&json!({ "jsonrpc": "2.0", "id": "x", "error": { "code": -1, "message": "no" } }));
    pipe.send(&notification("notifications/of-a-later-time", json!({ "a": [1] })));
    pipe.send(&notification(
        "notifications/progress",
        json!({ "progressToken": 1, "progress": 1 }),
    ));
    pipe.send(&json!({ "jsonrpc": "2.0", "method": "notifications/initialized", "params": [1] }));
    pipe.send(&request(10, "ping", json!({})));
    assert_eq!(pipe.message().unwrap()["id"], 10);
}
