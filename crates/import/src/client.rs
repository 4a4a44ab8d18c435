//! MCP clients, and the locations of their configuration.
//!
//! Doc: importing.md#clients

use std::path::PathBuf;

/// A client with a supported configuration format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Client {
    /// `.mcp.json`, `~/.claude.json`, `claude_desktop_config.json`.
    Claude,
    /// `.gemini/settings.json`.
    Gemini,
    /// `.cursor/mcp.json`.
    Cursor,
    /// `.vscode/mcp.json`, with comments.
    Vscode,
    /// `~/.codex/config.toml`.
    Codex,
}

impl Client {
    /// Returns the paths that are tried, in this order, if no file is specified.
    #[must_use]
    pub fn default_paths(self) -> Vec<PathBuf> {
        let home = std::env::var_os("HOME").map(PathBuf::from).unwrap_or_default();
        match self {
            Self::Claude => vec![PathBuf::from(".mcp.json"), home.join(".claude.json")],
            Self::Gemini => {
                vec![PathBuf::from(".gemini/settings.json"), home.join(".gemini/settings.json")]
            }
            Self::Cursor => {
                vec![PathBuf::from(".cursor/mcp.json"), home.join(".cursor/mcp.json")]
            }
            Self::Vscode => vec![PathBuf::from(".vscode/mcp.json")],
            Self::Codex => {
                vec![PathBuf::from(".codex/config.toml"), home.join(".codex/config.toml")]
            }
        }
    }

    /// Returns the member of the file that contains its servers.
    pub(crate) fn member(self) -> &'static str {
        match self {
            Self::Vscode => "servers",
            Self::Codex => "mcp_servers",
            _ => "mcpServers",
        }
    }
}
