//! The commands about clients: imports, hooks and their configurations.
//!
//! Doc: formats.md#commands

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use toolbooth_import::HookClient;

use super::Shown;
use crate::import::secrets::SecretStorage;

#[derive(Debug, Subcommand)]
pub(crate) enum Import {
    /// `.mcp.json`, `~/.claude.json` (with the project of this folder), `claude_desktop_config.json`.
    Claude(ClientArgs),
    /// `.gemini/settings.json`, with its discovery and call commands.
    Gemini(ClientArgs),
    /// `.cursor/mcp.json`.
    Cursor(ClientArgs),
    /// `.vscode/mcp.json`.
    Vscode(ClientArgs),
    /// `~/.codex/config.toml`.
    Codex(ClientArgs),
    /// Operations of an OpenAPI 3 document, as contracts of endpoint tools.
    Openapi {
        /// The document, JSON or YAML.
        file: PathBuf,
        /// The name of the endpoint; the tools are named `NAME.OPERATION`.
        #[arg(long, value_name = "NAME")]
        endpoint: String,
        /// Write the contracts to the registry file instead of printing them.
        #[arg(long)]
        write: bool,
        #[command(flatten)]
        shown: Shown,
    },
}

#[derive(Debug, Args)]
pub(crate) struct HookArgs {
    /// The client.
    #[arg(value_enum)]
    pub(crate) client: HookedClient,
    /// Seconds in which the hook answers; the client's own timeout must be longer.
    #[arg(long, default_value_t = 30, value_name = "SECONDS", value_parser = clap::value_parser!(u16).range(1..=3600))]
    pub(crate) timeout: u16,
    /// Print the lines to add to the settings of the client.
    #[arg(long, conflicts_with = "list")]
    pub(crate) settings: bool,
    /// List the tools that the hook can permit.
    #[arg(long)]
    pub(crate) list: bool,
    /// Decide on the message on standard input, for the process with this id, which answers.
    #[arg(long, hide = true, value_name = "PROCESS", conflicts_with_all = ["settings", "list"])]
    pub(crate) decide: Option<u32>,
    #[command(flatten)]
    pub(crate) shown: Shown,
}

impl HookArgs {
    /// Whether the client's hook runs the command.
    pub(crate) fn answers(&self) -> bool {
        !(self.settings || self.list || self.decide.is_some())
    }

    /// The time in which the hook answers.
    pub(crate) fn limit(&self) -> Duration {
        Duration::from_secs(self.timeout.into())
    }
}

/// A client with hooks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum HookedClient {
    Claude,
    Codex,
    Gemini,
}

impl From<HookedClient> for HookClient {
    fn from(client: HookedClient) -> Self {
        match client {
            HookedClient::Claude => Self::Claude,
            HookedClient::Codex => Self::Codex,
            HookedClient::Gemini => Self::Gemini,
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct ClientArgs {
    /// The client's file; default: the standard locations.
    pub(crate) file: Option<PathBuf>,
    /// Replace the servers that answered by Toolbooth in the client's file, after a backup.
    #[arg(long, conflicts_with_all = ["undo", "dry_run"])]
    pub(crate) install: bool,
    /// Restore the client's file to its state before `--install`.
    #[arg(long, conflicts_with = "dry_run")]
    pub(crate) undo: bool,
    /// Only print the changes; starts no server.
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Do not start the servers to list their tools.
    #[arg(long, conflicts_with = "undo")]
    pub(crate) no_try: bool,
    /// Trust and start the imported servers without asking.
    #[arg(long, short, conflicts_with_all = ["undo", "dry_run"])]
    pub(crate) yes: bool,
    /// Also replace the servers that did not answer.
    #[arg(long, requires = "install")]
    pub(crate) force: bool,
    /// Where to store secrets and other values of the file; default: key ring, or files of mode 0600.
    #[arg(long, value_enum, value_name = "PLACE", conflicts_with = "undo")]
    pub(crate) secrets: Option<SecretStorage>,
    #[command(flatten)]
    pub(crate) shown: Shown,
}
