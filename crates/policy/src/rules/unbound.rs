//! Findings about rules, groups and windows that no known tool fits.
//!
//! Doc: policy.md#findings

use std::collections::BTreeSet;

use toolbooth_contracts::contract::Category;
use toolbooth_contracts::id::nearest;

use super::bind::BoundRules;
use super::history::HistoryWindow;
use super::scope::Group;
use super::source::Rule;
use crate::rule_finding::{Location, RuleCode, RuleFinding};

/// Names of tools that are compared for a correction.
const COMPARED_MAX: usize = 20_000;

impl BoundRules {
    /// Returns the finding of a tool that rules are about and that is not known.
    pub(super) fn unbound_tool(&self, id: &str) -> Option<RuleFinding> {
        Some(self.unbound(self.set.rule(*self.set.by_tool.get(id)?.first()?), id))
    }

    /// Returns the findings of tools that only conditions of rules name and that are not known.
    pub(super) fn unbound_conditions(&self) -> Vec<RuleFinding> {
        let mut told = BTreeSet::new();
        let named =
            self.set.rules.iter().flat_map(|rule| rule.compared.iter().map(move |id| (rule, id)));
        named
            .filter(|(_, id)| !self.tools.contains_key(*id) && !self.set.by_tool.contains_key(*id))
            .filter(|(_, id)| told.insert(*id))
            .map(|(rule, id)| self.unbound(rule, id))
            .collect()
    }

    fn unbound(&self, rule: &Rule, id: &str) -> RuleFinding {
        let message = format!("`{}` names `{id}`, which is no known tool", rule.id());
        let finding = RuleFinding::new(RuleCode::UnboundRule, rule.location.clone(), message);
        let categories = Category::NAMES.map(|name| format!("category:{name}"));
        let groups =
            ["call", "read", "write"].into_iter().chain(categories.iter().map(String::as_str));
        match nearest(id, self.ids().chain(groups)) {
            Some(near) => finding.hint(format!("is `{near}` meant?")),
            None => finding.hint("the rule is checked when the tool appears"),
        }
    }

    /// Returns the findings of groups that rules name and in which no known tool is. `read` and `write` can
    /// be empty.
    pub(super) fn unbound_groups(&self) -> Vec<RuleFinding> {
        let in_groups: BTreeSet<&String> =
            self.tools.values().flat_map(|tool| &tool.groups).collect();
        let named = self.set.groups.iter().filter(|(name, _)| !in_groups.contains(name));
        let found = named.filter_map(|(name, group)| {
            let known: BTreeSet<String> = match group {
                Group::Call | Group::Read | Group::Write => return None,
                Group::Pattern(_) => patterns(self.ids()),
                Group::Category(_) => BTreeSet::new(),
                Group::Permission(_) => {
                    let own = self.tools.values().flat_map(|tool| &tool.permissions);
                    own.map(|permission| format!("permission:{permission}")).collect()
                }
            };
            let rule = self.set.rules.iter().find(|rule| rule.actions.contains(name))?;
            let message =
                format!("`{}` names the group `{name}`, in which no known tool is", rule.id());
            let finding = RuleFinding::new(RuleCode::UnboundRule, rule.location.clone(), message);
            Some(match nearest(name, known.iter().map(String::as_str)) {
                Some(near) => finding.hint(format!("is `{near}` meant?")),
                None => finding.hint("the rule applies when such a tool appears"),
            })
        });
        found.collect()
    }

    /// Returns the findings of windows that count no known tool, or tools whose calls they cannot sum.
    pub(super) fn unbound_windows(&self) -> Vec<RuleFinding> {
        let found = self.set.windows.all().filter_map(|(name, window)| {
            let location = || {
                let reads = |rule: &&Rule| {
                    let history = rule.reads.of(super::history::HISTORY);
                    history.is_some_and(|history| history.of(name).is_some())
                };
                let mut rules = self.set.rules.iter();
                let rule = rules.clone().find(reads).or_else(|| rules.next());
                rule.map_or_else(|| Location::of("rules", "", 0), |rule| rule.location.clone())
            };
            let of = |message| RuleFinding::new(RuleCode::UnboundWindow, location(), message);
            let mut counted: Vec<_> =
                self.tools.iter().filter(|(id, _)| window.tool.selects(id)).collect();
            if counted.is_empty() {
                return Some(self.uncounted(name, window, of));
            }
            counted.sort_by_key(|(id, _)| *id);
            let mut without = counted.into_iter().filter_map(|(id, tool)| {
                Some((id, tool.unsummed.iter().find(|(own, _)| own == name)?))
            });
            let (id, (_, unsummed)) = without.next()?;
            let more = match without.count() {
                0 => String::new(),
                more => format!(", nor those of {more} more tools"),
            };
            let (sum, reason) = (window.sum.as_deref().unwrap_or_default(), &unsummed.reason);
            let finding = of(format!(
                "the window `{name}` cannot count the calls of `{id}`{more}: {reason}, so the policy denies them"
            ));
            Some(match &unsummed.nearest {
                Some(near) => finding.hint(format!("is `sum = \"{near}\"` meant?")),
                None => finding.hint(format!(
                    "select only tools with the number `{sum}` by `tool`"
                )),
            })
        });
        found.collect()
    }

    fn uncounted(
        &self,
        name: &str,
        window: &HistoryWindow,
        of: impl Fn(String) -> RuleFinding,
    ) -> RuleFinding {
        let tool = window.tool.as_str();
        let finding = of(format!("the window `{name}` counts `{tool}`, which is no known tool"));
        let patterns = patterns(self.ids());
        let known: Vec<&str> = match tool.ends_with('*') {
            true => patterns.iter().map(String::as_str).collect(),
            false => self.ids().collect(),
        };
        match nearest(tool, known) {
            Some(near) => finding.hint(format!("is `tool = \"{near}\"` meant?")),
            None => finding.hint("it counts from the time when such a tool appears"),
        }
    }

    fn ids(&self) -> impl Iterator<Item = &str> {
        self.tools.keys().map(String::as_str).take(COMPARED_MAX)
    }
}

/// Returns the patterns `PREFIX.*` of these ids, for each prefix before a period.
fn patterns<'i>(ids: impl Iterator<Item = &'i str>) -> BTreeSet<String> {
    let all = ids.flat_map(|id| id.match_indices('.').map(|(at, _)| id.split_at(at).0));
    all.map(|prefix| format!("{prefix}.*")).collect()
}
