//! Refuses requests that a web page could have been tricked into making: foreign `Host` and
//! `Origin` headers.
//!
//! Path: 1. Doc: front-doors.md#who-may-call

use axum::extract::Request;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http::header::{HOST, ORIGIN};
use http::uri::Authority;
use http::{HeaderMap, HeaderValue};

use super::Problem;

pub(super) async fn guard(request: Request, next: Next) -> Response {
    if names_this_machine(request.headers()) {
        next.run(request).await
    } else {
        let message = "the `Host` or `Origin` header does not name this machine";
        Problem::new(403, "foreign-origin", message.to_owned()).into_response()
    }
}

fn names_this_machine(headers: &HeaderMap) -> bool {
    let text = |value: &HeaderValue| value.to_str().unwrap_or_default().to_owned();
    let host_fits = headers.get(HOST).is_some_and(|host| is_loopback(&text(host)));
    let origin_fits = headers.get(ORIGIN).is_none_or(|origin| {
        let origin = text(origin);
        let rest = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
        rest.is_some_and(is_loopback)
    });
    host_fits && origin_fits
}

fn is_loopback(authority: &str) -> bool {
    authority.parse::<Authority>().is_ok_and(|authority| {
        matches!(authority.host(), "localhost" | "127.0.0.1" | "[::1]")
            && !authority.as_str().contains('@')
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_this_machine_is_named() {
        for good in ["localhost", "127.0.0.1:80", "[::1]:8080"] {
            assert!(is_loopback(good), "{good}");
        }
        for bad in
            ["evil.example", "localhost.evil.example", "127.0.0.1@evil.example", "", "a@localhost"]
        {
            assert!(!is_loopback(bad), "{bad}");
        }
    }
}
