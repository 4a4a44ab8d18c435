//! How the set of valid values changes with one keyword of a schema.
//!
//! Doc: registry.md#the-lock

use serde_json::Value;
use toolbooth_contracts::json::canonical;

/// How the set of valid values changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Turn {
    /// Fewer values.
    Narrower,
    /// More values.
    Wider,
    /// Neither, or unknown.
    Other,
}

/// Keywords with a list that is a set.
pub(super) const SETS: [&str; 5] = ["type", "enum", "anyOf", "oneOf", "allOf"];

/// Whether two lists have the same items, in any order.
pub(super) fn same_set(before: Option<&Value>, after: Option<&Value>) -> bool {
    let sorted = |value: Option<&Value>| -> Option<Vec<String>> {
        let mut items: Vec<String> = value?.as_array()?.iter().map(canonical).collect();
        items.sort_unstable();
        Some(items)
    };
    matches!((sorted(before), sorted(after)), (Some(one), Some(two)) if one == two)
}

pub(super) fn types(before: Option<&Value>, after: Option<&Value>) -> Turn {
    let list = |value: &Value| -> Vec<String> {
        match value {
            Value::String(one) => vec![one.clone()],
            Value::Array(some) => {
                some.iter().filter_map(Value::as_str).map(str::to_owned).collect()
            }
            _ => Vec::new(),
        }
    };
    match (before, after) {
        (None, _) => Turn::Narrower,
        (_, None) => Turn::Wider,
        (Some(one), Some(two)) => {
            let (one, two) = (list(one), list(two));
            let within = |all: &[String], name: &String| {
                all.contains(name) || (name == "integer" && all.iter().any(|t| t == "number"))
            };
            if one.iter().all(|name| within(&two, name)) {
                Turn::Wider
            } else if two.iter().all(|name| within(&one, name)) {
                Turn::Narrower
            } else {
                Turn::Other
            }
        }
    }
}

pub(super) fn values(before: Option<&Value>, after: Option<&Value>) -> Turn {
    match (before.and_then(Value::as_array), after.and_then(Value::as_array)) {
        (None, Some(_)) => Turn::Narrower,
        (Some(_), None) => Turn::Wider,
        (Some(one), Some(two)) => {
            if one.iter().all(|value| two.contains(value)) {
                Turn::Wider
            } else if two.iter().all(|value| one.contains(value)) {
                Turn::Narrower
            } else {
                Turn::Other
            }
        }
        _ => Turn::Other,
    }
}

/// How a changed limit changes the set of valid values; `upper` for an upper limit.
pub(super) fn limit(before: Option<&Value>, after: Option<&Value>, upper: bool) -> Turn {
    let number = |value: Option<&Value>| value.map(|value| value.as_f64());
    match (number(before), number(after)) {
        (None, Some(Some(_))) => Turn::Narrower,
        (Some(Some(_)), None) => Turn::Wider,
        (Some(Some(one)), Some(Some(two))) if one != two => {
            if (two > one) == upper {
                Turn::Wider
            } else {
                Turn::Narrower
            }
        }
        _ => Turn::Other,
    }
}
