//! Where a program stands that is to be contained, and what paths mean there.
//!
//! Path: 7. Doc: execution.md#what-a-program-sees

use std::path::{Component, Path, PathBuf};

/// Where a program stands that is to be contained.
#[derive(Debug, Clone)]
pub struct Place<'a> {
    /// What an operator wrote on the command line that is there: the program first.
    pub words: &'a [PathBuf],
    /// Where it runs; what relative paths are relative to.
    pub cwd: &'a Path,
    /// The home of whoever runs the gateway.
    pub home: Option<&'a Path>,
    /// What the program needs to read beside its profile.
    pub also: &'a [PathBuf],
    /// What no program may see: the gateway's own.
    pub hidden: &'a [PathBuf],
    /// The program's own folder, which it may write although it stands beneath a hidden one.
    pub own: Option<&'a Path>,
}

/// A path of a profile as it is here.
pub(crate) fn absolute(path: &str, place: &Place<'_>) -> PathBuf {
    if let (Some(rest), Some(home)) = (path.strip_prefix("~/"), place.home) {
        return lexical(&home.join(rest));
    }
    lexical(&place.cwd.join(path))
}

/// A path without `.` and `..`, links not looked at.
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
