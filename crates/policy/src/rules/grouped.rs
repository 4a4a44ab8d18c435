//! Rules that are evaluated in groups first, since most of them apply to no call.
//!
//! The condition of a group is that one of its rules applies. Each rule of a group is evaluated by itself only where
//! that holds or cannot be evaluated, so the result is that of all rules by themselves.
//!
//! Path: 5. Doc: policy.md#rules

use std::cell::Cell;
use std::sync::Arc;

use cedar_policy::Policy;
use cedar_policy::pst::{
    self, ActionConstraint, BinaryOp, Clause, Expr, Literal, PrincipalConstraint,
    ResourceConstraint, StaticPolicy, Template, UnaryOp,
};

use super::evaluation::{Condition, Evaluation};
use crate::error::EngineError;

/// Rules of one group.
const MEMBERS: usize = 8;
/// Parts of a condition that can be in a group: groups are made by recursion, also on threads with a small stack.
const PARTS_MAX: usize = 200;

/// Rules, some of them in groups.
#[derive(Debug)]
pub(super) struct GroupedRules {
    /// Those that are in no group.
    alone: Vec<Condition>,
    groups: Vec<Group>,
}

/// Rules that are evaluated only where one of them may apply.
#[derive(Debug)]
struct Group {
    /// One of them applies.
    any: Condition,
    rules: Vec<Condition>,
}

impl GroupedRules {
    /// Groups rules, each with its index and its [`condition`]; those without one are in no group.
    pub(super) fn new<'r>(
        rules: impl IntoIterator<Item = (usize, &'r Policy, Option<&'r Expr>)>,
    ) -> Self {
        let (mut alone, mut members) = (Vec::new(), Vec::new());
        for (index, rule, condition) in rules {
            let own = Condition::of(index, rule);
            match condition {
                Some(condition) => members.push((own, condition)),
                None => alone.push(own),
            }
        }
        let mut groups = Vec::new();
        let mut members = members.into_iter().peekable();
        while members.peek().is_some() {
            let (rules, of_each): (Vec<Condition>, Vec<&Expr>) =
                members.by_ref().take(MEMBERS).unzip();
            match (rules.as_slice(), policy(one_of(&of_each))) {
                ([first, _, ..], Ok(any)) => {
                    let any = Condition::of(first.rule, &any);
                    groups.push(Group { any, rules });
                }
                _ => alone.extend(rules),
            }
        }
        Self { alone, groups }
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
        evaluation.apply(&self.alone, applying)?;
        for group in &self.groups {
            if !matches!(evaluation.holds(&group.any), Ok(false)) {
                evaluation.apply(&group.rules, applying)?;
            }
        }
        Ok(())
    }
}

/// Returns when a rule applies; `None` if its scope excludes something, or the condition has too many parts.
/// Reads it by recursion.
pub(super) fn condition(body: &Template) -> Option<Expr> {
    let is_open = matches!(body.principal, PrincipalConstraint::Any)
        && matches!(body.action, ActionConstraint::Any)
        && matches!(body.resource, ResourceConstraint::Any);
    let each = body.clauses().iter().map(|clause| match clause {
        Clause::When(holds) => Expr::clone(holds),
        Clause::Unless(holds) => Expr::UnaryOp { op: UnaryOp::Not, expr: Arc::clone(holds) },
    });
    let all = each.reduce(|left, right| both(BinaryOp::And, left, right));
    let all = all.unwrap_or(Expr::Literal(Literal::Bool(true)));
    (is_open && parts(&all) <= PARTS_MAX).then_some(all)
}

/// Returns the number of parts of a condition.
fn parts(condition: &Expr) -> usize {
    let parts = Cell::new(0);
    let count = |_: &Expr| {
        parts.set(parts.get() + 1);
        None
    };
    condition.reduce::<()>(&count, &|(), ()| (), ());
    parts.get()
}

/// Returns that one of the conditions holds, as a balanced tree: it is evaluated by recursion.
fn one_of(conditions: &[&Expr]) -> Expr {
    match conditions {
        [] => Expr::Literal(Literal::Bool(false)),
        [one] => Expr::clone(one),
        several => {
            let (left, right) = several.split_at(several.len() / 2);
            both(BinaryOp::Or, one_of(left), one_of(right))
        }
    }
}

fn both(op: BinaryOp, left: Expr, right: Expr) -> Expr {
    Expr::BinaryOp { op, left: Arc::new(left), right: Arc::new(right) }
}

/// Returns a policy that applies when a condition holds.
fn policy(condition: Expr) -> Result<Policy, pst::PstConstructionError> {
    let template = Template::new(
        pst::PolicyID("group".into()),
        pst::Effect::Forbid,
        PrincipalConstraint::Any,
        ActionConstraint::Any,
        ResourceConstraint::Any,
    );
    let template = template.try_with_clauses([Clause::When(Arc::new(condition))])?;
    Policy::from_pst(pst::Policy::Static(StaticPolicy::try_from(template)?))
}
