//! What is run, in which order, each step with its name and time.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::{boundaries, conformance, docs_map, fuzz, setup};

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

/// Runs a command in the repository; an error where it fails.
pub fn run(command: &mut Command) -> Result<()> {
    command.current_dir(repository());
    let status = command.status().with_context(|| format!("{command:?} cannot be started"))?;
    ensure!(status.success(), "{command:?} ended with {status}");
    Ok(())
}

pub fn cargo() -> Command {
    Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

/// What cargo knows of the workspace.
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

/// Builds the gateway.
pub fn build() -> Result<()> {
    run(cargo().args(["build", "--locked", "-p", "toolbooth"]))
}

fn house() -> Result<()> {
    // One test at a time: they start servers, and the machine may be small.
    run(cargo().args(["test", "--locked", "-p", "toolbooth-tests", "--", "--test-threads=2"]))
}

/// Faults on purpose, with what was done and found.
pub fn torture(words: &[&str]) -> Result<()> {
    setup::set_up()?;
    build()?;
    let mut command = cargo();
    command.args(["run", "--locked", "--quiet", "-p", "toolbooth-tests", "--bin", "torture", "--"]);
    run(command.args(words))
}

/// All tests, with their set-up.
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
    step("tests of the whole house", house)
}

/// What CI runs.
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
        // Testing one crate at a time shows what leans on a neighbour's features.
        for name in CRATES {
            run(cargo().args(["test", "--locked", "--quiet", "-p", name]))?;
        }
        Ok(())
    })?;
    step("schemas", || schemas(true))?;
    test()?;
    step("smoke", smoke)?;
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

/// Writes the JSON Schemas of what is public, or fails when they are not current.
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

/// Starts the real gateway and lets a real client call `read_file` on a valid path.
pub fn smoke() -> Result<()> {
    let folder = setup::set_up()?;
    build()?;
    let python = folder.join("venv/bin/python");
    if !python.is_file() {
        println!("SKIPPED: there is no Python client");
        return Ok(());
    }
    let place = target().join("smoke");
    let _ = std::fs::remove_dir_all(&place);
    std::fs::create_dir_all(&place)?;
    std::fs::write(place.join("hello.txt"), "hello")?;
    let mut gateway = Command::new(target().join("debug/toolbooth"))
        .args(["serve", "--http", "127.0.0.1:0"])
        .current_dir(&place)
        .stdout(Stdio::piped())
        .spawn()?;
    let mut line = String::new();
    BufReader::new(gateway.stdout.take().context("a pipe")?).read_line(&mut line)?;
    let called = line.trim().strip_prefix("listening on ").context("the gateway does not listen").and_then(|address| {
        let job = format!(r#"{{"url":"{address}/mcp","mode":"auto","calls":[{{"name":"read_file","arguments":{{"path":"hello.txt"}}}}]}}"#);
        let mut client = Command::new(&python)
            .arg(repository().join("tests/clients/mcp_client.py"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        client.stdin.take().context("a pipe")?.write_all(job.as_bytes())?;
        let mut said = String::new();
        client.stdout.take().context("a pipe")?.read_to_string(&mut said)?;
        ensure!(client.wait()?.success(), "the client failed");
        Ok(serde_json::from_str::<Value>(&said)?)
    });
    let pid = gateway.id().to_string();
    let _ = Command::new("kill").args(["-TERM", &pid]).status();
    let status = gateway.wait()?;
    let result = called?["results"][0]["result"].clone();
    ensure!(
        result["isError"] == false && result["content"][0]["text"] == "hello",
        "read_file answered {result}"
    );
    ensure!(status.success(), "the gateway ended with {status}");
    println!("smoke: read_file answered without an error");
    Ok(())
}
