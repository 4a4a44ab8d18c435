//! Fetches documents of issuers over HTTPS, within limits.
//!
//! Doc: front-doors.md#access-tokens

use std::time::Duration;

use async_trait::async_trait;
use reqwest::redirect::Policy;
use reqwest::{Client, StatusCode};

use super::documents::Documents;
use super::settings::is_secure;
use crate::error::DocumentError;

/// Maximum length of a document.
const DOCUMENT_BYTES_MAX: usize = 256 << 10;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const TIMEOUT: Duration = Duration::from_secs(10);

/// Fetches documents over HTTPS, and over HTTP from this machine.
#[derive(Debug, Clone)]
pub struct HttpsDocuments {
    /// Uses the proxy of the environment, if any.
    remote: Client,
    /// Asks this machine directly, because what it asks is not encrypted.
    own: Client,
}

impl HttpsDocuments {
    /// Creates the client. It trusts the authorities that the machine trusts.
    ///
    /// # Errors
    /// [`DocumentError::Unreachable`], if the machine's authorities cannot be read.
    pub fn new() -> Result<Self, DocumentError> {
        // Already installed where another part of the process uses TLS.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let builder = || {
            Client::builder()
                .redirect(Policy::none())
                .connect_timeout(CONNECT_TIMEOUT)
                .timeout(TIMEOUT)
                .pool_max_idle_per_host(0)
                .user_agent(concat!("toolbooth/", env!("CARGO_PKG_VERSION")))
        };
        let built = |builder: reqwest::ClientBuilder| {
            builder.build().map_err(|error| unreachable("the client", error))
        };
        Ok(Self { remote: built(builder())?, own: built(builder().no_proxy())? })
    }
}

fn unreachable(address: &str, error: reqwest::Error) -> DocumentError {
    let address = address.to_owned();
    DocumentError::Unreachable { address, source: error.without_url().into() }
}

#[async_trait]
impl Documents for HttpsDocuments {
    async fn get(&self, address: &str) -> Result<Vec<u8>, DocumentError> {
        let wrong = |reason: String| DocumentError::Malformed { reason };
        if !is_secure(address) {
            return Err(wrong(format!("`{}` is not https", address.escape_debug())));
        }
        let client = if address.starts_with("https:") { &self.remote } else { &self.own };
        let request = client.get(address).header("accept", "application/json");
        let mut response = request.send().await.map_err(|error| unreachable(address, error))?;
        let status = response.status();
        if status != StatusCode::OK {
            let (address, status) = (address.to_owned(), status.as_u16());
            return Err(match status {
                404 | 405 | 410 => DocumentError::NoDocument { address },
                _ => DocumentError::Status { address, status },
            });
        }
        let mut document = Vec::new();
        while let Some(bytes) =
            response.chunk().await.map_err(|error| unreachable(address, error))?
        {
            if document.len() + bytes.len() > DOCUMENT_BYTES_MAX {
                return Err(wrong(format!("`{address}` has more than {DOCUMENT_BYTES_MAX} bytes")));
            }
            document.extend_from_slice(&bytes);
        }
        Ok(document)
    }
}
