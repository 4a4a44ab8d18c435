//! Turns a checked entry of either dialect into the canonical contract.
//!
//! Doc: contract.md#dialects

use serde_json::{Map, Value, json};

use super::fields::{self, RegistryEntry};
use super::values::whole_number;
use crate::contract::{HANDLERS_RUNTIME, TIMEOUT_MS_DEFAULT, ToolContract};

/// Returns the canonical form of an entry that has passed the rules.
pub(super) fn contract(entry: &RegistryEntry<'_>) -> serde_json::Result<ToolContract> {
    let mut out = Map::new();
    for field in fields::TOP {
        if let Some(value) = entry.get(field) {
            out.insert(field.canonical.to_owned(), value.clone());
        }
    }
    for (key, value) in entry.members {
        let known = fields::TOP.iter().any(|field| field.canonical == key || field.snake == key);
        if !known && key != fields::TIMEOUT_MS {
            out.insert(key.clone(), value.clone());
        }
    }
    if let Some(Value::Object(idempotency)) = out.get_mut("idempotency") {
        *idempotency = canonical_idempotency(std::mem::take(idempotency));
    }
    let policy = out.entry("policy").or_insert_with(|| json!({}));
    if let Some(policy) = policy.as_object_mut() {
        if let Some(timeout) = entry.plain(fields::TIMEOUT_MS) {
            policy.insert("timeoutMs".to_owned(), timeout.clone());
        }
        if entry.is_snake() {
            policy.entry("timeoutMs").or_insert_with(|| json!(TIMEOUT_MS_DEFAULT));
            policy.entry("trustLevel").or_insert_with(|| json!("sandbox"));
        }
        // `30000.0` is a whole number too.
        for name in ["timeoutMs", "rateLimitPerMin", "maxConcurrency"] {
            if let Some(Value::Number(number)) = policy.get(name)
                && let Some(whole) = whole_number(number)
            {
                policy.insert(name.to_owned(), json!(whole));
            }
        }
    }
    if entry.is_snake() {
        out.entry("category").or_insert_with(|| json!("function"));
        out.entry("capabilities").or_insert_with(|| json!({}));
        let idempotency = out.entry("idempotency").or_insert_with(|| json!({}));
        if let Some(idempotency) = idempotency.as_object_mut() {
            idempotency.entry("mode").or_insert_with(|| json!("none"));
        }
        let name = entry.get(fields::TOOL_ID).and_then(Value::as_str).unwrap_or_default();
        out.entry("execution").or_insert_with(|| dispatch_rule(name));
    }
    // The derived reader of further keys knows no number with more than 64 bits, so they are added afterwards.
    let is_known = |key: &str| {
        fields::TOP.iter().any(|field| field.canonical == key)
            || [fields::ANNOTATIONS, fields::SHOWN].contains(&key)
    };
    let further = take_unknown(&mut out, is_known);
    let mut within = |section: &str, known: &[&str]| match out.get_mut(section) {
        Some(Value::Object(members)) => take_unknown(members, |key| known.contains(&key)),
        _ => Map::new(),
    };
    let of_capabilities = within("capabilities", &fields::CAPABILITIES);
    let of_execution = within("execution", &fields::EXECUTION);
    let of_policy = within("policy", &fields::POLICY);
    let of_idempotency = within("idempotency", &fields::IDEMPOTENCY.map(|field| field.canonical));
    let mut contract: ToolContract = serde_json::from_value(Value::Object(out))?;
    contract.extra.extend(further);
    contract.capabilities.extra.extend(of_capabilities);
    contract.execution.extra.extend(of_execution);
    contract.policy.extra.extend(of_policy);
    contract.idempotency.extra.extend(of_idempotency);
    Ok(contract)
}

/// Takes the members that are not known.
fn take_unknown(
    members: &mut Map<String, Value>,
    is_known: impl Fn(&str) -> bool,
) -> Map<String, Value> {
    let all = std::mem::take(members).into_iter();
    let (known, unknown) = all.partition(|(key, _)| is_known(key));
    *members = known;
    unknown
}

/// Returns the default target: the first part of a name is the handler domain, and the rest joined with
/// `_` is the handler.
fn dispatch_rule(name: &str) -> Value {
    match name.split_once('.') {
        Some((domain, rest)) if rest.contains('.') => json!({
            "localRuntimeId": HANDLERS_RUNTIME,
            "target": format!("{domain}.{}", rest.replace('.', "_")),
        }),
        _ => json!({ "localRuntimeId": HANDLERS_RUNTIME }),
    }
}

fn canonical_idempotency(members: Map<String, Value>) -> Map<String, Value> {
    members
        .into_iter()
        .map(|(key, value)| {
            let known = fields::IDEMPOTENCY.iter().find(|field| field.snake == key);
            (known.map_or(key, |field| field.canonical.to_owned()), value)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guard::Guard;
    use crate::json::parse;

    #[test]
    fn further_keys_keep_every_digit() {
        for number in ["18446744073709551616", "-9223372036854775809", "0.1000000000000000055"] {
            for pointer in ["", "/capabilities", "/execution", "/policy", "/idempotency"] {
                let mut entry = json!({
                    "toolId": "a.b", "description": "d", "category": "function", "inputSchema": {"type": "object"},
                    "outputSchema": {}, "capabilities": {}, "execution": {"localRuntimeId": "x"},
                    "policy": {"timeoutMs": 1, "trustLevel": "x"}, "permissions": [],
                    "idempotency": {"mode": "none"},
                });
                entry.pointer_mut(pointer).unwrap()["vendorKey"] =
                    parse(number.as_bytes()).unwrap();
                let contract = Guard::default().validate_entry(&entry).unwrap();
                let written = serde_json::to_value(&contract).unwrap();
                let kept = written.pointer(&format!("{pointer}/vendorKey"));
                assert_eq!(kept.map(Value::to_string).as_deref(), Some(number), "{pointer}");
                assert_eq!(Guard::default().validate_entry(&written).unwrap(), contract);
            }
        }
    }
}
