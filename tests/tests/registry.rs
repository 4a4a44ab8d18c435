//! Tests the registry file at a realistic size, the example registry, search and names.
//!
//! Path: 3. Doc: registry.md#the-file, registry.md#coverage, registry.md#search

use serde_json::{Value, json};
use toolbooth_tests::{Place, repository};

fn example() -> Vec<Value> {
    let path = repository().join("examples/registries/operations.json");
    let file: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    file["tools"].as_array().unwrap().clone()
}

/// Returns a thousand entries, each as the lines of its text.
fn thousand() -> Vec<Vec<String>> {
    let tools = example();
    (0..1000)
        .map(|n| {
            let mut entry = tools[n % tools.len()].clone();
            let name = entry["name"].as_str().unwrap();
            entry["name"] = json!(format!("{name}_{n}"));
            let text = serde_json::to_string_pretty(&entry).unwrap();
            text.lines().map(str::to_owned).collect()
        })
        .collect()
}

/// A mistake: `becomes` replaces the line that begins with `begins`. The finding has `code`, at the line of
/// the mistake or at the line that begins with `at`.
struct Mistake {
    begins: &'static str,
    becomes: String,
    code: &'static str,
    at: Option<&'static str>,
}

fn mistakes() -> Vec<Mistake> {
    let own = |begins, becomes: &str, code| Mistake {
        begins,
        becomes: becomes.to_owned(),
        code,
        at: None,
    };
    let at = |begins, becomes: &str, code, at| Mistake {
        begins,
        becomes: becomes.to_owned(),
        code,
        at: Some(at),
    };
    let before_name = |line: &str, code| {
        own("\"name\":", &format!("{line}\n\"name\": \"a.mistake_{code}\","), code)
    };
    // The parts are joined here, so that secret scanners find nothing in this file.
    let token = format!("{}{}", "ghp_", "x7Kq2Lm9Rt4Vw8Zb3Nc6Yd1Pf5Hs0Jg2Qk7T");
    let key = format!("-----BEGIN {} KEY-----", "PRIVATE");
    vec![
        own("\"timeout_ms\":", "\"timeout_ms\": 0,", "invalid-policy-timeout"),
        own("\"timeout_ms\":", "\"timeout_ms\": \"fast\",", "invalid-policy-timeout"),
        own("\"timeout_ms\":", "\"timeout_mss\": 10,", "misspelled-field"),
        own("\"mode\":", "\"mode\": \"once\"", "invalid-idempotency-mode"),
        at("\"mode\":", "\"mode\": \"keyed\"", "missing-key-field", "\"idempotency\":"),
        own(
            "\"mode\":",
            "\"mode\": \"keyed\",\n\"key_field\": \"no_such_field\"",
            "unknown-key-field",
        ),
        own("\"name\":", "\"name\": \"bad name!\",", "invalid-tool-id"),
        own("\"name\":", "\"name\": \"\",", "invalid-tool-id"),
        at("\"name\":", "\"name\": \"single\",", "missing-execution-target", "{"),
        own("\"name\":", "\"name\": \"billing.create_invoice_0\",", "duplicate-tool-id"),
        own("\"description\":", "\"description\": 5,", "invalid-root"),
        own(
            "\"description\":",
            &format!("\"description\": \"use {token} for it\","),
            "forbidden-secret-field",
        ),
        own("\"description\":", &format!("\"description\": \"{key}\","), "forbidden-secret-field"),
        own("\"description\":", "\"description\": \"half a \\ud800 pair\",", "not-json-safe"),
        own(
            "\"description\":",
            "\"description\": \"one\",\n\"description\": \"two\",",
            "duplicate-key",
        ),
        before_name("\"api_key\": \"x\",", "forbidden-secret-field"),
        before_name("\"toolId\": \"a.b\",", "ambiguous-field"),
        before_name("\"category\": \"functon\",", "invalid-category"),
        before_name("\"execution\": {},", "missing-execution-target"),
        before_name("\"capabilities\": {\"locales\": \"en\"},", "invalid-capabilities-locales"),
        before_name("\"capabilities\": {\"maxAssetBytes\": -1},", "invalid-capabilities-limit"),
        before_name("\"sandbox\": {\"network\": true},", "invalid-sandbox"),
        before_name("\"x_limit\": 1e400,", "not-json-safe"),
        own("\"type\": \"object\",", "\"type\": \"array\",", "invalid-input-schema"),
        own(
            "\"type\": \"object\",",
            "\"type\": \"object\", \"$ref\": \"https://example.com/schema.json\",",
            "invalid-input-schema",
        ),
        own(
            "\"type\": \"object\",",
            "\"type\": \"object\", \"minProperties\": \"two\",",
            "invalid-input-schema",
        ),
        own(
            "\"type\": \"object\",",
            "\"type\": \"object\", \"patternProperties\": {\"(\": {}},",
            "invalid-input-schema",
        ),
        own(
            "\"type\": \"object\",",
            "\"type\": \"object\", \"allOf\": [{\"$ref\": \"#\"}],",
            "invalid-input-schema",
        ),
        own(
            "\"properties\": {",
            "\"properties\": { \"token\": {\"default\": \"hunter2\"},",
            "forbidden-secret-field",
        ),
        at(
            "\"permissions\": [",
            "\"permissions\": [ \"send sms\",",
            "invalid-permission",
            "\"permissions\":",
        ),
    ]
}

#[test]
fn thirty_mistakes_in_a_thousand_entries_are_told_at_their_lines() {
    let place = Place::new();
    let mistakes = mistakes();
    assert_eq!(mistakes.len(), 30);
    let mut entries = thousand();
    let mut planted: Vec<(usize, usize, &str)> = Vec::new();
    for (n, mistake) in mistakes.iter().enumerate() {
        // The mistakes are spread over the file, each in a separate entry.
        let index = 17 + n * 32;
        let entry = &mut entries[index];
        let line = entry.iter().position(|line| line.trim_start().starts_with(mistake.begins));
        let line = line.unwrap_or_else(|| panic!("{} in {entry:#?}", mistake.begins));
        let comma = entry[line].ends_with(',') && !mistake.becomes.ends_with([',', '{', '[']);
        let becomes = format!("{}{}", mistake.becomes, if comma { "," } else { "" });
        let lines: Vec<String> = becomes.lines().map(str::to_owned).collect();
        // If two lines replace one, the code determines the line of the mistake.
        let shift = match mistake.code {
            "duplicate-key" | "unknown-key-field" => 1,
            "ambiguous-field" => 1,
            _ => 0,
        };
        let found = match mistake.at {
            Some(at) => entry.iter().position(|line| line.trim_start().starts_with(at)).unwrap(),
            None => line + shift,
        };
        entry.splice(line..=line, lines);
        planted.push((index, found, mistake.code));
    }
    let mut text = String::from("{\n\"version\": \"1.0.0\",\n\"tools\": [\n");
    let mut expected: Vec<(usize, usize, &str)> = Vec::new();
    let mut line = 4;
    for (index, entry) in entries.iter().enumerate() {
        for (_, within, code) in planted.iter().filter(|(at, ..)| *at == index) {
            expected.push((index, line + within, code));
        }
        text.push_str(&entry.join("\n"));
        text.push_str(if index + 1 < entries.len() { ",\n" } else { "\n" });
        line += entry.len();
    }
    text.push_str("]\n}\n");
    place.write("tools.registry.json", &text);
    let (report, exit) = place.json(&["check"]);
    assert_eq!((exit, &report["ok"]), (1, &json!(false)));
    let found: Vec<(usize, usize, &str)> = report["findings"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|finding| finding["severity"] == "error")
        .map(|finding| {
            let number = |name: &str| usize::try_from(finding[name].as_u64().unwrap()).unwrap();
            (number("toolIndex"), number("line"), finding["code"].as_str().unwrap())
        })
        .collect();
    assert_eq!(found, expected);
    let all = report.to_string();
    assert!(!all.contains("hunter2") && !all.contains("ghp_"), "no secret is repeated");
    // The output for operators contains the place, a caret below it, and help.
    let output = place.run(&["check"]);
    let shown = String::from_utf8(output.stdout).unwrap();
    assert!(shown.contains("error[misspelled-field]") && shown.contains("   | "), "{shown}");
    assert!(
        shown.contains("help: write `timeout_ms`") && !shown.contains("ghp_"),
        "the nearest name"
    );
}

#[test]
fn the_example_registry_is_covered_as_its_page_says() {
    let place = Place::new();
    let folder = repository().join("examples/registries");
    let run = |arguments: &[&str]| {
        let mut all = vec!["--data", place.path().to_str().unwrap()];
        all.extend(arguments);
        place.command(&all).current_dir(&folder).output().unwrap()
    };
    let checked = run(&["check", "operations.json", "--format", "json"]);
    let checked: Value = serde_json::from_slice(&checked.stdout).unwrap();
    assert_eq!(checked, json!({"ok": true, "findings": []}));
    assert!(run(&["trust", "--yes"]).status.success());
    let fresh = run(&["coverage", "--check", "registry_coverage.md"]);
    assert!(fresh.status.success(), "write it again: {}", String::from_utf8_lossy(&fresh.stderr));
    let modes: Vec<(String, Value)> = example()
        .iter()
        .filter(|tool| tool["idempotency"]["mode"] == "keyed")
        .map(|tool| {
            (tool["name"].as_str().unwrap().to_owned(), tool["idempotency"]["key_field"].clone())
        })
        .collect();
    for (name, field) in [
        ("leads.create", "phone"),
        ("media.register_asset", "file_ref"),
        ("identity.add_memory", "key"),
        ("identity.score_pattern", "key"),
        ("personal.boundary_set", "key"),
    ] {
        assert!(modes.contains(&(name.to_owned(), json!(field))), "{name}");
    }
}

#[test]
fn tools_are_found_by_words_and_called_by_their_names() {
    let place = Place::new();
    std::fs::copy(
        repository().join("examples/registries/operations.json"),
        place.path().join("tools.registry.json"),
    )
    .unwrap();
    place.write("handlers/calendar.py", "def list_events(args):\n    return {}\n");
    place.write("handlers/messages.py", "def send_sms(args):\n    return {}\n");
    let (found, _) = place.json(&["search", "text message to a phone", "--limit", "3"]);
    assert_eq!(found["tools"][0]["toolId"], "messages.send_sms", "{found}");
    let (found, _) = place.json(&["search", "google drive"]);
    assert!(found["tools"].as_array().unwrap().is_empty(), "what cannot run is not found: {found}");
    let gateway = place.serve();
    let (status, found) = gateway.get("/v1/tools?q=calendar%20events&limit=1");
    assert_eq!((status, found["tools"].as_array().unwrap().len()), (200, 1), "{found}");
}

const HANDLERS: &str = r#"
def echo(args):
    return args
"#;

/// Returns three handler tools: one with an optional property, one in an older draft, and one to hide.
fn small_registry() -> String {
    let echo = json!({"name": "demo.echo", "description": "Gives back what it gets.", "output_schema": {},
        "input_schema": {"type": "object", "required": ["text"], "additionalProperties": false, "properties": {
            "text": {"type": "string"}, "times": {"type": "integer"}, "note": {"type": ["string", "null"]}}}});
    let mut old = echo.clone();
    old["name"] = json!("demo.old.echo");
    old["execution"] = json!({"localRuntimeId": "handlers", "target": "demo.echo"});
    old["input_schema"] = json!({"$schema": "http://json-schema.org/draft-07/schema#", "type": "object",
        "properties": {"pair": {"type": "array", "items": [{"type": "string"}, {"type": "integer"}], "additionalItems": false}}});
    let mut hidden = echo.clone();
    hidden["name"] = json!("demo.secret");
    json!({"version": "1.0.0", "tools": [echo, old, hidden]}).to_string()
}

#[test]
fn agents_search_and_call_in_both_eras() {
    let Some(python) = toolbooth_tests::set_up("venv/bin/python") else { return };
    let place = Place::new();
    place
        .write("toolbooth.toml", "[mcp]\nlisting = \"search\"\n[callers.me]\nmatch = [\"local\"]\ndeny = [\"demo.secret\"]\n")
        .write("tools.registry.json", &small_registry())
        .write("handlers/demo.py", HANDLERS);
    let gateway = place.serve();
    let calls = json!([
        {"name": "search_tools", "arguments": {"query": "gives back what it gets", "limit": 1}},
        {"name": "call_tool", "arguments": {"name": "demo_echo", "arguments": {"text": "hi"}}, "meta": {"toolbooth/callId": "inner-1"}},
        {"name": "call_tool", "arguments": {"name": "demo_echo", "arguments": {"txt": "hi"}}},
        {"name": "call_tool", "arguments": {"name": "no_such_tool"}},
        {"name": "call_tool", "arguments": {"name": "demo.secret"}},
        {"name": "search_tools", "arguments": {"query": "secret"}},
        {"name": "search_tools", "arguments": {"nonsense": 1}},
        {"name": "call_tool", "arguments": {"tool": "demo_echo"}},
        {"name": "calculator", "arguments": {"expression": "2+2"}},
    ]);
    for (mode, url) in
        [("legacy", Some(gateway.url())), ("2026-07-28", Some(gateway.url())), ("2026-07-28", None)]
    {
        let told = place.client(&python, url.as_deref(), mode, &calls);
        let names: Vec<&str> = told["tools"]
            .as_array()
            .unwrap()
            .iter()
            .map(|tool| tool["name"].as_str().unwrap())
            .collect();
        assert_eq!(names, ["search_tools", "call_tool"], "{mode}");
        let result = |at: usize| &told["results"][at]["result"];
        let found = &result(0)["structuredContent"]["tools"];
        assert_eq!(found.as_array().unwrap().len(), 1, "{mode} {told}");
        assert!(
            found[0]["name"].as_str().unwrap().starts_with("demo_")
                && found[0]["inputSchema"].is_object()
        );
        assert_eq!(result(1)["structuredContent"], json!({"text": "hi"}), "{mode} {told}");
        assert_eq!(result(2)["_meta"]["toolbooth/errorCode"], "invalid-args", "{mode} {told}");
        let (unknown, hidden) = (&told["results"][3]["error"], &told["results"][4]["error"]);
        assert_eq!(unknown["code"], -32602, "{mode} {told}");
        assert_eq!(unknown, hidden, "hidden and unknown are one answer");
        assert_eq!(result(5)["structuredContent"], json!({"tools": []}), "{mode} {told}");
        assert_eq!(result(6)["isError"], true, "{mode} {told}");
        assert_eq!(told["results"][7]["error"]["code"], -32602, "{mode} {told}");
        assert_eq!(result(8)["content"][0]["text"], "4", "names still work: {mode} {told}");
    }
    // Records and policy use the inner tool.
    let records = place.records("inner-1");
    assert!(records.events.iter().all(|event| event["toolName"] == "demo.echo"), "{records:?}");
    place.assert_sound();
}

#[test]
fn strict_nulls_older_drafts_and_short_names() {
    let Some(python) = toolbooth_tests::set_up("venv/bin/python") else { return };
    let place = Place::new();
    place.write("tools.registry.json", &small_registry()).write("handlers/demo.py", HANDLERS);
    let arguments = json!({"text": "hi", "times": null, "note": null});
    let calls = json!([
        {"name": "demo_echo", "arguments": arguments},
        {"name": "demo_echo", "arguments": arguments, "meta": {"toolbooth/dialect": "openai-strict"}},
        {"name": "demo_old_echo", "arguments": {"pair": ["a", 1]}},
        {"name": "demo_old_echo", "arguments": {"pair": ["a", 1, 2]}},
    ]);
    let told = place.client(&python, None, "2026-07-28", &calls);
    let result = |at: usize| &told["results"][at]["result"];
    assert_eq!(
        result(0)["_meta"]["toolbooth/errorCode"],
        "invalid-args",
        "strict was not asked for"
    );
    assert_eq!(result(1)["structuredContent"], json!({"text": "hi", "note": null}), "{told}");
    assert_eq!(result(2)["structuredContent"], json!({"pair": ["a", 1]}), "{told}");
    assert_eq!(result(3)["isError"], true, "judged by the schema as it was registered");
    let old = told["tools"]
        .as_array()
        .unwrap()
        .iter()
        .find(|tool| tool["name"] == "demo_old_echo")
        .unwrap();
    let pair = &old["inputSchema"]["properties"]["pair"];
    assert_eq!(
        (&pair["prefixItems"][1]["type"], &pair["items"]),
        (&json!("integer"), &json!(false)),
        "{old}"
    );
    // Exports also contain the converted schema, and strict declarations report features that they cannot
    // express.
    let output = place.run(&["export", "--for", "openai", "--strict"]);
    let exported: Value = serde_json::from_slice(&output.stdout).unwrap();
    let echo = exported
        .as_array()
        .unwrap()
        .iter()
        .find(|tool| tool["function"]["name"] == "demo_echo")
        .unwrap();
    assert_eq!(
        echo["function"]["parameters"]["required"],
        json!(["text", "times", "note"]),
        "{echo}"
    );
    let notes = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(notes.contains("demo.old.echo/properties/pair/prefixItems"), "{notes}");
}

#[test]
fn secrets_are_known_by_a_maintained_set_of_rules() {
    let place = Place::new();
    place.write("tools.registry.json", &small_registry()).write("handlers/demo.py", HANDLERS);
    // The parts are joined here, so that secret scanners find nothing in this file.
    let token = format!("{}{}", "ghp_", "x7Kq2Lm9Rt4Vw8Zb3Nc6Yd1Pf5Hs0Jg2Qk7T");
    let arguments = json!({"text": format!("use {token} please")}).to_string();
    let (result, exit) =
        place.json(&["call", "demo.echo", "--args", &arguments, "--call-id", "c1"]);
    assert_eq!(exit, 0, "{result}");
    let records = place.records("c1");
    let kept = format!("{:?}{:?}", records.logs, records.events);
    assert!(!kept.contains(&token) && kept.contains("use [redacted] please"), "{kept}");
    let events = place.json(&["audit", "query"]).0.to_string();
    assert!(!events.contains(&token));
}

#[test]
fn arguments_that_cost_too_much_are_refused_in_time() {
    let place = Place::new();
    let mut chain = serde_json::Map::new();
    for n in 0..250 {
        chain.insert(format!("c{n}"), json!({"$ref": format!("#/$defs/c{}", n + 1)}));
    }
    chain.insert("c250".to_owned(), json!({"properties": {"a": {"$ref": "#/$defs/c0"}}}));
    let entry = |name: &str, schema: Value| json!({"name": name, "description": "d", "input_schema": schema, "output_schema": {}, "execution": {"localRuntimeId": "handlers", "target": "demo.echo"}});
    let tools = [
        entry(
            "a.double",
            json!({"type": "object", "properties": {"a": {"allOf": [{"$ref": "#"}, {"$ref": "#"}]}, "b": {"type": "string"}}}),
        ),
        entry("a.chain", json!({"type": "object", "$defs": chain, "$ref": "#/$defs/c0"})),
        entry(
            "a.tree",
            json!({"type": "object", "properties": {"a": {"$ref": "#"}, "b": {"$ref": "#"}}}),
        ),
    ];
    place
        .write("tools.registry.json", &json!({"version": "1.0.0", "tools": tools}).to_string())
        .write("handlers/demo.py", HANDLERS);
    let gateway = place.serve();
    let mut deep = json!({"b": 1});
    for _ in 0..110 {
        deep = json!({"a": deep});
    }
    for (tool, status) in [("a.double", 400), ("a.chain", 400), ("a.tree", 400)] {
        let body = json!({"toolId": tool, "args": deep}).to_string();
        let (told, problem) = gateway.post("/v1/calls", &body);
        assert_eq!((told, &problem["code"]), (status, &json!("invalid-args")), "{tool}: {problem}");
    }
    assert_eq!(gateway.get("/healthz").0, 200);
    let (status, result) =
        gateway.post("/v1/calls", r#"{"toolId":"a.tree","args":{"a":{"b":{}}}}"#);
    assert_eq!(status, 200, "{result}");
}
