//! `import`: imports servers of MCP clients, and operations of OpenAPI documents.
//!
//! Doc: importing.md

mod client;
mod questions;
mod report;

use std::path::Path;

use serde_json::json;
use toolbooth_contracts::causes::with_causes;
use toolbooth_import::{Client, openapi};
use toolbooth_registry::source_claims::SourceClaims;
use toolbooth_registry::{file, suspicion};

use crate::cli::Import;
use crate::config;
use crate::failure::{FAILED, Failure};
use crate::offline::OfflineGateway;
use crate::openapi_file;
use crate::output::{self, Format};
use crate::trust::{Gate, Trusted};

/// The configuration and the data folder that the command line names.
#[derive(Debug, Clone, Copy)]
pub(super) struct NamedPaths<'p> {
    pub(super) configuration: Option<&'p Path>,
    pub(super) data: Option<&'p Path>,
}

pub(super) async fn import(
    what: Import,
    paths: NamedPaths<'_>,
    gate: &Gate,
) -> Result<bool, Failure> {
    let (client, arguments) = match what {
        Import::Claude(arguments) => (Client::Claude, arguments),
        Import::Gemini(arguments) => (Client::Gemini, arguments),
        Import::Cursor(arguments) => (Client::Cursor, arguments),
        Import::Vscode(arguments) => (Client::Vscode, arguments),
        Import::Codex(arguments) => (Client::Codex, arguments),
        Import::Openapi { file, endpoint, write, shown } => {
            let loaded = config::load(paths.configuration, paths.data)?;
            let loaded = gate.require(loaded)?;
            return operations(loaded, &file, &endpoint, write, shown.format).await;
        }
    };
    if arguments.undo {
        return client::undo(client, arguments, paths);
    }
    client::servers(client, arguments, paths, gate).await
}

async fn operations(
    loaded: Trusted,
    path: &Path,
    endpoint: &str,
    write: bool,
    format: Format,
) -> Result<bool, Failure> {
    let document = openapi_file::named(path)?;
    let operations = openapi::operations(&document, endpoint)
        .map_err(|error| Failure::usage(with_causes(&error)).at(path.display().to_string()))?;
    let mut notices = operations.notices;
    let offline = OfflineGateway::build(loaded).await?;
    let guard = offline.catalogue.guard();
    let mut contracts = Vec::new();
    for entry in &operations.contracts {
        match guard.validate_entry(entry) {
            Ok(contract) => {
                for suspicion in suspicion::of(&SourceClaims::of(&contract)) {
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
    offline.close().await;
    if contracts.is_empty() {
        for notice in &notices {
            crate::notice(&format!("note: {notice}"));
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
        written = Some(super::tools::write_contracts(&offline, &all)?);
    }
    for notice in &notices {
        crate::notice(&format!("note: {notice}"));
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
