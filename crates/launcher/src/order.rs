//! The order to a launcher: the program to run and its containment.
//!
//! Paths are absolute and all decisions are made: the launcher only carries the order out.
//!
//! Path: 7. Doc: execution.md#the-launcher

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// A path in JSON: a text, or its bytes if it is not UTF-8.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum WrittenPath {
    Text(String),
    Bytes(Vec<u8>),
}

impl From<&Path> for WrittenPath {
    fn from(path: &Path) -> Self {
        match path.to_str() {
            Some(text) => Self::Text(text.to_owned()),
            None => Self::Bytes(path.as_os_str().as_bytes().to_vec()),
        }
    }
}

impl From<WrittenPath> for PathBuf {
    fn from(written: WrittenPath) -> Self {
        match written {
            WrittenPath::Text(text) => Self::from(text),
            WrittenPath::Bytes(bytes) => Self::from(OsString::from_vec(bytes)),
        }
    }
}

mod path {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::{Path, PathBuf, WrittenPath};

    pub(super) fn serialize<S: Serializer>(path: &Path, to: S) -> Result<S::Ok, S::Error> {
        WrittenPath::from(path).serialize(to)
    }

    pub(super) fn deserialize<'d, D: Deserializer<'d>>(from: D) -> Result<PathBuf, D::Error> {
        WrittenPath::deserialize(from).map(PathBuf::from)
    }
}

mod paths {
    use serde::{Deserialize, Deserializer, Serializer};

    use super::{PathBuf, WrittenPath};

    pub(super) fn serialize<S: Serializer>(paths: &[PathBuf], to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(paths.iter().map(|path| WrittenPath::from(path.as_path())))
    }

    pub(super) fn deserialize<'d, D: Deserializer<'d>>(from: D) -> Result<Vec<PathBuf>, D::Error> {
        let written = Vec::<WrittenPath>::deserialize(from)?;
        Ok(written.into_iter().map(PathBuf::from).collect())
    }
}

/// An order to a launcher.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum Order {
    /// Run a program.
    Run(Box<Run>),
    /// Find out which primitives this machine has.
    Probe {
        /// Folders in which cgroups may be made; the first that works is used.
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
    /// Its working directory.
    pub cwd: PathBuf,
    /// Its containment; `None` = it is not contained.
    pub sandbox_spec: Option<SandboxSpec>,
}

/// How a program is contained.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SandboxSpec {
    /// The primitives that are applied.
    pub primitives: Vec<Primitive>,
    /// The paths that it may see.
    pub binds: Vec<Bind>,
    /// Paths that it must not see, although they are beneath visible ones.
    #[serde(with = "paths")]
    pub hidden: Vec<PathBuf>,
    /// Size of its private temporary folder, in MiB; 0 = none.
    pub tmp_mb: u64,
    /// Its network access.
    pub net: Net,
    /// Limits.
    pub limits: Limits,
    /// Whether it runs as a user of its own; requires a launcher that is root.
    pub fresh_user: bool,
    /// The folder in which its cgroup is made.
    pub cgroup: Option<PathBuf>,
}

/// A path that a program may see.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Bind {
    /// The path, absolute; the same inside as outside.
    #[serde(with = "path")]
    pub path: PathBuf,
    /// Whether it may write there.
    pub writable: bool,
    /// Whether it may be missing.
    pub optional: bool,
    /// Whether the program owns root's files in it, if it runs as another user.
    pub mapped: bool,
    /// Maximum size of everything beneath it, in bytes.
    pub bytes_max: Option<u64>,
    /// Whether it is the program's own folder, which stays visible beneath a hidden path.
    #[serde(default)]
    pub own: bool,
}

/// The network access of a program.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Net {
    /// No network access.
    #[default]
    None,
    /// Through the gateway. In the program's network namespace every address is local, and the
    /// launcher passes the listeners there to the gateway.
    Relayed(Relay),
    /// The machine's own network, where Landlock allows TCP connections to these ports only. For
    /// machines without network namespaces.
    Ports(Vec<u16>),
}

/// The listeners in a program's network namespace, in addition to those for DNS.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Relay {
    /// TCP ports, on every address.
    pub ports: Vec<u16>,
    /// Whether there is also an HTTP proxy, with environment variables that name it.
    pub proxy: bool,
}

/// Limits of a program; `None` = no limit of its own.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Limits {
    /// Processor time of each process, in seconds.
    pub cpu_s: Option<u64>,
    /// Processor time of all processes together, in percent of one processor; requires a cgroup.
    pub cpu_percent: Option<u64>,
    /// Memory of all processes together, in bytes, if there is a cgroup. Otherwise, data of each
    /// process, and the sum of the memory of all processes, which is measured five times a second.
    pub memory_bytes: Option<u64>,
    /// Processes and threads.
    pub pids: Option<u64>,
    /// Open descriptors of each process.
    pub open_files: Option<u64>,
    /// Bytes of one file.
    pub file_bytes: Option<u64>,
}

/// A feature of the operating system that contains programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Primitive {
    /// A user namespace; the other namespaces need it.
    UserNamespace,
    /// A PID namespace.
    PidNamespace,
    /// A mount namespace.
    MountNamespace,
    /// A network namespace.
    NetworkNamespace,
    /// An IPC namespace.
    IpcNamespace,
    /// A UTS namespace, with its own host name.
    UtsNamespace,
    /// A cgroup namespace.
    CgroupNamespace,
    /// A root file system with only the named paths.
    PrivateRoot,
    /// Landlock rules for files, network, sockets and signals.
    Landlock,
    /// Seccomp filters that refuse system calls.
    Seccomp,
    /// A cgroup that limits the memory of all processes together.
    MemoryCgroup,
}

impl Primitive {
    /// All primitives, in the order in which they are probed and reported.
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

    /// Advice to the operator if it is missing.
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
