//! Compares two sets of rules, rule by rule.
//!
//! Doc: policy.md#comparing

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;

use super::set::{RuleSet, on_large_stack};
use super::source::Rule;

/// A rule as a set of rules states it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct StatedRule {
    /// Its id.
    pub id: String,
    /// Its file, line and column, such as `rules.cedar:3:1`.
    pub place: String,
    /// Its text, with its annotations.
    pub text: String,
}

/// A rule that two sets state in another way.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ChangedRule {
    /// The names of the different parts: `effect`, `scope`, `conditions`, `annotations`.
    pub parts: Vec<&'static str>,
    /// The rule of the first set.
    pub before: StatedRule,
    /// The rule of the second set.
    pub after: StatedRule,
}

/// The differences between two sets of rules, in the order of the ids.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct RuleDifferences {
    /// Rules of the second set only.
    pub added: Vec<StatedRule>,
    /// Rules of the first set only.
    pub removed: Vec<StatedRule>,
    /// Rules that both state in another way. Spaces and comments make no difference.
    pub changed: Vec<ChangedRule>,
    /// The number of rules that are the same.
    pub same: usize,
}

impl RuleSet {
    /// Compares the set with a later one. Rules are the same rule if they have the same id.
    #[must_use]
    pub fn differences(&self, later: &Self) -> RuleDifferences {
        // The language reads nested conditions by recursion.
        on_large_stack(|| self.differences_here(later)).unwrap_or_default()
    }

    fn differences_here(&self, later: &Self) -> RuleDifferences {
        let by_id = |set: &Self| -> BTreeMap<String, usize> {
            set.rules.iter().enumerate().map(|(at, rule)| (rule.id().to_owned(), at)).collect()
        };
        let (before, after) = (by_id(self), by_id(later));
        let mut found = RuleDifferences::default();
        for (id, at) in &before {
            let rule = self.rule(*at);
            match after.get(id).map(|at| later.rule(*at)) {
                None => found.removed.push(rule.stated()),
                Some(other) => match parts(rule, other) {
                    parts if parts.is_empty() => found.same += 1,
                    parts => {
                        let (before, after) = (rule.stated(), other.stated());
                        found.changed.push(ChangedRule { parts, before, after });
                    }
                },
            }
        }
        let added = after.iter().filter(|(id, _)| !before.contains_key(*id));
        found.added = added.map(|(_, at)| later.rule(*at).stated()).collect();
        found
    }
}

impl Rule {
    fn stated(&self) -> StatedRule {
        StatedRule {
            id: self.id().to_owned(),
            place: self.location.to_string(),
            text: self.policy.to_string(),
        }
    }
}

/// Returns the parts in which two rules differ, by the JSON form of the language.
fn parts(one: &Rule, other: &Rule) -> Vec<&'static str> {
    if one.policy.to_string() == other.policy.to_string() {
        return Vec::new();
    }
    let (Ok(one), Ok(other)) = (one.policy.to_json(), other.policy.to_json()) else {
        return vec!["text"];
    };
    let differs = |members: &[&str]| {
        let of = |rule: &Value, member: &&str| rule.get(member).cloned();
        members.iter().any(|member| of(&one, member) != of(&other, member))
    };
    let all: [(&'static str, &[&str]); 4] = [
        ("effect", &["effect"]),
        ("scope", &["principal", "action", "resource"]),
        ("conditions", &["conditions"]),
        ("annotations", &["annotations"]),
    ];
    all.into_iter().filter(|(_, members)| differs(members)).map(|(part, _)| part).collect()
}
