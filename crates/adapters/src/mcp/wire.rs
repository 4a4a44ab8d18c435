//! The types of MCP, by its official SDK: versions, greetings, filters, codes and names of headers.
//!
//! The only file that names the SDK.
//!
//! Path: 7. Doc: execution.md#mcp-servers

pub(super) use rmcp::model::ErrorCode as RpcCode;
use rmcp::model::{
    ClientCapabilities, Implementation, InitializeRequestParams, ProtocolVersion,
    RequestMetaObject, SubscriptionFilter,
};
pub(super) use rmcp::transport::common::http_header as header;
use serde_json::{Map, Value};
use toolbooth_contracts::port::Offers;

use super::message::Refusal;
use super::request::Request;

/// Legacy versions that are spoken, the newest first; the first one is offered.
const LEGACY_VERSIONS: [ProtocolVersion; 4] = [
    ProtocolVersion::V_2025_11_25,
    ProtocolVersion::V_2025_06_18,
    ProtocolVersion::V_2025_03_26,
    ProtocolVersion::V_2024_11_05,
];
fn implementation() -> Implementation {
    Implementation::new("toolbooth", env!("CARGO_PKG_VERSION"))
}

fn members(value: &impl serde::Serialize) -> Map<String, Value> {
    match serde_json::to_value(value) {
        Ok(Value::Object(members)) => members,
        _ => Map::new(),
    }
}

/// The modern version, as it is written.
pub(super) fn modern_version() -> String {
    ProtocolVersion::V_2026_07_28.to_string()
}

/// What every request of the modern era carries.
pub(super) fn modern_meta() -> Map<String, Value> {
    members(&RequestMetaObject::with_client_context(
        ProtocolVersion::V_2026_07_28,
        implementation(),
        ClientCapabilities::default(),
    ))
}

/// The question of the modern era.
pub(super) fn discover() -> Request<'static> {
    Request { method: "server/discover", meta: modern_meta(), ..Request::default() }
}

/// The question of the legacy era.
pub(super) fn initialize() -> Request<'static> {
    let params = InitializeRequestParams::new(ClientCapabilities::default(), implementation())
        .with_protocol_version(ProtocolVersion::V_2025_11_25);
    Request { method: "initialize", params: members(&params), ..Request::default() }
}

/// The parameters of a `subscriptions/listen`; `None` = there is nothing to listen for.
pub(super) fn listen(server: &Greeting, uris: Vec<String>) -> Option<Map<String, Value>> {
    let mut filter = SubscriptionFilter::new();
    filter.tools_list_changed = server.tools_change.then_some(true);
    filter.prompts_list_changed = server.prompts_change.then_some(true);
    filter.resources_list_changed = server.resources_change.then_some(true);
    filter.resource_subscriptions = (!uris.is_empty()).then_some(uris);
    if filter == SubscriptionFilter::new() {
        return None;
    }
    let mut params = Map::new();
    params.insert("notifications".to_owned(), Value::from(members(&filter)));
    Some(params)
}

/// The era of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Era {
    /// Requests that stand alone, since 2026-07-28.
    Modern,
    /// A handshake first, up to 2025-11-25.
    Legacy,
}

/// What a server says of itself first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Greeting {
    pub(super) era: Era,
    /// The version that is spoken.
    pub(super) version: String,
    pub(super) offers: Offers,
    /// Whether it tells that its lists have changed.
    pub(super) tools_change: bool,
    pub(super) prompts_change: bool,
    pub(super) resources_change: bool,
}

impl Greeting {
    /// Reads leniently: what a server writes of itself wrongly is as if it were not there.
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

/// What the answer to `initialize` says.
///
/// # Errors
/// Where it names no version that is spoken here.
pub(super) fn initialized(result: &Value) -> Result<Greeting, String> {
    let version = result.get("protocolVersion").and_then(Value::as_str);
    let version = version.ok_or_else(|| "the server names no protocol version".to_owned())?;
    if !LEGACY_VERSIONS.iter().any(|known| known.as_str() == version) {
        let shown: String = version.chars().take(40).collect();
        return Err(format!("the server speaks version `{shown}`, which is not known here"));
    }
    let capabilities = result.get("capabilities").unwrap_or(&Value::Null);
    Ok(Greeting::of(Era::Legacy, version.to_owned(), capabilities))
}

/// What the answer to `server/discover` says; `None` = it is not of the modern era.
pub(super) fn discovered(result: &Value) -> Option<Greeting> {
    let versions = result.get("supportedVersions")?.as_array()?;
    let modern = modern_version();
    versions.iter().find(|version| version.as_str() == Some(modern.as_str()))?;
    let capabilities = result.get("capabilities").filter(|own| own.is_object())?;
    Some(Greeting::of(Era::Modern, modern, capabilities))
}

/// Whether an error says that a server is of the modern era and refuses nevertheless.
pub(super) fn is_modern_refusal(refusal: &Refusal) -> bool {
    let code = |known: RpcCode| i64::from(known.0) == refusal.code;
    if code(RpcCode::UNSUPPORTED_PROTOCOL_VERSION) {
        // One that names a legacy version can be asked in the legacy way.
        let supported = refusal.data.as_ref().and_then(|data| data.get("supported"));
        let supported = supported.and_then(Value::as_array);
        return !supported.into_iter().flatten().any(|version| {
            LEGACY_VERSIONS.iter().any(|known| version.as_str() == Some(known.as_str()))
        });
    }
    code(RpcCode::MISSING_REQUIRED_CLIENT_CAPABILITY) || code(RpcCode::HEADER_MISMATCH)
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
