//! Runs the tasks of the repository: `cargo xtask check | test | ci | soak`, and each of their steps.

mod bench;
mod boundaries;
mod checks;
mod ci;
mod compare;
mod conformance;
mod docs_map;
mod finding;
mod fuzz;
mod packages;
mod run;
mod setup;
mod smoke;
mod source_texts;
mod sources;
mod steps;
mod supervise;
mod tables;
mod testing;
mod words;

use std::process::ExitCode;

use anyhow::{Result, bail};

const USAGE: &str = "usage: cargo xtask COMMAND

for daily work:
  check                   for each commit: formatting, boundaries, docs map, clippy, schemas, and,
                          where a manifest changed, each crate alone
  test [NAME]             set up what tests need, build, and run all tests, or those whose names
                          have NAME in them
  ci                      everything that CI runs, on a clean clone
  soak [MINUTES]          what takes long: tests of each crate alone, all faults, fuzzing, and
                          tests under load

their steps, and tools:
  fetch                   fetch the packages in the lock file
  format                  check the formatting
  boundaries              check who depends on whom and who names what
  explain CRATE [DEP]     tell what a crate may do, or why it may use a package
  sources                 check that all files are compiled and no circle of files is new; count lines
  lines                   count the lines of code and of tests
  docs-map [--check]      write docs/map.md, or fail when it is not current
  schemas [--check]       write docs/schemas, or fail when they are not current
  clippy                  run clippy on everything
  alone [--if-changed]    check each crate and each feature alone
  test-alone              run the tests of each crate alone
  set-up                  fetch what tests need into target/test-env
  build                   build all programs and tests
  run-tests [NAME]        as `test`, without the set-up
  flaky [ROUNDS] [--load N] [NAME]
                          run tests so often beside N busy processes, and count failures
  fuzz [SECONDS]          feed the parsers of outside bytes with mutations, for so long each
  torture [WHAT [COUNT [SEED]]]
                          kill, starve and cut off the real gateway, and check every promise:
                          all, kills, children, io, disks, outages, replicas, drops
  bench [--all]
  bench [--variants] [--only TEXT] [--rounds N] [--ms N] [--against URL [--tool NAME]]
                          measure the gateway beside its upstream and a reverse proxy, and write
                          docs/benchmarks.md; --all also measures its other doors, settings and stores.
                          With other options nothing is written: --variants measures only those,
                          --only the work with this in its name, --against another gateway in the
                          same rounds
  compare-path REVISION
  compare-records REVISION [all|sqlite|postgres|verify]
                          measure what the path or the records cost beside an earlier release, in turns
  smoke                   let a client call read_file on the real gateway
  conformance [--set 2026-07-28|2025-11-25|client] [--scenario NAME] [--direct]
                          run the official MCP suite against the fixture server, and through the
                          real gateway against tests/conformance/baseline.toml
  embed                   run examples/embed";

fn main() -> ExitCode {
    match command() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // The whole chain of causes is printed without a backtrace, because developers read these
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
        ["check"] => ci::check(),
        ["test"] => testing::set_up_and_run(""),
        ["test", name] => testing::set_up_and_run(name),
        ["ci"] => ci::ci(),
        ["soak"] => ci::soak(60),
        ["soak", minutes] => ci::soak(minutes.parse()?),
        ["fetch"] => run::fetch_packages(),
        ["format"] => checks::format(),
        ["boundaries"] => boundaries::run(),
        ["explain", name] => boundaries::explain(name, None),
        ["explain", name, dependency] => boundaries::explain(name, Some(dependency)),
        ["sources"] => sources::run(),
        ["lines"] => sources::lines(),
        ["docs-map"] => docs_map::run(false),
        ["docs-map", "--check"] => docs_map::run(true),
        ["schemas"] => checks::schemas(false),
        ["schemas", "--check"] => checks::schemas(true),
        ["clippy"] => checks::clippy(),
        ["alone"] => checks::alone(),
        ["alone", "--if-changed"] => checks::alone_if_changed(),
        ["test-alone"] => checks::test_alone(),
        ["set-up"] => setup::set_up().map(drop),
        ["build"] => run::build(),
        ["run-tests"] => testing::run(""),
        ["run-tests", name] => testing::run(name),
        ["flaky", rest @ ..] => testing::flaky(rest),
        ["fuzz"] => fuzz::run(fuzz::SECONDS),
        ["fuzz", seconds] => fuzz::run(seconds.parse()?),
        ["torture", rest @ ..] => setup::torture(rest),
        ["bench", rest @ ..] => bench::run_with(rest),
        ["compare-path", revision] => compare::path_against(revision),
        ["compare-records", revision] => compare::run_against(revision, "all"),
        ["compare-records", revision, what] => compare::run_against(revision, what),
        ["smoke"] => smoke::run(),
        ["conformance", rest @ ..] => conformance::run(rest),
        ["embed"] => checks::embed(),
        _ => bail!("{USAGE}"),
    }
}
