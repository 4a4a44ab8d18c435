//! One test, and its test program.

use std::path::PathBuf;
use std::sync::Arc;

use crate::run::target;

/// Groups of tests that count or change resources of the whole machine: mounts, control groups, networks,
/// processes. No other test runs next to a group. The entries are prefixes of [`Test::name`].
const ALONE: [&str; 5] = [
    "toolbooth-launcher::escapes ",
    "toolbooth-launcher::lives ",
    "toolbooth-adapters::adapters networks::",
    "toolbooth-adapters::adapters processes::",
    "toolbooth-tests::gateway contained::",
];

/// A test program of one package.
#[derive(Debug)]
pub struct Binary {
    pub package: String,
    /// The name of the target: of a crate, or of a file in `tests/`.
    pub target: String,
    pub path: PathBuf,
    /// The folder of the package, where its tests run.
    pub folder: PathBuf,
}

/// One test function.
#[derive(Debug, Clone)]
pub struct Test {
    pub binary: Arc<Binary>,
    pub function: String,
}

impl Test {
    /// Returns its name in messages and filters: package, target and function.
    pub fn name(&self) -> String {
        format!("{}::{} {}", self.binary.package, self.binary.target, self.function)
    }

    /// Returns the index of its group in [`ALONE`]; `None` if it can run next to any other test.
    pub fn group(&self) -> Option<usize> {
        let name = self.name();
        ALONE.iter().position(|start| name.starts_with(start))
    }

    /// Returns the path of the output of a try; the file is removed if the test passes.
    pub fn log(&self, number: usize) -> PathBuf {
        let name = self.name().replace("::", "-");
        let name = name.replace(|c: char| !c.is_ascii_alphanumeric() && c != '_', "-");
        let number = if number == 1 { String::new() } else { format!(".{number}") };
        target().join("ci/tests").join(format!("{name}{number}.log"))
    }
}
