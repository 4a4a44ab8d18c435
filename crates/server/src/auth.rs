//! Names the caller of a request: only an authenticator makes a caller.
//!
//! Path: 1. Doc: front-doors.md#who-may-call

use std::net::SocketAddr;

use async_trait::async_trait;
use http::request::Parts;
use toolbooth_contracts::Caller;

use crate::error::NotAuthenticated;
use crate::peer::PeerOwner;

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

/// Authenticates the local user by the connection alone.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Loopback {
    /// Accepts loopback connections of the user that runs the gateway.
    #[default]
    SameUser,
    /// Accepts loopback connections of every user of this machine.
    Any,
}

#[async_trait]
impl Authenticator for Loopback {
    async fn authenticate(
        &self,
        _request: &Parts,
        connection: &Connection,
    ) -> Result<Caller, NotAuthenticated> {
        if !connection.peer.ip().to_canonical().is_loopback() {
            let message = "only the loopback address may call without credentials";
            return Err(NotAuthenticated(message.to_owned()));
        }
        match (self, connection.owner) {
            (Self::Any, _) | (Self::SameUser, PeerOwner::SameUser) => Ok(Caller::local()),
            (Self::SameUser, PeerOwner::OtherUser | PeerOwner::Unknown) => {
                let message = "the connection is not proven to come from the user that runs the \
                               gateway; run the client as that user and keep its connection open, \
                               or set `[http] loopback = \"any\"`";
                Err(NotAuthenticated(message.to_owned()))
            }
        }
    }
}

/// Returns the caller of the command line and of the stdio front door: the local user.
#[must_use]
pub fn local_user() -> Caller {
    Caller::local()
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn passes(rule: Loopback, peer: [u8; 4], owner: PeerOwner) -> bool {
        let connection =
            Connection { peer: (peer, 1).into(), local: ([127, 0, 0, 1], 2).into(), owner };
        let (request, ()) = http::Request::new(()).into_parts();
        rule.authenticate(&request, &connection).await.is_ok()
    }

    #[tokio::test]
    async fn only_a_proven_owner_is_local() {
        let here = [127, 0, 0, 1];
        assert!(passes(Loopback::SameUser, here, PeerOwner::SameUser).await);
        assert!(!passes(Loopback::SameUser, here, PeerOwner::OtherUser).await);
        assert!(!passes(Loopback::SameUser, here, PeerOwner::Unknown).await);
        assert!(passes(Loopback::Any, here, PeerOwner::OtherUser).await);
        assert!(!passes(Loopback::Any, [192, 0, 2, 1], PeerOwner::SameUser).await);
    }
}
