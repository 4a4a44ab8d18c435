//! A test client of the launcher; the test binary is also the launcher.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, clippy::print_stderr)]
#![allow(dead_code)]

use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use toolbooth_launcher::order::{Bind, Net, Order, Primitive, Run, SandboxSpec};
use toolbooth_launcher::wire::{self, Found, Report};

/// The id of an ordinary user, for tests that run as root.
pub(crate) const ORDINARY: u32 = 65_534;

/// The user who starts the launcher.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Who {
    Root,
    Ordinary,
}

pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// A launcher to which an order was sent.
pub(crate) struct Launched {
    /// The fork server, of which the launcher is a child.
    pub(crate) standing: Child,
    spawn_requests: UnixStream,
    pub(crate) control: UnixStream,
    pub(crate) stdin: Option<std::io::PipeWriter>,
    pub(crate) stdout: std::io::PipeReader,
    pub(crate) stderr: std::io::PipeReader,
    pub(crate) listeners: Vec<(wire::Listener, OwnedFd)>,
    /// The launcher's process id, once the program may be running.
    pub(crate) started: Option<i32>,
}

/// The report of a launcher, and the output of its program.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) report: Report,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

pub(crate) fn stand(who: Who) -> (Child, UnixStream) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.arg(toolbooth_launcher::WORD).env_clear().process_group(0);
    command.stdin(Stdio::from(OwnedFd::from(theirs)));
    if who == Who::Ordinary && is_root() {
        command.uid(ORDINARY).gid(ORDINARY);
    }
    (command.spawn().unwrap(), ours)
}

pub(crate) fn launch(who: Who, order: &Order) -> Launched {
    let (standing, spawn_requests) = stand(who);
    let (control, theirs) = UnixStream::pair().unwrap();
    let ((stdout, out), (stderr, err)) = (std::io::pipe().unwrap(), std::io::pipe().unwrap());
    let fds = [theirs.as_fd(), out.as_fd(), err.as_fd()];
    wire::send(spawn_requests.as_fd(), wire::NEW, b"", &fds).unwrap();
    let (input, stdin) = std::io::pipe().unwrap();
    let text = serde_json::to_vec(order).unwrap();
    wire::send(control.as_fd(), wire::ORDER, &text, &[input.as_fd()]).unwrap();
    let (listeners, started) = (Vec::new(), None);
    Launched {
        standing,
        spawn_requests,
        control,
        stdin: Some(stdin),
        stdout,
        stderr,
        listeners,
        started,
    }
}

impl Launched {
    /// The next frame.
    pub(crate) fn next(&mut self) -> Option<(u8, Vec<u8>)> {
        let mut head = [0u8; wire::HEAD_BYTES];
        let mut fds = Vec::new();
        wire::fill(self.control.as_fd(), &mut head, &mut fds).ok()?;
        let (tag, length) = wire::head(head);
        let mut text = vec![0u8; length];
        wire::fill(self.control.as_fd(), &mut text, &mut fds).ok()?;
        if tag == wire::LISTENER {
            self.listeners.push((serde_json::from_slice(&text).unwrap(), fds.pop().unwrap()));
        }
        if tag == wire::STARTED {
            self.started = std::str::from_utf8(&text).unwrap().parse().ok();
        }
        Some((tag, text))
    }

    pub(crate) fn until_started(&mut self) {
        while let Some((tag, text)) = self.next() {
            if tag == wire::STARTED {
                return;
            }
            let text = String::from_utf8_lossy(&text);
            assert!(matches!(tag, wire::READY | wire::LISTENER), "{text}");
        }
        panic!("it did not start");
    }

    pub(crate) fn ask_to_end(&mut self) {
        self.control.write_all(&wire::frame(wire::ASK_TO_END, b"")).unwrap();
    }

    /// Waits for the report and for the end of the fork server.
    pub(crate) fn end(mut self) -> Ended {
        self.stdin = None;
        let read = |mut stream: std::io::PipeReader| {
            std::thread::spawn(move || {
                let mut text = Vec::new();
                let _ = stream.read_to_end(&mut text);
                String::from_utf8_lossy(&text).into_owned()
            })
        };
        let (out, err) =
            (read(self.stdout.try_clone().unwrap()), read(self.stderr.try_clone().unwrap()));
        let mut report = None;
        while let Some((tag, text)) = self.next() {
            if tag == wire::REPORT {
                report = Some(serde_json::from_slice(&text).unwrap());
            }
        }
        drop(self.spawn_requests);
        self.standing.wait().unwrap();
        let (stdout, stderr) = (out.join().unwrap(), err.join().unwrap());
        Ended { report: report.unwrap_or_else(|| panic!("no report: {stderr}")), stdout, stderr }
    }
}

pub(crate) fn run(who: Who, run: Run) -> Ended {
    launch(who, &Order::Run(Box::new(run))).end()
}

/// The primitives that a launcher of `who` finds on this machine.
pub(crate) fn primitives(who: Who) -> Vec<Found> {
    let cgroups = cgroup_folders();
    match launch(who, &Order::Probe { cgroups }).end().report {
        Report::Primitives(found) => found,
        other => panic!("{other:?}"),
    }
}

/// The folders of this process's own cgroups that may have a memory controller.
pub(crate) fn cgroup_folders() -> Vec<PathBuf> {
    let text = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    text.lines()
        .filter_map(|line| {
            let (_, rest) = line.split_once(':')?;
            let (controllers, path) = rest.split_once(':')?;
            let path = path.trim_start_matches('/');
            if controllers.split(',').any(|name| name == "memory") {
                return Some(Path::new("/sys/fs/cgroup/memory").join(path));
            }
            controllers.is_empty().then(|| Path::new("/sys/fs/cgroup").join(path))
        })
        .collect()
}

pub(crate) fn bind(path: impl Into<PathBuf>, writable: bool) -> Bind {
    Bind { path: path.into(), writable, optional: true, mapped: true, bytes_max: None, own: false }
}

/// All available primitives, and the paths that any program needs to start.
pub(crate) fn sandbox_spec(who: Who, found: &[Found]) -> SandboxSpec {
    let there = |found: &Found| found.missing.is_none().then_some(found.primitive);
    let base = ["/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc/ld.so.cache", "/etc/alternatives"];
    let cgroup = found
        .iter()
        .find(|one| one.primitive == Primitive::MemoryCgroup)
        .and_then(|one| one.detail.clone());
    SandboxSpec {
        primitives: found.iter().filter_map(there).collect(),
        binds: base.iter().map(|path| bind(*path, false)).collect(),
        tmp_mb: 16,
        net: Net::None,
        fresh_user: who == Who::Root && is_root(),
        cgroup: cgroup.map(PathBuf::from),
        ..SandboxSpec::default()
    }
}

pub(crate) fn shell(script: &str, sandbox_spec: Option<SandboxSpec>) -> Run {
    Run {
        argv: ["/bin/sh", "-c", script].map(str::to_owned).to_vec(),
        env: vec![("PATH".to_owned(), "/usr/bin:/bin".to_owned())],
        cwd: "/".into(),
        sandbox_spec,
    }
}

/// Waits at most ten seconds until `done` returns true; panics otherwise.
pub(crate) fn until(what: &str, mut done: impl FnMut() -> bool) {
    for _ in 0..1000 {
        if done() {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("never: {what}");
}

/// The primitives of this machine for root and for an ordinary user. The flag states whether that
/// user's tests are ignored because the machine lacks some of them. In CI that is a failure.
pub(crate) fn whos() -> Vec<(Who, std::sync::Arc<Vec<Found>>, bool)> {
    let judged = [Who::Root, Who::Ordinary].map(|who| {
        if who == Who::Root && !is_root() {
            skipped("everything as root: the tests do not run as root");
            return (who, std::sync::Arc::default(), true);
        }
        let found = primitives(who);
        let missing =
            |one: &&Found| one.missing.is_some() && one.primitive != Primitive::MemoryCgroup;
        let lacks: Vec<_> = found.iter().filter(missing).collect();
        if !lacks.is_empty() {
            skipped(&format!("everything as {who:?}: this machine lacks {lacks:?}"));
        }
        let skipped = !lacks.is_empty();
        (who, std::sync::Arc::new(found), skipped)
    });
    judged.into()
}

/// Reports a test that this machine cannot run.
///
/// # Panics
/// In CI.
pub(crate) fn skipped(what: &str) {
    assert!(std::env::var_os("CI").is_none(), "CI must not skip {what}");
    eprintln!("SKIPPED: {what}");
}
