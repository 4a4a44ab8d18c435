//! Measures the whole gateway beside its upstream and a reverse proxy, and writes the tables to the documentation.
//!
//! Doc: benchmarks.md#the-gateway

use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::run::{cargo, repository, run, target};

const PAGE: &str = "docs/benchmarks.md";
/// The text between one of these lines and the next `END` is replaced.
const BEGIN: &str = "<!-- The tables of `cargo xtask bench` begin here. -->\n";
const BEGIN_VARIANTS: &str = "<!-- The table that `--all` adds begins here. -->\n";
const END: &str = "<!-- They end here. -->\n";
/// The profile of the programs: that of releases.
const PROFILE: &str = "dist";

/// Builds the gateway and runs the bench. Writes the tables, if there are no arguments or only `--all`.
pub fn run_with(arguments: &[&str]) -> Result<()> {
    let page = std::fs::read_to_string(repository().join(PAGE))?;
    for begin in [BEGIN, BEGIN_VARIANTS] {
        replaced(&page, begin, "")?;
    }
    run(cargo().args(["build", "--profile", PROFILE, "-p", "toolbooth"]))?;
    match arguments {
        [] => written(BEGIN, &[]),
        ["--all"] => {
            written(BEGIN, &[])?;
            written(BEGIN_VARIANTS, &["--variants"])
        }
        _ => tables(arguments).map(drop),
    }
}

/// Runs the bench, and prints and returns its tables.
fn tables(arguments: &[&str]) -> Result<String> {
    let output = cargo()
        .args(["bench", "--profile", PROFILE, "-p", "toolbooth-tests", "--bench", "gateway", "--"])
        .args(arguments)
        .env("TOOLBOOTH_BIN", target().join(PROFILE).join("toolbooth"))
        .current_dir(repository())
        .stderr(Stdio::inherit())
        .output()?;
    ensure!(output.status.success(), "the bench ended with {}", output.status);
    let tables = String::from_utf8(output.stdout)?;
    print!("{tables}");
    Ok(tables)
}

/// Runs the bench, and writes its tables to the page after this line.
fn written(begin: &str, arguments: &[&str]) -> Result<()> {
    let tables = tables(arguments)?;
    let path = repository().join(PAGE);
    let page = std::fs::read_to_string(&path).with_context(|| format!("{PAGE} cannot be read"))?;
    let tables = format!("{}\n\n{tables}", described()?);
    std::fs::write(&path, replaced(&page, begin, &tables)?)?;
    println!("{PAGE} is written");
    Ok(())
}

/// Returns the time and the revision of the measurement, in one line.
fn described() -> Result<String> {
    let last = Command::new("git")
        .args(["log", "-1", "--format=%h of %cs"])
        .current_dir(repository())
        .output()?;
    let compiler = Command::new("rustc").arg("--version").output()?;
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).trim().to_owned();
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    Ok(format!(
        "Measured on top of {}, with {}, on {cores} cores.",
        text(last.stdout),
        text(compiler.stdout)
    ))
}

/// Returns a page with other tables.
fn replaced(page: &str, begin: &str, tables: &str) -> Result<String> {
    let missing = || format!("{PAGE} lacks the lines that enclose the tables");
    let (before, rest) = page.split_once(begin).with_context(missing)?;
    let (_, after) = rest.split_once(END).with_context(missing)?;
    Ok(format!("{before}{begin}\n{tables}\n{END}{after}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_tables_are_replaced() {
        let page = |first: &str, second: &str| {
            format!("a\n{BEGIN}{first}\n{END}b\n{BEGIN_VARIANTS}{second}\n{END}c\n")
        };
        let old = page("old", "older");
        assert_eq!(replaced(&old, BEGIN, "new").unwrap(), page("\nnew", "older"));
        assert_eq!(replaced(&old, BEGIN_VARIANTS, "new").unwrap(), page("old", "\nnew"));
        assert!(replaced("a", BEGIN, "new").is_err());
    }
}
