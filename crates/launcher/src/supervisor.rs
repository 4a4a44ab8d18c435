//! The launcher process: receives an order, watches the program and the client, and reports the
//! outcome.
//!
//! It stays outside of every namespace. When the socket to the client is closed for any reason, it
//! ends all processes below it.
//!
//! Path: 7. Doc: execution.md#the-launcher

mod watch;

use std::fs;
use std::io::{self, PipeWriter, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{Gid, Uid};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, set_child_subreaper, waitpid};

use self::watch::{Child, last_event, no_event, watch};
use crate::cgroup::Cgroup;
use crate::init::{self, Start};
use crate::namespaces::{FRESH_BASE, map_ids, namespaces};
use crate::order::{Order, Primitive, Run, SandboxSpec};
use crate::root::{self, Tree};
use crate::sys;
use crate::wire::{
    FRAME_BYTES_MAX, HEAD_BYTES, ORDER, READY, REPORT, Report, Unstarted, fill, head, send,
};

/// Exit code of a launcher that failed.
const FAILED: i32 = 125;

/// Runs the fork server, which forks a launcher for each order until the client closes its socket.
/// Returns the exit code.
///
/// Forking this process, which has one thread, costs less than starting the program again.
pub(crate) fn serve_orders() -> i32 {
    match try_serve_orders() {
        Ok(()) => 0,
        Err(_) => FAILED,
    }
}

fn try_serve_orders() -> io::Result<()> {
    // The parent may have leaked descriptors that it opened for other children at the same time.
    sys::close_from(3)?;
    // Keeps no folder in use, and lets the kernel reap the launchers.
    rustix::process::chdir("/")?;
    sys::ignore_children();
    loop {
        let mut head_bytes = [0u8; HEAD_BYTES];
        let mut fds = Vec::new();
        match fill(rustix::stdio::stdin(), &mut head_bytes, &mut fds) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            filled => filled?,
        }
        let Ok([control, stdout, stderr]) = <[OwnedFd; 3]>::try_from(fds) else {
            return Err(io::Error::other("this is not a spawn request for a launcher"));
        };
        if sys::fork_into(0)?.is_none() {
            let code = match serve(control, stdout, stderr) {
                Ok(()) => 0,
                Err(_) => FAILED,
            };
            std::process::exit(code);
        }
    }
}

/// Receives one order and carries it out.
fn serve(control: OwnedFd, stdout: OwnedFd, stderr: OwnedFd) -> io::Result<()> {
    sys::reset_signals();
    rustix::stdio::dup2_stdout(&stdout)?;
    rustix::stdio::dup2_stderr(&stderr)?;
    // Descriptor 0 is the socket of the fork server; the launcher's own socket replaces it.
    rustix::stdio::dup2_stdin(&control)?;
    drop((stdout, stderr));
    send(control.as_fd(), READY, b"", &[])?;
    let (order, stdin) = receive(control.as_fd())?;
    let report = match order {
        Order::Probe { cgroups } => Report::Primitives(crate::probe::all(&cgroups)),
        Order::Run(run) => {
            let stdin = stdin.ok_or_else(|| io::Error::other("the order has no input"))?;
            match carry_out(&run, stdin, &control) {
                Ok(report) => report,
                Err((step, error)) => {
                    let cause = error.to_string();
                    Report::Unstarted(Unstarted { step, cause, program: false })
                }
            }
        }
    };
    let text = serde_json::to_vec(&report)?;
    send(control.as_fd(), REPORT, &text, &[])
}

/// Receives the order, and the program's standard input with it.
fn receive(from: BorrowedFd<'_>) -> io::Result<(Order, Option<OwnedFd>)> {
    let mut fds = Vec::new();
    let mut head_bytes = [0u8; HEAD_BYTES];
    fill(from, &mut head_bytes, &mut fds)?;
    let (tag, length) = head(head_bytes);
    if tag != ORDER || length > FRAME_BYTES_MAX {
        return Err(io::Error::other("this is not an order"));
    }
    let mut text = vec![0u8; length];
    fill(from, &mut text, &mut fds)?;
    Ok((serde_json::from_slice(&text)?, fds.pop()))
}

type Failure = (String, io::Error);

fn at<T, E: Into<io::Error>>(what: &str, done: Result<T, E>) -> Result<T, Failure> {
    done.map_err(|error| (what.to_owned(), error.into()))
}

fn carry_out(run: &Run, stdin: OwnedFd, control: &OwnedFd) -> Result<Report, Failure> {
    // Orphans get this process as their parent, so that it can end them.
    at("adopting orphans", set_child_subreaper(Some(rustix::process::getpid())))?;
    let (told, tell) = at("making a pipe", io::pipe())?;
    let enclosed = run.sandbox_spec.as_ref();
    let separate = enclosed
        .is_some_and(|sandbox_spec| sandbox_spec.primitives.contains(&Primitive::UserNamespace));
    let scratch = match enclosed {
        Some(sandbox_spec) => Scratch::make(sandbox_spec)?,
        None => None,
    };
    let settled = scratch.as_ref().map(|scratch| scratch.settle(run));
    let run = settled.as_ref().unwrap_or(run);
    let folder = scratch.as_ref().map(|scratch| scratch.0.as_path());
    if let (true, Some(sandbox_spec)) = (separate, run.sandbox_spec.as_ref()) {
        let (child, cgroup) = start_first(run, sandbox_spec, stdin, folder, control, tell)?;
        init::release_streams(init::open_null());
        return Ok(watch(run, child, Child::First, told, cgroup.as_ref(), control));
    }
    let mut cgroup = match enclosed {
        Some(sandbox_spec) => make_cgroup(sandbox_spec)?,
        None => None,
    };
    if let Some(cgroup) = &mut cgroup {
        // The program inherits the cgroup. The launcher counts too, but uses little memory.
        at("entering the cgroup", cgroup.enter())?;
    }
    let mut tell = tell;
    let started = init::start_program(run, &run.env, &stdin, None, folder, &mut tell)?;
    drop((stdin, tell));
    init::release_streams(init::open_null());
    match started {
        Some(program) => Ok(watch(run, program, Child::Program, told, cgroup.as_ref(), control)),
        None => Ok(last_event(told).unwrap_or_else(no_event)),
    }
}

/// The temporary folder of a program without a private root; removed on drop.
struct Scratch(PathBuf);

impl Scratch {
    fn make(sandbox_spec: &SandboxSpec) -> Result<Option<Self>, Failure> {
        if sandbox_spec.primitives.contains(&Primitive::PrivateRoot) || sandbox_spec.tmp_mb == 0 {
            return Ok(None);
        }
        use std::os::unix::fs::{DirBuilderExt, chown};
        let name = format!("toolbooth-{}-{}", std::process::id(), sys::nanoseconds());
        let folder = std::env::temp_dir().join(name);
        at("making a temporary folder", fs::DirBuilder::new().mode(0o700).create(&folder))?;
        let scratch = Self(folder);
        if let Some(uid) = fresh_uid(sandbox_spec) {
            at("giving the temporary folder", chown(&scratch.0, Some(uid), Some(uid)))?;
        }
        Ok(Some(scratch))
    }

    /// A copy of `run` in which `TMPDIR` and `HOME` name this folder instead of `/tmp`.
    fn settle(&self, run: &Run) -> Run {
        let mut run = run.clone();
        for (name, value) in &mut run.env {
            if matches!(name.as_str(), "TMPDIR" | "HOME") && value == "/tmp" {
                *value = self.0.display().to_string();
            }
        }
        run
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn make_cgroup(sandbox_spec: &SandboxSpec) -> Result<Option<Cgroup>, Failure> {
    match (&sandbox_spec.cgroup, sandbox_spec.limits.memory_bytes) {
        (Some(parent), Some(_)) if sandbox_spec.primitives.contains(&Primitive::MemoryCgroup) => {
            at("making a cgroup", Cgroup::make(parent, &sandbox_spec.limits)).map(Some)
        }
        _ => Ok(None),
    }
}

/// Starts the first process of the namespaces. It waits until its id maps and its cgroup are set.
fn start_first(
    run: &Run,
    sandbox_spec: &SandboxSpec,
    stdin: OwnedFd,
    scratch: Option<&Path>,
    control: &OwnedFd,
    tell: PipeWriter,
) -> Result<(Pid, Option<Cgroup>), Failure> {
    if let Some(uid) = fresh_uid(sandbox_spec) {
        // Programs may reopen their streams by /dev/stdout, as the user that they run as.
        let (uid, gid) = (Some(Uid::from_raw(uid)), Some(Gid::from_raw(uid)));
        for stream in [stdin.as_fd(), rustix::stdio::stdout(), rustix::stdio::stderr()] {
            // The owner of some streams cannot be changed, so errors are ignored.
            let _ = rustix::fs::fchown(stream, uid, gid);
        }
    }
    let trees = trees_for_another(sandbox_spec)?;
    let cgroup = make_cgroup(sandbox_spec)?;
    let (gate, mut open) = at("making a pipe", io::pipe())?;
    let child = at("making namespaces", sys::fork_into(namespaces(&sandbox_spec.primitives)))?;
    let Some(child) = child else {
        drop(open);
        let control = rustix::io::fcntl_dupfd_cloexec(control, 3).ok();
        init::live(Start { run, stdin, control, trees, scratch }, gate, tell);
    };
    let readied = map_ids(child, fresh_uid(sandbox_spec)).and_then(|()| match &cgroup {
        Some(cgroup) => at("entering the cgroup", cgroup.take_in(child)),
        None => Ok(()),
    });
    if let Err(failure) = readied {
        let _ = kill_process(child, Signal::KILL);
        let _ = waitpid(Some(child), WaitOptions::empty());
        return Err(failure);
    }
    at("letting it go on", open.write_all(b"."))?;
    Ok((child, cgroup))
}

/// The id of the user that the program runs as, if it is not the gateway's own. It is derived from
/// the launcher's process id, so it is unique while the launcher runs.
fn fresh_uid(sandbox_spec: &SandboxSpec) -> Option<u32> {
    sandbox_spec.fresh_user.then(|| FRESH_BASE.saturating_add(std::process::id()))
}

/// The mounts of a program that root runs as another user, with root's files mapped to that user.
/// `None` for other programs, and without a private root.
fn trees_for_another(sandbox_spec: &SandboxSpec) -> Result<Option<Vec<Tree>>, Failure> {
    let Some(uid) = fresh_uid(sandbox_spec) else { return Ok(None) };
    if !sandbox_spec.primitives.contains(&Primitive::PrivateRoot) {
        return Ok(None);
    }
    let owners = owners(uid).ok();
    root::trees(&sandbox_spec.binds, owners.as_ref().map(AsFd::as_fd)).map(Some)
}

/// A user namespace that maps root to `uid`, and the ids below `uid` to themselves.
fn owners(uid: u32) -> io::Result<OwnedFd> {
    let (mut gate, open) = io::pipe()?;
    let Some(child) = sys::fork_into(libc::CLONE_NEWUSER)? else {
        drop(open);
        // Waits until the launcher has opened the namespace.
        let _ = io::copy(&mut gate, &mut io::sink());
        std::process::exit(0);
    };
    drop(gate);
    let folder = format!("/proc/{}", child.as_raw_nonzero());
    let map = format!("0 {uid} 1\n1 1 {}\n", uid.saturating_sub(1));
    let namespace = fs::write(format!("{folder}/uid_map"), &map)
        .and_then(|()| fs::write(format!("{folder}/gid_map"), &map))
        .and_then(|()| fs::File::open(format!("{folder}/ns/user")));
    drop(open);
    let _ = waitpid(Some(child), WaitOptions::empty());
    namespace.map(OwnedFd::from)
}
