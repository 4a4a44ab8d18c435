//! Redacts payloads before they are logged.
//!
//! Path: 9. Doc: records.md#redaction

use serde_json::Value;
use toolbooth_contracts::json::{JsonFault, JsonText, Rewrite, rewrite};
use toolbooth_contracts::secret::{REDACTED, SecretShapes, names_a_secret};

/// Maximum length of a safe sentence in an audit event, in bytes.
pub const SENTENCE_BYTES_MAX: usize = 512;

/// The placeholder of a document that is not stored.
pub const OMITTED: &str = "[omitted]";

/// Returns a document with secret-named fields and secret-shaped parts replaced by `[redacted]`.
#[must_use]
pub fn document(document: &JsonText, shapes: &SecretShapes) -> JsonText {
    document.rewritten(&mut Logged(shapes)).unwrap_or_else(|| document.clone())
}

/// Returns a document with secret-shaped parts of its texts replaced by `[redacted]`, regardless of
/// field names; `None` if there are none.
#[must_use]
pub fn texts(document: &JsonText, shapes: &SecretShapes) -> Option<JsonText> {
    document.rewritten(&mut Shown(shapes))
}

/// Redacts a tree as [`document`] does.
///
/// # Errors
/// If the tree contains a value that the gate rejects.
pub fn tree(tree: &Value, shapes: &SecretShapes) -> Result<JsonText, JsonFault> {
    JsonText::of_rewritten(tree, &mut Logged(shapes))
}

/// The redaction rules for logged documents.
struct Logged<'s>(&'s SecretShapes);

impl Rewrite for Logged<'_> {
    fn member(&mut self, name: &str) -> Option<String> {
        names_a_secret(name).then(|| REDACTED.to_owned())
    }

    /// Redacts a text. A text that is itself a JSON document, as tools often return, is also
    /// redacted by member names.
    fn text(&mut self, text: &str) -> Option<String> {
        if text.trim_start().starts_with(['{', '['])
            && let Ok(Some(redacted)) = rewrite(text, self)
        {
            return Some(redacted);
        }
        changed(self.0, text)
    }
}

/// The redaction rules for displayed documents.
struct Shown<'s>(&'s SecretShapes);

impl Rewrite for Shown<'_> {
    fn member(&mut self, _: &str) -> Option<String> {
        None
    }

    fn text(&mut self, text: &str) -> Option<String> {
        changed(self.0, text)
    }
}

fn changed(shapes: &SecretShapes, text: &str) -> Option<String> {
    match shapes.redact(text) {
        std::borrow::Cow::Owned(redacted) => Some(redacted),
        std::borrow::Cow::Borrowed(_) => None,
    }
}

/// Returns a sentence for an audit event, redacted and at most [`SENTENCE_BYTES_MAX`] bytes.
#[must_use]
pub fn sentence(text: &str, shapes: &SecretShapes) -> String {
    let mut out = shapes.redact(text).into_owned();
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
        let expected = json!({"user": "ada", "password": "[redacted]",
            "nested": [{"apiKey": "[redacted]"}],
            "note": "see https://[redacted]@host/", "token": null,
            "text": "{\"a\": [1, {\"secret\": \"[redacted]\"}]}", "plain": "{\"a\": 1.0}"});
        assert_eq!(tree(&input, &shapes).unwrap(), expected);
        assert_eq!(document(&JsonText::of(&input).unwrap(), &shapes), expected);
        let shown = texts(&JsonText::of(&input).unwrap(), &shapes).unwrap();
        assert_eq!(
            (&shown.tree()["password"], &shown.tree()["note"]),
            (&json!("hunter2"), &expected["note"])
        );
        assert!(sentence(&"ä".repeat(400), &shapes).len() <= SENTENCE_BYTES_MAX);
    }
}
