//! Decimals, times and durations as the rules read them.
//!
//! Path: 5. Doc: policy.md#arguments-in-rules

use std::sync::LazyLock;

use cedar_policy::RestrictedExpression;
use cedar_policy_core::ast;

use crate::error::EngineError;

/// The names of the functions that make such values. Reading a name is slow, so each is read once.
struct Names {
    decimal: ast::Name,
    datetime: ast::Name,
    duration: ast::Name,
}

impl Names {
    fn read() -> Result<&'static Self, EngineError> {
        static NAMES: LazyLock<Result<Names, EngineError>> = LazyLock::new(|| {
            let read = |name: &str| {
                ast::Name::parse_unqualified_name(name)
                    .map_err(|error| EngineError(format!("`{name}` is no name: {error}")))
            };
            Ok(Names {
                decimal: read("decimal")?,
                datetime: read("datetime")?,
                duration: read("duration")?,
            })
        });
        NAMES.as_ref().map_err(Clone::clone)
    }
}

fn value(function: &ast::Name, text: String) -> RestrictedExpression {
    let text = ast::RestrictedExpr::val(text);
    ast::RestrictedExpr::call_extension_fn(function.clone(), [text]).into()
}

/// Returns a decimal, such as `1.5000`.
pub(super) fn decimal(text: String) -> Result<RestrictedExpression, EngineError> {
    Ok(value(&Names::read()?.decimal, text))
}

/// Returns a time, RFC 3339 UTC with milliseconds.
pub(super) fn datetime(text: String) -> Result<RestrictedExpression, EngineError> {
    Ok(value(&Names::read()?.datetime, text))
}

/// Returns a duration of milliseconds.
pub(super) fn duration(ms: i64) -> Result<RestrictedExpression, EngineError> {
    Ok(value(&Names::read()?.duration, format!("{ms}ms")))
}
