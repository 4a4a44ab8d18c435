//! The file of first-use pins in the data folder.
//!
//! Makes no decisions: the registry decides which pins exist and which effect they have.
//!
//! Doc: registry.md#first-use

use std::fs::File;
use std::path::{Path, PathBuf};

use async_trait::async_trait;
use toolbooth_contracts::causes::with_causes;
use toolbooth_proxy::{FirstListing, PinError, PinStore, Pinned};
use toolbooth_registry::lock::LockFile;
use toolbooth_store::sqlite::StoreFolder;

use crate::failure::{Failure, OUT_OF_REACH, USAGE};

/// The name of the pin file, which has the format of the lock file.
pub(crate) const PINS: &str = "tools.pins.json";
/// The name of the lock that a process holds while it changes the pins.
const PINS_LOCK: &str = "tools.pins.lock";

/// The file of first-use pins.
#[derive(Debug, Clone)]
pub(crate) struct PinFile {
    folder: PathBuf,
}

impl PinFile {
    /// Returns the pin file of a data folder.
    pub(crate) fn of(data: &Path) -> Self {
        Self { folder: data.to_owned() }
    }

    /// Returns the path of the pin file.
    pub(crate) fn path(&self) -> PathBuf {
        self.folder.join(PINS)
    }

    /// Reads the pins; `None` if the file does not exist.
    ///
    /// An unreadable file is an error, because it must not count as a first use.
    pub(crate) fn read(&self) -> Result<Option<LockFile>, Failure> {
        let shown = self.path().display().to_string();
        let text = match crate::files::read(&self.path()) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => {
                let message = format!("the pins of first use cannot be read: {error}");
                return Err(Failure::new(USAGE, "invalid-pins", message).at(shown));
            }
        };
        LockFile::parse(&text).map(Some).map_err(|error| {
            let location = match error.location {
                Some((line, column)) => format!("{shown}:{line}:{column}"),
                None => shown,
            };
            Failure::new(USAGE, "invalid-pins", error.message).at(location).hint(
                "restore the file from a backup; if you remove it, the next listing of every \
                 source is pinned as its first",
            )
        })
    }

    /// Changes the pins under a lock between processes: reads, changes and durably writes them. If
    /// `must_exist` is set, a missing file is an error.
    pub(crate) fn change<T>(
        &self,
        must_exist: bool,
        change: impl FnOnce(&mut LockFile) -> T,
    ) -> Result<(LockFile, T), Failure> {
        StoreFolder::create(&self.folder)
            .map_err(|error| self.cannot_write(&with_causes(&error)))?;
        // Closing the file releases the lock, also if this process dies.
        let _held = self.hold()?;
        let before = self.read()?;
        if before.is_none() && must_exist {
            return Err(self.cannot_write("the file was there, and is gone; start again"));
        }
        let mut pins = before.clone().unwrap_or_else(LockFile::empty);
        let out = change(&mut pins);
        if before.as_ref() != Some(&pins) {
            crate::files::replace_private(&self.path(), pins.to_text().as_bytes())
                .map_err(|error| self.cannot_write(&error.to_string()))?;
        }
        Ok((pins, out))
    }

    fn hold(&self) -> Result<File, Failure> {
        let held = crate::files::hold(&self.folder.join(PINS_LOCK));
        held.map_err(|error| self.cannot_write(&error.to_string()))
    }

    fn cannot_write(&self, reason: &str) -> Failure {
        Failure::new(OUT_OF_REACH, "cannot-write", format!("the pins cannot be written: {reason}"))
            .at(self.path().display().to_string())
            .hint("`[lock] mode = \"file\"` needs no pins")
    }
}

#[async_trait]
impl PinStore for PinFile {
    async fn pin(&self, listing: FirstListing) -> Result<Pinned, PinError> {
        let pins = self.clone();
        let pinning = tokio::task::spawn_blocking(move || {
            // If this process knows pins but the file is missing, the file was removed while the process
            // runs.
            let known = listing.known.sources_seen() > 0 || !listing.known.is_empty();
            pins.change(known, |kept| {
                let pinned = listing.added_to(std::mem::take(kept));
                *kept = pinned.pins;
                (pinned.tools, pinned.items)
            })
        });
        match pinning.await {
            Ok(Ok((pins, (tools, items)))) => Ok(Pinned { pins, tools, items }),
            Ok(Err(failure)) => {
                let shown_path = failure.path.map(|path| format!(" ({path})")).unwrap_or_default();
                Err(PinError::Store(format!("{}{shown_path}", failure.message).into()))
            }
            Err(error) => Err(PinError::Store(error.into())),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::sync::Arc;

    use serde_json::json;
    use toolbooth_contracts::Guard;
    use toolbooth_contracts::port::DiscoveredTool;
    use toolbooth_registry::discovered::{SourcePolicy, entry};
    use toolbooth_registry::lock::NewTools;
    use toolbooth_registry::{RegisteredTool, Source};

    use super::*;

    fn listing(source: &str, description: &str, known: &LockFile) -> FirstListing {
        let source = Source::Mcp(source.into());
        let discovered = DiscoveredTool {
            name: "read".into(),
            title: None,
            description: Some(description.into()),
            input_schema: json!({"type": "object"}),
            output_schema: None,
            annotations: None,
            extra: serde_json::Map::new(),
        };
        let entry = entry(&source, &discovered, &SourcePolicy::default());
        let tool = RegisteredTool::from_entry(&entry, source.clone(), &Guard::default()).unwrap();
        let tools = vec![Arc::new(tool)];
        FirstListing {
            source,
            tools,
            items: Vec::new(),
            new_tools: NewTools::Deny,
            known: known.clone(),
        }
    }

    #[tokio::test]
    async fn pins_are_private_and_the_first_one_stays() {
        let folder = tempfile::tempdir().unwrap();
        let (one, two) = (PinFile::of(folder.path()), PinFile::of(folder.path()));
        let none = LockFile::empty();
        assert_eq!(one.read().unwrap(), None);
        let pinned = one.pin(listing("s", "Reads.", &none)).await.unwrap();
        assert_eq!(pinned.tools.len(), 1);
        let mode = std::fs::metadata(one.path()).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        // This process has not read these pins yet.
        let other = two.pin(listing("s", "Reads, and mails.", &none)).await.unwrap();
        assert!(other.tools.is_empty() && other.pins == pinned.pins);
        let more = two.pin(listing("t", "Reads.", &none)).await.unwrap();
        assert_eq!(one.read().unwrap(), Some(more.pins.clone()));
        assert!(more.pins.get("s.read").is_some() && more.pins.get("t.read").is_some());
    }

    #[tokio::test]
    async fn processes_at_once_lose_no_pin() {
        let folder = tempfile::tempdir().unwrap();
        let pins = PinFile::of(folder.path());
        // Two threads of one process cannot create the folder at the same time; two processes can.
        StoreFolder::create(folder.path()).unwrap();
        let names: Vec<String> = (0..16).map(|n| format!("s{n}")).collect();
        let pinning: Vec<_> = names
            .iter()
            .map(|name| {
                let (pins, name) = (pins.clone(), name.clone());
                tokio::spawn(
                    async move { pins.pin(listing(&name, "Reads.", &LockFile::empty())).await },
                )
            })
            .collect();
        for pinned in pinning {
            pinned.await.unwrap().unwrap();
        }
        let kept = pins.read().unwrap().unwrap();
        assert_eq!((kept.len(), kept.sources_seen()), (16, 16));
    }

    #[tokio::test]
    async fn pins_that_cannot_be_read_or_are_gone_are_not_made_anew() {
        let folder = tempfile::tempdir().unwrap();
        let pins = PinFile::of(folder.path());
        let none = LockFile::empty();
        let known = pins.pin(listing("s", "Reads.", &none)).await.unwrap().pins;
        let text = std::fs::read_to_string(pins.path()).unwrap();
        for broken in ["", "{", &text.replace("Reads.", "Writes."), &text[..text.len() / 2]] {
            std::fs::write(pins.path(), broken).unwrap();
            assert_eq!(pins.read().unwrap_err().code, "invalid-pins");
            assert!(pins.pin(listing("t", "Reads.", &none)).await.is_err());
            assert_eq!(std::fs::read_to_string(pins.path()).unwrap(), broken, "it stays");
        }
        std::fs::remove_file(pins.path()).unwrap();
        let gone = pins.pin(listing("t", "Reads.", &known)).await.unwrap_err();
        assert!(gone.to_string().contains("gone") && !pins.path().exists(), "{gone}");
    }
}
