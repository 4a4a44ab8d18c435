//! Charges: the limits that a call takes a share of.
//!
//! Doc: policy.md#charges

/// One unit of cost, in the micro-units in which budgets count.
pub const UNIT: u64 = 1_000_000;

/// A limit that a call is charged to, inside the claim's transaction. All charges of a call are
/// checked before any is taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Charge {
    /// Calls per minute of this caller and tool.
    Rate {
        /// The limit.
        per_min: u64,
    },
    /// Concurrent calls of this tool.
    Slots {
        /// The limit.
        max: u64,
    },
    /// Cost of one day (UTC, on the store's clock).
    Budget {
        /// The name of the budget, as of [`budget_of_caller`] or [`budget_of_epic`].
        key: String,
        /// The cost of this call, in micro-units.
        units: u64,
        /// The cost of all calls of a day, in micro-units.
        limit: u64,
    },
}

/// Returns the name of the budget of a caller.
#[must_use]
pub fn budget_of_caller(caller: &str) -> String {
    serde_json::json!([caller]).to_string()
}

/// Returns the name of the budget of one epic of a caller. All calls without an epic have one budget.
#[must_use]
pub fn budget_of_epic(caller: &str, epic: Option<&str>) -> String {
    serde_json::json!([caller, epic]).to_string()
}

/// Returns the micro-units of a number of units, rounded up. A number that is too large becomes
/// `u64::MAX`.
#[must_use]
pub fn micro_units(units: &serde_json::Number) -> u64 {
    if let Some(whole) = units.as_u64() {
        return whole.saturating_mul(UNIT);
    }
    let exact = units.as_f64().unwrap_or(f64::MAX) * UNIT as f64;
    // The product of a decimal fraction may be off by its last bit, which is no fraction of its own.
    let near = exact.round();
    let micro = if (exact - near).abs() <= near * f64::EPSILON { near } else { exact.ceil() };
    // `as` saturates: less than zero is zero, and too large is the largest number.
    micro as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_are_rounded_up() {
        let of = |text: &str| micro_units(&serde_json::from_str(text).unwrap());
        assert_eq!((of("8.3"), of("4.15"), of("16.6")), (8_300_000, 4_150_000, 16_600_000));
        assert_eq!((of("0"), of("2"), of("0.5"), of("0.0000001")), (0, 2 * UNIT, UNIT / 2, 1));
        assert_eq!((of("1e300"), of("18446744073709551615")), (u64::MAX, u64::MAX));
    }

    #[test]
    fn budgets_of_different_names_are_different() {
        let all = [
            budget_of_caller("a"),
            budget_of_epic("a", None),
            budget_of_epic("a", Some("")),
            budget_of_epic("a", Some("null")),
            budget_of_caller("a\",null"),
        ];
        let names: std::collections::BTreeSet<&String> = all.iter().collect();
        assert_eq!(names.len(), all.len());
    }
}
