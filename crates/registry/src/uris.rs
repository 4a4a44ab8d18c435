//! Resource URIs on the wire: adds the prefix `toolbooth+SERVER:` to a server's own URI and removes
//! it.
//!
//! Pure and reversible for every server name and every URI or URI template. The text after the
//! prefix is the server's own, unchanged.
//!
//! Path: 3, 8. Doc: registry.md#resource-uris

use std::fmt::Write as _;

use serde_json::Value;

use crate::normal::MARK;
pub use crate::normal::{is_normal, normal_form};

/// How resource URIs of servers are shown to clients.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ResourceUris {
    bare: Option<String>,
}

impl ResourceUris {
    /// URIs of all servers get a prefix, except those of the server `bare`.
    #[must_use]
    pub fn new(bare: Option<String>) -> Self {
        Self { bare }
    }

    /// The URI or URI template as shown to clients.
    #[must_use]
    pub fn to_wire(&self, server: &str, uri: &str) -> String {
        // A bare URI that begins with `toolbooth+` would be read as a URI of another server.
        if self.bare.as_deref() == Some(server) && !is_marked(uri) {
            return uri.to_owned();
        }
        format!("{MARK}{}:{uri}", encoded(server))
    }

    /// The server of a client's URI, and the server's own URI. `None` for an invalid prefix, and
    /// for a URI without prefix unless one server has bare URIs.
    #[must_use]
    pub fn of_wire<'u>(&self, uri: &'u str) -> Option<(String, &'u str)> {
        if is_marked(uri) {
            let (server, own) = uri.strip_prefix(MARK)?.split_once(':')?;
            return Some((decoded(server)?, own));
        }
        self.bare.clone().map(|server| (server, uri))
    }

    /// Maps the URI of a `resource_link` or embedded `resource` block to its form on the wire.
    /// Other blocks stay unchanged.
    pub fn map_block(&self, server: &str, block: &mut Value) {
        let target = match block.get("type").and_then(Value::as_str) {
            Some("resource_link") => block.get_mut("uri"),
            Some("resource") => block.get_mut("resource").and_then(|own| own.get_mut("uri")),
            _ => None,
        };
        if let Some(Value::String(uri)) = target {
            *uri = self.to_wire(server, uri);
        }
    }
}

/// Whether a URI begins with the prefix; schemes are case-insensitive (RFC 3986, 3.1).
fn is_marked(uri: &str) -> bool {
    uri.get(..MARK.len()).is_some_and(|head| head.eq_ignore_ascii_case(MARK))
}

/// A server's name in characters that schemes allow and that no parser changes. Each byte outside
/// `a-z`, `0-9` and `-` becomes `.` and two hex digits.
fn encoded(server: &str) -> String {
    let mut out = String::with_capacity(server.len());
    for byte in server.bytes() {
        if byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-' {
            out.push(char::from(byte));
        } else {
            let _ = write!(out, ".{byte:02x}");
        }
    }
    out
}

/// The name of a server; `None` for text that `encoded` never returns.
fn decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        if first == '.' {
            let digits = rest.get(1..3)?;
            bytes.push(u8::from_str_radix(digits, 16).ok()?);
            rest = rest.get(3..)?;
        } else {
            bytes.push(u8::try_from(first).ok()?);
            rest = rest.get(first.len_utf8()..)?;
        }
    }
    let name = String::from_utf8(bytes).ok()?;
    // One name has one spelling, so that no second URI identifies the same resource.
    (encoded(&name) == text).then_some(name)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn uris_carry_their_server() {
        let uris = ResourceUris::default();
        assert_eq!(uris.to_wire("files", "file:///a b"), "toolbooth+files:file:///a b");
        assert_eq!(uris.to_wire("My_S", "x:{+y}"), "toolbooth+.4dy.5f.53:x:{+y}");
        assert_eq!(uris.of_wire("file:///a"), None);
        for odd in ["toolbooth+.6ds:x", "toolbooth+a", "toolbooth+.zz:x", "toolbooth+A:x", "", "x"]
        {
            assert_eq!(uris.of_wire(odd), None, "{odd}");
        }
        assert_eq!(uris.of_wire("toolbooth+.4:x"), None);
        assert_eq!(uris.of_wire("toolbooth+ä:x"), None);
    }

    #[test]
    fn one_server_may_be_bare() {
        let uris = ResourceUris::new(Some("files".into()));
        assert_eq!(uris.to_wire("files", "file:///a"), "file:///a");
        assert_eq!(uris.to_wire("other", "file:///a"), "toolbooth+other:file:///a");
        assert_eq!(uris.of_wire("file:///a"), Some(("files".into(), "file:///a")));
        assert_eq!(uris.of_wire("toolbooth+other:x:y"), Some(("other".into(), "x:y")));
        // The URI of a gateway that is upstream of this one.
        let nested = uris.to_wire("files", "toolbooth+other:x:y");
        assert_eq!(nested, "toolbooth+files:toolbooth+other:x:y");
        assert_eq!(uris.of_wire(&nested), Some(("files".into(), "toolbooth+other:x:y")));
        assert_eq!(uris.of_wire("TOOLBOOTH+other:x"), None, "no other server's by letter case");
    }

    #[test]
    fn blocks_are_mapped_where_they_hold_uris() {
        let uris = ResourceUris::default();
        let mut link = json!({"type": "resource_link", "uri": "a:b", "name": "n"});
        let mut embedded = json!({"type": "resource", "resource": {"uri": "a:b", "text": "a:b"}});
        let mut text = json!({"type": "text", "text": "a:b", "uri": "a:b"});
        let before = text.clone();
        for block in [&mut link, &mut embedded, &mut text] {
            uris.map_block("s", block);
        }
        assert_eq!(link["uri"], "toolbooth+s:a:b");
        assert_eq!(embedded["resource"], json!({"uri": "toolbooth+s:a:b", "text": "a:b"}));
        assert_eq!(text, before);
    }

    proptest! {
        #[test]
        fn every_uri_of_every_server_comes_back(server: String, bare in any::<bool>(), uri: String, marked in any::<bool>()) {
            let uri = if marked { format!("{MARK}{uri}") } else { uri };
            let uris = ResourceUris::new(bare.then(|| server.clone()));
            let wire = uris.to_wire(&server, &uri);
            prop_assert_eq!(uris.of_wire(&wire), Some((server.clone(), uri.as_str())));
            // A parser that lower-cases the scheme does not change the prefix.
            if wire.starts_with(MARK) {
                let (scheme, _) = wire.split_once(':').unwrap();
                prop_assert_eq!(scheme.to_ascii_lowercase(), scheme);
                let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.');
                prop_assert!(scheme.chars().all(plain), "{}", scheme);
            }
        }

        #[test]
        fn no_two_texts_stand_for_one(text: String) {
            let wire = format!("{MARK}{text}");
            if let Some((server, own)) = ResourceUris::default().of_wire(&wire) {
                prop_assert_eq!(ResourceUris::default().to_wire(&server, own), wire);
            }
        }
    }
}
