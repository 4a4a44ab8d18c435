//! Runs steps one after another, each as a process of its own with a limit and a log.
//!
//! A step is a command of this program, so that it can be repeated alone. Steps that do not need
//! a failed step still run. The output of a step is in `target/ci/STEP.log`; at the end stand the
//! times, the reports of the steps, and the end of the log of each failed step.

use std::collections::BTreeSet;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::run::{repository, target};
use crate::supervise;

/// The line before the part of a log that is shown at the end, whether the step failed or not.
const REPORT: &str = "-- report";
/// Lines about all failed steps together.
const FAILURE_LINES_MAX: usize = 48;

/// One step.
#[derive(Clone, Copy)]
pub struct Step<'a> {
    pub name: &'a str,
    /// The command of this program that does it.
    pub words: &'a [&'a str],
    /// A step that takes longer is ended, in seconds.
    pub limit_s: u64,
    /// Names of steps without which this one cannot run.
    pub needs: &'a [&'a str],
}

/// Begins the report of a step: what is printed after it is shown at the end of the run.
pub fn begin_report() {
    println!("{REPORT}");
}

struct Done<'a> {
    step: &'a Step<'a>,
    seconds: f64,
    /// Why it failed.
    failure: Option<String>,
}

fn log(step: &Step<'_>) -> PathBuf {
    target().join("ci").join(format!("{}.log", step.name.replace(' ', "-")))
}

/// Runs the steps. Fails at the end if a step failed.
pub fn run(steps: &[Step<'_>]) -> Result<()> {
    std::fs::create_dir_all(target().join("ci"))?;
    // Read before a build replaces the file.
    let program = std::env::current_exe()?;
    let began = Instant::now();
    let mut failed: BTreeSet<&str> = BTreeSet::new();
    let mut all = Vec::new();
    for step in steps {
        println!("==> {}", step.name);
        let done = match step.needs.iter().find(|needed| failed.contains(*needed)) {
            Some(needed) => {
                let failure = Some(format!("not run, because `{needed}` failed"));
                Done { step, seconds: 0.0, failure }
            }
            None => run_one(step, &program)?,
        };
        match &done.failure {
            None => println!("    {:.0} s", done.seconds),
            Some(failure) => {
                failed.insert(step.name);
                println!("    FAILED after {:.0} s: {failure}", done.seconds);
            }
        }
        all.push(done);
    }
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
    if !failures.is_empty() {
        let names: Vec<&str> = failures.iter().map(|done| done.step.name).collect();
        bail!("{} of {} steps failed: {}", failures.len(), all.len(), names.join(", "));
    }
    println!("everything holds, {:.1} min", began.elapsed().as_secs_f64() / 60.0);
    Ok(())
}

fn run_one<'a>(step: &'a Step<'a>, program: &Path) -> Result<Done<'a>> {
    let path = log(step);
    let output = File::create(&path).with_context(|| format!("{}", path.display()))?;
    let errors = output.try_clone()?;
    let mut command = Command::new(program);
    command
        .args(step.words)
        .current_dir(repository())
        .stdin(Stdio::null())
        .stdout(output)
        .stderr(errors);
    let began = Instant::now();
    let mark = format!("step-{}-{}", std::process::id(), step.name);
    let limit = Duration::from_secs(step.limit_s);
    let failure = match supervise::run_within(&mut command, &mark, limit)? {
        Some(status) if status.success() => None,
        Some(status) => Some(format!("ended with {status}")),
        None => Some(format!("did not end within its limit of {} s", step.limit_s)),
    };
    Ok(Done { step, seconds: began.elapsed().as_secs_f64(), failure })
}

/// The report of a step; empty if it has none.
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

/// Prints how a step is repeated, and its report or the end of its log.
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
    fn a_report_is_the_end_of_the_log() {
        const STEP: Step<'_> = Step { name: "test of reports", words: &[], limit_s: 1, needs: &[] };
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
