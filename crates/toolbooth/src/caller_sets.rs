//! The sets of callers of the configuration: who they are, and their rights and budgets.
//!
//! Doc: policy.md#callers, configuration.md#budgets

use std::collections::BTreeMap;
use std::sync::{PoisonError, RwLock};

use toolbooth_contracts::Caller;
use toolbooth_contracts::causes::with_causes;
use toolbooth_contracts::charge::UNIT;
use toolbooth_policy::{Budget, CallerRights, CallerSets, Grant, SettingError};

use crate::config::{self, Config};
use crate::failure::Failure;

/// Returns the sets of callers of the configuration, each converted by `content`.
pub(crate) fn sets<T>(
    config: &Config,
    content: impl Fn(&str, &config::Caller) -> Result<T, Failure>,
) -> Result<CallerSets<T>, Failure> {
    let mut sets = BTreeMap::new();
    for (name, caller) in &config.callers {
        sets.insert(name.clone(), (caller.matches.clone(), content(name, caller)?));
    }
    CallerSets::new(sets).map_err(|error| {
        let failure = Failure::configuration(with_causes(&error));
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

/// The sets of callers of the policy that is in force, which a reload replaces.
#[derive(Default)]
pub(crate) struct CallersInForce(RwLock<CallerSets<()>>);

impl CallersInForce {
    /// Takes the sets of a configuration.
    ///
    /// # Errors
    /// As for [`sets`]; the sets stay as they are.
    pub(crate) fn replace(&self, config: &Config) -> Result<(), Failure> {
        let sets = sets(config, |_, _| Ok(()))?;
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = sets;
        Ok(())
    }

    /// Returns the name of the set that gives a caller its rights.
    pub(crate) fn set_of(&self, caller: &Caller) -> Option<String> {
        let sets = self.0.read().unwrap_or_else(PoisonError::into_inner);
        sets.of(caller).map(|(name, ())| name.to_owned())
    }
}

/// Returns the sets of rights.
pub(crate) fn rights(config: &Config) -> Result<CallerSets<CallerRights>, Failure> {
    sets(config, |name, caller| {
        let grants = caller.grants.iter().map(|grant| Grant::parse(grant));
        let grants = grants.collect::<Result<Vec<_>, _>>().map_err(|error| {
            Failure::configuration(with_causes(&error)).at(format!("callers.{name}.grants"))
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
pub(crate) fn budget(budgets: &config::Budgets, setting: &str) -> Result<Budget, Failure> {
    let units = |name: &str, given: Option<f64>| match given {
        // `as` saturates, which is no limit in effect.
        Some(units) if units >= 0.0 => Ok(Some((units * UNIT as f64).round() as u64)),
        None => Ok(None),
        Some(units) => Err(Failure::configuration(format!("{units} is no number of units"))
            .at(format!("{setting}.{name}"))
            .hint("give a number of at least 0")),
    };
    let budget = Budget {
        daily: units("daily", budgets.daily)?,
        daily_per_epic: units("daily_per_epic", budgets.daily_per_epic)?,
    };
    if budget.daily.is_none() && budget.daily_per_epic.is_some() {
        return Err(Failure::configuration("`daily_per_epic` needs `daily`")
            .at(format!("{setting}.daily_per_epic"))
            .hint("an agent can claim a new epic for each call; only `daily` bounds them all"));
    }
    Ok(budget)
}
