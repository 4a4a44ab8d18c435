//! Callers: the identity that an authenticator has proven.
//!
//! Path: 1. Doc: policy.md#callers

use std::fmt;
use std::sync::Arc;

#[cfg(feature = "schemars")]
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How a caller was authenticated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum CallerKind {
    /// The user of this machine: command line, stdio, loopback connections without credentials.
    Local,
    /// The holder of the operator key, or of the data folder.
    Operator,
    /// The holder of an API key.
    Key,
    /// The subject of a bearer token (JWT).
    Jwt,
}

impl CallerKind {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Local, Self::Operator, Self::Key, Self::Jwt];

    /// Returns the kind as rules and records write it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Operator => "operator",
            Self::Key => "key",
            Self::Jwt => "jwt",
        }
    }
}

/// An authenticated identity, also in the form in which a queued call stores it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Identity {
    /// `local`, `operator`, `key:NAME` or `jwt:ISSUER#SUBJECT`, the same on every front door.
    pub name: String,
    /// How it was authenticated.
    pub kind: CallerKind,
    /// Groups of the key or of the token, sorted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<String>,
    /// Scopes of the token, sorted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub scopes: Vec<String>,
    /// The digest of the API key that proved it, which tells keys of one name apart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_digest: Option<String>,
}

impl Identity {
    /// Returns the identity of this machine's user.
    #[must_use]
    pub fn local() -> Self {
        Self::of(CallerKind::Local, "local")
    }

    /// Returns the identity of the operator.
    #[must_use]
    pub fn operator() -> Self {
        Self::of(CallerKind::Operator, "operator")
    }

    fn of(kind: CallerKind, name: &str) -> Self {
        let name = name.to_owned();
        Self { name, kind, groups: Vec::new(), scopes: Vec::new(), key_digest: None }
    }

    /// Whether the name alone states it.
    #[must_use]
    pub fn is_name_only(&self) -> bool {
        self.groups.is_empty() && self.scopes.is_empty() && self.key_digest.is_none()
    }

    /// Returns the identity with this name, without groups and scopes. `None` if no caller can have
    /// the name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        let kind = match name.split_once(':') {
            None if name == "local" => CallerKind::Local,
            None if name == "operator" => CallerKind::Operator,
            Some(("key", key)) if is_key_name(key) => CallerKind::Key,
            Some(("jwt", token)) => {
                let (issuer, subject) = token.split_once('#')?;
                if issuer.is_empty() || subject.is_empty() {
                    return None;
                }
                CallerKind::Jwt
            }
            _ => return None,
        };
        Some(Self::of(kind, name))
    }

    /// Returns the identity with these groups.
    #[must_use]
    pub fn with_groups(mut self, mut groups: Vec<String>) -> Self {
        groups.sort();
        groups.dedup();
        self.groups = groups;
        self
    }

    /// Returns the identity with these scopes.
    #[must_use]
    pub fn with_scopes(mut self, mut scopes: Vec<String>) -> Self {
        scopes.sort();
        scopes.dedup();
        self.scopes = scopes;
        self
    }
}

/// Whether a text can be the name of an API key, or of a group of keys: 1 to 64 ASCII letters,
/// digits, `.`, `_` and `-`, not beginning with `.` or `-`.
#[must_use]
pub fn is_key_name(text: &str) -> bool {
    (1..=64).contains(&text.len())
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'))
        && !text.starts_with(['.', '-'])
}

/// An authenticated caller.
///
/// It deliberately does not implement `Deserialize`: no wire type can carry it. Two callers are
/// equal if all of their identities are, so that values derived for one are never used for the
/// other. What belongs to a caller is kept by its name.
///
/// ```compile_fail
/// let forged: toolbooth_contracts::Caller = serde_json::from_str("\"local\"").unwrap();
/// ```
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Caller(Arc<Identity>);

impl Caller {
    /// Returns the caller with this machine's user account: command line, stdio, loopback without
    /// credentials.
    #[must_use]
    pub fn local() -> Self {
        Self::authenticated(Identity::local())
    }

    /// Returns the operator: the holder of the operator key, or of the data folder.
    #[must_use]
    pub fn operator() -> Self {
        Self::authenticated(Identity::operator())
    }

    /// Returns a caller that an authenticator has just proven. Only authenticators call this; the
    /// boundary rules reject it elsewhere.
    #[must_use]
    pub fn authenticated(identity: Identity) -> Self {
        Self(Arc::new(identity))
    }

    /// Returns the name of the caller in records and configuration.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Returns how the caller was authenticated.
    #[must_use]
    pub fn kind(&self) -> CallerKind {
        self.0.kind
    }

    /// Returns the groups of the caller.
    #[must_use]
    pub fn groups(&self) -> &[String] {
        &self.0.groups
    }

    /// Returns the whole identity.
    #[must_use]
    pub fn identity(&self) -> &Identity {
        &self.0
    }
}

impl fmt::Debug for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Caller({})", self.0.name)
    }
}

impl fmt::Display for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_tell_how_a_caller_was_authenticated() {
        let kind = |name: &str| Identity::named(name).map(|identity| identity.kind);
        assert_eq!(kind("local"), Some(CallerKind::Local));
        assert_eq!(kind("operator"), Some(CallerKind::Operator));
        assert_eq!(kind("key:ci-1"), Some(CallerKind::Key));
        assert_eq!(kind("jwt:https://id.example#user:7"), Some(CallerKind::Jwt));
        for bad in ["", "Local", "key:", "key:a b", "key:-a", "key:*", "jwt:#a", "jwt:a#", "jwt:a"]
        {
            assert_eq!(kind(bad), None, "{bad}");
        }
    }

    #[test]
    fn an_identity_is_restored_with_groups_and_scopes() {
        let identity = Identity::named("key:a").unwrap();
        let identity = identity.with_groups(vec!["z".into(), "a".into(), "z".into()]);
        assert_eq!(identity.groups, ["a", "z"]);
        let text = serde_json::to_string(&identity).unwrap();
        assert_eq!(text, r#"{"name":"key:a","kind":"key","groups":["a","z"]}"#);
        assert_eq!(serde_json::from_str::<Identity>(&text).unwrap(), identity);
    }
}
