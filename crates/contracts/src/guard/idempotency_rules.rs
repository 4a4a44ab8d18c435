//! Rules for `idempotency` and `receiptFields`.
//!
//! Doc: contract.md#fields

use serde_json::Value;

use super::fields::{self, Field, RegistryEntry};
use super::values::shown;
use super::{Report, kind};
use crate::contract::IdempotencyMode;
use crate::finding::ContractCode as Code;
use crate::id::nearest;

pub(super) fn idempotency(entry: &RegistryEntry<'_>, report: &mut Report) {
    let Some(value) = entry.plain("idempotency") else {
        return;
    };
    let Some(members) = value.as_object() else {
        let message = format!("expected an object, found {}", kind(value));
        report.error(Code::InvalidIdempotencyField, "idempotency", message);
        return;
    };
    let mode = members.get("mode");
    match mode {
        None => (),
        Some(Value::String(text)) if IdempotencyMode::NAMES.contains(&text.as_str()) => (),
        Some(other) => report.error(
            Code::InvalidIdempotencyMode,
            "idempotency.mode",
            format!(
                "expected one of {}, found {}",
                IdempotencyMode::NAMES.join(", "),
                other
                    .as_str()
                    .map_or_else(|| kind(other).to_owned(), |text| format!("`{}`", shown(text)))
            ),
        ),
    }
    let path = |field: Field| {
        let spelled = field.get(members).map(|(spelled, _)| spelled);
        format!("idempotency.{}", spelled.unwrap_or(field.in_dialect(entry.dialect)))
    };
    let key_field = fields::KEY_FIELD.get(members).map(|(_, value)| value);
    let keyed = mode.and_then(Value::as_str) == Some("keyed");
    match key_field {
        None if keyed => report.error_with(
            Code::MissingKeyField,
            &path(fields::KEY_FIELD),
            "a keyed tool must name the argument that is its key",
            "name a property of the input schema".to_owned(),
        ),
        Some(Value::String(text)) if !text.trim().is_empty() => {
            let properties = entry
                .get(fields::INPUT_SCHEMA)
                .and_then(|schema| schema.get("properties"))
                .and_then(Value::as_object);
            let known = properties.is_some_and(|properties| properties.contains_key(text));
            if keyed && !known {
                let message = format!("the input schema has no property `{}`", shown(text));
                let near = properties
                    .and_then(|properties| nearest(text, properties.keys().map(String::as_str)));
                match near {
                    Some(near) => report.error_with(
                        Code::UnknownKeyField,
                        &path(fields::KEY_FIELD),
                        message,
                        format!("did you mean `{near}`?"),
                    ),
                    None => report.error(Code::UnknownKeyField, &path(fields::KEY_FIELD), message),
                }
            }
        }
        None => (),
        Some(other) => {
            let code = if keyed { Code::MissingKeyField } else { Code::InvalidIdempotencyField };
            let message = format!("expected the name of an argument, found {}", kind(other));
            report.error(code, &path(fields::KEY_FIELD), message);
        }
    }
    let mut choice = |field: Field, what: &str, fits: &dyn Fn(&Value) -> bool| {
        if let Some((_, value)) = field.get(members)
            && !fits(value)
        {
            let message = format!("expected {what}, found {}", kind(value));
            report.error(Code::InvalidIdempotencyField, &path(field), message);
        }
    };
    choice(fields::KEY_SCOPE, "`tool` or `caller`", &|value| {
        matches!(value.as_str(), Some("tool" | "caller"))
    });
    choice(fields::ON_DIFFERENT_ARGS, "`replay` or `refuse`", &|value| {
        matches!(value.as_str(), Some("replay" | "refuse"))
    });
    choice(fields::ACCEPTS_KEY, "true or false", &Value::is_boolean);
    choice(fields::ON_SIGNAL, "`unknown` or `failed`", &|value| {
        matches!(value.as_str(), Some("unknown" | "failed"))
    });
}

pub(super) fn receipt_fields(entry: &RegistryEntry<'_>, report: &mut Report) {
    let path = entry.path(fields::RECEIPT_FIELDS);
    let Some(value) = entry.get(fields::RECEIPT_FIELDS) else {
        return;
    };
    let Some(items) = value.as_array() else {
        let message = format!("expected a list of dotted paths, found {}", kind(value));
        report.error(Code::InvalidReceiptField, path, message);
        return;
    };
    for (index, item) in items.iter().enumerate() {
        let fits = item.as_str().is_some_and(|text| {
            let mut parts = text.split('.');
            parts.next() == Some("result") && parts.all(|part| !part.trim().is_empty())
        });
        if !fits {
            report.error_with(
                Code::InvalidReceiptField,
                &format!("{path}[{index}]"),
                match item.as_str() {
                    Some(text) => {
                        format!(
                            "expected a dotted path that starts at `result`, found `{}`",
                            shown(text)
                        )
                    }
                    None => format!("expected a dotted path, found {}", kind(item)),
                },
                "for example `result.id`".to_owned(),
            );
        }
    }
    let texts = items.iter().filter_map(Value::as_str);
    if let Some(twice) = crate::json::first_duplicate(texts) {
        let message = format!("`{}` is listed twice", shown(twice));
        report.error(Code::InvalidReceiptField, path, message);
    }
}
