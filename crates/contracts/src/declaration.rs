//! Neutral declarations: the description of a tool for a model.
//!
//! Doc: registry.md#declarations

#[cfg(feature = "schemars")]
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// The description of a tool for a model, before it is rendered in a provider's format.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Declaration {
    /// The name on the wire.
    pub wire_name: String,
    /// The tool id.
    pub tool_id: String,
    /// A short display name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// The description of the tool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// JSON Schema of the arguments.
    pub parameters: Value,
    /// JSON Schema of the structured result; absent if any result is valid.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_schema: Option<Value>,
    /// The tool's own hints.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub annotations: Option<Map<String, Value>>,
    /// Other members that its source lists for clients, such as `icons` and `_meta`.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub extra: Map<String, Value>,
}

/// A part of a declaration that a provider's format cannot express.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct DeclarationFinding {
    /// The tool.
    pub tool_id: String,
    /// The place in its schema, as a JSON Pointer.
    pub path: String,
    /// A description of the part.
    pub message: String,
}

/// Declarations in a provider's format.
#[derive(Debug, Clone, PartialEq)]
pub struct RenderedDeclarations {
    /// The document for the provider.
    pub document: Value,
    /// The parts that could not be expressed.
    pub findings: Vec<DeclarationFinding>,
}

/// Maximum number of chained references to follow; a schema behind more of them is unknown.
const REFERENCES_MAX: usize = 16;

/// Returns `arguments` without the nulls that only a strict declaration allows. These are nulls of
/// properties that `schema` does not require and that cannot be null by it.
#[must_use]
pub fn without_widened_nulls(schema: &Value, arguments: Value) -> Value {
    narrowed(schema, schema, arguments, 0)
}

fn narrowed(root: &Value, schema: &Value, value: Value, depth: usize) -> Value {
    if depth > crate::json::DEPTH_MAX {
        return value;
    }
    let schema = followed(root, schema);
    match value {
        Value::Object(members) => {
            let required = schema.get("required").and_then(Value::as_array);
            let is_required =
                |name: &str| required.is_some_and(|names| names.iter().any(|own| own == name));
            let properties = schema.get("properties");
            let kept = members.into_iter().filter_map(|(name, member)| {
                let Some(property) = properties.and_then(|own| own.get(&name)) else {
                    return Some((name, member));
                };
                let widened =
                    member.is_null() && !is_required(&name) && !accepts_null(root, property, 0);
                (!widened).then(|| {
                    let member = narrowed(root, property, member, depth + 1);
                    (name, member)
                })
            });
            Value::Object(kept.collect())
        }
        Value::Array(items) => {
            let Some(inner) = schema.get("items") else { return Value::Array(items) };
            items.into_iter().map(|item| narrowed(root, inner, item, depth + 1)).collect()
        }
        other => other,
    }
}

/// Returns the schema at the end of a chain of references inside the document.
fn followed<'s>(root: &'s Value, schema: &'s Value) -> &'s Value {
    let mut here = schema;
    for _ in 0..REFERENCES_MAX {
        let target = here.get("$ref").and_then(Value::as_str).and_then(|to| to.strip_prefix('#'));
        match target.and_then(|pointer| root.pointer(pointer)) {
            Some(next) => here = next,
            None => break,
        }
    }
    here
}

/// Whether a schema may accept null. It is true if this is unknown, so that nothing is dropped.
fn accepts_null(root: &Value, schema: &Value, depth: usize) -> bool {
    if depth > REFERENCES_MAX {
        return true;
    }
    let Value::Object(members) = followed(root, schema) else {
        return *schema != Value::Bool(false);
    };
    let any = |list: &Value| {
        list.as_array().is_none_or(|all| all.iter().any(|one| accepts_null(root, one, depth + 1)))
    };
    let every = |list: &Value| {
        list.as_array().is_none_or(|all| all.iter().all(|one| accepts_null(root, one, depth + 1)))
    };
    members.iter().all(|(keyword, value)| match keyword.as_str() {
        "type" => match value {
            Value::Array(types) => types.iter().any(|name| name == "null"),
            name => name == "null",
        },
        "enum" => value.as_array().is_none_or(|values| values.contains(&Value::Null)),
        "const" => value.is_null(),
        "anyOf" | "oneOf" => any(value),
        "allOf" => every(value),
        _ => true,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_nulls_that_were_widened_are_dropped() {
        let schema = json!({"type": "object", "required": ["must"], "properties": {
            "must": {"type": "string"},
            "free": {"type": "string"},
            "null": {"type": ["string", "null"]},
            "any": {"description": "anything"},
            "choice": {"anyOf": [{"type": "string"}, {"$ref": "#/$defs/n"}]},
            "inner": {"type": "object", "properties": {"x": {"enum": [1, 2]}}},
            "list": {"type": "array", "items": {"$ref": "#/$defs/row"}}},
            "$defs": {"n": {"type": "integer"}, "row": {"properties": {"y": {"const": 1}}}}});
        let given = json!({"must": null, "free": null, "null": null, "any": null, "choice": null,
            "inner": {"x": null, "z": null}, "list": [{"y": null}, null], "extra": null});
        assert_eq!(
            without_widened_nulls(&schema, given),
            json!({"must": null, "null": null, "any": null, "inner": {"z": null}, "list": [{}, null], "extra": null})
        );
    }

    #[test]
    fn circles_of_references_end() {
        let schema = json!({"properties": {"a": {"$ref": "#/properties/a"}, "b": {"anyOf": [{"$ref": "#/properties/b"}]}}});
        let given = json!({"a": null, "b": null});
        assert_eq!(without_widened_nulls(&schema, given.clone()), given);
    }
}
