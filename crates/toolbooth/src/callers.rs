//! Callers of the configuration: their sets of rights, and the callers of the command line and of stdio.
//!
//! Doc: policy.md#callers, configuration.md#budgets

use std::collections::BTreeMap;

use toolbooth_contracts::charge::UNIT;
use toolbooth_contracts::order::OrderSubject;
use toolbooth_contracts::{Caller, CallerKind, Identity};
use toolbooth_policy::{Budget, CallerRights, CallerSets, Grant, SettingError};

use crate::config::{self, Config, Loaded};
use crate::failure::Failure;
use crate::records;

/// Returns the sets of callers of the configuration, each with what `content` makes of it.
pub(crate) fn sets<T>(
    config: &Config,
    content: impl Fn(&str, &config::Caller) -> Result<T, Failure>,
) -> Result<CallerSets<T>, Failure> {
    let mut sets = BTreeMap::new();
    for (name, caller) in &config.callers {
        sets.insert(name.clone(), (caller.matches.clone(), content(name, caller)?));
    }
    CallerSets::new(sets).map_err(|error| {
        let failure = Failure::configuration(error.to_string());
        match error {
            SettingError::Overlap { set, .. } => failure.at(format!("callers.{set}.match")).hint(
                "a caller has the rights of one set; name it in one, or give a group to keys",
            ),
            SettingError::NoCaller { set } => failure
                .at(format!("callers.{set}"))
                .hint("write `match = [\"key:NAME\"]`, or name the section as the caller"),
            _ => failure.at("callers"),
        }
    })
}

/// Returns the sets of rights.
pub(crate) fn rights(config: &Config) -> Result<CallerSets<CallerRights>, Failure> {
    sets(config, |name, caller| {
        let grants = caller.grants.iter().map(|grant| Grant::parse(grant));
        let grants = grants.collect::<Result<Vec<_>, _>>().map_err(|error| {
            Failure::configuration(error.to_string()).at(format!("callers.{name}.grants"))
        })?;
        Ok(CallerRights {
            tools: caller.tools.clone(),
            deny: caller.deny.clone(),
            grants,
            operate: caller.operate,
            budget: caller
                .budget
                .map(|own| budget(&own, &format!("callers.{name}.budget")))
                .transpose()?,
        })
    })
}

/// Returns a budget in the micro-units of the records.
pub(crate) fn budget(budgets: &config::Budgets, place: &str) -> Result<Budget, Failure> {
    let units = |name: &str, given: Option<f64>| match given {
        // `as` saturates, which is no limit in effect.
        Some(units) if units >= 0.0 => Ok(Some((units * UNIT as f64).round() as u64)),
        None => Ok(None),
        Some(units) => Err(Failure::configuration(format!("{units} is no number of units"))
            .at(format!("{place}.{name}"))
            .hint("give a number of at least 0")),
    };
    let budget = Budget {
        daily: units("daily", budgets.daily)?,
        daily_per_epic: units("daily_per_epic", budgets.daily_per_epic)?,
    };
    if budget.daily.is_none() && budget.daily_per_epic.is_some() {
        return Err(Failure::configuration("`daily_per_epic` needs `daily`")
            .at(format!("{place}.daily_per_epic"))
            .hint("an agent can claim a new epic for each call; only `daily` bounds them all"));
    }
    Ok(budget)
}

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
