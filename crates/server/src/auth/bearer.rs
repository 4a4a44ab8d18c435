//! Reads the credentials of a request (RFC 6750, 2.1).
//!
//! Path: 1. Doc: front-doors.md#who-may-call

use http::header::AUTHORIZATION;
use http::request::Parts;

use crate::error::NotAuthenticated;

/// The beginning of every API key.
pub(super) const API_KEY: &str = "tbk_";
/// The beginning of every operator key.
pub(super) const OPERATOR_KEY: &str = "tbo_";

/// The credentials of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Bearer<'r> {
    /// An API key.
    ApiKey(&'r str),
    /// An operator key.
    OperatorKey(&'r str),
    /// Another bearer token.
    AccessToken(&'r str),
}

impl<'r> Bearer<'r> {
    /// Returns the credentials of a request; `None` if it has none.
    ///
    /// # Errors
    /// [`NotAuthenticated::Malformed`] for anything but one header with the scheme `Bearer` and a
    /// token; [`NotAuthenticated::InUrl`] for credentials in the URL, which logs and referrers
    /// disclose (RFC 6750, 2.3).
    pub(super) fn of(request: &'r Parts) -> Result<Option<Self>, NotAuthenticated> {
        let query = request.uri.query().unwrap_or_default();
        let is_secret = |pair: &str| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            name.eq_ignore_ascii_case("access_token")
                || value.starts_with(API_KEY)
                || value.starts_with(OPERATOR_KEY)
        };
        if query.split('&').any(is_secret) {
            return Err(NotAuthenticated::InUrl);
        }
        let mut headers = request.headers.get_all(AUTHORIZATION).iter();
        let Some(header) = headers.next() else { return Ok(None) };
        if headers.next().is_some() {
            return Err(NotAuthenticated::Malformed);
        }
        let text = header.to_str().map_err(|_| NotAuthenticated::Malformed)?;
        let (scheme, token) = text.split_once(' ').ok_or(NotAuthenticated::Malformed)?;
        let token = token.trim_matches(' ');
        // `token68` (RFC 9110, 11.2).
        let fits = |b: u8| b.is_ascii_alphanumeric() || b"-._~+/=".contains(&b);
        if !scheme.eq_ignore_ascii_case("bearer") || token.is_empty() || !token.bytes().all(fits) {
            return Err(NotAuthenticated::Malformed);
        }
        Ok(Some(if token.starts_with(API_KEY) {
            Self::ApiKey(token)
        } else if token.starts_with(OPERATOR_KEY) {
            Self::OperatorKey(token)
        } else {
            Self::AccessToken(token)
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(uri: &str, headers: &[&str]) -> Result<Option<String>, NotAuthenticated> {
        let mut request = http::Request::builder().uri(uri);
        for header in headers {
            request = request.header(AUTHORIZATION, *header);
        }
        let (parts, ()) = request.body(()).unwrap().into_parts();
        Ok(Bearer::of(&parts)?.map(|bearer| format!("{bearer:?}")))
    }

    #[test]
    fn one_bearer_header_names_the_caller() {
        assert_eq!(of("/mcp", &[]), Ok(None));
        assert_eq!(of("/mcp", &["Bearer tbk_a-b_"]), Ok(Some("ApiKey(\"tbk_a-b_\")".into())));
        assert_eq!(of("/mcp", &["bEARER  tbo_1 "]), Ok(Some("OperatorKey(\"tbo_1\")".into())));
        assert_eq!(
            of("/mcp", &["Bearer eyJ.eyJ.x"]),
            Ok(Some("AccessToken(\"eyJ.eyJ.x\")".into()))
        );
        for bad in ["", "Bearer", "Bearer ", "Basic dTpw", "Bearer a b", "Bearer \u{e9}", "tbk_a"] {
            assert_eq!(of("/mcp", &[bad]), Err(NotAuthenticated::Malformed), "{bad}");
        }
        let two = ["Bearer tbk_a", "Bearer tbk_a"];
        assert_eq!(of("/mcp", &two), Err(NotAuthenticated::Malformed));
    }

    #[test]
    fn credentials_in_the_url_are_refused() {
        for bad in ["/mcp?access_token=x", "/mcp?a=1&key=tbk_x", "/mcp?Access_Token", "/?k=tbo_"] {
            assert_eq!(of(bad, &["Bearer tbk_a"]), Err(NotAuthenticated::InUrl), "{bad}");
        }
        assert_eq!(of("/v1/tools?q=access_tokens", &[]), Ok(None));
    }
}
