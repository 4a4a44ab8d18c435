//! Remembers every secret that this process has looked up, so that no record of any tool contains
//! one, regardless of its source.
//!
//! Doc: execution.md#known-secrets

use std::sync::{Arc, PoisonError, RwLock};

use secrecy::{ExposeSecret, SecretString};
use toolbooth_contracts::secret::{FoundSecret, SecretShape};

use super::KnownSecrets;

/// Maximum number of remembered values; the oldest are removed first.
const VALUES_MAX: usize = 4096;
/// Shorter values also occur in records of unrelated tools.
const BYTES_MIN: usize = 6;

struct Given {
    values: Vec<(String, SecretString)>,
    known: Arc<KnownSecrets>,
}

static GIVEN: RwLock<Option<Given>> = RwLock::new(None);

/// Remembers a secret by its name in the configuration. A changed secret is remembered in addition
/// to its earlier value.
pub(super) fn remember(shown: &str, secret: &SecretString) {
    let value = secret.expose_secret();
    let is_known = |given: &Given| {
        given.values.iter().any(|(name, known)| name == shown && known.expose_secret() == value)
    };
    let given = GIVEN.read().unwrap_or_else(PoisonError::into_inner);
    if given.as_ref().is_some_and(is_known) {
        return;
    }
    drop(given);
    let mut given = GIVEN.write().unwrap_or_else(PoisonError::into_inner);
    let mut values = given.take().map(|given| given.values).unwrap_or_default();
    values.push((shown.to_owned(), secret.clone()));
    if values.len() > VALUES_MAX {
        values.remove(0);
    }
    let long = values.iter().filter(|(_, value)| value.expose_secret().len() >= BYTES_MIN);
    let known = KnownSecrets::new(long.map(|(shown, value)| (value.clone(), shown.clone())));
    *given = Some(Given { values, known: Arc::new(known) });
}

/// Returns all remembered values of a name.
pub(super) fn values(shown: &str) -> Vec<SecretString> {
    let given = GIVEN.read().unwrap_or_else(PoisonError::into_inner);
    let values = given.iter().flat_map(|given| &given.values);
    values.filter(|(name, _)| name == shown).map(|(_, value)| value.clone()).collect()
}

struct Shape;

impl SecretShape for Shape {
    fn find_all<'s>(&'s self, text: &str) -> Vec<FoundSecret<'s>> {
        let given = GIVEN.read().unwrap_or_else(PoisonError::into_inner);
        let Some(known) = given.as_ref().map(|given| Arc::clone(&given.known)) else {
            return Vec::new();
        };
        drop(given);
        let found = known.find_all(text).into_iter();
        found.map(|(range, _)| FoundSecret { range, name: "a secret of the gateway" }).collect()
    }
}

/// Returns the secrets that this process has looked up, for
/// [`toolbooth_contracts::secret::SecretShapes::with`]. They are for records, not for judging
/// contracts, since the matches depend on the machine.
#[must_use]
pub fn given_secrets() -> Arc<dyn SecretShape> {
    Arc::new(Shape)
}
