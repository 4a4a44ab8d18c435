//! Finds the servers that need more access than their profile permits, and the setting that permits it.
//!
//! Doc: importing.md#containment

use std::path::{Path, PathBuf};

use toml_edit::{Array, InlineTable, Value};
use toolbooth_adapters::mcp::Child;
use toolbooth_adapters::sandbox::{is_project, is_wide};
use toolbooth_adapters::secret_path_of;
use toolbooth_contracts::sandbox::{Enforce, SandboxProfile};

use crate::executors;

/// Programs that start containers through a socket of the host.
const RUNNERS: [&str; 5] = ["docker", "podman", "nerdctl", "docker-compose", "podman-compose"];
/// Programs that run another one.
const WRAPPERS: [&str; 3] = ["env", "sudo", "doas"];

/// Returns the program in a command line that starts containers.
pub(crate) fn container_runner(command: &str, arguments: &[String]) -> Option<&'static str> {
    let name = |word: &str| {
        let file = Path::new(word).file_name()?.to_str()?;
        Some(file.strip_suffix(".exe").unwrap_or(file).to_owned())
    };
    let runner = |word: &str| {
        let name = name(word)?;
        RUNNERS.iter().find(|runner| **runner == name).copied()
    };
    if !name(command).is_some_and(|name| WRAPPERS.contains(&name.as_str())) {
        return runner(command);
    }
    let mut words = arguments.iter().filter(|word| !word.starts_with('-') && !word.contains('='));
    words.next().and_then(|word| runner(word))
}

/// Returns the sentence and the lines for a server that starts containers.
pub(crate) fn container_lines(runner: &str) -> [String; 3] {
    [
        format!(
            "`{runner}` needs the host's container socket, and that socket controls the host. To allow it:"
        ),
        "sandbox = \"none\"".to_owned(),
        "defaults = { trust_level = \"trusted\" }".to_owned(),
    ]
}

/// A folder that is an argument of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Folder {
    pub(crate) path: PathBuf,
    /// Whether it holds all kinds of files, such as a home. The server cannot read such a folder.
    pub(crate) is_wide: bool,
    /// Whether it is the folder of a project. The server receives access to its parts.
    pub(crate) is_project: bool,
}

/// Returns the folders that a server's arguments name and that its profile does not let it write.
pub(crate) fn folders(child: &Child, profile: &SandboxProfile) -> Vec<Folder> {
    let Some(cwd) = child.line.cwd.as_ref().and_then(executors::present) else { return Vec::new() };
    let home = std::env::var_os("HOME").map(PathBuf::from);
    let writable: Vec<PathBuf> = profile
        .fs
        .iter()
        .flat_map(|fs| &fs.write)
        .map(|write| match (write.path.strip_prefix("~/"), &home) {
            (Some(rest), Some(home)) => home.join(rest),
            _ => cwd.join(&write.path),
        })
        .filter_map(|path| path.canonicalize().ok())
        .collect();
    let mut found: Vec<Folder> = Vec::new();
    for path in executors::named_paths(child) {
        let known = found.iter().any(|folder| folder.path == path);
        let is_writable = writable.iter().any(|own| path.starts_with(own));
        let is_secret = secret_path_of(&path, home.as_deref()).is_some();
        if path.is_dir() && !known && !is_writable && !is_secret {
            let is_wide = is_wide(&path, home.as_deref());
            let is_project = !is_wide && is_project(&path);
            found.push(Folder { path, is_wide, is_project });
        }
    }
    found
}

/// The `sandbox` setting of a server, in addition to its shipped profile.
#[derive(Debug, Clone)]
pub(crate) struct Containment {
    /// Whether the sandbox is required or best-effort.
    pub(crate) enforce: Enforce,
    /// Folders that the server can read completely.
    pub(crate) read: Vec<PathBuf>,
    pub(crate) write: Vec<PathBuf>,
}

impl Containment {
    pub(crate) fn value(&self) -> Value {
        let mut profile = InlineTable::new();
        profile.insert("base", Value::from("server"));
        // The base profile alone is best-effort, but the profile of an untrusted server is required.
        let enforce = match self.enforce {
            Enforce::Required => "required",
            Enforce::BestEffort => "best-effort",
        };
        profile.insert("enforce", Value::from(enforce));
        let shown = |paths: &[PathBuf]| -> Vec<String> {
            paths.iter().map(|path| path.display().to_string()).collect()
        };
        let mut fs = InlineTable::new();
        if !self.read.is_empty() {
            // The entry `...` keeps the paths of the base.
            let paths = std::iter::once("...".to_owned()).chain(shown(&self.read));
            fs.insert("read", Value::from(paths.collect::<Array>()));
        }
        if !self.write.is_empty() {
            fs.insert("write", Value::from(shown(&self.write).into_iter().collect::<Array>()));
        }
        if !fs.is_empty() {
            profile.insert("fs", Value::from(fs));
        }
        Value::from(profile)
    }

    /// Returns the line of a configuration.
    pub(crate) fn line(&self) -> String {
        format!("sandbox = {}", self.value().to_string().trim())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn programs_that_start_containers_are_known() {
        for (command, arguments) in [
            ("docker", "run -i --rm x"),
            ("/usr/bin/podman", "run x"),
            ("docker", "compose run x"),
            ("docker-compose", "run x"),
            ("sudo", "-n docker run x"),
            ("env", "A=b /usr/bin/docker run x"),
        ] {
            assert!(container_runner(command, &words(arguments)).is_some(), "{command}");
        }
        assert_eq!(container_runner("npx", &words("-y docker")), None);
        assert_eq!(container_runner("dockerize", &[]), None);
    }

    #[test]
    fn a_line_is_read_again() {
        let containment = Containment {
            enforce: Enforce::Required,
            read: vec!["/srv/c".into()],
            write: vec!["/srv/a \"b\"".into()],
        };
        let text = format!("[servers.x]\ncommand = \"x\"\n{}\n", containment.line());
        let config = crate::config::parse(&text, "t.toml", Vec::new()).unwrap();
        assert!(config.servers["x"].sandbox.is_some(), "{text}");
    }
}
