//! Finds and reads the configuration file.
//!
//! Doc: configuration.md

use super::document::Config;
use super::lock::LockMode;
use super::parse::parse;
use crate::failure::Failure;
use crate::pins::PinFile;
use std::path::Path;
use std::path::PathBuf;

/// The name of the file that is looked for.
pub(crate) const FILE: &str = "toolbooth.toml";
/// The folder for data beside it.
pub(crate) const DATA: &str = ".toolbooth";
/// The lock file, where nothing is said.
pub(crate) const LOCK: &str = "tools.lock.json";
/// The registry file, where nothing is said.
pub(crate) const REGISTRY: &str = "tools.registry.json";

/// A configuration with where it comes from.
#[derive(Debug, Clone)]
pub(crate) struct Loaded {
    pub(crate) config: Config,
    /// The file, where there is one.
    pub(crate) file: Option<PathBuf>,
    /// What the file holds.
    pub(crate) text: String,
    /// The folder that relative paths are relative to.
    pub(crate) folder: PathBuf,
    /// The data folder.
    pub(crate) data: PathBuf,
    /// What the command does with the lock.
    pub(crate) lock_use: LockUse,
    /// Whether servers are only tried: they reach the registries of package runners alone.
    pub(crate) is_trial: bool,
}

impl Loaded {
    /// A path of the configuration.
    pub(crate) fn path(&self, path: &Path) -> PathBuf {
        self.folder.join(path)
    }

    /// The lock file.
    pub(crate) fn lock(&self) -> PathBuf {
        self.path(self.config.lock.file().unwrap_or(Path::new(LOCK)))
    }

    /// Whether the lock file is named without a mode: it has to be there then.
    pub(crate) fn requires_lock(&self) -> bool {
        self.config.lock.mode().is_none() && self.config.lock.file().is_some()
    }

    /// The mode that is in effect: in `first-use`, a lock file that is there counts.
    pub(crate) fn lock_mode(&self) -> LockMode {
        match self.config.lock.mode() {
            Some(mode @ (LockMode::File | LockMode::Off)) => mode,
            None if self.requires_lock() => LockMode::File,
            // A link that leads nowhere stands for a lock file that is missing, not for none.
            _ if self.lock().symlink_metadata().is_ok() => LockMode::File,
            _ => LockMode::FirstUse,
        }
    }

    /// The first-use pins.
    pub(crate) fn pins(&self) -> PinFile {
        PinFile::of(&self.data)
    }

    /// The registry file, and whether the configuration names it.
    pub(crate) fn registry(&self) -> (PathBuf, bool) {
        match &self.config.registry {
            Some(path) => (self.path(path), true),
            None => (self.folder.join(REGISTRY), false),
        }
    }
}

/// What a command does with the lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LockUse {
    /// Judges tools by it, and pins the first listing of a source.
    Pin,
    /// Judges tools by it, and changes nothing.
    Look,
    /// Compares tools with it, in order to write it: it may be missing.
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

/// As [`load`], for this file, or for its folder where it is not there.
pub(crate) fn load_at(file: &Path, data: Option<&Path>) -> Result<Loaded, Failure> {
    if file.is_file() {
        return load(Some(file), data);
    }
    let file = std::path::absolute(file)
        .map_err(|error| Failure::usage(format!("the folder cannot be found: {error}")))?;
    let loaded = draft("", &file, data)?;
    Ok(Loaded { file: None, lock_use: LockUse::Pin, ..loaded })
}

/// The data folder beside a configuration. One that is a link leads to records of somebody else.
fn standard_data(folder: &Path) -> Result<PathBuf, Failure> {
    let data = folder.join(DATA);
    if data.symlink_metadata().is_ok_and(|data| data.file_type().is_symlink()) {
        return Err(Failure::configuration("the data folder is a link")
            .at(data.display().to_string())
            .hint("where it is meant, name the folder that it leads to: `--data FOLDER`"));
    }
    Ok(data)
}

/// Settings that variables of the environment give.
fn overrides() -> Vec<(String, String)> {
    std::env::vars_os()
        .filter_map(|(name, value)| {
            let name = name.to_str()?.strip_prefix("TOOLBOOTH__")?.to_owned();
            Some((name, value.to_str()?.to_owned()))
        })
        .collect()
}

/// A configuration that is not written yet, as it would be loaded from `file`.
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

/// The configuration file: the named one, the one that is found upwards, or the one that would be
/// written here.
pub(crate) fn place(named: Option<&Path>) -> Result<PathBuf, Failure> {
    let here = std::env::current_dir()
        .map_err(|error| Failure::usage(format!("there is no working directory: {error}")))?;
    if let Some(file) = named {
        return Ok(here.join(file));
    }
    let found = here.ancestors().map(|folder| folder.join(FILE)).find(|path| path.is_file());
    Ok(found.unwrap_or_else(|| here.join(FILE)))
}
