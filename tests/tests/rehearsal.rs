//! Tests the rehearsal of rules on recorded calls, with the real gateway.
//!
//! Path: 5. Doc: policy.md#rehearsing, policy.md#versions, policy.md#comparing, records.md#documents

use serde_json::{Value, json};
use toolbooth_tests::Place;
use toolbooth_tests::mcp::Session;
use toolbooth_tests::waiting::until;

use crate::rules::{events, item, with_items};

const OPEN: &str = "@id(\"all\") permit (principal, action, resource);\n";

/// Rules that deny products, and ask for an approval of what interns do.
const STRICTER: &str = "\
@id(\"all\") permit (principal, action, resource);
@id(\"products\") @reason(\"No products.\")
forbid (principal, action == Action::\"calculator\", resource)
when { context.args.expression like \"*\\**\" };
@id(\"interns\") @approval(\"one\")
forbid (principal in Group::\"interns\", action, resource);
";

const SETTINGS: &str = "\
[policy]\nrules = \"rules.cedar\"\n\
[policy.history.sums]\ntool = \"calculator\"\nwindow = \"1d\"\n\
[callers.interns]\nmatch = [\"group:interns\"]\ntools = [\"calculator\"]\ngrants = [\"*\"]\n";

fn place() -> Place {
    let place = Place::new();
    place.write("toolbooth.toml", SETTINGS).write("rules.cedar", OPEN);
    place.write("stricter.cedar", STRICTER);
    place
}

fn body(expression: &str, call: &str) -> String {
    json!({
        "toolId": "calculator", "args": { "expression": expression },
        "context": { "callId": call, "epicId": "e1" },
    })
    .to_string()
}

#[test]
fn yesterdays_calls_are_judged_by_other_rules() {
    let place = place();
    let (made, _) = place.json(&["keys", "create", "ann", "--group", "interns"]);
    let key = made["key"].as_str().expect("a key").to_owned();
    let gateway = place.serve();
    for (call, expression) in [("c1", "1+1"), ("c2", "2*3"), ("c3", "2*4")] {
        assert_eq!(gateway.post("/v1/calls", &body(expression, call)).0, 200);
    }
    let own = gateway.ask_as(&key, "POST", "/v1/calls", &body("1+2", "c4"));
    assert_eq!(own.0, 200, "{}", own.1);
    // A call that is denied before its arguments count, and one with a secret among its arguments.
    let hidden = json!({ "toolId": "web_fetch", "args": {} }).to_string();
    assert_eq!(gateway.ask_as(&key, "POST", "/v1/calls", &hidden).0, 404);
    let secret = "https://me:pw@host/";
    gateway.post("/v1/calls", &body(secret, "c5"));
    gateway.stop();

    let (same, exit) = place.json(&["policy", "replay", "--since", "1h"]);
    assert_eq!((&same["changed"], exit), (&json!(0), 0), "{same}");
    let replay = |rules: &str| {
        let (found, exit) = place.json(&["policy", "replay", "--policy", rules]);
        assert_eq!(exit, i32::from(found["changed"] != 0), "{found}");
        found
    };
    let found = replay("stricter.cedar");
    let mut changes: Vec<(&str, &str, &str, &str)> = found["changes"]
        .as_array()
        .expect("changes")
        .iter()
        .map(|change| {
            let text = |value: &'static str, of: &'static str| change[value][of].as_str();
            (
                change["callId"].as_str().expect("an id"),
                text("before", "decision").expect("a decision"),
                text("after", "decision").expect("a decision"),
                text("after", "rule").expect("a rule"),
            )
        })
        .collect();
    changes.sort_unstable();
    assert_eq!(
        changes,
        [
            ("c2", "permit", "deny", "products"),
            ("c3", "permit", "deny", "products"),
            ("c4", "permit", "approval", "interns"),
        ]
    );
    assert_eq!((&found["changed"], &found["unjudged"]), (&json!(3), &json!(2)), "{found}");
    let reasons = found["reasons"].to_string();
    assert!(reasons.contains("redacted") && reasons.contains("before its inputs"), "{found}");
    let table = place.run(&["policy", "replay", "--policy", "stricter.cedar"]);
    let table = String::from_utf8_lossy(&table.stdout).into_owned();
    // Each call that would change, and then how many would change alike.
    for id in ["c2", "c3", "c4"] {
        let is_own = |line: &&str| line.contains(&format!(" {id} calculator by "));
        assert_eq!(table.lines().filter(is_own).count(), 1, "{id}: {table}");
    }
    assert!(table.contains(": permit by `all`, now deny by `products`: "), "{table}");
    let words = table.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains("local permit by `all` deny by `products` 2 "), "{table}");
    assert!(table.contains("3 changed"), "{table}");

    let (diff, exit) = place.json(&["policy", "diff", "rules.cedar", "stricter.cedar"]);
    let ids = |of: &str| -> Vec<&str> {
        let rules = diff[of].as_array().expect("rules");
        rules.iter().map(|rule| rule["id"].as_str().expect("an id")).collect()
    };
    assert_eq!((ids("added"), ids("removed"), exit), (vec!["interns", "products"], vec![], 0));
    assert_eq!((&diff["same"], &diff["changed"]), (&json!(1), &json!([])), "{diff}");
    let text = place.run(&["policy", "diff", "stricter.cedar", "rules.cedar"]);
    let text = String::from_utf8_lossy(&text.stdout).into_owned();
    assert!(text.contains("removed `products` (stricter.cedar:2:1)"), "{text}");
    assert!(text.ends_with("0 added, 2 removed, 0 changed, 1 same\n"), "{text}");

    // A rule that reads a window needs what was recorded of it.
    place.write(
        "few.cedar",
        "@id(\"all\") permit (principal, action, resource);\n\
         @id(\"few\") forbid (principal, action == Action::\"calculator\", resource)\n\
         when { context.history.sums.count > 2 };\n",
    );
    let found = replay("few.cedar");
    assert!(found["reasons"].to_string().contains("the window `sums`"), "{found}");
    // Rules that are wrong are refused with their place, and nothing is judged.
    place.write("wrong.cedar", "@id(\"a\") permit (principal, action == , resource);\n");
    let refused = place.run(&["policy", "replay", "--policy", "wrong.cedar"]);
    let text = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(refused.status.code() == Some(2) && text.contains("wrong.cedar:1:"), "{text}");
}

#[test]
fn a_past_call_is_explained_with_its_inputs() {
    let place = place();
    place.write(
        "rules.cedar",
        "@id(\"all\") permit (principal, action, resource);\n\
         @id(\"few\") @reason(\"Two are enough.\")\n\
         forbid (principal, action == Action::\"calculator\", resource)\n\
         when { context.history.sums.count > 2 };\n\
         @id(\"nines\") forbid (principal, action == Action::\"calculator\", resource)\n\
         when { context.args.expression like \"9*\" };\n",
    );
    let gateway = place.serve();
    for (call, status) in [("c1", 200), ("c2", 200), ("c3", 403)] {
        assert_eq!(gateway.post("/v1/calls", &body("1+1", call)).0, status);
    }
    assert_eq!(gateway.post("/v1/calls", &body("9+1", "c4")).0, 403);
    gateway.stop();
    let explained = |call: &str| place.json(&["policy", "explain", "--call", call]).0;
    let third = explained("c3");
    assert_eq!((&third["decision"], &third["inputs"]["rule"]), (&json!("deny"), &json!("few")));
    assert_eq!(third["inputs"]["history"]["sums"]["count"], 3, "{third}");
    assert_eq!(third["inputs"]["caller"]["kind"], "local");
    assert_eq!((&third["now"]["decision"], &third["now"]["rule"]), (&json!("deny"), &json!("few")));
    // A rule that reads no window decides without one.
    let fourth = place.json(&["policy", "explain", "--call", "c4"]).0;
    assert_eq!(
        (&fourth["inputs"]["rule"], &fourth["now"]["rule"]),
        (&json!("nines"), &json!("nines"))
    );
    // The same inputs by other rules: what was seen of the windows is that of the call.
    let rules = "@id(\"all\") permit (principal, action, resource);\n\
                 @id(\"first\") forbid (principal, action == Action::\"calculator\", resource)\n\
                 when { context.history.sums.count < 2 };\n";
    place.write("rules.cedar", rules);
    let decided = |call: &str| {
        let told = explained(call);
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        (text(&told["decision"]), text(&told["now"]["decision"]), text(&told["now"]["rule"]))
    };
    let of = |all: [&str; 3]| (all[0].to_owned(), all[1].to_owned(), all[2].to_owned());
    assert_eq!(decided("c1"), of(["permit", "deny", "first"]));
    assert_eq!(decided("c3"), of(["deny", "permit", "all"]));
    let unjudged = place.json(&["policy", "explain", "--call", "c4"]).0;
    let why = unjudged["unjudged"].as_str().unwrap_or_default();
    assert!(unjudged["now"].is_null() && why.contains("the window `sums`"), "{unjudged}");
    let table = place.run(&["policy", "explain", "--call", "c3"]);
    let table = String::from_utf8_lossy(&table.stdout).into_owned();
    assert!(
        table.contains("deny by `few`: Two are enough.") && table.contains("count 3"),
        "{table}"
    );
    // Without a record of the same window, a call is not judged.
    place.write(
        "rules.cedar",
        &format!(
            "{OPEN}@id(\"few\") forbid (principal, action, resource is Tool)\n\
         when {{ context.history.sums.count > 2 }};\n"
        ),
    );
    let replayed = |settings: &str| {
        place.write("toolbooth.toml", settings);
        place.json(&["policy", "replay"]).0
    };
    let same = replayed(SETTINGS);
    assert_eq!(
        (&same["changed"], &same["same"], &same["unjudged"]),
        (&json!(0), &json!(3), &json!(1))
    );
    let longer = replayed(&SETTINGS.replace("1d", "2d"));
    assert_eq!((&longer["same"], &longer["unjudged"]), (&json!(0), &json!(4)), "{longer}");
    let missing = place.run(&["policy", "explain", "--call", "nothing"]);
    assert_eq!(missing.status.code(), Some(1));
    let neither = place.run(&["policy", "explain"]);
    assert_eq!(neither.status.code(), Some(2));
}

/// Returns a registry file with a command tool, `echo.say`, whose argument has this type.
fn registry(argument: &str, of: &str) -> String {
    json!({ "version": "1.0.0", "tools": [{
        "toolId": "echo.say", "description": "Says it.", "category": "function",
        "inputSchema": {
            "type": "object", "properties": { argument: { "type": of } },
            "additionalProperties": false,
        },
        "outputSchema": {}, "capabilities": {}, "execution": { "localRuntimeId": "echo" },
        "policy": { "timeoutMs": 10_000, "trustLevel": "trusted" },
    }] })
    .to_string()
}

#[test]
fn calls_of_tools_that_have_changed_or_are_gone_are_judged_by_the_contracts_of_then() {
    let place = Place::new();
    // What is known of a caller with so many grants is kept once.
    let grants: Vec<String> = (0..40).map(|n| format!("read:folder-{n:02}")).collect();
    let settings = format!(
        "[policy]\nrules = \"rules.cedar\"\n[runtimes.echo]\nkind = \"command\"\ncommand = [\"true\"]\n\
         [callers.local]\ngrants = {grants:?}\n"
    );
    place.write("toolbooth.toml", &settings).write("rules.cedar", OPEN);
    let say = |registry: &str, call: &str, args: Value| {
        place.write("tools.registry.json", registry);
        let args = args.to_string();
        let (said, exit) = place.json(&["call", "echo.say", "--args", &args, "--call-id", call]);
        assert_eq!(exit, 0, "{said}");
    };
    say(&registry("text", "string"), "c1", json!({ "text": "secret plans" }));
    say(&registry("text", "string"), "c2", json!({ "text": "hello" }));
    say(&registry("words", "string"), "c3", json!({ "words": "secret plans" }));
    let (first, _) = place.json(&["logs", "query", "--call", "c1"]);
    let inputs = &first["logs"][0]["decisionInputs"];
    assert_eq!(inputs["documents"], true, "{inputs}");
    assert!(inputs["caller"].is_null() && inputs["callerDigest"].is_string(), "{inputs}");
    let version = inputs["policyVersion"].as_str().expect("a version").to_owned();

    let rule = |argument: &str| {
        format!(
            "{OPEN}@id(\"secrets\") @reason(\"No secrets.\")\n\
             forbid (principal, action == Action::\"echo.say\", resource)\n\
             when {{ context.args has {argument} && context.args.{argument} like \"*secret*\" }};\n"
        )
    };
    place.write("words.cedar", &rule("words")).write("text.cedar", &rule("text"));
    let replay = |rules: &str| {
        let (found, exit) = place.json(&["policy", "replay", "--policy", rules]);
        assert_eq!(exit, i32::from(found["changed"] != 0), "{found}");
        let changes = found["changes"].as_array().expect("changes");
        let mut calls: Vec<String> = changes
            .iter()
            .map(|change| change["callId"].as_str().expect("an id").to_owned())
            .collect();
        calls.sort_unstable();
        (calls, found["reasons"].to_string())
    };
    place.write(
        "grants.cedar",
        &format!(
            "{OPEN}@id(\"granted\") forbid (principal, action, resource is Tool)\n\
             when {{ principal.grants.contains(\"read:folder-07\") }};\n"
        ),
    );
    assert_eq!(replay("grants.cedar").0, ["c1", "c2", "c3"]);
    // The rules fit the contract of now; the calls of then had no argument `words`.
    let (changed, reasons) = replay("words.cedar");
    assert_eq!(changed, ["c3"]);
    assert!(reasons.contains("do not fit the contract that its tool had"), "{reasons}");
    place.write("tools.registry.json", "{ \"version\": \"1.0.0\", \"tools\": [] }");
    let (changed, reasons) = replay("text.cedar");
    assert_eq!(changed, ["c1"]);
    assert!(reasons.contains("do not fit the contract that its tool had"), "{reasons}");
    let (explained, _) = place.json(&["policy", "explain", "--call", "c1"]);
    assert_eq!(explained["now"]["decision"], "permit", "{explained}");

    // The policy of then is compared with that of now, with its settings.
    place.write("rules.cedar", &rule("text"));
    place.write("toolbooth.toml", &format!("{settings}[budgets]\ndaily = 5\n"));
    place.write("tools.registry.json", &registry("text", "string"));
    let (said, _) =
        place.json(&["call", "echo.say", "--args", r#"{"text":"hi"}"#, "--call-id", "c4"]);
    assert_eq!(said["status"], "succeeded", "{said}");
    let (fourth, _) = place.json(&["logs", "query", "--call", "c4"]);
    let later = fourth["logs"][0]["decisionInputs"]["policyVersion"].as_str().expect("a version");
    let (diff, exit) = place.json(&["policy", "diff", &version, later]);
    assert_eq!((diff["added"][0]["id"].as_str(), exit), (Some("secrets"), 0), "{diff}");
    assert_eq!(diff["same"], 1);
    assert_eq!(diff["settings"][0]["name"], "budget", "{diff}");
    let (diff, _) = place.json(&["policy", "diff", later, "rules.cedar"]);
    assert_eq!((&diff["same"], &diff["settings"]), (&json!(2), &Value::Null), "{diff}");
    let (unknown, exit) = place.json(&["policy", "diff", &"0".repeat(32), "rules.cedar"]);
    assert_eq!((unknown["error"]["code"].as_str(), exit), (Some("not-found"), 1));
    place.assert_sound();

    // Without the logs that name them, the documents are removed: the day before counts as a use.
    let database = place.path().join(".toolbooth/toolbooth.db");
    let count = || -> i64 {
        let connection = rusqlite::Connection::open(&database).expect("opens");
        connection.query_row("SELECT count(*) FROM documents", [], |row| row.get(0)).expect("reads")
    };
    assert_eq!(count(), 5);
    let old = rusqlite::Connection::open(&database).expect("opens");
    old.execute("UPDATE documents SET used = '2020-01-01T00:00:00.000Z'", []).expect("is changed");
    drop(old);
    place.write("toolbooth.toml", &format!("{settings}[retention]\nlogs = \"1h\"\n"));
    let (pruned, exit) = place.json(&["receipts", "prune"]);
    assert_eq!(exit, 0, "{pruned}");
    // Those of logs that are kept are missing now, and verification tells so.
    assert_eq!(count(), 0, "{pruned}");
    let (report, exit) = place.json(&["audit", "verify"]);
    let problems = report["problems"].as_array().expect("problems");
    assert_eq!((problems.len(), exit), (5, 1), "{report}");
    assert!(problems.iter().all(|problem| problem["kind"] == "document-missing"), "{report}");
}

#[test]
fn calls_before_the_time_are_left_out_of_a_replay() {
    let place = place();
    let ended = |call: &str| -> String {
        let args = r#"{"expression":"1+1"}"#;
        let (said, _) = place.json(&["call", "calculator", "--args", args, "--call-id", call]);
        assert_eq!(said["status"], "succeeded", "{said}");
        let (logs, _) = place.json(&["logs", "query", "--call", call]);
        logs["logs"][0]["timestamp"].as_str().expect("a time").to_owned()
    };
    let times = ["c1", "c2", "c3"].map(ended);
    assert!(times.is_sorted(), "{times:?}");
    for (since, calls) in times.iter().zip([3, 2, 1]) {
        let (found, exit) = place.json(&["policy", "replay", "--since", since]);
        assert_eq!((&found["same"], exit), (&json!(calls), 0), "{since}: {found}");
    }
}

#[test]
fn requests_for_prompts_and_resources_are_judged_again_and_so_are_early_denials() {
    let place = with_items("enforce");
    let settings = std::fs::read_to_string(place.path().join("toolbooth.toml")).expect("settings");
    let listed = |tools: &str| {
        let listed = format!("[policy]\nwhitelist = [\"calculator\", {tools}]\n");
        place.write("toolbooth.toml", &settings.replace("[policy]\n", &listed));
    };
    // One resource is not on the whitelist, and nor is a tool.
    listed("\"box.greet\", \"box.blame\", \"box.file:///a\"");
    let gateway = place.serve();
    let session = Session::begin(&gateway);
    let prompt = |name: &str| item(&session, "prompts/get", json!({ "name": name }));
    let resource = |uri: &str| item(&session, "resources/read", json!({ "uri": uri }));
    until("the server is listed", || prompt("box_greet") == "ok");
    assert_eq!(resource("toolbooth+box:file:///a"), "ok");
    assert_eq!(prompt("box_blame"), "policy-denied");
    assert_eq!(resource("toolbooth+box:file:///b"), "policy-denied");
    let long = format!("toolbooth+box:file:///{}", "b".repeat(600));
    assert_eq!(resource(&long), "policy-denied");
    let fetch = json!({ "toolId": "web_search", "args": {}, "context": { "callId": "early" } });
    assert_eq!(gateway.post("/v1/calls", &fetch.to_string()).0, 403);
    gateway.stop();

    // Until the server was listed, the prompt was unknown, and nothing was decided.
    let early = "it was denied before its arguments were checked, and now would not be";
    let has = |found: &Value, wanted: &str| {
        let reasons = found["reasons"].as_array().expect("reasons").clone();
        reasons.iter().any(|reason| reason["reason"] == wanted)
    };
    let same = place.json(&["policy", "replay"]).0;
    assert_eq!((&same["changed"], &same["same"]), (&json!(0), &json!(5)), "{same}");
    assert!(!has(&same, early), "{same}");
    assert!(has(&same, "the log does not have the whole name of what it asked for"), "{same}");
    place.write(
        "other.cedar",
        "@id(\"all\") permit (principal, action, resource);\n\
         @id(\"no-greet\") forbid (principal, action == Action::\"use:prompts\", resource)\n\
         when { resource.server == \"box\" && resource.id == \"box.greet\" };",
    );
    let changed = || -> Vec<[String; 3]> {
        let (found, exit) = place.json(&["policy", "replay", "--policy", "other.cedar"]);
        assert_eq!(exit, 1, "{found}");
        let changes = found["changes"].as_array().expect("changes").iter();
        let mut changes: Vec<[String; 3]> = changes
            .map(|change| {
                [&change["toolId"], &change["before"]["decision"], &change["after"]["rule"]]
                    .map(|value| value.as_str().expect("text").to_owned())
            })
            .collect();
        changes.sort_unstable();
        changes
    };
    let blame = ["box.blame", "deny", "all"].map(ToOwned::to_owned);
    let greet = ["box.greet", "permit", "no-greet"].map(ToOwned::to_owned);
    assert_eq!(changed(), [blame.clone(), greet.clone()]);
    let explained = |call: &str| place.json(&["policy", "explain", "--call", call]).0;
    let first = explained("early");
    assert_eq!(first["inputs"]["rule"], "whitelist", "{first}");
    let now = (&first["now"]["decision"], &first["now"]["rule"]);
    assert_eq!(now, (&json!("deny"), &json!("whitelist")), "{first}");
    // A wider whitelist does not tell whether the arguments of a call would have fitted. Requests are judged by it.
    listed("\"web_search\", \"box.*\"");
    let wider = place.json(&["policy", "replay"]).0;
    assert_eq!((&wider["changed"], &wider["same"]), (&json!(0), &json!(4)), "{wider}");
    assert!(has(&wider, early), "{wider}");
    let file = ["box.file:///b", "deny", "all"].map(ToOwned::to_owned);
    assert_eq!(changed(), [blame, file, greet]);
    assert_eq!(explained("early")["unjudged"], early);

    let denied = events(&place, "POLICY_DENIED");
    let blame = denied.iter().find(|event| event["toolName"] == "box.blame").expect("an event");
    let blame = explained(blame["callId"].as_str().expect("an id"));
    assert_eq!(blame["inputs"]["item"], json!({ "kind": "prompt", "server": "box" }), "{blame}");
    let now = ["decision", "rule", "code"].map(|name| &blame["now"][name]);
    assert_eq!(now, ["deny", "no-blame", "policy-denied"], "{blame}");
    place.assert_sound();
}

#[test]
fn a_policy_that_only_denied_is_kept_too() {
    let place = place();
    place.write("toolbooth.toml", &format!("{SETTINGS}[flags]\nmcp_tools = false\n"));
    let (denied, _) = place.json(&["call", "calculator", "--args", r#"{"expression":"1+1"}"#]);
    assert_eq!(denied["error"]["code"], "tools-disabled", "{denied}");
    let event = &events(&place, "POLICY_DENIED")[0];
    let version = event["policyVersion"].as_str().expect("a version").to_owned();
    let (diff, exit) = place.json(&["policy", "diff", &version, "rules.cedar"]);
    assert_eq!((&diff["same"], exit), (&json!(1), 0), "{diff}");
    let replayed = || place.json(&["policy", "replay"]).0;
    assert_eq!(replayed()["same"], 1);
    place.write("toolbooth.toml", SETTINGS);
    assert!(replayed()["reasons"].to_string().contains("and now would not be"));
    place.assert_sound();
}

#[test]
fn a_call_that_others_would_have_to_approve_has_changed() {
    let place = Place::new();
    let rules = |approvers: &str| {
        format!(
            "@id(\"ask\") @approval(\"{approvers}\") permit (principal, action, resource is Tool);\n"
        )
    };
    place.write("toolbooth.toml", "[policy]\nrules = \"rules.cedar\"\n");
    place.write("rules.cedar", &rules("one")).write("two.cedar", &rules("two"));
    let gateway = place.serve();
    assert_eq!(gateway.post("/v1/calls", &body("1+1", "c1")).0, 403);
    gateway.stop();
    let same = place.json(&["policy", "replay"]);
    assert_eq!((&same.0["changed"], &same.0["same"], same.1), (&json!(0), &json!(1), 0));
    let (found, exit) = place.json(&["policy", "replay", "--policy", "two.cedar"]);
    let [change] = found["changes"].as_array().expect("changes").as_slice() else {
        panic!("{found}");
    };
    let of = |value: &Value| (value["decision"].clone(), value["approvers"].clone());
    assert_eq!(of(&change["before"]), (json!("approval"), json!("one")), "{found}");
    assert_eq!(of(&change["after"]), (json!("approval"), json!("two")), "{found}");
    assert_eq!(exit, 1);
    let table = place.run(&["policy", "replay", "--policy", "two.cedar"]);
    let table = String::from_utf8_lossy(&table.stdout).into_owned();
    assert!(
        table.contains(": approval of `one` by `ask`, now approval of `two` by `ask`: "),
        "{table}"
    );
}
