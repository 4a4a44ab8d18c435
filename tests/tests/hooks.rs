//! Tests the hooks of clients with their recorded messages: what is permitted and denied, and that every failure
//! denies in a form that blocks.
//!
//! Path: 1, 7. Doc: hooks.md#messages, hooks.md#answers, hooks.md#failures, hooks.md#tools, hooks.md#records,
//! hooks.md#settings, hooks.md#limits, configuration.md#hooks, hooks.md#decisions, hooks.md#caller

use std::collections::BTreeSet;
use std::io::Write;
use std::process::{Output, Stdio};

use serde_json::{Value, json};
use toolbooth_tests::mcp::{self, Peer};
use toolbooth_tests::{Place, STATE, binary, repository, waiting};

const CLIENTS: [&str; 3] = ["claude", "codex", "gemini"];

const CONFIG: &str = "[hooks.claude]\n[hooks.codex]\n[hooks.gemini]\n";

const RULES: &str = "\
@id(\"all\")
permit (principal, action, resource);

@id(\"no-removal\") @reason(\"Nothing is removed as a whole.\")
forbid (principal, action in [Action::\"claude.Bash\", Action::\"codex.Bash\", Action::\"gemini.run_shell_command\"], resource)
when { context.args.command like \"*rm -rf*\" };

@id(\"pushes\") @reason(\"A person looks at what is pushed.\") @approval(\"one\")
forbid (principal, action == Action::\"claude.Bash\", resource)
when { context.args.command like \"git push*\" };

@id(\"web\") @reason(\"Agents do not use the web.\")
forbid (principal, action in Action::\"permission:read:web\", resource);

@id(\"writes\") @reason(\"Two files an hour are enough.\")
forbid (principal, action in Action::\"permission:write:files\", resource)
when { context.history.writes.count > 2 };
";

fn place(more: &str) -> Place {
    let place = Place::new();
    place.write("toolbooth.toml", &format!("{CONFIG}{more}"));
    place
}

fn ruled() -> Place {
    let place = place(
        "[policy]\nrules = \"rules.cedar\"\n[policy.history.writes]\ntool = \"claude.Write\"\nwindow = \"1h\"\n",
    );
    place.write("rules.cedar", RULES);
    place
}

/// Returns the recorded messages of a client.
fn recorded(client: &str) -> Vec<Value> {
    let path = repository().join(format!("tests/fixtures/hooks/{client}.jsonl"));
    let text = std::fs::read_to_string(path).expect("is read");
    text.lines().map(|line| serde_json::from_str(line).expect("a message")).collect()
}

/// Returns a message of a client about one of its tools.
fn message(client: &str, tool: &str, input: Value) -> Value {
    let mut message = recorded(client).swap_remove(0);
    message["tool_name"] = json!(tool);
    message["tool_input"] = input;
    message
}

fn bash(command: &str) -> Value {
    message("claude", "Bash", json!({ "command": command }))
}

fn ask(place: &Place, client: &str, message: &Value) -> Output {
    let mut command = place.command(&["hook", client]);
    waiting::output_of(&mut command, message.to_string().as_bytes())
}

/// Whether a call may run, and what is said if not. Fails if it is neither permitted nor denied in the form that
/// blocks at every client.
fn answer(output: &Output) -> Result<(), String> {
    let out = String::from_utf8_lossy(&output.stdout).into_owned();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    match output.status.code() {
        Some(0) => {
            assert_eq!((out.as_str(), said.as_str()), ("", ""));
            Ok(())
        }
        Some(2) => {
            assert!(!said.trim().is_empty() && out.is_empty(), "{said}\n{out}");
            Err(said)
        }
        code => panic!("{code:?} lets the call run: {said}"),
    }
}

fn asked(place: &Place, client: &str, message: &Value) -> Result<(), String> {
    answer(&ask(place, client, message))
}

fn denied(place: &Place, client: &str, message: &Value) -> String {
    asked(place, client, message).expect_err("is denied")
}

fn logs(place: &Place) -> Vec<Value> {
    let (found, _) = place.json(&["logs", "query", "--limit", "1000"]);
    found["logs"].as_array().cloned().expect("logs")
}

#[test]
fn every_recorded_call_is_judged_and_recorded() {
    let place = place("");
    for client in CLIENTS {
        let mut expected = BTreeSet::new();
        for message in recorded(client) {
            let tool = message["tool_name"].as_str().expect("a name");
            expected.insert(format!("{client}.{tool}"));
            let answer = asked(&place, client, &message);
            if tool.starts_with("mcp_") {
                // A server that does not pass the gateway has no registered tools.
                let said = answer.expect_err("is denied");
                assert!(said.contains("(unregistered-tool)"), "{said}");
                assert!(said.contains(&format!("`{client}.{tool}`")), "{said}");
            } else {
                assert_eq!(answer, Ok(()), "{message}");
            }
        }
        let logs = logs(&place);
        let own = logs.iter().filter(|log| log["agentId"] == *client);
        let logged: BTreeSet<String> =
            own.map(|log| log["toolName"].as_str().expect("an id").to_owned()).collect();
        assert_eq!(logged, expected);
    }
    let (list, _) = place.json(&["receipts", "list", "--tool", "gemini.replace"]);
    assert_eq!(list["receipts"][0]["effect"], "completed", "{list}");
    let log = logs(&place).into_iter().find(|log| log["toolName"] == "claude.Bash").expect("a log");
    assert_eq!(log["caller"], "local");
    assert!(
        log["decisionInputs"]["sessionId"].as_str().is_some_and(|session| session.len() == 36),
        "{log}"
    );
    assert!(log["input"].to_string().contains("touch"), "{log}");
    place.assert_sound();
}

#[test]
fn rules_approvals_and_windows_hold_for_tools_of_clients() {
    let place = ruled();
    let (checked, exit) = place.json(&["policy", "check"]);
    assert_eq!((&checked["findings"], exit), (&json!([]), 0));
    assert_eq!(asked(&place, "claude", &bash("ls")), Ok(()));
    for (client, tool) in [("claude", "Bash"), ("codex", "Bash"), ("gemini", "run_shell_command")] {
        let removal = message(client, tool, json!({ "command": "cd /; rm -rf ." }));
        let said = denied(&place, client, &removal);
        assert!(said.contains("Nothing is removed as a whole. (policy-denied)"), "{said}");
    }
    let page = message("gemini", "web_fetch", json!({ "prompt": "https://example.com" }));
    assert!(denied(&place, "gemini", &page).contains("Agents do not use the web."));
    // The arguments have types: what does not fit them is denied, and told.
    let odd = message("claude", "Bash", json!({ "command": ["ls"] }));
    let said = denied(&place, "claude", &odd);
    assert!(said.contains("(invalid-args)") && said.contains("command"), "{said}");

    let push = bash("git push origin");
    let said = denied(&place, "claude", &push);
    assert!(said.contains("(approval-required)"), "{said}");
    let (list, _) = place.json(&["approvals", "list"]);
    let id = list["approvals"][0]["approvalId"].as_str().expect("an id");
    assert!(said.contains(id), "{said}");
    let approved = place.run(&["approvals", "approve", id]);
    assert!(approved.status.success());
    // It is spent by the same call, once.
    assert!(denied(&place, "claude", &bash("git push elsewhere")).contains("approval-required"));
    assert_eq!(asked(&place, "claude", &push), Ok(()));
    assert!(denied(&place, "claude", &push).contains("approval-required"));
    place.assert_sound();
}

fn said_of(reason: &str) -> String {
    format!("Toolbooth denied this call: {reason} (policy-denied)\n")
}

#[test]
fn a_window_counts_what_was_permitted() {
    let place = ruled();
    let write = |name: &str| {
        let input = json!({ "file_path": name, "content": "x" });
        asked(&place, "claude", &message("claude", "Write", input))
    };
    assert_eq!((write("a"), write("b")), (Ok(()), Ok(())));
    assert_eq!(write("c"), Err(said_of("Two files an hour are enough.")));
    // Other tools are not counted.
    assert_eq!(asked(&place, "claude", &bash("ls")), Ok(()));
    place.assert_sound();
}

/// Checks that a hook answers so that the call does not run, and what it says.
fn blocks(what: &str, place: &Place, arguments: &[&str], message: &[u8], told: &str) {
    let output = waiting::output_of(&mut place.command(arguments), message);
    let said = answer(&output).expect_err(what);
    assert!(said.contains(told), "{what}: {said}");
    // What is for the operator is not for the agent.
    let folder = place.path().display().to_string();
    assert!(!said.contains(&folder), "{what}: {said}");
}

#[test]
fn messages_that_cannot_be_read_deny_in_a_form_that_blocks() {
    let ls = bash("ls").to_string();
    let hook: &[&str] = &["hook", "claude"];
    let fine = place("");
    blocks("an empty message", &fine, hook, b"", "invalid-message");
    blocks("no JSON", &fine, hook, b"{", "invalid-message");
    blocks("another event", &fine, hook, b"{\"hook_event_name\":\"Stop\"}", "invalid-message");
    blocks("another client", &fine, &["hook", "gemini"], ls.as_bytes(), "invalid-message");
    blocks("not UTF-8", &fine, hook, b"\xff", "invalid-message");
    let large = vec![b' '; (16 << 20) + 1];
    blocks("too large", &fine, hook, &large, "more than 16777216 bytes");
    blocks("no such client", &fine, &["hook", "claud"], ls.as_bytes(), "claud");
    blocks("no such option", &fine, &["hook", "claude", "--no"], ls.as_bytes(), "--no");
    let in_json = ["hook", "claude", "--format", "json", "--timeout", "7200"];
    blocks("wrong usage in JSON", &fine, &in_json, ls.as_bytes(), "7200");
    let deep = format!("{}{}", r#"{"a":"#.repeat(100_000), "}".repeat(100_000));
    blocks("nested deeply", &fine, hook, deep.as_bytes(), "invalid-message");
}

/// Checks that each failure of the configuration and the store denies, and each decision of the policy.
fn failures(client: &str, tool: &str, other: &str) {
    let listing = message(client, tool, json!({ "command": "ls" }));
    let ls = listing.to_string();
    let hook: &[&str] = &["hook", client];
    let fine = place("");
    let nothing = Place::new();
    blocks("no configuration", &nothing, hook, ls.as_bytes(), "hook-not-configured");
    let of_another = Place::new();
    of_another.write("toolbooth.toml", &format!("[hooks.{other}]\n"));
    blocks("another client's", &of_another, hook, ls.as_bytes(), "hook-not-configured");
    let untrusted = Place::foreign();
    untrusted.write("toolbooth.toml", CONFIG);
    blocks("not trusted", &untrusted, hook, ls.as_bytes(), "untrusted-configuration");
    for (what, config) in [
        ("no TOML", "["),
        ("an unknown setting", "[hooks.CLIENT]\ncolour = 1\n"),
        ("a store without memory of calls", "[hooks.CLIENT]\n[store]\ndurability = \"memory\"\n"),
        ("the operator", "[hooks.CLIENT]\ncaller = \"operator\"\n"),
        (
            "a runtime of this name",
            "[hooks.CLIENT]\n[runtimes.\"client:CLIENT\"]\nkind = \"command\"\ncommand = \"x\"\n",
        ),
    ] {
        let wrong = Place::new();
        wrong.write("toolbooth.toml", &config.replace("CLIENT", client));
        blocks(what, &wrong, hook, ls.as_bytes(), "invalid-configuration");
    }
    let unknown = Place::new();
    unknown.write("toolbooth.toml", &format!("[hooks.{client}]\ncaller = \"key:unknown\"\n"));
    blocks("no such caller", &unknown, hook, ls.as_bytes(), "cannot decide");
    let wrong_rules = place("[policy]\nrules = \"rules.cedar\"\n");
    wrong_rules.write("rules.cedar", "permit (");
    blocks("wrong rules", &wrong_rules, hook, ls.as_bytes(), "cannot decide");

    let no_store = place("");
    no_store.write("file", "");
    let data = no_store.path().join("file").display().to_string();
    let elsewhere = ["hook", client, "--data", &data];
    blocks("the data folder is a file", &no_store, &elsewhere, ls.as_bytes(), "cannot decide");
    let damaged = place("");
    assert_eq!(asked(&damaged, client, &listing), Ok(()));
    std::fs::write(damaged.path().join(".toolbooth/toolbooth.db"), "no database").expect("writes");
    blocks("a damaged store", &damaged, hook, ls.as_bytes(), "store-unavailable");
    let no_server = place(
        "[lock]\nmode = \"off\"\n[store]\nurl = { secret_ref = \"env:URL\" }\ndigest_key = { secret_ref = \"env:KEY\" }\n",
    );
    let no_server = no_server
        .env("URL", "postgres://unknown@127.0.0.1:1/none?connect_timeout=2")
        .env("KEY", &"ab".repeat(32));
    blocks("no database", &no_server, hook, ls.as_bytes(), "cannot decide");

    for (what, more, told) in [
        ("tools are off", "[flags]\nmcp_tools = false\n", "(tools-disabled)"),
        ("a whitelist", "[policy]\nwhitelist = [\"calculator\"]\n", "(policy-denied)"),
        ("hidden", "[callers.local]\ndeny = [\"CLIENT.*\"]\n", "(unregistered-tool)"),
        ("no grant", "[callers.local]\ngrants = [\"read:files\"]\n", "(policy-denied)"),
        (
            "an approval for all",
            "[callers.local]\ngrants = [\"*\"]\n[trust]\napproval = [\"trusted\"]\n",
            "(approval-required)",
        ),
    ] {
        blocks(what, &place(&more.replace("CLIENT", client)), hook, ls.as_bytes(), told);
    }
    for closed in ["2>&-", "2>/dev/full"] {
        let line = format!("exec \"$0\" hook {client} {closed}");
        let mut command = std::process::Command::new("sh");
        command.args(["-c", &line]).arg(binary()).current_dir(fine.path());
        command.env(toolbooth_tests::STATE, fine.state());
        let output = waiting::output_of(&mut command, b"{}");
        assert_eq!(output.status.code(), Some(2), "{closed}");
    }
    let paused = place("");
    assert!(paused.run(&["pause", "--reason", "an incident"]).status.success());
    blocks("paused", &paused, hook, ls.as_bytes(), "(paused)");
    assert!(paused.run(&["resume"]).status.success());
    assert_eq!(asked(&paused, client, &listing), Ok(()));
}

#[test]
fn every_failure_denies_in_the_form_of_claude() {
    failures("claude", "Bash", "gemini");
}

#[test]
fn every_failure_denies_in_the_form_of_codex() {
    failures("codex", "Bash", "claude");
}

#[test]
fn every_failure_denies_in_the_form_of_gemini() {
    failures("gemini", "run_shell_command", "codex");
}

/// Checks that a client is answered with a denial where the decision takes too long, or cannot be recorded.
fn too_late(client: &str, tool: &str) {
    let listing = message(client, tool, json!({ "command": "ls" }));
    let ls = listing.to_string();
    // A person who does not decide.
    let waiting = place(
        "[trust]\napproval = [\"trusted\"]\n[callers.local]\ngrants = [\"*\"]\n[approvals]\nwait_ms = 60000\n",
    );
    let hook: &[&str] = &["hook", client, "--timeout", "2"];
    let output = waiting::output_of(&mut waiting.command(hook), ls.as_bytes());
    let said = answer(&output).expect_err("no decision is made");
    assert!(said.contains("(approval-required)") || said.contains("in time"), "{said}");
    // Another program that holds the database.
    let locked = place("");
    assert_eq!(asked(&locked, client, &listing), Ok(()));
    let held =
        rusqlite::Connection::open(locked.path().join(".toolbooth/toolbooth.db")).expect("opens");
    held.execute_batch("BEGIN IMMEDIATE").expect("locks");
    let output = waiting::output_of(&mut locked.command(hook), ls.as_bytes());
    let said = answer(&output).expect_err("the database is locked");
    assert!(said.contains("in time") || said.contains("cannot decide"), "{said}");
    held.execute_batch("ROLLBACK").expect("unlocks");
    assert_eq!(asked(&locked, client, &listing), Ok(()));
    // A disk that takes nothing: no file may be larger than it is.
    let mut full = std::process::Command::new("/bin/sh");
    let script = "trap '' XFSZ; ulimit -f 0; exec \"$0\" \"$@\"";
    full.args(["-c", script]).arg(binary()).args(["hook", client]);
    full.current_dir(locked.path()).env(STATE, locked.state());
    let said = answer(&waiting::output_of(&mut full, ls.as_bytes())).expect_err("the disk is full");
    assert!(said.contains("cannot decide") || said.contains("record-unavailable"), "{said}");
    assert_eq!(asked(&locked, client, &listing), Ok(()));
    // A configuration that is named and is not there.
    let missing = ["hook", client, "--config", "nothing.toml"];
    blocks("no such configuration", &locked, &missing, ls.as_bytes(), "cannot decide");
}

#[test]
fn a_decision_that_takes_too_long_is_a_denial_for_claude() {
    too_late("claude", "Bash");
}

#[test]
fn a_decision_that_takes_too_long_is_a_denial_for_codex() {
    too_late("codex", "Bash");
}

#[test]
fn a_decision_that_takes_too_long_is_a_denial_for_gemini() {
    too_late("gemini", "run_shell_command");
}

#[test]
fn a_deciding_process_that_aborts_denies_in_the_form_of_each_client() {
    for (client, tool) in [("claude", "Bash"), ("codex", "Bash"), ("gemini", "run_shell_command")] {
        let place = place(
            "[trust]\napproval = [\"trusted\"]\n[callers.local]\ngrants = [\"*\"]\n[approvals]\nwait_ms = 600000\n",
        );
        let mut command = place.command(&["hook", client, "--timeout", "600"]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut hook = command.spawn().expect("starts");
        let mut stdin = hook.stdin.take().expect("a pipe");
        let listing = message(client, tool, json!({ "command": "ls" })).to_string();
        stdin.write_all(listing.as_bytes()).expect("is written");
        drop(stdin);
        let pending = || place.json(&["approvals", "list"]).0["approvals"][0]["approvalId"].clone();
        waiting::until("the approval is asked for", || pending().is_string());
        // As by a panic that cannot unwind.
        let deciding = child_of(hook.id()).to_string();
        let sent = std::process::Command::new("kill").args(["-ABRT", &deciding]).status();
        assert!(sent.expect("runs").success());
        let said = answer(&hook.wait_with_output().expect("ends")).expect_err(client);
        assert!(said.contains("cannot decide"), "{client}: {said}");
    }
}

#[test]
fn a_client_that_does_not_end_its_message_is_answered_in_time() {
    let place = place("");
    let mut command = place.command(&["hook", "claude", "--timeout", "1"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("starts");
    let stdin = child.stdin.take();
    let output = child.wait_with_output().expect("ends");
    drop(stdin);
    let said = answer(&output).expect_err("is denied");
    assert!(said.contains("the time is over"), "{said}");
}

#[test]
fn a_denial_does_not_wait_for_a_pipe_that_is_full() {
    let place = Place::new();
    let (reader, mut full) = std::io::pipe().expect("a pipe");
    // All that a pipe holds.
    full.write_all(&[b' '; 65_536]).expect("is written");
    let mut command = place.command(&["hook", "claude", "--timeout", "5"]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(full);
    let mut hook = waiting::Running::start(&mut command);
    assert_eq!(hook.0.wait().expect("ends").code(), Some(2));
    drop(reader);
}

#[test]
fn no_other_door_shows_or_runs_a_tool_of_a_client() {
    let place =
        place("[toolsets.all]\ntools = [\"*\"]\n[toolsets.shell]\ntools = [\"claude.Bash\"]\n");
    let (list, _) = place.json(&["list"]);
    assert!(!list.to_string().contains("claude."), "{list}");
    let (found, _) = place.json(&["search", "run a command of the shell"]);
    assert!(!found.to_string().contains("claude."), "{found}");
    let (called, exit) = place.json(&["call", "claude.Bash", "--args", r#"{"command":"ls"}"#]);
    assert_eq!((called["error"]["code"].as_str(), exit), (Some("unregistered-tool"), 1));
    let (planned, _) = place.json(&["plan", r#"{"tools":["claude.Bash"]}"#]);
    assert_eq!(planned["steps"][0]["error"]["code"], "unregistered-tool", "{planned}");
    let exported = place.run(&["export", "--for", "mcp"]);
    let exported = String::from_utf8_lossy(&exported.stdout).into_owned();
    assert!(exported.contains("calculator") && !exported.contains("claude"), "{exported}");
    let gateway = place.serve();
    let body = json!({ "toolId": "claude.Bash", "args": { "command": "ls" } }).to_string();
    let (status, answer) = gateway.post("/v1/calls", &body);
    assert_eq!((status, answer["code"].as_str()), (404, Some("unregistered-tool")), "{answer}");
    let headers = [("Content-Type", "application/json"), ("Prefer", "respond-async")];
    let sent =
        mcp::send_at(&gateway.address, "/v1/calls", "POST", &headers, body.as_bytes()).answer();
    let queued = sent.json();
    let call = queued["callId"].as_str().expect("an id").to_owned();
    waiting::until("the queued call is refused", || {
        let (_, ended) = gateway.get(&format!("/v1/calls/{call}"));
        ended.to_string().contains("unregistered-tool")
    });
    let (_, tools) = gateway.get("/v1/tools");
    assert!(!tools.to_string().contains("claude"), "{tools}");
    for mut door in Peer::all(&place, &gateway) {
        let listed = door.ask(1, "tools/list", json!({}));
        assert!(!listed.to_string().contains("claude"), "{}: {listed}", door.name());
        for name in ["claude.Bash", "claude_Bash"] {
            let answer = door.call(2, name, json!({ "command": "ls" }));
            assert!(answer.to_string().contains("no such tool"), "{}: {answer}", door.name());
        }
    }
    for set in ["all", "shell", "client:claude", "client%3Aclaude"] {
        for (method, params) in [
            ("tools/list", json!({})),
            ("tools/call", json!({ "name": "claude.Bash", "arguments": { "command": "ls" } })),
        ] {
            let message = mcp::modern(1, method, params);
            let headers = mcp::modern_headers(&message);
            let headers: Vec<(&str, &str)> =
                headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
            let headers = [mcp::JSON, mcp::ACCEPT].into_iter().chain(headers).collect::<Vec<_>>();
            let path = format!("/mcp/{set}");
            let text = message.to_string();
            let sent = mcp::send_at(&gateway.address, &path, "POST", &headers, text.as_bytes());
            let answer = sent.answer();
            let status = answer.status;
            let told = String::from_utf8_lossy(&answer.bytes()).into_owned();
            // A set of an operator exists; that of a hook does not at this door.
            assert_eq!(status == 404, set.starts_with("client"), "{set} {method}: {told}");
            assert!(!told.contains("permitted") && !told.contains("Runs a command"), "{told}");
        }
    }
    gateway.stop();
    let (listed, _) = place.json(&["hook", "claude", "--list"]);
    let tools = listed["tools"].as_array().expect("tools");
    assert!(
        tools
            .iter()
            .all(|tool| tool["toolId"].as_str().is_some_and(|id| id.starts_with("claude.")))
    );
    assert!(tools.len() > 20);
}

#[test]
fn further_tools_of_a_client_are_registered_like_all_others() {
    let place = place("");
    let entry = json!({ "version": "1.0.0", "tools": [{
        "toolId": "claude.mcp__tiny__echo_thing", "description": "Echoes.", "category": "function",
        "inputSchema": {
            "type": "object", "properties": { "path": { "type": "string", "pattern": "^/etc/" } },
        },
        "outputSchema": {}, "capabilities": {}, "execution": { "localRuntimeId": "client:claude" },
        "policy": { "timeoutMs": 1000, "trustLevel": "trusted" },
    }] });
    place.write("tools.registry.json", &entry.to_string());
    let echo = |path: &str| message("claude", "mcp__tiny__echo_thing", json!({ "path": path }));
    assert_eq!(asked(&place, "claude", &echo("/etc/x")), Ok(()));
    assert!(denied(&place, "claude", &echo("/x")).contains("invalid-args"));
    // The runtime of one client is not that of another.
    let other = message("codex", "mcp__tiny__echo_thing", json!({ "path": "/etc/x" }));
    assert!(denied(&place, "codex", &other).contains("unregistered-tool"));
    let (called, _) = place.json(&["call", "claude.mcp__tiny__echo_thing"]);
    assert_eq!(called["error"]["code"], "unregistered-tool");
}

#[test]
fn calls_of_the_gateway_itself_pass_and_leave_no_record() {
    let place = Place::new();
    place.write("toolbooth.toml", "[hooks.claude]\ngateways = [\"toolbooth\"]\n");
    let call = |tool: &str| asked(&place, "claude", &message("claude", tool, json!({})));
    assert_eq!(call("mcp__toolbooth__pay_send"), Ok(()));
    assert!(!place.path().join(".toolbooth/toolbooth.db").exists());
    for other in [
        "mcp__toolbooths__pay",
        "mcp__toolbooth__x__pay",
        "mcp__toolbooth___pay",
        "toolbooth",
        "mcp__toolbooth",
    ] {
        assert!(call(other).expect_err(other).contains("unregistered-tool"));
    }
}

#[test]
fn a_call_that_is_to_run_once_is_not_permitted_again() {
    let place = place("");
    let entry = json!({ "version": "1.0.0", "tools": [{
        "toolId": "claude.mcp__pay__send", "description": "Pays.", "category": "function",
        "inputSchema": { "type": "object", "properties": { "invoice": { "type": "string" } } },
        "outputSchema": {}, "capabilities": {}, "execution": { "localRuntimeId": "client:claude" },
        "policy": { "timeoutMs": 1000, "trustLevel": "trusted" },
        "idempotency": { "mode": "keyed", "keyField": "invoice" },
    }] });
    place.write("tools.registry.json", &entry.to_string());
    let pay = |amount: u64| {
        message("claude", "mcp__pay__send", json!({ "invoice": "7", "amount": amount }))
    };
    assert_eq!(asked(&place, "claude", &pay(10)), Ok(()));
    for amount in [10, 100_000] {
        assert!(denied(&place, "claude", &pay(amount)).contains("was permitted before"));
    }
}

#[test]
fn the_environment_of_the_client_changes_no_policy() {
    let place = place("[policy]\nwhitelist = [\"claude.Read\"]\n");
    let mut command = place.command(&["hook", "claude"]);
    command.env("TOOLS_POLICY", "0").env("TOOL_WHITELIST", "*");
    command.env("TOOLBOOTH__POLICY__WHITELIST", "[\"claude.*\"]");
    let output = waiting::output_of(&mut command, bash("ls").to_string().as_bytes());
    assert!(answer(&output).expect_err("is denied").contains("(policy-denied)"));
}

#[test]
fn another_caller_has_its_own_rights() {
    let place = Place::new();
    place.write(
        "toolbooth.toml",
        "[hooks.claude]\ncaller = \"key:coder\"\n[callers.coder]\nmatch = [\"key:coder\"]\n\
         tools = [\"claude.*\"]\ngrants = [\"run:commands\"]\n",
    );
    // Without the key, its groups are not known.
    assert!(denied(&place, "claude", &bash("ls")).contains("cannot decide"));
    assert_eq!(place.json(&["keys", "create", "coder"]).1, 0);
    assert_eq!(asked(&place, "claude", &bash("ls")), Ok(()));
    let read = message("claude", "Read", json!({ "file_path": "/etc/passwd" }));
    assert!(denied(&place, "claude", &read).contains("policy-denied"));
    assert!(logs(&place).iter().all(|log| log["caller"] == "key:coder"));
}

#[test]
fn a_key_that_is_revoked_is_no_caller() {
    let place = Place::new();
    place.write(
        "toolbooth.toml",
        "[hooks.claude]\ncaller = \"coder\"\n[callers.coder]\nmatch = [\"key:coder\"]\n\
         tools = [\"claude.*\"]\ngrants = [\"run:commands\"]\n\
         [policy]\nrules = \"rules.cedar\"\n",
    );
    // The set names the key, and the key has its groups.
    place.write(
        "rules.cedar",
        "@id(\"team\")\npermit (principal in Group::\"team\", action, resource);\n",
    );
    assert!(denied(&place, "claude", &bash("ls")).contains("cannot decide"));
    let (state, message) = doctor_of(&place, "hook claude");
    assert!(state == "failed" && message.contains("no API key `coder`"), "{state} {message}");
    let (_, exit) = place.json(&["keys", "create", "coder", "--group", "team"]);
    assert_eq!(exit, 0);
    assert_eq!(asked(&place, "claude", &bash("ls")), Ok(()));
    assert_eq!(
        doctor_of(&place, "hook claude"),
        ("ok".into(), "its calls belong to `key:coder`".into())
    );
    let (_, exit) = place.json(&["keys", "revoke", "coder"]);
    assert_eq!(exit, 0);
    let said = denied(&place, "claude", &bash("ls"));
    assert!(said.contains("cannot decide") && !said.contains("coder"), "{said}");
    let (state, message) = doctor_of(&place, "hook claude");
    assert_eq!(state, "failed");
    assert!(
        message.contains("the key of `key:coder` is revoked (hooks.claude.caller)"),
        "{message}"
    );
    // A record that says otherwise, and that no event accounts for, is not believed.
    let database = rusqlite::Connection::open(place.path().join(".toolbooth/toolbooth.db"));
    let sql = "UPDATE orders SET body = json_remove(body, '$.subject.Key.revokedAt', '$.subject.key.revokedAt')";
    assert_eq!(database.and_then(|database| database.execute(sql, [])).expect("is changed"), 1);
    assert!(denied(&place, "claude", &bash("ls")).contains("cannot decide"));
    let (_, message) = doctor_of(&place, "hook claude");
    assert!(message.contains("the record of the key of `key:coder` is damaged"), "{message}");
}

/// Returns the state and the message of a check of `doctor`.
fn doctor_of(place: &Place, name: &str) -> (String, String) {
    let (report, _) = place.json(&["doctor"]);
    let checks = report["checks"].as_array().cloned().expect("checks");
    let check = checks.into_iter().find(|check| check["name"] == name).expect("the check");
    let text = |field: &str| check[field].as_str().unwrap_or_default().to_owned();
    (text("state"), text("message"))
}

#[test]
fn doctor_tells_what_is_wrong_with_a_hook() {
    assert_eq!(doctor_of(&place(""), "hook gemini").0, "ok");
    let wrong = [
        (
            "[hooks.codex]\ncaller = \"operator\"\n",
            "an agent cannot be the operator (hooks.codex.caller)",
        ),
        (
            "[hooks.codex]\ncaller = \"key:unknown\"\n",
            "there is no caller `key:unknown` (hooks.codex.caller)",
        ),
        (
            "[hooks.codex]\n[store]\ndurability = \"memory\"\n",
            "keeps nothing between them (store.durability)",
        ),
    ];
    for (config, expected) in wrong {
        let place = Place::new();
        place.write("toolbooth.toml", config);
        let (state, message) = doctor_of(&place, "hook codex");
        assert_eq!(state, "failed", "{config}");
        assert!(message.contains(expected), "{message}");
    }
}

#[test]
fn a_source_cannot_have_the_name_of_a_client_with_a_hook() {
    for source in [
        "[servers.claude]\ncommand = \"true\"\n",
        "[commands.claude]\ndiscover_command = \"true\"\ncall_command = \"true\"\n",
    ] {
        let place = Place::new();
        place.write("toolbooth.toml", &format!("[hooks.claude]\n{source}"));
        let (failure, exit) = place.json(&["list"]);
        assert_eq!(exit, 2, "{failure}");
        let message = failure["error"]["message"].as_str().expect("a message");
        assert!(message.contains("the tools of the client of `[hooks.claude]`"), "{message}");
        assert!(denied(&place, "claude", &bash("ls")).contains("cannot decide"));
    }
}

#[test]
fn a_client_that_is_not_told_uses_no_approval_up() {
    let place = ruled();
    let config = std::fs::read_to_string(place.path().join("toolbooth.toml")).expect("is read");
    place.write("toolbooth.toml", &format!("{config}[approvals]\nwait_ms = 600000\n"));
    let mut command = place.command(&["hook", "claude", "--timeout", "600"]);
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut hook = waiting::Running::start(&mut command);
    let mut stdin = hook.0.stdin.take().expect("a pipe");
    stdin.write_all(bash("git push").to_string().as_bytes()).expect("is written");
    drop(stdin);
    let pending = || place.json(&["approvals", "list"]).0["approvals"][0]["approvalId"].clone();
    waiting::until("the approval is asked for", || pending().is_string());
    let id = pending().as_str().map(str::to_owned).expect("an id");
    let deciding = child_of(hook.0.id());
    hook.kill();
    waiting::until("the deciding process ends", || !is_deciding(deciding));
    let (decided, exit) = place.json(&["approvals", "approve", &id]);
    assert_eq!(exit, 0, "{decided}");
    // The approval is there for the call that the client is told of.
    place.write("toolbooth.toml", &config);
    assert_eq!(asked(&place, "claude", &bash("git push")), Ok(()));
    assert!(denied(&place, "claude", &bash("git push")).contains("(approval-required)"));
}

/// Returns the process that a process has started.
fn child_of(parent: u32) -> u32 {
    let processes = std::fs::read_dir("/proc").expect("is read").flatten();
    let ids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let status =
        |id: &u32| std::fs::read_to_string(format!("/proc/{id}/status")).unwrap_or_default();
    let line = format!("PPid:\t{parent}\n");
    let found: Vec<u32> = ids.filter(|id| status(id).contains(&line)).collect();
    assert!(matches!(found.as_slice(), [one] if is_deciding(*one)), "{found:?}");
    found.into_iter().next().expect("one")
}

/// Whether a process runs that decides. One that has ended and waits for its parent has no command line.
fn is_deciding(id: u32) -> bool {
    let line = std::fs::read_to_string(format!("/proc/{id}/cmdline")).unwrap_or_default();
    line.contains("--decide")
}

#[test]
fn the_printed_settings_run_the_hook() {
    for client in CLIENTS {
        let place = Place::new();
        place.write("it's here/toolbooth.toml", CONFIG);
        let config = place.path().join("it's here/toolbooth.toml").display().to_string();
        let (settings, exit) =
            place.json(&["hook", client, "--settings", "--timeout", "40", "--config", &config]);
        assert_eq!(exit, 0, "{settings}");
        let event = if client == "gemini" { "BeforeTool" } else { "PreToolUse" };
        let hook = &settings["hooks"][event][0]["hooks"][0];
        assert_eq!(hook["timeout"], if client == "gemini" { 55_000 } else { 55 });
        let line = hook["command"].as_str().expect("a command");
        assert!(line.ends_with("--timeout 40"), "{line}");
        let mut command = std::process::Command::new("sh");
        toolbooth_tests::trust(config.as_ref(), place.state(), &[]);
        command.args(["-c", line]).current_dir("/").env(toolbooth_tests::STATE, place.state());
        let first = recorded(client).swap_remove(0);
        let output = waiting::output_of(&mut command, first.to_string().as_bytes());
        assert_eq!(answer(&output), Ok(()));
        assert!(place.path().join("it's here/.toolbooth/toolbooth.db").exists());
    }
}
