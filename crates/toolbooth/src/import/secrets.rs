//! Moves values of a client's file to storage that only their owner can read: secrets, and all values that
//! are not clearly harmless.
//!
//! It never shows a value, and never replaces an existing file.
//!
//! Doc: importing.md#secrets

use std::collections::BTreeMap;
use std::fs::DirBuilder;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use secrecy::ExposeSecret;
use toolbooth_import::{Literal, Sections, not_copied};
use toolbooth_store::sqlite::StoreFolder;

use crate::config::{Loaded, Setting};
use crate::executors::folder_name;
use crate::failure::{Failure, OUT_OF_REACH};

/// The folder of secrets in the data folder.
const FOLDER: &str = "secrets";
/// The service name of the secrets in a key ring.
const SERVICE: &str = "toolbooth";
/// The maximum number of names that are tried for one secret.
const NAMES_MAX: usize = 100;

/// The storage of secrets and other values of a client's file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum SecretStorage {
    /// No storage: the user who starts Toolbooth sets variables for secrets.
    Env,
    /// Files of mode 0600 in the data folder.
    File,
    /// The key ring of the operating system.
    Keyring,
}

/// Returns the literals of the added sections, with the names of the sections.
fn literals<'s>(
    sections: &'s Sections,
    added: &'s [String],
) -> impl Iterator<Item = (&'s str, &'s Literal)> {
    sections.iter().filter(|((kind, name), _)| added.contains(&format!("{kind}.{name}"))).flat_map(
        |((_, name), section)| section.literals.iter().map(move |literal| (name.as_str(), literal)),
    )
}

/// Whether a value can be stored elsewhere unchanged. A client expands variables in its text, and a file does
/// not keep a line break at its end.
fn can_move(literal: &Literal) -> bool {
    let value = literal.value.expose_secret();
    !value.contains("${") && !value.ends_with(['\n', '\r'])
}

/// Returns the folder of secrets.
pub(crate) fn folder(data: &Path) -> PathBuf {
    data.join(FOLDER)
}

/// The values that were moved.
#[derive(Debug, Default)]
pub(crate) struct MovedValues {
    references: Vec<Reference>,
    files: Vec<PathBuf>,
}

/// The location of a stored value.
#[derive(Debug)]
struct Reference {
    server: String,
    kind: &'static str,
    name: String,
    location: String,
    is_secret: bool,
}

impl MovedValues {
    /// Deletes the stored values if the configuration that refers to them was not written.
    pub(crate) fn take_back(&self) {
        for file in &self.files {
            let _ = std::fs::remove_file(file);
        }
        #[cfg(feature = "keyring")]
        for Reference { location, .. } in &self.references {
            let user = location.strip_prefix(&format!("keyring:{SERVICE}/"));
            let entry = user.map(|user| keyring::v1::Entry::new(SERVICE, user));
            let _ = entry.map(|entry| entry.and_then(|entry| entry.delete_credential()));
        }
    }
}

/// Moves the literals of the added sections and replaces them by references. Stores them in `said`, else in
/// the key ring if this build has one that accepts them, else in files. Returns the moved values, and
/// notices.
pub(crate) fn relocate(
    said: Option<SecretStorage>,
    sections: &mut Sections,
    added: &[String],
    data: &Path,
) -> Result<(MovedValues, Vec<String>), Failure> {
    let (mut moved, mut notices) = (MovedValues::default(), Vec::new());
    let mut storage = said.unwrap_or(match cfg!(feature = "keyring") {
        true => SecretStorage::Keyring,
        false => SecretStorage::File,
    });
    let mut beside: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for (server, literal) in literals(sections, added) {
        let Literal { kind, name, variable, value, is_secret } = literal;
        if storage == SecretStorage::Env || !can_move(literal) {
            if *is_secret {
                notices.push(not_copied(server, &format!("{kind}.{name}"), variable));
            }
            continue;
        }
        let value = value.expose_secret();
        let mut kept = match storage {
            SecretStorage::Keyring => keep_in_ring(server, name, value),
            _ => keep_in_file(data, server, name, value),
        };
        if let (Err(failure), SecretStorage::Keyring, None) = (&kept, storage, said) {
            notices.push(format!("{}; files of mode 0600 are used", failure.message));
            storage = SecretStorage::File;
            kept = keep_in_file(data, server, name, value);
        }
        let (location, file) = kept.inspect_err(|_| moved.take_back())?;
        moved.files.extend(file);
        match is_secret {
            true => {
                notices.push(format!("servers.{server}: {kind}.{name} is kept in `{location}` now"))
            }
            false => beside.entry(server).or_default().push(format!("{name} in `{location}`")),
        }
        moved.references.push(Reference {
            server: server.to_owned(),
            kind,
            name: name.clone(),
            location,
            is_secret: *is_secret,
        });
    }
    notices.extend(beside.into_iter().map(|(server, names)| {
        let names = names.join(", ");
        format!("servers.{server}: moved as well, and no secrets (`mask = false`): {names}")
    }));
    for Reference { server, kind, name, location, is_secret } in &moved.references {
        if let Some(section) = sections.get_mut(&("servers", server.clone())) {
            section.refer(kind, name, location, *is_secret);
        }
    }
    Ok((moved, notices))
}

/// Describes the effect of [`relocate`] on values.
pub(crate) fn rehearse(sections: &Sections, added: &[String]) -> Vec<String> {
    let movable = literals(sections, added).filter(|(_, literal)| can_move(literal));
    let told = |(server, Literal { kind, name, is_secret, .. }): (&str, &Literal)| {
        let what = if *is_secret { "as a secret" } else { "as no secret" };
        format!(
            "servers.{server}: {kind}.{name} would be kept apart from the configuration, {what}"
        )
    };
    movable.map(told).collect()
}

/// Returns the names that are tried for a secret, the plain one first.
fn names(base: &str) -> impl Iterator<Item = String> {
    (1..=NAMES_MAX).map(move |number| match number {
        1 => base.to_owned(),
        _ => format!("{base}.{number}"),
    })
}

fn keep_in_file(
    data: &Path,
    server: &str,
    name: &str,
    value: &str,
) -> Result<(String, Option<PathBuf>), Failure> {
    let folder = folder(data);
    let failed = |error: std::io::Error| {
        let message = format!("a secret cannot be written: {error}");
        Failure::new(OUT_OF_REACH, "cannot-write", message).at(folder.display().to_string())
    };
    // The data folder excludes itself from version control.
    StoreFolder::create(data).map_err(|error| failed(std::io::Error::other(error)))?;
    DirBuilder::new().recursive(true).mode(0o700).create(&folder).map_err(failed)?;
    if !folder.symlink_metadata().map_err(failed)?.is_dir() {
        return Err(failed(std::io::Error::other("it is not a folder")));
    }
    std::fs::set_permissions(&folder, PermissionsExt::from_mode(0o700)).map_err(failed)?;
    let base = format!("{}.{}", folder_name(server), folder_name(name));
    // An existing file can belong to another configuration.
    let mut paths = names(&base).map(|name| folder.join(name));
    let free = paths.find(|path| path.symlink_metadata().is_err());
    let path =
        free.ok_or_else(|| failed(std::io::Error::other("there are too many of one name")))?;
    crate::files::replace_private(&path, value.as_bytes()).map_err(failed)?;
    Ok((format!("file:{}", path.display()), Some(path)))
}

#[cfg(feature = "keyring")]
fn keep_in_ring(
    server: &str,
    name: &str,
    value: &str,
) -> Result<(String, Option<PathBuf>), Failure> {
    use std::sync::mpsc::sync_channel;
    /// A key ring that asks the user to unlock it may never respond.
    const TIMEOUT: std::time::Duration = std::time::Duration::from_secs(30);
    let base = format!("{}.{}", folder_name(server), folder_name(name));
    let failed = |reason: String| {
        let message = format!("the key ring took no secret: {reason}");
        Failure::new(OUT_OF_REACH, "cannot-write", message)
            .hint("`--secrets file` keeps them in files of mode 0600")
    };
    let (tell, told) = sync_channel(1);
    let value = value.to_owned();
    let asking = std::thread::Builder::new().name("keyring".to_owned()).spawn(move || {
        // The library's message contains the requested name, but never the value.
        let set = set_free(&base, &value).map_err(|error| error.to_string());
        let _ = tell.send(set);
    });
    asking.map_err(|error| failed(error.to_string()))?;
    match told.recv_timeout(TIMEOUT) {
        Ok(Ok(Some(user))) => Ok((format!("keyring:{SERVICE}/{user}"), None)),
        Ok(Ok(None)) => Err(failed("there are too many of one name".to_owned())),
        Ok(Err(reason)) => Err(failed(reason)),
        Err(_) => Err(failed(format!("it did not answer within {} s", TIMEOUT.as_secs()))),
    }
}

/// Stores a secret under the first free name. An existing name can belong to another configuration.
#[cfg(feature = "keyring")]
fn set_free(base: &str, value: &str) -> keyring::v1::Result<Option<String>> {
    for user in names(base) {
        let entry = keyring::v1::Entry::new(SERVICE, &user)?;
        match entry.get_password() {
            Err(keyring::v1::Error::NoEntry) => {
                entry.set_password(value)?;
                return Ok(Some(user));
            }
            Err(error) => return Err(error),
            Ok(_) => (),
        }
    }
    Ok(None)
}

#[cfg(not(feature = "keyring"))]
fn keep_in_ring(_: &str, _: &str, _: &str) -> Result<(String, Option<PathBuf>), Failure> {
    Err(Failure::usage("this build has no key ring (feature `keyring`)")
        .hint("`--secrets file` keeps them in files of mode 0600"))
}

/// Returns the references of a configuration to secrets that `import` has moved.
pub(crate) fn kept(loaded: &Loaded) -> Vec<String> {
    let (files, ring) =
        (format!("file:{}/", folder(&loaded.data).display()), format!("keyring:{SERVICE}/"));
    let servers = loaded.config.servers.values();
    let mut kept: Vec<String> = servers
        .flat_map(|server| server.env.values().chain(server.headers.values()))
        .filter_map(|setting| match setting {
            Setting::Kept(kept) => Some(kept.secret_ref.to_string()),
            Setting::Text(_) => None,
        })
        .filter(|reference| reference.starts_with(&files) || reference.starts_with(&ring))
        .collect();
    kept.sort();
    kept
}
