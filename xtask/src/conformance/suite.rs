//! Lists the scenarios that a revision requires, runs them, and reads their outcomes.

use std::ffi::OsStr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::process::run_into;
use crate::setup::ConformanceSuite;

/// The deadline of one run. A set takes seconds; the suite allows each scenario up to 30.
const RUN_MAX: Duration = Duration::from_secs(240);
const CLIENT_MAX: Duration = Duration::from_secs(60);
/// The prefix of OAuth scenarios: Toolbooth does not log in at upstream servers.
const OAUTH: &str = "auth/";

/// The outcome of one scenario.
pub struct Outcome {
    pub scenario: String,
    /// The reasons for which it failed; empty if it passed.
    pub failures: Vec<String>,
}

impl ConformanceSuite {
    fn command(&self) -> Command {
        let mut command = Command::new(&self.node);
        command.arg(&self.script);
        command
    }

    /// Returns the scenarios that a revision scores for a leg, without those of OAuth.
    pub fn scored(&self, leg: &str, revision: &str) -> Result<Vec<String>> {
        let output = self.command().args(["list", "--requirements", revision]).output()?;
        let text = String::from_utf8_lossy(&output.stdout);
        ensure!(output.status.success(), "the suite does not know the revision {revision}: {text}");
        let found = scenarios(&text, leg);
        ensure!(!found.is_empty(), "the suite lists no {leg} scenarios of {revision}: {text}");
        Ok(found)
    }

    /// Runs all scenarios of a set, or one, against a server.
    pub fn against_server(
        &self,
        url: &str,
        revision: &str,
        one: Option<&str>,
        folder: &Path,
    ) -> Result<()> {
        let mut command = self.command();
        command.args(["server", "--url", url]);
        match one {
            Some(name) => command.args(["--scenario", name, "--spec-version", revision]),
            None => command.args(["--requirements", revision]),
        };
        run_into(command.arg("-o").arg(folder), &folder.join("suite.log"), RUN_MAX)?;
        name_folders(folder, "server-")
    }

    /// Runs one client scenario; `client` is a shell command, to which the suite adds a URL.
    pub fn against_client(
        &self,
        client: &str,
        revision: &str,
        name: &str,
        folder: &Path,
        environment: &[(&str, &OsStr)],
    ) -> Result<()> {
        let mut command = self.command();
        command
            .envs(environment.iter().copied())
            .args(["client", "--command", client, "--scenario", name])
            .args(["--spec-version", revision, "-o"])
            .arg(folder);
        run_into(&mut command, &folder.join(format!("{name}.log")), CLIENT_MAX)?;
        name_folders(folder, "")
    }
}

/// Returns the scenarios of one leg in the output of `list --requirements`.
fn scenarios(listing: &str, leg: &str) -> Vec<String> {
    let head = if leg == "client" { "Client scenarios" } else { "Server scenarios" };
    listing
        .lines()
        .skip_while(|line| !line.starts_with(head))
        .skip(1)
        .map_while(|line| line.strip_prefix("  - "))
        .filter(|name| !name.starts_with(OAUTH))
        .map(str::to_owned)
        .collect()
}

/// Removes the time from the names of the suite's folders.
fn name_folders(folder: &Path, prefix: &str) -> Result<()> {
    const TIME: usize = "-2026-01-01T00-00-00-000Z".len();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().and_then(OsStr::to_str).unwrap_or_default();
        let scenario = name
            .strip_prefix(prefix)
            .filter(|name| name.ends_with('Z') && path.join("checks.json").is_file())
            .and_then(|name| name.get(..name.len().checked_sub(TIME)?));
        if let Some(scenario) = scenario {
            std::fs::rename(&path, folder.join(scenario))?;
        }
    }
    Ok(())
}

/// Reads the outcome of a scenario from the checks that the suite wrote.
pub fn outcome(folder: &Path, scenario: &str) -> Result<Outcome> {
    let path = folder.join(scenario).join("checks.json");
    let failures = match std::fs::read(&path) {
        Ok(bytes) => failures(
            &serde_json::from_slice(&bytes)
                .with_context(|| format!("`{}` is not JSON", path.display()))?,
        ),
        Err(_) => vec![format!("the suite wrote no {}", path.display())],
    };
    Ok(Outcome { scenario: scenario.to_owned(), failures })
}

/// Returns the failures among checks. A scenario without a successful check also fails, because the suite
/// would pass a scenario in which nothing happened.
fn failures(checks: &Value) -> Vec<String> {
    let checks = checks.as_array().map(Vec::as_slice).unwrap_or_default();
    let with = |status: &'static str| checks.iter().filter(move |check| check["status"] == status);
    let text = |check: &Value, key: &str| check[key].as_str().unwrap_or_default().to_owned();
    let mut failures: Vec<String> = with("FAILURE")
        .map(|check| {
            let why = [text(check, "errorMessage"), text(check, "description")];
            let why = why.into_iter().find(|text| !text.is_empty()).unwrap_or_default();
            format!("{}: {why}", text(check, "id"))
        })
        .collect();
    if failures.is_empty() && with("SUCCESS").next().is_none() {
        failures.push("nothing was checked".to_owned());
    }
    failures
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_scenario_passes_with_a_success_and_without_failures() {
        let warned = json!([{"id": "a", "status": "SUCCESS"}, {"id": "b", "status": "WARNING"}]);
        assert!(failures(&warned).is_empty());
        let failed = json!([{"id": "a", "status": "SUCCESS"},
            {"id": "b", "status": "FAILURE", "errorMessage": "no", "description": "d"}]);
        assert_eq!(failures(&failed), ["b: no"]);
    }

    #[test]
    fn a_scenario_in_which_nothing_happened_fails() {
        for checks in [json!([]), json!([{"id": "a", "status": "INFO"}]), json!({})] {
            assert_eq!(failures(&checks), ["nothing was checked"], "{checks}");
        }
    }

    #[test]
    fn the_listing_is_read_by_leg_and_without_oauth() {
        let text = "Required\n\nServer scenarios (x):\n  - ping\n  - tools-list\n\nClient scenarios (y):\n  - initialize\n  - auth/x\n\nRun and reported:\n  - z\n";
        assert_eq!(scenarios(text, "server"), ["ping", "tools-list"]);
        assert_eq!(scenarios(text, "client"), ["initialize"]);
    }
}
