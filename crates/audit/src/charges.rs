//! Charges that a claim has taken, and budgets as stored.
//!
//! Path: 6, 9. Doc: policy.md#charges

use serde_json::{Map, Value, json};
use toolbooth_contracts::receipt::AuditPlace;

/// Milliseconds of a day.
pub(crate) const DAY_MS: i64 = 86_400_000;
/// The fact of an event that lists the budgets that a claim was charged to.
pub(crate) const CHARGED: &str = "charged";
/// The fact of an event that lists the budgets that were given back.
pub(crate) const REFUNDED: &str = "refunded";

/// A charge that a claim has taken, for its refund.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Taken {
    /// One call of a rate.
    Rate {
        /// The limit.
        per_min: u64,
    },
    /// A part of a budget.
    Budget {
        /// The budget.
        key: String,
        /// The day of the charge.
        day: String,
        /// Micro-units.
        units: u64,
    },
}

/// The use of a budget, as stored. Only the newest day counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BudgetRow {
    /// The day, as in `2026-01-31`.
    pub day: String,
    /// Used micro-units.
    pub units: u64,
    /// The event of the last change.
    pub changed_by: AuditPlace,
}

impl BudgetRow {
    /// Returns the row in the place of one that cannot be read: used up until it is mended, because
    /// less use than there was would give more.
    #[must_use]
    pub fn used_up() -> Self {
        let changed_by = AuditPlace { writer: String::new(), seq: 0 };
        Self { day: "9999-12-31".to_owned(), units: u64::MAX, changed_by }
    }

    /// Returns the micro-units that are used on a day. A row of a later day counts too: a clock that
    /// went back must not give more.
    #[must_use]
    pub fn used(row: Option<&Self>, day: &str) -> u64 {
        row.filter(|row| row.day.as_str() >= day).map_or(0, |row| row.units)
    }
}

/// A budget as stored, with its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RawBudget {
    /// The name.
    pub key: String,
    /// The row; `None` if it cannot be read.
    pub row: Option<BudgetRow>,
}

/// Returns the day of a time (UTC), as in `2026-01-31`, and the milliseconds until the next one.
pub(crate) fn day_of(epoch_ms: i64) -> (String, u64) {
    let rest = epoch_ms.rem_euclid(DAY_MS);
    // A time that no calendar has counts as the first day, whose budget is used up soonest.
    let at = jiff::Timestamp::from_millisecond(epoch_ms).unwrap_or(jiff::Timestamp::UNIX_EPOCH);
    (at.strftime("%Y-%m-%d").to_string(), (DAY_MS - rest).unsigned_abs())
}

/// Adds the budgets among `taken` to the facts of an event.
pub(crate) fn add_facts<'t>(
    facts: &mut Option<Map<String, Value>>,
    name: &str,
    taken: impl Iterator<Item = &'t Taken>,
) {
    let budgets: Vec<Value> = taken
        .filter_map(|taken| match taken {
            Taken::Budget { key, day, units } => {
                Some(json!({ "budget": key, "day": day, "units": units }))
            }
            Taken::Rate { .. } => None,
        })
        .collect();
    if !budgets.is_empty() {
        facts.get_or_insert_default().insert(name.to_owned(), budgets.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_are_those_of_the_calendar() {
        let day = |ms: i64| day_of(ms).0;
        assert_eq!(day(0), "1970-01-01");
        assert_eq!(day(-1), "1969-12-31");
        assert_eq!(day(951_782_399_999), "2000-02-28");
        assert_eq!(day(951_782_400_000), "2000-02-29");
        assert_eq!(day(951_868_800_000), "2000-03-01");
        assert_eq!(day(1_798_761_599_999), "2026-12-31");
        assert_eq!(day_of(1_798_761_599_999).1, 1);
        assert_eq!(day_of(DAY_MS).1, DAY_MS.unsigned_abs());
    }

    #[test]
    fn a_clock_that_went_back_gives_no_more() {
        let at = AuditPlace { writer: String::new(), seq: 0 };
        let row = BudgetRow { day: "2026-01-02".into(), units: 7, changed_by: at };
        assert_eq!(BudgetRow::used(Some(&row), "2026-01-01"), 7);
        assert_eq!(BudgetRow::used(Some(&row), "2026-01-02"), 7);
        assert_eq!(BudgetRow::used(Some(&row), "2026-01-03"), 0);
        assert_eq!(BudgetRow::used(None, "2026-01-03"), 0);
    }
}
