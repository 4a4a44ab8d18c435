//! Tests upstreams: a gateway over HTTP and stdio, a legacy server over HTTP, and Python handlers.
//!
//! Also tests changes of upstreams while the gateway runs.
//!
//! Path: 7. Doc: execution.md#mcp-servers, execution.md#handlers

use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};
use toolbooth_tests::waiting::until;
use toolbooth_tests::{Place, RunningGateway, STATE, WRITING_HANDLERS, binary, set_up};

fn registry(names: &[&str]) -> String {
    let tools: Vec<Value> = names
        .iter()
        .map(|name| {
            json!({ "name": name, "description": "d", "input_schema": {"type": "object"}, "output_schema": {},
                "idempotency": {"mode": "on-key"} })
        })
        .collect();
    json!({ "version": "1.0.0", "tools": tools }).to_string()
}

const PYTHON: &str = r#"
import sys

def double(args):
    print("chatter")
    return {"n": args["n"] * 2}

async def wait(args, context):
    return context["toolId"]

def one(args):
    open("effects.txt", "a").write("one\n")
    return "1"

def broken(args):
    raise ValueError("not today")
"#;

#[test]
fn a_gateway_stands_behind_a_gateway() {
    let behind = Place::new();
    behind.write("toolbooth.toml", WRITING_HANDLERS);
    behind.write("tools.registry.json", &registry(&["py.one"])).write("handlers/py.py", PYTHON);
    let upstream = behind.serve();
    let front = Place::new();
    let folder = behind.path().join(".toolbooth-stdio");
    front.write(
        "toolbooth.toml",
        &format!(
            "[discovery]\nnew_tools = \"allow\"\n[servers.far]\nurl = \"{}\"\n[servers.near]\ncommand = {:?}\nargs = [\"stdio\", \"--data\", {folder:?}]\ncwd = {:?}\nenv = {{ {STATE} = {:?} }}\nsandbox = \"none\"\n",
            upstream.url(),
            binary(),
            behind.path(),
            behind.state(),
        ),
    );
    for server in ["far", "near"] {
        let (result, exit) = front.json(&[
            "call",
            &format!("{server}.calculator"),
            "--args",
            r#"{"expression":"2^64"}"#,
        ]);
        assert_eq!(
            (exit, &result["content"][0]["text"]),
            (0, &json!("18446744073709551616")),
            "{result}"
        );
        let (result, exit) = front.json(&[
            "call",
            &format!("{server}.calculator"),
            "--args",
            r#"{"expression":"1/0"}"#,
        ]);
        assert_eq!(
            (exit, &result["error"]["code"], &result["effect"]),
            (1, &json!("tool-error"), &json!("completed")),
            "{result}"
        );
    }
    // The idempotency key reaches the second gateway, whose tool has one effect.
    let keyed = ["call", "far.py_one", "--idempotency-key", "k"];
    let first = front.json(&keyed).0;
    let second = front.json(&keyed).0;
    assert_eq!((&first["replayed"], &second["replayed"]), (&json!(false), &json!(true)), "{first}");
    let (receipts, _) = behind.json(&["receipts", "list", "--tool", "py.one"]);
    assert!(receipts["receipts"][0]["idempotency"]["keyDigest"].is_string(), "{receipts}");
    assert_eq!(
        std::fs::read_to_string(behind.path().join("handlers/effects.txt")).unwrap(),
        "one\n"
    );

    let gateway = front.serve();
    let has = |gateway: &RunningGateway, tool: &str| {
        gateway.get("/v1/tools").1.to_string().contains(tool)
    };
    assert!(has(&gateway, "far.py_one"));
    behind.write("tools.registry.json", &registry(&["py.one", "py.wait"]));
    until("a change behind is told in front", || has(&gateway, "far.py_wait"));
    upstream.stop();
    let gone = r#"{"toolId":"far.calculator","args":{"expression":"1"}}"#;
    let (status, problem) = gateway.post("/v1/calls", gone);
    // Nothing is sent. If the server reported another change before it stopped, its tools are in quarantine,
    // because it cannot be asked for the change.
    if (status, &problem["code"]) != (403, &json!("quarantined-tool")) {
        assert_eq!((status, &problem["code"]), (502, &json!("adapter-failed")), "{problem}");
        let call_id = problem["callId"].as_str().unwrap();
        assert_eq!(front.records(call_id).receipts[0]["effect"], "not_started");
    }
    let (exit, ..) = gateway.stop();
    assert_eq!(exit, Some(0));
    front.assert_sound();
    behind.assert_sound();
}

struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// After its restart the server does not know its earlier sessions.
#[test]
fn a_legacy_server_over_streamable_http_is_called_and_called_again_after_its_restart() {
    let Some(npm) = set_up("npm") else { return };
    let port = toolbooth_tests::ports::free();
    let script = npm.join("node_modules/@modelcontextprotocol/server-everything/dist/index.js");
    let start = || {
        let child = Command::new("node")
            .arg(&script)
            .arg("streamableHttp")
            .env("PORT", port.to_string())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let server = Server(child);
        until("the server listens", || std::net::TcpStream::connect(("127.0.0.1", port)).is_ok());
        server
    };
    let server = start();
    let place = Place::new();
    place.write(
        "toolbooth.toml",
        &format!("[servers.everything]\nurl = \"http://127.0.0.1:{port}/mcp\"\n"),
    );
    let gateway = place.serve();
    let echo = r#"{"toolId":"everything.echo","args":{"message":"over http"}}"#;
    let called = || {
        let (status, result) = gateway.post("/v1/calls", echo);
        assert_eq!(status, 200, "{result}");
        assert!(result["content"][0]["text"].as_str().unwrap().contains("over http"), "{result}");
    };
    called();
    drop(server);
    let (_, problem) = gateway.post("/v1/calls", echo);
    assert_eq!(problem["code"], "adapter-failed", "{problem}");
    let _server = start();
    called();
    let (exit, ..) = gateway.stop();
    assert_eq!(exit, Some(0));
    place.assert_sound();
}

#[test]
fn handlers_in_python_run() {
    let place = Place::new();
    let names = ["py.double", "py.wait", "py.broken", "py.gone"];
    place.write("tools.registry.json", &registry(&names)).write("handlers/py.py", PYTHON);
    let (result, exit) = place.json(&["call", "py.double", "--args", r#"{"n":9007199254740993}"#]);
    assert_eq!(exit, 0, "{result}");
    assert_eq!(result["structuredContent"].to_string(), r#"{"n":18014398509481986}"#);
    assert_eq!(place.json(&["call", "py.wait"]).0["content"][0]["text"], "py.wait");
    let broken = place.json(&["call", "py.broken"]).0;
    assert_eq!(
        (&broken["error"]["code"], &broken["content"][0]["text"]),
        (&json!("tool-error"), &json!("not today"))
    );
    let (coverage, _) = place.json(&["coverage"]);
    let state = |tool: &str| {
        let row = coverage["tools"].as_array().unwrap().iter().find(|row| row["toolId"] == tool);
        row.map(|row| row["state"].clone()).unwrap_or_default()
    };
    assert_eq!((state("py.double"), state("py.gone")), (json!("real"), json!("not_configured")));
    assert_eq!(place.json(&["call", "py.gone"]).0["error"]["code"], "not-configured");
}

#[test]
fn a_value_that_is_not_accepted_is_a_result_of_a_handler_that_goes_on() {
    const JS: &str = r#"
let calls = 0;
export const count = () => ({ calls: ++calls });
export const half = () => "\ud800x";
export const deep = () => { let value = 1; for (let n = 0; n < 200; n++) value = [value]; return { value }; };
"#;
    const PY: &str = r#"
calls = 0

def count(args):
    global calls
    calls += 1
    return {"calls": calls}

def half(args):
    return "\ud800x"

def deep(args):
    value = 1
    for _ in range(200):
        value = [value]
    return {"value": value}
"#;
    let place = Place::new();
    let names = ["js.count", "js.half", "js.deep", "py.count", "py.half", "py.deep"];
    place.write("tools.registry.json", &registry(&names));
    place.write("handlers/js.js", JS).write("handlers/py.py", PY);
    let gateway = place.serve();
    let call = |tool: &str| gateway.post("/v1/calls", &format!("{{\"toolId\":\"{tool}\"}}")).1;
    for domain in ["js", "py"] {
        for (calls, wrong) in [(1, "half"), (2, "deep")] {
            let counted = call(&format!("{domain}.count"));
            assert_eq!(counted["structuredContent"]["calls"], calls, "{counted}");
            let refused = call(&format!("{domain}.{wrong}"));
            assert_eq!(refused["code"], "invalid-tool-result", "{refused}");
        }
    }
    gateway.stop();
    let (doubted, _) = place.json(&["receipts", "list", "--state", "in_doubt"]);
    assert_eq!(doubted["receipts"], json!([]), "each handler has returned");
    place.assert_sound();
}

#[test]
fn what_is_missing_is_said_before_and_at_the_call() {
    let place = Place::new();
    place.write("toolbooth.toml", "[permissions.\"send:sms\"]\nrequires = \"servers.sms\"\n").write(
        "tools.registry.json",
        r#"{"version":"1.0.0","tools":[{"name":"sms.send","description":"d","input_schema":{"type":"object"},"output_schema":{},"permissions":["send:sms"],"execution":{"localRuntimeId":"builtin"}},
        {"name":"calculator","description":"ours","input_schema":{"type":"object"},"output_schema":{},"execution":{"endpointRef":"none"}}]}"#,
    );
    let (result, exit) = place.json(&["call", "sms.send"]);
    assert_eq!(
        (exit, &result["status"], &result["error"]["code"]),
        (1, &json!("not_configured"), &json!("not-configured"))
    );
    assert!(result["error"]["message"].as_str().unwrap().contains("servers.sms"));
    let (result, _) = place.json(&["call", "calculator"]);
    assert_eq!(
        result["error"]["code"], "unknown-adapter",
        "the file's tool takes the place of the built-in one"
    );
    let (tools, _) = place.json(&["list"]);
    let state = tools["tools"]
        .as_array()
        .unwrap()
        .iter()
        .find(|tool| tool["toolId"] == "sms.send")
        .unwrap();
    assert_eq!(state["state"], "not_configured");
    let exported = place.run(&["export", "--for", "mcp"]);
    assert!(
        !String::from_utf8_lossy(&exported.stdout).contains("sms_send"),
        "agents are not shown what cannot run"
    );
}

#[test]
fn a_gateway_does_not_stand_behind_itself() {
    let port = toolbooth_tests::ports::free();
    let place = Place::new();
    place.write(
        "toolbooth.toml",
        &format!(
            "[discovery]\nnew_tools = \"allow\"\n[servers.address]\nurl = \"http://127.0.0.1:{port}/mcp\"\n[servers.name]\nurl = \"http://localhost:{port}/mcp\"\n"
        ),
    );
    let gateway = place.serve_at(&format!("127.0.0.1:{port}"), &[]);
    let (_, found) = gateway.operator_post("/v1/discover", "");
    let sources = found["sources"].as_array().unwrap();
    assert_eq!(sources.len(), 2, "{found}");
    for source in sources {
        let reason = source["unhealthy"].as_str().unwrap_or_default();
        assert!(reason.contains("is the gateway itself") && source["tools"] == 0, "{found}");
    }
}
