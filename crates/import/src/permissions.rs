//! Carries a client's permissions for single tools over to the names of the tools in Toolbooth.
//!
//! Nothing is allowed that was not allowed before, and no refusal is lost.
//!
//! Doc: importing.md#permissions

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use jsonc_parser::ParseOptions;
use jsonc_parser::cst::{CstArray, CstNode, CstObject, CstRootNode};
use serde::Serialize;
use toolbooth_registry::WireNames;
use toolbooth_registry::discovered::tool_id;
use toolbooth_registry::wire::WireCandidate;

use crate::client::Client;
use crate::error::ImportError;

/// The largest file of a client that is read, in bytes.
const FILE_BYTES_MAX: u64 = 16 << 20;
/// The prefix of a permission for the tools of a server.
const MCP: &str = "mcp__";
/// The name of Toolbooth as a server of a client.
pub const GATEWAY: &str = "toolbooth";
/// Claude's settings of a project, relative to its folder.
const PROJECT_SETTINGS: [&str; 2] = [".claude/settings.json", ".claude/settings.local.json"];

/// A tool that a server listed.
#[derive(Debug, Clone)]
pub struct ListedTool {
    /// Its name at its server.
    pub name: String,
    /// Its name on the wire; `None` in quarantine.
    pub wire_name: Option<String>,
    /// Its name on the wire, regardless of quarantine.
    pub expected_name: String,
}

/// A server that a client replaces by Toolbooth, with the tools that it listed.
#[derive(Debug, Clone)]
pub struct Switched {
    /// Its name.
    pub name: String,
    /// The tools that it listed.
    pub tools: Vec<ListedTool>,
}

/// A file with permissions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PermissionFile {
    /// Its path.
    pub path: PathBuf,
    /// Whether entries may concern servers of other projects too; they then stay next to the new
    /// ones.
    pub is_shared: bool,
    /// In the file for all projects, only the list of this project counts; `None` = all lists.
    pub project: Option<PathBuf>,
}

/// An entry that was carried over.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Change {
    /// `allow`, `ask` or `deny`.
    pub list: &'static str,
    /// The entry before.
    pub old: String,
    /// The entries that replace it.
    pub new: Vec<String>,
}

/// Returns the files in which a client may have permissions for the servers of `file`.
#[must_use]
pub fn files(client: Client, file: &Path) -> Vec<PermissionFile> {
    if client != Client::Claude {
        return Vec::new();
    }
    let file = std::path::absolute(file).unwrap_or_else(|_| file.to_owned());
    let home = std::env::var_os("HOME").map(PathBuf::from);
    let user = home.as_ref().map(|home| home.join(".claude/settings.json"));
    let shared = |path: PathBuf| PermissionFile { path, is_shared: true, project: None };
    let mut found: Vec<PermissionFile> = Vec::new();
    match file.file_name().and_then(|name| name.to_str()) {
        Some(".mcp.json") => {
            let project = file.parent().unwrap_or(Path::new("/")).to_owned();
            for name in PROJECT_SETTINGS {
                let path = project.join(name);
                let is_user = Some(&path) == user.as_ref();
                found.push(PermissionFile { path, is_shared: is_user, project: None });
            }
            let all = home.map(|home| home.join(".claude.json"));
            found.extend(all.map(|path| PermissionFile {
                path,
                is_shared: false,
                project: Some(project),
            }));
        }
        Some(".claude.json") => {
            // Servers of a user are available in every project.
            for project in projects(&file) {
                found.extend(PROJECT_SETTINGS.map(|name| shared(project.join(name))));
            }
            found.push(shared(file));
        }
        _ => return Vec::new(),
    }
    found.extend(user.map(shared));
    let mut files: Vec<PermissionFile> = Vec::new();
    for file in found {
        if file.path.is_file() && !files.iter().any(|known| known.path == file.path) {
            files.push(file);
        }
    }
    files
}

/// Returns the projects that Claude knows, and the current one.
fn projects(file: &Path) -> Vec<PathBuf> {
    let mut projects: Vec<PathBuf> = std::env::current_dir().into_iter().collect();
    let text = read_text(file);
    if let Some(root) = parse(&text).ok().and_then(|root| root.object_value())
        && let Some(known) = root.object_value("projects")
    {
        projects.extend(
            known.properties().iter().filter_map(|one| one.decoded_name()).map(PathBuf::from),
        );
    }
    projects
}

/// Returns the text of a client's file; empty for one that is missing, too large, or no regular file.
/// Opening a pipe would wait for its writer.
fn read_text(path: &Path) -> String {
    let is_regular = std::fs::metadata(path).is_ok_and(|data| data.is_file());
    let mut text = String::new();
    let mut read = |file: File| file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text);
    match File::open(path).ok().filter(|_| is_regular).map(&mut read) {
        Some(Ok(bytes)) if bytes as u64 <= FILE_BYTES_MAX => text,
        _ => String::new(),
    }
}

fn parse(text: &str) -> Result<CstRootNode, ImportError> {
    CstRootNode::parse(text, &ParseOptions::default()).map_err(ImportError::NoJson)
}

/// Returns the servers of `.mcp.json` that Claude does not start, with the file that disables them.
#[must_use]
pub fn disabled(client: Client, file: &Path) -> Vec<(String, PathBuf)> {
    let mut found = Vec::new();
    for own in files(client, file) {
        let text = read_text(&own.path);
        let Some(object) = parse(&text).ok().and_then(|root| root.object_value()) else { continue };
        let mut sections: Vec<CstObject> = vec![object.clone()];
        if let (Some(project), Some(known)) = (&own.project, object.object_value("projects")) {
            sections.extend(known.object_value(&project.to_string_lossy()));
        }
        let lists = ["disabledMcpjsonServers", "disabledMcpServers"];
        let entries =
            sections.iter().flat_map(|section| lists.map(|list| section.array_value(list)));
        for name in entries.flatten().flat_map(|entries| texts(&entries)) {
            found.push((name, own.path.clone()));
        }
    }
    found
}

/// A list of permissions.
struct List {
    name: &'static str,
    entries: CstArray,
}

fn lists(object: &CstObject, project: Option<&Path>) -> Vec<List> {
    let mut lists = Vec::new();
    if let Some(permissions) = object.object_value("permissions") {
        for name in ["allow", "ask", "deny"] {
            lists.extend(permissions.array_value(name).map(|entries| List { name, entries }));
        }
    }
    for own in object.object_value("projects").iter().flat_map(CstObject::properties) {
        let is_chosen = project.is_none_or(|project| {
            own.decoded_name().is_some_and(|name| Path::new(&name) == project)
        });
        let entries = own.object_value().and_then(|own| own.array_value("allowedTools"));
        if is_chosen {
            lists.extend(entries.map(|entries| List { name: "allow", entries }));
        }
    }
    lists
}

/// Converts a name to the form that Claude uses in permissions.
fn plain(name: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '_' | '-') { c } else { '_' };
    name.chars().map(plain).collect()
}

/// The tools of a server that an entry covers.
#[derive(Debug, PartialEq, Eq)]
enum Selected<'e> {
    All,
    Pattern(&'e str),
    Tool(&'e str),
}

/// Returns the tools of a server that an entry covers; `None` = it concerns something else.
fn selected<'e>(entry: &'e str, server: &str) -> Option<Selected<'e>> {
    let rest = entry.strip_prefix(MCP)?;
    let rest = [server.to_owned(), plain(server)]
        .into_iter()
        .find_map(|name| rest.strip_prefix(name.as_str()))?;
    match rest.strip_prefix("__") {
        None => rest.is_empty().then_some(Selected::All),
        Some("" | "*") => Some(Selected::All),
        Some(pattern) if pattern.contains('*') => Some(Selected::Pattern(pattern)),
        Some(tool) => Some(Selected::Tool(tool)),
    }
}

fn matches(pattern: &str, name: &str) -> bool {
    let Some((before, after)) = pattern.split_once('*') else { return pattern == name };
    name.strip_prefix(before).is_some_and(|rest| {
        (0..=rest.len()).filter_map(|at| rest.get(at..)).any(|rest| matches(after, rest))
    })
}

/// Returns the server that an entry concerns; of several, the one with the longest name.
fn server_of<'s, 'e>(
    entry: &'e str,
    names: impl Iterator<Item = &'s str>,
) -> Option<(&'s str, Selected<'e>)> {
    names.filter_map(|name| Some((name, selected(entry, name)?))).max_by_key(|(name, _)| name.len())
}

/// Returns the refusals of a file that cover more than one tool, with the server. Entries under
/// other names cannot cover tools that do not exist yet.
#[must_use]
pub fn wide_refusals(
    text: &str,
    file: &PermissionFile,
    servers: &[String],
) -> Vec<(String, String)> {
    let Ok(root) = parse(text) else { return Vec::new() };
    let Some(object) = root.object_value() else { return Vec::new() };
    let mut found = Vec::new();
    for list in lists(&object, file.project.as_deref()).iter().filter(|list| list.name == "deny") {
        for entry in texts(&list.entries) {
            let about = server_of(&entry, servers.iter().map(String::as_str));
            if let Some((server, Selected::All | Selected::Pattern(_))) = about {
                found.push((server.to_owned(), entry.clone()));
            }
        }
    }
    found
}

fn text_of(node: &CstNode) -> Option<String> {
    node.as_string_lit()?.decoded_value().ok()
}

fn texts(entries: &CstArray) -> Vec<String> {
    entries.elements().iter().filter_map(text_of).collect()
}

/// Returns the names that replace an entry. An `allow` names only tools that Toolbooth forwards.
/// Other entries also name tools in quarantine and tools that do not exist.
fn renamed(
    list: &str,
    server: &Switched,
    selected: &Selected<'_>,
    wire_names: &WireNames,
) -> Vec<String> {
    let wanted = |tool: &&ListedTool| match selected {
        Selected::All => true,
        Selected::Pattern(pattern) => matches(pattern, &plain(&tool.name)),
        Selected::Tool(name) => tool.name == *name || plain(&tool.name) == *name,
    };
    let found: Vec<&ListedTool> = server.tools.iter().filter(wanted).collect();
    let name = |name: &str| format!("{MCP}{GATEWAY}__{}", plain(name));
    if list == "allow" {
        return found.iter().filter_map(|tool| tool.wire_name.as_deref()).map(name).collect();
    }
    let mut names: Vec<String> = found.iter().map(|tool| name(&tool.expected_name)).collect();
    if let (true, Selected::Tool(tool)) = (names.is_empty(), selected) {
        let id = tool_id(&format!("{}.{tool}", server.name));
        let candidate = WireCandidate { id: &id, bare: Some(tool) };
        names.push(name(wire_names.with(std::iter::once(candidate)).name_of(&id)));
    }
    names
}

/// The servers that a client replaces by Toolbooth.
#[derive(Debug, Clone, Copy)]
pub struct Exchange<'e> {
    /// These servers, with their tools.
    pub switched: &'e [Switched],
    /// All servers of the client.
    pub all: &'e [String],
    /// Names on the wire, for tools that were not listed.
    pub names: &'e WireNames,
}

/// Returns the text of a file with the entries of these servers carried over, and the changes.
///
/// # Errors
/// [`ImportError::NoJson`].
pub fn carried_over(
    text: &str,
    file: &PermissionFile,
    Exchange { switched, all, names }: Exchange<'_>,
) -> Result<(String, Vec<Change>), ImportError> {
    let root = parse(text)?;
    let mut changes = Vec::new();
    let Some(object) = root.object_value() else { return Ok((text.to_owned(), changes)) };
    for list in lists(&object, file.project.as_deref()) {
        let mut known = texts(&list.entries);
        let is_long = list.entries.to_string().contains('\n');
        for node in list.entries.elements() {
            let Some((entry, old)) = node.as_string_lit().zip(text_of(&node)) else { continue };
            let Some((name, about)) = server_of(&old, all.iter().map(String::as_str)) else {
                continue;
            };
            let Some(server) = switched.iter().find(|server| server.name == name) else { continue };
            let new = renamed(list.name, server, &about, names);
            let mut texts = Vec::new();
            if file.is_shared {
                texts.push(entry.raw_value());
            }
            for name in &new {
                if !known.contains(name) {
                    // A wire name needs no escapes.
                    texts.push(format!("\"{name}\""));
                    known.push(name.clone());
                }
            }
            let indent = node.indent_text().filter(|_| is_long);
            let separator = indent.map_or(", ".to_owned(), |indent| format!(",\n{indent}"));
            // Only the entry is replaced, so that everything around it stays byte for byte.
            match texts.as_slice() {
                [] if list.name == "allow" => node.remove(),
                [] => continue,
                texts => entry.set_raw_value(texts.join(&separator)),
            }
            changes.push(Change { list: list.name, old, new });
        }
    }
    let text = if changes.is_empty() { text.to_owned() } else { root.to_string() };
    Ok((text, changes))
}

#[cfg(test)]
mod tests;
