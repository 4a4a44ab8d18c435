//! References of a plan's arguments to the results of earlier steps.
//!
//! Doc: call-path.md#plans

use std::collections::HashMap;

use serde_json::{Map, Value};

use crate::error::ReferenceError;

/// Returns the steps that arguments refer to.
///
/// # Errors
/// What is wrong with a reference.
pub(super) fn references(value: &Value) -> Result<Vec<String>, &'static str> {
    let mut steps = Vec::new();
    add_references(value, &mut steps)?;
    Ok(steps)
}

fn add_references(value: &Value, steps: &mut Vec<String>) -> Result<(), &'static str> {
    match value {
        Value::Array(items) => items.iter().try_for_each(|item| add_references(item, steps)),
        Value::Object(members) if members.contains_key("$literal") && members.len() == 1 => Ok(()),
        Value::Object(members) if members.contains_key("$from") => {
            let (step, pointer) = reference(members).ok_or(
                "a reference has `$from`, a step, and `pointer`, a text; `$literal` escapes",
            )?;
            if !is_pointer(pointer) {
                return Err(
                    "a pointer is empty or begins with `/`; `~` is written `~0`, `/` in a name `~1`",
                );
            }
            steps.push(step.to_owned());
            Ok(())
        }
        Value::Object(members) => {
            members.values().try_for_each(|member| add_references(member, steps))
        }
        _ => Ok(()),
    }
}

/// Parses `{"$from": STEP, "pointer": POINTER}`; the pointer can be absent.
fn reference(members: &Map<String, Value>) -> Option<(&str, &str)> {
    let step = members.get("$from")?.as_str()?;
    let pointer = match members.get("pointer") {
        None => "",
        Some(pointer) => pointer.as_str()?,
    };
    let known = usize::from(members.contains_key("pointer")) + 1;
    (members.len() == known).then_some((step, pointer))
}

/// Whether a text is a JSON pointer (RFC 6901).
fn is_pointer(text: &str) -> bool {
    let escaped = |(at, _): (usize, &str)| {
        text.get(at + 1..).is_some_and(|rest| rest.starts_with(['0', '1']))
    };
    (text.is_empty() || text.starts_with('/')) && text.match_indices('~').all(escaped)
}

/// Replaces each reference in arguments by the value that it refers to. `results` has the steps that succeeded; `None`
/// for a result that was not kept. `left` is the maximum number of bytes of all
/// these values; [`take_bytes`] estimates the bytes of a value.
///
/// # Errors
/// [`ReferenceError`].
pub(super) fn resolved(
    value: &Value,
    results: &HashMap<&str, Option<&Value>>,
    left: &mut usize,
) -> Result<Value, ReferenceError> {
    match value {
        Value::Array(items) => items.iter().map(|item| resolved(item, results, left)).collect(),
        Value::Object(members) => {
            if let (1, Some(literal)) = (members.len(), members.get("$literal")) {
                return Ok(literal.clone());
            }
            if let Some((step, pointer)) = reference(members) {
                let found = match results.get(step) {
                    Some(None) => return Err(ReferenceError::NotKept { step: step.to_owned() }),
                    Some(Some(result)) => result.pointer(pointer),
                    None => None,
                };
                let found = found.ok_or_else(|| ReferenceError::NothingThere {
                    step: step.to_owned(),
                    pointer: pointer.to_owned(),
                })?;
                return match take_bytes(found, left) {
                    true => Ok(found.clone()),
                    false => Err(ReferenceError::TooLarge),
                };
            }
            members
                .iter()
                .map(|(key, member)| Ok((key.clone(), resolved(member, results, left)?)))
                .collect::<Result<Map<String, Value>, ReferenceError>>()
                .map(Value::Object)
        }
        other => Ok(other.clone()),
    }
}

/// Subtracts the bytes of a value from `left`: a lower estimate of the length of its JSON text. Returns whether there
/// were enough.
fn take_bytes(value: &Value, left: &mut usize) -> bool {
    let own = match value {
        Value::String(text) => text.len() + 2,
        _ => 1,
    };
    let Some(rest) = left.checked_sub(own) else { return false };
    *left = rest;
    match value {
        Value::Array(items) => items.iter().all(|item| take_bytes(item, left)),
        Value::Object(members) => members.iter().all(|(name, member)| {
            let rest = left.checked_sub(name.len() + 3);
            rest.is_some_and(|rest| {
                *left = rest;
                take_bytes(member, left)
            })
        }),
        _ => true,
    }
}
