//! Defines a command line from configuration: its words, variables and folder, and whether its
//! program exists.
//!
//! Starts nothing.
//!
//! Path: 7. Doc: execution.md#processes

use std::path::{Path, PathBuf};

use toolbooth_contracts::coverage::Readiness;
use toolbooth_contracts::sandbox::SandboxProfile;
use toolbooth_contracts::secret::names_a_secret;

use crate::secrets::{KnownSecrets, Setting};

/// A command to run.
#[derive(Debug, Clone, Default)]
pub struct CommandLine {
    /// Program and arguments.
    pub argv: Vec<Setting>,
    /// Variables in addition to the inherited ones.
    pub env: Vec<(String, Setting)>,
    /// Its working directory.
    pub cwd: Option<Setting>,
    /// How many of the first words an operator wrote. The program can read the files that they
    /// name.
    pub written: usize,
    /// The program's own folder for its home and caches, which is created if it is missing. Only
    /// for contained programs.
    pub own: Option<PathBuf>,
    /// The name of its sandbox profile in configuration, for messages.
    pub profile_name: Option<String>,
}

impl CommandLine {
    /// Returns the command line as configured, without the values of its settings.
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

    /// Returns `text` without the values of the secrets of the command.
    #[must_use]
    pub fn conceal(&self, text: &str) -> String {
        self.secrets().conceal_text(text)
    }

    /// Returns the secrets of the command.
    #[must_use]
    pub fn secrets(&self) -> KnownSecrets {
        let words = self.argv.iter().map(|word| ("", word));
        Setting::known(words.chain(self.env.iter().map(|(name, value)| (name.as_str(), value))))
    }

    /// Returns the program as configured.
    #[must_use]
    pub fn program(&self) -> String {
        self.argv.first().map(Setting::shown).unwrap_or_default()
    }

    /// Whether the command can be started: its program exists, and its settings can be resolved.
    #[must_use]
    pub fn readiness(&self) -> Readiness {
        let settings = self.argv.iter().chain(self.env.iter().map(|(_, value)| value));
        if let Some(error) = settings.filter_map(|setting| setting.resolve().err()).next() {
            return Readiness::NotConfigured(error.to_string());
        }
        let cwd = match &self.cwd {
            Some(cwd) => cwd.expose().map(PathBuf::from).map_err(|error| error.to_string()),
            None => std::env::current_dir().map_err(|error| error.to_string()),
        };
        let cwd = match cwd {
            Ok(cwd) => cwd,
            Err(error) => return Readiness::NotConfigured(error),
        };
        match self.argv.first().map(Setting::expose) {
            Some(Ok(program)) => match find(&program, &cwd) {
                Some(path) if is_executable(&path) => Readiness::Ready,
                Some(_) => {
                    Readiness::NotConfigured(format!("the program `{program}` is not executable"))
                }
                None => Readiness::NotConfigured(format!("the program `{program}` is not there")),
            },
            _ => Readiness::NotConfigured("the command line is empty".to_owned()),
        }
    }

    /// Returns a path of a profile that must exist and does not.
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

    /// Returns the same command with the secrets of a profile.
    #[must_use]
    pub fn with_secrets_of(mut self, profile: Option<&SandboxProfile>) -> Self {
        let env = profile.and_then(|profile| profile.env.as_ref());
        for (name, secret) in env.iter().flat_map(|env| &env.secrets) {
            self.env.push((name.clone(), Setting::Secret(secret.secret_ref.clone())));
        }
        self
    }
}

/// Returns the path of a program: relative to `cwd`, or in `PATH` if the program is a bare name.
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
pub(crate) fn is_executable(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    path.metadata().is_ok_and(|data| data.is_file() && data.permissions().mode() & 0o111 != 0)
}

#[cfg(not(unix))]
pub(crate) fn is_executable(path: &Path) -> bool {
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
