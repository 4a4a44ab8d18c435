//! The subexpressions of rule conditions.
//!
//! Path: 5. Doc: policy.md#rules

use cedar_policy::pst::{Clause, Expr, Template};

/// Returns the conditions of a rule.
pub(super) fn conditions(rule: &Template) -> impl Iterator<Item = &Expr> {
    rule.clauses().iter().map(|clause| match clause {
        Clause::When(condition) | Clause::Unless(condition) => &**condition,
    })
}

/// Returns the expressions directly within an expression; `None` if its kind is not known.
pub(super) fn parts(expression: &Expr) -> Option<Vec<&Expr>> {
    Some(match expression {
        Expr::HasAttr { expr, .. }
        | Expr::GetAttr { expr, .. }
        | Expr::UnaryOp { expr, .. }
        | Expr::Like { expr, .. } => vec![expr],
        Expr::BinaryOp { left, right, .. } => vec![left, right],
        Expr::Is { expr, in_expr, .. } => {
            let parent = in_expr.as_deref();
            std::iter::once(&**expr).chain(parent).collect()
        }
        Expr::IfThenElse { cond, then_expr, else_expr } => vec![cond, then_expr, else_expr],
        Expr::Set(items) => items.iter().map(|item| &**item).collect(),
        Expr::Record(members) => members.values().map(|member| &**member).collect(),
        Expr::Literal(_) | Expr::Var(_) | Expr::Slot(_) | Expr::Unknown { .. } => Vec::new(),
        #[expect(
            clippy::allow_attributes,
            reason = "whether all kinds are known depends on the version"
        )]
        #[allow(unreachable_patterns)]
        _ => return None,
    })
}
