//! Selects the named set of a caller: by its name, else by its groups.
//!
//! Path: 3. Doc: policy.md#callers

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::{Value, json};
use toolbooth_contracts::caller::{Identity, is_key_name};
use toolbooth_contracts::{Caller, CallerKind};

use crate::error::SettingError;

/// A pattern of `match`, which selects callers.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum CallerPattern {
    /// One caller: `local`, `operator`, `key:NAME`, `jwt:ISSUER#SUBJECT`.
    Name(String),
    /// The callers with names that begin with this text: `key:*`, `key:ci-*`, `jwt:ISSUER#*`.
    Prefix(String),
    /// The members of a group: `group:NAME`.
    Group(String),
}

impl CallerPattern {
    /// Parses a pattern.
    ///
    /// # Errors
    /// [`SettingError::Caller`]. A pattern of tokens must contain the whole issuer, because subjects
    /// of different issuers are different callers.
    pub fn parse(text: &str) -> Result<Self, SettingError> {
        let wrong = || SettingError::Caller { text: text.to_owned() };
        if let Some(group) = text.strip_prefix("group:") {
            let fits = !group.is_empty() && !group.contains('*');
            return fits.then(|| Self::Group(group.to_owned())).ok_or_else(wrong);
        }
        if let Some(prefix) = text.strip_suffix('*') {
            let fits = match prefix.split_once(':') {
                Some(("key", start)) => start.is_empty() || is_key_name(start),
                Some(("jwt", start)) => start.find('#').is_some_and(|at| at > 0),
                _ => false,
            };
            return fits.then(|| Self::Prefix(prefix.to_owned())).ok_or_else(wrong);
        }
        let identity = Identity::named(text).ok_or_else(wrong)?;
        Ok(Self::Name(identity.name))
    }

    /// Whether one caller's name or group can match both patterns.
    fn overlaps(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Name(one), Self::Name(other)) | (Self::Group(one), Self::Group(other)) => {
                one == other
            }
            (Self::Name(name), Self::Prefix(prefix)) | (Self::Prefix(prefix), Self::Name(name)) => {
                name.starts_with(prefix)
            }
            (Self::Prefix(one), Self::Prefix(other)) => {
                one.starts_with(other) || other.starts_with(one)
            }
            (Self::Group(_), _) | (_, Self::Group(_)) => false,
        }
    }
}

impl std::fmt::Display for CallerPattern {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Name(name) => f.write_str(name),
            Self::Prefix(prefix) => write!(f, "{prefix}*"),
            Self::Group(group) => write!(f, "group:{group}"),
        }
    }
}

/// Named sets of callers, of which at most one holds for a caller.
#[derive(Debug, Clone)]
pub struct CallerSets<T> {
    sets: BTreeMap<String, T>,
    names: BTreeMap<String, String>,
    prefixes: Vec<(String, String)>,
    groups: BTreeMap<String, String>,
}

impl<T> Default for CallerSets<T> {
    fn default() -> Self {
        Self {
            sets: BTreeMap::new(),
            names: BTreeMap::new(),
            prefixes: Vec::new(),
            groups: BTreeMap::new(),
        }
    }
}

impl<T> CallerSets<T> {
    /// Creates the sets from their names, the texts of their patterns and their contents. A set
    /// without patterns selects the caller with its own name.
    ///
    /// # Errors
    /// [`SettingError::Caller`] and [`SettingError::NoCaller`], each with the set;
    /// [`SettingError::Overlap`], where a caller could have the rights of two sets.
    pub fn new(sets: BTreeMap<String, (Vec<String>, T)>) -> Result<Self, SettingError> {
        let mut out = Self::default();
        let mut known: Vec<(CallerPattern, String)> = Vec::new();
        for (name, (texts, content)) in sets {
            let patterns = match texts.is_empty() {
                true => {
                    let own = CallerPattern::parse(&name)
                        .map_err(|_| SettingError::NoCaller { set: name.clone() })?;
                    vec![own]
                }
                false => {
                    texts.iter().map(|text| CallerPattern::parse(text)).collect::<Result<_, _>>()?
                }
            };
            for pattern in patterns {
                let others = known.iter().filter(|(_, set)| *set != name);
                if let Some((other, set)) =
                    others.into_iter().find(|(other, _)| other.overlaps(&pattern))
                {
                    return Err(SettingError::Overlap {
                        pattern: pattern.to_string(),
                        set: name,
                        other: other.to_string(),
                        other_set: set.clone(),
                    });
                }
                known.push((pattern, name.clone()));
            }
            out.sets.insert(name, content);
        }
        for (pattern, set) in known {
            match pattern {
                CallerPattern::Name(name) => drop(out.names.insert(name, set)),
                CallerPattern::Prefix(prefix) => out.prefixes.push((prefix, set)),
                CallerPattern::Group(group) => drop(out.groups.insert(group, set)),
            }
        }
        Ok(out)
    }

    /// Returns the set that selects a caller: the one that names it, else the one that names one of
    /// its groups. If its groups select different sets, none holds.
    #[must_use]
    pub fn of(&self, caller: &Caller) -> Option<(&str, &T)> {
        let name = caller.name();
        let by_prefix = || {
            let found = self.prefixes.iter().find(|(prefix, _)| name.starts_with(prefix));
            found.map(|(_, set)| set)
        };
        let set = match self.names.get(name).or_else(by_prefix) {
            Some(set) => set,
            None => self.of_groups(caller)?,
        };
        self.sets.get_key_value(set).map(|(set, content)| (set.as_str(), content))
    }

    fn of_groups(&self, caller: &Caller) -> Option<&String> {
        let mut sets = caller.groups().iter().filter_map(|group| self.groups.get(group));
        let first = sets.next()?;
        sets.all(|set| set == first).then_some(first)
    }

    /// Returns the sets as a document: for each the callers that it selects, as they are written, and its
    /// contents.
    pub(crate) fn document(&self) -> Value
    where
        T: Serialize,
    {
        let of = |set: &String| -> Vec<String> {
            let names = self.names.iter().map(|(name, set)| (name.clone(), set));
            let prefixes = self.prefixes.iter().map(|(prefix, set)| (format!("{prefix}*"), set));
            let groups = self.groups.iter().map(|(group, set)| (format!("group:{group}"), set));
            let all = names.chain(prefixes).chain(groups).filter(|(_, own)| *own == set);
            let mut all: Vec<String> = all.map(|(pattern, _)| pattern).collect();
            all.sort_unstable();
            all
        };
        let sets = self.sets.iter();
        sets.map(|(set, rights)| (set.clone(), json!({ "match": of(set), "rights": rights })))
            .collect()
    }

    /// Returns the callers that are named one by one.
    pub fn named(&self) -> impl Iterator<Item = &str> {
        self.names.keys().map(String::as_str)
    }

    /// Whether a set selects a caller of this kind without naming it.
    #[must_use]
    pub fn has_patterns_for(&self, kind: CallerKind) -> bool {
        let start = match kind {
            CallerKind::Key => "key:",
            CallerKind::Jwt => "jwt:",
            CallerKind::Local | CallerKind::Operator => return false,
        };
        !self.groups.is_empty() || self.prefixes.iter().any(|(prefix, _)| prefix.starts_with(start))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sets(all: &[(&str, &[&str])]) -> Result<CallerSets<()>, SettingError> {
        let of = |texts: &&[&str]| (texts.iter().map(|text| (*text).to_owned()).collect(), ());
        CallerSets::new(all.iter().map(|(name, texts)| ((*name).to_owned(), of(texts))).collect())
    }

    fn caller(name: &str, groups: &[&str]) -> Caller {
        let groups = groups.iter().map(|group| (*group).to_owned()).collect();
        Caller::authenticated(Identity::named(name).unwrap().with_groups(groups))
    }

    #[test]
    fn a_name_decides_before_a_group() {
        let sets = sets(&[
            ("team", &["group:interns", "key:ci-*"]),
            ("ops", &["key:ops", "jwt:https://id#*"]),
            ("key:solo", &[]),
            ("audit", &["group:auditors"]),
        ])
        .unwrap();
        let of = |name, groups: &[&str]| {
            sets.of(&caller(name, groups)).map(|(set, ())| set.to_owned()).unwrap_or_default()
        };
        assert_eq!(of("key:ops", &["interns"]), "ops");
        assert_eq!(of("key:ci-7", &[]), "team");
        assert_eq!(of("key:solo", &[]), "key:solo");
        assert_eq!(of("key:bob", &["interns"]), "team");
        assert_eq!(of("jwt:https://id#bob", &["auditors"]), "ops");
        assert_eq!(of("jwt:https://other#bob", &["auditors"]), "audit");
        assert_eq!(of("key:bob", &[]), "");
        assert_eq!(of("local", &[]), "");
    }

    #[test]
    fn groups_that_select_different_sets_give_no_rights() {
        let sets = sets(&[("a", &["group:a", "group:b"]), ("c", &["group:c"])]).unwrap();
        assert!(sets.of(&caller("key:x", &["a", "b"])).is_some());
        assert!(sets.of(&caller("key:x", &["a", "c"])).is_none());
    }

    #[test]
    fn overlapping_sets_are_refused() {
        for (one, other) in [
            ("local", "local"),
            ("key:a", "key:a"),
            ("key:*", "key:ops"),
            ("key:ci-*", "key:*"),
            ("group:a", "group:a"),
            ("jwt:i#*", "jwt:i#a"),
        ] {
            let error = sets(&[("x", &[one]), ("y", &[other])]).unwrap_err();
            assert!(matches!(error, SettingError::Overlap { .. }), "{one} {other}: {error}");
            // Within one set it is only a repetition.
            assert!(sets(&[("x", &[one, other])]).is_ok(), "{one} {other}");
        }
        assert!(sets(&[("x", &["key:a*"]), ("y", &["key:b", "jwt:a#*", "group:a"])]).is_ok());
    }

    #[test]
    fn patterns_that_match_no_caller_are_refused() {
        for bad in ["*", "key", "key:", "l*", "jwt:https://a*", "jwt:#*", "group:", "group:a*", "x"]
        {
            assert!(CallerPattern::parse(bad).is_err(), "{bad}");
        }
        assert!(matches!(sets(&[("ops", &[])]).unwrap_err(), SettingError::NoCaller { .. }));
    }
}
