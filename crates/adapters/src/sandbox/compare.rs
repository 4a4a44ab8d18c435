//! Comparison of two profiles: the permissions that a process has beyond a contract's profile.
//!
//! Path: 7. Doc: execution.md#trust-and-containment

use std::path::Path;

use toolbooth_contracts::sandbox::{Enforce, SandboxProfile};

use super::profile::HARMLESS;
use crate::egress::EVERYWHERE;
use crate::program_location::lexical;

/// Returns the permissions of a process that the contract of its tool does not allow. Each is a
/// sentence. The list is empty if the process has no additional permissions.
#[must_use]
pub fn exceeds(has: Option<&SandboxProfile>, wanted: &SandboxProfile) -> Vec<String> {
    let Some(has) = has else { return vec!["it runs without a sandbox".to_owned()] };
    let mut more = Vec::new();
    if has.enforce == Enforce::BestEffort && wanted.enforce == Enforce::Required {
        more.push("its profile is not required".to_owned());
    }
    let (fs, own) = (has.fs.clone().unwrap_or_default(), wanted.fs.clone().unwrap_or_default());
    let writes: Vec<&str> = own.write.iter().map(|write| write.path.as_str()).collect();
    for path in &fs.read {
        if !within(path, own.read.iter().map(String::as_str).chain(writes.iter().copied())) {
            more.push(format!("it may read `{path}`"));
        }
    }
    for write in &fs.write {
        if !within(&write.path, writes.iter().copied()) {
            more.push(format!("it may write `{}`", write.path));
        }
    }
    let hosts = |profile: &SandboxProfile| profile.net.clone().unwrap_or_default().hosts;
    let named = hosts(wanted);
    for host in hosts(has) {
        if !named.contains(&host) && !named.iter().any(|host| host == EVERYWHERE) {
            more.push(format!("it may reach `{host}`"));
        }
    }
    let env = |profile: &SandboxProfile| profile.env.clone().unwrap_or_default();
    let own = env(wanted);
    for name in env(has).allow.iter().filter(|name| !HARMLESS.contains(&name.as_str())) {
        if !own.allow.contains(name) {
            more.push(format!("it sees the variable `{name}`"));
        }
    }
    if fs.tmp_mb > own_fs_tmp(wanted) {
        more.push("it has more temporary space".to_owned());
    }
    let own_env = env(wanted);
    for name in env(has).set.keys().chain(env(has).secrets.keys()) {
        if !own_env.set.contains_key(name) && !own_env.secrets.contains_key(name) {
            more.push(format!("it is given the variable `{name}`"));
        }
    }
    let (has, wanted) =
        (has.limits.clone().unwrap_or_default(), wanted.limits.clone().unwrap_or_default());
    for (name, has, wanted) in [
        ("memoryMb", has.memory_mb, wanted.memory_mb),
        ("cpuPercent", has.cpu_percent, wanted.cpu_percent),
        ("pids", has.pids, wanted.pids),
        ("openFiles", has.open_files, wanted.open_files),
        ("fileMb", has.file_mb, wanted.file_mb),
    ] {
        if let Some(wanted) = wanted
            && has.is_none_or(|has| has > wanted)
        {
            more.push(format!("its limit `{name}` is wider"));
        }
    }
    more
}

fn own_fs_tmp(profile: &SandboxProfile) -> Option<u64> {
    profile.fs.as_ref().and_then(|fs| fs.tmp_mb)
}

fn within<'p>(path: &str, mut beneath: impl Iterator<Item = &'p str>) -> bool {
    let path = lexical(Path::new(path));
    beneath.any(|parent| path.starts_with(lexical(Path::new(parent))))
}

#[cfg(test)]
mod tests {
    use super::super::server_profile;
    use super::*;

    #[test]
    fn what_a_server_has_beyond_a_contract_is_told() {
        let wanted = SandboxProfile::default();
        assert!(exceeds(Some(&wanted), &wanted).is_empty());
        let told = exceeds(Some(&server_profile()), &wanted).join("; ");
        for part in ["not required", "may read `.`", "may read `~/.nvm`", "may reach `*`", "USER"] {
            assert!(told.contains(part), "{part}: {told}");
        }
        assert_eq!(exceeds(None, &wanted), ["it runs without a sandbox"]);
    }
}
