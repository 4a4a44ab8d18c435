//! Tests the rules of the policy with the real gateway: refused sets, decisions, changes of files and tools.
//!
//! Path: 5. Doc: policy.md#rules

use serde_json::{Value, json};
use toolbooth_tests::mcp::{Session, request};
use toolbooth_tests::waiting::until;
use toolbooth_tests::{Place, RunningGateway, repository};

const RULES: &str = "\
@id(\"everything\")
permit (principal, action, resource);

@id(\"sums-only\")
@reason(\"Only sums are calculated.\")
forbid (principal, action == Action::\"calculator\", resource)
unless { context.args.expression like \"*+*\" };
";

const CASES: &str = "\
[[case]]
name = \"a product\"
tool = \"calculator\"
args = { expression = \"2*2\" }
decision = \"deny\"
match = [\"sums-only\"]
";

fn place(more: &str) -> Place {
    let place = Place::new();
    place.write("toolbooth.toml", &format!("[policy]\nrules = \"rules\"\n{more}"));
    std::fs::create_dir(place.path().join("rules")).expect("is made");
    place.write("rules/main.cedar", RULES).write("rules/main.cases.toml", CASES);
    place
}

/// Calls the calculator; returns the code, or `ok`, and what the caller is told.
fn calculate(gateway: &RunningGateway, expression: &str) -> (String, String) {
    let args = json!({ "expression": expression });
    let answer = call(gateway, "calculator", &args);
    (code(&answer), answer["title"].as_str().unwrap_or_default().to_owned())
}

fn call(gateway: &RunningGateway, tool: &str, args: &Value) -> Value {
    let body = json!({ "toolId": tool, "args": args });
    gateway.post("/v1/calls", &body.to_string()).1
}

fn code(answer: &Value) -> String {
    answer["code"].as_str().unwrap_or("ok").to_owned()
}

pub(crate) fn events(place: &Place, kind: &str) -> Vec<Value> {
    let (found, _) = place.json(&["audit", "query", "--limit", "100000"]);
    let events = found["events"].as_array().expect("events");
    events.iter().filter(|event| event["event"] == kind).cloned().collect()
}

#[test]
fn rules_decide_calls_and_their_reason_is_told_and_recorded() {
    let place = place("");
    let gateway = place.serve();
    assert_eq!(calculate(&gateway, "1+1").0, "ok");
    let (code, told) = calculate(&gateway, "2*2");
    assert_eq!((code.as_str(), told.as_str()), ("policy-denied", "Only sums are calculated."));
    gateway.stop();
    let denied = events(&place, "POLICY_DENIED");
    assert_eq!(denied.len(), 1);
    assert_eq!(denied[0]["decision"]["rule"], "sums-only");
    assert_eq!(events(&place, "TOOL_DISPATCHED")[0]["decision"]["rule"], "everything");
    place.assert_sound();
    // What is explained is what was decided.
    let explain = |expression: &str| {
        let args = json!({ "expression": expression }).to_string();
        place.json(&["policy", "explain", "calculator", "--args", &args])
    };
    let (told, exit) = explain("2*2");
    assert_eq!((told["decision"].as_str(), exit), (Some("deny"), 0));
    assert_eq!((&told["rule"], &told["code"]), (&json!("sums-only"), &json!("policy-denied")));
    let last = told["steps"].as_array().and_then(|steps| steps.last()).expect("a step");
    assert_eq!(last["saw"], "`sums-only` forbids, `everything` permits");
    assert_eq!(explain("1+1").0["decision"], "permit");
    assert_eq!(explain("").0["decision"], "deny");
    let (missing, exit) = place.json(&["policy", "explain", "calculater"]);
    assert_eq!((exit, &missing["error"]["hint"]), (1, &json!("did you mean `calculator`?")));
}

#[test]
fn a_set_that_is_wrong_is_refused_with_its_place() {
    let place = place("");
    let (checked, exit) = place.json(&["policy", "check"]);
    assert_eq!((&checked["ok"], exit, &checked["findings"]), (&json!(true), 0, &json!([])));
    let refused = |file: &str, text: &str| {
        place.write(file, text);
        let served = place.run(&["serve", "--http", "127.0.0.1:0"]);
        let told = String::from_utf8_lossy(&served.stderr).into_owned();
        assert_eq!(served.status.code(), Some(2), "{told}");
        told
    };
    let wrong = refused("rules/main.cedar", &RULES.replace("args.expression", "args.expresion"));
    assert!(wrong.contains("rules/main.cedar:7:10") && wrong.contains("`expression`"), "{wrong}");
    let (checked, exit) = place.json(&["policy", "check"]);
    let finding = &checked["findings"][0];
    assert_eq!((exit, finding["code"].as_str()), (1, Some("mistyped-rule")));
    assert_eq!((&finding["line"], &finding["tool"]), (&json!(7), &json!("calculator")));
    // No call runs without the rules either.
    let called = place.run(&["call", "calculator", "--args", r#"{"expression":"1+1"}"#]);
    assert_eq!(called.status.code(), Some(2));
    place.write("rules/main.cedar", RULES);
    let failed = refused("rules/main.cases.toml", &CASES.replace("2*2", "2+2"));
    assert!(
        failed.contains("rules/main.cases.toml:1:1") && failed.contains("`permit` by"),
        "{failed}"
    );
    place.write("rules/main.cases.toml", CASES);
    let syntax = refused("rules/other.cedar", "permit (principal, action, resource)");
    assert!(syntax.contains("rules/other.cedar:1:37"), "{syntax}");
    std::fs::remove_dir_all(place.path().join("rules")).expect("is removed");
    let gone = place.run(&["serve", "--http", "127.0.0.1:0"]);
    let told = String::from_utf8_lossy(&gone.stderr);
    assert!(gone.status.code() == Some(2) && told.contains("policy.rules"), "{told}");
}

#[test]
fn a_change_of_the_files_holds_within_a_second_or_is_refused_as_a_whole() {
    let place = place("");
    let gateway = place.serve();
    assert_eq!(calculate(&gateway, "2*2").0, "policy-denied");
    // Wrong in one file, and right in another: nothing of both holds.
    place.write("rules/more.cedar", "@id(\"nothing\") forbid (principal, action, resource);");
    place.write("rules/main.cedar", &RULES.replace("expression", "expresion"));
    gateway.until_said("the policy is refused, the last good one stays", 1);
    assert_eq!(calculate(&gateway, "1+1").0, "ok");
    std::fs::remove_file(place.path().join("rules/main.cases.toml")).expect("is removed");
    place.write("rules/main.cedar", &RULES.replace("*+*", "*\\**"));
    until("all rules hold", || calculate(&gateway, "2*2").1.contains("`nothing`"));
    std::fs::remove_file(place.path().join("rules/more.cedar")).expect("is removed");
    until("the change holds", || calculate(&gateway, "2*2").0 == "ok");
    assert_eq!(calculate(&gateway, "1+1").0, "policy-denied");
    gateway.stop();
    let refusals = events(&place, "POLICY_REJECTED");
    assert!(!refusals.is_empty() && refusals.len() <= 2, "{refusals:?}");
    let reason = refusals[0]["facts"]["reason"].as_str().expect("a reason");
    assert!(reason.contains("rules/main.cedar:7:10"), "{reason}");
    assert!(events(&place, "POLICY_LOADED").len() >= 3);
    place.assert_sound();
}

#[test]
fn a_tool_that_stops_fitting_the_rules_is_quarantined_alone() {
    let place = place(
        "[lock]\nmode = \"off\"\n[servers.box]\ncommand = \"python3\"\n\
         args = [\"box.py\", \"box.json\", \"tell\"]\nsandbox = \"none\"\n",
    );
    let script = repository().join("tests/clients/fickle_server.py");
    let list = |kind: &str| {
        let size = json!({ "type": "object", "properties": { "size": { "type": kind } } });
        json!([{ "name": "melt", "inputSchema": size },
               { "name": "wave", "inputSchema": { "type": "object" } }])
        .to_string()
    };
    place.write("box.py", &std::fs::read_to_string(script).expect("the server"));
    place.write("box.json", &list("integer"));
    place.write(
        "rules/box.cedar",
        "@id(\"small\") forbid (principal, action == Action::\"box.melt\", resource)\n\
         when { context.args has size && context.args.size > 10 };\n\
         @id(\"later\") forbid (principal, action == Action::\"box.none\", resource);",
    );
    let gateway = place.serve();
    gateway.until_said("unbound-rule", 1);
    until("the server is listed", || {
        code(&call(&gateway, "box.melt", &json!({ "size": 5 }))) == "ok"
    });
    assert_eq!(code(&call(&gateway, "box.melt", &json!({ "size": 11 }))), "policy-denied");
    let draft = place.path().join("draft.json");
    std::fs::write(&draft, list("string")).expect("is written");
    std::fs::rename(&draft, place.path().join("box.json")).expect("is renamed");
    until("the tool is quarantined", || {
        code(&call(&gateway, "box.melt", &json!({ "size": "5" }))) == "quarantined-tool"
    });
    assert_eq!(code(&call(&gateway, "box.wave", &json!({}))), "ok");
    // It holds up no other rules.
    let wave = || code(&call(&gateway, "box.wave", &json!({})));
    place.write(
        "rules/more.cedar",
        "@id(\"still\") forbid (principal, action == Action::\"box.wave\", resource);",
    );
    until("the other rule holds", || wave() == "policy-denied");
    std::fs::remove_file(place.path().join("rules/more.cedar")).expect("is removed");
    until("the other rule is gone", || wave() == "ok");
    std::fs::write(&draft, list("integer")).expect("is written");
    std::fs::rename(&draft, place.path().join("box.json")).expect("is renamed");
    until("the tool fits again", || {
        code(&call(&gateway, "box.melt", &json!({ "size": 5 }))) == "ok"
    });
    gateway.stop();
    let quarantined = events(&place, "TOOL_QUARANTINED");
    assert_eq!(quarantined.len(), 1, "{quarantined:?}");
    assert!(quarantined[0].to_string().contains("rules/box.cedar:2:"), "{quarantined:?}");
}

#[test]
fn a_rule_asks_for_an_approval() {
    let place = place("");
    place.write("rules/main.cedar", &RULES.replace("@reason", "@approval(\"one\") @reason"));
    std::fs::remove_file(place.path().join("rules/main.cases.toml")).expect("is removed");
    let gateway = place.serve();
    assert_eq!(calculate(&gateway, "2*2").0, "approval-required");
    assert_eq!(calculate(&gateway, "1+1").0, "ok");
    gateway.stop();
    let asked = events(&place, "APPROVAL_REQUESTED");
    assert_eq!(asked.len(), 1, "{asked:?}");
    let dispatched = events(&place, "TOOL_DISPATCHED");
    let version = dispatched[0]["policyVersion"].as_str();
    assert_eq!((asked[0]["policyVersion"].as_str(), version.is_some()), (version, true));
    let (told, _) =
        place.json(&["policy", "explain", "calculator", "--args", r#"{"expression":"2*2"}"#]);
    assert_eq!((&told["decision"], &told["rule"]), (&json!("approval"), &json!("sums-only")));
}

#[test]
fn rules_in_shadow_are_recorded_and_do_not_hold() {
    let place = place("mode = \"shadow\"\n");
    let gateway = place.serve();
    gateway.until_said("in shadow", 1);
    assert_eq!(calculate(&gateway, "2*2").0, "ok");
    assert_eq!(calculate(&gateway, "1+1").0, "ok");
    assert!(events(&place, "POLICY_DENIED").is_empty());
    gateway.stop();
    let passed = events(&place, "POLICY_SHADOW_DENIED");
    assert_eq!(passed.len(), 1, "{passed:?}");
    assert_eq!(passed[0]["decision"]["rule"], "sums-only");
    assert_eq!(passed[0]["toolName"], "calculator");
    place.assert_sound();
    let alone = Place::new();
    alone.write("toolbooth.toml", "[policy]\nmode = \"shadow\"\n");
    assert_eq!(alone.run(&["list"]).status.code(), Some(2));
}

/// Starts a server with two prompts and two resources, and rules about them.
pub(crate) fn with_items(mode: &str) -> Place {
    let place = place(&format!(
        "mode = \"{mode}\"\n[lock]\nmode = \"off\"\n[servers.box]\ncommand = \"python3\"\n\
         args = [\"box.py\", \"box.json\", \"tell\"]\nsandbox = \"none\"\n"
    ));
    let script = repository().join("tests/clients/fickle_server.py");
    place.write("box.py", &std::fs::read_to_string(script).expect("the server"));
    place.write(
        "box.json",
        r#"{"tools": [], "prompts": [{"name": "greet"}, {"name": "blame"}],
            "resources": [{"uri": "file:///a", "name": "a"}, {"uri": "file:///b", "name": "b"}]}"#,
    );
    place.write(
        "rules/items.cedar",
        "@id(\"no-blame\") @reason(\"Be kind.\")\n\
         forbid (principal, action == Action::\"use:prompts\", resource == Prompt::\"box.blame\");\n\
         @id(\"not-b\") forbid (principal, action == Action::\"read:resources\", resource)\n\
         when { resource == Resource::\"box.file:///b\" };",
    );
    place
}

/// Gets a prompt or reads a resource; returns the code of the error, or `ok`.
pub(crate) fn item(session: &Session, method: &str, params: Value) -> String {
    let answer = session.post(&request(7, method, params)).answer().json();
    match &answer["error"] {
        Value::Null => "ok".to_owned(),
        error => error["data"]["code"].as_str().unwrap_or("no code").to_owned(),
    }
}

#[test]
fn rules_decide_prompts_and_resources_or_are_recorded_in_shadow() {
    for (mode, refused, kind) in
        [("enforce", "policy-denied", "POLICY_DENIED"), ("shadow", "ok", "POLICY_SHADOW_DENIED")]
    {
        let place = with_items(mode);
        let gateway = place.serve();
        let session = Session::begin(&gateway);
        let prompt = |name: &str| item(&session, "prompts/get", json!({ "name": name }));
        let resource = |uri: &str| item(&session, "resources/read", json!({ "uri": uri }));
        until("the server is listed", || prompt("box_greet") == "ok");
        assert_eq!(resource("toolbooth+box:file:///a"), "ok");
        assert_eq!(
            (prompt("box_blame"), resource("toolbooth+box:file:///b")),
            (refused.into(), refused.into())
        );
        gateway.stop();
        let rules: Vec<Value> =
            events(&place, kind).iter().map(|event| event["decision"]["rule"].clone()).collect();
        assert_eq!(rules, [json!("no-blame"), json!("not-b")], "{mode}");
        place.assert_sound();
    }
}

#[test]
fn a_set_that_permits_nothing_is_told() {
    let place = place("");
    place.write("rules/main.cedar", "");
    std::fs::remove_file(place.path().join("rules/main.cases.toml")).expect("is removed");
    let gateway = place.serve();
    gateway.until_said("no rule permits anything, so every call is denied (no-permit)", 1);
    assert_eq!(calculate(&gateway, "1+1").0, "policy-denied");
}

#[test]
fn rules_are_checked_against_the_schemas_that_the_lock_has() {
    let place = place(
        "[servers.box]\ncommand = \"python3\"\nargs = [\"box.py\", \"box.json\", \"tell\"]\n\
         sandbox = \"none\"\n",
    );
    let script = repository().join("tests/clients/fickle_server.py");
    place.write("box.py", &std::fs::read_to_string(script).expect("the server"));
    let list = |of: &str| {
        let properties = json!({ "weight": { "type": of } });
        json!([{ "name": "melt", "inputSchema": { "type": "object", "properties": properties } }])
            .to_string()
    };
    place.write("box.json", &list("integer"));
    let rule = |condition: &str| {
        let rule = format!(
            "@id(\"heavy\") forbid (principal, action == Action::\"box.melt\", resource)\n\
             when {{ context.args has weight && {condition} }};"
        );
        place.write("rules/box.cedar", &rule);
        place.json(&["policy", "check"])
    };
    assert_eq!(place.run(&["lock"]).status.code(), Some(0));
    // The server cannot be started any more, so what is known of its tool is in the lock.
    std::fs::remove_file(place.path().join("box.py")).expect("is removed");
    let (right, exit) = rule("context.args.weight > 10");
    assert_eq!((&right["findings"], exit), (&json!([]), 0), "{right}");
    let (wrong, exit) = rule("context.args.weight like \"1*\"");
    let finding = &wrong["findings"][0];
    assert_eq!((&finding["code"], exit), (&json!("mistyped-rule"), 1), "{wrong}");
    assert_eq!((&finding["line"], &finding["tool"]), (&json!(2), &json!("box.melt")), "{wrong}");
    let refused = place.run(&["serve", "--http", "127.0.0.1:0"]);
    let told = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(refused.status.code() == Some(2) && told.contains("box.cedar:2:"), "{told}");
}

#[test]
fn a_set_that_is_refused_is_read_again_when_the_tools_change() {
    let place = place(
        "[lock]\nmode = \"off\"\n[servers.box]\ncommand = \"python3\"\n\
         args = [\"box.py\", \"box.json\", \"tell\"]\nsandbox = \"none\"\n",
    );
    let script = repository().join("tests/clients/fickle_server.py");
    place.write("box.py", &std::fs::read_to_string(script).expect("the server"));
    let list = |argument: &str| {
        let properties = json!({ (argument): { "type": "integer" } });
        json!([{ "name": "melt", "inputSchema": { "type": "object", "properties": properties } }])
            .to_string()
    };
    place.write("box.json", &list("weight"));
    let gateway = place.serve();
    let melt = |argument: &str| code(&call(&gateway, "box.melt", &json!({ (argument): 11 })));
    until("the server is listed", || melt("weight") == "ok");
    place.write(
        "rules/box.cedar",
        "@id(\"small\") forbid (principal, action == Action::\"box.melt\", resource)\n\
         when { context.args has size && context.args.size > 10 };",
    );
    gateway.until_said("the policy is refused, the last good one stays", 1);
    let draft = place.path().join("draft.json");
    std::fs::write(&draft, list("size")).expect("is written");
    std::fs::rename(&draft, place.path().join("box.json")).expect("is renamed");
    until("the set holds", || melt("size") == "policy-denied");
    gateway.stop();
    assert_eq!(events(&place, "POLICY_REJECTED").len(), 1);
}
