//! Bounds the cost of judging an instance by a schema.
//!
//! A validator accepts references that double, cycles that consume nothing, and recursion that branches.
//!
//! An external schema, or the arguments of a call, must not make the judging of one call unbounded.
//! Subschemas and their references are a graph. Its edges at the same place of the instance are distinct
//! from those that lead to a part of it.
//!
//! Doc: contract.md#schemas

mod evaluations;

use std::collections::HashMap;

use referencing::{Draft, Registry, Resolver};
use serde_json::{Map, Value};

use self::evaluations::Visited;
use crate::json::Step;

/// Maximum number of subschemas at one place of an instance, with references expanded.
pub(crate) const EXPANDED_MAX: u64 = 10_000;

/// Maximum length of a property name, in bytes.
const NAME_BYTES_MAX: usize = 1_024;

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

/// Keywords with a reference to another subschema.
const REFERENCES: [&str; 3] = ["$ref", "$dynamicRef", "$recursiveRef"];
/// Keywords with a subschema for the same place.
const IN_PLACE: [&str; 4] = ["not", "if", "then", "else"];
/// Keywords with a list of such subschemas.
const IN_PLACE_LISTS: [&str; 3] = ["allOf", "anyOf", "oneOf"];

/// A fault of a schema, with its place.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Objection {
    pub(crate) path: Vec<Step>,
    pub(crate) message: String,
}

/// The part of an instance that a step leads to.
#[derive(Debug)]
enum Part {
    Property(String),
    /// Any property, because the name pattern is not evaluated here.
    SomeProperty,
    /// Properties that the same schema does not name.
    OtherProperty,
    Element(usize),
    EveryElement,
}

#[derive(Debug, Default)]
struct Node {
    in_place: Vec<(Vec<Step>, usize)>,
    parts: Vec<(Part, usize)>,
}

/// The subschemas of a document. The root is the first.
#[derive(Debug)]
pub(crate) struct SchemaGraph {
    nodes: Vec<Node>,
}

/// Examines every subschema of a document. Returns the graph if the evaluations of an instance must be
/// counted before it is judged.
///
/// # Errors
/// An [`Objection`], the first in reading order.
pub(crate) fn examine(schema: &Value) -> Result<Option<SchemaGraph>, Objection> {
    let at = |name: &str, message: &str| Objection {
        path: vec![Step::Key(name.to_owned())],
        message: message.to_owned(),
    };
    if let Some(dialect) = schema.get("$schema")
        && !dialect.as_str().is_some_and(|name| DIALECTS.contains(&name.trim_end_matches('#')))
    {
        let known = "the dialect is not known; this is draft 2020-12, 2019-09, 07, 06 or 04";
        return Err(at("$schema", known));
    }
    let embeds = embeds(schema);
    if !embeds {
        stays_inside(schema, &mut Vec::new())?;
    }
    const ROOT: &str = "json-schema:///";
    let draft = Draft::default().detect(schema);
    let registry = Registry::new()
        .add(ROOT, draft.create_resource_ref(schema))
        .and_then(referencing::RegistryBuilder::prepare);
    // A schema that cannot be read here does not compile either, and the compilation reports it.
    let Ok(registry) = registry else { return Ok(None) };
    let Ok(root) = referencing::uri::from_str(ROOT) else { return Ok(None) };
    let mut building = Building {
        draft,
        nodes: Vec::new(),
        paths: Vec::new(),
        known: HashMap::new(),
        open: Vec::new(),
        dynamic: HashMap::new(),
        long: None,
    };
    dynamic_anchors(schema, &mut building.dynamic);
    building.node(schema, &registry.resolver(root), Vec::new());
    while let Some((index, value, resolver)) = building.open.pop() {
        building.expand(index, value, &resolver);
    }
    let Building { nodes, paths, long, .. } = building;
    if let Some(path) = long {
        let message = format!("a name of a property has more than {NAME_BYTES_MAX} bytes");
        return Err(Objection { path, message });
    }
    let graph = SchemaGraph { nodes };
    graph.objection(&paths)?;
    Ok(graph.costs().then_some(graph))
}

/// Whether a document has parts with their own names, to which references may lead.
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

/// Checks that no reference leaves the document. If no part has its own name, a reference with an
/// address means another document. References to documents of the specification are allowed.
fn stays_inside(value: &Value, path: &mut Vec<Step>) -> Result<(), Objection> {
    match value {
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                path.push(Step::Index(index));
                stays_inside(item, path)?;
                path.pop();
            }
        }
        Value::Object(members) => {
            for (key, member) in members {
                // Values that a schema compares with are not schemas.
                if matches!(key.as_str(), "const" | "enum" | "default" | "examples") {
                    continue;
                }
                path.push(Step::Key(key.clone()));
                if let (true, Value::String(to)) = (REFERENCES.contains(&key.as_str()), member) {
                    let known = to
                        .split_once("://")
                        .is_some_and(|(_, to)| to.starts_with("json-schema.org/"));
                    if !to.starts_with('#') && !to.is_empty() && !known {
                        let message = "the reference leaves the document, and nothing is fetched";
                        return Err(Objection { path: path.clone(), message: message.to_owned() });
                    }
                }
                stays_inside(member, path)?;
                path.pop();
            }
        }
        _ => (),
    }
    Ok(())
}

/// Collects every subschema with a dynamic anchor, by its name. The applicable one is known only when an
/// instance is judged.
fn dynamic_anchors<'s>(value: &'s Value, found: &mut HashMap<&'s str, Vec<&'s Value>>) {
    match value {
        Value::Array(items) => items.iter().for_each(|item| dynamic_anchors(item, found)),
        Value::Object(members) => {
            if let Some(name) = members.get("$dynamicAnchor").and_then(Value::as_str) {
                found.entry(name).or_default().push(value);
            }
            members.values().for_each(|member| dynamic_anchors(member, found));
        }
        _ => (),
    }
}

struct Building<'s> {
    draft: Draft,
    nodes: Vec<Node>,
    /// The path at which each node was first found.
    paths: Vec<Vec<Step>>,
    known: HashMap<*const Value, usize>,
    open: Vec<(usize, &'s Value, Resolver<'s>)>,
    dynamic: HashMap<&'s str, Vec<&'s Value>>,
    /// The path of a property name that is too long.
    long: Option<Vec<Step>>,
}

impl<'s> Building<'s> {
    fn node(&mut self, value: &'s Value, resolver: &Resolver<'s>, path: Vec<Step>) -> usize {
        let key: *const Value = value;
        if let Some(known) = self.known.get(&key) {
            return *known;
        }
        let index = self.nodes.len();
        self.nodes.push(Node::default());
        self.paths.push(path);
        self.known.insert(key, index);
        let own = resolver.in_subresource(self.draft.create_resource_ref(value));
        self.open.push((index, value, own.unwrap_or_else(|_| resolver.clone())));
        index
    }

    fn expand(&mut self, index: usize, value: &'s Value, resolver: &Resolver<'s>) {
        let Some(members) = value.as_object() else { return };
        let path = self.paths.get(index).cloned().unwrap_or_default();
        let mut node = Node::default();
        self.in_place(members, resolver, &path, &mut node);
        self.parts(members, resolver, &path, &mut node);
        // Definitions are examined in place, even without a reference to them.
        for name in ["$defs", "definitions"] {
            let definitions = members.get(name).and_then(Value::as_object).into_iter().flatten();
            for (own, schema) in definitions {
                self.node(schema, resolver, below(&path, &[key(name), key(own)]));
            }
        }
        if let Some(entry) = self.nodes.get_mut(index) {
            *entry = node;
        }
    }

    fn in_place(
        &mut self,
        members: &'s Map<String, Value>,
        resolver: &Resolver<'s>,
        path: &[Step],
        node: &mut Node,
    ) {
        let mut add = |this: &mut Self, steps: Vec<Step>, schema: &'s Value| {
            if schema.is_object() {
                let index = this.node(schema, resolver, below(path, &steps));
                node.in_place.push((steps, index));
            }
        };
        for name in IN_PLACE {
            if let Some(schema) = members.get(name) {
                add(self, vec![key(name)], schema);
            }
        }
        for name in IN_PLACE_LISTS {
            let list = members.get(name).and_then(Value::as_array).into_iter().flatten();
            for (at, schema) in list.enumerate() {
                add(self, vec![key(name), Step::Index(at)], schema);
            }
        }
        for name in ["dependentSchemas", "dependencies"] {
            let dependent = members.get(name).and_then(Value::as_object).into_iter().flatten();
            for (own, schema) in dependent {
                add(self, vec![key(name), key(own)], schema);
            }
        }
        for name in REFERENCES {
            let Some(to) = members.get(name).and_then(Value::as_str) else { continue };
            let mut targets = Vec::new();
            if let Ok(resolved) = resolver.lookup(to) {
                let (schema, resolver, _) = resolved.into_inner();
                targets.push(self.node(schema, &resolver, below(path, &[key(name)])));
            }
            if let (true, Some(anchor)) = (name == "$dynamicRef", to.rsplit('#').next()) {
                for schema in self.dynamic.get(anchor).cloned().unwrap_or_default() {
                    targets.push(self.node(schema, resolver, below(path, &[key(name)])));
                }
            }
            targets.sort_unstable();
            targets.dedup();
            // Only one of several possible targets applies to an instance. All are added, so that the
            // costliest is bounded too.
            node.in_place.extend(targets.into_iter().map(|target| (vec![key(name)], target)));
        }
    }

    fn parts(
        &mut self,
        members: &'s Map<String, Value>,
        resolver: &Resolver<'s>,
        path: &[Step],
        node: &mut Node,
    ) {
        let mut add = |this: &mut Self, steps: &[Step], part: Part, schema: &'s Value| {
            if schema.is_object() {
                let index = this.node(schema, resolver, below(path, steps));
                node.parts.push((part, index));
            }
        };
        for (name, own) in [("properties", true), ("patternProperties", false)] {
            let named = members.get(name).and_then(Value::as_object).into_iter().flatten();
            for (property, schema) in named {
                // The validator stores the path of each place, so a long name would be stored many
                // times.
                if property.len() > NAME_BYTES_MAX {
                    self.long.get_or_insert_with(|| below(path, &[key(name)]));
                }
                let part = if own { Part::Property(property.clone()) } else { Part::SomeProperty };
                add(self, &[key(name), key(property)], part, schema);
            }
        }
        for name in ["additionalProperties", "unevaluatedProperties"] {
            if let Some(schema) = members.get(name) {
                add(self, &[key(name)], Part::OtherProperty, schema);
            }
        }
        for name in ["items", "additionalItems", "unevaluatedItems", "contains", "prefixItems"] {
            match members.get(name) {
                Some(Value::Array(list)) => {
                    for (at, schema) in list.iter().enumerate() {
                        add(self, &[key(name), Step::Index(at)], Part::Element(at), schema);
                    }
                }
                Some(schema) => add(self, &[key(name)], Part::EveryElement, schema),
                None => (),
            }
        }
        if let Some(schema) = members.get("propertyNames") {
            // A name has no parts, so its schema needs no edge for the counting.
            let _ = self.node_if_object(schema, resolver, below(path, &[key("propertyNames")]));
        }
    }

    fn node_if_object(
        &mut self,
        schema: &'s Value,
        resolver: &Resolver<'s>,
        path: Vec<Step>,
    ) -> Option<usize> {
        schema.is_object().then(|| self.node(schema, resolver, path))
    }
}

fn key(name: &str) -> Step {
    Step::Key(name.to_owned())
}

fn below(path: &[Step], steps: &[Step]) -> Vec<Step> {
    path.iter().chain(steps).cloned().collect()
}

impl SchemaGraph {
    /// Checks the steps that stay at one place.
    fn objection(&self, paths: &[Vec<Step>]) -> Result<(), Objection> {
        let mut known = vec![Visited::New; self.nodes.len()];
        for (index, path) in paths.iter().enumerate() {
            self.expanded(index, 0, &mut known).map_err(|inner| Objection {
                path: below(path, &inner.steps),
                message: inner.message,
            })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
