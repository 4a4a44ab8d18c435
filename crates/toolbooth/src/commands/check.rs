//! `init` and `check`: create a configuration and check a registry file.

use std::io::Write;
use std::path::{Path, PathBuf};

use serde_json::json;
use toolbooth_contracts::json::line_column;
use toolbooth_contracts::{Guard, Severity, ToolId};
use toolbooth_registry::file::{self, FileFinding};

use crate::config::{self, Loaded};
use crate::failure::Failure;
use crate::offline::OfflineGateway;
use crate::output::{self, Format};
use crate::secret_shapes;
use crate::trust::{Gate, Trusted};

/// The file of rules that `init` writes, in the folder that its configuration names.
const RULES: &str = "rules/main.cedar";

pub(super) fn init(gate: &Gate) -> Result<bool, Failure> {
    let folder = Path::new(RULES).parent().unwrap_or(Path::new("."));
    let mut others = std::fs::read_dir(folder).into_iter().flatten().flatten();
    if others.any(|other| other.path().extension().is_some_and(|ending| ending == "cedar")) {
        let folder = folder.display();
        return Err(Failure::usage(format!("`{folder}` has rules already, nothing was written"))
            .hint("name them in `[policy] rules` of a configuration, or move them away"));
    }
    // The configuration comes last, because it names the others.
    let files = [
        (RULES, include_str!("../../templates/rules.cedar")),
        (config::REGISTRY, file::EMPTY),
        (config::FILE, include_str!("../../templates/toolbooth.toml")),
    ];
    for (name, _) in files {
        if Path::new(name).exists() {
            return Err(Failure::usage(format!("`{name}` exists already; nothing was written"))
                .hint("remove it first, or edit it"));
        }
    }
    let made = !folder.exists();
    let mut written = Vec::new();
    for (name, text) in files {
        if let Err(error) = write_new(Path::new(name), text) {
            for name in written {
                let _ = std::fs::remove_file(name);
            }
            if made {
                let _ = std::fs::remove_dir(folder);
            }
            let message = format!("`{name}` cannot be written, so no file was: {error}");
            return Err(Failure::usage(message));
        }
        written.push(name);
    }
    for name in written {
        output::line(&format!("wrote {name}"));
    }
    gate.trust_written(Path::new(config::FILE));
    crate::notice("next: `toolbooth serve`, or `toolbooth doctor` to see what is there");
    Ok(true)
}

/// Writes a file that does not exist, and makes its folder.
fn write_new(path: &Path, text: &str) -> std::io::Result<()> {
    if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        std::fs::create_dir_all(folder)?;
    }
    let written = std::fs::File::create_new(path)?.write_all(text.as_bytes());
    written.inspect_err(|_| drop(std::fs::remove_file(path)))
}

pub(super) async fn check(
    given: Option<PathBuf>,
    format: Format,
    load: impl Fn() -> Result<Loaded, Failure>,
) -> Result<bool, Failure> {
    let (path, loaded) = match given {
        Some(path) => (path, None),
        None => {
            let loaded = load()?;
            (loaded.registry().0, Some(loaded))
        }
    };
    let name = path.display().to_string();
    // A file that the caller names can be a pipe.
    let read = if loaded.is_some() { crate::files::read(&path) } else { std::fs::read(&path) };
    let text = read.map_err(|error| {
        Failure::usage(format!("the registry file cannot be read: {error}")).at(name.clone())
    })?;
    let guard = Guard::new(secret_shapes::shapes());
    let (ok, tools, mut findings) = match file::load(&text, &name, &guard) {
        Ok(loaded) => (true, loaded.tools.len(), loaded.warnings),
        Err(rejected) => (false, 0, rejected.findings),
    };
    if let (true, Some(loaded)) = (ok, loaded) {
        findings.extend(exceeding(loaded, &name, &text).await?);
    }
    if format.is_json() {
        output::json(&json!({ "ok": ok, "findings": findings }));
        return Ok(ok);
    }
    // A line that contains a secret is not shown for any finding.
    let secret: Vec<usize> = findings
        .iter()
        .filter(|finding| finding.code == "forbidden-secret-field")
        .map(|finding| finding.line)
        .collect();
    let lines: Vec<&[u8]> = text.split(|byte| *byte == b'\n').collect();
    for finding in &findings {
        let line = lines.get(finding.line - 1).filter(|_| !secret.contains(&finding.line));
        show(finding, line.copied());
    }
    let count = |severity| findings.iter().filter(|finding| finding.severity == severity).count();
    let (errors, warnings) = (count(Severity::Error), count(Severity::Warning));
    if ok {
        output::line(&format!("{name}: {tools} tool(s), {warnings} warning(s)"));
    } else {
        output::line(&format!(
            "{name}: {errors} error(s), {warnings} warning(s); nothing would be loaded"
        ));
    }
    Ok(ok)
}

/// Returns findings for contracts with a stricter sandbox than the process that serves them.
async fn exceeding(loaded: Loaded, name: &str, text: &[u8]) -> Result<Vec<FileFinding>, Failure> {
    let offline = OfflineGateway::build(Trusted::starting_nothing(loaded)).await?;
    let finding = |(id, reason): (ToolId, String)| {
        let quoted = format!("\"{id}\"");
        let at = text.windows(quoted.len()).position(|part| part == quoted.as_bytes());
        let (line, column) = line_column(text, at.unwrap_or_default());
        FileFinding {
            severity: Severity::Warning,
            code: "sandbox-exceeded".to_owned(),
            path: "sandbox".to_owned(),
            tool_index: None,
            tool_id: Some(id.to_string()),
            message: reason,
            hint: Some("give the server or runtime a `sandbox` that grants no more".to_owned()),
            file: name.to_owned(),
            line,
            column,
        }
    };
    let findings = offline.catalogue.uncontained().into_iter().map(finding).collect();
    offline.close().await;
    Ok(findings)
}

/// Prints a finding with its line and a caret under the place.
fn show(finding: &FileFinding, line: Option<&[u8]>) {
    let word = match finding.severity {
        Severity::Error => "error",
        Severity::Warning => "warning",
    };
    output::foreign(&format!("{word}[{}]: {}", finding.code, finding.message));
    let tool = finding.tool_id.as_deref().map(|id| format!(" in `{id}`")).unwrap_or_default();
    output::foreign(&format!(
        "  --> {}:{}:{} ({}{tool})",
        finding.file, finding.line, finding.column, finding.path
    ));
    if let Some(line) = line {
        let line: Vec<char> = String::from_utf8_lossy(line).chars().collect();
        let from = finding.column.saturating_sub(60);
        let part: String = line.iter().skip(from).take(120).collect();
        let caret = " ".repeat(finding.column - 1 - from.min(finding.column - 1));
        // Each character is replaced by one character to keep the caret position. A secret is hidden even if
        // the guard has not reached it.
        let part = part.replace(char::is_control, " ");
        if secret_shapes::shapes().recognise(&part).is_some() {
            return;
        }
        output::line(&format!("   | {part}"));
        output::line(&format!("   | {caret}^"));
    }
    if let Some(hint) = &finding.hint {
        output::line(&format!("   = help: {hint}"));
    }
}
