//! Converts `[auth]` into the access tokens that the HTTP door accepts, and its description as a resource.
//!
//! Doc: configuration.md#auth, front-doors.md#access-tokens

use std::net::SocketAddr;
use std::sync::Arc;

use toolbooth_contracts::caller::is_key_name;
use toolbooth_proxy::{Clock, SystemClock};
use toolbooth_server::auth::tokens::{
    AccessTokens, Documents, HttpsDocuments, IssuerError, IssuerSettings,
};
use toolbooth_server::http::ProtectedResource;
use url::Url;

use crate::config::Config;
use crate::failure::{Failure, OUT_OF_REACH};

/// Access tokens, and the resource for which they are issued.
pub(crate) struct Accepted {
    pub(crate) tokens: AccessTokens,
    pub(crate) resource: ProtectedResource,
}

/// Returns the access tokens that the door at this address accepts; `None` without issuers.
///
/// # Errors
/// [`Failure`], if a setting is not valid.
pub(crate) fn accepted(config: &Config, address: SocketAddr) -> Result<Option<Accepted>, Failure> {
    let auth = &config.auth;
    let wrong =
        |message: String, at: &str| Failure::configuration(message).at(format!("auth.{at}"));
    if auth.issuers.is_empty() {
        for (is_set, name) in
            [(auth.resource.is_some(), "resource"), (!auth.scopes.is_empty(), "scopes")]
        {
            if is_set {
                return Err(wrong(format!("`{name}` has no effect without an issuer"), name)
                    .hint("write `[auth.issuers.NAME]` with `issuer = \"https://…\"`"));
            }
        }
        return Ok(None);
    }
    if let Some(scope) = auth.scopes.iter().find(|scope| !is_scope(scope)) {
        return Err(wrong(format!("`{}` is not a scope", scope.escape_debug()), "scopes")
            .hint("a scope has printable ASCII characters, and no space, `\"` or `\\`"));
    }
    let resource = match &auth.resource {
        Some(resource) if is_resource(resource) => resource.clone(),
        Some(resource) => {
            let message = format!("`{}` is not a resource", resource.escape_debug());
            return Err(wrong(message, "resource")
                .hint("give the URL of the MCP endpoint, such as https://gateway.example/mcp"));
        }
        None if address.ip().is_loopback() && !config.http.behind_proxy => {
            format!("{}://{address}/mcp", config.http.scheme())
        }
        None => {
            let message = "`resource` is missing: tokens are issued for the URL that clients use";
            return Err(wrong(message.to_owned(), "resource")
                .hint("write `resource = \"https://gateway.example/mcp\"`"));
        }
    };
    if let Some(name) = auth.issuers.keys().find(|name| !is_key_name(name)) {
        let message = format!("`{}` is no name of an issuer", name.escape_debug());
        return Err(wrong(message, "issuers").hint(
            "give 1 to 64 letters, digits, `.`, `_` and `-`: groups are named `NAME/GROUP`",
        ));
    }
    let settings = auth.issuers.iter().map(|(name, one)| IssuerSettings {
        name: name.clone(),
        issuer: one.issuer.clone(),
        jwks_uri: one.jwks_uri.clone(),
        audiences: one.audiences.clone().unwrap_or_default(),
        resource: one.audiences.is_none().then(|| resource.clone()),
        groups_claim: one.groups_claim.clone(),
    });
    let documents = HttpsDocuments::new().map_err(|error| {
        Failure::new(OUT_OF_REACH, "issuers", format!("issuers cannot be reached: {error}"))
    })?;
    let (documents, clock): (Arc<dyn Documents>, Arc<dyn Clock>) =
        (Arc::new(documents), Arc::new(SystemClock::default()));
    let tokens =
        AccessTokens::new(settings.collect(), &documents, &clock).map_err(|error| {
            let failure = wrong(error.to_string(), "issuers");
            match error {
                IssuerError::Fragment { .. } => failure
                    .hint("the name of a caller is `jwt:ISSUER#SUBJECT`; give the claim `iss`"),
                IssuerError::NoUrl { .. } | IssuerError::Keys { .. } => {
                    failure.hint("give an https URL; http is accepted from this machine only")
                }
                IssuerError::NoAudience { .. } => failure
                    .hint("take `audiences` out, or name the audience of this gateway's tokens"),
                IssuerError::Twice { .. } => failure.hint("write one section for each issuer"),
            }
        })?;
    let issuers = auth.issuers.values().map(|one| one.issuer.clone()).collect();
    let resource = ProtectedResource { resource, issuers, scopes: auth.scopes.clone() };
    Ok(Some(Accepted { tokens, resource }))
}

/// Whether a text is a scope (RFC 6749, 3.3).
fn is_scope(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_graphic() && b != b'"' && b != b'\\')
}

/// Whether a text identifies an MCP endpoint as a resource (RFC 8707, 2), in the form in which URLs
/// are normalised. It has a path, below which the tool sets are.
fn is_resource(text: &str) -> bool {
    Url::parse(text).is_ok_and(|url| {
        ["http", "https"].contains(&url.scheme())
            && url.fragment().is_none()
            && url.query().is_none()
            && url.username().is_empty()
            && url.password().is_none()
            && url.path() != "/"
            && url.as_str() == text
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::parse;

    fn of(text: &str) -> Result<Option<Accepted>, Failure> {
        accepted(
            &parse(text, "toolbooth.toml", Vec::new()).unwrap(),
            ([127, 0, 0, 1], 7_717).into(),
        )
    }

    #[test]
    fn settings_that_accept_too_much_or_nothing_are_refused() {
        let issuer = "[auth.issuers.a]\nissuer = \"https://id.example\"\n";
        assert!(of("").unwrap().is_none());
        let own = of(issuer).unwrap().unwrap().resource;
        assert_eq!(own.resource, "http://127.0.0.1:7717/mcp");
        assert_eq!(own.issuers, ["https://id.example"]);
        for good in ["https://g.example/mcp", "https://g.example/tools/mcp/"] {
            assert!(of(&format!("[auth]\nresource = \"{good}\"\n{issuer}")).is_ok(), "{good}");
        }
        for bad in [
            "[auth]\nscopes = [\"a\"]".to_owned(),
            "[auth]\nresource = \"https://g.example/mcp\"".to_owned(),
            format!("[auth]\nscopes = [\"a b\"]\n{issuer}"),
            format!("[auth]\nscopes = [\"\"]\n{issuer}"),
            format!("[auth]\nresource = \"g.example\"\n{issuer}"),
            format!("[auth]\nresource = \"https://g.example\"\n{issuer}"),
            format!("[auth]\nresource = \"https://g.example/\"\n{issuer}"),
            format!("[auth]\nresource = \"https://G.example/mcp\"\n{issuer}"),
            format!("[auth]\nresource = \"https://g.example/mcp#a\"\n{issuer}"),
            format!("[http]\nbehind_proxy = true\n{issuer}"),
            format!("{issuer}audiences = []"),
            format!("{issuer}jwks_uri = \"http://id.example/keys\""),
            format!("{issuer}[auth.issuers.b]\nissuer = \"https://id.example\""),
            "[auth.issuers.a]\nissuer = \"https://id.example#a\"".to_owned(),
            "[auth.issuers.a]\nissuer = \"http://id.example\"".to_owned(),
            "[auth.issuers.a]\nissuer = \"https://id.example?a=b\"".to_owned(),
            "[auth.issuers.a]\nissuer = \"https://u:p@id.example\"".to_owned(),
            "[auth.issuers.a]\nissuer = \"id.example\"".to_owned(),
            "[auth.issuers.\"a/b\"]\nissuer = \"https://id.example\"".to_owned(),
        ] {
            assert!(of(&bad).is_err(), "{bad}");
        }
    }
}
