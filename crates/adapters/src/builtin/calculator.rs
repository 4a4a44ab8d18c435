//! Implements `calculator`: arithmetic by the crate `fend-core`, exact where possible.
//!
//! The crate also supports units, dates and lambdas. Only the words of arithmetic are accepted.
//! Nesting and length are limited because its parser recurses.

use std::time::{Duration, Instant};

use num_bigint::{BigInt, BigUint, Sign};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use toolbooth_contracts::ToolOutput;

use crate::functions::{FunctionError, Functions};

const LENGTH_MAX: usize = 1_000;
const DEPTH_MAX: usize = 64;
const OPERATORS_MAX: usize = 200;
const TIME_MAX: Duration = Duration::from_secs(2);
/// The parser of the crate recurses. This stack is sufficient for the limits above.
const STACK_BYTES: usize = 32 << 20;
/// The digits of a result that is rounded.
const DIGITS: u32 = 15;
/// The digits of a fraction that is shown as it is.
const EXACT_DIGITS_MAX: u32 = 40;

const WORDS: [&str; 23] = [
    "sqrt", "cbrt", "abs", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh",
    "asinh", "acosh", "atanh", "ln", "log", "log2", "log10", "exp", "pi", "e", "mod",
];

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Calculation {
    /// The expression: + - * / %, ^, parentheses, sqrt, abs, sin, ln, log10, pi, e and the like.
    #[schemars(length(min = 1, max = 1000))]
    expression: String,
}

pub(super) fn add(functions: &mut Functions) -> Value {
    functions.add(
        "calculator",
        "Evaluates an arithmetic expression exactly where that is possible.",
        |calculation: Calculation| async move {
            let (reply, answer) = async_channel::bounded(1);
            let thread = std::thread::Builder::new().stack_size(STACK_BYTES).spawn(move || {
                let _ = reply.try_send(evaluate(&calculation.expression));
            });
            thread.map_err(|error| FunctionError(error.to_string()))?;
            let (value, exact) = answer
                .recv()
                .await
                .map_err(|_| FunctionError("the expression cannot be evaluated".to_owned()))?
                .map_err(FunctionError)?;
            let data = json!({ "value": value, "exact": exact });
            Ok(ToolOutput::text_and_data(value, &data))
        },
    )
}

struct Until(Instant);

impl fend_core::Interrupt for Until {
    fn should_interrupt(&self) -> bool {
        Instant::now() >= self.0
    }
}

/// Returns the value as text, and whether it is exact.
fn evaluate(expression: &str) -> Result<(String, bool), String> {
    if expression.trim().is_empty() {
        return Err("there is nothing to work out".to_owned());
    }
    // The crate's decimals are not always rounded well, its fractions are whole.
    let expression = format!("({}) to fraction", checked(expression)?);
    let mut context = fend_core::Context::new();
    context.disable_rng();
    let until = Until(Instant::now() + TIME_MAX);
    let result =
        fend_core::evaluate_with_interrupt(&expression, &mut context, &until).map_err(|error| {
            match error.as_str() {
                "interrupted" => {
                    "the result is too large, or takes too long, to work out exactly".to_owned()
                }
                _ => error,
            }
        })?;
    let text = result.get_main_result();
    let (fraction, is_exact) = match text.strip_prefix("approx. ") {
        Some(fraction) => (fraction, false),
        None => (text, true),
    };
    let (numerator, denominator) = fraction.split_once('/').unwrap_or((fraction, "1"));
    match (numerator.parse::<BigInt>(), denominator.parse::<BigInt>()) {
        (Ok(numerator), Ok(denominator)) if denominator.sign() == Sign::Plus => {
            Ok(decimal(&numerator, &denominator, is_exact))
        }
        _ => Err("the result is not a real number".to_owned()),
    }
}

/// Returns a fraction as a decimal: with all its digits if it has at most [`EXACT_DIGITS_MAX`], or is whole; else with
/// [`DIGITS`], rounded, the half away from zero. Also returns whether it is exact.
fn decimal(numerator: &BigInt, denominator: &BigInt, is_exact: bool) -> (String, bool) {
    let (numerator, sign) = (numerator.magnitude(), numerator.sign());
    let denominator = denominator.magnitude();
    let sign = if sign == Sign::Minus { "-" } else { "" };
    let whole = numerator / denominator;
    if is_exact && numerator % denominator == BigUint::ZERO {
        return (format!("{sign}{whole}"), true);
    }
    // The power of ten of the first digit, or one more.
    let length = |number: &BigUint| number.to_string().len();
    let first = i64::try_from(length(numerator)).unwrap_or(i64::MAX)
        - i64::try_from(length(denominator)).unwrap_or(i64::MAX);
    let scaled = |decimals: u32| {
        let ten = BigUint::from(10_u8).pow(decimals);
        (numerator * &ten / denominator, (numerator * ten) % denominator)
    };
    if is_exact {
        let decimals = EXACT_DIGITS_MAX.saturating_add_signed(-first.clamp(-4_000, 4_000) as i32);
        if let (digits, rest) = scaled(decimals)
            && rest == BigUint::ZERO
        {
            return (format!("{sign}{}", with_point(&digits.to_string(), decimals)), true);
        }
    }
    let decimals = DIGITS.saturating_add_signed(-first.clamp(-4_000, 4_000) as i32);
    let (digits, _) = scaled(decimals + 2);
    // Of the digits that are there, the first count.
    let digits = digits.to_string();
    let (digits, decimals) = rounded(&digits, decimals + 2);
    (format!("{sign}{}", with_point(&digits, decimals)), false)
}

/// Rounds digits, `decimals` of them after the point, to [`DIGITS`]. Returns the remaining digits, and how many of them
/// are after the point.
fn rounded(digits: &str, decimals: u32) -> (String, u32) {
    let most = usize::try_from(DIGITS).unwrap_or(usize::MAX);
    let Some((kept, dropped)) = digits.split_at_checked(most) else {
        return (digits.to_owned(), decimals);
    };
    let dropped_decimals = u32::try_from(dropped.len()).unwrap_or(u32::MAX);
    let mut number: BigUint = kept.parse().unwrap_or_default();
    if dropped.starts_with(|digit: char| digit >= '5') {
        number += 1_u8;
    }
    match decimals.checked_sub(dropped_decimals) {
        Some(decimals) => (number.to_string(), decimals),
        // Digits before the point are zeros where they are not known.
        None => ((number * BigUint::from(10_u8).pow(dropped_decimals - decimals)).to_string(), 0),
    }
}

/// Returns digits as a decimal with `decimals` behind the point, without zeros at the end of these.
fn with_point(digits: &str, decimals: u32) -> String {
    let decimals = usize::try_from(decimals).unwrap_or(usize::MAX);
    let padded = format!("{digits:0>width$}", width = decimals + 1);
    let (whole, part) = padded.split_at(padded.len() - decimals);
    match part.trim_end_matches('0') {
        "" => whole.to_owned(),
        part => format!("{whole}.{part}"),
    }
}

/// Returns the expression in the crate's notation, if it contains only arithmetic.
fn checked(expression: &str) -> Result<String, String> {
    if expression.len() > LENGTH_MAX {
        return Err(format!("an expression has at most {LENGTH_MAX} bytes"));
    }
    let plain = expression
        .replace(['×', '·'], "*")
        .replace(['÷', ':'], "/")
        .replace(['−', '–'], "-")
        .replace("**", "^")
        .replace('π', "pi")
        .replace('²', "^2")
        .replace('³', "^3");
    let characters: Vec<char> = plain.chars().collect();
    let (mut at, mut depth, mut operators) = (0, 0usize, 0usize);
    while let Some(character) = characters.get(at).copied() {
        match character {
            '0'..='9' | '.' => {
                at = number_end(&characters, at);
                continue;
            }
            'a'..='z' | 'A'..='Z' => {
                let end = (at..characters.len())
                    .find(|index| !characters.get(*index).is_some_and(char::is_ascii_alphanumeric))
                    .unwrap_or(characters.len());
                let word: String = characters.get(at..end).unwrap_or_default().iter().collect();
                if !WORDS.contains(&word.as_str()) {
                    return Err(format!("unknown name `{word}` at position {}", at + 1));
                }
                operators += 1;
                at = end;
                continue;
            }
            '(' => {
                depth += 1;
                operators += 1;
            }
            ')' => depth = depth.saturating_sub(1),
            '+' | '-' | '*' | '/' | '%' | '^' | '!' => operators += 1,
            blank if blank.is_whitespace() => (),
            other => {
                let shown = other.escape_debug();
                return Err(format!("`{shown}` at position {} is not arithmetic", at + 1));
            }
        }
        at += 1;
        if depth > DEPTH_MAX || operators > OPERATORS_MAX {
            return Err("the expression is too deeply nested or too long".to_owned());
        }
    }
    // The crate reads `%` after a number as percent unless it is spelled out.
    Ok(plain.replace('%', " mod "))
}

/// Returns the end of a number such as `1`, `.5`, `2.5e-3`.
fn number_end(characters: &[char], from: usize) -> usize {
    let is_digit = |at: usize| characters.get(at).is_some_and(char::is_ascii_digit);
    let mut at = from;
    while is_digit(at) || characters.get(at) == Some(&'.') {
        at += 1;
    }
    if matches!(characters.get(at), Some('e' | 'E')) {
        let sign = usize::from(matches!(characters.get(at + 1), Some('+' | '-')));
        if is_digit(at + 1 + sign) {
            at += 1 + sign;
            while is_digit(at) {
                at += 1;
            }
        }
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arithmetic_is_exact_where_it_can_be() {
        let exact = |expression: &str| {
            let (value, exact) = evaluate(expression).unwrap();
            assert!(exact, "{expression}");
            value
        };
        assert_eq!(exact("0.1 + 0.2"), "0.3");
        assert_eq!(exact("1/3 + 1/6"), "0.5");
        assert_eq!(exact("9007199254740993 + 2"), "9007199254740995");
        assert_eq!(exact("2^100"), "1267650600228229401496703205376");
        assert_eq!(exact("10 % 3"), "1");
        assert_eq!(exact("3 × (4 − 2) ÷ 6"), "1");
        assert_eq!(exact("-2^2"), "-4");
        assert_eq!(exact("-7/4"), "-1.75");
        assert_eq!(exact("1e-30"), "0.000000000000000000000000000001");
        assert_eq!(exact("1/2^40"), "0.0000000000009094947017729282379150390625");
    }

    #[test]
    fn results_that_are_not_exact_are_rounded_to_fifteen_digits() {
        for (expression, expected) in [
            ("sqrt(2)", "1.4142135623731"),
            ("1/3", "0.333333333333333"),
            ("-2/3", "-0.666666666666667"),
            ("5+1/15000000000", "5.00000000006667"),
            ("sqrt(4.0000000003)", "2.000000000075"),
            ("12345+1/15000000000", "12345.0000000001"),
            ("1/15000000000", "0.0000000000666666666666667"),
            ("0.25+sqrt(5e-21)", "0.250000000070711"),
            ("937157/6280", "149.228821656051"),
            ("1/30000000000000", "0.0000000000000333333333333333"),
            ("2^0.5*2^0.5", "2"),
            ("1e20/3", "33333333333333300000"),
            ("1e20/7*7+1/7", "100000000000000000000"),
            ("2999999999999999.9999/3", "1000000000000000"),
            ("1.23456789^40", "4577.19154217775"),
        ] {
            let (value, is_exact) = evaluate(expression).unwrap();
            assert_eq!((value.as_str(), is_exact), (expected, false), "{expression}");
        }
        let (tiny, _) = evaluate("exp(-50)").unwrap();
        assert!(tiny.starts_with("0.0000000000000000000001928749847"), "{tiny}");
    }

    #[test]
    fn nonsense_is_refused_with_a_sentence() {
        for (expression, expected) in [
            ("1/0", "division by zero"),
            ("nonsense", "unknown name `nonsense`"),
            ("2 km", "unknown name `km`"),
            ("x = 5", "unknown name `x`"),
            ("\"a\"", "not arithmetic"),
            ("9^9^9^9", "too large"),
            ("sqrt(-1)", "not a real number"),
            ("", "nothing"),
        ] {
            let error = evaluate(expression).unwrap_err();
            assert!(error.contains(expected), "{expression}: {error}");
        }
        for deep in ["(".repeat(900), "-".repeat(900), "1+".repeat(450)] {
            assert!(evaluate(&deep).unwrap_err().contains("too deeply"), "{deep}");
        }
        assert!(evaluate(&"1".repeat(1001)).is_err());
    }
}
