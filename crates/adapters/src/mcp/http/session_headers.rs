//! The protocol headers of one connection over streamable HTTP.
//!
//! Path: 7. Doc: execution.md#mcp-servers

use std::sync::OnceLock;

use http::{HeaderMap, HeaderValue};
use toolbooth_mcp::header;

/// The protocol headers of a connection's requests.
#[derive(Debug, Clone, Default)]
pub(in crate::mcp) struct SessionHeaders {
    pub(super) all: HeaderMap,
    pub(super) has_session: bool,
    /// All headers of a POST but those of the request alone, made for the first one. A connection has one endpoint.
    pub(super) of_posts: OnceLock<HeaderMap>,
}

impl SessionHeaders {
    /// Returns the headers for a negotiated version and the session of a legacy server.
    pub(in crate::mcp) fn new(version: &str, session: Option<&str>) -> Self {
        let mut all = HeaderMap::new();
        let mut put = |name: &str, value: &str| {
            // The header names of the protocol are valid.
            if let (Ok(name), Ok(value)) =
                (name.parse::<http::HeaderName>(), HeaderValue::from_str(value))
            {
                all.insert(name, value);
            }
        };
        put(header::VERSION, version);
        if let Some(session) = session {
            put(header::SESSION, session);
        }
        Self { all, has_session: session.is_some(), of_posts: OnceLock::new() }
    }
}
