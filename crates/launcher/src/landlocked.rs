//! Access to files, sockets and signals as the kernel's Landlock rules them.
//!
//! Path: 7. Doc: execution.md#how-it-is-enforced

use std::io;
use std::path::Path;

use landlock::{
    ABI, Access, AccessFs, AccessNet, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset,
    RulesetAttr, RulesetCreatedAttr, RulesetStatus, Scope,
};

use crate::order::{Enclosure, Net, Primitive};

/// What later kernels know is taken where it is there; files are ruled in any case.
const NEWEST: ABI = ABI::V6;

/// Restricts this process to the paths of `enclosure`, for good.
///
/// With a private root the same paths are all that there is; this is the second wall.
pub(crate) fn apply(enclosure: &Enclosure) -> io::Result<()> {
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
    // A network of its own has no way out, and its own ports are nobody else's affair.
    let closed =
        enclosure.net == Net::None && !enclosure.primitives.contains(&Primitive::NetworkNamespace);
    let ruleset = if closed {
        ruleset.handle_access(AccessNet::from_all(NEWEST)).map_err(wrong)?
    } else {
        ruleset
    };
    let mut ruleset = ruleset.create().map_err(wrong)?;
    let read = AccessFs::from_read(NEWEST);
    let all = AccessFs::from_all(NEWEST);
    let devices = AccessFs::ReadFile | AccessFs::WriteFile | AccessFs::ReadDir;
    let private = enclosure.primitives.contains(&Primitive::PrivateRoot);
    let mut rules = vec![(Path::new("/proc"), read), (Path::new("/dev"), devices)];
    if private {
        rules.push((Path::new("/"), AccessFs::ReadDir.into()));
    }
    if enclosure.tmp_mb > 0 {
        rules.push((Path::new("/tmp"), all));
        rules.push((Path::new("/dev/shm"), all));
    }
    for bind in &enclosure.binds {
        rules.push((&bind.path, if bind.writable { all } else { read }));
    }
    for (path, access) in rules {
        // What is not there needs no rule: Landlock allows nothing that it does not name.
        let Ok(fd) = PathFd::new(path) else { continue };
        let access = if path.is_dir() { access } else { access & AccessFs::from_file(NEWEST) };
        ruleset = ruleset.add_rule(PathBeneath::new(fd, access)).map_err(wrong)?;
    }
    let status = ruleset.restrict_self().map_err(wrong)?;
    match status.ruleset {
        RulesetStatus::NotEnforced => Err(io::Error::other("the kernel enforces no rule")),
        _ => Ok(()),
    }
}
