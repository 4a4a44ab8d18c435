//! Reads values into types that do not expect every form of a number.
//!
//! Doc: contract.md#json-safe

use serde::de::DeserializeOwned;
use serde_json::{Number, Value};

/// The whole numbers up to this one are exact as `f64`.
const EXACT_MAX: f64 = 9_007_199_254_740_992.0;

/// Reads a value as a type.
///
/// A number keeps the digits that it was written with, which not every type reads: `1.0` is no integer to serde, and
/// `1.50` is a map where a type is buffered, as by `flatten` and `untagged`. Where a type does not read them, numbers
/// are given to it as Rust writes them, whole ones without a point.
///
/// # Errors
/// Where the value does not fit the type.
pub fn read_as<T: DeserializeOwned>(value: &Value) -> Result<T, serde_json::Error> {
    T::deserialize(value).or_else(|error| T::deserialize(plain(value)).map_err(|_| error))
}

fn plain(value: &Value) -> Value {
    match value {
        Value::Number(number) if !number.is_i64() && !number.is_u64() => {
            let float = number.as_f64().filter(|float| float.is_finite());
            let Some(float) = float else { return value.clone() };
            #[expect(
                clippy::cast_possible_truncation,
                reason = "it is whole, and not larger than it may be"
            )]
            let whole = (float.fract() == 0.0 && float.abs() <= EXACT_MAX).then_some(float as i64);
            match whole {
                Some(whole) => whole.into(),
                None => Number::from_f64(float).map_or_else(|| value.clone(), Value::Number),
            }
        }
        Value::Array(items) => items.iter().map(plain).collect(),
        Value::Object(members) => {
            members.iter().map(|(name, member)| (name.clone(), plain(member))).collect()
        }
        other => other.clone(),
    }
}
