//! Tests behaviours that are written down as folders: the files of a project, steps, and expectations.
//!
//! A folder of `tests/cases` is one case. Its `README.md` states the behaviour, its `case.json` contains the
//! steps; all other files are the project. `docs/development.md` describes the format. A new behaviour adds a
//! folder, and no code.
//!
//! Path: 1, 10. Doc: formats.md#commands, formats.md#exit-codes

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;
use serde_json::Value;
use toolbooth_tests::{Gateway, Place, repository, request};

/// One case.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    /// Variables of every command.
    #[serde(default)]
    env: BTreeMap<String, String>,
    steps: Vec<Step>,
    /// The content of files after the last step; `null` if the file must not exist.
    #[serde(default)]
    files: BTreeMap<String, Option<String>>,
    /// Whether nothing is written into the data folder.
    #[serde(default)]
    writes_nothing: bool,
}

/// A command, or a request to the gateway.
#[derive(Deserialize)]
#[serde(untagged, deny_unknown_fields)]
enum Step {
    Run {
        run: Vec<String>,
        exit: i32,
        /// The expected JSON document.
        #[serde(default)]
        gives: Option<Value>,
        /// Parts of standard error.
        #[serde(default)]
        errors: Vec<String>,
    },
    Request {
        /// Method and path.
        request: String,
        #[serde(default)]
        headers: BTreeMap<String, String>,
        /// JSON, or a text that is sent as it is.
        #[serde(default)]
        body: Value,
        status: u16,
        #[serde(default)]
        gives: Option<Value>,
    },
}

/// The reason why a value does not match; `None` if it matches.
///
/// An object matches if each expected member matches; arrays have the same length. `"<text>"` matches any text,
/// `"<any>"` any value that exists, `"<absent>"` a missing one, `"<contains:TEXT>"` a text with TEXT.
fn mismatch(expected: &Value, found: &Value, place: &str) -> Option<String> {
    let matches = match (expected, found) {
        (Value::String(pattern), _) if pattern == "<any>" => !found.is_null(),
        (Value::String(pattern), _) if pattern == "<absent>" => found.is_null(),
        (Value::String(pattern), _) if pattern == "<text>" => found.is_string(),
        (Value::String(pattern), Value::String(text)) => {
            let part = pattern.strip_prefix("<contains:").and_then(|rest| rest.strip_suffix('>'));
            part.map_or(pattern == text, |part| text.contains(part))
        }
        (Value::Object(members), Value::Object(own)) => {
            return members.iter().find_map(|(name, member)| {
                let own = own.get(name).unwrap_or(&Value::Null);
                mismatch(member, own, &format!("{place}/{name}"))
            });
        }
        (Value::Array(items), Value::Array(own)) if items.len() == own.len() => {
            let mut pairs = items.iter().zip(own).enumerate();
            return pairs
                .find_map(|(at, (item, own))| mismatch(item, own, &format!("{place}/{at}")));
        }
        _ => expected == found,
    };
    (!matches).then(|| format!("{place}: expected {expected}, found {found}"))
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        match entry.file_type().unwrap().is_dir() {
            true => copy(&entry.path(), &target),
            false => drop(std::fs::copy(entry.path(), target).unwrap()),
        }
    }
}

fn run(place: &Place, step: &Step, gateway: &mut Option<Gateway>) -> Result<(), String> {
    match step {
        Step::Run { run, exit, gives, errors } => {
            let mut arguments: Vec<&str> = run.iter().map(String::as_str).collect();
            if gives.is_some() {
                arguments.extend(["--format", "json"]);
            }
            let output = place.run(&arguments);
            let text = String::from_utf8_lossy(&output.stdout);
            let stderr = String::from_utf8_lossy(&output.stderr);
            let all = || format!("{run:?}\nstandard output:\n{text}\nstandard error:\n{stderr}");
            if output.status.code() != Some(*exit) {
                return Err(format!(
                    "expected exit code {exit}, found {:?}: {}",
                    output.status,
                    all()
                ));
            }
            if stderr.contains("panicked") {
                return Err(format!("a panic: {}", all()));
            }
            if let Some(lacking) = errors.iter().find(|part| !stderr.contains(part.as_str())) {
                return Err(format!("standard error lacks `{lacking}`: {}", all()));
            }
            let Some(gives) = gives else {
                // Errors of usage are on standard error alone.
                let is_clean = *exit != 2 || text.is_empty();
                return if is_clean { Ok(()) } else { Err(format!("an output: {}", all())) };
            };
            let found: Value = serde_json::from_str(&text)
                .map_err(|error| format!("no JSON ({error}): {}", all()))?;
            mismatch(gives, &found, "").map_or(Ok(()), |wrong| Err(format!("{wrong}\n{}", all())))
        }
        Step::Request { request: line, headers, body, status, gives } => {
            let gateway = gateway.get_or_insert_with(|| place.serve());
            let (method, path) = line.split_once(' ').ok_or("a request is METHOD PATH")?;
            let body = match body {
                Value::Null => String::new(),
                Value::String(text) => text.clone(),
                document => document.to_string(),
            };
            let headers: Vec<(&str, &str)> =
                headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
            let (got, answer) = request(&gateway.address, method, path, &body, &headers)
                .ok_or_else(|| format!("{line}: no answer"))?;
            if got != *status {
                return Err(format!("{line} {body}: expected {status}, found {got}: {answer}"));
            }
            let wrong = gives.as_ref().and_then(|gives| mismatch(gives, &answer, ""));
            wrong.map_or(Ok(()), |wrong| Err(format!("{line} {body}: {wrong}\n{answer}")))
        }
    }
}

/// Runs one case.
fn hold(folder: &Path) -> Result<(), String> {
    let text = std::fs::read_to_string(folder.join("case.json")).map_err(|e| e.to_string())?;
    let case: Case = serde_json::from_str(&text).map_err(|error| format!("case.json: {error}"))?;
    if std::fs::read_to_string(folder.join("README.md")).unwrap_or_default().trim().is_empty() {
        return Err("README.md does not state the behaviour".to_owned());
    }
    let place = case.env.iter().fold(Place::new(), |place, (name, value)| place.env(name, value));
    copy(folder, place.path());
    for own in ["case.json", "README.md"] {
        std::fs::remove_file(place.path().join(own)).unwrap();
    }
    let mut gateway = None;
    for (at, step) in case.steps.iter().enumerate() {
        run(&place, step, &mut gateway).map_err(|error| format!("step {at}: {error}"))?;
    }
    if let Some(gateway) = gateway {
        gateway.stop();
    }
    for (name, content) in &case.files {
        let found = std::fs::read_to_string(place.path().join(name)).ok();
        if found != *content {
            return Err(format!("`{name}`: expected {content:?}, found {found:?}"));
        }
    }
    let data = place.path().join(".toolbooth");
    if case.writes_nothing && data.exists() {
        return Err("the data folder was made".to_owned());
    }
    if data.join("toolbooth.db").exists() {
        let (report, exit) = place.json(&["audit", "verify"]);
        if exit != 0 {
            return Err(format!("the records are not sound: {report}"));
        }
    }
    Ok(())
}

#[test]
fn every_case_holds() {
    let folder = repository().join("tests/cases");
    let mut cases: Vec<_> =
        std::fs::read_dir(folder).unwrap().map(|one| one.unwrap().path()).collect();
    cases.sort();
    assert!(!cases.is_empty());
    let failed: Vec<String> = cases
        .iter()
        .filter_map(|case| {
            let error = hold(case).err()?;
            Some(format!("{}: {error}", case.file_name().unwrap().display()))
        })
        .collect();
    assert!(failed.is_empty(), "{}", failed.join("\n\n"));
}

#[test]
fn a_case_that_does_not_match_is_found() {
    let found = serde_json::json!({ "a": [1, { "b": "text" }], "c": null });
    let of = |expected: Value| mismatch(&expected, &found, "");
    assert_eq!(of(serde_json::json!({ "a": [1, { "b": "<text>" }] })), None);
    assert_eq!(of(serde_json::json!({ "a": "<any>", "c": "<absent>", "d": "<absent>" })), None);
    assert_eq!(of(serde_json::json!({ "a": ["<any>", { "b": "<contains:ex>" }] })), None);
    for wrong in [
        serde_json::json!({ "a": [1] }),
        serde_json::json!({ "a": [1, { "b": "<contains:x y>" }] }),
        serde_json::json!({ "a": "<absent>" }),
        serde_json::json!({ "c": "<any>" }),
        serde_json::json!({ "d": 1 }),
        serde_json::json!({ "a": ["<text>", { "b": "text" }] }),
    ] {
        assert!(of(wrong.clone()).is_some(), "{wrong}");
    }
}
