//! Computes counts and latencies of each tool from the terminal events of its calls.
//!
//! Doc: records.md#reading

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Serialize;
use toolbooth_contracts::Status;
use toolbooth_contracts::event::{AuditEvent, AuditEventKind};

use crate::LedgerReads;
use crate::ledger::LedgerError;
use crate::reads::{DamagedRow, EventFilter, Page, PlacedEvent};

/// Maximum number of tools reported individually; calls of further tools are reported together.
const TOOLS_MAX: usize = 10_000;
/// The ratio of the bounds of consecutive duration classes.
const WIDTH: f64 = 1.02;
/// The upper bound of the first duration class, in milliseconds.
const FIRST_MS: f64 = 0.001;

/// The statistics of one tool.
#[derive(Debug, Clone, Default, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ToolStats {
    /// The tool; `(others)` for tools beyond the limit.
    pub tool_name: String,
    /// The number of ended calls.
    pub calls: u64,
    /// Of these, replayed.
    pub replays: u64,
    /// Of these, failed or not configured.
    pub errors: u64,
    /// Of these, denied.
    pub denials: u64,
    /// The median duration in milliseconds, accurate to about two per cent.
    pub p50_ms: f64,
    /// The 95th percentile.
    pub p95_ms: f64,
    /// The 99th percentile.
    pub p99_ms: f64,
    /// The longest duration.
    pub max_ms: f64,
}

#[derive(Debug, Default)]
struct Counts {
    stats: ToolStats,
    /// The number of calls by duration class.
    classes: BTreeMap<i32, u64>,
    timed: u64,
}

/// Accumulates statistics from events.
#[derive(Debug, Default)]
pub struct Stats {
    tools: BTreeMap<String, Counts>,
}

impl Stats {
    /// Counts an event if it ends a call.
    pub fn event(&mut self, event: &AuditEvent) {
        let body = &event.body;
        let (Some(tool), Some(status), Some(_)) = (&body.tool_name, body.status, &body.log_digest)
        else {
            return;
        };
        let known = self.tools.contains_key(tool) || self.tools.len() < TOOLS_MAX;
        let name = if known { tool.as_str() } else { "(others)" };
        let counts = self.tools.entry(name.to_owned()).or_default();
        counts.stats.calls += 1;
        counts.stats.replays += u64::from(body.event == AuditEventKind::ToolReplayed);
        match status {
            Status::Succeeded => (),
            Status::Denied => counts.stats.denials += 1,
            Status::Failed | Status::NotConfigured => counts.stats.errors += 1,
        }
        if let Some(ms) = body.duration_ms.filter(|ms| ms.is_finite() && *ms >= 0.0) {
            let class = ((ms / FIRST_MS).max(1.0).ln() / WIDTH.ln()).ceil();
            // Call durations are far below the values that would overflow `i32`.
            *counts.classes.entry(class as i32).or_default() += 1;
            counts.timed += 1;
            counts.stats.max_ms = counts.stats.max_ms.max(ms);
        }
    }

    /// Returns the statistics by tool.
    #[must_use]
    pub fn finish(self) -> Vec<ToolStats> {
        self.tools
            .into_iter()
            .map(|(tool_name, counts)| {
                let at = |share: f64| percentile(&counts, share);
                ToolStats {
                    tool_name,
                    p50_ms: at(0.5),
                    p95_ms: at(0.95),
                    p99_ms: at(0.99),
                    ..counts.stats.clone()
                }
            })
            .collect()
    }
}

fn percentile(counts: &Counts, share: f64) -> f64 {
    let wanted = (counts.timed as f64 * share).ceil().max(1.0) as u64;
    let mut seen = 0;
    for (class, count) in &counts.classes {
        seen += count;
        if seen >= wanted {
            let ms = (FIRST_MS * WIDTH.powi(*class)).min(counts.stats.max_ms);
            return (ms * 1_000.0).round() / 1_000.0;
        }
    }
    0.0
}

/// Counts the calls of a store that ended within a time; also returns the unreadable events.
///
/// # Errors
/// [`LedgerError::Unavailable`].
pub async fn of_store(
    reads: &dyn LedgerReads,
    since: Option<String>,
    until: Option<String>,
) -> Result<(Vec<ToolStats>, Vec<DamagedRow>), LedgerError> {
    const PAGE: usize = 5_000;
    let (mut stats, mut damaged) = (Stats::default(), Page::<PlacedEvent>::default());
    let mut after = 0;
    loop {
        let filter = EventFilter {
            since: since.clone(),
            until: until.clone(),
            after: Some(after),
            limit: PAGE,
            ..EventFilter::default()
        };
        let page = reads.events(filter).await?;
        damaged.add_damaged(page.damaged);
        let Some(last) = page.found.last() else { return Ok((stats.finish(), damaged.damaged)) };
        after = last.place;
        page.found.iter().for_each(|placed| stats.event(&placed.event));
    }
}

#[cfg(test)]
mod tests {
    use toolbooth_contracts::event::EventBody;

    use super::*;

    #[test]
    fn percentiles_are_within_two_per_cent() {
        let mut stats = Stats::default();
        for n in 1..=1_000u32 {
            let mut body = EventBody::new(AuditEventKind::ToolExecuted, String::new());
            body.tool_name = Some("t".into());
            body.status = Some(if n % 10 == 0 { Status::Failed } else { Status::Succeeded });
            body.log_digest = Some(String::new());
            body.duration_ms = Some(f64::from(n));
            stats.event(&AuditEvent { writer: String::new(), seq: 0, prev: None, body });
        }
        let told = stats.finish().remove(0);
        assert_eq!((told.calls, told.errors, told.denials), (1_000, 100, 0));
        for (got, wanted) in [(told.p50_ms, 500.0), (told.p95_ms, 950.0), (told.p99_ms, 990.0)] {
            assert!((got / wanted - 1.0f64).abs() < 0.021, "{got} for {wanted}");
        }
        assert!((told.max_ms - 1_000.0).abs() < f64::EPSILON);
    }
}
