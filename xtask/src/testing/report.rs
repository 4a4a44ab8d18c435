//! The report of a test run: the slowest, failed and flaky tests, and the counts.

use super::runner::Outcome;
use crate::steps;

const SLOWEST: usize = 10;
/// The maximum number of failed tests that are printed with output; the others are printed by name.
const SHOWN_MAX: usize = 3;
/// The maximum number of output lines of all shown tests together.
const LINES_MAX: usize = 24;
/// The maximum number of tests with skipped parts that are named.
const SKIPPED_MAX: usize = 10;
/// The maximum number of output lines of one flaky test.
const FLAKY_LINES_MAX: usize = 6;
/// The maximum length of a line of a test's output, in characters.
const LINE_CHARS_MAX: usize = 400;

/// The results of the tests.
#[derive(Default)]
pub struct Report {
    pub passed: usize,
    /// Number of tests that are ignored.
    pub ignored: usize,
    /// Tests that skipped a part on this machine, each with the part.
    pub skipped: Vec<(String, String)>,
    pub failed: Vec<Outcome>,
    /// Failed tests that passed when they ran again, with the number of tries.
    pub flaky: Vec<(Outcome, usize)>,
    /// Numbers of doc tests that passed and that failed.
    pub doc_tests: Option<(usize, usize)>,
    times: Vec<(f64, String)>,
}

impl Report {
    pub fn add(&mut self, outcome: Outcome) {
        self.times.push((outcome.seconds, outcome.test.name()));
        if outcome.failure.is_none() {
            self.passed += 1;
            let name = outcome.test.name();
            self.skipped.extend(outcome.skipped.map(|what| (name, what)));
        } else {
            self.failed.push(outcome);
        }
    }

    fn doc_tests_failed(&self) -> usize {
        self.doc_tests.map_or(0, |(_, failed)| failed)
    }

    /// Whether the run succeeds.
    pub fn holds(&self, flaky_max: usize) -> bool {
        self.failed.is_empty() && self.doc_tests_failed() == 0 && self.flaky.len() <= flaky_max
    }

    /// Prints the report. The line with the counts is the last.
    pub fn print(&self, flaky_max: usize) {
        steps::begin_report();
        let mut times: Vec<&(f64, String)> = self.times.iter().collect();
        times.sort_by(|one, other| other.0.total_cmp(&one.0));
        for (seconds, name) in times.iter().take(SLOWEST) {
            println!("{seconds:8.1} s  {name}");
        }
        for (name, what) in self.skipped.iter().take(SKIPPED_MAX) {
            println!("SKIPPED {name} ({what})");
        }
        if self.skipped.len() > SKIPPED_MAX {
            println!("SKIPPED in {} tests", self.skipped.len());
        }
        let shown = self.failed.len().min(SHOWN_MAX);
        for outcome in self.failed.iter().take(shown) {
            tell_failure(outcome, LINES_MAX / shown.max(1));
        }
        for outcome in self.failed.iter().skip(shown).take(SLOWEST) {
            println!("FAILED {}", outcome.test.name());
        }
        for (outcome, tries) in &self.flaky {
            tell_output(outcome, FLAKY_LINES_MAX);
            let why = outcome.failure.as_deref().unwrap_or_default();
            println!("FLAKY {} (passed at try {tries}; {why})", outcome.test.name());
        }
        if self.flaky.len() > flaky_max {
            println!("{} tests are flaky, at most {flaky_max} may be", self.flaky.len());
        }
        if self.doc_tests_failed() > 0 {
            println!("FAILED doc tests: {}", self.doc_tests_failed());
        }
        let passed =
            self.passed + self.flaky.len() + self.doc_tests.map_or(0, |(passed, _)| passed);
        let failed = self.failed.len() + self.doc_tests_failed();
        let skipped = self.ignored + self.skipped.len();
        println!("{passed} passed, {failed} failed, {skipped} skipped");
    }
}

/// Prints a failed test: its failure, the end of its output, and the command that repeats it.
pub fn tell_failure(outcome: &Outcome, lines_max: usize) {
    println!(
        "FAILED {}: {} after {:.1} s",
        outcome.test.name(),
        outcome.failure.as_deref().unwrap_or_default(),
        outcome.seconds
    );
    tell_output(outcome, lines_max);
    println!("  repeat: cargo xtask test '{}'", outcome.test.name());
}

/// Prints the end of a test's output, and the path of the complete output.
fn tell_output(outcome: &Outcome, lines_max: usize) {
    let text = std::fs::read(&outcome.log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines = telling(&text, &outcome.test.function);
    for line in lines.iter().skip(lines.len().saturating_sub(lines_max)) {
        println!("  | {}", line.chars().take(LINE_CHARS_MAX).collect::<String>());
    }
    println!("  log:    {}", outcome.log.display());
}

/// Returns the informative lines of a test's output.
fn telling<'t>(text: &'t str, function: &str) -> Vec<&'t str> {
    const SAID_BY_THE_RUNNER: [&str; 4] =
        ["running 1 test", "failures:", "test result:", "note: run with"];
    let is_of_runner = |line: &str| {
        SAID_BY_THE_RUNNER.iter().any(|start| line.starts_with(start)) || line.trim() == function
    };
    let trimmed = text.lines().map(str::trim_end);
    trimmed.filter(|line| !line.is_empty() && !is_of_runner(line)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_test_runner_says_is_left_out() {
        let text = "\nrunning 1 test\nthread 'a' panicked at x.rs:1:2:\nit broke: [\n    1,\n]\nnote: run with `RUST_BACKTRACE=1`\ntest a ... FAILED\n\nfailures:\n\nfailures:\n    a\n\ntest result: FAILED. 0 passed; 1 failed;\n";
        assert_eq!(
            telling(text, "a"),
            ["thread 'a' panicked at x.rs:1:2:", "it broke: [", "    1,", "]", "test a ... FAILED"]
        );
    }

    #[test]
    fn a_few_flaky_tests_are_told_and_more_fail_the_run() {
        let mut report = Report::default();
        assert!(report.holds(3));
        report.doc_tests = Some((3, 1));
        assert!(!report.holds(3));
    }
}
