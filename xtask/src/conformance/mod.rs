//! Runs the official conformance suite of MCP.
//!
//! It runs against the fixture server, to check the fixture, then with the gateway in between.
//! Scenarios that do not pass yet are in the baseline.

mod baseline;
mod process;
mod suite;

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, bail, ensure};

use self::baseline::Baseline;
use self::process::Server;
use self::suite::Outcome;
use crate::run::{self, build_program, repository, target};
use crate::setup::{self, ConformanceSuite};

const REVISIONS: [&str; 2] = ["2026-07-28", "2025-11-25"];

/// Whether the gateway supports `[mcp] bare_uris`, which lists resources under the suite's URIs.
const BARE_URIS: bool = true;

/// Returns the gateway's configuration without its server, `fixture`.
fn settings() -> String {
    let bare = if BARE_URIS { "bare_uris = \"fixture\"\n" } else { "" };
    format!("[mcp]\nprefix = \"never\"\n{bare}")
}

/// The selected sets and scenarios.
#[derive(Default)]
struct Wanted<'a> {
    /// `client`, or a revision for servers; `None` = all sets of both.
    set: Option<&'a str>,
    scenario: Option<&'a str>,
    /// Runs against the fixture server only.
    direct: bool,
}

impl<'a> Wanted<'a> {
    fn parse(words: &[&'a str]) -> Result<Self> {
        let mut wanted = Self::default();
        let mut words = words.iter();
        while let Some(&word) = words.next() {
            match (word, words.as_slice().first()) {
                ("--direct", _) => wanted.direct = true,
                ("--set", Some(&set)) => {
                    ensure!(set == "client" || REVISIONS.contains(&set), "there is no set `{set}`");
                    wanted.set = words.next().copied();
                }
                ("--scenario", Some(_)) => wanted.scenario = words.next().copied(),
                _ => bail!("`{word}` is not understood; `cargo xtask` tells the usage"),
            }
        }
        ensure!(
            !(wanted.direct && wanted.set == Some("client")),
            "clients have no fixture: --direct is for servers"
        );
        Ok(wanted)
    }

    fn has(&self, leg: &str, revision: &str) -> bool {
        self.set.is_none_or(|set| set == if leg == "client" { leg } else { revision })
    }
}

/// Runs the scenarios that the words select.
///
/// # Errors
/// If the fixture fails, a scenario outside the baseline fails, or one of the baseline passes.
pub fn run(words: &[&str]) -> Result<()> {
    let wanted = Wanted::parse(words)?;
    let environment = setup::set_up()?;
    let Some(suite) = setup::conformance_suite()? else { return Ok(()) };
    build_program("toolbooth")?;
    let run = Run {
        suite,
        baseline: Baseline::read(&repository().join(baseline::PATH))?,
        folder: target().join("conformance"),
        python: environment.join("venv/bin/python"),
        wanted,
    };
    let mut wrong = Vec::new();
    let mut ran = 0;
    for revision in REVISIONS.iter().filter(|revision| run.wanted.has("server", revision)) {
        ran += run.server(revision, &mut wrong)?;
    }
    for revision in REVISIONS.iter().filter(|revision| run.wanted.has("client", revision)) {
        if !run.wanted.direct {
            ran += run.client(revision, &mut wrong)?;
        }
    }
    ensure!(ran > 0, "no set has the scenario `{}`", run.wanted.scenario.unwrap_or_default());
    ensure!(wrong.is_empty(), "conformance:\n  {}", wrong.join("\n  "));
    Ok(())
}

struct Run<'a> {
    suite: ConformanceSuite,
    baseline: Baseline,
    folder: PathBuf,
    python: PathBuf,
    wanted: Wanted<'a>,
}

impl Run<'_> {
    /// Returns the selected scenarios among the scored ones of a set.
    fn scenarios(&self, leg: &str, revision: &str) -> Result<Vec<String>> {
        let mut all = self.suite.scored(leg, revision)?;
        if let Some(one) = self.wanted.scenario {
            all.retain(|name| name == one);
        }
        Ok(all)
    }

    /// Creates an empty folder for the files of a run.
    fn empty(&self, name: &str) -> Result<PathBuf> {
        let folder = self.folder.join(name);
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder)?;
        Ok(folder)
    }

    fn fixture(&self, folder: &Path) -> Result<Server> {
        let script = repository().join("tests/conformance/server.mjs");
        let mut command = Command::new(&self.suite.node);
        Server::start("fixture", command.arg(script), &folder.join("fixture.log"))
    }

    /// Runs one set for servers, against the fixture and through the gateway; returns the number of
    /// scenarios.
    fn server(&self, revision: &str, wrong: &mut Vec<String>) -> Result<usize> {
        let scenarios = self.scenarios("server", revision)?;
        if scenarios.is_empty() {
            return Ok(0);
        }
        let folder = self.empty(&format!("direct-{revision}"))?;
        let fixture = self.fixture(&folder)?;
        self.suite.against_server(&fixture.address, revision, self.wanted.scenario, &folder)?;
        fixture.stop()?;
        let outcomes = self.outcomes(&folder, &scenarios)?;
        print(&format!("fixture {revision}"), &outcomes);
        for Outcome { scenario, failures } in &outcomes {
            if !failures.is_empty() {
                wrong.push(format!(
                    "fixture {revision} `{scenario}` fails: {}",
                    failures.join("; ")
                ));
            }
        }
        if self.wanted.direct {
            return Ok(scenarios.len());
        }
        let folder = self.empty(&format!("server-{revision}"))?;
        let fixture = self.fixture(&folder)?;
        let gateway = gateway(&folder, &fixture.address)?;
        let url = format!("{}/mcp", gateway.address);
        self.suite.against_server(&url, revision, self.wanted.scenario, &folder)?;
        gateway.stop()?;
        fixture.stop()?;
        let outcomes = self.outcomes(&folder, &scenarios)?;
        print(&format!("server {revision}"), &outcomes);
        let whole = self.wanted.scenario.is_none();
        wrong.extend(self.baseline.judge("server", revision, &outcomes, whole));
        Ok(scenarios.len())
    }

    fn outcomes(&self, folder: &Path, scenarios: &[String]) -> Result<Vec<Outcome>> {
        if self.wanted.scenario.is_some() {
            println!("{}", std::fs::read_to_string(folder.join("suite.log"))?);
        }
        scenarios.iter().map(|name| suite::outcome(folder, name)).collect()
    }

    /// Runs one set for clients; returns the number of scenarios.
    fn client(&self, revision: &str, wrong: &mut Vec<String>) -> Result<usize> {
        let scenarios = self.scenarios("client", revision)?;
        if scenarios.is_empty() {
            return Ok(0);
        }
        if !self.python.is_file() {
            ensure!(std::env::var_os("CI").is_none(), "CI has the Python client");
            println!("SKIPPED client {revision} (Python client)");
            return Ok(0);
        }
        let folder = self.empty(&format!("client-{revision}"))?;
        let binary = target().join("debug/toolbooth");
        let script = repository().join("tests/conformance/client.py");
        // The suite passes this to a shell. With `exec` the client is the process that the suite ends.
        let client = format!("exec {} {}", quoted(&self.python), quoted(&script));
        let settings = settings();
        let mut outcomes = Vec::new();
        for name in &scenarios {
            let work = folder.join("work").join(name);
            let environment: [(&str, &OsStr); 3] = [
                ("TOOLBOOTH_CONFORMANCE_FOLDER", work.as_os_str()),
                ("TOOLBOOTH_CONFORMANCE_GATEWAY", binary.as_os_str()),
                ("TOOLBOOTH_CONFORMANCE_SETTINGS", OsStr::new(&settings)),
            ];
            self.suite.against_client(&client, revision, name, &folder, &environment)?;
            if self.wanted.scenario.is_some() {
                println!("{}", std::fs::read_to_string(folder.join(format!("{name}.log")))?);
            }
            let mut outcome = suite::outcome(&folder, name)?;
            // The suite checks only requests; the client reports whether it received the responses.
            if !work.join("done").is_file() {
                outcome.failures.push("the client did not get what it asked for".to_owned());
            }
            outcomes.push(outcome);
        }
        print(&format!("client {revision}"), &outcomes);
        let whole = self.wanted.scenario.is_none();
        wrong.extend(self.baseline.judge("client", revision, &outcomes, whole));
        Ok(scenarios.len())
    }
}

/// Starts the gateway in front of a server.
fn gateway(folder: &Path, upstream: &str) -> Result<Server> {
    let gateway_folder = folder.join("gateway");
    std::fs::create_dir_all(&gateway_folder)?;
    let settings = format!("{}\n[servers.fixture]\nurl = \"{upstream}\"\n", settings());
    std::fs::write(gateway_folder.join("toolbooth.toml"), settings)?;
    let (program, state) = (target().join("debug/toolbooth"), folder.join("state"));
    run::run(
        Command::new(&program)
            .args(["trust", "--yes"])
            .arg(&gateway_folder)
            .env("XDG_STATE_HOME", &state),
    )?;
    let mut command = Command::new(program);
    command.env("XDG_STATE_HOME", state);
    for name in ["MCP_TOOLS", "TOOLS_POLICY", "TOOL_WHITELIST"] {
        command.env_remove(name);
    }
    command.args(["serve", "--http", "127.0.0.1:0"]).current_dir(&gateway_folder);
    Server::start("gateway", &mut command, &folder.join("gateway.log"))
}

/// Quotes a path as one word of a shell.
fn quoted(path: &Path) -> String {
    format!("'{}'", path.display().to_string().replace('\'', r"'\''"))
}

fn print(set: &str, outcomes: &[Outcome]) {
    for Outcome { scenario, failures } in outcomes.iter().filter(|one| !one.failures.is_empty()) {
        let first = failures.first().and_then(|failure| failure.lines().next()).unwrap_or_default();
        println!("  - {scenario}: {}", first.chars().take(160).collect::<String>());
    }
    let passed = outcomes.iter().filter(|outcome| outcome.failures.is_empty()).count();
    println!("{set}: {passed}/{}", outcomes.len());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_choose_sets() {
        let all = Wanted::parse(&[]).unwrap();
        assert!(all.has("server", "2025-11-25") && all.has("client", "2026-07-28"));
        let one =
            Wanted::parse(&["--set", "2025-11-25", "--scenario", "ping", "--direct"]).unwrap();
        assert!(one.has("server", "2025-11-25") && !one.has("server", "2026-07-28"));
        assert!(!one.has("client", "2025-11-25") && one.direct);
        assert_eq!(one.scenario, Some("ping"));
        for words in [&["--set", "x"][..], &["--set"], &["--scenario"], &["ping"]] {
            assert!(Wanted::parse(words).is_err(), "{words:?}");
        }
    }

    #[test]
    fn a_path_stays_one_word() {
        assert_eq!(quoted(Path::new("/a b/it's")), r"'/a b/it'\''s'");
    }
}
