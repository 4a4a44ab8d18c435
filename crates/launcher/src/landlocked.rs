//! Access to files, sockets and signals as the kernel's Landlock rules them.
//!
//! Path: 7. Doc: execution.md#how-it-is-enforced

use std::io;
use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, NetPort, PathBeneath,
    PathFd, Ruleset, RulesetAttr, RulesetCreatedAttr, RulesetStatus, Scope,
};

use crate::order::{Enclosure, Net, Primitive};

/// Small files that the private root has of its own.
const SMALL_FILES: [&str; 4] = ["/etc/passwd", "/etc/group", "/etc/hosts", "/etc/resolv.conf"];
/// Devices that programs expect.
const DEVICES: [&str; 5] = ["/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"];
/// Entries of a folder that has something hidden in it.
const ENTRIES_MAX: usize = 10_000;

/// What later kernels know is taken where it is there; files are ruled in any case.
const NEWEST: ABI = ABI::V6;

/// Restricts this process to the paths of `enclosure`, and a temporary folder, for good.
///
/// With a private root the same paths are all that there is; this is the second wall.
pub(crate) fn apply(enclosure: &Enclosure, scratch: Option<&Path>) -> io::Result<()> {
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
    // A network of its own has no way out, and its ports are seen by nobody else.
    let own = enclosure.primitives.contains(&Primitive::NetworkNamespace);
    let ruleset = match &enclosure.net {
        _ if own => ruleset,
        Net::Ports(_) => ruleset
            .set_compatibility(CompatLevel::HardRequirement)
            .handle_access(AccessNet::from_all(ABI::V4))
            .map_err(wrong)?,
        _ => ruleset.handle_access(AccessNet::from_all(NEWEST)).map_err(wrong)?,
    };
    let mut ruleset = ruleset.create().map_err(wrong)?;
    if let Net::Ports(ports) = &enclosure.net {
        for port in ports {
            let rule = NetPort::new(*port, AccessNet::ConnectTcp);
            ruleset = ruleset.add_rule(rule).map_err(wrong)?;
        }
    }
    let read = AccessFs::from_read(NEWEST);
    let all = AccessFs::from_all(NEWEST);
    let devices = AccessFs::ReadFile | AccessFs::WriteFile | AccessFs::ReadDir;
    let private = enclosure.primitives.contains(&Primitive::PrivateRoot);
    let mut rules: Vec<(PathBuf, BitFlags<AccessFs>)> = vec![("/proc".into(), read)];
    if private {
        rules.push(("/".into(), AccessFs::ReadDir.into()));
        rules.push(("/dev".into(), devices));
        rules.extend(SMALL_FILES.map(|path| (path.into(), read)));
        if enclosure.tmp_mb > 0 {
            rules.extend(["/tmp", "/dev/shm"].map(|path| (path.into(), all)));
        }
    } else {
        // The machine's own folders of these names are everybody's.
        rules.extend(DEVICES.map(|path| (path.into(), devices)));
        rules.extend(scratch.map(|folder| (folder.to_owned(), all)));
    }
    for bind in &enclosure.binds {
        let access = if bind.writable { all } else { read };
        if private || bind.own {
            // What is hidden has something empty over it.
            rules.push((bind.path.clone(), access));
        } else {
            without(&bind.path, &enclosure.hidden, &mut |path| rules.push((path, access)));
        }
    }
    for (path, access) in rules {
        // What is not there needs no rule: Landlock allows nothing that it does not name.
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

/// Names a path, or where something hidden is in it everything else in it: a rule for a folder holds
/// for all that is beneath it.
fn without(path: &Path, hidden: &[PathBuf], name: &mut dyn FnMut(PathBuf)) {
    if hidden.iter().any(|hidden| path.starts_with(hidden)) {
        return;
    }
    if !hidden.iter().any(|hidden| hidden.starts_with(path)) {
        name(path.to_owned());
        return;
    }
    for entry in std::fs::read_dir(path).into_iter().flatten().flatten().take(ENTRIES_MAX) {
        // A link leads where another rule has to allow it.
        if entry.file_type().is_ok_and(|kind| !kind.is_symlink()) {
            without(&entry.path(), hidden, name);
        }
    }
}
