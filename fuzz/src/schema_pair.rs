//! Fuzzes two schemas and a value.
//!
//! Compiling, validating, comparing, converting older drafts and dropping nulls must neither panic
//! nor hang.

use serde_json::{Value, json};
use toolbooth_contracts::declaration::without_widened_nulls;
use toolbooth_contracts::json as gate;
use toolbooth_contracts::schema::CompiledSchema;
use toolbooth_contracts::schema_dialect::in_2020_12;
use toolbooth_registry::lock::compare;
use toolbooth_registry::source_claims::SourceClaims;
use toolbooth_registry::suspicion;

fn claims(schema: &Value) -> SourceClaims {
    let text = schema.get("description").and_then(Value::as_str).map(str::to_owned);
    SourceClaims {
        name: text.clone().unwrap_or_default(),
        title: None,
        description: text,
        input_schema: schema.clone(),
        output_schema: json!({}),
        annotations: schema.as_object().cloned(),
        extra: schema.as_object().cloned().unwrap_or_default(),
    }
}

/// Runs the target on any bytes.
pub fn run(bytes: &[u8]) {
    let Ok(Value::Array(parts)) = gate::parse(bytes) else { return };
    let [one, two, value, ..] = parts.as_slice() else { return };
    for schema in [one, two] {
        if let Ok(compiled) = CompiledSchema::compile(schema) {
            let errors = compiled.errors(value);
            assert_eq!(errors, compiled.errors(value));
        }
        let _ = in_2020_12(schema);
        let _ = without_widened_nulls(schema, value.clone());
        let _ = suspicion::of(&claims(schema));
    }
    assert!(compare(&claims(one), &claims(one)).is_empty());
    let _ = compare(&claims(one), &claims(two));
}
