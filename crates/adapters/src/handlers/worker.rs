//! One worker: a process that runs the exports of one file and exchanges one JSON message per line.
//!
//! Path: 7. Doc: execution.md#handlers

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::unix::pipe;
use toolbooth_contracts::execution_log::AppliedSandbox;
use toolbooth_contracts::json::parse;
use toolbooth_contracts::sandbox::SandboxProfile;
use toolbooth_contracts::{Arguments, ExecutionLog};

use super::reply::{Reply, read};
use super::{HandlerFolder, Language};
use crate::command_line::CommandLine;
use crate::error::{HandlerError, StartError};
use crate::launcher::{Containment, Launcher, Running};
use crate::outcome::ProgramEnd;
use crate::process::STDERR_BYTES_MAX;
use crate::secrets::{KnownSecrets, Setting};
use crate::text::plain;

/// Maximum bytes of one reply.
const REPLY_BYTES_MAX: usize = 1 << 20;
/// Time for an interpreter to load a file.
const START_TIMEOUT: Duration = Duration::from_secs(30);
/// Time for a worker to end after it closed its output, so that its exit status is known.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(6);

/// Time for the end mark of a call's output to arrive after its reply.
const MARK_TIMEOUT: Duration = Duration::from_secs(1);

const NODE_SHIM: &str = include_str!("shim.mjs");
const PYTHON_SHIM: &str = include_str!("shim.py");

/// The reason why a worker did not reply.
#[derive(Debug)]
pub(super) struct Failure {
    /// Whether the call may have reached the handler.
    pub(super) sent: bool,
    /// Whether the reply exceeded the limit.
    pub(super) too_large: bool,
    /// The exit of the worker, if it ended.
    pub(super) ended: Option<ProgramEnd>,
    /// The message for operators.
    pub(super) internal: String,
}

#[derive(Debug)]
pub(super) struct Worker {
    running: Running,
    stdin: pipe::Sender,
    stdout: BufReader<pipe::Receiver>,
    stderr: Arc<Stderr>,
    next: u64,
    /// Its sandbox.
    pub(super) applied: Option<AppliedSandbox>,
    secrets: KnownSecrets,
}

/// The output of a worker, with a notification of new output.
#[derive(Debug, Default)]
struct Stderr {
    kept: Mutex<Vec<u8>>,
    more: tokio::sync::Notify,
}

impl Stderr {
    fn take(&self) -> Vec<u8> {
        std::mem::take(&mut *self.kept.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns everything up to the mark at the end of a call's output.
    async fn until(&self, mark: &[u8]) -> Vec<u8> {
        loop {
            let more = self.more.notified();
            {
                let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
                if let Some(at) = kept.windows(mark.len()).position(|window| window == mark) {
                    let rest = kept.split_off(at + mark.len());
                    let mut words = std::mem::replace(&mut *kept, rest);
                    words.truncate(at);
                    return words;
                }
            }
            more.await;
        }
    }
}

impl Worker {
    /// Starts a worker for `file` and returns it with the names of its exports.
    pub(super) async fn start(
        launcher: &Launcher,
        file: &Path,
        language: Language,
        folder: &HandlerFolder,
        profile: Option<&SandboxProfile>,
        refusals: &ExecutionLog,
    ) -> Result<(Self, Vec<String>), HandlerError> {
        let file = file.canonicalize().map_err(HandlerError::Unreadable)?;
        let path = file.display().to_string();
        let interpreter = folder.interpreter.as_deref();
        let argv: Vec<Setting> = match language {
            Language::Node => {
                let node = interpreter.unwrap_or("node");
                // `-` would read the program from standard input, which carries messages.
                [node, "--input-type=module", "--eval", NODE_SHIM, "--", "shim", &path]
                    .map(Setting::from)
                    .to_vec()
            }
            Language::Python => {
                let python = interpreter.unwrap_or("python3");
                [python, "-c", PYTHON_SHIM, &path].map(Setting::from).to_vec()
            }
        };
        let home = file.parent().unwrap_or(Path::new("/")).to_owned();
        let line = CommandLine {
            argv,
            env: folder.env.clone(),
            cwd: Some(home.display().to_string().into()),
            written: 0,
            own: None,
            profile_name: None,
        }
        .with_secrets_of(profile);
        let secrets = line.secrets();
        let unstarted = |error: StartError| HandlerError::Unstarted {
            program: line.program().to_string(),
            source: Box::new(error),
        };
        let mut setup = line.setup(profile).map_err(|error| unstarted(error.into()))?;
        let applied = ExecutionLog::default();
        // The sandbox makes the project of this file visible, as for a file argument of a program.
        setup.words.push(file.clone());
        let also = [home];
        let containment = Containment {
            profile,
            also: &also,
            execution_log: applied.clone(),
            refusals: refusals.clone(),
        };
        let mut running = launcher.start(setup, containment).await.map_err(unstarted)?;
        let (Some(stdin), Some(stdout), Some(stderr)) =
            (running.stdin.take(), running.stdout.take(), running.stderr.take())
        else {
            return Err(HandlerError::NoPipes);
        };
        let kept = Arc::new(Stderr::default());
        tokio::spawn(keep_stderr(stderr, Arc::clone(&kept)));
        let mut worker = Self {
            running,
            stdin,
            stdout: BufReader::new(stdout),
            stderr: kept,
            next: 0,
            applied: None,
            secrets,
        };
        let hello = tokio::time::timeout(START_TIMEOUT, worker.line()).await;
        let told = |worker: &Self| worker.take_stderr();
        let hello = match hello {
            Ok(Ok(line)) => line,
            Ok(Err(failure)) => {
                let words = worker.last_output().await.1;
                let why = worker.denied(&words);
                let output = format!("{words}{why}");
                return Err(HandlerError::Ended { reason: failure.internal, output });
            }
            Err(_) => return Err(HandlerError::Late { output: told(&worker) }),
        };
        let hello = parse(&hello).map_err(HandlerError::NoJson)?;
        if hello.get("ready") != Some(&Value::Bool(true)) {
            // The interpreter's error output arrives slightly later, on the other pipe.
            let _ = tokio::time::timeout(START_TIMEOUT, worker.running.ended()).await;
            let words = told(&worker);
            let why = worker.denied(&words);
            let output = format!("{words}{why}");
            return Err(HandlerError::Unloadable { path, output });
        }
        let exports = hello
            .get("handlers")
            .and_then(Value::as_array)
            .map(|names| names.iter().filter_map(Value::as_str).map(str::to_owned).collect())
            .unwrap_or_default();
        worker.applied = applied.take().sandbox;
        Ok((worker, exports))
    }

    /// Describes the sandbox denials that its output indicates.
    fn denied(&self, words: &str) -> String {
        self.running.explainer.as_ref().map(|one| one.sentences(words)).unwrap_or_default()
    }

    /// Records the sandbox denials of a call; `answer` is the text that the agent sees.
    pub(super) fn explain(&self, answer: &str, words: &str, execution_log: &ExecutionLog) {
        if let Some(explainer) = &self.running.explainer {
            explainer.explain(answer, words, execution_log);
        }
    }

    pub(super) fn is_alive(&self) -> bool {
        !self.running.has_ended()
    }

    /// Ends the worker and waits until all its processes have ended.
    pub(super) async fn end(self) {
        self.running.kill();
        let _ = tokio::time::timeout(START_TIMEOUT, self.running.ended()).await;
    }

    /// Takes its output, with its secrets concealed.
    fn take_stderr(&self) -> String {
        self.secrets.conceal_text(&plain(&self.stderr.take()))
    }

    /// Returns the secrets given to it.
    pub(super) fn secrets(&self) -> &KnownSecrets {
        &self.secrets
    }

    /// Calls one handler; returns its reply and the output printed meanwhile. If this future was
    /// dropped, the worker must not be used again.
    pub(super) async fn ask(
        &mut self,
        handler: &str,
        arguments: &Arguments,
        context: &Value,
    ) -> Result<(Reply, String), Failure> {
        self.next += 1;
        let handler = Value::String(handler.to_owned());
        let message = format!(
            "{{\"id\":{},\"handler\":{handler},\"args\":{},\"context\":{context}}}\n",
            self.next,
            // One message is one line.
            arguments.on_one_line(),
        );
        let failed =
            |sent, internal: String| Failure { sent, too_large: false, ended: None, internal };
        let written = async {
            self.stdin.write_all(message.as_bytes()).await?;
            self.stdin.flush().await
        };
        // A partial line is not a message, but a failed write does not show how much was read.
        written
            .await
            .map_err(|error| failed(true, format!("the worker cannot be asked: {error}")))?;
        let line = match self.line().await {
            Ok(line) => line,
            Err(failure) => {
                let (ended, words) = self.last_output().await;
                return Err(Failure { internal: words, ended, ..failure });
            }
        };
        // If the answer has a value that is not accepted, such as half of a surrogate pair, the handler has returned
        // and the worker can be used again.
        let is_answer = [":", ": "]
            .iter()
            .any(|colon| line.starts_with(format!("{{\"id\"{colon}{},", self.next).as_bytes()));
        let (id, reply) = match read(line) {
            Ok(read) => read,
            Err(fault) if is_answer => (Some(self.next), Reply::Unserialisable(fault.to_string())),
            Err(fault) => {
                return Err(failed(true, format!("the worker said no JSON: {fault}")));
            }
        };
        if id != Some(self.next) {
            return Err(failed(true, "the worker answered another question".to_owned()));
        }
        let mark = format!("\0{}\0", self.next);
        let words = tokio::time::timeout(MARK_TIMEOUT, self.stderr.until(mark.as_bytes())).await;
        let stderr = match words {
            Ok(words) => plain(&words),
            // The output exceeded the limit, and the mark was discarded with it.
            Err(_) => self.take_stderr(),
        };
        Ok((reply, stderr))
    }

    /// Returns the exit and the last output of a worker that no longer replies.
    async fn last_output(&mut self) -> (Option<ProgramEnd>, String) {
        let ended = tokio::time::timeout(SETTLE_TIMEOUT, self.running.ended()).await;
        let ended = ended.ok();
        let how = match &ended {
            Some(ProgramEnd::Exit(code)) => format!("exit: the worker ended with code {code}"),
            Some(ProgramEnd::Signal(signal)) => {
                format!("signal: the worker was ended by signal {signal}")
            }
            Some(ProgramEnd::Unstarted(unstarted)) => {
                format!("launcher-error: {}: {}", unstarted.step, unstarted.cause)
            }
            Some(ended) => format!("{}: the worker was ended", ended.kind()),
            None => "the worker closed its output".to_owned(),
        };
        (ended, format!("{how}\nstderr: {}", self.take_stderr()))
    }

    async fn line(&mut self) -> Result<Vec<u8>, Failure> {
        let mut line = Vec::new();
        let limit = u64::try_from(REPLY_BYTES_MAX).unwrap_or(u64::MAX) + 1;
        let read = (&mut self.stdout).take(limit).read_until(b'\n', &mut line).await;
        let too_large = line.len() > REPLY_BYTES_MAX;
        match read {
            Ok(_) if line.ends_with(b"\n") => Ok(line),
            Ok(_) if too_large => Err(Failure {
                sent: true,
                too_large,
                ended: None,
                internal: format!("the answer has more than {REPLY_BYTES_MAX} bytes"),
            }),
            Ok(_) => Err(Failure {
                sent: true,
                too_large,
                ended: None,
                internal: "the worker ended without an answer".to_owned(),
            }),
            Err(error) => {
                Err(Failure { sent: true, too_large, ended: None, internal: error.to_string() })
            }
        }
    }
}

async fn keep_stderr(mut stderr: pipe::Receiver, kept: Arc<Stderr>) {
    let mut buffer = vec![0u8; 4 << 10];
    while let Ok(count @ 1..) = stderr.read(&mut buffer).await {
        {
            let mut kept = kept.kept.lock().unwrap_or_else(PoisonError::into_inner);
            kept.extend_from_slice(buffer.get(..count).unwrap_or_default());
            // The newest output is retained, including the mark.
            let surplus = kept.len().saturating_sub(STDERR_BYTES_MAX);
            kept.drain(..surplus);
        }
        kept.more.notify_one();
    }
}
