//! Tests every command like a new user, and the output formats for scripts.
//!
//! Path: 10. Doc: formats.md#commands, execution.md#built-in-tools

use std::io::Read;
use std::process::{Command, Stdio};

use serde_json::{Value, json};
use toolbooth_tests::postgres::Postgres;
use toolbooth_tests::waiting::until;
use toolbooth_tests::{Place, WRITING_HANDLERS};

fn stdout(place: &Place, arguments: &[&str]) -> String {
    let output = place.run(arguments);
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn doctor_finds_what_no_gateway_starts_with_and_names_of_no_tool() {
    let place = Place::new();
    let settings = "[approvals]\nwait_ms = 90000\nexpiry_ms = 60000\n[callers.local]\nmatch = [\"local\"]\n\
        deny = [\"calculater\", \"read_file\"]\n[policy]\nwhitelist = [\"*\", \"nosuch.*\"]\n";
    place.write("toolbooth.toml", settings);
    let (report, exit) = place.json(&["doctor"]);
    let found = |name: &str| -> Vec<&Value> {
        let checks = report["checks"].as_array().unwrap();
        checks.iter().filter(|check| check["name"] == name).collect()
    };
    assert_eq!((exit, &found("limits")[0]["state"]), (1, &json!("failed")), "{report}");
    let denied = found("callers.local.deny");
    assert_eq!((denied.len(), &denied[0]["state"]), (1, &json!("warning")), "{report}");
    assert_eq!(denied[0]["remedy"], "did you mean `calculator`?");
    assert!(found("policy.whitelist")[0]["message"].as_str().unwrap().contains("`nosuch.*`"));
}

#[test]
fn a_decision_is_refused_where_it_would_reach_no_gateway() {
    let place = Place::new();
    place.write("toolbooth.toml", "[store]\ndurability = \"memory\"\n");
    for command in [&["pause"][..], &["resume"], &["keys", "create", "ci"], &["worker"]] {
        let output = place.run(command);
        assert_eq!(output.status.code(), Some(2), "{command:?}");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(said.contains("store.durability"), "{command:?}: {said}");
    }
}

#[test]
fn the_id_of_a_call_finds_its_receipt() {
    let place = Place::new();
    let call = |id: &str| {
        let arguments = ["call", "calculator", "--args", r#"{"expression":"1"}"#, "--call-id", id];
        place.json(&arguments).0["receiptId"].clone()
    };
    let (a, run_1, run_10) = (call("a"), call("run-1"), call("run-10"));
    for (given, expected) in [("a", &a), ("run-1", &run_1), ("run-10", &run_10)] {
        let (receipt, exit) = place.json(&["receipts", "show", given]);
        assert_eq!((exit, &receipt["receiptId"]), (0, expected), "{given}");
    }
    assert_eq!(place.json(&["receipts", "show", "run"]).1, 1, "too short for a prefix");
    assert_eq!(place.json(&["receipts", "show", "run-"]).1, 2, "two of them");
}

#[test]
fn an_exported_name_can_be_called() {
    let place = Place::new();
    let entry = |id: &str| {
        json!({"name": id, "description": "Says its id.", "execution": {"localRuntimeId": "say"},
            "input_schema": {"type": "object"}, "output_schema": {}, "permissions": []})
    };
    let tools = json!({"version": "1.0.0", "tools": [entry("db.read"), entry("db_write")]});
    place.write("registry.json", &tools.to_string());
    place.write(
        "toolbooth.toml",
        "registry = \"registry.json\"\n[runtimes.say]\nkind = \"command\"\ncommand = [\"echo\", \"said\"]\n",
    );
    let gateway = place.serve();
    for (name, id) in [("db_read", "db.read"), ("db.read", "db.read"), ("db_write", "db_write")] {
        let body = json!({"toolId": name, "args": {}}).to_string();
        let (status, answer) = gateway.post("/v1/calls", &body);
        assert_eq!((status, &answer["toolId"]), (200, &json!(id)), "{name}: {answer}");
    }
}

#[test]
fn records_are_shown_in_every_form() {
    let place = Place::new();
    let (result, _) = place.json(&[
        "call",
        "calculator",
        "--args",
        r#"{"expression":"1+1"}"#,
        "--explain",
        "--agent",
        "me",
        "--turn",
        "3",
    ]);
    let stages: Vec<&str> = result["explain"]
        .as_array()
        .unwrap()
        .iter()
        .map(|note| note["stage"].as_str().unwrap())
        .collect();
    assert_eq!(
        stages,
        ["enter", "resolve", "guard", "authorize", "claim", "execute", "guard-result", "settle"]
    );
    let id = result["receiptId"].as_str().unwrap();
    let (listed, _) = place.json(&["receipts", "list"]);
    let (receipt, exit) = place.json(&["receipts", "show", id]);
    assert_eq!((exit, &listed["receipts"][0]), (0, &receipt));
    // The id of its call, and an unambiguous prefix of an id, also work.
    for given in [receipt["callId"].as_str().unwrap(), &id[..23]] {
        assert_eq!(place.json(&["receipts", "show", given]).0, receipt, "{given}");
    }
    place.json(&["call", "calculator", "--args", r#"{"expression":"2+2"}"#]);
    let (refused, exit) = place.json(&["receipts", "show", &id[..4]]);
    assert_eq!(exit, 2, "{refused}");
    assert!(refused.to_string().contains(id), "{refused}");
    let caller = receipt["caller"].as_str().unwrap();
    let (listed, _) = place.json(&["receipts", "list", "--caller", caller, "--state", "succeeded"]);
    assert_eq!(listed["receipts"].as_array().unwrap().len(), 2);
    let (listed, _) = place.json(&["receipts", "list", "--caller", "unknown"]);
    assert_eq!(listed, json!({ "receipts": [] }));
    let (logs, _) = place.json(&["logs", "query", "--code", "timeout", "--caller", caller]);
    assert_eq!(logs, json!({ "logs": [] }));
    let (logs, _) = place.json(&[
        "logs", "query", "--agent", "me", "--turn", "3", "--error", "false", "--since", "1h",
    ]);
    let log = &logs["logs"][0];
    assert_eq!(&place.json(&["logs", "show", log["id"].as_str().unwrap()]).0, log);
    assert_eq!(place.json(&["logs", "query", "--agent", "other"]).0, json!({ "logs": [] }));
    let csv = stdout(&place, &["audit", "query", "--tool", "calculator", "--format", "csv"]);
    assert!(csv.starts_with("writer,seq,time,event,toolName") && csv.lines().count() == 5, "{csv}");
    let lines = stdout(&place, &["audit", "query", "--caller", caller, "--format", "jsonl"]);
    assert_eq!(lines.lines().count(), 4, "{lines}");
    let lines = stdout(&place, &["audit", "query", "--limit", "5", "--format", "jsonl"]);
    let events: Vec<Value> =
        lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let kinds: Vec<&str> = events.iter().map(|event| event["event"].as_str().unwrap()).collect();
    let expected =
        ["WRITER_STARTED", "TOOL_DISPATCHED", "TOOL_EXECUTED", "CHECKPOINT", "WRITER_STOPPED"];
    assert_eq!(kinds, expected);
    let (tail, _) = place.json(&["audit", "tail", "-n", "2"]);
    assert_eq!(tail["events"].as_array().unwrap().len(), 2);
    let (one, _) = place.json(&["audit", "query", "--status", "succeeded", "--code", "timeout"]);
    assert_eq!(one, json!({ "events": [] }));
    place.assert_sound();
}

#[test]
fn documents_are_parsed_in_a_worker_that_they_cannot_take_along() {
    let place = Place::new();
    place.write(
        "page.html",
        "<html><head><title>T</title></head><body><h1>Head</h1><p>text</p></body></html>",
    );
    let (result, exit) = place.json(&["call", "doc_parser", "--args", r#"{"path":"page.html"}"#]);
    assert_eq!(exit, 0, "{result}");
    assert_eq!(result["structuredContent"]["headings"], json!([{ "level": 1, "text": "Head" }]));
    // This is deep enough to overflow the stack of a recursive parser, but the gateway responds. A deeper
    // page takes quadratic time, and the worker is killed.
    place.write("deep.html", &"<div>".repeat(2_000)).write("deep.json", &"[".repeat(400_000));
    for name in ["deep.html", "deep.json", "page.html"] {
        let (result, _) =
            place.json(&["call", "doc_parser", "--args", &json!({ "path": name }).to_string()]);
        assert!(result["status"].is_string(), "{result}");
    }
    place.assert_sound();
}

/// Returns a place with the tool `py.one`, which writes its `n` to a file and then executes `rest`.
fn with_handler(settings: &str, rest: &str) -> Place {
    let place = Place::new();
    place.write("toolbooth.toml", &format!("{settings}{WRITING_HANDLERS}"));
    let tool = json!({ "name": "py.one", "description": "d", "input_schema": {"type": "object"},
        "output_schema": {}, "idempotency": {"mode": "on-key"} });
    let registry = json!({ "version": "1.0.0", "tools": [tool] });
    place.write("tools.registry.json", &registry.to_string());
    let handler = format!(
        "import os, time\n\ndef one(args):\n    open(\"effects.txt\", \"a\").write(args[\"n\"] + \"\\n\")\n    \
         {rest}\n    return args[\"n\"]\n"
    );
    place.write("handlers/py.py", &handler);
    place
}

/// The end of a handler that waits for the file `go`.
const WAITING: &str = "while not os.path.exists(\"go\"):\n        time.sleep(0.02)";

/// Returns what the handler of [`with_handler`] has written, sorted.
fn effects(place: &Place) -> Vec<u32> {
    let text = std::fs::read_to_string(place.path().join("handlers/effects.txt"));
    let mut all: Vec<u32> =
        text.unwrap_or_default().lines().map(|line| line.parse().unwrap()).collect();
    all.sort_unstable();
    all
}

#[test]
fn a_plan_that_is_ended_reports_its_steps_and_repeats_none() {
    let place = with_handler("", WAITING);
    let steps: Vec<Value> = (0..20)
        .map(|n| json!({"id": format!("s{n}"), "tool": "py.one", "args": {"n": n.to_string()}}))
        .collect();
    place.write("plan.json", &json!({"planId": "p", "steps": steps}).to_string());
    let plan = ["plan", "plan.json", "--format", "json"];
    let mut child = place.command(&plan).stdout(Stdio::piped()).spawn().unwrap();
    until("a step runs", || !effects(&place).is_empty());
    let sent = Command::new("kill").arg(child.id().to_string()).status().unwrap();
    assert!(sent.success());
    place.write("handlers/go", "");
    let mut told = String::new();
    child.stdout.take().unwrap().read_to_string(&mut told).unwrap();
    let ended = child.wait().unwrap();
    assert!(ended.code().is_some(), "it was not killed: {ended}");
    let report: Value = serde_json::from_str(&told).unwrap();
    let steps = report["steps"].as_array().unwrap();
    assert_eq!(steps.len(), 20, "{report}");
    // Those that had not begun are not tried, so that none of them lacks its records.
    for step in steps.iter().filter(|step| step["status"] != "succeeded") {
        assert_eq!((&step["status"], &step["code"]), (&json!("skipped"), &json!("cancelled")));
        if let Some(call) = step["callId"].as_str() {
            let (logs, _) = place.json(&["logs", "query", "--call", call]);
            assert_eq!(logs["logs"].as_array().unwrap().len(), 1, "{step}");
        }
    }
    let (again, exit) = place.json(&["plan", "plan.json"]);
    assert_eq!(exit, 0, "{again}");
    assert_eq!(effects(&place), (0..20).collect::<Vec<u32>>(), "each step once");
    place.assert_sound();
}

#[test]
fn output_that_cannot_be_written_is_a_failure() {
    let place = Place::new();
    for format in ["table", "json"] {
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let output = place.command(&["list", "--format", format]).stdout(full).output().unwrap();
        let told = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(3), "{told}");
        assert!(told.contains("standard output cannot be written"), "{told}");
    }
}

#[test]
fn a_step_that_fails_tells_what_its_call_tells() {
    let place = with_handler("", "raise ValueError(\"no such customer\")");
    let step = json!({"id": "a", "tool": "py.one", "args": {"n": "1"}});
    let next = json!({"id": "b", "tool": "calculator", "args": {"expression": {"$from": "a", "pointer": ""}}, "needs": ["a"]});
    place.write("plan.json", &json!({"planId": "p", "steps": [step, next]}).to_string());
    let (report, exit) = place.json(&["plan", "plan.json"]);
    let failed = &report["steps"][0];
    assert_eq!((exit, &failed["code"]), (1, &json!("tool-error")), "{report}");
    assert_eq!(failed["effect"], "completed", "{report}");
    let (call, _) = place.json(&["call", "py.one", "--args", r#"{"n":"2"}"#]);
    assert_eq!(failed["result"]["content"], call["content"], "{report}");
    assert_eq!(report["steps"][1]["status"], "skipped", "{report}");
}

#[test]
fn a_call_that_no_limit_will_let_pass_is_not_tried_again_later() {
    let place = with_handler("[budgets]\ndaily = 1\n", "pass");
    for (policy, code) in [
        (json!({"rateLimitPerMin": 0}), "rate-limited"),
        (json!({"costUnits": 2}), "budget-exceeded"),
    ] {
        let mut tool = json!({ "toolId": "py.one", "category": "function", "description": "d",
            "inputSchema": {"type": "object"}, "outputSchema": {}, "capabilities": {},
            "execution": {"localRuntimeId": "own"}, "permissions": [],
            "policy": {"timeoutMs": 5000, "trustLevel": "trusted"}, "idempotency": {"mode": "none"} });
        tool["policy"].as_object_mut().unwrap().extend(policy.as_object().unwrap().clone());
        let registry = json!({ "version": "1.0.0", "tools": [tool] });
        place.write("tools.registry.json", &registry.to_string());
        let (refused, _) = place.json(&["call", "py.one", "--args", r#"{"n":"1"}"#]);
        assert_eq!(refused["error"]["code"], code, "{refused}");
        assert!(refused.get("retryAfterMs").is_none(), "{refused}");
    }
    assert!(effects(&place).is_empty());
}

#[test]
fn requests_that_have_expired_hide_none_that_can_be_decided() {
    let place = with_handler("", "pass");
    let tool = json!({ "toolId": "py.one", "category": "function", "description": "d",
        "inputSchema": {"type": "object"}, "outputSchema": {}, "capabilities": {},
        "execution": {"localRuntimeId": "own"}, "permissions": [],
        "policy": {"timeoutMs": 5000, "trustLevel": "trusted", "approval": "always"},
        "idempotency": {"mode": "none"} });
    place.write("tools.registry.json", &json!({ "version": "1.0.0", "tools": [tool] }).to_string());
    let asked = |n: u32, expiry_ms: u64| {
        let settings =
            format!("[approvals]\nwait_ms = 0\nexpiry_ms = {expiry_ms}\n{WRITING_HANDLERS}");
        place.write("toolbooth.toml", &settings);
        let (refused, _) =
            place.json(&["call", "py.one", "--args", &json!({ "n": n.to_string() }).to_string()]);
        assert_eq!(refused["error"]["code"], "approval-required", "{refused}");
        refused["error"]["details"]["approvalId"].as_str().unwrap().to_owned()
    };
    let first = asked(0, 3_600_000);
    (1..4).for_each(|n| drop(asked(n, 1)));
    let (listed, _) = place.json(&["approvals", "list", "--limit", "2"]);
    let ids: Vec<&Value> =
        listed["approvals"].as_array().unwrap().iter().map(|own| &own["approvalId"]).collect();
    assert_eq!(ids, [&json!(first)], "{listed}");
    assert!(listed.get("next").is_none(), "{listed}");
}

#[test]
fn a_pause_holds_for_the_later_steps_of_a_plan_that_runs() {
    let place = with_handler("", "time.sleep(0.2)");
    let step = |n: u32| {
        let needs: Vec<String> = n.checked_sub(1).map(|n| format!("s{n}")).into_iter().collect();
        let args = json!({"n": n.to_string()});
        json!({"id": format!("s{n}"), "tool": "py.one", "args": args, "needs": needs})
    };
    let steps: Vec<Value> = (0..50).map(step).collect();
    place.write("plan.json", &json!({"planId": "p", "steps": steps}).to_string());
    let plan = ["plan", "plan.json", "--format", "json"];
    let child = place.command(&plan).stdout(Stdio::piped()).spawn().unwrap();
    until("a step runs", || !effects(&place).is_empty());
    assert!(place.run(&["pause"]).status.success());
    let report = child.wait_with_output().unwrap().stdout;
    let report: Value = serde_json::from_slice(&report).unwrap();
    let codes: Vec<&Value> =
        report["steps"].as_array().unwrap().iter().map(|step| &step["code"]).collect();
    assert!(codes.contains(&&json!("paused")), "{report}");
    assert!(effects(&place).len() < 50);
    place.assert_sound();
}

#[test]
fn a_call_by_command_renews_its_lease() {
    let Some(server) = Postgres::start() else { return };
    let database = server.database();
    let settings = "[lock]\nmode = \"off\"\n[store]\nurl = { secret_ref = \"env:URL\" }\n\
        digest_key = { secret_ref = \"env:KEY\" }\n";
    let place = with_handler(settings, WAITING)
        .env("URL", &server.url(&database))
        .env("KEY", &"ab".repeat(32));
    let call = ["call", "py.one", "--args", r#"{"n":"1"}"#];
    let mut child = place.command(&call).stdout(Stdio::null()).spawn().unwrap();
    until("the tool runs", || !effects(&place).is_empty());
    let renewed = || server.sql(&database, "SELECT max(renewed) FROM writers");
    let first = renewed();
    // Without it, other gateways take the call for lost.
    until("the lease is renewed", || renewed() != first);
    place.write("handlers/go", "");
    assert!(child.wait().unwrap().success());
    place.assert_sound();
}

#[test]
fn a_plan_is_read_from_a_file_that_must_exist() {
    let place = Place::new();
    place.write("plan.json", r#"{"tools":["calculator"]}"#);
    assert_eq!(place.json(&["plan", "plan.json"]).0["steps"][0]["code"], "invalid-args");
    for list in [r#"["calculator"]"#, "[]", r#"["p",null,["calculator"]]"#] {
        place.write("list.json", list);
        let (told, exit) = place.json(&["plan", "list.json"]);
        assert_eq!((&told["error"]["code"], exit), (&json!("invalid-plan"), 2), "{told}");
    }
    for missing in ["plans.json", "@plans.json"] {
        let (told, exit) = place.json(&["plan", missing]);
        assert_eq!((&told["error"]["path"], exit), (&json!("plans.json"), 2), "{told}");
    }
}
