//! The callers of the command line and of stdio.
//!
//! Doc: policy.md#callers

use toolbooth_contracts::order::OrderSubject;
use toolbooth_contracts::{Caller, CallerKind, Identity};

use crate::caller_sets::sets;
use crate::config::{Config, Loaded};
use crate::failure::Failure;
use crate::records;

/// Returns the caller of the stdio door.
pub(crate) fn of_stdio(config: &Config) -> Result<Caller, Failure> {
    let Some(name) = &config.auth.stdio_caller else { return Ok(Caller::local()) };
    let wrong = |message: String| {
        let failure = Failure::configuration(message).at("auth.stdio_caller");
        failure.hint("give `local`, `key:NAME` or `jwt:ISSUER#SUBJECT`")
    };
    match Identity::named(name) {
        None => Err(wrong(format!("`{}` is no caller", name.escape_debug()))),
        Some(identity) if identity.kind == CallerKind::Operator => {
            Err(wrong("an agent cannot be the operator".to_owned()))
        }
        Some(identity) => Ok(Caller::authenticated(identity)),
    }
}

/// Returns a caller that the command line names: by its name, or by a set that names one caller. An API
/// key has the groups that the store has for it.
pub(crate) async fn named(loaded: &Loaded, name: &str) -> Result<Caller, Failure> {
    let config = &loaded.config;
    let sets = sets(config, |_, _| Ok(()))?;
    let Some(identity) = Identity::named(name) else { return of_set(config, name) };
    let identity = match identity.kind {
        CallerKind::Local | CallerKind::Operator => return Ok(Caller::authenticated(identity)),
        CallerKind::Jwt => identity,
        CallerKind::Key => match groups(loaded, name).await? {
            Some(groups) => identity.with_groups(groups),
            None => identity,
        },
    };
    let is_known = !identity.groups.is_empty();
    let caller = Caller::authenticated(identity);
    if is_known || sets.of(&caller).is_some() {
        return Ok(caller);
    }
    Err(unknown(config, name))
}

/// Returns the caller that a set names alone.
fn of_set(config: &Config, name: &str) -> Result<Caller, Failure> {
    let Some(set) = config.callers.get(name) else { return Err(unknown(config, name)) };
    match set.matches.as_slice() {
        [one] if let Some(identity) = Identity::named(one) => Ok(Caller::authenticated(identity)),
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

/// Returns the groups of an API key; `None` if there is no such key.
async fn groups(loaded: &Loaded, caller: &str) -> Result<Option<Vec<String>>, Failure> {
    let Some(reads) = records::reads(loaded, None).await? else { return Ok(None) };
    let stored = records::operations(reads)?.orders().await;
    let stored = stored.map_err(|error| Failure::store(error.to_string()))?;
    let found = stored.orders.into_iter().find_map(|order| match order.subject {
        OrderSubject::Key(key) if caller.strip_prefix("key:") == Some(&key.name) => {
            Some(key.groups)
        }
        _ => None,
    });
    Ok(found)
}
