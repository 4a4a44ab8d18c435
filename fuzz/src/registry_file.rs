//! Fuzzes the parser of registry files: no panic, and every finding has a position in the text.

use toolbooth_contracts::Guard;
use toolbooth_registry::file;

/// Runs the target on any bytes.
pub fn run(bytes: &[u8]) {
    let findings = match file::load(bytes, "f.json", &Guard::default()) {
        Ok(loaded) => loaded.warnings,
        Err(rejected) => {
            assert!(!rejected.findings.is_empty());
            rejected.findings
        }
    };
    let lines = bytes.iter().filter(|byte| **byte == b'\n').count() + 1;
    for finding in findings {
        assert!((1..=lines).contains(&finding.line) && finding.column >= 1, "{finding:?}");
    }
}
