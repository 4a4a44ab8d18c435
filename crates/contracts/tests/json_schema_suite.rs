//! Runs the required cases of the official JSON-Schema-Test-Suite, drafts 2020-12 and 07, through the
//! guard's own entry points.
//!
//! The set-up step of `cargo xtask test` fetches the suite. Groups that need external documents are
//! rejected on purpose, and counted.
//!
//! Doc: contract.md#schemas
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout
)]

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use toolbooth_contracts::{Guard, json as gate};

/// The address of the suite's referenced documents and own dialects. Nothing is fetched, so a schema
/// that needs them is rejected.
const ELSEWHERE: &str = "localhost:1234";

/// The end of the descriptions of cases in which draft 2020-12 does not assert formats by default. This
/// guard always asserts them.
const ANNOTATION_ONLY: &str = "is only an annotation by default";

fn suite() -> Option<PathBuf> {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap().to_owned();
    let target = std::env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| repository.join("target"), PathBuf::from);
    let path = target.join("test-env/suite/tests");
    if path.is_dir() {
        return Some(path);
    }
    let said = format!("SKIPPED: {} is not there; run `cargo xtask test`", path.display());
    assert!(std::env::var_os("CI").is_none(), "{said}");
    println!("{said}");
    None
}

fn entry(schema: &Value, dialect: &str) -> Value {
    let mut schema = match schema {
        Value::Object(_) => schema.clone(),
        // A contract's schema is an object, so a bare boolean is wrapped in one.
        bare => json!({ "allOf": [bare] }),
    };
    let members = schema.as_object_mut().unwrap();
    members.entry("$schema").or_insert_with(|| json!(dialect));
    json!({
        "toolId": "suite.case", "description": "d", "category": "validator",
        "inputSchema": {"type": "object"}, "outputSchema": schema, "capabilities": {},
        "execution": {"localRuntimeId": "suite"},
        "policy": {"timeoutMs": 1000, "trustLevel": "trusted"}
    })
}

fn run(
    draft: &str,
    dialect: &str,
    cases_min: usize,
    refused_groups: usize,
    formats_asserted: usize,
) {
    let Some(suite) = suite() else { return };
    let guard = Guard::default();
    let (mut cases, mut formats, mut wrong) = (0, 0, Vec::new());
    let (mut refused, mut told) = (0, Vec::new());
    let mut files: Vec<PathBuf> = std::fs::read_dir(suite.join(draft))
        .unwrap()
        .map(|file| file.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "json"))
        .collect();
    files.sort();
    for path in files {
        let file = path.file_name().unwrap().to_string_lossy().into_owned();
        let groups = gate::parse(&std::fs::read(&path).unwrap()).unwrap();
        for group in groups.as_array().unwrap() {
            let about = group["description"].as_str().unwrap();
            let entry = entry(&group["schema"], dialect);
            let tests = group["tests"].as_array().unwrap();
            let guarded = match guard.examine(&entry) {
                Ok(guarded) => guarded,
                Err(findings) => {
                    // The two entry points return the same findings, with place and reason.
                    let error = guard.validate_entry(&entry).unwrap_err();
                    assert_eq!(error.code.as_str(), "invalid-output-schema", "{error}");
                    assert_eq!(findings, guard.check_entry(&entry));
                    let away = group["schema"].to_string().contains(ELSEWHERE);
                    assert!(away, "{file}: {about}: {error}");
                    refused += 1;
                    told.push(format!("{file}: {about}: {error}"));
                    continue;
                }
            };
            assert!(guard.validate_entry(&entry).is_ok());
            for case in tests {
                cases += 1;
                let valid = guarded.output.errors(&case["data"]).is_empty();
                let described = case["description"].as_str().unwrap();
                if valid != case["valid"] && described.ends_with(ANNOTATION_ONLY) {
                    assert!(!valid);
                    formats += 1;
                } else if valid != case["valid"] {
                    wrong.push(format!("{file}: {about}: {described}: judged {valid}"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert_eq!((refused, formats), (refused_groups, formats_asserted), "{told:#?}");
    assert!(cases > cases_min, "{cases}");
    println!("{draft}: {cases} cases, {refused} groups refused");
}

#[test]
fn draft_2020_12() {
    run("draft2020-12", "https://json-schema.org/draft/2020-12/schema", 1_100, 22, 17);
}

#[test]
fn draft_07() {
    run("draft7", "http://json-schema.org/draft-07/schema#", 800, 11, 0);
}
