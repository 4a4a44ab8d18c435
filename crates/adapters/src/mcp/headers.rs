//! The HTTP headers of a request in the modern era (SEP-2243).
//!
//! Headers let intermediaries route a request without reading its body; the server compares them.
//!
//! Path: 7. Doc: execution.md#mcp-servers

use std::collections::HashSet;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use http::{HeaderMap, HeaderName, HeaderValue};
use serde_json::{Map, Value};

use super::request::Request;
use super::wire::header;

/// The keyword by which a schema asks for a header.
const KEYWORD: &str = "x-mcp-header";
/// Headers of one call, and how deep properties are looked through for them.
const PARAMS_MAX: usize = 64;
const DEPTH_MAX: usize = 16;

/// A property that is to be sent as a header too.
struct Annotated<'a> {
    path: Vec<&'a str>,
    schema: &'a Value,
    header: &'a Value,
}

/// The annotated properties that are reached through `properties` alone.
fn annotated(schema: &Value) -> Vec<Annotated<'_>> {
    fn collect<'a>(schema: &'a Value, path: &mut Vec<&'a str>, out: &mut Vec<Annotated<'a>>) {
        let properties = schema.get("properties").and_then(Value::as_object);
        for (name, schema) in properties.into_iter().flatten() {
            if path.len() >= DEPTH_MAX || out.len() >= PARAMS_MAX {
                return;
            }
            path.push(name);
            if let Some(header) = schema.get(KEYWORD) {
                out.push(Annotated { path: path.clone(), schema, header });
            }
            collect(schema, path, out);
            path.pop();
        }
    }
    let mut out = Vec::new();
    collect(schema, &mut Vec::new(), &mut out);
    out
}

/// What is wrong with the annotations of a tool's input schema.
///
/// # Errors
/// The first rule that does not hold.
pub(super) fn check(schema: &Value) -> Result<(), String> {
    if let Value::Object(members) = schema
        && (members.contains_key(KEYWORD) || is_off_chain(members, true, 0))
    {
        return Err(format!(
            "`{KEYWORD}` stands where no property is reached by `properties` alone"
        ));
    }
    let mut seen = HashSet::new();
    for Annotated { path, schema, header } in annotated(schema) {
        let property = path.join(".");
        let Some(name) = header.as_str() else {
            return Err(format!("`{KEYWORD}` of property `{property}` is no text"));
        };
        if !is_token(name) {
            return Err(format!("`{KEYWORD}` of property `{property}` is no name of a header"));
        }
        if !seen.insert(name.to_ascii_lowercase()) {
            return Err(format!("`{KEYWORD}` of property `{property}` is another property's too"));
        }
        let kind = schema.get("type").and_then(Value::as_str);
        if !matches!(kind, Some("string" | "integer" | "boolean")) {
            return Err(format!(
                "`{KEYWORD}` of property `{property}`, which is no string, integer or boolean"
            ));
        }
    }
    Ok(())
}

/// Whether an annotation stands elsewhere than on a property of the chain.
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

fn is_token(name: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    !name.is_empty() && name.bytes().all(allowed)
}

/// A text as a header has it: wrapped where HTTP would not carry it unchanged.
fn encoded(text: &str) -> String {
    let blank = |byte: Option<&u8>| matches!(byte, Some(b' ' | b'\t'));
    let bytes = text.as_bytes();
    let wrapped = text.starts_with(header::BASE64_HEADER_PREFIX)
        && text.ends_with(header::BASE64_HEADER_SUFFIX);
    let plain = bytes.iter().all(|byte| (0x20..=0x7e).contains(byte));
    if plain && !blank(bytes.first()) && !blank(bytes.last()) && !wrapped {
        return text.to_owned();
    }
    let encoded = BASE64_STANDARD.encode(text);
    format!("{}{encoded}{}", header::BASE64_HEADER_PREFIX, header::BASE64_HEADER_SUFFIX)
}

/// The headers of a request; `schema` is the input schema of the tool that it calls.
pub(super) fn of(request: &Request<'_>, schema: Option<&Value>) -> HeaderMap {
    let mut out = HeaderMap::new();
    let mut put = |name: &str, value: &str| {
        if let (Ok(name), Ok(value)) = (name.parse::<HeaderName>(), HeaderValue::from_str(value)) {
            out.insert(name, value);
        }
    };
    put(header::HEADER_MCP_METHOD, request.method);
    let named = match request.method {
        "tools/call" | "prompts/get" => "name",
        "resources/read" | "resources/subscribe" | "resources/unsubscribe" => "uri",
        _ => "",
    };
    if let Some(name) = request.params.get(named).and_then(Value::as_str) {
        put(header::HEADER_MCP_NAME, &encoded(name));
    }
    let annotated = schema.map(annotated).unwrap_or_default();
    if annotated.is_empty() {
        return out;
    }
    let Some(arguments) = request.arguments else { return out };
    for Annotated { path, header: name, .. } in annotated {
        let value = path.iter().try_fold(arguments.tree(), |value, key| value.get(*key));
        let text = match value {
            Some(Value::String(text)) => text.clone(),
            Some(Value::Bool(value)) => value.to_string(),
            Some(Value::Number(number)) => number.to_string(),
            _ => continue,
        };
        if let Some(name) = name.as_str().filter(|name| is_token(name)) {
            put(&format!("{}{name}", header::HEADER_MCP_PARAM_PREFIX), &encoded(&text));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn annotated_arguments_become_headers() {
        let schema = json!({"properties": {
            "region": {"type": "string", "x-mcp-header": "Region"},
            "deep": {"type": "object", "properties": {"n": {"type": "integer", "x-mcp-header": "N"}}},
            "absent": {"type": "string", "x-mcp-header": "Absent"},
            "none": {"type": "string", "x-mcp-header": "None"},
        }});
        assert_eq!(check(&schema), Ok(()));
        let arguments =
            json!({"region": "Zürich", "deep": {"n": 9007199254740993u64}, "none": null});
        let arguments = arguments.to_string().parse().unwrap();
        let mut request =
            Request { method: "tools/call", arguments: Some(&arguments), ..Request::default() };
        request.params.insert("name".to_owned(), json!(" t"));
        let headers = of(&request, Some(&schema));
        let header = |name: &str| headers.get(name).map(|value| value.to_str().unwrap());
        assert_eq!(header("mcp-method"), Some("tools/call"));
        assert_eq!(header("mcp-name"), Some("=?base64?IHQ=?="));
        assert_eq!(header("mcp-param-region"), Some("=?base64?WsO8cmljaA==?="));
        assert_eq!(header("mcp-param-n"), Some("9007199254740993"));
        assert_eq!((header("mcp-param-absent"), header("mcp-param-none")), (None, None));
    }

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
            let error = check(&schema).unwrap_err();
            assert!(error.contains(told), "{error}");
        }
        assert_eq!(check(&property(json!({"default": {"x-mcp-header": 1}}))), Ok(()));
    }

    #[test]
    fn only_what_http_would_change_is_wrapped() {
        assert_eq!(encoded("a b"), "a b");
        assert_eq!(encoded(""), "");
        assert!(encoded("a\nb").starts_with("=?base64?"));
        assert!(encoded("=?base64?x?=").starts_with("=?base64?PT"));
    }
}
