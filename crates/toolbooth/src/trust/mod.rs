//! Checks whether a user trusts a configuration before any part of it is started, read or reached.
//!
//! A user trusts a configuration once, by its path and its entries ([`entries`]). If the entries change, the
//! user is asked again and sees the difference.
//!
//! Doc: trust.md#one-run

mod consent;
pub(crate) mod entries;
mod file;
mod shown;

use std::collections::BTreeSet;
use std::io::IsTerminal;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use toolbooth_audit::digest::sha256_hex;
use toolbooth_contracts::Guard;
use toolbooth_proxy::{Clock, SystemClock};
use toolbooth_registry::RegisteredTool;

pub(crate) use self::consent::Consent;
use self::entries::is_of_registry;
pub(crate) use self::entries::{Change, Entries};
pub(crate) use self::file::{TrustFile, TrustedState};
pub(crate) use self::shown::told;
use crate::config::Loaded;
use crate::failure::{Failure, USAGE};
use crate::registry_file;
use crate::secret_shapes;

/// The error code of a refusal because of missing trust.
pub(crate) const UNTRUSTED: &str = "untrusted-configuration";
/// The variable that names a configuration like `--trust`.
const NAMED: &str = "TOOLBOOTH_TRUST";

/// The sections of a configuration that are its policy.
const POLICY: [&str; 5] = ["budgets", "callers", "flags", "policy", "trust"];

/// A registry file: its path for messages, and its bytes.
type RegistryText = Result<Option<(String, Vec<u8>)>, Failure>;

/// A configuration that commands can act on, with the registry file that was checked. Only this module
/// creates one.
#[derive(Debug, Clone)]
pub(crate) struct Trusted {
    loaded: Loaded,
    registry: RegistryText,
    /// The tools of the registry file, if it was parsed for the check.
    read: Option<Arc<Vec<RegisteredTool>>>,
    /// Its file, or the default path of the file.
    file: PathBuf,
    /// Whether the command line names it, or it starts nothing; changes then need no trust.
    is_named: bool,
}

/// Returns the file of a configuration, or its default path in the folder.
fn file_of(loaded: &Loaded) -> PathBuf {
    loaded.file.clone().unwrap_or_else(|| loaded.folder.join(crate::config::FILE))
}

impl Deref for Trusted {
    type Target = Loaded;

    fn deref(&self) -> &Loaded {
        &self.loaded
    }
}

impl Trusted {
    /// Returns the registry file.
    pub(crate) fn registry_text(&self) -> RegistryText {
        self.registry.clone()
    }

    /// Returns the tools of the registry file if it was already parsed, because parsing a large file is slow.
    pub(crate) fn take_read(&mut self) -> Option<Vec<RegisteredTool>> {
        self.read.take().and_then(|tools| Arc::try_unwrap(tools).ok())
    }

    /// Returns the configuration with another use of the lock.
    pub(crate) fn using_lock(mut self, lock_use: crate::config::LockUse) -> Self {
        self.loaded.lock_use = lock_use;
        self
    }

    /// Accepts a configuration for commands that start, connect to and write nothing.
    pub(crate) fn starting_nothing(loaded: Loaded) -> Self {
        let (registry, file) = (registry_file::read(&loaded), file_of(&loaded));
        Self { loaded, registry, read: None, file, is_named: true }
    }

    /// Updates the trust after this program has added contracts to the registry file at the user's request.
    /// If the update fails, the next command asks.
    pub(crate) fn registry_written(&self) {
        if self.is_named {
            return;
        }
        let Ok(judged) = Judged::of(self.loaded.clone(), self.file.clone()) else { return };
        if judged.changes.iter().all(|change| is_of_registry(&change.name)) {
            let _ = judged.keep(|_| true);
        }
    }

    /// Reads the configuration again, for its policy. Fails if the policy is not as it was trusted.
    pub(crate) fn read_again(&self) -> Result<Loaded, Failure> {
        let gone = |what: &str| {
            Failure::configuration(format!("the configuration {what}"))
                .at(self.file.display().to_string())
        };
        // Without its file the gateway would have the embedded default, which allows more.
        if self.loaded.file.is_some() && !self.file.is_file() {
            return Err(gone("is not there any more"));
        }
        let now = crate::config::load_at(&self.file, Some(&self.loaded.data))?;
        if now.text.trim().is_empty() && !self.loaded.text.trim().is_empty() {
            return Err(gone("is empty"));
        }
        if self.is_named {
            return Ok(now);
        }
        let judged = Judged::of(now.clone(), self.file.clone())?;
        let untrusted = |change: &&Change| POLICY.contains(&change.name.as_str());
        match judged.changes.iter().find(untrusted) {
            None => Ok(now),
            Some(change) => Err(Failure::configuration(format!(
                "`{}` is not as it was trusted; see `toolbooth trust {}`",
                change.name,
                self.file.display()
            ))),
        }
    }

    /// Rejects changed contracts of the registry file that need trust; other changes are accepted.
    pub(crate) fn admits(&self, tools: &[RegisteredTool]) -> Result<(), Failure> {
        if self.is_named {
            return Ok(());
        }
        let file = &self.file;
        let now = entries::of_tools(tools);
        let kept = kept(file)?.unwrap_or_default();
        let is_tool = |change: &Change| is_of_registry(&change.name);
        let changes = entries::changes(&kept, &now);
        match changes.iter().find(|change| is_tool(change)) {
            None => Ok(()),
            Some(change) => Err(Failure::configuration(format!(
                "`{}` is not as it was trusted; see `toolbooth trust {}`",
                change.name,
                file.display()
            ))),
        }
    }
}

/// Returns the stored entries of a configuration, by its real path.
fn kept(file: &Path) -> Result<Option<Entries>, Failure> {
    let Some(trusted) = TrustFile::of_user() else { return Ok(None) };
    let mut contents = trusted.read()?;
    Ok(contents.configurations.remove(&name(file)).map(|kept| kept.entries))
}

/// Returns the name of a configuration in the trust file: the real path of its folder, and its own name. A
/// link to another configuration is a separate one, because its folder is the base of relative paths.
pub(crate) fn name(file: &Path) -> String {
    let file = std::path::absolute(file).unwrap_or_else(|_| file.to_owned());
    let folder = file.parent().and_then(|folder| folder.canonicalize().ok());
    match folder.zip(file.file_name()) {
        Some((folder, name)) => folder.join(name).display().to_string(),
        None => file.display().to_string(),
    }
}

/// A checked configuration, with its untrusted changes.
#[derive(Debug)]
pub(crate) struct Judged {
    trusted: Trusted,
    file: PathBuf,
    /// SHA-256 of the registry file, in hex.
    registry_digest: String,
    /// The trusted entries.
    before: Entries,
    pub(crate) entries: Entries,
    /// Whether it was ever trusted.
    pub(crate) is_known: bool,
    pub(crate) changes: Vec<Change>,
}

impl Judged {
    /// Checks the configuration of `file`, from which `loaded` was read or would be read.
    pub(crate) fn of(loaded: Loaded, file: PathBuf) -> Result<Self, Failure> {
        let registry = registry_file::read(&loaded);
        let registry_text = registry.as_ref().ok().and_then(Option::as_ref);
        let registry_digest = sha256_hex(registry_text.map_or(&[], |(_, text)| text.as_slice()));
        let known = match TrustFile::of_user() {
            Some(own) => own.read()?.configurations.remove(&name(&file)),
            None => None,
        };
        let is_known = known.is_some();
        let known_digest = known.as_ref().map(|known| known.registry_digest.clone());
        let before = known.map(|known| known.entries).unwrap_or_default();
        let shapes = secret_shapes::shapes();
        let document: toml::Table = toml::from_str(&loaded.text).map_err(|_| {
            Failure::configuration("the configuration is no TOML").at(file.display().to_string())
        })?;
        let mut entries = entries::of_configuration(&document, &loaded.folder, &shapes);
        let mut tools = None;
        if known_digest.as_ref() == Some(&registry_digest) {
            // A large registry that is unchanged is not parsed again.
            let of_registry = before.iter().filter(|(name, _)| is_of_registry(name));
            entries.extend(of_registry.map(|(name, value)| (name.clone(), value.clone())));
        } else if let Some((name, text)) = registry_text
            && let Ok(read) = toolbooth_registry::file::load(text, name, &Guard::new(shapes))
        {
            // A rejected registry has no contracts.
            entries.extend(entries::of_tools(&read.tools));
            tools = Some(Arc::new(read.tools));
        }
        let changes = entries::changes(&before, &entries);
        let (own, is_named) = (file.clone(), false);
        let trusted = Trusted { loaded, registry, read: tools, file: own, is_named };
        Ok(Self { trusted, file, registry_digest, before, entries, is_known, changes })
    }

    /// Whether there are no changes to trust. A configuration without entries needs no trust.
    pub(crate) fn is_trusted(&self) -> bool {
        self.changes.is_empty()
    }

    /// Returns the lines for the user: the processes, their folders, and their access to files and hosts.
    pub(crate) fn told(&self) -> Vec<String> {
        let mut lines = told(&self.trusted.loaded, &self.changes);
        let data = &self.trusted.data;
        if !self.is_known && data.exists() {
            lines.push(format!("records, keys and pins are there already, in {}", data.display()));
        }
        lines
    }

    /// Returns the lines for one entry.
    pub(crate) fn told_of(&self, name: &str) -> Vec<String> {
        let of: Vec<Change> =
            self.changes.iter().filter(|change| change.name == name).cloned().collect();
        told(&self.trusted.loaded, &of)
    }

    /// Stores the entries that `is_meant` selects as trusted.
    pub(crate) fn keep(&self, is_meant: impl Fn(&str) -> bool) -> Result<(), Failure> {
        let own = TrustFile::of_user().ok_or_else(|| {
            Failure::usage("there is no home to keep the trust in")
                .hint("set XDG_STATE_HOME, or name the configuration with `--trust FILE`")
        })?;
        let all = self.changes.iter().all(|change| is_meant(&change.name));
        let names: BTreeSet<&String> = self.entries.keys().chain(self.before.keys()).collect();
        let mut entries = Entries::new();
        for name in names {
            // An entry without consent keeps its stored state, also if it is removed now.
            let from = if is_meant(name) { &self.entries } else { &self.before };
            entries.extend(from.get(name).map(|value| (name.clone(), value.clone())));
        }
        if entries.is_empty() && !all {
            return Ok(());
        }
        // Only a registry that is trusted completely is identified by its bytes.
        let registry_digest = if all { self.registry_digest.clone() } else { String::new() };
        let trusted_at = SystemClock::default().now().text;
        let kept = TrustedState { registry_digest, trusted_at, entries };
        own.change(|contents| {
            contents.configurations.insert(name(&self.file), kept);
        })
    }

    /// Returns the configuration after the user has agreed.
    pub(crate) fn into_trusted(self) -> Trusted {
        self.trusted
    }

    /// Asks on the terminal and returns the answer.
    pub(crate) fn ask(&self) -> bool {
        for line in self.told() {
            crate::notice(&line);
        }
        crate::terminal::confirm("trust it?")
    }

    fn refused(&self) -> Failure {
        let file = self.file.display();
        let message = if self.is_known {
            let names = self.changes.iter().take(5);
            let names: Vec<String> =
                names.map(|change| change.name.escape_debug().to_string()).collect();
            let more = match self.changes.len().saturating_sub(names.len()) {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            format!("it is not as it was trusted: `{}`{more}", names.join("`, `"))
        } else {
            "this configuration is not trusted here yet; nothing of it was started".to_owned()
        };
        let kept = TrustFile::of_user();
        let kept = kept.as_ref().map_or("nowhere".into(), |own| own.path().to_string_lossy());
        Failure::new(USAGE, UNTRUSTED, message).at(file.to_string()).hint(format!(
            "`toolbooth trust {file}` shows what it starts, and asks; scripts name it: `--trust {file}`; \
             what is trusted is kept in {kept}"
        ))
    }
}

/// Determines trust: by the command line, by the trust file, or by a question.
#[derive(Debug, Clone, Default)]
pub(crate) struct Gate {
    /// The configuration that the command line names.
    pub(crate) named: Option<PathBuf>,
    /// Whether no question is asked, for example because standard input belongs to a client.
    pub(crate) is_silent: bool,
}

impl Gate {
    /// Returns the configuration if it is trusted.
    pub(crate) fn require(&self, loaded: Loaded) -> Result<Trusted, Failure> {
        let file = file_of(&loaded);
        let same = |named: &Path| name(named) == name(&file);
        if let Some(named) = &self.named
            && !same(named)
        {
            let message = format!("`--trust` names `{}`, which is not used", named.display());
            return Err(Failure::usage(message)
                .at(file.display().to_string())
                .hint("name the configuration that is used; `--config FILE` chooses one"));
        }
        // A relative path would match a file in every folder.
        let of_variable =
            std::env::var_os(NAMED).map(PathBuf::from).filter(|named| named.is_absolute());
        if self.named.is_some() || of_variable.is_some_and(|named| same(&named)) {
            return Ok(Trusted::starting_nothing(loaded));
        }
        let judged = Judged::of(loaded, file)?;
        if judged.is_trusted() {
            return Ok(judged.into_trusted());
        }
        let can_ask =
            !self.is_silent && std::io::stdin().is_terminal() && std::io::stderr().is_terminal();
        if !can_ask || !judged.ask() {
            return Err(judged.refused());
        }
        if let Err(failure) = judged.keep(|_| true) {
            crate::notice(&format!("this answer holds for this run alone: {}", failure.message));
        }
        Ok(judged.into_trusted())
    }

    /// Whether the command line names this configuration.
    pub(crate) fn names(&self, file: &Path) -> bool {
        self.named.as_deref().is_some_and(|named| name(named) == name(file))
    }

    /// Trusts a configuration that this program has just written at the user's request. If the trust cannot
    /// be stored, the next command asks.
    pub(crate) fn trust_written(&self, file: &Path) {
        let kept = crate::config::load(Some(file), None).and_then(|loaded| {
            let file = loaded.file.clone().unwrap_or_else(|| file.to_owned());
            Judged::of(loaded, file)?.keep(|_| true)
        });
        if let Err(failure) = kept {
            crate::notice(&format!("it is not kept as trusted: {}", failure.message));
        }
    }

    /// Returns the configuration for commands on records. Records in the data folder can be read without a
    /// question.
    pub(crate) fn for_records(&self, loaded: Loaded, writes: bool) -> Result<Trusted, Failure> {
        let config = &loaded.config;
        let reaches = config.store.url.is_some() || config.audit.signing_key.is_some();
        match writes || reaches {
            true => self.require(loaded),
            false => Ok(Trusted::starting_nothing(loaded)),
        }
    }
}
