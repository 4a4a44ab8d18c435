//! Namespaces of contained programs, and the ids of users within them.
//!
//! Doc: execution.md#the-launcher

use std::{fs, io};

use rustix::process::Pid;

use crate::init::INNER_ID;
use crate::order::Primitive;

/// The first of the user ids for contained programs, which belong to no account. The launcher's
/// process id is added to it.
pub(crate) const FRESH_BASE: u32 = 0x6000_0000;

/// The flags of `clone` that make these namespaces.
pub(crate) fn namespaces(primitives: &[Primitive]) -> libc::c_int {
    let flag = |primitive: &Primitive| match primitive {
        Primitive::UserNamespace => libc::CLONE_NEWUSER,
        Primitive::PidNamespace => libc::CLONE_NEWPID,
        Primitive::MountNamespace => libc::CLONE_NEWNS,
        Primitive::NetworkNamespace => libc::CLONE_NEWNET,
        Primitive::IpcNamespace => libc::CLONE_NEWIPC,
        Primitive::UtsNamespace => libc::CLONE_NEWUTS,
        Primitive::CgroupNamespace => libc::CLONE_NEWCGROUP,
        _ => 0,
    };
    primitives.iter().map(flag).fold(0, |flags, flag| flags | flag)
}

/// Writes the user and group maps of the child's user namespace.
pub(crate) fn map_ids(child: Pid, fresh: Option<u32>) -> Result<(), (String, io::Error)> {
    let write = |file: &str, text: String| {
        let path = format!("/proc/{}/{file}", child.as_raw_nonzero());
        fs::write(path, text).map_err(|error| (format!("writing {file}"), error))
    };
    match fresh {
        // Root sets up the sandbox as root; the program runs as a user of its own.
        Some(uid) => {
            write("uid_map", format!("0 0 1\n{INNER_ID} {uid} 1\n"))?;
            write("gid_map", format!("0 0 1\n{INNER_ID} {uid} 1\n"))
        }
        None => {
            write("setgroups", "deny".to_owned())?;
            let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
            write("uid_map", format!("{INNER_ID} {} 1\n", uid.as_raw()))?;
            write("gid_map", format!("{INNER_ID} {} 1\n", gid.as_raw()))
        }
    }
}
