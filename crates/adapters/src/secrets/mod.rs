//! Resolves settings, which may contain secrets, only when they are used and never shows them.
//!
//! Doc: execution.md#secrets

mod escapes;
mod given;
mod known;

use std::fmt;
use std::path::Path;

use data_encoding::HEXLOWER_PERMISSIVE;
use secrecy::{ExposeSecret, SecretString};
use toolbooth_contracts::secret::names_a_secret;
use toolbooth_contracts::secret_location::SecretLocation;

pub use given::given_secrets;
pub use known::KnownSecrets;

pub use crate::error::SecretError;
use crate::error::SecretFault;

/// Longest secret, in bytes.
const SECRET_BYTES_MAX: u64 = 64 << 10;

/// A value for a child process or a request, which is resolved when it is used.
#[derive(Clone, PartialEq, Eq)]
pub enum Setting {
    /// The text itself.
    Literal(String),
    /// Text in which `${NAME}` and `${NAME:-default}` are replaced by variables of the gateway.
    Template(String),
    /// A secret that is stored elsewhere.
    Secret(SecretLocation),
    /// A value that is stored elsewhere and is not a secret: it stays in results and records.
    Kept(SecretLocation),
}

impl From<String> for Setting {
    fn from(text: String) -> Self {
        Self::Literal(text)
    }
}

impl From<&str> for Setting {
    fn from(text: &str) -> Self {
        Self::Literal(text.to_owned())
    }
}

impl fmt::Debug for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // A literal may be a secret in the wrong place.
            Self::Literal(_) => f.write_str("Literal(…)"),
            Self::Template(_) => f.write_str("Template(…)"),
            Self::Secret(location) => write!(f, "Secret({location})"),
            Self::Kept(location) => write!(f, "Kept({location})"),
        }
    }
}

impl Setting {
    /// Returns the value.
    ///
    /// # Errors
    /// [`SecretError`] where a variable is not set, a file can be read by others, or nothing is
    /// stored under the reference.
    pub fn resolve(&self) -> Result<SecretString, SecretError> {
        match self {
            Self::Literal(text) => Ok(SecretString::from(text.clone())),
            Self::Template(text) => expand(text).map(SecretString::from),
            Self::Secret(location) => resolve(location),
            Self::Kept(location) => look_up(location),
        }
    }

    /// Returns the configured text, for messages; a reference in place of a secret.
    #[must_use]
    pub fn shown(&self) -> String {
        match self {
            Self::Literal(text) | Self::Template(text) => text.clone(),
            Self::Secret(location) | Self::Kept(location) => format!("<{location}>"),
        }
    }

    /// Returns the values that must be concealed, with their names in the configuration. They are
    /// secrets, variables with the name of a secret, and texts under such a name. The name is that
    /// of a variable or header; `""` = none. Other values are not secrets and stay, so that a
    /// setting with an ordinary word does not change a tool's result.
    #[must_use]
    pub fn known<'s>(settings: impl Iterator<Item = (&'s str, &'s Self)>) -> KnownSecrets {
        let mut known = Vec::new();
        for (name, setting) in settings {
            let before = known.len();
            match setting {
                Self::Literal(_) | Self::Kept(_) => (),
                Self::Template(own) => {
                    let _ = with_placeholders::<SecretError>(own, |inner| {
                        let name = inner.split(":-").next().unwrap_or(inner);
                        if names_a_secret(name)
                            && let Ok(value) = variable(inner)
                            && !is_plain(&value)
                        {
                            known.push((SecretString::from(value), format!("${{{name}}}")));
                        }
                        Ok(String::new())
                    });
                }
                Self::Secret(_) => {
                    known.extend(setting.resolve().ok().map(|value| (value, setting.shown())));
                }
            }
            let is_text = matches!(setting, Self::Literal(_) | Self::Template(_));
            if is_text && known.len() == before && names_a_secret(name) {
                let value = setting.resolve().ok();
                let value = value.filter(|value| !is_plain(value.expose_secret()));
                known.extend(value.map(|value| (value, format!("<{name}>"))));
            }
            known.iter().skip(before).for_each(|(value, shown)| given::remember(shown, value));
            // A secret that was changed or removed after a program received it must still be
            // concealed.
            if matches!(setting, Self::Secret(_)) {
                let shown = setting.shown();
                for value in given::values(&shown) {
                    let is_known = |(own, _): &(SecretString, String)| {
                        own.expose_secret() == value.expose_secret()
                    };
                    if !known.iter().skip(before).any(is_known) {
                        known.push((value, shown.clone()));
                    }
                }
            }
        }
        KnownSecrets::new(known)
    }

    /// Returns the value in plain text, to be passed on.
    #[cfg(any(feature = "process", feature = "endpoint", test))]
    pub(crate) fn expose(&self) -> Result<String, SecretError> {
        Ok(self.resolve()?.expose_secret().to_owned())
    }
}

/// Replaces each `${…}` in `text` by the result of `fill` for its content. One that is not closed is
/// not a placeholder.
///
/// # Errors
/// The first error of `fill`.
pub fn with_placeholders<E>(
    text: &str,
    mut fill: impl FnMut(&str) -> Result<String, E>,
) -> Result<String, E> {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("${") {
        out.push_str(before);
        match after.split_once('}') {
            Some((inner, after)) => {
                out.push_str(&fill(inner)?);
                rest = after;
            }
            None => {
                out.push_str("${");
                rest = after;
            }
        }
    }
    out.push_str(rest);
    Ok(out)
}

/// Returns the text with its variables substituted.
fn expand(text: &str) -> Result<String, SecretError> {
    with_placeholders(text, variable)
}

/// Returns the value of `NAME` or `NAME:-default`.
fn variable(inner: &str) -> Result<String, SecretError> {
    let (name, default) = match inner.split_once(":-") {
        Some((name, default)) => (name, Some(default)),
        None => (inner, None),
    };
    let set = std::env::var(name).ok().filter(|value| !value.is_empty());
    set.or_else(|| default.map(str::to_owned)).ok_or_else(|| SecretError {
        location: format!("${{{name}}}"),
        reason: "the variable is not set".to_owned(),
    })
}

/// Whether a value is never a secret, regardless of its name: a boolean, a number of at most 6
/// digits, or a path that exists.
fn is_plain(value: &str) -> bool {
    ["true", "false", "yes", "no", "on", "off"].iter().any(|word| value.eq_ignore_ascii_case(word))
        || (value.len() < 7 && value.bytes().all(|byte| byte.is_ascii_digit()))
        || (value.starts_with('/') && Path::new(value).exists())
}

/// Returns the secret at `location`. From then on, it is concealed in records ([`given_secrets`]).
///
/// # Errors
/// [`SecretError`] where it does not exist, or a file can be read by others.
pub fn resolve(location: &SecretLocation) -> Result<SecretString, SecretError> {
    let secret = look_up(location)?;
    given::remember(&format!("<{location}>"), &secret);
    Ok(secret)
}

fn look_up(location: &SecretLocation) -> Result<SecretString, SecretError> {
    let error = |reason: String| SecretError { location: location.to_string(), reason };
    let fault = |fault: SecretFault| error(fault.to_string());
    match location {
        SecretLocation::Env(name) => std::env::var(name)
            .ok()
            .filter(|value| !value.is_empty())
            .map(SecretString::from)
            .ok_or_else(|| error("the variable is not set".to_owned())),
        SecretLocation::File(path) => from_file(Path::new(path)).map_err(fault),
        SecretLocation::Keyring { service, user } => from_keyring(service, user).map_err(fault),
    }
}

/// Returns a key of 32 bytes that is stored as 64 hex digits.
///
/// # Errors
/// [`SecretError`] as [`resolve`], and where it is not such a key.
pub fn resolve_key(location: &SecretLocation) -> Result<[u8; 32], SecretError> {
    let secret = resolve(location)?;
    let digits = secret.expose_secret().trim();
    let wrong = || SecretError {
        location: location.to_string(),
        reason: "a key is 64 hex digits; `openssl rand -hex 32` makes one".to_owned(),
    };
    let mut key = [0u8; 32];
    if digits.len() != 64 {
        return Err(wrong());
    }
    HEXLOWER_PERMISSIVE.decode_mut(digits.as_bytes(), &mut key).map_err(|_| wrong())?;
    Ok(key)
}

/// Timeout for a key ring, which may never respond if it waits for the user to unlock it.
#[cfg(feature = "keyring")]
const KEYRING_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(5);

#[cfg(feature = "keyring")]
fn from_keyring(service: &str, user: &str) -> Result<SecretString, SecretFault> {
    let (service, user) = (service.to_owned(), user.to_owned());
    let (tell, told) = std::sync::mpsc::sync_channel(1);
    let asking = std::thread::Builder::new().name("keyring".to_owned()).spawn(move || {
        let secret =
            keyring::v1::Entry::new(&service, &user).and_then(|entry| entry.get_password());
        let secret = secret.map(SecretString::from);
        let _ = tell.send(secret.map_err(|error| SecretFault::Keyring(error.to_string())));
    });
    asking?;
    told.recv_timeout(KEYRING_TIMEOUT)
        .unwrap_or_else(|_| Err(SecretFault::KeyringLate(KEYRING_TIMEOUT.as_secs())))
}

#[cfg(not(feature = "keyring"))]
fn from_keyring(_: &str, _: &str) -> Result<SecretString, SecretFault> {
    Err(SecretFault::NoKeyring)
}

/// Checks that a file belongs to the user of the gateway or to root, and that no other user can read
/// it.
///
/// # Errors
/// [`SecretFault`]: the check that failed.
#[cfg(unix)]
pub fn check_private(file: &std::fs::File) -> Result<(), SecretFault> {
    use std::os::unix::fs::MetadataExt;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(SecretFault::NotOrdinary);
    }
    if metadata.mode() & 0o077 != 0 {
        return Err(SecretFault::ReadByOthers);
    }
    let own = rustix::process::geteuid().as_raw();
    if metadata.uid() != own && metadata.uid() != 0 {
        return Err(SecretFault::OtherOwner { uid: metadata.uid(), own });
    }
    Ok(())
}

/// Accepts every file on systems without file modes.
///
/// # Errors
/// None.
#[cfg(not(unix))]
pub fn check_private(_: &std::fs::File) -> Result<(), SecretFault> {
    Ok(())
}

fn from_file(path: &Path) -> Result<SecretString, SecretFault> {
    use std::io::Read;
    // Opening a pipe would block the call, so the type is checked before.
    if !std::fs::metadata(path)?.is_file() {
        return Err(SecretFault::NotOrdinary);
    }
    let file = std::fs::File::open(path)?;
    check_private(&file)?;
    let mut text = String::new();
    file.take(SECRET_BYTES_MAX).read_to_string(&mut text)?;
    let kept = text.trim_end_matches(['\n', '\r']).len();
    text.truncate(kept);
    Ok(SecretString::from(text))
}

#[cfg(test)]
mod tests;
