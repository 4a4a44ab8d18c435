//! A command line from configuration, and running it once: capped output, limits that are told
//! apart, and nothing left behind.
//!
//! Path: 7. Doc: execution.md#processes

use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use toolbooth_contracts::coverage::Readiness;
use toolbooth_contracts::sandbox::SandboxProfile;
use toolbooth_contracts::secret::names_a_secret;
use toolbooth_contracts::{Conversation, Witness};
use toolbooth_launcher::wire::Unstarted;

use crate::denials::DenialExplainer;
use crate::launcher::{Containment, Launcher, Running, Setup};
use crate::secrets::{KnownSecrets, Setting};
use crate::toolchains;

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

/// How long a program that was asked to end may take, before it is ended.
pub(crate) const TERM_GRACE: Duration = Duration::from_millis(300);
/// How close to its time a call is cancelled because of it.
pub(crate) const CLOSE: Duration = Duration::from_millis(100);
/// How long the launcher may take to tell how a program ended that it has ended.
const END_TIMEOUT: Duration = Duration::from_secs(10);

/// A command to run.
#[derive(Debug, Clone, Default)]
pub struct CommandLine {
    /// Program and arguments.
    pub argv: Vec<Setting>,
    /// Variables in addition to those that are passed on.
    pub env: Vec<(String, Setting)>,
    /// Where it runs.
    pub cwd: Option<Setting>,
    /// How many of the first words an operator wrote: files that they name may be read.
    pub written: usize,
    /// A folder of the program's own for its home and caches, made where it is missing; for
    /// programs that are contained.
    pub own: Option<PathBuf>,
    /// The name of its sandbox profile in configuration, for messages.
    pub profile_name: Option<String>,
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
        self.secrets().conceal_text(text)
    }

    /// The secrets that the command was given.
    #[must_use]
    pub fn secrets(&self) -> KnownSecrets {
        Setting::known(self.argv.iter().chain(self.env.iter().map(|(_, value)| value)))
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

    /// Everything that the launcher is told of this command, contained as `profile` says.
    ///
    /// # Errors
    /// Where a setting cannot be resolved, or the program is not there.
    pub(crate) fn setup(&self, profile: Option<&SandboxProfile>) -> std::io::Result<Setup> {
        let exposed = |setting: &Setting| setting.expose().map_err(std::io::Error::other);
        let mut argv: Vec<String> = self.argv.iter().map(exposed).collect::<Result<_, _>>()?;
        let cwd = match &self.cwd {
            Some(cwd) => PathBuf::from(exposed(cwd)?),
            None => std::env::current_dir()?,
        };
        // By its own name, which is the one that is there inside too; a missing one is told later.
        let cwd = cwd.canonicalize().unwrap_or(cwd);
        let program = argv.first_mut().filter(|program| !program.is_empty());
        let program = program.ok_or_else(|| std::io::Error::other("it names no program"))?;
        let place = find(program, &cwd).ok_or_else(|| {
            let message = format!("the program `{program}` is not there");
            std::io::Error::new(std::io::ErrorKind::NotFound, message)
        })?;
        *program = place.display().to_string();
        let home = std::env::var_os("HOME").map(PathBuf::from);
        let own = self.own.as_deref().filter(|_| profile.is_some()).map(make_own).transpose()?;
        let mut env: Vec<(String, String)> = Vec::new();
        let mut set = |name: &str, value: String| {
            env.retain(|(known, _)| known != name);
            env.push((name.to_owned(), value));
        };
        match profile {
            None => {
                for name in PASSED_ON {
                    if let Ok(value) = std::env::var(name) {
                        set(name, value);
                    }
                }
            }
            Some(profile) => {
                set("PATH", std::env::var("PATH").unwrap_or_else(|_| "/usr/bin:/bin".to_owned()));
                // Where it has no home, the one writable folder stands for it.
                set("HOME", "/tmp".to_owned());
                set("TMPDIR", "/tmp".to_owned());
                if let Some(own) = &own {
                    set("HOME", own.display().to_string());
                    for (name, value) in toolchains::variables(home.as_deref(), &cwd) {
                        set(&name, value);
                    }
                }
                let own = profile.env.clone().unwrap_or_default();
                for name in &own.allow {
                    if let Ok(value) = std::env::var(name) {
                        set(name, value);
                    }
                }
                for (name, value) in &own.set {
                    set(name, value.clone());
                }
            }
        }
        for (name, value) in &self.env {
            set(name, exposed(value)?);
        }
        let depth = std::env::var(DEPTH).ok().and_then(|depth| depth.parse().ok()).unwrap_or(0u32);
        if depth >= DEPTH_MAX {
            let message = format!("more than {DEPTH_MAX} gateways stand beneath one another");
            return Err(std::io::Error::other(message));
        }
        set(DEPTH, (depth + 1).to_string());
        let words = self.argv.iter().map(exposed).take(self.written).skip(1);
        let words: Vec<String> = words.collect::<Result<_, _>>()?;
        let words = words.iter().filter(|word| !word.starts_with('-')).map(|word| cwd.join(word));
        let words = words.filter(|path| path.exists()).collect();
        let profile_name = self.profile_name.clone();
        Ok(Setup { argv, env, cwd, program: place, home, words, own, profile_name })
    }

    /// A path of a profile that has to be there and is not.
    #[cfg(feature = "command")]
    pub(crate) fn missing_path(&self, profile: &SandboxProfile) -> Option<String> {
        let cwd = match &self.cwd {
            Some(cwd) => PathBuf::from(cwd.expose().ok()?),
            None => std::env::current_dir().ok()?,
        };
        let fs = profile.fs.clone().unwrap_or_default();
        let paths = fs.read.into_iter().chain(fs.write.into_iter().map(|write| write.path));
        paths.filter(|path| !path.starts_with("~/")).find(|path| !cwd.join(path).exists())
    }

    /// The same command with the secrets that a profile gives to it.
    #[must_use]
    pub fn with_secrets_of(mut self, profile: Option<&SandboxProfile>) -> Self {
        let env = profile.and_then(|profile| profile.env.as_ref());
        for (name, secret) in env.iter().flat_map(|env| &env.secrets) {
            self.env.push((name.clone(), Setting::Secret(secret.secret_ref.clone())));
        }
        self
    }
}

/// Makes the folder that is a program's own, for this user alone; gives its real path.
fn make_own(folder: &Path) -> std::io::Result<PathBuf> {
    let mut builder = std::fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(folder).and_then(|()| folder.canonicalize()).map_err(|error| {
        let message = format!("its folder `{}` cannot be made: {error}", folder.display());
        std::io::Error::new(error.kind(), message)
    })
}

/// Where a program is: by its path, beneath `cwd` where that is relative, or in `PATH`.
pub(crate) fn find(program: &str, cwd: &Path) -> Option<PathBuf> {
    let path = Path::new(program);
    if path.components().count() > 1 || program.starts_with('.') {
        return Some(cwd.join(path)).filter(|path| path.is_file());
    }
    let folders = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&folders)
        .map(|folder| cwd.join(folder).join(program))
        .find(|path| is_executable(path))
}

#[cfg(unix)]
fn is_executable(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    path.metadata().is_ok_and(|data| data.is_file() && data.permissions().mode() & 0o111 != 0)
}

#[cfg(not(unix))]
fn is_executable(path: &Path) -> bool {
    path.is_file()
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
    /// Its wall time or its processor time was used up; it was ended.
    Timeout(&'static str),
    /// Its output was over the limit; it was ended.
    OutputLimit(String),
    /// What it wrote beneath a path was over the limit; it was ended.
    WriteLimit(String),
    /// The kernel ended it for its memory.
    MemoryLimit,
    /// The call was cancelled; it was ended.
    Cancelled,
    /// It was never started, and why.
    Unstarted(Unstarted),
    /// The launcher was killed; what became of the program is not known.
    Lost,
}

impl Ended {
    /// The word for it.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Exit(_) => "exit",
            Self::Signal(_) => "signal",
            Self::Timeout(_) => "timeout",
            Self::OutputLimit(_) | Self::WriteLimit(_) => "output-limit",
            Self::MemoryLimit => "memory-limit",
            Self::Cancelled => "cancelled",
            Self::Unstarted(_) | Self::Lost => "launcher-error",
        }
    }

    /// A predicate for a sentence about the process, such as `was ended by signal 9`.
    #[must_use]
    pub fn described(&self) -> String {
        match self {
            Self::Exit(code) => format!("ended with exit code {code}"),
            Self::Signal(signal) => format!("was ended by signal {signal}"),
            Self::Timeout(what) => format!("used up {what}"),
            Self::OutputLimit(what) | Self::WriteLimit(what) => format!("was ended: {what}"),
            Self::MemoryLimit => "used more memory than it may".to_owned(),
            Self::Cancelled => "was told to stop".to_owned(),
            Self::Unstarted(unstarted) => {
                format!("could not be started: {}: {}", unstarted.step, unstarted.cause)
            }
            Self::Lost => "was lost with its launcher".to_owned(),
        }
    }
}

/// What a command left.
#[derive(Debug, Clone)]
pub struct Finished {
    /// How it ended.
    pub ended: Ended,
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
    pub fn note_denials(&self, answer: &str, stderr: &str, witness: &Witness) {
        if let Some(explainer) = &self.explainer {
            explainer.explain(answer, stderr, witness);
        }
    }
}

/// Why a command was not run: nothing has happened.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The sandbox that is required is not there.
    #[error(transparent)]
    Unavailable(#[from] crate::sandbox::Unavailable),
    /// The command cannot be started.
    #[error("it cannot be started: {0}")]
    Io(#[from] std::io::Error),
    /// The launcher had no whole order.
    #[error("{0}")]
    Launcher(std::io::Error),
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
    pub witness: Witness,
}

impl Bounds<'_> {
    /// No sandbox, this much output.
    #[must_use]
    pub fn free(stdout_max: usize) -> Self {
        let witness = Witness::default();
        Self { profile: None, also: Vec::new(), stdout_max, timeout: None, witness }
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
        refusals: bounds.witness.clone(),
        witness: bounds.witness,
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
                cut = Some(if late { Ended::Timeout("its time") } else { Ended::Cancelled });
            }
            // It is ended at once, whatever else it does.
            () = flood.notified() => {
                cut = Some(Ended::OutputLimit(format!("it printed more than {stdout_max} bytes")));
            }
            () = &mut timer => cut = Some(Ended::Timeout("its time")),
            done = &mut work, if output.is_none() => {
                if done.0.is_err() {
                    cut = Some(Ended::OutputLimit(format!("it printed more than {stdout_max} bytes")));
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
        Err(_) => Ended::Lost,
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
        (_, ended @ Ended::Unstarted(_)) => ended,
        (Some(cut), _) => cut,
        (None, _) if over => Ended::OutputLimit(format!("it printed more than {stdout_max} bytes")),
        (None, _) if unread => Ended::Lost,
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
