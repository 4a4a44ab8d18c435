//! The client half of the launcher's protocol: starts launchers, sends each one order, and follows
//! its program until it has ended.
//!
//! The launcher is the same program, started again. The socket to it is the lifeline. When the
//! client's process ends, the launcher ends everything below it. The client has no sandbox profiles
//! and no network rules. An [`Order`] specifies the program and its containment.
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
use tokio::process::Command;
use tokio::sync::watch;

use crate::error::StartError;
use crate::order::Order;
use crate::wire::{self, Found, Listener, Report};

/// Maximum number of launchers that are tried for one order. A launcher may end before it is ready.
const LAUNCHERS_MAX: usize = 3;
/// Maximum number of listeners of one program's network.
const LISTENERS_MAX: usize = 256;
/// Time limit for a launcher to become ready, and then to receive its order.
const ORDER_TIMEOUT: Duration = Duration::from_secs(5);
/// Time limit for a launcher to probe all primitives.
const PROBE_TIMEOUT: Duration = Duration::from_secs(20);
/// Time limit for a launcher to end everything below it, before it is killed.
const REAP_TIMEOUT: Duration = Duration::from_secs(15);

/// Starts programs below launchers.
#[derive(Debug)]
pub struct Client {
    program: PathBuf,
    fork_server: tokio::sync::Mutex<Option<ForkServer>>,
}

/// A launcher that forks one copy of itself for each order.
#[derive(Debug)]
struct ForkServer {
    requests: Socket,
    process: tokio::process::Child,
}

/// Serves the listening sockets of a program's own network.
pub trait ServeListener: Send + Sync + 'static {
    /// Serves one listening socket until the returned value is dropped.
    ///
    /// # Errors
    /// If the socket cannot be served. The program's connections fail then.
    fn serve(self: Arc<Self>, listener: Listener, socket: OwnedFd) -> io::Result<Box<dyn Send>>;
}

/// The standard streams of a program, as pipes.
#[derive(Debug)]
pub struct Streams {
    /// Its standard input; `None` if it has none.
    pub stdin: Option<pipe::Sender>,
    /// Its standard output.
    pub stdout: pipe::Receiver,
    /// Its standard error.
    pub stderr: pipe::Receiver,
}

impl Client {
    /// Returns a client that starts `program` as the launcher; its `main` calls [`crate::entry`]
    /// first.
    #[must_use]
    pub fn new(program: PathBuf) -> Self {
        Self { program, fork_server: tokio::sync::Mutex::default() }
    }

    /// Starts the program of an order, with a pipe as its standard input. `listeners` serves the
    /// sockets of its own network.
    ///
    /// # Errors
    /// [`StartError`]: nothing was run.
    pub async fn start(
        &self,
        order: &Order,
        listeners: Option<Arc<dyn ServeListener>>,
    ) -> Result<(Child, Streams), StartError> {
        let (read, write) = io::pipe()?;
        self.order(order, Some((read.into(), write.into())), listeners).await
    }

    /// Returns the sandbox primitives of this machine; cgroups are tried in the folders `cgroups`.
    ///
    /// # Errors
    /// If the launcher cannot be started or does not respond.
    pub async fn probe(&self, cgroups: Vec<PathBuf>) -> io::Result<Vec<Found>> {
        let (child, _streams) = self
            .order(&Order::Probe { cgroups }, None, None)
            .await
            .map_err(|error| io::Error::other(error.to_string()))?;
        match tokio::time::timeout(PROBE_TIMEOUT, child.report()).await {
            Ok(Some(Report::Primitives(found))) => Ok(found),
            _ => Err(io::Error::other(
                "the launcher did not answer; does this program's `main` call its entry?",
            )),
        }
    }

    /// Sends an order to a launcher of its own. After an error nothing was run.
    async fn order(
        &self,
        order: &Order,
        input: Option<(OwnedFd, OwnedFd)>,
        listeners: Option<Arc<dyn ServeListener>>,
    ) -> Result<(Child, Streams), StartError> {
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
        // Every step that can fail comes before the order is sent.
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
        let events = Events { socket: Arc::clone(&socket), state, cut: cutting, listeners };
        tokio::spawn(events.follow());
        Ok((Child { socket, states, cut }, Streams { stdin, stdout, stderr }))
    }

    /// Returns a launcher that waits for its order. It has run nothing, so one that ends before it
    /// is ready is replaced by another.
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
                    // The fork server may be stopped, and every later launcher would wait for it
                    // too.
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

/// Sends a whole frame, and descriptors with it. After an error the frame was not sent completely.
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

impl Client {
    /// Asks the fork server for a copy with these descriptors; starts the fork server if it is not
    /// running.
    async fn request(&self, fds: &[std::os::fd::BorrowedFd<'_>]) -> io::Result<()> {
        let mut fork_server = self.fork_server.lock().await;
        if let Some(known) = fork_server.as_mut()
            && matches!(known.process.try_wait(), Ok(None))
            && wire::send(known.requests.as_fd(), wire::NEW, b"", fds).is_ok()
        {
            return Ok(());
        }
        let (requests, theirs) = Socket::pair()?;
        requests.set_write_timeout(Some(ORDER_TIMEOUT))?;
        let mut command = Command::new(&self.program);
        command.arg(crate::WORD).env_clear().process_group(0);
        command.stdin(Stdio::from(OwnedFd::from(theirs)));
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let process = command.spawn()?;
        wire::send(requests.as_fd(), wire::NEW, b"", fds)?;
        *fork_server = Some(ForkServer { requests, process });
        Ok(())
    }

    /// Ends the fork server; its copies continue.
    async fn replace(&self) {
        if let Some(mut fork_server) = self.fork_server.lock().await.take() {
            let _ = fork_server.process.start_kill();
            let _ = fork_server.process.wait().await;
        }
    }
}

/// Returns the cgroup folders in which cgroups with a memory limit may be made. They are those of
/// this process, and the parent folder of a unified one.
#[must_use]
pub fn own_cgroups() -> Vec<PathBuf> {
    let mut folders = Vec::new();
    for (controllers, own) in crate::cgroup::own_folders() {
        if controllers.split(',').any(|name| name == "memory") {
            folders.push(own);
        } else if controllers.is_empty() {
            // A folder that contains processes cannot limit memory for the folders beneath it.
            let is_root = own == Path::new(crate::cgroup::ROOT);
            folders.extend(own.parent().filter(|_| !is_root).map(Path::to_owned));
            folders.push(own);
        }
    }
    folders.retain(|folder| folder.is_dir());
    folders
}

/// The state of a launched program.
#[derive(Debug, Clone, Default)]
struct State {
    started: bool,
    /// The launcher's process id.
    launcher: Option<i32>,
    report: Option<Report>,
    /// Whether the launcher has ended, with or without a report.
    over: bool,
}

/// A program below its launcher. Dropping it ends the program and every process that it started.
#[derive(Debug)]
pub struct Child {
    socket: Arc<UnixStream>,
    states: watch::Receiver<State>,
    cut: watch::Sender<bool>,
}

impl Child {
    /// Whether the program may have run. Only a report of the launcher can exclude it, because a
    /// launcher without a report had received its order.
    #[must_use]
    pub fn may_have_run(&self) -> bool {
        let state = self.states.borrow();
        match &state.report {
            Some(Report::Unstarted(_)) => false,
            Some(Report::Failed(_)) | None => true,
            Some(_) => state.started,
        }
    }

    /// Whether the program has ended.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.states.borrow().over
    }

    /// Waits until the program and every process that it started have ended. Returns the launcher's
    /// report; `None` if the launcher was lost. Cancel safe.
    pub async fn report(&self) -> Option<Report> {
        let mut states = self.states.clone();
        let over = states.wait_for(|state| state.over).await;
        over.ok().and_then(|state| state.report.clone())
    }

    /// Asks the program to end.
    pub fn ask_to_end(&self) {
        // The socket of a launcher that is ending may be full.
        let _ = self.socket.try_write(&wire::frame(wire::ASK_TO_END, b""));
    }

    /// Ends the program and every process that it started.
    pub fn kill(&self) {
        self.cut.send_replace(true);
        // Cuts the lifeline. The launcher's last frames can still be read.
        let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Write);
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Reads the frames of one launcher.
struct Events {
    socket: Arc<UnixStream>,
    state: watch::Sender<State>,
    /// Whether the launcher was requested to end.
    cut: watch::Receiver<bool>,
    listeners: Option<Arc<dyn ServeListener>>,
}

impl Events {
    async fn follow(self) {
        let mut serving = Vec::new();
        let mut cut = self.cut.clone();
        let states = self.state.subscribe();
        let reading = async {
            while let Ok((tag, text, fd)) = receive_frame(&self.socket).await {
                match tag {
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
                        if let (Some(fd), Some(listeners), Ok(listener)) =
                            (fd, &self.listeners, listener)
                            && serving.len() < LISTENERS_MAX
                        {
                            let served =
                                Arc::clone(listeners).serve(listener, fd).inspect_err(|error| {
                                    tracing::warn!(%error, "a listener of a program is not served");
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
        // Kills a launcher that was requested to end and does not.
        let patience = async {
            let _ = cut.wait_for(|cut| *cut).await;
            tokio::time::sleep(REAP_TIMEOUT).await;
        };
        tokio::select! {
            () = reading => (),
            () = patience => {
                let pid = states.borrow().launcher.and_then(rustix::process::Pid::from_raw);
                tracing::warn!(?pid, "a launcher does not end and is killed");
                if let Some(pid) = pid {
                    let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
                }
            }
        }
        // After its report the launcher ends, which closes its socket.
        let end = receive_frame(&self.socket);
        if tokio::time::timeout(REAP_TIMEOUT, end).await.is_err() {
            tracing::warn!("a launcher does not end");
        }
        drop(serving);
        self.state.send_modify(|state| state.over = true);
    }
}

/// Receives the next frame of a launcher.
async fn receive_frame(socket: &UnixStream) -> io::Result<(u8, Vec<u8>, Option<OwnedFd>)> {
    let mut fds = Vec::new();
    let mut head = [0u8; wire::HEAD_BYTES];
    fill(socket, &mut head, &mut fds).await?;
    let (tag, length) = wire::head(head);
    if length > wire::FRAME_BYTES_MAX {
        return Err(io::Error::other("a frame of the launcher is too long"));
    }
    let mut text = vec![0u8; length];
    fill(socket, &mut text, &mut fds).await?;
    Ok((tag, text, fds.pop()))
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
