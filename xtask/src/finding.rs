//! The findings of the checks of the boundary rules.

use std::fmt;

/// A broken rule, with its reason and its remedy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    pub rule: String,
    pub location: String,
    pub reason: String,
    pub remedy: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}: {}", self.rule, self.location)?;
        writeln!(f, "  why:     {}", self.reason)?;
        write!(f, "  instead: {}", self.remedy)
    }
}

/// Returns a finding.
pub fn finding(rule: &str, location: String, reason: &str, remedy: String) -> Finding {
    Finding { rule: rule.to_owned(), location, reason: reason.to_owned(), remedy }
}
