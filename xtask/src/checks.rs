//! Checks that need no tests: formatting, lints, each crate alone, and generated files.

use std::collections::BTreeSet;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::run::{build_program, cargo, repository, run, target};

/// The crates, lowest first.
const CRATES: [&str; 12] = [
    "toolbooth-contracts",
    "toolbooth-launcher",
    "toolbooth-mcp",
    "toolbooth-registry",
    "toolbooth-policy",
    "toolbooth-audit",
    "toolbooth-adapters",
    "toolbooth-import",
    "toolbooth-store",
    "toolbooth-proxy",
    "toolbooth-server",
    "toolbooth",
];
/// Features of `toolbooth-adapters` that a program can select alone.
const ADAPTERS: [&str; 7] =
    ["builtin", "command", "endpoint", "handlers", "mcp", "declarations", "secret-rules"];
/// The maximum number of packages that `toolbooth-contracts` adds without its default features.
const CONTRACTS_PACKAGES_MAX: usize = 30;

/// Checks the formatting of all sources.
pub fn format() -> Result<()> {
    run(cargo().args(["fmt", "--all", "--check"]))
}

/// Runs clippy on all code; a warning is an error.
pub fn clippy() -> Result<()> {
    run(cargo()
        .args(["clippy", "--locked", "--workspace", "--all-targets", "--all-features"])
        .args(["--", "-D", "warnings"]))
}

/// Checks each crate and each feature of its own, so that none depends on features that another
/// crate has turned on.
pub fn alone() -> Result<()> {
    few_packages()?;
    // A separate folder is used, because cargo runs one command at a time in each.
    let folder = target().join("alone");
    let check = |arguments: &[&str]| {
        let mut command = cargo();
        command.args(["check", "--locked", "--quiet", "--target-dir"]).arg(&folder);
        run(command.args(arguments))
    };
    for name in CRATES {
        check(&["-p", name])?;
    }
    check(&["-p", "toolbooth-contracts", "--no-default-features"])?;
    for feature in ADAPTERS {
        check(&["-p", "toolbooth-adapters", "--features", feature])?;
    }
    // With its tests, a crate also has the features of its dev-dependencies.
    for name in CRATES {
        check(&["-p", name, "--tests"])?;
    }
    check(&["-p", "embed"])?;
    std::fs::create_dir_all(target().join("ci"))?;
    Ok(std::fs::write(alone_path(), alone_input()?)?)
}

/// Runs the tests of each crate with its own features, and with those of its tests, alone.
pub fn test_alone() -> Result<()> {
    for name in CRATES {
        run(cargo().args(["test", "--locked", "--quiet", "-p", name]))?;
    }
    // The tests of the workspace run without a key ring, which is the default of the gateway.
    run(cargo()
        .args(["test", "--locked", "--quiet", "-p", "toolbooth-adapters", "--lib"])
        .args(["--features", "keyring,process"]))
}

/// As [`alone`], if a manifest, the lock file or the boundary rules changed since it last passed.
pub fn alone_if_changed() -> Result<()> {
    if std::fs::read_to_string(alone_path()).is_ok_and(|last| Some(last) == alone_input().ok()) {
        println!("no manifest has changed");
        return Ok(());
    }
    alone()
}

fn alone_path() -> std::path::PathBuf {
    target().join("ci/each-crate-alone.input")
}

/// Returns the files that determine the features of each crate.
fn alone_input() -> Result<String> {
    let root = repository();
    let mut paths = vec![root.join("Cargo.toml"), root.join("Cargo.lock")];
    let others = ["xtask/boundaries.toml", "tests/Cargo.toml", "examples/embed/Cargo.toml"];
    paths.extend(others.map(|path| root.join(path)));
    for entry in std::fs::read_dir(root.join("crates"))? {
        paths.push(entry?.path().join("Cargo.toml"));
    }
    paths.sort();
    let texts = paths.iter().map(|path| {
        let text = std::fs::read_to_string(path).with_context(|| format!("{}", path.display()))?;
        Ok(format!("# {}\n{text}", path.display()))
    });
    Ok(texts.collect::<Result<Vec<_>>>()?.concat())
}

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

/// Writes the JSON Schemas of the public formats, or fails when they are not current.
pub fn schemas(check: bool) -> Result<()> {
    build_program("toolbooth")?;
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

/// Runs `examples/embed`, which checks its own results.
pub fn embed() -> Result<()> {
    build_program("embed")?;
    run(&mut Command::new(target().join("debug/embed")))
}
