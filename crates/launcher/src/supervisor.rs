//! The launcher process: receives an order, watches the program and the client, and reports the
//! outcome.
//!
//! It stays outside of every namespace. When the socket to the client is closed for any reason, it
//! ends all processes below it.
//!
//! Path: 7. Doc: execution.md#the-launcher

use std::collections::HashSet;
use std::fs;
use std::io::{self, BufRead, BufReader, PipeReader, PipeWriter, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Gid, Uid};
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, kill_process, kill_process_group, pidfd_open,
    set_child_subreaper, wait, waitpid,
};

use crate::cgroup::Cgroup;
use crate::init::{self, Start, Word};
use crate::memory;
use crate::namespaces::{FRESH_BASE, map_ids, namespaces};
use crate::order::{Bind, Order, Primitive, Run, SandboxSpec};
use crate::root::{self, Tree};
use crate::sys;
use crate::wire::{
    ASK_TO_END, FRAME_BYTES_MAX, HEAD_BYTES, ORDER, READY, REPORT, Report, STARTED, Unstarted,
    fill, head, send,
};

/// Interval of measuring folders with a size limit.
const WEIGHING_INTERVAL: Duration = Duration::from_millis(100);
/// Interval of summing the memory of a program's processes, if no cgroup limits it.
const SUMMING_INTERVAL: Duration = Duration::from_millis(200);
/// Interval of reaping the orphans of a program without a namespace.
const BURYING_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum number of entries that are measured; a folder with more is over its limit.
const ENTRIES_MAX: usize = 100_000;

/// Maximum number of orphans that are stopped before they are ended.
const ORPHANS_MAX: usize = 10_000;

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
            return Err(io::Error::other("this is no spawn request for a launcher"));
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
        return Err(io::Error::other("this is no order"));
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
    match started {
        Some(program) => Ok(watch(run, program, Child::Program, told, cgroup.as_ref(), control)),
        None => Ok(last_word(told).unwrap_or_else(no_word)),
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

/// The direct child of the launcher.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Child {
    /// The first process of the namespaces. It reports how the program ended, and its end ends all
    /// processes of the PID namespace.
    First,
    /// The program.
    Program,
}

/// Waits until the program ends or must be ended. None of its processes is left, even after an
/// error.
fn watch(
    run: &Run,
    child: Pid,
    kind: Child,
    told: PipeReader,
    cgroup: Option<&Cgroup>,
    control: &OwnedFd,
) -> Report {
    match watch_and_end(run, child, kind, told, cgroup, control) {
        Ok(report) => report,
        Err((step, error)) => {
            let _ = kill_process(child, Signal::KILL);
            let _ = waitpid(Some(child), WaitOptions::empty());
            end_orphans();
            // The program may have run by now.
            Report::Failed(Unstarted { step, cause: error.to_string(), program: false })
        }
    }
}

fn watch_and_end(
    run: &Run,
    child: Pid,
    kind: Child,
    told: PipeReader,
    cgroup: Option<&Cgroup>,
    control: &OwnedFd,
) -> Result<Report, Failure> {
    let ended = at("watching", pidfd_open(child, PidfdFlags::empty()))?;
    let bounded: Vec<&Bind> = run
        .sandbox_spec
        .iter()
        .flat_map(|sandbox_spec| &sandbox_spec.binds)
        .filter(|bind| bind.bytes_max.is_some())
        .collect();
    // Without a cgroup the kernel limits each process alone, so the sum is measured here.
    let memory_bytes = run
        .sandbox_spec
        .as_ref()
        .filter(|_| cgroup.is_none())
        .and_then(|sandbox_spec| sandbox_spec.limits.memory_bytes);
    let mut lines = Lines::new(told);
    let mut over = None;
    let mut word = None;
    let mut started = false;
    let mut listening = true;
    let mut status = None;
    loop {
        if kind == Child::Program {
            // Reaps orphans; in a namespace its first process does that.
            while let Ok(Some((pid, ended))) = wait(WaitOptions::NOHANG) {
                if pid == child {
                    status = Some(ended);
                }
            }
        }
        let interval = match kind {
            _ if !bounded.is_empty() => Some(WEIGHING_INTERVAL),
            _ if memory_bytes.is_some() => Some(SUMMING_INTERVAL),
            Child::Program => Some(BURYING_INTERVAL),
            Child::First => None,
        };
        let interval = interval.and_then(|interval| Timespec::try_from(interval).ok());
        let timeout = interval.as_ref();
        let mut fds = vec![PollFd::new(&ended, PollFlags::IN), PollFd::new(control, PollFlags::IN)];
        if listening {
            fds.push(PollFd::from_borrowed_fd(lines.as_fd(), PollFlags::IN));
        }
        match poll(&mut fds, timeout) {
            Err(rustix::io::Errno::INTR) => continue,
            waited => at("waiting", waited)?,
        };
        let ready = |at: usize| fds.get(at).is_some_and(|fd| !fd.revents().is_empty());
        let (gone, asked, heard) = (ready(0), ready(1), ready(2));
        drop(fds);
        if heard {
            match lines.next() {
                Some(Word::Started) if !started => {
                    started = true;
                    at("telling", tell_started(control))?;
                }
                Some(Word::Started) => (),
                Some(other) => word = Some(other),
                None => listening = false,
            }
            continue;
        }
        if gone || status.is_some() {
            break;
        }
        if asked {
            match order_to_end(control.as_fd()) {
                // The first process waits for SIGTERM and passes it on to the program.
                Some(ASK_TO_END) if kind == Child::First => {
                    let _ = kill_process(child, Signal::TERM);
                }
                Some(ASK_TO_END) => {
                    let _ = kill_process_group(child, Signal::TERM);
                }
                // The client closed the socket, or sent an unknown frame.
                _ => break,
            }
        }
        over = bounded.iter().find_map(|bind| overweight(bind)).or_else(|| {
            let bytes_max = memory_bytes?;
            memory::exceeds(child, bytes_max).then_some(Report::MemoryLimit)
        });
        if over.is_some() {
            break;
        }
    }
    if status.is_none() {
        let _ = kill_process(child, Signal::KILL);
        let buried = at("burying", waitpid(Some(child), WaitOptions::empty()))?;
        status = buried.map(|(_, status)| status);
    }
    end_orphans();
    while let Some(last) = lines.next() {
        match last {
            Word::Started if !started => {
                started = true;
                at("telling", tell_started(control))?;
            }
            Word::Started => (),
            other => word = Some(other),
        }
    }
    let over = over.or_else(|| bounded.iter().find_map(|bind| overweight(bind)));
    if let Some(report) = over {
        return Ok(report);
    }
    let own = status.map(init::ended);
    let word = match kind {
        Child::First => word.or(own),
        Child::Program => own.or(word),
    };
    // A program that exits with 0 succeeded, even if the kernel ended one of its processes.
    let good = matches!(word, Some(Word::Exit(0) | Word::Unstarted(_)));
    if !good && cgroup.is_some_and(Cgroup::has_run_out) {
        return Ok(Report::MemoryLimit);
    }
    Ok(word.map_or_else(no_word, report))
}

fn tell_started(control: &OwnedFd) -> io::Result<()> {
    let number = std::process::id().to_string();
    send(control.as_fd(), STARTED, number.as_bytes(), &[])
}

fn report(word: Word) -> Report {
    match word {
        Word::Unstarted(unstarted) => Report::Unstarted(unstarted),
        Word::Exit(code) => Report::Exit(code),
        Word::Signal(libc::SIGXCPU) => Report::CpuLimit,
        Word::Signal(signal) => Report::Signal(signal),
        Word::Started => no_word(),
    }
}

/// The report if no message arrived: the program may have run.
fn no_word() -> Report {
    Report::Failed(Unstarted {
        step: "waiting for the program".to_owned(),
        cause: "nothing was told".to_owned(),
        program: false,
    })
}

fn last_word(told: PipeReader) -> Option<Report> {
    let mut lines = Lines::new(told);
    let words = std::iter::from_fn(|| lines.next());
    words.filter(|word| !matches!(word, Word::Started)).last().map(report)
}

/// The tag of the client's next frame; `None` if the socket is closed or the frame is invalid.
fn order_to_end(control: BorrowedFd<'_>) -> Option<u8> {
    let mut head_bytes = [0u8; HEAD_BYTES];
    fill(control, &mut head_bytes, &mut Vec::new()).ok()?;
    let (tag, length) = head(head_bytes);
    // Frames to a running launcher have no document.
    (length == 0).then_some(tag)
}

/// Ends all orphans that have this process as their parent, and the orphans that these leave.
fn end_orphans() {
    loop {
        // Usually there are none, and `wait` is faster than reading /proc.
        match wait(WaitOptions::NOHANG) {
            Ok(Some(_)) => continue,
            Ok(None) => (),
            Err(_) => return,
        }
        // All are stopped before they are ended, so that none can fork in between.
        let mut found = HashSet::new();
        loop {
            let now = children();
            let fresh: Vec<Pid> = now.difference(&found).copied().collect();
            for orphan in &fresh {
                let _ = kill_process(*orphan, Signal::STOP);
            }
            found.extend(now);
            if fresh.is_empty() || found.len() > ORPHANS_MAX {
                break;
            }
        }
        for orphan in found {
            let _ = kill_process(orphan, Signal::KILL);
        }
        match wait(WaitOptions::empty()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => (),
            Err(_) => return,
        }
    }
}

/// The children of this process.
fn children() -> HashSet<Pid> {
    let own = std::process::id().to_string();
    let parent = |folder: &Path| {
        let stat = fs::read_to_string(folder.join("stat")).ok()?;
        // The name is in parentheses and may contain anything; state and parent follow it.
        let rest = stat.rsplit_once(')')?.1;
        rest.split_whitespace().nth(1).map(str::to_owned)
    };
    let mut found = HashSet::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let pid = entry.file_name().to_str().and_then(|name| name.parse().ok());
        let Some(pid) = pid.and_then(Pid::from_raw) else { continue };
        if parent(&entry.path()).as_deref() == Some(own.as_str()) {
            found.insert(pid);
        }
    }
    found
}

/// The report if the files beneath a path exceed its limit.
fn overweight(bind: &Bind) -> Option<Report> {
    let bytes_max = bind.bytes_max?;
    let mut entries = 0;
    let mut bytes = 0u64;
    let mut folders = vec![bind.path.clone()];
    while let Some(folder) = folders.pop() {
        let over = || {
            let path = bind.path.display().to_string();
            Some(Report::WriteLimit { path, bytes_max })
        };
        let list = match fs::read_dir(&folder) {
            Ok(list) => list,
            // It was removed in the meantime.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            // A folder that cannot be measured counts as over its limit.
            Err(_) => return over(),
        };
        for entry in list {
            let Ok(entry) = entry else { return over() };
            entries += 1;
            // Links are not followed: their targets are measured where they are.
            match entry.metadata() {
                Ok(metadata) if metadata.is_dir() => folders.push(entry.path()),
                Ok(metadata) => {
                    use std::os::unix::fs::MetadataExt;
                    let taken = metadata.len().max(metadata.blocks().saturating_mul(512));
                    bytes = bytes.saturating_add(taken);
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => (),
                Err(_) => return over(),
            }
            if bytes > bytes_max || entries > ENTRIES_MAX {
                return over();
            }
        }
    }
    None
}

/// The messages of the first process, one per line.
struct Lines(BufReader<PipeReader>);

impl Lines {
    fn new(pipe: PipeReader) -> Self {
        Self(BufReader::new(pipe))
    }

    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.get_ref().as_fd()
    }

    /// The next message. Each is one line that is written at once, so no read waits for the rest of
    /// a line.
    fn next(&mut self) -> Option<Word> {
        let mut line = Vec::new();
        self.0.read_until(b'\n', &mut line).ok()?;
        serde_json::from_slice(&line).ok()
    }
}
