//! Holds the keys of one issuer: fetched when they are first needed, again after a while, and when a
//! token names an unknown key.
//!
//! Path: 1. Doc: front-doors.md#access-tokens

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::Deserialize;
use toolbooth_proxy::Clock;

use super::key_set::KeySet;
use super::{Documents, IssuerSettings, is_secure};
use crate::error::DocumentError;

/// The age from which on keys are fetched again; the ones at hand are used meanwhile.
const REFRESH_EVERY: Duration = Duration::from_secs(300);
/// The age from which on a token waits until the keys are fetched again.
const REFRESH_MAX: Duration = Duration::from_secs(600);
/// The age up to which keys are used while the issuer cannot be reached.
const STALE_MAX: Duration = Duration::from_secs(24 * 3_600);
/// The shortest time between two attempts to fetch the keys.
const ATTEMPT_EVERY: Duration = Duration::from_secs(10);

/// The keys at hand. Times are those of the monotonic clock.
#[derive(Debug, Default)]
struct Held {
    keys: Option<(Arc<KeySet>, Duration)>,
    attempted_at: Option<Duration>,
    /// Whether the last attempt failed.
    is_failing: bool,
}

/// The issuer's keys cannot be fetched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Away;

/// One issuer.
pub(super) struct Issuer {
    pub(super) settings: IssuerSettings,
    documents: Arc<dyn Documents>,
    clock: Arc<dyn Clock>,
    held: Mutex<Held>,
    /// Held by the only attempt to fetch.
    fetching: tokio::sync::Mutex<()>,
}

impl Issuer {
    pub(super) fn new(
        settings: IssuerSettings,
        documents: Arc<dyn Documents>,
        clock: Arc<dyn Clock>,
    ) -> Self {
        let (held, fetching) = (Mutex::default(), tokio::sync::Mutex::default());
        Self { settings, documents, clock, held, fetching }
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the keys, with their age.
    fn at_hand(&self) -> Option<(Arc<KeySet>, Duration)> {
        let (keys, fetched_at) = self.held().keys.clone()?;
        let age = self.clock.monotonic().saturating_sub(fetched_at);
        (age < STALE_MAX).then_some((keys, age))
    }

    /// Whether the keys may be fetched at this time.
    fn may_attempt(&self) -> bool {
        let now = self.clock.monotonic();
        self.held().attempted_at.is_none_or(|at| now.saturating_sub(at) >= ATTEMPT_EVERY)
    }

    /// Returns the keys, which are fetched if they are too old.
    ///
    /// # Errors
    /// [`Away`], if there are none.
    pub(super) async fn keys(self: &Arc<Self>) -> Result<Arc<KeySet>, Away> {
        match self.at_hand() {
            Some((keys, age)) if age < REFRESH_EVERY => return Ok(keys),
            Some((keys, age)) if age < REFRESH_MAX => {
                if self.may_attempt() && self.fetching.try_lock().is_ok() {
                    let own = Arc::clone(self);
                    tokio::spawn(async move { own.refresh().await });
                }
                return Ok(keys);
            }
            _ => self.refresh().await,
        }
        self.at_hand().map(|(keys, _)| keys).ok_or(Away)
    }

    /// Returns the keys that were fetched after these, in which a token's key is missing; the same
    /// ones if they were fetched just now.
    ///
    /// # Errors
    /// [`Away`], if the last attempt failed: whether there is such a key cannot be told.
    pub(super) async fn keys_after(&self, seen: &Arc<KeySet>) -> Result<Arc<KeySet>, Away> {
        if self.at_hand().is_some_and(|(keys, _)| Arc::ptr_eq(&keys, seen)) {
            self.refresh().await;
        }
        let is_failing = self.held().is_failing;
        match is_failing {
            true => Err(Away),
            false => self.at_hand().map(|(keys, _)| keys).ok_or(Away),
        }
    }

    /// Fetches the keys, unless that was attempted just now. Waits for an attempt in progress.
    async fn refresh(&self) {
        let _fetching = self.fetching.lock().await;
        if !self.may_attempt() {
            return;
        }
        self.held().attempted_at = Some(self.clock.monotonic());
        // The time before the request: what the issuer changes later is missing.
        let began = self.clock.monotonic();
        let fetched = self.fetch().await;
        let mut held = self.held();
        held.is_failing = fetched.is_err();
        match fetched {
            Ok(keys) => {
                let known = held.keys.as_ref().is_some_and(|(known, _)| **known == keys);
                if !known {
                    let (issuer, count) = (&self.settings.issuer, keys.len());
                    tracing::info!(issuer, keys = count, "the keys of an issuer are fetched");
                }
                held.keys = Some((Arc::new(keys), began));
            }
            Err(error) => {
                let issuer = &self.settings.issuer;
                tracing::warn!(issuer, %error, "the keys of an issuer are not fetched");
            }
        }
    }

    /// Fetches the keys from the configured address, or from the one in the issuer's metadata.
    pub(super) async fn fetch(&self) -> Result<KeySet, DocumentError> {
        let address = match &self.settings.jwks_uri {
            Some(address) => address.clone(),
            None => self.discover().await?,
        };
        KeySet::read(&self.documents.get(&address).await?)
    }

    /// Returns the address of the keys from the issuer's metadata (RFC 8414, 3; OpenID Connect
    /// Discovery, 4).
    async fn discover(&self) -> Result<String, DocumentError> {
        #[derive(Deserialize)]
        struct Metadata {
            issuer: String,
            jwks_uri: Option<String>,
        }
        let issuer = &self.settings.issuer;
        let mut missing = None;
        for address in metadata_addresses(issuer) {
            let document = match self.documents.get(&address).await {
                Ok(document) => document,
                Err(error @ DocumentError::NoDocument { .. }) => {
                    missing = Some(error);
                    continue;
                }
                Err(error) => return Err(error),
            };
            let wrong = |reason: String| DocumentError::Malformed { reason };
            let metadata: Metadata = serde_json::from_slice(&document).map_err(|error| {
                wrong(format!("`{address}` is no metadata (RFC 8414): {error}"))
            })?;
            if metadata.issuer != *issuer {
                let own = metadata.issuer.escape_debug();
                return Err(wrong(format!("`{address}` is of another issuer, `{own}`")));
            }
            let keys = metadata.jwks_uri.filter(|keys| is_secure(keys));
            return keys.ok_or_else(|| wrong(format!("`{address}` has no secure `jwks_uri`")));
        }
        Err(missing.unwrap_or(DocumentError::Malformed { reason: "no address".to_owned() }))
    }
}

/// Returns the addresses at which an issuer may serve its metadata, in the order of MCP's
/// specification of authorization.
fn metadata_addresses(issuer: &str) -> Vec<String> {
    let whole = issuer.trim_end_matches('/');
    let after_scheme = whole.find("://").map_or(0, |at| at + 3);
    let at = whole.get(after_scheme..).and_then(|rest| rest.find('/'));
    let (origin, path) = whole.split_at(at.map_or(whole.len(), |at| after_scheme + at));
    let mut all = vec![
        format!("{origin}/.well-known/oauth-authorization-server{path}"),
        format!("{origin}/.well-known/openid-configuration{path}"),
    ];
    if !path.is_empty() {
        all.push(format!("{whole}/.well-known/openid-configuration"));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_is_beside_the_issuer_or_below_its_path() {
        let of = |issuer: &str| metadata_addresses(issuer);
        let both = [
            "https://id.example/.well-known/oauth-authorization-server",
            "https://id.example/.well-known/openid-configuration",
        ];
        assert_eq!(of("https://id.example"), both);
        assert_eq!(of("https://id.example/"), both);
        let three = [
            "https://id.example:8443/.well-known/oauth-authorization-server/realms/a",
            "https://id.example:8443/.well-known/openid-configuration/realms/a",
            "https://id.example:8443/realms/a/.well-known/openid-configuration",
        ];
        assert_eq!(of("https://id.example:8443/realms/a"), three);
    }
}
