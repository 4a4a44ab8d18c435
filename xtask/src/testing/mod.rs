//! Runs all tests of the workspace, each in a separate process.
//!
//! A failed test is run again alone, up to twice. One that then passes is flaky: it is printed, and
//! more than [`FLAKY_MAX`] flaky tests fail the run.

mod binaries;
mod doc_tests;
mod report;
mod runner;
mod test;

use std::collections::BTreeMap;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, UNIX_EPOCH};

use anyhow::{Result, bail, ensure};

use self::report::Report;
use self::runner::{Outcome, Settings};
use self::test::Test;
use crate::setup;

/// The maximum number of flaky tests of a successful run.
const FLAKY_MAX: usize = 3;
/// The maximum number of retries of a failed test.
const AGAIN_MAX: usize = 2;
/// The maximum number of failures that are retried; with more, the cause is not flakiness.
const AGAIN_TESTS_MAX: usize = 12;
/// The timeout of one test. The longest one needs a quarter of it on a slow machine.
const TEST_LIMIT: Duration = Duration::from_secs(600);
/// The default seed of property tests, so that each run has the same cases.
const SEED: u64 = 1;

/// Sets up the test environment, builds, and runs the tests whose names contain `filter`.
pub fn set_up_and_run(filter: &str) -> Result<()> {
    setup::set_up()?;
    run(filter)
}

/// Builds, and runs the tests whose names contain `filter`; doc tests only without a filter.
pub fn run(filter: &str) -> Result<()> {
    let (tests, ignored) = selected(filter)?;
    let mut report = Report::default();
    report.ignored = ignored;
    let settings = settings(SEED)?;
    runner::run_all(&tests, &settings, |outcome| {
        outcome.tell();
        report.add(outcome);
    })?;
    let doc_tests = if filter.is_empty() { Some(doc_tests::run()?) } else { None };
    report.doc_tests = doc_tests;
    if report.failed.len() <= AGAIN_TESTS_MAX {
        for failure in std::mem::take(&mut report.failed) {
            match again(&failure, &settings)? {
                Some(tries) => report.flaky.push((failure, tries)),
                None => report.failed.push(failure),
            }
        }
    }
    report.print(FLAKY_MAX);
    ensure!(report.holds(FLAKY_MAX), "tests failed");
    Ok(())
}

/// Runs a failed test alone; returns at which try it passed.
fn again(failure: &Outcome, settings: &Settings) -> Result<Option<usize>> {
    for number in 2..=1 + AGAIN_MAX {
        println!("again, alone: {}", failure.test.name());
        let outcome = runner::run_one(&failure.test, number, settings)?;
        if outcome.failure.is_none() {
            return Ok(Some(number));
        }
    }
    Ok(None)
}

/// Returns the settings of a run; the environment's seed precedes `seed`.
fn settings(seed: u64) -> Result<Settings> {
    let given = std::env::var(runner::SEED).ok();
    let seed = given.map_or(Ok(seed), |given| given.parse())?;
    Ok(Settings { limit: TEST_LIMIT, seed })
}

fn selected(filter: &str) -> Result<(Vec<Test>, usize)> {
    let (mut tests, ignored) = binaries::tests()?;
    tests.retain(|test| test.name().contains(filter));
    ensure!(!tests.is_empty(), "no test has `{filter}` in its name");
    Ok((tests, if filter.is_empty() { ignored } else { 0 }))
}

/// Runs all tests several times next to busy processes, without retries. Each round has another seed for
/// property tests.
///
/// Prints the name and the number of failures of each test that failed.
///
/// # Errors
/// If a test failed.
pub fn flaky(words: &[&str]) -> Result<()> {
    let wanted = Wanted::parse(words)?;
    setup::set_up()?;
    let (tests, _) = selected(wanted.filter)?;
    let load: Vec<Busy> = (0..wanted.load).map(|_| Busy::start()).collect::<Result<_>>()?;
    let mut failures: BTreeMap<String, Vec<Outcome>> = BTreeMap::new();
    for round in 1..=wanted.rounds {
        let settings = settings(UNIX_EPOCH.elapsed()?.as_secs())?;
        println!(
            "round {round} of {}, beside {} busy processes, {}={}",
            wanted.rounds,
            load.len(),
            runner::SEED,
            settings.seed
        );
        runner::run_all(&tests, &settings, |mut outcome| {
            if outcome.failure.is_some() {
                // The log of the next round has the same name.
                let kept = outcome.log.with_extension(format!("round-{round}.log"));
                if std::fs::rename(&outcome.log, &kept).is_ok() {
                    outcome.log = kept;
                }
                outcome.tell();
                failures.entry(outcome.test.name()).or_default().push(outcome);
            }
        })?;
    }
    drop(load);
    for (name, outcomes) in &failures {
        println!("{name}: {} of {} rounds failed", outcomes.len(), wanted.rounds);
        for outcome in outcomes.iter().take(1) {
            report::tell_failure(outcome, 20);
        }
    }
    println!("{} tests, {} rounds", tests.len(), wanted.rounds);
    ensure!(failures.is_empty(), "{} tests failed", failures.len());
    Ok(())
}

/// The arguments of `flaky`.
#[derive(Debug, PartialEq, Eq)]
struct Wanted<'a> {
    rounds: u32,
    load: u32,
    filter: &'a str,
}

impl<'a> Wanted<'a> {
    fn parse(words: &[&'a str]) -> Result<Self> {
        let mut wanted = Self { rounds: 3, load: 0, filter: "" };
        let mut words = words.iter();
        while let Some(&word) = words.next() {
            match (word, word.parse()) {
                ("--load", _) => {
                    let Some(count) = words.next() else { bail!("--load needs a number") };
                    wanted.load = count.parse()?;
                }
                (_, Ok(rounds)) => wanted.rounds = rounds,
                _ => wanted.filter = word,
            }
        }
        Ok(wanted)
    }
}

/// A process that keeps a processor busy until it is dropped.
struct Busy(Child);

impl Busy {
    fn start() -> Result<Self> {
        // The shell ends with this process, because its input is then closed.
        let script = "(while :; do :; done) & busy=$!; read line; kill $busy";
        let mut command = Command::new("sh");
        Ok(Self(command.args(["-c", script]).stdin(Stdio::piped()).spawn()?))
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_flaky_are_read_in_any_order() {
        let parse = |words: &[&'static str]| Wanted::parse(words).unwrap();
        assert_eq!(parse(&[]), Wanted { rounds: 3, load: 0, filter: "" });
        let all = Wanted { rounds: 50, load: 6, filter: "records" };
        assert_eq!(parse(&["50", "--load", "6", "records"]), all);
        assert_eq!(parse(&["records", "--load", "6", "50"]), all);
        assert!(Wanted::parse(&["--load"]).is_err());
    }
}
