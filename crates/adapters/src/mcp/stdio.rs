//! Runs a server as a child process: writes and reads its lines, and records its exit and last
//! output.
//!
//! Path: 7. Doc: execution.md#mcp-servers

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::unix::pipe;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use toolbooth_contracts::ExecutionLog;
use toolbooth_contracts::execution_log::AppliedSandbox;
use toolbooth_mcp::lines::{Line, Lines};

use super::Child;
use super::calls::Calls;
use super::envelope::{self, MESSAGE_BYTES_MAX};
use super::fault::Fault;
use super::message::{Message, Reply};
use super::notifications::{Incoming, Origin};
use super::scan::Scan;
use crate::denials::DenialExplainer;
use crate::error::StartError;
use crate::launcher::{Containment, Launcher, Running};
use crate::mutex::lock;
use crate::outcome::ProgramEnd;
use crate::process::STDERR_BYTES_MAX;

/// Maximum number of messages that wait for a child to read them.
const QUEUE_MAX: usize = 64;
/// Bytes per read.
const READ_BYTES: usize = 64 << 10;
/// Time for a server to end after its input is closed, and again after it is asked to end.
const END_GRACE: Duration = Duration::from_secs(2);
/// Time for a child to end after its output has ended, so that its exit status is known.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(6);
/// Time for each further line after a child has ended, and maximum number of such lines. A
/// grandchild may hold the pipe open.
const DRAIN_TIMEOUT: Duration = Duration::from_millis(200);
const DRAINS_MAX: u32 = 10_000;
/// Time for the launcher to end the remaining processes.
const KILL_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum time that closing waits for all of these steps.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(6);

/// The state of a child that its connection reads.
#[derive(Debug, Default)]
pub(super) struct Shared {
    stderr: Mutex<Stderr>,
    exit: Mutex<Option<ProgramEnd>>,
    /// The sandbox of the child.
    pub(super) sandbox: Option<AppliedSandbox>,
    /// Explains denials by its sandbox; `None` = it is not contained.
    explainer: Option<Arc<DenialExplainer>>,
}

/// The newest output of a child's standard error.
#[derive(Debug, Default)]
struct Stderr {
    kept: Vec<u8>,
    /// Number of bytes printed since the start.
    printed: u64,
}
impl Shared {
    /// Describes the sandbox denials that the child's output indicates.
    pub(super) fn denied(&self, words: &str) -> String {
        self.explainer.as_ref().map(|one| one.sentences(words)).unwrap_or_default()
    }

    /// Returns the number of bytes that the child has printed on standard error so far.
    pub(super) fn printed(&self) -> u64 {
        lock(&self.stderr).printed
    }

    /// Records the sandbox denials of a call that failed with `answer`. `printed` is the number of
    /// bytes that the child had printed before the call.
    pub(super) fn explain(&self, answer: &str, printed: u64, execution_log: &ExecutionLog) {
        if let Some(explainer) = &self.explainer {
            let stderr = {
                let stderr = lock(&self.stderr);
                let fresh = usize::try_from(stderr.printed.saturating_sub(printed));
                let from = stderr.kept.len().saturating_sub(fresh.unwrap_or(usize::MAX));
                crate::text::plain(stderr.kept.get(from..).unwrap_or_default())
            };
            explainer.explain(answer, &stderr, execution_log);
        }
    }

    /// Takes the recent output of the child, with its exit status if it has ended.
    pub(super) fn last_output(&self) -> String {
        let stderr = crate::text::plain(&std::mem::take(&mut lock(&self.stderr).kept));
        match &*lock(&self.exit) {
            Some(ended) => {
                format!("{stderr}\n{}: the process {}", ended.kind(), ended.described())
            }
            None => stderr,
        }
    }
}

async fn keep_stderr(mut stderr: pipe::Receiver, shared: Arc<Shared>) {
    let mut buffer = vec![0u8; 4 << 10];
    while let Ok(count @ 1..) = stderr.read(&mut buffer).await {
        let mut stderr = lock(&shared.stderr);
        stderr.printed = stderr.printed.saturating_add(u64::try_from(count).unwrap_or(u64::MAX));
        stderr.kept.extend_from_slice(buffer.get(..count).unwrap_or_default());
        // The newest output is the most useful.
        let surplus = stderr.kept.len().saturating_sub(STDERR_BYTES_MAX);
        stderr.kept.drain(..surplus);
    }
}

/// A message to the child.
struct Outgoing {
    bytes: Vec<u8>,
    /// The id of its request, and the flag that the request may have been sent.
    request: Option<(u64, Arc<AtomicBool>)>,
}

/// A running child. Dropping it ends the child.
#[derive(Debug)]
pub(super) struct Stdio {
    queue: mpsc::Sender<Outgoing>,
    end: watch::Sender<bool>,
    reading: Mutex<Option<JoinHandle<()>>>,
    pub(super) shared: Arc<Shared>,
}

impl Stdio {
    /// Starts a child and dispatches its messages to `incoming`.
    pub(super) async fn spawn(
        child: &Child,
        launcher: &Launcher,
        refusals: &ExecutionLog,
        incoming: Incoming,
    ) -> Result<Self, StartError> {
        let profile = child.profile.as_ref();
        let setup = child.line.clone().with_secrets_of(profile).setup(profile)?;
        let applied = ExecutionLog::default();
        let containment = Containment {
            profile,
            also: &[],
            execution_log: applied.clone(),
            refusals: refusals.clone(),
        };
        let mut child = launcher.start(setup, containment).await?;
        let (Some(stdin), Some(stdout), Some(stderr)) =
            (child.stdin.take(), child.stdout.take(), child.stderr.take())
        else {
            return Err(std::io::Error::other("the child has no pipes").into());
        };
        let explainer = child.explainer.clone();
        let sandbox = applied.take().sandbox;
        let shared = Arc::new(Shared { sandbox, explainer, ..Shared::default() });
        // The task ends with the child's standard error, which ends with the child.
        tokio::spawn(keep_stderr(stderr, Arc::clone(&shared)));
        let (queue, queued) = mpsc::channel(QUEUE_MAX);
        let (end, ending) = watch::channel(false);
        let writing = tokio::spawn(write(stdin, queued, Arc::clone(&incoming.calls)));
        let reader = Reader {
            lines: Lines::new(BufReader::with_capacity(READ_BYTES, stdout), MESSAGE_BYTES_MAX),
            child,
            replies: queue.downgrade(),
            incoming,
            shared: Arc::clone(&shared),
        };
        let reading = tokio::spawn(async move {
            let mut dropped = ending.clone();
            let (child, incoming) = reader.read_out(ending).await;
            incoming.calls.close("the server ended the connection");
            // Closing its input signals the child to end.
            writing.abort();
            let _ = writing.await;
            tokio::select! {
                () = reap(&child) => (),
                // A child that was abandoned before the handshake needs no orderly shutdown.
                () = async { while dropped.changed().await.is_ok() {} } => child.kill(),
            }
        });
        Ok(Self { queue, end, reading: Mutex::new(Some(reading)), shared })
    }

    /// Sends a request once the queue has space.
    pub(super) async fn send(
        &self,
        id: u64,
        bytes: Vec<u8>,
        sent: &Arc<AtomicBool>,
    ) -> Result<(), Fault> {
        let request = Some((id, Arc::clone(sent)));
        let queued = self.queue.send(Outgoing { bytes, request }).await;
        queued.map_err(|_| Fault::Lost("the server ended the connection".to_owned()))
    }

    /// Sends a notification once the queue has space.
    pub(super) async fn notify(&self, bytes: Vec<u8>) {
        let _ = self.queue.send(Outgoing { bytes, request: None }).await;
    }

    /// Ends the child and waits until it has ended.
    pub(super) async fn close(&self) {
        self.end.send_replace(true);
        let reading = lock(&self.reading).take();
        if let Some(reading) = reading {
            let _ = tokio::time::timeout(CLOSE_TIMEOUT, reading).await;
        }
    }
}

/// Writes messages in order until the child stops reading.
async fn write(mut stdin: pipe::Sender, mut queue: mpsc::Receiver<Outgoing>, calls: Arc<Calls>) {
    while let Some(Outgoing { mut bytes, request }) = queue.recv().await {
        if let Some((id, sent)) = &request {
            // A request without a waiting caller is not sent.
            if !calls.waits(*id) {
                continue;
            }
            // From the first byte, the child may respond, act and end before this task continues.
            // Only an error of the first write proves that nothing was sent.
            sent.store(true, Ordering::Release);
        }
        bytes.push(b'\n');
        let written = match stdin.write(&bytes).await {
            Ok(written) => written,
            Err(error) => {
                if let Some((id, sent)) = request {
                    sent.store(false, Ordering::Release);
                    calls.answer(id, Err(Fault::Lost(error.to_string())));
                }
                return;
            }
        };
        let rest = bytes.get(written..).unwrap_or_default();
        if let Err(error) = stdin.write_all(rest).await {
            if let Some((id, _)) = request {
                calls.answer(id, Err(Fault::Lost(error.to_string())));
            }
            return;
        }
    }
}

/// Ends a child after its input was closed.
async fn reap(child: &Running) {
    let mut ended = tokio::time::timeout(END_GRACE, child.ended()).await.is_ok();
    if !ended {
        child.ask_to_end();
        ended = tokio::time::timeout(END_GRACE, child.ended()).await.is_ok();
    }
    child.kill();
    if !ended {
        let _ = tokio::time::timeout(KILL_TIMEOUT, child.ended()).await;
    }
}

/// The reader of a child's messages.
struct Reader {
    lines: Lines<BufReader<pipe::Receiver>, Scan>,
    child: Running,
    replies: mpsc::WeakSender<Outgoing>,
    incoming: Incoming,
    shared: Arc<Shared>,
}

impl Reader {
    /// Reads until the child's output ends or its connection must close.
    async fn read_out(mut self, mut ending: watch::Receiver<bool>) -> (Running, Incoming) {
        let mut exited = false;
        let mut drained = 0;
        loop {
            let line = if exited {
                drained += 1;
                if drained > DRAINS_MAX {
                    break;
                }
                match tokio::time::timeout(DRAIN_TIMEOUT, self.lines.next()).await {
                    Ok(line) => line,
                    Err(_) => break,
                }
            } else {
                // A grandchild may hold the pipe open, so the child itself is watched too.
                tokio::select! {
                    biased;
                    // Also resolves if the sender was dropped.
                    _ = ending.wait_for(|end| *end) => break,
                    line = self.lines.next() => line,
                    ended = self.child.ended() => {
                        *lock(&self.shared.exit) = Some(ended);
                        exited = true;
                        continue;
                    }
                }
            };
            // A read error ends the output.
            match line.unwrap_or(Line::End(Vec::new())) {
                Line::Whole(line) => self.hear(envelope::read(line)),
                Line::TooLong(scan) => {
                    for message in scan.unreadable("it is too long") {
                        if let Message::Unreadable { id, .. } = message {
                            self.fail(id, Fault::TooLarge(MESSAGE_BYTES_MAX));
                        }
                    }
                }
                Line::End(rest) => {
                    let mut last = envelope::read(rest);
                    // An incomplete last line is ignored.
                    last.retain(|one| !matches!(one, Message::Unreadable { .. } | Message::Noise));
                    self.hear(last);
                    // The output ends shortly before the process, and only the exit status states
                    // the reason.
                    if !exited
                        && let Ok(ended) =
                            tokio::time::timeout(SETTLE_TIMEOUT, self.child.ended()).await
                    {
                        *lock(&self.shared.exit) = Some(ended);
                    }
                    break;
                }
            }
        }
        (self.child, self.incoming)
    }

    fn hear(&self, messages: Vec<Message>) {
        for message in messages {
            match message {
                Message::Answer { id, reply } => {
                    let Some(id) = id.or_else(|| self.incoming.calls.sole()) else { continue };
                    self.incoming.calls.answer(
                        id,
                        match reply {
                            Reply::Result(result) => Ok(result),
                            Reply::Refused(refusal) => Err(Fault::Refused(refusal)),
                        },
                    );
                }
                Message::Unreadable { id, reason } => self.fail(id, Fault::Unreadable(reason)),
                Message::Noise => tracing::warn!("a server sent a line that is no message"),
                other => {
                    let reply = self.incoming.take(other, Origin::Child);
                    // A child that sends requests but does not read gets no reply.
                    if let (Some(bytes), Some(replies)) = (reply, self.replies.upgrade()) {
                        let _ = replies.try_send(Outgoing { bytes, request: None });
                    }
                }
            }
        }
    }

    /// Fails the request of a response. A response without an id belongs to the only request in
    /// flight.
    fn fail(&self, id: Option<u64>, fault: Fault) {
        match id.or_else(|| self.incoming.calls.sole()) {
            Some(id) => self.incoming.calls.answer(id, Err(fault)),
            None => tracing::warn!(error = %fault, "a broken answer that names no request"),
        }
    }
}
