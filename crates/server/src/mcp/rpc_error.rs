//! The error of a JSON-RPC request.
//!
//! Path: 10. Doc: front-doors.md#mcp

use serde::Serialize;
use serde_json::Value;
use toolbooth_mcp::code;

/// An error of JSON-RPC.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct RpcError {
    pub(super) code: i64,
    pub(super) message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) data: Option<Box<Value>>,
    /// Whether a server behind the gateway returned it.
    #[serde(skip)]
    pub(super) upstream: bool,
}

impl RpcError {
    pub(super) fn new(code: i64, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), data: None, upstream: false }
    }

    pub(super) fn invalid_params(message: impl Into<String>) -> Self {
        Self::new(code::INVALID_PARAMS, message)
    }

    pub(super) fn unknown_method(method: &str) -> Self {
        let shown: String = method.chars().take(100).collect();
        Self::new(code::METHOD_NOT_FOUND, format!("there is no method `{}`", shown.escape_debug()))
    }

    /// Whether the HTTP status must show it: the client lacks a capability that the call needs.
    pub(super) fn is_of_transport(&self) -> bool {
        self.code == code::MISSING_CAPABILITY
    }

    pub(super) fn with_data(self, data: Value) -> Self {
        Self { data: Some(Box::new(data)), ..self }
    }
}
