//! Implements `read_file` and `list_dir`: read-only access beneath the configured roots, by
//! directory descriptors.
//!
//! The crate `cap-std` resolves every path beneath an open directory. It rejects links that lead
//! out of a root.

use std::io::Read;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use cap_std::ambient_authority;
use cap_std::fs::{Dir, OpenOptions};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use toolbooth_contracts::ToolOutput;

use crate::functions::{FunctionError, Functions};
use crate::secret_paths::is_in_data_folder;

/// Maximum size of a file that is read, in bytes.
pub(crate) const FILE_BYTES_MAX: u64 = 1 << 20;
/// Maximum size of a document that is parsed, in bytes.
pub(crate) const DOCUMENT_BYTES_MAX: u64 = 20 << 20;
/// Maximum number of entries of a folder that is listed.
const ENTRIES_MAX: usize = 10_000;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct FilePath {
    /// Path of the file, relative to the root or absolute inside it.
    #[schemars(length(min = 1, max = 4096))]
    path: String,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct FolderPath {
    /// Path of the folder, relative to the root or absolute inside it; `.` is the root.
    #[schemars(length(min = 1, max = 4096))]
    path: String,
}

/// Folders beneath which files can be read.
#[derive(Debug)]
pub struct Roots {
    folders: Vec<(PathBuf, Dir)>,
    /// The gateway's own paths: records, keys, configuration.
    hidden: Vec<PathBuf>,
}

impl Roots {
    /// Opens the roots. One that cannot be opened is left out, with a warning. Nothing beneath
    /// `hidden` is ever read.
    #[must_use]
    pub fn open(paths: &[PathBuf], hidden: &[PathBuf]) -> Self {
        let open = |path: &PathBuf| {
            let opened = path.canonicalize().and_then(|real| {
                let folder = Dir::open_ambient_dir(&real, ambient_authority())?;
                Ok((real, folder))
            });
            opened
                .inspect_err(|error| tracing::warn!(root = %path.display(), %error, "a root cannot be opened"))
                .ok()
        };
        let folders = paths.iter().filter_map(open).collect();
        Self { folders, hidden: hidden.to_vec() }
    }

    /// Whether an opened file belongs to the gateway, or is in the data folder of any gateway or in a backup. The open
    /// descriptor is checked, because the path may lead to another file by now.
    #[cfg(target_os = "linux")]
    fn is_hidden(&self, opened: &impl std::os::fd::AsRawFd) -> bool {
        let link = format!("/proc/self/fd/{}", opened.as_raw_fd());
        let Ok(real) = std::fs::read_link(link) else { return true };
        let is_own = self.hidden.iter().any(|hidden| {
            // A path that does not exist yet hides nothing.
            hidden.canonicalize().is_ok_and(|hidden| real.starts_with(hidden))
        });
        is_own || is_in_data_folder(&real)
    }

    #[cfg(not(target_os = "linux"))]
    fn is_hidden<T>(&self, _: &T) -> bool {
        !self.hidden.is_empty()
    }

    /// Returns the root that contains a path, and the path relative to it.
    fn resolve_path(&self, path: &str) -> Result<(&Dir, PathBuf), FunctionError> {
        let outside = || FunctionError::from("the path is outside of the folders that may be read");
        let path = Path::new(path);
        if path.is_absolute() {
            return self
                .folders
                .iter()
                .find_map(|(root, folder)| {
                    let beneath = path.strip_prefix(root).ok()?;
                    let beneath =
                        if beneath.as_os_str().is_empty() { Path::new(".") } else { beneath };
                    Some((folder, beneath.to_owned()))
                })
                .ok_or_else(outside);
        }
        if path.components().any(|part| matches!(part, Component::Prefix(_))) {
            return Err(outside());
        }
        self.folders
            .first()
            .map(|(_, folder)| (folder, path.to_owned()))
            .ok_or_else(|| "no folder may be read".into())
    }

    /// Returns the bytes of a file, at most `max`.
    pub(crate) fn read(&self, path: &str, max: u64) -> Result<Vec<u8>, FunctionError> {
        let (folder, beneath) = self.resolve_path(path)?;
        let mut options = OpenOptions::new();
        options.read(true);
        #[cfg(unix)]
        {
            use cap_std::fs::OpenOptionsExt;
            // Opening a named pipe must not block the call.
            options.custom_flags(0o4000);
        }
        let file = folder.open_with(&beneath, &options).map_err(|error| message_of(&error))?;
        if self.is_hidden(&file) {
            return Err(message_of(&std::io::ErrorKind::NotFound.into()).into());
        }
        let metadata = file.metadata().map_err(|error| message_of(&error))?;
        if !metadata.is_file() {
            return Err("the path is not a file".into());
        }
        if metadata.len() > max {
            let bytes = metadata.len();
            return Err(format!("the file has {bytes} bytes, at most {max} are read").into());
        }
        let mut bytes = Vec::new();
        file.take(max + 1).read_to_end(&mut bytes).map_err(|error| message_of(&error))?;
        if bytes.len() as u64 > max {
            return Err(format!("the file has more than {max} bytes").into());
        }
        Ok(bytes)
    }

    fn list(&self, path: &str) -> Result<Vec<Value>, FunctionError> {
        let (folder, beneath) = self.resolve_path(path)?;
        let folder = folder.open_dir(&beneath).map_err(|error| message_of(&error))?;
        if self.is_hidden(&folder) {
            return Err(message_of(&std::io::ErrorKind::NotFound.into()).into());
        }
        let entries = folder.entries().map_err(|error| message_of(&error))?;
        let mut found = Vec::new();
        for entry in entries {
            let entry = entry.map_err(|error| message_of(&error))?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let kind = match entry.file_type() {
                Ok(kind) if kind.is_dir() => "folder",
                Ok(kind) if kind.is_file() => "file",
                Ok(kind) if kind.is_symlink() => "link",
                _ => "other",
            };
            let bytes = entry.metadata().ok().filter(|_| kind == "file").map(|data| data.len());
            found.push(match bytes {
                Some(bytes) => json!({ "name": name, "kind": kind, "bytes": bytes }),
                None => json!({ "name": name, "kind": kind }),
            });
            if found.len() > ENTRIES_MAX {
                return Err(format!("the folder has more than {ENTRIES_MAX} entries").into());
            }
        }
        found.sort_by(|a, b| a["name"].as_str().cmp(&b["name"].as_str()));
        Ok(found)
    }
}

/// Returns the text of an error for the agent: its kind, never a path.
fn message_of(error: &std::io::Error) -> String {
    match error.kind() {
        std::io::ErrorKind::NotFound => "there is no such file or folder".to_owned(),
        std::io::ErrorKind::PermissionDenied => {
            "the path is outside of the folders that may be read, or may not be read".to_owned()
        }
        std::io::ErrorKind::NotADirectory => "the path is not a folder".to_owned(),
        _ => "it cannot be read".to_owned(),
    }
}

/// Runs blocking work outside of the async threads.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, FunctionError> + Send + 'static,
) -> Result<T, FunctionError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(_) => Err("it cannot be read".into()),
    }
}

pub(super) fn add(functions: &mut Functions, roots: Arc<Roots>) -> [Value; 2] {
    let files = Arc::clone(&roots);
    let read = functions.add(
        "read_file",
        "Reads a text file beneath the folders that may be read.",
        move |file: FilePath| {
            let roots = Arc::clone(&files);
            async move {
                let text = blocking(move || {
                    String::from_utf8(roots.read(&file.path, FILE_BYTES_MAX)?).map_err(|_| {
                        FunctionError::from("the file is not UTF-8 text; `doc_parser` reads PDF")
                    })
                })
                .await?;
                Ok(ToolOutput::text(text))
            }
        },
    );
    let list = functions.add(
        "list_dir",
        "Lists a folder beneath the folders that may be read.",
        move |folder: FolderPath| {
            let roots = Arc::clone(&roots);
            async move {
                let entries = blocking(move || roots.list(&folder.path)).await?;
                let names: Vec<String> = entries
                    .iter()
                    .map(|entry| {
                        let slash = if entry["kind"] == "folder" { "/" } else { "" };
                        format!("{}{slash}", entry["name"].as_str().unwrap_or_default())
                    })
                    .collect();
                let data = json!({ "entries": entries });
                Ok(ToolOutput::text_and_data(names.join("\n"), &data))
            }
        },
    );
    [read, list]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_outside_of_the_roots_is_read() {
        let outside = tempfile::tempdir().unwrap();
        std::fs::write(outside.path().join("secret"), "s").unwrap();
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir(root.path().join("sub")).unwrap();
        std::fs::write(root.path().join("in.txt"), "in").unwrap();
        std::os::unix::fs::symlink(outside.path(), root.path().join("link")).unwrap();
        std::os::unix::fs::symlink("../in.txt", root.path().join("sub/inner")).unwrap();
        let roots = Roots::open(&[root.path().to_owned()], &[]);
        let read =
            |path: &str| roots.read(path, 100).map(|bytes| String::from_utf8(bytes).unwrap());
        assert_eq!(read("in.txt").unwrap(), "in");
        assert_eq!(read("sub/../in.txt").unwrap(), "in");
        assert_eq!(read("sub/inner").unwrap(), "in", "links that stay inside are followed");
        let absolute = root.path().canonicalize().unwrap().join("in.txt");
        assert_eq!(read(absolute.to_str().unwrap()).unwrap(), "in");
        for bad in [
            "link/secret",
            "../x",
            "/etc/passwd",
            "sub/../../x",
            "sub",
            "none",
            "/proc/self/root/etc/passwd",
        ] {
            let error = read(bad).unwrap_err();
            assert!(!error.0.contains('/'), "{bad}: {error}");
        }
        assert!(roots.list("link").is_err() && roots.list("..").is_err());
        assert_eq!(roots.list(".").unwrap().len(), 3);
        assert!(roots.read("in.txt", 1).unwrap_err().0.contains("at most 1"));
    }

    #[test]
    fn what_is_the_gateways_own_is_not_there() {
        let root = tempfile::tempdir().unwrap();
        let records = root.path().join(".records");
        std::fs::create_dir(&records).unwrap();
        std::fs::write(records.join("key"), "k").unwrap();
        std::fs::write(root.path().join("settings"), "k").unwrap();
        std::os::unix::fs::symlink(".records/key", root.path().join("link")).unwrap();
        let hidden = [records, root.path().join("settings"), root.path().join("none")];
        let roots = Roots::open(&[root.path().to_owned()], &hidden);
        for path in [".records/key", "link", "settings", "./.records/../.records/key"] {
            assert!(roots.read(path, 100).unwrap_err().0.contains("no such"), "{path}");
        }
        assert!(roots.list(".records").is_err() && roots.list(".").is_ok());
    }

    #[test]
    fn a_link_that_is_swapped_while_it_is_followed_leads_nowhere() {
        use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
        let outside = tempfile::tempdir().unwrap();
        std::fs::write(outside.path().join("file"), "secret").unwrap();
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir(root.path().join("inside")).unwrap();
        std::fs::write(root.path().join("inside/file"), "open").unwrap();
        let (link, draft) = (root.path().join("link"), root.path().join("draft"));
        let away = outside.path().to_owned();
        std::os::unix::fs::symlink("inside", &link).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let swaps = Arc::new(AtomicU32::new(0));
        let (stopping, swapped) = (Arc::clone(&stop), Arc::clone(&swaps));
        let swapper = std::thread::spawn(move || {
            while !stopping.load(Ordering::Relaxed) {
                let is_even = swapped.load(Ordering::Relaxed).is_multiple_of(2);
                let to = if is_even { away.clone() } else { "inside".into() };
                std::os::unix::fs::symlink(to, &draft).unwrap();
                std::fs::rename(&draft, &link).unwrap();
                swapped.fetch_add(1, Ordering::Relaxed);
            }
        });
        let roots = Roots::open(&[root.path().to_owned()], &[]);
        let (mut read, mut refused) = (0, 0);
        // The loop runs until both results and the swap of the link have occurred often. That
        // proves that the race took place.
        while read < 500 || refused < 500 || swaps.load(Ordering::Relaxed) <= 100 {
            match roots.read("link/file", 100) {
                Ok(bytes) => {
                    assert_eq!(bytes, b"open");
                    read += 1;
                }
                Err(_) => refused += 1,
            }
            assert!(roots.list("link").map_or(true, |entries| entries.len() == 1));
        }
        stop.store(true, Ordering::Relaxed);
        swapper.join().unwrap();
    }
}
