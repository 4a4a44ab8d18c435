//! Tests approvals with the real gateway: asked for, decided from a second terminal and over HTTP, spent once.
//!
//! Path: 6. Doc: policy.md#approval, policy.md#notifications, front-doors.md#approvals, configuration.md#approvals

use std::io::{BufRead, BufReader, Read};

use data_encoding::BASE64;
use serde_json::{Value, json};
use toolbooth_tests::mcp::{Session, request};
use toolbooth_tests::waiting::until;
use toolbooth_tests::{Place, RunningGateway, waiting};

const RULES: &str = "\
@id(\"all\")
permit (principal, action, resource);

@id(\"products\") @reason(\"A person checks products.\") @approval(\"one\")
forbid (principal, action == Action::\"calculator\", resource)
when { context.args.expression like \"*\\**\" };

@id(\"quotients\") @approval(\"two\")
forbid (principal, action == Action::\"calculator\", resource)
when { context.args.expression like \"*/*\" };

@id(\"differences\") @approval(\"self\")
forbid (principal, action == Action::\"calculator\", resource)
when { context.args.expression like \"*-*\" };
";

pub(crate) fn place(approvals: &str) -> Place {
    let place = Place::new();
    let config = format!(
        "[policy]\nrules = \"rules.cedar\"\n[approvals]\n{approvals}\n\
         [callers.agents]\nmatch = [\"key:agent\"]\ntools = [\"*\"]\ngrants = [\"*\"]\n\
         [callers.ops]\nmatch = [\"group:ops\"]\ntools = [\"*\"]\ngrants = [\"*\"]\noperate = true\n"
    );
    place.write("toolbooth.toml", &config).write("rules.cedar", RULES);
    place
}

fn key(place: &Place, arguments: &[&str]) -> String {
    let (made, _) = place.json(&[&["keys", "create"], arguments].concat());
    made["key"].as_str().expect("a key").to_owned()
}

fn body(expression: &str) -> String {
    json!({ "toolId": "calculator", "args": { "expression": expression } }).to_string()
}

pub(crate) fn calculate(gateway: &RunningGateway, expression: &str) -> Value {
    gateway.post("/v1/calls", &body(expression)).1
}

/// Returns the code of a result, or `ok`.
pub(crate) fn code(answer: &Value) -> &str {
    answer["code"].as_str().unwrap_or("ok")
}

/// Returns the id of the approval that a call must wait for.
pub(crate) fn asked(answer: &Value) -> String {
    assert_eq!(code(answer), "approval-required", "{answer}");
    answer["details"]["approvalId"].as_str().expect("an id").to_owned()
}

/// Returns the ids of the approvals that can be decided.
pub(crate) fn listed(place: &Place) -> Vec<String> {
    let (found, _) = place.json(&["approvals", "list"]);
    let rows = found["approvals"].as_array().expect("approvals");
    rows.iter().map(|row| row["approvalId"].as_str().expect("an id").to_owned()).collect()
}

fn events(place: &Place, kind: &str) -> usize {
    let (found, _) = place.json(&["audit", "query", "--limit", "100000"]);
    let events = found["events"].as_array().expect("events");
    events.iter().filter(|event| event["event"] == kind).count()
}

#[test]
fn an_approval_is_granted_from_a_second_terminal_and_spent_once() {
    let place = place("");
    assert_eq!(listed(&place), Vec::<String>::new());
    let gateway = place.serve();
    let id = asked(&calculate(&gateway, "2*3"));
    assert_eq!(asked(&calculate(&gateway, "2*3")), id, "it is asked for once");
    assert_eq!(listed(&place), [id.as_str()]);
    let (shown, _) = place.json(&["approvals", "show", &id]);
    assert_eq!(shown["arguments"], json!({ "expression": "2*3" }));
    assert_eq!((&shown["rule"], &shown["caller"]), (&json!("products"), &json!("local")));
    let table = place.run(&["approvals", "list"]);
    let table = String::from_utf8_lossy(&table.stdout).into_owned();
    assert!(table.contains("calculator") && table.contains(&id), "{table}");
    // The agent is told the id, and when to ask again.
    let session = Session::begin(&gateway);
    let arguments = json!({ "name": "calculator", "arguments": { "expression": "2*3" } });
    let told = session.post(&request(3, "tools/call", arguments)).answer().json();
    let meta = &told["result"]["_meta"];
    assert_eq!(meta["toolbooth/details"]["approvalId"], json!(id), "{told}");
    assert!(meta["toolbooth/retryAfterMs"].is_u64(), "{told}");
    assert!(told["result"]["content"][0]["text"].as_str().is_some_and(|text| text.contains(&id)));

    let (granted, exit) = place.json(&["approvals", "approve", &id, "--reason", "it is small"]);
    assert_eq!((&granted["state"], exit), (&json!("granted"), 0));
    assert_eq!(granted["decisions"][0]["by"], "operator");
    let again = place.run(&["approvals", "approve", &id]);
    assert!(String::from_utf8_lossy(&again.stderr).contains("granted already"), "{again:?}");
    assert_eq!(again.status.code(), Some(1));
    // Other arguments are another call. The grant survives the gateway.
    assert_ne!(asked(&calculate(&gateway, "3*3")), id);
    gateway.stop();
    let gateway = place.serve();
    assert_eq!(code(&calculate(&gateway, "2*3")), "ok");
    assert_ne!(asked(&calculate(&gateway, "2*3")), id, "it is spent");
    gateway.stop();
    assert_eq!((events(&place, "APPROVAL_REQUESTED"), events(&place, "APPROVAL_GRANTED")), (3, 1));
    let missing = place.run(&["approvals", "reject", "nothing"]);
    assert_eq!(missing.status.code(), Some(1));
    place.assert_sound();
}

#[test]
fn a_waiting_call_runs_when_another_process_grants_it() {
    let place = place("wait_ms = 120000");
    let gateway = place.serve();
    // Otherwise the gateway itself would decide.
    for entry in std::fs::read_dir(place.path().join(".toolbooth")).unwrap().flatten() {
        if entry.file_name().to_string_lossy().ends_with(".sock") {
            std::fs::remove_file(entry.path()).unwrap();
        }
    }
    std::thread::scope(|scope| {
        let call = scope.spawn(|| calculate(&gateway, "6*7"));
        until("the approval is listed", || listed(&place).len() == 1);
        assert!(!call.is_finished());
        let id = listed(&place).remove(0);
        assert_eq!(place.json(&["approvals", "approve", &id]).1, 0);
        let answer = call.join().expect("an answer");
        assert_eq!(answer["content"][0]["text"], "42", "{answer}");
    });
    gateway.stop();
    place.assert_sound();
}

#[test]
fn an_asynchronous_call_that_is_cancelled_while_it_waits_does_not_run() {
    let place = place("wait_ms = 120000");
    let headers = [("Prefer", "respond-async")];
    let gateway = place.serve();
    let send = |method: &str, path: &str, body: &str| {
        toolbooth_tests::request(&gateway.address, method, path, body, &headers).expect("an answer")
    };
    for number in 0..4 {
        let (status, call) = send("POST", "/v1/calls", &body(&format!("7*{number}")));
        assert_eq!(status, 202, "{call}");
        until("it waits", || listed(&place).len() == 1);
        let path = format!("/v1/calls/{}", call["callId"].as_str().expect("an id"));
        assert_eq!(send("DELETE", &path, "").0, 202);
        assert_eq!(place.json(&["approvals", "approve", &listed(&place)[0]]).1, 0);
        let mut call = Value::Null;
        until("it is done", || {
            call = gateway.get(&path).1;
            call["state"] == "done"
        });
        assert_eq!(call["result"]["error"]["code"], "cancelled", "{call}");
    }
    gateway.stop();
    place.assert_sound();
}

/// Asynchronous calls that wait for an approval return to the queue when the gateway ends.
#[test]
fn a_restart_ends_no_call_that_waits() {
    let place = place("wait_ms = 120000");
    let headers = [("Prefer", "respond-async")];
    let gateway = place.serve();
    let ids: Vec<String> = (2..8)
        .map(|number| {
            let body = body(&format!("10*{number}"));
            let sent =
                toolbooth_tests::request(&gateway.address, "POST", "/v1/calls", &body, &headers);
            let (status, call) = sent.expect("an answer");
            assert_eq!(status, 202, "{call}");
            call["callId"].as_str().expect("an id").to_owned()
        })
        .collect();
    until("all of them wait", || listed(&place).len() == ids.len());
    gateway.stop();
    let gateway = place.serve();
    for id in &listed(&place) {
        assert_eq!(place.json(&["approvals", "approve", id]).1, 0);
    }
    for (id, number) in ids.iter().zip(2..8) {
        let mut call = Value::Null;
        until("it is done", || {
            call = gateway.get(&format!("/v1/calls/{id}")).1;
            call["state"] == "done"
        });
        let text = &call["result"]["content"][0]["text"];
        assert_eq!(*text, (10 * number).to_string(), "{call}");
    }
    gateway.stop();
    place.assert_sound();
}

#[test]
fn the_right_persons_decide_over_http() {
    let place = place("");
    let agent = key(&place, &["agent"]);
    let [a, b] = ["a", "b"].map(|name| key(&place, &[name, "--group", "ops"]));
    let stranger = key(&place, &["stranger"]);
    let gateway = place.serve();
    let call = |token: &str, expression: &str| {
        gateway.ask_as(token, "POST", "/v1/calls", &body(expression)).1
    };
    let decide = |token: &str, id: &str, decision: &str| {
        let body = json!({ "decision": decision, "reason": "by the test" }).to_string();
        let (status, answer) = gateway.ask_as(token, "POST", &format!("/v1/approvals/{id}"), &body);
        (status, answer["state"].as_str().unwrap_or(code(&answer)).to_owned())
    };
    let told = |status: u16, word: &str| (status, word.to_owned());
    // Two different persons, and never the caller.
    let two = asked(&call(&agent, "8/2"));
    assert_eq!(decide(&agent, &two, "approve"), told(403, "policy-denied"));
    assert_eq!(decide(&stranger, &two, "approve"), told(404, "not-found"));
    assert_eq!(decide(&a, &two, "approve"), told(200, "pending"));
    assert_eq!(decide(&a, &two, "approve"), told(403, "policy-denied"));
    assert_eq!(asked(&call(&agent, "8/2")), two);
    assert_eq!(decide(&b, &two, "approve"), told(200, "granted"));
    assert_eq!(code(&call(&agent, "8/2")), "ok");
    assert_eq!(decide(&b, &two, "approve"), told(409, "already-decided"));
    // The caller itself, where the rule says so, by its own credentials only.
    let own = asked(&call(&agent, "8-2"));
    assert_eq!(decide(&stranger, &own, "approve"), told(404, "not-found"));
    assert_eq!(decide(&agent, &own, "approve"), told(200, "granted"));
    assert_eq!(code(&call(&agent, "8-2")), "ok");
    // A connection of the gateway's own user is `local`, also where it decides.
    let locals = asked(&calculate(&gateway, "8-3"));
    assert_eq!(decide(&agent, &locals, "approve"), told(404, "not-found"));
    let path = format!("/v1/approvals/{locals}");
    let (status, granted) = gateway.post(&path, r#"{"decision":"approve"}"#);
    assert_eq!((status, &granted["state"]), (200, &json!("granted")), "{granted}");
    assert_eq!(code(&calculate(&gateway, "8-3")), "ok");
    let locals = asked(&calculate(&gateway, "8*3"));
    let path = format!("/v1/approvals/{locals}");
    assert_eq!(gateway.post(&path, r#"{"decision":"approve"}"#).0, 403);
    assert_eq!(decide(&a, &locals, "approve"), told(200, "granted"));
    // A rejection.
    let no = asked(&call(&agent, "8*2"));
    assert_eq!(decide(&a, &no, "reject"), told(200, "rejected"));
    assert_eq!(code(&call(&agent, "8*2")), "approval-rejected");
    // An operator does not approve its own call.
    let mine = asked(&call(&a, "9*2"));
    assert_eq!(decide(&a, &mine, "approve"), told(403, "policy-denied"));
    assert_eq!(decide(&b, &mine, "approve"), told(200, "granted"));
    // What decides is one method with one form.
    let path = format!("/v1/approvals/{}", asked(&call(&agent, "7*2")));
    for (method, body, status) in [
        ("GET", "", 200),
        ("PUT", r#"{"decision":"approve"}"#, 405),
        ("POST", "", 400),
        ("POST", r#"{"decision":"maybe"}"#, 400),
        ("POST", r#"{"decision":"approve","more":1}"#, 400),
    ] {
        assert_eq!(gateway.ask_as(&a, method, &path, body).0, status, "{method} {body}");
    }
    let long = json!({ "decision": "approve", "reason": "x".repeat(501) }).to_string();
    assert_eq!(gateway.ask_as(&a, "POST", &path, &long).0, 400);
    // Each caller lists its own, operators all.
    let list = |token: &str, query: &str| {
        let (_, found) = gateway.ask_as(token, "GET", &format!("/v1/approvals{query}"), "");
        found["approvals"].as_array().map(Vec::len)
    };
    assert_eq!((list(&agent, ""), list(&a, ""), list(&stranger, "")), (Some(4), Some(7), Some(0)));
    assert_eq!(list(&agent, "?caller=key:a"), Some(0));
    assert_eq!(list(&a, "?caller=key:a"), Some(1));
    assert_eq!((list(&a, "?state=pending"), list(&a, "?limit=2")), (Some(1), Some(2)));
    assert_eq!(list(&a, "?state=lost"), None);
    gateway.stop();
    assert_eq!((events(&place, "APPROVAL_GRANTED"), events(&place, "APPROVAL_REJECTED")), (6, 2));
    place.assert_sound();
}

#[test]
fn approvals_expire_and_another_rule_asks_anew() {
    let longer = place("expiry_ms = 1000\nwait_ms = 1000");
    let refused = longer.run(&["serve", "--http", "127.0.0.1:0"]);
    let told = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(refused.status.code() == Some(2) && told.contains("approvals.wait_ms"), "{told}");
    let place = place("expiry_ms = 1");
    let gateway = place.serve();
    let first = asked(&calculate(&gateway, "2*2"));
    assert_ne!(asked(&calculate(&gateway, "2*2")), first);
    let late = place.run(&["approvals", "approve", &first]);
    assert!(String::from_utf8_lossy(&late.stderr).contains("has expired"), "{late:?}");
    assert_eq!(listed(&place), Vec::<String>::new());
    gateway.stop();
    let place = self::place("");
    let gateway = place.serve();
    let id = asked(&calculate(&gateway, "2*2"));
    assert_eq!(place.json(&["approvals", "approve", &id]).1, 0);
    place.write("rules.cedar", &RULES.replace("A person checks", "A person checks all"));
    gateway.until_said("the policy is loaded", 1);
    assert_ne!(asked(&calculate(&gateway, "2*2")), id);
    gateway.stop();
    place.assert_sound();
}

#[test]
fn a_command_is_told_of_each_request_once() {
    let place = place("notify = { command = [\"sh\", \"tell.sh\", \"told\"] }");
    // The first attempt fails, and is made again.
    place.write(
        "tell.sh",
        "cat > line; echo >> line; [ -e once ] || { touch once; exit 3; }; cat line >> $1.txt",
    );
    let told = || std::fs::read_to_string(place.path().join("told.txt")).unwrap_or_default();
    let gateway = place.serve();
    let id = asked(&calculate(&gateway, "2*3"));
    until("the command has run", || !told().is_empty());
    assert_eq!(asked(&calculate(&gateway, "2*3")), id);
    let second = asked(&calculate(&gateway, "3*3"));
    until("the command has run again", || told().contains(&second));
    gateway.stop();
    let told: Vec<Value> =
        told().lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let ids: Vec<&Value> = told.iter().map(|notice| &notice["data"]["approvalId"]).collect();
    assert_eq!(ids, [&json!(id), &json!(second)]);
    let notice = &told[0];
    assert_eq!(
        (&notice["type"], &notice["data"]["rule"]),
        (&json!("approval.requested"), &json!("products"))
    );
    assert_eq!(notice["data"]["arguments"], json!({ "expression": "2*3" }));
    // A call from the command line ends when its notification is delivered.
    place.run(&["call", "calculator", "--args", r#"{"expression":"5*5"}"#]);
    let told = std::fs::read_to_string(place.path().join("told.txt")).expect("is told");
    assert!(told.contains("5*5"), "{told}");
}

#[test]
fn a_url_is_told_with_a_signature() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}/hook", listener.local_addr().expect("an address"));
    let notify =
        format!("notify = {{ url = \"{url}\", secret = {{ secret_ref = \"env:NOTIFY_KEY\" }} }}");
    let place = place(&notify);
    // Operators' commands do not need the key.
    assert_eq!(place.run(&["pause"]).status.code(), Some(0));
    assert_eq!(place.run(&["resume"]).status.code(), Some(0));
    let place = place.env("NOTIFY_KEY", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw");
    let gateway = place.serve();
    let id = asked(&calculate(&gateway, "2*3"));
    listener.set_nonblocking(true).expect("is set");
    let mut accepted = None;
    until("a request comes", || {
        accepted = listener.accept().ok();
        accepted.is_some()
    });
    let (mut stream, _) = accepted.expect("a request");
    stream.set_nonblocking(false).expect("is set");
    let (head, body) = read_request(&mut stream);
    std::io::Write::write_all(&mut stream, b"HTTP/1.1 204 No Content\r\n\r\n").expect("is written");
    let header = |name: &str| {
        let line = head.lines().find_map(|line| line.strip_prefix(&format!("{name}: ")));
        line.unwrap_or_else(|| panic!("{name} is in {head}")).to_owned()
    };
    assert!(head.starts_with("POST /hook "), "{head}");
    assert_eq!(header("webhook-id"), id);
    let key = BASE64.decode(b"MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").expect("base64");
    let key = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, &key);
    let signed = format!("{id}.{}.{body}", header("webhook-timestamp"));
    let signature = BASE64.encode(ring::hmac::sign(&key, signed.as_bytes()).as_ref());
    assert_eq!(header("webhook-signature"), format!("v1,{signature}"));
    gateway.stop();
    for (wrong, told) in [
        ("{ }", "either `command`, or `url` and `secret`"),
        ("{ command = [] }", "either `command`, or `url` and `secret`"),
        ("{ url = \"http://127.0.0.1:1/\" }", "either `command`, or `url` and `secret`"),
        ("{ url = \"ftp://x/\", secret = { secret_ref = \"env:PATH\" } }", "no URL of HTTP"),
        ("{ url = \"http://x/\", secret = { secret_ref = \"env:NOT_THERE\" } }", "NOT_THERE"),
        ("{ command = [\"./none.sh\"] }", "the program `./none.sh` is not there"),
    ] {
        let place = self::place(&format!("notify = {wrong}"));
        let refused = place.run(&["serve", "--http", "127.0.0.1:0"]);
        let words = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(refused.status.code() == Some(2) && words.contains(told), "{wrong}: {words}");
        let (report, _) = place.json(&["doctor"]);
        let failed = |check: &Value| check["state"] == "failed" && check.to_string().contains(told);
        assert!(report["checks"].as_array().expect("checks").iter().any(failed), "{report}");
    }
}

/// A redirect would hand the arguments and their signature to another address.
#[test]
fn a_redirected_notification_goes_nowhere_else() {
    let bind = || std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let (first, other) = (bind(), bind());
    let address = |of: &std::net::TcpListener| of.local_addr().expect("an address");
    let url = format!("http://{}/hook", address(&first));
    let place = place(&format!(
        "notify = {{ url = \"{url}\", secret = {{ secret_ref = \"env:NOTIFY_KEY\" }} }}"
    ))
    .env("NOTIFY_KEY", "a key");
    let gateway = place.serve();
    asked(&calculate(&gateway, "2*3"));
    first.set_nonblocking(true).expect("is set");
    let accept = || {
        let mut accepted = None;
        until("it is told", || {
            accepted = first.accept().ok();
            accepted.is_some()
        });
        let (stream, _) = accepted.expect("a connection");
        stream.set_nonblocking(false).expect("is set");
        stream
    };
    for status in ["307 Temporary Redirect", "302 Found"] {
        let mut stream = accept();
        assert!(read_request(&mut stream).0.starts_with("POST /hook "));
        let answer =
            format!("HTTP/1.1 {status}\r\nlocation: http://{}/hook\r\n\r\n", address(&other));
        std::io::Write::write_all(&mut stream, answer.as_bytes()).expect("is written");
    }
    let mut stream = accept();
    read_request(&mut stream);
    std::io::Write::write_all(&mut stream, b"HTTP/1.1 204 No Content\r\n\r\n").expect("is written");
    gateway.stop();
    other.set_nonblocking(true).expect("is set");
    let asked = other.accept().expect_err("nothing comes here");
    assert_eq!(asked.kind(), std::io::ErrorKind::WouldBlock);
}

#[test]
fn doctor_tells_how_approvals_are_reported() {
    let secret = "secret = { secret_ref = \"env:PATH\" }";
    for (notify, state, told) in [
        ("command = [\"./tell.sh\"]".to_owned(), "ok", "by `./tell.sh`"),
        (format!("url = \"http://127.0.0.1:1/x\", {secret}"), "ok", "to 127.0.0.1"),
        (format!("url = \"https://chat.example/x\", {secret}"), "ok", "to chat.example"),
        (format!("url = \"http://chat.example/x\", {secret}"), "warning", "without TLS"),
    ] {
        let place = place(&format!("notify = {{ {notify} }}"));
        place.write("tell.sh", "#!/bin/sh\n");
        let program = place.path().join("tell.sh");
        let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(program, executable).expect("is changed");
        // The program is sought in the folder of the configuration.
        let config = place.path().join("toolbooth.toml").display().to_string();
        let output = waiting::output_of(
            place.command(&["doctor", "--format", "json", "--config", &config]).current_dir("/"),
            b"",
        );
        let report: Value = serde_json::from_slice(&output.stdout).expect("a report");
        let mut checks = report["checks"].as_array().expect("checks").iter();
        let check = checks.find(|check| check["name"] == "notifications").expect("the check");
        assert_eq!(check["state"], state, "{check}");
        assert!(check["message"].as_str().expect("a message").contains(told), "{check}");
    }
}

/// Reads a request with a length; returns its head and its body.
fn read_request(stream: &mut std::net::TcpStream) -> (String, String) {
    let mut reader = BufReader::new(stream);
    let (mut head, mut length) = (String::new(), 0);
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).expect("a line");
        if let Some(value) = line.to_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().expect("a number");
        }
        if line.trim().is_empty() {
            break;
        }
        head.push_str(line.trim_end());
        head.push('\n');
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).expect("a body");
    (head, String::from_utf8(body).expect("text"))
}
