//! Builds the coverage report and its Markdown page; both are sorted and have no timestamps.
//!
//! Doc: registry.md#coverage

use std::fmt::Write as _;

use toolbooth_contracts::coverage::{CoverageReport, CoverageRow, CoverageState, CoverageTotals};

/// The report on `rows`, sorted by tool id, with the number of tools in each state.
#[must_use]
pub fn report(mut rows: Vec<CoverageRow>) -> CoverageReport {
    rows.sort_by(|a, b| a.tool_id.cmp(&b.tool_id));
    let count = |state| rows.iter().filter(|row| row.state == state).count();
    let totals = CoverageTotals {
        total: rows.len(),
        real: count(CoverageState::Real),
        not_configured: count(CoverageState::NotConfigured),
        quarantined: count(CoverageState::Quarantined),
        unhealthy: count(CoverageState::Unhealthy),
    };
    CoverageReport { totals, tools: rows }
}

/// The report as a Markdown page.
#[must_use]
pub fn markdown(report: &CoverageReport) -> String {
    let totals = &report.totals;
    let mut out = String::from("# Registry coverage\n\n");
    out.push_str("| total | real | not configured | quarantined | unhealthy |\n| --: | --: | --: | --: | --: |\n");
    let _ = writeln!(
        out,
        "| {} | {} | {} | {} | {} |\n",
        totals.total, totals.real, totals.not_configured, totals.quarantined, totals.unhealthy
    );
    out.push_str(
        "| tool | category | source | target | idempotency | permissions | state | reason |\n",
    );
    out.push_str("| --- | --- | --- | --- | --- | --- | --- | --- |\n");
    for row in &report.tools {
        let cells = [
            row.tool_id.as_str(),
            &row.category,
            &row.source,
            &row.target,
            &row.idempotency,
            &row.permissions.join(", "),
            row.state.as_str(),
            row.reason.as_deref().unwrap_or(""),
        ];
        let line: Vec<String> = cells.iter().map(|cell| escape(cell)).collect();
        let _ = writeln!(out, "| {} |", line.join(" | "));
    }
    out
}

fn escape(cell: &str) -> String {
    cell.replace('\\', "\\\\").replace('|', "\\|").replace(['\n', '\r'], " ")
}
