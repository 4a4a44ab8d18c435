//! Builds the test programs and lists their tests.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::test::{Binary, Test};
use crate::run::{build_command, repository};

/// Builds all test programs, and lists all tests in run order. Also returns the number of ignored tests.
pub fn tests() -> Result<(Vec<Test>, usize)> {
    let mut binaries = build()?;
    // The tests of the whole gateway are the longest; short tests fill the remaining time at the end.
    binaries.sort_by_key(|binary| {
        let rank = usize::from(binary.package != "toolbooth-tests");
        (rank, binary.package.clone(), binary.target.clone())
    });
    let (mut tests, mut ignored) = (Vec::new(), 0);
    for binary in binaries {
        let binary = Arc::new(binary);
        let all = list(&binary, false)?;
        let left_out = list(&binary, true)?;
        ignored += left_out.len();
        tests.extend(
            all.into_iter()
                .filter(|name| !left_out.contains(name))
                .map(|function| Test { binary: Arc::clone(&binary), function }),
        );
    }
    // Groups that run alone come first, the others together after them.
    tests.sort_by_key(|test: &Test| test.group().unwrap_or(usize::MAX));
    Ok((tests, ignored))
}

fn build() -> Result<Vec<Binary>> {
    let output = build_command()
        .args(["--message-format", "json-render-diagnostics"])
        .current_dir(repository())
        .stderr(Stdio::inherit())
        .output()?;
    ensure!(output.status.success(), "the tests cannot be built");
    let text = String::from_utf8(output.stdout)?;
    let messages = text.lines().map(serde_json::from_str::<Value>);
    let messages: Vec<Value> = messages.collect::<Result<_, _>>()?;
    Ok(messages.iter().filter_map(binary).collect())
}

/// Returns the test program in a message of cargo.
fn binary(message: &Value) -> Option<Binary> {
    if message["profile"]["test"] != true {
        return None;
    }
    let path = PathBuf::from(message["executable"].as_str()?);
    let folder = Path::new(message["manifest_path"].as_str()?).parent()?.to_owned();
    let target = message["target"]["name"].as_str()?.to_owned();
    // The id is `path+file:///…/crates/store#toolbooth-store@0.1.0`; the name is missing if the folder has
    // it.
    let id = message["package_id"].as_str()?;
    let after = id.rsplit_once('#').map_or(id, |(_, after)| after);
    let package = match after.split_once('@') {
        Some((name, _)) => name.to_owned(),
        None => folder.file_name()?.to_str()?.to_owned(),
    };
    Some(Binary { package, target, path, folder })
}

fn list(binary: &Binary, ignored: bool) -> Result<Vec<String>> {
    let mut command = Command::new(&binary.path);
    command.args(["--list", "--format", "terse"]).current_dir(&binary.folder);
    if ignored {
        command.arg("--ignored");
    }
    let output = command.output().with_context(|| format!("{}", binary.path.display()))?;
    ensure!(output.status.success(), "{} does not list its tests", binary.path.display());
    let text = String::from_utf8(output.stdout)?;
    Ok(text.lines().filter_map(|line| line.strip_suffix(": test")).map(str::to_owned).collect())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_message_names_package_and_target() {
        let message = |id: &str, test: bool| {
            json!({
                "reason": "compiler-artifact", "package_id": id, "manifest_path": "/r/xtask/Cargo.toml",
                "target": {"name": "escapes"}, "profile": {"test": test}, "executable": "/t/escapes-1",
            })
        };
        let found = binary(&message("path+file:///r/launcher#toolbooth-launcher@0.1.0", true));
        let found = found.unwrap();
        assert_eq!((&*found.package, &*found.target), ("toolbooth-launcher", "escapes"));
        let found = binary(&message("path+file:///r/xtask#0.1.0", true)).unwrap();
        assert_eq!(found.package, "xtask");
        assert!(binary(&message("path+file:///r/xtask#0.1.0", false)).is_none());
        assert!(binary(&json!({"reason": "build-finished", "success": true})).is_none());
    }
}
