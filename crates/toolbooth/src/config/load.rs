//! Finds and reads the configuration file.
//!
//! Doc: configuration.md

use std::path::Path;
use std::path::PathBuf;

use super::document::Config;
use super::lock::LockMode;
use super::parse::parse;
use crate::failure::Failure;
use crate::pins::PinFile;

/// The name of the configuration file.
pub(crate) const FILE: &str = "toolbooth.toml";
/// The name of the data folder next to it.
pub(crate) const DATA: &str = ".toolbooth";
/// The default name of the lock file.
pub(crate) const LOCK: &str = "tools.lock.json";
/// The default name of the registry file.
pub(crate) const REGISTRY: &str = "tools.registry.json";

/// A configuration and its location.
#[derive(Debug, Clone)]
pub(crate) struct Loaded {
    pub(crate) config: Config,
    /// The file, if it exists.
    pub(crate) file: Option<PathBuf>,
    /// The text of the file.
    pub(crate) text: String,
    /// The base folder of relative paths.
    pub(crate) folder: PathBuf,
    /// The data folder.
    pub(crate) data: PathBuf,
    /// How the command uses the lock.
    pub(crate) lock_use: LockUse,
    /// Whether servers are only started for a trial. They can then reach only the registries of package
    /// runners.
    pub(crate) is_trial: bool,
}

impl Loaded {
    /// Returns a path of the configuration as an absolute path.
    pub(crate) fn path(&self, path: &Path) -> PathBuf {
        self.folder.join(path)
    }

    /// Returns the path of the lock file.
    pub(crate) fn lock(&self) -> PathBuf {
        self.path(self.config.lock.file().unwrap_or(Path::new(LOCK)))
    }

    /// Whether the lock file must exist, because it is named without a mode.
    pub(crate) fn requires_lock(&self) -> bool {
        self.config.lock.mode().is_none() && self.config.lock.file().is_some()
    }

    /// Returns the mode in effect. In `first-use`, an existing lock file takes precedence.
    pub(crate) fn lock_mode(&self) -> LockMode {
        match self.config.lock.mode() {
            Some(mode @ (LockMode::File | LockMode::Off)) => mode,
            None if self.requires_lock() => LockMode::File,
            // A dangling link counts as a missing lock file, so it does not select first use.
            _ if self.lock().symlink_metadata().is_ok() => LockMode::File,
            _ => LockMode::FirstUse,
        }
    }

    /// Returns the first-use pins.
    pub(crate) fn pins(&self) -> PinFile {
        PinFile::of(&self.data)
    }

    /// Returns the path of the registry file, and whether the configuration names it.
    pub(crate) fn registry(&self) -> (PathBuf, bool) {
        match &self.config.registry {
            Some(path) => (self.path(path), true),
            None => (self.folder.join(REGISTRY), false),
        }
    }
}

/// How a command uses the lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LockUse {
    /// Checks tools against it, and pins the first listing of a source.
    Pin,
    /// Checks tools against it, and changes nothing.
    Look,
    /// Compares tools with it in order to write it; the file can be missing.
    Write,
}

/// Loads the configuration.
pub(crate) fn load(file: Option<&Path>, data: Option<&Path>) -> Result<Loaded, Failure> {
    let here = std::env::current_dir()
        .map_err(|error| Failure::usage(format!("there is no working directory: {error}")))?;
    let file = match file {
        Some(file) => {
            if !file.is_file() {
                let message = format!("the configuration file `{}` is not there", file.display());
                return Err(Failure::configuration(message).hint("`toolbooth init` writes one"));
            }
            Some(here.join(file))
        }
        None => here.ancestors().map(|folder| folder.join(FILE)).find(|path| path.is_file()),
    };
    let folder = file.as_deref().and_then(Path::parent).unwrap_or(&here).to_owned();
    let (config, text) = match &file {
        Some(path) => {
            let text = std::fs::read_to_string(path).map_err(|error| {
                Failure::configuration(format!("the configuration cannot be read: {error}"))
                    .at(path.display().to_string())
            })?;
            (parse(&text, &path.display().to_string(), overrides())?, text)
        }
        None => (parse("", "the environment", overrides())?, String::new()),
    };
    let data = match data {
        Some(data) => here.join(data),
        None => standard_data(&folder)?,
    };
    Ok(Loaded { config, file, text, folder, data, lock_use: LockUse::Pin, is_trial: false })
}

/// As [`load`], for this file, or for its folder if the file does not exist.
pub(crate) fn load_at(file: &Path, data: Option<&Path>) -> Result<Loaded, Failure> {
    if file.is_file() {
        return load(Some(file), data);
    }
    let file = std::path::absolute(file)
        .map_err(|error| Failure::usage(format!("the folder cannot be found: {error}")))?;
    let loaded = draft("", &file, data)?;
    Ok(Loaded { file: None, lock_use: LockUse::Pin, ..loaded })
}

/// Returns the data folder next to a configuration. A link is an error, because it can lead to the records of
/// another user.
fn standard_data(folder: &Path) -> Result<PathBuf, Failure> {
    let data = folder.join(DATA);
    if data.symlink_metadata().is_ok_and(|data| data.file_type().is_symlink()) {
        return Err(Failure::configuration("the data folder is a link")
            .at(data.display().to_string())
            .hint("where it is meant, name the folder that it leads to: `--data FOLDER`"));
    }
    Ok(data)
}

/// Returns the settings from environment variables.
fn overrides() -> Vec<(String, String)> {
    std::env::vars_os()
        .filter_map(|(name, value)| {
            let name = name.to_str()?.strip_prefix("TOOLBOOTH__")?.to_owned();
            Some((name, value.to_str()?.to_owned()))
        })
        .collect()
}

/// Returns a configuration that is not written yet, as if it were loaded from `file`.
pub(crate) fn draft(text: &str, file: &Path, data: Option<&Path>) -> Result<Loaded, Failure> {
    let config = parse(text, &file.display().to_string(), overrides())?;
    let folder = file.parent().unwrap_or(Path::new("/")).to_owned();
    let data = match data {
        Some(data) => std::path::absolute(data)
            .map_err(|error| Failure::usage(format!("the data folder cannot be found: {error}")))?,
        None => standard_data(&folder)?,
    };
    let (text, file) = (text.to_owned(), Some(file.to_owned()));
    let (lock_use, is_trial) = (LockUse::Look, false);
    Ok(Loaded { config, file, text, folder, data, lock_use, is_trial })
}

/// Returns the configuration file: the named one, the nearest one upwards, or the default path in this
/// folder.
pub(crate) fn configuration_path(named: Option<&Path>) -> Result<PathBuf, Failure> {
    let here = std::env::current_dir()
        .map_err(|error| Failure::usage(format!("there is no working directory: {error}")))?;
    if let Some(file) = named {
        return Ok(here.join(file));
    }
    let found = here.ancestors().map(|folder| folder.join(FILE)).find(|path| path.is_file());
    Ok(found.unwrap_or_else(|| here.join(FILE)))
}
