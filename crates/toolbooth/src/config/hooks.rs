//! The settings of the hooks of clients: `[hooks.claude]`, `[hooks.codex]`, `[hooks.gemini]`.
//!
//! Doc: hooks.md#settings, configuration.md#hooks

use schemars::JsonSchema;
use serde::Deserialize;
use toolbooth_import::HookClient;

/// The clients that ask before they run tools of their own.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Hooks {
    /// Claude Code.
    pub(crate) claude: Option<Hook>,
    /// Codex.
    pub(crate) codex: Option<Hook>,
    /// Gemini CLI.
    pub(crate) gemini: Option<Hook>,
}

/// The hook of a client. With its section, even an empty one, the tools of the client are registered.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Hook {
    /// The caller that the calls belong to: `local` (the default), `key:NAME` or `jwt:ISSUER#SUBJECT`.
    pub(crate) caller: Option<String>,
    /// The names that this gateway has among the client's MCP servers. Calls of their tools pass the hook,
    /// since the gateway judges them.
    pub(crate) gateways: Vec<String>,
}

impl Hooks {
    /// Returns the hook of a client, if it is configured.
    pub(crate) fn of(&self, client: HookClient) -> Option<&Hook> {
        match client {
            HookClient::Claude => self.claude.as_ref(),
            HookClient::Codex => self.codex.as_ref(),
            HookClient::Gemini => self.gemini.as_ref(),
        }
    }
}
