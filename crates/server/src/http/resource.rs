//! Describes the door as a protected resource of OAuth (RFC 9728), and challenges clients (RFC 6750, 3).
//!
//! Path: 1. Doc: front-doors.md#access-tokens

use std::sync::Arc;

use axum::Router;
use axum::response::{IntoResponse, Json};
use axum::routing::get;
use http::Uri;
use serde_json::{Value, json};

use crate::auth::NotAuthenticated;
use crate::toolset_path::{is_toolset, toolset_of};

/// The path of the description (RFC 9728, 3).
const WELL_KNOWN: &str = "/.well-known/oauth-protected-resource";

/// The door as a protected resource of OAuth.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProtectedResource {
    /// Its identifier (RFC 8707): the URL of the MCP endpoint, as clients reach it.
    pub resource: String,
    /// The issuers of the tokens that it accepts.
    pub issuers: Vec<String>,
    /// The scopes that a token must have.
    pub scopes: Vec<String>,
}

impl ProtectedResource {
    /// Returns origin and path of the identifier.
    fn parts(&self) -> (&str, &str) {
        let host = self.resource.find("://").map_or(0, |at| at + 3);
        let path = self.resource.get(host..).and_then(|rest| rest.find('/'));
        let (origin, path) =
            self.resource.split_at(path.map_or(self.resource.len(), |at| host + at));
        (origin, path.trim_end_matches('/'))
    }

    /// Returns the description of the resource, or of a tool set of it.
    fn description(&self, toolset: Option<&str>) -> Value {
        let resource = match toolset {
            Some(name) => format!("{}/{name}", self.resource.trim_end_matches('/')),
            None => self.resource.clone(),
        };
        let mut description = json!({
            "resource": resource,
            "authorization_servers": self.issuers,
            "bearer_methods_supported": ["header"],
            "resource_name": "Toolbooth",
        });
        if let (false, Some(members)) = (self.scopes.is_empty(), description.as_object_mut()) {
            members.insert("scopes_supported".to_owned(), json!(self.scopes));
        }
        description
    }

    /// Returns the description for the rest of the well-known path. The rest is the path of the
    /// resource as clients see it or as it is behind a proxy, optionally with a tool set.
    fn described(&self, path: &str) -> Option<Value> {
        let own = self.parts().1;
        if path.is_empty() {
            return Some(self.description(None));
        }
        let mut known = [own, "/mcp"].into_iter().filter(|known| !known.is_empty());
        let rest = known.find_map(|known| path.strip_prefix(known))?;
        match rest {
            "" => Some(self.description(None)),
            _ => rest
                .strip_prefix('/')
                .filter(|name| is_toolset(name))
                .map(|name| self.description(Some(name))),
        }
    }
}

/// Serves the descriptions.
pub(super) fn routes(own: Arc<ProtectedResource>) -> Router {
    let describe = |uri: Uri| async move {
        let path = uri.path().strip_prefix(WELL_KNOWN).unwrap_or_default();
        match own.described(path) {
            Some(description) => Json(description).into_response(),
            None => super::routes::not_found().await,
        }
    };
    Router::new()
        .route(WELL_KNOWN, get(describe.clone()))
        .route(&format!("{WELL_KNOWN}/{{*resource}}"), get(describe))
}

/// Returns the challenge of a request to a path without valid credentials.
pub(super) fn challenge(
    error: &NotAuthenticated,
    own: Option<&ProtectedResource>,
    request: &str,
) -> String {
    let mut challenge = "Bearer realm=\"toolbooth\"".to_owned();
    let mut add = |name: &str, value: &str| {
        // These two would have to be escaped; no URL and no scope has them (RFC 6749, 3.3).
        let value = value.replace(['"', '\\'], "");
        challenge.push_str(&format!(", {name}=\"{value}\""));
    };
    match error {
        // A request without credentials is told no error (RFC 6750, 3.1).
        NotAuthenticated::NoCredentials(_) | NotAuthenticated::NotTheProxy => (),
        NotAuthenticated::InsufficientScope { .. } => add("error", "insufficient_scope"),
        NotAuthenticated::Malformed | NotAuthenticated::InUrl => add("error", "invalid_request"),
        _ => add("error", "invalid_token"),
    }
    if let Some(own) = own {
        if !own.scopes.is_empty() {
            add("scope", &own.scopes.join(" "));
        }
        let (origin, path) = own.parts();
        let toolset = toolset_of(request).map(|name| format!("/{name}")).unwrap_or_default();
        add("resource_metadata", &format!("{origin}{WELL_KNOWN}{path}{toolset}"));
    }
    challenge
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_challenge_names_the_description_and_the_scopes() {
        let own = ProtectedResource {
            resource: "https://gateway.example/mcp".into(),
            issuers: vec!["https://id.example".into()],
            scopes: vec!["tools".into(), "read".into()],
        };
        let none = NotAuthenticated::NoCredentials("");
        assert_eq!(challenge(&none, None, "/mcp"), r#"Bearer realm="toolbooth""#);
        let described = r#"resource_metadata="https://gateway.example/.well-known/oauth-protected-resource/mcp""#;
        let scope = r#"scope="tools read""#;
        assert_eq!(
            challenge(&none, Some(&own), "/v1/calls"),
            format!(r#"Bearer realm="toolbooth", {scope}, {described}"#)
        );
        assert_eq!(
            challenge(&NotAuthenticated::UnknownKey, Some(&own), "/mcp"),
            format!(r#"Bearer realm="toolbooth", error="invalid_token", {scope}, {described}"#)
        );
        let lacks =
            NotAuthenticated::InsufficientScope { caller: "a".into(), scope: "read".into() };
        let bare = ProtectedResource { resource: "https://gateway.example".into(), ..own };
        let described =
            r#"resource_metadata="https://gateway.example/.well-known/oauth-protected-resource""#;
        assert_eq!(
            challenge(&lacks, Some(&bare), "/mcp"),
            format!(
                r#"Bearer realm="toolbooth", error="insufficient_scope", {scope}, {described}"#
            )
        );
    }

    #[test]
    fn a_tool_set_is_a_resource_of_its_own() {
        let of = |resource: &str| ProtectedResource {
            resource: resource.into(),
            issuers: vec!["https://id.example".into()],
            scopes: Vec::new(),
        };
        let own = of("https://gateway.example/tools/mcp");
        let named = |path: &str| own.described(path).map(|told| told["resource"].clone());
        for path in ["", "/mcp", "/tools/mcp"] {
            assert_eq!(named(path), Some(json!("https://gateway.example/tools/mcp")), "{path}");
        }
        for path in ["/mcp/work", "/tools/mcp/work"] {
            assert_eq!(
                named(path),
                Some(json!("https://gateway.example/tools/mcp/work")),
                "{path}"
            );
        }
        for path in ["/other", "/mcp/a/b", "/mcp/", "/tools/mcp/a.b", "/mcpwork"] {
            assert_eq!(named(path), None, "{path}");
        }
        let bare = of("https://gateway.example");
        let told = bare.described("/mcp").map(|told| told["resource"].clone());
        assert_eq!(told, Some(json!("https://gateway.example")));
        let none = NotAuthenticated::NoCredentials("");
        let told = challenge(&none, Some(&own), "/mcp/work");
        assert!(told.ends_with("oauth-protected-resource/tools/mcp/work\""), "{told}");
        assert!(!challenge(&none, Some(&own), "/mcp/a\"b").contains("a\"b"));
    }
}
