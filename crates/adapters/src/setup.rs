//! Prepares a command line to run: the path of its program, its environment, its folders.
//!
//! It resolves settings and secrets, and starts nothing.
//!
//! Path: 7. Doc: execution.md#processes

use std::path::{Path, PathBuf};

use toolbooth_contracts::sandbox::SandboxProfile;

use crate::command_line::{CommandLine, find};
use crate::program_location::ProgramLocation;
use crate::secrets::Setting;
use crate::{secret_paths, toolchains};

/// Variables of the gateway's own environment that a child inherits. All others, including every
/// secret, are passed on only if configuration names them.
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

/// The variable with the nesting depth of a gateway that another gateway started.
const DEPTH: &str = "TOOLBOOTH_DEPTH";
/// Maximum nesting depth of gateways, so that a gateway that starts itself ends.
const DEPTH_MAX: u32 = 8;

/// A command with all settings resolved.
#[derive(Debug)]
pub(crate) struct Setup {
    pub(crate) argv: Vec<String>,
    pub(crate) env: Vec<(String, String)>,
    pub(crate) cwd: PathBuf,
    /// The path at which the program was found.
    pub(crate) program: PathBuf,
    pub(crate) home: Option<PathBuf>,
    /// Paths that an operator wrote on the command line.
    pub(crate) words: Vec<PathBuf>,
    /// Its own home, if it has one.
    pub(crate) own: Option<PathBuf>,
    /// The name of its profile in configuration.
    pub(crate) profile_name: Option<String>,
}

impl CommandLine {
    /// Resolves everything that the launcher needs for this command, contained by `profile`.
    ///
    /// # Errors
    /// If a setting cannot be resolved, or the program does not exist.
    pub(crate) fn setup(&self, profile: Option<&SandboxProfile>) -> std::io::Result<Setup> {
        let exposed = |setting: &Setting| setting.expose().map_err(std::io::Error::other);
        let mut argv: Vec<String> = self.argv.iter().map(exposed).collect::<Result<_, _>>()?;
        let cwd = match &self.cwd {
            Some(cwd) => PathBuf::from(exposed(cwd)?),
            None => std::env::current_dir()?,
        };
        // The real path also exists inside of the sandbox. A missing folder is reported later.
        let cwd = cwd.canonicalize().unwrap_or(cwd);
        let program = argv.first_mut().filter(|program| !program.is_empty());
        let program = program.ok_or_else(|| std::io::Error::other("it names no program"))?;
        let found = find(program, &cwd).ok_or_else(|| {
            let message = format!("the program `{program}` is not there");
            std::io::Error::new(std::io::ErrorKind::NotFound, message)
        })?;
        *program = found.display().to_string();
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
                // A program without a home of its own uses its only writable folder as `HOME`.
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
            let message = format!("more than {DEPTH_MAX} gateways are nested");
            return Err(std::io::Error::other(message));
        }
        set(DEPTH, (depth + 1).to_string());
        let words = self.argv.iter().map(exposed).take(self.written).skip(1);
        let words: Vec<String> = words.collect::<Result<_, _>>()?;
        let words = words.iter().filter(|word| !word.starts_with('-')).map(|word| cwd.join(word));
        let words: Vec<PathBuf> = words.filter(|path| path.exists()).collect();
        if let Some(profile) = profile {
            let (home, own) = (home.as_deref(), own.as_deref());
            let location =
                ProgramLocation { words: &words, cwd: &cwd, home, also: &[], hidden: &[], own };
            secret_paths::check(profile, &location).map_err(std::io::Error::other)?;
        }
        let profile_name = self.profile_name.clone();
        Ok(Setup { argv, env, cwd, program: found, home, words, own, profile_name })
    }
}

/// Creates a program's own folder, for this user alone. Returns its real path.
fn make_own(folder: &Path) -> std::io::Result<PathBuf> {
    // A link at this path, or at its parent in the data folder, could lead to a folder that is not this
    // program's own.
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
