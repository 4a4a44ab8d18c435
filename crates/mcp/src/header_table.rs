//! The arguments of tools that headers repeat, read from the schema of each tool once.
//!
//! Doc: front-doors.md#headers

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use serde_json::Value;

use crate::header::{Annotated, annotated};

/// The tables from which on those of tools that are gone are removed.
const SWEEP_FROM: usize = 1_024;

/// A property with an argument that is repeated in a header, as [`Annotated`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeaderParam {
    /// The property names from the root to the property; at least one.
    pub path: Vec<String>,
    /// The name of the header; `None` if the annotation is not a header name.
    pub header: Option<String>,
    /// Whether the enclosing schema requires the property.
    pub is_required: bool,
}

impl HeaderParam {
    /// Returns those of a schema.
    #[must_use]
    pub fn all(schema: &Value) -> Vec<Self> {
        let of = |own: Annotated<'_>| Self {
            path: own.path.iter().map(|name| (*name).to_owned()).collect(),
            header: own.header(),
            is_required: own.is_required,
        };
        annotated(schema).into_iter().map(of).collect()
    }

    /// Returns the argument of the property.
    #[must_use]
    pub fn argument<'a>(&self, arguments: &'a Value) -> Option<&'a Value> {
        self.path.iter().try_fold(arguments, |value, key| value.get(key))
    }
}

/// The tables of tools, of which each is made at the first call of its tool.
#[derive(Debug)]
pub struct HeaderTables<T>(Mutex<Tables<T>>);

#[derive(Debug)]
struct Tables<T> {
    /// By the address of the tool. A [`Weak`] keeps the allocation, so that no other tool gets the address.
    by_address: HashMap<usize, (Weak<T>, Arc<[HeaderParam]>)>,
    sweep_at: usize,
}

impl<T> Default for HeaderTables<T> {
    fn default() -> Self {
        Self(Mutex::new(Tables { by_address: HashMap::new(), sweep_at: SWEEP_FROM }))
    }
}

impl<T> HeaderTables<T> {
    /// Returns the table of a tool, whose schema `schema` returns.
    pub fn of(&self, tool: &Arc<T>, schema: impl FnOnce(&T) -> &Value) -> Arc<[HeaderParam]> {
        let address = Arc::as_ptr(tool).addr();
        let mut tables = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, known)) = tables.by_address.get(&address) {
            return Arc::clone(known);
        }
        if tables.by_address.len() >= tables.sweep_at {
            tables.by_address.retain(|_, (tool, _)| tool.strong_count() > 0);
            tables.sweep_at = (2 * tables.by_address.len()).max(SWEEP_FROM);
        }
        let table: Arc<[HeaderParam]> = HeaderParam::all(schema(tool)).into();
        tables.by_address.insert(address, (Arc::downgrade(tool), Arc::clone(&table)));
        table
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_table_is_made_once_and_goes_with_its_tool() {
        let tables = HeaderTables::default();
        let tool = Arc::new(json!({ "properties": { "region": {
            "type": "string", "x-mcp-header": "Region" } } }));
        let table = tables.of(&tool, |schema| schema);
        assert_eq!(table[0].header.as_deref(), Some("Mcp-Param-Region"));
        assert_eq!(table[0].argument(&json!({ "region": "eu" })), Some(&json!("eu")));
        assert_eq!(table[0].argument(&json!([])), None);
        let again = tables.of(&tool, |_| panic!("it is known"));
        assert!(Arc::ptr_eq(&table, &again));
        // Tools come and go; what is kept stays bounded, and no table is that of another tool.
        for number in 0..10 * SWEEP_FROM {
            let name = format!("N{number}");
            let other = Arc::new(json!({ "properties": { "a": { "x-mcp-header": name } } }));
            let header = tables.of(&other, |schema| schema)[0].header.clone();
            assert_eq!(header, Some(format!("Mcp-Param-N{number}")));
        }
        assert!(tables.0.lock().unwrap().by_address.len() <= SWEEP_FROM);
        assert!(Arc::ptr_eq(&table, &tables.of(&tool, |_| panic!("it is in use"))));
    }
}
