use serde_json::json;

use super::*;

fn refused(schema: &Value) -> String {
    examine(schema).unwrap_err().message
}

#[test]
fn references_that_double_are_bounded_however_they_are_written() {
    for (anchor, name) in [("#/$defs/a", ""), ("urn:a", "$id"), ("#/$defs/%61", "")] {
        let mut definitions = Map::new();
        for n in 0..40 {
            let next = json!({ "$ref": format!("{anchor}{}", n + 1) });
            let mut schema = json!({ "allOf": [next, next] });
            if !name.is_empty() {
                schema[name] = json!(format!("urn:a{n}"));
            }
            definitions.insert(format!("a{n}"), schema);
        }
        let mut last = json!({ "type": "string" });
        if !name.is_empty() {
            last[name] = json!("urn:a40");
        }
        definitions.insert("a40".to_owned(), last);
        let bomb = json!({ "type": "object", "$defs": definitions,
            "properties": { "x": { "$ref": format!("{anchor}0") } } });
        assert!(refused(&bomb).contains("expand"), "{anchor}");
    }
}

#[test]
fn cycles_that_consume_nothing_are_refused_and_others_are_not() {
    for cycle in [
        json!({ "$ref": "#" }),
        json!({ "allOf": [{ "$ref": "#" }] }),
        json!({ "$defs": { "a": { "$ref": "#/$defs/b" }, "b": { "anyOf": [{ "$ref": "#/$defs/a" }] } } }),
        json!({ "$anchor": "here", "not": { "$ref": "#here" } }),
        json!({ "$id": "urn:x", "allOf": [{ "$ref": "urn:x" }] }),
        json!({ "$id": "http://h/a/b", "$defs": { "c": { "$id": "c", "$ref": "b" } }, "$ref": "c" }),
        json!({ "$defs": { "a b": { "$ref": "#/$defs/a%20b" } } }),
    ] {
        assert!(refused(&cycle).contains("cycle"), "{cycle}");
    }
    let tree = json!({ "type": "object", "properties": { "left": { "$ref": "#" }, "items": { "type": "array", "items": { "$ref": "#" } } } });
    assert!(examine(&tree).unwrap().is_some());
    let values = json!({ "enum": [{ "$ref": "#" }], "default": { "$ref": "#" } });
    assert!(examine(&values).unwrap().is_none());
}

fn nested(levels: usize) -> Value {
    let mut value = json!({ "b": 1 });
    for _ in 0..levels {
        value = json!({ "a": value });
    }
    value
}

#[test]
fn recursion_that_branches_is_counted_for_each_instance() {
    let twice = json!({ "type": "object", "properties": { "a": { "allOf": [{ "$ref": "#" }, { "$ref": "#" }] } } });
    let graph = examine(&twice).unwrap().unwrap();
    assert!(graph.can_judge(&nested(10)) && !graph.can_judge(&nested(60)));
    // The count of a tree is proportional to the size of the instance, at any depth.
    let tree =
        json!({ "type": "object", "properties": { "a": { "$ref": "#" }, "b": { "$ref": "#" } } });
    let graph = examine(&tree).unwrap().unwrap();
    assert!(graph.can_judge(&nested(120)));
    // A schema without recursion may also double, level by level.
    let mut definitions = Map::new();
    for n in 0..60 {
        let next = json!({ "properties": { "a": { "$ref": format!("#/$defs/d{}", n + 1) } } });
        definitions.insert(format!("d{n}"), json!({ "allOf": [next, next] }));
    }
    definitions.insert("d60".to_owned(), json!({}));
    let ladder = json!({ "$defs": definitions, "$ref": "#/$defs/d0" });
    let graph = examine(&ladder).unwrap().unwrap();
    assert!(graph.can_judge(&nested(10)) && !graph.can_judge(&nested(60)));
}

#[test]
fn ordinary_schemas_are_not_counted() {
    let plain = json!({ "type": "object", "$defs": { "a": { "type": "string" } }, "properties": {
        "x": { "$ref": "#/$defs/a" }, "y": { "type": "array", "items": { "$ref": "#/$defs/a" } } } });
    assert!(examine(&plain).unwrap().is_none());
}

#[test]
fn objections_name_their_paths() {
    let path_of = |schema: Value| crate::json::dotted(&examine(&schema).unwrap_err().path);
    assert_eq!(path_of(json!({ "allOf": [{ "$ref": "#" }] })), "allOf[0].$ref");
    assert_eq!(
        path_of(json!({ "properties": { "a": { "items": { "$ref": "https://example.com/x" } } } })),
        "properties.a.items.$ref"
    );
    assert_eq!(path_of(json!({ "$schema": "https://example.com/dialect" })), "$schema");
    assert_eq!(path_of(json!({ "$schema": 7 })), "$schema");
    let embedded = json!({ "$defs": { "a": { "$id": "urn:a" } }, "$ref": "urn:a" });
    assert!(examine(&embedded).is_ok());
    let meta = json!({ "$ref": "https://json-schema.org/draft/2020-12/schema" });
    assert!(examine(&meta).is_ok());
}

#[test]
fn long_chains_end() {
    let mut definitions = Map::new();
    for n in 0..100_000 {
        definitions.insert(format!("a{n}"), json!({ "$ref": format!("#/$defs/a{}", n + 1) }));
    }
    assert!(examine(&json!({ "$defs": definitions })).is_err());
}
