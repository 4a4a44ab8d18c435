//! Recognises in a program's output that a rule of its sandbox stopped it, and names the line that
//! would allow it.
//!
//! The kernel reports a denial only to the program, by an error code. Only the program's output
//! names the path or port. A denial that is not recognised is not reported.
//!
//! Path: 7. Doc: execution.md#what-the-sandbox-stopped

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use toolbooth_contracts::ExecutionLog;
use toolbooth_contracts::execution_log::SandboxDenial;
use toolbooth_contracts::sandbox::SandboxProfile;
use toolbooth_launcher::order::{Net, SandboxSpec};

use crate::program_location::lexical;
use crate::sandbox::profile::{default_profile, server_profile};
use crate::visible_paths::{is_system, is_wide};

/// Maximum number of output lines that are examined, from the last one backwards.
const LINES_MAX: usize = 200;
/// Maximum number of characters of a line that are examined.
const LINE_CHARS_MAX: usize = 1_000;
/// Maximum number of denials that are reported for one text.
const SENTENCES_MAX: usize = 4;
/// Folders of installed packages. Programs outside of the sandbox run their files too.
const PACKAGES: [&str; 2] = ["node_modules", "site-packages"];
/// Programs that need the socket of a container engine.
const ENGINES: [&str; 4] = ["docker.sock", "docker daemon", "podman.sock", "containerd.sock"];

/// Explains denials from the permissions of a contained program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DenialExplainer {
    profile: ProfileName,
    /// Paths that the program can see, and whether it can write them.
    seen: Vec<(PathBuf, bool)>,
    hidden: Vec<PathBuf>,
    /// Ports at which it can reach the gateway; `None` = it has no network.
    ports: Option<Vec<u16>>,
    cwd: PathBuf,
    home: Option<PathBuf>,
    /// The words of its command line. The first is the program, which precedes its error messages.
    words: Vec<String>,
}

/// The name under which an operator finds a profile.
#[derive(Debug, Clone, PartialEq, Eq)]
enum ProfileName {
    Shipped(&'static str),
    Configured(String),
    Contract,
}

/// The error code from the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Errno {
    ReadOnly,
    NotPermitted,
    NotThere,
    UnknownCall,
    Refused,
}

/// Texts of operating systems and runtimes for an error.
const ERROR_TEXTS: [(&str, Errno); 14] = [
    ("erofs", Errno::ReadOnly),
    ("read-only file system", Errno::ReadOnly),
    ("eacces", Errno::NotPermitted),
    ("permission denied", Errno::NotPermitted),
    ("eperm", Errno::NotPermitted),
    ("operation not permitted", Errno::NotPermitted),
    ("enoent", Errno::NotThere),
    ("no such file or directory", Errno::NotThere),
    ("enosys", Errno::UnknownCall),
    ("function not implemented", Errno::UnknownCall),
    ("econnrefused", Errno::Refused),
    ("connection refused", Errno::Refused),
    ("enetunreach", Errno::NotPermitted),
    ("network is unreachable", Errno::NotPermitted),
];

/// Properties of a program in addition to its sandbox.
pub(crate) struct Program<'a> {
    pub(crate) argv: &'a [String],
    pub(crate) cwd: &'a Path,
    pub(crate) home: Option<&'a Path>,
    /// The name of its profile in configuration.
    pub(crate) profile_name: Option<&'a str>,
}

/// A denial, and whether it reveals information about this machine beyond the program's own output.
struct Explanation {
    sentence: String,
    reveals: bool,
}

impl DenialExplainer {
    pub(crate) fn of(
        profile: &SandboxProfile,
        sandbox_spec: &SandboxSpec,
        program: &Program<'_>,
    ) -> Self {
        let like = |shipped: SandboxProfile| {
            SandboxProfile { enforce: profile.enforce, ..shipped } == *profile
        };
        let name = match program.profile_name {
            Some(name) => ProfileName::Configured(name.to_owned()),
            None if like(default_profile()) => ProfileName::Shipped("default"),
            None if like(server_profile()) => ProfileName::Shipped("server"),
            None => ProfileName::Contract,
        };
        let ports = match &sandbox_spec.net {
            Net::None => None,
            Net::Relayed(relay) => Some(relay.ports.clone()),
            Net::Ports(ports) => Some(ports.clone()),
        };
        Self {
            profile: name,
            seen: sandbox_spec
                .binds
                .iter()
                .map(|bind| (bind.path.clone(), bind.writable))
                .collect(),
            hidden: sandbox_spec.hidden.clone(),
            ports,
            cwd: program.cwd.to_owned(),
            home: program.home.map(Path::to_owned),
            words: program.argv.to_vec(),
        }
    }

    /// Records the denials of the sandbox. `answer` is output that the agent sees, and `stderr`
    /// output that it does not see.
    pub(crate) fn explain(&self, answer: &str, stderr: &str, execution_log: &ExecutionLog) {
        for (text, seen) in [(answer, true), (stderr, false)] {
            for Explanation { sentence, reveals } in self.explanations(text) {
                execution_log.sandbox_denied(SandboxDenial { sentence, open: seen && !reveals });
            }
        }
    }

    /// Returns the sentences for an output, each on its own line; empty if there are none.
    pub(crate) fn sentences(&self, output: &str) -> String {
        let explanations = self.explanations(output);
        explanations.into_iter().map(|one| format!("\n{}", one.sentence)).collect()
    }

    fn explanations(&self, output: &str) -> Vec<Explanation> {
        let (mut known, mut explanations) = (BTreeSet::new(), Vec::new());
        for line in output.lines().rev().take(LINES_MAX) {
            let line: String = line.chars().take(LINE_CHARS_MAX).collect();
            let lower = line.to_ascii_lowercase();
            let errno = ERROR_TEXTS.iter().find(|(text, _)| lower.contains(text));
            let explained = match errno {
                _ if ENGINES.iter().any(|engine| lower.contains(engine)) => Some(self.engine()),
                Some((_, errno)) => self.explanation(&line, *errno),
                None => None,
            };
            explanations.extend(explained.filter(|one| known.insert(one.sentence.clone())));
            if explanations.len() >= SENTENCES_MAX {
                break;
            }
        }
        explanations
    }

    fn engine(&self) -> Explanation {
        let sentence = "the program needs the socket of a container engine, which controls the \
                        machine; `sandbox = \"none\"` and `defaults = { trust_level = \"trusted\" }` \
                        would allow it";
        Explanation { sentence: sentence.to_owned(), reveals: false }
    }

    fn explanation(&self, line: &str, errno: Errno) -> Option<Explanation> {
        match errno {
            Errno::UnknownCall => Some(Explanation {
                sentence: self.sentence(
                    "refuses a system call that the program makes",
                    Some("`sandbox = \"none\"` and a trusted level".to_owned()),
                ),
                reveals: false,
            }),
            Errno::Refused => self.port(line),
            // A message names the program before the path, so the last path is the denied one.
            _ => self.paths(line).into_iter().rev().find_map(|path| self.path(&path, errno)),
        }
    }

    /// Returns a sentence with the profile and the line that would allow the denied action.
    fn sentence(&self, what: &str, line: Option<String>) -> String {
        let profile = match &self.profile {
            ProfileName::Shipped(name) => format!("the sandbox profile `{name}`"),
            ProfileName::Configured(name) => format!("the sandbox profile `{name}`"),
            ProfileName::Contract => "the sandbox profile of the contract".to_owned(),
        };
        match line {
            Some(line) => format!("{profile} {what}; {line} would allow it"),
            None => format!("{profile} {what}"),
        }
    }

    /// Returns the line of configuration that adds `section`. The rest of the profile is unchanged.
    fn line(&self, section: &str) -> String {
        match &self.profile {
            ProfileName::Shipped(name) => {
                format!("`sandbox = {{ base = \"{name}\", {section} }}`")
            }
            ProfileName::Configured(name) => format!("`{section}` in the profile `{name}`"),
            ProfileName::Contract => format!("`{section}` in it"),
        }
    }

    fn path(&self, path: &Path, errno: Errno) -> Option<Explanation> {
        let shown = path.display();
        let inside = |root: &&(PathBuf, bool)| path.starts_with(&root.0);
        let nearest =
            self.seen.iter().filter(inside).max_by_key(|(root, _)| root.components().count());
        // The entry `...` includes the entries of the shipped base profile.
        let read = || self.line(&format!("fs = {{ read = [\"...\", \"{shown}\"] }}"));
        if self.hidden.iter().any(|hidden| path.starts_with(hidden)) {
            // No line is suggested that opens it, because a program can ask for any path.
            let what = format!("covers `{shown}`, which may have secrets");
            let sentence = self.sentence(&what, None);
            return Some(Explanation { sentence, reveals: true });
        }
        match (nearest, errno) {
            (Some((_, true)), _) => None,
            (Some((_, false)), Errno::ReadOnly | Errno::NotPermitted) => {
                Some(self.not_written(path, false))
            }
            (None, Errno::ReadOnly | Errno::NotPermitted) if !path.exists() => {
                Some(self.not_written(path, true))
            }
            // The path exists outside of the sandbox only. The agent must not learn whether it
            // exists.
            (None, _) if path.exists() => {
                let sentence = self.sentence(&format!("does not show `{shown}`"), Some(read()));
                Some(Explanation { sentence, reveals: true })
            }
            _ => None,
        }
    }

    fn not_written(&self, path: &Path, reveals: bool) -> Explanation {
        let folder = path.ancestors().skip(1).find(|above| above.is_dir());
        let in_packages = path
            .components()
            .any(|part| PACKAGES.iter().any(|packages| part.as_os_str() == *packages));
        // No line is suggested that opens the system, a home, or programs that run outside of the
        // sandbox.
        let folder = folder.filter(|folder| {
            !in_packages && !is_wide(folder, self.home.as_deref()) && !is_system(folder)
        });
        let line = folder
            .map(|folder| self.line(&format!("fs = {{ write = [\"{}\"] }}", folder.display())));
        let what = format!("does not let it write `{}`", path.display());
        Explanation { sentence: self.sentence(&what, line), reveals }
    }

    /// Returns the explanation for a port without a listener in the program's own network.
    fn port(&self, line: &str) -> Option<Explanation> {
        let port = line
            .split(|c: char| c.is_whitespace() || ",;()\"'".contains(c))
            .filter_map(|word| word.trim_end_matches('.').rsplit_once(':'))
            .find_map(|(host, port)| (!host.is_empty()).then(|| port.parse::<u16>().ok())?)?;
        if self.ports.as_ref().is_some_and(|ports| ports.contains(&port)) {
            return None;
        }
        let line = self.line(&format!("net = {{ hosts = [\"...\", \"HOST:{port}\"] }}"));
        let sentence = self.sentence(&format!("names no host at port {port}"), Some(line));
        Some(Explanation { sentence, reveals: false })
    }

    /// Returns the paths in a line, except the program itself. They are absolute paths, and
    /// relative paths in quotes or with a slash.
    fn paths(&self, line: &str) -> Vec<PathBuf> {
        let quote = |c: char| "'\"`‘’".contains(c);
        let mut paths = Vec::new();
        for (at, part) in line.split(quote).enumerate() {
            let quoted = at % 2 == 1;
            let apart = |c: char| (c.is_whitespace() && !quoted) || ",;:()[]{}<>=".contains(c);
            for word in part.split(apart) {
                let word = word.trim_end_matches('.');
                let odd = word.is_empty()
                    || word.starts_with("//")
                    || word.contains("://")
                    || word.contains('%')
                    || self.words.iter().take(1).any(|own| own == word);
                if !odd && (word.starts_with('/') || quoted || word.contains('/')) {
                    paths.push(lexical(&self.cwd.join(word)));
                }
            }
        }
        paths.retain(|path| path.parent().is_some());
        paths
    }
}

#[cfg(test)]
mod tests;
