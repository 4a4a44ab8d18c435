//! Fuzzes the parsers of outside bytes with libFuzzer, on the stable toolchain.
//!
//! The targets are in `fuzz/`. Coverage comes from the compiler's own passes, so that neither a
//! nightly toolchain nor another program is needed.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Result, ensure};

use crate::run::{self, cargo, repository, target};

/// The default run time of each target, in seconds.
pub const SECONDS: u64 = 15;
/// The targets.
pub const TARGETS: [&str; 6] =
    ["guard_entry", "registry_file", "schema_pair", "lock_file", "mcp_body", "mcp_lines"];
/// Compiler flags that instrument a program for coverage.
const COVERAGE: [&str; 7] = [
    "--cfg=fuzzing",
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
    "-Ccodegen-units=1",
];

/// Runs every target for `seconds`, beginning with the seeds in `fuzz/seeds`.
pub fn run(seconds: u64) -> Result<()> {
    let folder = repository().join("fuzz");
    let built = target().join("fuzz");
    run::run(
        cargo()
            .args(["build", "--quiet", "--locked", "--profile", "fuzz", "-p", "toolbooth-fuzz"])
            // With `--target`, the flags do not apply to build scripts and macros.
            .args(["--target", &host()?])
            .env("CARGO_TARGET_DIR", &built)
            .env("CARGO_ENCODED_RUSTFLAGS", COVERAGE.join("\u{1f}")),
    )?;
    let program = built.join(host()?).join("fuzz/fuzz");
    for name in TARGETS {
        let found = built.join("corpus").join(name);
        let seeds: PathBuf = folder.join("seeds").join(name);
        std::fs::create_dir_all(&found)?;
        let output = Command::new(&program)
            .env("FUZZ_TARGET", name)
            .arg(format!("-max_total_time={seconds}"))
            .args(["-max_len=65536", "-timeout=10", "-rss_limit_mb=2048", "-verbosity=0"])
            .args(["-print_final_stats=1", "-seed=1"])
            .arg(format!("-artifact_prefix={}/", found.display()))
            .arg(&found)
            .arg(&seeds)
            .output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        // The fuzzer's output is shown only if it found something.
        ensure!(output.status.success(), "{name} found something:\n{said}");
        let runs =
            said.lines().find_map(|line| line.strip_prefix("stat::number_of_executed_units:"));
        println!("    {name}: {} runs", runs.unwrap_or(" ?").trim());
    }
    Ok(())
}

fn host() -> Result<String> {
    let output = Command::new("rustc").arg("-vV").output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(host.unwrap_or("x86_64-unknown-linux-gnu").to_owned())
}
