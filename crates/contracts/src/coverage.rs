//! Coverage: for every registered tool, whether it can really run, and why not.
//!
//! Doc: registry.md#coverage

#[cfg(feature = "schemars")]
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Whether a tool can really run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum CoverageState {
    /// Its target is configured and there.
    Real,
    /// A setting is missing.
    NotConfigured,
    /// It no longer matches what was approved.
    Quarantined,
    /// Its source does not answer.
    Unhealthy,
}

impl CoverageState {
    /// The state as it is written.
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
    /// It could.
    Ready,
    /// A setting is missing; says which.
    NotConfigured(String),
    /// The source does not answer; says why.
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
    /// Where its contract comes from.
    pub source: String,
    /// The adapter that serves it.
    pub target: String,
    /// Its idempotency mode.
    pub idempotency: String,
    /// Its permissions.
    pub permissions: Vec<String>,
    /// Whether it can run.
    pub state: CoverageState,
    /// Why it cannot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// Counts by state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(JsonSchema))]
pub struct CoverageTotals {
    /// All tools.
    pub total: usize,
    /// Those that can run.
    pub real: usize,
    /// Those that miss a setting.
    pub not_configured: usize,
    /// Those in quarantine.
    pub quarantined: usize,
    /// Those whose source does not answer.
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
