//! Builds the conditions of a query, and chooses how many rows it fetches.
//!
//! Doc: records.md#reading

use tokio_postgres::types::ToSql;
use toolbooth_audit::reads::EventFilter;

use crate::postgres::clean;

/// Minimum rows of a page that is filtered again.
pub(super) const PAGE_MIN: usize = 100;
/// Maximum rows of a page.
pub(super) const PAGE_MAX: usize = 1_000;

/// Conditions joined by `AND`, with their parameters.
#[derive(Default)]
pub(super) struct Conditions {
    pub(super) sql: Vec<String>,
    pub(super) values: Vec<Box<dyn ToSql + Sync + Send>>,
}

impl Conditions {
    pub(super) fn add<T: ToSql + Sync + Send + 'static>(
        &mut self,
        condition: &str,
        value: Option<T>,
    ) {
        if let Some(value) = value {
            self.values.push(Box::new(value));
            self.sql.push(format!("{condition} ${}", self.values.len()));
        }
    }

    pub(super) fn text(&mut self, condition: &str, value: Option<String>) {
        self.add(condition, value.map(|value| clean(&value).into_owned()));
    }

    /// Returns the conditions of a filter on columns other than time and place.
    pub(super) fn of(filter: &EventFilter) -> Self {
        let mut conditions = Self::default();
        conditions.text("tool =", filter.tool.clone());
        conditions.text("agent =", filter.agent.clone());
        conditions.text("status =", filter.status.clone());
        conditions.text("code =", filter.code.clone());
        conditions.text("call_id =", filter.call.clone());
        conditions
    }

    /// Adds a condition on a time, given in milliseconds since 1970.
    pub(super) fn moment(&mut self, condition: &str, ms: i64) {
        self.values.push(Box::new(ms));
        let at = format!("to_timestamp(${}::bigint / 1000.0)", self.values.len());
        self.sql.push(format!("{condition} {}", shown_time(&at)));
    }

    pub(super) fn shown(&self) -> String {
        if self.sql.is_empty() {
            String::new()
        } else {
            format!("WHERE {}", self.sql.join(" AND "))
        }
    }
}

/// Returns an SQL expression that formats a timestamp as records write it.
pub(super) fn shown_time(of: &str) -> String {
    format!(r#"to_char({of} AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"')"#)
}

/// Returns the number of rows to fetch for `wanted` results. Rows that are filtered again need more
/// of them.
pub(super) fn fetched(wanted: usize, is_filtered: bool) -> usize {
    if is_filtered { wanted.clamp(PAGE_MIN, PAGE_MAX) } else { wanted.min(PAGE_MAX) }
}

pub(super) fn count(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX)
}
