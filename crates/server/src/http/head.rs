//! Refuses requests with heads that are ambiguous, or that name a foreign host or origin.
//!
//! Web pages send foreign names when they use a browser to reach the gateway (DNS rebinding,
//! cross-origin requests).
//!
//! Path: 1. Doc: front-doors.md#who-may-call

use http::header::{HOST, HeaderName, ORIGIN};
use http::{HeaderMap, Uri};

use super::door_names::DoorNames;
use super::{Problem, ProblemCode};
use crate::auth::Connection;

/// Returns the problem of a request with this head; `None` if it is accepted.
pub(super) fn refusal(
    uri: &Uri,
    headers: &HeaderMap,
    names: &DoorNames,
    connection: &Connection,
) -> Option<Problem> {
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
        Some(host) if !names.has_host(host, connection) => {
            return foreign(
                "the header `Host` does not name this gateway; its operator lists further names in \
                 `[http] hosts`",
            );
        }
        Some(_) => (),
    }
    match origin {
        Some(origin) if !names.has_origin(origin, connection) => {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peer::PeerOwner;

    #[test]
    fn ambiguous_heads_are_malformed_and_foreign_ones_forbidden() {
        let status = |target: &str, lines: &[(&str, &str)]| {
            let mut headers = HeaderMap::new();
            for (name, value) in lines {
                let name: HeaderName = name.parse().unwrap();
                headers.append(name, value.parse().unwrap());
            }
            let (names, local) = (DoorNames::default(), ([127, 0, 0, 1], 80).into());
            let connection = Connection { peer: local, local, owner: PeerOwner::Unknown };
            refusal(&target.parse().unwrap(), &headers, &names, &connection)
                .map(|problem| problem.status)
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
