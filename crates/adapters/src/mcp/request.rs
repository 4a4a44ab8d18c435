//! Serializes a request to a server.
//!
//! Path: 7. Doc: execution.md#mcp-servers

use serde_json::{Map, Value};
use toolbooth_contracts::Arguments;

/// Bytes of most requests, without their arguments.
const HEAD_BYTES: usize = 512;

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

/// `_meta` of a request.
#[derive(Debug, Clone, Default)]
pub(super) struct RequestMeta {
    /// Members that are the same in all requests of a connection, as JSON text without braces.
    pub(super) prepared: &'static str,
    /// The other members; none is among the prepared ones.
    pub(super) own: Map<String, Value>,
}

impl RequestMeta {
    pub(super) fn of(own: &Map<String, Value>) -> Self {
        Self { prepared: "", own: own.clone() }
    }
}

impl Request<'_> {
    /// Returns the bytes on the wire, on one line.
    pub(super) fn bytes(&self, id: u64, meta: &RequestMeta) -> Vec<u8> {
        let arguments = self.arguments.map(Arguments::on_one_line);
        let size = arguments.as_ref().map_or(0, |text| text.len());
        let mut out = Vec::with_capacity(size + HEAD_BYTES);
        out.extend_from_slice(br#"{"jsonrpc":"2.0","id":"#);
        write(&mut out, &id);
        out.extend_from_slice(br#","method":"#);
        write(&mut out, self.method);
        out.extend_from_slice(br#","params":{"#);
        let mut first = true;
        for (name, value) in &self.params {
            begin(&mut out, &mut first, name);
            write(&mut out, value);
        }
        if let Some(arguments) = arguments {
            begin(&mut out, &mut first, "arguments");
            out.extend_from_slice(arguments.as_bytes());
        }
        let RequestMeta { prepared, own } = meta;
        if !(prepared.is_empty() && own.is_empty()) {
            begin(&mut out, &mut first, "_meta");
            out.push(b'{');
            out.extend_from_slice(prepared.as_bytes());
            let mut first = prepared.is_empty();
            for (name, value) in own {
                begin(&mut out, &mut first, name);
                write(&mut out, value);
            }
            out.push(b'}');
        }
        out.extend_from_slice(b"}}");
        out
    }
}

/// Begins the next member of an object.
fn begin(out: &mut Vec<u8>, first: &mut bool, name: &str) {
    if !std::mem::take(first) {
        out.push(b',');
    }
    write(out, name);
    out.push(b':');
}

fn write(out: &mut Vec<u8>, value: &(impl serde::Serialize + ?Sized)) {
    // JSON values are always written into memory.
    let _ = serde_json::to_writer(out, value);
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
            String::from_utf8(request.bytes(7, &RequestMeta::of(&meta))).unwrap(),
            r#"{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"a\"b","arguments":{"b":1e2,  "a":18446744073709551616},"_meta":{"progressToken":7}}}"#
        );
        request.arguments = None;
        let both = RequestMeta { prepared: r#""a":{},"b":1"#, own: meta };
        assert_eq!(
            String::from_utf8(request.bytes(8, &both)).unwrap(),
            r#"{"jsonrpc":"2.0","id":8,"method":"tools/call","params":{"name":"a\"b","_meta":{"a":{},"b":1,"progressToken":7}}}"#
        );
    }
}
