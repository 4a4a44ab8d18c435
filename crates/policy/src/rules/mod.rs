//! Rules in the Cedar language, bound to the tools of a world.
//!
//! Path: 5. Doc: policy.md#rules

mod arguments;
mod bind;
mod case_run;
mod cases;
mod diff;
mod engine;
mod entities;
mod evaluation;
mod expressions;
mod grouped;
mod historic;
mod history;
mod judge;
mod literals;
mod nesting;
mod numbers;
mod parties;
#[cfg(test)]
mod properties;
mod reads;
mod recorded;
mod schema;
mod scope;
mod set;
mod slice;
mod source;
#[cfg(test)]
mod tests;
mod unbound;
mod values;

pub use diff::{ChangedRule, RuleDifferences, StatedRule};
pub use history::{HistoryWindow, HistoryWindows, Within};
pub use set::RuleSet;
pub use source::{RULE_FILE_BYTES_MAX, RuleFile};
