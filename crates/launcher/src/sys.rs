//! Wrappers of system calls that no library provides safely; the only module with `unsafe`.
//!
//! Path: 7. Doc: execution.md#how-it-is-enforced
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use rustix::process::Pid;

/// Attributes of a mount for `mount_setattr(2)`.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct MountAttributes<'fd> {
    pub(crate) read_only: bool,
    pub(crate) no_devices: bool,
    pub(crate) no_exec: bool,
    /// Maps owners through this user namespace.
    pub(crate) owners: Option<BorrowedFd<'fd>>,
}

/// Forks into new namespaces; `None` in the child. The process must have one thread.
pub(crate) fn fork_into(namespaces: libc::c_int) -> io::Result<Option<Pid>> {
    let flags = libc::c_long::from(namespaces | libc::SIGCHLD);
    // SAFETY: without CLONE_VM and without a stack this is `fork`: the child has a copy of all
    // memory. Launchers have one thread, so no lock is held by a thread that the copy lacks.
    let answer = unsafe { libc::syscall(libc::SYS_clone, flags, 0, 0, 0, 0) };
    match answer {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(None),
        pid => Ok(i32::try_from(pid).ok().and_then(Pid::from_raw)),
    }
}

/// Makes every descriptor from `first` on close at `exec`.
pub(crate) fn close_at_exec_from(first: u32) -> io::Result<()> {
    close_range(first, libc::CLOSE_RANGE_CLOEXEC)
}

/// Closes every descriptor from `first` on. Nothing in this process may own one of them.
pub(crate) fn close_from(first: u32) -> io::Result<()> {
    close_range(first, 0)
}

fn close_range(first: u32, flags: libc::c_uint) -> io::Result<()> {
    // SAFETY: no memory is touched; callers own no descriptor that is closed.
    let answer = unsafe { libc::syscall(libc::SYS_close_range, first, u32::MAX, flags) };
    if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Sets attributes of a mount and of all mounts beneath it, and always `nosuid`.
pub(crate) fn set_mounts(tree: BorrowedFd<'_>, wanted: MountAttributes<'_>) -> io::Result<()> {
    set_mount(tree, wanted, libc::AT_RECURSIVE)
}

/// As [`set_mounts`], for one mount alone.
pub(crate) fn set_one_mount(mount: BorrowedFd<'_>, wanted: MountAttributes<'_>) -> io::Result<()> {
    set_mount(mount, wanted, 0)
}

fn set_mount(
    tree: BorrowedFd<'_>,
    wanted: MountAttributes<'_>,
    depth: libc::c_int,
) -> io::Result<()> {
    let mut attr_set = libc::MOUNT_ATTR_NOSUID;
    for (flag, on) in [
        (libc::MOUNT_ATTR_RDONLY, wanted.read_only),
        (libc::MOUNT_ATTR_NODEV, wanted.no_devices),
        (libc::MOUNT_ATTR_NOEXEC, wanted.no_exec),
        (libc::MOUNT_ATTR_IDMAP, wanted.owners.is_some()),
    ] {
        if on {
            attr_set |= flag;
        }
    }
    let owners = wanted.owners.and_then(|fd| u64::try_from(fd.as_raw_fd()).ok());
    let attributes = libc::mount_attr {
        attr_set,
        attr_clr: 0,
        propagation: 0,
        userns_fd: owners.unwrap_or_default(),
    };
    let flags = libc::AT_EMPTY_PATH | depth;
    // SAFETY: the path is a C string, and the kernel reads no more than the size of the struct.
    let answer = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            tree.as_raw_fd(),
            c"".as_ptr(),
            flags,
            &raw const attributes,
            size_of::<libc::mount_attr>(),
        )
    };
    if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Brings the loopback interface of this network namespace up.
pub(crate) fn loopback_up() -> io::Result<()> {
    let socket = std::net::UdpSocket::bind("0.0.0.0:0")?;
    // SAFETY: all bytes zero are a valid `ifreq`.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(b"lo") {
        *to = libc::c_char::try_from(*from).unwrap_or_default();
    }
    request.ifr_ifru.ifru_flags = libc::c_short::try_from(libc::IFF_UP).unwrap_or_default();
    // SAFETY: the request lives for the whole call, and SIOCSIFFLAGS reads one `ifreq`.
    let answer =
        unsafe { libc::ioctl(socket.as_fd().as_raw_fd(), libc::SIOCSIFFLAGS, &raw const request) };
    if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The index of the loopback interface.
pub(crate) fn loopback_index() -> io::Result<u32> {
    // SAFETY: the name is a C string.
    match unsafe { libc::if_nametoindex(c"lo".as_ptr()) } {
        0 => Err(io::Error::last_os_error()),
        index => Ok(index),
    }
}

/// Signals that are waited for, not handled.
#[derive(Clone, Copy)]
pub(crate) struct Waited(libc::sigset_t);

impl Waited {
    /// Blocks SIGCHLD and SIGTERM.
    pub(crate) fn block() -> io::Result<Self> {
        // SAFETY: the set is initialised by `sigemptyset` before it is read.
        unsafe {
            let mut set: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&raw mut set);
            libc::sigaddset(&raw mut set, libc::SIGCHLD);
            libc::sigaddset(&raw mut set, libc::SIGTERM);
            match libc::sigprocmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) {
                0 => Ok(Self(set)),
                _ => Err(io::Error::last_os_error()),
            }
        }
    }

    /// Unblocks the signals, for a program that is about to run.
    pub(crate) fn unblock(self) -> io::Result<()> {
        // SAFETY: the set is initialised.
        let answer = unsafe {
            libc::sigprocmask(libc::SIG_UNBLOCK, &raw const self.0, std::ptr::null_mut())
        };
        if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Waits for the next of these signals; `None` if the wait fails.
    pub(crate) fn next(self) -> Option<i32> {
        // SAFETY: the set is initialised, and a null pointer asks for no information about the
        // signal.
        let signal = unsafe { libc::sigwaitinfo(&raw const self.0, std::ptr::null_mut()) };
        (signal > 0).then_some(signal)
    }
}

/// Ignores SIGCHLD, so that the kernel reaps children.
pub(crate) fn ignore_children() {
    // SAFETY: `SIG_IGN` installs no function.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_IGN) };
}

/// Restores the default action of signals: a runtime may have ignored some, and children inherit
/// that.
pub(crate) fn reset_signals() {
    for signal in [libc::SIGPIPE, libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGCHLD] {
        // SAFETY: `SIG_DFL` installs no function.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
}

/// The time in nanoseconds, which tells apart launchers that have the same process id one after
/// another.
pub(crate) fn nanoseconds() -> u128 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map(|since| since.as_nanos()).unwrap_or_default()
}

/// The Landlock version of the running kernel.
pub(crate) fn landlock_version() -> io::Result<i64> {
    const VERSION: libc::c_uint = 1;
    // SAFETY: with this flag the kernel reads no memory.
    let answer = unsafe {
        libc::syscall(
            libc::SYS_landlock_create_ruleset,
            std::ptr::null::<libc::c_void>(),
            0_usize,
            VERSION,
        )
    };
    if answer > 0 { Ok(answer) } else { Err(io::Error::last_os_error()) }
}
