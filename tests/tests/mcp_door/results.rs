//! Tests large results: clients receive the beginning and a link for reading the rest.
//!
//! Doc: execution.md#large-results, configuration.md#results

use serde_json::{Value, json};
use toolbooth_tests::mcp::{
    ACCEPT, JSON, Session, modern, modern_headers, post_modern, request, send_at,
};
use toolbooth_tests::{Place, RunningGateway};

use super::{code, staged, text};

const LENGTH: usize = 300_000;

fn asked(gateway: &RunningGateway, method: &str, params: Value) -> Value {
    post_modern(&gateway.address, &modern(1, method, params)).answer().json()
}

fn call(gateway: &RunningGateway, name: &str, arguments: Value) -> Value {
    asked(gateway, "tools/call", json!({ "name": name, "arguments": arguments }))
}

#[test]
fn a_large_result_is_read_by_its_link() {
    let (place, _stage) = staged("");
    let gateway = place.serve();
    let large = call(&gateway, "stage_large", json!({ "length": LENGTH }));
    let content = large["result"]["content"].as_array().unwrap();
    assert!(text(&large).len() < 8_192, "{} bytes", text(&large).len());
    let link = content.iter().find(|block| block["type"] == "resource_link").unwrap();
    assert_eq!((&link["mimeType"], &link["size"]), (&json!("text/plain"), &json!(LENGTH)));
    let uri = link["uri"].as_str().unwrap();

    let read = asked(&gateway, "resources/read", json!({ "uri": uri }));
    let whole = read["result"]["contents"][0]["text"].as_str().unwrap();
    assert_eq!(whole.len(), LENGTH, "{:.200}", read.to_string());
    assert_eq!(read["result"]["contents"][0]["uri"], uri);

    let mut all = String::new();
    while all.len() < LENGTH {
        let piece = call(&gateway, "read_result", json!({ "result": uri, "offset": all.len() }));
        assert!(!text(&piece).is_empty(), "{piece}");
        all.push_str(text(&piece));
    }
    assert_eq!(all, whole);
    let piece = call(&gateway, "read_result", json!({ "result": uri, "offset": 10, "length": 5 }));
    assert_eq!(text(&piece), &whole[10..15]);
    let none =
        call(&gateway, "read_result", json!({ "result": "0198f000-0000-7000-8000-000000000000" }));
    assert_eq!(none["result"]["isError"], true, "{none}");
    let none = asked(&gateway, "resources/read", json!({ "uri": format!("{uri}9") }));
    assert_eq!(code(&none), -32_602, "{none}");

    let legacy = Session::begin(&gateway);
    let params = json!({ "uri": format!("{uri}9") });
    let none = legacy.post(&request(2, "resources/read", params)).answer().json();
    assert_eq!(code(&none), -32_002, "{none}");
    gateway.stop();
    place.assert_sound();
    let (events, _) = place.json(&["audit", "query"]);
    assert!(events.to_string().contains("RESOURCE_READ"), "{events}");
}

#[test]
fn results_are_shown_whole_where_the_setting_says_so() {
    let settings = "[results.tools]\n\"stage.large\" = 0\n";
    let (place, _stage) = staged(settings);
    let gateway = place.serve();
    let large = call(&gateway, "stage_large", json!({ "length": LENGTH }));
    assert_eq!(text(&large).len(), LENGTH);
    drop(gateway);

    let (place, _stage) = staged("[results]\ninline_bytes = 0\n");
    let gateway = place.serve();
    let large = call(&gateway, "stage_large", json!({ "length": LENGTH }));
    assert_eq!(text(&large).len(), LENGTH);
    let listed = asked(&gateway, "tools/list", json!({})).to_string();
    assert!(!listed.contains("read_result"), "nothing is ever to be read");
}

#[test]
fn a_caller_that_may_not_read_on_is_shown_everything() {
    let settings =
        "[callers.local]\nmatch = [\"local\"]\ndeny = [\"read_result\"]\ngrants = [\"*\"]\n";
    let (place, _stage) = staged(settings);
    let gateway = place.serve();
    let large = call(&gateway, "stage_large", json!({ "length": LENGTH }));
    assert_eq!(text(&large).len(), LENGTH);
}

#[test]
fn a_tool_set_that_names_reading_reads_by_link_too() {
    let settings = "[toolsets.big]\ntools = [\"stage.large\", \"read_result\"]\nresources = []\n[toolsets.small]\ntools = [\"calculator\", \"read_result\"]\n";
    let (place, _stage) = staged(settings);
    let gateway = place.serve();
    let ask = |set: &str, method: &str, params: Value| {
        let message = modern(1, method, params);
        let headers = modern_headers(&message);
        let headers = headers.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        let all: Vec<(&str, &str)> = [JSON, ACCEPT].into_iter().chain(headers).collect();
        let path = format!("/mcp/{set}");
        let body = message.to_string();
        send_at(&gateway.address, &path, "POST", &all, body.as_bytes()).answer().json()
    };
    let params = json!({ "name": "stage_large", "arguments": { "length": LENGTH } });
    let large = ask("big", "tools/call", params);
    let uri = large["result"]["content"][1]["uri"].as_str().unwrap().to_owned();
    let read = ask("big", "resources/read", json!({ "uri": uri }));
    let whole = read["result"]["contents"][0]["text"].as_str().unwrap();
    assert_eq!(whole.len(), LENGTH);
    // The other tool set does not contain the tool of the result.
    let params = json!({ "name": "read_result", "arguments": { "result": uri } });
    let hidden = ask("small", "tools/call", params);
    assert_eq!(hidden["result"]["isError"], true, "{hidden}");
    assert!(text(&hidden).starts_with("there is no such result"), "{hidden}");
    // Its link is not valid either; the response equals that for an unknown link.
    let linked = ask("small", "resources/read", json!({ "uri": uri }));
    let nowhere =
        uri.replace(uri.split('/').nth(1).unwrap(), "0198f000-0000-7000-8000-000000000000");
    let unknown = ask("small", "resources/read", json!({ "uri": nowhere }));
    assert!(linked["error"].is_object(), "{linked}");
    let of = |answer: &Value| (answer["error"]["code"].clone(), answer["error"]["message"].clone());
    assert_eq!(of(&linked), of(&unknown));
}

#[test]
fn searching_is_a_tool_like_others() {
    let place = Place::new();
    place.write("toolbooth.toml", "[mcp]\nlisting = \"search\"\n");
    let gateway = place.serve();
    let listed = asked(&gateway, "tools/list", json!({}));
    let names: Vec<&str> = listed["result"]["tools"]
        .as_array()
        .unwrap()
        .iter()
        .map(|tool| tool["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["search_tools", "call_tool"]);
    let found = call(&gateway, "search_tools", json!({ "query": "arithmetic expression" }));
    assert!(text(&found).contains("calculator"), "{found}");
    let receipt = found["result"]["_meta"]["toolbooth/receiptId"].as_str().unwrap();
    assert!(!receipt.is_empty());
    let wrong = call(&gateway, "search_tools", json!({ "words": "x" }));
    assert_eq!(wrong["result"]["_meta"]["toolbooth/errorCode"], "invalid-args", "{wrong}");
    let arguments = json!({ "name": "calculator", "arguments": { "expression": "6*7" } });
    let called = call(&gateway, "call_tool", arguments);
    assert_eq!(text(&called), "42", "{called}");
    gateway.stop();
    let (logs, _) = place.json(&["logs", "query"]);
    let logged: Vec<&str> = logs["logs"]
        .as_array()
        .unwrap()
        .iter()
        .map(|log| log["toolName"].as_str().unwrap())
        .collect();
    assert_eq!(logged, ["search_tools", "search_tools", "calculator"]);

    place.write(
        "toolbooth.toml",
        "[mcp]\nlisting = \"search\"\n[callers.local]\nmatch = [\"local\"]\ntools = [\"calculator\"]\ngrants = [\"*\"]\n",
    );
    let gateway = place.serve();
    let hidden = call(&gateway, "search_tools", json!({ "query": "x" }));
    assert_eq!(code(&hidden), -32_602, "outside of the caller's tools it is not there: {hidden}");
    let listed = asked(&gateway, "tools/list", json!({}));
    let tools = listed["result"]["tools"].as_array().unwrap();
    assert_eq!(tools.len(), 1, "who may not search is listed everything: {listed}");
    assert_eq!(tools[0]["name"], "calculator");
    let failed = call(&gateway, "calculator", json!({ "expression": "1/0" }));
    assert_eq!(failed["result"]["_meta"]["toolbooth/effect"], "completed", "{failed}");
}
