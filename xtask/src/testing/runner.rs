//! Runs tests in separate processes, two at a time for each processor.

use std::fs::File;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, mpsc};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::test::Test;
use crate::supervise;

/// How long processes of a test can continue after the test.
const END_LIMIT: Duration = Duration::from_secs(5);

/// The variable with the seed of property tests.
pub const SEED: &str = "PROPTEST_RNG_SEED";

/// The common settings of all tests of a run.
pub struct Settings {
    /// The timeout of one test.
    pub limit: Duration,
    /// The seed of property tests.
    pub seed: u64,
}

/// The result of a test.
#[derive(Debug)]
pub struct Outcome {
    pub test: Test,
    pub seconds: f64,
    /// The reason why it failed.
    pub failure: Option<String>,
    /// The part that it skipped on this machine.
    pub skipped: Option<String>,
    /// The file with its output, if it failed.
    pub log: PathBuf,
}

impl Outcome {
    /// Prints one line.
    pub fn tell(&self) {
        let word = if self.failure.is_none() { "ok" } else { "FAILED" };
        println!("{word:6} {:7.2} s  {}", self.seconds, self.test.name());
    }
}

/// Runs one test, with its output in the log of this try. Tries count from 1.
pub fn run_one(test: &Test, number: usize, settings: &Settings) -> Result<Outcome> {
    static NUMBER: AtomicUsize = AtomicUsize::new(0);
    let path = test.log(number);
    std::fs::create_dir_all(path.parent().context("a folder")?)?;
    let output = File::create(&path).with_context(|| format!("{}", path.display()))?;
    let errors = output.try_clone()?;
    let mut command = Command::new(&test.binary.path);
    command
        // The output of a passed test shows the parts that it skipped.
        .args(["--exact", &test.function, "--nocapture"])
        .current_dir(&test.binary.folder)
        .env("CARGO_MANIFEST_DIR", &test.binary.folder)
        .env("CARGO_PKG_NAME", &test.binary.package)
        .env(SEED, settings.seed.to_string())
        // Backtraces of tests hide their messages.
        .env_remove("RUST_BACKTRACE")
        .stdin(Stdio::null())
        .stdout(output)
        .stderr(errors);
    let mark = format!("test-{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
    let began = Instant::now();
    let ended = supervise::run_within(&mut command, &mark, settings.limit)?;
    let seconds = began.elapsed().as_secs_f64();
    let mut failure = match ended {
        Some(status) if status.success() => None,
        Some(status) => Some(format!("ended with {status}")),
        None => Some(format!("did not end within {} s", settings.limit.as_secs())),
    };
    let output = String::from_utf8_lossy(&std::fs::read(&path)?).into_owned();
    // A program that ran no test also succeeds.
    if failure.is_none() && !output.contains("test result: ok. 1 passed") {
        failure = Some("ran no test".to_owned());
    }
    if let Some(left) = left_behind(&mark) {
        failure = failure.or(Some(format!("left processes behind: {left}")));
    }
    if failure.is_none() {
        std::fs::remove_file(&path)?;
    }
    Ok(Outcome { test: test.clone(), seconds, failure, skipped: skipped(&output), log: path })
}

/// Returns the part that a test reports as skipped.
fn skipped(output: &str) -> Option<String> {
    // The name of the test can precede the report on its line.
    let said = output.lines().find_map(|line| line.split_once("SKIPPED: "));
    said.map(|(_, what)| what.to_owned())
}

/// Kills the processes of a test that still run after it, and returns a message about them.
fn left_behind(mark: &str) -> Option<String> {
    let began = Instant::now();
    loop {
        let left = supervise::marked(mark);
        if left.is_empty() {
            return None;
        }
        if began.elapsed() >= END_LIMIT {
            let lines: Vec<String> = left.iter().map(|id| supervise::command_line(*id)).collect();
            left.into_iter().for_each(supervise::kill);
            return Some(lines.join("; "));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Runs all tests, group after group, and calls `ended` as each ends.
pub fn run_all(tests: &[Test], settings: &Settings, mut ended: impl FnMut(Outcome)) -> Result<()> {
    let mut rest = tests;
    while let Some(first) = rest.first() {
        let group = first.group();
        let count = rest.iter().take_while(|test| test.group() == group).count();
        let (now, later) = rest.split_at(count);
        run_group(now, settings, &mut ended)?;
        rest = later;
    }
    Ok(())
}

fn run_group(tests: &[Test], settings: &Settings, ended: &mut impl FnMut(Outcome)) -> Result<()> {
    let processors = std::thread::available_parallelism().map_or(2, usize::from);
    // Most tests wait for other processes half of their time. Tests that run alone are not mixed with others.
    let alone = tests.first().is_some_and(|test| test.group().is_some());
    let slots = if alone { processors } else { 2 * processors };
    let queue = Mutex::new(tests.iter());
    let (tell, outcomes) = mpsc::channel();
    std::thread::scope(|scope| {
        for _ in 0..slots {
            let (queue, tell) = (&queue, tell.clone());
            scope.spawn(move || {
                loop {
                    let next = queue.lock().map(|mut queue| queue.next());
                    let Ok(Some(test)) = next else { return };
                    if tell.send(run_one(test, 1, settings)).is_err() {
                        return;
                    }
                }
            });
        }
        drop(tell);
        for outcome in outcomes {
            ended(outcome?);
        }
        Ok(())
    })
}
