//! The gateway's launcher: compiles the sandbox profile of a command and starts it below a launcher
//! process.
//!
//! Every child process of the gateway is started here.
//!
//! Path: 7. Doc: execution.md#the-launcher

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::net::unix::pipe;
use tokio::sync::OnceCell;
use toolbooth_contracts::ExecutionLog;
use toolbooth_contracts::sandbox::{Enforce, SandboxProfile};
use toolbooth_launcher::client::{Child, Client, ServeListener, own_cgroups};
use toolbooth_launcher::order::{Net, Order, Run};
use toolbooth_launcher::wire::Found;

use crate::denials::{DenialExplainer, Program};
use crate::egress::{AllowList, NetworkRules, ProgramNetwork};
use crate::error::{StartError, Unavailable};
use crate::outcome::ProgramEnd;
use crate::own_doors::OwnDoors;
use crate::sandbox::{self, Applied, ProgramLocation};
use crate::setup::Setup;

/// Starts child processes.
#[derive(Debug, Clone)]
pub struct Launcher(Arc<LauncherState>);

#[derive(Debug)]
struct LauncherState {
    program: PathBuf,
    cgroups: Vec<PathBuf>,
    hidden: Vec<PathBuf>,
    rules: NetworkRules,
    found: OnceCell<Vec<Found>>,
    client: Client,
}

/// The containment of a command.
#[derive(Debug)]
pub(crate) struct Containment<'a> {
    pub(crate) profile: Option<&'a SandboxProfile>,
    pub(crate) also: &'a [PathBuf],
    /// Records the applied sandbox.
    pub(crate) execution_log: ExecutionLog,
    /// Records refused connections; may outlive the first call.
    pub(crate) refusals: ExecutionLog,
}

impl Launcher {
    /// Returns a launcher that is this program, which calls `toolbooth_launcher::entry` first in
    /// `main`. `cgroup` is a folder in which cgroups can be made. Without it, the gateway's own
    /// cgroup is tried.
    #[must_use]
    pub fn of_this_program(cgroup: Option<PathBuf>) -> Self {
        // This path is valid even if the file was replaced in the meantime.
        Self::of(PathBuf::from("/proc/self/exe"), cgroup)
    }

    /// Returns a launcher that is another program, which calls `toolbooth_launcher::entry` first in
    /// `main`.
    #[must_use]
    pub fn of(program: PathBuf, cgroup: Option<PathBuf>) -> Self {
        let cgroups = cgroup.map_or_else(own_cgroups, |folder| vec![folder]);
        Self(Arc::new(LauncherState {
            client: Client::new(program.clone()),
            program,
            cgroups,
            hidden: Vec::new(),
            rules: NetworkRules::default(),
            found: OnceCell::new(),
        }))
    }

    /// Returns the same launcher, which hides these paths from contained programs: records, keys,
    /// configuration.
    #[must_use]
    pub fn hiding(self, hidden: Vec<PathBuf>) -> Self {
        self.with(|state| state.hidden = hidden)
    }

    /// Returns the same launcher with these network rules for contained programs.
    #[must_use]
    pub fn with_network(self, rules: NetworkRules) -> Self {
        self.with(|state| state.rules = rules)
    }

    fn with(self, change: impl FnOnce(&mut LauncherState)) -> Self {
        let LauncherState { program, cgroups, hidden, rules, .. } = &*self.0;
        let mut state = LauncherState {
            program: program.clone(),
            cgroups: cgroups.clone(),
            hidden: hidden.clone(),
            rules: rules.clone(),
            found: OnceCell::new(),
            client: Client::new(program.clone()),
        };
        change(&mut state);
        Self(Arc::new(state))
    }

    /// Returns the addresses at which the gateway listens. Contained programs cannot reach them.
    #[must_use]
    pub fn doors(&self) -> &OwnDoors {
        self.0.rules.doors()
    }

    /// Returns the sandbox primitives of this machine. They are probed once.
    ///
    /// # Errors
    /// If the launcher cannot be started.
    pub async fn primitives(&self) -> io::Result<&[Found]> {
        let probe = || self.0.client.probe(self.0.cgroups.clone());
        self.0.found.get_or_try_init(probe).await.map(Vec::as_slice)
    }

    /// Compiles a profile for a program on this machine.
    async fn apply(
        &self,
        profile: &SandboxProfile,
        setup: &Setup,
        also: &[PathBuf],
    ) -> Result<Applied, StartError> {
        let found = self.primitives().await?.to_vec();
        let words = [std::slice::from_ref(&setup.program), &setup.words].concat();
        let (cwd, home, own) = (setup.cwd.clone(), setup.home.clone(), setup.own.clone());
        let (profile, also, launcher) = (profile.clone(), also.to_vec(), Arc::clone(&self.0));
        // It looks through folders, for up to seconds on a slow disk.
        let applying = tokio::task::spawn_blocking(move || {
            let location = ProgramLocation {
                words: &words,
                cwd: &cwd,
                home: home.as_deref(),
                also: &also,
                hidden: &launcher.hidden,
                own: own.as_deref(),
            };
            sandbox::apply(&profile, &location, &found)
        });
        Ok(applying.await.map_err(io::Error::other)??)
    }

    /// Checks that a profile can be applied on this machine.
    ///
    /// # Errors
    /// [`Unavailable`] if the profile is required and a primitive is missing.
    pub async fn check(&self, profile: &SandboxProfile) -> Result<(), Unavailable> {
        if profile.enforce == Enforce::BestEffort {
            return Ok(());
        }
        let found =
            self.primitives().await.map_err(|error| Unavailable { what: error.to_string() })?;
        let cwd = Path::new("/");
        sandbox::apply(
            profile,
            &ProgramLocation { words: &[], cwd, home: None, also: &[], hidden: &[], own: None },
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
        let mut passage = None;
        let (mut stdout_bytes, mut stderr_bytes) = (None, None);
        let explainer = containment.profile.zip(applied.as_ref()).map(|(profile, applied)| {
            let program = Program {
                argv: &setup.argv,
                cwd: &setup.cwd,
                home: setup.home.as_deref(),
                profile_name: setup.profile_name.as_deref(),
            };
            Arc::new(DenialExplainer::of(profile, &applied.sandbox_spec, &program))
        });
        let Setup { argv, env, cwd, program, .. } = setup;
        let sandbox_spec = applied.map(|applied| {
            containment.execution_log.contained(applied.sandbox);
            (stdout_bytes, stderr_bytes) = (applied.stdout_bytes, applied.stderr_bytes);
            applied.sandbox_spec
        });
        if let (Some(profile), Some(sandbox_spec)) = (containment.profile, &sandbox_spec)
            && matches!(sandbox_spec.net, Net::Relayed(_))
        {
            let hosts = profile.net.as_ref().map(|net| net.hosts.as_slice()).unwrap_or_default();
            let allowed = AllowList::parse(hosts).map_err(io::Error::other)?;
            let program = program.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let rules = self.0.rules.clone();
            passage = Some(ProgramNetwork::new(allowed, rules, containment.refusals, program));
        }
        let order = Order::Run(Box::new(Run { argv, env, cwd, sandbox_spec }));
        let listeners = passage.map(|passage| passage as Arc<dyn ServeListener>);
        let (child, streams) = self.0.client.start(&order, listeners).await?;
        Ok(Running {
            child,
            stdin: streams.stdin,
            stdout: Some(streams.stdout),
            stderr: Some(streams.stderr),
            stdout_bytes,
            stderr_bytes,
            explainer,
        })
    }
}

/// A running program. Dropping it ends the program and every process that it started.
#[derive(Debug)]
pub struct Running {
    child: Child,
    /// Its standard input.
    pub stdin: Option<pipe::Sender>,
    /// Its standard output.
    pub stdout: Option<pipe::Receiver>,
    /// Its standard error.
    pub stderr: Option<pipe::Receiver>,
    /// Maximum bytes of standard output, from its profile.
    pub stdout_bytes: Option<u64>,
    /// Maximum bytes of standard error that are stored, from its profile.
    pub stderr_bytes: Option<u64>,
    /// Explains the denials of its sandbox; `None` if it is not contained.
    pub(crate) explainer: Option<Arc<DenialExplainer>>,
}

impl Running {
    /// Whether the program may have run. Only a report of the launcher can exclude it.
    #[must_use]
    pub fn may_have_run(&self) -> bool {
        self.child.may_have_run()
    }

    /// Whether the program has ended.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.child.has_ended()
    }

    /// Waits until the program and every process that it started have ended, and returns how it
    /// ended. Cancel safe.
    pub async fn ended(&self) -> ProgramEnd {
        ProgramEnd::of(self.child.report().await)
    }

    /// Asks the program to end.
    pub fn ask_to_end(&self) {
        self.child.ask_to_end();
    }

    /// Ends the program and every process that it started.
    pub fn kill(&self) {
        self.child.kill();
    }
}
