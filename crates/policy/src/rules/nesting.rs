//! The nesting of conditions, and the stack that their evaluation needs: the language evaluates by recursion, and
//! refuses where little stack is left. A verdict must not depend on the thread that judges.
//!
//! Path: 5. Doc: policy.md#rules

use cedar_policy_core::ast::{Expr, ExprKind};

/// The stack for one level, in bytes: more than a build without optimisation needs.
const LEVEL_BYTES: usize = 64 << 10;
/// The stack that must be left at the deepest level, in bytes: more than the language asks for.
const BASE_BYTES: usize = 512 << 10;

/// Returns the number of levels of an expression.
pub(super) fn levels(expression: &Expr) -> usize {
    let mut deepest = 0;
    let mut open = vec![(expression, 1)];
    while let Some((expression, level)) = open.pop() {
        deepest = deepest.max(level);
        let mut add = |inner| open.push((inner, level + 1));
        match expression.expr_kind() {
            ExprKind::If { test_expr, then_expr, else_expr } => {
                [test_expr, then_expr, else_expr].into_iter().for_each(|inner| add(&**inner));
            }
            ExprKind::And { left, right } | ExprKind::Or { left, right } => {
                [left, right].into_iter().for_each(|inner| add(&**inner));
            }
            ExprKind::BinaryApp { arg1, arg2, .. } => {
                [arg1, arg2].into_iter().for_each(|inner| add(&**inner));
            }
            ExprKind::UnaryApp { arg: expr, .. }
            | ExprKind::GetAttr { expr, .. }
            | ExprKind::HasAttr { expr, .. }
            | ExprKind::Like { expr, .. }
            | ExprKind::Is { expr, .. } => add(&**expr),
            ExprKind::ExtensionFunctionApp { args, .. } => args.iter().for_each(add),
            ExprKind::Set(items) => items.iter().for_each(add),
            ExprKind::Record(members) => members.values().for_each(add),
            _ => (),
        }
    }
    deepest
}

/// Evaluates an expression of so many levels with enough stack, on a stack of its own where this thread has less.
pub(super) fn with_stack<T>(levels: usize, evaluate: impl FnOnce() -> T) -> T {
    let bytes = levels.saturating_mul(LEVEL_BYTES).saturating_add(BASE_BYTES);
    stacker::maybe_grow(bytes, bytes, evaluate)
}
