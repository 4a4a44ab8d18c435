//! Wraps the MCP SDK: its types for versions, capabilities, error codes and headers.
//!
//! No other module of the front door uses the SDK.
//!
//! Doc: front-doors.md#mcp

use rmcp::model::{
    CacheScope, DiscoverResult, Implementation, ProtocolVersion, ServerCapabilities,
};
use serde_json::Value;

/// Error codes of JSON-RPC and of MCP.
pub(super) mod code {
    use rmcp::model::ErrorCode;

    const fn of(code: ErrorCode) -> i64 {
        code.0 as i64
    }

    pub(in crate::mcp) const PARSE_ERROR: i64 = of(ErrorCode::PARSE_ERROR);
    pub(in crate::mcp) const INVALID_REQUEST: i64 = of(ErrorCode::INVALID_REQUEST);
    pub(in crate::mcp) const METHOD_NOT_FOUND: i64 = of(ErrorCode::METHOD_NOT_FOUND);
    pub(in crate::mcp) const INVALID_PARAMS: i64 = of(ErrorCode::INVALID_PARAMS);
    pub(in crate::mcp) const INTERNAL_ERROR: i64 = of(ErrorCode::INTERNAL_ERROR);
    pub(in crate::mcp) const RESOURCE_NOT_FOUND: i64 = of(ErrorCode::RESOURCE_NOT_FOUND);
    pub(in crate::mcp) const HEADER_MISMATCH: i64 = of(ErrorCode::HEADER_MISMATCH);
    pub(in crate::mcp) const MISSING_CAPABILITY: i64 =
        of(ErrorCode::MISSING_REQUIRED_CLIENT_CAPABILITY);
    pub(in crate::mcp) const UNSUPPORTED_VERSION: i64 = of(ErrorCode::UNSUPPORTED_PROTOCOL_VERSION);
    /// The session does not exist (the code that SDKs of the legacy era use).
    pub(in crate::mcp) const SESSION_NOT_FOUND: i64 = -32_001;
    /// The server cannot serve the request (JSON-RPC 2.0, 5.1: from -32000 to -32099).
    pub(in crate::mcp) const SERVER_ERROR: i64 = -32_000;
}

/// Headers of streamable HTTP.
pub(super) mod header {
    pub(in crate::mcp) use rmcp::transport::common::http_header::{
        BASE64_HEADER_PREFIX as BASE64_PREFIX, BASE64_HEADER_SUFFIX as BASE64_SUFFIX,
        HEADER_MCP_METHOD as METHOD, HEADER_MCP_NAME as NAME,
        HEADER_MCP_PARAM_PREFIX as PARAM_PREFIX, HEADER_MCP_PROTOCOL_VERSION as VERSION,
        HEADER_SESSION_ID as SESSION,
    };
}

/// The revision without sessions.
pub(super) fn modern() -> &'static str {
    static VERSION: ProtocolVersion = ProtocolVersion::V_2026_07_28;
    VERSION.as_str()
}

/// Revisions that begin with `initialize`, oldest first.
pub(super) fn legacy() -> [String; 4] {
    [
        ProtocolVersion::V_2024_11_05,
        ProtocolVersion::V_2025_03_26,
        ProtocolVersion::V_2025_06_18,
        ProtocolVersion::V_2025_11_25,
    ]
    .map(|version| version.as_str().to_owned())
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

fn this() -> Implementation {
    Implementation::new("toolbooth", env!("CARGO_PKG_VERSION"))
}

/// The instructions that agents get from the gateway.
const INSTRUCTIONS: &str = "Tools behind Toolbooth: each call is checked, contained and receipted. A \
                            refusal says why; `_meta` holds `toolbooth/receiptId` and \
                            `toolbooth/errorCode`.";

/// The answer to `initialize`.
pub(super) fn initialized(version: &str) -> Value {
    serde_json::json!({
        "protocolVersion": version,
        "capabilities": capabilities(),
        "serverInfo": this(),
        "instructions": INSTRUCTIONS,
    })
}

/// The answer to `server/discover`.
pub(super) fn discovered() -> Value {
    let config = rmcp::model::ServerConfig::new(capabilities())
        .with_server_info(this())
        .with_instructions(INSTRUCTIONS);
    let result = DiscoverResult::from_server_info(ProtocolVersion::KNOWN_VERSIONS.to_vec(), config)
        .with_ttl_ms(60_000)
        .with_cache_scope(CacheScope::Private);
    serde_json::to_value(result).unwrap_or_default()
}
