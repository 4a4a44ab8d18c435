//! Defines the command line.
//!
//! Doc: formats.md#commands

mod clients;
mod policy;
mod records;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

pub(crate) use clients::{ClientArgs, HookArgs, Import};
pub(crate) use policy::{LockAction, Policy};
pub(crate) use records::{
    Approvals, Audit, EventFilterArgs, EventFormat, ExportFormat, Keys, LogFilterArgs, Logs,
    PauseArgs, PruneWhat, Receipts, ResolvedAs, Store,
};

use crate::output::Format;

/// The gateway every AI-agent tool call passes through.
#[derive(Debug, Parser)]
#[command(
    name = "toolbooth",
    version,
    about,
    max_term_width = 100,
    after_help = "\
Examples:
  toolbooth init                                   write a commented configuration
  toolbooth serve                                  start the gateway on the loopback address
  toolbooth call calculator --args '{\"expression\": \"2^10\"}'
  toolbooth audit verify                           re-compute every digest of the records"
)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct Global {
    /// The configuration file; default: the nearest `toolbooth.toml` from this folder upwards.
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// The data folder; default: `.toolbooth` next to the configuration.
    #[arg(long, global = true, value_name = "FOLDER")]
    pub(crate) data: Option<PathBuf>,
    /// Trust this configuration, with any content, for this run; must be in use. Also: `TOOLBOOTH_TRUST`.
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) trust: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct Shown {
    /// The output format.
    #[arg(long, value_enum, default_value = "table")]
    pub(crate) format: Format,
}

#[derive(Debug, Args)]
pub(crate) struct Context {
    /// The name of the agent.
    #[arg(long, default_value = "cli")]
    pub(crate) agent: String,
    /// The number of the agent's turn.
    #[arg(long)]
    pub(crate) turn: Option<u64>,
    /// The phase of the agent's work.
    #[arg(long)]
    pub(crate) phase: Option<String>,
    /// The session that the call belongs to.
    #[arg(long, value_name = "SESSION")]
    pub(crate) session: Option<String>,
    /// The epic that the call belongs to.
    #[arg(long)]
    pub(crate) epic: Option<String>,
    /// The call's id.
    #[arg(long)]
    pub(crate) call_id: Option<String>,
    /// The idempotency key.
    #[arg(long)]
    pub(crate) idempotency_key: Option<String>,
    /// The caller: `local`, `key:NAME`, `jwt:ISSUER#SUBJECT`, or a set of `[callers]` that names one.
    #[arg(long, default_value = "local")]
    pub(crate) caller: String,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Writes a commented `toolbooth.toml` and an empty registry into this folder.
    Init,
    /// Shows the processes, files and hosts of a configuration, and trusts it after confirmation.
    #[command(
        after_help = "Examples:\n  toolbooth trust                  the configuration of this folder\n  toolbooth trust clone/ --show    what it starts; trusts nothing"
    )]
    Trust {
        /// A configuration, or its folder; default: the one in use here.
        path: Option<PathBuf>,
        /// Trust it without asking.
        #[arg(long, short, conflicts_with_all = ["show", "forget", "list"])]
        yes: bool,
        /// Only show it; exit code 1 if it is not trusted.
        #[arg(long, conflicts_with_all = ["forget", "list"])]
        show: bool,
        /// Remove its trust.
        #[arg(long, conflicts_with = "list")]
        forget: bool,
        /// List the trusted configurations.
        #[arg(long, conflicts_with = "path")]
        list: bool,
        #[command(flatten)]
        shown: Shown,
    },
    /// Checks a registry file and reports every error in it.
    #[command(after_help = "Example: toolbooth check tools.registry.json --format json")]
    Check {
        /// The file; default: the configured one.
        file: Option<PathBuf>,
        #[command(flatten)]
        shown: Shown,
    },
    /// Checks the rules of the policy, and explains decisions.
    #[command(subcommand)]
    Policy(Policy),
    /// Lists the tools that a caller can see.
    List {
        /// The caller: `local`, `key:NAME`, `jwt:ISSUER#SUBJECT`, or a set of `[callers]` that names one.
        #[arg(long, default_value = "local")]
        caller: String,
        /// The maximum number of tools.
        #[arg(long)]
        limit: Option<usize>,
        /// Continue after this tool id.
        #[arg(long)]
        after: Option<String>,
        #[command(flatten)]
        shown: Shown,
    },
    /// Searches tools by name, description and parameters.
    #[command(after_help = "Example: toolbooth search 'send a message' --limit 5")]
    Search {
        /// The search text.
        query: String,
        /// The caller: `local`, `key:NAME`, `jwt:ISSUER#SUBJECT`, or a set of `[callers]` that names one.
        #[arg(long, default_value = "local")]
        caller: String,
        /// The maximum number of tools.
        #[arg(long, default_value_t = 10)]
        limit: usize,
        #[command(flatten)]
        shown: Shown,
    },
    /// Shows one tool: its contract, its source, and whether it can run.
    Show {
        /// The id of the tool, or its name on the wire.
        tool: String,
        /// The caller: `local`, `key:NAME`, `jwt:ISSUER#SUBJECT`, or a set of `[callers]` that names one.
        #[arg(long, default_value = "local")]
        caller: String,
        #[command(flatten)]
        shown: Shown,
    },
    /// Runs one call through the whole call path.
    #[command(
        after_help = "Example: toolbooth call read_file --args '{\"path\": \"README.md\"}' --explain"
    )]
    Call {
        /// The id of the tool, or its name on the wire.
        tool: String,
        /// The arguments: JSON, `@FILE`, or `-` for standard input.
        #[arg(long, default_value = "{}", value_name = "JSON|@FILE|-", allow_hyphen_values = true)]
        args: String,
        #[command(flatten)]
        context: Context,
        /// Show the action and the time of each stage.
        #[arg(long)]
        explain: bool,
        #[command(flatten)]
        shown: Shown,
    },
    /// Runs a plan: several calls in a given order.
    #[command(after_help = "Example: toolbooth plan '{\"tools\": [\"a\", \"b\"]}'")]
    Plan {
        /// The plan: JSON, a file, or `-` for standard input.
        #[arg(value_name = "JSON|FILE|-", allow_hyphen_values = true)]
        plan: String,
        /// The caller: `local`, `key:NAME`, `jwt:ISSUER#SUBJECT`, or a set of `[callers]` that names one.
        #[arg(long, default_value = "local")]
        caller: String,
        #[command(flatten)]
        shown: Shown,
    },
    /// Serves MCP and HTTP on the loopback address, or behind a proxy.
    #[command(after_help = "Example: toolbooth serve --http 127.0.0.1:0")]
    Serve {
        /// The address to listen on; default: `http.listen` of the configuration, or 127.0.0.1:7717.
        #[arg(long, value_name = "ADDR")]
        http: Option<String>,
    },
    /// Serves MCP over standard input and output.
    #[command(after_help = "Examples:\n  toolbooth stdio\n  toolbooth stdio --toolset reading")]
    Stdio {
        /// The tool set to serve (`[toolsets.NAME]`); default: all tools.
        #[arg(long, value_name = "NAME")]
        toolset: Option<String>,
    },
    /// Runs submitted asynchronous calls until it is stopped.
    #[command(after_help = "Example: toolbooth worker --at-once 8")]
    Worker {
        /// The number of concurrent calls.
        #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=1024))]
        at_once: u32,
    },
    /// Asks the configured sources for their tools and prints the contracts.
    #[command(
        after_help = "Examples:\n  toolbooth discover\n  toolbooth discover --source mcp:files --write"
    )]
    Discover {
        /// Only this source, such as `mcp:files`; can be repeated.
        #[arg(long, value_name = "SOURCE")]
        source: Vec<String>,
        /// Add the contracts that are missing in the registry file to it, for review.
        #[arg(long)]
        write: bool,
        #[command(flatten)]
        shown: Shown,
    },
    /// Records the tool descriptions of servers and commands; later changes need approval before use.
    #[command(
        args_conflicts_with_subcommands = true,
        after_help = "Examples:\n  toolbooth lock                 write the lock file, the first time\n  toolbooth lock diff            what has changed since\n  toolbooth lock approve files.read_file\n  toolbooth lock approve mcp:files --yes"
    )]
    Lock {
        #[command(subcommand)]
        action: Option<LockAction>,
        /// Also approve every change.
        #[arg(long)]
        all: bool,
        #[command(flatten)]
        shown: Shown,
    },
    /// Answers the before-tool hook of a client that runs tools of its own: denied calls are blocked.
    #[command(
        after_help = "Examples:\n  toolbooth hook claude --settings    what to add to the settings of the client\n  toolbooth hook claude --list        the tools that are registered for it"
    )]
    Hook(HookArgs),
    /// Imports the servers of an MCP client, or the operations of an OpenAPI document.
    #[command(
        subcommand,
        after_help = "Examples:\n  toolbooth import claude                 servers of .mcp.json or ~/.claude.json\n  toolbooth import vscode --install       and point the editor at Toolbooth\n  toolbooth import claude --secrets env   and take secrets from variables\n  toolbooth import openapi api.yaml --endpoint shop --write"
    )]
    Import(Import),
    /// Prints tool declarations in the format of a provider.
    #[command(after_help = "Example: toolbooth export --for gemini > declarations.json")]
    Export {
        /// The format.
        #[arg(long = "for", alias = "format", value_enum, value_name = "FORM")]
        form: Form,
        /// Mark every property as required, for formats with a strict mode.
        #[arg(long)]
        strict: bool,
        /// The caller: `local`, `key:NAME`, `jwt:ISSUER#SUBJECT`, or a set of `[callers]` that names one.
        #[arg(long, default_value = "local")]
        caller: String,
    },
    /// Reports for every tool whether it can run.
    Coverage {
        /// Fail if this file differs from the output.
        #[arg(long, value_name = "FILE")]
        check: Option<PathBuf>,
        /// Connect to the sources.
        #[arg(long)]
        probe: bool,
        /// The output format.
        #[arg(long, value_enum)]
        format: Option<CoverageFormat>,
    },
    /// Reads and verifies the audit log.
    #[command(subcommand)]
    Audit(Audit),
    /// Reads the agent logs.
    #[command(subcommand)]
    Logs(Logs),
    /// Reads the receipts, resolves unknown outcomes, removes old records.
    #[command(subcommand)]
    Receipts(Receipts),
    /// Lists the approvals of calls, and grants or rejects them.
    #[command(subcommand)]
    Approvals(Approvals),
    /// Creates, lists and revokes the API keys of callers.
    #[command(subcommand)]
    Keys(Keys),
    /// Refuses calls from now on: all of them, or those of one tool, server or caller.
    #[command(after_help = "\
Examples:
  toolbooth pause --caller key:intern --reason \"sends too much\"
  toolbooth pause --server mail --now          running calls are cancelled too
  toolbooth pause --list")]
    Pause {
        #[command(flatten)]
        target: PauseArgs,
        /// Cancel the running calls too.
        #[arg(long)]
        now: bool,
        /// The reason, for the records.
        #[arg(long, value_name = "TEXT")]
        reason: Option<String>,
        /// List the pauses in force instead.
        #[arg(long, conflicts_with_all = ["tool", "server", "caller", "now", "reason"])]
        list: bool,
        #[command(flatten)]
        shown: Shown,
    },
    /// Accepts calls again that `pause` refused.
    Resume {
        #[command(flatten)]
        target: PauseArgs,
        #[command(flatten)]
        shown: Shown,
    },
    /// Backs up and restores the records.
    #[command(subcommand)]
    Store(Store),
    /// Finds problems of the installation and shows how to fix them.
    Doctor {
        #[command(flatten)]
        shown: Shown,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Form {
    Gemini,
    Openai,
    OpenaiResponses,
    Anthropic,
    Mcp,
    Registry,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum CoverageFormat {
    Table,
    Json,
    Md,
}
