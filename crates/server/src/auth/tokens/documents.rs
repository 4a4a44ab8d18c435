//! The port by which documents of issuers are fetched.
//!
//! Doc: front-doors.md#access-tokens

use async_trait::async_trait;

use crate::error::DocumentError;

/// Fetches the documents of issuers.
#[async_trait]
pub trait Documents: Send + Sync {
    /// Returns the document at an address.
    ///
    /// # Errors
    /// [`DocumentError`].
    async fn get(&self, address: &str) -> Result<Vec<u8>, DocumentError>;
}
