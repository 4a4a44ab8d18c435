//! Sums the memory of a program and of all its descendants, if no cgroup limits it.
//!
//! The sum is measured at intervals, so a program may exceed its limit in between.
//!
//! Path: 7. Doc: execution.md#limits

use std::collections::HashMap;
use std::fs;

use rustix::process::Pid;

/// Maximum number of processes that are summed; a program with more counts as over its limit.
const PROCESSES_MAX: usize = 10_000;
/// The names of mappings of anonymous shared memory in `/proc/PID/maps`.
const SHARED: [&str; 3] = ["/dev/zero (deleted)", "/memfd:", "/SYSV"];

/// Whether `root` and its descendants use more than `bytes_max` of memory.
///
/// The first sum is fast and counts a shared page once for each process. Only a sum above the limit
/// is measured exactly.
pub(crate) fn exceeds(root: Pid, bytes_max: u64) -> bool {
    let Some(processes) = tree(root) else { return true };
    let shared = shared(&processes);
    let sum = |bytes: fn(i32) -> Option<u64>| {
        processes.iter().filter_map(|pid| bytes(*pid)).fold(shared, u64::saturating_add)
    };
    // A process that cannot be measured exactly counts with its resident memory.
    sum(resident) > bytes_max && sum(|pid| proportional(pid).or_else(|| resident(pid))) > bytes_max
}

/// Bytes of anonymous shared memory, each object once. Its size counts instead of its resident
/// part, because its pages stay in memory even if no process maps them.
fn shared(processes: &[i32]) -> u64 {
    let mut seen: HashMap<(String, String), u64> = HashMap::new();
    for pid in processes {
        let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
        for line in maps.lines().filter(|line| SHARED.iter().any(|name| line.contains(name))) {
            let mut fields = line.split_whitespace();
            let range = fields.next().and_then(|range| range.split_once('-'));
            let (device, inode) = (fields.nth(2), fields.next());
            let address = |text: &str| u64::from_str_radix(text, 16).ok();
            let size = range.and_then(|(from, to)| address(to)?.checked_sub(address(from)?));
            if let (Some(size), Some(device), Some(inode)) = (size, device, inode) {
                let known = seen.entry((device.to_owned(), inode.to_owned())).or_default();
                *known = (*known).max(size);
            }
        }
    }
    seen.into_values().fold(0, u64::saturating_add)
}

/// A process and all its descendants; `None` if there are more than [`PROCESSES_MAX`].
fn tree(root: Pid) -> Option<Vec<i32>> {
    let mut found = vec![root.as_raw_nonzero().get()];
    let mut next = 0;
    while let Some(pid) = found.get(next).copied() {
        next += 1;
        // Each thread has children of its own.
        let threads = fs::read_dir(format!("/proc/{pid}/task"));
        for thread in threads.into_iter().flatten().flatten() {
            let children = fs::read_to_string(thread.path().join("children")).unwrap_or_default();
            found.extend(children.split_whitespace().filter_map(|pid| pid.parse::<i32>().ok()));
        }
        if found.len() > PROCESSES_MAX {
            return None;
        }
    }
    Some(found)
}

/// The resident memory of a process, in bytes.
fn resident(pid: i32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/statm")).ok()?;
    let pages: u64 = text.split(' ').nth(1)?.parse().ok()?;
    let page = u64::try_from(rustix::param::page_size()).ok()?;
    Some(pages.saturating_mul(page))
}

/// The memory of a process in bytes, where each shared page is divided among its processes.
fn proportional(pid: i32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("Pss:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes.saturating_mul(1024))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_summed_with_its_children() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let own = rustix::process::getpid();
        let found = tree(own).unwrap();
        assert!(found.contains(&i32::try_from(child.id()).unwrap()), "{found:?}");
        let (all, exact) = (resident(found[0]).unwrap(), proportional(found[0]).unwrap());
        assert!(exact > 0 && exact <= all, "{exact} of {all}");
        assert!(exceeds(own, exact / 2) && !exceeds(own, all * 100));
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
