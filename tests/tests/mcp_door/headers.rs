//! Tests headers that repeat the body, and that they reveal nothing of hidden tools.
//!
//! Path: 1, 3. Doc: front-doors.md#headers

use serde_json::{Value, json};
use toolbooth_tests::mcp::{LEGACY, MODERN, Peer, modern, modern_headers, post};
use toolbooth_tests::{Place, RunningGateway};

use super::{code, text};

const REGISTRY: &str = r#"{"version":"1.0.0","tools":[
{"name":"os.open","description":"Open to all.","input_schema":{"type":"object","properties":{
 "region":{"type":"string","x-mcp-header":"Region"},"count":{"type":"integer","x-mcp-header":"Count"},
 "where":{"type":"object","properties":{"flag":{"type":"boolean","x-mcp-header":"Flag"}}}}},"output_schema":{}},
{"name":"os.secret","description":"Hidden.","input_schema":{"type":"object","required":["region"],
 "properties":{"region":{"type":"string","x-mcp-header":"Region"}}},"output_schema":{}}]}"#;

fn place() -> Place {
    let place = Place::new();
    place
        .write(
            "toolbooth.toml",
            "[runtimes.own]\nkind = \"handlers\"\ndir = \"handlers\"\n\
             [callers.user]\nmatch = [\"local\"]\ntools = [\"*\"]\ndeny = [\"os.secret\"]\n",
        )
        .write("tools.registry.json", REGISTRY)
        .write(
            "handlers/os.js",
            "export function open() { return 1; }\nexport function secret() { return 2; }\n",
        );
    place
}

/// Calls a tool with changed headers; `None` removes a header. Returns status and response.
fn tried(
    gateway: &RunningGateway,
    name: &str,
    arguments: &Value,
    changed: &[(&str, Option<&str>)],
) -> (u16, Value) {
    let message = modern(1, "tools/call", json!({ "name": name, "arguments": arguments }));
    let mut headers = modern_headers(&message);
    headers.retain(|(own, _)| !changed.iter().any(|(name, _)| name.eq_ignore_ascii_case(own)));
    let added =
        changed.iter().filter_map(|(name, value)| Some(((*name).to_owned(), (*value)?.to_owned())));
    headers.extend(added);
    let headers: Vec<(&str, &str)> =
        headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    let answer = post(&gateway.address, &headers, message.to_string().as_bytes()).answer();
    let status = answer.status;
    (status, answer.json())
}

#[test]
fn headers_that_disagree_with_the_body_are_refused() {
    let place = place();
    let gateway = place.serve();
    let sum = json!({ "expression": "6*7" });
    let call = |changed: &[(&str, Option<&str>)]| tried(&gateway, "calculator", &sum, changed);
    for (of, changed) in [
        ("as they are", vec![]),
        (
            "names in another case",
            vec![("mCP-mETHOD", Some("tools/call")), ("MCP-NAME", Some("calculator"))],
        ),
        ("blanks around", vec![("Mcp-Name", Some("  calculator\t "))]),
        ("Base64", vec![("Mcp-Name", Some("=?base64?Y2FsY3VsYXRvcg==?="))]),
        ("an unknown parameter", vec![("Mcp-Param-Anything", Some("x"))]),
        (
            "an unknown parameter that is no Base64",
            vec![("Mcp-Param-Expression", Some("=?base64?!?="))],
        ),
        ("a session of another era", vec![("Mcp-Session-Id", Some("none"))]),
    ] {
        let (status, answer) = call(&changed);
        assert_eq!((status, text(&answer)), (200, "42"), "{of}: {answer}");
    }
    for (of, changed) in [
        ("no method", vec![("Mcp-Method", None)]),
        ("another method", vec![("Mcp-Method", Some("tools/list"))]),
        ("a method in another case", vec![("Mcp-Method", Some("Tools/Call"))]),
        (
            "two methods",
            vec![("Mcp-Method", Some("tools/call")), ("Mcp-Method", Some("tools/call"))],
        ),
        ("no name", vec![("Mcp-Name", None)]),
        ("an empty name", vec![("Mcp-Name", Some(""))]),
        ("another name", vec![("Mcp-Name", Some("os_open"))]),
        ("a name in another case", vec![("Mcp-Name", Some("Calculator"))]),
        ("another name in Base64", vec![("Mcp-Name", Some("=?base64?b3Nfb3Blbg==?="))]),
        ("Base64 without padding", vec![("Mcp-Name", Some("=?base64?Y2FsY3VsYXRvcg?="))]),
        ("Base64 of another alphabet", vec![("Mcp-Name", Some("=?base64?Y2Fs-3VsYXRvcg==?="))]),
        ("Base64 without its end", vec![("Mcp-Name", Some("=?base64?Y2FsY3VsYXRvcg=="))]),
        ("Base64 without its wrapper", vec![("Mcp-Name", Some("Y2FsY3VsYXRvcg=="))]),
        ("Base64 of no text", vec![("Mcp-Name", Some("=?base64?//8=?="))]),
        ("two names", vec![("Mcp-Name", Some("calculator")), ("Mcp-Name", Some("os_open"))]),
        ("no version", vec![("MCP-Protocol-Version", None)]),
        ("a version of the other era", vec![("MCP-Protocol-Version", Some(LEGACY))]),
        ("an unknown version", vec![("MCP-Protocol-Version", Some("v999.0.0"))]),
    ] {
        let (status, answer) = call(&changed);
        assert_eq!(
            (status, code(&answer), &answer["id"]),
            (400, -32_020, &json!(1)),
            "{of}: {answer}"
        );
    }
    gateway.stop();
    let (logs, _) = place.json(&["logs", "query"]);
    assert_eq!(logs["logs"].as_array().unwrap().len(), 7, "what is refused calls no tool");
}

#[test]
fn names_beyond_ascii_come_as_base64() {
    let place = place();
    let gateway = place.serve();
    let (status, answer) =
        tried(&gateway, "büro", &json!({}), &[("Mcp-Name", Some("=?base64?YsO8cm8=?="))]);
    assert_eq!(
        (status, code(&answer)),
        (200, -32_602),
        "an unknown tool, no disagreement: {answer}"
    );
    let (status, answer) = tried(&gateway, "büro", &json!({}), &[("Mcp-Name", Some("b?ro"))]);
    assert_eq!((status, code(&answer)), (400, -32_020), "{answer}");
    let uri = "file:///b%C3%BCro";
    let message = modern(1, "resources/read", json!({ "uri": uri }));
    for (name, expected) in [(uri, -32_602), ("file:///büro", -32_020), ("", -32_020)] {
        let headers = [
            ("MCP-Protocol-Version", MODERN),
            ("Mcp-Method", "resources/read"),
            ("Mcp-Name", name),
        ];
        let answer =
            post(&gateway.address, &headers, message.to_string().as_bytes()).answer().json();
        assert_eq!(code(&answer), expected, "{name}: {answer}");
    }
}

#[test]
fn annotated_parameters_agree_with_their_headers() {
    let place = place();
    let gateway = place.serve();
    let all = json!({ "region": "Nord ", "count": 3, "where": { "flag": true } });
    let right = [
        ("Mcp-Param-Region", Some("=?base64?Tm9yZCA=?=")),
        ("Mcp-Param-Count", Some("3")),
        ("mcp-param-FLAG", Some("true")),
    ];
    let (status, answer) = tried(&gateway, "os_open", &all, &right);
    assert_eq!((status, code(&answer)), (200, 0), "{answer}");
    for (of, arguments, changed) in [
        ("none", &all, vec![]),
        ("one is missing", &all, right[..2].to_vec()),
        ("one is another", &all, vec![right[0], right[2], ("Mcp-Param-Count", Some("4"))]),
        ("one is twice", &all, vec![right[0], right[1], right[2], ("Mcp-Param-Count", Some("3"))]),
        (
            "plain where the blank is lost",
            &all,
            vec![("Mcp-Param-Region", Some("Nord ")), right[1], right[2]],
        ),
        ("of an argument that is not there", &json!({}), vec![("Mcp-Param-Count", Some("3"))]),
        (
            "of an argument of null",
            &json!({ "region": null }),
            vec![("Mcp-Param-Region", Some("null"))],
        ),
    ] {
        let (status, answer) = tried(&gateway, "os_open", arguments, &changed);
        assert_eq!((status, code(&answer)), (400, -32_020), "{of}: {answer}");
    }
    // For a client that accepts only events, the status also reports the error.
    let events = ("Accept", Some("text/event-stream"));
    let wrong = [right[0], ("Mcp-Param-Count", Some("4")), right[2], events];
    let (status, answer) = tried(&gateway, "os_open", &all, &wrong);
    assert_eq!((status, code(&answer)), (400, -32_020), "{answer}");
    // Such a refused call is recorded.
    let (logs, _) = place.json(&["logs", "query", "--code", "invalid-args"]);
    let tools: Vec<&Value> =
        logs["logs"].as_array().unwrap().iter().map(|log| &log["toolName"]).collect();
    assert_eq!(tools, vec![&json!("os.open"); 8]);
    let (status, answer) = tried(
        &gateway,
        "os_open",
        &json!({ "region": "ö" }),
        &[("Mcp-Param-Region", Some("=?base64?w7Y=?="))],
    );
    assert_eq!((status, code(&answer)), (200, 0), "{answer}");
}

#[test]
fn numbers_in_headers_are_compared_as_numbers() {
    let place = place();
    let gateway = place.serve();
    for (argument, header, agrees) in [
        (json!(42), "42", true),
        (json!(42), "42.0", true),
        (json!(-7), "-7", true),
        (json!(42), "43", false),
        (json!(42), "42x", false),
        (json!(42), "", false),
        (json!(9_007_199_254_740_991_i64), "9007199254740990", false),
    ] {
        let arguments = json!({ "count": argument });
        let (status, answer) =
            tried(&gateway, "os_open", &arguments, &[("Mcp-Param-Count", Some(header))]);
        let expected = if agrees { (200, 0) } else { (400, -32_020) };
        assert_eq!((status, code(&answer)), expected, "{argument} and `{header}`: {answer}");
    }
}

#[test]
fn text_that_looks_like_base64_is_told_from_it() {
    let place = place();
    let gateway = place.serve();
    for (argument, header, agrees) in [
        ("=?base64?literal?=", "=?base64?PT9iYXNlNjQ/bGl0ZXJhbD89?=", true),
        ("=?base64?literal?=", "=?base64?literal?=", false),
        // The markers are case-sensitive.
        ("=?BASE64?bm9yZA==?=", "=?BASE64?bm9yZA==?=", true),
        ("nord", "=?BASE64?bm9yZA==?=", false),
        ("line\nend", "=?base64?bGluZQplbmQ=?=", true),
        ("", "", true),
    ] {
        let arguments = json!({ "region": argument });
        let (status, answer) =
            tried(&gateway, "os_open", &arguments, &[("Mcp-Param-Region", Some(header))]);
        let expected = if agrees { (200, 0) } else { (400, -32_020) };
        assert_eq!((status, code(&answer)), expected, "{argument:?} and `{header}`: {answer}");
    }
}

#[test]
fn headers_of_a_notification_agree_with_it_too() {
    let place = Place::new();
    let gateway = place.serve();
    let note = toolbooth_tests::mcp::notification("notifications/of-a-later-time", json!({}));
    for (method, status) in [
        ("notifications/of-a-later-time", 202),
        ("notifications/cancelled", 400),
        ("tools/call", 400),
    ] {
        let headers = [("MCP-Protocol-Version", MODERN), ("Mcp-Method", method)];
        let answer = post(&gateway.address, &headers, note.to_string().as_bytes()).answer();
        assert_eq!(answer.status, status, "{method}");
    }
}

/// Returns the status, the head without its date, and the body of a response.
fn whole(
    gateway: &RunningGateway,
    name: &str,
    arguments: &Value,
    more: &[(&str, &str)],
) -> (u16, Vec<String>, Vec<u8>) {
    let message = modern(1, "tools/call", json!({ "name": name, "arguments": arguments }));
    let mut headers = modern_headers(&message);
    headers.extend(more.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
    let headers: Vec<(&str, &str)> =
        headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    let answer = post(&gateway.address, &headers, message.to_string().as_bytes()).answer();
    let head = answer.head.iter().filter(|line| !line.starts_with("date:")).cloned().collect();
    (answer.status, head, answer.bytes())
}

#[test]
fn a_hidden_tool_answers_like_none_whatever_the_headers_say() {
    let place = place();
    let gateway = place.serve();
    let tools = Peer::ModernHttp(gateway.address.clone()).ask(1, "tools/list", json!({}));
    let tools = tools["result"]["tools"].to_string();
    assert!(tools.contains("os_open") && !tools.contains("os_secret"), "{tools}");
    for arguments in [json!({ "region": "eu" }), json!({ "region": 7 }), json!({}), json!([1])] {
        for more in [
            &[][..],
            &[("Mcp-Param-Region", "eu")],
            &[("Mcp-Param-Region", "us")],
            &[("Mcp-Param-Region", "=?base64?!?=")],
            &[("Mcp-Param-Region", "eu"), ("Mcp-Param-Region", "eu")],
            &[("Mcp-Method", "tools/call")],
            &[("Mcp-Name", "other")],
            &[("Accept", "text/event-stream")],
        ] {
            let none = whole(&gateway, "os_nothing", &arguments, more);
            for hidden in ["os_secret", "os.secret"] {
                let told = whole(&gateway, hidden, &arguments, more);
                assert_eq!(
                    told,
                    none,
                    "{hidden} {arguments} {more:?}: {}",
                    String::from_utf8_lossy(&told.2)
                );
            }
        }
    }
    for mut peer in Peer::all(&place, &gateway) {
        let none = peer.call(1, "os_nothing", json!({ "region": "eu" }));
        assert_eq!(code(&none), -32_602, "{none}");
        for hidden in ["os_secret", "os.secret"] {
            assert_eq!(peer.call(1, hidden, json!({ "region": "eu" })), none, "{}", peer.name());
        }
    }
}
