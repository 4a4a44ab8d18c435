//! Tests the records as operators and auditors use them: asynchronous calls, unknown outcomes, proofs,
//! exports, backups and retention.
//!
//! Path: 1, 6, 9, 10. Doc: records.md#proofs, records.md#exports, records.md#backups

use std::process::Stdio;

use serde_json::{Value, json};
use toolbooth_tests::waiting::{self, Running};
use toolbooth_tests::{Place, RunningGateway, request, torture};

const ASYNC: [(&str, &str); 1] = [("Prefer", "respond-async")];

fn until(gateway: &RunningGateway, id: &str, fits: impl Fn(&Value) -> bool) -> Value {
    let mut last = Value::Null;
    waiting::until(&format!("the state of call {id}"), || {
        let (status, call) = gateway.get(&format!("/v1/calls/{id}"));
        last = call;
        status == 200 && fits(&last)
    });
    last
}

fn submit(gateway: &RunningGateway, body: &str) -> (u16, Value) {
    request(&gateway.address, "POST", "/v1/calls", body, &ASYNC).unwrap()
}

#[test]
fn a_call_that_is_handed_over_survives_its_worker_and_never_runs_twice() {
    let place = torture::place("[proxy]\nworkers = 0\n");
    let gateway = place.serve();
    let body = r#"{"toolId":"raw.do","args":{"key":"a","ms":3000},"context":{"callId":"a"}}"#;
    let (status, call) = submit(&gateway, body);
    assert_eq!((status, &call["state"]), (202, &json!("queued")), "{call}");
    assert_eq!(submit(&gateway, body).0, 202, "the same call");
    let other = r#"{"toolId":"raw.do","args":{"key":"b"},"context":{"callId":"a"}}"#;
    assert_eq!(submit(&gateway, other).0, 422, "another call under its id");
    assert_eq!(gateway.get("/v1/calls/unknown").0, 404);
    let worker =
        || Running::start(place.command(&["worker"]).stdin(Stdio::null()).stderr(Stdio::null()));
    let mut first = worker();
    until(&gateway, "a", |call| call["state"] == "running");
    let effects =
        || std::fs::read_to_string(place.path().join("handlers/effects.txt")).unwrap_or_default();
    waiting::until("the tool runs", || !effects().is_empty());
    first.kill();
    let mut second = worker();
    let done = until(&gateway, "a", |call| call["state"] == "done");
    assert_eq!(done["result"]["error"]["code"], "call-in-doubt", "{done}");
    assert_eq!(effects().lines().count(), 1, "it ran once");
    let cancelled = r#"{"toolId":"raw.do","args":{"key":"c"},"context":{"callId":"c"}}"#;
    second.kill();
    assert_eq!(submit(&gateway, cancelled).0, 202);
    let (status, _) = request(&gateway.address, "DELETE", "/v1/calls/c", "", &[]).unwrap();
    assert_eq!(status, 202);
    let mut third = worker();
    let done = until(&gateway, "c", |call| call["state"] == "done");
    assert_eq!(done["result"]["error"]["code"], "cancelled", "{done}");
    assert_eq!(request(&gateway.address, "DELETE", "/v1/calls/c", "", &[]).unwrap().0, 409);
    third.kill();
    let (status, receipts) = gateway.operator_get("/v1/receipts?state=in_doubt");
    assert_eq!((status, receipts["receipts"].as_array().unwrap().len()), (200, 1), "{receipts}");
    let id = receipts["receipts"][0]["receiptId"].as_str().unwrap();
    assert_eq!(gateway.operator_get(&format!("/v1/receipts/{id}")).1, receipts["receipts"][0]);
    let (status, logs) = gateway
        .operator_get("/v1/agent-logs?error=true&tool=raw.do&since=2026-01-01T00:00:00.000Z");
    assert_eq!((status, logs["logs"].as_array().unwrap().len()), (200, 2), "{logs}");
    for wrong in ["receipts?state=lost", "agent-logs?since=yesterday", "agent-logs?tun=1"] {
        assert_eq!(gateway.operator_get(&format!("/v1/{wrong}")).0, 400, "{wrong}");
    }
    assert_eq!(gateway.operator_get("/v1/agent-logs/nothing").0, 404);
    assert_eq!(effects().lines().count(), 1);
    gateway.stop();
    place.assert_sound();
}

#[test]
fn a_person_settles_a_doubt_and_later_calls_get_it() {
    let place = torture::place("");
    let registry = place.path().join("tools.registry.json");
    let text = std::fs::read_to_string(&registry).unwrap();
    // The tool has its effect and then never ends. The limit allows a slow start of its process. A call that
    // is stopped before its process has started has a known outcome.
    place.write("tools.registry.json", &text.replace("20000", "15000"));
    let slow = ["call", "pay.do", "--args", r#"{"key":"k","ms":6000000}"#];
    let (result, exit) = place.json(&slow);
    assert_eq!((&result["error"]["code"], exit), (&json!("timeout"), 1), "{result}");
    let effects = std::fs::read_to_string(place.path().join("handlers/effects.txt")).unwrap();
    assert_eq!(effects.lines().count(), 1, "the tool had begun: {effects}");
    let receipt = result["receiptId"].as_str().unwrap();
    assert_eq!(place.json(&slow).0["error"]["code"], "call-in-doubt");
    let (listed, _) = place.json(&["receipts", "list", "--state", "in_doubt"]);
    assert_eq!(listed["receipts"][0]["receiptId"], receipt);
    let said = r#"{"order": 17}"#;
    let resolve = ["receipts", "resolve", receipt, "--as", "succeeded", "--result", said];
    let (resolved, exit) = place.json(&resolve);
    assert_eq!((&resolved["state"], exit), (&json!("succeeded"), 0), "{resolved}");
    let (again, exit) = place.json(&resolve);
    assert_eq!((&again["error"]["code"], exit), (&json!("not-in-doubt"), 1));
    let (replay, exit) = place.json(&slow);
    assert_eq!((&replay["structuredContent"], exit), (&json!({"order": 17}), 0), "{replay}");
    assert_eq!(replay["replayed"], true);
    let (events, _) = place.json(&["audit", "query"]);
    let resolved = events["events"].as_array().unwrap();
    assert!(
        resolved
            .iter()
            .any(|event| event["event"] == "RECEIPT_RESOLVED" && event["facts"]["by"] == "operator")
    );
    place.assert_sound();
}

#[test]
fn an_auditor_needs_only_an_export_a_key_and_a_checkpoint() {
    let place = Place::new();
    place.write("toolbooth.toml", "[audit]\ncheckpoint_file = \"kept.txt\"\n");
    let call = |n: u32| {
        let args = format!(r#"{{"expression":"{n}"}}"#);
        place.json(&["call", "calculator", "--args", &args]).0["callId"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    let (first, _) = (call(1), call(2));
    let kept = std::fs::read_to_string(place.path().join("kept.txt")).unwrap();
    assert_eq!(kept.matches("toolbooth-audit/").count(), 2, "{kept}");
    let key = place.json(&["audit", "keys"]).0["keys"][0].as_str().unwrap().to_owned();
    let proof = place.run(&["audit", "prove", &first]);
    std::fs::write(place.path().join("call.proof"), &proof.stdout).unwrap();
    let check = ["audit", "verify", "--proof", "call.proof", "--key", &key];
    assert_eq!(place.json(&check).1, 0);
    let text = String::from_utf8(proof.stdout).unwrap();
    place.write("call.proof", &text.replacen("calculator", "calculatoR", 1));
    let (told, exit) = place.json(&check);
    assert_eq!((&told["ok"], exit), (&json!(false), 1), "{told}");
    assert_eq!(place.json(&["audit", "verify", "--proof", "call.proof"]).1, 2, "without a key");
    assert!(place.run(&["audit", "export", "--out", "log.jsonl"]).status.success());
    assert_eq!(place.run(&["audit", "export", "--out", "log.jsonl"]).status.code(), Some(2));
    let verify =
        ["audit", "verify", "--file", "log.jsonl", "--key", &key, "--checkpoint", "kept.txt"];
    let (report, exit) = place.json(&verify);
    assert_eq!((&report["ok"], exit), (&json!(true), 0), "{report}");
    let other =
        ["audit", "verify", "--file", "log.jsonl", "--key", &key, "--checkpoint", "toolbooth.toml"];
    assert_eq!(place.json(&other).1, 2, "that file has no checkpoint");
    // The log of the newest writer is removed with its head, so only the external checkpoint reveals that.
    let log = std::fs::read_to_string(place.path().join("log.jsonl")).unwrap();
    let writer =
        serde_json::from_str::<Value>(log.lines().last().unwrap()).unwrap()["heads"][1]["writer"]
            .as_str()
            .unwrap()
            .to_owned();
    let mut cut: Vec<String> = log
        .lines()
        .filter(|line| !line.contains(&format!("\"writer\":\"{writer}\"")))
        .map(str::to_owned)
        .collect();
    let mut ends: Value = serde_json::from_str(log.lines().last().unwrap()).unwrap();
    ends["heads"].as_array_mut().unwrap().remove(1);
    cut.push(ends.to_string());
    place.write("log.jsonl", &format!("{}\n", cut.join("\n")));
    let (alone, exit) = place.json(&["audit", "verify", "--file", "log.jsonl", "--key", &key]);
    assert_eq!(exit, 0, "a whole log that is gone leaves no trace inside: {alone}");
    let (report, exit) = place.json(&verify);
    assert_eq!((&report["problems"][0]["kind"], exit), (&json!("missing"), 1), "{report}");
    assert_eq!(report["problems"][0]["writer"], writer.as_str());
    assert_eq!(place.json(&["audit", "verify", "--file", "nowhere.jsonl"]).1, 3);
    let ocsf = place.run(&["audit", "export", "--format", "ocsf"]);
    let lines = String::from_utf8(ocsf.stdout).unwrap();
    assert!(
        lines.lines().all(|line| serde_json::from_str::<Value>(line).unwrap()["class_uid"] == 6003)
    );
    let (stats, _) = place.json(&["audit", "stats"]);
    assert_eq!(
        (&stats["tools"][0]["toolName"], &stats["tools"][0]["calls"]),
        (&json!("calculator"), &json!(2))
    );
}

fn checks_of<'r>(report: &'r Value, name: &str) -> Vec<&'r Value> {
    let checks = report["checks"].as_array().unwrap();
    checks.iter().filter(|check| check["name"] == name).collect()
}

#[test]
fn a_backup_is_put_back_and_nothing_runs_before_an_operator_accepts_it() {
    let place = torture::place("");
    let pay = |key: &str| {
        let args = json!({ "key": key }).to_string();
        place.json(&["call", "pay.do", "--args", &args])
    };
    assert_eq!(pay("a").1, 0);
    let gateway = place.serve();
    let pins = place.path().join(".toolbooth/tools.pins.json");
    std::fs::write(&pins, "the pins of then").unwrap();
    let copied = place.run(&["store", "backup", "copy"]);
    let told = String::from_utf8_lossy(&copied.stderr);
    assert!(
        copied.status.success() && told.contains("move it away"),
        "while a gateway runs: {told}"
    );
    std::fs::remove_file(&pins).unwrap();
    assert_eq!(place.json(&["store", "backup", "copy"]).1, 2, "it is there already");
    assert_eq!(place.json(&["store", "restore", "copy"]).1, 1, "the store is in use");
    gateway.stop();
    assert_eq!(pay("b").1, 0);
    let (restored, exit) = place.json(&["store", "restore", "copy"]);
    assert_eq!(exit, 0, "{restored}");
    assert_eq!(std::fs::read_to_string(&pins).unwrap(), "the pins of then");
    // The replaced store has keys too: it is where no tool may read.
    let kept = std::path::Path::new(restored["kept"].as_str().unwrap());
    assert!(kept.join("toolbooth.db").is_file(), "{restored}");
    assert!(kept.starts_with(place.path().join(".toolbooth")), "{restored}");
    std::fs::remove_file(&pins).unwrap();
    let (refused, exit) = pay("b");
    assert_eq!((&refused["error"]["code"], exit), (&json!("store-unavailable"), 3), "{refused}");
    assert!(refused["error"]["hint"].as_str().unwrap().contains("accept-restore"));
    for verify in [&["audit", "verify"][..], &["audit", "verify", "--store", ".toolbooth"]] {
        let (report, exit) = place.json(verify);
        assert_eq!((&report["problems"][0]["kind"], exit), (&json!("missing"), 1), "{report}");
    }
    assert_eq!(place.json(&["audit", "accept-restore"]).1, 0);
    assert_eq!(pay("a").0["replayed"], true, "what the backup knows does not run again");
    place.assert_sound();
    assert_eq!(place.json(&["store", "vacuum"]).1, 0);
    assert_eq!(place.json(&["store", "restore", "nowhere"]).1, 2);
    // A store without its database is restored too, and detects that it is behind its checkpoint.
    assert_eq!(pay("c").1, 0);
    std::fs::remove_file(place.path().join(".toolbooth/toolbooth.db")).unwrap();
    let (restored, exit) = place.json(&["store", "restore", "copy"]);
    assert_eq!(exit, 0, "{restored}");
    std::fs::remove_file(&pins).unwrap();
    assert_eq!(pay("c").1, 3, "what the checkpoint covers is missing");
    assert_eq!(place.json(&["audit", "accept-restore"]).1, 0);
    assert_eq!(pay("a").0["replayed"], true);
    place.assert_sound();
    // Without the key, or with another one, asynchronous calls cannot be compared with their events.
    let key = place.path().join(".toolbooth/digest.key");
    std::fs::write(&key, "ab".repeat(32)).unwrap();
    let (report, exit) = place.json(&["audit", "verify"]);
    let told = report["problems"].as_array().unwrap();
    assert_eq!((told.len(), &told[0]["kind"], exit), (1, &json!("digest-key-missing"), 1));
    assert!(told[0]["message"].as_str().unwrap().contains("is not known here"), "{report}");
    let (checked, _) = place.json(&["doctor"]);
    let checks = checks_of(&checked, "store");
    assert!(checks[0]["message"].as_str().unwrap().contains("is not known here"), "{checked}");
    std::fs::remove_file(place.path().join(".toolbooth/digest.key")).unwrap();
    let (report, exit) = place.json(&["audit", "verify"]);
    assert_eq!(
        (&report["problems"][0]["kind"], exit),
        (&json!("digest-key-missing"), 1),
        "{report}"
    );
}

#[test]
fn a_store_is_bounded_by_half_of_what_is_free_at_its_first_start() {
    let place = Place::new();
    let call = ["call", "calculator", "--args", "{\"expression\": \"1+1\"}"];
    assert_eq!(place.json(&call).1, 0);
    let file = place.path().join(".toolbooth/bytes-max");
    let bound = || std::fs::read_to_string(&file).unwrap();
    let first = bound();
    let bytes: u64 = first.trim().parse().unwrap();
    assert!((16 << 20..=21 << 30).contains(&bytes), "{bytes}");
    assert_eq!(place.json(&call).1, 0);
    assert_eq!(bound(), first, "it stays");
    let store = |place: &Place| {
        let (doctor, _) = place.json(&["doctor"]);
        let checks = doctor["checks"].as_array().unwrap().clone();
        let check = checks.into_iter().find(|check| check["name"] == "store").unwrap();
        check["message"].as_str().unwrap().to_owned()
    };
    let mib = bytes as f64 / f64::from(1 << 20);
    let said = store(&place);
    assert!(said.ends_with(&format!(" of {mib:.1} MiB used")), "{said}");
    // An unreadable limit bounds nothing, so nothing starts.
    std::fs::write(&file, "much").unwrap();
    let (refused, exit) = place.json(&call);
    assert_eq!(exit, 3, "{refused}");
    assert!(refused["error"]["message"].as_str().unwrap().contains("no number"), "{refused}");
    // The configured limit takes precedence over the stored one.
    place.write("toolbooth.toml", "[store]\nbytes_max = 33554432\n");
    assert_eq!(place.json(&call).1, 0);
    assert!(store(&place).ends_with(" of 32.0 MiB used"));
}

#[test]
fn old_records_go_and_their_keys_stay() {
    let place = torture::place(
        "[receipts.tools]\n\"mail.*\" = \"digest\"\n[audit.tools]\n\"mail.*\" = \"none\"\n",
    );
    let pay = ["call", "pay.do", "--args", r#"{"key":"a"}"#];
    assert_eq!(place.json(&pay).1, 0);
    let mail = ["call", "mail.do", "--args", r#"{"key":"a"}"#, "--idempotency-key", "m"];
    assert_eq!(place.json(&mail).1, 0);
    let (replayed, _) = place.json(&mail);
    assert_eq!(
        (&replayed["content"], &replayed["warnings"]),
        (&json!([]), &json!(["result-not-kept"]))
    );
    let (logs, _) = place.json(&["logs", "query", "--tool", "mail.do"]);
    assert!(logs["logs"][0]["input"].is_null() && logs["logs"][0]["output"].is_null(), "{logs}");
    for what in ["receipts", "logs", "audit"] {
        let (pruned, exit) = place.json(&["receipts", "prune", "--before", "0s", "--what", what]);
        assert_eq!(exit, 0, "{pruned}");
    }
    assert_eq!(place.json(&["receipts", "prune"]).1, 2, "nothing says what is old");
    let (again, exit) = place.json(&pay);
    assert_eq!((&again["replayed"], exit), (&json!(true), 0), "{again}");
    let effects = std::fs::read_to_string(place.path().join("handlers/effects.txt")).unwrap();
    assert_eq!(effects.lines().count(), 2, "{effects}");
    place.assert_sound();
}

#[test]
fn a_plan_that_is_submitted_again_after_a_digest_key_was_added_repeats_no_step() {
    let place = Place::new();
    let plan =
        r#"{"planId":"p","steps":[{"id":"a","tool":"calculator","args":{"expression":"1+1"}}]}"#;
    let run = || place.json(&["plan", plan]).0["steps"][0].clone();
    let first = run();
    assert_eq!((&first["success"], &first["replayed"]), (&json!(true), &json!(false)), "{first}");
    let path = place.path().join(".toolbooth/digest.key");
    let keys = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, format!("{}\n{keys}", "ab".repeat(32))).unwrap();
    let again = run();
    assert_eq!(again["replayed"], true, "{again}");
    assert_eq!(again["receiptId"], first["receiptId"]);
    place.assert_sound();
}
