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
    #[error("the header `Authorization` is not `Bearer` with a token that this gateway accepts")]
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
    /// The access token is not valid.
    #[cfg(feature = "oauth")]
    #[error(transparent)]
    Token(TokenRefusal),
    /// The access token lacks a scope that the gateway requires.
    #[error("the access token lacks the scope `{scope}`")]
    InsufficientScope {
        /// The name of the caller.
        caller: String,
        /// The missing scope.
        scope: String,
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
            #[cfg(feature = "oauth")]
            Self::Token(refusal) => refusal.reason(),
            Self::InsufficientScope { .. } => "insufficient-scope",
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

    /// Returns the name of the caller, if it is proven.
    #[must_use]
    pub fn caller(&self) -> Option<&str> {
        match self {
            Self::InsufficientScope { caller, .. } => Some(caller),
            _ => None,
        }
    }

    /// Whether the credentials cannot be checked at the moment, and may be valid.
    pub(crate) fn is_temporary(&self) -> bool {
        match self {
            #[cfg(feature = "oauth")]
            Self::Token(TokenRefusal::IssuerAway) => true,
            _ => *self == Self::Unchecked,
        }
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

/// The certificate or key of the door cannot be used.
#[cfg(feature = "tls")]
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// The certificate chain is not PEM.
    #[error("the certificate is not PEM: {0}")]
    Certificate(String),
    /// The key is not a private key in PEM.
    #[error("the key is not a private key in PEM (PKCS #8, PKCS #1 or SEC 1)")]
    Key,
    /// They do not fit each other, or are of an unsupported kind.
    #[error("certificate and key cannot be used: {0}")]
    Pair(#[source] rustls::Error),
}

/// The reason why no session was made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NoSession {
    #[error("this caller has as many sessions in use as it may have; end one with DELETE")]
    TooMany,
    #[error("the gateway has as many sessions as it may have; try again later")]
    Full,
}

/// The reason why an access token was refused.
#[cfg(feature = "oauth")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TokenRefusal {
    /// Longer than the limit.
    #[error("the access token is too long")]
    TooLong,
    /// No signed JWT in the compact form.
    #[error("the access token is not a signed JWT")]
    Malformed,
    /// Its algorithm is not an asymmetric one.
    #[error("the access token is not valid for this gateway")]
    Algorithm,
    /// It has critical extensions.
    #[error("the access token is not valid for this gateway")]
    Critical,
    /// It is a token for another purpose.
    #[error("the access token is not valid for this gateway")]
    Type,
    /// No configured issuer has issued it.
    #[error("the access token is not valid for this gateway")]
    Issuer,
    /// Its issuer has no such key.
    #[error("the access token is not valid for this gateway")]
    UnknownKey,
    /// Its signature is wrong.
    #[error("the access token is not valid for this gateway")]
    Signature,
    /// It has expired.
    #[error("the access token has expired")]
    Expired,
    /// It is not valid yet.
    #[error("the access token is not valid yet")]
    NotYetValid,
    /// It is for another resource.
    #[error("the access token is not valid for this gateway")]
    Audience,
    /// A claim is missing or malformed, or the token is bound to a key of its client.
    #[error("the access token is not valid for this gateway")]
    Claims,
    /// The keys of its issuer cannot be fetched.
    #[error("the access token cannot be checked at the moment; try again later")]
    IssuerAway,
}

#[cfg(feature = "oauth")]
impl TokenRefusal {
    /// Returns the reason in the form of records.
    #[must_use]
    pub fn reason(self) -> &'static str {
        match self {
            Self::TooLong => "token-too-long",
            Self::Malformed => "token-malformed",
            Self::Algorithm => "token-algorithm",
            Self::Critical => "token-critical",
            Self::Type => "token-type",
            Self::Issuer => "token-issuer",
            Self::UnknownKey => "token-key",
            Self::Signature => "token-signature",
            Self::Expired => "token-expired",
            Self::NotYetValid => "token-not-yet-valid",
            Self::Audience => "token-audience",
            Self::Claims => "token-claims",
            Self::IssuerAway => "issuer-away",
        }
    }
}

/// The settings of an issuer are not valid.
#[cfg(feature = "oauth")]
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IssuerError {
    /// The issuer has a `#`, which separates issuer and subject in the names of callers.
    #[error("the issuer `{}` has a `#`, which no issuer may have", issuer.escape_debug())]
    Fragment {
        /// The issuer.
        issuer: String,
    },
    /// The issuer is no secure URL.
    #[error("the issuer `{}` is not an https URL without query", issuer.escape_debug())]
    NoUrl {
        /// The issuer.
        issuer: String,
    },
    /// The address of the keys is not secure.
    #[error("`{}` is not an https URL", address.escape_debug())]
    Keys {
        /// The address.
        address: String,
    },
    /// Tokens for every resource would be accepted.
    #[error("the issuer `{}` needs an audience", issuer.escape_debug())]
    NoAudience {
        /// The issuer.
        issuer: String,
    },
    /// Two issuers are the same.
    #[error("the issuer `{}` is configured twice", issuer.escape_debug())]
    Twice {
        /// The issuer.
        issuer: String,
    },
}

/// The reason why a document of an issuer was not read.
#[cfg(feature = "oauth")]
#[derive(Debug, thiserror::Error)]
pub enum DocumentError {
    /// The server does not answer.
    #[error("`{address}` cannot be reached: {reason}")]
    Unreachable {
        /// The address.
        address: String,
        /// The cause.
        reason: String,
    },
    /// The issuer does not answer in time.
    #[error("the issuer does not answer in time")]
    Timeout,
    /// The attempt ended before its end. That is a defect of this crate or of the documents' source.
    #[error("the attempt was interrupted")]
    Interrupted,
    /// There is nothing at the address.
    #[error("there is no document at `{address}`")]
    NoDocument {
        /// The address.
        address: String,
    },
    /// The server answers with an error or a redirect.
    #[error("`{address}` is answered with status {status}")]
    Status {
        /// The address.
        address: String,
        /// The HTTP status.
        status: u16,
    },
    /// The document is not as specified.
    #[error("{reason}")]
    Malformed {
        /// The reason.
        reason: String,
    },
}
