//! Runs a command within a time limit, and kills every process that it started when the limit ends.
//!
//! Finds processes in `/proc`: by their parents, and by the variable [`MARK`] in their environment. A process
//! that has neither is not found.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal};

/// The variable with the marks of the supervised commands that a process belongs to, outermost
/// first, separated by [`SEPARATOR`].
const MARK: &str = "XTASK_MARK";
const SEPARATOR: char = '/';

const POLL_MIN: Duration = Duration::from_millis(1);
const POLL_MAX: Duration = Duration::from_millis(20);

/// Waits for a child; `None` if it still runs after `limit`.
pub fn wait_within(child: &mut Child, limit: Duration) -> Result<Option<ExitStatus>> {
    let began = Instant::now();
    let mut pause = POLL_MIN;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if began.elapsed() >= limit {
            return Ok(None);
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(POLL_MAX);
    }
}

/// Runs a command. Returns its exit status; `None` if `limit` ended it.
///
/// `mark` is unique to the command and contains no `/`. At the limit, kills the command, its descendants, and
/// all processes that carry the mark.
pub fn run_within(
    command: &mut Command,
    mark: &str,
    limit: Duration,
) -> Result<Option<ExitStatus>> {
    let outer = std::env::var(MARK).unwrap_or_default();
    let mut child = command
        .env(MARK, format!("{outer}{SEPARATOR}{mark}"))
        .spawn()
        .with_context(|| format!("{command:?} cannot be started"))?;
    let status = wait_within(&mut child, limit)?;
    if status.is_none() {
        // A killed process can have started others meanwhile, so the search is repeated.
        for _ in 0..10 {
            let mut ids = descendants(child.id());
            ids.extend(marked(mark));
            ids.remove(&std::process::id());
            if ids.is_empty() {
                break;
            }
            ids.into_iter().for_each(kill);
            std::thread::sleep(POLL_MAX);
        }
        let _ = child.kill();
        child.wait()?;
    }
    Ok(status)
}

/// Kills a process; ignores one that has ended.
pub fn kill(id: u32) {
    if let Some(id) = i32::try_from(id).ok().and_then(Pid::from_raw) {
        let _ = rustix::process::kill_process(id, Signal::KILL);
    }
}

/// Returns the live processes with this mark in their environment.
pub fn marked(mark: &str) -> BTreeSet<u32> {
    let carries = |id: &u32| {
        let environment = std::fs::read(format!("/proc/{id}/environ")).unwrap_or_default();
        let environment = String::from_utf8_lossy(&environment);
        let variables = environment.split('\0').filter_map(|variable| variable.split_once('='));
        let mut marks = variables.filter(|(name, _)| *name == MARK).map(|(_, marks)| marks);
        marks.any(|marks| marks.split(SEPARATOR).any(|own| own == mark))
    };
    ids().filter(carries).collect()
}

/// Returns the command line of a process, for messages.
pub fn command_line(id: u32) -> String {
    let words = std::fs::read(format!("/proc/{id}/cmdline")).unwrap_or_default();
    String::from_utf8_lossy(&words).replace('\0', " ").trim().to_owned()
}

/// Returns all live processes.
fn ids() -> impl Iterator<Item = u32> {
    let entries = std::fs::read_dir(Path::new("/proc")).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// Returns the parent of a process.
fn parent(id: u32) -> Option<u32> {
    let text = std::fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    // The name in parentheses can contain spaces and parentheses.
    text.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

/// Returns a process and all its descendants.
fn descendants(id: u32) -> BTreeSet<u32> {
    let parents: Vec<(u32, u32)> = ids().filter_map(|id| Some((id, parent(id)?))).collect();
    let mut found = BTreeSet::from([id]);
    loop {
        let before = found.len();
        for (id, parent) in &parents {
            if found.contains(parent) {
                found.insert(*id);
            }
        }
        if found.len() == before {
            return found;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_ends_the_command_and_all_that_it_started() {
        let file = std::env::temp_dir().join(format!("xtask-limit-{}", std::process::id()));
        // One process remains a child of the shell; the other one has lost its parent.
        let script = format!(
            "sleep 600 & echo $! > {0}; (sleep 600 & echo $! >> {0}); echo done >> {0}; wait",
            file.display()
        );
        let mut command = Command::new("sh");
        command.args(["-c", &script]);
        let mark = format!("limit-{}", std::process::id());
        let waiting = std::thread::spawn(move || {
            run_within(&mut command, &mark, Duration::from_secs(2)).unwrap()
        });
        assert!(waiting.join().unwrap().is_none());
        let text = std::fs::read_to_string(&file).unwrap();
        std::fs::remove_file(&file).unwrap();
        let ids: Vec<u32> = text.lines().filter_map(|line| line.parse().ok()).collect();
        assert_eq!((ids.len(), text.lines().last()), (2, Some("done")), "{text}");
        let lives = |id: u32| {
            let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
            stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with('Z'))
        };
        assert!(!ids.iter().any(|id| lives(*id)), "{ids:?}");
    }

    #[test]
    fn a_process_belongs_to_each_command_around_it() {
        let mark = |name: &str| format!("{name}-{}", std::process::id());
        let mut command = Command::new("sleep");
        let marks = format!("/{}/{}", mark("outer"), mark("inner"));
        let mut child = command.arg("600").env(MARK, marks).spawn().unwrap();
        // The environment is available shortly after the program was started.
        while std::fs::read(format!("/proc/{}/environ", child.id())).unwrap().is_empty() {
            std::thread::yield_now();
        }
        let found = ["outer", "inner", "oute"].map(|name| marked(&mark(name)));
        child.kill().unwrap();
        child.wait().unwrap();
        let own = BTreeSet::from([child.id()]);
        assert_eq!(found, [own.clone(), own, BTreeSet::new()]);
    }

    #[test]
    fn a_command_that_ends_gives_its_status() {
        let mut command = Command::new("sh");
        command.args(["-c", "exit 3"]);
        let status = run_within(&mut command, "status", Duration::from_secs(600)).unwrap();
        assert_eq!(status.and_then(|status| status.code()), Some(3));
    }
}
