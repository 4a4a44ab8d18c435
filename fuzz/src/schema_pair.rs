//! Any two schemas and a value: compiling, judging, comparing, older drafts, and dropped nulls
//! neither panic nor take for ever.
#![no_main]

use libfuzzer_sys::fuzz_target;
use serde_json::{Value, json};
use toolbooth_contracts::declaration::without_widened_nulls;
use toolbooth_contracts::json as gate;
use toolbooth_contracts::schema::CompiledSchema;
use toolbooth_contracts::schema_dialect::in_2020_12;
use toolbooth_registry::lock::compare;
use toolbooth_registry::said::Said;
use toolbooth_registry::suspicion;

fn said(schema: &Value) -> Said {
    let text = schema.get("description").and_then(Value::as_str).map(str::to_owned);
    Said {
        name: text.clone().unwrap_or_default(),
        title: None,
        description: text,
        input_schema: schema.clone(),
        output_schema: json!({}),
        annotations: schema.as_object().cloned(),
        extra: schema.as_object().cloned().unwrap_or_default(),
    }
}

fuzz_target!(|bytes: &[u8]| {
    let Ok(Value::Array(parts)) = gate::parse(bytes) else { return };
    let [one, two, value, ..] = parts.as_slice() else { return };
    for schema in [one, two] {
        if let Ok(compiled) = CompiledSchema::compile(schema) {
            let errors = compiled.errors(value);
            assert_eq!(errors, compiled.errors(value));
        }
        let _ = in_2020_12(schema);
        let _ = without_widened_nulls(schema, value.clone());
        let _ = suspicion::of(&said(schema));
    }
    assert!(compare(&said(one), &said(one)).is_empty());
    let _ = compare(&said(one), &said(two));
});
