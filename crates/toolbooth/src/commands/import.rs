//! `import`: takes over servers of MCP clients, and operations of OpenAPI documents.
//!
//! Doc: importing.md

use std::path::{Path, PathBuf};

use serde_json::json;
use toolbooth_registry::said::Said;
use toolbooth_registry::{file, suspicion};

use crate::cli::{ClientArgs, Import};
use crate::compose::Frame;
use crate::config::{self, Loaded};
use crate::failure::{FAILED, Failure};
use crate::import::{self, Client, openapi};
use crate::output::{self, Format};

pub(super) async fn import(
    what: Import,
    configuration: Option<&Path>,
    load: impl Fn() -> Result<Loaded, Failure>,
) -> Result<bool, Failure> {
    let (client, arguments) = match what {
        Import::Claude(arguments) => (Client::Claude, arguments),
        Import::Gemini(arguments) => (Client::Gemini, arguments),
        Import::Cursor(arguments) => (Client::Cursor, arguments),
        Import::Vscode(arguments) => (Client::Vscode, arguments),
        Import::Codex(arguments) => (Client::Codex, arguments),
        Import::Openapi { file, endpoint, write, shown } => {
            return operations(load()?, &file, &endpoint, write, shown.format).await;
        }
    };
    servers(client, arguments, configuration)
}

fn servers(
    client: Client,
    arguments: ClientArgs,
    configuration: Option<&Path>,
) -> Result<bool, Failure> {
    let ClientArgs { file, install, undo, dry_run, shown } = arguments;
    let format = shown.format;
    let path = client.file(file)?;
    if undo {
        let (backup, undone) = import::undo(&path)?;
        if format.is_json() {
            output::json(
                &json!({ "ok": true, "file": path, "restored": backup, "undone": undone }),
            );
        } else {
            output::line(&format!("{} is as it was in {}", path.display(), backup.display()));
            crate::note(&format!("what stood there is kept in {}", undone.display()));
        }
        return Ok(true);
    }
    let imported = import::read(client, &path)?;
    let target = config::place(configuration)?;
    let before = match std::fs::read_to_string(&target) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
        Err(error) => {
            let message = format!("the configuration cannot be read: {error}");
            return Err(Failure::configuration(message).at(target.display().to_string()));
        }
    };
    if imported.sections.is_empty() {
        for notice in &imported.notices {
            crate::note(&format!("note: {notice}"));
        }
        return Err(Failure::new(FAILED, "nothing-to-import", "the file names no servers")
            .at(path.display().to_string()));
    }
    let (text, added, kept) =
        import::into_configuration(&before, imported.sections).map_err(|failure| {
            if failure.path.is_some() { failure } else { failure.at(target.display().to_string()) }
        })?;
    let mut backup: Option<PathBuf> = None;
    if !dry_run {
        if !added.is_empty() {
            super::lock::replace_file(&target, &text)?;
        }
        if install {
            backup = Some(import::install(client, &path, &target)?);
        }
    }
    if format.is_json() {
        let mut out = json!({
            "ok": true,
            "file": path,
            "configuration": target,
            "added": added,
            "kept": kept,
            "notices": imported.notices,
        });
        if let (Some(backup), Some(members)) = (&backup, out.as_object_mut()) {
            members.insert("backup".to_owned(), json!(backup));
        }
        output::json(&out);
        return Ok(true);
    }
    let verb = if dry_run { "would be added" } else { "added" };
    for section in &added {
        output::foreign(&format!("{}: [{section}] {verb}", target.display()));
    }
    for section in &kept {
        output::foreign(&format!("{}: [{section}] is there already and stays", target.display()));
    }
    for notice in &imported.notices {
        output::foreign(&format!("  note: {notice}"));
    }
    if let Some(backup) = backup {
        output::line(&format!(
            "{} starts Toolbooth now; it was copied to {}",
            path.display(),
            backup.display()
        ));
        crate::note("`--undo` brings it back");
    } else if !dry_run {
        crate::note("next: `toolbooth discover`, then `toolbooth lock`");
    }
    Ok(true)
}

async fn operations(
    loaded: Loaded,
    path: &Path,
    endpoint: &str,
    write: bool,
    format: Format,
) -> Result<bool, Failure> {
    let operations = openapi::read(path, endpoint)?;
    let mut notices = operations.notices;
    let frame = Frame::build(loaded).await?;
    let guard = frame.catalogue.guard();
    let mut contracts = Vec::new();
    for entry in &operations.contracts {
        match guard.validate_entry(entry) {
            Ok(contract) => {
                for suspicion in suspicion::of(&Said::of(&contract)) {
                    notices.push(format!("{}: suspicious: {suspicion}", contract.tool_id));
                }
                contracts.push(contract);
            }
            Err(error) => {
                let id = entry.get("toolId").and_then(|id| id.as_str()).unwrap_or_default();
                notices.push(format!("{id} was left out: {error}"));
            }
        }
    }
    frame.close().await;
    if contracts.is_empty() {
        for notice in &notices {
            crate::note(&format!("note: {notice}"));
        }
        let first = notices.first().cloned().unwrap_or_default();
        let message = format!("no operation became a contract; {first}");
        return Err(
            Failure::new(FAILED, "nothing-to-import", message).at(path.display().to_string())
        );
    }
    let mut written = None;
    if write {
        let all: Vec<_> = contracts.iter().collect();
        written = Some(super::tools::write_contracts(&frame, &all)?);
    }
    for notice in &notices {
        crate::note(&format!("note: {notice}"));
    }
    match (written, format.is_json()) {
        (Some((file, count)), true) => {
            output::json(
                &json!({ "ok": true, "written": { "file": file, "tools": count }, "notices": notices }),
            );
        }
        (Some((file, count)), false) => {
            output::line(&format!(
                "{file}: {count} contract(s) written; read them before you rely on them"
            ));
        }
        (None, _) => {
            output::json(&file::RegistryFile {
                version: file::VERSION.to_owned(),
                tools: contracts,
            });
        }
    }
    Ok(true)
}
