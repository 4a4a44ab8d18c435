//! Sets the limits that the kernel enforces for each process.
//!
//! Path: 7. Doc: execution.md#limits

use std::io;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::order::Limits;

/// Sets the limits of this process and of all that it starts. They cannot be raised again. `alone`:
/// no process outside the user namespace counts as its user's. `grouped`: a cgroup limits the
/// memory.
pub(crate) fn apply(limits: &Limits, alone: bool, grouped: bool) -> io::Result<()> {
    // The hard limit is one second above the soft one: programs that ignore SIGXCPU are ended by
    // SIGKILL.
    bound(Resource::Cpu, limits.cpu_s, 1)?;
    // Not the address space: runtimes such as Node reserve far more of it than they use. A cgroup
    // is better where it exists, because its end is reported as a memory limit. This limit only
    // makes allocations fail.
    bound(Resource::Data, limits.memory_bytes.filter(|_| !grouped), 0)?;
    // The first process of the namespace counts too. Without a user namespace all processes of the
    // user would count, so no limit is set.
    bound(Resource::Nproc, limits.pids.filter(|_| alone).map(|pids| pids.saturating_add(1)), 0)?;
    bound(Resource::Nofile, limits.open_files, 0)?;
    bound(Resource::Fsize, limits.file_bytes, 0)?;
    // A core dump would be a file that no profile names.
    bound(Resource::Core, Some(0), 0)
}

fn bound(resource: Resource, wanted: Option<u64>, grace: u64) -> io::Result<()> {
    let Some(wanted) = wanted else { return Ok(()) };
    let now = getrlimit(resource);
    let most = now.maximum.unwrap_or(u64::MAX);
    let new = Rlimit {
        current: Some(wanted.min(most)),
        maximum: Some(wanted.saturating_add(grace).min(most)),
    };
    Ok(setrlimit(resource, new)?)
}
