//! References to secrets, which are written in place of values.
//!
//! Doc: execution.md#secrets

use std::fmt;

#[cfg(feature = "schemars")]
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A reference to a secret in configuration, resolved at execution and never logged.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SecretRef {
    /// `env:NAME`, `file:PATH` or `keyring:SERVICE/USER`.
    #[serde(alias = "secret_ref")]
    pub secret_ref: SecretLocation,
}

/// The location of a secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(JsonSchema))]
#[serde(try_from = "String", into = "String")]
pub enum SecretLocation {
    /// An environment variable of the gateway.
    Env(String),
    /// A file that only the gateway's user can read.
    File(String),
    /// An entry of the operating system's key ring.
    Keyring {
        /// The service.
        service: String,
        /// The user.
        user: String,
    },
}

impl TryFrom<String> for SecretLocation {
    type Error = crate::error::InvalidName;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        // The text is not repeated, because it may be the secret itself.
        let refuse = || {
            crate::error::InvalidName(
                "a secret reference is `env:NAME`, `file:PATH` or `keyring:SERVICE/USER`"
                    .to_owned(),
            )
        };
        let (kind, rest) = text.split_once(':').ok_or_else(refuse)?;
        if rest.trim().is_empty() {
            return Err(refuse());
        }
        match kind {
            "env" => Ok(Self::Env(rest.to_owned())),
            "file" => Ok(Self::File(rest.to_owned())),
            "keyring" => match rest.split_once('/') {
                Some((service, user)) if !service.is_empty() && !user.is_empty() => {
                    Ok(Self::Keyring { service: service.to_owned(), user: user.to_owned() })
                }
                _ => Err(refuse()),
            },
            _ => Err(refuse()),
        }
    }
}

impl From<SecretLocation> for String {
    fn from(location: SecretLocation) -> Self {
        location.to_string()
    }
}

impl fmt::Display for SecretLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Env(name) => write!(f, "env:{name}"),
            Self::File(path) => write!(f, "file:{path}"),
            Self::Keyring { service, user } => write!(f, "keyring:{service}/{user}"),
        }
    }
}
