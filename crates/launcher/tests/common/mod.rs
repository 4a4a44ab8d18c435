//! A client of the launcher, and the launcher itself: these tests start themselves.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, clippy::print_stderr)]
#![allow(dead_code)]

use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use toolbooth_launcher::order::{Bind, Enclosure, Net, Order, Primitive, Run};
use toolbooth_launcher::wire::{self, Found, Report};

/// An ordinary user, where the tests run as root.
pub(crate) const ORDINARY: u32 = 65_534;

/// Who starts the launcher.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Who {
    Root,
    Ordinary,
}

pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// A launcher that has its order.
pub(crate) struct Launched {
    /// The standing one, of which the launcher is a copy.
    pub(crate) standing: Child,
    wishes: UnixStream,
    pub(crate) control: UnixStream,
    pub(crate) stdin: Option<std::io::PipeWriter>,
    pub(crate) stdout: std::io::PipeReader,
    pub(crate) stderr: std::io::PipeReader,
    pub(crate) listeners: Vec<(wire::Listener, OwnedFd)>,
    /// The launcher's number, once the program has been started.
    pub(crate) started: Option<i32>,
}

/// How it ended, and what it said.
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
    let (standing, wishes) = stand(who);
    let (control, theirs) = UnixStream::pair().unwrap();
    let ((stdout, out), (stderr, err)) = (std::io::pipe().unwrap(), std::io::pipe().unwrap());
    let fds = [theirs.as_fd(), out.as_fd(), err.as_fd()];
    wire::send(wishes.as_fd(), wire::NEW, b"", &fds).unwrap();
    let (input, stdin) = std::io::pipe().unwrap();
    let text = serde_json::to_vec(order).unwrap();
    wire::send(control.as_fd(), wire::ORDER, &text, &[input.as_fd()]).unwrap();
    let (listeners, started) = (Vec::new(), None);
    Launched { standing, wishes, control, stdin: Some(stdin), stdout, stderr, listeners, started }
}

impl Launched {
    /// The next frame.
    pub(crate) fn next(&mut self) -> Option<(u8, Vec<u8>)> {
        let mut head = [0u8; wire::HEAD_BYTES];
        let mut fds = Vec::new();
        wire::fill(self.control.as_fd(), &mut head, &mut fds).ok()?;
        let (letter, length) = wire::head(head);
        let mut text = vec![0u8; length];
        wire::fill(self.control.as_fd(), &mut text, &mut fds).ok()?;
        if letter == wire::LISTENER {
            self.listeners.push((serde_json::from_slice(&text).unwrap(), fds.pop().unwrap()));
        }
        if letter == wire::STARTED {
            self.started = std::str::from_utf8(&text).unwrap().parse().ok();
        }
        Some((letter, text))
    }

    pub(crate) fn until_started(&mut self) {
        while let Some((letter, text)) = self.next() {
            if letter == wire::STARTED {
                return;
            }
            let text = String::from_utf8_lossy(&text);
            assert!(matches!(letter, wire::READY | wire::LISTENER), "{text}");
        }
        panic!("it did not start");
    }

    pub(crate) fn ask_to_end(&mut self) {
        self.control.write_all(&wire::frame(wire::ASK_TO_END, b"")).unwrap();
    }

    /// Waits to the end.
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
        while let Some((letter, text)) = self.next() {
            if letter == wire::REPORT {
                report = Some(serde_json::from_slice(&text).unwrap());
            }
        }
        drop(self.wishes);
        self.standing.wait().unwrap();
        let (stdout, stderr) = (out.join().unwrap(), err.join().unwrap());
        Ended { report: report.unwrap_or_else(|| panic!("no report: {stderr}")), stdout, stderr }
    }
}

pub(crate) fn run(who: Who, run: Run) -> Ended {
    launch(who, &Order::Run(Box::new(run))).end()
}

/// What the machine has, for `who`.
pub(crate) fn primitives(who: Who) -> Vec<Found> {
    let cgroups = cgroup_folders();
    match launch(who, &Order::Probe { cgroups }).end().report {
        Report::Primitives(found) => found,
        other => panic!("{other:?}"),
    }
}

/// The gateway's own cgroups of memory.
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

/// Everything on, with what any program needs to start.
pub(crate) fn enclosure(who: Who, found: &[Found]) -> Enclosure {
    let there = |found: &Found| found.missing.is_none().then_some(found.primitive);
    let base = ["/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc/ld.so.cache", "/etc/alternatives"];
    let cgroup = found
        .iter()
        .find(|one| one.primitive == Primitive::MemoryCgroup)
        .and_then(|one| one.detail.clone());
    Enclosure {
        primitives: found.iter().filter_map(there).collect(),
        binds: base.iter().map(|path| bind(*path, false)).collect(),
        tmp_mb: 16,
        net: Net::None,
        fresh_user: who == Who::Root && is_root(),
        cgroup: cgroup.map(PathBuf::from),
        ..Enclosure::default()
    }
}

pub(crate) fn shell(script: &str, enclosure: Option<Enclosure>) -> Run {
    Run {
        argv: ["/bin/sh", "-c", script].map(str::to_owned).to_vec(),
        env: vec![("PATH".to_owned(), "/usr/bin:/bin".to_owned())],
        cwd: "/".into(),
        enclosure,
    }
}

/// Waits for something, at most ten seconds.
pub(crate) fn until(what: &str, mut done: impl FnMut() -> bool) {
    for _ in 0..1000 {
        if done() {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("never: {what}");
}

/// What a machine has for everybody who can be tried here; what cannot be is told and counted as
/// ignored.
pub(crate) fn whos() -> Vec<(Who, std::sync::Arc<Vec<Found>>, bool)> {
    let judged = [Who::Root, Who::Ordinary].map(|who| {
        if who == Who::Root && !is_root() {
            eprintln!("SKIPPED: everything as root: the tests do not run as root");
            return (who, std::sync::Arc::default(), true);
        }
        let found = primitives(who);
        let missing =
            |one: &&Found| one.missing.is_some() && one.primitive != Primitive::MemoryCgroup;
        let lacks: Vec<_> = found.iter().filter(missing).collect();
        if !lacks.is_empty() {
            eprintln!("SKIPPED: everything as {who:?}: this machine lacks {lacks:?}");
        }
        let skipped = !lacks.is_empty();
        (who, std::sync::Arc::new(found), skipped)
    });
    judged.into()
}
