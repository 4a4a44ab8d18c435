//! Names on the wire: short names that every client accepts and that are never reassigned.
//!
//! Path: 3. Doc: front-doors.md#names-on-the-wire

use std::collections::{BTreeMap, HashMap};

use serde::{Deserialize, Serialize};

use crate::digest::sha256_hex;
use crate::discovered::tool_id;
use crate::items::RegisteredItem;
use crate::tool::{RegisteredTool, Source};

/// Maximum length of a short name, in bytes.
pub const WIRE_NAME_MAX: usize = 64;

/// How ids become names.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Naming {
    /// `[A-Za-z_][A-Za-z0-9_-]{0,63}`.
    #[default]
    Short,
    /// The ids, unchanged.
    Native,
}

/// Whether the name of an upstream tool begins with the name of its server.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Prefix {
    /// Always.
    #[default]
    Always,
    /// Only if the tool's own name is taken or several sources have it.
    Conflict,
    /// Never; a later tool of the same name gets a suffix.
    Never,
}

/// A tool or prompt that needs a name.
#[derive(Debug, Clone, Copy)]
pub struct WireCandidate<'t> {
    /// Its id.
    pub id: &'t str,
    /// Its name at its server, if the id consists of the server's name and this name.
    pub bare: Option<&'t str>,
}

impl<'t> WireCandidate<'t> {
    /// The candidate of a prompt. Prompts have a name space of their own.
    #[must_use]
    pub fn of_prompt(prompt: &'t RegisteredItem) -> Self {
        Self { id: prompt.id(), bare: Some(prompt.key()) }
    }

    /// The candidate of a tool.
    #[must_use]
    pub fn of(tool: &'t RegisteredTool) -> Self {
        // A tool that an operator renamed is named by its new id, so it has no bare name.
        let bare = match tool.source() {
            Source::Mcp(server) => {
                let id = tool_id(&format!("{server}.{}", tool.target()));
                (id == tool.id().as_str()).then(|| tool.target())
            }
            _ => None,
        };
        Self { id: tool.id().as_str(), bare }
    }
}

/// All names that were ever assigned, in the form that is stored between runs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GivenNames {
    /// The naming scheme of `names`.
    #[serde(default)]
    scheme: String,
    /// The current name of each tool, by id.
    #[serde(default)]
    names: BTreeMap<String, String>,
    /// The tool id of each name that was ever assigned.
    #[serde(default)]
    ever: BTreeMap<String, String>,
}

impl GivenNames {
    /// Whether no name was ever assigned.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ever.is_empty()
    }

    /// Reads the stored form, or its first version, a plain map from ids to names. `None` if the
    /// text is neither.
    #[must_use]
    pub fn read(text: &[u8]) -> Option<Self> {
        if let Ok(names) = serde_json::from_slice::<BTreeMap<String, String>>(text) {
            let ever = names.iter().map(|(id, name)| (name.clone(), id.clone())).collect();
            return Some(Self { scheme: scheme(Prefix::Always), names, ever });
        }
        serde_json::from_slice(text).ok()
    }

    /// Returns these names, which are stored, with those that another process has assigned since. A name that both
    /// have assigned stays that of the tool for which it was stored first.
    #[must_use]
    pub fn with(mut self, others: &Self) -> Self {
        for (name, id) in &others.ever {
            self.ever.entry(name.clone()).or_insert_with(|| id.clone());
        }
        if self.scheme != others.scheme {
            self.names.clear();
            self.scheme.clone_from(&others.scheme);
        }
        for (id, name) in &others.names {
            if self.ever.get(name) == Some(id) {
                self.names.entry(id.clone()).or_insert_with(|| name.clone());
            }
        }
        self
    }
}

fn scheme(prefix: Prefix) -> String {
    let prefix = match prefix {
        Prefix::Always => "always",
        Prefix::Conflict => "conflict",
        Prefix::Never => "never",
    };
    format!("short, prefix {prefix}")
}

/// The wire name of each tool. A name is never reassigned to another tool.
#[derive(Debug, Clone, Default)]
pub struct WireNames {
    naming: Naming,
    prefix: Prefix,
    given: GivenNames,
}

impl WireNames {
    /// Continues with the names in `given`. If they have another naming scheme, tools get new
    /// names. The old names still resolve to their tools and are never reassigned.
    #[must_use]
    pub fn new(naming: Naming, prefix: Prefix, mut given: GivenNames) -> Self {
        if given.scheme != scheme(prefix) {
            given.names.clear();
            given.scheme = scheme(prefix);
        }
        Self { naming, prefix, given }
    }

    /// A copy with new names for the candidates that have no name yet.
    #[must_use]
    pub fn with<'i>(&self, candidates: impl Iterator<Item = WireCandidate<'i>>) -> Self {
        let mut next = self.clone();
        if self.naming == Naming::Native {
            return next;
        }
        let mut fresh: Vec<WireCandidate<'_>> =
            candidates.filter(|one| !self.given.names.contains_key(one.id)).collect();
        let mut wanted: HashMap<String, usize> = HashMap::new();
        for bare in fresh.iter().filter_map(|one| one.bare) {
            *wanted.entry(short_name(bare)).or_default() += 1;
        }
        // Ids that are valid names come first and keep themselves; the others follow in a stable
        // order.
        fresh.sort_unstable_by_key(|one| (short_name(one.id) != *one.id, one.id));
        for one in fresh {
            let base = match (self.prefix, one.bare) {
                (Prefix::Never, Some(bare)) => short_name(bare),
                (Prefix::Conflict, Some(bare)) => {
                    let bare = short_name(bare);
                    let alone = wanted.get(&bare) == Some(&1) && next.is_free(&bare, one.id);
                    if alone { bare } else { short_name(one.id) }
                }
                _ => short_name(one.id),
            };
            let name = next.free_name(&base, one.id);
            next.given.ever.insert(name.clone(), one.id.to_owned());
            next.given.names.insert(one.id.to_owned(), name);
        }
        next
    }

    fn is_free(&self, name: &str, id: &str) -> bool {
        self.given.ever.get(name).is_none_or(|holder| holder == id)
    }

    fn free_name(&self, base: &str, id: &str) -> String {
        if self.is_free(base, id) {
            return base.to_owned();
        }
        let digest = sha256_hex(id.as_bytes());
        (8..=digest.len().min(WIRE_NAME_MAX - 2))
            .map(|length| suffixed(base, digest.get(..length).unwrap_or_default()))
            .find(|name| self.is_free(name, id))
            // Digests of two different ids do not agree in 62 hex digits.
            .unwrap_or_else(|| base.to_owned())
    }

    /// The name of the tool; its id if no name was assigned.
    #[must_use]
    pub fn name_of<'n>(&'n self, tool_id: &'n str) -> &'n str {
        self.given.names.get(tool_id).map_or(tool_id, String::as_str)
    }

    /// The id of the tool with this name. A text that was never assigned as a name is treated as an id.
    #[must_use]
    pub fn tool_id<'n>(&'n self, name: &'n str) -> &'n str {
        match self.naming {
            Naming::Native => name,
            Naming::Short => self.given.ever.get(name).map_or(name, String::as_str),
        }
    }

    /// All names that were ever assigned. The caller stores them for the next run.
    #[must_use]
    pub fn given(&self) -> &GivenNames {
        &self.given
    }
}

/// The short name of an id, before collisions are resolved.
#[must_use]
pub fn short_name(id: &str) -> String {
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
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    fn plain<'i>(ids: &[&'i str]) -> impl Iterator<Item = WireCandidate<'i>> {
        let ids = ids.to_vec();
        ids.into_iter().map(|id| WireCandidate { id, bare: None })
    }

    #[test]
    fn names_of_two_processes_are_kept_together() {
        let one = WireNames::default().with(plain(&["a.b", "c.d"])).given().clone();
        let two = WireNames::default().with(plain(&["a_b", "e.f"])).given().clone();
        let both = one.clone().with(&two);
        assert_eq!(both.clone().with(&one).with(&two), both, "nothing is new");
        let again = WireNames::new(Naming::default(), Prefix::default(), both);
        let again = again.with(plain(&["a.b", "a_b", "c.d", "e.f"]));
        assert_eq!((again.name_of("a.b"), again.tool_id("a_b")), ("a_b", "a.b"), "stored first");
        assert!(again.name_of("a_b").starts_with("a_b_"));
        assert_eq!((again.name_of("c.d"), again.name_of("e.f")), ("c_d", "e_f"));
        assert_eq!(GivenNames::default().with(&two), two);
    }

    #[test]
    fn names_are_collision_free_and_stable() {
        let first = WireNames::default().with(plain(&["a.b", "a_b", "a/b"]));
        assert_eq!(first.name_of("a_b"), "a_b", "an id that is a name keeps itself");
        let names: HashSet<&str> =
            ["a.b", "a_b", "a/b"].iter().map(|id| first.name_of(id)).collect();
        assert_eq!(names.len(), 3);
        for id in ["a.b", "a_b", "a/b"] {
            assert_eq!(first.tool_id(first.name_of(id)), id);
        }
        let later = WireNames::default().with(plain(&["a.b"])).with(plain(&["a_b"]));
        assert_eq!(later.name_of("a.b"), "a_b", "a name once given stays");
        assert!(later.name_of("a_b").starts_with("a_b_"));
    }

    fn upstream<'i>(tools: &[(&'i str, &'i str)]) -> impl Iterator<Item = WireCandidate<'i>> {
        let tools = tools.to_vec();
        tools.into_iter().map(|(id, bare)| WireCandidate { id, bare: Some(bare) })
    }

    #[test]
    fn a_prefix_is_there_always_at_need_or_never() {
        let tools = [("a.read", "read"), ("b.read", "read"), ("b.write", "write")];
        let names = |prefix| {
            let names = WireNames::new(Naming::Short, prefix, GivenNames::default());
            let names = names.with(upstream(&tools));
            tools.map(|(id, _)| names.name_of(id).to_owned())
        };
        assert_eq!(names(Prefix::Always), ["a_read", "b_read", "b_write"]);
        assert_eq!(names(Prefix::Conflict), ["a_read", "b_read", "write"]);
        let [first, second, third] = names(Prefix::Never);
        assert_eq!((first.as_str(), third.as_str()), ("read", "write"));
        assert!(second.starts_with("read_"), "{second}");
    }

    #[test]
    fn another_way_of_naming_gives_new_names_and_keeps_the_old_ones_reserved() {
        let first = WireNames::default().with(upstream(&[("a.read", "read")]));
        let text = serde_json::to_vec(first.given()).unwrap();
        let kept = GivenNames::read(&text).unwrap();
        let bare = WireNames::new(Naming::Short, Prefix::Never, kept);
        let bare = bare.with(upstream(&[("a.read", "read"), ("a_read", "a_read")]));
        assert_eq!(bare.name_of("a.read"), "read");
        assert_eq!(bare.tool_id("a_read"), "a.read", "the old name still means what it meant");
        assert!(bare.name_of("a_read").starts_with("a_read_"));
        let old = GivenNames::read(br#"{"a.b":"a_b"}"#).unwrap();
        assert_eq!(WireNames::new(Naming::Short, Prefix::Always, old).tool_id("a_b"), "a.b");
    }

    #[test]
    fn names_are_looked_up_before_ids() {
        let names = WireNames::default().with(plain(&["a.b"]));
        assert_eq!(names.tool_id("a_b"), "a.b");
        assert_eq!(names.tool_id("a.b"), "a.b");
        assert_eq!(short_name("9lives"), "_9lives");
    }

    fn fits(name: &str) -> bool {
        let mut characters = name.chars();
        characters.next().is_some_and(|c| c.is_ascii_alphabetic() || c == '_')
            && name.len() <= WIRE_NAME_MAX
            && characters.all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-'))
    }

    /// Ten thousand different ids of few characters, so that many have the same short name. Some
    /// are longer than a name may be.
    fn many(seed: u64) -> Vec<String> {
        let mut state = seed;
        let mut random = |below: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            usize::try_from(state >> 33).unwrap() % below
        };
        let mut ids = HashSet::new();
        while ids.len() < 10_000 {
            let length = if random(4) == 0 { 60 + random(68) } else { 1 + random(12) };
            let id: String = (0..length).map(|_| char::from(b"ab._/-"[random(6)])).collect();
            ids.insert(id);
        }
        let mut ids: Vec<String> = ids.into_iter().collect();
        ids.sort_unstable();
        // A shuffle by the same random numbers.
        for at in (1..ids.len()).rev() {
            ids.swap(at, random(at + 1));
        }
        ids
    }

    proptest! {
        #![proptest_config(ProptestConfig { max_shrink_iters: 0, ..ProptestConfig::with_cases(3) })]

        #[test]
        fn ten_thousand_names_are_exact_and_stable(seed: u64, split in 0usize..10_000) {
            let ids = many(seed);
            let all: Vec<&str> = ids.iter().map(String::as_str).collect();
            let names = WireNames::default().with(plain(&all));
            let distinct: HashSet<&str> = all.iter().map(|id| names.name_of(id)).collect();
            prop_assert_eq!(distinct.len(), all.len());
            for id in &all {
                let name = names.name_of(id);
                prop_assert!(fits(name), "{}", name);
                prop_assert_eq!(names.tool_id(name), *id);
            }
            // The order of ids in one batch does not matter.
            let mut backwards = all.clone();
            backwards.reverse();
            let again = WireNames::default().with(plain(&backwards));
            prop_assert_eq!(again.given(), names.given());
            // Assigned names stay when more ids follow.
            let (one, two) = all.split_at(split);
            let early = WireNames::default().with(plain(one));
            let late = early.with(plain(two));
            for id in one {
                prop_assert_eq!(early.name_of(id), late.name_of(id));
            }
        }
    }
}
