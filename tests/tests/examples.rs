//! Tests that the examples work as their READMEs describe, with the commands from there.
//!
//! Path: 7. Doc: execution.md#endpoints, execution.md#command-runtimes

use std::path::Path;
use std::process::Command;

use serde_json::Value;
use toolbooth_tests::{STATE, binary, repository, set_up, trust};

/// Returns a writable copy of an example.
fn copy(name: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for part in [name, "registries"] {
        let done = Command::new("cp")
            .arg("-r")
            .arg(repository().join("examples").join(part))
            .arg(folder.path())
            .status();
        assert!(done.unwrap().success());
    }
    let _ = std::fs::remove_dir_all(folder.path().join(name).join("node_modules"));
    folder
}

fn call(folder: &Path, tool: &str, arguments: &str) -> Value {
    // The copy is foreign, so a user must trust it.
    let state = folder.parent().unwrap().join("state");
    assert!(trust(&folder.join("toolbooth.toml"), &state, &[]).status.success());
    let output = Command::new(binary())
        .args(["call", tool, "--args", arguments, "--format", "json"])
        .env(STATE, state)
        .current_dir(folder)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    serde_json::from_str(&text)
        .unwrap_or_else(|_| panic!("{text}\n{}", String::from_utf8_lossy(&output.stderr)))
}

fn text(result: &Value) -> &str {
    result["content"][0]["text"].as_str().unwrap_or_default()
}

fn install(folder: &Path) -> bool {
    // If the npm servers are set up, npm is installed and reaches its registry.
    if set_up("npm/node_modules/.bin").is_none() {
        return false;
    }
    let done = Command::new("npm")
        .args(["ci", "--silent", "--no-audit", "--no-fund"])
        .current_dir(folder)
        .status();
    assert!(done.unwrap().success());
    true
}

#[test]
fn contained_commands_search_and_archive() {
    let place = copy("command");
    let folder = place.path().join("command");
    let found = call(&folder, "notes.search", r#"{"words":"LIGHTHOUSE"}"#);
    assert_eq!(text(&found).lines().count(), 2, "{found}");
    let made = call(&folder, "notes.archive", r#"{"name":"week-47"}"#);
    assert_eq!(made["status"], "succeeded", "{made}");
    assert!(folder.join("out/week-47.tar.gz").is_file());
    let looked = call(&folder, "sandbox.look", "{}");
    assert!(text(&looked).contains("may I write here: touch: cannot touch"), "{looked}");
    assert!(text(&looked).contains("/tmp: yes"), "{looked}");
}

#[test]
fn a_service_is_booked_through_its_document() {
    let place = copy("endpoint");
    let folder = place.path().join("endpoint");
    let output =
        Command::new("sh").arg(folder.join("try.sh")).env("TOOLBOOTH", binary()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    for part in [
        r#"{"rooms":[{"name":"hall","seats":40}]}"#,
        r#"{"room":"hall","day":"2026-12-24","name":"Ada","number":1}"#,
        "the tool's endpoint answered 409: The room is taken on that day",
        "the arguments do not fit the tool's input schema",
    ] {
        assert!(said.contains(part), "{part}:\n{said}{}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn handlers_keep_one_row_for_one_key() {
    let place = copy("operations");
    let folder = place.path().join("operations");
    if !install(&folder) {
        return;
    }
    let lead = r#"{"phone":"+4930123456","name":"Ada","source":"website"}"#;
    let first = call(&folder, "leads.create", lead);
    assert_eq!(first["status"], "succeeded", "{first}");
    let again = call(&folder, "leads.create", lead);
    assert_eq!((&again["replayed"], text(&again)), (&Value::Bool(true), text(&first)));
    // Without the gateway's records the handler itself still stores one row.
    std::fs::remove_dir_all(folder.join(".toolbooth")).unwrap();
    let third = call(&folder, "leads.create", lead);
    assert_eq!(
        third["structuredContent"]["lead_id"], first["structuredContent"]["lead_id"],
        "{third}"
    );
    let listed = call(&folder, "leads.list", "{}");
    assert_eq!(listed["structuredContent"]["total"], 1, "{listed}");
    let checked = Command::new("node").arg("check.mjs").current_dir(&folder).output().unwrap();
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stdout));
}

#[test]
fn a_server_from_elsewhere_stays_in_its_folder() {
    let place = copy("server");
    let folder = place.path().join("server");
    if !install(&folder) {
        return;
    }
    let written = call(&folder, "files.write_file", r#"{"path":"note.md","content":"Thursday"}"#);
    assert_eq!(written["status"], "succeeded", "{written}");
    assert_eq!(std::fs::read_to_string(folder.join("files/note.md")).unwrap(), "Thursday");
    let large = "x".repeat(3 << 20);
    for n in 0..4 {
        let arguments = format!(r#"{{"path":"large-{n}.md","content":"{large}"}}"#);
        std::fs::write(folder.join("arguments.json"), arguments).unwrap();
        call(&folder, "files.write_file", "@arguments.json");
    }
    let size: u64 = std::fs::read_dir(folder.join("files"))
        .unwrap()
        .flatten()
        .map(|entry| entry.metadata().unwrap().len())
        .sum();
    assert!(size < 13 << 20, "{size}");
}

/// Returns the blocks of a README with this language, in order.
fn blocks(readme: &str, language: &str) -> Vec<String> {
    let fence = format!("```{language}\n");
    let mut rest = readme;
    let mut blocks = Vec::new();
    while let Some((_, after)) = rest.split_once(&fence) {
        let (block, after) = after.split_once("```").unwrap();
        blocks.push(block.to_owned());
        rest = after;
    }
    blocks
}

#[test]
fn a_team_shares_a_gateway_as_its_readme_shows() {
    let place = copy("team");
    let folder = place.path().join("team");
    let readme = std::fs::read_to_string(folder.join("README.md")).unwrap();
    let [port, second] = [(); 2].map(|()| toolbooth_tests::ports::free().to_string());
    let readme = readme.replace("7717", "PORT").replace("7718", &second).replace("PORT", &port);
    let mut script = format!("set -u\nPATH=\"{}:$PATH\"\n", binary().parent().unwrap().display());
    // The first block builds the program, which the test has, and asks for trust.
    script.extend(blocks(&readme, "sh").into_iter().skip(1));
    let state = place.path().join("state");
    assert!(trust(&folder.join("toolbooth.toml"), &state, &[]).status.success());
    let output = Command::new("sh")
        .args(["-c", &script])
        .env(STATE, state)
        .current_dir(&folder)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut rest = said.as_str();
    for line in blocks(&readme, "text").iter().flat_map(|block| block.lines()) {
        let Some(at) = rest.find(line) else {
            panic!("{line}:\n{said}{}", String::from_utf8_lossy(&output.stderr));
        };
        rest = &rest[at + line.len()..];
    }
}
