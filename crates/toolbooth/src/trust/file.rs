//! Stores a user's trusted configurations in a file outside of their folders.
//!
//! Doc: trust.md#where-it-is-kept

use std::collections::BTreeMap;
use std::io::Read;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use toolbooth_adapters::secrets;

use super::entries::Entries;
use crate::failure::Failure;

/// The version of the file format.
const VERSION: u32 = 1;
/// The maximum size of the file, in bytes.
const BYTES_MAX: u64 = 16 << 20;

/// The trusted state of a configuration.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct TrustedState {
    /// SHA-256 of its registry file, in hex; empty if not all of it is trusted.
    pub(crate) registry_digest: String,
    /// RFC 3339.
    pub(crate) trusted_at: String,
    /// Its entries.
    pub(crate) entries: Entries,
}

/// The content of the file.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Contents {
    version: u32,
    /// Trusted states by the real paths of configurations.
    pub(crate) configurations: BTreeMap<String, TrustedState>,
}

/// The trust file of one user.
#[derive(Debug, Clone)]
pub(crate) struct TrustFile(PathBuf);

fn failed(path: &Path, what: &str, error: &std::io::Error) -> Failure {
    Failure::new(crate::failure::OUT_OF_REACH, "trust-unavailable", format!("{what}: {error}"))
        .at(path.display().to_string())
}

impl TrustFile {
    /// Returns `$XDG_STATE_HOME/toolbooth/trusted`, or the same in `~/.local/state`.
    pub(crate) fn of_user() -> Option<Self> {
        let absolute = |name| std::env::var_os(name).map(PathBuf::from).filter(|p| p.is_absolute());
        let state = absolute("XDG_STATE_HOME")
            .or_else(|| absolute("HOME").map(|home| home.join(".local/state")))?;
        Some(Self(state.join("toolbooth/trusted")))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// Reads the file. Rejects a file that other users can read or write.
    pub(crate) fn read(&self) -> Result<Contents, Failure> {
        let path = &self.0;
        let failed = |error| failed(path, "the trusted configurations cannot be read", &error);
        let file = match std::fs::File::open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Ok(Contents::default());
            }
            Err(error) => return Err(failed(error)),
        };
        let refuse = |message: String| {
            let message = format!("the file of trusted configurations is refused: {message}");
            let hint = "repair it, or remove it and trust again";
            Failure::configuration(message).at(path.display().to_string()).hint(hint)
        };
        secrets::check_private(&file).map_err(|fault| refuse(fault.to_string()))?;
        let mut text = Vec::new();
        file.take(BYTES_MAX + 1).read_to_end(&mut text).map_err(failed)?;
        if text.len() as u64 > BYTES_MAX {
            return Err(refuse(format!("it has more than {BYTES_MAX} bytes")));
        }
        match serde_json::from_slice::<Contents>(&text) {
            Ok(contents) if contents.version == VERSION => Ok(contents),
            _ => Err(refuse("it cannot be understood".to_owned())),
        }
    }

    /// Changes the file under a lock between processes.
    pub(crate) fn change(&self, change: impl FnOnce(&mut Contents)) -> Result<(), Failure> {
        let path = &self.0;
        let folder = path.parent().unwrap_or(Path::new("/"));
        let wrong = |error: std::io::Error| failed(path, "the trust cannot be kept", &error);
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(wrong)?;
        let lock = std::fs::OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(folder.join("trusted.lock"))
            .map_err(wrong)?;
        lock.lock().map_err(wrong)?;
        let mut contents = self.read()?;
        contents.version = VERSION;
        change(&mut contents);
        let text = serde_json::to_vec_pretty(&contents).unwrap_or_default();
        crate::files::replace_private(path, &text).map_err(wrong)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_file_that_others_may_write_is_not_believed() {
        let folder = tempfile::tempdir().unwrap();
        let file = TrustFile(folder.path().join("toolbooth/trusted"));
        let kept = TrustedState {
            registry_digest: "d".to_owned(),
            trusted_at: "2026-01-01T00:00:00Z".to_owned(),
            entries: Entries::new(),
        };
        file.change(|contents| drop(contents.configurations.insert("/a".to_owned(), kept.clone())))
            .unwrap();
        let mode = std::fs::metadata(file.path()).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode, 0o600);
        assert_eq!(file.read().unwrap().configurations["/a"], kept);
        std::fs::set_permissions(file.path(), PermissionsExt::from_mode(0o620)).unwrap();
        assert!(file.read().unwrap_err().message.contains("others can read"));
        assert!(file.change(|_| ()).is_err(), "and it is not replaced");
    }

    #[test]
    fn what_cannot_be_understood_trusts_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let file = TrustFile(folder.path().join("trusted"));
        assert!(file.read().unwrap().configurations.is_empty());
        for text in ["", "{}", "{\"version\":2,\"configurations\":{}}", "[]"] {
            crate::files::replace_private(file.path(), text.as_bytes()).unwrap();
            assert!(file.read().is_err(), "{text}");
        }
    }
}
