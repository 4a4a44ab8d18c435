//! Fetches documents of issuers over HTTPS, within limits.
//!
//! Doc: front-doors.md#access-tokens

use std::time::Duration;

use async_trait::async_trait;
use reqwest::redirect::Policy;
use reqwest::{Client, StatusCode};
use toolbooth_contracts::causes::with_causes;

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
            builder.build().map_err(|error| unreachable("the client", &error.without_url()))
        };
        Ok(Self { remote: built(builder())?, own: built(builder().no_proxy())? })
    }
}

/// The error of a request, with its causes: the outermost one says only that the request failed.
fn unreachable(address: &str, error: &(dyn std::error::Error + 'static)) -> DocumentError {
    DocumentError::Unreachable { address: address.to_owned(), reason: with_causes(error) }
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
        let mut response =
            request.send().await.map_err(|error| unreachable(address, &error.without_url()))?;
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
            response.chunk().await.map_err(|error| unreachable(address, &error.without_url()))?
        {
            if document.len() + bytes.len() > DOCUMENT_BYTES_MAX {
                return Err(wrong(format!("`{address}` has more than {DOCUMENT_BYTES_MAX} bytes")));
            }
            document.extend_from_slice(&bytes);
        }
        Ok(document)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_issuer_that_cannot_be_reached_has_a_cause() {
        // A port that was free a moment ago.
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}/keys", listener.local_addr().unwrap());
        drop(listener);
        let error = HttpsDocuments::new().unwrap().get(&address).await.unwrap_err();
        assert!(error.to_string().contains("refused"), "{error}");
    }
}
