//! Verifies that the used budgets of the newest day are the sums of the charges in the events.
//!
//! Doc: records.md#verification

use std::collections::BTreeMap;

use serde_json::Value;

use super::event_fields::EventFields;
use crate::charges::{CHARGED, REFUNDED, RawBudget};

/// The charges of the newest day, by budget. The events of one budget may be in several logs.
#[derive(Debug, Default)]
pub(super) struct Budgets {
    day: String,
    sums: BTreeMap<String, i128>,
}

impl Budgets {
    /// Adds the charges and refunds of an event.
    pub(super) fn event(&mut self, fields: &EventFields) {
        let Some(facts) = &fields.facts else { return };
        for (name, sign) in [(CHARGED, 1), (REFUNDED, -1)] {
            let charges = facts.get(name).and_then(Value::as_array).into_iter().flatten();
            for charge in charges {
                let text = |name: &str| charge.get(name).and_then(Value::as_str);
                let units = charge.get("units").and_then(Value::as_u64);
                if let (Some(key), Some(day), Some(units)) = (text("budget"), text("day"), units) {
                    self.add(key, day, sign * i128::from(units));
                }
            }
        }
    }

    fn add(&mut self, key: &str, day: &str, units: i128) {
        if day > self.day.as_str() {
            day.clone_into(&mut self.day);
            self.sums.clear();
        }
        if day == self.day {
            *self.sums.entry(key.to_owned()).or_default() += units;
        }
    }

    /// Whether a stored budget is the sum of its charges. `known`: whether the event of its last
    /// change is among the events that were read.
    pub(super) fn accounts_for(&mut self, raw: &RawBudget, known: bool) -> bool {
        let sum = self.sums.remove(&raw.key);
        let Some(row) = &raw.row else { return false };
        if !known {
            return true;
        }
        match row.day.as_str().cmp(self.day.as_str()) {
            // Rows of earlier days count for nothing, unless one should be of the newest day.
            std::cmp::Ordering::Less => sum.is_none(),
            std::cmp::Ordering::Equal => sum == Some(i128::from(row.units)),
            std::cmp::Ordering::Greater => false,
        }
    }

    /// Returns the budgets with charges on the newest day that are not stored.
    pub(super) fn missing(&mut self) -> Vec<String> {
        std::mem::take(&mut self.sums).into_keys().collect()
    }
}
