//! Formats values for findings, and converts numbers for rules.

use serde_json::{Number, Value};

use super::kind;

/// Formats user text for a message: short, on one line, without control characters.
pub(super) fn shown(text: &str) -> String {
    let shown: String = text.chars().take(60).collect();
    let more = if shown.len() < text.len() { "…" } else { "" };
    format!("{}{more}", shown.escape_debug())
}

pub(super) fn number_or_kind(value: &Value) -> String {
    match value {
        Value::Number(number) => format!("`{number}`"),
        other => kind(other).to_owned(),
    }
}

/// Returns a whole number of at least 0; `30000.0` is one.
pub(super) fn whole_number(number: &Number) -> Option<u64> {
    number.as_u64().or_else(|| {
        let double = number.as_f64()?;
        let fits = double >= 0.0 && double.fract() == 0.0 && double < 9_007_199_254_740_992.0;
        fits.then_some(double as u64)
    })
}

pub(super) fn at_least_zero(number: &Number) -> bool {
    number.as_f64().is_some_and(|double| double >= 0.0)
}
