//! Contracts of the tools that clients have, with their arguments as the clients declare them to models.
//!
//! Doc: hooks.md#tools

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::HookClient;

/// A tool of a client.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ClientTool {
    about: String,
    /// The permission that a caller needs: the same for the same kind of tool at each client.
    permission: Option<String>,
    /// Required and further arguments, each with its type.
    #[serde(default)]
    required: BTreeMap<String, ArgumentType>,
    #[serde(default)]
    optional: BTreeMap<String, ArgumentType>,
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum ArgumentType {
    String,
    Number,
    Boolean,
    /// An array of strings.
    Strings,
}

impl ArgumentType {
    fn schema(self) -> Value {
        match self {
            Self::String => json!({ "type": "string" }),
            Self::Number => json!({ "type": "number" }),
            Self::Boolean => json!({ "type": "boolean" }),
            Self::Strings => json!({ "type": "array", "items": { "type": "string" } }),
        }
    }
}

/// Returns the registry entries of the known tools of a client. Arguments that an entry does not name are
/// accepted, since other versions of the client can have more.
pub(super) fn entries(client: HookClient) -> Vec<Value> {
    let tools = read(client).unwrap_or_default();
    tools.iter().map(|(name, tool)| entry(client, name, tool)).collect()
}

/// Reads the file of a client, which is a part of this program.
fn read(client: HookClient) -> Result<BTreeMap<String, ClientTool>, toml::de::Error> {
    toml::from_str(match client {
        HookClient::Claude => include_str!("claude.toml"),
        HookClient::Codex => include_str!("codex.toml"),
        HookClient::Gemini => include_str!("gemini.toml"),
    })
}

fn entry(client: HookClient, name: &str, tool: &ClientTool) -> Value {
    let arguments = tool.required.iter().chain(&tool.optional);
    let properties: Map<String, Value> =
        arguments.map(|(name, of)| (name.clone(), of.schema())).collect();
    let required: Vec<&String> = tool.required.keys().collect();
    let permissions: Vec<&String> = tool.permission.iter().collect();
    let read_only = tool.permission.as_deref() == Some("read:files");
    json!({
        "toolId": client.tool_id(name),
        "description": format!("{}; the client runs it.", tool.about),
        "category": "function",
        "inputSchema": { "type": "object", "properties": properties, "required": required },
        "outputSchema": {},
        "capabilities": {},
        "execution": { "localRuntimeId": client.runtime_id(), "target": name },
        "policy": {
            "timeoutMs": 30_000, "trustLevel": "trusted", "readOnly": read_only,
        },
        "permissions": permissions,
        "idempotency": { "mode": "none" },
    })
}

#[cfg(test)]
mod tests {
    use toolbooth_contracts::Guard;
    use toolbooth_contracts::secret::SecretShapes;

    use super::*;

    #[test]
    fn every_entry_is_a_contract() {
        let guard = Guard::new(SecretShapes::builtin());
        for client in HookClient::ALL {
            assert!(!read(client).unwrap().is_empty(), "{client:?}");
            for entry in entries(client) {
                assert_eq!(guard.check_entry(&entry), [], "{entry}");
            }
        }
    }

    #[test]
    fn tools_of_the_same_kind_have_the_same_permission_at_each_client() {
        let expected = [
            ("claude", "run:commands", "Bash Monitor"),
            (
                "claude",
                "write:files",
                "Edit EnterWorktree ExitWorktree MultiEdit NotebookEdit Write",
            ),
            ("claude", "read:files", "Glob Grep LS Read"),
            ("claude", "read:web", "WebFetch WebSearch"),
            ("claude", "run:agents", "Agent CronCreate ScheduleWakeup SendMessage Task Workflow"),
            ("claude", "read:mcp-resources", "ListMcpResourcesTool ReadMcpResourceTool"),
            ("codex", "run:commands", "Bash"),
            ("codex", "write:files", "apply_patch"),
            ("codex", "read:files", "view_image"),
            (
                "codex",
                "run:agents",
                "collaborationfollowup_task collaborationinterrupt_agent \
                 collaborationsend_message collaborationspawn_agent spawn_agent",
            ),
            (
                "codex",
                "read:mcp-resources",
                "list_mcp_resource_templates list_mcp_resources read_mcp_resource",
            ),
            ("gemini", "run:commands", "run_shell_command"),
            ("gemini", "write:files", "replace save_memory write_file"),
            (
                "gemini",
                "read:files",
                "glob grep_search list_directory read_file read_many_files search_file_content",
            ),
            ("gemini", "read:web", "google_web_search web_fetch"),
            ("gemini", "run:agents", "invoke_agent"),
        ];
        let mut known = 0;
        for client in HookClient::ALL {
            let tools = read(client).unwrap();
            known += tools.values().filter(|tool| tool.permission.is_some()).count();
            for (_, permission, names) in expected.iter().filter(|of| of.0 == client.as_str()) {
                for name in names.split(' ') {
                    assert_eq!(tools[name].permission.as_deref(), Some(*permission), "{name}");
                }
            }
        }
        assert_eq!(known, expected.iter().map(|of| of.2.split(' ').count()).sum::<usize>());
    }
}
