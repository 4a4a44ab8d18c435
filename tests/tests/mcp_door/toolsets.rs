//! Tests tool sets at the MCP door.
//!
//! Doc: front-doors.md#tool-sets

use serde_json::{Value, json};
use toolbooth_tests::Place;
use toolbooth_tests::mcp::{
    ACCEPT, JSON, Pipe, initialize, modern, modern_headers, request, send_at,
};

use super::code;

const SETTINGS: &str = "[toolsets.sums]\ntools = [\"calculator\"]\n[toolsets.both]\ntools = [\"calculator\", \"read_file\"]\n";

fn asked(address: &str, path: &str, message: &Value) -> (u16, Value) {
    let headers = modern_headers(message);
    let headers: Vec<(&str, &str)> =
        headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    let path = format!("/mcp{path}");
    let all: Vec<(&str, &str)> = [JSON, ACCEPT].into_iter().chain(headers).collect();
    let body = message.to_string();
    let answer = send_at(address, &path, "POST", &all, body.as_bytes()).answer();
    let status = answer.status;
    (status, answer.json())
}

fn names(listed: &Value) -> Vec<&str> {
    let tools = listed["result"]["tools"].as_array().unwrap();
    tools.iter().map(|tool| tool["name"].as_str().unwrap()).collect()
}

#[test]
fn a_path_shows_its_tool_set_and_nothing_else() {
    let place = Place::new();
    place.write("toolbooth.toml", SETTINGS);
    let gateway = place.serve();
    let list = modern(1, "tools/list", json!({}));
    for (path, shown) in [("/sums", vec!["calculator"]), ("/both", vec!["calculator", "read_file"])]
    {
        let (status, listed) = asked(&gateway.address, path, &list);
        assert_eq!((status, names(&listed)), (200, shown), "{path}");
    }
    let (status, none) = asked(&gateway.address, "/none", &list);
    assert_eq!((status, code(&none), &none["id"]), (404, -32_600, &json!(1)), "{none}");
    let call = |name: &str, arguments: Value| {
        modern(2, "tools/call", json!({ "name": name, "arguments": arguments }))
    };
    let (_, sum) =
        asked(&gateway.address, "/sums", &call("calculator", json!({"expression": "1+1"})));
    assert_eq!(sum["result"]["content"][0]["text"], "2", "{sum}");
    let (hidden_status, mut hidden) =
        asked(&gateway.address, "/sums", &call("read_file", json!({"path": "x"})));
    let (unknown_status, mut unknown) =
        asked(&gateway.address, "/sums", &call("nothing", json!({"path": "x"})));
    assert_eq!(code(&hidden), -32_602, "{hidden}");
    for answer in [&mut hidden, &mut unknown] {
        answer["error"]["data"].as_object_mut().map(|data| data.remove("callId"));
    }
    assert_eq!((hidden_status, hidden), (unknown_status, unknown));
    gateway.stop();
    place.assert_sound();
}

#[test]
fn a_set_is_never_wider_than_the_callers_rights() {
    let place = Place::new();
    let rights =
        "[callers.local]\nmatch = [\"local\"]\ntools = [\"read_file\"]\ngrants = [\"*\"]\n";
    place.write("toolbooth.toml", &format!("{SETTINGS}{rights}"));
    let gateway = place.serve();
    let list = modern(1, "tools/list", json!({}));
    assert_eq!(names(&asked(&gateway.address, "/both", &list).1), ["read_file"]);
    assert!(names(&asked(&gateway.address, "/sums", &list).1).is_empty());
}

#[test]
fn standard_input_serves_a_tool_set_that_is_named() {
    let place = Place::new();
    place.write("toolbooth.toml", SETTINGS);
    let mut pipe = Pipe::start_with(&place, &["stdio", "--toolset", "sums"]);
    pipe.send(&initialize(0, "2025-11-25"));
    pipe.answer(0);
    pipe.send(&request(1, "tools/list", json!({})));
    assert_eq!(names(&pipe.answer(1)), ["calculator"]);
    drop(pipe);
    let output = place.run(&["stdio", "--toolset", "sum"]);
    let words = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{words}");
    assert!(words.contains("did you mean `sums`"), "{words}");
}
