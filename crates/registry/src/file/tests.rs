use super::*;

const GOOD: &str = r#"{
  "version": "1.0.0",
  "tools": [
    { "name": "os.create_task", "description": "d",
      "input_schema": { "type": "object" }, "output_schema": {} },
    { "toolId": "a", "description": "d", "category": "function",
      "inputSchema": { "type": "object" }, "outputSchema": {}, "capabilities": {},
      "execution": { "localRuntimeId": "x" }, "policy": { "timeoutMs": 5, "trustLevel": "trusted" } }
  ]
}"#;

#[test]
fn entries_are_added_and_the_rest_stays_as_it_is() {
    let guard = Guard::default();
    let entry = |id: &str| serde_json::json!({"name": id, "description": "d", "input_schema": {"type": "object"}, "output_schema": {}});
    let both = [entry("os.create_task"), entry("os.other")];
    let (text, count) = with_entries(GOOD.as_bytes(), "f.json", &both, &guard).unwrap();
    assert_eq!(count, 1, "one is there already");
    let kept = GOOD.rsplit_once("\n  ]").unwrap().0;
    assert!(text.starts_with(kept) && text.ends_with("\n    }\n  ]\n}"), "{text}");
    assert_eq!(load(text.as_bytes(), "f.json", &guard).unwrap().tools.len(), 3);
    let (text, count) = with_entries(EMPTY.as_bytes(), "f.json", &both, &guard).unwrap();
    assert_eq!((count, load(text.as_bytes(), "f", &guard).unwrap().tools.len()), (2, 2));
    assert_eq!(with_entries(EMPTY.as_bytes(), "f", &[], &guard).unwrap().0, EMPTY);
    let wrong = [serde_json::json!({"name": "one-part"})];
    assert!(with_entries(EMPTY.as_bytes(), "f.json", &wrong, &guard).is_err());
}

fn findings(text: &str) -> Vec<(String, Option<usize>, String, usize, usize)> {
    let rejected = load(text.as_bytes(), "f.json", &Guard::default()).unwrap_err();
    rejected
        .findings
        .into_iter()
        .map(|f| (f.code, f.tool_index, f.path, f.line, f.column))
        .collect()
}

#[test]
fn both_dialects_load_side_by_side() {
    let loaded = load(GOOD.as_bytes(), "f.json", &Guard::default()).unwrap();
    assert_eq!(loaded.tools.len(), 2);
    assert!(loaded.warnings.is_empty(), "{:?}", loaded.warnings);
}

#[test]
fn findings_name_line_and_column() {
    let bad = GOOD.replace(r#""timeoutMs": 5"#, r#""timeoutMs": 0, "timoutMs": 1e400"#).replace(
        r#""description": "d",
      "input"#,
        r#""description": "d", "timeout_ms": "x",
      "input"#,
    );
    assert_eq!(
        findings(&bad),
        [
            ("invalid-policy-timeout".into(), Some(0), "timeout_ms".into(), 4, 53),
            ("not-json-safe".into(), Some(1), "policy.timoutMs".into(), 8, 87),
            ("invalid-policy-timeout".into(), Some(1), "policy.timeoutMs".into(), 8, 59),
            ("misspelled-field".into(), Some(1), "policy.timoutMs".into(), 8, 75),
        ]
    );
}

#[test]
fn registry_codes_are_told() {
    let one = |text: &str| findings(text).remove(0);
    assert_eq!(one("{\n  \"version\": }").0, "invalid-json");
    assert_eq!(one("{\n  \"version\": }").3, 2);
    assert_eq!(one("[]").0, "invalid-registry-root");
    for version in ["01.0.0", "1.0", "+1.0.0", "1.0.x", ""] {
        let text = format!(r#"{{"version":"{version}","tools":[]}}"#);
        assert_eq!(one(&text).0, "invalid-registry-root", "{version}");
    }
    assert_eq!(one(r#"{"version":"1.0.0"}"#).2, "tools");
    assert_eq!(one(r#"{"version":"2.0.0","tools":[]}"#).0, "unsupported-version");
    assert_eq!(one(r#"{"version":"1.0.0","version":"1.0.0","tools":[]}"#).0, "duplicate-key");
    let twice = GOOD.replace(r#""toolId": "a""#, r#""toolId": "os.create_task""#);
    let found = one(&twice);
    assert_eq!((found.0.as_str(), found.1), ("duplicate-tool-id", Some(1)));
}

#[test]
fn one_bad_entry_and_nothing_is_loaded() {
    assert!(
        load(GOOD.replace("\"function\"", "\"x\"").as_bytes(), "f", &Guard::default()).is_err()
    );
}
