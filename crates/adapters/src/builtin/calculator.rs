//! Implements `calculator`: arithmetic by the crate `fend-core`, exact where possible.
//!
//! The crate also supports units, dates and lambdas. Only the words of arithmetic are accepted.
//! Nesting and length are limited because its parser recurses.

use std::time::{Duration, Instant};

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
    let expression = checked(expression)?;
    let mut context = fend_core::Context::new();
    context.disable_rng();
    let until = Until(Instant::now() + TIME_MAX);
    let result =
        fend_core::evaluate_with_interrupt(&expression, &mut context, &until).map_err(|error| {
            match error.as_str() {
                "interrupted" => "the result is too large to work out".to_owned(),
                _ => error,
            }
        })?;
    let text = result.get_main_result();
    let (value, exact) = match text.strip_prefix("approx. ") {
        Some(value) => (value, false),
        None => (text, true),
    };
    let number = value.parse::<f64>().is_ok_and(f64::is_finite) || value.len() > 300;
    if number && value.bytes().all(|byte| byte.is_ascii_digit() || b"+-.eE".contains(&byte)) {
        Ok((value.to_owned(), exact))
    } else if value.is_empty() {
        Err("there is nothing to work out".to_owned())
    } else {
        Err("the result is not a real number".to_owned())
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
                    .find(|place| !characters.get(*place).is_some_and(char::is_ascii_alphanumeric))
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
        let (value, is_exact) = evaluate("sqrt(2)").unwrap();
        assert!(!is_exact && value.starts_with("1.41421356"), "{value}");
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
