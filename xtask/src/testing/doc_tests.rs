//! Runs the examples in the documentation of the crates.

use std::process::Stdio;

use anyhow::Result;

use crate::run::{FEATURES, cargo, repository};

/// Runs all doc tests. Returns the numbers of passed and failed ones.
pub fn run() -> Result<(usize, usize)> {
    let output = cargo()
        .arg("test")
        .args(FEATURES)
        .args(["--quiet", "--doc", "--no-fail-fast"])
        .current_dir(repository())
        .stderr(Stdio::inherit())
        .output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let (passed, mut failed) = counts(&text);
    if !output.status.success() {
        println!("{text}");
        failed = failed.max(1);
    }
    Ok((passed, failed))
}

/// Adds up the counts in the result lines of test programs.
fn counts(text: &str) -> (usize, usize) {
    let mut sums = (0, 0);
    for line in text.lines().filter(|line| line.starts_with("test result:")) {
        let count = |word: &str| -> usize {
            let before = line.split_once(word).map(|(before, _)| before.trim_end());
            let number = before.and_then(|before| before.rsplit([' ', '.']).next());
            number.and_then(|number| number.parse().ok()).unwrap_or_default()
        };
        sums.0 += count("passed");
        sums.1 += count("failed");
    }
    sums
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_added_up() {
        let text = "test result: ok. 3 passed; 0 failed; 1 ignored\nx\ntest result: FAILED. 1 passed; 12 failed;\n";
        assert_eq!(counts(text), (4, 12));
        assert_eq!(counts(""), (0, 0));
    }
}
