//! Tests the gateway as a whole: load and SIGTERM, invalid input, flags, plans, numbers, HTTP, search,
//! reload.
//!
//! Path: 1, 10. Doc: formats.md#exit-codes, formats.md#commands

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use toolbooth_tests::waiting::until;
use toolbooth_tests::{Place, request, set_up};

const ECHO: &str = r#"import json, sys
if sys.argv[1] == "list":
    print(json.dumps([{"name": n, "description": "d"} for n in ["echo", "write", "boom"]]))
elif sys.argv[2] == "echo":
    sys.stdout.write(sys.stdin.read())
elif sys.argv[2] == "write":
    open("effects.txt", "a").write(json.load(sys.stdin)["n"] + "\n")
    print("{}")
else:
    sys.exit(5)
"#;

const COMMANDS: &str = "[commands.scripts]\ndiscover_command = \"python3 tools.py list\"\ncall_command = \"python3 tools.py call\"\nsandbox = { base = \"default\", fs = { write = [\".\"] } }\n";

fn scripts(more: &str) -> Place {
    let place = Place::new();
    place.write("toolbooth.toml", &format!("{more}\n{COMMANDS}")).write("tools.py", ECHO);
    place
}

fn call(gateway: &str, tool: &str, args: &str) -> Option<(u16, Value)> {
    request(gateway, "POST", "/v1/calls", &format!(r#"{{"toolId":"{tool}","args":{args}}}"#), &[])
}

#[test]
fn nothing_is_half_recorded_when_the_gateway_is_stopped_under_load() {
    let place = Arc::new(scripts(""));
    let gateway = place.serve();
    let stop = Arc::new(AtomicBool::new(false));
    let clients: Vec<_> = (0..8)
        .map(|client| {
            let (address, stop) = (gateway.address.clone(), Arc::clone(&stop));
            std::thread::spawn(move || {
                let mut answered = Vec::new();
                for n in 0..10_000 {
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                    let tool = if n % 3 == 0 { "write" } else { "calculator" };
                    let args = if n % 3 == 0 {
                        format!(r#"{{"n":"{client}-{n}"}}"#)
                    } else {
                        r#"{"expression":"1+1"}"#.to_owned()
                    };
                    match call(&address, tool, &args) {
                        Some((200, result)) => answered.push((tool, result)),
                        Some((503, _)) | None => break,
                        Some(other) => panic!("unexpected {other:?}"),
                    }
                }
                answered
            })
        })
        .collect();
    // Several effects show that calls are running.
    let began = Instant::now();
    let effects = || std::fs::read_to_string(place.path().join("effects.txt")).unwrap_or_default();
    while effects().lines().count() < 20 {
        assert!(began.elapsed() < Duration::from_secs(60), "no load");
        std::thread::sleep(Duration::from_millis(10));
    }
    let (exit, _, words) = gateway.stop();
    stop.store(true, Ordering::Relaxed);
    assert_eq!(exit, Some(0), "{words}");
    let answered: Vec<_> = clients.into_iter().flat_map(|client| client.join().unwrap()).collect();
    assert!(!answered.is_empty());

    place.assert_sound();
    let (receipts, _) = place.json(&["receipts", "list", "--limit", "1000000"]);
    let receipts = receipts["receipts"].as_array().unwrap();
    let (events, _) = place.json(&["audit", "query", "--limit", "1000000"]);
    let events = events["events"].as_array().unwrap();
    let (logs, _) = place.json(&["logs", "query", "--limit", "1000000"]);
    let count = |kind: &str| events.iter().filter(|event| event["event"] == kind).count();
    assert!(
        receipts.iter().all(|receipt| receipt["state"] != "in_flight"),
        "a claim is not settled"
    );
    assert_eq!(count("TOOL_DISPATCHED"), receipts.len());
    let accounting = events.iter().filter(|event| event["receiptDigest"].is_string()).count();
    assert_eq!(accounting, 2 * receipts.len(), "each claim has one beginning and exactly one end");
    let terminal = events.iter().filter(|event| event["logDigest"].is_string()).count();
    assert_eq!(terminal, logs["logs"].as_array().unwrap().len());
    assert_eq!((count("WRITER_STARTED"), count("WRITER_STOPPED")), (1, 1));
    for (tool, result) in &answered {
        let receipt = receipts.iter().find(|receipt| receipt["receiptId"] == result["receiptId"]);
        assert_eq!(receipt.map(|receipt| &receipt["toolId"]), Some(&json!(tool)), "{result}");
    }
    let done =
        receipts.iter().filter(|r| r["toolId"] == "write" && r["effect"] == "completed").count();
    let doubt =
        receipts.iter().filter(|r| r["toolId"] == "write" && r["effect"] == "unknown").count();
    let effects = effects().lines().count();
    assert!(
        effects >= done && effects <= done + doubt,
        "{effects} effects, {done} receipts, {doubt} doubts"
    );
}

#[test]
fn numbers_keep_every_digit_from_end_to_end() {
    let place = scripts("");
    let gateway = place.serve();
    let args = r#"{"a":9007199254740993,"b":18446744073709551615,"c":-9007199254740993}"#;
    let (status, result) = call(&gateway.address, "echo", args).unwrap();
    assert_eq!(status, 200, "{result}");
    assert_eq!(result["content"][0]["text"], args);
    assert_eq!(result["structuredContent"].to_string(), args);
    let (status, problem) = call(&gateway.address, "echo", r#"{"a":1e400}"#).unwrap();
    assert_eq!((status, &problem["code"]), (400, &json!("invalid-args")));
    assert_eq!(problem["details"]["errors"][0]["path"], "/a");
    let (status, problem) = call(&gateway.address, "echo", r#"{"a":1,"a":2}"#).unwrap();
    assert_eq!((status, &problem["code"]), (400, &json!("invalid-args")));

    // The same request is sent over MCP, with the bytes of a client.
    let mcp = |arguments: &str| {
        let meta = r#""_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}"#;
        let body = format!(
            r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"name":"echo","arguments":{arguments},{meta}}}}}"#
        );
        let headers = [
            ("Accept", "application/json, text/event-stream"),
            ("MCP-Protocol-Version", "2026-07-28"),
            ("Mcp-Method", "tools/call"),
            ("Mcp-Name", "echo"),
        ];
        let (status, answer) = request(&gateway.address, "POST", "/mcp", &body, &headers).unwrap();
        assert_eq!(status, 200, "{answer}");
        let text = answer.as_str().map(str::to_owned).unwrap_or_else(|| answer.to_string());
        let data =
            text.lines().find_map(|line| line.strip_prefix("data: ").filter(|d| d.len() > 2));
        serde_json::from_str::<Value>(data.unwrap_or(&text)).unwrap()
    };
    assert_eq!(mcp(args)["result"]["content"][0]["text"], args);
    for bad in [r#"{"a":1e400}"#, r#"{"a":1,"a":2}"#, r#"{"$serde_json::private::Number":"1"}"#] {
        assert_eq!(mcp(bad)["result"]["_meta"]["toolbooth/errorCode"], "invalid-args", "{bad}");
    }
    assert_eq!(mcp("[1]")["error"]["code"], -32602);
    let (logs, _) = place.json(&["logs", "query", "--tool", "echo"]);
    assert_eq!(logs["logs"][0]["input"].to_string(), args);
    gateway.stop();
    place.assert_sound();
}

/// Answers one request with this JSON body; returns its head.
fn answer_once(listener: &TcpListener, body: &str) -> String {
    let (mut stream, _) = listener.accept().unwrap();
    let mut head = Vec::new();
    let mut byte = [0u8; 1];
    while !head.ends_with(b"\r\n\r\n") && stream.read(&mut byte).unwrap() == 1 {
        head.push(byte[0]);
    }
    write!(stream, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}", body.len()).unwrap();
    String::from_utf8(head).unwrap()
}

#[test]
fn an_endpoint_gets_the_key_of_a_call_without_a_setting() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let server = std::thread::spawn(move || answer_once(&listener, "{}"));
    let place = Place::new();
    place.write(
        "toolbooth.toml",
        &format!("[endpoints.e]\nurl = \"http://{address}/a\"\nallow_private = true\n"),
    );
    place.write(
        "tools.registry.json",
        r#"{"version":"1.0.0","tools":[{"name":"e.get","description":"d","input_schema":{"type":"object"},"output_schema":{},"execution":{"endpointRef":"e"},"idempotency":{"mode":"on-key","acceptsIdempotencyKey":true}}]}"#,
    );
    let (result, exit) = place.json(&["call", "e.get", "--idempotency-key", "one"]);
    assert_eq!(exit, 0, "{result}");
    let head = server.join().unwrap().to_lowercase();
    let key = head.lines().find_map(|line| line.strip_prefix("idempotency-key: "));
    // The HMAC of the key, in hexadecimal.
    assert_eq!(key.map(|key| key.trim().len()), Some(64), "{head}");
}

#[test]
fn web_search_asks_the_configured_endpoint() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let server = std::thread::spawn(move || {
        let body = r#"{"results":[{"title":"One","url":"https://a.example/","content":"first"},{"title":"Two","url":"https://b.example/","content":"second"}]}"#;
        answer_once(&listener, body)
    });
    let place = Place::new();
    place.write(
        "toolbooth.toml",
        &format!("[builtin.web_search]\nendpoint = \"http://{address}/search\"\n"),
    );
    let (result, exit) =
        place.json(&["call", "web_search", "--args", r#"{"query":"two words","limit":1}"#]);
    assert_eq!(exit, 0, "{result}");
    assert_eq!(
        result["structuredContent"]["results"],
        json!([{ "title": "One", "url": "https://a.example/", "snippet": "first" }])
    );
    let head = server.join().unwrap();
    assert!(head.starts_with("GET /search?q=two+words&format=json HTTP/1.1"), "{head}");
    // The endpoint is gone. A search changes nothing, so that its key is free.
    let again =
        ["call", "web_search", "--idempotency-key", "k", "--args", r#"{"query":"x","limit":1.0}"#];
    for _ in 0..2 {
        let (result, _) = place.json(&again);
        assert_eq!(result["error"]["code"], "adapter-failed", "{result}");
        assert_eq!(result["error"]["message"], "the search endpoint cannot be reached");
        assert_eq!(
            (&result["effect"], &result["replayed"]),
            (&json!("not_started"), &json!(false))
        );
    }
}

#[test]
fn the_registry_file_is_live_and_a_bad_edit_keeps_the_last_good_one() {
    let place = Place::new();
    let registry = |name: &str| {
        format!(
            r#"{{"version":"1.0.0","tools":[{{"name":"{name}","description":"d","input_schema":{{"type":"object"}},"output_schema":{{}}}}]}}"#
        )
    };
    place
        .write("tools.registry.json", &registry("os.one"))
        .write("handlers/os.js", "export const one = () => 1; export const two = () => 2;");
    if set_up("npm").is_none() {
        return;
    }
    let gateway = place.serve();
    let has = |tool: &str| gateway.get("/v1/tools").1.to_string().contains(tool);
    assert!(has("os.one"));
    place.write("tools.registry.json", &registry("os.two"));
    until("the good edit is live", || has("os.two") && !has("os.one"));
    place.write("tools.registry.json", "{nonsense");
    until("the rejection is recorded", || {
        let (events, _) = place.json(&["audit", "query"]);
        let events = events["events"].as_array().unwrap();
        events.iter().any(|event| event["event"] == "REGISTRY_REJECTED")
    });
    assert!(has("os.two"), "the last good registry stays");
    gateway.stop();
    place.assert_sound();
}

#[test]
fn required_containment_is_never_pretended() {
    let place = Place::new();
    place.write("handlers/os.js", "export const run = () => 1;").write(
        "tools.registry.json",
        r#"{"version":"1.0.0","tools":[{"name":"os.run","description":"d","input_schema":{"type":"object"},"output_schema":{},"sandbox":{"enforce":"required"}}]}"#,
    );
    let (result, exit) = place.json(&["call", "os.run"]);
    assert_eq!(
        (exit, &result["error"]["code"], &result["effect"]),
        (1, &json!("sandbox-unavailable"), &json!("not_started"))
    );
}

#[test]
fn every_declaration_form_is_exported() {
    let place = scripts("");
    for (form, pointer) in [
        ("gemini", "/functionDeclarations/0/parametersJsonSchema"),
        ("openai", "/0/function/parameters"),
        ("openai-responses", "/0/parameters"),
        ("anthropic", "/0/input_schema"),
        ("mcp", "/tools/0/inputSchema"),
        ("registry", "/tools/0/inputSchema"),
    ] {
        let output = place.run(&["export", "--for", form]);
        let value: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert!(value.pointer(pointer).is_some_and(Value::is_object), "{form}: {value}");
    }
    let output = place.run(&["export", "--for", "registry"]);
    place.write("again.json", &String::from_utf8_lossy(&output.stdout));
    assert_eq!(place.json(&["check", "again.json"]).1, 0, "what is exported is a registry");
    let page = place.run(&["coverage", "--format", "md"]);
    let page = String::from_utf8_lossy(&page.stdout).into_owned();
    assert!(page.contains("calculator"), "{page}");
    place.write("coverage.md", &page.replacen("calculator", "another", 1));
    assert_eq!(place.run(&["coverage", "--check", "coverage.md"]).status.code(), Some(1));
}
