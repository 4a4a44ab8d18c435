//! Describes the door as a protected resource of OAuth (RFC 9728), and challenges clients (RFC 6750, 3).
//!
//! Path: 1. Doc: front-doors.md#access-tokens

use std::sync::Arc;

use axum::Router;
use axum::response::Json;
use axum::routing::get;
use serde_json::{Value, json};

use crate::auth::NotAuthenticated;

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

    fn description(&self) -> Value {
        let mut description = json!({
            "resource": self.resource,
            "authorization_servers": self.issuers,
            "bearer_methods_supported": ["header"],
            "resource_name": "Toolbooth",
        });
        if let (false, Some(members)) = (self.scopes.is_empty(), description.as_object_mut()) {
            members.insert("scopes_supported".to_owned(), json!(self.scopes));
        }
        description
    }
}

/// Serves the description, below the path of the resource and without it.
pub(super) fn routes(own: Arc<ProtectedResource>) -> Router {
    let describe = get(move || {
        let description = own.description();
        async move { Json(description) }
    });
    Router::new()
        .route(WELL_KNOWN, describe.clone())
        .route(&format!("{WELL_KNOWN}/mcp"), describe.clone())
        .route(&format!("{WELL_KNOWN}/mcp/{{toolset}}"), describe)
}

/// Returns the challenge of a request without valid credentials.
pub(super) fn challenge(error: &NotAuthenticated, own: Option<&ProtectedResource>) -> String {
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
        _ => add("error", "invalid_token"),
    }
    if let Some(own) = own {
        if !own.scopes.is_empty() {
            add("scope", &own.scopes.join(" "));
        }
        let (origin, path) = own.parts();
        add("resource_metadata", &format!("{origin}{WELL_KNOWN}{path}"));
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
        assert_eq!(challenge(&none, None), r#"Bearer realm="toolbooth""#);
        let described = r#"resource_metadata="https://gateway.example/.well-known/oauth-protected-resource/mcp""#;
        let scope = r#"scope="tools read""#;
        assert_eq!(
            challenge(&none, Some(&own)),
            format!(r#"Bearer realm="toolbooth", {scope}, {described}"#)
        );
        assert_eq!(
            challenge(&NotAuthenticated::UnknownKey, Some(&own)),
            format!(r#"Bearer realm="toolbooth", error="invalid_token", {scope}, {described}"#)
        );
        let lacks =
            NotAuthenticated::InsufficientScope { caller: "a".into(), scope: "read".into() };
        let bare = ProtectedResource { resource: "https://gateway.example".into(), ..own };
        let described =
            r#"resource_metadata="https://gateway.example/.well-known/oauth-protected-resource""#;
        assert_eq!(
            challenge(&lacks, Some(&bare)),
            format!(
                r#"Bearer realm="toolbooth", error="insufficient_scope", {scope}, {described}"#
            )
        );
    }
}
