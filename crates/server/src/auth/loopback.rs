//! Authenticates the local user by the connection alone.
//!
//! Path: 1. Doc: front-doors.md#who-may-call

use toolbooth_contracts::Caller;

use super::Connection;
use crate::error::NotAuthenticated;
use crate::peer::PeerOwner;

/// The connections that may call without credentials, as the caller `local`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Loopback {
    /// Accepts loopback connections of the user that runs the gateway.
    #[default]
    SameUser,
    /// Accepts loopback connections of every user of this machine.
    Any,
    /// Accepts no connection without credentials.
    None,
}

impl Loopback {
    /// Returns the local user if the connection proves it.
    ///
    /// # Errors
    /// [`NotAuthenticated::NoCredentials`].
    pub(super) fn caller(self, connection: &Connection) -> Result<Caller, NotAuthenticated> {
        let refused = |message: &'static str| Err(NotAuthenticated::NoCredentials(message));
        if self == Self::None {
            return refused("this gateway accepts no call without credentials");
        }
        if !connection.peer.ip().to_canonical().is_loopback() {
            return refused("only the loopback address may call without credentials");
        }
        match (self, connection.owner) {
            (Self::Any, _) | (Self::SameUser, PeerOwner::SameUser) => Ok(Caller::local()),
            _ => refused(
                "the connection is not proven to come from the user that runs the gateway; run the \
                 client as that user and keep its connection open, give it an API key, or set \
                 `[http] loopback = \"any\"`",
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passes(rule: Loopback, peer: [u8; 4], owner: PeerOwner) -> bool {
        let connection =
            Connection { peer: (peer, 1).into(), local: ([127, 0, 0, 1], 2).into(), owner };
        rule.caller(&connection).is_ok()
    }

    #[test]
    fn only_a_proven_owner_is_local() {
        let here = [127, 0, 0, 1];
        assert!(passes(Loopback::SameUser, here, PeerOwner::SameUser));
        assert!(!passes(Loopback::SameUser, here, PeerOwner::OtherUser));
        assert!(!passes(Loopback::SameUser, here, PeerOwner::Unknown));
        assert!(passes(Loopback::Any, here, PeerOwner::OtherUser));
        assert!(!passes(Loopback::Any, [192, 0, 2, 1], PeerOwner::SameUser));
        assert!(!passes(Loopback::None, here, PeerOwner::SameUser));
    }
}
