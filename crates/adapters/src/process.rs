//! Runs a command once: arguments without a shell, capped output, and nothing left behind.
//!
//! The child leads a process group of its own, which is killed whole when the call is cancelled
//! or its output is too large.
//!
//! Path: 7. Doc: execution.md#processes

use std::process::Stdio;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, Command};
use toolbooth_contracts::Conversation;
use toolbooth_contracts::coverage::Readiness;
use toolbooth_contracts::secret::names_a_secret;

use crate::secrets::Setting;

/// Variables of the gateway's own environment that a child sees. Everything else, and with it
/// every secret, stays here unless configuration names it.
const PASSED_ON: [&str; 12] = [
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "LANG",
    "LC_ALL",
    "TZ",
    "TMPDIR",
    "TERM",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
];

/// Bytes of standard error that are kept for operators.
pub const STDERR_BYTES_MAX: usize = 64 << 10;

/// How long a group that was asked to end may take, before it is killed.
const TERM_GRACE: Duration = Duration::from_millis(300);

/// A command to run.
#[derive(Debug, Clone, Default)]
pub struct CommandLine {
    /// Program and arguments.
    pub argv: Vec<Setting>,
    /// Variables in addition to those that are passed on.
    pub env: Vec<(String, Setting)>,
    /// Where it runs.
    pub cwd: Option<Setting>,
}

/// The variable that tells a gateway beneath a gateway how deep it stands.
const DEPTH: &str = "TOOLBOOTH_DEPTH";
/// Gateways that may stand beneath one another: one that starts itself must end somewhere.
const DEPTH_MAX: u32 = 8;

impl CommandLine {
    /// The command line as people wrote it, without what it is filled in with.
    #[must_use]
    pub fn shown(&self) -> String {
        let mut words: Vec<String> = Vec::new();
        let mut hides = false;
        for word in self.argv.iter().map(Setting::shown) {
            let named = word.split_once('=').map(|(name, _)| name.to_owned());
            let names = |name: &str| names_a_secret(name.trim_start_matches('-'));
            words.push(match named {
                Some(name) if names(&name) => format!("{name}=…"),
                _ if hides && !word.starts_with('-') => "…".to_owned(),
                _ => word.clone(),
            });
            hides = word.starts_with('-') && names(&word);
        }
        words.join(" ")
    }

    /// `text` without the values of the secrets that the command was given.
    #[must_use]
    pub fn conceal(&self, text: &str) -> String {
        let settings = self.argv.iter().chain(self.env.iter().map(|(_, value)| value));
        Setting::conceal_all(settings, text)
    }

    /// The program as people wrote it.
    #[must_use]
    pub fn program(&self) -> String {
        self.argv.first().map(Setting::shown).unwrap_or_default()
    }

    /// Whether it could be started: its program is there, and so is what it is filled in with.
    #[must_use]
    pub fn readiness(&self) -> Readiness {
        let settings = self.argv.iter().chain(self.env.iter().map(|(_, value)| value));
        if let Some(error) = settings.filter_map(|setting| setting.resolve().err()).next() {
            return Readiness::NotConfigured(error.to_string());
        }
        match self.argv.first().map(Setting::expose) {
            Some(Ok(program)) if findable(&program) => Readiness::Ready,
            Some(Ok(program)) => {
                Readiness::NotConfigured(format!("the program `{program}` is not there"))
            }
            _ => Readiness::NotConfigured("the command line is empty".to_owned()),
        }
    }

    /// The command, ready to be spawned in a group of its own.
    ///
    /// # Errors
    /// Where a setting cannot be resolved.
    pub fn command(&self) -> std::io::Result<Command> {
        let exposed = |setting: &Setting| setting.expose().map_err(std::io::Error::other);
        let argv: Vec<String> = self.argv.iter().map(exposed).collect::<Result<_, _>>()?;
        let mut argv = argv.iter();
        let mut command = Command::new(argv.next().map_or("", String::as_str));
        command.args(argv).env_clear().kill_on_drop(true);
        for name in PASSED_ON {
            if let Some(value) = std::env::var_os(name) {
                command.env(name, value);
            }
        }
        for (name, value) in &self.env {
            command.env(name, exposed(value)?);
        }
        if let Some(cwd) = &self.cwd {
            command.current_dir(exposed(cwd)?);
        }
        let depth = std::env::var(DEPTH).ok().and_then(|depth| depth.parse().ok()).unwrap_or(0u32);
        if depth >= DEPTH_MAX {
            let message = format!("more than {DEPTH_MAX} gateways stand beneath one another");
            return Err(std::io::Error::other(message));
        }
        command.env(DEPTH, (depth + 1).to_string());
        #[cfg(unix)]
        command.process_group(0);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Ok(command)
    }
}

/// Whether a program can be found: by its path, or in `PATH`.
#[must_use]
pub fn findable(program: &str) -> bool {
    let path = std::path::Path::new(program);
    if path.components().count() > 1 {
        return path.is_file();
    }
    let folders = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&folders).any(|folder| folder.join(program).is_file())
}

/// How a command ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ended {
    /// By itself, with a code.
    Exit(i32),
    /// By a signal.
    Signal(i32),
    /// Its output was over the limit; it was killed.
    OutputLimit,
    /// The call was cancelled or out of time; it was killed.
    Cancelled,
}

/// What a command left.
#[derive(Debug, Clone)]
pub struct Finished {
    /// How it ended.
    pub ended: Ended,
    /// Its standard output.
    pub stdout: Vec<u8>,
    /// The beginning of its standard error.
    pub stderr: Vec<u8>,
}

/// A child whose group is killed when it is dropped.
#[derive(Debug)]
pub struct GroupGuard(Option<u32>);

impl GroupGuard {
    /// Guards the group that `child` leads.
    #[must_use]
    pub fn of(child: &Child) -> Self {
        Self(child.id())
    }

    /// Kills the whole group.
    pub fn kill(&mut self) {
        if let Some(pid) = self.0.take() {
            signal(pid, true);
        }
    }

    /// Asks the whole group to end.
    pub fn ask_to_end(&self) {
        if let Some(pid) = self.0 {
            signal(pid, false);
        }
    }
}

#[cfg(unix)]
fn signal(pid: u32, kill: bool) {
    use rustix::process::{Pid, Signal, kill_process_group};
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        // A group that is gone already is what is wanted.
        let _ = kill_process_group(pid, if kill { Signal::KILL } else { Signal::TERM });
    }
}

#[cfg(not(unix))]
fn signal(_: u32, _: bool) {}

impl Drop for GroupGuard {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Runs a command with `input` on its standard input until it ends, its output exceeds
/// `stdout_max` bytes, or the conversation is cancelled.
///
/// # Errors
/// Where it could not be started: nothing has happened then.
pub async fn run(
    line: &CommandLine,
    input: Vec<u8>,
    stdout_max: usize,
    conversation: &Conversation,
) -> std::io::Result<Finished> {
    let mut child = line.command()?.spawn()?;
    let mut guard = GroupGuard::of(&child);
    let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let feed = async move {
        if let Some(mut stdin) = stdin {
            // A tool may end without reading its input; that is its own affair.
            let _ = stdin.write_all(&input).await;
            let _ = stdin.shutdown().await;
        }
    };
    let work = async {
        let (out, err, ()) =
            tokio::join!(capped(stdout, stdout_max), drained(stderr, STDERR_BYTES_MAX), feed);
        (out, err)
    };
    tokio::pin!(work);
    let mut output: Option<(Capped, Vec<u8>)> = None;
    let status = loop {
        tokio::select! {
            biased;
            () = conversation.cancelled() => break None,
            done = &mut work, if output.is_none() => {
                let over = done.0.is_err();
                output = Some(done);
                if over { break None; }
            }
            status = child.wait() => {
                // What the group left running must not hold the pipes open for ever.
                if output.is_none() {
                    output = tokio::time::timeout(TERM_GRACE, &mut work).await.ok();
                }
                break Some(status?);
            }
        }
    };
    if status.is_none() {
        guard.ask_to_end();
        if tokio::time::timeout(TERM_GRACE, child.wait()).await.is_err() {
            guard.kill();
            let _ = child.wait().await;
        }
    }
    // Whatever outlived the leader of the group goes too.
    guard.kill();
    let (stdout, stderr) = match output {
        Some(done) => done,
        None => tokio::time::timeout(TERM_GRACE, work)
            .await
            .unwrap_or_else(|_| (Ok(Vec::new()), Vec::new())),
    };
    let (over, stdout) = match stdout {
        Ok(stdout) => (false, stdout),
        Err(stdout) => (true, stdout),
    };
    let ended = match status {
        _ if over => Ended::OutputLimit,
        None => Ended::Cancelled,
        Some(status) => ended(status),
    };
    Ok(Finished { ended, stdout, stderr })
}

#[cfg(unix)]
fn ended(status: std::process::ExitStatus) -> Ended {
    use std::os::unix::process::ExitStatusExt;
    match (status.code(), status.signal()) {
        (Some(code), _) => Ended::Exit(code),
        (None, signal) => Ended::Signal(signal.unwrap_or_default()),
    }
}

#[cfg(not(unix))]
fn ended(status: std::process::ExitStatus) -> Ended {
    Ended::Exit(status.code().unwrap_or(-1))
}

/// All of a stream, or its beginning where it is too long.
type Capped = Result<Vec<u8>, Vec<u8>>;

/// All of a stream, or `Err` with its beginning where it is longer than `max`.
async fn capped(stream: Option<impl AsyncRead + Unpin>, max: usize) -> Capped {
    let mut out = Vec::new();
    let Some(stream) = stream else { return Ok(out) };
    let limit = u64::try_from(max).unwrap_or(u64::MAX).saturating_add(1);
    // A stream that breaks ends there.
    let _ = stream.take(limit).read_to_end(&mut out).await;
    if out.len() > max { Err(out) } else { Ok(out) }
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

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> CommandLine {
        let argv = ["sh", "-c", script].map(Setting::from).to_vec();
        CommandLine { argv, ..CommandLine::default() }
    }

    #[tokio::test]
    async fn output_exit_and_signal_are_told_apart() {
        let (conversation, _cancel) = Conversation::detached();
        let done = run(&shell("cat; echo err >&2; exit 3"), b"in".to_vec(), 100, &conversation)
            .await
            .unwrap();
        assert_eq!(
            (done.ended, done.stdout, done.stderr),
            (Ended::Exit(3), b"in".to_vec(), b"err\n".to_vec())
        );
        let done = run(&shell("kill -9 $$"), Vec::new(), 100, &conversation).await.unwrap();
        assert_eq!(done.ended, Ended::Signal(9));
        let done = run(&shell("yes"), Vec::new(), 100, &conversation).await.unwrap();
        assert_eq!(done.ended, Ended::OutputLimit);
        let missing =
            CommandLine { argv: vec!["/no/such/program".into()], ..CommandLine::default() };
        assert!(run(&missing, Vec::new(), 1, &conversation).await.is_err());
    }

    #[tokio::test]
    async fn cancelling_kills_the_whole_group() {
        let folder = tempfile::tempdir().unwrap();
        let pids = folder.path().join("pids");
        let script = format!(
            "sleep 600 & echo $! > {0}.tmp; mv {0}.tmp {0}; trap '' TERM; wait",
            pids.display()
        );
        let (conversation, cancel) = Conversation::detached();
        let line = shell(&script);
        let running = run(&line, Vec::new(), 100, &conversation);
        let canceller = async {
            while !pids.exists() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            cancel.cancel();
        };
        let (done, ()) = tokio::join!(running, canceller);
        assert_eq!(done.unwrap().ended, Ended::Cancelled);
        let pid: i32 = std::fs::read_to_string(&pids).unwrap().trim().parse().unwrap();
        let state = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        assert!(state.is_empty() || state.contains(") Z"), "the grandchild still runs: {state}");
    }
}
