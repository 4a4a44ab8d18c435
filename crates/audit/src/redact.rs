//! Redaction of payloads before they are logged.
//!
//! Path: 9. Doc: records.md#redaction

use serde_json::Value;
use toolbooth_contracts::secret::{REDACTED, SecretShapes, names_a_secret};

/// Longest safe sentence of an audit event, in bytes.
pub const SENTENCE_BYTES_MAX: usize = 512;

/// `value` with secret-named fields and secret-shaped parts replaced by `[redacted]`.
#[must_use]
pub fn value(value: &Value, shapes: &SecretShapes) -> Value {
    match value {
        Value::String(text) => Value::String(text_of(text, shapes)),
        Value::Array(items) => items.iter().map(|item| self::value(item, shapes)).collect(),
        Value::Object(members) => members
            .iter()
            .map(|(key, member)| {
                let kept = match member {
                    Value::Null => Value::Null,
                    _ if names_a_secret(key) => Value::String(REDACTED.to_owned()),
                    other => self::value(other, shapes),
                };
                (key.clone(), kept)
            })
            .collect(),
        other => other.clone(),
    }
}

/// A text, redacted. One that is itself a JSON document, as tools often answer, is redacted by
/// its names too.
fn text_of(text: &str, shapes: &SecretShapes) -> String {
    if text.trim_start().starts_with(['{', '['])
        && let Ok(document) = toolbooth_contracts::json::parse(text.as_bytes())
    {
        let redacted = value(&document, shapes);
        if redacted != document {
            return redacted.to_string();
        }
    }
    shapes.redact(text)
}

/// A sentence for an audit event: redacted, at most [`SENTENCE_BYTES_MAX`] bytes.
#[must_use]
pub fn sentence(text: &str, shapes: &SecretShapes) -> String {
    let mut out = shapes.redact(text);
    if out.len() > SENTENCE_BYTES_MAX {
        let mut end = SENTENCE_BYTES_MAX - '…'.len_utf8();
        while !out.is_char_boundary(end) {
            end -= 1;
        }
        out.truncate(end);
        out.push('…');
    }
    out
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn names_and_shapes_are_redacted_everywhere() {
        let shapes = SecretShapes::builtin();
        let input = json!({"user": "ada", "password": "hunter2", "nested": [{"apiKey": {"deep": "x"}}],
            "note": "see https://a:b@host/", "token": null,
            "text": "{\"a\": [1, {\"secret\": \"hush\"}]}", "plain": "{\"a\": 1.0}"});
        let redacted = value(&input, &shapes);
        assert_eq!(
            redacted,
            json!({"user": "ada", "password": "[redacted]", "nested": [{"apiKey": "[redacted]"}],
                "note": "see https://[redacted]@host/", "token": null,
                "text": "{\"a\":[1,{\"secret\":\"[redacted]\"}]}", "plain": "{\"a\": 1.0}"})
        );
        assert!(sentence(&"ä".repeat(400), &shapes).len() <= SENTENCE_BYTES_MAX);
    }
}
