//! Seccomp filters that refuse system calls to a contained program.
//!
//! The filters are deny lists. All other calls are allowed; namespaces and Landlock limit their
//! effect.
//!
//! Path: 7. Doc: execution.md#how-it-is-enforced

use std::collections::BTreeMap;
use std::io;

use libc::c_long;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, apply_filter, sock_filter,
};

use crate::order::Net;

/// Calls that fail with `EPERM`.
const REFUSED: &[c_long] = &[
    // Access to other processes.
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_process_madvise,
    libc::SYS_pidfd_getfd,
    libc::SYS_kcmp,
    libc::SYS_process_mrelease,
    libc::SYS_personality,
    // Namespaces and mounts.
    libc::SYS_unshare,
    libc::SYS_setns,
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_open_tree,
    libc::SYS_move_mount,
    libc::SYS_mount_setattr,
    // Handles of files bypass paths.
    libc::SYS_open_by_handle_at,
    libc::SYS_name_to_handle_at,
    libc::SYS_fanotify_init,
    libc::SYS_fanotify_mark,
    libc::SYS_quotactl,
    libc::SYS_quotactl_fd,
    libc::SYS_acct,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    // Keys, programs and modules in the kernel.
    libc::SYS_keyctl,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_memfd_secret,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_load,
    libc::SYS_kexec_file_load,
    libc::SYS_reboot,
    libc::SYS_syslog,
    libc::SYS_vhangup,
    // The clock is shared by all processes.
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_clock_adjtime,
    libc::SYS_adjtimex,
];

/// Calls that fail with `ENOSYS`, so that programs use the older call instead.
const UNKNOWN: &[c_long] = &[
    // Their flags are in memory, which a filter cannot read; `clone` and `openat` have them in
    // registers.
    libc::SYS_clone3,
    libc::SYS_openat2,
    OPEN_TREE_ATTR,
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
];

/// Calls that `libc` does not list; their numbers are the same on every architecture.
const OPEN_TREE_ATTR: c_long = 467;
const FCHMODAT2: c_long = 452;

/// Calls that fail with `ENOSYS` if no cgroup limits memory: the memory that they allocate belongs
/// to no process.
const UNBOUNDED: &[c_long] = &[libc::SYS_memfd_create, libc::SYS_shmget];

/// Bits of a mode by which a program runs as the owner or the group of its file.
const SET_ID: [u64; 2] = [libc::S_ISUID as u64, libc::S_ISGID as u64];

/// Calls that accept a mode, with the index of that argument.
const MODES: &[(c_long, u8)] = &[
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_chmod, 1),
    (libc::SYS_fchmod, 1),
    (libc::SYS_fchmodat, 2),
    (FCHMODAT2, 2),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_mkdir, 1),
    (libc::SYS_mkdirat, 2),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_mknod, 1),
    (libc::SYS_mknodat, 2),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_creat, 1),
];

/// Calls that accept a mode if their flags create a file, with the indexes of flags and mode.
const OPENS: &[(c_long, u8, u8)] = &[
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_open, 1, 2),
    (libc::SYS_openat, 2, 3),
];

/// Flags that create a file. `O_TMPFILE` contains the bit of `O_DIRECTORY`, which must not count.
const MAKES: [libc::c_int; 2] = [libc::O_CREAT, libc::O_TMPFILE & !libc::O_DIRECTORY];

/// Flags of `clone` that make a namespace.
const NAMESPACES: [libc::c_int; 7] = [
    libc::CLONE_NEWNS,
    libc::CLONE_NEWCGROUP,
    libc::CLONE_NEWUTS,
    libc::CLONE_NEWIPC,
    libc::CLONE_NEWUSER,
    libc::CLONE_NEWPID,
    libc::CLONE_NEWNET,
];

/// System call numbers from here on belong to the x32 ABI.
#[cfg(target_arch = "x86_64")]
const X32: u32 = 0x4000_0000;

/// Applies the filters to this process permanently. Sets `no_new_privs`. `grouped`: a cgroup limits
/// the memory.
pub(crate) fn apply(net: &Net, grouped: bool) -> io::Result<()> {
    for program in programs(net, grouped)? {
        apply_filter(&program).map_err(other)?;
    }
    Ok(())
}

fn other(error: impl std::fmt::Display) -> io::Error {
    io::Error::other(error.to_string())
}

fn programs(net: &Net, grouped: bool) -> io::Result<Vec<BpfProgram>> {
    let mut refused: BTreeMap<i64, Vec<SeccompRule>> =
        REFUSED.iter().map(|call| (*call, Vec::new())).collect();
    let made = NAMESPACES.iter().map(|flag| {
        let flag = u64::try_from(*flag).unwrap_or_default();
        argument(0, SeccompCmpOp::MaskedEq(flag), flag)
    });
    #[cfg(target_arch = "x86_64")]
    for call in [libc::SYS_modify_ldt, libc::SYS_iopl, libc::SYS_ioperm] {
        refused.insert(call, Vec::new());
    }
    refused.insert(libc::SYS_clone, made.map(|it| rule(vec![it?])).collect::<Result<_, _>>()?);
    refused.insert(libc::SYS_socket, sockets(net)?);
    // A socket pair is connected, but a datagram socket can still send to any address. A raw UNIX
    // socket is a datagram socket.
    let mut pairs = vec![rule(vec![argument(0, SeccompCmpOp::Ne, number(libc::AF_UNIX))?])?];
    for kind in 0..=0xf {
        if kind != number(libc::SOCK_STREAM) && kind != number(libc::SOCK_SEQPACKET) {
            pairs.push(rule(vec![argument(1, SeccompCmpOp::MaskedEq(0xf), kind)?])?);
        }
    }
    refused.insert(libc::SYS_socketpair, pairs);
    // These requests insert input into the terminal from which the gateway was started.
    let typing = [libc::TIOCSTI, libc::TIOCLINUX].map(|request| {
        argument(1, SeccompCmpOp::Eq, request).and_then(|condition| rule(vec![condition]))
    });
    refused.insert(libc::SYS_ioctl, typing.into_iter().collect::<Result<_, _>>()?);
    for (call, mode) in MODES {
        let bits = SET_ID.map(|bit| rule(vec![argument(*mode, SeccompCmpOp::MaskedEq(bit), bit)?]));
        refused.insert(*call, bits.into_iter().collect::<Result<_, _>>()?);
    }
    for (call, flags, mode) in OPENS {
        let mut rules = Vec::new();
        for (makes, bit) in MAKES.iter().flat_map(|makes| SET_ID.map(|bit| (number(*makes), bit))) {
            rules.push(rule(vec![
                argument(*flags, SeccompCmpOp::MaskedEq(makes), makes)?,
                argument(*mode, SeccompCmpOp::MaskedEq(bit), bit)?,
            ])?);
        }
        refused.insert(*call, rules);
    }
    let unbounded: &[c_long] = if grouped { &[] } else { UNBOUNDED };
    let unknown = UNKNOWN.iter().chain(unbounded).map(|call| (*call, Vec::new())).collect();
    let errno = |code: libc::c_int| SeccompAction::Errno(u32::try_from(code).unwrap_or_default());
    let filters = [(unknown, libc::ENOSYS), (refused, libc::EPERM)];
    let mut programs = Vec::new();
    for (calls, code) in filters {
        let arch = std::env::consts::ARCH.try_into().map_err(other)?;
        let filter = SeccompFilter::new(calls, SeccompAction::Allow, errno(code), arch);
        programs.push(BpfProgram::try_from(filter.map_err(other)?).map_err(other)?);
    }
    #[cfg(target_arch = "x86_64")]
    programs.push(no_other_convention());
    Ok(programs)
}

/// The rules of `socket`, by family.
fn sockets(net: &Net) -> io::Result<Vec<SeccompRule>> {
    let family = |family: libc::c_int| {
        argument(0, SeccompCmpOp::Ne, u64::try_from(family).unwrap_or_default())
    };
    match net {
        // An empty list of rules refuses every family.
        Net::None => Ok(Vec::new()),
        Net::Relayed(_) | Net::Ports(_) => {
            let known = [libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK];
            let families = known.into_iter().map(family).collect::<Result<_, _>>()?;
            // Programs ask the kernel for its network interfaces by NETLINK_ROUTE. Other netlink
            // protocols are refused.
            let netlink = u64::try_from(libc::AF_NETLINK).unwrap_or_default();
            let route = u64::try_from(libc::NETLINK_ROUTE).unwrap_or_default();
            let questions = rule(vec![
                argument(0, SeccompCmpOp::Eq, netlink)?,
                argument(2, SeccompCmpOp::Ne, route)?,
            ])?;
            Ok(vec![rule(families)?, questions])
        }
    }
}

fn number(value: libc::c_int) -> u64 {
    u64::try_from(value).unwrap_or_default()
}

fn argument(at: u8, compare: SeccompCmpOp, value: u64) -> io::Result<SeccompCondition> {
    SeccompCondition::new(at, SeccompCmpArgLen::Dword, compare, value).map_err(other)
}

fn rule(conditions: Vec<SeccompCondition>) -> io::Result<SeccompRule> {
    SeccompRule::new(conditions).map_err(other)
}

/// A filter that fails every x32 call with `ENOSYS`, because the other filters do not list x32
/// numbers.
#[cfg(target_arch = "x86_64")]
fn no_other_convention() -> BpfProgram {
    const LOAD_NUMBER: u16 = 0x20;
    const JUMP_IF_AT_LEAST: u16 = 0x35;
    const RETURN: u16 = 0x06;
    const ERRNO: u32 = 0x0005_0000;
    const ALLOW: u32 = 0x7fff_0000;
    let unknown = ERRNO | u32::try_from(libc::ENOSYS).unwrap_or_default();
    vec![
        sock_filter { code: LOAD_NUMBER, jt: 0, jf: 0, k: 0 },
        sock_filter { code: JUMP_IF_AT_LEAST, jt: 0, jf: 1, k: X32 },
        sock_filter { code: RETURN, jt: 0, jf: 0, k: unknown },
        sock_filter { code: RETURN, jt: 0, jf: 0, k: ALLOW },
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::order::Relay;

    #[test]
    fn every_network_has_filters() {
        for net in [Net::None, Net::Relayed(Relay::default()), Net::Ports(vec![443])] {
            assert!(programs(&net, true).unwrap().len() >= 2);
        }
    }
}
