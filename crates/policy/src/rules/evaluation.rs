//! The conditions of rules, evaluated on one question.
//!
//! This calls the evaluator of the language for each rule or group of rules. Its authorizer would build every condition again for each
//! question, and collect the ids of all rules in hashed maps.
//!
//! Path: 5. Doc: policy.md#rules

use std::fmt::Display;
use std::sync::Arc;

use cedar_policy::{Entities, Policy};
use cedar_policy_core::ast::{
    self, ActionConstraint, Expr, ExprKind, Literal, PrincipalOrResourceConstraint, Request,
    SlotEnv, ValueKind,
};
use cedar_policy_core::evaluator::Evaluator;
use cedar_policy_core::extensions::Extensions;

use super::nesting;
use crate::error::EngineError;

/// When a rule applies.
#[derive(Debug)]
pub(super) struct Condition {
    /// The index of the rule in its set.
    pub(super) rule: usize,
    id: String,
    pub(super) expression: Arc<Expr>,
    /// The number of levels of the expression.
    pub(super) levels: usize,
}

impl Condition {
    /// Returns the condition of a rule: its scope, its `when` and its `unless`.
    pub(super) fn of(rule: usize, policy: &Policy) -> Self {
        // Each part of a scope that excludes nothing would be one more expression to evaluate.
        let expression = match beyond_open_scope(policy) {
            Some(Some(rest)) => Arc::clone(rest),
            Some(None) => Arc::new(Expr::val(true)),
            None => {
                let own: &ast::Policy = policy.as_ref();
                Arc::new(own.condition())
            }
        };
        let levels = nesting::levels(&expression);
        Self { rule, id: policy.id().to_string(), expression, levels }
    }
}

/// Whether a rule applies to every question.
pub(super) fn always_applies(policy: &Policy) -> bool {
    beyond_open_scope(policy).is_some_and(|rest| {
        rest.is_none_or(|rest| matches!(rest.expr_kind(), ExprKind::Lit(Literal::Bool(true))))
    })
}

/// Returns the `when` and `unless` of a rule, if it has any; `None` if its scope excludes something.
fn beyond_open_scope(policy: &Policy) -> Option<Option<&Arc<Expr>>> {
    let own: &ast::Policy = policy.as_ref();
    let template = own.template();
    let parties =
        [template.principal_constraint().as_inner(), template.resource_constraint().as_inner()];
    let is_open = parties.iter().all(|party| **party == PrincipalOrResourceConstraint::Any)
        && *template.action_constraint() == ActionConstraint::Any;
    is_open.then(|| template.non_scope_constraints_arc())
}

/// A question on which conditions are evaluated.
pub(super) struct Evaluation<'e> {
    evaluator: Evaluator<'e>,
    slots: SlotEnv,
}

impl<'e> Evaluation<'e> {
    pub(super) fn new(request: Request, entities: &'e Entities) -> Self {
        let evaluator = Evaluator::new(request, entities.as_ref(), Extensions::all_available());
        Self { evaluator, slots: SlotEnv::new() }
    }

    /// Whether a condition holds.
    ///
    /// # Errors
    /// Where it cannot be evaluated.
    pub(super) fn holds(&self, condition: &Condition) -> Result<bool, EngineError> {
        let failed = |reason: &dyn Display| {
            EngineError(format!("the rule `{}` cannot be evaluated: {reason}", condition.id))
        };
        let value = nesting::with_stack(condition.levels, || {
            let value = self.evaluator.interpret(&condition.expression, &self.slots);
            value.map_err(|error| failed(&error))
        });
        match value?.value {
            ValueKind::Lit(Literal::Bool(holds)) => Ok(holds),
            _ => Err(failed(&"its condition is not a truth value")),
        }
    }

    /// Returns the whole number that an expression of so many levels is; `None` if it cannot be evaluated, or is something else.
    pub(super) fn whole(&self, expression: &Expr, levels: usize) -> Option<i64> {
        let value =
            nesting::with_stack(levels, || self.evaluator.interpret(expression, &self.slots).ok());
        match value?.value {
            ValueKind::Lit(Literal::Long(whole)) => Some(whole),
            _ => None,
        }
    }

    /// Adds the rules that apply, each evaluated by itself.
    ///
    /// # Errors
    /// Where one of them cannot be evaluated.
    pub(super) fn apply<'r>(
        &self,
        rules: impl IntoIterator<Item = &'r Condition>,
        applying: &mut Vec<usize>,
    ) -> Result<(), EngineError> {
        for condition in rules {
            if self.holds(condition)? {
                applying.push(condition.rule);
            }
        }
        Ok(())
    }
}
