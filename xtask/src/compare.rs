//! Compares the cost of records and of the call path with that of an earlier release.
//!
//! Both releases are built side by side and run in turns, so that other load of the machine affects
//! both.
//!
//! Doc: benchmarks.md#records

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::run::{cargo, repository, run, target};

/// The benches, each in a separate folder in both checkouts.
const WRITER: &str = "writer";
const PATH: &str = "path";
const ROUNDS: usize = 5;
/// The measurements, with the arguments of a run.
const RUNS: [(&str, &[&str]); 2] = [("sqlite", &["sqlite", "6"]), ("postgres", &["postgres", "6"])];
const EVENTS: &str = "1000000";

/// Compares with an earlier revision; `what` is `sqlite`, `postgres`, `verify` or `all`.
pub fn run_against(revision: &str, what: &str) -> Result<()> {
    ensure!(["all", "sqlite", "postgres", "verify"].contains(&what), "there is no `{what}`");
    let (earlier, now) = built(revision, WRITER)?;
    let mut measured = false;
    for (name, words) in RUNS.into_iter().filter(|(name, _)| what == "all" || what == *name) {
        measured = true;
        let (earlier_lines, now_lines) = in_turns((&earlier, words), (&now, words))?;
        report(name, &earlier_lines, &now_lines)?;
    }
    if what == "all" || what == "verify" {
        measured = true;
        verification(&earlier, &now)?;
    }
    ensure!(measured, "nothing was measured");
    Ok(())
}

/// Compares the whole path, in memory, with an earlier revision.
pub fn path_against(revision: &str) -> Result<()> {
    let (earlier, now) = built(revision, PATH)?;
    for what in ["small", "large"] {
        let words: &[&str] = &[what, "4"];
        per_call(what, (&earlier, words), (&now, words))?;
    }
    // This release by itself: what rules add to the calls of a tool that they do not name.
    per_call("small, without and with rules", (&now, &["small", "4"]), (&now, &["ruled", "4"]))
}

fn per_call(name: &str, before: (&Path, &[&str]), now: (&Path, &[&str])) -> Result<()> {
    let (before, after) = in_turns(before, now)?;
    println!("{name}, medians of {ROUNDS} rounds in turns:");
    for figure in ["microsPerCall", "cpuMicrosPerCall"] {
        row(figure, median(&before, figure)?, median(&after, figure)?);
    }
    Ok(())
}

/// Builds a bench of the revision and of this checkout; returns both programs.
fn built(revision: &str, bench: &str) -> Result<(PathBuf, PathBuf)> {
    let before = checkout(revision, bench)?;
    let earlier = build(&before, Some(&before.join("target")), bench)?;
    Ok((earlier, build(&repository(), None, bench)?))
}

/// Runs both programs in turns, each with its arguments; returns the results of each.
fn in_turns(earlier: (&Path, &[&str]), now: (&Path, &[&str])) -> Result<(Vec<Value>, Vec<Value>)> {
    let (mut earlier_lines, mut now_lines) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        // The order alternates too.
        for turn in 0..2 {
            let own = (round + turn) % 2 == 0;
            let ((program, words), lines) =
                if own { (now, &mut now_lines) } else { (earlier, &mut earlier_lines) };
            lines.push(once(program, words)?);
        }
    }
    Ok((earlier_lines, now_lines))
}

/// Checks out the revision, with the bench of this checkout.
fn checkout(revision: &str, bench: &str) -> Result<PathBuf> {
    let folder = target().join("before");
    if folder.is_dir() {
        run(Command::new("git").args(["-C"]).arg(&folder).args(["checkout", "--force", revision]))?;
    } else {
        run(Command::new("git")
            .args(["worktree", "add", "--detach", "--force"])
            .arg(&folder)
            .arg(revision))?;
    }
    let own = Path::new("tests/benches").join(bench);
    let (from, to) = (repository().join(&own), folder.join(&own));
    std::fs::create_dir_all(&to)?;
    // A revision that has the bench measures itself; older ones are called as the first release was.
    if !to.join("release.rs").is_file() {
        std::fs::copy(from.join("main.rs"), to.join("main.rs"))?;
        std::fs::copy(from.join("before.rs"), to.join("release.rs"))?;
    }
    let manifest = folder.join("tests/Cargo.toml");
    let mut text = std::fs::read_to_string(&manifest)?;
    if !text.contains(&format!("\"{bench}\"")) {
        text.push_str(&format!(
            "\n[[bench]]\nname = \"{bench}\"\npath = \"benches/{bench}/main.rs\"\nharness = false\n"
        ));
    }
    // The bench needs more features of the crates that it measures.
    let text =
        text.replace("features = [\"command\"]", "features = [\"command\", \"secret-rules\"]");
    let text =
        text.replace("features = [\"conformance\"]", "features = [\"conformance\", \"memory\"]");
    // This allocator for both, if with other features: releases before had the system's.
    let text = match text.contains("mimalloc") {
        true => text,
        false => text.replace(
            "[dev-dependencies]\n",
            "[dev-dependencies]\nmimalloc = { version = \"0.1\", default-features = false }\n",
        ),
    };
    std::fs::write(&manifest, text)?;
    Ok(folder)
}

/// Builds the bench of a checkout; returns its program.
fn build(checkout: &Path, target: Option<&Path>, bench: &str) -> Result<PathBuf> {
    let mut command = cargo();
    command
        .args(["bench", "-p", "toolbooth-tests", "--bench", bench, "--no-run"])
        .args(["--message-format", "json-render-diagnostics"])
        .current_dir(checkout)
        .stderr(Stdio::inherit());
    if let Some(target) = target {
        command.env("CARGO_TARGET_DIR", target);
    }
    let output = command.output()?;
    ensure!(output.status.success(), "the bench of {} is not built", checkout.display());
    let messages = output.stdout.split(|byte| *byte == b'\n');
    let built = messages.filter_map(|line| serde_json::from_slice::<Value>(line).ok());
    let program = built
        .filter(|message| message.pointer("/target/name") == Some(&bench.into()))
        .find_map(|message| Some(PathBuf::from(message.get("executable")?.as_str()?)));
    program.context("the build names no program")
}

fn once(program: &Path, words: &[&str]) -> Result<Value> {
    let output = Command::new(program).args(words).stderr(Stdio::inherit()).output()?;
    ensure!(output.status.success(), "{} ended with {}", program.display(), output.status);
    let text = String::from_utf8(output.stdout)?;
    let line = text.lines().find(|line| line.starts_with('{')).context("there is no result")?;
    Ok(serde_json::from_str(line)?)
}

fn number(line: &Value, name: &str) -> Result<f64> {
    line.get(name).and_then(Value::as_f64).with_context(|| format!("`{name}` is not there"))
}

fn median(lines: &[Value], name: &str) -> Result<f64> {
    let mut all = lines.iter().map(|line| number(line, name)).collect::<Result<Vec<_>>>()?;
    all.sort_by(f64::total_cmp);
    all.get(all.len() / 2).copied().context("nothing was measured")
}

fn report(name: &str, before: &[Value], now: &[Value]) -> Result<()> {
    println!("{name}, medians of {} rounds in turns:", now.len());
    // `storeMicrosPerCall` excludes the CPU time for making the requests.
    let figures =
        ["callsPerSecond", "cpuMicrosPerCall", "storeMicrosPerCall", "commitP50Ms", "commitP99Ms"];
    for figure in figures {
        row(figure, median(before, figure)?, median(now, figure)?);
    }
    if now.iter().all(|line| line.get("bytes").is_some()) {
        let each = |lines: &[Value]| -> Result<f64> {
            Ok(median(lines, "bytes")? / median(lines, "allCalls")?)
        };
        row("bytesPerCall", each(before)?, each(now)?);
    }
    Ok(())
}

fn row(figure: &str, before: f64, now: f64) {
    println!("  {figure:<18} before {before:>10.2}  now {now:>10.2}  ratio {:.3}", now / before);
}

/// A process that has filled its store, and verifies it after each line on its standard input.
struct Verifying {
    child: Child,
    told: ChildStdin,
    lines: BufReader<ChildStdout>,
}

impl Verifying {
    fn start(program: &Path) -> Result<Self> {
        let mut child = Command::new(program)
            .args(["verify", EVENTS, &(ROUNDS + 1).to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let (Some(told), Some(lines)) = (child.stdin.take(), child.stdout.take()) else {
            bail!("the pipes are not there")
        };
        Ok(Self { child, told, lines: BufReader::new(lines) })
    }

    fn line(&mut self) -> Result<Value> {
        let mut line = String::new();
        self.lines.read_line(&mut line)?;
        Ok(serde_json::from_str(&line)?)
    }

    fn next(&mut self) -> Result<Value> {
        self.told.write_all(b"\n")?;
        self.line()
    }
}

fn verification(earlier: &Path, now: &Path) -> Result<()> {
    let mut runs = [Verifying::start(earlier)?, Verifying::start(now)?];
    // The first run of one may overlap with the filling of the other's store, so it does not count.
    for run in &mut runs {
        run.line()?;
    }
    let (mut before, mut after) = (Vec::new(), Vec::new());
    let [earlier, now] = &mut runs;
    for _ in 0..ROUNDS {
        before.push(earlier.next()?);
        after.push(now.next()?);
    }
    println!("verify of {EVENTS} events with their records, medians of {ROUNDS} rounds in turns:");
    for figure in ["seconds", "cpuSeconds"] {
        row(figure, median(&before, figure)?, median(&after, figure)?);
    }
    for run in &mut runs {
        let _ = run.told.write_all(b"\n");
        run.child.wait()?;
    }
    Ok(())
}
