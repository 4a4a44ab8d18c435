//! What may be shown of a server's own error.
//!
//! Path: 8. Doc: call-path.md#requests

use serde_json::Value;
use toolbooth_audit::redact;
use toolbooth_contracts::port::{Ask, UpstreamError};
use toolbooth_contracts::secret::SecretShapes;
use toolbooth_registry::uris::ResourceUris;

use super::request::{UpstreamRefusal, name};
use crate::server_error::shown_data;

/// The error of a server that refused; `None` where it was not the server that did.
pub(super) fn refusal(
    shapes: &SecretShapes,
    error: &UpstreamError,
    server: &str,
    ask: &Ask,
    uris: &ResourceUris,
) -> Option<UpstreamRefusal> {
    let UpstreamError::Refused { code, message, data } = error else { return None };
    let redacted = shapes.redact(message).into_owned();
    let plain: String =
        redacted.chars().map(|c| if c.is_control() || is_invisible(c) { ' ' } else { c }).collect();
    let message = redact::sentence(plain.trim(), shapes);
    let data = shown_data(data.as_ref(), shapes).map(|mut data| {
        // An error about the very resource names it as the client knows it.
        if let Some(Value::String(uri)) = data.get_mut("uri")
            && *uri == name(ask)
        {
            *uri = uris.to_wire(server, uri);
        }
        data
    });
    Some(UpstreamRefusal { server: server.to_owned(), code: *code, message, data })
}

/// Characters without width, and those that reorder what is shown.
fn is_invisible(c: char) -> bool {
    matches!(
        c,
        '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}'
            | '\u{e0000}'..='\u{e007f}'
    )
}
