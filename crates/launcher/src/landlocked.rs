//! Restricts access to files, network, sockets and signals by Landlock.
//!
//! Path: 7. Doc: execution.md#how-it-is-enforced

use std::io;
use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, NetPort, PathBeneath,
    PathFd, Ruleset, RulesetAttr, RulesetCreatedAttr, RulesetStatus, Scope,
};

use crate::order::{Net, Primitive, SandboxSpec};

/// Small files of the private root.
const SMALL_FILES: [&str; 4] = ["/etc/passwd", "/etc/group", "/etc/hosts", "/etc/resolv.conf"];
/// Devices that programs expect.
const DEVICES: [&str; 5] = ["/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"];
/// Maximum number of entries that are examined in a folder with a hidden path beneath it.
const ENTRIES_MAX: usize = 10_000;

/// Features up to this version are used if the kernel has them. Access to files is restricted in
/// any case.
const NEWEST: ABI = ABI::V6;

/// Restricts this process permanently to the paths of `sandbox_spec` and to a temporary folder.
///
/// With a private root no other paths exist; Landlock is a second layer there.
pub(crate) fn apply(sandbox_spec: &SandboxSpec, scratch: Option<&Path>) -> io::Result<()> {
    let wrong = |error: landlock::RulesetError| io::Error::other(error.to_string());
    let ruleset = Ruleset::default()
        .set_compatibility(CompatLevel::HardRequirement)
        .handle_access(AccessFs::from_all(ABI::V1))
        .map_err(wrong)?
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(NEWEST))
        .map_err(wrong)?
        .scope(Scope::from_all(NEWEST))
        .map_err(wrong)?;
    // A network namespace has no way out and its ports are private, so it needs no rules.
    let own = sandbox_spec.primitives.contains(&Primitive::NetworkNamespace);
    let ruleset = match &sandbox_spec.net {
        _ if own => ruleset,
        Net::Ports(_) => ruleset
            .set_compatibility(CompatLevel::HardRequirement)
            .handle_access(AccessNet::from_all(ABI::V4))
            .map_err(wrong)?,
        _ => ruleset.handle_access(AccessNet::from_all(NEWEST)).map_err(wrong)?,
    };
    let mut ruleset = ruleset.create().map_err(wrong)?;
    if let Net::Ports(ports) = &sandbox_spec.net {
        for port in ports {
            let rule = NetPort::new(*port, AccessNet::ConnectTcp);
            ruleset = ruleset.add_rule(rule).map_err(wrong)?;
        }
    }
    let read = AccessFs::from_read(NEWEST);
    let all = AccessFs::from_all(NEWEST);
    let devices = AccessFs::ReadFile | AccessFs::WriteFile | AccessFs::ReadDir;
    let private = sandbox_spec.primitives.contains(&Primitive::PrivateRoot);
    let mut rules: Vec<(PathBuf, BitFlags<AccessFs>)> = vec![("/proc".into(), read)];
    if private {
        rules.push(("/".into(), AccessFs::ReadDir.into()));
        rules.push(("/dev".into(), devices));
        rules.extend(SMALL_FILES.map(|path| (path.into(), read)));
        if sandbox_spec.tmp_mb > 0 {
            rules.extend(["/tmp", "/dev/shm"].map(|path| (path.into(), all)));
        }
    } else {
        // Without a private root /dev and /tmp are shared with other programs, so they are not
        // allowed as a whole.
        rules.extend(DEVICES.map(|path| (path.into(), devices)));
        rules.extend(scratch.map(|folder| (folder.to_owned(), all)));
    }
    for bind in &sandbox_spec.binds {
        let access = if bind.writable { all } else { read };
        if private || bind.own {
            // Hidden paths are covered by empty mounts.
            rules.push((bind.path.clone(), access));
        } else {
            without(&bind.path, &sandbox_spec.hidden, &mut |path| rules.push((path, access)));
        }
    }
    for (path, access) in rules {
        // A missing path needs no rule: Landlock denies everything that no rule names.
        let Ok(fd) = PathFd::new(&path) else { continue };
        let access = if path.is_dir() { access } else { access & AccessFs::from_file(NEWEST) };
        ruleset = ruleset.add_rule(PathBeneath::new(fd, access)).map_err(wrong)?;
    }
    let status = ruleset.restrict_self().map_err(wrong)?;
    match status.ruleset {
        RulesetStatus::NotEnforced => Err(io::Error::other("the kernel enforces no rule")),
        _ => Ok(()),
    }
}

/// Calls `name` with a path, or with the entries that are not hidden if a hidden path is beneath
/// it. A rule for a folder applies to everything beneath it.
fn without(path: &Path, hidden: &[PathBuf], name: &mut dyn FnMut(PathBuf)) {
    if hidden.iter().any(|hidden| path.starts_with(hidden)) {
        return;
    }
    if !hidden.iter().any(|hidden| hidden.starts_with(path)) {
        name(path.to_owned());
        return;
    }
    for entry in std::fs::read_dir(path).into_iter().flatten().flatten().take(ENTRIES_MAX) {
        // The target of a link needs a rule of its own.
        if entry.file_type().is_ok_and(|kind| !kind.is_symlink()) {
            without(&entry.path(), hidden, name);
        }
    }
}
