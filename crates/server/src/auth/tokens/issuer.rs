//! Holds the keys of one issuer: fetched when they are first needed, again after a while, and when a
//! token names an unknown key.
//!
//! Path: 1. Doc: front-doors.md#access-tokens

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::Deserialize;
use tokio::sync::{Semaphore, watch};
use toolbooth_proxy::Clock;

use super::documents::Documents;
use super::key_set::KeySet;
use super::settings::{IssuerSettings, is_secure};
use crate::error::DocumentError;

/// The age from which keys are fetched again; the cached keys are used meanwhile.
const REFRESH_EVERY: Duration = Duration::from_secs(300);
/// The age from which a token waits until the keys are fetched again.
const REFRESH_MAX: Duration = Duration::from_secs(600);
/// The age up to which keys are used while the issuer cannot be reached.
const STALE_MAX: Duration = Duration::from_secs(24 * 3_600);
/// The time between the end of an attempt to fetch the keys and the next attempt.
const ATTEMPT_EVERY: Duration = Duration::from_secs(10);
/// The time of one attempt.
const ATTEMPT_MAX: Duration = Duration::from_secs(10);
/// The time that a request waits for an attempt although it has usable keys.
const PATIENCE: Duration = Duration::from_secs(2);
/// Requests that wait for an attempt; further ones are refused, so that they do not hold all
/// connections.
const WAITING_MAX: usize = 256;

/// The cached keys. Times are those of the monotonic clock.
#[derive(Debug, Default)]
struct Held {
    keys: Option<(Arc<KeySet>, Duration)>,
    /// Whether an attempt is in progress.
    is_running: bool,
    /// The end of the last attempt.
    ended_at: Option<Duration>,
    /// Whether the last attempt failed.
    is_failing: bool,
}

/// One attempt to fetch the keys. One that is dropped before its end has failed.
struct Attempt {
    issuer: Arc<Issuer>,
    began: Duration,
    has_ended: bool,
}

impl Attempt {
    fn end(mut self, fetched: Result<KeySet, DocumentError>) {
        self.has_ended = true;
        self.issuer.end(fetched, self.began);
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        if !self.has_ended {
            self.issuer.end(Err(DocumentError::Interrupted), self.began);
        }
    }
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
    /// The number of attempts that have ended.
    ended: watch::Sender<u64>,
    waiting: Semaphore,
}

impl Issuer {
    pub(super) fn new(
        settings: IssuerSettings,
        documents: Arc<dyn Documents>,
        clock: Arc<dyn Clock>,
    ) -> Self {
        let (ended, waiting) = (watch::Sender::new(0), Semaphore::new(WAITING_MAX));
        Self { settings, documents, clock, held: Mutex::default(), ended, waiting }
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

    fn is_failing(&self) -> bool {
        self.held().is_failing
    }

    /// Returns the keys, which are fetched if they are too old.
    ///
    /// # Errors
    /// [`Away`], if there are none.
    pub(super) async fn keys(self: &Arc<Self>) -> Result<Arc<KeySet>, Away> {
        match self.at_hand() {
            Some((keys, age)) if age < REFRESH_EVERY => return Ok(keys),
            Some((keys, age)) => {
                let failing = self.is_failing();
                let ended = self.ended.subscribe();
                self.begin();
                // While attempts fail, no request waits for the next one.
                if age < REFRESH_MAX || failing {
                    return Ok(keys);
                }
                self.wait(ended, PATIENCE).await;
            }
            None => {
                let ended = self.ended.subscribe();
                self.begin();
                self.wait(ended, ATTEMPT_MAX).await;
            }
        }
        self.at_hand().map(|(keys, _)| keys).ok_or(Away)
    }

    /// Returns the keys that were fetched after these, in which a token's key is missing; the same
    /// ones if they were fetched just now.
    ///
    /// # Errors [`Away`], if the last attempt failed or has not ended: it is unknown whether the
    /// key exists.
    pub(super) async fn keys_after(
        self: &Arc<Self>,
        seen: &Arc<KeySet>,
    ) -> Result<Arc<KeySet>, Away> {
        if self.at_hand().is_some_and(|(keys, _)| Arc::ptr_eq(&keys, seen)) {
            let ended = self.ended.subscribe();
            self.begin();
            self.wait(ended, PATIENCE).await;
        }
        let is_known = {
            let held = self.held();
            !held.is_failing && !held.is_running
        };
        let now = self.at_hand().filter(|_| is_known);
        now.map(|(keys, _)| keys).ok_or(Away)
    }

    /// Begins to fetch the keys, unless that is in progress or was attempted just now. The attempt is
    /// a task of its own: a client that closes its connection does not end it.
    fn begin(self: &Arc<Self>) {
        let began = self.clock.monotonic();
        {
            let mut held = self.held();
            let is_early = held.ended_at.is_some_and(|at| began.saturating_sub(at) < ATTEMPT_EVERY);
            if held.is_running || is_early {
                return;
            }
            held.is_running = true;
        }
        let attempt = Attempt { issuer: Arc::clone(self), began, has_ended: false };
        tokio::spawn(async move {
            let fetched = match tokio::time::timeout(ATTEMPT_MAX, attempt.issuer.fetch()).await {
                Ok(fetched) => fetched,
                Err(_) => Err(DocumentError::Timeout),
            };
            attempt.end(fetched);
        });
    }

    /// Waits until the attempt in progress, if any, has ended.
    async fn wait(&self, mut ended: watch::Receiver<u64>, most: Duration) {
        if !self.held().is_running {
            return;
        }
        if let Ok(_permit) = self.waiting.try_acquire() {
            let _ = tokio::time::timeout(most, ended.changed()).await;
        }
    }

    /// Stores the result of an attempt.
    fn end(&self, fetched: Result<KeySet, DocumentError>, began: Duration) {
        let mut held = self.held();
        held.is_running = false;
        held.ended_at = Some(self.clock.monotonic());
        held.is_failing = fetched.is_err();
        match fetched {
            Ok(keys) => {
                let known = held.keys.as_ref().is_some_and(|(known, _)| **known == keys);
                if !known {
                    let (issuer, count) = (&self.settings.issuer, keys.len());
                    tracing::info!(issuer, keys = count, "the keys of an issuer are fetched");
                }
                // The time before the request, because the keys lack any later change.
                held.keys = Some((Arc::new(keys), began));
            }
            Err(error) => {
                let issuer = &self.settings.issuer;
                tracing::warn!(issuer, %error, "the keys of an issuer are not fetched");
            }
        }
        drop(held);
        self.ended.send_modify(|ended| *ended += 1);
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
        let mut error = None;
        for address in metadata_addresses(issuer) {
            let read = async {
                let document = self.documents.get(&address).await?;
                let wrong = |reason: String| DocumentError::Malformed { reason };
                let metadata: Metadata = serde_json::from_slice(&document).map_err(|error| {
                    wrong(format!("`{address}` is not metadata (RFC 8414): {error}"))
                })?;
                if metadata.issuer != *issuer {
                    let own = metadata.issuer.escape_debug();
                    return Err(wrong(format!("`{address}` is of another issuer, `{own}`")));
                }
                // Only an issuer on this machine names keys on this machine.
                let fits = |keys: &String| {
                    is_secure(keys) && (keys.starts_with("https:") || issuer.starts_with("http:"))
                };
                let keys = metadata.jwks_uri.filter(fits);
                keys.ok_or_else(|| wrong(format!("`{address}` has no secure `jwks_uri`")))
            };
            match read.await {
                Ok(keys) => return Ok(keys),
                // The error of an invalid document is more useful than that of a missing one.
                Err(found) if matches!(error, None | Some(DocumentError::NoDocument { .. })) => {
                    error = Some(found);
                }
                Err(_) => (),
            }
        }
        let none = || DocumentError::NoDocument { address: issuer.clone() };
        Err(error.unwrap_or_else(none))
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
