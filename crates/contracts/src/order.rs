//! Orders: decisions of an operator that hold until the next one on the same subject.
//!
//! Doc: records.md#orders

#[cfg(feature = "schemars")]
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use crate::error::InvalidTarget;
use crate::receipt::AuditPlace;

/// The newest decision on one subject.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Order {
    /// The subject with its state.
    pub subject: OrderSubject,
    /// The number of decisions on the subject so far; the first has 1.
    pub revision: u64,
    /// The operator who decided last.
    pub by: String,
    /// The time of the last decision, RFC 3339 UTC.
    pub at: String,
    /// The audit event of the last decision.
    pub audit_seq: AuditPlace,
}

impl Order {
    /// Returns the name under which the order is stored.
    #[must_use]
    pub fn name(&self) -> OrderName {
        match &self.subject {
            OrderSubject::Key(key) => OrderName::key(&key.name),
            OrderSubject::Pause(pause) => OrderName::pause(&pause.target),
        }
    }
}

/// The subject of an order, with the state that the order gives it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum OrderSubject {
    /// An API key.
    Key(ApiKey),
    /// A pause of calls.
    Pause(Pause),
}

/// A pause of calls, in force or ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Pause {
    /// The calls that it concerns.
    pub target: PauseTarget,
    /// Whether it is in force; otherwise the calls were resumed.
    pub in_force: bool,
    /// Whether the running calls are cancelled too.
    #[serde(default)]
    pub cancels_running: bool,
    /// The reason that the operator gave.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// The calls that a pause concerns. Its text form is `all`, `tool:ID`, `server:NAME` or
/// `caller:NAME`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(JsonSchema))]
#[serde(try_from = "String", into = "String")]
#[cfg_attr(feature = "schemars", schemars(with = "String"))]
pub enum PauseTarget {
    /// All calls.
    All,
    /// The calls of one tool, by id.
    Tool(String),
    /// The calls and requests to one server.
    Server(String),
    /// The calls and requests of one caller.
    Caller(String),
}

impl std::fmt::Display for PauseTarget {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::All => f.write_str("all"),
            Self::Tool(id) => write!(f, "tool:{id}"),
            Self::Server(name) => write!(f, "server:{name}"),
            Self::Caller(name) => write!(f, "caller:{name}"),
        }
    }
}

impl From<PauseTarget> for String {
    fn from(target: PauseTarget) -> Self {
        target.to_string()
    }
}

impl TryFrom<String> for PauseTarget {
    type Error = InvalidTarget;

    fn try_from(text: String) -> Result<Self, InvalidTarget> {
        match text.split_once(':') {
            None if text == "all" => Ok(Self::All),
            Some(("tool", id)) if !id.is_empty() => Ok(Self::Tool(id.to_owned())),
            Some(("server", name)) if !name.is_empty() => Ok(Self::Server(name.to_owned())),
            Some(("caller", name)) if !name.is_empty() => Ok(Self::Caller(name.to_owned())),
            _ => Err(InvalidTarget(text)),
        }
    }
}

/// An API key, of which only the digest is stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ApiKey {
    /// The name; its holder is the caller `key:NAME`.
    pub name: String,
    /// SHA-256 of the key, in hex.
    pub digest: String,
    /// Groups of the holder.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<String>,
    /// The time when it was created, RFC 3339 UTC.
    pub created_at: String,
    /// The time from which it is no longer valid, RFC 3339 UTC; absent = never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<String>,
    /// The time when it was revoked, RFC 3339 UTC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revoked_at: Option<String>,
}

impl ApiKey {
    /// Returns the state of the key at a time (RFC 3339 UTC with milliseconds).
    #[must_use]
    pub fn state(&self, now: &str) -> KeyState {
        if self.revoked_at.is_some() {
            KeyState::Revoked
        } else if self.expires_at.as_deref().is_some_and(|end| end <= now) {
            KeyState::Expired
        } else {
            KeyState::Active
        }
    }
}

/// The state of an API key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyState {
    /// It authenticates its holder.
    Active,
    /// It has expired.
    Expired,
    /// An operator revoked it.
    Revoked,
}

impl KeyState {
    /// Returns the text form.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Expired => "expired",
            Self::Revoked => "revoked",
        }
    }
}

/// The name of an order: the kind of its subject, and the name of the subject within that kind.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OrderName {
    /// `key` or `pause`.
    pub kind: String,
    /// The name.
    pub name: String,
}

impl OrderName {
    /// Returns the name of the orders about an API key.
    #[must_use]
    pub fn key(name: &str) -> Self {
        Self { kind: "key".to_owned(), name: name.to_owned() }
    }

    /// Returns the name of the orders about a pause.
    #[must_use]
    pub fn pause(target: &PauseTarget) -> Self {
        Self { kind: "pause".to_owned(), name: target.to_string() }
    }
}

impl std::fmt::Display for OrderName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.kind, self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_ends_at_its_time_or_when_it_is_revoked() {
        let key = ApiKey {
            name: "a".into(),
            digest: String::new(),
            groups: Vec::new(),
            created_at: "2026-01-01T00:00:00.000Z".into(),
            expires_at: Some("2026-02-01T00:00:00.000Z".into()),
            revoked_at: None,
        };
        assert_eq!(key.state("2026-01-31T23:59:59.999Z"), KeyState::Active);
        assert_eq!(key.state("2026-02-01T00:00:00.000Z"), KeyState::Expired);
        let revoked = ApiKey { revoked_at: Some("2026-01-02T00:00:00.000Z".into()), ..key };
        assert_eq!(revoked.state("2026-01-03T00:00:00.000Z"), KeyState::Revoked);
    }
}
