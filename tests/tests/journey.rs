//! Tests a real client, in both eras, over stdio and HTTP, against real tools of every kind.
//!
//! For each call, audit events, agent log and receipt are read back and compared.
//!
//! Path: 1, 2, 3, 4, 5, 6, 7, 8, 9, 10. Doc: records.md#of-one-call

use std::path::Path;

use serde_json::{Value, json};
use toolbooth_tests::{Place, WRITING_HANDLERS, set_up};

const HANDLERS: &str = r#"
import { appendFileSync } from "node:fs";
const effect = (name) => appendFileSync(process.env.HOME_OF_EFFECTS ?? "effects.txt", name + "\n");
export function create_task({ title }) { effect("create_task"); return { id: 7, title }; }
export async function slow() { effect("slow"); await new Promise((done) => setTimeout(done, 60000)); }
export function crash() { effect("crash"); process.exit(9); }
export function trace() { console.error(new Error("secret internals").stack); throw new Error("the task is locked"); }
"#;

const REGISTRY: &str = r#"{"version":"1.0.0","tools":[
{"name":"os.create_task","description":"Creates a task.","input_schema":{"type":"object","required":["title"],
 "properties":{"title":{"type":"string"},"priority":{"type":"integer"}},"additionalProperties":false},
 "output_schema":{"type":"object","required":["id"]},"permissions":["write:tasks"],
 "idempotency":{"mode":"keyed","key_field":"title"},"receipt_fields":["result.id","result.none"]},
{"name":"os.slow","description":"Sleeps.","input_schema":{"type":"object","properties":{"key":{"type":"string"}}},
 "output_schema":{},"timeout_ms":400,"idempotency":{"mode":"keyed","key_field":"key"}},
{"name":"os.crash","description":"Crashes.","input_schema":{"type":"object"},"output_schema":{}},
{"name":"os.trace","description":"Prints a stack trace.","input_schema":{"type":"object"},"output_schema":{}}
]}"#;

const SCRIPT: &str = r#"import json, sys
if sys.argv[1] == "list":
    print(json.dumps([{"name": "lookup", "description": "Looks up.", "parametersJsonSchema": {"type": "object", "properties": {"word": {"type": "string"}}}},
        {"functionDeclarations": [{"name": "fail", "description": "Fails."}]}]))
elif sys.argv[2] == "lookup":
    print(json.dumps({"found": json.load(sys.stdin)["word"].upper()}))
else:
    print("half an answer")
    raise RuntimeError("internals of /srv/secret/path.py")
"#;

fn place(npm: &Path) -> Place {
    let place = Place::new();
    let module = |name: &str| {
        npm.join("node_modules/@modelcontextprotocol").join(name).join("dist/index.js")
    };
    let config = format!(
        "[policy]\nwhitelist = [\"calculator\", \"os.*\", \"everything.*\", \"files.*\", \"lookup\", \"fail\"]\n\
         [servers.everything]\ncommand = \"node\"\nargs = [{everything:?}, \"stdio\"]\n\
         [servers.files]\ncommand = \"node\"\nargs = [{files:?}, {folder:?}]\n\
         [servers.broken]\ncommand = \"/no/such/program\"\n\
         [commands.scripts]\ndiscover_command = \"python3 tools.py list\"\ncall_command = [\"python3\", \"tools.py\", \"call\"]\n{WRITING_HANDLERS}",
        everything = module("server-everything"),
        files = module("server-filesystem"),
        folder = place.path(),
    );
    place
        .write("toolbooth.toml", &config)
        .write("tools.registry.json", REGISTRY)
        .write("handlers/os.js", HANDLERS)
        .write("tools.py", SCRIPT)
        .write("hello.txt", "hello from a file");
    place
}

fn effects(place: &Place, name: &str) -> usize {
    let text =
        std::fs::read_to_string(place.path().join("handlers/effects.txt")).unwrap_or_default();
    text.lines().filter(|line| *line == name).count()
}

/// Returns calls with their expected code (empty = success), terminal event and number of receipts.
fn calls(place: &Place) -> Vec<(Value, &'static str, &'static str, usize)> {
    let hello = place.path().join("hello.txt");
    let call = |name: &str, arguments: Value, id: &str| {
        json!({ "name": name, "arguments": arguments,
            "meta": { "toolbooth/callId": id, "toolbooth/agentId": "tester", "toolbooth/turnIndex": 4, "toolbooth/phaseId": "p", "toolbooth/epicId": "e" } })
    };
    vec![
        (call("calculator", json!({ "expression": "6*7" }), "c1"), "", "TOOL_EXECUTED", 1),
        (call("everything_echo", json!({ "message": "hi" }), "c2"), "", "TOOL_EXECUTED", 1),
        (call("files_read_text_file", json!({ "path": hello }), "c3"), "", "TOOL_EXECUTED", 1),
        (call("lookup", json!({ "word": "needle" }), "c4"), "", "TOOL_EXECUTED", 1),
        (call("os_create_task", json!({ "title": "one" }), "c5"), "", "TOOL_EXECUTED", 1),
        (call("no_such_tool", json!({}), "c6"), "unregistered-tool", "UNKNOWN_TOOL", 0),
        (
            call("os_create_task", json!({ "priority": "high", "colour": 1 }), "c7"),
            "invalid-args",
            "TOOL_ARG_VALIDATION_FAILURE",
            0,
        ),
        (call("list_dir", json!({ "path": "." }), "c8"), "policy-denied", "POLICY_DENIED", 0),
        (call("os_slow", json!({ "key": "k" }), "c9"), "timeout", "TOOL_EXECUTION_TIMEOUT", 1),
        (call("os_crash", json!({}), "c10"), "adapter-failed", "TOOL_EXECUTION_ERROR", 1),
        (call("os_trace", json!({}), "c11"), "tool-error", "TOOL_EXECUTION_ERROR", 1),
        (call("fail", json!({}), "c12"), "tool-error", "TOOL_EXECUTION_ERROR", 1),
        (call("os_create_task", json!({ "title": "one" }), "c13"), "", "TOOL_REPLAYED", 0),
        (call("os_slow", json!({ "key": "k" }), "c14"), "call-in-doubt", "TOOL_CALL_IN_DOUBT", 0),
    ]
}

fn journey(mode: &str, protocol: &str, over_http: bool) {
    let (Some(python), Some(npm)) = (set_up("venv/bin/python"), set_up("npm")) else { return };
    let place = place(&npm);
    let calls = calls(&place);
    let wanted: Vec<&Value> = calls.iter().map(|(call, ..)| call).collect();
    let gateway = over_http.then(|| place.serve());
    let url = gateway.as_ref().map(|gateway| gateway.url());
    let seen = place.client(&python, url.as_deref(), mode, &json!(wanted));
    assert_eq!(seen["protocol"], protocol);

    let names: Vec<&str> = seen["tools"]
        .as_array()
        .unwrap()
        .iter()
        .map(|tool| tool["name"].as_str().unwrap())
        .collect();
    for name in
        ["calculator", "everything_echo", "files_read_text_file", "lookup", "os_create_task"]
    {
        assert!(names.contains(&name), "{name} is not listed: {names:?}");
    }
    assert!(!names.contains(&"list_dir") && !names.contains(&"web_search"), "{names:?}");

    let all = seen["results"].to_string();
    for internal in
        ["secret internals", "Traceback", "/srv/secret", "handlers/os.js", "node:internal"]
    {
        assert!(!all.contains(internal), "`{internal}` reached the client: {all}");
    }
    for ((call, code, event, receipts), seen) in
        calls.iter().zip(seen["results"].as_array().unwrap())
    {
        let id = call["meta"]["toolbooth/callId"].as_str().unwrap();
        let result = &seen["result"];
        match *code {
            "unregistered-tool" => {
                assert_eq!(seen["error"]["code"], -32602, "{seen}");
                assert_eq!(seen["error"]["data"]["code"], *code);
                assert!(seen["error"]["message"].as_str().unwrap().contains("ACCESS_DENIED"));
            }
            "" => assert_eq!(
                (&result["isError"], &result["_meta"]["toolbooth/errorCode"]),
                (&json!(false), &Value::Null),
                "{id} {seen}"
            ),
            code => assert_eq!(
                (&result["isError"], &result["_meta"]["toolbooth/errorCode"]),
                (&json!(true), &json!(code)),
                "{id} {seen}"
            ),
        }
        compare(&place, id, call, code, event, *receipts, seen);
    }
    let results = &seen["results"];
    let text =
        |at: usize| results[at]["result"]["content"][0]["text"].as_str().unwrap_or("").to_owned();
    assert_eq!(text(0), "42");
    assert!(text(1).contains("hi"), "{}", text(1));
    assert_eq!(text(2), "hello from a file");
    assert_eq!(results[3]["result"]["structuredContent"], json!({ "found": "NEEDLE" }));
    let errors = results[6]["result"]["_meta"]["toolbooth/details"]["errors"].as_array().unwrap();
    assert_eq!(errors.len(), 3, "three different errors at once: {errors:?}");
    assert!(text(7).contains("Blocked by whitelist policy"));
    assert_eq!(text(10), "the task is locked");
    assert!(text(11).contains("exit code 1") && text(11).contains("half an answer"));
    assert_eq!(results[12]["result"]["_meta"]["toolbooth/replayed"], true);
    assert_eq!(
        results[12]["result"]["_meta"]["toolbooth/receiptId"],
        results[4]["result"]["_meta"]["toolbooth/receiptId"]
    );
    assert_eq!(
        (effects(&place, "create_task"), effects(&place, "slow")),
        (1, 1),
        "one effect each"
    );
    let receipt = &place.records("c5").receipts[0];
    assert_eq!(receipt["fields"], json!({ "result.id": 7, "result.none": null }));
    assert_eq!(place.records("c9").receipts[0]["state"], "in_doubt");
    let trace = &place.records("c11").logs[0];
    assert!(
        trace["internal"].as_str().unwrap_or_default().contains("secret internals"),
        "operators see it: {trace}"
    );

    if let Some(gateway) = gateway {
        let (exit, rest, words) = gateway.stop();
        assert_eq!((exit, rest.as_str()), (Some(0), ""), "{words}");
    }
    place.assert_sound();
}

/// Checks that audit events, agent log and receipt of a call agree.
fn compare(
    place: &Place,
    id: &str,
    call: &Value,
    code: &str,
    event: &str,
    receipts: usize,
    seen: &Value,
) {
    let records = place.records(id);
    assert_eq!((records.logs.len(), records.receipts.len()), (1, receipts), "{id}: {records:?}");
    let (log, terminal) = (&records.logs[0], records.events.last().unwrap());
    let dispatched =
        records.events.iter().filter(|event| event["event"] == "TOOL_DISPATCHED").count();
    assert_eq!(dispatched, receipts, "{id}: {:?}", records.events);
    assert_eq!(terminal["event"], event, "{id}: {terminal}");
    let code = if code.is_empty() { Value::Null } else { json!(code) };
    assert_eq!((&terminal["errorCode"], &log["errorCode"]), (&code, &code), "{id}");
    assert_eq!(log["isError"], json!(!code.is_null()), "{id}");
    for (name, value) in [
        ("agentId", json!("tester")),
        ("turnIndex", json!(4)),
        ("callId", json!(id)),
        ("caller", json!("local")),
    ] {
        assert_eq!((&terminal[name], &log[name]), (&value, &value), "{id} {name}");
    }
    assert_eq!((&log["phaseId"], &log["epicId"]), (&json!("p"), &json!("e")));
    assert_eq!(terminal["toolName"], log["toolName"]);
    assert_eq!(log["input"], call["arguments"], "{id}");
    assert_eq!(log["receiptId"], terminal["receiptId"], "{id}");
    if let Some(receipt) = records.receipts.first() {
        assert_eq!(receipt["receiptId"], log["receiptId"]);
        assert_eq!(receipt["errorCode"], code);
        assert_eq!(receipt["auditSeq"]["seq"], terminal["seq"]);
        assert_eq!(receipt["argsDigest"], terminal["argsDigest"]);
        let told = &seen["result"]["_meta"]["toolbooth/receiptId"];
        assert_eq!(told, &receipt["receiptId"], "{id}: {seen}");
    }
}

#[test]
fn legacy_client_over_stdio() {
    journey("legacy", "2025-11-25", false);
}

#[test]
fn modern_client_over_stdio() {
    journey("2026-07-28", "2026-07-28", false);
}

#[test]
fn legacy_client_over_http() {
    journey("legacy", "2025-11-25", true);
}

#[test]
fn modern_client_over_http() {
    journey("2026-07-28", "2026-07-28", true);
}
