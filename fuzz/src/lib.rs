//! Fuzz targets for the parsers of outside bytes.
//!
//! Each target is a function that panics if it finds something. `main.rs` lets libFuzzer call one of
//! them; a test replays the saved inputs in `fuzz/seeds/TARGET`.

mod guard_entry;
mod lock_file;
mod mcp_body;
mod mcp_lines;
mod registry_file;
mod schema_pair;

/// A target: its name, and its function on any bytes.
pub type Target = (&'static str, fn(&[u8]));

/// All targets.
pub const TARGETS: [Target; 6] = [
    ("guard_entry", guard_entry::run),
    ("lock_file", lock_file::run),
    ("mcp_body", mcp_body::run),
    ("mcp_lines", mcp_lines::run),
    ("registry_file", registry_file::run),
    ("schema_pair", schema_pair::run),
];
