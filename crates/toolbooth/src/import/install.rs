//! Points a client at Toolbooth instead of its servers, with a backup, and back again.
//!
//! Doc: importing.md#install

use std::path::{Path, PathBuf};

use jsonc_parser::ParseOptions;
use jsonc_parser::cst::{CstInputValue, CstNode, CstObject, CstRootNode};
use serde::{Deserialize, Serialize};
use toml_edit::{Array, DocumentMut, Item, Table, value};

use super::Client;
use super::allowed::{self, Change, Exchange, GATEWAY, Switched};
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
fn runtime(configuration: &Path) -> Result<(String, Vec<String>), Failure> {
    let this = std::env::current_exe()
        .map_err(|error| Failure::usage(format!("this program cannot be found: {error}")))?;
    let configuration =
        std::path::absolute(configuration).unwrap_or_else(|_| configuration.to_owned());
    let arguments = ["stdio", "--config"].map(str::to_owned).into_iter();
    let arguments = arguments.chain([configuration.display().to_string()]).collect();
    Ok((this.display().to_string(), arguments))
}

/// Which servers of a client's file this gateway takes the place of.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Replaced<'r> {
    /// All of them.
    All,
    /// Those that are named here; the others stay.
    Some(&'r [Switched]),
}

/// A file that was changed, with its backup.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Backup {
    pub(crate) file: PathBuf,
    pub(crate) backup: PathBuf,
}

/// What an installation changed.
#[derive(Debug)]
pub(crate) struct Installed {
    pub(crate) backup: PathBuf,
    /// Files with permissions that were carried over.
    pub(crate) permissions: Vec<(Backup, Vec<Change>)>,
    /// Permissions of the client's file itself that were carried over.
    pub(crate) own: Vec<Change>,
}

/// Puts this gateway into a client's file in the place of servers, and carries permissions over.
pub(crate) fn install(
    client: Client,
    path: &Path,
    configuration: &Path,
    replaced: Replaced<'_>,
    exchange: Exchange<'_>,
) -> Result<Installed, Failure> {
    let wrong =
        |path: &Path, message: String| Failure::usage(message).at(path.display().to_string());
    let read = |path: &Path| {
        std::fs::read_to_string(path)
            .map_err(|error| failed(path, "the client's file cannot be read", &error))
    };
    let (command, arguments) = runtime(configuration)?;
    let text = read(path)?;
    let changed = if client == Client::Codex {
        in_toml(&text, client, replaced, &command, &arguments)
    } else {
        in_json(&text, client, replaced, &command, &arguments)
    };
    let mut text = changed.map_err(|message| wrong(path, message))?;
    let (mut own, mut others) = (Vec::new(), Vec::new());
    for file in allowed::files(client, path) {
        let is_own = same(&file.path, path);
        let before = if is_own { text.clone() } else { read(&file.path)? };
        let (after, changes) =
            allowed::carried_over(&before, &file, exchange).map_err(|message| {
                wrong(&file.path, message).hint("mend the file; nothing was installed")
            })?;
        if is_own {
            (text, own) = (after, changes);
        } else if after != before {
            others.push((file.path, after, changes));
        }
    }
    // Every file is copied before the first one is changed.
    let backup = copy(path)?;
    let mut permissions = Vec::new();
    for (file, _, changes) in &others {
        permissions.push((Backup { file: file.clone(), backup: copy(file)? }, changes.clone()));
    }
    let kept: Vec<&Backup> = permissions.iter().map(|(backup, _)| backup).collect();
    if !kept.is_empty() {
        let list = record(&backup);
        let text = serde_json::to_vec_pretty(&kept).unwrap_or_default();
        crate::files::replace_private(&list, &text)
            .map_err(|error| failed(&list, "the list of backups cannot be written", &error))?;
    }
    // Refusals are there before the tools that they are about.
    let texts = others.iter().map(|(file, text, _)| (file.as_path(), text)).chain([(path, &text)]);
    for (file, text) in texts {
        if let Err(error) = crate::files::replace(file, text.as_bytes()) {
            for Backup { file, backup } in kept {
                let _ = std::fs::copy(backup, file);
            }
            return Err(failed(file, "the client's file cannot be written", &error));
        }
    }
    Ok(Installed { backup, permissions, own })
}

fn same(one: &Path, other: &Path) -> bool {
    match (one.canonicalize(), other.canonicalize()) {
        (Ok(one), Ok(other)) => one == other,
        _ => one == other,
    }
}

/// The list of the other files that were changed with the one of this backup.
fn record(backup: &Path) -> PathBuf {
    let mut name = backup.as_os_str().to_owned();
    name.push(".files");
    PathBuf::from(name)
}

/// Copies a file to its next backup.
fn copy(path: &Path) -> Result<PathBuf, Failure> {
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
    Ok(backup)
}

/// Brings the latest backup back, and those of the files that were changed with it; what stands in
/// their place is kept beside them. Gives the file's backup and where it is kept, and the others.
pub(crate) fn undo(
    client: Client,
    path: &Path,
) -> Result<(PathBuf, PathBuf, Vec<Backup>), Failure> {
    let latest =
        (1..=BACKUPS_MAX).rev().map(|number| backup(path, number)).find(|path| is_there(path));
    let latest = latest.ok_or_else(|| {
        Failure::usage("there is no backup of this file").at(path.display().to_string())
    })?;
    let list = record(&latest);
    let others: Vec<Backup> = match std::fs::read(&list) {
        Ok(text) => serde_json::from_slice(&text).map_err(|_| {
            Failure::usage("the list of backups cannot be understood")
                .at(list.display().to_string())
        })?,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Vec::new(),
        Err(error) => return Err(failed(&list, "the list of backups cannot be read", &error)),
    };
    // The list stands beside the client's file, where others may have written it.
    let own = allowed::files(client, path);
    let is_ours = |one: &Backup| {
        own.iter().any(|file| file.path == one.file)
            && (1..=BACKUPS_MAX).any(|number| one.backup == backup(&one.file, number))
    };
    if let Some(other) = others.iter().find(|one| !is_ours(one)) {
        let message = "the list of backups names a file that Toolbooth does not change";
        return Err(Failure::usage(message)
            .at(other.file.display().to_string())
            .hint(format!("see {}; nothing was brought back", list.display())));
    }
    let undone = bring_back(path, &latest)?;
    for Backup { file, backup } in &others {
        if is_there(backup) {
            bring_back(file, backup)?;
        }
    }
    let _ = std::fs::remove_file(&list);
    Ok((latest, undone, others))
}

fn bring_back(path: &Path, backup: &Path) -> Result<PathBuf, Failure> {
    let mut undone = path.as_os_str().to_owned();
    undone.push(".toolbooth-undone");
    let undone = PathBuf::from(undone);
    if is_there(path) {
        std::fs::rename(path, &undone)
            .map_err(|error| failed(path, "the client's file cannot be set aside", &error))?;
    }
    std::fs::rename(backup, path)
        .map_err(|error| failed(backup, "the backup cannot be brought back", &error))?;
    Ok(undone)
}

fn in_toml(
    text: &str,
    client: Client,
    replaced: Replaced<'_>,
    command: &str,
    arguments: &[String],
) -> Result<String, String> {
    let mut document: DocumentMut =
        text.parse().map_err(|_| "the client's file is no TOML".to_owned())?;
    let mut own = Table::new();
    own.insert("command", value(command));
    own.insert("args", value(arguments.iter().collect::<Array>()));
    let known = document.get_mut(client.member()).and_then(Item::as_table_like_mut);
    if let (Replaced::Some(names), Some(servers)) = (replaced, known) {
        names.iter().for_each(|one| drop(servers.remove(&one.name)));
        servers.insert(GATEWAY, Item::Table(own));
        return Ok(document.to_string());
    }
    let mut servers = Table::new();
    servers.set_implicit(true);
    servers.insert(GATEWAY, Item::Table(own));
    document.insert(client.member(), Item::Table(servers));
    Ok(document.to_string())
}

fn in_json(
    text: &str,
    client: Client,
    replaced: Replaced<'_>,
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
    let own = CstInputValue::Object(own);
    if client == Client::Claude {
        forget_project(&object, replaced);
    }
    if client == Client::Gemini {
        admit(&object);
    }
    match replaced {
        Replaced::Some(names) => {
            let servers = object
                .object_value_or_create(client.member())
                .ok_or_else(|| format!("`{}` is no object", client.member()))?;
            for one in names {
                if let Some(server) = servers.get(&one.name) {
                    server.remove();
                }
            }
            match servers.get(GATEWAY) {
                Some(known) => known.set_value(own),
                None => drop(servers.append(GATEWAY, own)),
            }
        }
        Replaced::All => {
            let servers = CstInputValue::Object(vec![(GATEWAY.to_owned(), own)]);
            if client == Client::Vscode
                && let Some(inputs) = object.get("inputs")
            {
                // No server asks for them any more.
                inputs.remove();
            }
            match object.get(client.member()) {
                Some(member) => member.set_value(servers),
                None => drop(object.append(client.member(), servers)),
            }
        }
    }
    Ok(root.to_string())
}

/// Adds this gateway to the list of servers that Gemini starts, where there is one.
fn admit(object: &CstObject) {
    let own = object.object_value("mcp").and_then(|lists| lists.array_value("allowed"));
    let Some(list) = own.or_else(|| object.array_value("allowMCPServers")) else { return };
    let has = |node: &CstNode| {
        node.as_string_lit().and_then(|text| text.decoded_value().ok()).as_deref() == Some(GATEWAY)
    };
    if !list.elements().iter().any(has) {
        list.append(CstInputValue::String(GATEWAY.to_owned()));
    }
}

/// Takes servers out of this folder's own, in the file for all projects.
fn forget_project(object: &CstObject, replaced: Replaced<'_>) {
    let here = std::env::current_dir().unwrap_or_default();
    let project = object
        .object_value("projects")
        .and_then(|projects| projects.object_value(here.to_string_lossy().as_ref()));
    let Some(servers) = project.and_then(|project| project.get("mcpServers")) else { return };
    match (replaced, servers.object_value()) {
        (Replaced::Some(names), Some(servers)) => {
            for server in names.iter().filter_map(|one| servers.get(&one.name)) {
                server.remove();
            }
        }
        _ => servers.set_value(CstInputValue::Object(Vec::new())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn only_a() -> Vec<Switched> {
        vec![Switched { name: "a".to_owned(), tools: Vec::new() }]
    }

    #[test]
    fn servers_that_stay_are_not_touched() {
        let toml = "[mcp_servers.a]\ncommand = \"a\"\n[mcp_servers.a.env]\nX = \"1\"\n\n# b's\n[mcp_servers.b]\ncommand = \"b\" # mine\n";
        let servers = only_a();
        let some = Replaced::Some(&servers);
        let text = in_toml(toml, Client::Codex, some, "toolbooth", &[]).unwrap();
        let table: toml::Table = toml::from_str(&text).unwrap();
        let names: Vec<&String> = table["mcp_servers"].as_table().unwrap().keys().collect();
        assert_eq!(names, ["b", "toolbooth"], "{text}");
        assert!(text.contains("command = \"b\" # mine"), "{text}");

        let json = "{\"inputs\": [1], \"servers\": {\"a\": {\"command\": \"a\"}, /* b's */ \"b\": {\"x\":  1}}}";
        let text = in_json(json, Client::Vscode, some, "toolbooth", &[]).unwrap();
        assert!(text.contains("/* b's */ \"b\": {\"x\":  1}") && text.contains("inputs"), "{text}");
        assert!(!text.contains("\"a\": {") && text.contains("\"toolbooth\": {"), "{text}");
        let text = in_json(json, Client::Vscode, Replaced::All, "toolbooth", &[]).unwrap();
        assert!(!text.contains("inputs") && !text.contains("\"b\""), "{text}");
    }

    #[test]
    fn gemini_starts_the_gateway_too() {
        let json = r#"{"mcp": {"allowed": ["a"]}, "mcpServers": {"a": {}}}"#;
        let mut text = json.to_owned();
        for _ in 0..2 {
            text = in_json(&text, Client::Gemini, Replaced::All, "t", &[]).unwrap();
            let value: serde_json::Value = serde_json::from_str(&text).unwrap();
            assert_eq!(value["mcp"]["allowed"], serde_json::json!(["a", "toolbooth"]));
        }
    }

    #[test]
    fn a_project_loses_only_servers_that_are_replaced() {
        let here = std::env::current_dir().unwrap().display().to_string();
        let json = format!(
            "{{\"projects\": {{{here:?}: {{\"mcpServers\": {{\"a\": {{}}, \"b\": {{}}}}}}}}}}"
        );
        let servers = only_a();
        let text = in_json(&json, Client::Claude, Replaced::Some(&servers), "t", &[]).unwrap();
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(value["projects"][&here]["mcpServers"], serde_json::json!({ "b": {} }));
        assert_eq!(value["mcpServers"]["toolbooth"]["command"], "t");
    }
}
