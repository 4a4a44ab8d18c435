//! Measures the whole gateway beside its upstream and a reverse proxy, and writes the tables to the documentation.
//!
//! Doc: benchmarks.md#the-gateway

use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::run::{cargo, repository, run, target};

const PAGE: &str = "docs/benchmarks.md";
/// What is between these lines is replaced.
const BEGIN: &str = "<!-- The tables of `cargo xtask bench` begin here. -->\n";
const END: &str = "<!-- They end here. -->\n";

/// Builds the gateway and runs the bench. Writes the tables, if it is run without arguments.
pub fn run_with(arguments: &[&str]) -> Result<()> {
    run(cargo().args(["build", "--release", "-p", "toolbooth"]))?;
    let output = cargo()
        .args(["bench", "-p", "toolbooth-tests", "--bench", "gateway", "--"])
        .args(arguments)
        .env("TOOLBOOTH_BIN", target().join("release/toolbooth"))
        .current_dir(repository())
        .stderr(Stdio::inherit())
        .output()?;
    ensure!(output.status.success(), "the bench ended with {}", output.status);
    let tables = String::from_utf8(output.stdout)?;
    print!("{tables}");
    if !arguments.is_empty() {
        return Ok(());
    }
    let path = repository().join(PAGE);
    let page = std::fs::read_to_string(&path).with_context(|| format!("{PAGE} cannot be read"))?;
    std::fs::write(&path, replaced(&page, &format!("{}\n\n{tables}", described()?))?)?;
    println!("{PAGE} is written");
    Ok(())
}

/// Returns when and of what it was measured, in one line.
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
fn replaced(page: &str, tables: &str) -> Result<String> {
    let missing = || format!("{PAGE} lacks the lines that enclose the tables");
    let (before, rest) = page.split_once(BEGIN).with_context(missing)?;
    let (_, after) = rest.split_once(END).with_context(missing)?;
    Ok(format!("{before}{BEGIN}\n{tables}\n{END}{after}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_tables_are_replaced() {
        let page = format!("a\n{BEGIN}old\n{END}b\n");
        assert_eq!(replaced(&page, "new").unwrap(), format!("a\n{BEGIN}\nnew\n{END}b\n"));
        assert!(replaced("a", "new").is_err());
    }
}
