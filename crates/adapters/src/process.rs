//! Running a command line once: capped output, a reason for each end, and no process left behind.
//!
//! Path: 7. Doc: execution.md#processes

use std::path::PathBuf;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use toolbooth_contracts::sandbox::SandboxProfile;
use toolbooth_contracts::{Conversation, ExecutionLog};

use crate::command_line::CommandLine;
use crate::denials::DenialExplainer;
use crate::error::StartError;
use crate::launcher::{Containment, Launcher, Running};
use crate::outcome::ProgramEnd;

/// Bytes of standard error that are kept for operators.
pub const STDERR_BYTES_MAX: usize = 64 << 10;

/// How long a program that was asked to end may take, before it is ended.
pub(crate) const TERM_GRACE: Duration = Duration::from_millis(300);
/// How close to its time a call is cancelled because of it.
pub(crate) const CLOSE: Duration = Duration::from_millis(100);
/// How long the launcher may take to tell how a program ended that it has ended.
const END_TIMEOUT: Duration = Duration::from_secs(10);

/// What a command left.
#[derive(Debug, Clone)]
pub struct Finished {
    /// How it ended.
    pub ended: ProgramEnd,
    /// Whether the program may have run; `false` only where the launcher says that it did not.
    pub may_have_run: bool,
    /// Its standard output.
    pub stdout: Vec<u8>,
    /// The beginning of its standard error.
    pub stderr: Vec<u8>,
    /// Explains what its sandbox stopped; `None` where it was not contained.
    pub(crate) explainer: Option<std::sync::Arc<DenialExplainer>>,
}

impl Finished {
    /// What a rule of its sandbox stopped, by an output: sentences, each on a line of its own.
    #[must_use]
    pub fn denials(&self, output: &str) -> String {
        self.explainer.as_ref().map(|explainer| explainer.sentences(output)).unwrap_or_default()
    }

    /// Notes what a rule of its sandbox stopped: `answer` is output that the agent sees, `stderr`
    /// output that it does not.
    pub fn note_denials(&self, answer: &str, stderr: &str, execution_log: &ExecutionLog) {
        if let Some(explainer) = &self.explainer {
            explainer.explain(answer, stderr, execution_log);
        }
    }
}

/// What holds for one run of a command.
#[derive(Debug, Clone)]
pub struct Bounds<'a> {
    /// How it is contained; `None` = it runs as the gateway does.
    pub profile: Option<&'a SandboxProfile>,
    /// Paths that it needs to read beside its profile.
    pub also: Vec<PathBuf>,
    /// Bytes of output, where the profile says nothing.
    pub stdout_max: usize,
    /// How long it may take, where the profile does not say less.
    pub timeout: Option<Duration>,
    /// Where refusals and the sandbox are noted.
    pub execution_log: ExecutionLog,
}

impl Bounds<'_> {
    /// No sandbox, this much output.
    #[must_use]
    pub fn free(stdout_max: usize) -> Self {
        let execution_log = ExecutionLog::default();
        Self { profile: None, also: Vec::new(), stdout_max, timeout: None, execution_log }
    }
}

/// Runs a command with `input` on its standard input until it ends, its output exceeds its bound,
/// its time is over, or the conversation is cancelled.
///
/// # Errors
/// [`StartError`]: nothing has happened then.
pub async fn run(
    launcher: &Launcher,
    line: &CommandLine,
    input: Vec<u8>,
    bounds: Bounds<'_>,
    conversation: &Conversation,
) -> Result<Finished, StartError> {
    let line = line.clone().with_secrets_of(bounds.profile);
    let setup = line.setup(bounds.profile)?;
    let containment = Containment {
        profile: bounds.profile,
        also: &bounds.also,
        refusals: bounds.execution_log.clone(),
        execution_log: bounds.execution_log,
    };
    let mut running = launcher.start(setup, containment).await?;
    let limits = bounds.profile.and_then(|profile| profile.limits.as_ref());
    let wall = limits.and_then(|limits| limits.wall_ms).map(Duration::from_millis);
    let timeout = [wall, bounds.timeout].into_iter().flatten().min();
    let stdout_max = running
        .stdout_bytes
        .map_or(bounds.stdout_max, |own| usize::try_from(own).unwrap_or(usize::MAX));
    let stderr_max = running
        .stderr_bytes
        .map_or(STDERR_BYTES_MAX, |own| usize::try_from(own).unwrap_or(usize::MAX));
    let began = tokio::time::Instant::now();
    let flood = tokio::sync::Notify::new();
    let (stdin, stdout, stderr) =
        (running.stdin.take(), running.stdout.take(), running.stderr.take());
    let feed = async move {
        if let Some(mut stdin) = stdin {
            // A tool may end without reading its input; that is its own affair.
            let _ = stdin.write_all(&input).await;
            let _ = stdin.shutdown().await;
        }
    };
    let work = async {
        let (out, err, ()) =
            tokio::join!(capped(stdout, stdout_max, &flood), drained(stderr, stderr_max), feed);
        (out, err)
    };
    tokio::pin!(work);
    let timer = async {
        match timeout {
            Some(timeout) => tokio::time::sleep(timeout).await,
            None => std::future::pending().await,
        }
    };
    tokio::pin!(timer);
    let mut output: Option<(Capped, Vec<u8>)> = None;
    let mut cut = None;
    loop {
        tokio::select! {
            biased;
            () = conversation.cancelled() => {
                // Whoever cancels at the tool's time does it because of that time.
                let late = timeout.is_some_and(|timeout| began.elapsed() + CLOSE >= timeout);
                cut = Some(if late { ProgramEnd::Timeout("its time") } else { ProgramEnd::Cancelled });
            }
            // It is ended at once, whatever else it does.
            () = flood.notified() => {
                cut = Some(ProgramEnd::OutputLimit(format!("it printed more than {stdout_max} bytes")));
            }
            () = &mut timer => cut = Some(ProgramEnd::Timeout("its time")),
            done = &mut work, if output.is_none() => {
                if done.0.is_err() {
                    cut = Some(ProgramEnd::OutputLimit(format!("it printed more than {stdout_max} bytes")));
                }
                output = Some(done);
                if cut.is_none() { continue; }
            }
            _ = running.ended() => (),
        }
        break;
    }
    if cut.is_some() {
        end(&running).await;
    }
    let ended = match tokio::time::timeout(END_TIMEOUT, running.ended()).await {
        Ok(ended) => ended,
        Err(_) => ProgramEnd::Lost,
    };
    // Nobody holds the pipes any more once the launcher has told.
    let read = match output {
        Some(done) => Some(done),
        None => tokio::time::timeout(END_TIMEOUT, work).await.ok(),
    };
    // An answer that is not whole is none.
    let unread = read.is_none();
    let (stdout, stderr) = read.unwrap_or_else(|| (Ok(Vec::new()), Vec::new()));
    let (over, stdout) = match stdout {
        Ok(stdout) => (false, stdout),
        Err(stdout) => (true, stdout),
    };
    let may_have_run = running.may_have_run();
    let ended = match (cut, ended) {
        (_, ended @ ProgramEnd::Unstarted(_)) => ended,
        (Some(cut), _) => cut,
        (None, _) if over => {
            ProgramEnd::OutputLimit(format!("it printed more than {stdout_max} bytes"))
        }
        (None, _) if unread => ProgramEnd::Lost,
        (None, ended) => ended,
    };
    let explainer = running.explainer.take();
    Ok(Finished { ended, may_have_run, stdout, stderr, explainer })
}

/// Asks a program to end, and ends it where it does not.
async fn end(running: &Running) {
    running.ask_to_end();
    if tokio::time::timeout(TERM_GRACE, running.ended()).await.is_err() {
        running.kill();
    }
}

/// All of a stream, or its beginning where it is too long.
type Capped = Result<Vec<u8>, Vec<u8>>;

/// All of a stream, or `Err` with its beginning where it is longer than `max`.
async fn capped(
    stream: Option<impl AsyncRead + Unpin>,
    max: usize,
    flood: &tokio::sync::Notify,
) -> Capped {
    let mut out = Vec::new();
    let Some(stream) = stream else { return Ok(out) };
    let limit = u64::try_from(max).unwrap_or(u64::MAX).saturating_add(1);
    // A stream that breaks ends there.
    let _ = stream.take(limit).read_to_end(&mut out).await;
    if out.len() <= max {
        return Ok(out);
    }
    flood.notify_one();
    Err(out)
}

/// The beginning of a stream, which is read to its end all the same.
pub(crate) async fn drained(stream: Option<impl AsyncRead + Unpin>, max: usize) -> Vec<u8> {
    let mut out = Vec::new();
    let Some(mut stream) = stream else { return out };
    let mut buffer = vec![0u8; 8 << 10];
    while let Ok(count @ 1..) = stream.read(&mut buffer).await {
        let room = max.saturating_sub(out.len()).min(count);
        out.extend_from_slice(buffer.get(..room).unwrap_or_default());
    }
    out
}
