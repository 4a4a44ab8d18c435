//! Serializes a request to a server.
//!
//! Path: 7. Doc: execution.md#mcp-servers

use serde_json::{Map, Value};
use toolbooth_contracts::Arguments;

/// An outgoing request.
#[derive(Debug, Clone, Default)]
pub(super) struct Request<'a> {
    pub(super) method: &'static str,
    /// Its parameters, without `_meta`.
    pub(super) params: Map<String, Value>,
    /// `arguments` of a call, sent unchanged.
    pub(super) arguments: Option<&'a Arguments>,
    /// Members of `_meta`.
    pub(super) meta: Map<String, Value>,
}

impl Request<'_> {
    /// Returns the bytes on the wire, on one line.
    pub(super) fn bytes(&self, id: u64, meta: &Map<String, Value>) -> Vec<u8> {
        let method = Value::from(self.method);
        let mut out = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":{method},"params":{{"#);
        let mut first = true;
        let mut member = |name: &str, value: &str| {
            if !std::mem::take(&mut first) {
                out.push(',');
            }
            out.push_str(&Value::from(name).to_string());
            out.push(':');
            out.push_str(value);
        };
        for (name, value) in &self.params {
            member(name, &value.to_string());
        }
        if let Some(arguments) = self.arguments {
            member("arguments", &arguments.on_one_line());
        }
        if !meta.is_empty() {
            let whole: String = meta
                .iter()
                .map(|(name, value)| format!("{}:{value}", Value::from(name.as_str())))
                .collect::<Vec<_>>()
                .join(",");
            member("_meta", &format!("{{{whole}}}"));
        }
        out.push_str("}}");
        out.into_bytes()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn arguments_are_spliced_as_they_are() {
        let raw: Arguments = "{\"b\":1e2,\n \"a\":18446744073709551616}".parse().unwrap();
        let mut request =
            Request { method: "tools/call", arguments: Some(&raw), ..Request::default() };
        request.params.insert("name".to_owned(), json!("a\"b"));
        let mut meta = Map::new();
        meta.insert("progressToken".to_owned(), json!(7));
        assert_eq!(
            String::from_utf8(request.bytes(7, &meta)).unwrap(),
            r#"{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"a\"b","arguments":{"b":1e2,  "a":18446744073709551616},"_meta":{"progressToken":7}}}"#
        );
    }
}
