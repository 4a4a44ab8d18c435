//! Read ports of the policy: credentials and pending approvals, kept by a store.
//!
//! Doc: policy.md#approval

use async_trait::async_trait;
use toolbooth_contracts::approval::Approval;

/// Why a read did not succeed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the store cannot be read: {0}")]
pub struct ReadError(pub String);

/// An API key, as it is kept: never the key itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Credential {
    /// The name; the caller is `key:NAME`.
    pub name: String,
    /// SHA-256 of the key, in hex.
    pub key_digest: String,
    /// Whether it was revoked.
    pub revoked: bool,
}

/// Looks up API keys.
#[async_trait]
pub trait CredentialStore: Send + Sync {
    /// The credential whose key has this digest.
    ///
    /// # Errors
    /// Where the store does not answer.
    async fn by_digest(&self, key_digest: &str) -> Result<Option<Credential>, ReadError>;
}

/// Looks up approvals.
#[async_trait]
pub trait ApprovalReads: Send + Sync {
    /// Approvals that nobody has decided, oldest first, at most `limit`.
    ///
    /// # Errors
    /// Where the store does not answer.
    async fn pending(&self, limit: usize) -> Result<Vec<Approval>, ReadError>;
}
