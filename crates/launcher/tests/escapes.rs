//! Tests that a contained program cannot escape.
//!
//! Each attempt runs inside, as root and as an ordinary user, and once outside. It must succeed
//! outside, so that no test passes without containment.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, clippy::print_stderr)]
#![allow(clippy::print_stdout, unsafe_code, clippy::undocumented_unsafe_blocks)]

mod common;

use std::ffi::CString;
use std::io::{Error, Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use libtest_mimic::{Arguments, Failed, Trial};
use toolbooth_launcher::order::{Net, Primitive, Relay, Run};
use toolbooth_launcher::wire::{Found, Report};

use common::*;

/// The first argument of this program when it runs one attempt.
const ATTACK: &str = "__attack";
const ESCAPED: &str = "ESCAPED";

/// The parameters of an attack: folders, and the ports of the listeners outside.
#[derive(Clone)]
struct Scene {
    inside: PathBuf,
    outside: PathBuf,
    tcp: u16,
    udp: u16,
}

impl Scene {
    fn words(&self) -> Vec<String> {
        vec![
            self.inside.display().to_string(),
            self.outside.display().to_string(),
            self.tcp.to_string(),
            self.udp.to_string(),
        ]
    }

    fn read(words: &[String]) -> Self {
        Self {
            inside: words[0].clone().into(),
            outside: words[1].clone().into(),
            tcp: words[2].parse().unwrap(),
            udp: words[3].parse().unwrap(),
        }
    }

    fn secret(&self) -> PathBuf {
        self.outside.join("secret")
    }

    fn socket(&self) -> PathBuf {
        self.inside.join("socket")
    }

    fn name(&self) -> String {
        format!("toolbooth-test-{}", self.tcp)
    }
}

type Attack = fn(&Scene) -> Result<(), Error>;

/// All attempts; one that succeeds has escaped.
const ATTACKS: &[(&str, Attack)] = &[
    ("reading outside", |scene| read(&scene.secret())),
    ("stat outside", |scene| std::fs::metadata(scene.secret()).map(drop)),
    ("reading by a link", |scene| read(&scene.inside.join("link"))),
    ("reading by `..`", |scene| read(&scene.inside.join("../outside/secret"))),
    ("reading by /proc/self/root", |scene| {
        read(&Path::new("/proc/self/root").join(scene.secret().strip_prefix("/").unwrap()))
    }),
    ("reading by /proc/self/cwd", |scene| {
        std::env::set_current_dir(&scene.inside)?;
        read(Path::new("/proc/self/cwd/../outside/secret"))
    }),
    ("reading by the root of the first process", |scene| {
        read(&first().join("root").join(scene.secret().strip_prefix("/").unwrap()))
    }),
    ("reading the environment of the first process", |_| read(&first().join("environ"))),
    ("reading the memory of the first process", |_| {
        std::fs::File::open(first().join("mem")).map(drop)
    }),
    ("listing outside", |scene| std::fs::read_dir(&scene.outside).map(drop)),
    ("writing outside", |scene| std::fs::write(scene.outside.join("new"), "x")),
    ("changing modes outside", |scene| {
        std::fs::set_permissions(scene.secret(), std::fs::Permissions::from_mode(0o600))
    }),
    ("changing times outside", |scene| {
        let path = CString::new(scene.secret().to_str().unwrap()).unwrap();
        call(unsafe { libc::utimensat(libc::AT_FDCWD, path.as_ptr(), std::ptr::null(), 0) })
    }),
    ("renaming to the outside", |scene| {
        std::fs::rename(scene.inside.join("own"), scene.outside.join("taken"))
    }),
    ("linking the outside in", |scene| {
        std::fs::hard_link(scene.secret(), scene.inside.join("linked"))
    }),
    ("removing outside", |scene| std::fs::remove_file(scene.secret())),
    ("writing what may only be read", |scene| {
        std::fs::OpenOptions::new().append(true).open(scene.inside.join("fixed/file")).map(drop)
    }),
    ("changing modes of what may only be read", |scene| {
        let mode = std::fs::Permissions::from_mode(0o777);
        std::fs::set_permissions(scene.inside.join("fixed/file"), mode)
    }),
    ("changing times of what may only be read", |scene| {
        let path = scene.inside.join("fixed/file");
        let path = CString::new(path.to_str().unwrap()).unwrap();
        call(unsafe { libc::utimensat(libc::AT_FDCWD, path.as_ptr(), std::ptr::null(), 0) })
    }),
    ("writing the root", |_| {
        std::fs::write("/toolbooth-escaped", "x")?;
        std::fs::remove_file("/toolbooth-escaped")
    }),
    ("writing to the kernel's settings", |_| {
        std::fs::OpenOptions::new().write(true).open("/proc/sys/kernel/core_pattern").map(drop)
    }),
    ("TCP", |scene| {
        let address = ([127, 0, 0, 1], scene.tcp).into();
        TcpStream::connect_timeout(&address, Duration::from_secs(2)).map(drop)
    }),
    ("UDP", |scene| {
        let socket = UdpSocket::bind("127.0.0.1:0")?;
        socket.set_read_timeout(Some(Duration::from_secs(2)))?;
        socket.send_to(b"x", ("127.0.0.1", scene.udp))?;
        socket.recv(&mut [0u8; 8]).map(drop)
    }),
    ("a pathname UNIX socket", |scene| UnixStream::connect(scene.socket()).map(drop)),
    ("an abstract UNIX socket", |scene| {
        UnixStream::connect_addr(&SocketAddr::from_abstract_name(scene.name())?).map(drop)
    }),
    ("a pair of datagram sockets", |_| {
        let mut fds = [0; 2];
        call(unsafe { libc::socketpair(libc::AF_UNIX, libc::SOCK_DGRAM, 0, fds.as_mut_ptr()) })
    }),
    ("a pair of raw sockets", |_| {
        let mut fds = [0; 2];
        call(unsafe { libc::socketpair(libc::AF_UNIX, libc::SOCK_RAW, 0, fds.as_mut_ptr()) })
    }),
    ("a raw packet socket", |_| call(unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW, 0) })),
    ("a netlink socket", |_| {
        call(unsafe {
            libc::socket(libc::AF_NETLINK, libc::SOCK_RAW, libc::NETLINK_KOBJECT_UEVENT)
        })
    }),
    ("io_uring", |_| {
        let mut params = [0u8; 120];
        raw(unsafe { libc::syscall(libc::SYS_io_uring_setup, 1, params.as_mut_ptr()) })
    }),
    ("ptrace", |_| raw(unsafe { libc::syscall(libc::SYS_ptrace, libc::PTRACE_TRACEME, 0, 0, 0) })),
    ("reading another process", |_| {
        let own = unsafe { libc::getpid() };
        let mut byte = 0u8;
        let local = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
        let from = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
        raw(unsafe {
            libc::syscall(
                libc::SYS_process_vm_readv,
                own,
                &raw const local,
                1_usize,
                &raw const from,
                1_usize,
                0_usize,
            )
        })
    }),
    ("mount", |scene| {
        let target = CString::new(scene.inside.to_str().unwrap()).unwrap();
        call(unsafe {
            libc::mount(c"none".as_ptr(), target.as_ptr(), c"tmpfs".as_ptr(), 0, std::ptr::null())
        })?;
        call(unsafe { libc::umount2(target.as_ptr(), libc::MNT_DETACH) })
    }),
    ("a mount by its new interface", |_| {
        raw(unsafe { libc::syscall(libc::SYS_fsopen, c"tmpfs".as_ptr(), 0) })
    }),
    ("unmounting /proc", |_| {
        // Outside nothing must be unmounted: MNT_EXPIRE fails for the root, which is in use.
        let target = if std::process::id() < 100 { c"/proc" } else { c"/" };
        let flags = if std::process::id() < 100 { libc::MNT_DETACH } else { libc::MNT_EXPIRE };
        match call(unsafe { libc::umount2(target.as_ptr(), flags) }) {
            Err(error) if error.raw_os_error() == Some(libc::EPERM) => Err(error),
            _ => Ok(()),
        }
    }),
    ("unshare", |_| call(unsafe { libc::unshare(libc::CLONE_NEWNS) })),
    ("unshare of users", |_| call(unsafe { libc::unshare(libc::CLONE_NEWUSER) })),
    ("clone with a namespace", |_| {
        let flags = libc::CLONE_NEWUSER | libc::SIGCHLD;
        born(unsafe { libc::syscall(libc::SYS_clone, flags, 0, 0, 0, 0) })
    }),
    ("clone3 with a namespace", |_| {
        let mut arguments = [0u64; 8];
        arguments[0] = libc::CLONE_NEWUSER as u64;
        arguments[4] = libc::SIGCHLD as u64;
        born(unsafe { libc::syscall(libc::SYS_clone3, arguments.as_ptr(), 64) })
    }),
    ("setns", |_| {
        let namespace = std::fs::File::open("/proc/self/ns/uts")?;
        let fd = std::os::fd::AsRawFd::as_raw_fd(&namespace);
        call(unsafe { libc::setns(fd, libc::CLONE_NEWUTS) })
    }),
    ("chroot", |_| call(unsafe { libc::chroot(c"/".as_ptr()) })),
    ("a file by its handle", |_| {
        let mut handle = [0u8; 136];
        handle[0] = 128;
        let mut mount = 0;
        raw(unsafe {
            libc::syscall(
                libc::SYS_name_to_handle_at,
                libc::AT_FDCWD,
                c"/usr".as_ptr(),
                handle.as_mut_ptr(),
                &raw mut mount,
                0,
            )
        })
    }),
    ("a program in the kernel", |_| {
        // An array map of one entry.
        let mut attributes = [0u32; 32];
        attributes[..4].copy_from_slice(&[2, 4, 4, 1]);
        raw(unsafe { libc::syscall(libc::SYS_bpf, 0, attributes.as_mut_ptr(), 128) })
    }),
    ("the kernel's keys", |_| {
        const GET_KEYRING: i64 = 0;
        const SESSION: i64 = -3;
        raw(unsafe { libc::syscall(libc::SYS_keyctl, GET_KEYRING, SESSION, 1) })
    }),
    ("the kernel's log", |_| raw(unsafe { libc::syscall(libc::SYS_syslog, 10, 0, 0) })),
    ("page faults in user space", |_| raw(unsafe { libc::syscall(libc::SYS_userfaultfd, 1) })),
    ("becoming root", |_| call(unsafe { libc::setresuid(0, 0, 0) })),
    ("the other calling convention", |_| {
        if !cfg!(target_arch = "x86_64") {
            return Err(Error::from_raw_os_error(libc::ENOSYS));
        }
        // getpid by its x32 number; kernels without that ABI refuse it anyway.
        raw(unsafe { libc::syscall(0x4000_0000 | libc::SYS_getpid) })
    }),
    ("typing into a terminal", |_| {
        // The descriptor is not a terminal: the filter must refuse the request before the kernel
        // checks that.
        let byte = b'x';
        match call(unsafe { libc::ioctl(0, libc::TIOCSTI, &raw const byte) }) {
            Err(error) if error.raw_os_error() == Some(libc::EPERM) => Err(error),
            _ => Ok(()),
        }
    }),
    ("a set-user-id bit by chmod", |scene| {
        set_id(scene, |path| call(unsafe { libc::chmod(path.as_ptr(), 0o4755) }))
    }),
    ("a set-group-id bit by chmod", |scene| {
        set_id(scene, |path| call(unsafe { libc::chmod(path.as_ptr(), 0o2755) }))
    }),
    ("a set-user-id bit by fchmod", |scene| {
        set_id(scene, |path| {
            let fd = unsafe { libc::open(path.as_ptr(), libc::O_RDWR) };
            call(fd)?;
            call(unsafe { libc::fchmod(fd, 0o6755) })
        })
    }),
    ("a set-user-id bit by fchmodat", |scene| {
        set_id(scene, |path| {
            call(unsafe { libc::fchmodat(libc::AT_FDCWD, path.as_ptr(), 0o4755, 0) })
        })
    }),
    ("a set-user-id bit by fchmodat2", |scene| {
        set_id(scene, |path| {
            raw(unsafe { libc::syscall(452, libc::AT_FDCWD, path.as_ptr(), 0o4755, 0) })
        })
    }),
    ("a set-user-id bit by open", |scene| {
        set_id(scene, |path| made(libc::SYS_open, path, libc::O_CREAT | libc::O_WRONLY))
    }),
    ("a set-user-id bit by openat", |scene| {
        set_id(scene, |path| {
            let flags = libc::O_CREAT | libc::O_EXCL | libc::O_WRONLY;
            unsafe { libc::unlink(path.as_ptr()) };
            let fd = libc::AT_FDCWD;
            raw(unsafe { libc::syscall(libc::SYS_openat, fd, path.as_ptr(), flags, 0o4755) })
        })
    }),
    ("a set-user-id bit by a nameless file", |scene| {
        set_id(scene, |path| {
            let folder = CString::new(scene.inside.to_str().unwrap()).unwrap();
            let flags = libc::O_TMPFILE | libc::O_RDWR;
            let fd = unsafe { libc::open(folder.as_ptr(), flags, 0o4755) };
            call(fd)?;
            unsafe { libc::unlink(path.as_ptr()) };
            let name = CString::new(format!("/proc/self/fd/{fd}")).unwrap();
            let (at, follow) = (libc::AT_FDCWD, libc::AT_SYMLINK_FOLLOW);
            call(unsafe { libc::linkat(at, name.as_ptr(), at, path.as_ptr(), follow) })
        })
    }),
    ("a set-user-id bit by creat", |scene| {
        set_id(scene, |path| {
            unsafe { libc::unlink(path.as_ptr()) };
            raw(unsafe { libc::syscall(libc::SYS_creat, path.as_ptr(), 0o4755) })
        })
    }),
    ("a set-user-id bit by openat2", |scene| {
        set_id(scene, |path| {
            unsafe { libc::unlink(path.as_ptr()) };
            let flags = u64::try_from(libc::O_CREAT | libc::O_WRONLY).unwrap();
            let how: [u64; 3] = [flags, 0o4755, 0];
            let fd = libc::AT_FDCWD;
            raw(unsafe { libc::syscall(libc::SYS_openat2, fd, path.as_ptr(), &how, 24) })
        })
    }),
    ("a set-user-id bit by mknod", |scene| {
        set_id(scene, |path| {
            unsafe { libc::unlink(path.as_ptr()) };
            call(unsafe { libc::mknod(path.as_ptr(), libc::S_IFREG | 0o4755, 0) })
        })
    }),
    ("a set-user-id bit by mknodat", |scene| {
        set_id(scene, |path| {
            unsafe { libc::unlink(path.as_ptr()) };
            let mode = libc::S_IFREG | 0o4755;
            call(unsafe { libc::mknodat(libc::AT_FDCWD, path.as_ptr(), mode, 0) })
        })
    }),
    ("a set-user-id bit by mkdir", |scene| {
        set_id(scene, |path| {
            unsafe { libc::unlink(path.as_ptr()) };
            call(unsafe { libc::mkdir(path.as_ptr(), 0o6755) })
        })
    }),
    ("a set-user-id bit by mkdirat", |scene| {
        set_id(scene, |path| {
            unsafe { libc::unlink(path.as_ptr()) };
            call(unsafe { libc::mkdirat(libc::AT_FDCWD, path.as_ptr(), 0o6755) })
        })
    }),
    ("mount trees with attributes", |_| {
        let none: [u64; 4] = [0; 4];
        let (fd, path) = (libc::AT_FDCWD, c"/");
        raw(unsafe { libc::syscall(467, fd, path.as_ptr(), 0x8000, &none, 32) })
    }),
    ("signals to the outside", |_| {
        let parent = std::env::var("OUTSIDE").unwrap().parse().unwrap();
        call(unsafe { libc::kill(parent, 0) })
    }),
];

/// Attempts that also fail outside on some machines, because of their kernels' versions or
/// settings.
const MAY_FAIL_OUTSIDE: &[&str] = &[
    "io_uring",
    "the other calling convention",
    "page faults in user space",
    "the kernel's keys",
    // The kernel itself removes these bits from the modes of folders.
    "a set-user-id bit by mkdir",
    "a set-user-id bit by mkdirat",
    // Available since Linux 6.6 and 6.15.
    "a set-user-id bit by fchmodat2",
    "mount trees with attributes",
];

/// Inside, the first process of the namespace; outside, the test process.
fn first() -> PathBuf {
    let inside = std::process::id() < 100;
    let pid = if inside { "1".to_owned() } else { std::env::var("OUTSIDE").unwrap() };
    Path::new("/proc").join(pid)
}

/// Runs an attempt to set a set-user-id or set-group-id bit, and checks whether the bit is set.
fn set_id(scene: &Scene, attempt: impl Fn(&CString) -> Result<(), Error>) -> Result<(), Error> {
    let path = scene.inside.join("tool");
    std::fs::write(&path, "x")?;
    attempt(&CString::new(path.to_str().unwrap()).unwrap())?;
    if std::fs::metadata(&path)?.permissions().mode() & 0o6000 == 0 {
        return Err(Error::other("the bit is not there"));
    }
    Ok(())
}

/// Creates a file by a system call that takes path, flags and mode.
fn made(number: libc::c_long, path: &CString, flags: libc::c_int) -> Result<(), Error> {
    unsafe { libc::unlink(path.as_ptr()) };
    raw(unsafe { libc::syscall(number, path.as_ptr(), flags, 0o4755) })
}

fn read(path: &Path) -> Result<(), Error> {
    let mut text = String::new();
    std::fs::File::open(path)?.read_to_string(&mut text)?;
    Ok(())
}

fn call(answer: libc::c_int) -> Result<(), Error> {
    raw(answer.into())
}

fn raw(answer: libc::c_long) -> Result<(), Error> {
    if answer < 0 { Err(Error::last_os_error()) } else { Ok(()) }
}

/// As `raw`, for calls that fork: the child exits at once.
fn born(answer: libc::c_long) -> Result<(), Error> {
    if answer == 0 {
        unsafe { libc::_exit(0) };
    }
    raw(answer)
}

fn attack(name: &str, scene: &Scene) {
    let (_, attempt) = ATTACKS.iter().find(|(own, _)| *own == name).unwrap();
    match attempt(scene) {
        Ok(()) => println!("{ESCAPED}"),
        Err(error) => println!("stopped: {error}"),
    }
}

/// A fresh scene, with its listeners.
struct Stage {
    scene: Scene,
    _folder: tempfile::TempDir,
    _tcp: TcpListener,
    _unix: UnixListener,
    _abstract: UnixListener,
}

impl Stage {
    fn set() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let open = |path: &Path| {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o777)).unwrap();
        };
        open(folder.path());
        let (inside, outside) = (folder.path().join("inside"), folder.path().join("outside"));
        for path in [&inside, &outside, &inside.join("fixed")] {
            std::fs::create_dir(path).unwrap();
            open(path);
        }
        for path in [outside.join("secret"), inside.join("own"), inside.join("fixed/file")] {
            std::fs::write(&path, "s").unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o666)).unwrap();
        }
        std::os::unix::fs::symlink(outside.join("secret"), inside.join("link")).unwrap();
        let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
        let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
        let scene = Scene {
            inside,
            outside,
            tcp: tcp.local_addr().unwrap().port(),
            udp: udp.local_addr().unwrap().port(),
        };
        let unix = UnixListener::bind(scene.socket()).unwrap();
        open(&scene.socket());
        let name = SocketAddr::from_abstract_name(scene.name()).unwrap();
        let by_name = UnixListener::bind_addr(&name).unwrap();
        std::thread::spawn(move || {
            let _ = udp.set_read_timeout(Some(Duration::from_secs(20)));
            let mut byte = [0u8; 8];
            if let Ok((_, from)) = udp.recv_from(&mut byte) {
                let _ = udp.send_to(b"y", from);
            }
        });
        Self { scene, _folder: folder, _tcp: tcp, _unix: unix, _abstract: by_name }
    }
}

fn order(
    name: &str,
    scene: &Scene,
    sandbox_spec: Option<toolbooth_launcher::order::SandboxSpec>,
) -> Run {
    let this = std::env::current_exe().unwrap().display().to_string();
    let mut argv = vec![this, ATTACK.to_owned(), name.to_owned()];
    argv.extend(scene.words());
    let env = vec![("OUTSIDE".to_owned(), std::process::id().to_string())];
    Run { argv, env, cwd: "/".into(), sandbox_spec }
}

fn contained(who: Who, found: &[Found], name: &str, net: Net) -> Result<(), Failed> {
    let stage = Stage::set();
    let mut sandbox_spec = sandbox_spec(who, found);
    sandbox_spec.net = net.clone();
    sandbox_spec.binds.push(bind(std::env::current_exe().unwrap(), false));
    sandbox_spec.binds.push(bind(&stage.scene.inside, true));
    sandbox_spec.binds.push(bind(stage.scene.inside.join("fixed"), false));
    let ended = run(who, order(name, &stage.scene, Some(sandbox_spec)));
    if ended.report != Report::Exit(0) || !ended.stdout.starts_with("stopped") {
        return Err(format!("{who:?}, {net:?}: {ended:?}").into());
    }
    let untouched = std::fs::read_to_string(stage.scene.secret()).unwrap() == "s"
        && std::fs::read_dir(&stage.scene.outside).unwrap().count() == 1;
    if untouched { Ok(()) } else { Err("the outside was changed".into()) }
}

fn landlock_version(found: &[Found]) -> u32 {
    let landlock = found.iter().find(|one| one.primitive == Primitive::Landlock);
    let detail = landlock.and_then(|one| one.detail.as_deref());
    detail.and_then(|text| text.rsplit(' ').next()?.parse().ok()).unwrap_or_default()
}

fn ports(who: Who, found: &[Found]) -> Result<(), Failed> {
    let stage = Stage::set();
    for (ports, word) in [(vec![stage.scene.tcp], ESCAPED), (vec![443], "stopped")] {
        let mut sandbox_spec = sandbox_spec(who, found);
        sandbox_spec.primitives.retain(|one| *one != Primitive::NetworkNamespace);
        sandbox_spec.net = Net::Ports(ports.clone());
        sandbox_spec.binds.push(bind(std::env::current_exe()?, false));
        let ended = run(who, order("TCP", &stage.scene, Some(sandbox_spec)));
        if !ended.stdout.starts_with(word) {
            return Err(format!("{ports:?}: {ended:?}").into());
        }
    }
    Ok(())
}

fn outside(name: &str) -> Result<(), Failed> {
    let stage = Stage::set();
    let ended = run(Who::Root, order(name, &stage.scene, None));
    if ended.stdout.starts_with(ESCAPED) || MAY_FAIL_OUTSIDE.contains(&name) {
        return Ok(());
    }
    Err(format!("it fails without a sandbox too, so it shows nothing: {ended:?}").into())
}

fn main() {
    toolbooth_launcher::entry();
    let words: Vec<String> = std::env::args().collect();
    if words.get(1).is_some_and(|word| word == ATTACK) {
        attack(&words[2], &Scene::read(&words[3..]));
        let _ = std::io::stdout().flush();
        return;
    }
    let mut trials = Vec::new();
    let whos = whos();
    // With a network through the gateway, every other network access is refused.
    let relayed = [
        "TCP",
        "UDP",
        "a pathname UNIX socket",
        "an abstract UNIX socket",
        "a pair of raw sockets",
        "a netlink socket",
    ];
    let relay = || Net::Relayed(Relay { ports: vec![443], proxy: true });
    let closed = ATTACKS.iter().map(|(name, _)| (*name, Net::None));
    for (name, net) in closed.chain(relayed.map(|name| (name, relay()))) {
        for (who, found, skipped) in &whos {
            let (who, found) = (*who, Arc::clone(found));
            let title = format!("{who:?}, {net:?} is stopped: {name}");
            let net = net.clone();
            let trial = Trial::test(title, move || contained(who, &found, name, net));
            trials.push(trial.with_ignored_flag(*skipped));
        }
    }
    // Without its own network a program can reach only the named ports by TCP.
    for (who, found, lacking) in &whos {
        let (who, found) = (*who, Arc::clone(found));
        let old = landlock_version(&found) < 4;
        if old {
            skipped("ports of the machine's own network: Landlock is too old");
        }
        let title = format!("{who:?}, ports of the machine's own network");
        let trial = Trial::test(title, move || ports(who, &found));
        trials.push(trial.with_ignored_flag(*lacking || old));
    }
    if !is_root() {
        skipped("the attacks without a sandbox: not root");
    }
    for (name, _) in ATTACKS {
        let trial = Trial::test(format!("outside it works: {name}"), move || outside(name));
        trials.push(trial.with_ignored_flag(!is_root()));
    }
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}
