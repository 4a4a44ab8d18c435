//! Rules that are evaluated in groups first, since most of them apply to no call.
//!
//! A group is one expression: the place of the first of its rules that applies. Those behind it are evaluated by
//! themselves, and all of them where the expression cannot be evaluated, so the result is that of all rules by
//! themselves.
//!
//! Path: 5. Doc: policy.md#rules

use std::sync::Arc;

use cedar_policy::Policy;
use cedar_policy_core::ast::Expr;

use super::evaluation::{Condition, Evaluation};
use super::nesting;
use crate::error::EngineError;

/// Rules of one group, which the evaluator reads by recursion.
const MEMBERS: u16 = 8;

/// Rules in groups.
#[derive(Debug)]
pub(super) struct GroupedRules(Vec<Group>);

#[derive(Debug)]
struct Group {
    /// The place of the first rule that applies; -1 where none does.
    first: Expr,
    /// The number of levels of this expression.
    levels: usize,
    rules: Vec<Condition>,
}

impl Group {
    fn of(rules: Vec<Condition>) -> Self {
        let numbered = rules.iter().zip(0..MEMBERS).rev();
        let first = numbered.fold(Expr::val(-1), |others, (rule, number)| {
            let number = Arc::new(Expr::val(i64::from(number)));
            Expr::ite_arc(Arc::clone(&rule.expression), number, Arc::new(others))
        });
        let levels = nesting::levels(&first);
        Self { first, levels, rules }
    }
}

impl GroupedRules {
    /// Groups rules, each with its index.
    pub(super) fn new<'r>(rules: impl IntoIterator<Item = (usize, &'r Policy)>) -> Self {
        let mut rules =
            rules.into_iter().map(|(index, rule)| Condition::of(index, rule)).peekable();
        let mut groups = Vec::new();
        while rules.peek().is_some() {
            groups.push(Group::of(rules.by_ref().take(usize::from(MEMBERS)).collect()));
        }
        Self(groups)
    }

    /// Adds the rules that apply.
    ///
    /// # Errors
    /// Where a rule cannot be evaluated.
    pub(super) fn apply(
        &self,
        evaluation: &Evaluation<'_>,
        applying: &mut Vec<usize>,
    ) -> Result<(), EngineError> {
        for Group { first, levels, rules } in &self.0 {
            // Where it cannot be evaluated, the rule that cannot be is found, for its name.
            let Some(first) = evaluation.whole(first, *levels) else {
                evaluation.apply(rules, applying)?;
                continue;
            };
            let Ok(first) = usize::try_from(first) else { continue };
            let mut rest = rules.iter().skip(first);
            applying.extend(rest.next().map(|rule| rule.rule));
            evaluation.apply(rest, applying)?;
        }
        Ok(())
    }
}
