//! Tests who may call the real gateway, with which credentials, and what each caller may do.
//!
//! Path: 1. Doc: front-doors.md#who-may-call

use std::collections::BTreeMap;
use std::time::Instant;

use serde_json::{Value, json};
use toolbooth_tests::postgres::Postgres;
use toolbooth_tests::torture::on_server;
use toolbooth_tests::waiting::CEILING;
use toolbooth_tests::{Place, RunningGateway, request, waiting};

const TEAM: &str = "[callers.interns]\nmatch = [\"group:interns\"]\ntools = [\"calculator\"]\n\
     grants = [\"*\"]\n[callers.ops]\nmatch = [\"key:ops\"]\ngrants = [\"*\"]\noperate = true\n";
const CALL: &str = r#"{"toolId":"calculator","args":{"expression":"6*7"}}"#;

fn team() -> Place {
    let place = Place::new();
    place.write("toolbooth.toml", TEAM);
    place
}

/// Creates a key; returns its text.
fn key(place: &Place, arguments: &[&str]) -> String {
    let (made, exit) = place.json(&[&["keys", "create"], arguments].concat());
    assert_eq!(exit, 0, "{made}");
    made["key"].as_str().expect("a key").to_owned()
}

/// Returns the ids of the tools that a caller sees.
fn tools(gateway: &RunningGateway, token: &str) -> Vec<String> {
    let (status, listed) = gateway.ask_as(token, "GET", "/v1/tools", "");
    assert_eq!(status, 200, "{listed}");
    let tools = listed["tools"].as_array().expect("tools").iter();
    tools.map(|tool| tool["toolId"].as_str().unwrap_or_default().to_owned()).collect()
}

pub(crate) fn events(place: &Place, kind: &str) -> Vec<Value> {
    let (all, _) = place.json(&["audit", "query", "--limit", "100000"]);
    let all = all["events"].as_array().expect("events").iter();
    all.filter(|event| event["event"] == kind).cloned().collect()
}

#[test]
fn a_key_calls_with_the_rights_of_its_set_until_it_is_revoked() {
    let place = team();
    let (intern, ops) = (key(&place, &["bob", "--group", "interns"]), key(&place, &["ops"]));
    let stranger = key(&place, &["stranger"]);
    let gateway = place.serve();
    assert_eq!(tools(&gateway, &intern), ["calculator"]);
    assert!(tools(&gateway, &ops).len() > 1 && tools(&gateway, &stranger).is_empty());
    let (status, result) = gateway.ask_as(&intern, "POST", "/v1/calls", CALL);
    assert_eq!((status, &result["structuredContent"]["value"]), (200, &json!("42")), "{result}");
    assert_eq!(gateway.ask_as(&stranger, "POST", "/v1/calls", CALL).0, 404);
    // Only `ops` may operate, and the name is the same on every door.
    assert_eq!(gateway.ask_as(&intern, "GET", "/v1/receipts", "").0, 403);
    let (status, found) = gateway.ask_as(&ops, "GET", "/v1/receipts?caller=key:bob", "");
    assert_eq!((status, found["receipts"].as_array().map(Vec::len)), (200, Some(1)), "{found}");
    let (called, _) = place.json(&[
        "call",
        "calculator",
        "--args",
        r#"{"expression":"1"}"#,
        "--caller",
        "key:bob",
    ]);
    assert_eq!(called["status"], "succeeded", "{called}");
    let found = gateway.operator_get("/v1/receipts?caller=key:bob").1;
    assert_eq!(found["receipts"].as_array().map(Vec::len), Some(2), "{found}");

    assert_eq!(place.json(&["keys", "revoke", "bob"]).1, 0);
    let revoked = Instant::now();
    while gateway.ask_as(&intern, "GET", "/v1/tools", "").0 != 401 {
        assert!(revoked.elapsed() < CEILING, "the key is still accepted");
    }
    assert_eq!(gateway.ask_as(&ops, "GET", "/v1/tools", "").0, 200);
    let (listed, _) = place.json(&["keys", "list"]);
    let states: BTreeMap<&str, &str> = listed["keys"]
        .as_array()
        .expect("keys")
        .iter()
        .filter_map(|key| Some((key["name"].as_str()?, key["state"].as_str()?)))
        .collect();
    assert_eq!(states, [("bob", "revoked"), ("ops", "active"), ("stranger", "active")].into());
    let began = Instant::now();
    while !place.json(&["keys", "list"]).0["keys"][0]["lastUsedAt"].is_string() {
        assert!(began.elapsed() < CEILING, "the last use is not stored");
    }
    // A key of the same name is another key.
    let again = key(&place, &["bob"]);
    assert_ne!(again, intern);
    gateway.stop();
    let text = std::fs::read(place.path().join(".toolbooth/toolbooth.db")).expect("the store");
    for key in [&intern, &ops, &stranger, &again] {
        let found = text.windows(key.len()).any(|window| window == key.as_bytes());
        assert!(!found, "a key is stored as it is");
    }
    let made = events(&place, "KEY_CREATED");
    assert_eq!((made.len(), events(&place, "KEY_REVOKED").len()), (4, 1));
    assert!(made.iter().all(|event| event["caller"] == "operator"), "{made:?}");
    place.assert_sound();
}

#[test]
fn what_is_not_a_valid_key_is_401_with_a_challenge_and_an_event() {
    let place = team();
    let good = key(&place, &["ops"]);
    let gateway = place.serve();
    let bearer = |token: &str| ("Authorization", format!("Bearer {token}"));
    let basic = ("Authorization", "Basic b3BzOm9wcw==".to_owned());
    let mut denied = 0;
    for (path, headers, reason) in [
        ("/v1/tools", vec![bearer("tbk_wrong")], "unknown-key"),
        ("/v1/tools", vec![bearer("tbo_wrong")], "unknown-key"),
        ("/v1/tools", vec![bearer(&good[..good.len() - 1])], "unknown-key"),
        ("/mcp", vec![bearer("tbk_wrong")], "unknown-key"),
        ("/v1/tools", vec![bearer("eyJhbGciOiJub25lIn0.e30.")], "malformed"),
        ("/v1/tools", vec![basic], "malformed"),
        ("/v1/tools", vec![bearer(&good), bearer(&good)], "malformed"),
        ("/v1/tools?access_token=x", vec![], "in-url"),
        ("/v1/tools?q=tbk_x", vec![bearer(&good)], "in-url"),
    ] {
        let headers: Vec<(&str, &str)> =
            headers.iter().map(|(name, text)| (*name, text.as_str())).collect();
        let (status, problem) =
            request(&gateway.address, "GET", path, "", &headers).expect("an answer");
        assert_eq!((status, &problem["code"]), (401, &json!("not-authenticated")), "{path}");
        denied += 1;
        let told = events(&place, "AUTH_DENIED");
        assert_eq!(told.len(), denied, "{path} {headers:?}");
        let facts = &told.last().expect("an event")["facts"];
        assert_eq!((&facts["reason"], &facts["peer"]), (&json!(reason), &json!("127.0.0.1")));
        assert!(!facts.to_string().contains("wrong"), "no credentials are recorded: {facts}");
    }
    // Nothing but the header names the caller.
    let claims = [("X-Forwarded-User", "key:ops"), ("X-Api-Key", good.as_str())];
    let (status, _) =
        request(&gateway.address, "GET", "/v1/receipts", "", &claims).expect("an answer");
    assert_eq!(status, 403, "it is `local`, which may not operate");
}

#[test]
fn a_flood_of_wrong_keys_is_folded() {
    let place = team();
    let gateway = place.serve();
    let flood = 2_000;
    for n in 0..flood {
        let token = format!("tbk_{n}");
        assert_eq!(gateway.ask_as(&token, "GET", "/v1/tools", "").0, 401);
    }
    gateway.stop();
    let told = events(&place, "AUTH_DENIED");
    let folded: u64 = told.iter().filter_map(|event| event["facts"]["folded"].as_u64()).sum();
    let single = told.iter().filter(|event| event["facts"]["folded"].is_null()).count();
    assert!(told.len() < 1_000, "{} events", told.len());
    assert_eq!(folded + single as u64, flood);
    place.assert_sound();
}

#[test]
fn only_the_operator_reads_records_and_asks_sources() {
    let place = Place::new();
    let gateway = place.serve();
    for (method, path) in [
        ("GET", "/v1/receipts"),
        ("GET", "/v1/receipts/x"),
        ("GET", "/v1/agent-logs"),
        ("GET", "/v1/agent-logs/x"),
        ("POST", "/v1/discover"),
    ] {
        let (status, problem) =
            request(&gateway.address, method, path, "", &[]).expect("an answer");
        assert_eq!((status, &problem["code"]), (403, &json!("policy-denied")), "{path}");
        let status = gateway.ask_as(&gateway.operator_key(), method, path, "").0;
        assert!(matches!(status, 200 | 404), "{path}: {status}");
    }
}

#[test]
fn without_credentials_nothing_is_answered_where_the_setting_says_so() {
    let place = Place::new();
    place.write("toolbooth.toml", "[http]\nloopback = \"none\"\n[callers.\"key:a\"]\n");
    let key = key(&place, &["a"]);
    let gateway = place.serve();
    assert_eq!(gateway.get("/v1/tools").0, 401);
    assert_eq!(gateway.get("/healthz").0, 200);
    assert_eq!(gateway.ask_as(&key, "GET", "/v1/tools", "").0, 200);
}

#[test]
fn the_caller_of_stdio_comes_from_the_configuration() {
    use std::io::Write as _;
    let place = Place::new();
    place.write(
        "toolbooth.toml",
        "[auth]\nstdio_caller = \"key:editor\"\n[callers.\"key:editor\"]\ntools = [\"calculator\"]\ngrants = [\"*\"]\n",
    );
    assert_eq!(place.json(&["keys", "create", "editor"]).1, 0);
    let mut child = place
        .command(&["stdio"])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::null())
        .spawn()
        .expect("starts");
    let meta = json!({"io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {}, "toolbooth/caller": "operator"});
    let messages = [
        json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {"_meta": meta}}),
        json!({"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"_meta": meta,
            "name": "calculator", "arguments": {"expression": "6*7"}}}),
    ];
    let mut input = child.stdin.take().expect("a pipe");
    for message in &messages {
        writeln!(input, "{message}").expect("is read");
    }
    drop(input);
    let output = child.wait_with_output().expect("ends");
    let answers: Vec<Value> = String::from_utf8_lossy(&output.stdout)
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok())
        .collect();
    let listed = answers.iter().find(|answer| answer["id"] == 1).expect("a list");
    let listed = listed["result"]["tools"].as_array().expect("tools");
    assert_eq!(listed.len(), 1, "{listed:?}");
    let (found, _) = place.json(&["receipts", "list", "--caller", "key:editor"]);
    assert_eq!(found["receipts"].as_array().map(Vec::len), Some(1), "{found} {answers:?}");
    for wrong in ["operator", "stranger", "key:a b"] {
        place.write("toolbooth.toml", &format!("[auth]\nstdio_caller = \"{wrong}\"\n"));
        let refused = place.run(&["stdio"]);
        let text = String::from_utf8_lossy(&refused.stderr);
        assert!(refused.status.code() == Some(2) && text.contains("stdio_caller"), "{text}");
    }
}

#[test]
fn the_caller_of_stdio_has_the_groups_of_its_key_and_ends_with_it() {
    let place = Place::new();
    place.write(
        "toolbooth.toml",
        "[auth]\nstdio_caller = \"key:editor\"\n[callers.\"key:editor\"]\ngrants = [\"*\"]\n\
         [policy]\nrules = \"rules.cedar\"\n",
    );
    let rule = "@id(\"team\") permit (principal in Group::\"team\", action, resource);\n";
    place.write("rules.cedar", rule);
    let meta = json!({"io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {}});
    let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"_meta": meta,
        "name": "calculator", "arguments": {"expression": "6*7"}}});
    let called = || {
        let message = format!("{call}\n");
        let output = waiting::output_of(&mut place.command(&["stdio"]), message.as_bytes());
        let answer: Option<Value> = serde_json::from_slice(&output.stdout).ok();
        let is_error = answer.map(|answer| answer["result"]["isError"] == true);
        (is_error, String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (answer, said) = called();
    assert!(answer.is_none() && said.contains("no API key `editor`"), "{answer:?} {said}");
    assert_eq!(place.json(&["keys", "create", "editor", "--group", "team"]).1, 0);
    assert_eq!(called().0, Some(false));
    assert_eq!(place.json(&["keys", "revoke", "editor"]).1, 0);
    let (answer, said) = called();
    assert!(answer.is_none() && said.contains("is revoked"), "{answer:?} {said}");
}

#[test]
fn sets_that_match_the_same_caller_are_refused() {
    let place = Place::new();
    for (wrong, what) in [
        (
            "[callers.a]\nmatch = [\"key:*\"]\n[callers.b]\nmatch = [\"key:ops\"]\n",
            "the same callers",
        ),
        ("[callers.local]\n[callers.b]\nmatch = [\"local\"]\n", "the same callers"),
        ("[callers.a]\nmatch = [\"ops\"]\n", "matches no caller"),
        ("[callers.team]\n", "no `match`"),
        ("[callers.a]\nmatch = [\"jwt:https://id*\"]\n", "matches no caller"),
    ] {
        place.write("toolbooth.toml", wrong);
        let refused = place.run(&["list"]);
        let text = String::from_utf8_lossy(&refused.stderr);
        assert!(refused.status.code() == Some(2) && text.contains(what), "{wrong}: {text}");
    }
}

#[test]
fn a_stream_ends_with_the_key_of_its_caller() {
    use std::io::Read as _;
    let place = team();
    let ops = key(&place, &["ops"]);
    let gateway = place.serve();
    let mut stream = gateway.listen_as(&ops);
    assert_eq!(place.json(&["keys", "revoke", "ops"]).1, 0);
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).expect("the stream ends in time");
}

/// Waits until a call has this status; returns its answer.
fn until(gateway: &RunningGateway, token: &str, body: &str, status: u16) -> Value {
    let began = Instant::now();
    loop {
        let (found, answer) = gateway.ask_as(token, "POST", "/v1/calls", body);
        if found == status {
            return answer;
        }
        assert!(began.elapsed() < CEILING, "{found} instead of {status}: {answer}");
    }
}

#[test]
fn every_replica_refuses_a_revoked_key_and_without_the_store_all_keys() {
    let Some(mut server) = Postgres::start() else { return };
    let database = server.database();
    let places: Vec<Place> = (0..2).map(|_| on_server(&server, &database, TEAM)).collect();
    let (bob, ops) = (key(&places[0], &["bob", "--group", "interns"]), key(&places[1], &["ops"]));
    let gateways: Vec<RunningGateway> = places.iter().map(Place::serve).collect();
    let everywhere = |token: &str, status: u16| {
        gateways.iter().for_each(|gateway| drop(until(gateway, token, CALL, status)));
    };
    everywhere(&bob, 200);
    assert_eq!(places[1].json(&["keys", "revoke", "bob"]).1, 0);
    everywhere(&bob, 401);
    assert_eq!(places[0].json(&["pause", "--tool", "calculator"]).1, 0);
    everywhere(&ops, 403);
    assert_eq!(places[1].json(&["resume", "--tool", "calculator"]).1, 0);
    everywhere(&ops, 200);
    // One of the keys could have been revoked meanwhile.
    server.stop();
    for gateway in &gateways {
        let began = Instant::now();
        while gateway.ask_as(&ops, "GET", "/v1/tools", "").0 != 503 {
            assert!(began.elapsed() < CEILING, "the key is still accepted");
        }
        assert_eq!(gateway.ask_as(&gateway.operator_key(), "GET", "/v1/tools", "").0, 200);
    }
    server.resume();
    everywhere(&ops, 200);
}

#[test]
fn what_is_paused_is_refused_and_not_listed_until_it_is_resumed() {
    let place = team();
    let (bob, ops) = (key(&place, &["bob", "--group", "interns"]), key(&place, &["ops"]));
    let gateway = place.serve();
    for (target, others_run) in [
        (vec!["--caller", "key:bob"], true),
        (vec!["--tool", "calculator"], false),
        (vec![], false),
    ] {
        let pause = [vec!["pause", "--reason", "a test"], target.clone()].concat();
        let (paused, exit) = place.json(&pause);
        assert_eq!((exit, &paused["paused"]), (0, &json!(true)), "{paused}");
        let refused = until(&gateway, &bob, CALL, 403);
        assert_eq!(refused["code"], "paused", "{refused}");
        assert!(tools(&gateway, &bob).is_empty());
        let status = gateway.ask_as(&ops, "POST", "/v1/calls", CALL).0;
        assert_eq!(status, if others_run { 200 } else { 403 }, "{target:?}");
        let (listed, _) = place.json(&["pause", "--list"]);
        assert_eq!(listed["pauses"][0]["target"], paused["target"], "{listed}");
        // The commands tell the same.
        let (seen, _) = place.json(&["list", "--caller", "key:bob"]);
        assert_eq!(seen["tools"], json!([]));
        let args = ["--args", "{\"expression\":\"1\"}", "--caller", "key:bob"];
        let explained = [&["policy", "explain", "calculator"][..], &args].concat();
        let (explained, _) = place.json(&explained);
        assert_eq!((&explained["rule"], &explained["code"]), (&json!("pause"), &json!("paused")));
        let (shown, _) = place.json(&["show", "calculator", "--caller", "key:bob"]);
        assert_eq!(shown["reason"], "paused", "{shown}");
        let resume = [vec!["resume"], target.clone()].concat();
        assert_eq!(place.json(&resume).1, 0);
        until(&gateway, &bob, CALL, 200);
        assert_eq!(tools(&gateway, &bob), ["calculator"]);
    }
    assert_eq!(place.json(&["resume"]).0["paused"], false);
    assert_eq!(place.json(&["resume", "--tool", "never.paused"]).1, 1);
    let misspelt = place.run(&["pause", "--tool", "calculater"]);
    let told = String::from_utf8_lossy(&misspelt.stderr);
    assert!(misspelt.status.success() && told.contains("did you mean `calculator`"), "{told}");
    for wrong in [["--server", "nowhere"], ["--caller", "a stranger"], ["--tool", "a b"]] {
        assert_eq!(place.run(&["pause", wrong[0], wrong[1]]).status.code(), Some(2), "{wrong:?}");
    }
    gateway.stop();
    assert_eq!((events(&place, "PAUSED").len(), events(&place, "RESUMED").len()), (4, 3));
    // A pause holds for a gateway that starts later.
    assert_eq!(place.json(&["pause"]).1, 0);
    let later = place.serve();
    assert_eq!(later.ask_as(&bob, "POST", "/v1/calls", CALL).0, 403);
    later.stop();
    place.assert_sound();
}

#[test]
fn a_pause_at_once_cancels_running_calls_with_a_receipt() {
    let place = toolbooth_tests::torture::place("");
    let gateway = place.serve();
    let body = r#"{"toolId":"pay.do","args":{"key":"k","ms":600000}}"#;
    let address = gateway.address.clone();
    let calling = std::thread::spawn(move || request(&address, "POST", "/v1/calls", body, &[]));
    let effects = place.path().join("handlers/effects.txt");
    let began = Instant::now();
    while std::fs::read_to_string(&effects).unwrap_or_default().is_empty() {
        assert!(began.elapsed() < CEILING, "the call does not begin");
    }
    assert_eq!(place.json(&["pause", "--tool", "pay.do"]).1, 0);
    assert_eq!(place.json(&["pause", "--tool", "pay.do", "--now"]).1, 0);
    let (status, answer) = calling.join().expect("ends").expect("an answer");
    assert_eq!((status, &answer["code"]), (499, &json!("cancelled")), "{answer}");
    assert!(answer["receiptId"].is_string(), "{answer}");
    gateway.stop();
    place.assert_sound();
}

#[test]
fn a_budget_runs_out_for_its_caller_and_for_no_other() {
    let place = toolbooth_tests::torture::place(
        "[budgets]\ndaily = 100\n[callers.interns]\nmatch = [\"group:interns\"]\ngrants = [\"*\"]\n\
         budget = { daily = 5, daily_per_epic = 3 }\n",
    );
    let registry = std::fs::read_to_string(place.path().join("tools.registry.json"));
    let mut registry: Value =
        serde_json::from_str(&registry.expect("a registry")).expect("is JSON");
    for tool in registry["tools"].as_array_mut().expect("tools") {
        tool["policy"]["costUnits"] = json!(1.5);
    }
    place.write("tools.registry.json", &registry.to_string());
    let bob = key(&place, &["bob", "--group", "interns"]);
    let gateway = place.serve();
    let mut key = 0;
    let mut call = |epic: &str| {
        key += 1;
        let args = json!({"key": key.to_string(), "ms": 0});
        json!({"toolId": "pay.do", "args": args, "context": {"epicId": epic}}).to_string()
    };
    let mut of = |epic: &str| gateway.ask_as(&bob, "POST", "/v1/calls", &call(epic));
    assert_eq!((of("one").0, of("one").0), (200, 200));
    let (status, refused) = of("one");
    assert_eq!((status, &refused["code"]), (429, &json!("budget-exceeded")), "{refused}");
    assert!(refused["retryAfterMs"].as_u64().is_some_and(|ms| ms <= 86_400_000), "{refused}");
    assert_eq!(of("two").0, 200);
    assert_eq!(of("three").0, 429, "a new epic gives no more than the caller has");
    let other = r#"{"toolId":"pay.do","args":{"key":"other","ms":0}}"#;
    assert_eq!(gateway.post("/v1/calls", other).0, 200);
    gateway.stop();
    place.assert_sound();
}

#[test]
fn behind_a_proxy_every_call_needs_a_key_and_comes_from_the_proxy() {
    let place = Place::new();
    let settings = |proxies: &str| {
        format!(
            "[http]\nbehind_proxy = true\ntrusted_proxies = [\"{proxies}\"]\n\
             hosts = [\"gateway.example\"]\norigins = [\"https://gateway.example\"]\n\
             [callers.\"key:a\"]\ngrants = [\"*\"]\n"
        )
    };
    place.write("toolbooth.toml", &settings("127.0.0.0/8"));
    let token = format!("Bearer {}", key(&place, &["a"]));
    let gateway = place.serve_at("0.0.0.0:0", &[]);
    let port = gateway.address.rsplit(':').next().expect("a port");
    let address = format!("127.0.0.1:{port}");
    let ask = |headers: &[(&str, &str)]| {
        request(&address, "GET", "/v1/tools", "", headers).expect("an answer").0
    };
    let (host, own) = (("Host", "gateway.example"), ("Authorization", token.as_str()));
    assert_eq!(ask(&[host, own]), 200);
    assert_eq!(ask(&[host, own, ("Origin", "https://gateway.example")]), 200);
    assert_eq!(ask(&[host, own, ("Origin", "http://gateway.example")]), 403);
    assert_eq!(ask(&[("Host", "evil.example"), own]), 403);
    // The connection of the proxy is no caller, although the same user owns it.
    assert_eq!(ask(&[host, ("X-Forwarded-For", "6.6.6.6, 192.0.2.7")]), 401);
    let denied = events(&place, "AUTH_DENIED");
    let facts = &denied.last().expect("an event")["facts"];
    assert_eq!(facts, &json!({"reason": "no-credentials", "peer": "192.0.2.7"}));
    gateway.stop();

    place.write("toolbooth.toml", &settings("10.0.0.0/8"));
    let gateway = place.serve();
    let (status, _) = request(&gateway.address, "GET", "/v1/tools", "", &[own]).expect("an answer");
    assert_eq!(status, 401, "it does not come from the proxy");
    let denied = events(&place, "AUTH_DENIED");
    assert_eq!(denied.last().expect("an event")["facts"]["reason"], "not-the-proxy");
    gateway.stop();

    let open = Place::new();
    let refused = open.run(&["serve", "--http", "0.0.0.0:0"]);
    let text = String::from_utf8_lossy(&refused.stderr);
    assert!(refused.status.code() == Some(2) && text.contains("behind_proxy"), "{text}");
}

#[test]
fn an_edit_of_the_policy_holds_at_once_or_not_at_all() {
    let place = Place::new();
    let set = |tools: &str| format!("[callers.\"key:a\"]\ntools = [{tools}]\ngrants = [\"*\"]\n");
    place.write("toolbooth.toml", &set("\"calculator\""));
    let key = key(&place, &["a"]);
    let gateway = place.serve();
    assert_eq!(tools(&gateway, &key), ["calculator"]);
    let wait = |what: &str, is_so: &dyn Fn() -> bool| {
        let began = Instant::now();
        while !is_so() {
            assert!(began.elapsed() < CEILING, "{what}");
        }
    };
    let edit = |text: &str| {
        place.write("toolbooth.toml", text);
        // Trusts it, as its user does.
        let _ = place.state();
    };
    edit(&set("\"calculator\", \"read_file\""));
    wait("the edit holds", &|| tools(&gateway, &key).len() == 2);
    let overlap = format!("{}[callers.b]\nmatch = [\"key:*\"]\n", set("\"*\""));
    edit(&overlap);
    let is_told = |event: &Value| {
        let reason = event["facts"]["reason"].as_str().unwrap_or_default();
        reason.contains("match the same callers") && reason.contains("`key:a`")
    };
    wait("the edit is refused", &|| events(&place, "POLICY_REJECTED").iter().any(is_told));
    assert_eq!(tools(&gateway, &key).len(), 2, "nothing of it holds");
    edit(&format!("{}[flags]\nmcp_tools = false\n", set("\"*\"")));
    gateway.signal("HUP");
    wait("the flag holds", &|| tools(&gateway, &key).is_empty());
    let disabled = gateway.ask_as(&key, "POST", "/v1/calls", CALL).1;
    assert_eq!(disabled["code"], "tools-disabled", "{disabled}");
    gateway.stop();
    assert_eq!(events(&place, "POLICY_LOADED").len(), 3);
    place.assert_sound();
}

#[test]
fn an_edit_of_the_policy_that_was_not_trusted_does_not_hold() {
    let place = Place::foreign();
    let text = |deny: &str| format!("[callers.local]\ndeny = [{deny}]\ngrants = [\"*\"]\n");
    place.write("toolbooth.toml", &text("\"read_file\""));
    assert_eq!(place.run(&["trust", "--yes"]).status.code(), Some(0));
    let gateway = place.serve();
    let shown = || gateway.get("/v1/tools").1["tools"].as_array().map_or(0, Vec::len);
    let before = shown();
    place.write("toolbooth.toml", &text(""));
    let began = Instant::now();
    while events(&place, "POLICY_REJECTED").is_empty() {
        assert!(began.elapsed() < CEILING, "it is not refused");
    }
    assert_eq!(shown(), before);
    assert_eq!(place.run(&["trust", "--yes"]).status.code(), Some(0));
    let began = Instant::now();
    while shown() == before {
        assert!(began.elapsed() < CEILING, "it holds once it is trusted");
    }
}
