//! Errors as `application/problem+json` (RFC 9457).
//!
//! Path: 10. Doc: front-doors.md#problems

use axum::response::{IntoResponse, Response};
use http::StatusCode;
use http::header::{CONTENT_TYPE, RETRY_AFTER};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use toolbooth_contracts::{ErrorCode, ToolResult};

use super::ProblemCode;

const PROBLEM_JSON: &str = "application/problem+json";

/// A problem document.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Problem {
    /// The URN of the problem's type.
    #[serde(rename = "type")]
    pub kind: String,
    /// A sentence that the client may see.
    pub title: String,
    /// The HTTP status.
    pub status: u16,
    /// The stable code.
    pub code: String,
    /// The id of the call, for a problem of a call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub call_id: Option<String>,
    /// The id of the receipt, if the call has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub receipt_id: Option<String>,
    /// Machine-readable details.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub details: Map<String, Value>,
    /// The warnings of the call's result.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
    /// The time after which a client may try again, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_ms: Option<u64>,
}

impl Problem {
    /// Creates a problem that is not the result of a call.
    #[must_use]
    pub fn new(code: impl Into<ProblemCode>, title: impl Into<String>) -> Self {
        let ProblemCode { name, status } = code.into();
        Self {
            kind: format!("urn:toolbooth:problem:{name}"),
            title: title.into(),
            status,
            code: name.to_owned(),
            call_id: None,
            receipt_id: None,
            details: Map::new(),
            warnings: Vec::new(),
            retry_after_ms: None,
        }
    }

    /// Returns the answer for a store that is unavailable.
    pub(super) fn unavailable(error: &dyn std::fmt::Display) -> Response {
        tracing::warn!(%error, "the store does not answer");
        let title = "the records do not answer at the moment; ask again";
        let problem = Self::new(ErrorCode::RecordUnavailable, title);
        Self { retry_after_ms: Some(1_000), ..problem }.into_response()
    }

    /// Returns the problem of a failed call; `None` if the call succeeded.
    #[must_use]
    pub fn of(result: &ToolResult) -> Option<Self> {
        let error = result.error.as_ref()?;
        let mut details = error.details.clone();
        if error.code == ErrorCode::ToolError && !result.content.is_empty() {
            // The content of a failed tool is its answer to the client.
            let content = serde_json::to_value(&result.content).unwrap_or_default();
            details.insert("content".to_owned(), content);
        }
        // An error of the guard's size limit has status 413, not the status of its code.
        let too_large = error.code == ErrorCode::InvalidArgs && details.contains_key("bytesMax");
        let problem = Self::new(error.code, error.message.clone());
        let status = if too_large { ProblemCode::TOO_LARGE.status } else { problem.status };
        Some(Self {
            status,
            call_id: Some(result.call_id.clone()),
            receipt_id: result.receipt_id.clone(),
            details,
            warnings: result.warnings.clone(),
            retry_after_ms: result.retry_after_ms,
            ..problem
        })
    }
}

impl Problem {
    /// Returns a whole HTTP answer that announces the end of the connection, for clients that are
    /// refused before a request is parsed.
    pub(super) fn as_message(&self) -> Vec<u8> {
        let reason = StatusCode::from_u16(self.status).ok();
        let reason = reason.and_then(|status| status.canonical_reason()).unwrap_or_default();
        let body = serde_json::to_string(self).unwrap_or_default();
        let retry =
            self.retry_after_ms.map(|after| format!("retry-after: {}\r\n", after.div_ceil(1_000)));
        format!(
            "HTTP/1.1 {} {reason}\r\ncontent-type: {PROBLEM_JSON}\r\ncontent-length: {}\r\n{}connection: close\r\n\r\n{body}",
            self.status,
            body.len(),
            retry.unwrap_or_default(),
        )
        .into_bytes()
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let body = serde_json::to_string(&self).unwrap_or_default();
        let mut response = (status, [(CONTENT_TYPE, PROBLEM_JSON)], body).into_response();
        if let Some(after) = self.retry_after_ms {
            let seconds = after.div_ceil(1_000);
            if let Ok(value) = seconds.to_string().parse() {
                response.headers_mut().insert(RETRY_AFTER, value);
            }
        }
        response
    }
}
