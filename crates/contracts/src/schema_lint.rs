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

/// Keywords whose value refers to another subschema.
const REFERENCES: [&str; 3] = ["$ref", "$dynamicRef", "$recursiveRef"];

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
    let dialect = schema.get("$schema");
    if let Some(dialect) = dialect
        && !dialect.as_str().is_some_and(|name| DIALECTS.contains(&name.trim_end_matches('#')))
    {
        return Err(Objection {
            path: vec![Step::Key("$schema".to_owned())],
            message: "the dialect is not known; this is draft 2020-12, 2019-09, 07, 06 or 04"
                .to_owned(),
        });
    }
    let mut lint = Lint { root: schema, known: HashMap::new(), embeds: embeds(schema) };
    lint.walk(schema, &mut Vec::new())
}

/// The dialects that can be compiled.
const DIALECTS: [&str; 9] = [
    "https://json-schema.org/draft/2020-12/schema",
    "https://json-schema.org/draft/2019-09/schema",
    "http://json-schema.org/draft-07/schema",
    "https://json-schema.org/draft-07/schema",
    "http://json-schema.org/draft-06/schema",
    "https://json-schema.org/draft-06/schema",
    "http://json-schema.org/draft-04/schema",
    "https://json-schema.org/draft-04/schema",
    "http://json-schema.org/schema",
];

/// Whether a document has parts with names of their own, which references may mean.
fn embeds(value: &Value) -> bool {
    match value {
        Value::Array(items) => items.iter().any(embeds),
        Value::Object(members) => {
            let named = |key: &str| {
                members.get(key).and_then(Value::as_str).is_some_and(|id| !id.starts_with('#'))
            };
            named("$id") || named("id") || members.values().any(embeds)
        }
        _ => false,
    }
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
    /// Whether parts of the document have names of their own.
    embeds: bool,
}

/// What is wrong at one place, and the way on to the reference that makes it so.
struct Inner {
    steps: Vec<Step>,
    message: String,
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
                self.expanded(value, 0).map_err(|inner| Objection {
                    path: path.iter().cloned().chain(inner.steps).collect(),
                    message: inner.message,
                })?;
                self.stays_inside(members, path)?;
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

    /// A reference with an address of its own means another document, unless a part of this one
    /// has a name, or it is one of the specification's.
    fn stays_inside(
        &self,
        members: &serde_json::Map<String, Value>,
        path: &[Step],
    ) -> Result<(), Objection> {
        for name in REFERENCES {
            let Some(to) = members.get(name).and_then(Value::as_str) else { continue };
            let known =
                to.split_once("://").is_some_and(|(_, to)| to.starts_with("json-schema.org/"));
            if !to.starts_with('#') && !to.is_empty() && !self.embeds && !known {
                let mut path = path.to_vec();
                path.push(Step::Key(name.to_owned()));
                let message = "the reference leaves the document, and nothing is fetched";
                return Err(Objection { path, message: message.to_owned() });
            }
        }
        Ok(())
    }

    /// How many subschemas apply where this one does.
    fn expanded(&mut self, schema: &'s Value, chain: usize) -> Result<u64, Inner> {
        let inner = |message: String| Inner { steps: Vec::new(), message };
        let key: *const Value = schema;
        match self.known.get(&key) {
            Some(Known::Open) => {
                return Err(inner("a cycle of references that consumes nothing".to_owned()));
            }
            Some(Known::Done(size)) => return Ok(*size),
            None => (),
        }
        if chain > CHAIN_MAX {
            let message = format!("more than {CHAIN_MAX} references lead on from one another");
            return Err(inner(message));
        }
        self.known.insert(key, Known::Open);
        let mut size = 1u64;
        for (steps, next) in self.in_place(schema) {
            let expanded = self.expanded(next, chain + 1).map_err(|inner| {
                let mut steps = steps.clone();
                // Behind a reference begins another part of the document.
                if !matches!(steps.last(), Some(Step::Key(key)) if REFERENCES.contains(&key.as_str())) {
                    steps.extend(inner.steps);
                }
                Inner { steps, message: inner.message }
            })?;
            size = size.saturating_add(expanded);
            if size > EXPANDED_MAX {
                let message = format!(
                    "the references expand to more than {EXPANDED_MAX} subschemas at one place"
                );
                return Err(inner(message));
            }
        }
        self.known.insert(key, Known::Done(size));
        Ok(size)
    }

    /// The subschemas that apply at the same place, each with the way to it.
    fn in_place(&self, schema: &'s Value) -> Vec<(Vec<Step>, &'s Value)> {
        let Some(members) = schema.as_object() else { return Vec::new() };
        let key = |name: &str| Step::Key(name.to_owned());
        let mut next: Vec<(Vec<Step>, &Value)> = Vec::new();
        for name in IN_PLACE {
            next.extend(members.get(name).map(|inner| (vec![key(name)], inner)));
        }
        for name in IN_PLACE_LISTS {
            let list = members.get(name).and_then(Value::as_array).into_iter().flatten();
            next.extend(
                list.enumerate().map(|(at, inner)| (vec![key(name), Step::Index(at)], inner)),
            );
        }
        for name in ["dependentSchemas", "dependencies"] {
            let dependent = members.get(name).and_then(Value::as_object).into_iter().flatten();
            next.extend(dependent.map(|(own, inner)| (vec![key(name), key(own)], inner)));
        }
        for name in REFERENCES {
            let target = members.get(name).and_then(Value::as_str).and_then(|to| self.target(to));
            next.extend(target.map(|target| (vec![key(name)], target)));
        }
        next.retain(|(_, value)| value.is_object());
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
    fn objections_name_their_places() {
        let place = |schema: Value| {
            let objection = lint(&schema).unwrap_err();
            crate::json::dotted(&objection.path)
        };
        assert_eq!(place(json!({ "allOf": [{ "$ref": "#" }] })), "allOf[0].$ref");
        assert_eq!(
            place(
                json!({ "properties": { "a": { "items": { "$ref": "https://example.com/x" } } } })
            ),
            "properties.a.items.$ref"
        );
        assert_eq!(place(json!({ "$schema": "https://example.com/dialect" })), "$schema");
        assert_eq!(place(json!({ "$schema": 7 })), "$schema");
        let embedded = json!({ "$defs": { "a": { "$id": "urn:a" } }, "$ref": "urn:a" });
        assert_eq!(lint(&embedded), Ok(()));
        let meta = json!({ "$ref": "https://json-schema.org/draft/2020-12/schema" });
        assert_eq!(lint(&meta), Ok(()));
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
