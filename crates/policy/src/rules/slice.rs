//! The rules that can apply to one tool, evaluated on one question.
//!
//! Path: 5. Doc: policy.md#rules

use std::sync::OnceLock;

use super::evaluation::{Condition, Evaluation};
use super::grouped::GroupedRules;
use super::history::HISTORY;
use super::reads::Reads;
use super::set::RuleSet;
use crate::engine::{ApprovalNeed, Verdict};
use crate::error::EngineError;

/// The rules of one or of several tools, in the order of their files.
#[derive(Debug)]
pub(super) struct Slice {
    pub(super) rules: Vec<usize>,
    pub(super) reads: Reads,
    /// The members that the rules without windows read.
    pub(super) plain_reads: Reads,
    /// The members that the rules with windows read.
    pub(super) historic_reads: Reads,
    /// Whether the scopes of the rules are known to fit on the action and the resource.
    fits: bool,
    /// The rules that apply to every question, which are not evaluated.
    always: Applying,
    /// Whether these are all that read no windows.
    is_plain_known: bool,
    conditions: OnceLock<Conditions>,
}

/// The conditions that are evaluated.
#[derive(Debug)]
struct Conditions {
    plain: Pair,
    /// Those that read windows over earlier calls.
    historic: Pair,
}

/// Permits and forbids, separately, so that all that apply are known.
#[derive(Debug)]
struct Pair {
    /// Each by itself: one of them applies to most calls.
    permits: Vec<Condition>,
    forbids: GroupedRules,
}

impl Pair {
    /// Adds the rules that apply.
    fn apply(
        &self,
        evaluation: &Evaluation<'_>,
        applying: &mut Applying,
    ) -> Result<(), EngineError> {
        evaluation.apply(&self.permits, &mut applying.permits)?;
        self.forbids.apply(evaluation, &mut applying.forbids)?;
        applying.permits.sort_unstable();
        applying.forbids.sort_unstable();
        Ok(())
    }
}

/// The rules that apply to a question, by their indices.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Applying {
    pub(super) permits: Vec<usize>,
    pub(super) forbids: Vec<usize>,
}

impl Slice {
    /// The rules of tools: their scopes fit on these tools, so only the rest of them is evaluated.
    pub(super) fn of_tools(set: &RuleSet, rules: Vec<usize>) -> Self {
        Self::of(set, rules, true)
    }

    /// The rules of prompts and resources.
    pub(super) fn of_items(set: &RuleSet, rules: Vec<usize>) -> Self {
        Self::of(set, rules, false)
    }

    fn of(set: &RuleSet, rules: Vec<usize>, fits: bool) -> Self {
        let (historic, plain): (Vec<usize>, Vec<usize>) =
            rules.iter().partition(|index| set.rule(**index).reads.of(HISTORY).is_some());
        let (always, evaluated): (Vec<usize>, Vec<usize>) =
            plain.iter().partition(|index| fits && set.rule(**index).always_applies());
        let (forbids, permits) = always.iter().partition(|index| set.rule(**index).forbids);
        Self {
            reads: set.reads(&rules),
            plain_reads: set.reads(&plain),
            historic_reads: set.reads(&historic),
            always: Applying { permits, forbids },
            is_plain_known: fits && evaluated.is_empty(),
            rules,
            fits,
            conditions: OnceLock::new(),
        }
    }

    fn conditions(&self, set: &RuleSet) -> &Conditions {
        self.conditions.get_or_init(|| {
            let of = |historic, forbids| {
                let own = self.rules.iter().map(|index| (*index, set.rule(*index)));
                let own = own.filter(move |(_, rule)| {
                    rule.forbids == forbids
                        && rule.reads.of(HISTORY).is_some() == historic
                        && !(self.fits && rule.always_applies())
                });
                own.map(|(index, rule)| match self.fits {
                    true => (index, &rule.unscoped),
                    false => (index, &rule.policy),
                })
            };
            let pair = |historic| {
                let permits = of(historic, false).map(|(index, rule)| Condition::of(index, rule));
                let forbids = GroupedRules::new(of(historic, true));
                Pair { permits: permits.collect(), forbids }
            };
            Conditions { plain: pair(false), historic: pair(true) }
        })
    }

    /// Returns the rules that apply, of those that read no windows, if they are the same for every question.
    pub(super) fn known(&self) -> Option<&Applying> {
        Some(&self.always).filter(|_| self.is_plain_known)
    }

    /// Returns the rules that apply, of those that read no windows.
    ///
    /// # Errors
    /// Where a rule cannot be evaluated.
    pub(super) fn plain(
        &self,
        set: &RuleSet,
        evaluation: &Evaluation<'_>,
    ) -> Result<Applying, EngineError> {
        let mut applying = self.always.clone();
        self.conditions(set).plain.apply(evaluation, &mut applying)?;
        Ok(applying)
    }

    /// Adds the rules that apply, of those that read windows.
    ///
    /// # Errors
    /// Where a rule cannot be evaluated.
    pub(super) fn historic(
        &self,
        set: &RuleSet,
        evaluation: &Evaluation<'_>,
        applying: &mut Applying,
    ) -> Result<(), EngineError> {
        self.conditions(set).historic.apply(evaluation, applying)
    }

    /// Whether one of the rules reads windows over earlier calls.
    pub(super) fn is_historic(&self) -> bool {
        self.historic_reads != Reads::default()
    }

    /// Whether one of the rules permits by windows over earlier calls.
    pub(super) fn permits_by_history(&self, set: &RuleSet) -> bool {
        let mut rules = self.rules.iter().map(|index| set.rule(*index));
        rules.any(|rule| !rule.forbids && rule.reads.of(HISTORY).is_some())
    }
}

impl Applying {
    /// Returns the verdict, if rules that read windows cannot change it: a denial. `may_permit`: whether
    /// such a rule may permit the call.
    pub(super) fn denial(&self, set: &RuleSet, may_permit: bool) -> Option<Verdict> {
        match self.verdict(set) {
            Verdict::Deny { .. } if self.permits.is_empty() && may_permit => {
                let forbids = self.forbids.iter().map(|index| set.rule(*index));
                let is_denied = forbids.filter(|rule| rule.approval().is_none()).count() > 0;
                is_denied.then(|| self.verdict(set))
            }
            denial @ Verdict::Deny { .. } => Some(denial),
            _ => None,
        }
    }

    /// Returns the verdict. A forbid beats every permit. A forbid with `@approval` asks for an approval
    /// instead, and a permit with `@approval` does where no other permit applies.
    pub(super) fn verdict(&self, set: &RuleSet) -> Verdict {
        let rule = |index: &usize| set.rule(*index);
        if let Some(forbid) = self.forbids.iter().map(rule).find(|rule| rule.approval().is_none()) {
            let reason = forbid.annotations.reason.clone();
            let reason = reason.unwrap_or_else(|| format!("the rule `{}` forbids it", forbid.id()));
            return Verdict::Deny { rule: forbid.id().to_owned(), reason };
        }
        // The permit that asks for the least.
        let Some(permit) = self.permits.iter().map(rule).min_by_key(|rule| rule.approval()) else {
            return Verdict::Deny {
                rule: "no-rule".to_owned(),
                reason: "no rule permits it".to_owned(),
            };
        };
        // All rules that require an approval: if one of them changes, a new approval is required.
        let asking = self.forbids.iter().map(rule).chain([permit]);
        let approval = asking.filter_map(|rule| rule.approval_need()).reduce(ApprovalNeed::and);
        Verdict::Permit { rule: permit.id().to_owned(), approval }
    }
}
