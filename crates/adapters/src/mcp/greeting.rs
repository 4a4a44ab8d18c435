//! Builds the handshake requests to servers and reads their responses.
//!
//! Path: 7. Doc: execution.md#mcp-servers

use serde_json::{Map, Value};
use toolbooth_contracts::port::Offers;
use toolbooth_mcp::{Era, code, greeting, version};

use super::message::Refusal;
use super::request::Request;
use crate::error::GreetingError;

/// Returns the handshake request of the modern era.
pub(super) fn discover() -> Request<'static> {
    Request {
        method: "server/discover",
        meta: greeting::client_meta().clone(),
        ..Request::default()
    }
}

/// Returns the handshake request of the legacy era.
pub(super) fn initialize() -> Request<'static> {
    Request { method: "initialize", params: greeting::initialize_params(), ..Request::default() }
}

/// Returns the parameters of `subscriptions/listen`; `None` = there is nothing to listen for.
pub(super) fn listen(server: &Greeting, uris: Vec<String>) -> Option<Map<String, Value>> {
    let Greeting { tools_change, prompts_change, resources_change, .. } = *server;
    let filter = greeting::listen_filter(tools_change, prompts_change, resources_change, uris)?;
    let mut params = Map::new();
    params.insert("notifications".to_owned(), Value::from(filter));
    Some(params)
}

/// The result of a handshake with a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Greeting {
    pub(super) era: Era,
    /// The protocol version in use.
    pub(super) version: String,
    pub(super) offers: Offers,
    /// Whether the server notifies of changes of each list.
    pub(super) tools_change: bool,
    pub(super) prompts_change: bool,
    pub(super) resources_change: bool,
}

impl Greeting {
    /// Reads capabilities leniently: malformed members count as absent.
    fn of(era: Era, version: String, capabilities: &Value) -> Self {
        let has = |name: &str| capabilities.get(name).is_some_and(|own| !own.is_null());
        let says = |name: &str, what: &str| {
            capabilities.get(name).and_then(|own| own.get(what)) == Some(&Value::Bool(true))
        };
        Self {
            era,
            version,
            offers: Offers {
                prompts: has("prompts"),
                resources: has("resources"),
                subscribe: says("resources", "subscribe"),
                completions: has("completions"),
                logging: has("logging"),
            },
            tools_change: says("tools", "listChanged"),
            prompts_change: says("prompts", "listChanged"),
            resources_change: says("resources", "listChanged"),
        }
    }
}

/// Reads the result of `initialize`.
///
/// # Errors
/// If it contains no supported version.
pub(super) fn initialized(result: &Value) -> Result<Greeting, GreetingError> {
    let version = result.get("protocolVersion").and_then(Value::as_str);
    let version = version.ok_or(GreetingError::NoVersion)?;
    if !version::is_legacy(version) {
        let shown: String = version.chars().take(40).collect();
        return Err(GreetingError::Version(shown));
    }
    let capabilities = result.get("capabilities").unwrap_or(&Value::Null);
    Ok(Greeting::of(Era::Legacy, version.to_owned(), capabilities))
}

/// Reads the result of `server/discover`; `None` = it is not of the modern era.
pub(super) fn discovered(result: &Value) -> Option<Greeting> {
    let versions = result.get("supportedVersions")?.as_array()?;
    let modern = version::modern();
    versions.iter().find(|version| version.as_str() == Some(modern))?;
    let capabilities = result.get("capabilities").filter(|own| own.is_object())?;
    Some(Greeting::of(Era::Modern, modern.to_owned(), capabilities))
}

/// Whether an error is a final refusal by a server of the modern era.
pub(super) fn is_modern_refusal(refusal: &Refusal) -> bool {
    if refusal.code == code::UNSUPPORTED_VERSION {
        // A server that supports a legacy version accepts the legacy handshake.
        let supported = refusal.data.as_ref().and_then(|data| data.get("supported"));
        let supported = supported.and_then(Value::as_array);
        let mut versions = supported.into_iter().flatten().filter_map(Value::as_str);
        return !versions.any(version::is_legacy);
    }
    matches!(refusal.code, code::MISSING_CAPABILITY | code::HEADER_MISMATCH)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn eras_are_told_apart() {
        let modern = json!({"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {"listChanged": true}}});
        let greeting = discovered(&modern).unwrap();
        assert!(greeting.tools_change && !greeting.offers.prompts);
        assert_eq!(discovered(&json!({"tools": []})), None);
        assert_eq!(discovered(&json!("hello")), None);
        assert!(initialized(&json!({"protocolVersion": "2024-11-05"})).is_ok());
        assert!(initialized(&json!({"protocolVersion": "2026-07-28"})).is_err());
        let refused =
            |code, data| Refusal { code, message: String::new(), data: Some(Box::new(data)) };
        assert!(is_modern_refusal(&refused(-32_021, Value::Null)));
        assert!(!is_modern_refusal(&refused(-32_022, json!({"supported": ["2025-11-25"]}))));
        assert!(is_modern_refusal(&refused(-32_022, json!({"supported": ["2027-01-01"]}))));
        assert!(!is_modern_refusal(&refused(-32_601, Value::Null)));
    }
}
