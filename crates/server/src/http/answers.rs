//! Replaces error answers that have no JSON body with problem documents.
//!
//! The router and its extractors return such answers, as plain text or without a body.
//! JSON-RPC errors and event streams stay as they are.
//!
//! Path: 10. Doc: front-doors.md#problems

use axum::response::{IntoResponse, Response};
use http::header::{ALLOW, CONTENT_TYPE};
use http::{HeaderMap, StatusCode};
use toolbooth_contracts::ErrorCode;

use super::{Problem, ProblemCode};

/// Returns the answer, or a problem document in its place.
pub(super) fn as_json(response: Response) -> Response {
    let status = response.status();
    let is_error = status.is_client_error() || status.is_server_error();
    if !is_error || has_document(response.headers()) {
        return response;
    }
    let allow = response.headers().get(ALLOW).cloned();
    let (code, title) = described(status);
    let problem = Problem { status: status.as_u16(), ..Problem::new(code, title) };
    let mut problem = problem.into_response();
    if let Some(allow) = allow {
        problem.headers_mut().insert(ALLOW, allow);
    }
    problem
}

fn has_document(headers: &HeaderMap) -> bool {
    let kind = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    ["application/json", "application/problem+json", "text/event-stream"]
        .iter()
        .any(|known| kind.starts_with(known))
}

/// Returns a code and a title for each status. The text of the original is dropped, because it may
/// name Rust types.
fn described(status: StatusCode) -> (ProblemCode, &'static str) {
    match status.as_u16() {
        403 => (ProblemCode::FOREIGN_ORIGIN, "the request does not name this machine"),
        404 => (ProblemCode::NOT_FOUND, "there is nothing at this path, or no such session"),
        405 => (ProblemCode::METHOD_NOT_ALLOWED, "this path does not take this method"),
        406 => (
            ProblemCode::NOT_ACCEPTABLE,
            "a client must accept both application/json and text/event-stream (for GET the latter)",
        ),
        413 => (ProblemCode::TOO_LARGE, "the request's body is too large"),
        415 => (ProblemCode::UNSUPPORTED_MEDIA_TYPE, "the body must be sent as application/json"),
        409 | 410 | 422 => (ProblemCode::CONFLICT, "the request does not fit the session's state"),
        400..=499 => {
            (ProblemCode::INVALID_REQUEST, "the request or one of its headers is malformed")
        }
        503 => (
            ErrorCode::Overloaded.into(),
            "the request cannot be served at the moment; try again later",
        ),
        _ => (ProblemCode::INTERNAL, "the request failed within the gateway"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_are_told_from_text() {
        let has = |kind: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(CONTENT_TYPE, kind.parse().unwrap());
            has_document(&headers)
        };
        assert!(has("application/json") && has("application/problem+json"));
        assert!(has("text/event-stream") && !has("text/plain; charset=utf-8"));
        assert!(!has_document(&HeaderMap::new()));
    }
}
