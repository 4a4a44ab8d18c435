//! The form of requests to a server other than tool calls, and of their errors.
//!
//! Path: 2. Doc: call-path.md#requests

use std::sync::Arc;

use serde_json::{Map, Value, json};
use toolbooth_contracts::error::UpstreamError;
use toolbooth_contracts::event::AuditEventKind;
use toolbooth_contracts::port::{Ask, CompletionReference};
use toolbooth_contracts::{CallContext, Caller, ErrorCode};

/// A caller's request to a server, with names and URIs as they are on the wire.
#[derive(Debug, Clone)]
pub struct ServerRequest {
    /// The operation.
    pub ask: Ask,
    /// The context, as the agent claims it.
    pub context: CallContext,
    /// The caller.
    pub caller: Caller,
    /// The tool set of the door, by name.
    pub within: Option<Arc<str>>,
}

/// The error of a server that refused.
#[derive(Debug, Clone, PartialEq)]
pub struct UpstreamRefusal {
    /// The server, by its name in configuration.
    pub server: String,
    /// The protocol's error code.
    pub code: i64,
    /// The server's sentence, screened.
    pub message: String,
    /// The further data of the error, if it is small.
    pub data: Option<Value>,
}

/// Why a request has no response, in the form for the agent.
#[derive(Debug, Clone, PartialEq)]
pub struct RequestError {
    /// The stable code.
    pub code: ErrorCode,
    /// A safe sentence.
    pub message: String,
    /// Facts for a program.
    pub details: Map<String, Value>,
    /// When to try again, in milliseconds.
    pub retry_after_ms: Option<u64>,
    /// The server's own error, if the server refused.
    pub upstream: Option<UpstreamRefusal>,
    /// The request's id in the records.
    pub call_id: String,
}

impl RequestError {
    /// Returns the error for a fault of the proxy itself.
    pub(crate) fn broken(call_id: String) -> Self {
        Self {
            code: ErrorCode::AdapterFailed,
            message: sentence(ErrorCode::AdapterFailed).to_owned(),
            details: Map::new(),
            retry_after_ms: None,
            upstream: None,
            call_id,
        }
    }
}

/// Returns the sentence of a code for a request.
pub(super) fn sentence(code: ErrorCode) -> &'static str {
    match code {
        ErrorCode::UnregisteredTool => {
            "ACCESS_DENIED: no such prompt or resource is available to you"
        }
        ErrorCode::InvalidArgs => "the request is not valid",
        ErrorCode::AdapterFailed => "the server cannot be reached",
        ErrorCode::Timeout => "the server did not answer in time",
        ErrorCode::Cancelled => "the request was cancelled",
        ErrorCode::ToolError => "the server answered with an error",
        ErrorCode::InvalidToolResult => "the server's answer is not valid",
        ErrorCode::ResultTooLarge => "the server's answer is too large",
        ErrorCode::RecordUnavailable => "the answer cannot be recorded, so it is withheld",
        other => other.safe_sentence(),
    }
}

/// Returns the name of the operation.
pub(super) fn kind(ask: &Ask) -> &'static str {
    match ask {
        Ask::ReadResource { .. } => "read-resource",
        Ask::GetPrompt { .. } => "get-prompt",
        Ask::Complete { .. } => "complete",
        Ask::Subscribe { .. } => "subscribe",
        Ask::Unsubscribe { .. } => "unsubscribe",
    }
}

/// Returns the event of a response; `None` if responses of its kind are not recorded.
pub(super) fn event(ask: &Ask) -> Option<AuditEventKind> {
    match ask {
        Ask::ReadResource { .. } => Some(AuditEventKind::ResourceRead),
        Ask::GetPrompt { .. } => Some(AuditEventKind::PromptGet),
        Ask::Complete { .. } | Ask::Subscribe { .. } | Ask::Unsubscribe { .. } => None,
    }
}

/// Returns the requested name or URI.
pub(super) fn name(ask: &Ask) -> &str {
    match ask {
        Ask::ReadResource { uri } | Ask::Subscribe { uri } | Ask::Unsubscribe { uri } => uri,
        Ask::GetPrompt { name, .. } => name,
        Ask::Complete { reference, .. } => match reference {
            CompletionReference::Prompt(name) | CompletionReference::Resource(name) => name,
        },
    }
}

/// Returns the parameters of the request other than its name.
pub(super) fn arguments(ask: &Ask) -> Value {
    match ask {
        Ask::GetPrompt { arguments, .. } => json!(arguments),
        Ask::Complete { argument, context, .. } => json!([argument, context]),
        _ => Value::Null,
    }
}

/// Returns the code of a request that a server did not serve.
pub(super) fn code_of(error: &UpstreamError) -> ErrorCode {
    match error {
        UpstreamError::Unreachable(_) => ErrorCode::AdapterFailed,
        UpstreamError::NotConfigured(_) => ErrorCode::NotConfigured,
        UpstreamError::Refused { .. } => ErrorCode::ToolError,
        UpstreamError::Timeout => ErrorCode::Timeout,
        UpstreamError::Cancelled => ErrorCode::Cancelled,
        UpstreamError::Unreadable(_) => ErrorCode::InvalidToolResult,
    }
}

/// Writes the single log line of a request. Names are not in it, because they may be payload.
pub(super) fn tell_log(kind: &str, caller: &Caller, error: Option<&RequestError>) {
    tracing::info!(
        request = kind,
        %caller,
        call.id = error.map(|error| error.call_id.as_str()),
        error.code = error.map(|error| error.code.as_str()),
        "request"
    );
}
