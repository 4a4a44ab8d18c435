//! Names on the wire: short names that every client takes, exact and never reassigned.
//!
//! Path: 3. Doc: front-doors.md#names-on-the-wire

use std::collections::{BTreeMap, HashMap};

use crate::digest::sha256_hex;

/// Longest name on the wire.
pub const WIRE_NAME_MAX: usize = 64;

/// How ids become names.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Naming {
    /// `[A-Za-z_][A-Za-z0-9_-]{0,63}`.
    #[default]
    Short,
    /// Ids as they are.
    Native,
}

/// Which name belongs to which tool. A name that was given once is never given to another tool.
#[derive(Debug, Clone, Default)]
pub struct WireNames {
    naming: Naming,
    /// Every name that was ever given, by tool id.
    given: BTreeMap<String, String>,
    ids: HashMap<String, String>,
}

impl WireNames {
    /// Names that were given before, by tool id.
    #[must_use]
    pub fn new(naming: Naming, given: BTreeMap<String, String>) -> Self {
        let ids = given.iter().map(|(id, name)| (name.clone(), id.clone())).collect();
        Self { naming, given, ids }
    }

    /// The same names, and new ones for the `tool_ids` that have none yet.
    #[must_use]
    pub fn with<'i>(&self, tool_ids: impl Iterator<Item = &'i str>) -> Self {
        let mut next = self.clone();
        if self.naming == Naming::Native {
            return next;
        }
        let mut fresh: Vec<&str> = tool_ids.filter(|id| !self.given.contains_key(*id)).collect();
        // Ids that are names already keep themselves; the others follow in a stable order.
        fresh.sort_unstable_by_key(|id| (short(id) != **id, *id));
        for id in fresh {
            let name = next.free_name(id);
            next.ids.insert(name.clone(), id.to_owned());
            next.given.insert(id.to_owned(), name);
        }
        next
    }

    fn free_name(&self, id: &str) -> String {
        let base = short(id);
        if !self.ids.contains_key(&base) {
            return base;
        }
        let digest = sha256_hex(id.as_bytes());
        (8..=digest.len().min(WIRE_NAME_MAX - 2))
            .map(|length| suffixed(&base, digest.get(..length).unwrap_or_default()))
            .find(|name| !self.ids.contains_key(name))
            // 62 hex digits of two different ids are never alike.
            .unwrap_or(base)
    }

    /// The name of the tool, its id where it has none.
    #[must_use]
    pub fn name_of<'n>(&'n self, tool_id: &'n str) -> &'n str {
        self.given.get(tool_id).map_or(tool_id, String::as_str)
    }

    /// The tool that is called by `name`: by name first, by id only where no name equals it.
    #[must_use]
    pub fn tool_id<'n>(&'n self, name: &'n str) -> &'n str {
        self.ids.get(name).map_or(name, String::as_str)
    }

    /// Every name that was ever given, by tool id; to be kept for the next run.
    #[must_use]
    pub fn given(&self) -> &BTreeMap<String, String> {
        &self.given
    }
}

/// The short name of an id, before collisions are looked at.
#[must_use]
pub fn short(id: &str) -> String {
    let mut name: String = id
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() || matches!(c, '_' | '-') { c } else { '_' })
        .collect();
    if !name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_') {
        name.insert(0, '_');
    }
    if name.len() > WIRE_NAME_MAX {
        let digest = sha256_hex(id.as_bytes());
        return suffixed(&name, digest.get(..8).unwrap_or_default());
    }
    name
}

fn suffixed(name: &str, suffix: &str) -> String {
    let keep = name.len().min(WIRE_NAME_MAX - 1 - suffix.len());
    format!("{}_{suffix}", name.get(..keep).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_collision_free_and_stable() {
        let first = WireNames::default().with(["a.b", "a_b", "a/b"].into_iter());
        assert_eq!(first.name_of("a_b"), "a_b", "an id that is a name keeps itself");
        let names: std::collections::HashSet<&str> =
            ["a.b", "a_b", "a/b"].iter().map(|id| first.name_of(id)).collect();
        assert_eq!(names.len(), 3);
        for id in ["a.b", "a_b", "a/b"] {
            assert_eq!(first.tool_id(first.name_of(id)), id);
        }
        let later = WireNames::default().with(["a.b"].into_iter()).with(["a_b"].into_iter());
        assert_eq!(later.name_of("a.b"), "a_b", "a name once given stays");
        assert!(later.name_of("a_b").starts_with("a_b_"));
    }

    #[test]
    fn ten_thousand_long_names_fit_and_differ() {
        let ids: Vec<String> = (0..10_000)
            .map(|n| format!("{}.{}{n}", "domain".repeat(12), if n % 2 == 0 { "x/" } else { "x." }))
            .collect();
        let names = WireNames::default().with(ids.iter().map(String::as_str));
        let distinct: std::collections::HashSet<&str> =
            ids.iter().map(|id| names.name_of(id)).collect();
        assert_eq!(distinct.len(), ids.len());
        assert!(distinct.iter().all(|name| name.len() <= WIRE_NAME_MAX));
    }

    #[test]
    fn names_are_looked_up_before_ids() {
        let names = WireNames::default().with(["a.b"].into_iter());
        assert_eq!(names.tool_id("a_b"), "a.b");
        assert_eq!(names.tool_id("a.b"), "a.b");
        assert_eq!(short("9lives"), "_9lives");
    }
}
