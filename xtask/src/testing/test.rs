//! One test, and the program that has it.

use std::path::PathBuf;
use std::sync::Arc;

use crate::run::target;

/// Groups of tests that count or change what belongs to the whole machine: mounts, control groups,
/// networks, processes. No other test runs beside a group. Beginnings of [`Test::name`].
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
    /// Its name in messages and filters: package, target and function.
    pub fn name(&self) -> String {
        format!("{}::{} {}", self.binary.package, self.binary.target, self.function)
    }

    /// The place in [`ALONE`] of its group; `None` if it may run beside any other test.
    pub fn group(&self) -> Option<usize> {
        let name = self.name();
        ALONE.iter().position(|start| name.starts_with(start))
    }

    /// Where the output of a try goes; removed if it passes.
    pub fn log(&self, number: usize) -> PathBuf {
        let name = self.name().replace("::", "-");
        let name = name.replace(|c: char| !c.is_ascii_alphanumeric() && c != '_', "-");
        let number = if number == 1 { String::new() } else { format!(".{number}") };
        target().join("ci/tests").join(format!("{name}{number}.log"))
    }
}
