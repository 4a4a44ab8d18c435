//! The servers that are imported, by the beginnings of their tools' ids.
//!
//! Doc: importing.md#clients

use std::collections::BTreeMap;

use toolbooth_contracts::contract::GATEWAY_RUNTIME;
use toolbooth_registry::discovered::tool_id;

/// The ids of the servers so far, with their names.
#[derive(Debug, Default)]
pub(crate) struct ServerIds(BTreeMap<String, String>);

impl ServerIds {
    pub(crate) fn add(&mut self, name: &str) {
        self.0.insert(tool_id(name), name.to_owned());
    }

    /// Returns why no tool of a server with this name could be called beside the others, if so.
    pub(crate) fn unusable(&self, name: &str) -> Option<String> {
        if name.trim().is_empty() {
            return Some("its name is blank".to_owned());
        }
        if name == GATEWAY_RUNTIME {
            return Some("it has the gateway's own name; rename it".to_owned());
        }
        let id = tool_id(name);
        let is_within = |one: &str, other: &str| {
            one == other || one.strip_prefix(other).is_some_and(|rest| rest.starts_with('.'))
        };
        let mut others = self.0.iter();
        let (_, other) = others
            .find(|(own, other)| *other != name && (is_within(own, &id) || is_within(&id, own)))?;
        Some(format!("its tools cannot be told apart from those of `{other}`; rename one of them"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_that_no_configuration_can_have_together_are_found() {
        let mut ids = ServerIds::default();
        ids.add("a");
        ids.add("b.c");
        for name in ["", " ", "a.b", "b", "b.c.d", "gateway"] {
            assert!(ids.unusable(name).is_some(), "{name:?}");
        }
        // One of the same name replaces the other.
        for name in ["a", "b.c", "ab", "c"] {
            assert_eq!(ids.unusable(name), None, "{name:?}");
        }
    }
}
