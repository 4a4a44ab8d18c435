//! Cases of the guard: one broken entry per code, both dialects, and the properties.

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::contract::{Category, IdempotencyMode};
use crate::json::parse;

fn guard() -> Guard {
    Guard::default()
}

fn canonical_entry() -> Value {
    json!({
        "toolId": "mail.send",
        "description": "Sends a mail.",
        "category": "function",
        "inputSchema": {"type": "object", "properties": {"to": {"type": "string"}, "token": {"type": "string"}}},
        "outputSchema": {},
        "capabilities": {"locales": ["en"], "maxAssetBytes": 1024, "vendorSpecific": [1]},
        "execution": {"localRuntimeId": "builtin"},
        "policy": {"timeoutMs": 1000, "trustLevel": "trusted", "owner": "ops"},
        "permissions": ["send:email"],
        "idempotency": {"mode": "keyed", "keyField": "to"},
        "receiptFields": ["result.id"],
        "sandbox": {"enforce": "required", "env": {"secrets": {"TOKEN": {"secretRef": "env:X"}}}}
    })
}

fn snake_entry() -> Value {
    json!({
        "name": "integrations.google_drive.search",
        "description": "Searches.",
        "input_schema": {"type": "object", "properties": {"q": {"type": "string"}}},
        "output_schema": {},
        "permissions": ["read:drive"],
        "idempotency": {"mode": "keyed", "key_field": "q"},
        "timeout_ms": 5000,
        "receipt_fields": ["result.count"]
    })
}

fn with(pointer: &str, value: Value) -> Value {
    let mut entry = canonical_entry();
    let (parent, key) = pointer.rsplit_once('/').unwrap();
    let parent = entry.pointer_mut(parent).unwrap();
    match parent {
        Value::Array(items) => items[key.parse::<usize>().unwrap()] = value,
        other => {
            other.as_object_mut().unwrap().insert(key.to_owned(), value);
        }
    }
    entry
}

fn without(pointer: &str) -> Value {
    let mut entry = canonical_entry();
    let (parent, key) = pointer.rsplit_once('/').unwrap();
    entry.pointer_mut(parent).unwrap().as_object_mut().unwrap().shift_remove(key);
    entry
}

#[test]
fn every_code_has_an_entry_that_shows_it() {
    let huge = parse(b"1e308").unwrap();
    let overflow: Value = serde_json::from_str("1e400").unwrap();
    let cases: Vec<(Value, &str, &str)> = vec![
        (json!([]), "invalid-root", "root"),
        (with("/title", json!(5)), "invalid-root", "title"),
        (with("/policy/owner", overflow), "not-json-safe", "policy.owner"),
        (with("/policy/apiKey", json!("x")), "forbidden-secret-field", "policy.apiKey"),
        (
            with("/description", json!("-----BEGIN PRIVATE KEY-----")),
            "forbidden-secret-field",
            "description",
        ),
        (
            with("/policy/owner", json!({"secretRef": "env:X"})),
            "forbidden-secret-field",
            "policy.owner.secretRef",
        ),
        (
            with("/inputSchema/properties/token", json!({"default": "x"})),
            "forbidden-secret-field",
            "inputSchema.properties.token.default",
        ),
        (
            with("/sandbox/env/secrets/TOKEN", json!("literal")),
            "forbidden-secret-field",
            "sandbox.env.secrets.TOKEN",
        ),
        (with("/name", json!("x.y")), "ambiguous-field", "name"),
        (with("/timeout_ms", json!(5)), "ambiguous-field", "timeout_ms"),
        (with("/idempotency/key_field", json!("to")), "ambiguous-field", "idempotency.key_field"),
        (with("/toolId", json!("a b")), "invalid-tool-id", "toolId"),
        (without("/toolId"), "invalid-tool-id", "toolId"),
        (with("/category", json!("functon")), "invalid-category", "category"),
        (
            with("/inputSchema", json!({"type": "string"})),
            "invalid-input-schema",
            "inputSchema.type",
        ),
        (
            with("/inputSchema/properties/to", json!({"type": "strin"})),
            "invalid-input-schema",
            "inputSchema.properties.to.type",
        ),
        (
            with("/outputSchema", json!({"$ref": "https://example.com/x"})),
            "invalid-output-schema",
            "outputSchema.$ref",
        ),
        (with("/capabilities", json!(1)), "invalid-capabilities", "capabilities"),
        (
            with("/capabilities/locales", json!(["en", 1])),
            "invalid-capabilities-locales",
            "capabilities.locales[1]",
        ),
        (
            with("/capabilities/mediaTypes", json!("x")),
            "invalid-capabilities-media-types",
            "capabilities.mediaTypes",
        ),
        (
            with("/capabilities/maxAssetBytes", json!(-1)),
            "invalid-capabilities-limit",
            "capabilities.maxAssetBytes",
        ),
        (with("/execution", json!("x")), "invalid-execution", "execution"),
        (
            with("/execution/mcpServerId", json!(" ")),
            "invalid-execution-field",
            "execution.mcpServerId",
        ),
        (with("/execution", json!({})), "missing-execution-target", "execution"),
        (with("/policy", json!(null)), "invalid-policy", "policy"),
        (with("/policy/timeoutMs", json!(0)), "invalid-policy-timeout", "policy.timeoutMs"),
        (with("/policy/timeoutMs", huge), "invalid-policy-timeout", "policy.timeoutMs"),
        (
            with("/policy/rateLimitPerMin", json!(-1)),
            "invalid-policy-rate-limit",
            "policy.rateLimitPerMin",
        ),
        (with("/policy/costTier", json!(1)), "invalid-policy-cost-tier", "policy.costTier"),
        (with("/policy/trustLevel", json!(" ")), "invalid-policy-trust-level", "policy.trustLevel"),
        (
            with("/policy/maxConcurrency", json!(0)),
            "invalid-policy-concurrency",
            "policy.maxConcurrency",
        ),
        (with("/policy/approval", json!("maybe")), "invalid-policy-approval", "policy.approval"),
        (with("/policy/readOnly", json!("yes")), "invalid-policy-field", "policy.readOnly"),
        (with("/permissions/0", json!("send email")), "invalid-permission", "permissions[0]"),
        (with("/idempotency/mode", json!("once")), "invalid-idempotency-mode", "idempotency.mode"),
        (without("/idempotency/keyField"), "missing-key-field", "idempotency.keyField"),
        (with("/idempotency/keyField", json!("too")), "unknown-key-field", "idempotency.keyField"),
        (
            with("/idempotency/keyScope", json!("all")),
            "invalid-idempotency-field",
            "idempotency.keyScope",
        ),
        (with("/receiptFields/0", json!("id")), "invalid-receipt-field", "receiptFields[0]"),
        (
            with("/sandbox/limits", json!({"wallMs": "x"})),
            "invalid-sandbox",
            "sandbox.limits.wallMs",
        ),
        (with("/sandbox/network", json!(true)), "invalid-sandbox", "sandbox.network"),
        (
            with("/sandbox/net", json!({"hosts": ["a.example:443", "https://a.example"]})),
            "invalid-sandbox",
            "sandbox.net.hosts.1",
        ),
        (
            with(
                "/sandbox/net",
                json!({"hosts": ["*", "*.a.example:*", "[::1]:80", "*:80", "*:*"]}),
            ),
            "invalid-sandbox",
            "sandbox.net.hosts.4",
        ),
        (with("/policy/timoutMs", json!(5)), "misspelled-field", "policy.timoutMs"),
        (with("/policy/rateLimitPermin", json!(5)), "misspelled-field", "policy.rateLimitPermin"),
    ];
    for (entry, code, path) in &cases {
        let error = guard().validate_entry(entry).unwrap_err();
        assert_eq!((error.code.as_str(), error.path.as_str()), (*code, *path), "{error}");
    }
    for code in ContractCode::ALL {
        let warning = matches!(code, ContractCode::UnknownField | ContractCode::MissingDescription);
        assert!(warning || cases.iter().any(|(_, shown, _)| *shown == code.as_str()), "{code}");
    }
}

/// Schemas that a validator accepts and a gateway must reject.
#[test]
fn schemas_that_cost_too_much_are_refused_with_their_paths() {
    let mut doubling = serde_json::Map::new();
    for n in 0..20 {
        let next = json!({"$ref": format!("#/$defs/a{}", n + 1)});
        doubling.insert(format!("a{n}"), json!({"anyOf": [next, next]}));
    }
    doubling.insert("a20".to_owned(), json!({}));
    let mut deep = json!({});
    for _ in 0..130 {
        deep = json!({"not": deep});
    }
    let property = |schema: Value| json!({"type": "object", "properties": {"p": schema}});
    let cases = [
        (
            json!({"type": "object", "$defs": doubling, "$ref": "#/$defs/a0"}),
            "invalid-input-schema",
            "inputSchema.$ref",
        ),
        (
            property(json!({"$ref": "#/properties/p"})),
            "invalid-input-schema",
            "inputSchema.properties.p.$ref",
        ),
        (property(deep), "not-json-safe", "inputSchema.properties.p"),
        (
            property(json!({"pattern": "(a{1000}){1000}"})),
            "invalid-input-schema",
            "inputSchema.properties.p.pattern",
        ),
        (
            property(json!({"pattern": "(?=a)b"})),
            "invalid-input-schema",
            "inputSchema.properties.p.pattern",
        ),
        (
            property(json!({"$ref": "file:///etc/passwd"})),
            "invalid-input-schema",
            "inputSchema.properties.p.$ref",
        ),
        (
            json!({"type": "object", "$schema": "https://example.com/x"}),
            "invalid-input-schema",
            "inputSchema.$schema",
        ),
        (property(json!({"$ref": "#/$defs/none"})), "invalid-input-schema", "inputSchema"),
    ];
    for (schema, code, path) in cases {
        let error = guard().validate_entry(&with("/inputSchema", schema)).unwrap_err();
        assert_eq!(error.code.as_str(), code, "{error}");
        assert!(error.path.starts_with(path), "{path}: {error}");
    }
}

#[test]
fn findings_come_in_the_order_of_the_table() {
    let entry = json!({
        "timoutMs": 1, "toolId": "", "category": "x", "inputSchema": 1, "outputSchema": 1,
        "capabilities": {"locales": 1, "mediaTypes": 1, "maxAssetBytes": "x"}, "execution": {"target": " "},
        "policy": {"approval": 1, "timeoutMs": -1}, "permissions": [1], "idempotency": {"mode": "x", "keyScope": 1},
        "receiptFields": [1], "sandbox": {"x": 1}, "password": "x", "zebra": 1
    });
    let findings = guard().check_entry(&entry);
    let order: Vec<usize> = findings
        .iter()
        .map(|finding| ContractCode::ALL.iter().position(|code| *code == finding.code).unwrap())
        .collect();
    let mut sorted = order.clone();
    sorted.sort_unstable();
    assert_eq!(order, sorted, "{findings:#?}");
    assert!(findings.len() >= 17, "{findings:#?}");
}

#[test]
fn canonical_entry_is_a_contract() {
    let contract = guard().validate_entry(&canonical_entry()).unwrap();
    assert_eq!(contract.category, Category::Function);
    assert_eq!(contract.idempotency.mode, IdempotencyMode::Keyed);
    assert_eq!(contract.policy.extra.get("owner"), Some(&json!("ops")));
    assert_eq!(contract.capabilities.asset_bytes_max(), Some(1024));
    let unknown: Vec<_> = guard().check_entry(&canonical_entry());
    assert!(
        unknown.iter().all(|finding| finding.code == ContractCode::UnknownField),
        "{unknown:?}"
    );
}

#[test]
fn snake_entry_gets_its_defaults() {
    let contract = guard().validate_entry(&snake_entry()).unwrap();
    assert_eq!(contract.policy.timeout_ms, 5000);
    assert_eq!(contract.policy.trust_level, "sandbox");
    assert_eq!(contract.execution.local_runtime_id.as_deref(), Some("handlers"));
    assert_eq!(contract.execution.target.as_deref(), Some("integrations.google_drive_search"));
    assert_eq!(contract.idempotency.key_field.as_deref(), Some("q"));
    let mut bare = snake_entry();
    let members = bare.as_object_mut().unwrap();
    members.shift_remove("timeout_ms");
    members.shift_remove("idempotency");
    let contract = guard().validate_entry(&bare).unwrap();
    assert_eq!(contract.policy.timeout_ms, 30_000);
    assert_eq!(contract.idempotency.mode, IdempotencyMode::None);
}

#[test]
fn snake_paths_are_spelled_as_in_the_file() {
    let mut entry = snake_entry();
    entry["timeout_ms"] = json!("soon");
    entry["idempotency"]["key_field"] = json!("none");
    entry["receipt_fields"] = json!(["x"]);
    let paths: Vec<String> = guard().check_entry(&entry).into_iter().map(|f| f.path).collect();
    assert_eq!(paths, ["timeout_ms", "idempotency.key_field", "receipt_fields[0]"]);
    entry = snake_entry();
    entry["name"] = json!("single");
    let error = guard().validate_entry(&entry).unwrap_err();
    assert_eq!(
        (error.code.as_str(), error.path.as_str()),
        ("missing-execution-target", "execution")
    );
}

#[test]
fn on_key_is_the_default_where_nothing_is_said() {
    let contract = guard().validate_entry(&without("/idempotency")).unwrap();
    assert_eq!(contract.idempotency.mode, IdempotencyMode::OnKey);
}

#[test]
fn messages_never_repeat_a_secret() {
    let entry = with("/policy/owner", json!("Bearer abcdefgh12345678ijkl"));
    let all = format!("{:?}", guard().check_entry(&entry));
    assert!(!all.contains("abcdefgh12345678"), "{all}");
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>()
            .prop_filter_map("finite", |f| serde_json::Number::from_f64(f).map(Value::Number)),
        ".{0,12}".prop_map(Value::from),
    ];
    let key = prop_oneof![
        "[a-z]{0,6}",
        proptest::sample::select(vec![
            "toolId",
            "name",
            "category",
            "inputSchema",
            "type",
            "properties",
            "policy",
            "timeoutMs",
            "execution",
            "idempotency",
            "mode",
            "keyField",
            "sandbox",
            "env",
            "secrets",
            "$ref",
        ])
        .prop_map(str::to_owned),
    ];
    leaf.prop_recursive(4, 48, 6, move |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
            proptest::collection::vec((key.clone(), inner), 0..6)
                .prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn the_first_error_is_the_first_of_all(value in any_json(), field in proptest::sample::select(
        vec!["/toolId", "/category", "/inputSchema", "/policy", "/execution", "/idempotency", "/sandbox", "/capabilities"]
    )) {
        for entry in [value.clone(), with(field, value)] {
            let all = guard().check_entry(&entry);
            prop_assert_eq!(&all, &guard().check_entry(&entry));
            let first = all.into_iter().find(|f| f.severity == Severity::Error).map(ContractError::from);
            prop_assert_eq!(first, guard().validate_entry(&entry).err());
        }
    }

    #[test]
    fn a_contract_survives_a_round_trip(extra in any_json(), timeout in 1u64..1_000_000, snake: bool) {
        let mut entry = if snake { snake_entry() } else { canonical_entry() };
        if snake { entry["timeout_ms"] = json!(timeout) } else { entry["policy"]["timeoutMs"] = json!(timeout) }
        entry["xExtension"] = extra;
        if let Ok(contract) = guard().validate_entry(&entry) {
            let written = serde_json::to_value(&contract).unwrap();
            prop_assert_eq!(guard().validate_entry(&written).unwrap(), contract);
        }
    }
}
