//! Builds the HTTP headers of a request in the modern era (SEP-2243).
//!
//! Path: 7. Doc: execution.md#mcp-servers

use http::{HeaderMap, HeaderName, HeaderValue};
use serde_json::Value;
use toolbooth_mcp::header;
use toolbooth_mcp::header_table::HeaderParam;

use super::request::Request;

/// [`header::METHOD`] and [`header::NAME`].
const METHOD: HeaderName = HeaderName::from_static("mcp-method");
const NAME: HeaderName = HeaderName::from_static("mcp-name");

/// Returns the headers of a request; `params` are the arguments of its tool that headers repeat.
pub(super) fn of(request: &Request<'_>, params: &[HeaderParam]) -> HeaderMap {
    let mut out = HeaderMap::new();
    out.insert(METHOD, HeaderValue::from_static(request.method));
    let named = header::named_by(request.method).and_then(|named| request.params.get(named));
    if let Some(name) = named.and_then(Value::as_str)
        && let Ok(name) = HeaderValue::from_maybe_shared(header::encoded(name).into_bytes())
    {
        out.insert(NAME, name);
    }
    let Some(arguments) = request.arguments.filter(|_| !params.is_empty()) else { return out };
    for param in params {
        let value = param.argument(arguments.tree());
        let text = match value {
            Some(Value::String(text)) => text.clone(),
            Some(Value::Bool(value)) => value.to_string(),
            Some(Value::Number(number)) => number.to_string(),
            _ => continue,
        };
        let name = param.header.as_ref().and_then(|name| name.parse::<HeaderName>().ok());
        let value = HeaderValue::from_str(&header::encoded(&text));
        if let (Some(name), Ok(value)) = (name, value) {
            out.insert(name, value);
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
        let headers = of(&request, &HeaderParam::all(&schema));
        let given = |name: &str| headers.get(name).map(|value| value.to_str().unwrap());
        for (name, text) in [(METHOD, header::METHOD), (NAME, header::NAME)] {
            assert_eq!(name, text.parse::<HeaderName>().unwrap());
        }
        assert_eq!(given("mcp-method"), Some("tools/call"));
        assert_eq!(given("mcp-name"), Some("=?base64?IHQ=?="));
        assert_eq!(given("mcp-param-region"), Some("=?base64?WsO8cmljaA==?="));
        assert_eq!(given("mcp-param-n"), Some("9007199254740993"));
        assert_eq!((given("mcp-param-absent"), given("mcp-param-none")), (None, None));
    }
}
