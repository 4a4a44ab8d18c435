//! Error codes of JSON-RPC 2.0 and of MCP.
//!
//! Doc: front-doors.md#mcp

use rmcp::model::ErrorCode;

const fn of(code: ErrorCode) -> i64 {
    code.0 as i64
}

/// The message is not JSON.
pub const PARSE_ERROR: i64 = of(ErrorCode::PARSE_ERROR);
/// The message is not a request.
pub const INVALID_REQUEST: i64 = of(ErrorCode::INVALID_REQUEST);
/// The method does not exist.
pub const METHOD_NOT_FOUND: i64 = of(ErrorCode::METHOD_NOT_FOUND);
/// The parameters are not valid for the method.
pub const INVALID_PARAMS: i64 = of(ErrorCode::INVALID_PARAMS);
/// The server failed.
pub const INTERNAL_ERROR: i64 = of(ErrorCode::INTERNAL_ERROR);
/// The resource does not exist (legacy era).
pub const RESOURCE_NOT_FOUND: i64 = of(ErrorCode::RESOURCE_NOT_FOUND);
/// A header disagrees with the body.
pub const HEADER_MISMATCH: i64 = of(ErrorCode::HEADER_MISMATCH);
/// The client lacks a capability that the request needs.
pub const MISSING_CAPABILITY: i64 = of(ErrorCode::MISSING_REQUIRED_CLIENT_CAPABILITY);
/// The server does not support the protocol version.
pub const UNSUPPORTED_VERSION: i64 = of(ErrorCode::UNSUPPORTED_PROTOCOL_VERSION);
/// The session does not exist (the code that SDKs of the legacy era use).
pub const SESSION_NOT_FOUND: i64 = -32_001;
/// The server cannot serve the request (JSON-RPC 2.0, 5.1: from -32000 to -32099).
pub const SERVER_ERROR: i64 = -32_000;
