//! Runs steps, each in a separate process with a limit and a log.
//!
//! A step is a command of this program, so it can be repeated alone. There are two lanes; a step waits for
//! the steps that it needs. Steps that do not need a failed step still run. The output of a step is in
//! `target/ci/STEP.log`. The end of the output contains the times, the reports of the steps, and the end of
//! the log of each failed step.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::run::{repository, target};
use crate::supervise;

/// The line before the part of a log that is shown at the end, even if the step failed.
const REPORT: &str = "-- report";
/// The maximum number of lines about all failed steps together.
const FAILURE_LINES_MAX: usize = 48;

/// One step.
#[derive(Clone, Copy)]
pub struct Step<'a> {
    pub name: &'a str,
    /// The command of this program that runs it.
    pub words: &'a [&'a str],
    /// The time after which the step is ended, in seconds.
    pub limit_s: u64,
    /// Names of steps that must succeed before this one.
    pub needs: &'a [&'a str],
    /// Whether it runs in the second lane, in parallel with the other steps.
    pub beside: bool,
}

/// Begins the report of a step: the output after it is shown at the end of the run.
pub fn begin_report() {
    println!("{REPORT}");
}

struct Done<'a> {
    step: &'a Step<'a>,
    seconds: f64,
    /// The reason why it failed.
    failure: Option<String>,
}

fn log(step: &Step<'_>) -> PathBuf {
    target().join("ci").join(format!("{}.log", step.name.replace(' ', "-")))
}

/// Runs the steps, those of each lane in order and both lanes in parallel, within the common `limit`.
///
/// # Errors
/// At the end, if a step failed.
pub fn run(steps: &[Step<'_>], limit: Option<Duration>) -> Result<()> {
    std::fs::create_dir_all(target().join("ci"))?;
    // The path is read before a build replaces the file.
    let program = std::env::current_exe()?;
    let began = Instant::now();
    let ended = StepEnd::default();
    let run = Run {
        program,
        until: limit.map(|limit| began + limit),
        // If packages are fetched first, no other step may need the registry.
        offline: steps.iter().any(|step| step.words == ["fetch"]),
    };
    let all: Vec<Done<'_>> = std::thread::scope(|scope| {
        let lanes = [false, true].map(|beside| {
            let (run, ended) = (&run, &ended);
            let own = steps.iter().filter(move |step| step.beside == beside);
            scope.spawn(move || own.map(|step| in_turn(step, steps, run, ended)).collect())
        });
        let lanes = lanes.map(|lane| lane.join().unwrap_or_default());
        lanes.into_iter().flat_map(|lane: Vec<Done<'_>>| lane).collect()
    });
    println!("==> times");
    for done in &all {
        println!("{:8.0} s  {}", done.seconds, done.step.name);
    }
    println!("{:8.0} s  in all", began.elapsed().as_secs_f64());
    for done in all.iter().filter(|done| done.failure.is_none()) {
        report(done.step).iter().for_each(|line| println!("{line}"));
    }
    let failures: Vec<&Done<'_>> = all.iter().filter(|done| done.failure.is_some()).collect();
    for done in &failures {
        let lines_max = FAILURE_LINES_MAX / failures.len().max(1);
        println!("==> FAILED: {}", done.step.name);
        tell(done, lines_max.saturating_sub(3));
    }
    if !failures.is_empty() || all.len() != steps.len() {
        let names: Vec<&str> = failures.iter().map(|done| done.step.name).collect();
        bail!("{} of {} steps failed: {}", failures.len(), steps.len(), names.join(", "));
    }
    println!("everything holds, {:.1} min", began.elapsed().as_secs_f64() / 60.0);
    Ok(())
}

/// The state that the steps of one run share.
struct Run {
    program: PathBuf,
    /// The deadline of the run.
    until: Option<Instant>,
    offline: bool,
}

/// The steps that have ended, and whether they succeeded.
#[derive(Default)]
struct StepEnd {
    steps: Mutex<BTreeMap<String, bool>>,
    changed: Condvar,
}

impl StepEnd {
    /// Waits until the steps have ended; returns the first that failed.
    fn first_failed<'a>(&self, names: &[&'a str]) -> Option<&'a str> {
        let mut steps = self.steps.lock().unwrap_or_else(PoisonError::into_inner);
        while !names.iter().all(|name| steps.contains_key(*name)) {
            steps = self.changed.wait(steps).unwrap_or_else(PoisonError::into_inner);
        }
        names.iter().find(|name| steps.get(**name) == Some(&false)).copied()
    }

    fn add(&self, name: &str, succeeded: bool) {
        let mut steps = self.steps.lock().unwrap_or_else(PoisonError::into_inner);
        steps.insert(name.to_owned(), succeeded);
        self.changed.notify_all();
    }
}

/// Runs a step after the steps that it needs. Steps that are not in `all` count as done.
fn in_turn<'a>(step: &'a Step<'a>, all: &[Step<'_>], run: &Run, ended: &StepEnd) -> Done<'a> {
    let known = |name: &&str| all.iter().any(|step| step.name == *name);
    let needs: Vec<&str> = step.needs.iter().copied().filter(|name| known(name)).collect();
    let done = match ended.first_failed(&needs) {
        Some(needed) => {
            let failure = Some(format!("not run, because `{needed}` failed"));
            Done { step, seconds: 0.0, failure }
        }
        None => {
            println!("==> {}", step.name);
            run_one(step, run).unwrap_or_else(|error| {
                let failure = Some(format!("{error:#}"));
                Done { step, seconds: 0.0, failure }
            })
        }
    };
    match &done.failure {
        None => println!("    {}: {:.0} s", step.name, done.seconds),
        Some(failure) => {
            println!("    {}: FAILED after {:.0} s: {failure}", step.name, done.seconds);
        }
    }
    ended.add(step.name, done.failure.is_none());
    done
}

fn run_one<'a>(step: &'a Step<'a>, run: &Run) -> Result<Done<'a>> {
    let path = log(step);
    let output = File::create(&path).with_context(|| format!("{}", path.display()))?;
    let errors = output.try_clone()?;
    let mut command = Command::new(&run.program);
    command
        .args(step.words)
        .current_dir(repository())
        .stdin(Stdio::null())
        .stdout(output)
        .stderr(errors);
    if run.offline && step.words != ["fetch"] {
        command.env("CARGO_NET_OFFLINE", "true");
    }
    let began = Instant::now();
    let mark = format!("step-{}-{}", std::process::id(), step.name);
    let own = Duration::from_secs(step.limit_s);
    let limit = run.until.map_or(own, |until| own.min(until.saturating_duration_since(began)));
    let failure = match supervise::run_within(&mut command, &mark, limit)? {
        Some(status) if status.success() => None,
        Some(status) => Some(format!("ended with {status}")),
        None => Some(format!("did not end within its limit of {} s", limit.as_secs())),
    };
    Ok(Done { step, seconds: began.elapsed().as_secs_f64(), failure })
}

/// Returns the report of a step; empty if it has none.
fn report(step: &Step<'_>) -> Vec<String> {
    let text = read(step);
    let mut lines = text.lines().rev();
    let mut report: Vec<String> = Vec::new();
    loop {
        match lines.next() {
            None => return Vec::new(),
            Some(REPORT) => break,
            Some(line) => report.push(line.to_owned()),
        }
    }
    report.reverse();
    report
}

fn read(step: &Step<'_>) -> String {
    String::from_utf8_lossy(&std::fs::read(log(step)).unwrap_or_default()).into_owned()
}

/// Prints the command that repeats a step, and its report or the end of its log.
fn tell(done: &Done<'_>, lines_max: usize) {
    println!("repeat: cargo xtask {}", done.step.words.join(" "));
    println!("log:    {}", log(done.step).display());
    if done.seconds == 0.0 {
        return;
    }
    let mut lines = report(done.step);
    if lines.is_empty() {
        lines = read(done.step).lines().map(str::to_owned).collect();
    }
    let from = lines.len().saturating_sub(lines_max);
    lines.iter().skip(from).for_each(|line| println!("{line}"));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_waits_for_what_it_needs_and_is_left_out_where_that_failed() {
        let ended = StepEnd::default();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| ended.first_failed(&["one", "two"]));
            ended.add("one", true);
            ended.add("two", false);
            assert_eq!(waiting.join().unwrap(), Some("two"));
        });
        assert_eq!(ended.first_failed(&["one"]), None);
        let needs = &["two", "unknown"];
        let step = Step { name: "three", words: &[], limit_s: 1, needs, beside: false };
        let two = Step { name: "two", ..step };
        let run = Run { program: "/no/such/program".into(), until: None, offline: false };
        let done = in_turn(&step, &[two, step], &run, &ended);
        assert_eq!(done.failure.as_deref(), Some("not run, because `two` failed"));
    }

    #[test]
    fn a_report_is_the_end_of_the_log() {
        const STEP: Step<'_> =
            Step { name: "test of reports", words: &[], limit_s: 1, needs: &[], beside: false };
        std::fs::create_dir_all(target().join("ci")).unwrap();
        for (text, expected) in [
            ("one\ntwo\n", vec![]),
            ("one\n-- report\ntwo\nthree\n", vec!["two", "three"]),
            ("-- report\none\n-- report\ntwo\n", vec!["two"]),
            ("", vec![]),
        ] {
            std::fs::write(log(&STEP), text).unwrap();
            assert_eq!(report(&STEP), expected, "{text}");
        }
        std::fs::remove_file(log(&STEP)).unwrap();
    }
}
