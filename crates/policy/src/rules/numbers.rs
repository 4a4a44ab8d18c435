//! Numbers of JSON as whole numbers and as decimals with four digits, exact or not at all.
//!
//! Path: 5. Doc: policy.md#arguments-in-rules

use serde_json::Number;

/// Ten thousandths in one: a decimal of the rules has four digits after the point.
const SCALE: i128 = 10_000;
/// Digits after the point.
const DECIMALS: i32 = 4;
/// Maximum number of digits and zeros that are read; more cannot be exact.
const DIGITS_MAX: usize = 40;

/// Returns a number as a 64-bit whole number; `None` if it is another number.
pub(super) fn whole(number: &Number) -> Option<i64> {
    let scaled = scaled(&number.to_string())?;
    (scaled % SCALE == 0).then(|| i64::try_from(scaled / SCALE).ok())?
}

/// Returns a number in ten thousandths; `None` if it has further digits or is too large.
pub(super) fn ten_thousandths(number: &Number) -> Option<i64> {
    i64::try_from(scaled(&number.to_string())?).ok()
}

/// Returns a number as a decimal, such as `1.5000`; `None` if it has further digits or is too large.
pub(super) fn decimal(number: &Number) -> Option<String> {
    let scaled = ten_thousandths(number)?;
    let sign = if scaled < 0 { "-" } else { "" };
    let (ones, rest) = (scaled.unsigned_abs() / 10_000, scaled.unsigned_abs() % 10_000);
    Some(format!("{sign}{ones}.{rest:04}"))
}

/// Returns a number of JSON (RFC 8259, 6) in ten thousandths; `None` if it is not exact, or longer than
/// any number of the rules.
fn scaled(text: &str) -> Option<i128> {
    let (negative, text) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text),
    };
    let (mantissa, exponent) = match text.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, exponent.parse::<i32>().ok()?),
        None => (text, 0),
    };
    let (ones, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let fraction = fraction.trim_end_matches('0');
    let digits = format!("{ones}{fraction}");
    let digits = digits.trim_start_matches('0');
    if digits.is_empty() {
        return Some(0);
    }
    // The places that the point moves to the right.
    let shift = exponent.checked_sub(i32::try_from(fraction.len()).ok()?)?.checked_add(DECIMALS)?;
    let digits = match usize::try_from(shift) {
        Ok(zeros) if digits.len() + zeros.min(DIGITS_MAX) <= DIGITS_MAX => {
            format!("{digits}{}", "0".repeat(zeros))
        }
        Ok(_) => return None,
        Err(_) => {
            let cut = usize::try_from(shift.unsigned_abs()).ok()?;
            let kept = digits.len().checked_sub(cut)?;
            let (kept, gone) = digits.split_at(kept);
            if gone.bytes().any(|digit| digit != b'0') {
                return None;
            }
            kept.to_owned()
        }
    };
    let value: i128 = if digits.is_empty() { 0 } else { digits.parse().ok()? };
    Some(if negative { -value } else { value })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(text: &str) -> Number {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn whole_numbers_are_exact() {
        for (text, is) in [
            ("0", Some(0)),
            ("-0", Some(0)),
            ("7.0", Some(7)),
            ("7.5", None),
            ("1e3", Some(1_000)),
            ("1200E-2", Some(12)),
            ("9223372036854775807", Some(i64::MAX)),
            ("-9223372036854775808", Some(i64::MIN)),
            ("9223372036854775808", None),
            ("1e400", None),
            ("1e-400", None),
            ("0e999999999", Some(0)),
            ("1e99999999999", None),
        ] {
            assert_eq!(whole(&number(text)), is, "{text}");
        }
    }

    #[test]
    fn decimals_have_four_digits_after_the_point() {
        for (text, is) in [
            ("0", Some("0.0000")),
            ("12.5", Some("12.5000")),
            ("-0.0001", Some("-0.0001")),
            ("0.00010", Some("0.0001")),
            ("0.00001", None),
            ("1.5e2", Some("150.0000")),
            ("922337203685477.5807", Some("922337203685477.5807")),
            ("922337203685477.5808", None),
        ] {
            assert_eq!(decimal(&number(text)).as_deref(), is, "{text}");
        }
    }
}
