//! What a launcher is told: which program, and what it may touch.
//!
//! Paths are absolute, and everything is decided: the launcher carries out, it does not choose.
//!
//! Path: 7. Doc: execution.md#the-launcher

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// What to do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum Order {
    /// Run a program.
    Run(Box<Run>),
    /// Find out which primitives this machine has.
    Probe {
        /// Folders in which cgroups may be made; the first that works is taken.
        cgroups: Vec<PathBuf>,
    },
}

/// A program to run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Run {
    /// Program and arguments.
    pub argv: Vec<String>,
    /// Its whole environment.
    pub env: Vec<(String, String)>,
    /// Where it runs.
    pub cwd: PathBuf,
    /// How it is contained; `None` = not at all.
    pub enclosure: Option<Enclosure>,
}

/// How a program is contained.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Enclosure {
    /// What is applied; everything else is left out.
    pub primitives: Vec<Primitive>,
    /// What it may see.
    pub binds: Vec<Bind>,
    /// Paths that it must not see, though they stand beneath those that it may.
    pub hidden: Vec<PathBuf>,
    /// Size of its private temporary folder, in MiB; 0 = none.
    pub tmp_mb: u64,
    /// What it may reach.
    pub net: Net,
    /// Limits.
    pub limits: Limits,
    /// Whether it runs as a user that nobody else is, for a launcher that is root.
    pub fresh_user: bool,
    /// Where its cgroup is made.
    pub cgroup: Option<PathBuf>,
}

/// A path that a program may see.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Bind {
    /// The path, absolute; the same inside as outside.
    pub path: PathBuf,
    /// Whether it may change what is there.
    pub writable: bool,
    /// Whether it may be missing.
    pub optional: bool,
    /// Whether root's files in it are the program's, where it runs as another user.
    pub mapped: bool,
    /// Most that may be beneath it, in bytes.
    pub bytes_max: Option<u64>,
    /// Whether it is the program's own folder, which is seen although it stands beneath a path that
    /// is hidden.
    #[serde(default)]
    pub own: bool,
}

/// What a program may reach.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Net {
    /// Nothing.
    #[default]
    None,
    /// What the gateway lets through: in a network of its own every address is local, and the
    /// listeners there are handed to the gateway.
    Relayed(Relay),
    /// The machine's own network, by TCP to these ports alone, as Landlock rules it: for machines
    /// without network namespaces.
    Ports(Vec<u16>),
}

/// The listeners of a network of its own, beside those for names.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Relay {
    /// Ports, on every address.
    pub ports: Vec<u16>,
    /// Whether there is an HTTP proxy too, and variables that name it.
    pub proxy: bool,
}

/// Limits of a program; `None` = no limit of its own.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Limits {
    /// Processor time of each process, in seconds.
    pub cpu_s: Option<u64>,
    /// Processor time of all together, in percent of one processor, where there is a cgroup.
    pub cpu_percent: Option<u64>,
    /// Memory, in bytes: of all together by a cgroup; without one of the data of each process, and of
    /// all together as it is summed five times a second.
    pub memory_bytes: Option<u64>,
    /// Processes and threads.
    pub pids: Option<u64>,
    /// Open descriptors of each process.
    pub open_files: Option<u64>,
    /// Bytes of one file.
    pub file_bytes: Option<u64>,
}

/// A means of the operating system by which programs are contained.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Primitive {
    /// Users of its own; the other namespaces need it.
    UserNamespace,
    /// Processes of its own.
    PidNamespace,
    /// Mounts of its own.
    MountNamespace,
    /// Network of its own.
    NetworkNamespace,
    /// Shared memory and queues of its own.
    IpcNamespace,
    /// A host name of its own.
    UtsNamespace,
    /// A view of cgroups of its own.
    CgroupNamespace,
    /// A root with only the named paths.
    PrivateRoot,
    /// Access to files ruled by the kernel's Landlock.
    Landlock,
    /// System calls that are refused.
    Seccomp,
    /// Memory of all processes together is bounded.
    MemoryCgroup,
}

impl Primitive {
    /// All of them, in the order in which they are told.
    pub const ALL: [Self; 11] = [
        Self::UserNamespace,
        Self::PidNamespace,
        Self::MountNamespace,
        Self::NetworkNamespace,
        Self::IpcNamespace,
        Self::UtsNamespace,
        Self::CgroupNamespace,
        Self::PrivateRoot,
        Self::Landlock,
        Self::Seccomp,
        Self::MemoryCgroup,
    ];

    /// Its name.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::UserNamespace => "user-namespace",
            Self::PidNamespace => "pid-namespace",
            Self::MountNamespace => "mount-namespace",
            Self::NetworkNamespace => "network-namespace",
            Self::IpcNamespace => "ipc-namespace",
            Self::UtsNamespace => "uts-namespace",
            Self::CgroupNamespace => "cgroup-namespace",
            Self::PrivateRoot => "private-root",
            Self::Landlock => "landlock",
            Self::Seccomp => "seccomp",
            Self::MemoryCgroup => "memory-cgroup",
        }
    }

    /// What an operator does where it is missing.
    #[must_use]
    pub fn remedy(self) -> &'static str {
        match self {
            Self::UserNamespace => {
                "allow user namespaces: `sysctl user.max_user_namespaces=15000`, on Debian and \
                 Ubuntu also `kernel.unprivileged_userns_clone=1` and \
                 `kernel.apparmor_restrict_unprivileged_userns=0`; in a container, a seccomp \
                 profile that lets `clone` make them"
            }
            Self::PidNamespace
            | Self::MountNamespace
            | Self::NetworkNamespace
            | Self::IpcNamespace
            | Self::UtsNamespace
            | Self::CgroupNamespace => {
                "raise the limit under /proc/sys/user, or run a kernel that is built with it"
            }
            Self::PrivateRoot => {
                "run Linux 5.12 or newer; in a container, let `mount` be called and /proc be seen \
                 whole (`--security-opt systempaths=unconfined`)"
            }
            Self::Landlock => "run Linux 5.13 or newer with `landlock` among `lsm=`",
            Self::Seccomp => "run a kernel that is built with CONFIG_SECCOMP_FILTER",
            Self::MemoryCgroup => {
                "hand a cgroup to the gateway (systemd: `Delegate=memory` and \
                 `DelegateSubgroup=gateway`); until then memory is summed five times a second, and \
                 `cpuPercent` does not hold"
            }
        }
    }
}
