//! Reads the baseline: scenarios that do not pass yet, each with its reason.
//!
//! The baseline must only shrink.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use super::suite::Outcome;

/// The path of the baseline in the repository.
pub const PATH: &str = "tests/conformance/baseline.toml";

/// Reasons by scenario.
type Reasons = BTreeMap<String, String>;

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Baseline {
    /// Reasons by revision.
    #[serde(default)]
    server: BTreeMap<String, Reasons>,
    #[serde(default)]
    client: BTreeMap<String, Reasons>,
}

impl Baseline {
    pub fn read(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("`{}` cannot be read", path.display()))?;
        Self::parse(&text).with_context(|| format!("`{}` is not a baseline", path.display()))
    }

    fn parse(text: &str) -> Result<Self> {
        let baseline: Self = toml::from_str(text)?;
        for (scenario, reason) in baseline.server.values().chain(baseline.client.values()).flatten()
        {
            ensure!(!reason.trim().is_empty(), "`{scenario}` has no reason");
        }
        Ok(baseline)
    }

    /// Compares the outcomes of one set with the baseline; returns the contradictions. `whole`
    /// means that the whole set ran.
    pub fn judge(
        &self,
        leg: &str,
        revision: &str,
        outcomes: &[Outcome],
        whole: bool,
    ) -> Vec<String> {
        let legs = if leg == "client" { &self.client } else { &self.server };
        let none = Reasons::new();
        let reasons = legs.get(revision).unwrap_or(&none);
        let mut wrong = Vec::new();
        for Outcome { scenario, failures } in outcomes {
            match (failures.is_empty(), reasons.contains_key(scenario)) {
                (false, false) => {
                    let failures = failures.join("; ");
                    wrong.push(format!("{leg} {revision} `{scenario}` fails: {failures}"));
                }
                (true, true) => wrong.push(format!(
                    "{leg} {revision} `{scenario}` passes: remove it from the baseline, {PATH}"
                )),
                _ => {}
            }
        }
        let run = |name: &String| outcomes.iter().any(|outcome| outcome.scenario == *name);
        for name in reasons.keys().filter(|name| whole && !run(name)) {
            wrong.push(format!(
                "{leg} {revision} `{name}` is in the baseline, {PATH}, but is not run"
            ));
        }
        wrong
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(scenario: &str, failures: &[&str]) -> Outcome {
        let failures = failures.iter().map(|&failure| failure.to_owned()).collect();
        Outcome { scenario: scenario.to_owned(), failures }
    }

    fn baseline() -> Baseline {
        Baseline::parse("[server.2025-11-25]\nping = \"It is not answered yet.\"").unwrap()
    }

    #[test]
    fn a_failure_outside_the_baseline_is_wrong() {
        let outcomes = [outcome("ping", &["no"]), outcome("tools-list", &["no list"])];
        let wrong = baseline().judge("server", "2025-11-25", &outcomes, true);
        assert_eq!(wrong, ["server 2025-11-25 `tools-list` fails: no list"]);
    }

    #[test]
    fn what_passes_must_leave_the_baseline() {
        let wrong = baseline().judge("server", "2025-11-25", &[outcome("ping", &[])], true);
        assert_eq!(wrong.len(), 1, "{wrong:?}");
        assert!(wrong[0].contains("remove it from the baseline"), "{wrong:?}");
    }

    #[test]
    fn sets_have_entries_of_their_own() {
        let outcomes = [outcome("ping", &["no"])];
        assert!(baseline().judge("server", "2025-11-25", &outcomes, true).is_empty());
        assert_eq!(baseline().judge("server", "2026-07-28", &outcomes, true).len(), 1);
        assert_eq!(baseline().judge("client", "2025-11-25", &outcomes, true).len(), 1);
    }

    #[test]
    fn an_entry_that_is_never_run_is_wrong_where_all_ran() {
        let outcomes = [outcome("tools-list", &[])];
        assert_eq!(baseline().judge("server", "2025-11-25", &outcomes, true).len(), 1);
        assert!(baseline().judge("server", "2025-11-25", &outcomes, false).is_empty());
    }

    #[test]
    fn entries_without_a_reason_and_unknown_keys_are_refused() {
        assert!(Baseline::parse("[server.2025-11-25]\nping = \" \"").is_err());
        assert!(Baseline::parse("[servers.2025-11-25]\nping = \"x\"").is_err());
    }
}
