//! What a schema may do that a validator lets through: references that double, and cycles that
//! consume nothing.
//!
//! A schema from outside must not make the judging of one call take for ever. Only steps that stay
//! at the same place of the instance count; a recursion through a property or an item ends with
//! the instance.
//!
//! Doc: contract.md#schemas

use std::collections::HashMap;

use serde_json::Value;

use crate::json::Step;

/// Subschemas that may apply at one place of an instance, references expanded.
pub(crate) const EXPANDED_MAX: u64 = 10_000;
/// References and combinations that may lead on from one another.
const CHAIN_MAX: usize = 256;

/// Keywords whose subschema applies at the same place.
const IN_PLACE: [&str; 4] = ["not", "if", "then", "else"];
/// Keywords with a list of such subschemas.
const IN_PLACE_LISTS: [&str; 3] = ["allOf", "anyOf", "oneOf"];

/// What is wrong with a schema, and where.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Objection {
    pub(crate) path: Vec<Step>,
    pub(crate) message: String,
}

/// Looks at every subschema of a document.
///
/// # Errors
/// The first [`Objection`], in reading order.
pub(crate) fn lint(schema: &Value) -> Result<(), Objection> {
    let mut lint = Lint { root: schema, known: HashMap::new() };
    lint.walk(schema, &mut Vec::new())
}

#[derive(Clone, Copy)]
enum Known {
    /// Being looked at: coming back to it is a cycle.
    Open,
    /// Expands to so many subschemas.
    Done(u64),
}

struct Lint<'s> {
    root: &'s Value,
    known: HashMap<*const Value, Known>,
}

impl<'s> Lint<'s> {
    fn walk(&mut self, value: &'s Value, path: &mut Vec<Step>) -> Result<(), Objection> {
        match value {
            Value::Array(items) => {
                for (index, item) in items.iter().enumerate() {
                    path.push(Step::Index(index));
                    self.walk(item, path)?;
                    path.pop();
                }
            }
            Value::Object(members) => {
                self.expanded(value, 0)
                    .map_err(|message| Objection { path: path.clone(), message })?;
                for (key, member) in members {
                    // Values that a schema compares with are no schemas.
                    if matches!(key.as_str(), "const" | "enum" | "default" | "examples") {
                        continue;
                    }
                    path.push(Step::Key(key.clone()));
                    self.walk(member, path)?;
                    path.pop();
                }
            }
            _ => (),
        }
        Ok(())
    }

    /// How many subschemas apply where this one does.
    fn expanded(&mut self, schema: &'s Value, chain: usize) -> Result<u64, String> {
        let key: *const Value = schema;
        match self.known.get(&key) {
            Some(Known::Open) => {
                return Err("a cycle of references that consumes nothing".to_owned());
            }
            Some(Known::Done(size)) => return Ok(*size),
            None => (),
        }
        if chain > CHAIN_MAX {
            return Err(format!("more than {CHAIN_MAX} references lead on from one another"));
        }
        self.known.insert(key, Known::Open);
        let mut size = 1u64;
        for next in self.in_place(schema) {
            size = size.saturating_add(self.expanded(next, chain + 1)?);
            if size > EXPANDED_MAX {
                return Err(format!(
                    "the references expand to more than {EXPANDED_MAX} subschemas at one place"
                ));
            }
        }
        self.known.insert(key, Known::Done(size));
        Ok(size)
    }

    /// The subschemas that apply at the same place.
    fn in_place(&self, schema: &'s Value) -> Vec<&'s Value> {
        let Some(members) = schema.as_object() else { return Vec::new() };
        let mut next: Vec<&Value> = IN_PLACE.iter().filter_map(|name| members.get(*name)).collect();
        for name in IN_PLACE_LISTS {
            next.extend(members.get(name).and_then(Value::as_array).into_iter().flatten());
        }
        for name in ["dependentSchemas", "dependencies"] {
            let dependent = members.get(name).and_then(Value::as_object);
            next.extend(dependent.into_iter().flat_map(serde_json::Map::values));
        }
        for name in ["$ref", "$dynamicRef", "$recursiveRef"] {
            next.extend(members.get(name).and_then(Value::as_str).and_then(|to| self.target(to)));
        }
        next.retain(|value| value.is_object());
        next
    }

    /// What a reference inside the document points at; one that points at nothing does not
    /// compile anyway.
    fn target(&self, reference: &str) -> Option<&'s Value> {
        let fragment = reference.strip_prefix('#')?;
        if fragment.is_empty() || fragment.starts_with('/') {
            let decoded = fragment.replace("%25", "%").replace("%22", "\"").replace("%5E", "^");
            return self.root.pointer(&decoded);
        }
        anchored(self.root, fragment)
    }
}

/// The subschema with an anchor.
fn anchored<'v>(value: &'v Value, anchor: &str) -> Option<&'v Value> {
    match value {
        Value::Array(items) => items.iter().find_map(|item| anchored(item, anchor)),
        Value::Object(members) => {
            let named = ["$anchor", "$dynamicAnchor"]
                .iter()
                .any(|name| members.get(*name).and_then(Value::as_str) == Some(anchor));
            let id = members.get("$id").and_then(Value::as_str);
            if named || id.and_then(|id| id.strip_prefix('#')) == Some(anchor) {
                return Some(value);
            }
            members.values().find_map(|member| anchored(member, anchor))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn references_that_double_are_bounded() {
        let mut definitions = serde_json::Map::new();
        for n in 0..40 {
            let next = json!({ "$ref": format!("#/$defs/a{}", n + 1) });
            definitions.insert(format!("a{n}"), json!({ "allOf": [next, next] }));
        }
        definitions.insert("a40".to_owned(), json!({ "type": "string" }));
        let bomb = json!({ "type": "object", "$defs": definitions, "properties": { "x": { "$ref": "#/$defs/a0" } } });
        assert!(lint(&bomb).unwrap_err().message.contains("expand"), "{:?}", lint(&bomb));
    }

    #[test]
    fn cycles_that_consume_nothing_are_refused_and_others_are_not() {
        for cycle in [
            json!({ "$ref": "#" }),
            json!({ "allOf": [{ "$ref": "#" }] }),
            json!({ "$defs": { "a": { "$ref": "#/$defs/b" }, "b": { "anyOf": [{ "$ref": "#/$defs/a" }] } } }),
            json!({ "$anchor": "here", "not": { "$ref": "#here" } }),
        ] {
            assert!(lint(&cycle).unwrap_err().message.contains("cycle"), "{cycle}");
        }
        let tree = json!({ "type": "object", "properties": { "left": { "$ref": "#" }, "items": { "type": "array", "items": { "$ref": "#" } } } });
        assert_eq!(lint(&tree), Ok(()));
        let values = json!({ "enum": [{ "$ref": "#" }], "default": { "$ref": "#" } });
        assert_eq!(lint(&values), Ok(()));
    }

    #[test]
    fn long_chains_end() {
        let mut definitions = serde_json::Map::new();
        for n in 0..100_000 {
            definitions.insert(format!("a{n}"), json!({ "$ref": format!("#/$defs/a{}", n + 1) }));
        }
        assert!(lint(&json!({ "$defs": definitions })).is_err());
    }
}
