//! The headers of streamable HTTP, and the headers that repeat parts of a body (MCP 2026-07-28,
//! SEP-2243).
//! Intermediaries can route a request by them without reading the body.
//!
//! Doc: front-doors.md#headers

use std::borrow::Cow;
use std::collections::HashSet;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use rmcp::transport::common::http_header::{BASE64_HEADER_PREFIX, BASE64_HEADER_SUFFIX};
pub use rmcp::transport::common::http_header::{
    EVENT_STREAM_MIME_TYPE as EVENT_STREAM, HEADER_LAST_EVENT_ID as LAST_EVENT_ID,
    HEADER_MCP_METHOD as METHOD, HEADER_MCP_NAME as NAME, HEADER_MCP_PARAM_PREFIX as PARAM_PREFIX,
    HEADER_MCP_PROTOCOL_VERSION as VERSION, HEADER_SESSION_ID as SESSION, JSON_MIME_TYPE as JSON,
};
use serde_json::{Map, Value};

use crate::error::AnnotationError;

/// The schema keyword that requests a header.
const KEYWORD: &str = "x-mcp-header";
/// Maximum number of headers of one call, and maximum depth of their properties.
const PARAMS_MAX: usize = 64;
const DEPTH_MAX: usize = 16;

/// Encodes a text as a header value: in base64 if HTTP would not transmit it unchanged.
#[must_use]
pub fn encoded(text: &str) -> String {
    let blank = |byte: Option<&u8>| matches!(byte, Some(b' ' | b'\t'));
    let bytes = text.as_bytes();
    let wrapped = text.starts_with(BASE64_HEADER_PREFIX) && text.ends_with(BASE64_HEADER_SUFFIX);
    let plain = bytes.iter().all(|byte| (0x20..=0x7e).contains(byte));
    if plain && !blank(bytes.first()) && !blank(bytes.last()) && !wrapped {
        return text.to_owned();
    }
    let encoded = BASE64_STANDARD.encode(text);
    format!("{BASE64_HEADER_PREFIX}{encoded}{BASE64_HEADER_SUFFIX}")
}

/// Decodes a header value to its text; `None` if its base64 or UTF-8 is not valid.
#[must_use]
pub fn decoded(header: &str) -> Option<Cow<'_, str>> {
    let inner = header.strip_prefix(BASE64_HEADER_PREFIX);
    let Some(inner) = inner.and_then(|rest| rest.strip_suffix(BASE64_HEADER_SUFFIX)) else {
        return Some(Cow::Borrowed(header));
    };
    let bytes = BASE64_STANDARD.decode(inner).ok()?;
    String::from_utf8(bytes).ok().map(Cow::Owned)
}

/// Returns the parameter of a method that [`NAME`] repeats.
#[must_use]
pub fn named_by(method: &str) -> Option<&'static str> {
    match method {
        "tools/call" | "prompts/get" => Some("name"),
        "resources/read" | "resources/subscribe" | "resources/unsubscribe" => Some("uri"),
        _ => None,
    }
}

/// A property with an argument that is repeated in a header.
#[derive(Debug, Clone, PartialEq)]
pub struct Annotated<'s> {
    /// The property names from the root to the property.
    pub path: Vec<&'s str>,
    /// The schema of the property.
    schema: &'s Value,
    /// The keyword's value.
    keyword: &'s Value,
    /// Whether the enclosing schema requires the property.
    pub is_required: bool,
}

impl Annotated<'_> {
    /// Returns the name of the header; `None` if the annotation is not a header name.
    #[must_use]
    pub fn header(&self) -> Option<String> {
        let word = self.keyword.as_str().filter(|word| is_token(word))?;
        Some(format!("{PARAM_PREFIX}{word}"))
    }
}

/// Returns the properties with arguments that are repeated in headers: those reached by `properties`
/// alone.
#[must_use]
pub fn annotated(schema: &Value) -> Vec<Annotated<'_>> {
    fn collect<'s>(schema: &'s Value, path: &mut Vec<&'s str>, out: &mut Vec<Annotated<'s>>) {
        let required = schema.get("required").and_then(Value::as_array);
        let properties = schema.get("properties").and_then(Value::as_object);
        for (name, schema) in properties.into_iter().flatten() {
            path.push(name);
            if let Some(keyword) = schema.get(KEYWORD) {
                let is_required = required.is_some_and(|names| names.iter().any(|own| own == name));
                out.push(Annotated { path: path.clone(), schema, keyword, is_required });
            }
            collect(schema, path, out);
            path.pop();
        }
    }
    let mut out = Vec::new();
    collect(schema, &mut Vec::new(), &mut out);
    out
}

/// Checks the annotations of a tool's input schema.
///
/// # Errors
/// The first rule that does not hold.
pub fn check(schema: &Value) -> Result<(), AnnotationError> {
    if let Value::Object(members) = schema
        && (members.contains_key(KEYWORD) || is_off_chain(members, true, 0))
    {
        return Err(AnnotationError::OffChain);
    }
    let mut seen = HashSet::new();
    for Annotated { path, schema, keyword, .. } in annotated(schema) {
        let property = path.join(".");
        if path.len() > DEPTH_MAX || seen.len() >= PARAMS_MAX {
            return Err(AnnotationError::TooMany { headers: PARAMS_MAX, levels: DEPTH_MAX });
        }
        let Some(name) = keyword.as_str() else { return Err(AnnotationError::NoText(property)) };
        if !is_token(name) {
            return Err(AnnotationError::NoName(property));
        }
        if !seen.insert(name.to_ascii_lowercase()) {
            return Err(AnnotationError::Taken(property));
        }
        let kind = schema.get("type").and_then(Value::as_str);
        if !matches!(kind, Some("string" | "integer" | "boolean")) {
            return Err(AnnotationError::Kind(property));
        }
    }
    Ok(())
}

/// Whether an annotation is not on a property that is reached by `properties` alone.
fn is_off_chain(schema: &Map<String, Value>, on_chain: bool, depth: usize) -> bool {
    if depth > 4 * DEPTH_MAX {
        return false;
    }
    let below = |value: &Value, on_chain: bool| match value {
        Value::Object(members) => is_off_chain(members, on_chain, depth + 1),
        Value::Array(items) => items
            .iter()
            .filter_map(Value::as_object)
            .any(|members| is_off_chain(members, false, depth + 1)),
        _ => false,
    };
    schema.iter().any(|(key, value)| match key.as_str() {
        KEYWORD => !on_chain,
        "properties" | "$defs" | "definitions" | "dependencies" | "dependentSchemas"
        | "patternProperties" => {
            let on_chain = on_chain && key == "properties";
            value.as_object().into_iter().flatten().any(|(_, own)| below(own, on_chain))
        }
        // Instances and names, not schemas.
        "default" | "const" | "enum" | "examples" | "dependentRequired" => false,
        _ => below(value, false),
    })
}

/// Whether a text is a token (RFC 9110, 5.6.2).
fn is_token(name: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    !name.is_empty() && name.bytes().all(allowed)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn annotations_that_break_a_rule_are_told() {
        let property = |own: Value| json!({ "properties": { "a": own } });
        for (schema, told) in [
            (json!({"x-mcp-header": "A"}), "alone"),
            (
                json!({"items": {"properties": {"a": {"type": "string", "x-mcp-header": "A"}}}}),
                "alone",
            ),
            (property(json!({"type": "string", "x-mcp-header": 1})), "no text"),
            (property(json!({"type": "string", "x-mcp-header": "a b"})), "no name"),
            (property(json!({"type": "number", "x-mcp-header": "A"})), "no string"),
            (
                json!({"properties": {"a": {"type": "string", "x-mcp-header": "X"}, "b": {"type": "string", "x-mcp-header": "x"}}}),
                "another",
            ),
        ] {
            let error = check(&schema).unwrap_err().to_string();
            assert!(error.contains(told), "{error}");
        }
        let many: Map<String, Value> = (0..=PARAMS_MAX)
            .map(|n| (format!("p{n}"), json!({"type": "string", "x-mcp-header": format!("P{n}")})))
            .collect();
        let many = json!({ "properties": many });
        assert!(check(&many).unwrap_err().to_string().contains("more than 64"));
        assert_eq!(annotated(&many).len(), PARAMS_MAX + 1, "all are compared at the door");
        let default = property(json!({"default": {"x-mcp-header": 1}}));
        assert_eq!(check(&default), Ok(()));
        assert_eq!(annotated(&default), []);
    }

    #[test]
    fn annotated_properties_are_found() {
        let schema = json!({"required": ["a"], "properties": {
            "a": {"type": "string", "x-mcp-header": "A"},
            "deep": {"properties": {"n": {"type": "integer", "x-mcp-header": "N"}}},
        }});
        assert_eq!(check(&schema), Ok(()));
        let found = annotated(&schema);
        let told: Vec<_> = found.iter().map(|one| (one.path.join("."), one.is_required)).collect();
        assert_eq!(told, [("a".to_owned(), true), ("deep.n".to_owned(), false)]);
        assert_eq!(found[1].header().as_deref(), Some("Mcp-Param-N"));
    }

    #[test]
    fn only_what_http_would_change_is_wrapped() {
        assert_eq!(encoded("a b"), "a b");
        assert_eq!(encoded(""), "");
        assert!(encoded("a\nb").starts_with("=?base64?"));
        assert!(encoded("=?base64?x?=").starts_with("=?base64?PT"));
        for text in ["a b", " a", "ä", "=?base64?x?=", "a\nb", ""] {
            assert_eq!(decoded(&encoded(text)).as_deref(), Some(text));
        }
        assert_eq!(decoded("=?base64?!?="), None);
    }
}
