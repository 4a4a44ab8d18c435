//! What a command line needs to run: its program's path, its environment, its folders.
//!
//! Resolves settings and secrets; starts nothing.
//!
//! Path: 7. Doc: execution.md#processes

use std::path::{Path, PathBuf};

use toolbooth_contracts::sandbox::SandboxProfile;

use crate::command_line::{CommandLine, find};
use crate::place::Place;
use crate::secrets::Setting;
use crate::{secret_places, toolchains};

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

/// The variable that tells a gateway beneath a gateway how deep it stands.
const DEPTH: &str = "TOOLBOOTH_DEPTH";
/// Gateways that may stand beneath one another: one that starts itself must end somewhere.
const DEPTH_MAX: u32 = 8;

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

impl CommandLine {
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
        let words: Vec<PathBuf> = words.filter(|path| path.exists()).collect();
        if let Some(profile) = profile {
            let (home, own) = (home.as_deref(), own.as_deref());
            let place = Place { words: &words, cwd: &cwd, home, also: &[], hidden: &[], own };
            secret_places::check(profile, &place).map_err(std::io::Error::other)?;
        }
        let profile_name = self.profile_name.clone();
        Ok(Setup { argv, env, cwd, program: place, home, words, own, profile_name })
    }
}

/// Makes the folder that is a program's own, for this user alone; gives its real path.
fn make_own(folder: &Path) -> std::io::Result<PathBuf> {
    // A link in its place, or above it in the data folder, would give it somebody else's.
    let is_no_link = || -> std::io::Result<()> {
        for path in [folder.parent(), Some(folder)].into_iter().flatten() {
            if path.symlink_metadata().is_ok_and(|data| data.file_type().is_symlink()) {
                let message = format!("its folder `{}` is a link; remove it", path.display());
                return Err(std::io::Error::other(message));
            }
        }
        Ok(())
    };
    is_no_link()?;
    let mut builder = std::fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    let made = builder.create(folder).and_then(|()| folder.canonicalize()).map_err(|error| {
        let message = format!("its folder `{}` cannot be made: {error}", folder.display());
        std::io::Error::new(error.kind(), message)
    })?;
    is_no_link()?;
    Ok(made)
}
