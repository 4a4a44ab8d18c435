//! Names the caller of a request: only an authenticator makes a caller.
//!
//! A request names its caller by its connection or by one `Authorization` header, never by its path,
//! its query, its body or any other header. A request with credentials that are not valid is refused,
//! also where it could call without any.
//!
//! Path: 1. Doc: front-doors.md#who-may-call

mod bearer;
mod loopback;
#[cfg(feature = "oauth")]
pub mod tokens;

use std::net::SocketAddr;
#[cfg(feature = "oauth")]
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use http::request::Parts;
use toolbooth_contracts::Caller;
use toolbooth_proxy::{ToolProxy, secret_digest};

pub use crate::error::NotAuthenticated;
use crate::peer::PeerOwner;
use bearer::Bearer;
pub use loopback::Loopback;

/// The connection of a request, as it was when it was accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Connection {
    /// The client's address.
    pub peer: SocketAddr,
    /// This end's address.
    pub local: SocketAddr,
    /// The owner of the client's socket.
    pub owner: PeerOwner,
}

/// The caller of a request.
#[derive(Debug, Clone)]
pub struct Authenticated {
    /// The caller.
    pub caller: Caller,
    /// The remaining time of its credentials; `None` = they do not expire, or the proxy knows their
    /// end ([`ToolProxy::check_identity`]). A stream ends with the credentials that opened it.
    pub valid_for: Option<Duration>,
}

impl From<Caller> for Authenticated {
    fn from(caller: Caller) -> Self {
        Self { caller, valid_for: None }
    }
}

/// Authenticates requests.
#[async_trait]
pub trait Authenticator: Send + Sync {
    /// Names the caller of the request.
    ///
    /// # Errors
    /// [`NotAuthenticated`], with a sentence that the client may see.
    async fn authenticate(
        &self,
        request: &Parts,
        connection: &Connection,
    ) -> Result<Authenticated, NotAuthenticated>;
}

/// Authenticates by the operator key, by an API key, by an access token, or by the connection.
pub struct Credentials {
    proxy: ToolProxy,
    loopback: Loopback,
    /// The digest of the operator key.
    operator: String,
    #[cfg(feature = "oauth")]
    tokens: Option<Arc<tokens::AccessTokens>>,
    /// The scopes that every access token must have.
    #[cfg(feature = "oauth")]
    scopes: Vec<String>,
}

impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Credentials").field("loopback", &self.loopback).finish_non_exhaustive()
    }
}

impl Credentials {
    /// Creates an authenticator by the keys that the proxy knows, by the operator key, and by
    /// connections without credentials.
    #[must_use]
    pub fn new(proxy: ToolProxy, loopback: Loopback, operator_key: &str) -> Self {
        Self {
            proxy,
            loopback,
            operator: secret_digest(operator_key),
            #[cfg(feature = "oauth")]
            tokens: None,
            #[cfg(feature = "oauth")]
            scopes: Vec::new(),
        }
    }

    /// Accepts access tokens too, if they have all of these scopes.
    #[cfg(feature = "oauth")]
    #[must_use]
    pub fn with_tokens(self, tokens: Arc<tokens::AccessTokens>, scopes: Vec<String>) -> Self {
        Self { tokens: Some(tokens), scopes, ..self }
    }

    #[cfg(feature = "oauth")]
    async fn of_token(
        &self,
        token: &str,
        request: &Parts,
    ) -> Result<Authenticated, NotAuthenticated> {
        let Some(tokens) = &self.tokens else { return Err(NotAuthenticated::Malformed) };
        let toolset = crate::toolset_path::toolset_of(request.uri.path());
        let tokens::Proven { identity, valid_for } =
            tokens.authenticate(token, toolset).await.map_err(NotAuthenticated::Token)?;
        let missing = self.scopes.iter().find(|scope| !identity.scopes.contains(scope));
        if let Some(scope) = missing {
            let (caller, scope) = (identity.name, scope.clone());
            return Err(NotAuthenticated::InsufficientScope { caller, scope });
        }
        let caller = Caller::authenticated(identity);
        Ok(Authenticated { caller, valid_for: Some(valid_for) })
    }

    #[cfg(not(feature = "oauth"))]
    async fn of_token(&self, _: &str, _: &Parts) -> Result<Authenticated, NotAuthenticated> {
        Err(NotAuthenticated::Malformed)
    }
}

#[async_trait]
impl Authenticator for Credentials {
    async fn authenticate(
        &self,
        request: &Parts,
        connection: &Connection,
    ) -> Result<Authenticated, NotAuthenticated> {
        match Bearer::of(request)? {
            None => Ok(self.loopback.caller(connection)?.into()),
            // Digests are compared, so the time of the comparison tells nothing about the key.
            Some(Bearer::OperatorKey(key)) => match secret_digest(key) == self.operator {
                true => Ok(Caller::operator().into()),
                false => Err(NotAuthenticated::UnknownKey),
            },
            Some(Bearer::ApiKey(key)) => {
                Ok(Caller::authenticated(self.proxy.key_holder(&secret_digest(key))?).into())
            }
            Some(Bearer::AccessToken(token)) => self.of_token(token, request).await,
        }
    }
}
