//! Codes of refused requests that are no result of a call, each with its HTTP status.
//!
//! Path: 10. Doc: front-doors.md#problems

use toolbooth_contracts::ErrorCode;

/// The code of a problem, and the HTTP status that goes with it (RFC 9110, 15).
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
    /// Who calls cannot be told.
    pub const NOT_AUTHENTICATED: Self = code("not-authenticated", 401);
    /// The request names another machine, or comes from another origin.
    pub const FOREIGN_ORIGIN: Self = code("foreign-origin", 403);
    /// There is no such thing, or the caller may not know of it.
    pub const NOT_FOUND: Self = code("not-found", 404);
    /// The path does not take the method.
    pub const METHOD_NOT_ALLOWED: Self = code("method-not-allowed", 405);
    /// The client accepts no answer that there is.
    pub const NOT_ACCEPTABLE: Self = code("not-acceptable", 406);
    /// The request was not complete in time.
    pub const REQUEST_TIMEOUT: Self = code("request-timeout", 408);
    /// The request does not fit the state of a session.
    pub const CONFLICT: Self = code("conflict", 409);
    /// What is to be ended has ended.
    pub const ALREADY_ENDED: Self = code("already-ended", 409);
    /// The body is too large.
    pub const TOO_LARGE: Self = code("too-large", 413);
    /// The body is no JSON by its header.
    pub const UNSUPPORTED_MEDIA_TYPE: Self = code("unsupported-media-type", 415);
    /// The head is too large.
    pub const HEAD_TOO_LARGE: Self = code("head-too-large", 431);
    /// A fault of the gateway.
    pub const INTERNAL: Self = code("internal", 500);
}

impl From<ErrorCode> for ProblemCode {
    fn from(error: ErrorCode) -> Self {
        code(error.as_str(), error.http_status())
    }
}
