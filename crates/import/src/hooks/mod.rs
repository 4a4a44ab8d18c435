//! The before-tool hooks of clients: their messages, their answers, and contracts of their tools.
//!
//! Doc: hooks.md#messages, hooks.md#limits

mod tools;

use std::time::Duration;

use serde_json::{Map, Value, json};
use toolbooth_contracts::contract::CLIENT_RUNTIMES;
use toolbooth_contracts::json;

pub use crate::error::HookError;

/// A client that asks before it runs a tool of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum HookClient {
    /// Claude Code, event `PreToolUse`.
    Claude,
    /// Codex, event `PreToolUse`.
    Codex,
    /// Gemini CLI, event `BeforeTool`.
    Gemini,
}

/// What a client asks.
#[derive(Debug, Clone, PartialEq)]
pub struct HookCall {
    /// The tool, as the client names it.
    pub tool: String,
    /// The MCP server of the tool, as the client names it, if that is certain.
    pub server: Option<String>,
    /// The arguments.
    pub input: Map<String, Value>,
    /// The client's session.
    pub session_id: Option<String>,
}

impl HookClient {
    /// All clients.
    pub const ALL: [Self; 3] = [Self::Claude, Self::Codex, Self::Gemini];

    /// Returns the word that names the client in settings, commands and tool ids.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Claude => "claude",
            Self::Codex => "codex",
            Self::Gemini => "gemini",
        }
    }

    /// Returns the runtime id of its tools, which is also the tool set of its hook.
    #[must_use]
    pub fn runtime_id(self) -> String {
        format!("{CLIENT_RUNTIMES}{}", self.as_str())
    }

    /// Returns the id of one of its tools.
    #[must_use]
    pub fn tool_id(self, tool: &str) -> String {
        format!("{}.{tool}", self.as_str())
    }

    /// Returns the event of its before-tool hooks.
    #[must_use]
    pub fn event(self) -> &'static str {
        match self {
            Self::Claude | Self::Codex => "PreToolUse",
            Self::Gemini => "BeforeTool",
        }
    }

    /// Returns the registry entries of its known tools.
    #[must_use]
    pub fn tools(self) -> Vec<Value> {
        tools::entries(self)
    }

    /// Returns the client's settings file of the user, and the settings by which the client runs `command`
    /// before each tool, for at most `timeout`.
    #[must_use]
    pub fn settings(self, command: &str, timeout: Duration) -> (&'static str, Value) {
        let seconds = timeout.as_secs();
        let hook = |timeout: Value| {
            json!({ "hooks": { self.event(): [{
                "matcher": "*",
                "hooks": [{ "type": "command", "command": command, "timeout": timeout }],
            }] } })
        };
        match self {
            Self::Claude => ("~/.claude/settings.json", hook(json!(seconds))),
            Self::Codex => ("~/.codex/hooks.json", hook(json!(seconds))),
            Self::Gemini => ("~/.gemini/settings.json", hook(json!(seconds.saturating_mul(1_000)))),
        }
    }

    /// Reads a message of the client.
    ///
    /// # Errors
    /// [`HookError`]: why it is not understood. The call must then be denied.
    pub fn read(self, message: &[u8]) -> Result<HookCall, HookError> {
        let tree = json::parse(message).map_err(|fault| HookError::NoJson(fault.message))?;
        let Value::Object(mut members) = tree else { return Err(HookError::NoObject) };
        let event = text(&members, "hook_event_name")?;
        if event != self.event() {
            return Err(HookError::OtherEvent { found: event, expected: self.event() });
        }
        let tool = text(&members, "tool_name")?;
        let Some(Value::Object(input)) = members.remove("tool_input") else {
            return Err(HookError::NoMember("tool_input"));
        };
        let session_id = match members.get("session_id") {
            None | Some(Value::Null) => None,
            Some(_) => Some(text(&members, "session_id")?),
        };
        let server = match self {
            Self::Claude | Self::Codex => server_in(&tool),
            // A tool with a context is that of a server, whatever its name is.
            Self::Gemini => match members.get("mcp_context") {
                None | Some(Value::Null) => None,
                Some(Value::Object(context)) => Some(text(context, "server_name")?),
                Some(_) => return Err(HookError::NoMember("mcp_context")),
            },
        };
        Ok(HookCall { tool, server, input, session_id })
    }
}

/// Returns the server in a name such as `mcp__SERVER__TOOL`; `None` if the name can be read in two ways.
fn server_in(tool: &str) -> Option<String> {
    let (server, own) = tool.strip_prefix("mcp__")?.split_once("__")?;
    // Of `mcp__a___b`, the server can be `a` or `a_`.
    let is_certain =
        !server.is_empty() && !own.is_empty() && !own.starts_with('_') && !own.contains("__");
    is_certain.then(|| server.to_owned())
}

fn text(members: &Map<String, Value>, name: &'static str) -> Result<String, HookError> {
    let found = members.get(name).and_then(Value::as_str).filter(|text| !text.is_empty());
    found.map(str::to_owned).ok_or(HookError::NoMember(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_that_is_not_understood_has_its_reason() {
        let odd = [
            ("", "no JSON"),
            ("[]", "no object"),
            (r#"{"hook_event_name":"Stop"}"#, "about the event `Stop`"),
            (r#"{"hook_event_name":"PreToolUse"}"#, "`tool_name`"),
            (r#"{"hook_event_name":"PreToolUse","tool_name":""}"#, "`tool_name`"),
            (r#"{"hook_event_name":"PreToolUse","tool_name":"Bash"}"#, "`tool_input`"),
            (
                r#"{"hook_event_name":"PreToolUse","tool_name":"Bash","tool_input":[]}"#,
                "`tool_input`",
            ),
            (r#"{"hook_event_name":"PreToolUse","tool_name":"Bash","tool_name":"Read"}"#, "twice"),
            (
                r#"{"hook_event_name":"PreToolUse","tool_name":"Bash","tool_input":{},"session_id":7}"#,
                "`session_id`",
            ),
        ];
        for (message, reason) in odd {
            let error = HookClient::Claude.read(message.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(reason), "{message}: {error}");
        }
        let of_codex =
            r#"{"hook_event_name":"PreToolUse","tool_name":"Bash","tool_input":{"a":1}}"#;
        assert!(HookClient::Gemini.read(of_codex.as_bytes()).is_err());
        let call = HookClient::Codex.read(of_codex.as_bytes()).unwrap();
        assert_eq!((call.tool.as_str(), call.input.len(), call.session_id), ("Bash", 1, None));
    }

    #[test]
    fn a_server_is_named_only_where_it_is_certain() {
        let of_claude = |tool: &str| {
            let message =
                json!({ "hook_event_name": "PreToolUse", "tool_name": tool, "tool_input": {} });
            HookClient::Claude.read(message.to_string().as_bytes()).unwrap().server
        };
        assert_eq!(of_claude("mcp__booth__pay_send").as_deref(), Some("booth"));
        for odd in [
            "Bash",
            "booth",
            "mcp__booth",
            "mcp__booth__",
            "mcp____pay",
            "mcp__a__b__pay",
            "mcp__booth___pay",
            "mcp_a_b",
        ] {
            assert_eq!(of_claude(odd), None, "{odd}");
        }
        let of_gemini = |context: Value| {
            let message = json!({
                "hook_event_name": "BeforeTool", "tool_name": "mcp_booth_pay", "tool_input": {},
                "mcp_context": context,
            });
            HookClient::Gemini.read(message.to_string().as_bytes())
        };
        assert_eq!(of_gemini(Value::Null).unwrap().server, None);
        let own = of_gemini(json!({ "server_name": "booth" })).unwrap();
        assert_eq!(own.server.as_deref(), Some("booth"));
        for odd in [json!({}), json!([]), json!("booth"), json!({ "server_name": 7 })] {
            assert!(of_gemini(odd).is_err());
        }
    }
}
