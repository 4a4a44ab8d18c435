//! Collects the schemas that other schemas of one contract refer to, under names of `$defs`.
//!
//! Doc: importing.md#openapi

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

/// Definitions that a schema refers to.
#[derive(Default)]
pub(super) struct Definitions {
    pub(super) definitions: BTreeMap<String, Value>,
    /// The name of each referenced pointer.
    names: BTreeMap<String, String>,
    taken: BTreeSet<String>,
    /// Names with their pointers, still to be resolved.
    pub(super) open: Vec<(String, String)>,
}

impl Definitions {
    /// Returns the name of the schema at a pointer. Pointers with the same last segment get numbers.
    pub(super) fn name_of(&mut self, pointer: &str) -> String {
        if let Some(name) = self.names.get(pointer) {
            return name.clone();
        }
        let word: String = pointer
            .rsplit('/')
            .next()
            .unwrap_or_default()
            .chars()
            .map(
                |c| if c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.') { c } else { '_' },
            )
            .collect();
        let mut name = word.clone();
        if !self.taken.insert(name.clone()) {
            name = format!("{word}_{}", self.names.len());
            self.taken.insert(name.clone());
        }
        self.names.insert(pointer.to_owned(), name.clone());
        self.open.push((name.clone(), pointer.to_owned()));
        name
    }

    pub(super) fn attach(self, schema: &mut Value) {
        if let (false, Some(members)) = (self.definitions.is_empty(), schema.as_object_mut()) {
            let definitions: Map<String, Value> = self.definitions.into_iter().collect();
            members.insert("$defs".to_owned(), Value::Object(definitions));
        }
    }
}
