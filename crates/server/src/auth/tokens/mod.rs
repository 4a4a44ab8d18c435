//! Authenticates access tokens (JWT) of configured issuers: OAuth 2.1 bearer tokens (RFC 6750,
//! RFC 9068).
//!
//! Path: 1. Doc: front-doors.md#access-tokens

mod claims;
mod documents;
mod fetch;
mod issuer;
mod jws;
mod key_set;
mod settings;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use toolbooth_contracts::Identity;
use toolbooth_proxy::{Clock, secret_digest};

pub use crate::error::{DocumentError, IssuerError, TokenRefusal};
use claims::Subject;
pub use documents::Documents;
pub use fetch::HttpsDocuments;
use issuer::{Away, Issuer};
use jws::Jws;
use key_set::VerifyingKey;
pub use settings::IssuerSettings;

/// Maximum number of verified tokens that are remembered.
const VERIFIED_MAX: usize = 10_000;

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
