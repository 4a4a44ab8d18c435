//! Limits that the kernel keeps for each process.
//!
//! Path: 7. Doc: execution.md#limits

use std::io;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::order::Limits;

/// Sets the limits of this process and of all that it starts. They cannot be raised again. `alone`:
/// no other process counts as its user's; `grouped`: a cgroup bounds the memory.
pub(crate) fn apply(limits: &Limits, alone: bool, grouped: bool) -> io::Result<()> {
    // A second more than the soft limit: SIGXCPU says why, SIGKILL is for those who ignore it.
    bound(Resource::Cpu, limits.cpu_s, 1)?;
    // Not the address space: runtimes such as Node reserve far more of it than they use.
    // Where a cgroup ends what takes too much, that is told apart; this one only makes it fail.
    bound(Resource::Data, limits.memory_bytes.filter(|_| !grouped), 0)?;
    // The first process of the namespace, which only waits, counts too. Without a namespace all that
    // the user runs would.
    bound(Resource::Nproc, limits.pids.filter(|_| alone).map(|pids| pids.saturating_add(1)), 0)?;
    bound(Resource::Nofile, limits.open_files, 0)?;
    bound(Resource::Fsize, limits.file_bytes, 0)?;
    // A core would be a file that nobody named.
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
