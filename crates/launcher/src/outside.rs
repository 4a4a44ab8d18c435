//! The launcher itself: takes the order, holds the lifeline, and tells how it ended.
//!
//! It stays outside of every namespace. When the socket to whoever ordered ends, for whatever
//! reason, everything below it is ended.
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
use crate::inside::{self, INNER_ID, Start, Word};
use crate::memory;
use crate::order::{Bind, Enclosure, Order, Primitive, Run};
use crate::root::{self, Tree};
use crate::sys;
use crate::wire::{
    ASK_TO_END, FRAME_BYTES_MAX, HEAD_BYTES, ORDER, READY, REPORT, Report, STARTED, Unstarted,
    fill, head, send,
};

/// How often the size of a folder with a bound is looked at.
const WEIGHING_INTERVAL: Duration = Duration::from_millis(100);
/// How often the memory of a program's processes is summed, where no cgroup bounds it.
const SUMMING_INTERVAL: Duration = Duration::from_millis(200);
/// How often the orphans of a program without a namespace are buried.
const BURYING_INTERVAL: Duration = Duration::from_secs(1);
/// Entries that are weighed; a folder with more is over its bound.
const ENTRIES_MAX: usize = 100_000;

/// Orphans that are stopped at a time.
const ORPHANS_MAX: usize = 10_000;

/// What the launcher ends with when it could not do its work.
const FAILED: i32 = 125;

/// Stands and makes a launcher of itself for each order, until nobody orders any more; gives the
/// exit code.
///
/// Starting this program costs more than copying it once it is started and has one thread.
pub(crate) fn stand() -> i32 {
    match try_stand() {
        Ok(()) => 0,
        Err(_) => FAILED,
    }
}

fn try_stand() -> io::Result<()> {
    // Other children of the same parent may have been started at the same moment.
    sys::close_from(3)?;
    // No folder is held, and no child waits to be buried here.
    rustix::process::chdir("/")?;
    sys::bury_no_child();
    loop {
        let mut head_bytes = [0u8; HEAD_BYTES];
        let mut fds = Vec::new();
        match fill(rustix::stdio::stdin(), &mut head_bytes, &mut fds) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            filled => filled?,
        }
        let Ok([control, stdout, stderr]) = <[OwnedFd; 3]>::try_from(fds) else {
            return Err(io::Error::other("this is no wish for a launcher"));
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

/// Takes one order and carries it out.
fn serve(control: OwnedFd, stdout: OwnedFd, stderr: OwnedFd) -> io::Result<()> {
    sys::reset_signals();
    rustix::stdio::dup2_stdout(&stdout)?;
    rustix::stdio::dup2_stderr(&stderr)?;
    // The standing launcher's socket is not this one's.
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

/// Receives the order, and the program's input with it.
fn receive(from: BorrowedFd<'_>) -> io::Result<(Order, Option<OwnedFd>)> {
    let mut fds = Vec::new();
    let mut head_bytes = [0u8; HEAD_BYTES];
    fill(from, &mut head_bytes, &mut fds)?;
    let (letter, length) = head(head_bytes);
    if letter != ORDER || length > FRAME_BYTES_MAX {
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
    // Whatever is orphaned below comes to this process, which ends it.
    at("adopting orphans", set_child_subreaper(Some(rustix::process::getpid())))?;
    let (told, tell) = at("making a pipe", io::pipe())?;
    let enclosed = run.enclosure.as_ref();
    let separate =
        enclosed.is_some_and(|enclosure| enclosure.primitives.contains(&Primitive::UserNamespace));
    let scratch = match enclosed {
        Some(enclosure) => Scratch::make(enclosure)?,
        None => None,
    };
    let settled = scratch.as_ref().map(|scratch| scratch.settle(run));
    let run = settled.as_ref().unwrap_or(run);
    let folder = scratch.as_ref().map(|scratch| scratch.0.as_path());
    if let (true, Some(enclosure)) = (separate, run.enclosure.as_ref()) {
        let (child, cgroup) = start_first(run, enclosure, stdin, folder, control, tell)?;
        return Ok(watch(run, child, Child::First, told, cgroup.as_ref(), control));
    }
    let cgroup = match enclosed {
        Some(enclosure) => make_cgroup(enclosure)?,
        None => None,
    };
    if let Some(cgroup) = &cgroup {
        // The program is born into it; the launcher is the price, and it is small.
        at("entering the cgroup", cgroup.take_in(rustix::process::getpid()))?;
    }
    let mut tell = tell;
    let started = inside::start_program(run, &run.env, &stdin, None, folder, &mut tell)?;
    drop((stdin, tell));
    match started {
        Some(program) => Ok(watch(run, program, Child::Program, told, cgroup.as_ref(), control)),
        None => Ok(last_word(told).unwrap_or_else(no_word)),
    }
}

/// A temporary folder of the program's own, where there is no private root; removed in the end.
struct Scratch(PathBuf);

impl Scratch {
    fn make(enclosure: &Enclosure) -> Result<Option<Self>, Failure> {
        if enclosure.primitives.contains(&Primitive::PrivateRoot) || enclosure.tmp_mb == 0 {
            return Ok(None);
        }
        use std::os::unix::fs::{DirBuilderExt, chown};
        let name = format!("toolbooth-{}-{}", std::process::id(), sys::nanoseconds());
        let folder = std::env::temp_dir().join(name);
        at("making a temporary folder", fs::DirBuilder::new().mode(0o700).create(&folder))?;
        let scratch = Self(folder);
        if let Some(uid) = fresh_uid(enclosure) {
            at("giving the temporary folder", chown(&scratch.0, Some(uid), Some(uid)))?;
        }
        Ok(Some(scratch))
    }

    /// The same order, with this folder in place of the private one.
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

fn make_cgroup(enclosure: &Enclosure) -> Result<Option<Cgroup>, Failure> {
    match (&enclosure.cgroup, enclosure.limits.memory_bytes) {
        (Some(parent), Some(_)) if enclosure.primitives.contains(&Primitive::MemoryCgroup) => {
            at("making a cgroup", Cgroup::make(parent, &enclosure.limits)).map(Some)
        }
        _ => Ok(None),
    }
}

/// Starts the first process of the namespaces, and lets it go on when it is mapped and bounded.
fn start_first(
    run: &Run,
    enclosure: &Enclosure,
    stdin: OwnedFd,
    scratch: Option<&Path>,
    control: &OwnedFd,
    tell: PipeWriter,
) -> Result<(Pid, Option<Cgroup>), Failure> {
    if let Some(uid) = fresh_uid(enclosure) {
        // Programs open their streams anew by /dev/stdout, as the user that they are then.
        let (uid, gid) = (Some(Uid::from_raw(uid)), Some(Gid::from_raw(uid)));
        for stream in [stdin.as_fd(), rustix::stdio::stdout(), rustix::stdio::stderr()] {
            // A stream that is no pipe belongs to somebody.
            let _ = rustix::fs::fchown(stream, uid, gid);
        }
    }
    let trees = trees_for_another(enclosure)?;
    let cgroup = make_cgroup(enclosure)?;
    let (gate, mut open) = at("making a pipe", io::pipe())?;
    let child = at("making namespaces", sys::fork_into(namespaces(&enclosure.primitives)))?;
    let Some(child) = child else {
        drop(open);
        let control = rustix::io::fcntl_dupfd_cloexec(control, 3).ok();
        inside::live(Start { run, stdin, control, trees, scratch }, gate, tell);
    };
    let readied = map_ids(child, fresh_uid(enclosure)).and_then(|()| match &cgroup {
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

/// The user that the program runs as, where it is not the gateway's own: while this launcher lives,
/// nobody else has its number.
fn fresh_uid(enclosure: &Enclosure) -> Option<u32> {
    enclosure.fresh_user.then(|| crate::probe::FRESH_BASE.saturating_add(std::process::id()))
}

/// The flags by which namespaces are made.
pub(crate) fn namespaces(primitives: &[Primitive]) -> libc::c_int {
    let flag = |primitive: &Primitive| match primitive {
        Primitive::UserNamespace => libc::CLONE_NEWUSER,
        Primitive::PidNamespace => libc::CLONE_NEWPID,
        Primitive::MountNamespace => libc::CLONE_NEWNS,
        Primitive::NetworkNamespace => libc::CLONE_NEWNET,
        Primitive::IpcNamespace => libc::CLONE_NEWIPC,
        Primitive::UtsNamespace => libc::CLONE_NEWUTS,
        Primitive::CgroupNamespace => libc::CLONE_NEWCGROUP,
        _ => 0,
    };
    primitives.iter().map(flag).fold(0, |flags, flag| flags | flag)
}

/// Writes which users outside stand behind those inside.
pub(crate) fn map_ids(child: Pid, fresh: Option<u32>) -> Result<(), Failure> {
    let write = |file: &str, text: String| {
        let path = format!("/proc/{}/{file}", child.as_raw_nonzero());
        at(&format!("writing {file}"), fs::write(path, text))
    };
    match fresh {
        // Root prepares the place as itself, and the program runs as nobody else ever has.
        Some(uid) => {
            write("uid_map", format!("0 0 1\n{INNER_ID} {uid} 1\n"))?;
            write("gid_map", format!("0 0 1\n{INNER_ID} {uid} 1\n"))
        }
        None => {
            write("setgroups", "deny".to_owned())?;
            let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
            write("uid_map", format!("{INNER_ID} {} 1\n", uid.as_raw()))?;
            write("gid_map", format!("{INNER_ID} {} 1\n", gid.as_raw()))
        }
    }
}

/// Where root runs a program as somebody else: the paths, with root's files as that user's.
fn trees_for_another(enclosure: &Enclosure) -> Result<Option<Vec<Tree>>, Failure> {
    let Some(uid) = fresh_uid(enclosure) else { return Ok(None) };
    if !enclosure.primitives.contains(&Primitive::PrivateRoot) {
        return Ok(None);
    }
    let owners = owners(uid).ok();
    root::trees(&enclosure.binds, owners.as_ref().map(AsFd::as_fd)).map(Some)
}

/// A user namespace in which root's files are `uid`'s, and everybody else's are their own.
fn owners(uid: u32) -> io::Result<OwnedFd> {
    let (mut gate, open) = io::pipe()?;
    let Some(child) = sys::fork_into(libc::CLONE_NEWUSER)? else {
        drop(open);
        // Until the launcher has what it wants.
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

/// What stands directly below the launcher.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Child {
    /// The first process of namespaces: it tells how the program ended, and its end is everything's.
    First,
    /// The program.
    Program,
}

/// Waits until the program ends, or has to; nothing of it is left, whatever goes wrong.
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
        .enclosure
        .iter()
        .flat_map(|enclosure| &enclosure.binds)
        .filter(|bind| bind.bytes_max.is_some())
        .collect();
    // Without a cgroup the kernel bounds each process alone.
    let memory_bytes = run
        .enclosure
        .as_ref()
        .filter(|_| cgroup.is_none())
        .and_then(|enclosure| enclosure.limits.memory_bytes);
    let mut lines = Lines::new(told);
    let mut over = None;
    let mut word = None;
    let mut started = false;
    let mut listening = true;
    let mut status = None;
    loop {
        if kind == Child::Program {
            // Orphans that ended; in a namespace its first process buries them.
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
                // From the parent's side the first process of a namespace hears what it waits for.
                Some(ASK_TO_END) if kind == Child::First => {
                    let _ = kill_process(child, Signal::TERM);
                }
                Some(ASK_TO_END) => {
                    let _ = kill_process_group(child, Signal::TERM);
                }
                // The lifeline is cut.
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
    let own = status.map(inside::ended);
    let word = match kind {
        Child::First => word.or(own),
        Child::Program => own.or(word),
    };
    // What lost one of its processes to the kernel and came to a good end nevertheless has one.
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

/// Nothing says that the program did not run.
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

/// What whoever ordered says next; `None` = nothing, ever again.
fn order_to_end(control: BorrowedFd<'_>) -> Option<u8> {
    let mut head_bytes = [0u8; HEAD_BYTES];
    fill(control, &mut head_bytes, &mut Vec::new()).ok()?;
    let (letter, length) = head(head_bytes);
    // These words carry nothing.
    (length == 0).then_some(letter)
}

/// Ends everything that was orphaned to this process, and what that leaves in turn.
fn end_orphans() {
    loop {
        // Mostly there are none, and looking for them takes longer than asking.
        match wait(WaitOptions::NOHANG) {
            Ok(Some(_)) => continue,
            Ok(None) => (),
            Err(_) => return,
        }
        // Those that make new ones all the time are stopped before they are ended.
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

/// The processes whose parent is this one.
fn children() -> HashSet<Pid> {
    let own = std::process::id().to_string();
    let parent = |folder: &Path| {
        let stat = fs::read_to_string(folder.join("stat")).ok()?;
        // The name stands in brackets and may hold anything; state and parent follow it.
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

/// Whether more is beneath a path than may be.
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
            // It went while it was looked at.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            // What cannot be weighed is too much.
            Err(_) => return over(),
        };
        for entry in list {
            let Ok(entry) = entry else { return over() };
            entries += 1;
            // Links are not followed: what they lead to is bounded where it is.
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

/// What the first process tells, line by line.
struct Lines(BufReader<PipeReader>);

impl Lines {
    fn new(pipe: PipeReader) -> Self {
        Self(BufReader::new(pipe))
    }

    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.get_ref().as_fd()
    }

    /// The next word; each is one line and written at once, so none is waited for in its middle.
    fn next(&mut self) -> Option<Word> {
        let mut line = Vec::new();
        self.0.read_until(b'\n', &mut line).ok()?;
        serde_json::from_slice(&line).ok()
    }
}
