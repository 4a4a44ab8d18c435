//! Reads values into types that do not expect every form of a number.
//!
//! Doc: contract.md#json-safe

use serde::de::DeserializeOwned;
use serde_json::{Number, Value};

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
        Value::Number(number) => plain_number(number).map_or_else(|| value.clone(), Value::Number),
        Value::Array(items) => items.iter().map(plain).collect(),
        Value::Object(members) => {
            members.iter().map(|(name, member)| (name.clone(), plain(member))).collect()
        }
        other => other.clone(),
    }
}

/// Returns a number as Rust writes it, if that is exactly the same number.
fn plain_number(number: &Number) -> Option<Number> {
    let text = number.to_string();
    let written = Decimal::of(&text)?;
    if let Some(whole) = written.whole() {
        return Some(whole.into());
    }
    let float = number.as_f64().filter(|float| float.is_finite())?;
    let is_exact = Decimal::of(&float.to_string())? == written;
    is_exact.then(|| Number::from_f64(float)).flatten()
}

/// A number by its digits: equal where the values are.
#[derive(PartialEq, Eq)]
struct Decimal {
    is_negative: bool,
    /// Without zeros at both ends; empty for zero.
    digits: String,
    /// The power of ten of the last digit.
    exponent: i64,
}

impl Decimal {
    fn of(text: &str) -> Option<Self> {
        let (is_negative, text) = match text.strip_prefix('-') {
            Some(text) => (true, text),
            None => (false, text),
        };
        let (mantissa, exponent) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
        let (whole, part) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        let exponent: i64 = exponent.parse().ok()?;
        let all = format!("{whole}{part}");
        let digits = all.trim_end_matches('0');
        let zeros = i64::try_from(all.len() - digits.len()).ok()?;
        let decimals = i64::try_from(part.len()).ok()?;
        let digits = digits.trim_start_matches('0').to_owned();
        let exponent = exponent.checked_sub(decimals)?.checked_add(zeros)?;
        match digits.is_empty() {
            true => Some(Self { is_negative: false, digits, exponent: 0 }),
            false => Some(Self { is_negative, digits, exponent }),
        }
    }

    /// Returns the number if it is whole and has at most 18 digits.
    fn whole(&self) -> Option<i64> {
        let zeros = usize::try_from(self.exponent).ok().filter(|zeros| *zeros <= 18)?;
        if self.digits.len() + zeros > 18 {
            return None;
        }
        let sign = if self.is_negative { "-" } else { "" };
        format!("{sign}{:0<width$}", self.digits, width = self.digits.len() + zeros)
            .parse()
            .ok()
            .or(self.digits.is_empty().then_some(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_keep_their_values() {
        let plain = |text: &str| plain(&serde_json::from_str(text).unwrap()).to_string();
        for (text, expected) in [
            ("1", "1"),
            ("1.0", "1"),
            ("-20.00", "-20"),
            ("2e3", "2000"),
            ("1500e-3", "1.5"),
            ("0.0", "0"),
            ("-0.0", "0"),
            ("1.50", "1.5"),
            ("0.1", "0.1"),
            // What Rust cannot write exactly stays as it is.
            ("9007199254740993.0", "9007199254740993"),
            ("2.00000000000000000001", "2.00000000000000000001"),
            ("0.1234567890123456789", "0.1234567890123456789"),
            ("123456789012345678901234567890.0", "123456789012345678901234567890.0"),
            ("1e400", "1e+400"),
            ("1e99999999999999999999", "1e+99999999999999999999"),
        ] {
            assert_eq!(plain(text), expected, "{text}");
        }
    }
}
