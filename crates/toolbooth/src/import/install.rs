//! Points a client at Toolbooth instead of its servers, with a backup, and back again.
//!
//! Doc: importing.md#install

use std::path::{Path, PathBuf};

use jsonc_parser::ParseOptions;
use jsonc_parser::cst::{CstInputValue, CstObject, CstRootNode};
use toml_edit::{Array, DocumentMut, Item, Table, value};

use super::Client;
use crate::failure::{Failure, OUT_OF_REACH};

/// Backups of one file that are kept at once.
const BACKUPS_MAX: usize = 1_000;

fn backup(path: &Path, number: usize) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".toolbooth-backup-{number}"));
    PathBuf::from(name)
}

/// Whether anything has this name, be it a link to nothing.
fn is_there(path: &Path) -> bool {
    path.symlink_metadata().is_ok()
}

fn failed(path: &Path, what: &str, error: &std::io::Error) -> Failure {
    Failure::new(OUT_OF_REACH, "cannot-write", format!("{what}: {error}"))
        .at(path.display().to_string())
}

/// The command line by which a client starts this gateway.
fn gateway(configuration: &Path) -> Result<(String, Vec<String>), Failure> {
    let this = std::env::current_exe()
        .map_err(|error| Failure::usage(format!("this program cannot be found: {error}")))?;
    let configuration =
        std::path::absolute(configuration).unwrap_or_else(|_| configuration.to_owned());
    let arguments = ["stdio", "--config"].map(str::to_owned).into_iter();
    let arguments = arguments.chain([configuration.display().to_string()]).collect();
    Ok((this.display().to_string(), arguments))
}

/// Replaces the servers of a client's file by this gateway; gives the backup's path.
pub(crate) fn install(
    client: Client,
    path: &Path,
    configuration: &Path,
) -> Result<PathBuf, Failure> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| failed(path, "the client's file cannot be read", &error))?;
    let (command, arguments) = gateway(configuration)?;
    let replaced = if client == Client::Codex {
        in_toml(&text, client, &command, &arguments)
    } else {
        in_json(&text, client, &command, &arguments)
    }
    .map_err(|message| Failure::usage(message).at(path.display().to_string()))?;
    let last = (1..=BACKUPS_MAX).rev().find(|number| is_there(&backup(path, *number)));
    let free = Some(last.unwrap_or(0) + 1).filter(|number| *number <= BACKUPS_MAX);
    let backup = free.map(|number| backup(path, number)).ok_or_else(|| {
        Failure::usage("there are too many backups of this file")
            .at(path.display().to_string())
            .hint("remove those that are not needed")
    })?;
    // A copy has the mode of the file: it may hold secrets.
    std::fs::copy(path, &backup)
        .map_err(|error| failed(&backup, "the backup cannot be written", &error))?;
    crate::files::replace(path, replaced.as_bytes())
        .map_err(|error| failed(path, "the client's file cannot be written", &error))?;
    Ok(backup)
}

/// Brings the latest backup back; what stands in its place is kept beside it.
pub(crate) fn undo(path: &Path) -> Result<(PathBuf, PathBuf), Failure> {
    let latest =
        (1..=BACKUPS_MAX).rev().map(|number| backup(path, number)).find(|path| is_there(path));
    let latest = latest.ok_or_else(|| {
        Failure::usage("there is no backup of this file").at(path.display().to_string())
    })?;
    let mut undone = path.as_os_str().to_owned();
    undone.push(".toolbooth-undone");
    let undone = PathBuf::from(undone);
    std::fs::rename(path, &undone)
        .map_err(|error| failed(path, "the client's file cannot be set aside", &error))?;
    std::fs::rename(&latest, path)
        .map_err(|error| failed(&latest, "the backup cannot be brought back", &error))?;
    Ok((latest, undone))
}

fn in_toml(
    text: &str,
    client: Client,
    command: &str,
    arguments: &[String],
) -> Result<String, String> {
    let mut document: DocumentMut =
        text.parse().map_err(|_| "the client's file is no TOML".to_owned())?;
    let mut own = Table::new();
    own.insert("command", value(command));
    own.insert("args", value(arguments.iter().collect::<Array>()));
    let mut servers = Table::new();
    servers.set_implicit(true);
    servers.insert("toolbooth", Item::Table(own));
    document.insert(client.member(), Item::Table(servers));
    Ok(document.to_string())
}

fn in_json(
    text: &str,
    client: Client,
    command: &str,
    arguments: &[String],
) -> Result<String, String> {
    let root = CstRootNode::parse(text, &ParseOptions::default())
        .map_err(|error| format!("the client's file is no JSON: {error}"))?;
    let object =
        root.object_value_or_create().ok_or("the client's file holds no object".to_owned())?;
    let text = |text: &str| CstInputValue::String(text.to_owned());
    let mut own = Vec::new();
    if client == Client::Vscode {
        own.push(("type".to_owned(), text("stdio")));
    }
    own.push(("command".to_owned(), text(command)));
    let words = arguments.iter().map(|word| text(word)).collect();
    own.push(("args".to_owned(), CstInputValue::Array(words)));
    let servers = CstInputValue::Object(vec![("toolbooth".to_owned(), CstInputValue::Object(own))]);
    if client == Client::Claude {
        forget_project(&object);
    }
    if client == Client::Vscode
        && let Some(inputs) = object.get("inputs")
    {
        // What they asked for, nobody uses any more.
        inputs.remove();
    }
    match object.get(client.member()) {
        Some(member) => member.set_value(servers),
        None => drop(object.append(client.member(), servers)),
    }
    Ok(root.to_string())
}

/// This folder's own servers, in the file for all projects, were taken over too.
fn forget_project(object: &CstObject) {
    let here = std::env::current_dir().unwrap_or_default();
    let project = object
        .object_value("projects")
        .and_then(|projects| projects.object_value(here.to_string_lossy().as_ref()));
    if let Some(servers) = project.and_then(|project| project.get("mcpServers")) {
        servers.set_value(CstInputValue::Object(Vec::new()));
    }
}
