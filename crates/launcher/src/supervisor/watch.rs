//! Waits until a program ends, or ends it: by an order, at a limit, or when the gateway is gone.
//!
//! Path: 7. Doc: execution.md#the-launcher

use std::collections::HashSet;
use std::fs;
use std::io::{self, BufRead, BufReader, PipeReader};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, kill_process, kill_process_group, pidfd_open, wait,
    waitpid,
};

use super::{Failure, at};
use crate::cgroup::Cgroup;
use crate::init::{self, InitEvent};
use crate::memory;
use crate::order::{Bind, Run};
use crate::wire::{ASK_TO_END, HEAD_BYTES, Report, STARTED, Unstarted, fill, head, send};

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

/// The direct child of the launcher.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Child {
    /// The first process of the namespaces. It reports how the program ended, and its end ends all
    /// processes of the PID namespace.
    First,
    /// The program.
    Program,
}

/// Waits until the program ends or must be ended. None of its processes is left, even after an
/// error.
pub(super) fn watch(
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
    let mut event = None;
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
                Some(InitEvent::Started) if !started => {
                    started = true;
                    at("telling", tell_started(control))?;
                }
                Some(InitEvent::Started) => (),
                Some(other) => event = Some(other),
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
        let reaped = at("reaping", waitpid(Some(child), WaitOptions::empty()))?;
        status = reaped.map(|(_, status)| status);
    }
    end_orphans();
    while let Some(last) = lines.next() {
        match last {
            InitEvent::Started if !started => {
                started = true;
                at("telling", tell_started(control))?;
            }
            InitEvent::Started => (),
            other => event = Some(other),
        }
    }
    let over = over.or_else(|| bounded.iter().find_map(|bind| overweight(bind)));
    if let Some(report) = over {
        return Ok(report);
    }
    let own = status.map(init::ended);
    let event = match kind {
        Child::First => event.or(own),
        Child::Program => own.or(event),
    };
    // A program that exits with 0 succeeded, even if the kernel ended one of its processes.
    let good = matches!(event, Some(InitEvent::Exit(0) | InitEvent::Unstarted(_)));
    if !good && cgroup.is_some_and(Cgroup::has_run_out) {
        return Ok(Report::MemoryLimit);
    }
    Ok(event.map_or_else(no_event, report))
}

fn tell_started(control: &OwnedFd) -> io::Result<()> {
    let number = std::process::id().to_string();
    send(control.as_fd(), STARTED, number.as_bytes(), &[])
}

fn report(event: InitEvent) -> Report {
    match event {
        InitEvent::Unstarted(unstarted) => Report::Unstarted(unstarted),
        InitEvent::Exit(code) => Report::Exit(code),
        InitEvent::Signal(libc::SIGXCPU) => Report::CpuLimit,
        InitEvent::Signal(signal) => Report::Signal(signal),
        InitEvent::Started => no_event(),
    }
}

/// The report if no message arrived: the program may have run.
pub(super) fn no_event() -> Report {
    Report::Failed(Unstarted {
        step: "waiting for the program".to_owned(),
        cause: "nothing was told".to_owned(),
        program: false,
    })
}

pub(super) fn last_event(told: PipeReader) -> Option<Report> {
    let mut lines = Lines::new(told);
    let words = std::iter::from_fn(|| lines.next());
    words.filter(|event| !matches!(event, InitEvent::Started)).last().map(report)
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
    fn next(&mut self) -> Option<InitEvent> {
        let mut line = Vec::new();
        self.0.read_until(b'\n', &mut line).ok()?;
        serde_json::from_slice(&line).ok()
    }
}
