//! Values as the rules read them.
//!
//! They are built directly: expressions of them would be evaluated for each question.
//!
//! Path: 5. Doc: policy.md#arguments-in-rules

use std::sync::LazyLock;

use cedar_policy_core::ast::{ExtensionFunction, Name, PartialValue, Value};
use cedar_policy_core::extensions::Extensions;

use crate::error::EngineError;

/// ContextMembers of the context of a question, by their names.
pub(super) type ContextMembers = Vec<(String, Value)>;

/// The functions that make decimals, times and durations of texts.
struct Functions {
    decimal: &'static ExtensionFunction,
    datetime: &'static ExtensionFunction,
    duration: &'static ExtensionFunction,
}

impl Functions {
    fn find() -> Result<&'static Self, EngineError> {
        static FUNCTIONS: LazyLock<Result<Functions, EngineError>> = LazyLock::new(|| {
            let find = |name: &str| {
                let own = Name::parse_unqualified_name(name)
                    .map_err(|error| EngineError(format!("`{name}` is no name: {error}")))?;
                let found = Extensions::all_available().func(&own);
                found.map_err(|error| EngineError(error.to_string()))
            };
            Ok(Functions {
                decimal: find("decimal")?,
                datetime: find("datetime")?,
                duration: find("duration")?,
            })
        });
        FUNCTIONS.as_ref().map_err(Clone::clone)
    }
}

fn call(function: &ExtensionFunction, of: String) -> Result<Value, EngineError> {
    match function.call(&[text(of)]) {
        Ok(PartialValue::Value(value)) => Ok(value),
        Ok(PartialValue::Residual(rest)) => Err(EngineError(format!("`{rest}` is no value"))),
        Err(error) => Err(EngineError(error.to_string())),
    }
}

/// Returns a decimal, such as `1.5000`.
pub(super) fn decimal(text: String) -> Result<Value, EngineError> {
    call(Functions::find()?.decimal, text)
}

/// Returns a time, RFC 3339 UTC with milliseconds.
pub(super) fn datetime(text: String) -> Result<Value, EngineError> {
    call(Functions::find()?.datetime, text)
}

/// Returns a duration of milliseconds.
pub(super) fn duration(ms: i64) -> Result<Value, EngineError> {
    call(Functions::find()?.duration, format!("{ms}ms"))
}

/// Returns a text.
pub(super) fn text(text: String) -> Value {
    Value::new(text, None)
}

/// Returns a whole number.
pub(super) fn whole(number: i64) -> Value {
    Value::new(number, None)
}

/// Returns a truth value.
pub(super) fn truth(truth: bool) -> Value {
    Value::new(truth, None)
}

/// Returns a set.
pub(super) fn set(items: impl IntoIterator<Item = Value>) -> Value {
    Value::set(items, None)
}

/// Returns a record. Names must differ: of equal ones, only the last is in it.
pub(super) fn record(fields: impl IntoIterator<Item = (String, Value)>) -> Value {
    Value::record(fields, None)
}
