//! Refuses requests with heads that are ambiguous, or that name a foreign host or origin.
//!
//! Web pages send foreign names when they use a browser to reach the gateway (DNS rebinding,
//! cross-origin requests).
//!
//! Path: 1. Doc: front-doors.md#who-may-call

use axum::extract::{Extension, Request};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http::header::{HOST, HeaderName, ORIGIN};
use http::uri::Authority;
use http::{HeaderMap, Uri};

use super::{Problem, ProblemCode};
use crate::auth::Connection;

pub(super) async fn guard(
    Extension(connection): Extension<Connection>,
    request: Request,
    next: Next,
) -> Response {
    match refusal(request.uri(), request.headers(), connection.local.port()) {
        Some(problem) => problem.into_response(),
        None => next.run(request).await,
    }
}

/// Returns the problem of a request with this head at the door on `port`; `None` if it is accepted.
fn refusal(uri: &Uri, headers: &HeaderMap, port: u16) -> Option<Problem> {
    let malformed = |title: &str| Some(Problem::new(ProblemCode::INVALID_REQUEST, title));
    let foreign = |title: &str| Some(Problem::new(ProblemCode::FOREIGN_ORIGIN, title));
    // An authority in the target would override the header `Host` (RFC 9112, 3.2.2).
    if uri.scheme().is_some() || uri.authority().is_some() {
        return malformed("the request's target must be a path, without a scheme or a host");
    }
    let (Ok(host), Ok(origin)) = (only(headers, &HOST), only(headers, &ORIGIN)) else {
        return malformed("a request has one `Host` and at most one `Origin`, both of them text");
    };
    match host {
        None => return malformed("a request must have the header `Host`"),
        Some(host) if !names_this_machine(host) => {
            return foreign("the header `Host` does not name this machine");
        }
        Some(_) => (),
    }
    match origin {
        Some(origin) if !is_this_door(origin, port) => {
            foreign("the header `Origin` is not this server's own address")
        }
        _ => None,
    }
}

/// Returns the value of a header, if present; an error for several values, or one that is not text.
fn only<'h>(headers: &'h HeaderMap, name: &HeaderName) -> Result<Option<&'h str>, ()> {
    let mut values = headers.get_all(name).iter();
    match (values.next(), values.next()) {
        (None, _) => Ok(None),
        (Some(value), None) => value.to_str().map(Some).map_err(drop),
        (Some(_), Some(_)) => Err(()),
    }
}

fn loopback(authority: &str) -> Option<Authority> {
    let authority = authority.parse::<Authority>().ok()?;
    let named = matches!(authority.host(), "localhost" | "127.0.0.1" | "[::1]");
    (named && !authority.as_str().contains('@')).then_some(authority)
}

/// Whether a host is this machine. Accepts any port, because a forwarded connection carries the
/// port of its other end.
fn names_this_machine(host: &str) -> bool {
    loopback(host).is_some()
}

/// Whether an origin (RFC 6454) is this door. Pages of other local servers are foreign.
fn is_this_door(origin: &str, port: u16) -> bool {
    let Some(authority) = origin.strip_prefix("http://").and_then(loopback) else { return false };
    // An origin without a port has the default port of its scheme.
    let given = match authority.port() {
        Some(given) => given.as_u16(),
        None if authority.as_str() == authority.host() => 80,
        None => return false,
    };
    given == port
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_this_machine_is_named() {
        for good in ["localhost", "127.0.0.1:80", "[::1]:8080"] {
            assert!(names_this_machine(good), "{good}");
        }
        for bad in
            ["evil.example", "localhost.evil.example", "127.0.0.1@evil.example", "", "a@localhost"]
        {
            assert!(!names_this_machine(bad), "{bad}");
        }
    }

    #[test]
    fn only_the_own_port_is_the_own_origin() {
        for good in ["http://localhost:7717", "http://127.0.0.1:7717", "http://[::1]:7717"] {
            assert!(is_this_door(good, 7_717), "{good}");
        }
        assert!(is_this_door("http://localhost", 80));
        for bad in [
            "http://localhost:7718",
            "http://localhost",
            "http://localhost:",
            "http://localhost:7717/",
            "https://localhost:7717",
            "http://evil.example:7717",
            "http://a@localhost:7717",
            "localhost:7717",
            "null",
            "",
        ] {
            assert!(!is_this_door(bad, 7_717), "{bad}");
        }
    }

    #[test]
    fn ambiguous_heads_are_malformed_and_foreign_ones_forbidden() {
        let status = |target: &str, lines: &[(&str, &str)]| {
            let mut headers = HeaderMap::new();
            for (name, value) in lines {
                let name: HeaderName = name.parse().unwrap();
                headers.append(name, value.parse().unwrap());
            }
            refusal(&target.parse().unwrap(), &headers, 80).map(|problem| problem.status)
        };
        let host = ("host", "localhost");
        assert_eq!(status("/", &[host]), None);
        assert_eq!(status("/", &[host, ("origin", "http://localhost")]), None);
        assert_eq!(status("/", &[]), Some(400));
        assert_eq!(status("/", &[host, host]), Some(400));
        let origin = ("origin", "http://localhost");
        assert_eq!(status("/", &[host, origin, origin]), Some(400));
        assert_eq!(status("http://localhost/", &[host]), Some(400));
        assert_eq!(status("localhost:80", &[host]), Some(400));
        assert_eq!(status("/", &[("host", "evil.example")]), Some(403));
        assert_eq!(status("/", &[host, ("origin", "http://localhost:81")]), Some(403));
    }
}
