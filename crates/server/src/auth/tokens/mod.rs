//! Authenticates access tokens (JWT) of configured issuers: OAuth 2.1 bearer tokens (RFC 6750,
//! RFC 9068).
//!
//! Path: 1. Doc: front-doors.md#access-tokens

mod claims;
mod fetch;
mod issuer;
mod jws;
mod key_set;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use toolbooth_contracts::Identity;
use toolbooth_proxy::{Clock, secret_digest};
use url::{Host, Url};

pub use crate::error::{DocumentError, IssuerError, TokenRefusal};
use claims::Subject;
pub use fetch::HttpsDocuments;
use issuer::{Away, Issuer};
use jws::Jws;
use key_set::VerifyingKey;

/// Maximum number of verified tokens that are remembered.
const VERIFIED_MAX: usize = 10_000;

/// Fetches the documents of issuers.
#[async_trait]
pub trait Documents: Send + Sync {
    /// Returns the document at an address.
    ///
    /// # Errors
    /// [`DocumentError`].
    async fn get(&self, address: &str) -> Result<Vec<u8>, DocumentError>;
}

/// An issuer of access tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IssuerSettings {
    /// The name with which the groups of its tokens begin: `NAME/GROUP`. No group of another issuer or
    /// of an API key is the same.
    pub name: String,
    /// The claim `iss` of its tokens, to the letter.
    pub issuer: String,
    /// The address of its keys; `None` = the one in its metadata.
    pub jwks_uri: Option<String>,
    /// The audiences of which a token must have one, beside the resource.
    pub audiences: Vec<String>,
    /// The resource for which tokens are issued (RFC 8707). A tool set is a resource of its own,
    /// `RESOURCE/NAME`; a token for it is not valid elsewhere.
    pub resource: Option<String>,
    /// The claim with the groups of the subject, by its name or as a JSON pointer.
    pub groups_claim: Option<String>,
}

impl IssuerSettings {
    fn check(&self) -> Result<(), IssuerError> {
        let issuer = || self.issuer.clone();
        if self.issuer.contains('#') {
            return Err(IssuerError::Fragment { issuer: issuer() });
        }
        if self.issuer.contains('?') || !is_secure(&self.issuer) {
            return Err(IssuerError::NoUrl { issuer: issuer() });
        }
        if let Some(address) = self.jwks_uri.as_ref().filter(|address| !is_secure(address)) {
            return Err(IssuerError::Keys { address: address.clone() });
        }
        match self.audiences.iter().chain(&self.resource).any(|audience| !audience.is_empty()) {
            true => Ok(()),
            false => Err(IssuerError::NoAudience { issuer: issuer() }),
        }
    }

    /// Whether a token with one of these audiences is valid for a tool set, or for everything.
    fn admits(&self, audiences: &[String], toolset: Option<&str>) -> bool {
        audiences.iter().any(|audience| {
            let is_own = |resource: &String| {
                let rest = audience.strip_prefix(resource.as_str());
                rest.is_some_and(|rest| {
                    rest.is_empty()
                        || rest.strip_prefix('/').is_some_and(|name| Some(name) == toolset)
                })
            };
            self.audiences.contains(audience) || self.resource.as_ref().is_some_and(is_own)
        })
    }
}

/// Whether an address is an HTTPS URL, or an HTTP URL of this machine.
fn is_secure(address: &str) -> bool {
    let Ok(url) = Url::parse(address) else { return false };
    let is_own = match url.host() {
        Some(Host::Domain(name)) => name == "localhost",
        Some(Host::Ipv4(address)) => address == Ipv4Addr::LOCALHOST,
        Some(Host::Ipv6(address)) => address == Ipv6Addr::LOCALHOST,
        None => return false,
    };
    url.username().is_empty()
        && url.password().is_none()
        && (url.scheme() == "https" || (url.scheme() == "http" && is_own))
}

/// An identity that a token has proven.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Proven {
    /// The identity.
    pub identity: Identity,
    /// The remaining time of the token.
    pub valid_for: Duration,
}

/// A token that was verified before.
struct Verified {
    subject: Subject,
    issuer: Arc<Issuer>,
    key: VerifyingKey,
}

/// Authenticates access tokens.
pub struct AccessTokens {
    issuers: HashMap<String, Arc<Issuer>>,
    clock: Arc<dyn Clock>,
    /// Tokens by their digests.
    verified: Mutex<HashMap<String, Arc<Verified>>>,
}

impl fmt::Debug for AccessTokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AccessTokens").field("issuers", &self.issuers.len()).finish_non_exhaustive()
    }
}

impl AccessTokens {
    /// Creates an authenticator for the tokens of these issuers. Their keys are fetched when they are
    /// first needed.
    ///
    /// # Errors
    /// [`IssuerError`].
    pub fn new(
        all: Vec<IssuerSettings>,
        documents: &Arc<dyn Documents>,
        clock: &Arc<dyn Clock>,
    ) -> Result<Self, IssuerError> {
        let mut issuers = HashMap::new();
        for settings in all {
            settings.check()?;
            let name = settings.issuer.clone();
            let issuer = Issuer::new(settings, Arc::clone(documents), Arc::clone(clock));
            if issuers.insert(name.clone(), Arc::new(issuer)).is_some() {
                return Err(IssuerError::Twice { issuer: name });
            }
        }
        Ok(Self { issuers, clock: Arc::clone(clock), verified: Mutex::default() })
    }

    /// Fetches the keys of each issuer, and returns the number of usable ones. For a check of the
    /// configuration.
    pub async fn probe(&self) -> Vec<(String, Result<usize, DocumentError>)> {
        let mut found = Vec::new();
        for (name, issuer) in &self.issuers {
            found.push((name.clone(), issuer.fetch().await.map(|keys| keys.len())));
        }
        found.sort_by(|(one, _), (other, _)| one.cmp(other));
        found
    }

    /// Returns the identity that a token proves, at the endpoint of a tool set or elsewhere.
    ///
    /// # Errors
    /// [`TokenRefusal`].
    pub async fn authenticate(
        &self,
        token: &str,
        toolset: Option<&str>,
    ) -> Result<Proven, TokenRefusal> {
        let digest = secret_digest(token);
        let known = self.verified().get(&digest).cloned();
        if let Some(known) = known
            && known.issuer.keys().await.is_ok_and(|keys| keys.has(&known.key))
        {
            return self.proven(&known.subject, &known.issuer, toolset);
        }
        let jws = Jws::read(token)?;
        let issuer = claims::issuer(&jws.claims).and_then(|name| self.issuers.get(name));
        let issuer = issuer.ok_or(TokenRefusal::Issuer)?;
        let away = |_: Away| TokenRefusal::IssuerAway;
        let mut keys = issuer.keys().await.map_err(away)?;
        let mut key = keys.verify(&jws);
        if key == Err(TokenRefusal::UnknownKey) {
            keys = issuer.keys_after(&keys).await.map_err(away)?;
            key = keys.verify(&jws);
        }
        let key = key?.clone();
        let subject = claims::subject(&jws.claims, &issuer.settings, self.clock.now().epoch_ms)?;
        let proven = self.proven(&subject, issuer, toolset)?;
        self.remember(digest, Verified { subject, issuer: Arc::clone(issuer), key });
        Ok(proven)
    }

    fn verified(&self) -> std::sync::MutexGuard<'_, HashMap<String, Arc<Verified>>> {
        self.verified.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn proven(
        &self,
        subject: &Subject,
        issuer: &Issuer,
        toolset: Option<&str>,
    ) -> Result<Proven, TokenRefusal> {
        if !issuer.settings.admits(&subject.audiences, toolset) {
            let audiences = &subject.audiences;
            tracing::debug!(?audiences, "an access token is for another resource");
            return Err(TokenRefusal::Audience);
        }
        let remaining = subject.ends_at.saturating_sub(self.clock.now().epoch_ms);
        match u64::try_from(remaining) {
            Ok(remaining @ 1..) => Ok(Proven {
                identity: subject.identity.clone(),
                valid_for: Duration::from_millis(remaining),
            }),
            _ => Err(TokenRefusal::Expired),
        }
    }

    fn remember(&self, digest: String, verified: Verified) {
        let now = self.clock.now().epoch_ms;
        let mut all = self.verified();
        if all.len() >= VERIFIED_MAX {
            all.retain(|_, known| known.subject.ends_at > now);
        }
        if all.len() >= VERIFIED_MAX {
            all.clear();
        }
        all.insert(digest, Arc::new(verified));
    }
}
