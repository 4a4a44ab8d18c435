//! References of a plan's arguments to the results of earlier steps.
//!
//! Doc: call-path.md#plans

use std::collections::HashMap;

use serde_json::{Map, Value};

/// Returns the steps that arguments refer to.
pub(super) fn references(value: &Value) -> Vec<String> {
    match value {
        Value::Array(items) => items.iter().flat_map(references).collect(),
        Value::Object(members) if members.contains_key("$literal") && members.len() == 1 => {
            Vec::new()
        }
        Value::Object(members) => match reference(members) {
            Some((step, _)) => vec![step.to_owned()],
            None => members.values().flat_map(references).collect(),
        },
        _ => Vec::new(),
    }
}

/// Parses `{"$from": STEP, "pointer": POINTER}`; the pointer can be absent.
pub(super) fn reference(members: &Map<String, Value>) -> Option<(&str, &str)> {
    let step = members.get("$from")?.as_str()?;
    let pointer = match members.get("pointer") {
        None => "",
        Some(pointer) => pointer.as_str()?,
    };
    (members.len() <= 2).then_some((step, pointer))
}

/// Replaces each reference in arguments by the value that it refers to.
pub(super) fn resolved(value: &Value, results: &HashMap<&str, &Value>) -> Result<Value, String> {
    match value {
        Value::Array(items) => items.iter().map(|item| resolved(item, results)).collect(),
        Value::Object(members) => {
            if let (1, Some(literal)) = (members.len(), members.get("$literal")) {
                return Ok(literal.clone());
            }
            if let Some((step, pointer)) = reference(members) {
                return results
                    .get(step)
                    .and_then(|result| result.pointer(pointer))
                    .cloned()
                    .ok_or_else(|| {
                        format!("the result of step `{step}` has nothing at `{pointer}`")
                    });
            }
            members
                .iter()
                .map(|(key, member)| Ok((key.clone(), resolved(member, results)?)))
                .collect::<Result<Map<String, Value>, String>>()
                .map(Value::Object)
        }
        other => Ok(other.clone()),
    }
}
