//! Who calls: only an authenticator makes a caller.
//!
//! Path: 1. Doc: front-doors.md#who-may-call

use std::net::SocketAddr;

use async_trait::async_trait;
use http::request::Parts;
use toolbooth_contracts::Caller;

/// Why nobody was authenticated.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct NotAuthenticated(pub String);

/// Finds out who makes a request.
#[async_trait]
pub trait Authenticator: Send + Sync {
    /// The caller.
    ///
    /// # Errors
    /// [`NotAuthenticated`], with a sentence that may be shown.
    async fn authenticate(
        &self,
        request: &Parts,
        peer: SocketAddr,
    ) -> Result<Caller, NotAuthenticated>;
}

/// Whoever reaches the loopback address has this machine's user account.
#[derive(Debug, Clone, Copy, Default)]
pub struct Loopback;

#[async_trait]
impl Authenticator for Loopback {
    async fn authenticate(
        &self,
        _request: &Parts,
        peer: SocketAddr,
    ) -> Result<Caller, NotAuthenticated> {
        if peer.ip().to_canonical().is_loopback() {
            Ok(Caller::local())
        } else {
            Err(NotAuthenticated(
                "only the loopback address may call without credentials".to_owned(),
            ))
        }
    }
}

/// The user at the command line or at the other end of standard input.
#[must_use]
pub fn local_user() -> Caller {
    Caller::local()
}
