//! Verifies that the used budgets of the newest days are the sums of the charges in the events.
//!
//! Doc: records.md#verification

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::event_fields::EventFields;
use crate::charges::{CHARGED, REFUNDED, RawBudget};

/// The days whose charges are added up. The stores remove the budgets of earlier days.
const DAYS: usize = 3;

/// The charges of the newest days, by budget. The events of one budget may be in several logs.
#[derive(Debug, Default)]
pub(super) struct Budgets {
    /// The newest days with charges, at most [`DAYS`].
    days: BTreeSet<String>,
    /// The last day of each budget, and its sum.
    sums: BTreeMap<String, (String, i128)>,
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
        if !self.days.contains(day) {
            self.days.insert(day.to_owned());
            if self.days.len() > DAYS
                && let Some(oldest) = self.days.pop_first()
            {
                self.sums.retain(|_, (day, _)| *day > oldest);
                if oldest == day {
                    return;
                }
            }
        }
        let (known, sum) = self.sums.entry(key.to_owned()).or_insert((day.to_owned(), 0));
        match day.cmp(known.as_str()) {
            Ordering::Less => (),
            Ordering::Equal => *sum += units,
            Ordering::Greater => {
                day.clone_into(known);
                *sum = units;
            }
        }
    }

    /// Whether a stored budget is the sum of its charges. `known`: whether the event of its last
    /// change is among the events that were read. `pruned`: the last day of which events were
    /// pruned.
    pub(super) fn accounts_for(
        &mut self,
        raw: &RawBudget,
        known: bool,
        pruned: Option<&str>,
    ) -> bool {
        let sum = self.sums.remove(&raw.key);
        let Some(row) = &raw.row else { return false };
        if !known || pruned.is_some_and(|pruned| row.day.as_str() <= pruned) {
            // A day whose events were pruned must not replace a day whose events were read.
            return !known || sum.is_none_or(|(day, _)| day <= row.day);
        }
        match sum {
            Some((day, units)) => day == row.day && units == i128::from(row.units),
            // The charges of earlier days were not added up.
            None => {
                self.days.len() == DAYS && self.days.first().is_some_and(|first| row.day < *first)
            }
        }
    }

    /// Returns the budgets with charges on the newest day that are not stored. `pruned`: as above.
    pub(super) fn missing(&mut self, pruned: Option<&str>) -> Vec<String> {
        let newest = self.days.last().cloned().unwrap_or_default();
        let sums = std::mem::take(&mut self.sums).into_iter();
        let needed = sums.filter(|(_, (day, _))| {
            *day == newest && pruned.is_none_or(|pruned| day.as_str() > pruned)
        });
        needed.map(|(key, _)| key).collect()
    }
}
