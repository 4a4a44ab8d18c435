//! Tests behaviours that are written down as folders: the files of a project, steps, and expectations.
//!
//! A folder of `tests/cases` is one case. Its `README.md` states the behaviour, its `case.json` contains the
//! steps; all other files are the project. `docs/development.md` describes the format. A new behaviour adds a
//! folder, and no code.
//!
//! Path: 1, 10. Doc: formats.md#commands, formats.md#exit-codes

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Deserializer};
use serde_json::{Value, json};
use toolbooth_tests::{Place, RunningGateway, repository, request};

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
    /// Whether records must exist after the last step; always so after a request.
    #[serde(default)]
    records: bool,
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
        #[serde(default, deserialize_with = "present")]
        gives: Option<Value>,
        /// Parts of standard output.
        #[serde(default)]
        prints: Vec<String>,
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
        #[serde(default, deserialize_with = "present")]
        gives: Option<Value>,
    },
}

/// Reads a member that is present, which may be `null`.
fn present<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Value>, D::Error> {
    Value::deserialize(from).map(Some)
}

/// Compares documents with what a case expects.
#[derive(Default)]
struct Matcher {
    /// Values that earlier documents had at `"<save:NAME>"`.
    saved: BTreeMap<String, Value>,
}

impl Matcher {
    /// Returns why a value does not match; `None` if it matches. `found` is `None` where there is no value.
    ///
    /// An object matches if each expected member matches; arrays have the same length. A text between `<` and
    /// `>` is a pattern: `docs/development.md` lists them.
    fn mismatch(&mut self, expected: &Value, found: Option<&Value>, place: &str) -> Option<String> {
        let text = found.and_then(Value::as_str);
        let matches = match expected {
            Value::String(pattern) if pattern.starts_with('<') && pattern.ends_with('>') => {
                match pattern.trim_matches(['<', '>']).split_once(':') {
                    Some(("contains", part)) => text.is_some_and(|text| text.contains(part)),
                    Some(("length", length)) => {
                        text.is_some_and(|text| length.parse() == Ok(text.len()))
                    }
                    Some(("save", name)) => {
                        let value = found.cloned().unwrap_or(Value::Null);
                        self.saved.insert(name.to_owned(), value);
                        found.is_some()
                    }
                    Some(("saved", name)) => found.is_some() && self.saved.get(name) == found,
                    None if pattern == "<any>" => found.is_some_and(|found| !found.is_null()),
                    None if pattern == "<text>" => text.is_some(),
                    None if pattern == "<absent>" => found.is_none(),
                    _ => return Some(format!("{place}: `{pattern}` is not a pattern")),
                }
            }
            Value::Object(members) if members.len() == 1 && members.contains_key("<exact>") => {
                members.get("<exact>") == found
            }
            Value::Object(members) if members.len() == 1 && members.contains_key("<each>") => {
                let items = found.and_then(Value::as_array).filter(|items| !items.is_empty());
                let Some(items) = items else { return Some(format!("{place}: expected items")) };
                return items.iter().enumerate().find_map(|(at, item)| {
                    self.mismatch(&members["<each>"], Some(item), &format!("{place}/{at}"))
                });
            }
            Value::Object(members) => match found.and_then(Value::as_object) {
                Some(own) => {
                    return members.iter().find_map(|(name, member)| {
                        self.mismatch(member, own.get(name), &format!("{place}/{name}"))
                    });
                }
                None => false,
            },
            Value::Array(items) => match found.and_then(Value::as_array) {
                Some(own) if own.len() == items.len() => {
                    return items.iter().zip(own).enumerate().find_map(|(at, (item, own))| {
                        self.mismatch(item, Some(own), &format!("{place}/{at}"))
                    });
                }
                _ => false,
            },
            scalar => found == Some(scalar),
        };
        let shown = || found.map_or_else(|| "nothing".to_owned(), Value::to_string);
        (!matches).then(|| format!("{place}: expected {expected}, found {}", shown()))
    }
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

fn run(
    place: &Place,
    step: &Step,
    gateway: &mut Option<RunningGateway>,
    matcher: &mut Matcher,
) -> Result<(), String> {
    match step {
        Step::Run { run, exit, gives, prints, errors } => {
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
            if let Some(lacking) = prints.iter().find(|part| !text.contains(part.as_str())) {
                return Err(format!("standard output lacks `{lacking}`: {}", all()));
            }
            let Some(gives) = gives else {
                // Errors of usage are on standard error alone.
                let is_clean = *exit != 2 || text.is_empty();
                return if is_clean { Ok(()) } else { Err(format!("an output: {}", all())) };
            };
            let found: Value = serde_json::from_str(&text)
                .map_err(|error| format!("no JSON ({error}): {}", all()))?;
            let wrong = matcher.mismatch(gives, Some(&found), "");
            wrong.map_or(Ok(()), |wrong| Err(format!("{wrong}\n{}", all())))
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
            let wrong = gives.as_ref().and_then(|gives| matcher.mismatch(gives, Some(&answer), ""));
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
    if case.steps.is_empty() {
        return Err("there are no steps".to_owned());
    }
    let (mut gateway, mut matcher) = (None, Matcher::default());
    for (at, step) in case.steps.iter().enumerate() {
        run(&place, step, &mut gateway, &mut matcher)
            .map_err(|error| format!("step {at}: {error}"))?;
    }
    let has_served = gateway.is_some();
    if let Some(gateway) = gateway {
        let (exit, _, stderr) = gateway.stop();
        if exit != Some(0) || stderr.contains("panicked") {
            return Err(format!("the gateway ended with {exit:?}: {stderr}"));
        }
    }
    for (name, content) in &case.files {
        let path = place.path().join(name);
        let found = match path.symlink_metadata() {
            Err(_) => None,
            Ok(_) => {
                Some(std::fs::read_to_string(&path).map_err(|error| format!("`{name}`: {error}"))?)
            }
        };
        if found != *content {
            return Err(format!("`{name}`: expected {content:?}, found {found:?}"));
        }
    }
    let data = place.path().join(".toolbooth");
    if case.writes_nothing && data.exists() {
        return Err("the data folder was made".to_owned());
    }
    if has_served || case.records || data.join("toolbooth.db").exists() {
        let (report, exit) = place.json(&["audit", "verify"]);
        if exit != 0 || report["ok"] != true {
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
    let found = json!({ "a": [1, { "b": "text" }], "c": null, "e": [] });
    let of = |expected: &Value| Matcher::default().mismatch(expected, Some(&found), "");
    for fitting in [
        json!({ "a": [1, { "b": "<text>" }], "c": null, "e": { "<exact>": [] } }),
        json!({ "a": "<any>", "d": "<absent>" }),
        json!({ "a": ["<any>", { "b": "<contains:ex>" }] }),
        json!({ "a": { "<each>": "<any>" } }),
        json!({ "a": ["<save:n>", { "b": "<length:4>" }] }),
    ] {
        assert_eq!(of(&fitting), None, "{fitting}");
    }
    for wrong in [
        json!({ "a": [1] }),
        json!({ "a": [1, { "b": "<contains:x y>" }] }),
        json!({ "a": "<absent>" }),
        json!({ "c": "<any>" }),
        json!({ "c": "<absent>" }),
        json!({ "d": null }),
        json!({ "d": 1 }),
        json!({ "a": ["<text>", { "b": "text" }] }),
        json!({ "a": [1, { "<exact>": {} }] }),
        json!({ "a": { "<each>": 1 } }),
        json!({ "e": { "<each>": 1 } }),
        json!({ "a": [1, { "b": "<length:5>" }] }),
        json!({ "a": [1, { "b": "<saved:none>" }] }),
        json!({ "a": [1, { "b": "<txet>" }] }),
    ] {
        assert!(of(&wrong).is_some(), "{wrong}");
    }
    let mut matcher = Matcher::default();
    assert_eq!(matcher.mismatch(&json!("<save:id>"), Some(&json!("1")), ""), None);
    assert_eq!(matcher.mismatch(&json!("<saved:id>"), Some(&json!("1")), ""), None);
    assert!(matcher.mismatch(&json!("<saved:id>"), Some(&json!("2")), "").is_some());
}
