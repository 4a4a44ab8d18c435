//! Converts older drafts of JSON Schema to draft 2020-12, for listings.
//!
//! Calls are judged by the registered schema. The converted schema is for clients, most of which know
//! only one draft. A schema that cannot be converted faithfully is left unchanged.
//!
//! Doc: contract.md#schemas

use serde_json::{Map, Value};

/// The name of draft 2020-12.
const CURRENT: &str = "https://json-schema.org/draft/2020-12/schema";

/// Keywords with a value that is data, not a schema.
const DATA: [&str; 5] = ["const", "enum", "default", "examples", "required"];
/// Keywords with an object of named schemas.
const NAMED: [&str; 6] =
    ["properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies"];
/// Keywords that may be next to a reference in drafts that ignore its siblings.
const BESIDE_REFERENCE: [&str; 10] = [
    "$ref",
    "$schema",
    "$id",
    "$defs",
    "definitions",
    "$comment",
    "title",
    "description",
    "default",
    "examples",
];

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Draft {
    Four,
    SixOrSeven,
    From2019,
}

/// Returns `schema` in draft 2020-12; `None` if it is in that draft already, or cannot be expressed in
/// it.
#[must_use]
pub fn in_2020_12(schema: &Value) -> Option<Value> {
    let named = schema.get("$schema")?.as_str()?.trim_end_matches('#');
    let draft = match named.split_once("://")?.1 {
        "json-schema.org/draft-04/schema" => Draft::Four,
        "json-schema.org/draft-06/schema" | "json-schema.org/draft-07/schema" => Draft::SixOrSeven,
        "json-schema.org/draft/2019-09/schema" => Draft::From2019,
        _ => return None,
    };
    if points_at_what_moves(schema) {
        return None;
    }
    let mut out = said(schema, draft, true);
    out.as_object_mut()?.insert("$schema".to_owned(), Value::from(CURRENT));
    Some(out)
}

/// Whether a reference contains a keyword that is renamed.
fn points_at_what_moves(value: &Value) -> bool {
    match value {
        Value::Array(items) => items.iter().any(points_at_what_moves),
        Value::Object(members) => members.iter().any(|(key, member)| match member {
            Value::String(to) if key == "$ref" || key == "$recursiveRef" => {
                ["/items", "/additionalItems", "/dependencies"].iter().any(|part| to.contains(part))
                    || (key == "$recursiveRef" && to != "#")
            }
            Value::Bool(true) => key == "$recursiveAnchor",
            other => points_at_what_moves(other),
        }),
        _ => false,
    }
}

fn said(schema: &Value, draft: Draft, root: bool) -> Value {
    let Value::Object(members) = schema else {
        return match schema {
            Value::Array(items) => items.iter().map(|item| said(item, draft, false)).collect(),
            other => other.clone(),
        };
    };
    let alone = draft < Draft::From2019 && members.contains_key("$ref");
    let mut out = Map::new();
    for (key, value) in members {
        let kept = BESIDE_REFERENCE.contains(&key.as_str()) || (root && key == "type");
        if alone && !kept {
            continue;
        }
        match (key.as_str(), value) {
            ("id", Value::String(id)) if draft == Draft::Four => {
                out.insert("$id".to_owned(), Value::from(id.as_str()));
            }
            ("$id", Value::String(id)) if id.starts_with('#') => {
                out.insert("$anchor".to_owned(), Value::from(id.trim_start_matches('#')));
            }
            ("$recursiveRef", _) => {
                out.insert("$ref".to_owned(), value.clone());
            }
            ("$recursiveAnchor", _) => (),
            ("items", Value::Array(_)) => {
                out.insert("prefixItems".to_owned(), said(value, draft, false));
                if let Some(rest) = members.get("additionalItems") {
                    out.insert("items".to_owned(), said(rest, draft, false));
                }
            }
            // Next to a single schema, it has no effect.
            ("additionalItems", _) => (),
            ("dependencies", Value::Object(dependencies)) => depend(dependencies, draft, &mut out),
            ("exclusiveMinimum" | "exclusiveMaximum", Value::Bool(exclusive)) => {
                let limit = if key == "exclusiveMinimum" { "minimum" } else { "maximum" };
                if let (true, Some(limit)) = (exclusive, members.get(limit)) {
                    out.insert(key.clone(), limit.clone());
                }
            }
            (name @ ("minimum" | "maximum"), _)
                if members.get(if name == "minimum" {
                    "exclusiveMinimum"
                } else {
                    "exclusiveMaximum"
                }) == Some(&Value::Bool(true)) => {}
            (name, Value::Object(inner)) if NAMED.contains(&name) => {
                let inner: Map<String, Value> = inner
                    .iter()
                    .map(|(name, schema)| (name.clone(), said(schema, draft, false)))
                    .collect();
                out.insert(key.clone(), Value::Object(inner));
            }
            (name, _) if DATA.contains(&name) => {
                out.insert(key.clone(), value.clone());
            }
            _ => {
                out.insert(key.clone(), said(value, draft, false));
            }
        }
    }
    Value::Object(out)
}

fn depend(dependencies: &Map<String, Value>, draft: Draft, out: &mut Map<String, Value>) {
    let (mut required, mut schemas) = (Map::new(), Map::new());
    for (name, dependency) in dependencies {
        match dependency {
            Value::Array(names) => drop(required.insert(name.clone(), Value::from(names.clone()))),
            schema => drop(schemas.insert(name.clone(), said(schema, draft, false))),
        }
    }
    for (keyword, members) in [("dependentRequired", required), ("dependentSchemas", schemas)] {
        if !members.is_empty() {
            out.insert(keyword.to_owned(), Value::Object(members));
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn older_drafts_are_said_anew() {
        let seven = json!({"$schema": "http://json-schema.org/draft-07/schema#", "type": "object",
            "properties": {
                "pair": {"items": [{"type": "string"}, {"$ref": "#/definitions/n", "minimum": 9}], "additionalItems": false},
                "list": {"items": {"type": "string"}},
                "dependencies": {"const": {"items": []}}},
            "definitions": {"n": {"$id": "#n", "type": "number"}},
            "dependencies": {"pair": ["list"], "list": {"required": ["pair"]}}});
        assert_eq!(
            in_2020_12(&seven).unwrap(),
            json!({"$schema": CURRENT, "type": "object",
                "properties": {
                    "pair": {"prefixItems": [{"type": "string"}, {"$ref": "#/definitions/n"}], "items": false},
                    "list": {"items": {"type": "string"}},
                    "dependencies": {"const": {"items": []}}},
                "definitions": {"n": {"$anchor": "n", "type": "number"}},
                "dependentRequired": {"pair": ["list"]}, "dependentSchemas": {"list": {"required": ["pair"]}}})
        );
        let four = json!({"$schema": "http://json-schema.org/draft-04/schema#", "id": "urn:x",
            "properties": {"n": {"minimum": 1, "exclusiveMinimum": true, "maximum": 3, "exclusiveMaximum": false}}});
        assert_eq!(
            in_2020_12(&four).unwrap(),
            json!({"$schema": CURRENT, "$id": "urn:x",
                "properties": {"n": {"exclusiveMinimum": 1, "maximum": 3}}})
        );
    }

    #[test]
    fn what_is_current_or_cannot_be_said_stays() {
        for schema in [
            json!({"type": "object"}),
            json!({"$schema": CURRENT, "items": [1]}),
            json!({"$schema": "http://json-schema.org/draft-07/schema#",
                "properties": {"a": {"$ref": "#/properties/b/items/0"}, "b": {"items": [{}]}}}),
            json!({"$schema": 5}),
            json!(true),
        ] {
            assert_eq!(in_2020_12(&schema), None, "{schema}");
        }
    }
}
