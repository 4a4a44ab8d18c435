//! A cgroup for one program: its memory, all processes together.
//!
//! Both versions of the kernel's interface. Folders that a killed launcher left are removed by the
//! next one that finds them empty.
//!
//! Path: 7. Doc: execution.md#limits

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::Pid;

use crate::order::Limits;

/// Over which time processors are shared out, in microseconds: the kernel's own default.
const CPU_PERIOD_US: u64 = 100_000;
/// The least that the kernel takes.
const CPU_QUOTA_US_MIN: u64 = 1_000;
/// How the names of our folders begin.
const PREFIX: &str = "toolbooth-";
/// How often an emptied folder is tried again: its last process is being buried.
const REMOVAL_TRIES: u32 = 200;
/// Between two tries.
const REMOVAL_PAUSE: Duration = Duration::from_millis(2);

/// A cgroup that is removed when it is dropped.
#[derive(Debug)]
pub(crate) struct Cgroup(PathBuf, Option<CpuShare>);

/// A folder in the hierarchy of processor time, where that is another one (version 1).
#[derive(Debug)]
struct CpuShare(PathBuf);

impl Cgroup {
    /// Makes one beneath `parent` with the memory of `limits`, and its share of processors where
    /// this kernel's cgroups can bound that here.
    pub(crate) fn make(parent: &Path, limits: &Limits) -> io::Result<Self> {
        let name = format!("{PREFIX}{}-{}", std::process::id(), crate::sys::nanoseconds());
        let folder = parent.join(name);
        fs::create_dir(&folder)?;
        let mut cgroup = Self(folder, None);
        let bytes = limits.memory_bytes.unwrap_or(u64::MAX).to_string();
        if cgroup.0.join("memory.max").exists() {
            cgroup.write("memory.max", &bytes)?;
            // Without swap there is none of this file.
            let _ = cgroup.write("memory.swap.max", "0");
        } else {
            cgroup.write("memory.limit_in_bytes", &bytes)?;
            let _ = cgroup.write("memory.memsw.limit_in_bytes", &bytes);
        }
        if let Some(percent) = limits.cpu_percent {
            let quota = percent.saturating_mul(CPU_PERIOD_US / 100).max(CPU_QUOTA_US_MIN);
            // A rate is a courtesy to others; without the controller there is none.
            if cgroup.0.join("cpu.max").exists() {
                let _ = cgroup.write("cpu.max", &format!("{quota} {CPU_PERIOD_US}"));
            } else {
                cgroup.1 = CpuShare::make(&cgroup.0, quota).ok();
            }
        }
        Ok(cgroup)
    }

    fn write(&self, file: &str, text: &str) -> io::Result<()> {
        fs::write(self.0.join(file), text)
    }

    /// Takes a process in.
    pub(crate) fn take_in(&self, pid: Pid) -> io::Result<()> {
        let pid = pid.as_raw_nonzero().to_string();
        if let Some(share) = &self.1 {
            let _ = fs::write(share.0.join("cgroup.procs"), &pid);
        }
        self.write("cgroup.procs", &pid)
    }

    /// Whether the kernel ended a process of it for its memory.
    pub(crate) fn has_run_out(&self) -> bool {
        let told = |file: &str| fs::read_to_string(self.0.join(file)).unwrap_or_default();
        let counts = [told("memory.events"), told("memory.oom_control")].concat();
        counts
            .lines()
            .any(|line| line.strip_prefix("oom_kill ").is_some_and(|count| count.trim() != "0"))
    }
}

impl CpuShare {
    /// Makes a folder beside that of the memory, with this much time of each period.
    fn make(memory: &Path, quota_us: u64) -> io::Result<Self> {
        let missing = || io::Error::from(io::ErrorKind::NotFound);
        let name = memory.file_name().ok_or_else(missing)?;
        let text = fs::read_to_string("/proc/self/cgroup")?;
        let own = text.lines().find_map(|line| {
            let mut parts = line.splitn(3, ':').skip(1);
            let (controllers, path) = (parts.next()?, parts.next()?);
            let rules = controllers.split(',').any(|controller| controller == "cpu");
            let root = Path::new("/sys/fs/cgroup").join(controllers);
            rules.then(|| root.join(path.trim_start_matches('/')))
        });
        let parent = own.ok_or_else(missing)?;
        sweep(&parent);
        let share = Self(parent.join(name));
        fs::create_dir(&share.0)?;
        fs::write(share.0.join("cpu.cfs_period_us"), CPU_PERIOD_US.to_string())?;
        fs::write(share.0.join("cpu.cfs_quota_us"), quota_us.to_string())?;
        Ok(share)
    }
}

/// Removes a folder whose last process is being reaped.
fn remove(folder: &Path) {
    for _ in 0..REMOVAL_TRIES {
        match fs::remove_dir(folder) {
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
                std::thread::sleep(REMOVAL_PAUSE);
            }
            _ => return,
        }
    }
}

impl Drop for CpuShare {
    fn drop(&mut self) {
        remove(&self.0);
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        remove(&self.0);
    }
}

/// Whether cgroups with memory can be made beneath `parent`.
pub(crate) fn probe(parent: &Path) -> io::Result<()> {
    sweep(parent);
    let events = parent.join("cgroup.subtree_control");
    if events.exists() {
        // With processes of its own it refuses, and another folder is tried.
        fs::write(&events, "+memory")?;
        // Processors are shared out where that is delegated too.
        let _ = fs::write(&events, "+cpu");
    }
    let limits = Limits { memory_bytes: Some(1 << 30), ..Limits::default() };
    let cgroup = Cgroup::make(parent, &limits)?;
    // Making one is not yet being allowed to move anybody into it.
    let (mut gate, open) = io::pipe()?;
    let Some(child) = crate::sys::fork_into(0)? else {
        drop(open);
        let _ = io::copy(&mut gate, &mut io::sink());
        std::process::exit(0);
    };
    let taken = cgroup.take_in(child);
    drop((gate, open));
    let _ = rustix::process::waitpid(Some(child), rustix::process::WaitOptions::empty());
    taken
}

/// Removes what killed launchers left; the kernel keeps those that are in use.
fn sweep(parent: &Path) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let Some(rest) = name.strip_prefix(PREFIX) else { continue };
        let launcher = rest.split('-').next().unwrap_or_default();
        // One that lives may not have moved its program in yet.
        if !Path::new("/proc").join(launcher).exists() {
            let _ = fs::remove_dir(entry.path());
        }
    }
}
