//! What the whole-house tests need: a Python environment with the MCP client, and two npm servers.
//!
//! Everything is made under `target/test-env`. A missing `node` or `python3` is said plainly and
//! counted as skipped, and fails in CI.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, bail};

use crate::run::{run, target};

const PYTHON_PACKAGES: [&str; 1] = ["mcp==2.3.0"];
const NPM_PACKAGES: [&str; 2] =
    ["@modelcontextprotocol/server-everything", "@modelcontextprotocol/server-filesystem"];

fn there(program: &str) -> bool {
    Command::new(program).arg("--version").output().is_ok_and(|output| output.status.success())
}

fn missing(program: &str, what: &str) -> Result<()> {
    let said = format!("{program} is not there, so {what} cannot run");
    if std::env::var_os("CI").is_some() {
        bail!("{said}; CI needs it");
    }
    println!("SKIPPED: {said}");
    Ok(())
}

/// Sets up what is not there yet.
pub fn set_up() -> Result<PathBuf> {
    let folder = target().join("test-env");
    std::fs::create_dir_all(&folder)?;
    if there("python3") {
        python(&folder)?;
    } else {
        missing("python3", "tests with the Python client")?;
    }
    if there("node") && there("npm") {
        npm(&folder)?;
    } else {
        missing("node", "tests with npm servers and Node handlers")?;
    }
    Ok(folder)
}

/// Makes a folder whole or not at all: a set-up that was interrupted is made again.
fn python(folder: &Path) -> Result<()> {
    let venv = folder.join("venv");
    let done = venv.join("done");
    if done.is_file() {
        return Ok(());
    }
    println!("setting up the Python client");
    let _ = std::fs::remove_dir_all(&venv);
    run(Command::new("python3").args(["-m", "venv"]).arg(&venv))?;
    run(Command::new(venv.join("bin/python"))
        .args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"])
        .args(PYTHON_PACKAGES))?;
    Ok(std::fs::write(done, "")?)
}

fn npm(folder: &Path) -> Result<()> {
    let place = folder.join("npm");
    let done = place.join("done");
    if done.is_file() {
        return Ok(());
    }
    println!("setting up the npm servers");
    let _ = std::fs::remove_dir_all(&place);
    std::fs::create_dir_all(&place)?;
    run(Command::new("npm")
        .args(["install", "--no-audit", "--no-fund", "--loglevel=error", "--prefix"])
        .arg(&place)
        .args(NPM_PACKAGES))?;
    Ok(std::fs::write(done, "")?)
}
