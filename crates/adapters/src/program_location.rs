//! The location of a program to contain, and the resolution of profile paths there.
//!
//! Path: 7. Doc: execution.md#what-a-program-sees

use std::path::{Component, Path, PathBuf};

/// The location of a program to contain.
#[derive(Debug, Clone)]
pub struct ProgramLocation<'a> {
    /// Existing paths that an operator wrote on the command line, the program first.
    pub words: &'a [PathBuf],
    /// Its working directory, to which relative paths are relative.
    pub cwd: &'a Path,
    /// The home of the user who runs the gateway.
    pub home: Option<&'a Path>,
    /// Paths that the program must read in addition to its profile.
    pub also: &'a [PathBuf],
    /// Paths that no program may see: the gateway's own.
    pub hidden: &'a [PathBuf],
    /// The program's own folder. It is writable although it is beneath a hidden one.
    pub own: Option<&'a Path>,
}

/// Resolves a path of a profile on this machine.
pub(crate) fn absolute(path: &str, location: &ProgramLocation<'_>) -> PathBuf {
    if let (Some(rest), Some(home)) = (path.strip_prefix("~/"), location.home) {
        return lexical(&home.join(rest));
    }
    lexical(&location.cwd.join(path))
}

/// Returns a path without `.` and `..`. Links are not resolved.
pub(crate) fn lexical(path: &Path) -> PathBuf {
    let mut out = PathBuf::new();
    for part in path.components() {
        match part {
            Component::CurDir => (),
            Component::ParentDir if out.pop() => (),
            part => out.push(part),
        }
    }
    out
}
