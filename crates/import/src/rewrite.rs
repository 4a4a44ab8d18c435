//! Rewrites a client's file with this gateway in the place of servers.
//!
//! Doc: importing.md#install

use jsonc_parser::ParseOptions;
use jsonc_parser::cst::{CstInputValue, CstNode, CstObject, CstRootNode};
use toml_edit::{Array, DocumentMut, Item, Table, TomlError, value};

use crate::client::Client;
use crate::error::ImportError;
use crate::permissions::{GATEWAY, Switched};

/// The servers of a client's file that this gateway replaces.
#[derive(Debug, Clone, Copy)]
pub enum Replaced<'r> {
    /// All of them.
    All,
    /// The servers named here; the others stay.
    Some(&'r [Switched]),
}

/// Returns the text of a client's file with this gateway, started by `command` with `arguments`, in
/// the place of servers. All other parts stay byte for byte.
///
/// # Errors
/// [`ImportError::NoToml`], [`ImportError::NoJson`], [`ImportError::NoObject`], [`ImportError::NoMember`].
pub fn with_gateway(
    text: &str,
    client: Client,
    replaced: Replaced<'_>,
    command: &str,
    arguments: &[String],
) -> Result<String, ImportError> {
    match client {
        Client::Codex => in_toml(text, client, replaced, command, arguments),
        _ => in_json(text, client, replaced, command, arguments),
    }
}

fn in_toml(
    text: &str,
    client: Client,
    replaced: Replaced<'_>,
    command: &str,
    arguments: &[String],
) -> Result<String, ImportError> {
    let mut document: DocumentMut =
        text.parse().map_err(|error: TomlError| ImportError::NoToml(error.message().to_owned()))?;
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
) -> Result<String, ImportError> {
    let root = CstRootNode::parse(text, &ParseOptions::default()).map_err(ImportError::NoJson)?;
    let object = root.object_value_or_create().ok_or(ImportError::NoObject)?;
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
                .ok_or(ImportError::NoMember(client.member()))?;
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
                // No remaining server uses them.
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

/// Adds this gateway to the list of servers that Gemini starts, if the list exists.
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

/// Removes servers of the current folder from the file for all projects.
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
