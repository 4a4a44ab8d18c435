//! Runs a command line once: limits its output, reports the reason of its end, and leaves no
//! process behind.
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

/// Bytes of standard error that are stored for operators.
pub const STDERR_BYTES_MAX: usize = 64 << 10;

/// Time that a program has to end after it was asked to, before it is killed.
pub(crate) const TERM_GRACE: Duration = Duration::from_millis(300);
/// A cancellation that is closer than this to the timeout counts as the timeout.
pub(crate) const CLOSE: Duration = Duration::from_millis(100);
/// Time limit for the launcher's report of the end, and then for the rest of the output.
const END_TIMEOUT: Duration = Duration::from_secs(10);

/// The result of a command.
#[derive(Debug, Clone)]
pub struct Finished {
    /// How it ended.
    pub ended: ProgramEnd,
    /// Whether the program may have run. `false` only if the launcher reports that it did not.
    pub may_have_run: bool,
    /// Its standard output.
    pub stdout: Vec<u8>,
    /// The beginning of its standard error.
    pub stderr: Vec<u8>,
    /// Explains the denials of its sandbox; `None` if it was not contained.
    pub(crate) explainer: Option<std::sync::Arc<DenialExplainer>>,
}

impl Finished {
    /// Returns the denials of the sandbox that an output shows, as sentences on separate lines.
    #[must_use]
    pub fn denials(&self, output: &str) -> String {
        self.explainer.as_ref().map(|explainer| explainer.sentences(output)).unwrap_or_default()
    }

    /// Records the denials of the sandbox. `answer` is output that the agent sees, and `stderr`
    /// output that it does not see.
    pub fn record_denials(&self, answer: &str, stderr: &str, execution_log: &ExecutionLog) {
        if let Some(explainer) = &self.explainer {
            explainer.explain(answer, stderr, execution_log);
        }
    }
}

/// The containment and the limits of one run of a command.
#[derive(Debug, Clone)]
pub struct Bounds<'a> {
    /// Its sandbox profile; `None` = it runs as the gateway does.
    pub profile: Option<&'a SandboxProfile>,
    /// Paths that it must read in addition to its profile.
    pub also: Vec<PathBuf>,
    /// Maximum bytes of output, if the profile has no limit.
    pub stdout_max: usize,
    /// Time limit, if the profile has no shorter one.
    pub timeout: Option<Duration>,
    /// Records denials and the applied sandbox.
    pub execution_log: ExecutionLog,
}

impl Bounds<'_> {
    /// Returns bounds without a sandbox, with this limit for output.
    #[must_use]
    pub fn free(stdout_max: usize) -> Self {
        let execution_log = ExecutionLog::default();
        Self { profile: None, also: Vec::new(), stdout_max, timeout: None, execution_log }
    }
}

/// Runs a command with `input` on its standard input. Returns when it ends, its output exceeds its
/// limit, its time is over, or the conversation is cancelled.
///
/// # Errors
/// [`StartError`]: the command was not run.
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
    let overflow = tokio::sync::Notify::new();
    let (stdin, stdout, stderr) =
        (running.stdin.take(), running.stdout.take(), running.stderr.take());
    let feed = async move {
        if let Some(mut stdin) = stdin {
            // A tool may end without reading its input, which is not an error.
            let _ = stdin.write_all(&input).await;
            let _ = stdin.shutdown().await;
        }
    };
    let work = async {
        let (out, err, ()) =
            tokio::join!(capped(stdout, stdout_max, &overflow), drained(stderr, stderr_max), feed);
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
                // A cancellation at the time limit is caused by the time limit.
                let late = timeout.is_some_and(|timeout| began.elapsed() + CLOSE >= timeout);
                cut = Some(if late { ProgramEnd::Timeout("its time") } else { ProgramEnd::Cancelled });
            }
            // The program is ended at once, even while its other streams are open.
            () = overflow.notified() => {
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
    // After the launcher's report no process holds the pipes.
    let read = match output {
        Some(done) => Some(done),
        None => tokio::time::timeout(END_TIMEOUT, work).await.ok(),
    };
    // Output that cannot be read completely does not count as a result.
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

/// Asks a program to end, and kills it if it does not.
async fn end(running: &Running) {
    running.ask_to_end();
    if tokio::time::timeout(TERM_GRACE, running.ended()).await.is_err() {
        running.kill();
    }
}

/// All of a stream, or its beginning if it is too long.
type Capped = Result<Vec<u8>, Vec<u8>>;

/// Returns all of a stream, or `Err` with its beginning if it is longer than `max`.
async fn capped(
    stream: Option<impl AsyncRead + Unpin>,
    max: usize,
    overflow: &tokio::sync::Notify,
) -> Capped {
    let mut out = Vec::new();
    let Some(stream) = stream else { return Ok(out) };
    let limit = u64::try_from(max).unwrap_or(u64::MAX).saturating_add(1);
    // A read error counts as the end of the stream.
    let _ = stream.take(limit).read_to_end(&mut out).await;
    if out.len() <= max {
        return Ok(out);
    }
    overflow.notify_one();
    Err(out)
}

/// Returns the beginning of a stream, which is read to its end.
pub(crate) async fn drained(stream: Option<impl AsyncRead + Unpin>, max: usize) -> Vec<u8> {
    let mut out = Vec::new();
    let Some(mut stream) = stream else { return out };
    let mut buffer = vec![0u8; 8 << 10];
    while let Ok(count @ 1..) = stream.read(&mut buffer).await {
        let space = max.saturating_sub(out.len()).min(count);
        out.extend_from_slice(buffer.get(..space).unwrap_or_default());
    }
    out
}
