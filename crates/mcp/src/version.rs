//! The supported revisions of MCP, in two eras.
//!
//! Doc: front-doors.md#mcp

use rmcp::model::ProtocolVersion;

/// An era of the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Era {
    /// Sessions begin with `initialize`: 2024-11-05 to 2025-11-25.
    Legacy,
    /// Each request states its version and capabilities: 2026-07-28.
    Modern,
}

/// Returns the revision of the modern era.
#[must_use]
pub fn modern() -> &'static str {
    static VERSION: ProtocolVersion = ProtocolVersion::V_2026_07_28;
    VERSION.as_str()
}

/// The revisions of the legacy era, oldest first.
pub(crate) const LEGACY: [ProtocolVersion; 4] = [
    ProtocolVersion::V_2024_11_05,
    ProtocolVersion::V_2025_03_26,
    ProtocolVersion::V_2025_06_18,
    ProtocolVersion::V_2025_11_25,
];

/// Returns the revisions of the legacy era, oldest first.
#[must_use]
pub fn legacy() -> [String; 4] {
    LEGACY.map(|version| version.as_str().to_owned())
}

/// Whether a version is one of the legacy era.
#[must_use]
pub fn is_legacy(version: &str) -> bool {
    LEGACY.iter().any(|known| known.as_str() == version)
}
