//! Builds the HTTP headers of a request in the modern era (SEP-2243).
//!
//! Path: 7. Doc: execution.md#mcp-servers

use http::{HeaderMap, HeaderName, HeaderValue};
use serde_json::Value;
use toolbooth_mcp::header;

use super::request::Request;

/// Returns the headers of a request; `schema` is the input schema of the tool that it calls.
pub(super) fn of(request: &Request<'_>, schema: Option<&Value>) -> HeaderMap {
    let mut out = HeaderMap::new();
    let mut put = |name: &str, value: &str| {
        if let (Ok(name), Ok(value)) = (name.parse::<HeaderName>(), HeaderValue::from_str(value)) {
            out.insert(name, value);
        }
    };
    put(header::METHOD, request.method);
    let named = header::named_by(request.method).and_then(|named| request.params.get(named));
    if let Some(name) = named.and_then(Value::as_str) {
        put(header::NAME, &header::encoded(name));
    }
    let annotated = schema.map(header::annotated).unwrap_or_default();
    if annotated.is_empty() {
        return out;
    }
    let Some(arguments) = request.arguments else { return out };
    for annotated in annotated {
        let value = annotated.argument(arguments.tree());
        let text = match value {
            Some(Value::String(text)) => text.clone(),
            Some(Value::Bool(value)) => value.to_string(),
            Some(Value::Number(number)) => number.to_string(),
            _ => continue,
        };
        if let Some(name) = annotated.header() {
            put(&name, &header::encoded(&text));
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
}
