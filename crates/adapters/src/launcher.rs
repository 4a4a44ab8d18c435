//! The gateway's side of the launcher: every child of the gateway is started here.
//!
//! The launcher is the same program, started again. The socket to it is the lifeline: when the
//! gateway is gone, however it went, the launcher ends everything below it.
//!
//! Path: 7. Doc: execution.md#the-launcher

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream as Socket;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::Interest;
use tokio::net::UnixStream;
use tokio::net::unix::pipe;
use tokio::process::{Child, Command};
use tokio::sync::{OnceCell, watch};
use toolbooth_contracts::Witness;
use toolbooth_contracts::sandbox::{Enforce, SandboxProfile};
use toolbooth_launcher::order::{Net, Order, Primitive, Run};
use toolbooth_launcher::wire::{self, Found, Report};

use crate::denials::{DenialExplainer, Program};
use crate::egress::{AllowList, NetworkRules, Passage};
use crate::process::{Ended, StartError};
use crate::sandbox::{self, Applied, Place, Unavailable};

/// Launchers that are tried for one order: one that stood ready may have ended meanwhile.
const LAUNCHERS_MAX: usize = 3;
/// Listeners of one program's network.
const LISTENERS_MAX: usize = 256;
/// How long the launcher may take until it is ready, and then to receive its order.
const ORDER_TIMEOUT: Duration = Duration::from_secs(5);
/// How long it may take to try every primitive.
const PROBE_TIMEOUT: Duration = Duration::from_secs(20);
/// How long it may take to bury everything, before it is itself ended.
const BURIAL_TIMEOUT: Duration = Duration::from_secs(15);

/// Starts children.
#[derive(Debug, Clone)]
pub struct Launcher(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    program: PathBuf,
    cgroups: Vec<PathBuf>,
    hidden: Vec<PathBuf>,
    rules: NetworkRules,
    found: OnceCell<Vec<Found>>,
    standing: tokio::sync::Mutex<Option<Standing>>,
}

/// A launcher that stands ready: one that carries out an order is its copy.
#[derive(Debug)]
struct Standing {
    requests: Socket,
    process: Child,
}

/// A command with everything filled in.
#[derive(Debug)]
pub(crate) struct Setup {
    pub(crate) argv: Vec<String>,
    pub(crate) env: Vec<(String, String)>,
    pub(crate) cwd: PathBuf,
    /// The program, as it was found.
    pub(crate) program: PathBuf,
    pub(crate) home: Option<PathBuf>,
    /// Paths that an operator wrote on the command line.
    pub(crate) words: Vec<PathBuf>,
    /// Its home, where it has one of its own.
    pub(crate) own: Option<PathBuf>,
    /// The name of its profile in configuration.
    pub(crate) profile_name: Option<String>,
}

/// How a command is contained.
#[derive(Debug)]
pub(crate) struct Containment<'a> {
    pub(crate) profile: Option<&'a SandboxProfile>,
    pub(crate) also: &'a [PathBuf],
    /// Where the sandbox is noted.
    pub(crate) witness: Witness,
    /// Where refused ways out are noted, which may outlive the first call.
    pub(crate) refusals: Witness,
}

impl Launcher {
    /// This program itself, whose `main` calls `toolbooth_launcher::entry` first. `cgroup` is a
    /// folder in which cgroups may be made; else the gateway's own is tried.
    #[must_use]
    pub fn of_this_program(cgroup: Option<PathBuf>) -> Self {
        // Also where the file was replaced meanwhile.
        Self::of(PathBuf::from("/proc/self/exe"), cgroup)
    }

    /// Another program whose `main` calls `toolbooth_launcher::entry` first.
    #[must_use]
    pub fn of(program: PathBuf, cgroup: Option<PathBuf>) -> Self {
        let cgroups = cgroup.map_or_else(own_cgroups, |folder| vec![folder]);
        Self(Arc::new(Inner {
            program,
            cgroups,
            hidden: Vec::new(),
            rules: NetworkRules::default(),
            found: OnceCell::new(),
            standing: tokio::sync::Mutex::default(),
        }))
    }

    /// The same, showing these paths to no contained program: records, keys, configuration.
    #[must_use]
    pub fn hiding(self, hidden: Vec<PathBuf>) -> Self {
        self.with(|inner| inner.hidden = hidden)
    }

    /// The same, with these rules for the networks of contained programs.
    #[must_use]
    pub fn with_network(self, rules: NetworkRules) -> Self {
        self.with(|inner| inner.rules = rules)
    }

    fn with(self, change: impl FnOnce(&mut Inner)) -> Self {
        let Inner { program, cgroups, hidden, rules, .. } = &*self.0;
        let mut inner = Inner {
            program: program.clone(),
            cgroups: cgroups.clone(),
            hidden: hidden.clone(),
            rules: rules.clone(),
            found: OnceCell::new(),
            standing: tokio::sync::Mutex::default(),
        };
        change(&mut inner);
        Self(Arc::new(inner))
    }

    /// Refuses contained programs an address at which the gateway itself listens.
    pub fn refuse_door(&self, address: std::net::SocketAddr) {
        self.0.rules.refuse_door(address);
    }

    /// What this machine has; tried once.
    ///
    /// # Errors
    /// Where the launcher cannot be started.
    pub async fn primitives(&self) -> io::Result<&[Found]> {
        let probe = || async {
            let order = Order::Probe { cgroups: self.0.cgroups.clone() };
            let (running, _) = self
                .order(&order, None, None)
                .await
                .map_err(|error| io::Error::other(error.to_string()))?;
            let report = tokio::time::timeout(PROBE_TIMEOUT, running.report()).await;
            match report {
                Ok(Some(Report::Primitives(found))) => Ok(found),
                _ => Err(io::Error::other(
                    "the launcher did not answer; does this program's `main` call its entry?",
                )),
            }
        };
        self.0.found.get_or_try_init(probe).await.map(Vec::as_slice)
    }

    /// What a profile means for a program here.
    async fn apply(
        &self,
        profile: &SandboxProfile,
        setup: &Setup,
        also: &[PathBuf],
    ) -> Result<Applied, StartError> {
        let found = self.primitives().await?;
        let words = [std::slice::from_ref(&setup.program), &setup.words].concat();
        let place = Place {
            words: &words,
            cwd: &setup.cwd,
            home: setup.home.as_deref(),
            also,
            hidden: &self.0.hidden,
            own: setup.own.as_deref(),
        };
        Ok(sandbox::apply(profile, &place, found)?)
    }

    /// Whether a profile could be applied here.
    ///
    /// # Errors
    /// [`Unavailable`] where it is required and something is missing.
    pub async fn check(&self, profile: &SandboxProfile) -> Result<(), Unavailable> {
        if profile.enforce == Enforce::BestEffort {
            return Ok(());
        }
        let found =
            self.primitives().await.map_err(|error| Unavailable { what: error.to_string() })?;
        let cwd = Path::new("/");
        sandbox::apply(
            profile,
            &Place { words: &[], cwd, home: None, also: &[], hidden: &[], own: None },
            found,
        )
        .map(drop)
    }

    /// Starts a command.
    pub(crate) async fn start(
        &self,
        setup: Setup,
        containment: Containment<'_>,
    ) -> Result<Running, StartError> {
        let applied = match containment.profile {
            Some(profile) => Some(self.apply(profile, &setup, containment.also).await?),
            None => None,
        };
        let mut way_out = None;
        let (mut stdout_bytes, mut stderr_bytes) = (None, None);
        let explainer = containment.profile.zip(applied.as_ref()).map(|(profile, applied)| {
            let program = Program {
                argv: &setup.argv,
                cwd: &setup.cwd,
                home: setup.home.as_deref(),
                profile_name: setup.profile_name.as_deref(),
            };
            Arc::new(DenialExplainer::of(profile, &applied.enclosure, &program))
        });
        let Setup { argv, env, cwd, program, .. } = setup;
        let enclosure = applied.map(|applied| {
            containment.witness.contained(applied.sandbox);
            (stdout_bytes, stderr_bytes) = (applied.stdout_bytes, applied.stderr_bytes);
            applied.enclosure
        });
        if let (Some(profile), Some(enclosure)) = (containment.profile, &enclosure)
            && matches!(enclosure.net, Net::Relayed(_))
        {
            let hosts = profile.net.as_ref().map(|net| net.hosts.as_slice()).unwrap_or_default();
            let allowed = AllowList::parse(hosts).map_err(io::Error::other)?;
            let program = program.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let rules = self.0.rules.clone();
            let passage = Passage::new(allowed, rules, containment.refusals, program);
            way_out = Some(Arc::new(passage));
        }
        let order = Order::Run(Box::new(Run { argv, env, cwd, enclosure }));
        let (read, write) = io::pipe()?;
        let input = Some((read.into(), write.into()));
        let (mut running, stdin) = self.order(&order, input, way_out).await?;
        running.stdin = stdin;
        (running.stdout_bytes, running.stderr_bytes) = (stdout_bytes, stderr_bytes);
        running.explainer = explainer;
        Ok(running)
    }

    /// Gives an order to a launcher of its own. An error means that nothing was run.
    async fn order(
        &self,
        order: &Order,
        input: Option<(OwnedFd, OwnedFd)>,
        way_out: Option<Arc<Passage>>,
    ) -> Result<(Running, Option<pipe::Sender>), StartError> {
        let text = serde_json::to_vec(order).map_err(io::Error::from)?;
        if text.len() > wire::FRAME_BYTES_MAX {
            let message = "the command line and its environment are too long";
            return Err(io::Error::other(message).into());
        }
        let Ready { socket, stdout, stderr } = self.ready().await.map_err(StartError::Launcher)?;
        let (read, write) = match input {
            Some((read, write)) => (Some(read), Some(write)),
            None => (None, None),
        };
        // Whatever can fail is done before the order is sent.
        let stdin = write.map(pipe::Sender::from_owned_fd).transpose()?;
        let fds: Vec<_> = read.as_ref().map(AsFd::as_fd).into_iter().collect();
        let frame = wire::frame(wire::ORDER, &text);
        let sending = send_whole(&socket, &frame, &fds);
        // The launcher ignores an incomplete order.
        let sent = tokio::time::timeout(ORDER_TIMEOUT, sending).await;
        sent.map_err(io::Error::from).flatten().map_err(StartError::Launcher)?;
        drop(read);
        let socket = Arc::new(socket);
        let (state, states) = watch::channel(State::default());
        let (cut, cutting) = watch::channel(false);
        let listening = Listening { socket: Arc::clone(&socket), state, cut: cutting, way_out };
        tokio::spawn(listening.hear_out());
        let running = Running {
            socket,
            states,
            cut,
            stdin: None,
            stdout: Some(stdout),
            stderr: Some(stderr),
            stdout_bytes: None,
            stderr_bytes: None,
            explainer: None,
        };
        Ok((running, stdin))
    }

    /// A launcher that waits for its order. It has run nothing, so one that ends before it is ready
    /// is replaced by another.
    async fn ready(&self) -> io::Result<Ready> {
        let mut last = io::Error::other("no launcher was started");
        for _ in 0..LAUNCHERS_MAX {
            let (ours, theirs) = Socket::pair()?;
            let ((stdout, out), (stderr, err)) = (io::pipe()?, io::pipe()?);
            self.request(&[theirs.as_fd(), out.as_fd(), err.as_fd()]).await?;
            drop((theirs, out, err));
            ours.set_nonblocking(true)?;
            let socket = UnixStream::from_std(ours)?;
            match tokio::time::timeout(ORDER_TIMEOUT, receive_frame(&socket)).await {
                Ok(Ok((wire::READY, ..))) => {
                    let stdout = pipe::Receiver::from_owned_fd(stdout.into())?;
                    let stderr = pipe::Receiver::from_owned_fd(stderr.into())?;
                    return Ok(Ready { socket, stdout, stderr });
                }
                Ok(Ok(_)) => last = io::Error::other("the launcher is of another version"),
                Ok(Err(error)) => last = error,
                Err(_) => {
                    last = io::Error::other("the launcher was not ready in time");
                    // It may be stopped, and every later one would wait for it too.
                    self.replace().await;
                }
            }
        }
        Err(io::Error::other(format!("the launcher ended before it was ready: {last}")))
    }
}

/// A launcher that waits for its order, and the program's output.
struct Ready {
    socket: UnixStream,
    stdout: pipe::Receiver,
    stderr: pipe::Receiver,
}

/// Sends a whole frame, and descriptors with it; after an error it was not sent whole.
async fn send_whole(
    socket: &UnixStream,
    frame: &[u8],
    fds: &[std::os::fd::BorrowedFd<'_>],
) -> io::Result<()> {
    let (mut rest, mut fds) = (frame, fds);
    while !rest.is_empty() {
        socket.writable().await?;
        let sent = socket.try_io(Interest::WRITABLE, || wire::send_some(socket.as_fd(), rest, fds));
        match sent {
            Ok(count) => {
                rest = rest.get(count..).unwrap_or_default();
                fds = &[];
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => (),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => (),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

impl Launcher {
    /// Asks the standing launcher for a copy with these descriptors; starts it where there is none.
    async fn request(&self, fds: &[std::os::fd::BorrowedFd<'_>]) -> io::Result<()> {
        let mut standing = self.0.standing.lock().await;
        if let Some(known) = standing.as_mut()
            && matches!(known.process.try_wait(), Ok(None))
            && wire::send(known.requests.as_fd(), wire::NEW, b"", fds).is_ok()
        {
            return Ok(());
        }
        let (requests, theirs) = Socket::pair()?;
        requests.set_write_timeout(Some(ORDER_TIMEOUT))?;
        let mut command = Command::new(&self.0.program);
        command.arg(toolbooth_launcher::WORD).env_clear().process_group(0);
        command.stdin(Stdio::from(OwnedFd::from(theirs)));
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let process = command.spawn()?;
        wire::send(requests.as_fd(), wire::NEW, b"", fds)?;
        *standing = Some(Standing { requests, process });
        Ok(())
    }

    /// Ends the standing launcher; its copies go on.
    async fn replace(&self) {
        if let Some(mut standing) = self.0.standing.lock().await.take() {
            let _ = standing.process.start_kill();
            let _ = standing.process.wait().await;
        }
    }
}

/// The folders of the gateway's own cgroup, and the one above it, where memory is bounded.
fn own_cgroups() -> Vec<PathBuf> {
    let text = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let mut folders = Vec::new();
    for line in text.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { continue };
        let path = path.trim_start_matches('/');
        if controllers.split(',').any(|name| name == "memory") {
            folders.push(Path::new("/sys/fs/cgroup/memory").join(path));
        } else if controllers.is_empty() {
            let own = Path::new("/sys/fs/cgroup").join(path);
            // A folder with processes of its own cannot bound folders beneath it.
            folders.extend(own.parent().filter(|_| !path.is_empty()).map(Path::to_owned));
            folders.push(own);
        }
    }
    folders.retain(|folder| folder.is_dir());
    folders
}

/// What is known of a child.
#[derive(Debug, Clone, Default)]
struct State {
    started: bool,
    /// The launcher's number.
    launcher: Option<i32>,
    report: Option<Report>,
    /// The launcher is gone, with or without a report.
    over: bool,
}

/// A child below the launcher. Dropping it ends it, and everything that it started.
#[derive(Debug)]
pub struct Running {
    socket: Arc<UnixStream>,
    states: watch::Receiver<State>,
    cut: watch::Sender<bool>,
    /// Its standard input.
    pub stdin: Option<pipe::Sender>,
    /// Its standard output.
    pub stdout: Option<pipe::Receiver>,
    /// Its standard error.
    pub stderr: Option<pipe::Receiver>,
    /// Bytes of standard output that its profile allows.
    pub stdout_bytes: Option<u64>,
    /// Bytes of standard error that are kept.
    pub stderr_bytes: Option<u64>,
    /// Explains what its sandbox stopped; `None` where it is not contained.
    pub(crate) explainer: Option<Arc<DenialExplainer>>,
}

impl Running {
    /// Whether the program may have run: only a launcher that reports otherwise rules it out, since
    /// one that says nothing had its order.
    #[must_use]
    pub fn may_have_run(&self) -> bool {
        let state = self.states.borrow();
        match &state.report {
            Some(Report::Unstarted(_)) => false,
            Some(Report::Failed(_)) | None => true,
            Some(_) => state.started,
        }
    }

    /// Whether it has ended.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.states.borrow().over
    }

    async fn report(&self) -> Option<Report> {
        let mut states = self.states.clone();
        let over = states.wait_for(|state| state.over).await;
        over.ok().and_then(|state| state.report.clone())
    }

    /// How it ended, once it has: nothing of it is left then. May be dropped and asked again.
    pub async fn ended(&self) -> Ended {
        ended(self.report().await)
    }

    /// Asks the program to end.
    pub fn ask_to_end(&self) {
        // A socket that takes no five bytes belongs to a launcher that is ending.
        let _ = self.socket.try_write(&wire::frame(wire::ASK_TO_END, b""));
    }

    /// Ends it, and everything that it started.
    pub fn kill(&self) {
        self.cut.send_replace(true);
        // The lifeline is cut; what the launcher still tells can be read.
        let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Write);
    }
}

/// What a report means.
fn ended(report: Option<Report>) -> Ended {
    match report {
        Some(Report::Exit(code)) => Ended::Exit(code),
        Some(Report::Signal(signal)) => Ended::Signal(signal),
        Some(Report::MemoryLimit) => Ended::MemoryLimit,
        Some(Report::CpuLimit) => Ended::Timeout("its processor time"),
        Some(Report::WriteLimit { path, bytes_max }) => {
            Ended::WriteLimit(format!("more than {bytes_max} bytes are beneath `{path}`"))
        }
        Some(Report::Unstarted(unstarted)) => Ended::Unstarted(unstarted),
        // It had its order: silence does not say that nothing was run.
        Some(Report::Failed(_) | Report::Primitives(_)) | None => Ended::Lost,
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Hears what the launcher tells.
struct Listening {
    socket: Arc<UnixStream>,
    state: watch::Sender<State>,
    /// Whether it was told to end.
    cut: watch::Receiver<bool>,
    way_out: Option<Arc<Passage>>,
}

impl Listening {
    async fn hear_out(self) {
        let mut serving = Vec::new();
        let mut cut = self.cut.clone();
        let states = self.state.subscribe();
        let hearing = async {
            while let Ok((letter, text, fd)) = receive_frame(&self.socket).await {
                match letter {
                    wire::STARTED => {
                        let pid =
                            std::str::from_utf8(&text).ok().and_then(|text| text.parse().ok());
                        self.state.send_modify(|state| {
                            state.started = true;
                            state.launcher = pid;
                        });
                    }
                    wire::LISTENER => {
                        let listener = serde_json::from_slice(&text);
                        if let (Some(fd), Some(passage), Ok(listener)) =
                            (fd, &self.way_out, listener)
                            && serving.len() < LISTENERS_MAX
                        {
                            let served = passage.serve(listener, fd).inspect_err(|error| {
                                tracing::warn!(%error, "a way out cannot be opened");
                            });
                            serving.extend(served);
                        }
                    }
                    wire::REPORT => {
                        let report = serde_json::from_slice(&text).ok();
                        self.state.send_modify(|state| state.report = report);
                        break;
                    }
                    _ => (),
                }
            }
        };
        // Whoever was told to end and does not is ended itself.
        let patience = async {
            let _ = cut.wait_for(|cut| *cut).await;
            tokio::time::sleep(BURIAL_TIMEOUT).await;
        };
        tokio::select! {
            () = hearing => (),
            () = patience => {
                let pid = states.borrow().launcher.and_then(rustix::process::Pid::from_raw);
                tracing::warn!(?pid, "a launcher does not end and is killed");
                if let Some(pid) = pid {
                    let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
                }
            }
        }
        // After its report it has nothing left to do but to end, which the end of its socket tells.
        let end = receive_frame(&self.socket);
        if tokio::time::timeout(BURIAL_TIMEOUT, end).await.is_err() {
            tracing::warn!("a launcher does not end");
        }
        drop(serving);
        self.state.send_modify(|state| state.over = true);
    }
}

/// The next frame of a launcher.
async fn receive_frame(socket: &UnixStream) -> io::Result<(u8, Vec<u8>, Option<OwnedFd>)> {
    let mut fds = Vec::new();
    let mut head = [0u8; wire::HEAD_BYTES];
    fill(socket, &mut head, &mut fds).await?;
    let (letter, length) = wire::head(head);
    if length > wire::FRAME_BYTES_MAX {
        return Err(io::Error::other("the launcher tells too much"));
    }
    let mut text = vec![0u8; length];
    fill(socket, &mut text, &mut fds).await?;
    Ok((letter, text, fds.pop()))
}

async fn fill(socket: &UnixStream, buffer: &mut [u8], fds: &mut Vec<OwnedFd>) -> io::Result<()> {
    let mut filled = 0;
    while filled < buffer.len() {
        socket.readable().await?;
        let rest = buffer.get_mut(filled..).unwrap_or_default();
        let read = socket.try_io(Interest::READABLE, || wire::receive(socket.as_fd(), rest, fds));
        match read {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => (),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => (),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Those that are missing, for tables.
#[must_use]
pub fn missing(found: &[Found]) -> Vec<Primitive> {
    found.iter().filter(|one| one.missing.is_some()).map(|one| one.primitive).collect()
}
