//! Recognises by a program's own words that a rule of its sandbox stopped it, and names the line that
//! would allow it.
//!
//! A program is told by the kernel alone, with an error code; which path or port it was stands in what
//! it prints. What is not recognised is not told.
//!
//! Path: 7. Doc: execution.md#what-the-sandbox-stopped

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use toolbooth_contracts::Witness;
use toolbooth_contracts::sandbox::SandboxProfile;
use toolbooth_contracts::witness::SandboxDenial;
use toolbooth_launcher::order::{Enclosure, Net};

use crate::sandbox::{default_profile, server_profile};

/// Lines of a program's words that are looked at, from the last one on.
const LINES_MAX: usize = 200;
/// Characters of a line.
const LINE_CHARS_MAX: usize = 1_000;
/// Denials that are told of one text.
const TOLD_MAX: usize = 4;

/// What a contained program may do, as far as its words are judged by it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct View {
    /// The name of its profile.
    profile: &'static str,
    /// Paths that it sees, and whether it may write them.
    seen: Vec<(PathBuf, bool)>,
    hidden: Vec<PathBuf>,
    /// Ports at which it finds the gateway; `None` = it has no network.
    ports: Option<Vec<u16>>,
}

/// What the kernel said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Errno {
    ReadOnly,
    NotPermitted,
    NotThere,
    UnknownCall,
    Refused,
}

/// The words of operating systems and runtimes for an error.
const WORDS: [(&str, Errno); 14] = [
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

impl View {
    pub(crate) fn of(profile: &SandboxProfile, enclosure: &Enclosure) -> Self {
        let like = |shipped: SandboxProfile| {
            SandboxProfile { enforce: profile.enforce, ..shipped } == *profile
        };
        let profile = match () {
            () if like(default_profile()) => "default",
            () if like(server_profile()) => "server",
            () => "of its own",
        };
        let ports = match &enclosure.net {
            Net::None => None,
            Net::Relayed(relay) => Some(relay.ports.clone()),
            Net::Ports(ports) => Some(ports.clone()),
        };
        let seen = enclosure.binds.iter().map(|bind| (bind.path.clone(), bind.writable));
        let seen = seen.collect();
        Self { profile, seen, hidden: enclosure.hidden.clone(), ports }
    }

    /// Notes what a rule of the sandbox stopped: `answer` is what the agent sees of the program's
    /// words, `words` what it does not.
    pub(crate) fn explain(&self, answer: &str, words: &str, witness: &Witness) {
        for (text, open) in [(answer, true), (words, false)] {
            for sentence in self.sentences(text) {
                witness.sandbox_denied(SandboxDenial { sentence, open });
            }
        }
    }

    /// The sentences for `words`, each on a line of its own; empty where there are none.
    pub(crate) fn told(&self, words: &str) -> String {
        self.sentences(words).into_iter().map(|sentence| format!("\n{sentence}")).collect()
    }

    fn sentences(&self, text: &str) -> BTreeSet<String> {
        let mut sentences = BTreeSet::new();
        for line in text.lines().rev().take(LINES_MAX) {
            let line: String = line.chars().take(LINE_CHARS_MAX).collect();
            let lower = line.to_ascii_lowercase();
            let Some((_, errno)) = WORDS.iter().find(|(word, _)| lower.contains(word)) else {
                continue;
            };
            sentences.extend(self.sentence(&line, *errno));
            if sentences.len() >= TOLD_MAX {
                break;
            }
        }
        sentences
    }

    fn sentence(&self, line: &str, errno: Errno) -> Option<String> {
        if errno == Errno::UnknownCall {
            return Some(self.said(
                "refuses a system call that the program makes",
                "`sandbox = \"none\"` and a trusted level",
            ));
        }
        if errno == Errno::Refused {
            return self.port(line);
        }
        paths(line).into_iter().find_map(|path| self.path(&path, errno))
    }

    fn said(&self, what: &str, remedy: &str) -> String {
        format!("the sandbox profile `{}` {what}; {remedy} would allow it", self.profile)
    }

    /// The line of configuration that has `section`; the other sections stay.
    fn line(&self, section: &str) -> String {
        match self.profile {
            shipped @ ("default" | "server") => {
                format!("`sandbox = {{ base = \"{shipped}\", {section} }}`")
            }
            _ => format!("`{section}` in it"),
        }
    }

    fn path(&self, path: &Path, errno: Errno) -> Option<String> {
        let shown = path.display();
        let inside = |root: &&(PathBuf, bool)| path.starts_with(&root.0);
        let nearest =
            self.seen.iter().filter(inside).max_by_key(|(root, _)| root.components().count());
        if self.hidden.iter().any(|hidden| path.starts_with(hidden)) {
            let remedy = self.line(&format!("fs = {{ read = [\"{shown}\"] }}"));
            return Some(self.said(&format!("covers `{shown}`"), &remedy));
        }
        match (nearest, errno) {
            (Some((_, true)), _) => None,
            (Some((_, false)), Errno::ReadOnly | Errno::NotPermitted) => {
                // Which folder is meant only the operator knows; the nearest one is named.
                let folder = if path.is_dir() { path } else { path.parent().unwrap_or(path) };
                let remedy = self.line(&format!("fs = {{ write = [\"{}\"] }}", folder.display()));
                Some(self.said(&format!("lets it not write `{shown}`"), &remedy))
            }
            (None, Errno::ReadOnly | Errno::NotPermitted) if !path.exists() => {
                let folder = path.ancestors().skip(1).find(|above| above.is_dir())?;
                let remedy = self.line(&format!("fs = {{ write = [\"{}\"] }}", folder.display()));
                Some(self.said(&format!("lets it not write `{shown}`"), &remedy))
            }
            // What is there outside, and not inside.
            (None, _) if path.exists() => {
                let remedy = self.line(&format!("fs = {{ read = [\"{shown}\"] }}"));
                Some(self.said(&format!("does not show `{shown}`"), &remedy))
            }
            _ => None,
        }
    }

    /// A port at which nothing listens in the program's own network.
    fn port(&self, line: &str) -> Option<String> {
        let port = line
            .split(|c: char| c.is_whitespace() || ",;()\"'".contains(c))
            .filter_map(|word| word.trim_end_matches('.').rsplit_once(':'))
            .find_map(|(host, port)| (!host.is_empty()).then(|| port.parse::<u16>().ok())?)?;
        let others = if self.profile == "server" { "\"*\", " } else { "" };
        let remedy = self.line(&format!("net = {{ hosts = [{others}\"HOST:{port}\"] }}"));
        match &self.ports {
            Some(ports) if ports.contains(&port) => None,
            _ => Some(self.said(&format!("names no host at port {port}"), &remedy)),
        }
    }
}

/// The absolute paths that a line names.
fn paths(line: &str) -> Vec<PathBuf> {
    let apart = |c: char| c.is_whitespace() || "'\"`,;:()[]{}<>=".contains(c);
    let words = line.split(apart).filter(|word| word.starts_with('/') && word.len() > 1);
    words.map(|word| PathBuf::from(word.trim_end_matches('.'))).collect()
}

#[cfg(test)]
mod tests {
    use toolbooth_launcher::order::{Bind, Relay};

    use super::*;

    fn view(folder: &Path) -> View {
        let bind = |path: &str, writable| Bind {
            path: folder.join(path),
            writable,
            optional: false,
            mapped: true,
            bytes_max: None,
            own: false,
        };
        let enclosure = Enclosure {
            binds: vec![bind("read", false), bind("read/out", true)],
            hidden: vec![folder.join("read/.env")],
            net: Net::Relayed(Relay { ports: vec![443], proxy: false }),
            tmp_mb: 1,
            ..Enclosure::default()
        };
        View::of(&server_profile(), &enclosure)
    }

    #[test]
    fn what_a_rule_stopped_is_told_with_the_line_that_would_allow_it() {
        let made = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(made.path().join("read/out")).unwrap();
        std::fs::write(made.path().join("elsewhere"), "x").unwrap();
        let view = view(made.path());
        let at = made.path().display();
        for (words, told) in [
            (
                format!("Error: EROFS: read-only file system, open '{at}/read/new.txt'"),
                Some(format!("fs = {{ write = [\"{at}/read\"] }}")),
            ),
            (
                format!("PermissionError: [Errno 13] Permission denied: '{at}/read/x'"),
                Some(format!("fs = {{ write = [\"{at}/read\"] }}")),
            ),
            (
                format!("cat: {at}/elsewhere: No such file or directory"),
                Some(format!("fs = {{ read = [\"{at}/elsewhere\"] }}")),
            ),
            (
                format!("touch: cannot touch '{at}/n/x': Read-only file system"),
                Some("write".into()),
            ),
            (format!("open {at}/read/.env: permission denied"), Some("covers".into())),
            ("bun: Function not implemented".into(), Some("system call".into())),
            ("connect ECONNREFUSED 93.184.216.34:80".into(), Some("HOST:80".into())),
            ("connect ECONNREFUSED 93.184.216.34:443".into(), None),
            (format!("cat: {at}/nowhere: No such file or directory"), None),
            (format!("EACCES: permission denied, open '{at}/read/out/x'"), None),
            ("EACCES: permission denied, open '/nowhere/x/y'".into(), Some("write".into())),
            ("all is well in /etc".into(), None),
        ] {
            let sentences = view.told(&words);
            match told {
                Some(told) => assert!(
                    sentences.contains(&told) && sentences.contains("profile `server`"),
                    "{words}: {sentences}"
                ),
                None => assert_eq!(sentences, "", "{words}"),
            }
        }
    }

    #[test]
    fn the_agent_is_told_what_its_answer_names() {
        let made = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(made.path().join("read")).unwrap();
        let witness = Witness::default();
        let words = format!("EROFS: '{}/read/a'", made.path().display());
        view(made.path()).explain(&words, "", &witness);
        view(made.path()).explain("", &words, &witness);
        let open: Vec<bool> = witness.take().denied.iter().map(|denial| denial.open).collect();
        assert_eq!(open, [true, false]);
        let flood = "EROFS: '/x/y'\n".repeat(100_000);
        assert!(view(made.path()).sentences(&flood).len() <= TOLD_MAX);
    }
}
