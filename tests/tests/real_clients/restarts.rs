//! Tests restarts of servers and gateways while clients are connected.
//!
//! Path: 7. Doc: execution.md#mcp-servers

use std::process::Command;

use serde_json::{Value, json};
use toolbooth_tests::binary;

use super::setup::{Client, Fixture, Setup};
use super::{AUTO, LEGACY_MODE, MODERN_MODE, text, until};

/// Restarts a server over HTTP at its address; `era` names the eras that it supports.
fn server_starts_again(era: &str) {
    let Some(mut setup) = Setup::with_fixture(era) else { return };
    let gateway = setup.place.serve();
    let mut clients: Vec<Client> = [LEGACY_MODE, MODERN_MODE]
        .iter()
        .map(|(mode, _)| setup.open_http("mcp", mode, &gateway))
        .collect();
    let mut ask = |of: &str| {
        clients
            .iter_mut()
            .map(|client| client.call("test_simple_text", json!({})))
            .inspect(|told| {
                assert!(
                    told["result"].is_object(),
                    "{of}: a result, not the end of the session: {told}"
                );
            })
            .collect::<Vec<Value>>()
    };
    let is_well = |told: &Value| text(told).contains("simple text");
    assert!(ask("before").iter().all(is_well));
    // After a restart between two calls only the first call can fail.
    let port = setup.fixture.as_ref().unwrap().port();
    setup.fixture = None;
    setup.fixture = Some(Fixture::start(&setup.set_up.node, port, era));
    let first = ask("the first call after it");
    assert!(first.iter().any(is_well), "at most one call is lost: {first:?}");
    assert!(ask("the second").iter().all(is_well));
    // The server is stopped for a while.
    setup.fixture = None;
    for told in ask("while it is away") {
        assert_eq!(told["result"]["isError"], true, "{told}");
        assert!(told["result"]["_meta"]["toolbooth/errorCode"].is_string(), "{told}");
        assert!(!text(&told).is_empty(), "a sentence: {told}");
    }
    setup.fixture = Some(Fixture::start(&setup.set_up.node, port, era));
    until("it is called again", || ask("after it").iter().all(is_well));
}

#[test]
fn a_server_over_http_may_start_again() {
    server_starts_again("");
}

#[test]
fn a_server_with_sessions_may_start_again() {
    server_starts_again("legacy");
}

#[test]
fn a_server_that_dies_costs_the_calls_that_it_had() {
    let Some(setup) = Setup::small() else { return };
    let gateway = setup.place.serve();
    for (mode, _) in &[LEGACY_MODE, MODERN_MODE] {
        let mut client = setup.open_http("mcp", mode, &gateway);
        for round in 0..2 {
            client.step(&json!({ "do": "begin", "key": "k", "name": "wait", "arguments": { "key": "lost" } }));
            setup.stage.next();
            let told = client.call("die", json!({}));
            assert_eq!(told["result"]["isError"], true, "{mode} {round}: {told}");
            let told = client.step(&json!({ "do": "finish", "key": "k" }));
            assert_eq!(told["result"]["isError"], true, "{mode} {round}: {told}");
            assert!(told["result"]["_meta"]["toolbooth/receiptId"].is_string(), "{told}");
            let told = client.call("length", json!({ "value": "abc" }));
            assert_eq!(text(&told), "3", "{mode} {round}: the next call: {told}");
        }
        client.close();
    }
}

#[test]
fn a_gateway_over_http_may_start_again() {
    let Some(setup) = Setup::small() else { return };
    let address = format!("127.0.0.1:{}", toolbooth_tests::ports::free());
    let mut gateway = setup.place.serve_at(&address, &[]);
    let sum = json!({ "expression": "6*7" });
    for (library, (mode, _)) in [
        ("mcp", LEGACY_MODE),
        ("mcp", MODERN_MODE),
        ("mcp", AUTO),
        ("fastmcp", LEGACY_MODE),
        ("fastmcp", AUTO),
    ] {
        let of = format!("{library} {mode}");
        let mut patient = setup.open_http(library, mode, &gateway);
        let mut hasty = setup.open_http(library, mode, &gateway);
        for client in [&mut patient, &mut hasty] {
            assert_eq!(text(&client.call("calculator", sum.clone())), "42", "{of}");
        }
        gateway.stop();
        let told = hasty.call("calculator", sum.clone());
        assert_clear(&of, &told);
        gateway = setup.place.serve_at(&address, &[]);
        let told = patient.call("calculator", sum.clone());
        if mode == "legacy" {
            assert_clear(&of, &told);
        } else {
            assert_eq!(text(&told), "42", "{of}: without a session nothing is lost: {told}");
        }
        let mut fresh = setup.open_http(library, mode, &gateway);
        assert_eq!(text(&fresh.call("calculator", sum.clone())), "42", "{of} anew");
        fresh.close();
    }
}

/// Checks that there is an error with a message, and no timeout.
fn assert_clear(of: &str, told: &Value) {
    assert!(told["error"]["message"].as_str().is_some_and(|text| !text.is_empty()), "{of}: {told}");
    assert_ne!(told["error"]["type"], "TimeoutError", "{of}: {told}");
}

#[test]
fn a_gateway_over_stdio_that_dies_is_told_and_started_anew() {
    let Some(setup) = Setup::small() else { return };
    let command = json!([binary(), "stdio"]);
    for (library, (mode, _)) in [("mcp", LEGACY_MODE), ("mcp", MODERN_MODE), ("fastmcp", AUTO)] {
        let of = format!("{library} {mode}");
        let mut client = setup.open_command(library, mode, &command);
        client.step(
            &json!({ "do": "begin", "key": "k", "name": "wait", "arguments": { "key": "lost" } }),
        );
        setup.stage.next();
        let children = client.children();
        assert_eq!(children.len(), 1, "{of}: the gateway");
        assert!(Command::new("kill").arg("-KILL").args(children).status().unwrap().success());
        let told = client.step(&json!({ "do": "finish", "key": "k" }));
        assert_clear(&of, &told);
        drop(client);
        let mut fresh = setup.open_command(library, mode, &command);
        let told = fresh.call("calculator", json!({ "expression": "6*7" }));
        assert_eq!(text(&told), "42", "{of} anew: {told}");
        fresh.close();
    }
}
