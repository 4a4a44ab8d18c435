//! Rules that are evaluated in groups first, since most of them apply to no call.
//!
//! The condition of a group is that one of its rules applies. Each rule of a group is evaluated by itself only where
//! that holds or cannot be evaluated, so the result is that of all rules by themselves.
//!
//! Path: 5. Doc: policy.md#rules

use std::cell::Cell;
use std::sync::Arc;

use cedar_policy::pst::{
    self, ActionConstraint, BinaryOp, Clause, Expr, Literal, PrincipalConstraint,
    ResourceConstraint, StaticPolicy, Template, UnaryOp,
};
use cedar_policy::{Authorizer, Entities, Policy, PolicyId, PolicySet, Request, Response};

use crate::error::EngineError;

/// Rules of one group.
const MEMBERS: usize = 8;
/// Parts of a condition that can be in a group: groups are made by recursion, also on threads with a small stack.
const PARTS_MAX: usize = 200;

/// Rules, some of them in groups.
#[derive(Debug)]
pub(super) struct GroupedRules {
    /// Those that are in no group.
    alone: PolicySet,
    /// The conditions of the groups, by their indices.
    conditions: PolicySet,
    groups: Vec<PolicySet>,
}

impl GroupedRules {
    /// Groups rules, each with its [`condition`]; those without one are in no group.
    pub(super) fn new(
        rules: impl IntoIterator<Item = (Policy, Option<Expr>)>,
    ) -> Result<Self, EngineError> {
        let (mut alone, mut members) = (Vec::new(), Vec::new());
        for (rule, condition) in rules {
            match condition {
                Some(condition) => members.push((rule, condition)),
                None => alone.push(rule),
            }
        }
        let (mut conditions, mut groups) = (Vec::new(), Vec::new());
        for group in members.chunks(MEMBERS) {
            let (rules, of_each): (Vec<Policy>, Vec<Expr>) = group.iter().cloned().unzip();
            let id = PolicyId::new(groups.len().to_string());
            match of_each.as_slice() {
                [_, _, ..] if let Ok(any) = policy(one_of(&of_each)) => {
                    conditions.push(any.new_id(id));
                    groups.push(set(rules)?);
                }
                _ => alone.extend(rules),
            }
        }
        Ok(Self { alone: set(alone)?, conditions: set(conditions)?, groups })
    }

    /// Returns the ids of the rules that apply.
    ///
    /// # Errors
    /// Where a rule cannot be evaluated.
    pub(super) fn applying(
        &self,
        request: &Request,
        entities: &Entities,
    ) -> Result<Vec<PolicyId>, EngineError> {
        let mut applying = evaluated(&self.alone, request, entities)?;
        if self.groups.is_empty() {
            return Ok(applying);
        }
        let answer = Authorizer::new().is_authorized(request, &self.conditions, entities);
        let is_certain = answer.diagnostics().errors().next().is_none();
        for (index, group) in self.groups.iter().enumerate() {
            let id = PolicyId::new(index.to_string());
            if !is_certain || answer.diagnostics().reason().any(|own| *own == id) {
                applying.extend(evaluated(group, request, entities)?);
            }
        }
        Ok(applying)
    }
}

/// Returns the ids of the rules that apply, each evaluated by itself.
///
/// # Errors
/// Where a rule cannot be evaluated.
pub(super) fn evaluated(
    rules: &PolicySet,
    request: &Request,
    entities: &Entities,
) -> Result<Vec<PolicyId>, EngineError> {
    if rules.is_empty() {
        return Ok(Vec::new());
    }
    let answer: Response = Authorizer::new().is_authorized(request, rules, entities);
    if let Some(error) = answer.diagnostics().errors().next() {
        return Err(EngineError(format!("a rule cannot be evaluated: {error}")));
    }
    Ok(answer.diagnostics().reason().cloned().collect())
}

/// Returns rules as a set.
pub(super) fn set(rules: impl IntoIterator<Item = Policy>) -> Result<PolicySet, EngineError> {
    PolicySet::from_policies(rules).map_err(|error| EngineError(error.to_string()))
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
fn one_of(conditions: &[Expr]) -> Expr {
    match conditions {
        [] => Expr::Literal(Literal::Bool(false)),
        [one] => one.clone(),
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
