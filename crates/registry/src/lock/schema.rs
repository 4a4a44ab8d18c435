//! Compares two JSON Schemas by structure, and decides whether each change breaks callers.
//!
//! Callers write arguments, so accepted values must stay accepted. Callers read results, so a tool
//! must not return values that were not declared. A change that is not understood counts as
//! breaking.
//!
//! Doc: registry.md#what-changed

mod turns;

use std::collections::BTreeSet;

use serde_json::{Map, Value};
use toolbooth_contracts::json::canonical;

use super::change::{Compatibility, FieldChange, text_change};
use turns::{SETS, Turn, limit, same_set, types, values};

/// Maximum depth of the structural comparison; deeper schemas are compared whole.
const DEPTH_MAX: usize = 64;

/// The writer of the values that a schema describes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Direction {
    /// The caller: arguments.
    Input,
    /// The tool: results.
    Output,
}

/// Keywords with texts for readers and models.
const TEXTS: [&str; 3] = ["title", "description", "$comment"];
/// Keywords that do not change the set of valid values.
const ANNOTATIONS: [&str; 8] =
    ["default", "examples", "deprecated", "readOnly", "writeOnly", "$schema", "$id", "$anchor"];
/// Keywords with one schema below them.
const SCHEMAS: [&str; 8] = [
    "items",
    "additionalProperties",
    "propertyNames",
    "contains",
    "unevaluatedProperties",
    "unevaluatedItems",
    "additionalItems",
    "contentSchema",
];
/// Keywords with a list of schemas.
const LISTS: [&str; 4] = ["allOf", "anyOf", "oneOf", "prefixItems"];
/// Keywords with named schemas, other than `properties`.
const NAMED: [&str; 4] = ["$defs", "definitions", "patternProperties", "dependentSchemas"];
/// Keywords with an upper limit.
const UPPER: [&str; 6] =
    ["maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties", "maxContains"];
/// Keywords with a lower limit.
const LOWER: [&str; 6] =
    ["minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties", "minContains"];

/// Appends all changes between two schemas of a field to `changes`.
pub(super) fn compare(
    field: &str,
    direction: Direction,
    before: &Value,
    after: &Value,
    changes: &mut Vec<FieldChange>,
) {
    Comparison { field, direction, changes, path: String::new(), depth: 0 }.schema(before, after);
}

struct Comparison<'c> {
    field: &'c str,
    direction: Direction,
    changes: &'c mut Vec<FieldChange>,
    path: String,
    depth: usize,
}

impl Comparison<'_> {
    fn verdict(&self, turn: Turn) -> Compatibility {
        match (turn, self.direction) {
            (Turn::Wider, Direction::Input) | (Turn::Narrower, Direction::Output) => {
                Compatibility::Compatible
            }
            _ => Compatibility::Breaking,
        }
    }

    fn tell(
        &mut self,
        before: Option<&Value>,
        after: Option<&Value>,
        verdict: Compatibility,
        reason: impl Into<String>,
    ) {
        self.changes.push(FieldChange {
            field: self.field.to_owned(),
            path: self.path.clone(),
            before: before.cloned(),
            after: after.cloned(),
            words: Vec::new(),
            verdict,
            reason: reason.into(),
        });
    }

    fn turned(&mut self, before: Option<&Value>, after: Option<&Value>, turn: Turn, what: &str) {
        let verdict = self.verdict(turn);
        let how = match turn {
            Turn::Narrower => "narrower",
            Turn::Wider => "wider",
            Turn::Other => "different",
        };
        self.tell(before, after, verdict, format!("{what} is {how}"));
    }

    fn below(&mut self, steps: &[&str], work: impl FnOnce(&mut Self)) {
        let length = self.path.len();
        for step in steps {
            self.path.push('/');
            self.path.push_str(&step.replace('~', "~0").replace('/', "~1"));
        }
        self.depth += 1;
        work(self);
        self.depth -= 1;
        self.path.truncate(length);
    }

    fn schema(&mut self, before: &Value, after: &Value) {
        if canonical(before) == canonical(after) {
            return;
        }
        let (one, two) = match (before, after) {
            (Value::Object(one), Value::Object(two)) if self.depth < DEPTH_MAX => (one, two),
            (one, two) => {
                let everything =
                    |v: &Value| *v == Value::Bool(true) || v.as_object().is_some_and(Map::is_empty);
                let turn = if everything(two) || *one == Value::Bool(false) {
                    Turn::Wider
                } else if everything(one) || *two == Value::Bool(false) {
                    Turn::Narrower
                } else {
                    Turn::Other
                };
                return self.turned(Some(one), Some(two), turn, "the schema");
            }
        };
        self.properties(one, two);
        let fresh = two.keys().filter(|key| !one.contains_key(*key));
        for key in one.keys().chain(fresh) {
            let (one, two) = (one.get(key), two.get(key));
            if matches!(key.as_str(), "properties" | "required") || one == two {
                continue;
            }
            self.below(&[key], |this| this.keyword(key, one, two));
        }
    }

    fn properties(&mut self, before: &Map<String, Value>, after: &Map<String, Value>) {
        let empty = Map::new();
        let of = |schema: &Map<String, Value>| -> Map<String, Value> {
            schema.get("properties").and_then(Value::as_object).unwrap_or(&empty).clone()
        };
        let required = |schema: &Map<String, Value>| -> BTreeSet<String> {
            let names = schema.get("required").and_then(Value::as_array);
            names.into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
        };
        let (one, two) = (of(before), of(after));
        let (must, must_now) = (required(before), required(after));
        for (name, schema) in &one {
            self.below(&["properties", name], |this| match two.get(name) {
                Some(now) => this.schema(schema, now),
                None => {
                    let verdict = Compatibility::Breaking;
                    this.tell(Some(schema), None, verdict, "the property is removed");
                }
            });
        }
        for (name, schema) in two.iter().filter(|(name, _)| !one.contains_key(*name)) {
            let needed = must_now.contains(name) && self.direction == Direction::Input;
            let (verdict, reason) = if needed {
                (Compatibility::Breaking, "a new required property")
            } else {
                (Compatibility::Compatible, "a new optional property")
            };
            let reason =
                if self.direction == Direction::Output { "a new property" } else { reason };
            self.below(&["properties", name], |this| {
                this.tell(None, Some(schema), verdict, reason)
            });
        }
        let known = |name: &String| one.contains_key(name) || !two.contains_key(name);
        let kept = |name: &String| two.contains_key(name) || !one.contains_key(name);
        for name in must_now.iter().filter(|name| !must.contains(*name) && known(name)) {
            let verdict = self.verdict(Turn::Narrower);
            self.below(&["required"], |this| {
                this.tell(
                    None,
                    Some(&Value::from(name.as_str())),
                    verdict,
                    format!("`{}` is required now", name.escape_debug()),
                );
            });
        }
        for name in must.iter().filter(|name| !must_now.contains(*name) && kept(name)) {
            let verdict = self.verdict(Turn::Wider);
            self.below(&["required"], |this| {
                this.tell(
                    Some(&Value::from(name.as_str())),
                    None,
                    verdict,
                    format!("`{}` is not required any more", name.escape_debug()),
                );
            });
        }
    }

    fn keyword(&mut self, key: &str, before: Option<&Value>, after: Option<&Value>) {
        let (field, path) = (self.field, self.path.clone());
        match key {
            _ if TEXTS.contains(&key) => match (text(before), text(after)) {
                (Some(one), Some(two)) => {
                    self.changes.extend(text_change(field, &path, one, two));
                }
                _ => self.turned(before, after, Turn::Other, "the text"),
            },
            _ if ANNOTATIONS.contains(&key) => {
                self.tell(before, after, Compatibility::Compatible, "an annotation is different");
            }
            // The order of a set has no meaning.
            _ if SETS.contains(&key) && same_set(before, after) => (),
            "type" => self.turned(before, after, types(before, after), "the type"),
            "enum" => self.turned(before, after, values(before, after), "the list of values"),
            _ if UPPER.contains(&key) => {
                self.turned(before, after, limit(before, after, true), "the limit")
            }
            _ if LOWER.contains(&key) => {
                self.turned(before, after, limit(before, after, false), "the limit")
            }
            _ if SCHEMAS.contains(&key) => match (before, after) {
                (Some(one), Some(two)) => self.schema(one, two),
                (None, Some(two)) => self.schema(&Value::Bool(true), two),
                (Some(one), None) => self.schema(one, &Value::Bool(true)),
                (None, None) => (),
            },
            _ if NAMED.contains(&key) => self.named(key, before, after),
            _ if LISTS.contains(&key) => self.list(key, before, after),
            _ => {
                let turn = match (before, after) {
                    (None, _) => Turn::Narrower,
                    (_, None) => Turn::Wider,
                    _ => Turn::Other,
                };
                // A change of `not`, `if` or an unknown keyword may add or remove values.
                let turn = if CONSTRAINTS.contains(&key) { turn } else { Turn::Other };
                self.turned(before, after, turn, &format!("`{}`", key.escape_debug()));
            }
        }
    }

    fn named(&mut self, key: &str, before: Option<&Value>, after: Option<&Value>) {
        let empty = Map::new();
        let one = before.and_then(Value::as_object).unwrap_or(&empty);
        let two = after.and_then(Value::as_object).unwrap_or(&empty);
        let fresh = two.keys().filter(|name| !one.contains_key(*name));
        let definitions = matches!(key, "$defs" | "definitions");
        for name in one.keys().chain(fresh) {
            self.below(&[name], |this| match (one.get(name), two.get(name)) {
                (Some(one), Some(two)) => this.schema(one, two),
                (one, two) if definitions => {
                    // A changed reference to it is reported at its `$ref`.
                    this.tell(one, two, Compatibility::Compatible, "a definition came or went");
                }
                (None, two) => this.turned(None, two, Turn::Narrower, "the schema"),
                (one, None) => this.turned(one, None, Turn::Wider, "the schema"),
            });
        }
    }

    fn list(&mut self, key: &str, before: Option<&Value>, after: Option<&Value>) {
        match (before.and_then(Value::as_array), after.and_then(Value::as_array)) {
            (Some(one), Some(two)) if one.len() == two.len() => {
                for (index, (one, two)) in one.iter().zip(two).enumerate() {
                    self.below(&[&index.to_string()], |this| this.schema(one, two));
                }
            }
            (Some(one), Some(two)) if key == "anyOf" => {
                let has = |list: &[Value], value: &Value| {
                    list.iter().any(|other| canonical(other) == canonical(value))
                };
                let turn = if one.iter().all(|value| has(two, value)) {
                    Turn::Wider
                } else if two.iter().all(|value| has(one, value)) {
                    Turn::Narrower
                } else {
                    Turn::Other
                };
                self.turned(before, after, turn, "the choice");
            }
            (None, Some(_)) => self.turned(before, after, Turn::Narrower, "the schema"),
            (Some(_), None) => self.turned(before, after, Turn::Wider, "the schema"),
            _ => self.turned(before, after, Turn::Other, "the list of schemas"),
        }
    }
}

/// Keywords that only remove values from the set.
const CONSTRAINTS: [&str; 9] = [
    "const",
    "pattern",
    "format",
    "multipleOf",
    "uniqueItems",
    "dependentRequired",
    "contentEncoding",
    "contentMediaType",
    "$ref",
];

/// The text of a keyword: `Some(None)` if it is absent, `None` if it is not a text.
fn text(value: Option<&Value>) -> Option<Option<&str>> {
    match value {
        None => Some(None),
        Some(value) => value.as_str().map(Some),
    }
}

#[cfg(test)]
mod tests;
