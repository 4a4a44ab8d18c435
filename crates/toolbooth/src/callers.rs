//! The callers of the command line and of stdio.
//!
//! Doc: policy.md#callers

use toolbooth_contracts::causes::with_causes;
use toolbooth_contracts::order::{KeyState, OrderName, OrderSubject};
use toolbooth_contracts::{Caller, CallerKind, Identity};

use crate::caller_sets::sets;
use crate::config::{Config, DurabilitySetting, Loaded};
use crate::failure::Failure;
use crate::records;

/// Returns the caller of the stdio door.
pub(crate) async fn of_stdio(loaded: &Loaded) -> Result<Caller, Failure> {
    let Some(name) = &loaded.config.auth.stdio_caller else { return Ok(Caller::local()) };
    let wrong = |message: String| {
        let failure = Failure::configuration(message).at("auth.stdio_caller");
        failure.hint("give `local`, `key:NAME` or `jwt:ISSUER#SUBJECT`")
    };
    match Identity::named(name) {
        None => Err(wrong(format!("`{}` is no caller", name.escape_debug()))),
        Some(identity) if identity.kind == CallerKind::Operator => {
            Err(wrong("an agent cannot be the operator".to_owned()))
        }
        Some(identity) => {
            let identity = of_store(loaded, identity).await.and_then(|own| holder(loaded, own));
            identity.map(Caller::authenticated).map_err(|failure| failure.at("auth.stdio_caller"))
        }
    }
}

/// Returns a caller that the configuration or the command line names: by its name, or by a set that names one
/// caller. An API key has the groups that the store has for it.
///
/// # Errors
/// A failure if there is no such caller, or its key is revoked or expired.
pub(crate) async fn named(loaded: &Loaded, name: &str) -> Result<Caller, Failure> {
    let config = &loaded.config;
    let sets = sets(config, |_, _| Ok(()))?;
    let identity = match Identity::named(name) {
        Some(identity) => identity,
        None => of_set(config, name)?,
    };
    if matches!(identity.kind, CallerKind::Local | CallerKind::Operator) {
        return Ok(Caller::authenticated(identity));
    }
    let identity = of_store(loaded, identity).await?;
    let is_known = !identity.groups.is_empty();
    let caller = Caller::authenticated(identity);
    if is_known || sets.of(&caller).is_some() {
        return Ok(caller);
    }
    Err(unknown(config, name))
}

/// As [`named`], of a caller whose calls are not made by a person: an API key must be in the store, since rules
/// depend on its groups.
pub(crate) async fn acting(loaded: &Loaded, name: &str) -> Result<Caller, Failure> {
    let caller = named(loaded, name).await?;
    holder(loaded, caller.identity().clone()).map(Caller::authenticated)
}

/// Refuses an identity of [`of_store`] whose key is not in the store.
fn holder(loaded: &Loaded, identity: Identity) -> Result<Identity, Failure> {
    match identity.name.strip_prefix("key:") {
        // In memory there are no keys that another process has created.
        Some(name)
            if identity.key_digest.is_none()
                && loaded.config.store.durability != DurabilitySetting::Memory =>
        {
            let message = format!("there is no API key `{name}` in the store");
            Err(Failure::usage(message)
                .hint(format!("`toolbooth keys create {name}` creates it, with its groups")))
        }
        _ => Ok(identity),
    }
}

/// Returns the caller that a set names alone.
fn of_set(config: &Config, name: &str) -> Result<Identity, Failure> {
    let Some(set) = config.callers.get(name) else { return Err(unknown(config, name)) };
    match set.matches.as_slice() {
        [one] if let Some(identity) = Identity::named(one) => Ok(identity),
        _ => Err(Failure::usage(format!("`{name}` is a set of several callers"))
            .hint(format!("name one of them: {}", set.matches.join(", ")))),
    }
}

fn unknown(config: &Config, name: &str) -> Failure {
    let own = config.callers.values().flat_map(|set| set.matches.iter());
    let known = config.callers.keys().chain(own).map(String::as_str);
    let failure = Failure::usage(format!("there is no caller `{}`", name.escape_debug()));
    match toolbooth_contracts::id::nearest(name, known) {
        Some(near) => failure.hint(format!("did you mean `{near}`?")),
        None => failure.hint("callers are named in `[callers.NAME]` of the configuration"),
    }
}

/// Returns the holder of an API key with the groups and the digest that the store has for the key. By the digest,
/// the calls of a key end when the key is revoked. Other identities are returned unchanged.
///
/// # Errors
/// A failure if the key is revoked or expired, or its record is damaged, or the store cannot be read.
async fn of_store(loaded: &Loaded, identity: Identity) -> Result<Identity, Failure> {
    let Some(name) = identity.name.strip_prefix("key:") else { return Ok(identity) };
    let caller = &identity.name;
    let Some(reads) = records::reads(loaded, None).await? else { return Ok(identity) };
    let stored = records::operations(reads)?.orders().await;
    let stored = stored.map_err(|error| Failure::store(with_causes(&error)))?;
    let row = OrderName::key(name).to_string();
    if stored.damaged.iter().any(|damaged| damaged.row == row) {
        let message = format!("the record of the key of `{caller}` is damaged");
        return Err(Failure::store(message).hint("look with `toolbooth audit verify`"));
    }
    let found = stored.orders.into_iter().find_map(|order| match order.subject {
        OrderSubject::Key(key) if name == key.name => Some(key),
        _ => None,
    });
    let Some(key) = found else { return Ok(identity) };
    match key.state(&crate::times::now()) {
        KeyState::Active => {
            let identity = identity.with_groups(key.groups);
            Ok(Identity { key_digest: Some(key.digest), ..identity })
        }
        state @ (KeyState::Expired | KeyState::Revoked) => {
            let message = format!("the key of `{caller}` is {}", state.as_str());
            Err(Failure::usage(message).hint("name another caller, or create the key again"))
        }
    }
}
