//! Settings that may hold secrets, resolved at the last moment and never shown.
//!
//! Doc: execution.md#secrets

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::path::Path;

use data_encoding::HEXLOWER_PERMISSIVE;
use secrecy::{ExposeSecret, SecretString};
use serde_json::{Map, Value};
use toolbooth_contracts::json::{JsonText, Rewrite};
use toolbooth_contracts::secret::{SecretLocation, names_a_secret};
use toolbooth_contracts::{ContentBlock, Outcome, Payload};

/// Longest secret, in bytes.
const SECRET_BYTES_MAX: u64 = 64 << 10;

/// Shorter values are not looked for: they stand in every text.
const CONCEALED_BYTES_MIN: usize = 4;

/// Why a setting cannot be resolved; never a value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the secret `{location}` cannot be used: {reason}")]
pub struct SecretError {
    /// The reference.
    pub location: String,
    /// Why.
    pub reason: String,
}

/// A value for a child process or a request. What it stands for is looked up when it is used.
#[derive(Clone, PartialEq, Eq)]
pub enum Setting {
    /// The text itself.
    Literal(String),
    /// Text in which `${NAME}` and `${NAME:-default}` stand for variables of the gateway.
    Template(String),
    /// A secret that is kept elsewhere.
    Secret(SecretLocation),
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
            // A literal may be a secret that somebody wrote where it does not belong.
            Self::Literal(_) => f.write_str("Literal(…)"),
            Self::Template(_) => f.write_str("Template(…)"),
            Self::Secret(location) => write!(f, "Secret({location})"),
        }
    }
}

impl Setting {
    /// The value.
    ///
    /// # Errors
    /// [`SecretError`] where a variable is not set, a file can be read by others, or nothing is
    /// kept under the reference.
    pub fn resolve(&self) -> Result<SecretString, SecretError> {
        match self {
            Self::Literal(text) => Ok(SecretString::from(text.clone())),
            Self::Template(text) => expand(text).map(SecretString::from),
            Self::Secret(location) => resolve(location),
        }
    }

    /// The text as configuration has it, for messages; a reference in place of a secret.
    #[must_use]
    pub fn shown(&self) -> String {
        match self {
            Self::Literal(text) | Self::Template(text) => text.clone(),
            Self::Secret(location) => format!("<{location}>"),
        }
    }

    /// `text` with the values of secrets, and of variables whose names name a secret, replaced by
    /// what configuration calls them. Other values are nobody's secret and stay: a tool's answer
    /// must not change because a word of it is somebody's setting.
    #[must_use]
    pub fn conceal_all<'s>(settings: impl Iterator<Item = &'s Self>, text: &str) -> String {
        Self::known(settings).conceal_text(text)
    }

    /// The values that [`conceal_all`](Self::conceal_all) replaces, with what configuration calls
    /// them; for replacing them often, and in documents.
    #[must_use]
    pub fn known<'s>(settings: impl Iterator<Item = &'s Self>) -> KnownSecrets {
        let mut known = Vec::new();
        let mut note = |value: SecretString, shown: String| {
            if value.expose_secret().len() >= CONCEALED_BYTES_MIN {
                known.push((value, shown));
            }
        };
        for setting in settings {
            match setting {
                Self::Literal(_) => (),
                Self::Template(own) => {
                    let _ = with_placeholders::<SecretError>(own, |inner| {
                        let name = inner.split(":-").next().unwrap_or(inner);
                        if names_a_secret(name)
                            && let Ok(value) = variable(inner)
                        {
                            note(SecretString::from(value), format!("${{{name}}}"));
                        }
                        Ok(String::new())
                    });
                }
                Self::Secret(_) => {
                    if let Ok(value) = setting.resolve() {
                        note(value, setting.shown());
                    }
                }
            }
        }
        // The longest first: one may be a part of another, whose rest would stay.
        known.sort_by_key(|(value, _)| std::cmp::Reverse(value.expose_secret().len()));
        KnownSecrets(known)
    }

    /// The value, to be handed on.
    #[cfg(any(feature = "process", feature = "endpoint", test))]
    pub(crate) fn expose(&self) -> Result<String, SecretError> {
        Ok(self.resolve()?.expose_secret().to_owned())
    }
}

/// Secrets that something was given in confidence.
#[derive(Clone, Default)]
pub struct KnownSecrets(Vec<(SecretString, String)>);

impl fmt::Debug for KnownSecrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("KnownSecrets").field(&self.0.len()).finish()
    }
}

impl KnownSecrets {
    /// `text` with their values replaced by what configuration calls them.
    #[must_use]
    pub fn conceal_text(&self, text: &str) -> String {
        self.concealed(text).unwrap_or_else(|| text.to_owned())
    }

    /// Replaces their values in every text of a document, names of members included, by what
    /// configuration calls them. Members keep their order. A name that another member has already
    /// gets a number. Numbers, and what is encoded within a text, are not looked into.
    pub fn conceal(&self, value: &mut Value) {
        if self.0.is_empty() {
            return;
        }
        match value {
            Value::String(text) => {
                if let Some(concealed) = self.concealed(text) {
                    *text = concealed;
                }
            }
            Value::Array(items) => items.iter_mut().for_each(|item| self.conceal(item)),
            Value::Object(members) => {
                members.values_mut().for_each(|member| self.conceal(member));
                if members.keys().any(|name| self.concealed(name).is_some()) {
                    *members = self.with_concealed_names(std::mem::take(members));
                }
            }
            _ => (),
        }
    }

    /// As [`KnownSecrets::conceal`], in a text; `None` where it has none of them. A tree is built
    /// only where the name of a member changes.
    #[must_use]
    pub fn concealed_json(&self, document: &JsonText) -> Option<JsonText> {
        struct Concealing<'s> {
            secrets: &'s KnownSecrets,
            in_a_name: bool,
        }
        impl Rewrite for Concealing<'_> {
            fn member(&mut self, name: &str) -> Option<String> {
                self.in_a_name |= self.secrets.concealed(name).is_some();
                None
            }
            fn text(&mut self, text: &str) -> Option<String> {
                self.secrets.concealed(text)
            }
        }
        if self.0.is_empty() {
            return None;
        }
        let mut rules = Concealing { secrets: self, in_a_name: false };
        let rewritten = document.rewritten(&mut rules);
        if !rules.in_a_name {
            return rewritten;
        }
        let mut tree = document.tree();
        self.conceal(&mut tree);
        // What was read from JSON can be written; were it not, none of it is shown.
        Some(JsonText::of(&tree).unwrap_or_else(|_| JsonText::of_text("")))
    }

    /// As [`KnownSecrets::concealed_json`], in an answer.
    pub fn conceal_payload(&self, payload: &mut Payload) {
        for block in payload.content.iter_mut().flatten() {
            if let Some(concealed) = self.concealed_json(block.json()) {
                *block = ContentBlock::new(concealed);
            }
        }
        for document in [&mut payload.structured_content, &mut payload.meta].into_iter().flatten() {
            if let Some(concealed) = self.concealed_json(document) {
                *document = concealed;
            }
        }
    }

    /// Replaces their values in an outcome, in what the agent and what the operator reads.
    pub fn conceal_outcome(&self, outcome: &mut Outcome) {
        match outcome {
            Outcome::Done(output) => {
                self.conceal_payload(&mut output.payload);
                output.internal = output.internal.take().map(|text| self.conceal_text(&text));
            }
            Outcome::Failed(error) => {
                error.safe = error.safe.take().map(|text| self.conceal_text(&text));
                error.internal = self.conceal_text(&error.internal);
            }
            Outcome::NeedsInput(needed) => self.conceal(&mut needed.requests),
        }
    }

    /// The text without their values; `None` where it has none.
    fn concealed(&self, text: &str) -> Option<String> {
        let mut out = None;
        for (secret, shown) in &self.0 {
            let own = out.as_deref().unwrap_or(text);
            if own.contains(secret.expose_secret()) {
                out = Some(own.replace(secret.expose_secret(), shown));
            }
        }
        out
    }

    fn with_concealed_names(&self, members: Map<String, Value>) -> Map<String, Value> {
        let names: Vec<Option<String>> = members.keys().map(|name| self.concealed(name)).collect();
        let kept = members.keys().zip(&names).filter(|(_, concealed)| concealed.is_none());
        let mut taken: HashSet<String> = kept.map(|(name, _)| name.clone()).collect();
        // How often a name was given, so that a server cannot make the search long.
        let mut given: HashMap<String, u64> = HashMap::new();
        let renamed = members.into_iter().zip(names).map(|((name, value), concealed)| {
            let Some(concealed) = concealed else { return (name, value) };
            let count = given.entry(concealed.clone()).or_default();
            let mut free = concealed.clone();
            loop {
                *count += 1;
                if *count > 1 {
                    free = format!("{concealed}#{count}");
                }
                if taken.insert(free.clone()) {
                    return (free, value);
                }
            }
        });
        renamed.collect()
    }
}

/// `text` with each `${…}` replaced by what `fill` gives for its inside. One that is not closed is
/// no placeholder.
///
/// # Errors
/// The first one of `fill`.
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

/// The text with its variables filled in.
fn expand(text: &str) -> Result<String, SecretError> {
    with_placeholders(text, variable)
}

/// The value of `NAME` or `NAME:-default`.
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

/// The secret at `location`.
///
/// # Errors
/// [`SecretError`] where it is not there, or a file can be read by others.
pub fn resolve(location: &SecretLocation) -> Result<SecretString, SecretError> {
    let error = |reason: String| SecretError { location: location.to_string(), reason };
    match location {
        SecretLocation::Env(name) => std::env::var(name)
            .ok()
            .filter(|value| !value.is_empty())
            .map(SecretString::from)
            .ok_or_else(|| error("the variable is not set".to_owned())),
        SecretLocation::File(path) => from_file(Path::new(path)).map_err(error),
        SecretLocation::Keyring { service, user } => from_keyring(service, user).map_err(error),
    }
}

/// A key of 32 bytes that is kept as 64 hex digits.
///
/// # Errors
/// [`SecretError`] as [`resolve`], and where it is no such key.
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

/// How long a key ring may take to answer; one that asks somebody to unlock it may never.
#[cfg(feature = "keyring")]
const KEYRING_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(5);

#[cfg(feature = "keyring")]
fn from_keyring(service: &str, user: &str) -> Result<SecretString, String> {
    let (service, user) = (service.to_owned(), user.to_owned());
    let (tell, told) = std::sync::mpsc::sync_channel(1);
    let asking = std::thread::Builder::new().name("keyring".to_owned()).spawn(move || {
        let secret =
            keyring::v1::Entry::new(&service, &user).and_then(|entry| entry.get_password());
        // The library's message names what was looked for, never what was found.
        let _ = tell.send(secret.map(SecretString::from).map_err(|error| error.to_string()));
    });
    asking.map_err(|error| error.to_string())?;
    told.recv_timeout(KEYRING_TIMEOUT).unwrap_or_else(|_| {
        Err(format!("the key ring did not answer within {} s", KEYRING_TIMEOUT.as_secs()))
    })
}

#[cfg(not(feature = "keyring"))]
fn from_keyring(_: &str, _: &str) -> Result<SecretString, String> {
    Err("this build has no key ring (feature `keyring`); use `env:` or `file:`".to_owned())
}

/// Checks that a file belongs to whoever runs the gateway, or to root, and that nobody else reads it.
///
/// # Errors
/// Why it is not so, in words.
#[cfg(unix)]
pub fn check_private(file: &std::fs::File) -> Result<(), String> {
    use std::os::unix::fs::MetadataExt;
    let metadata = file.metadata().map_err(|error| error.to_string())?;
    if !metadata.is_file() {
        return Err("it is no ordinary file".to_owned());
    }
    if metadata.mode() & 0o077 != 0 {
        return Err("others can read the file; make its mode 0600".to_owned());
    }
    let own = rustix::process::geteuid().as_raw();
    if metadata.uid() != own && metadata.uid() != 0 {
        return Err(format!(
            "the file belongs to user {}; it must be this user's ({own}) or root's",
            metadata.uid()
        ));
    }
    Ok(())
}

/// Checks nothing where files have no modes.
///
/// # Errors
/// None.
#[cfg(not(unix))]
pub fn check_private(_: &std::fs::File) -> Result<(), String> {
    Ok(())
}

fn from_file(path: &Path) -> Result<SecretString, String> {
    use std::io::Read;
    // A pipe in its place must not hold up the call, so it is looked at before it is opened.
    if !std::fs::metadata(path).map_err(|error| error.to_string())?.is_file() {
        return Err("it is no ordinary file".to_owned());
    }
    let file = std::fs::File::open(path).map_err(|error| error.to_string())?;
    check_private(&file)?;
    let mut text = String::new();
    file.take(SECRET_BYTES_MAX).read_to_string(&mut text).map_err(|error| error.to_string())?;
    let kept = text.trim_end_matches(['\n', '\r']).len();
    text.truncate(kept);
    Ok(SecretString::from(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(reference: &str) -> Result<String, String> {
        let location = SecretLocation::try_from(reference.to_owned()).unwrap();
        Setting::Secret(location).expose().map_err(|error| error.to_string())
    }

    #[cfg(unix)]
    #[test]
    fn files_are_read_only_where_nobody_else_can() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("secret");
        std::fs::write(&path, "hunter2\n").unwrap();
        let reference = format!("file:{}", path.display());
        let mode = |mode| std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
        mode(0o600);
        assert_eq!(at(&reference).unwrap(), "hunter2");
        mode(0o640);
        let error = at(&reference).unwrap_err();
        assert!(error.contains("0600") && !error.contains("hunter2"), "{error}");
        assert!(at(&format!("file:{}", folder.path().display())).unwrap_err().contains("ordinary"));
        assert!(at("file:/no/such/file").is_err());
    }

    #[cfg(unix)]
    #[test]
    fn a_file_of_somebody_else_is_refused() {
        let Ok(status) = std::process::Command::new("chown").arg("--version").output() else {
            return;
        };
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("secret");
        std::fs::write(&path, "hunter2").unwrap();
        let given = std::process::Command::new("chown").arg("65534").arg(&path).status();
        if !status.status.success() || !given.is_ok_and(|given| given.success()) {
            println!("SKIPPED: this user cannot give files away");
            return;
        }
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        std::fs::set_permissions(&path, mode).unwrap();
        assert!(at(&format!("file:{}", path.display())).unwrap_err().contains("65534"));
    }

    #[test]
    fn templates_are_filled_in_and_literals_are_not() {
        let filled = |text: &str| {
            Setting::Template(text.to_owned()).expose().map_err(|error| error.to_string())
        };
        let path = std::env::var("PATH").unwrap();
        assert_eq!(filled("a ${PATH} b").unwrap(), format!("a {path} b"));
        assert_eq!(filled("${TOOLBOOTH_NO_SUCH:-x y}$HOME ${").unwrap(), "x y$HOME ${");
        assert!(filled("${TOOLBOOTH_NO_SUCH}").unwrap_err().contains("TOOLBOOTH_NO_SUCH"));
        assert_eq!(Setting::from("${PATH}").expose().unwrap(), "${PATH}");
        assert!(at("env:TOOLBOOTH_NO_SUCH").is_err());
        assert_eq!(format!("{:?}", Setting::from("hunter2")), "Literal(…)");
    }

    #[test]
    fn only_secrets_are_concealed() {
        let settings = [
            Setting::Template("${TOOLBOOTH_NO_LEVEL:-info} level".to_owned()),
            Setting::Template("Bearer ${TOOLBOOTH_NO_TOKEN:-hunter2}".to_owned()),
            Setting::from("literal"),
        ];
        let said = "info level: literal, hunter2";
        assert_eq!(
            Setting::conceal_all(settings.iter(), said),
            "info level: literal, ${TOOLBOOTH_NO_TOKEN}"
        );
    }

    #[test]
    fn names_of_members_are_concealed_in_their_order() {
        let secret = Setting::Template("${TOOLBOOTH_NO_TOKEN:-hunter2}".to_owned());
        let longer = Setting::Template("${TOOLBOOTH_NO_SECRET:-hunter2-and-more}".to_owned());
        let known = Setting::known([&secret, &longer].into_iter());
        let mut document = serde_json::json!({
            "z": 1, "a hunter2": {"hunter2": "hunter2-and-more"}, "hunter2": [2],
            "${TOOLBOOTH_NO_TOKEN}": 3, "${TOOLBOOTH_NO_TOKEN}#2": 4, "b": 5,
        });
        known.conceal(&mut document);
        let expected = concat!(
            r#"{"z":1,"a ${TOOLBOOTH_NO_TOKEN}":{"${TOOLBOOTH_NO_TOKEN}":"#,
            r#""${TOOLBOOTH_NO_SECRET}"},"${TOOLBOOTH_NO_TOKEN}#3":[2],"#,
            r#""${TOOLBOOTH_NO_TOKEN}":3,"${TOOLBOOTH_NO_TOKEN}#2":4,"b":5}"#,
        );
        assert_eq!(document.to_string(), expected);
    }

    #[cfg(feature = "keyring")]
    #[test]
    fn what_the_key_ring_does_not_have_is_told() {
        let error = at("keyring:toolbooth-no-such-service/nobody").unwrap_err();
        assert!(error.starts_with("the secret `keyring:toolbooth-no-such"), "{error}");
    }

    #[cfg(not(feature = "keyring"))]
    #[test]
    fn without_a_key_ring_its_secrets_are_not_there() {
        assert!(at("keyring:mail/me").unwrap_err().contains("feature `keyring`"));
    }
}
