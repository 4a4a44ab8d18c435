//! Counts the subschemas and the evaluations of a schema, so that no judgement takes long.
//!
//! Doc: contract.md#schemas

use std::collections::HashMap;

use serde_json::Value;

use super::{EXPANDED_MAX, Part, REFERENCES, SchemaGraph};
use crate::json::Step;

/// Maximum length of a chain of references and combinations at one place.
const CHAIN_MAX: usize = 256;
/// Maximum number of evaluations of subschemas for one instance.
const EVALUATIONS_MAX: u64 = 1_000_000;
/// Maximum number of evaluations of a schema without recursion for which instances are not counted.
const EVALUATIONS_PLAIN: u64 = 100_000;
/// Maximum depth of nested evaluations: a thread's stack has no space for more.
const NESTED_MAX: usize = 600;

/// A fault at one place, with the steps to the reference that causes it.
pub(super) struct InnerObjection {
    pub(super) steps: Vec<Step>,
    pub(super) message: String,
}

#[derive(Clone, Copy)]
pub(super) enum Visited {
    New,
    /// In progress: a second visit is a cycle.
    Open,
    /// Finished, with the number of subschemas and their depth.
    Done(u64, usize),
}

/// A counter of evaluations that does not perform them. It visits each pair of a subschema and a part of
/// the instance once.
struct Counting<'g> {
    graph: &'g SchemaGraph,
    known: HashMap<(usize, *const Value), u64>,
}

impl Counting<'_> {
    /// Returns the number of evaluations from here on; `None` if they are too many or too deep.
    fn evaluations(&mut self, index: usize, instance: &Value, depth: usize) -> Option<u64> {
        let pair = (index, std::ptr::from_ref(instance));
        if let Some(known) = self.known.get(&pair) {
            return Some(*known);
        }
        if depth > NESTED_MAX {
            return None;
        }
        let graph = self.graph;
        let node = graph.nodes.get(index)?;
        let mut count = 1u64;
        let mut add = |this: &mut Self, next: usize, instance: &Value| {
            count = count.saturating_add(this.evaluations(next, instance, depth + 1)?);
            (count <= EVALUATIONS_MAX).then_some(())
        };
        for (_, next) in &node.in_place {
            add(self, *next, instance)?;
        }
        for (part, next) in &node.parts {
            match (part, instance) {
                (Part::Property(name), Value::Object(members)) => {
                    if let Some(member) = members.get(name) {
                        add(self, *next, member)?;
                    }
                }
                (Part::SomeProperty, Value::Object(members)) => {
                    for member in members.values() {
                        add(self, *next, member)?;
                    }
                }
                (Part::OtherProperty, Value::Object(members)) => {
                    let named = |name: &str| {
                        node.parts
                            .iter()
                            .any(|(part, _)| matches!(part, Part::Property(own) if own == name))
                    };
                    for (_, member) in members.iter().filter(|(name, _)| !named(name)) {
                        add(self, *next, member)?;
                    }
                }
                (Part::Element(at), Value::Array(items)) => {
                    if let Some(item) = items.get(*at) {
                        add(self, *next, item)?;
                    }
                }
                (Part::EveryElement, Value::Array(items)) => {
                    for item in items {
                        add(self, *next, item)?;
                    }
                }
                _ => (),
            }
        }
        self.known.insert(pair, count);
        Some(count)
    }
}

impl SchemaGraph {
    /// Returns the number of subschemas that apply at the place of this one.
    pub(super) fn expanded(
        &self,
        index: usize,
        chain: usize,
        known: &mut [Visited],
    ) -> Result<u64, InnerObjection> {
        let inner = |message: String| InnerObjection { steps: Vec::new(), message };
        match known.get(index) {
            Some(Visited::Open) => {
                return Err(inner("a cycle of references that consumes nothing".to_owned()));
            }
            Some(Visited::Done(size, _)) => return Ok(*size),
            _ => (),
        }
        if chain > CHAIN_MAX {
            let message = format!("more than {CHAIN_MAX} references lead on from one another");
            return Err(inner(message));
        }
        let set = |known: &mut [Visited], what| {
            if let Some(entry) = known.get_mut(index) {
                *entry = what;
            }
        };
        set(known, Visited::Open);
        let mut size = 1u64;
        let next = self.nodes.get(index).map(|node| node.in_place.as_slice()).unwrap_or_default();
        for (steps, next) in next {
            let expanded = self.expanded(*next, chain + 1, known).map_err(|inner| {
                let mut steps = steps.clone();
                // A reference leads to another part of the document, so the steps end there.
                let refers = matches!(steps.last(), Some(Step::Key(key)) if REFERENCES.contains(&key.as_str()));
                if !refers {
                    steps.extend(inner.steps);
                }
                InnerObjection { steps, message: inner.message }
            })?;
            size = size.saturating_add(expanded);
            if size > EXPANDED_MAX {
                let message = format!(
                    "the references expand to more than {EXPANDED_MAX} subschemas at one place"
                );
                return Err(inner(message));
            }
        }
        set(known, Visited::Done(size, 0));
        Ok(size)
    }

    /// Whether the evaluations of an instance must be counted before it is judged: the schema recurses,
    /// has too many paths, or is too deep.
    pub(super) fn costs(&self) -> bool {
        let mut known = vec![Visited::New; self.nodes.len()];
        match self.ways(0, 0, &mut known) {
            Some((ways, depth)) => ways > EVALUATIONS_PLAIN || depth > NESTED_MAX,
            None => true,
        }
    }

    /// Returns the number and the depth of the paths from a node; `None` if one is a cycle or is too
    /// deep.
    fn ways(&self, index: usize, depth: usize, known: &mut [Visited]) -> Option<(u64, usize)> {
        match known.get(index) {
            Some(Visited::Open) | None => return None,
            Some(Visited::Done(ways, deep)) => return Some((*ways, *deep)),
            Some(Visited::New) => (),
        }
        if depth > NESTED_MAX {
            return None;
        }
        *known.get_mut(index)? = Visited::Open;
        let (mut ways, mut deep) = (1u64, 1usize);
        let node = self.nodes.get(index)?;
        let next = node.in_place.iter().map(|(_, next)| next);
        for next in next.chain(node.parts.iter().map(|(_, next)| next)) {
            let (more, deeper) = self.ways(*next, depth + 1, known)?;
            ways = ways.saturating_add(more);
            deep = deep.max(deeper + 1);
        }
        *known.get_mut(index)? = Visited::Done(ways, deep);
        Some((ways, deep))
    }

    /// Whether an instance can be judged within bounds.
    pub(crate) fn can_judge(&self, instance: &Value) -> bool {
        let mut counting = Counting { graph: self, known: HashMap::new() };
        counting.evaluations(0, instance, 0).is_some()
    }
}
