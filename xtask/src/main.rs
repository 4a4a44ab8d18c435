//! Runs the tasks of the repository: `cargo xtask boundaries | explain | docs-map | test |
//! conformance | ci`.

mod boundaries;
mod compare;
mod conformance;
mod docs_map;
mod fuzz;
mod run;
mod setup;
mod smoke;

use std::process::ExitCode;

use anyhow::{Result, bail};

const USAGE: &str = "usage: cargo xtask COMMAND
  boundaries              check who depends on whom and who names what
  explain CRATE [DEP]     tell what a crate may do, or why it may use a package
  docs-map [--check]      write docs/map.md, or fail when it is not current
  schemas [--check]       write docs/schemas, or fail when they are not current
  set-up                  fetch what tests need into target/test-env
  fuzz [SECONDS]          feed the parsers of outside bytes with mutations, for so long each
  torture [WHAT [COUNT [SEED]]]
                          kill, starve and cut off the real gateway, and check every promise:
                          all, kills, children, io, disks, outages, replicas, drops
  test                    set up what tests need, and run all of them
  compare-path REVISION
  compare-records REVISION [all|sqlite|postgres|verify]
                          measure what the path or the records cost beside an earlier release, in turns
  smoke                   let a real client call read_file on the real gateway
  conformance [--set 2026-07-28|2025-11-25|client] [--scenario NAME] [--direct]
                          run the official MCP suite against the fixture server, and through the
                          real gateway against tests/conformance/baseline.toml
  ci                      everything that CI runs";

fn main() -> ExitCode {
    match command() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Prints the whole chain of causes without a backtrace, because people read these
            // messages.
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn command() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["boundaries"] => boundaries::run(),
        ["explain", name] => boundaries::explain(name, None),
        ["explain", name, dependency] => boundaries::explain(name, Some(dependency)),
        ["docs-map"] => docs_map::run(false),
        ["docs-map", "--check"] => docs_map::run(true),
        ["schemas"] => run::schemas(false),
        ["schemas", "--check"] => run::schemas(true),
        ["set-up"] => setup::set_up().map(drop),
        ["fuzz"] => fuzz::run(fuzz::SECONDS),
        ["fuzz", seconds] => fuzz::run(seconds.parse()?),
        ["torture", rest @ ..] => run::torture(rest),
        ["test"] => run::test(),
        ["compare-path", revision] => compare::path_against(revision),
        ["compare-records", revision] => compare::run_against(revision, "all"),
        ["compare-records", revision, what] => compare::run_against(revision, what),
        ["smoke"] => smoke::run(),
        ["conformance", rest @ ..] => conformance::run(rest),
        ["ci"] => run::ci(),
        _ => bail!("{USAGE}"),
    }
}
