//! The errors of the front doors.

use toolbooth_proxy::KeyRefusal;

/// An error that prevents or ends the service of a stdio client.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The requested tool set does not exist.
    #[error("there is no tool set `{}`", name.escape_debug())]
    NoToolSet {
        /// The name.
        name: String,
    },
    /// The client's input failed.
    #[error("standard input: {0}")]
    Input(#[source] std::io::Error),
}

/// An error of reading a body.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BodyError {
    /// Longer than the limit.
    #[error("a request's body has at most {most} bytes")]
    TooLarge {
        /// The limit.
        most: usize,
    },
    /// Larger than the rest of the shared budget.
    #[error("too many bytes of requests are held at the moment; try again later")]
    OverBudget,
    /// Not complete in time.
    #[error("the request's body was not complete in time")]
    Timeout,
    /// Not framed as HTTP/1.1, or not complete.
    #[error("the request's body is not framed as HTTP/1.1 has it, or is not complete")]
    Malformed(#[source] hyper::Error),
}

/// The reason why a request was not authenticated. Its text is for the client: it does not tell
/// which keys exist. [`NotAuthenticated::reason`] is for operators.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotAuthenticated {
    /// The request has no credentials and may not call without them.
    #[error("{0}")]
    NoCredentials(&'static str),
    /// The connection does not come from the proxy in front of the door.
    #[error("this gateway is reached through its proxy only")]
    NotTheProxy,
    /// The credentials are not one bearer token.
    #[error("the header `Authorization` is not `Bearer` with an API key")]
    Malformed,
    /// The credentials are in the URL.
    #[error("credentials do not belong in the URL; send the header `Authorization`")]
    InUrl,
    /// No key has this text.
    #[error("the credentials are not valid")]
    UnknownKey,
    /// The key has expired.
    #[error("the credentials are not valid")]
    ExpiredKey {
        /// Its name.
        name: String,
    },
    /// The key was revoked.
    #[error("the credentials are not valid")]
    RevokedKey {
        /// Its name.
        name: String,
    },
    /// The keys were not read for too long, so that one may have been revoked since.
    #[error("the credentials cannot be checked at the moment; try again later")]
    Unchecked,
}

impl NotAuthenticated {
    /// Returns the reason in the form of records.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self {
            Self::NoCredentials(_) => "no-credentials",
            Self::NotTheProxy => "not-the-proxy",
            Self::Malformed => "malformed",
            Self::InUrl => "in-url",
            Self::UnknownKey => "unknown-key",
            Self::ExpiredKey { .. } => "expired-key",
            Self::RevokedKey { .. } => "revoked-key",
            Self::Unchecked => "unchecked",
        }
    }

    /// Returns the name of a key that was valid once.
    #[must_use]
    pub fn key(&self) -> Option<&str> {
        match self {
            Self::ExpiredKey { name } | Self::RevokedKey { name } => Some(name),
            _ => None,
        }
    }

    /// Whether the request had credentials, which are not valid.
    pub(crate) fn is_about_credentials(&self) -> bool {
        !matches!(self, Self::NoCredentials(_) | Self::NotTheProxy)
    }
}

impl From<KeyRefusal> for NotAuthenticated {
    fn from(refusal: KeyRefusal) -> Self {
        match refusal {
            KeyRefusal::Unknown => Self::UnknownKey,
            KeyRefusal::Expired { name } => Self::ExpiredKey { name },
            KeyRefusal::Revoked { name } => Self::RevokedKey { name },
            KeyRefusal::Unread => Self::Unchecked,
        }
    }
}

/// The reason why no session was made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NoSession {
    #[error("this caller has as many sessions in use as it may have; end one with DELETE")]
    TooMany,
    #[error("the gateway has as many sessions as it may have; try again later")]
    Full,
}
