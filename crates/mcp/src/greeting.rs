//! Messages of the handshake, as the official SDK writes them.
//!
//! Doc: front-doors.md#mcp

use std::sync::LazyLock;

use rmcp::model::{
    CacheScope, ClientCapabilities, DiscoverResult, Implementation, InitializeRequestParams,
    ProtocolVersion, RequestMetaObject, ServerCapabilities, SubscriptionFilter,
};
use serde_json::{Map, Value, json};

fn this() -> Implementation {
    Implementation::new("toolbooth", env!("CARGO_PKG_VERSION"))
}

fn members(value: &impl serde::Serialize) -> Map<String, Value> {
    match serde_json::to_value(value) {
        Ok(Value::Object(members)) => members,
        _ => Map::new(),
    }
}

/// Returns the `_meta` that every request of a client contains in the modern era.
#[must_use]
pub fn client_meta() -> &'static Map<String, Value> {
    static META: LazyLock<Map<String, Value>> = LazyLock::new(|| {
        members(&RequestMetaObject::with_client_context(
            ProtocolVersion::V_2026_07_28,
            this(),
            ClientCapabilities::default(),
        ))
    });
    &META
}

/// Returns the members of [`client_meta`] as JSON text, without the braces around them.
#[must_use]
pub fn client_meta_members() -> &'static str {
    static MEMBERS: LazyLock<String> = LazyLock::new(|| {
        let text = Value::Object(client_meta().clone()).to_string();
        text.strip_prefix('{')
            .and_then(|rest| rest.strip_suffix('}'))
            .unwrap_or_default()
            .to_owned()
    });
    &MEMBERS
}

/// Returns the parameters of `initialize`, with which a client offers the newest legacy revision.
#[must_use]
pub fn initialize_params() -> Map<String, Value> {
    members(
        &InitializeRequestParams::new(ClientCapabilities::default(), this())
            .with_protocol_version(ProtocolVersion::V_2025_11_25),
    )
}

/// Returns the filter of `subscriptions/listen`; `None` if it would be empty.
#[must_use]
pub fn listen_filter(
    tools: bool,
    prompts: bool,
    resources: bool,
    uris: Vec<String>,
) -> Option<Map<String, Value>> {
    let mut filter = SubscriptionFilter::new();
    filter.tools_list_changed = tools.then_some(true);
    filter.prompts_list_changed = prompts.then_some(true);
    filter.resources_list_changed = resources.then_some(true);
    filter.resource_subscriptions = (!uris.is_empty()).then_some(uris);
    (filter != SubscriptionFilter::new()).then(|| members(&filter))
}

#[expect(deprecated, reason = "clients of the legacy era, and servers of both, still log")]
fn capabilities() -> ServerCapabilities {
    ServerCapabilities::builder()
        .enable_logging()
        .enable_completions()
        .enable_prompts()
        .enable_prompts_list_changed()
        .enable_resources()
        .enable_resources_list_changed()
        .enable_resources_subscribe()
        .enable_tools()
        .enable_tool_list_changed()
        .build()
}

/// Returns a server's response to `initialize`.
#[must_use]
pub fn initialized(version: &str, instructions: &str) -> Value {
    json!({
        "protocolVersion": version,
        "capabilities": capabilities(),
        "serverInfo": this(),
        "instructions": instructions,
    })
}

/// Returns a server's response to `server/discover`.
#[must_use]
pub fn discovered(instructions: &str) -> Value {
    let config = rmcp::model::ServerConfig::new(capabilities())
        .with_server_info(this())
        .with_instructions(instructions);
    let result = DiscoverResult::from_server_info(ProtocolVersion::KNOWN_VERSIONS.to_vec(), config)
        .with_ttl_ms(60_000)
        .with_cache_scope(CacheScope::Private);
    serde_json::to_value(result).unwrap_or_default()
}
