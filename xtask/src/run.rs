//! Runs the steps of tests and of CI in order, each with its name and time.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::{boundaries, conformance, docs_map, fuzz, setup, smoke};

/// The crates, lowest first.
const CRATES: [&str; 10] = [
    "toolbooth-contracts",
    "toolbooth-launcher",
    "toolbooth-registry",
    "toolbooth-policy",
    "toolbooth-audit",
    "toolbooth-adapters",
    "toolbooth-store",
    "toolbooth-proxy",
    "toolbooth-server",
    "toolbooth",
];

/// The folder of the repository.
pub fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().map(Path::to_owned).unwrap_or_default()
}

/// The folder that builds write to.
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

pub fn cargo() -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    // The variables of `cargo run` would make build scripts run again that look at them.
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") {
            cargo.env_remove(name);
        }
    }
    cargo
}

/// The output of `cargo metadata` for the workspace.
pub fn metadata() -> Result<Value> {
    let output = cargo()
        .args(["metadata", "--format-version", "1", "--all-features", "--locked"])
        .current_dir(repository())
        .output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(serde_json::from_slice(&output.stdout)?)
}

fn step(name: &str, work: impl FnOnce() -> Result<()>) -> Result<()> {
    println!("==> {name}");
    let began = Instant::now();
    work().with_context(|| format!("the step `{name}` failed"))?;
    println!("    {name}: {:.0} s", began.elapsed().as_secs_f64());
    Ok(())
}

/// Most packages that `toolbooth-contracts` may bring without its default features.
const CONTRACTS_PACKAGES_MAX: usize = 30;

/// Counts the packages of `toolbooth-contracts`, itself included.
fn few_packages() -> Result<()> {
    let output = cargo()
        .args(["tree", "--locked", "-e", "normal", "--prefix", "none", "--format", "{p}"])
        .args(["-p", "toolbooth-contracts", "--no-default-features"])
        .current_dir(repository())
        .output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout)?;
    let packages: BTreeSet<Vec<&str>> =
        text.lines().map(|line| line.split(' ').take(2).collect()).collect();
    ensure!(
        packages.len() <= CONTRACTS_PACKAGES_MAX,
        "toolbooth-contracts has {} packages, at most {CONTRACTS_PACKAGES_MAX} are wanted: {packages:?}",
        packages.len()
    );
    Ok(())
}

/// Builds the gateway.
pub fn build() -> Result<()> {
    run(cargo().args(["build", "--locked", "-p", "toolbooth"]))
}

fn gateway_tests() -> Result<()> {
    // Two tests at a time: they start servers, and the machine may be small.
    run(cargo().args(["test", "--locked", "-p", "toolbooth-tests", "--", "--test-threads=2"]))
}

/// Runs the fault scenarios, which print their results.
pub fn torture(words: &[&str]) -> Result<()> {
    setup::set_up()?;
    build()?;
    let mut command = cargo();
    command.args(["run", "--locked", "--quiet", "-p", "toolbooth-tests", "--bin", "torture", "--"]);
    run(command.args(words))
}

/// Runs all tests, with their set-up.
pub fn test() -> Result<()> {
    step("set-up", || setup::set_up().map(drop))?;
    step("build", build)?;
    step("tests of the crates", || {
        let mut command = cargo();
        command.args([
            "test",
            "--locked",
            "--workspace",
            "--all-features",
            "--exclude",
            "toolbooth-tests",
        ]);
        run(&mut command)
    })?;
    step("tests of the whole gateway", gateway_tests)
}

/// Runs everything that CI runs.
pub fn ci() -> Result<()> {
    let began = Instant::now();
    step("formatting", || run(cargo().args(["fmt", "--all", "--check"])))?;
    step("boundaries", boundaries::run)?;
    step("docs map", || docs_map::run(true))?;
    step("clippy", || {
        run(cargo().args([
            "clippy",
            "--locked",
            "--workspace",
            "--all-targets",
            "--all-features",
            "--",
            "-D",
            "warnings",
        ]))
    })?;
    step("set-up", || setup::set_up().map(drop))?;
    step("each crate alone", || {
        for name in CRATES {
            run(cargo().args(["check", "--locked", "--quiet", "-p", name]))?;
        }
        run(cargo().args([
            "check",
            "--locked",
            "--quiet",
            "-p",
            "toolbooth-contracts",
            "--no-default-features",
        ]))?;
        few_packages()?;
        for feature in
            ["builtin", "command", "endpoint", "handlers", "mcp", "declarations", "secret-rules"]
        {
            run(cargo().args([
                "check",
                "--locked",
                "--quiet",
                "-p",
                "toolbooth-adapters",
                "--features",
                feature,
            ]))?;
        }
        // Checking the tests of one crate at a time shows what leans on a neighbour's features.
        for name in CRATES {
            run(cargo().args(["check", "--locked", "--quiet", "--all-targets", "-p", name]))?;
        }
        Ok(())
    })?;
    step("schemas", || schemas(true))?;
    test()?;
    step("smoke", smoke::run)?;
    step("conformance", || conformance::run(&[]))?;
    step("fuzzing, for a moment", || fuzz::run(fuzz::SECONDS))?;
    step("examples/embed", || {
        run(cargo()
            .args(["run", "--quiet", "--locked", "--manifest-path", "examples/embed/Cargo.toml"])
            .env("CARGO_TARGET_DIR", target()))
    })?;
    println!("==> everything holds, {:.0} min", began.elapsed().as_secs_f64() / 60.0);
    Ok(())
}

/// Writes the JSON Schemas of the public formats, or fails when they are not current.
pub fn schemas(check: bool) -> Result<()> {
    build()?;
    let folder = repository().join("docs/schemas");
    let output = Command::new(target().join("debug/toolbooth")).arg("__schemas").output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let all: Value = serde_json::from_slice(&output.stdout)?;
    let all = all.as_object().context("an object of schemas")?;
    std::fs::create_dir_all(&folder)?;
    for (name, schema) in all {
        let path = folder.join(format!("{name}.json"));
        let text = format!("{}\n", serde_json::to_string_pretty(schema)?);
        if !check {
            std::fs::write(&path, text)?;
        } else if std::fs::read_to_string(&path).unwrap_or_default() != text {
            bail!(
                "docs/schemas/{name}.json is stale; run `cargo xtask schemas` and commit what it writes"
            );
        }
    }
    Ok(())
}
