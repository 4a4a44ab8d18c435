//! The first process of the namespaces: sets up the sandbox, starts the program and reaps
//! processes.
//!
//! When it ends, the kernel ends all other processes of the PID namespace.
//!
//! Path: 7. Doc: execution.md#how-it-is-enforced

use std::fs::File;
use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use rustix::process::{
    DumpableBehavior, Pid, Signal, WaitOptions, kill_process_group, set_dumpable_behavior,
    set_parent_process_death_signal, setsid, wait,
};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, clear_ambient_capability_set,
    remove_capability_from_bounding_set, set_capabilities, set_no_new_privs, set_thread_groups,
    set_thread_res_gid, set_thread_res_uid,
};
use serde::{Deserialize, Serialize};

use crate::order::{Net, Primitive, Run, SandboxSpec};
use crate::root::{self, Failure, Tree};
use crate::sys::{self, Waited};
use crate::wire::Unstarted;
use crate::{landlocked, limits, network, syscalls};

/// The user and group id of a program inside of its user namespace.
pub(crate) const INNER_ID: u32 = 1000;
/// The host name that the program sees.
const HOST_NAME: &[u8] = b"sandbox";
/// Exit code of a process that could not continue.
const BROKEN: i32 = 125;

/// A message of the first process to the launcher: one JSON document per line.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum InitEvent {
    /// The program may be running from now on.
    Started,
    /// The program could not be started.
    Unstarted(Unstarted),
    /// The program exited with this code.
    Exit(i32),
    /// This signal ended the program.
    Signal(i32),
}

/// Everything that a program is started with.
pub(crate) struct Start<'a> {
    pub(crate) run: &'a Run,
    pub(crate) stdin: OwnedFd,
    /// The socket to the client, for sending the listeners only.
    pub(crate) control: Option<OwnedFd>,
    /// Mounts that were already opened outside of the namespaces.
    pub(crate) trees: Option<Vec<Tree>>,
    /// The temporary folder of a program without a private root.
    pub(crate) scratch: Option<&'a Path>,
}

fn at<T, E: Into<io::Error>>(what: &str, done: Result<T, E>) -> Result<T, Failure> {
    done.map_err(|error| (what.to_owned(), error.into()))
}

pub(crate) fn tell(to: &mut PipeWriter, event: &InitEvent) {
    let mut line = serde_json::to_vec(event).unwrap_or_default();
    line.push(b'\n');
    // A launcher that no longer reads is about to end this process.
    let _ = to.write_all(&line);
}

/// Runs the first process; does not return.
pub(crate) fn live(start: Start<'_>, mut gate: PipeReader, mut told: PipeWriter) -> ! {
    let code = match prepare_and_run(start, &mut gate, &mut told) {
        Ok(()) => 0,
        Err((step, error)) => {
            let program = false;
            let unstarted = Unstarted { step, cause: error.to_string(), program };
            tell(&mut told, &InitEvent::Unstarted(unstarted));
            BROKEN
        }
    };
    // The kernel then ends all other processes of the namespace.
    std::process::exit(code);
}

fn prepare_and_run(
    start: Start<'_>,
    gate: &mut PipeReader,
    told: &mut PipeWriter,
) -> Result<(), Failure> {
    // When the launcher is killed, this process is killed too, and with it the whole namespace.
    at("tying to the launcher", set_parent_process_death_signal(Some(Signal::KILL)))?;
    // Before the root changes.
    let null = open_null();
    let mut go = [0u8];
    at("waiting for the launcher", gate.read_exact(&mut go))?;
    let Some(sandbox_spec) = &start.run.sandbox_spec else { return Ok(()) };
    let has = |primitive| sandbox_spec.primitives.contains(&primitive);
    // The program must not read the memory or the environment of this process by /proc.
    at("hiding the first process", set_dumpable_behavior(DumpableBehavior::NotDumpable))?;
    if has(Primitive::UtsNamespace) {
        at("naming the host", rustix::system::sethostname(HOST_NAME))?;
    }
    let mut env = start.run.env.clone();
    if has(Primitive::NetworkNamespace) {
        at("bringing loopback up", sys::loopback_up())?;
        if let Net::Relayed(relay) = &sandbox_spec.net {
            at("making every address local", network::make_all_local())?;
            let missing = || io::Error::other("there is no socket to hand listeners out by");
            let control = at("handing out listeners", start.control.ok_or_else(missing))?;
            let proxy = network::hand_out(control.as_fd(), relay);
            if let Some(port) = at("handing out listeners", proxy)? {
                env.extend(proxy_variables(port));
            }
        }
    }
    if has(Primitive::PrivateRoot) {
        let trees = match start.trees {
            Some(trees) => trees,
            None => root::trees(&sandbox_spec.binds, None)?,
        };
        root::enter(sandbox_spec, trees, &start.run.cwd)?;
    }
    let signals = at("blocking signals", Waited::block())?;
    let program = start_program(start.run, &env, &start.stdin, Some(signals), start.scratch, told)?;
    drop(start.stdin);
    release_streams(null);
    if let Some(program) = program {
        reap(signals, program, told);
    }
    Ok(())
}

/// Opens the file that [`release_streams`] puts in place of the streams.
pub(crate) fn open_null() -> Option<File> {
    File::options().write(true).open("/dev/null").ok()
}

/// Gives up the program's output streams. Where this process held them too, they would stay open when the program
/// closes them, and a server that has closed its output would never be found lost.
pub(crate) fn release_streams(null: Option<File>) {
    if let Some(null) = null {
        // An error leaves them open.
        let _ = rustix::stdio::dup2_stdout(&null);
        let _ = rustix::stdio::dup2_stderr(&null);
    }
}

/// Starts the program in a new process. `None` if it could not be started; [`InitEvent::Unstarted`] is
/// already sent then.
pub(crate) fn start_program(
    run: &Run,
    env: &[(String, String)],
    stdin: &OwnedFd,
    signals: Option<Waited>,
    scratch: Option<&Path>,
    told: &mut PipeWriter,
) -> Result<Option<Pid>, Failure> {
    // From here on the program may run. If it does not, `Unstarted` follows.
    tell(told, &InitEvent::Started);
    let (mut failed, failure) = at("making a pipe", io::pipe())?;
    let Some(program) = at("starting a process", sys::fork_into(0))? else {
        drop(failed);
        let unstarted = become_program(run, env, stdin, signals, scratch);
        let mut failure = failure;
        let _ = failure.write_all(&serde_json::to_vec(&unstarted).unwrap_or_default());
        std::process::exit(BROKEN);
    };
    drop(failure);
    // `exec` closes the pipe.
    let mut text = Vec::new();
    // A read error proves nothing: the program may run.
    if failed.read_to_end(&mut text).is_err() || text.is_empty() {
        return Ok(Some(program));
    }
    let unstarted = serde_json::from_slice(&text).unwrap_or_else(|_| Unstarted {
        step: "starting the program".to_owned(),
        cause: "it ended before it began".to_owned(),
        program: false,
    });
    tell(told, &InitEvent::Unstarted(unstarted));
    let _ = rustix::process::waitpid(Some(program), WaitOptions::empty());
    Ok(None)
}

/// Reaps processes until the program ends, and passes SIGTERM on to it.
fn reap(signals: Waited, program: Pid, told: &mut PipeWriter) {
    loop {
        let asked = signals.next() == Some(libc::SIGTERM);
        if asked {
            let _ = kill_process_group(program, Signal::TERM);
        }
        while let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG) {
            if pid == program {
                tell(told, &ended(status));
                return;
            }
        }
    }
}

pub(crate) fn ended(status: rustix::process::WaitStatus) -> InitEvent {
    match status.terminating_signal() {
        Some(signal) => InitEvent::Signal(signal),
        None => InitEvent::Exit(status.exit_status().unwrap_or(BROKEN)),
    }
}

/// The environment variables by which programs find the proxy.
fn proxy_variables(port: u16) -> Vec<(String, String)> {
    let url = format!("http://127.0.0.1:{port}");
    let mut variables: Vec<(String, String)> =
        ["HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"]
            .map(|name| (name.to_owned(), url.clone()))
            .to_vec();
    // Node reads the other variables only if this one is set.
    variables.push(("NODE_USE_ENV_PROXY".to_owned(), "1".to_owned()));
    variables
}

/// Executes the program; returns only if that fails.
fn become_program(
    run: &Run,
    env: &[(String, String)],
    stdin: &OwnedFd,
    signals: Option<Waited>,
    scratch: Option<&Path>,
) -> Unstarted {
    match settle_in(run, stdin, signals, scratch) {
        Ok(()) => (),
        Err((step, error)) => {
            // Without a sandbox the cause is the order, such as a working directory that does not
            // exist.
            let program = run.sandbox_spec.is_none();
            return Unstarted { step, cause: error.to_string(), program };
        }
    }
    let mut argv = run.argv.iter();
    let name = argv.next().map_or("", String::as_str);
    let mut command = Command::new(name);
    command.args(argv).env_clear().envs(env.iter().map(|(name, value)| (name, value)));
    let error = command.exec();
    Unstarted { step: format!("running `{name}`"), cause: error.to_string(), program: true }
}

fn settle_in(
    run: &Run,
    stdin: &OwnedFd,
    signals: Option<Waited>,
    scratch: Option<&Path>,
) -> Result<(), Failure> {
    at("beginning a session", setsid())?;
    at("taking the input", rustix::stdio::dup2_stdin(stdin))?;
    // All open descriptors close at `exec`, including the pipe that reports failures.
    at("closing descriptors", sys::close_at_exec_from(3))?;
    sys::reset_signals();
    if let Some(signals) = signals {
        at("unblocking signals", signals.unblock())?;
    }
    if let Err(error) = rustix::process::chdir(&run.cwd) {
        let shown = run.cwd.display();
        return Err((format!("entering the working directory `{shown}`"), error.into()));
    }
    let Some(sandbox_spec) = &run.sandbox_spec else {
        // The program ends when the launcher ends.
        return at("tying to the launcher", set_parent_process_death_signal(Some(Signal::KILL)));
    };
    contain(sandbox_spec, scratch)
}

/// Drops all rights that the program must not have. The order of the steps matters.
fn contain(sandbox_spec: &SandboxSpec, scratch: Option<&Path>) -> Result<(), Failure> {
    let has = |primitive| sandbox_spec.primitives.contains(&primitive);
    // Without a memory limit there is nothing to enforce in place of a cgroup.
    let grouped = sandbox_spec.limits.memory_bytes.is_none()
        || has(Primitive::MemoryCgroup) && sandbox_spec.cgroup.is_some();
    let alone = has(Primitive::UserNamespace);
    at("setting limits", limits::apply(&sandbox_spec.limits, alone, grouped))?;
    if sandbox_spec.primitives.contains(&Primitive::UserNamespace) {
        // This needs a capability, so it comes before the user changes. An empty bounding set keeps
        // the program from regaining capabilities.
        at("dropping capabilities", drop_bounding_set())?;
        if sandbox_spec.fresh_user {
            at("leaving groups", set_thread_groups(&[]))?;
            let gid = rustix::fs::Gid::from_raw(INNER_ID);
            at("changing the group", set_thread_res_gid(gid, gid, gid))?;
            let uid = rustix::fs::Uid::from_raw(INNER_ID);
            at("changing the user", set_thread_res_uid(uid, uid, uid))?;
        }
    }
    at("giving up privileges", set_no_new_privs(true))?;
    at("dropping capabilities", drop_capabilities())?;
    // A change of the user clears the parent-death signal.
    at("tying to the launcher", set_parent_process_death_signal(Some(Signal::KILL)))?;
    if sandbox_spec.primitives.contains(&Primitive::Landlock) {
        at("applying Landlock", landlocked::apply(sandbox_spec, scratch))?;
    }
    if sandbox_spec.primitives.contains(&Primitive::Seccomp) {
        at("applying seccomp", syscalls::apply(&sandbox_spec.net, grouped))?;
    }
    Ok(())
}

fn drop_bounding_set() -> io::Result<()> {
    for bit in 0..64 {
        let Some(capability) = CapabilitySet::from_bits(1 << bit) else { continue };
        match remove_capability_from_bounding_set(capability) {
            // The kernel does not know this capability.
            Ok(()) | Err(rustix::io::Errno::INVAL) => (),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

fn drop_capabilities() -> io::Result<()> {
    // Older kernels have no ambient set.
    let _ = clear_ambient_capability_set();
    let none = CapabilitySet::empty();
    set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none })?;
    let left = capabilities(None)?;
    if left.permitted.is_empty() { Ok(()) } else { Err(io::Error::other("some are left")) }
}
