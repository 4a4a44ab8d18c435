//! Coverage: whether each registered tool can run, with the reason if it cannot.
//!
//! Doc: registry.md#coverage

#[cfg(feature = "schemars")]
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Whether a tool can run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum CoverageState {
    /// Its target is configured and available.
    Real,
    /// A setting is missing.
    NotConfigured,
    /// It no longer matches its approved version.
    Quarantined,
    /// Its source does not respond.
    Unhealthy,
}

impl CoverageState {
    /// Returns the state as it is written.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Real => "real",
            Self::NotConfigured => "not_configured",
            Self::Quarantined => "quarantined",
            Self::Unhealthy => "unhealthy",
        }
    }
}

/// Whether an executor could run a tool now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Readiness {
    /// The executor could run the tool.
    Ready,
    /// A setting is missing; the text names it.
    NotConfigured(String),
    /// The source does not respond; the text states the reason.
    Unhealthy(String),
}

/// One tool in the coverage report.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct CoverageRow {
    /// The tool.
    pub tool_id: String,
    /// Its category.
    pub category: String,
    /// The source of its contract.
    pub source: String,
    /// The adapter that serves it.
    pub target: String,
    /// Its idempotency mode.
    pub idempotency: String,
    /// Its permissions.
    pub permissions: Vec<String>,
    /// Whether it can run.
    pub state: CoverageState,
    /// The reason why it cannot run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// Counts by state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(JsonSchema))]
pub struct CoverageTotals {
    /// All tools.
    pub total: usize,
    /// Tools that can run.
    pub real: usize,
    /// Tools with a missing setting.
    pub not_configured: usize,
    /// Tools in quarantine.
    pub quarantined: usize,
    /// Tools with a source that does not respond.
    pub unhealthy: usize,
}

/// The coverage of a registry, sorted by tool id.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(JsonSchema))]
pub struct CoverageReport {
    /// Counts.
    pub totals: CoverageTotals,
    /// The tools.
    pub tools: Vec<CoverageRow>,
}
