//! Codes of refused requests that are not results of calls, each with its HTTP status.
//!
//! Path: 10. Doc: front-doors.md#problems

use toolbooth_contracts::ErrorCode;

/// The code of a problem and its HTTP status (RFC 9110, 15).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProblemCode {
    /// The stable code.
    pub name: &'static str,
    /// The HTTP status.
    pub status: u16,
}

const fn code(name: &'static str, status: u16) -> ProblemCode {
    ProblemCode { name, status }
}

impl ProblemCode {
    /// The request or one of its headers is malformed.
    pub const INVALID_REQUEST: Self = code("invalid-request", 400);
    /// The caller cannot be authenticated.
    pub const NOT_AUTHENTICATED: Self = code("not-authenticated", 401);
    /// The access token lacks a scope.
    pub const INSUFFICIENT_SCOPE: Self = code("insufficient-scope", 403);
    /// The request names another machine, or has another origin.
    pub const FOREIGN_ORIGIN: Self = code("foreign-origin", 403);
    /// The resource does not exist, or the caller must not know that it exists.
    pub const NOT_FOUND: Self = code("not-found", 404);
    /// The path does not accept the method.
    pub const METHOD_NOT_ALLOWED: Self = code("method-not-allowed", 405);
    /// The client accepts none of the available media types.
    pub const NOT_ACCEPTABLE: Self = code("not-acceptable", 406);
    /// The request was not complete in time.
    pub const REQUEST_TIMEOUT: Self = code("request-timeout", 408);
    /// The request does not fit the state of a session.
    pub const CONFLICT: Self = code("conflict", 409);
    /// The call to be cancelled has already ended.
    pub const ALREADY_ENDED: Self = code("already-ended", 409);
    /// The approval is decided or spent.
    pub const ALREADY_DECIDED: Self = code("already-decided", 409);
    /// The approval has expired, or a later request has replaced it.
    pub const APPROVAL_EXPIRED: Self = code("approval-expired", 409);
    /// The body is too large.
    pub const TOO_LARGE: Self = code("too-large", 413);
    /// The body is not JSON according to its header.
    pub const UNSUPPORTED_MEDIA_TYPE: Self = code("unsupported-media-type", 415);
    /// The head is too large.
    pub const HEAD_TOO_LARGE: Self = code("head-too-large", 431);
    /// An internal error of the gateway.
    pub const INTERNAL: Self = code("internal", 500);
}

impl From<ErrorCode> for ProblemCode {
    fn from(error: ErrorCode) -> Self {
        code(error.as_str(), error.http_status())
    }
}
