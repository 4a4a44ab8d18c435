//! Names the caller of a request: only an authenticator makes a caller.
//!
//! A request names its caller by its connection or by one `Authorization` header, never by its path,
//! its query, its body or any other header. A request with credentials that are not valid is refused,
//! also where it could call without any.
//!
//! Path: 1. Doc: front-doors.md#who-may-call

mod bearer;
mod loopback;

use std::net::SocketAddr;

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
    ) -> Result<Caller, NotAuthenticated>;
}

/// Authenticates by the operator key, by an API key, or by the connection.
pub struct Credentials {
    proxy: ToolProxy,
    loopback: Loopback,
    /// The digest of the operator key.
    operator: String,
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
        Self { proxy, loopback, operator: secret_digest(operator_key) }
    }
}

#[async_trait]
impl Authenticator for Credentials {
    async fn authenticate(
        &self,
        request: &Parts,
        connection: &Connection,
    ) -> Result<Caller, NotAuthenticated> {
        match Bearer::of(request)? {
            None => self.loopback.caller(connection),
            // Digests are compared, so the time of the comparison tells nothing about the key.
            Some(Bearer::OperatorKey(key)) => match secret_digest(key) == self.operator {
                true => Ok(Caller::operator()),
                false => Err(NotAuthenticated::UnknownKey),
            },
            Some(Bearer::ApiKey(key)) => {
                Ok(Caller::authenticated(self.proxy.key_holder(&secret_digest(key))?))
            }
            Some(Bearer::Other) => Err(NotAuthenticated::Malformed),
        }
    }
}
