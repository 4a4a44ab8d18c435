//! Runs cargo and other commands in the repository.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::supervise;

/// The maximum number of tries of a command that needs a network.
const TRIES: u32 = 3;
/// The timeout of one try.
const TRY_LIMIT: Duration = Duration::from_secs(300);

/// Returns the folder of the repository.
pub fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().map(Path::to_owned).unwrap_or_default()
}

/// Returns the folder that builds write to.
pub fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| repository().join("target"), PathBuf::from)
}

/// Runs a command in the repository; an error if it fails.
pub fn run(command: &mut Command) -> Result<()> {
    command.current_dir(repository());
    let status = command.status().with_context(|| format!("{command:?} cannot be started"))?;
    ensure!(status.success(), "{command:?} ended with {status}");
    Ok(())
}

/// Runs a command that needs a network: up to three times, each within a limit.
pub fn fetch(command: &mut Command) -> Result<()> {
    command.current_dir(repository());
    for number in 1..=TRIES {
        let mark = format!("fetch-{}-{number}", std::process::id());
        match supervise::run_within(command, &mark, TRY_LIMIT)? {
            Some(status) if status.success() => return Ok(()),
            Some(status) => println!("try {number} of {TRIES}: {command:?} ended with {status}"),
            None => println!(
                "try {number} of {TRIES}: {command:?} did not end within {} s",
                TRY_LIMIT.as_secs()
            ),
        }
    }
    bail!("{command:?} failed {TRIES} times")
}

pub fn cargo() -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    // With the variables of `cargo run`, build scripts that read them would run again.
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") {
            cargo.env_remove(name);
        }
    }
    cargo
}

/// Returns the output of `cargo metadata` for the workspace.
pub fn metadata() -> Result<Value> {
    let output = cargo()
        .args(["metadata", "--format-version", "1", "--all-features", "--locked"])
        .current_dir(repository())
        .output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(serde_json::from_slice(&output.stdout)?)
}

/// Fetches all packages in the lock file, so that no later step needs the registry.
pub fn fetch_packages() -> Result<()> {
    fetch(cargo().args(["fetch", "--locked"]))
}

/// The features that every build step selects. With other features, most packages would be built again.
///
/// The gateway has its default features, like a released one, and one more export format. The other crates
/// have the features that the workspace and its tests require.
pub const FEATURES: [&str; 4] = ["--locked", "--workspace", "--features", "toolbooth/parquet"];

/// Returns the build command of the tests and of the programs that they start.
pub fn build_command() -> Command {
    let mut command = cargo();
    command.arg("build").args(FEATURES).args(["--bins", "--tests"]);
    command
}

/// Builds all programs and tests.
pub fn build() -> Result<()> {
    run(&mut build_command())
}

/// Builds one program of the workspace.
pub fn build_program(name: &str) -> Result<()> {
    // Cargo applies features of dev-dependencies only if it builds a test; `memory` is a small one.
    run(cargo().arg("build").args(FEATURES).args(["--bin", name, "--test", "memory"]))
}

/// Returns all Rust files in a folder and its subfolders, sorted.
pub fn rust_files(folder: &Path) -> Result<Vec<PathBuf>> {
    files(folder, &["rs"])
}

/// Returns all files in a folder and its subfolders whose names end in one of the extensions, sorted.
pub fn files(folder: &Path, extensions: &[&str]) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    if !folder.is_dir() {
        return Ok(found);
    }
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            found.extend(files(&path, extensions)?);
        } else if path.extension().is_some_and(|own| extensions.iter().any(|one| own == *one)) {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}
