//! Builds the root file system of a contained program: an empty tmpfs with the named paths in it.
//!
//! Mounts are opened as descriptors and configured before they are attached, so no path is ever
//! visible with more rights than intended.
//!
//! Path: 7. Doc: execution.md#how-it-is-enforced

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, mkdirat, openat, openat2, stat, statat,
    symlinkat,
};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountPropagationFlags, MoveMountFlags,
    OpenTreeFlags, UnmountFlags, fsconfig_create, fsconfig_set_string, fsmount, fsopen,
    mount_change, move_mount, open_tree, unmount,
};

use crate::order::{Bind, Net, SandboxSpec};
use crate::sys::{MountAttributes, set_mounts, set_one_mount};

/// Mount point of the new root until `pivot_root`; every system has this folder.
const SCAFFOLD: &str = "/proc";
/// Folders that are links on systems with a merged `/usr`.
const LINKS: [&str; 6] = ["/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"];
/// Devices that programs expect.
const DEVICES: [&str; 5] = ["null", "zero", "full", "random", "urandom"];
/// Size of the root itself, in bytes: it has folders, links and a few small files.
const ROOT_BYTES: &str = "1048576";
/// Maximum number of files of a tmpfs, because empty files use memory too.
const INODES: &str = "65536";
/// The program's `/etc/passwd`.
const USERS: &str = "tool:x:1000:1000::/tmp:/bin/false\nnobody:x:65534:65534::/:/bin/false\n";
const GROUPS: &str = "tool:x:1000:\nnogroup:x:65534:\n";
const HOSTS: &str = "127.0.0.1 localhost\n::1 localhost\n";
/// The program's `/etc/resolv.conf`. The gateway answers at every address.
const RESOLVER: &str = "nameserver 127.0.0.1\n";

/// Flags of `open_tree` for a copy of a mount.
const CLONED: OpenTreeFlags =
    OpenTreeFlags::OPEN_TREE_CLONE.union(OpenTreeFlags::OPEN_TREE_CLOEXEC);

/// A path with its mount, which is not attached yet.
pub(crate) struct Tree {
    path: PathBuf,
    what: What,
    /// Whether it is attached after the hidden paths, because it is beneath one of them.
    own: bool,
}

/// The kind of a path, with its mount.
enum What {
    Folder(OwnedFd),
    File(OwnedFd),
    /// A link, with its final target.
    Link(PathBuf),
}

/// The step that failed, and its error.
pub(crate) type Failure = (String, io::Error);

fn at<T, E: Into<io::Error>>(what: impl Into<String>, done: Result<T, E>) -> Result<T, Failure> {
    done.map_err(|error| (what.into(), error.into()))
}

/// Opens the named paths as mounts. `owners` is the user namespace that maps the owners of files,
/// if root runs a program as another user.
pub(crate) fn trees(binds: &[Bind], owners: Option<BorrowedFd<'_>>) -> Result<Vec<Tree>, Failure> {
    let mut trees = Vec::new();
    for bind in binds {
        check_form(&bind.path)?;
        if LINKS.iter().any(|link| Path::new(link) == bind.path) && bind.path.is_symlink() {
            continue;
        }
        let real = match bind.path.canonicalize() {
            Ok(real) => real,
            Err(_) if bind.optional => continue,
            Err(error) => return Err((format!("finding `{}`", bind.path.display()), error)),
        };
        stays_within(bind, &real, binds)?;
        for link in links_on_the_way(&bind.path) {
            let known = LINKS.iter().any(|known| Path::new(known) == link);
            // A link stays a link, because programs search for files next to its target.
            if !known && !is_seen(&link, bind, binds) {
                let to = at(format!("finding `{}`", link.display()), link.canonicalize())?;
                trees.push(Tree { path: link, what: What::Link(to), own: false });
            }
        }
        // Each mount is attached at its real path, so no path through a link is followed while the
        // old root is still visible.
        if bind.own || !is_seen(&real, bind, binds) {
            trees.extend(tree(&real, bind, owners)?);
        }
    }
    // A folder is attached before the paths beneath it.
    trees.sort_by_key(|tree| tree.path.components().count());
    trees.dedup_by(|later, earlier| later.path == earlier.path);
    Ok(trees)
}

/// Maximum number of links that are followed for one path.
const LINKS_MAX: usize = 40;

/// The links that lead from a path to its real path. No link has another link among its parents.
fn links_on_the_way(path: &Path) -> Vec<PathBuf> {
    let mut links = Vec::new();
    let mut path = path.to_owned();
    while links.len() < LINKS_MAX {
        let above: Vec<&Path> = path.ancestors().collect();
        let Some(link) = above.into_iter().rev().find(|above| above.is_symlink()) else { break };
        let Ok(real) = link.canonicalize() else { break };
        let rest = path.strip_prefix(link).unwrap_or(Path::new(""));
        let next = if rest.as_os_str().is_empty() { real } else { real.join(rest) };
        links.push(link.to_owned());
        path = next;
    }
    links
}

/// Whether a read-only path is already visible beneath another read-only path.
fn is_seen(path: &Path, bind: &Bind, binds: &[Bind]) -> bool {
    let around = binds.iter().filter(|other| {
        other.path != path && path.starts_with(&other.path) && !other.path.is_symlink()
    });
    // The nearest path around it decides. If one of them is writable, the path gets a mount of its
    // own, which the program cannot move away.
    let nearest = around.max_by_key(|other| other.path.components().count());
    nearest.is_some_and(|nearest| !bind.writable && !nearest.writable)
}

/// Checks that a path is absolute, has no `..` and is not the root.
fn check_form(path: &Path) -> Result<(), Failure> {
    let straight = path.components().skip(1).all(|part| matches!(part, Component::Normal(_)));
    if path.is_absolute() && straight && path.parent().is_some() {
        return Ok(());
    }
    let shown = format!("reading the path `{}`", path.display());
    Err((shown, io::Error::other("it must lead down from the root, and not be the root itself")))
}

/// Checks that a path beneath a writable one resolves to a place within it. The program may have
/// replaced it with a link, whose target would become visible.
fn stays_within(bind: &Bind, real: &Path, binds: &[Bind]) -> Result<(), Failure> {
    for around in binds.iter().filter(|other| other.writable && other.path != bind.path) {
        if !bind.path.starts_with(&around.path) {
            continue;
        }
        let within = around.path.canonicalize().is_ok_and(|around| real.starts_with(around));
        if !within {
            let shown = bind.path.display();
            let cause = "something that the program may write leads elsewhere";
            return Err((format!("finding `{shown}`"), io::Error::other(cause)));
        }
    }
    Ok(())
}

fn tree(path: &Path, bind: &Bind, owners: Option<BorrowedFd<'_>>) -> Result<Option<Tree>, Failure> {
    let shown = path.display();
    // The path is already resolved: a link that was put there since is not followed.
    let straight = |path: &Path| {
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        openat2(CWD, path, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS)
    };
    let flags = CLONED | OpenTreeFlags::AT_RECURSIVE | OpenTreeFlags::AT_EMPTY_PATH;
    let fd = match straight(path).and_then(|opened| open_tree(&opened, "", flags)) {
        Ok(fd) => fd,
        Err(_) if bind.optional => return Ok(None),
        Err(error) => return Err((format!("taking `{shown}`"), error.into())),
    };
    let plain = MountAttributes {
        read_only: !bind.writable,
        no_devices: true,
        ..MountAttributes::default()
    };
    let mapped = owners.is_some()
        && bind.mapped
        && set_mounts(fd.as_fd(), MountAttributes { owners, ..plain }).is_ok();
    if !mapped {
        // File systems without mapped mounts show their files with the real owners.
        at(format!("setting `{shown}`"), set_mounts(fd.as_fd(), plain))?;
    }
    let kind = at(format!("looking at `{shown}`"), stat(path))?;
    let what = match FileType::from_raw_mode(kind.st_mode) {
        FileType::Directory => What::Folder(fd),
        _ => What::File(fd),
    };
    Ok(Some(Tree { path: path.to_owned(), what, own: bind.own }))
}

/// A new tmpfs, which is not attached yet.
fn tmpfs(bytes: &str, mode: &str, attributes: MountAttrFlags) -> io::Result<OwnedFd> {
    let context = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_set_string(context.as_fd(), "size", bytes)?;
    fsconfig_set_string(context.as_fd(), "nr_inodes", INODES)?;
    fsconfig_set_string(context.as_fd(), "mode", mode)?;
    fsconfig_create(context.as_fd())?;
    Ok(fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attributes)?)
}

fn attach(mount: BorrowedFd<'_>, root: BorrowedFd<'_>, path: &Path) -> io::Result<()> {
    Ok(move_mount(mount, "", root, path, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?)
}

/// Replaces the root of this process, which must be the first of its namespaces.
pub(crate) fn enter(
    sandbox_spec: &SandboxSpec,
    trees: Vec<Tree>,
    cwd: &Path,
) -> Result<(), Failure> {
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    at("making mounts private", mount_change("/", private))?;
    let safe = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
    let root = at("making a root", tmpfs(ROOT_BYTES, "0755", safe))?;
    // Shows the processes of the new namespace. The kernel allows this mount only while the old
    // /proc is visible, and the new root covers that.
    let context = at("opening proc", fsopen("proc", FsOpenFlags::FSOPEN_CLOEXEC))?;
    at("making proc", fsconfig_create(context.as_fd()))?;
    let flags = safe | MountAttrFlags::MOUNT_ATTR_NOEXEC | MountAttrFlags::MOUNT_ATTR_RDONLY;
    let proc = at("mounting proc", fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, flags))?;
    let devices = devices()?;
    let links = links();
    at("placing the root", attach(root.as_fd(), CWD, Path::new(SCAFFOLD)))?;
    at("entering the root", rustix::process::chdir(SCAFFOLD))?;
    let root = at("opening the root", open_folder(Path::new(".")))?;
    let root = root.as_fd();
    fill(root, &links)?;
    if matches!(sandbox_spec.net, Net::Relayed(_)) {
        let path = "etc/resolv.conf";
        at(format!("writing /{path}"), touch(root, Path::new(path), RESOLVER))?;
    }
    for (name, fd) in devices {
        let path = Path::new("dev").join(name);
        at(format!("making /dev/{name}"), touch(root, &path, ""))?;
        at(format!("placing /dev/{name}"), attach(fd.as_fd(), root, &path))?;
    }
    at("placing proc", attach(proc.as_fd(), root, Path::new("proc")))?;
    if sandbox_spec.tmp_mb > 0 {
        let bytes = sandbox_spec.tmp_mb.saturating_mul(1 << 20).to_string();
        for path in ["tmp", "dev/shm"] {
            let own = at(format!("making /{path}"), tmpfs(&bytes, "1777", safe))?;
            at(format!("placing /{path}"), attach(own.as_fd(), root, Path::new(path)))?;
        }
    }
    let (own, others): (Vec<&Tree>, Vec<&Tree>) = trees.iter().partition(|tree| tree.own);
    let mount_tree = |tree: &Tree| {
        put(root, tree).map_err(|error| (format!("placing `{}`", tree.path.display()), error))
    };
    others.into_iter().try_for_each(mount_tree)?;
    for path in &sandbox_spec.hidden {
        hide(root, path, &own, safe)?;
    }
    own.into_iter().try_for_each(mount_tree)?;
    at("making the working directory", make_folders(root, &beneath(cwd)))?;
    let frozen = MountAttributes { read_only: true, no_devices: true, ..Default::default() };
    at("closing the root", set_one_mount(root, frozen))?;
    at("changing the root", rustix::process::pivot_root(".", "."))?;
    at("leaving the old root", unmount(".", UnmountFlags::DETACH))?;
    at("entering the new root", rustix::process::chdir("/"))
}

fn put(root: BorrowedFd<'_>, tree: &Tree) -> io::Result<()> {
    let inner = beneath(&tree.path);
    let parent = inner.parent().unwrap_or(Path::new(""));
    match &tree.what {
        What::Folder(fd) => {
            make_folders(root, &inner)?;
            attach(fd.as_fd(), root, &inner)
        }
        What::File(fd) => {
            make_folders(root, parent)?;
            touch(root, &inner, "")?;
            attach(fd.as_fd(), root, &inner)
        }
        What::Link(to) => {
            make_folders(root, parent)?;
            match symlinkat(to, root, &inner) {
                // It exists already, by another name of its folder.
                Ok(()) | Err(rustix::io::Errno::EXIST) => Ok(()),
                Err(error) => Err(error.into()),
            }
        }
    }
}

/// Covers a path with an empty folder or `/dev/null`, if it is visible or contains the program's
/// own folder. Makes the folders that lead to the program's own folder.
fn hide(
    root: BorrowedFd<'_>,
    path: &Path,
    own: &[&Tree],
    attributes: MountAttrFlags,
) -> Result<(), Failure> {
    let inner = beneath(path);
    let shown = path.display();
    let kept: Vec<&Path> =
        own.iter().filter_map(|tree| tree.path.strip_prefix(path).ok()).collect();
    if !kept.is_empty() {
        at(format!("hiding `{shown}`"), make_folders(root, &inner))?;
    }
    let Ok(found) = statat(root, &inner, AtFlags::empty()) else { return Ok(()) };
    if FileType::from_raw_mode(found.st_mode) == FileType::Directory {
        let empty = at(format!("hiding `{shown}`"), tmpfs("65536", "0555", attributes))?;
        for kept in kept {
            at(format!("hiding `{shown}`"), make_folders(empty.as_fd(), kept))?;
        }
        let frozen = MountAttributes { read_only: true, no_devices: true, ..Default::default() };
        at(format!("hiding `{shown}`"), set_one_mount(empty.as_fd(), frozen))?;
        return at(format!("hiding `{shown}`"), attach(empty.as_fd(), root, &inner));
    }
    let nothing = at("taking /dev/null", open_tree(root, "dev/null", CLONED))?;
    at(format!("hiding `{shown}`"), attach(nothing.as_fd(), root, &inner))
}

fn open_folder(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(openat(CWD, path, flags, Mode::empty())?)
}

fn devices() -> Result<Vec<(&'static str, OwnedFd)>, Failure> {
    DEVICES
        .into_iter()
        .map(|name| {
            let fd = open_tree(CWD, format!("/dev/{name}"), CLONED);
            Ok((name, at(format!("taking /dev/{name}"), fd)?))
        })
        .collect()
}

fn links() -> Vec<(&'static str, PathBuf)> {
    let link = |path: &&'static str| Some((*path, fs::read_link(path).ok()?));
    LINKS.iter().filter_map(link).collect()
}

/// Makes folders, links and small files that programs expect of any system.
fn fill(root: BorrowedFd<'_>, links: &[(&str, PathBuf)]) -> Result<(), Failure> {
    for folder in ["dev", "dev/shm", "etc", "proc", "tmp", "usr", "var/tmp", "run"] {
        at(format!("making /{folder}"), make_folders(root, Path::new(folder)))?;
    }
    for (path, to) in links {
        let path = beneath(Path::new(path));
        at(format!("linking /{}", path.display()), symlinkat(to, root, &path))?;
    }
    let streams = [
        ("/proc/self/fd", "dev/fd"),
        ("/proc/self/fd/0", "dev/stdin"),
        ("/proc/self/fd/1", "dev/stdout"),
        ("/proc/self/fd/2", "dev/stderr"),
    ];
    for (to, path) in streams {
        at(format!("linking /{path}"), symlinkat(to, root, path))?;
    }
    let files = [("etc/passwd", USERS), ("etc/group", GROUPS), ("etc/hosts", HOSTS)];
    for (path, text) in files {
        at(format!("writing /{path}"), touch(root, Path::new(path), text))?;
    }
    Ok(())
}

/// The path relative to the root, without `.` and `..`.
fn beneath(path: &Path) -> PathBuf {
    path.components().filter(|part| matches!(part, Component::Normal(_))).collect()
}

fn make_folders(root: BorrowedFd<'_>, path: &Path) -> io::Result<()> {
    let mut made = PathBuf::new();
    for part in path.components() {
        made.push(part);
        match mkdirat(root, &made, Mode::from_raw_mode(0o755)) {
            // In a read-only mount the folder exists already; if it does not, attaching the mount
            // fails.
            Ok(()) | Err(rustix::io::Errno::EXIST | rustix::io::Errno::ROFS) => (),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

fn touch(root: BorrowedFd<'_>, path: &Path, text: &str) -> io::Result<()> {
    use std::io::Write;
    if statat(root, path, AtFlags::SYMLINK_NOFOLLOW).is_ok() {
        return Ok(());
    }
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::CLOEXEC;
    match openat(root, path, flags, Mode::from_raw_mode(0o644)) {
        Ok(fd) if text.is_empty() => drop(fd),
        Ok(fd) => fs::File::from(fd).write_all(text.as_bytes())?,
        Err(rustix::io::Errno::EXIST | rustix::io::Errno::ROFS) => (),
        Err(error) => return Err(error.into()),
    }
    Ok(())
}
