//! Tests rules that read earlier calls with the real gateway: limits that hold, on replicas too, and what is
//! recorded of them.
//!
//! Path: 6. Doc: policy.md#history, configuration.md#policy

use std::collections::BTreeMap;

use serde_json::{Value, json};
use toolbooth_tests::mcp::{Session, request};
use toolbooth_tests::postgres::Postgres;
use toolbooth_tests::torture::on_server;
use toolbooth_tests::waiting::until;
use toolbooth_tests::{Place, RunningGateway};

const RULES: &str = "\
@id(\"all\")
permit (principal, action, resource);

@id(\"daily\") @reason(\"At most 10 a day are paid.\")
forbid (principal, action == Action::\"pay.send\", resource)
when { context.history.paid.sum.greaterThan(decimal(\"10.0\")) };

@id(\"reviewed\")
forbid (principal, action == Action::\"files.delete\", resource)
unless { context.history.reviews has since && context.history.reviews.since < duration(\"30m\") };

@id(\"asked\") @approval(\"one\")
forbid (principal, action == Action::\"mail.send\", resource)
when { context.history.mails.count > 1 };

@id(\"secret\")
forbid (principal, action == Action::\"mail.send\", resource)
when { context.history.secrets.count > 0 };
";

const SETTINGS: &str = "\
registry = \"registry.json\"
[policy]
rules = \"rules.cedar\"
[policy.history.paid]
tool = \"pay.*\"
window = \"1d\"
sum = \"/amount\"
[policy.history.reviews]
tool = \"review.approve\"
window = \"1h\"
[policy.history.mails]
tool = \"mail.send\"
window = \"1h\"
[policy.history.secrets]
tool = \"secrets.read\"
window = \"1d\"
within = \"session\"
[callers.agents]
match = [\"key:*\"]
tools = [\"*\"]
grants = [\"*\"]
[runtimes.echo]
kind = \"command\"
command = [\"echo\", \"done\"]
[runtimes.missing]
kind = \"command\"
command = [\"no-such-program\"]
";

fn registry() -> String {
    let tool = |id: &str, runtime: &str| {
        json!({
            "name": id, "description": "A tool.",
            "input_schema": { "type": "object", "properties": { "amount": { "type": "number" } } },
            "output_schema": {}, "execution": { "localRuntimeId": runtime }, "permissions": [],
            "policy": { "timeoutMs": 10_000, "trustLevel": "trusted" },
        })
    };
    let tools = [
        tool("pay.send", "echo"),
        tool("pay.broken", "missing"),
        tool("review.approve", "echo"),
        tool("files.delete", "echo"),
        tool("mail.send", "echo"),
        tool("secrets.read", "echo"),
    ];
    json!({ "version": "1.0.0", "tools": tools }).to_string()
}

/// Writes rules, tools and settings.
fn furnish(place: &Place, settings: &str) {
    place.write("toolbooth.toml", settings).write("rules.cedar", RULES);
    place.write("registry.json", &registry());
}

fn place() -> Place {
    let place = Place::new();
    furnish(&place, SETTINGS);
    place
}

fn body(tool: &str, arguments: &Value) -> String {
    json!({ "toolId": tool, "args": arguments }).to_string()
}

fn call(gateway: &RunningGateway, tool: &str, arguments: &Value) -> Value {
    gateway.post("/v1/calls", &body(tool, arguments)).1
}

fn pay(gateway: &RunningGateway, amount: f64) -> String {
    code(&call(gateway, "pay.send", &json!({ "amount": amount }))).to_owned()
}

/// Returns the code of a result, or `ok`.
fn code(answer: &Value) -> &str {
    answer["code"].as_str().unwrap_or("ok")
}

#[test]
fn a_limit_holds_for_what_was_paid() {
    let place = place();
    let (made, _) = place.json(&["keys", "create", "agent"]);
    let key = made["key"].as_str().expect("a key").to_owned();
    let gateway = place.serve();
    assert_eq!(pay(&gateway, 9.5), "ok");
    let denied = call(&gateway, "pay.send", &json!({ "amount": 0.5001 }));
    assert_eq!((code(&denied), &denied["details"]["rule"]), ("policy-denied", &json!("daily")));
    assert_eq!(denied["title"], "At most 10 a day are paid.", "{denied}");
    // A call that is denied, or does not start, counts for nothing; the broken tool is of the window.
    let broken = call(&gateway, "pay.broken", &json!({ "amount": 5 }));
    assert!(!["ok", "policy-denied"].contains(&code(&broken)), "{broken}");
    assert_eq!(broken["details"]["effect"].as_str().unwrap_or("not_started"), "not_started");
    // A call that cannot be counted is denied, of any counted tool.
    for arguments in [json!({}), json!({ "amount": -1 }), json!({ "amount": 0.00001 })] {
        let denied = call(&gateway, "pay.broken", &arguments);
        let rule = &denied["details"]["rule"];
        assert_eq!((code(&denied), rule), ("policy-denied", &json!("history.paid")), "{denied}");
    }
    // Another caller has a window of its own.
    let paying = body("pay.send", &json!({ "amount": 10 }));
    assert_eq!(gateway.ask_as(&key, "POST", "/v1/calls", &paying).0, 200);
    assert_eq!(gateway.ask_as(&key, "POST", "/v1/calls", &paying).0, 403);
    gateway.stop();
    // The window survives the gateway, and an explanation reads it.
    let (told, _) = place.json(&["policy", "explain", "pay.send", "--args", "{\"amount\":1}"]);
    assert_eq!((&told["decision"], &told["rule"]), (&json!("deny"), &json!("daily")), "{told}");
    assert!(told.to_string().contains("count 2, sum 10.5000"), "{told}");
    let gateway = place.serve();
    assert_eq!((pay(&gateway, 0.5), pay(&gateway, 0.0001)), ("ok".into(), "policy-denied".into()));
    gateway.stop();
    let (found, _) = place.json(&["receipts", "list", "--caller", "local", "--tool", "pay.send"]);
    let amounts: Vec<&Value> = found["receipts"]
        .as_array()
        .expect("receipts")
        .iter()
        .map(|receipt| &receipt["history"][0]["amount"])
        .collect();
    assert_eq!(amounts, ["0.5000", "9.5000"]);
    place.assert_sound();
}

#[test]
fn what_was_seen_is_recorded_and_kept() {
    let place = place();
    let gateway = place.serve();
    assert_eq!((pay(&gateway, 2.0), pay(&gateway, 3.0)), ("ok".into(), "ok".into()));
    assert_eq!(pay(&gateway, 6.0), "policy-denied");
    let uncounted = call(&gateway, "calculator", &json!({ "expression": "1+1" }));
    assert_eq!(code(&uncounted), "ok", "{uncounted}");
    gateway.stop();
    let (found, _) = place.json(&["audit", "query", "--limit", "1000"]);
    let events = found["events"].as_array().expect("events");
    let dispatched: Vec<&Value> =
        events.iter().filter(|event| event["event"] == "TOOL_DISPATCHED").collect();
    let seen: Vec<(&Value, &Value)> = dispatched
        .iter()
        .map(|event| (&event["facts"]["history"]["paid"]["sum"], &event["decision"]["rule"]))
        .collect();
    assert!(seen.contains(&(&json!("5.0000"), &json!("all"))), "{seen:?}");
    // A receipt that a window counts is not pruned; the others are.
    let pruned = place.json(&["receipts", "prune", "--before", "0s"]).0;
    assert_eq!(pruned["pruned"][0]["removed"], 1, "{pruned}");
    place.assert_sound();
}

#[test]
fn a_window_that_is_longer_now_keeps_what_it_counted() {
    let place = Place::new();
    furnish(&place, &SETTINGS.replace("window = \"1d\"\nsum", "window = \"1s\"\nsum"));
    let gateway = place.serve();
    assert_eq!(pay(&gateway, 9.0), "ok");
    // It counts no longer after a second.
    until("the window is over", || pay(&gateway, 2.0) == "ok");
    gateway.stop();
    place.write("toolbooth.toml", SETTINGS);
    let pruned = place.json(&["receipts", "prune", "--before", "0s"]).0;
    assert_eq!(pruned["pruned"][0]["removed"], 0, "{pruned}");
    let (told, _) = place.json(&["policy", "explain", "pay.send", "--args", "{\"amount\":1}"]);
    assert!(told.to_string().contains("count 3, sum 12.0000"), "{told}");
    // Without the window, they are removed after the second for which it counted them.
    place.write("toolbooth.toml", "registry = \"registry.json\"\n");
    let mut removed = 0;
    until("both are removed", || {
        let pruned = place.json(&["receipts", "prune", "--before", "0s"]).0;
        removed += pruned["pruned"][0]["removed"].as_u64().expect("a number");
        removed == 2
    });
    place.assert_sound();
}

#[test]
fn one_call_needs_another_before_it() {
    let place = place();
    let gateway = place.serve();
    let delete = |expected: &str| {
        let answer = call(&gateway, "files.delete", &json!({}));
        assert_eq!(code(&answer), expected, "{answer}");
    };
    delete("policy-denied");
    assert_eq!(code(&call(&gateway, "review.approve", &json!({}))), "ok");
    delete("ok");
    // A rule that reads a window asks for an approval.
    assert_eq!(code(&call(&gateway, "mail.send", &json!({}))), "ok");
    let asked = call(&gateway, "mail.send", &json!({}));
    assert_eq!(code(&asked), "approval-required", "{asked}");
    let id = asked["details"]["approvalId"].as_str().expect("an id");
    let (granted, _) = place.json(&["approvals", "approve", id]);
    assert_eq!(granted["rule"], "asked");
    assert_eq!(code(&call(&gateway, "mail.send", &json!({}))), "ok");
    let again = call(&gateway, "mail.send", &json!({}));
    assert_eq!(code(&again), "approval-required", "the grant is spent: {again}");
    gateway.stop();
    place.assert_sound();
}

#[test]
fn a_session_is_that_of_the_connection_or_as_stated() {
    let place = place();
    let warned = place.run(&["policy", "check"]);
    let warned = String::from_utf8_lossy(&warned.stdout).into_owned();
    assert!(warned.contains("claimed-context") && warned.contains("`secrets`"), "{warned}");
    let gateway = place.serve();
    let sessions = [Session::begin(&gateway), Session::begin(&gateway)];
    let ask = |session: &Session, id: i64, tool: &str, meta: Value| {
        let asked = json!({ "name": tool, "arguments": {}, "_meta": meta });
        let answer = session.post(&request(id, "tools/call", asked)).answer().json();
        let rule = &answer["result"]["_meta"]["toolbooth/details"]["rule"];
        rule.as_str().unwrap_or("ok").to_owned()
    };
    assert_eq!(ask(&sessions[0], 3, "secrets_read", json!({})), "ok");
    assert_eq!(ask(&sessions[0], 4, "mail_send", json!({})), "secret");
    assert_eq!(ask(&sessions[1], 5, "mail_send", json!({})), "ok");
    let stated = json!({ "toolbooth/sessionId": "other" });
    assert_eq!(ask(&sessions[1], 6, "secrets_read", stated.clone()), "ok");
    assert_eq!(ask(&sessions[0], 7, "mail_send", stated), "secret");
    gateway.stop();
    place.assert_sound();
}

#[test]
fn an_epic_has_a_window_of_each_caller() {
    let place = Place::new();
    let settings = SETTINGS.replace("within = \"session\"", "within = \"epic\"");
    furnish(&place, &settings);
    let (made, _) = place.json(&["keys", "create", "agent"]);
    let key = made["key"].as_str().expect("a key").to_owned();
    let warned = place.run(&["policy", "check"]);
    let warned = String::from_utf8_lossy(&warned.stdout).into_owned();
    assert!(warned.contains("claimed-context") && warned.contains("`secrets`"), "{warned}");
    let gateway = place.serve();
    let called = |tool: &str, epic: Option<&str>| {
        json!({ "toolId": tool, "args": {}, "context": { "epicId": epic } }).to_string()
    };
    let own = |tool: &str, epic| code(&gateway.post("/v1/calls", &called(tool, epic)).1).to_owned();
    assert_eq!(own("secrets.read", Some("one")), "ok");
    assert_eq!(own("mail.send", Some("one")), "policy-denied");
    // Calls without an epic are in one of their own.
    assert_eq!(own("mail.send", None), "ok");
    let (status, answer) =
        gateway.ask_as(&key, "POST", "/v1/calls", &called("mail.send", Some("one")));
    assert_eq!(status, 200, "{answer}");
    assert_eq!(own("secrets.read", None), "ok");
    // Mails are counted by caller, so this one would also need an approval.
    let denied = gateway.post("/v1/calls", &called("mail.send", None)).1;
    assert_eq!(denied["details"]["rule"], "secret", "{denied}");
    gateway.stop();
    place.assert_sound();
}

#[test]
fn rules_in_shadow_record_what_they_would_have_denied() {
    let place = Place::new();
    furnish(&place, &SETTINGS.replace("[policy]\n", "[policy]\nmode = \"shadow\"\n"));
    let gateway = place.serve();
    for amount in [-1.0, 9.0, 2.0, -1.0] {
        assert_eq!(pay(&gateway, amount), "ok");
    }
    gateway.stop();
    let (found, _) = place.json(&["audit", "query", "--limit", "1000"]);
    let events = found["events"].as_array().expect("events");
    let denied: BTreeMap<&str, usize> = events
        .iter()
        .filter(|event| event["event"] == "POLICY_SHADOW_DENIED")
        .map(|event| event["decision"]["rule"].as_str().expect("a rule"))
        .fold(BTreeMap::new(), |mut all, rule| {
            *all.entry(rule).or_default() += 1;
            all
        });
    // One decision for each call: the last one would be denied by the sum of the others.
    assert_eq!(denied, BTreeMap::from([("daily", 2), ("history.paid", 1)]));
    place.assert_sound();
}

#[test]
fn declarations_that_cannot_hold_are_refused() {
    let place = Place::new();
    for (from, to, told) in [
        ("window = \"1d\"\nsum", "window = \"soon\"\nsum", "policy.history.paid.window"),
        ("window = \"1d\"\nsum", "window = \"0s\"\nsum", "its length is not between"),
        ("sum = \"/amount\"", "sum = \"amount\"", "no JSON pointer"),
        ("history.paid", "history.payed", "did you mean `payed`?"),
        ("rules = \"rules.cedar\"\n", "", "`history` has no effect without rules"),
        ("within = \"session\"", "within = \"day\"", "expected one of `caller`, `session`, `epic`"),
    ] {
        furnish(&place, &SETTINGS.replace(from, to));
        let refused = place.run(&["policy", "check"]);
        let all = [refused.stdout, refused.stderr].concat();
        let text = String::from_utf8_lossy(&all);
        assert!(refused.status.code() != Some(0) && text.contains(told), "{to}: {text}");
    }
}

#[test]
fn two_replicas_never_pass_a_limit_together() {
    let Some(server) = Postgres::start() else { return };
    let database = server.database();
    let places: Vec<Place> = (0..2)
        .map(|_| {
            let settings = SETTINGS.replace("registry = \"registry.json\"\n", "");
            let place = on_server(&server, &database, &settings);
            place.write("rules.cedar", RULES).write("tools.registry.json", &registry());
            place
        })
        .collect();
    contend(places.iter().map(Place::serve).collect());
    let (told, _) =
        places[1].json(&["policy", "explain", "pay.send", "--args", "{\"amount\":0.25}"]);
    assert_eq!(told["decision"], "permit", "{told}");
    places[0].assert_sound();
}

#[test]
fn two_gateways_with_one_file_never_pass_a_limit_together() {
    let place = place();
    contend(vec![place.serve(), place.serve()]);
    place.assert_sound();
}

/// Pays over two gateways from eight clients at once, and checks that the limit holds exactly.
fn contend(gateways: Vec<RunningGateway>) {
    let answers: Vec<String> = std::thread::scope(|scope| {
        let paying = |n: usize| {
            let gateway = &gateways[n % gateways.len()];
            move || (0..4).map(|_| pay(gateway, 0.75)).collect::<Vec<_>>()
        };
        let clients: Vec<_> = (0..8).map(|n| scope.spawn(paying(n))).collect();
        clients.into_iter().flat_map(|client| client.join().expect("ends")).collect()
    });
    let count = |code: &str| answers.iter().filter(|answer| *answer == code).count();
    assert_eq!((count("ok"), count("policy-denied")), (13, 19), "{answers:?}");
    gateways.into_iter().for_each(|gateway| drop(gateway.stop()));
}
