//! A cgroup for one program, which limits memory and processor time of all its processes together.
//!
//! Supports cgroup v1 and v2. Folders of killed launchers are removed by a later launcher, once
//! they are empty.
//!
//! Path: 7. Doc: execution.md#limits

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::Pid;

use crate::order::Limits;

/// The period of the processor quota, in microseconds; the default of the kernel.
const CPU_PERIOD_US: u64 = 100_000;
/// The smallest quota that the kernel accepts, in microseconds.
const CPU_QUOTA_US_MIN: u64 = 1_000;
/// Where cgroups are mounted.
pub(crate) const ROOT: &str = "/sys/fs/cgroup";
/// The file with the processes of a cgroup.
const PROCESSES: &str = "cgroup.procs";
/// Prefix of the names of our folders.
const PREFIX: &str = "toolbooth-";
/// Maximum number of attempts to remove a folder: it is busy while its last process is being
/// reaped.
const REMOVAL_TRIES: u32 = 1_000;
/// Pause between two attempts.
const REMOVAL_PAUSE: Duration = Duration::from_millis(2);

/// A cgroup that is removed when it is dropped.
#[derive(Debug)]
pub(crate) struct Cgroup {
    folder: PathBuf,
    share: Option<CpuShare>,
    /// The cgroups that this process was in before it entered this one.
    before: Vec<PathBuf>,
}

/// A folder in the `cpu` hierarchy, which is a separate one in cgroup v1.
#[derive(Debug)]
struct CpuShare(PathBuf);

impl Cgroup {
    /// Makes a cgroup beneath `parent` with the memory limit of `limits`, and with the processor
    /// quota if the `cpu` controller is available.
    pub(crate) fn make(parent: &Path, limits: &Limits) -> io::Result<Self> {
        let name = format!("{PREFIX}{}-{}", std::process::id(), crate::sys::nanoseconds());
        let folder = parent.join(name);
        fs::create_dir(&folder)?;
        let mut cgroup = Self { folder, share: None, before: Vec::new() };
        let bytes = limits.memory_bytes.unwrap_or(u64::MAX).to_string();
        if cgroup.folder.join("memory.max").exists() {
            cgroup.write("memory.max", &bytes)?;
            // Kernels without swap do not have this file.
            let _ = cgroup.write("memory.swap.max", "0");
        } else {
            cgroup.write("memory.limit_in_bytes", &bytes)?;
            let _ = cgroup.write("memory.memsw.limit_in_bytes", &bytes);
        }
        if let Some(percent) = limits.cpu_percent {
            let quota = percent.saturating_mul(CPU_PERIOD_US / 100).max(CPU_QUOTA_US_MIN);
            // The quota is best effort: without the controller it is not set.
            if cgroup.folder.join("cpu.max").exists() {
                let _ = cgroup.write("cpu.max", &format!("{quota} {CPU_PERIOD_US}"));
            } else {
                cgroup.share = CpuShare::make(&cgroup.folder, quota).ok();
            }
        }
        Ok(cgroup)
    }

    fn write(&self, file: &str, text: &str) -> io::Result<()> {
        put(&self.folder, file, text)
    }

    /// Moves a process into the cgroup.
    pub(crate) fn take_in(&self, pid: Pid) -> io::Result<()> {
        let pid = pid.as_raw_nonzero().to_string();
        if let Some(share) = &self.share {
            let _ = put(&share.0, PROCESSES, &pid);
        }
        self.write(PROCESSES, &pid)
    }

    /// Moves this process into the cgroup, until the cgroup is dropped.
    pub(crate) fn enter(&mut self) -> io::Result<()> {
        let own = own_folders().into_iter().map(|(_, folder)| folder);
        self.before = own.filter(|folder| folder.join(PROCESSES).is_file()).collect();
        self.take_in(rustix::process::getpid())
    }

    /// Whether the kernel ended a process of the cgroup because of its memory.
    pub(crate) fn has_run_out(&self) -> bool {
        let told = |file: &str| fs::read_to_string(self.folder.join(file)).unwrap_or_default();
        let counts = [told("memory.events"), told("memory.oom_control")].concat();
        counts
            .lines()
            .any(|line| line.strip_prefix("oom_kill ").is_some_and(|count| count.trim() != "0"))
    }
}

impl CpuShare {
    /// Makes a folder of the same name in the `cpu` hierarchy, with this quota per period.
    fn make(memory: &Path, quota_us: u64) -> io::Result<Self> {
        let missing = || io::Error::from(io::ErrorKind::NotFound);
        let name = memory.file_name().ok_or_else(missing)?;
        let has_cpu = |controllers: &str| controllers.split(',').any(|name| name == "cpu");
        let own = own_folders().into_iter().find(|(controllers, _)| has_cpu(controllers));
        let (_, parent) = own.ok_or_else(missing)?;
        sweep(&parent);
        let share = Self(parent.join(name));
        fs::create_dir(&share.0)?;
        put(&share.0, "cpu.cfs_period_us", &CPU_PERIOD_US.to_string())?;
        put(&share.0, "cpu.cfs_quota_us", &quota_us.to_string())?;
        Ok(share)
    }
}

/// Writes a file of a cgroup. The file must exist, so nothing is created if no cgroup is mounted.
fn put(folder: &Path, file: &str, text: &str) -> io::Result<()> {
    use std::io::Write;
    fs::OpenOptions::new().write(true).open(folder.join(file))?.write_all(text.as_bytes())
}

/// Returns the folders of the cgroups of this process, with the controllers of each. The list of
/// controllers is empty for cgroup v2. If a hierarchy is mounted elsewhere, its folder does not
/// exist.
pub(crate) fn own_folders() -> Vec<(String, PathBuf)> {
    let text = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let folder = |line: &str| {
        let mut parts = line.splitn(3, ':').skip(1);
        let (controllers, path) = (parts.next()?, parts.next()?);
        let (root, path) = (Path::new(ROOT), path.trim_start_matches('/'));
        // An empty part would leave a slash at the end.
        let parts = [controllers, path].into_iter().filter(|part| !part.is_empty());
        Some((controllers.to_owned(), parts.fold(root.to_owned(), |at, part| at.join(part))))
    };
    text.lines().filter_map(folder).collect()
}

/// Removes a folder of which the last process is being reaped.
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
        // A cgroup with a process in it cannot be removed.
        for folder in &self.before {
            let own = rustix::process::getpid().as_raw_nonzero().to_string();
            let _ = put(folder, PROCESSES, &own);
        }
        remove(&self.folder);
    }
}

/// Checks that cgroups with a memory limit can be made and entered beneath `parent`.
pub(crate) fn probe(parent: &Path) -> io::Result<()> {
    sweep(parent);
    let events = parent.join("cgroup.subtree_control");
    if events.exists() {
        // The kernel refuses this for a folder that has processes. The caller then tries another
        // one.
        fs::write(&events, "+memory")?;
        // The `cpu` controller is optional, because it may not be delegated.
        let _ = fs::write(&events, "+cpu");
    }
    let limits = Limits { memory_bytes: Some(1 << 30), ..Limits::default() };
    let cgroup = Cgroup::make(parent, &limits)?;
    // Permission to make a cgroup does not imply permission to move a process into it.
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

/// Removes the folders of killed launchers; the kernel keeps those that are in use.
fn sweep(parent: &Path) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let Some(rest) = name.strip_prefix(PREFIX) else { continue };
        let launcher = rest.split('-').next().unwrap_or_default();
        // The folder of a running launcher may be empty because its program is not moved yet.
        if !Path::new("/proc").join(launcher).exists() {
            let _ = fs::remove_dir(entry.path());
        }
    }
}
