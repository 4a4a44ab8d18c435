//! Tests how launched programs run and end: each limit has its own report, and no process is left.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, clippy::print_stderr)]

mod common;

use std::path::Path;
use std::time::Duration;

use libtest_mimic::{Arguments, Failed, Trial};
use toolbooth_launcher::order::*;
use toolbooth_launcher::wire::{Found, Report};

use common::*;

type Test = fn(Who) -> Result<(), Failed>;

const TESTS: &[(&str, Test)] = &[
    ("exit and signal are told", |who| {
        for contained in [true, false] {
            let own = || contained.then(|| sandbox_spec(who, &primitives(who)));
            expect(run(who, shell("exit 3", own())), &Report::Exit(3))?;
            expect(run(who, shell("kill -9 $$", own())), &Report::Signal(9))?;
            expect(run(who, shell("kill -TERM $$", own())), &Report::Signal(15))?;
        }
        Ok(())
    }),
    ("a program that is not there is told", |who| {
        for sandbox_spec in [None, Some(sandbox_spec(who, &primitives(who)))] {
            let mut order = shell("true", sandbox_spec);
            order.argv = vec!["/usr/bin/no-such-program".to_owned()];
            match run(who, order).report {
                Report::Unstarted(unstarted) if unstarted.program => (),
                other => return Err(format!("{other:?}").into()),
            }
        }
        Ok(())
    }),
    ("the environment is what was given", |who| {
        let mut order = shell("env | sort", Some(sandbox_spec(who, &primitives(who))));
        order.env.push(("ONLY".to_owned(), "this".to_owned()));
        let ended = run(who, order);
        let names: Vec<&str> =
            ended.stdout.lines().filter_map(|line| line.split('=').next()).collect();
        equal(&names, &vec!["ONLY", "PATH", "PWD"])
    }),
    ("memory is bounded, and told", |who| {
        let found = primitives(who);
        let mut own = sandbox_spec(who, &found);
        own.limits.memory_bytes = Some(32 << 20);
        // Several processes that exceed the limit only together.
        let script = "for i in 1 2 3 4 5 6; do (head -c 12000000 /dev/zero | tail | sleep 5) & done; wait; exit 1";
        expect(run(who, shell(script, Some(own.clone()))), &Report::MemoryLimit)?;
        // Without a cgroup the launcher sums the memory.
        own.primitives.retain(|one| *one != Primitive::MemoryCgroup);
        expect(run(who, shell(script, Some(own.clone()))), &Report::MemoryLimit)?;
        // Shared memory counts even if no process has it resident.
        let script = "exec python3 -c '
import mmap, time
m = mmap.mmap(-1, 200_000_000)
for at in range(0, 200_000_000, 4_000_000):
    m[at:at + 4_000_000] = b\"x\" * 4_000_000
    m.madvise(mmap.MADV_DONTNEED)
time.sleep(30)'";
        expect(run(who, shell(script, Some(own.clone()))), &Report::MemoryLimit)?;
        // Memory that belongs to no process cannot be summed, so the call is refused.
        let script = "exec python3 -c 'import os; os.memfd_create(\"x\")'";
        let ended = run(who, shell(script, Some(own.clone())));
        if !ended.stderr.contains("Function not implemented") {
            return Err(format!("{ended:?}").into());
        }
        let script = "exec python3 -c 'x = bytearray(200_000_000)'";
        let ended = run(who, shell(script, Some(own)));
        if ended.report == Report::Exit(0) {
            return Err("one process got more than it may".into());
        }
        Ok(())
    }),
    ("processor time of all is a rate, where a cgroup shares it out", |who| {
        let mut own = sandbox_spec(who, &primitives(who));
        own.limits.memory_bytes = Some(256 << 20);
        own.limits.cpu_percent = Some(20);
        if !shares_processors(who, &own) {
            // Without a cgroup for it the rate is not applied, and the program still runs.
            return expect(run(who, shell("exit 3", Some(own))), &Report::Exit(3));
        }
        // Two busy processes run for two seconds by the clock; the script prints their processor
        // time.
        let script = "import os, time
child = os.fork()
end = time.monotonic() + 2
while time.monotonic() < end: pass
if child:
    os.wait()
    times = os.times()
    print(times.user + times.system + times.children_user + times.children_system)";
        let ended = run(who, shell(&format!("exec python3 -c '{script}'"), Some(own)));
        let taken: f64 = ended.stdout.trim().parse().map_err(|_| format!("{ended:?}"))?;
        // Without a quota they use at least 2 s on any machine; a fifth of one processor is 0.4 s.
        if taken < 1.2 { Ok(()) } else { Err(format!("{taken} s of processor time").into()) }
    }),
    ("processor time is bounded, and told", |who| {
        let mut own = sandbox_spec(who, &primitives(who));
        own.limits.cpu_s = Some(1);
        expect(run(who, shell("while :; do :; done", Some(own))), &Report::CpuLimit)
    }),
    ("processes are bounded", |who| {
        let mut own = sandbox_spec(who, &primitives(who));
        own.limits.pids = Some(16);
        let script = "i=0; while [ $i -lt 40 ]; do sleep 5 & i=$((i+1)); done; echo grew";
        let ended = run(who, shell(script, Some(own)));
        if ended.stdout.contains("grew") {
            return Err(format!("{ended:?}").into());
        }
        Ok(())
    }),
    ("files are bounded", |who| {
        let mut own = sandbox_spec(who, &primitives(who));
        own.limits.file_bytes = Some(1 << 20);
        let ended = run(who, shell("head -c 2000000 /dev/zero > /tmp/x", Some(own)));
        equal(&(ended.report == Report::Exit(0)), &false)
    }),
    ("open descriptors are bounded", |who| {
        let mut own = sandbox_spec(who, &primitives(who));
        own.limits.open_files = Some(16);
        let script = "exec python3 -c 'x=[open(\"/dev/null\") for _ in range(40)]'";
        let ended = run(who, shell(script, Some(own)));
        equal(&ended.stderr.contains("Too many open files"), &true)
    }),
    ("the temporary folder is bounded", |who| {
        let mut own = sandbox_spec(who, &primitives(who));
        own.tmp_mb = 2;
        let ended = run(who, shell("head -c 4000000 /dev/zero > /tmp/x", Some(own)));
        equal(&ended.stderr.contains("No space left"), &true)
    }),
    ("a path with a bound is weighed", |who| {
        let folder = tempfile::tempdir().unwrap();
        open(folder.path());
        let mut own = sandbox_spec(who, &primitives(who));
        let path = folder.path().to_owned();
        own.binds.push(Bind {
            path: path.clone(),
            writable: true,
            optional: false,
            mapped: true,
            bytes_max: Some(6000),
            own: false,
        });
        let script = format!("head -c 500 /dev/zero > {0}/a; exit 0", path.display());
        expect(run(who, shell(&script, Some(own.clone()))), &Report::Exit(0))?;
        let script = format!("head -c 3000 /dev/zero > {0}/b; sleep 60", path.display());
        match run(who, shell(&script, Some(own))).report {
            Report::WriteLimit { bytes_max: 6000, .. } => Ok(()),
            other => Err(format!("{other:?}").into()),
        }
    }),
    ("files belong to the gateway's user", |who| {
        let folder = tempfile::tempdir().unwrap();
        open(folder.path());
        let mut own = sandbox_spec(who, &primitives(who));
        own.binds.push(bind(folder.path(), true));
        let file = folder.path().join("made");
        expect(
            run(who, shell(&format!("echo x > {}", file.display()), Some(own))),
            &Report::Exit(0),
        )?;
        use std::os::unix::fs::MetadataExt;
        let owner = std::fs::metadata(file).unwrap().uid();
        let expected = match who {
            Who::Ordinary if is_root() => ORDINARY,
            _ => rustix::process::geteuid().as_raw(),
        };
        equal(&owner, &expected)
    }),
    ("what is hidden is empty", |who| {
        let folder = tempfile::tempdir().unwrap();
        open(folder.path());
        std::fs::create_dir(folder.path().join("records")).unwrap();
        std::fs::write(folder.path().join("records/key"), "k").unwrap();
        std::fs::write(folder.path().join("settings"), "k").unwrap();
        let mut own = sandbox_spec(who, &primitives(who));
        own.binds.push(bind(folder.path(), false));
        own.hidden = vec![folder.path().join("records"), folder.path().join("settings")];
        let script = format!("cd {}; ls records; cat settings; ls", folder.path().display());
        equal(&run(who, shell(&script, Some(own))).stdout.as_str(), &"records\nsettings\n")
    }),
    ("no process outlives the program", |who| {
        for contained in [true, false] {
            let own = contained.then(|| sandbox_spec(who, &primitives(who)));
            let mark = mark();
            let script = format!("setsid sleep {mark} & sleep {mark} & (sleep {mark} &) ; exit 0");
            expect(run(who, shell(&script, own)), &Report::Exit(0))?;
            equal(&processes(&mark), &0)?;
        }
        Ok(())
    }),
    ("a cgroup is removed with its program, with and without namespaces", |who| {
        let found = primitives(who);
        let whole = sandbox_spec(who, &found);
        let Some(parent) = whole.cgroup.clone() else {
            // An ordinary user may have no cgroup.
            let missing =
                |one: &Found| one.primitive == Primitive::MemoryCgroup && one.missing.is_some();
            assert!(found.iter().any(missing), "no cgroup, though the machine has them: {found:?}");
            eprintln!("SKIPPED: {}, as {who:?}", Primitive::MemoryCgroup.as_str());
            return Ok(());
        };
        // If no cgroup is mounted, nothing is written.
        let mounted = || std::fs::read_dir("/sys/fs/cgroup").unwrap().count();
        let before = mounted();
        let mut bare = whole.clone();
        // Without a namespace of its own, the program shares the launcher's cgroup.
        bare.primitives.retain(|primitive| *primitive == Primitive::MemoryCgroup);
        for mut own in [whole, bare] {
            own.limits.memory_bytes = Some(256 << 20);
            let mut launched =
                launch(who, &Order::Run(Box::new(shell("sleep 0.2; exit 4", Some(own)))));
            launched.until_started();
            let launcher = launched.started.unwrap();
            let prefix = format!("toolbooth-{launcher}-");
            let folders = || -> Vec<String> {
                let entries = std::fs::read_dir(&parent).unwrap().flatten();
                let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
                names.filter(|name| name.starts_with(&prefix)).collect()
            };
            equal(&folders().len(), &1)?;
            expect(launched.end(), &Report::Exit(4))?;
            until("the launcher is gone", || !Path::new(&format!("/proc/{launcher}")).exists());
            equal(&folders(), &Vec::new())?;
            equal(&mounted(), &before)?;
        }
        Ok(())
    }),
    ("no process outlives the lifeline", |who| {
        for contained in [true, false] {
            let own = contained.then(|| sandbox_spec(who, &primitives(who)));
            let mark = mark();
            let script = format!("trap '' TERM; setsid sleep {mark} & sleep {mark}; sleep {mark}");
            let mut launched = launch(who, &Order::Run(Box::new(shell(&script, own))));
            launched.until_started();
            until("the program has children", || processes(&mark) >= 2);
            // Closes the socket, as the kernel does when the gateway is killed.
            let Launched { control, stdin, mut standing, .. } = launched;
            drop((control, stdin));
            until("they are gone", || processes(&mark) == 0);
            standing.kill().unwrap();
            standing.wait().unwrap();
        }
        Ok(())
    }),
    ("no process outlives a launcher that is killed", |who| {
        let mark = mark();
        let script = format!("setsid sleep {mark} & sleep {mark}");
        let own = sandbox_spec(who, &primitives(who));
        let mut launched = launch(who, &Order::Run(Box::new(shell(&script, Some(own)))));
        launched.until_started();
        until("the program has children", || processes(&mark) >= 2);
        let number = launched.started.and_then(rustix::process::Pid::from_raw).unwrap();
        rustix::process::kill_process(number, rustix::process::Signal::KILL).unwrap();
        until("they are gone", || processes(&mark) == 0);
        launched.standing.kill().unwrap();
        launched.standing.wait().unwrap();
        Ok(())
    }),
    ("a program that is asked ends in its own way", |who| {
        for contained in [true, false] {
            let own = contained.then(|| sandbox_spec(who, &primitives(who)));
            let script = "trap 'echo bye; exit 7' TERM; echo ready; while :; do sleep 0.05; done";
            let mut launched = launch(who, &Order::Run(Box::new(shell(script, own))));
            launched.until_started();
            // The trap is set before the script prints `ready`.
            let mut word = [0u8; 6];
            use std::io::Read;
            launched.stdout.read_exact(&mut word).unwrap();
            launched.ask_to_end();
            let ended = launched.end();
            equal(&ended.stdout.as_str(), &"bye\n")?;
            expect(ended, &Report::Exit(7))?;
        }
        Ok(())
    }),
    ("descriptors of the gateway stay outside", |who| {
        let own = sandbox_spec(who, &primitives(who));
        let file = std::fs::File::open("/dev/null").unwrap();
        rustix::io::fcntl_setfd(&file, rustix::io::FdFlags::empty()).unwrap();
        let ended = run(who, shell("ls /proc/self/fd | tr '\\n' ' '", Some(own)));
        // The last descriptor is the folder that `ls` reads.
        equal(&ended.stdout.as_str(), &"0 1 2 3 ")
    }),
    ("an order that is none ends the launcher", |who| {
        use std::os::fd::AsFd;
        for text in ["", "{}", "{\"run\":{}}", "\u{0}"] {
            let (mut standing, spawn_requests) = stand(who);
            let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
            let null = std::fs::File::open("/dev/null").unwrap();
            let fds = [theirs.as_fd(), null.as_fd(), null.as_fd()];
            toolbooth_launcher::wire::send(
                spawn_requests.as_fd(),
                toolbooth_launcher::wire::NEW,
                b"",
                &fds,
            )
            .unwrap();
            drop(theirs);
            let order = toolbooth_launcher::wire::ORDER;
            toolbooth_launcher::wire::send(ours.as_fd(), order, text.as_bytes(), &[]).unwrap();
            // The launcher sends READY and then closes the socket; the fork server continues.
            let mut said = Vec::new();
            let _ = std::io::Read::read_to_end(&mut &ours, &mut said);
            let ready = toolbooth_launcher::wire::frame(toolbooth_launcher::wire::READY, b"");
            equal(&said, &ready)?;
            equal(&standing.try_wait().unwrap(), &None)?;
            // A spawn request without its descriptors ends the fork server too.
            toolbooth_launcher::wire::send(
                spawn_requests.as_fd(),
                toolbooth_launcher::wire::NEW,
                b"",
                &[],
            )
            .unwrap();
            equal(&standing.wait().unwrap().code(), &Some(125))?;
        }
        Ok(())
    }),
];

fn open(path: &std::path::Path) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o777)).unwrap();
}

fn expect(ended: Ended, report: &Report) -> Result<(), Failed> {
    if ended.report == *report { Ok(()) } else { Err(format!("{ended:?}").into()) }
}

fn equal<T: PartialEq + std::fmt::Debug>(one: &T, other: &T) -> Result<(), Failed> {
    if one == other { Ok(()) } else { Err(format!("{one:?} is not {other:?}").into()) }
}

/// A number of seconds that no other process sleeps.
fn mark() -> String {
    static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    let next = NEXT.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
    format!("{}.{next}", 100_000 + std::process::id())
}

/// The number of processes that sleep for `mark`; zombies have no command line and do not count.
fn processes(mark: &str) -> usize {
    let of = |entry: std::fs::DirEntry| {
        let line = std::fs::read_to_string(entry.path().join("cmdline")).ok()?;
        (line.starts_with("sleep\0") && line.contains(mark)).then_some(())
    };
    std::fs::read_dir("/proc").unwrap().flatten().filter_map(of).count()
}

/// Whether this machine's cgroups can limit processor time for a launcher of `who`.
fn shares_processors(who: Who, own: &toolbooth_launcher::order::SandboxSpec) -> bool {
    let grouped = own.primitives.contains(&Primitive::MemoryCgroup);
    let first_version = Path::new("/sys/fs/cgroup/cpu/cpu.cfs_quota_us");
    let second = own.cgroup.as_ref().is_some_and(|folder| {
        let controllers = folder.join("cgroup.subtree_control");
        std::fs::read_to_string(controllers).is_ok_and(|text| text.contains("cpu"))
    });
    grouped && (second || (first_version.exists() && who == Who::Root && is_root()))
}

fn main() {
    toolbooth_launcher::entry();
    let mut trials = Vec::new();
    for (who, _, skipped) in whos() {
        for (name, test) in TESTS {
            let trial = Trial::test(format!("{who:?}: {name}"), move || test(who));
            trials.push(trial.with_ignored_flag(skipped));
        }
    }
    // A test that hangs must not block the others.
    std::thread::spawn(|| {
        std::thread::sleep(Duration::from_secs(300));
        eprintln!("the tests take too long");
        std::process::exit(1);
    });
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}
