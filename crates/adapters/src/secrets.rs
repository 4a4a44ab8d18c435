//! Resolves references to secrets at the last moment.
//!
//! Doc: execution.md#secrets

use std::path::Path;

use toolbooth_contracts::secret::SecretLocation;

/// Longest secret, in bytes.
const SECRET_BYTES_MAX: u64 = 64 << 10;

/// Why a secret is not there; never the secret.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the secret `{location}` cannot be used: {reason}")]
pub struct SecretError {
    /// The reference.
    pub location: String,
    /// Why.
    pub reason: String,
}

/// The secret at `location`.
///
/// # Errors
/// [`SecretError`] where it is not there, or a file can be read by others.
pub fn resolve(location: &SecretLocation) -> Result<String, SecretError> {
    let error = |reason: String| SecretError { location: location.to_string(), reason };
    match location {
        SecretLocation::Env(name) => std::env::var(name)
            .ok()
            .filter(|value| !value.is_empty())
            .ok_or_else(|| error("the variable is not set".to_owned())),
        SecretLocation::File(path) => from_file(Path::new(path)).map_err(error),
        SecretLocation::Keyring { .. } => {
            Err(error("this build has no key ring; use `env:` or `file:`".to_owned()))
        }
    }
}

#[cfg(unix)]
fn private(file: &std::fs::File) -> Result<(), String> {
    use std::os::unix::fs::PermissionsExt;
    let metadata = file.metadata().map_err(|error| error.to_string())?;
    if metadata.permissions().mode() & 0o077 != 0 {
        return Err("others can read the file; make its mode 0600".to_owned());
    }
    Ok(())
}

#[cfg(not(unix))]
fn private(_: &std::fs::File) -> Result<(), String> {
    Ok(())
}

fn from_file(path: &Path) -> Result<String, String> {
    use std::io::Read;
    let file = std::fs::File::open(path).map_err(|error| error.to_string())?;
    private(&file)?;
    let mut text = String::new();
    file.take(SECRET_BYTES_MAX).read_to_string(&mut text).map_err(|error| error.to_string())?;
    Ok(text.trim_end_matches(['\n', '\r']).to_owned())
}
