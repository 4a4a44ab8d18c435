//! The conditions of rules, evaluated on one question.
//!
//! This calls the evaluator of the language for each rule. Its authorizer would build every condition again for each
//! question, and collect the ids of all rules in hashed maps.
//!
//! Path: 5. Doc: policy.md#rules

use std::fmt::Display;
use std::sync::Arc;

use cedar_policy::{Entities, Policy};
use cedar_policy_core::ast::{Expr, Literal, Request, SlotEnv, ValueKind};
use cedar_policy_core::evaluator::Evaluator;
use cedar_policy_core::extensions::Extensions;

use crate::error::EngineError;

/// When a rule applies.
#[derive(Debug)]
pub(super) struct Condition {
    /// The index of the rule in its set; that of its first rule, if it is the condition of a group.
    pub(super) rule: usize,
    id: String,
    expression: Arc<Expr>,
}

impl Condition {
    /// Returns the condition of a rule: its scope, its `when` and its `unless`.
    pub(super) fn of(rule: usize, policy: &Policy) -> Self {
        let own: &cedar_policy_core::ast::Policy = policy.as_ref();
        Self { rule, id: policy.id().to_string(), expression: Arc::new(own.condition()) }
    }
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
        let value = self.evaluator.interpret(&condition.expression, &self.slots);
        match value.map_err(|error| failed(&error))?.value {
            ValueKind::Lit(Literal::Bool(holds)) => Ok(holds),
            _ => Err(failed(&"its condition is no truth value")),
        }
    }

    /// Adds the rules that apply, each evaluated by itself.
    ///
    /// # Errors
    /// Where one of them cannot be evaluated.
    pub(super) fn apply(
        &self,
        rules: &[Condition],
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
