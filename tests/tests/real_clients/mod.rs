//! Tests real clients of both eras against the real gateway with real servers, over HTTP and stdio.
//!
//! Also tests restarts of servers and gateways while clients are connected.
//!
//! Path: 1, 7, 10. Doc: front-doors.md#mcp

mod restarts;
pub(crate) mod setup;

use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};
use toolbooth_tests::mcp::{LEGACY, MODERN};
use toolbooth_tests::stage::{Actor, Stage};
use toolbooth_tests::waiting::until;
use toolbooth_tests::{RunningGateway, STATE, binary};

use self::setup::{Client, Setup};

const LEGACY_MODE: Mode = ("legacy", LEGACY);
const MODERN_MODE: Mode = (MODERN, MODERN);
const AUTO: Mode = ("auto", MODERN);
const MODES: [Mode; 3] = [LEGACY_MODE, MODERN_MODE, AUTO];
/// The number of characters of a large argument and of a large result.
const LARGE: usize = 5_000_000;

fn text(told: &Value) -> &str {
    told["result"]["content"][0]["text"].as_str().unwrap_or_default()
}

/// Checks all operations of a client with tools.
fn work(of: &str, client: &mut Client, stage: &Stage) {
    let names = client.names("tools");
    for name in ["calculator", "echo", "test_simple_text", "wait"] {
        assert!(names.iter().any(|own| own == name), "{of}: {name} is not listed: {names:?}");
    }
    let told = client.call("echo", json!({ "message": "hi" }));
    assert_eq!(text(&told), "Echo: hi", "{of}: {told}");
    let told = client.call("test_simple_text", json!({}));
    assert!(text(&told).contains("simple text"), "{of}: {told}");

    let told = client.call("test_error_handling", json!({}));
    assert_eq!(told["result"]["isError"], true, "{of}: {told}");
    assert!(text(&told).contains("intentionally"), "{of}: {told}");
    let told = client.call("no_such_tool", json!({}));
    assert_eq!(told["error"]["code"], -32_602, "{of}: {told}");
    assert!(told["error"]["message"].as_str().unwrap().contains("ACCESS_DENIED"), "{of}: {told}");
    let told = client.call("echo", json!({}));
    assert_eq!(told["result"]["_meta"]["toolbooth/errorCode"], "invalid-args", "{of}: {told}");

    let told =
        client.step(&json!({ "do": "call", "name": "test_tool_with_progress", "progress": true }));
    assert_eq!(told["progress"], json!([0.0, 50.0, 100.0]), "{of}: {told}");
    let told = client
        .step(&json!({ "do": "call", "name": "trigger-long-running-operation", "progress": true,
        "arguments": { "duration": 0.4, "steps": 4 } }));
    assert_eq!(told["progress"], json!([1.0, 2.0, 3.0, 4.0]), "{of}: {told}");

    assert_eq!(text(&client.call("calculator", json!({ "expression": "6*7" }))), "42", "{of}");

    let calls: Vec<Value> =
        (0..20).map(|n| json!({ "name": "wait", "arguments": { "key": n.to_string() } })).collect();
    client.send(&json!({ "do": "many", "calls": calls }));
    // All of them run before one of them ends.
    let mut actors: Vec<Actor> = (0..20).map(|_| stage.next()).collect();
    actors.iter_mut().rev().for_each(Actor::go);
    let told = client.told();
    for n in 0..20 {
        assert_eq!(text(&told["results"][n]), format!("done {n}"), "{of}: {told}");
    }

    // A large argument and a large result in one call.
    let told = client.call("echo", json!({ "message": { "repeat": LARGE } }));
    let length = &told["result"]["content"][0]["text"]["length"];
    assert_eq!(*length, LARGE + "Echo: ".len(), "{of}: a large argument: {told}");
}

/// A client's mode of negotiation, and the expected revision.
type Mode = (&'static str, &'static str);

/// Returns the URI or name that ends with `own`; a gateway can show it with a prefix.
fn meant(names: &[String], own: &str) -> String {
    let found = names.iter().find(|name| name.ends_with(own));
    found.unwrap_or_else(|| panic!("{own} is not listed: {names:?}")).clone()
}

/// Checks all operations of a client with resources, prompts and completion.
fn read(of: &str, client: &mut Client) {
    let uris = client.names("resources");
    let uri = meant(&uris, "test://static-text");
    let told = client.step(&json!({ "do": "read", "uri": uri }));
    let contents = &told["result"]["contents"][0];
    assert_eq!(contents["uri"], uri, "{of}: the URI that was asked for: {told}");
    assert!(contents["text"].as_str().is_some_and(|t| t.contains("static text")), "{of}: {told}");
    let told = client.step(&json!({ "do": "read", "uri": meant(&uris, "test://static-binary") }));
    assert!(told["result"]["contents"][0]["blob"].is_string(), "{of}: {told}");
    let template = meant(&client.names("templates"), "test://template/{id}/data");
    let told = client.step(&json!({ "do": "read", "uri": template.replace("{id}", "123") }));
    let contents = &told["result"]["contents"][0];
    assert!(contents["text"].as_str().is_some_and(|text| text.contains("123")), "{of}: {told}");
    let none = uri.replace("static-text", "none");
    let told = client.step(&json!({ "do": "read", "uri": none }));
    // The bridge uses the modern era with the gateway, and forwards its error code to a legacy
    // client.
    let is_bridged = of == "mcp-remote auto";
    let code = if client.protocol == LEGACY && !is_bridged { -32_002 } else { -32_602 };
    assert_eq!(told["error"]["code"], code, "{of}: {told}");
    assert_eq!(told["error"]["data"]["uri"], none, "{of}: {told}");

    // When the bridge translates, it responds itself, without a request to the gateway.
    if !is_bridged {
        let watched = meant(&uris, "test://watched-resource");
        let told = client.step(&json!({ "do": "subscribe", "uri": watched }));
        assert_eq!(told, json!({}), "{of}");
        let told = client.call("test_trigger_resource_update", json!({}));
        assert_eq!(told["result"]["isError"], false, "{of}: {told}");
        assert_eq!(client.step(&json!({ "do": "updated" }))["uri"], watched, "{of}");
    }

    let prompts = client.names("prompts");
    for name in ["test_simple_prompt", "test_prompt_with_arguments", "simple-prompt"] {
        assert!(prompts.iter().any(|own| own == name), "{of}: {name}: {prompts:?}");
    }
    let told = client.step(&json!({ "do": "prompt", "name": "test_prompt_with_arguments",
        "arguments": { "arg1": "one", "arg2": "two" } }));
    let said = told["result"]["messages"][0]["content"]["text"].as_str().unwrap_or_default();
    assert!(said.contains("arg1='one'") && said.contains("arg2='two'"), "{of}: {told}");
    let told = client.step(&json!({ "do": "prompt", "name": "no_such_prompt" }));
    assert_eq!(told["error"]["code"], -32_602, "{of}: {told}");
    for target in ["prompt", "template"] {
        let mut step = json!({ "do": "complete", "argument": "arg1", "value": "par" });
        let (name, argument) = match target {
            "prompt" => ("test_prompt_with_arguments", "arg1"),
            _ => (template.as_str(), "id"),
        };
        step[target] = json!(name);
        step["argument"] = json!(argument);
        let told = client.step(&step);
        let values = &told["result"]["completion"]["values"];
        assert_eq!(*values, json!(["paris", "park", "party"]), "{of}: {told}");
    }
}

/// Checks that a cancellation reaches the tool.
fn cancel(of: &str, client: &mut Client, stage: &Stage) {
    client.step(
        &json!({ "do": "begin", "key": "k", "name": "wait", "arguments": { "key": "cancelled" } }),
    );
    let mut actor = stage.next();
    client.step(&json!({ "do": "cancel", "key": "k" }));
    assert_eq!(actor.line(), "cancelled", "{of}");
    assert_eq!(text(&client.call("calculator", json!({ "expression": "6*7" }))), "42", "{of}");
}

fn over_http(library: &str, modes: &[Mode]) {
    let Some(setup) = Setup::whole() else { return };
    let gateway = setup.place.serve();
    for (mode, protocol) in modes {
        let mut client = setup.open_http(library, mode, &gateway);
        assert_eq!(client.protocol, *protocol);
        let of = format!("{library} {mode} over HTTP");
        work(&of, &mut client, &setup.stage);
        cancel(&of, &mut client, &setup.stage);
        read(&of, &mut client);
        client.close();
    }
    assert_eq!(gateway.stop().0, Some(0));
}

fn over_stdio(library: &str, modes: &[Mode]) {
    let Some(setup) = Setup::whole() else { return };
    for (mode, protocol) in modes {
        let mut client = setup.open_command(library, mode, &json!([binary(), "stdio"]));
        assert_eq!(client.protocol, *protocol);
        let of = format!("{library} {mode} over stdio");
        work(&of, &mut client, &setup.stage);
        cancel(&of, &mut client, &setup.stage);
        read(&of, &mut client);
        client.close();
    }
}

#[test]
fn the_official_python_client_works_over_http() {
    over_http("mcp", &MODES);
}

#[test]
fn the_official_python_client_works_over_stdio() {
    over_stdio("mcp", &MODES);
}

#[test]
fn fastmcp_works_over_http() {
    over_http("fastmcp", &[LEGACY_MODE, AUTO]);
}

#[test]
fn fastmcp_works_over_stdio() {
    over_stdio("fastmcp", &[LEGACY_MODE, AUTO]);
}

/// `mcp-remote` connects a client over stdio with the gateway over HTTP, and can translate between the eras.
#[test]
fn the_bridge_from_stdio_to_http_works_in_both_eras() {
    let Some(setup) = Setup::whole() else { return };
    let gateway = setup.place.serve();
    for protocol in ["legacy", "auto"] {
        let command = json!([
            setup.set_up.node,
            setup.set_up.remote,
            gateway.url(),
            "--silent",
            "--allow-http",
            "--transport",
            "http-only",
            "--protocol",
            protocol
        ]);
        let mut client = setup.open_command("mcp", "legacy", &command);
        assert_eq!(client.protocol, LEGACY);
        let of = format!("mcp-remote {protocol}");
        work(&of, &mut client, &setup.stage);
        // When it translates, the bridge posts the cancellation and keeps the stream of the call
        // open. That has no effect in the modern era, in which the end of the stream cancels.
        if protocol == "legacy" {
            cancel(&of, &mut client, &setup.stage);
        }
        read(&of, &mut client);
        client.close();
    }
}

impl Setup {
    /// Runs the inspector's command line for one request. It cannot report progress, cancel,
    /// subscribe, complete, or call several tools at once.
    fn inspect(
        &self,
        era: &str,
        gateway: Option<&RunningGateway>,
        words: &[&str],
    ) -> (Value, Option<i32>) {
        let mut command = Command::new(&self.set_up.node);
        command.arg(&self.set_up.inspector).arg("--cli");
        match gateway {
            Some(gateway) => command.args(["--transport", "http", "--server-url", &gateway.url()]),
            // The inspector passes on few variables.
            None => command
                .arg(binary())
                .arg("stdio")
                .args(["-e", &format!("{STATE}={}", self.place.state().display())])
                .arg("--cwd")
                .arg(self.place.path()),
        };
        command.args(["--protocol-era", era, "--format", "json", "-q"]).args(words);
        let environment = self.environment();
        let variables = environment.as_object().unwrap();
        command.env_clear();
        command.envs(variables.iter().map(|(name, value)| (name, value.as_str().unwrap())));
        let Output { status, stdout, stderr } =
            command.stdin(Stdio::null()).output().expect("the inspector starts");
        let (stdout, stderr) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
        let said = if stdout.trim().is_empty() { &stderr } else { &stdout };
        let said =
            serde_json::from_str(said).unwrap_or_else(|_| panic!("{words:?}: {stdout}{stderr}"));
        (said, status.code())
    }
}

/// The exit code of the inspector for a failed tool, and for an unknown one.
const TOOL_FAILED: Option<i32> = Some(5);

#[test]
fn the_inspector_works_in_both_eras() {
    let Some(setup) = Setup::whole() else { return };
    let gateway = setup.place.serve();
    for era in ["legacy", "modern"] {
        for gateway in [Some(&gateway), None] {
            let call = |name: &str, more: &[&str]| {
                let mut words = vec!["--method", "tools/call", "--tool-name", name];
                words.extend(more);
                setup.inspect(era, gateway, &words)
            };
            let (listed, exit) = setup.inspect(era, gateway, &["--method", "tools/list"]);
            let tools = listed["result"]["tools"].as_array().unwrap_or_else(|| panic!("{listed}"));
            assert!(exit == Some(0) && tools.iter().any(|tool| tool["name"] == "echo"), "{listed}");
            let (told, exit) = call("echo", &["--tool-arg", "message=hi"]);
            assert_eq!((text(&told), exit), ("Echo: hi", Some(0)), "{era}: {told}");
            let (told, exit) = call("test_error_handling", &[]);
            assert_eq!(
                (&told["result"]["isError"], exit),
                (&json!(true), TOOL_FAILED),
                "{era}: {told}"
            );
            let (told, exit) = call("no_such_tool", &[]);
            assert_eq!(
                (&told["error"]["code"], exit),
                (&json!("tool_not_found"), TOOL_FAILED),
                "{told}"
            );
            let (told, exit) =
                call("large", &["--tool-args-json", &json!({ "length": LARGE }).to_string()]);
            let length = told["result"]["content"][0]["text"].as_str().map(str::len);
            assert_eq!((length, exit), (Some(LARGE), Some(0)), "{era}");

            let (told, exit) = setup.inspect(era, gateway, &["--method", "resources/list"]);
            let all = told["result"]["resources"].as_array().unwrap_or_else(|| panic!("{told}"));
            let uris: Vec<String> =
                all.iter().map(|own| own["uri"].as_str().unwrap().to_owned()).collect();
            assert_eq!(exit, Some(0), "{told}");
            let uri = meant(&uris, "test://static-text");
            let (told, exit) =
                setup.inspect(era, gateway, &["--method", "resources/read", "--uri", &uri]);
            assert_eq!(
                (&told["result"]["contents"][0]["uri"], exit),
                (&json!(uri), Some(0)),
                "{era}: {told}"
            );
            let words = ["--method", "prompts/get", "--prompt-name", "test_simple_prompt"];
            let (told, exit) = setup.inspect(era, gateway, &words);
            assert!(told["result"]["messages"].is_array() && exit == Some(0), "{era}: {told}");
        }
    }
}
