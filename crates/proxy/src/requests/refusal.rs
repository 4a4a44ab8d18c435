//! Selects the part of a server's own error that can be shown.
//!
//! Path: 8. Doc: call-path.md#requests

use serde_json::Value;
use toolbooth_audit::redact;
use toolbooth_contracts::error::UpstreamError;
use toolbooth_contracts::port::Ask;
use toolbooth_contracts::secret::SecretShapes;
use toolbooth_registry::uris::ResourceUris;

use super::request::{UpstreamRefusal, name};
use crate::server_error::shown_data;

/// Returns the error of a server that refused; `None` if the error is not the server's own.
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
        // An error about the requested resource gets the URI that the client knows.
        if let Some(Value::String(uri)) = data.get_mut("uri")
            && *uri == name(ask)
        {
            *uri = uris.to_wire(server, uri);
        }
        data
    });
    Some(UpstreamRefusal { server: server.to_owned(), code: *code, message, data })
}

/// Whether a character has no width, or reorders the shown text.
fn is_invisible(c: char) -> bool {
    matches!(
        c,
        '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}'
            | '\u{e0000}'..='\u{e007f}'
    )
}
