//! Posts signed JSON documents to a URL, in the form of the Standard Webhooks specification (v1).
//!
//! Doc: policy.md#notifications

use std::time::Duration;

use data_encoding::BASE64;
use ring::hmac::{HMAC_SHA256, Key, sign};
use secrecy::{ExposeSecret, SecretString};

use crate::error::WebhookError;

/// The beginning of a signing key that is written in base64.
const KEY_START: &str = "whsec_";

/// A URL that receives documents.
#[derive(Debug, Clone)]
pub struct Webhook {
    url: String,
    /// The key with which documents are signed.
    key: SecretString,
    client: reqwest::Client,
}

impl Webhook {
    /// Creates a webhook. A `key` that begins with `whsec_` is base64, any other is used as it is.
    ///
    /// # Errors
    /// [`WebhookError::Key`] if the key is empty or not in base64, [`WebhookError::Client`].
    pub fn new(url: String, key: SecretString, timeout: Duration) -> Result<Self, WebhookError> {
        signing_key(&key)?;
        let client = crate::tls::client()
            .timeout(timeout)
            .redirect(reqwest::redirect::Policy::none())
            .no_proxy()
            .build()
            .map_err(WebhookError::Client)?;
        Ok(Self { url, key, client })
    }

    /// Posts a document once. `id` is the same at every attempt; `at` is in seconds since 1970.
    ///
    /// # Errors
    /// [`WebhookError::Client`] if there is no answer, [`WebhookError::Status`] if the answer is no success.
    pub async fn post(&self, id: &str, at: i64, document: String) -> Result<(), WebhookError> {
        let signature = signature(&signing_key(&self.key)?, id, at, &document);
        let answer = self
            .client
            .post(&self.url)
            .header("content-type", "application/json")
            .header("webhook-id", id)
            .header("webhook-timestamp", at)
            .header("webhook-signature", signature)
            .body(document)
            .send()
            .await
            .map_err(|error| WebhookError::Client(error.without_url()))?;
        match answer.status().is_success() {
            true => Ok(()),
            false => Err(WebhookError::Status(answer.status().as_u16())),
        }
    }
}

/// Returns the bytes of a signing key.
fn signing_key(key: &SecretString) -> Result<Vec<u8>, WebhookError> {
    let text = key.expose_secret();
    let bytes = match text.strip_prefix(KEY_START) {
        Some(encoded) => BASE64.decode(encoded.as_bytes()).map_err(|_| WebhookError::Key)?,
        None => text.as_bytes().to_vec(),
    };
    if bytes.is_empty() { Err(WebhookError::Key) } else { Ok(bytes) }
}

/// Returns the value of the header `webhook-signature`.
fn signature(key: &[u8], id: &str, at: i64, document: &str) -> String {
    let signed = sign(&Key::new(HMAC_SHA256, key), format!("{id}.{at}.{document}").as_bytes());
    format!("v1,{}", BASE64.encode(signed.as_ref()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of the Standard Webhooks specification.
    #[test]
    fn the_signature_is_that_of_the_standard() {
        let key = SecretString::from("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw");
        let document = r#"{"test": 2432232314}"#;
        let made = signature(
            &signing_key(&key).unwrap(),
            "msg_p5jXN8AQM9LWM0D4loKWxJek",
            1_614_265_330,
            document,
        );
        assert_eq!(made, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
    }

    #[test]
    fn a_key_without_bytes_is_refused() {
        for text in ["", "whsec_", "whsec_*"] {
            assert!(signing_key(&SecretString::from(text)).is_err(), "{text}");
        }
        assert_eq!(signing_key(&SecretString::from("plain")).unwrap(), b"plain");
    }
}
