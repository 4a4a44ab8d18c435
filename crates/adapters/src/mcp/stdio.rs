//! A transport over a child process, which hands results on as they came.
//!
//! The SDK's own drops what it does not know, answers of unknown form included. Here the answer
//! to a custom request stays a plain document; typed requests stay typed.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rmcp::RoleClient;
use rmcp::model::{
    ClientJsonRpcMessage, ClientRequest, CustomResult, ErrorCode, ErrorData, RequestId,
    ServerJsonRpcMessage, ServerResult,
};
use rmcp::service::{RxJsonRpcMessage, TxJsonRpcMessage};
use rmcp::transport::Transport;
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::unix::pipe;
use tokio::time::Instant;
use toolbooth_contracts::Witness;
use toolbooth_contracts::witness::AppliedSandbox;

use super::{Child, Sent, answer};
use crate::denials::DenialExplainer;
use crate::launcher::{Containment, Launcher, Running};
use crate::process::{Ended, STDERR_BYTES_MAX, StartError};

/// Longest message of a server, in bytes.
const LINE_BYTES_MAX: usize = 16 << 20;
/// How long a server may be silent on the modern era's first question, before the legacy one is
/// tried. Servers of that era may not answer what they do not know.
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);
/// How long a server may take to end once its input is closed, and then once it is asked to.
const END_GRACE: Duration = Duration::from_secs(2);
/// How long a child whose output has ended may take to end itself, so that it is told how.
const SETTLE_TIMEOUT: Duration = Duration::from_millis(300);
/// How long the launcher may take to end what is left.
const BURIAL_TIMEOUT: Duration = Duration::from_secs(10);

/// A message, with the result as a plain document where `raw` wants the id.
fn message(
    line: &[u8],
    raw: impl FnOnce(&RequestId) -> bool,
) -> serde_json::Result<RxJsonRpcMessage<RoleClient>> {
    if let Some((id, result)) = answer(line)?
        && raw(&id)
    {
        let result: Value = serde_json::from_str(result.get())?;
        let result = ServerResult::CustomResult(CustomResult(result));
        return Ok(ServerJsonRpcMessage::response(result, id));
    }
    serde_json::from_slice(line)
}

/// What a connection wants to know of its child.
#[derive(Debug, Default)]
pub(super) struct Shared {
    raw: Mutex<HashSet<RequestId>>,
    sent: Mutex<Sent>,
    stderr: Mutex<Stderr>,
    exit: Mutex<Option<Ended>>,
    /// How the child is contained.
    pub(super) sandbox: Option<AppliedSandbox>,
    /// Explains what its sandbox stopped; `None` where it is not contained.
    explainer: Option<Arc<DenialExplainer>>,
}

/// The newest output of a child's standard error.
#[derive(Debug, Default)]
struct Stderr {
    kept: Vec<u8>,
    /// Bytes that it has ever printed.
    printed: u64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    /// Whether a request may have been sent; forgets it.
    pub(super) fn was_sent(&self, id: &RequestId) -> bool {
        lock(&self.raw).remove(id);
        lock(&self.sent).remove(id)
    }

    /// What a rule of its sandbox stopped, by what the child printed.
    pub(super) fn denied(&self, words: &str) -> String {
        self.explainer.as_ref().map(|one| one.sentences(words)).unwrap_or_default()
    }

    /// Bytes that the child has printed on standard error so far.
    pub(super) fn printed(&self) -> u64 {
        lock(&self.stderr).printed
    }

    /// Notes what a rule of its sandbox stopped in a call that failed with `answer`, before which
    /// the child had printed so many bytes.
    pub(super) fn explain(&self, answer: &str, printed: u64, witness: &Witness) {
        if let Some(explainer) = &self.explainer {
            let stderr = {
                let stderr = lock(&self.stderr);
                let fresh = usize::try_from(stderr.printed.saturating_sub(printed));
                let from = stderr.kept.len().saturating_sub(fresh.unwrap_or(usize::MAX));
                crate::text::plain(stderr.kept.get(from..).unwrap_or_default())
            };
            explainer.explain(answer, &stderr, witness);
        }
    }

    /// What the child printed lately, and how it ended.
    pub(super) fn last_words(&self) -> String {
        let stderr = crate::text::plain(&std::mem::take(&mut lock(&self.stderr).kept));
        match &*lock(&self.exit) {
            Some(ended) => {
                format!("{stderr}\n{}: the process {}", ended.kind(), ended.described())
            }
            None => stderr,
        }
    }
}

pub(super) struct ChildTransport {
    child: Running,
    stdin: Arc<tokio::sync::Mutex<Option<pipe::Sender>>>,
    stdout: BufReader<pipe::Receiver>,
    buffer: Vec<u8>,
    exited: bool,
    probe: Option<(RequestId, Instant)>,
    dead_probe: Option<RequestId>,
    pub(super) shared: Arc<Shared>,
}

impl ChildTransport {
    pub(super) async fn spawn(
        child: &Child,
        launcher: &Launcher,
        refusals: &Witness,
    ) -> Result<Self, StartError> {
        let profile = child.profile.as_ref();
        let setup = child.line.clone().with_secrets_of(profile).setup(profile)?;
        let applied = Witness::default();
        let containment = Containment {
            profile,
            also: &[],
            witness: applied.clone(),
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
        tokio::spawn(keep_stderr(stderr, Arc::clone(&shared)));
        Ok(Self {
            child,
            stdin: Arc::new(tokio::sync::Mutex::new(Some(stdin))),
            stdout: BufReader::new(stdout),
            buffer: Vec::new(),
            exited: false,
            probe: None,
            dead_probe: None,
            shared,
        })
    }

    /// Reads on in the current line. Cancel-safe: what was read stays in the buffer.
    async fn read_on(&mut self) -> bool {
        let room = LINE_BYTES_MAX.saturating_sub(self.buffer.len()).saturating_add(1);
        let room = u64::try_from(room).unwrap_or(u64::MAX);
        let read = (&mut self.stdout).take(room).read_until(b'\n', &mut self.buffer).await;
        matches!(read, Ok(1..)) && self.buffer.len() <= LINE_BYTES_MAX
    }
}

async fn keep_stderr(mut stderr: pipe::Receiver, shared: Arc<Shared>) {
    let mut buffer = vec![0u8; 4 << 10];
    while let Ok(count @ 1..) = stderr.read(&mut buffer).await {
        let mut stderr = lock(&shared.stderr);
        stderr.printed = stderr.printed.saturating_add(u64::try_from(count).unwrap_or(u64::MAX));
        stderr.kept.extend_from_slice(buffer.get(..count).unwrap_or_default());
        // The newest output matters most.
        let surplus = stderr.kept.len().saturating_sub(STDERR_BYTES_MAX);
        stderr.kept.drain(..surplus);
    }
}

impl Transport<RoleClient> for ChildTransport {
    type Error = std::io::Error;

    fn send(
        &mut self,
        item: TxJsonRpcMessage<RoleClient>,
    ) -> impl Future<Output = Result<(), Self::Error>> + Send + 'static {
        let (stdin, shared) = (Arc::clone(&self.stdin), Arc::clone(&self.shared));
        let mut id = None;
        if let ClientJsonRpcMessage::Request(request) = &item {
            match request.request {
                ClientRequest::DiscoverRequest(_) => {
                    self.probe = Some((request.id.clone(), Instant::now() + PROBE_TIMEOUT));
                }
                ClientRequest::CustomRequest(_) => {
                    lock(&shared.raw).insert(request.id.clone());
                    id = Some(request.id.clone());
                }
                _ => (),
            }
        }
        async move {
            let mut line = serde_json::to_vec(&item)?;
            line.push(b'\n');
            let mut stdin = stdin.lock().await;
            let gone = || std::io::Error::from(std::io::ErrorKind::NotConnected);
            let stdin = stdin.as_mut().ok_or_else(gone)?;
            // From the first byte on it may be sent, and the child may answer, act and end before
            // this line goes on; only an error of the first write means that nothing was.
            if let Some(id) = &id {
                lock(&shared.sent).insert(id.clone());
            }
            let written = stdin.write(&line).await.inspect_err(|_| {
                if let Some(id) = &id {
                    lock(&shared.sent).remove(id);
                }
            })?;
            stdin.write_all(line.get(written..).unwrap_or_default()).await?;
            stdin.flush().await
        }
    }

    async fn receive(&mut self) -> Option<RxJsonRpcMessage<RoleClient>> {
        loop {
            let more = if self.exited {
                tokio::time::timeout(Duration::from_millis(200), self.read_on()).await == Ok(true)
            } else {
                let probe_at = self.probe.as_ref().map(|(_, at)| *at);
                // A grandchild may hold the pipe open, so the child itself is watched too.
                let room = LINE_BYTES_MAX.saturating_sub(self.buffer.len()).saturating_add(1);
                let mut limited = (&mut self.stdout).take(u64::try_from(room).unwrap_or(u64::MAX));
                tokio::select! {
                    biased;
                    read = limited.read_until(b'\n', &mut self.buffer) => {
                        matches!(read, Ok(1..)) && self.buffer.len() <= LINE_BYTES_MAX
                    }
                    () = tokio::time::sleep_until(probe_at.unwrap_or_else(Instant::now)), if probe_at.is_some() => {
                        let (id, _) = self.probe.take()?;
                        self.dead_probe = Some(id.clone());
                        let silent = ErrorData::new(ErrorCode::METHOD_NOT_FOUND, "no answer", None);
                        return Some(ServerJsonRpcMessage::error(silent, Some(id)));
                    }
                    ended = self.child.ended() => {
                        *lock(&self.shared.exit) = Some(ended);
                        self.exited = true;
                        continue;
                    }
                }
            };
            if !more {
                // The end of its output comes a moment before its own, which says why.
                let ended = tokio::time::timeout(SETTLE_TIMEOUT, self.child.ended());
                if !self.exited
                    && let Ok(ended) = ended.await
                {
                    *lock(&self.shared.exit) = Some(ended);
                }
                return None;
            }
            if !self.buffer.ends_with(b"\n") {
                continue;
            }
            let shared = Arc::clone(&self.shared);
            let parsed = message(self.buffer.trim_ascii(), |id| lock(&shared.raw).remove(id));
            let blank = self.buffer.trim_ascii().is_empty();
            self.buffer.clear();
            let parsed = match parsed {
                Ok(parsed) => parsed,
                Err(error) => {
                    if !blank {
                        tracing::warn!(%error, "a server sent a line that is no message");
                    }
                    continue;
                }
            };
            let answered = match &parsed {
                ServerJsonRpcMessage::Response(response) => Some(&response.id),
                ServerJsonRpcMessage::Error(error) => error.id.as_ref(),
                _ => None,
            };
            if answered.is_some() && answered == self.dead_probe.as_ref() {
                continue;
            }
            if answered.is_some() && answered == self.probe.as_ref().map(|(id, _)| id) {
                self.probe = None;
            }
            return Some(parsed);
        }
    }

    async fn close(&mut self) -> Result<(), Self::Error> {
        // A child that reads no more may hold up a message that is being written.
        if let Ok(mut stdin) = tokio::time::timeout(END_GRACE, self.stdin.lock()).await {
            stdin.take();
        }
        let mut ended = tokio::time::timeout(END_GRACE, self.child.ended()).await.is_ok();
        if !ended {
            self.child.ask_to_end();
            ended = tokio::time::timeout(END_GRACE, self.child.ended()).await.is_ok();
        }
        self.child.kill();
        if !ended {
            let _ = tokio::time::timeout(BURIAL_TIMEOUT, self.child.ended()).await;
        }
        Ok(())
    }
}
