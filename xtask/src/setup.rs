//! What the tests need: a Python environment with the MCP client and servers, npm servers, and the
//! official suite of JSON Schema.
//!
//! Everything is made under `target/test-env`. A missing `node` or `python3` is said plainly and
//! counted as skipped, and fails in CI.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, bail};

use crate::run::{run, target};

const PYTHON_PACKAGES: [&str; 5] = [
    "mcp==2.3.0",
    "mcp-server-fetch==2026.10.24",
    "mcp-server-git==2026.10.19",
    "mcp-server-motherduck==1.1.0",
    "mcp-server-time==2026.10.19",
];
const NPM_PACKAGES: [&str; 4] = [
    "@modelcontextprotocol/server-everything@2026.8.31",
    "@modelcontextprotocol/server-filesystem@2026.8.31",
    "@modelcontextprotocol/server-memory@2026.8.31",
    "@modelcontextprotocol/server-sequential-thinking@2026.8.31",
];
/// Runners of Python packages, and servers that are started from an environment.
const PYTHON_RUNNERS: [&str; 4] =
    ["mcp-server-fetch==2026.10.24", "mcp-server-git==2026.10.19", "pipx==1.18.4", "uv==0.13.9"];
/// A runner of npm packages, and a server that is installed for all projects.
const NPM_RUNNERS: [&str; 2] = ["bun@1.4.5", "@modelcontextprotocol/server-memory@2026.8.31"];
/// The source package that carries the official JSON-Schema-Test-Suite.
const SUITE_PACKAGE: &str = "jsonschema==4.26.0 --hash=sha256:0c26707e2efad8aa1bfc5b7ce170f3fccc2e4918ff85989ba9ffa9facb2be326\n";

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
        python(&folder.join("venv"), "python3", &PYTHON_PACKAGES)?;
        suite(&folder)?;
    } else {
        missing("python3", "tests with the Python client")?;
    }
    servers()?;
    if there("node") && there("npm") {
        npm(&folder)?;
        runners(&folder.join("runners"))?;
    } else {
        missing("node", "tests with npm servers and Node handlers")?;
    }
    Ok(folder)
}

/// The database server and the tracer that fault tests need, from the system's own packages. The
/// server that the package may start by itself is never touched: tests start their own.
fn servers() -> Result<()> {
    let database = Path::new("/usr/lib/postgresql").is_dir();
    let tracer = there("strace");
    let mut wanted = Vec::new();
    if !database {
        wanted.push("postgresql");
    }
    if !tracer {
        wanted.push("strace");
    }
    if wanted.is_empty() {
        return Ok(());
    }
    let root = Command::new("id").arg("-u").output().is_ok_and(|id| id.stdout == b"0\n");
    if !(root && there("apt-get")) {
        return missing(&wanted.join(" and "), "tests of faults and of several replicas");
    }
    println!("installing {}", wanted.join(" and "));
    run(Command::new("apt-get").args(["update", "-q"]))?;
    run(Command::new("apt-get")
        .env("DEBIAN_FRONTEND", "noninteractive")
        .args(["install", "-q", "-y", "--no-install-recommends"])
        .args(wanted))
}

/// Makes an environment whole or not at all: a set-up that was interrupted is made again.
fn python(venv: &Path, base: &str, packages: &[&str]) -> Result<()> {
    let (done, wanted) = (venv.join("done"), packages.join("\n"));
    if std::fs::read_to_string(&done).is_ok_and(|there| there == wanted) {
        return Ok(());
    }
    println!("setting up Python packages in {}", venv.display());
    let _ = std::fs::remove_dir_all(venv);
    // The system's own Python may come without the packages that an environment begins with.
    run(Command::new(base).args(["-m", "venv", "--without-pip"]).arg(venv))?;
    run(Command::new("python3")
        .args(["-m", "pip", "--python"])
        .arg(venv.join("bin/python"))
        .args(["install", "--quiet", "--disable-pip-version-check"])
        .args(packages))?;
    Ok(std::fs::write(done, wanted)?)
}

/// Package runners, where any user may start them.
fn runners(folder: &Path) -> Result<()> {
    let system = Path::new("/usr/bin/python3");
    let base = if system.is_file() { "/usr/bin/python3" } else { "python3" };
    std::fs::create_dir_all(folder)?;
    // `pip` tells the tests which index it uses.
    let packages = [&["pip"], &PYTHON_RUNNERS[..]].concat();
    python(&folder.join("python"), base, &packages)?;
    let place = folder.join("npm");
    let (done, wanted) = (place.join("done"), NPM_RUNNERS.join("\n"));
    if std::fs::read_to_string(&done).is_ok_and(|there| there == wanted) {
        return Ok(());
    }
    println!("setting up the npm runners");
    let _ = std::fs::remove_dir_all(&place);
    std::fs::create_dir_all(&place)?;
    run(Command::new("npm")
        .args(["install", "--global", "--no-audit", "--no-fund", "--loglevel=error", "--prefix"])
        .arg(&place)
        .args(NPM_RUNNERS))?;
    Ok(std::fs::write(done, wanted)?)
}

/// Fetches the source package and unpacks the suite.
fn suite(folder: &Path) -> Result<()> {
    let place = folder.join("suite");
    if place.is_dir() {
        return Ok(());
    }
    println!("fetching the JSON-Schema-Test-Suite");
    let draft = folder.join("suite-draft");
    let _ = std::fs::remove_dir_all(&draft);
    std::fs::create_dir_all(&draft)?;
    std::fs::write(draft.join("wanted.txt"), SUITE_PACKAGE)?;
    run(Command::new("python3")
        .args(["-m", "pip", "download", "--quiet", "--disable-pip-version-check"])
        .args(["--no-deps", "--no-binary", "jsonschema", "--require-hashes", "-r"])
        .arg(draft.join("wanted.txt"))
        .arg("-d")
        .arg(&draft))?;
    run(Command::new("tar")
        .arg("-xzf")
        .arg(draft.join("jsonschema-4.26.0.tar.gz"))
        .arg("-C")
        .arg(&draft))?;
    std::fs::rename(draft.join("jsonschema-4.26.0/json"), &place)?;
    Ok(std::fs::remove_dir_all(&draft)?)
}

fn npm(folder: &Path) -> Result<()> {
    let place = folder.join("npm");
    let (done, wanted) = (place.join("done"), NPM_PACKAGES.join("\n"));
    if std::fs::read_to_string(&done).is_ok_and(|there| there == wanted) {
        return Ok(());
    }
    println!("setting up the npm servers");
    let _ = std::fs::remove_dir_all(&place);
    std::fs::create_dir_all(&place)?;
    run(Command::new("npm")
        .args(["install", "--no-audit", "--no-fund", "--loglevel=error", "--prefix"])
        .arg(&place)
        .args(NPM_PACKAGES))?;
    Ok(std::fs::write(done, wanted)?)
}
